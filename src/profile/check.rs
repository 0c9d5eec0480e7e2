//! What a profile must fulfil: the format, sources that exist, figures in ranges that some device or model can
//! have, and no contradictions. A figure far outside its range is mostly one in another unit, and is called so.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use super::catalog::{self, Catalog};
use super::{Accelerator, EngineDefaults, Facts, Figure, FigureRow, Instance, Kind, Model};
use crate::input::{InputError, nearest};
use crate::yaml;

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The profile cannot be used.
    Error,
    /// It can, but something looks odd.
    Warning,
}

/// Something wrong with a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The field.
    pub place: String,
    /// What was found.
    pub found: String,
    /// What is allowed, or how to mend it.
    pub allowed: String,
    /// The nearest valid name, when a name was unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
}

impl Problem {
    /// A problem without a nearest name.
    pub fn new(
        severity: Severity,
        place: impl Into<String>,
        found: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            place: place.into(),
            found: found.into(),
            allowed: allowed.into(),
            nearest: None,
        }
    }

    /// As an error about the file `origin`.
    pub fn into_error(self, origin: &str) -> InputError {
        let mut error = InputError::new(origin, self.found)
            .at(self.place)
            .allowed(self.allowed);
        error.nearest = self.nearest;
        error
    }
}

impl From<InputError> for Problem {
    fn from(e: InputError) -> Self {
        Self {
            severity: Severity::Error,
            place: e.place.unwrap_or_default(),
            found: e.found,
            allowed: e.allowed.unwrap_or_default(),
            nearest: e.nearest,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.found)?;
        if !self.allowed.is_empty() {
            write!(f, "; {}", self.allowed)?;
        }
        match &self.nearest {
            Some(name) => write!(f, "; did you mean '{name}'?"),
            None => Ok(()),
        }
    }
}

/// The range in which a figure of this name can lie, and the factors that turn figures in other units into it.
struct Range {
    name: &'static str,
    low: f64,
    high: f64,
    unit: &'static str,
    mistakes: &'static [(f64, &'static str)],
}

const BYTES: &[(f64, &str)] = &[(1e9, "GB"), (1e6, "MB")];
const RATE: &[(f64, &str)] = &[(1e-9, "bytes/s"), (1e3, "TB/s"), (1e-3, "MB/s")];
const FLOPS: &[(f64, &str)] = &[(1e-12, "FLOP/s"), (1e3, "PFLOP/s"), (1e-3, "GFLOP/s")];
const POWER: &[(f64, &str)] = &[(1e-3, "mW"), (1e3, "kW")];
const BITS: &[(f64, &str)] = &[(0.125, "bits")];
const COUNT: &[(f64, &str)] = &[(1e9, "billions"), (1e6, "millions")];
const NONE: &[(f64, &str)] = &[];

const fn range(
    name: &'static str,
    low: f64,
    high: f64,
    unit: &'static str,
    mistakes: &'static [(f64, &'static str)],
) -> Range {
    Range {
        name,
        low,
        high,
        unit,
        mistakes,
    }
}

