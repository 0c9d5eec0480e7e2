//! The fit file of the roofline: parameters with what is known of them, and where they hold. YAML, unknown fields
//! refused, sealed with a checksum.

use std::collections::BTreeSet;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::deployment::Deployment;
use super::parameters::{PARAMS, Param, Parameters, SPECS};
use super::seal::{require_seal, seal};
use crate::input::{InputError, read_text};
use crate::yaml;

/// The version of the file's format.
pub const ROOFLINE_FIT_FORMAT: u32 = 2;

/// A fit of the roofline's parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RooflineFit {
    /// Format of this file, [`ROOFLINE_FIT_FORMAT`].
    pub kneeboard_fit: u32,
    /// `roofline`.
    pub form: Form,
    /// Name in reports.
    pub name: String,
    /// Program and version that fitted.
    pub fitted_with: String,
    /// From what it was fitted.
    pub door: Door,
    /// The command that makes this file from its data.
    pub command: String,
    /// For which devices, formats and engines it speaks.
    pub speaks_for: SpeaksFor,
    /// The parameters, all of them, in the order of the model.
    pub parameters: Vec<FittedParameter>,
    /// Pairs of parameters whose errors go together: correlation of the logarithms, beyond 0.3.
    pub correlation: Vec<Correlation>,
    /// Parameter vectors that agree with the data about as well, from resampled runs and resampled priors; each in
    /// the order of `parameters`.
    pub draws: Vec<Vec<f64>>,
    /// What predictions miss by beyond the draws.
    pub misfit: Vec<Misfit>,
    /// Ranges of what the data held; outside, a prediction is an extrapolation.
    pub hull: Vec<FitRange>,
    /// Relative errors of what was fitted.
    pub residuals: Vec<FitError>,
    /// Relative errors of what was left out in turn.
    pub held_out: Vec<FitError>,
    /// The data.
    pub data: Vec<FitData>,
    /// What a reader must know before trusting it.
    pub notes: Vec<String>,
}

/// The word `roofline`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// The model of [`super::roofline`].
    Roofline,
}

/// From what parameters were fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Door {
    /// Measured kernels.
    Kernels,
    /// Measured steps.
    Steps,
    /// Request times of whole runs.
    Events,
    /// Summary figures of runs.
    Points,
}

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

impl RooflineFit {
    /// Reads and checks a fit.
    ///
    /// # Errors
    /// [`InputError`] for a broken checksum, another format, a parameter that is missing, unknown or out of bounds.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        Self::from_text(&read_text(path)?, path)
    }

    /// A fit out of a file's text; `path` is for errors.
    ///
    /// # Errors
    /// As [`RooflineFit::read`].
    pub fn from_text(text: &str, path: &Path) -> Result<Self, InputError> {
        let body = require_seal(text, path)?;
        let fit: Self = yaml::parse(body, &path.display().to_string())?;
        fit.check(path)?;
        Ok(fit)
    }

    /// The file's text, sealed.
    ///
    /// # Errors
    /// A message when a value cannot be written as YAML.
    pub fn to_yaml(&self) -> Result<String, String> {
        let body = serde_saphyr::to_string(self).map_err(|e| e.to_string())?;
        Ok(seal(&body))
    }

    /// The values as a vector.
    pub fn values(&self) -> Parameters {
        let mut out = Parameters::default();
        for p in &self.parameters {
            if let Some(param) = Param::named(&p.name) {
                out[param] = p.value;
            }
        }
        out
    }

    /// The draws as vectors.
    pub fn parameter_draws(&self) -> Vec<Parameters> {
        self.draws
            .iter()
            .filter_map(|d| Some(Parameters(d.as_slice().try_into().ok()?).clamped()))
            .collect()
    }

    /// Misfit of a figure; `any` statistics of the metric where the figure itself is not listed.
    pub fn misfit(&self, metric: &str, stat: &str) -> Option<f64> {
        let of = |stat: &str| self.misfit.iter().find(|m| m.metric == metric && m.stat == stat);
        of(stat).or_else(|| of("any")).map(|m| m.log_sd)
    }

    /// What of a deployment the fit does not speak for, as [`beyond`] tells.
    pub fn beyond(&self, deployment: &Deployment) -> BTreeSet<String> {
        beyond(&self.speaks_for, &self.hull, deployment)
    }

    fn check(&self, path: &Path) -> Result<(), InputError> {
        let wrong = |place: String, found: String, allowed: String| {
            Err(InputError::in_file(path, found).at(place).allowed(allowed))
        };
        if self.kneeboard_fit != ROOFLINE_FIT_FORMAT {
            return wrong(
                "kneeboard_fit".into(),
                format!("format {} is not known", self.kneeboard_fit),
                ROOFLINE_FIT_FORMAT.to_string(),
            );
        }
        for (spec, index) in SPECS.iter().zip(0..) {
            let Some(p) = self.parameters.get(index) else {
                return wrong(
                    "parameters".into(),
                    format!("'{}' is missing", spec.name),
                    format!("{PARAMS} parameters"),
                );
            };
            let place = format!("parameters[{index}]");
            if p.name != spec.name || p.unit != spec.unit {
                return wrong(
                    place,
                    format!("'{}' in '{}'", p.name, p.unit),
                    format!("'{}' in '{}'", spec.name, spec.unit),
                );
            }
            if !(spec.bounds.0..=spec.bounds.1).contains(&p.value) {
                return wrong(
                    format!("{place}.value"),
                    format!("{} is {}", p.name, p.value),
                    format!("{} to {}", spec.bounds.0, spec.bounds.1),
                );
            }
            // It serves as a prior of other fits.
            if !(0.0..=20.0).contains(&p.log_sd) {
                return wrong(
                    format!("{place}.log_sd"),
                    format!("{} is {}", p.name, p.log_sd),
                    "0 to 20".into(),
                );
            }
        }
        if self.parameters.len() != PARAMS {
            return wrong(
                format!("parameters[{PARAMS}]"),
                "more parameters than the model has".into(),
                format!("{PARAMS} parameters"),
            );
        }
        for (index, draw) in self.draws.iter().enumerate() {
            if draw.len() != PARAMS || draw.iter().any(|v| !(v.is_finite() && *v > 0.0)) {
                return wrong(
                    format!("draws[{index}]"),
                    "not a vector of positive parameters".into(),
                    format!("{PARAMS} positive numbers"),
                );
            }
        }
        for (index, m) in self.misfit.iter().enumerate() {
            if !(0.0..=10.0).contains(&m.log_sd) {
                return wrong(
                    format!("misfit[{index}].log_sd"),
                    m.log_sd.to_string(),
                    "0 to 10".into(),
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "roofline_fit_tests.rs"]
mod tests;
