//! What the fit files of all models have in common: parameters and what is known of them, where they hold, what they miss
//! by, and the checks of these.

use std::collections::BTreeSet;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::deployment::Deployment;
use super::param_table::Spec;
use crate::input::InputError;

/// Whom a fit speaks for. An empty list says nothing about that matter.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeaksFor {
    /// Accelerator profiles.
    pub accelerators: Vec<String>,
    /// Weight formats.
    pub dtypes: Vec<String>,
    /// KV-cache formats.
    pub kv_dtypes: Vec<String>,
    /// Engines with versions, as `vllm 0.15.1`.
    pub engines: Vec<String>,
    /// Models in the data.
    pub models: Vec<String>,
}

/// One parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FittedParameter {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit; `1` for fractions.
    pub unit: String,
    /// Standard deviation of its logarithm.
    pub log_sd: f64,
    /// 5th and 95th percentile.
    pub interval_90: (f64, f64),
    /// Median of the prior.
    pub prior: f64,
    /// Standard deviation of the prior's logarithm.
    pub prior_log_sd: f64,
    /// The data say more about it than the prior did; else it stands at its prior.
    pub identified: bool,
}

/// Two parameters whose errors go together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Correlation {
    /// One.
    pub a: String,
    /// The other.
    pub b: String,
    /// Correlation coefficient.
    pub r: f64,
}

/// Relative scatter of a figure around the prediction, beyond what parameter draws explain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Misfit {
    /// `step` for the speed of a run's steps as a whole, else a metric: `ttft_s`, `tpot_s`, ...
    pub metric: String,
    /// `mean`, `p50`, ..., or `any`.
    pub stat: String,
    /// Standard deviation of the logarithm.
    pub log_sd: f64,
    /// Figures behind it.
    pub n: u32,
}

/// A range seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FitRange {
    /// The axis, unit included.
    pub axis: String,
    /// Smallest value.
    pub low: f64,
    /// Largest value.
    pub high: f64,
}

/// One error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FitError {
    /// What was left out (`run NAME`, `model NAME`), or the regime of what was fitted.
    pub of: String,
    /// The run, or `all`.
    pub run: String,
    /// Metric with its unit.
    pub metric: String,
    /// Which statistic.
    pub stat: String,
    /// Measured; none for a summary over many.
    pub actual: Option<f64>,
    /// Predicted; none for a summary over many.
    pub predicted: Option<f64>,
    /// (predicted - actual) / actual; the median for a summary (signed bias).
    pub rel_error: f64,
    /// The 90 % interval at that moment, where one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_90: Option<(f64, f64)>,
    /// Figures behind it.
    pub n: u32,
}

/// A source of the fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FitData {
    /// The run or file.
    pub run: String,
    /// SHA-256 of its uncompressed text.
    pub sha256: String,
    /// Requests, steps, rows or kernels used.
    pub n: u64,
}

/// What of a deployment a fit does not speak for: `accelerator`, `dtype`, `kv_dtype`, `model`, `tp`, `pp`, `ep`.
pub fn beyond(speaks: &SpeaksFor, hull: &[FitRange], deployment: &Deployment) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let mut check = |axis: &str, known: &[String], value: &str| {
        if !known.is_empty() && !known.iter().any(|k| k == value) {
            out.insert(axis.to_owned());
        }
    };
    check("accelerator", &speaks.accelerators, &deployment.accelerator.name);
    check("dtype", &speaks.dtypes, deployment.dtype.name());
    check("dtype", &speaks.dtypes, deployment.expert_dtype.name());
    check("kv_dtype", &speaks.kv_dtypes, deployment.kv_dtype.name());
    check("model", &speaks.models, &deployment.model.name);
    for (axis, value) in [
        ("tp", deployment.tp),
        ("pp", deployment.pp),
        ("ep", deployment.ep),
    ] {
        let seen = hull.iter().find(|r| r.axis == axis);
        if seen.is_some_and(|r| !(r.low..=r.high).contains(&f64::from(value))) {
            out.insert(axis.to_owned());
        }
    }
    out
}

/// Misfit of a figure; `any` statistics of the metric where the figure itself is not listed.
pub(super) fn misfit(listed: &[Misfit], metric: &str, stat: &str) -> Option<f64> {
    let of = |stat: &str| listed.iter().find(|m| m.metric == metric && m.stat == stat);
    of(stat).or_else(|| of("any")).map(|m| m.log_sd)
}

fn wrong(
    path: &Path,
    place: impl std::fmt::Display,
    found: String,
    allowed: impl Into<String>,
) -> Result<(), InputError> {
    Err(InputError::in_file(path, found).at(place).allowed(allowed))
}

pub(super) fn check_format(found: u32, known: u32, path: &Path) -> Result<(), InputError> {
    if found == known {
        return Ok(());
    }
    wrong(
        path,
        "kneeboard_fit",
        format!("format {found} is not known"),
        known.to_string(),
    )
}

/// The parameters are those of `specs`, in order and inside their bounds; draws and misfits are such as can be.
pub(super) fn check_parameters<P>(
    specs: &[Spec<P>],
    parameters: &[FittedParameter],
    draws: &[Vec<f64>],
    misfits: &[Misfit],
    path: &Path,
) -> Result<(), InputError> {
    let count = specs.len();
    for (index, (p, spec)) in parameters.iter().zip(specs).enumerate() {
        check_parameter(p, spec, &format!("parameters[{index}]"), path)?;
    }
    if let Some(spec) = specs.get(parameters.len()) {
        let found = format!("'{}' is missing", spec.name);
        return wrong(path, "parameters", found, format!("{count} parameters"));
    }
    if parameters.len() > count {
        let found = "more parameters than the model has".to_owned();
        return wrong(
            path,
            format!("parameters[{count}]"),
            found,
            format!("{count} parameters"),
        );
    }
    for (index, draw) in draws.iter().enumerate() {
        if draw.len() != count || draw.iter().any(|v| !(v.is_finite() && *v > 0.0)) {
            let found = "not a vector of positive parameters".to_owned();
            return wrong(
                path,
                format!("draws[{index}]"),
                found,
                format!("{count} positive numbers"),
            );
        }
    }
    for (index, m) in misfits.iter().enumerate() {
        if !(0.0..=10.0).contains(&m.log_sd) {
            let place = format!("misfit[{index}].log_sd");
            return wrong(path, place, m.log_sd.to_string(), "0 to 10");
        }
    }
    Ok(())
}

fn check_parameter<P>(
    p: &FittedParameter,
    spec: &Spec<P>,
    place: &str,
    path: &Path,
) -> Result<(), InputError> {
    if p.name != spec.name || p.unit != spec.unit {
        return wrong(
            path,
            place,
            format!("'{}' in '{}'", p.name, p.unit),
            format!("'{}' in '{}'", spec.name, spec.unit),
        );
    }
    let (low, high) = spec.bounds;
    if !(low..=high).contains(&p.value) {
        return wrong(
            path,
            format!("{place}.value"),
            format!("{} is {}", p.name, p.value),
            format!("{low} to {high}"),
        );
    }
    // It serves as a prior of other fits.
    if !(0.0..=20.0).contains(&p.log_sd) {
        return wrong(
            path,
            format!("{place}.log_sd"),
            format!("{} is {}", p.name, p.log_sd),
            "0 to 20",
        );
    }
    Ok(())
}