/// Wide on purpose: from a phone's chip to what may be announced in a few years. The upper ends of a model's
/// dimensions also keep the products of the parameter count inside 64 bits.
static RANGES: &[Range] = &[
    range("memory_bytes", 1e8, 1e13, "bytes", BYTES),
    range("runtime_reserve_bytes", 1e6, 1e12, "bytes", BYTES),
    range(
        "memory_bandwidth_gb_s",
        5.0,
        1e5,
        "GB/s",
        &[
            (1e-9, "bytes/s"),
            (1e3, "TB/s"),
            (1e-3, "MB/s"),
            (0.125, "Gbit/s"),
        ],
    ),
    range("bf16_tflops", 0.05, 1e5, "TFLOP/s", FLOPS),
    range("fp8_tflops", 0.05, 2e5, "TFLOP/s", FLOPS),
    range("int8_tops", 0.05, 2e5, "TOP/s", FLOPS),
    range("fp4_tflops", 0.05, 4e5, "TFLOP/s", FLOPS),
    range("cores", 1.0, 1024.0, "cores", &[]),
    range("on_chip_bytes", 1e5, 1e11, "bytes", &[(1048576.0, "MiB")]),
    range("scaleup_gb_s", 0.5, 1e4, "GB/s in one direction", RATE),
    range("pcie_gb_s", 0.5, 2e3, "GB/s in one direction", RATE),
    range("tdp_w", 1.0, 1e4, "W", POWER),
    range("idle_w", 0.1, 2e3, "W", POWER),
    range("count", 1.0, 1024.0, "accelerators", NONE),
    range(
        "nic_gbps",
        0.05,
        1e5,
        "Gbit/s",
        &[(1e-9, "bit/s"), (1e-3, "Mbit/s")],
    ),
    range("on_demand_usd_h", 1e-3, 5e3, "USD an hour", NONE),
    range("parameters", 1e5, 1e14, "parameters", COUNT),
    range("published_parameters", 1e5, 1e14, "parameters", COUNT),
    range("active_parameters", 1e5, 1e14, "parameters", COUNT),
    range("published_active_parameters", 1e5, 1e14, "parameters", COUNT),
    range("layers", 1.0, 1024.0, "layers", NONE),
    range("hidden", 1.0, 131_072.0, "wide", NONE),
    range("intermediate", 1.0, 1_048_576.0, "wide", NONE),
    range("heads", 1.0, 4096.0, "heads", NONE),
    range("kv_heads", 1.0, 4096.0, "heads", NONE),
    range("head_dim", 1.0, 4096.0, "wide", NONE),
    range("vocab", 1.0, 1e7, "entries", NONE),
    range("max_positions", 1.0, 1e9, "tokens", NONE),
    range("weight_bytes", 0.1, 4.0, "bytes", BITS),
    range("kv_bytes", 1.0, 4.0, "bytes", BITS),
    range("moe.experts", 1.0, 4096.0, "experts", NONE),
    range("moe.experts_per_token", 1.0, 4096.0, "experts", NONE),
    range("moe.intermediate", 1.0, 1_048_576.0, "wide", NONE),
    range("moe.shared_experts", 0.0, 4096.0, "experts", NONE),
    range("moe.shared_intermediate", 0.0, 1_048_576.0, "wide", NONE),
    range("moe.first_dense_layers", 0.0, 1024.0, "layers", NONE),
    range("moe.every", 1.0, 1024.0, "layers", NONE),
    range("moe.expert_weight_bytes", 0.1, 4.0, "bytes", BITS),
    range("mla.q_lora_rank", 0.0, 65_536.0, "wide", NONE),
    range("mla.kv_lora_rank", 1.0, 65_536.0, "wide", NONE),
    range("mla.qk_nope_head_dim", 1.0, 4096.0, "wide", NONE),
    range("mla.qk_rope_head_dim", 0.0, 4096.0, "wide", NONE),
    range("mla.v_head_dim", 1.0, 4096.0, "wide", NONE),
    range("window.tokens", 1.0, 1e9, "tokens", NONE),
    range("window.full_every", 0.0, 1024.0, "layers", NONE),
];

/// The problem of a figure outside its range.
fn outside(row: &FigureRow<'_>) -> Option<Problem> {
    let range = RANGES.iter().find(|r| r.name == row.name)?;
    let value: f64 = row.value.parse().ok()?;
    let fits = |v: f64| v >= range.low && v <= range.high;
    if fits(value) {
        return None;
    }
    let guess = range.mistakes.iter().find(|(factor, _)| fits(value * factor));
    let hint = guess.map_or(String::new(), |(factor, unit)| {
        format!(
            ", which looks like {unit}: it would be {} {}",
            value * factor,
            range.unit
        )
    });
    Some(Problem::new(
        Severity::Error,
        row.name,
        format!("found {}{hint}", row.value),
        format!("allowed: {} to {} {}", range.low, range.high, range.unit),
    ))
}

