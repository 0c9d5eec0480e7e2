//! The fit file: what was fitted, to which data, how well, and where it holds. YAML, unknown fields refused.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fitted::{FittedStepTime, TERM_NAMES, TERMS};
use super::hull::{Hull, axis_names};
use super::seal::{seal, unseal};
use crate::input::{InputError, nearest, read_text};

/// The version of the fit file's format.
pub const FIT_FORMAT: u32 = 1;
/// Name of the one parameter that is not a coefficient: the knee of [`super::fitted`].
const KNEE: (&str, &str) = ("decode_rows_knee", "rows");

/// A fit of step times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// Format of this file, [`FIT_FORMAT`].
    pub kneeboard_fit: u32,
    /// Program and version that fitted.
    pub fitted_with: String,
    /// What the model predicts.
    pub target: String,
    /// The coefficients and the knee.
    pub parameters: Vec<Parameter>,
    /// Parameter vectors of fits to resampled runs: the coefficients and the knee, in the order of `parameters`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub draws: Vec<Vec<f64>>,
    /// Batches the fit has seen.
    pub hull: Hull,
    /// Host times between steps.
    pub host: HostFit,
    /// The way between client and engine, where captures held both clocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front_end: Option<FrontEndTimes>,
    /// Stalls that the machine caused, by scheduling class; they are not in the step times.
    pub stalls: Vec<ClassStalls>,
    /// How probes of the machine's speed scale a prediction, where the captures have probes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_probe: Option<SpeedProbeFit>,
    /// Relative errors, (predicted - measured) / measured, of the steps fitted, by kind of batch.
    pub residuals: Vec<RegimeError>,
    /// Errors on runs that were left out of the fit in turn.
    pub held_out: HeldOut,
    /// How much figures of real repeats of one trace differ, where the captures hold repeats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<RepeatSpread>,
    /// The captures fitted.
    pub data: Vec<DataRun>,
}

/// Spread of one figure between plays of one trace: what a prediction can be expected to miss by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepeatSpread {
    /// Figure with its unit, as `ttft_s`.
    pub metric: String,
    /// `mean`, `p50`, `p90`, `p99`, or `value`.
    pub stat: String,
    /// (largest - smallest) / mean over the plays, averaged over the traces that were repeated.
    pub spread: f64,
    /// Traces behind it.
    pub traces: u32,
}

/// The spreads of two sets of repeats together, each trace counting once.
pub fn merge_repeats(a: &[RepeatSpread], b: &[RepeatSpread]) -> Vec<RepeatSpread> {
    let mut merged = a.to_vec();
    for more in b {
        match merged
            .iter_mut()
            .find(|m| m.metric == more.metric && m.stat == more.stat)
        {
            Some(m) => {
                let (n, k) = (f64::from(m.traces), f64::from(more.traces));
                m.spread = (m.spread * n + more.spread * k) / (n + k).max(1.0);
                m.traces += more.traces;
            }
            None => merged.push(more.clone()),
        }
    }
    merged
}

/// One parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Its name, of [`TERM_NAMES`] or the knee.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Smallest and largest value over the fits that leave one group of runs out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_range: Option<(f64, f64)>,
}

/// Time of the host process around the steps, in seconds (medians).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostFit {
    /// From the end of a step to the start of the next when nothing is added.
    pub between_steps_s: f64,
    /// Gaps behind it.
    pub between_steps_n: u64,
    /// Taking the first request after a step into a busy engine.
    pub add_request_s: f64,
    /// Requests behind it.
    pub add_request_n: u64,
    /// Taking a further request right behind another.
    pub add_further_request_s: Option<f64>,
    /// Requests behind it.
    pub add_further_request_n: u64,
    /// Taking a request into an idle engine, its wake-up included.
    pub add_request_idle_s: Option<f64>,
    /// Requests behind it.
    pub add_request_idle_n: u64,
}

/// Time of the front end (HTTP, tokenizer, hops between processes), in seconds; means over requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FrontEndTimes {
    /// From the client's send to the engine's receipt.
    pub inbound_s: f64,
    /// From the end of a step to the client's receipt of its tokens.
    pub outbound_s: f64,
    /// How much later each further token came than the one before it; 0 for a client that keeps up.
    pub per_output_token_s: f64,
    /// Requests behind it.
    pub requests: u64,
}