/// A figure that must not exceed another, where both are known.
pub(super) fn not_above(
    low_name: &str,
    low: &Option<Figure<f64>>,
    high_name: &str,
    high: &Option<Figure<f64>>,
) -> Option<Problem> {
    let (low, high) = (low.as_ref()?.value, high.as_ref()?.value);
    (low > high).then(|| {
        Problem::new(
            Severity::Error,
            high_name,
            format!("found {high}, below {low_name} {low}"),
            format!("allowed: at least {low_name}; are the two mixed up, or is one of them with sparsity?"),
        )
    })
}

/// Everything wrong with a profile, errors first.
pub fn problems<T: Facts>(profile: &T) -> Vec<Problem> {
    let mut found = Vec::new();
    if profile.format() != 1 {
        found.push(Problem::new(
            Severity::Error,
            "kneeboard_profile",
            format!("found format version {}", profile.format()),
            "allowed: 1",
        ));
    }
    let sources = profile.sources();
    for row in &profile.figures() {
        if !sources.contains_key(row.source) {
            let names = sources.keys().map(String::as_str);
            let known = names.clone().collect::<Vec<_>>().join(", ");
            let mut problem = Problem::new(
                Severity::Error,
                row.name,
                format!("unknown source '{}'", row.source),
                format!("name one of the profile's sources: {known}"),
            );
            problem.nearest = nearest(row.source, names);
            found.push(problem);
        }
        found.extend(outside(row));
    }
    for (key, text) in sources {
        if text.trim().is_empty() {
            found.push(Problem::new(
                Severity::Error,
                format!("sources.{key}"),
                "the source is empty",
                "say where the figures come from",
            ));
        }
    }
    // Products of absurd dimensions overflow; a contradiction says nothing beside them anyway.
    if found.is_empty() {
        found.extend(profile.contradictions());
        let figures = profile.figures();
        // Without any figure, what is cited is the description.
        let unused = |key: &&String| !figures.is_empty() && figures.iter().all(|f| f.source != **key);
        found.extend(sources.keys().filter(unused).map(|key| {
            Problem::new(
                Severity::Warning,
                format!("sources.{key}"),
                "no figure names this source",
                "remove it, or name it where it belongs",
            )
        }));
    }
    found.sort_by_key(|p| p.severity != Severity::Error);
    found
}

/// Figures outside their ranges.
pub fn out_of_range<T: Facts>(profile: &T) -> Vec<Problem> {
    profile.figures().iter().filter_map(outside).collect()
}

/// Everything wrong with the text of a profile, which is to be called `name`, and of this kind if it is given.
/// That an instance's accelerator exists is looked up in `catalog`.
pub fn text(catalog: &Catalog, text: &str, name: &str, kind: Option<Kind>) -> Vec<Problem> {
    let stated = match kind.map_or_else(|| catalog::kind_of_text(text, ""), Ok) {
        Ok(kind) => kind,
        Err(e) => return vec![Problem::from(e)],
    };
    match stated {
        Kind::Accelerator => parsed::<Accelerator>(text, name, |_| None),
        Kind::Model => parsed::<Model>(text, name, |_| None),
        Kind::Engine => parsed::<EngineDefaults>(text, name, |_| None),
        Kind::Instance => parsed::<Instance>(text, name, |instance| {
            let device = &instance.accelerator.value;
            let unknown = catalog.accelerator(device, Path::new("")).err()?;
            Some(Problem {
                place: "accelerator".to_owned(),
                ..Problem::from(unknown)
            })
        }),
    }
}

fn parsed<T: Facts>(text: &str, name: &str, more: impl Fn(&T) -> Option<Problem>) -> Vec<Problem> {
    let profile: T = match yaml::parse(text, "") {
        Ok(profile) => profile,
        Err(e) => return vec![Problem::from(e)],
    };
    let mut found: Vec<_> = more(&profile).into_iter().collect();
    if profile.name() != name {
        found.push(Problem::new(
            Severity::Error,
            "name",
            format!("found '{}'", profile.name()),
            format!("a profile bears the name of its file, '{name}'"),
        ));
    }
    found.extend(problems(&profile));
    found.sort_by_key(|p| p.severity != Severity::Error);
    found
}