/// Stalls of the engines that ran under one scheduling class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassStalls {
    /// The scheduling class, as the manifest tells it; `unknown` where it does not.
    pub scheduler_class: String,
    /// Captures.
    pub runs: u64,
    /// Stalls.
    pub count: u64,
    /// Their length in all, in seconds.
    pub total_s: f64,
    /// Their share of the length of all runs.
    pub share: f64,
    /// Median length of one, in seconds.
    pub median_s: f64,
    /// 90th percentile of the length of one, in seconds.
    pub p90_s: f64,
    /// Median busy time from one to the next in a run, in seconds.
    pub busy_between_s: Option<f64>,
    /// The rule behind them, where they are regular.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BandwidthLimit>,
}

/// A bandwidth limit: once the engine was busy for `busy_s` in a window of `period_s`, its core is taken away
/// until the window ends. Windows follow each other without a gap; idle time neither moves nor resets them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BandwidthLimit {
    /// Length of a window in seconds.
    pub period_s: f64,
    /// Most busy time in a window, in seconds.
    pub busy_s: f64,
    /// Largest error, over the runs, of the stall time that this rule predicts for the run's recorded busy and
    /// idle times, as a share of the run's length.
    pub worst_error_share: f64,
}

/// The machine's speed as fixed work tells it. Runs differ in the fixed cost of a step, and a decode step of few
/// rows is little else: what it takes more or less than the reference, every step does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeedProbeFit {
    /// CPU milliseconds of a decode step of 4 rows on the machine at which the coefficients hold.
    pub decode4_cpu_ms: f64,
    /// Captures with probes.
    pub runs: u64,
    /// Mean absolute error of the left-out runs' summed step time without the probe; none where no run with
    /// a probe could be left out.
    pub held_out_without: Option<f64>,
    /// The same with the probe.
    pub held_out_with: Option<f64>,
}

/// Relative errors of one kind of batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegimeError {
    /// The kind.
    pub regime: String,
    /// Its errors.
    #[serde(flatten)]
    pub error: StepError,
}

/// Relative errors of some steps.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct StepError {
    /// Steps.
    pub steps: u64,
    /// Median signed error.
    pub median: f64,
    /// Median absolute error.
    pub median_abs: f64,
    /// 90th percentile of the absolute error.
    pub p90_abs: f64,
    /// Error of the sum of all step times.
    pub sum: f64,
}

/// Errors on runs left out of the fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldOut {
    /// What was left out at a time.
    pub method: String,
    /// One row a run.
    pub runs: Vec<RunError>,
}

/// Relative errors of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunError {
    /// The run.
    pub run: String,
    /// Its errors.
    #[serde(flatten)]
    pub error: StepError,
    /// Error of the sum when the prediction is scaled by the run's speed probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum_with_probe: Option<f64>,
}

/// A capture that was fitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataRun {
    /// The run.
    pub run: String,
    /// SHA-256 of the uncompressed text of its steps.
    pub steps_sha256: String,
    /// Steps used.
    pub steps: u64,
    /// Steps set aside because the machine stalled in them.
    pub stalled: u64,
    /// Its own constant, in seconds; the model's is the median over the runs.
    pub own_step_s: f64,
    /// Its measured over its predicted step time.
    pub slowness: f64,
}