/// The first error of a profile.
///
/// # Errors
/// [`InputError`] about `origin`.
pub fn refuse_errors<T: Facts>(profile: &T, origin: &str) -> Result<(), InputError> {
    match problems(profile)
        .into_iter()
        .find(|p| p.severity == Severity::Error)
    {
        Some(problem) => Err(problem.into_error(origin)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shipped H100 with one text replaced.
    fn h100(from: &str, to: &str) -> Vec<Problem> {
        let good = catalog::text("h100-sxm").unwrap();
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        let profile: Accelerator = crate::yaml::parse(&bad, "h100").unwrap();
        problems(&profile)
    }

    #[test]
    fn figures_in_other_units_are_called_so() {
        for (from, to, place, hint) in [
            ("value: 85899345920", "value: 80", "memory_bytes", "GB"),
            (
                "value: 3350,",
                "value: 3350000000000,",
                "memory_bandwidth_gb_s",
                "bytes/s",
            ),
            ("value: 3350,", "value: 3.35,", "memory_bandwidth_gb_s", "TB/s"),
            ("value: 989,", "value: 989000000000000,", "bf16_tflops", "FLOP/s"),
            ("tdp_w: {value: 700", "tdp_w: {value: 0.7", "tdp_w", "kW"),
            ("value: 52428800", "value: 50", "on_chip_bytes", "MiB"),
        ] {
            let found = h100(from, to);
            let problem = &found[0];
            assert_eq!(problem.place, place);
            assert!(
                problem.found.contains(&format!("looks like {hint}:")),
                "{problem}"
            );
        }
    }

    #[test]
    fn rates_that_contradict_each_other_are_errors() {
        let found = h100("fp8_tflops: {value: 1979", "fp8_tflops: {value: 500");
        assert_eq!(found[0].place, "fp8_tflops");
        let found = h100("idle_w: {value: 75", "idle_w: {value: 750");
        assert_eq!(found[0].place, "tdp_w");
    }

    #[test]
    fn bits_for_bytes_and_billions_for_parameters_are_noticed() {
        let good = catalog::text("llama-3.1-8b").unwrap();
        for (from, to, hint) in [
            ("weight_bytes: {value: 2.0", "weight_bytes: {value: 16", "bits"),
            (
                "parameters: {value: 8029995008",
                "parameters: {value: 8",
                "billions",
            ),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            let profile: Model = crate::yaml::parse(&bad, "m").unwrap();
            let found = problems(&profile);
            assert!(found[0].found.contains(hint), "{}", found[0]);
        }
    }

    #[test]
    fn absurd_dimensions_are_refused_before_anything_is_multiplied() {
        let good = catalog::text("deepseek-v3").unwrap();
        let most = u32::MAX.to_string();
        let bad = good
            .replace("experts: {value: 256", &format!("experts: {{value: {most}"))
            .replace("hidden: {value: 7168", &format!("hidden: {{value: {most}"))
            .replace(
                "intermediate: {value: 2048",
                &format!("intermediate: {{value: {most}"),
            );
        let profile: Model = crate::yaml::parse(&bad, "m").unwrap();
        let places: Vec<_> = problems(&profile).into_iter().map(|p| p.place).collect();
        assert_eq!(
            places,
            [
                "hidden",
                "moe.experts",
                "moe.intermediate",
                "moe.shared_intermediate"
            ]
        );
    }

    #[test]
    fn an_unused_source_is_a_warning_only() {
        let found = h100("sources:\n", "sources:\n  spare: \"a book\"\n");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].severity, Severity::Warning);
        let profile: Accelerator = crate::yaml::parse(catalog::text("h100-sxm").unwrap(), "h100").unwrap();
        assert_eq!(problems(&profile), []);
    }
}