impl Fit {
    /// Reads and checks a fit file.
    ///
    /// # Errors
    /// [`InputError`] with the place of what is missing, unknown or out of range.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        Self::from_text(&read_text(path)?, path)
    }

    /// A fit out of a file's text; `path` is for errors. Files of before there were checksums have none.
    ///
    /// # Errors
    /// As [`Fit::read`].
    pub fn from_text(text: &str, path: &Path) -> Result<Self, InputError> {
        let body = unseal(text, path)?.unwrap_or(text);
        let fit: Self = serde_saphyr::from_str(body).map_err(|e| yaml_error(path, &e))?;
        fit.check(path)?;
        Ok(fit)
    }

    /// The file's text, sealed.
    ///
    /// # Errors
    /// A message when a value cannot be written as YAML.
    pub fn to_yaml(&self) -> Result<String, String> {
        serde_saphyr::to_string(self)
            .map(|body| seal(&body))
            .map_err(|e| e.to_string())
    }

    /// The models of the draws.
    ///
    /// # Errors
    /// [`InputError`] for a draw that is no model; `path` is for errors.
    pub fn drawn_models(&self, path: &Path) -> Result<Vec<FittedStepTime>, InputError> {
        self.draws
            .iter()
            .enumerate()
            .map(|(index, draw)| {
                let wrong = |found: String| {
                    InputError::in_file(path, found)
                        .at(format!("draws[{index}]"))
                        .allowed(format!(
                            "{TERMS} coefficients and a whole number of rows, each at least 0"
                        ))
                };
                let (coefficients, knee) = match draw.split_last() {
                    Some((knee, c)) if c.len() == TERMS => (c, *knee),
                    _ => return Err(wrong(format!("{} numbers", draw.len()))),
                };
                if !(0.0..=f64::from(u32::MAX)).contains(&knee) || knee.fract() > 0.0 {
                    return Err(wrong(format!("{knee} is not a number of rows")));
                }
                let coefficients = std::array::from_fn(|k| coefficients[k]);
                FittedStepTime::new(coefficients, knee as u32).map_err(|e| wrong(e.to_string()))
            })
            .collect()
    }

    fn check(&self, path: &Path) -> Result<(), InputError> {
        if self.kneeboard_fit != FIT_FORMAT {
            return Err(
                InputError::in_file(path, format!("format {} is not known", self.kneeboard_fit))
                    .at("kneeboard_fit")
                    .allowed(FIT_FORMAT.to_string()),
            );
        }
        let names: Vec<_> = TERM_NAMES.iter().chain([&KNEE]).collect();
        for (index, parameter) in self.parameters.iter().enumerate() {
            let place = format!("parameters[{index}].name");
            if self.parameters[..index].iter().any(|p| p.name == parameter.name) {
                return Err(
                    InputError::in_file(path, format!("'{}' is given twice", parameter.name)).at(place),
                );
            }
            match names.iter().find(|(name, _)| *name == parameter.name) {
                None => {
                    return Err(
                        InputError::in_file(path, format!("'{}' is no parameter", parameter.name))
                            .at(place)
                            .allowed(names.iter().map(|n| n.0).collect::<Vec<_>>().join(", "))
                            .nearest_of(&parameter.name, names.iter().map(|n| n.0)),
                    );
                }
                Some((_, unit)) if *unit != parameter.unit => {
                    return Err(
                        InputError::in_file(path, format!("the unit '{}'", parameter.unit))
                            .at(format!("parameters[{index}].unit"))
                            .allowed(*unit),
                    );
                }
                Some(_) => {}
            }
        }
        self.check_numbers(path)?;
        self.drawn_models(path)?;
        self.model(path).map(|_| ())
    }

    fn check_numbers(&self, path: &Path) -> Result<(), InputError> {
        let wrong = |place: String, value: f64, allowed: &str| {
            Err(InputError::in_file(path, format!("{value} cannot be used"))
                .at(place)
                .allowed(allowed))
        };
        for (name, value) in [
            ("between_steps_s", self.host.between_steps_s),
            ("add_request_s", self.host.add_request_s),
            (
                "add_further_request_s",
                self.host.add_further_request_s.unwrap_or(0.0),
            ),
            ("add_request_idle_s", self.host.add_request_idle_s.unwrap_or(0.0)),
        ] {
            if !(0.0..=1e6).contains(&value) {
                return wrong(format!("host.{name}"), value, "seconds of at least 0");
            }
        }
        if let Some(f) = &self.front_end {
            for (name, value) in [
                ("inbound_s", f.inbound_s),
                ("outbound_s", f.outbound_s),
                ("per_output_token_s", f.per_output_token_s),
            ] {
                if !(0.0..=1e6).contains(&value) {
                    return wrong(format!("front_end.{name}"), value, "seconds of at least 0");
                }
            }
        }
        for (index, class) in self.stalls.iter().enumerate() {
            let Some(limit) = class.limit else { continue };
            if !(limit.period_s > 0.0 && limit.period_s <= 1e6) {
                return wrong(
                    format!("stalls[{index}].limit.period_s"),
                    limit.period_s,
                    "more than 0 seconds",
                );
            }
            if !(limit.busy_s > 0.0 && limit.busy_s <= limit.period_s) {
                return wrong(
                    format!("stalls[{index}].limit.busy_s"),
                    limit.busy_s,
                    "above 0, at most period_s",
                );
            }
        }
        for (index, range) in self.hull.ranges.iter().enumerate() {
            let place = format!("hull[{index}]");
            if !axis_names().contains(&range.axis.as_str()) {
                return Err(InputError::in_file(path, format!("'{}' is no axis", range.axis))
                    .at(place)
                    .allowed(axis_names().join(", "))
                    .nearest_of(&range.axis, axis_names()));
            }
            if !(range.low.is_finite() && range.high.is_finite() && range.low <= range.high) {
                return wrong(place, range.low, "low at most high");
            }
        }
        if let Some(probe) = &self.speed_probe {
            for (name, value) in [("decode4_cpu_ms", probe.decode4_cpu_ms)] {
                if !(value.is_finite() && value > 0.0) {
                    return wrong(format!("speed_probe.{name}"), value, "more than 0 milliseconds");
                }
            }
        }
        Ok(())
    }

    fn value(&self, path: &Path, name: &str) -> Result<f64, InputError> {
        self.parameters
            .iter()
            .find(|p| p.name == name)
            .map(|p| p.value)
            .ok_or_else(|| InputError::in_file(path, format!("has no parameter '{name}'")).at("parameters"))
    }

    /// The step-time model; `path` is for errors.
    ///
    /// # Errors
    /// [`InputError`] when a parameter is missing or out of range.
    pub fn model(&self, path: &Path) -> Result<FittedStepTime, InputError> {
        let mut coefficients = [0.0; TERMS];
        for (slot, (name, _)) in coefficients.iter_mut().zip(TERM_NAMES) {
            *slot = self.value(path, name)?;
        }
        let knee = self.value(path, KNEE.0)?;
        if !(0.0..=f64::from(u32::MAX)).contains(&knee) || knee.fract() > 0.0 {
            return Err(
                InputError::in_file(path, format!("{knee} is not a number of rows"))
                    .at(format!("parameters.{}", KNEE.0))
                    .allowed("a whole number of at least 0"),
            );
        }
        FittedStepTime::new(coefficients, knee as u32)
            .map_err(|e| InputError::in_file(path, e.to_string()).at("parameters"))
    }

    /// Seconds by which every step is longer on a machine on which the decode probe takes this many CPU
    /// milliseconds. `None` when the fit has no reference, when the probe did not make left-out runs better, or
    /// when the time is unusable.
    pub fn step_shift_s(&self, decode4_cpu_ms: f64) -> Option<f64> {
        self.speed_probe
            .as_ref()
            .filter(|p| {
                p.held_out_with
                    .zip(p.held_out_without)
                    .is_some_and(|(with, without)| with < without)
            })
            .map(|p| p.step_shift_s(decode4_cpu_ms))
            .filter(|s| s.is_finite())
    }

    /// Relative error of the speed of a run's steps as a whole, as the runs that were left out tell it: root mean
    /// square of the errors of their summed step time. `None` where nothing was left out.
    pub fn speed_log_sd(&self) -> Option<f64> {
        let errors: Vec<f64> = self
            .held_out
            .runs
            .iter()
            .map(|r| (1.0 + r.sum_with_probe.unwrap_or(r.error.sum)).ln())
            .filter(|e| e.is_finite())
            .collect();
        let n = errors.len();
        (n > 0).then(|| (errors.iter().map(|e| e * e).sum::<f64>() / n as f64).sqrt())
    }

    /// The bandwidth limit of a scheduling class.
    pub fn limit(&self, scheduler_class: &str) -> Option<BandwidthLimit> {
        self.stalls
            .iter()
            .find(|s| s.scheduler_class == scheduler_class)
            .and_then(|s| s.limit)
    }
}

impl SpeedProbeFit {
    /// Seconds by which a step is longer than on the reference machine.
    pub fn step_shift_s(&self, decode4_cpu_ms: f64) -> f64 {
        (decode4_cpu_ms - self.decode4_cpu_ms) / 1e3
    }
}

/// Names and units of all parameters, in the order of the file.
pub fn parameters(coefficients: &[f64; TERMS], knee: u32) -> Vec<Parameter> {
    let knee = (KNEE, f64::from(knee));
    TERM_NAMES
        .into_iter()
        .zip(coefficients.iter().copied())
        .chain([knee])
        .map(|((name, unit), value)| Parameter {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            held_out_range: None,
        })
        .collect()
}

fn yaml_error(path: &Path, error: &serde_saphyr::Error) -> InputError {
    let text = error.without_snippet().to_string();
    let mut wrong = InputError::in_file(path, format!("is not a fit file ({text})"))
        .allowed("a file that `kneeboard calibrate steps` wrote");
    // serde tells the unknown name between backticks and the known ones after it.
    if let (Some(given), Some((_, known))) = (text.split('`').nth(1), text.split_once("expected one of ")) {
        let known = known.split(" at line").next().unwrap_or_default();
        wrong.nearest = nearest(given, known.split(", ").map(|k| k.trim_matches('`')));
    }
    if let Some(location) = error.location() {
        wrong = wrong.at(format!("line {}", location.line()));
    }
    wrong
}

#[cfg(test)]
#[path = "fit_file_tests.rs"]
mod tests;
