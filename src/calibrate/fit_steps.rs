//! Fitting step times to captures: which steps are used, the fit itself, and how good it is.

use std::collections::BTreeMap;

use rand::RngExt;
use rayon::prelude::*;

use super::front_end::front_end_times;
use super::host::fit_host;
use super::observe::Capture;
use super::repeats::spreads_of_repeats;
use super::robust::{self, RobustFit, RunSteps};
use super::{errors, stalls};
use crate::input::InputError;
use crate::rng::{Purpose, stream};
use crate::steptime::fit_file::{
    DataRun, FIT_FORMAT, Fit, HeldOut, Parameter, RunError, SpeedProbeFit, parameters,
};
use crate::steptime::{BatchShape, FittedStepTime, Hull};

/// Fewest steps that a fit is made from.
pub const MIN_STEPS: usize = 50;

/// Significant digits of the numbers in a fit.
const DIGITS: usize = 7;

/// How to fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FitOptions {
    /// Refit with each group of runs left out in turn, to tell the error on runs not seen.
    pub hold_out: bool,
}

impl Default for FitOptions {
    fn default() -> Self {
        Self { hold_out: true }
    }
}

/// Captures that nothing can be fitted to.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// Too few usable steps.
    #[error("only {steps} usable steps in {captures} captures; at least {MIN_STEPS} are needed")]
    TooFewSteps {
        /// Usable steps.
        steps: usize,
        /// Captures.
        captures: usize,
    },
    /// A run of which nothing can be used.
    #[error(
        "{0} has no usable step: it holds no steps.csv (then use `calibrate events`), none computed anything without a \
         stall, or all are off by half; leave it out"
    )]
    NoSteps(String),
    /// The same run twice.
    #[error("the captures {first} and {second} hold the same steps; give each run once")]
    Duplicate {
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// A capture cannot be used.
    #[error(transparent)]
    Capture(#[from] InputError),
    /// The device's profile lacks a figure.
    #[error(transparent)]
    Missing(#[from] crate::steptime::roofline::MissingFigure),
    /// No model came out.
    #[error("the fit has no usable coefficients: {0}")]
    Degenerate(#[from] crate::steptime::fitted::CoefficientError),
}

/// Fits a step-time model to captures. `progress` is told the rounds done and their number.
///
/// # Errors
/// [`FitError`] when there are too few steps, or a run is given twice.
pub fn fit_steps(
    captures: &[Capture],
    options: &FitOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Fit, FitError> {
    refuse_duplicates(captures)?;
    let runs: Vec<RunSteps> = captures.iter().map(usable_steps).collect();
    if let Some((capture, _)) = captures.iter().zip(&runs).find(|(_, r)| r.seconds.is_empty()) {
        return Err(FitError::NoSteps(capture.name.clone()));
    }
    let steps = runs.iter().map(|r| r.seconds.len()).sum();
    if steps < MIN_STEPS {
        return Err(FitError::TooFewSteps {
            steps,
            captures: captures.len(),
        });
    }
    let (method, groups) = if options.hold_out {
        hold_out_groups(captures)
    } else {
        ("none", Vec::new())
    };
    let rounds = groups.len() + 1;
    progress(0, rounds);
    let fitted = robust::fit(&runs.iter().collect::<Vec<_>>());
    progress(1, rounds);
    let mut folds = Vec::new();
    for (done, group) in groups.iter().enumerate() {
        folds.push(Fold::fit(captures, &runs, group)?);
        progress(done + 2, rounds);
    }
    if let Some((capture, _)) = captures
        .iter()
        .zip(&fitted.own_steps)
        .find(|(_, s)| !s.is_finite())
    {
        return Err(FitError::NoSteps(capture.name.clone()));
    }
    let model = FittedStepTime::new(fitted.coefficients, fitted.knee)?;
    let every: Vec<usize> = (0..runs.len()).collect();
    let mut probe = probe_reference(captures, &fitted, &model, &every);
    let held_out = held_out_errors(captures, &runs, &folds, probe.as_mut());
    Ok(rounded(Fit {
        kneeboard_fit: FIT_FORMAT,
        fitted_with: concat!("kneeboard ", env!("CARGO_PKG_VERSION")).to_owned(),
        target: "seconds of a whole engine step by the wall clock, t_end_s - t_start_s".to_owned(),
        parameters: with_ranges(&fitted, &folds),
        draws: if options.hold_out {
            draws(&runs, fitted.knee)
        } else {
            Vec::new()
        },
        hull: Hull::of(runs.iter().flat_map(|r| &r.batches)),
        host: fit_host(captures),
        front_end: front_end_times(captures),
        stalls: stalls::describe(captures),
        speed_probe: probe,
        residuals: errors::by_regime(&model, &runs),
        held_out: HeldOut {
            method: method.to_owned(),
            runs: held_out,
        },
        repeats: spreads_of_repeats(captures)?,
        data: data_rows(captures, &runs, &model, &fitted),
    }))
}

/// The same fit with every number at [`DIGITS`] significant digits: more would be noise in a file that people
/// read and compare. The hull stays exact, so that no batch it was made of falls out of it.
fn rounded(fit: Fit) -> Fit {
    fn round(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Number(n) if n.is_f64() => {
                let digits = n.as_f64().map(|x| format!("{x:.*e}", DIGITS - 1));
                if let Some(Ok(Some(n))) = digits.map(|d| d.parse().map(serde_json::Number::from_f64)) {
                    *value = n.into();
                }
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(round),
            serde_json::Value::Object(fields) => fields.values_mut().for_each(round),
            _ => {}
        }
    }
    // Numbers that JSON cannot hold are the only way to fail; such a fit is returned as it is.
    let Ok(mut value) = serde_json::to_value(&fit) else {
        return fit;
    };
    round(&mut value);
    match serde_json::from_value::<Fit>(value) {
        Ok(short) => Fit {
            hull: fit.hull,
            ..short
        },
        Err(_) => fit,
    }
}

pub(super) fn refuse_duplicates(captures: &[Capture]) -> Result<(), FitError> {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for capture in captures {
        if let Some(first) = seen.insert(&capture.steps_sha256, &capture.name) {
            return Err(FitError::Duplicate {
                first: first.to_owned(),
                second: capture.name.clone(),
            });
        }
    }
    Ok(())
}

/// Steps that computed something and in which the machine did not stall.
pub(super) fn usable_steps(capture: &Capture) -> RunSteps {
    let mut run = RunSteps::default();
    for step in &capture.steps {
        if !step.batch.is_empty() && !stalls::is_stalled(step) && step.duration_s() > 0.0 {
            run.batches.push(step.batch.clone());
            run.seconds.push(step.duration_s());
        }
    }
    run
}

/// The set of a capture: runs of one set come from one engine process and may repeat one trace.
fn set_of(capture: &Capture) -> &str {
    capture.name.split('/').next().unwrap_or_default()
}

/// What is left out at a time: whole sets where there are two or more, else single runs.
fn hold_out_groups(captures: &[Capture]) -> (&'static str, Vec<Vec<usize>>) {
    let mut sets: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, capture) in captures.iter().enumerate() {
        sets.entry(set_of(capture)).or_default().push(index);
    }
    if sets.len() > 1 {
        ("one set of runs at a time", sets.into_values().collect())
    } else if captures.len() > 1 {
        (
            "one run at a time",
            (0..captures.len()).map(|i| vec![i]).collect(),
        )
    } else {
        ("none: a single run", Vec::new())
    }
}

/// A fit without one group of runs.
struct Fold {
    left_out: Vec<usize>,
    fitted: RobustFit,
    model: FittedStepTime,
    probe: Option<SpeedProbeFit>,
}

impl Fold {
    fn fit(captures: &[Capture], runs: &[RunSteps], left_out: &[usize]) -> Result<Self, FitError> {
        let kept: Vec<usize> = (0..runs.len()).filter(|i| !left_out.contains(i)).collect();
        let fitted = robust::fit(&kept.iter().map(|&i| &runs[i]).collect::<Vec<_>>());
        let model = FittedStepTime::new(fitted.coefficients, fitted.knee)?;
        Ok(Self {
            left_out: left_out.to_vec(),
            probe: probe_reference(captures, &fitted, &model, &kept),
            model,
            fitted,
        })
    }
}

/// A run's measured over its predicted step time.
fn slowness(model: &FittedStepTime, run: &RunSteps) -> f64 {
    1.0 / (1.0 + errors::of_run(model, run).sum)
}

/// What the decode probe reads on the machine at which the model holds: the mean, over the runs of `which` that
/// have a probe, of its reading less what the run's own constant has over the model's.
fn probe_reference(
    captures: &[Capture],
    fitted: &RobustFit,
    model: &FittedStepTime,
    which: &[usize],
) -> Option<SpeedProbeFit> {
    let constant_s = model.seconds(&BatchShape::default());
    let readings: Vec<f64> = which
        .iter()
        .zip(&fitted.own_steps)
        .filter_map(|(&index, own_s)| {
            let times = captures[index].manifest.probe_times()?;
            Some(times.decode4_cpu_ms - (own_s - constant_s) * 1e3).filter(|x| x.is_finite())
        })
        .collect();
    let mean = readings.iter().sum::<f64>() / readings.len() as f64;
    (!readings.is_empty()).then_some(SpeedProbeFit {
        decode4_cpu_ms: mean,
        runs: readings.len() as u64,
        held_out_without: None,
        held_out_with: None,
    })
}

/// Errors of the left-out runs, in the order of the captures; the probe's worth is judged on the same runs.
fn held_out_errors(
    captures: &[Capture],
    runs: &[RunSteps],
    folds: &[Fold],
    probe: Option<&mut SpeedProbeFit>,
) -> Vec<RunError> {
    let mut rows: Vec<(usize, RunError)> = Vec::new();
    for fold in folds {
        for &index in &fold.left_out {
            let predict = |model: &FittedStepTime| errors::of_run(model, &runs[index]);
            let times = captures[index].manifest.probe_times();
            let scale = fold.probe.as_ref().zip(times);
            let scaled = scale.map(|(p, t)| fold.model.shifted(p.step_shift_s(t.decode4_cpu_ms)));
            rows.push((
                index,
                RunError {
                    run: captures[index].name.clone(),
                    error: predict(&fold.model),
                    sum_with_probe: scaled.map(|m| predict(&m).sum),
                },
            ));
        }
    }
    rows.sort_by_key(|(index, _)| *index);
    let rows: Vec<RunError> = rows.into_iter().map(|(_, row)| row).collect();
    if let Some(probe) = probe {
        let judged: Vec<(f64, f64)> = rows
            .iter()
            .filter_map(|r| r.sum_with_probe.map(|with| (r.error.sum.abs(), with.abs())))
            .collect();
        let mean = |of: fn(&(f64, f64)) -> f64| {
            (!judged.is_empty()).then(|| judged.iter().map(of).sum::<f64>() / judged.len() as f64)
        };
        probe.held_out_without = mean(|j| j.0);
        probe.held_out_with = mean(|j| j.1);
    }
    rows
}

fn with_ranges(fitted: &RobustFit, folds: &[Fold]) -> Vec<Parameter> {
    let mut all = parameters(&fitted.coefficients, fitted.knee);
    for fold in folds {
        for (slot, fold_value) in all
            .iter_mut()
            .zip(parameters(&fold.fitted.coefficients, fold.fitted.knee))
        {
            let (low, high) = slot
                .held_out_range
                .unwrap_or((fold_value.value, fold_value.value));
            slot.held_out_range = Some((low.min(fold_value.value), high.max(fold_value.value)));
        }
    }
    all
}

/// Vectors that a fit draws from resampled runs.
const DRAWS: u64 = 16;
/// Seed of the resampling.
const SEED: u64 = 1;

/// Fits to resampled runs with the same knee; none for a single run, which resampling returns unchanged.
fn draws(runs: &[RunSteps], knee: u32) -> Vec<Vec<f64>> {
    if runs.len() < 2 {
        return Vec::new();
    }
    (0..DRAWS)
        .into_par_iter()
        .filter_map(|index| {
            let mut rng = stream(SEED, Purpose::Bootstrap, index);
            let chosen: Vec<&RunSteps> = (0..runs.len())
                .map(|_| &runs[rng.random_range(0..runs.len())])
                .collect();
            let fitted = robust::fit_near(&chosen, knee);
            // The runs drawn may hold no usable model, as when all are of one kind of batch and odd.
            FittedStepTime::new(fitted.coefficients, fitted.knee).ok()?;
            let knee = f64::from(fitted.knee);
            Some(fitted.coefficients.into_iter().chain([knee]).collect())
        })
        .collect()
}

fn data_rows(
    captures: &[Capture],
    runs: &[RunSteps],
    model: &FittedStepTime,
    fitted: &RobustFit,
) -> Vec<DataRun> {
    captures
        .iter()
        .zip(runs)
        .zip(&fitted.own_steps)
        .map(|((capture, run), &own_step_s)| DataRun {
            run: capture.name.clone(),
            steps_sha256: capture.steps_sha256.clone(),
            steps: run.seconds.len() as u64,
            stalled: capture.steps.iter().filter(|s| stalls::is_stalled(s)).count() as u64,
            own_step_s,
            slowness: slowness(model, run),
        })
        .collect()
}

/// Seconds by which every step of a capture is longer than the fit says, as its own speed probe tells; `None`
/// without a probe or when the fit found that it does not help.
pub fn step_shift_of(fit: &Fit, capture: &Capture) -> Option<f64> {
    fit.step_shift_s(capture.manifest.probe_times()?.decode4_cpu_ms)
}

#[cfg(test)]
#[path = "fit_steps_tests.rs"]
mod tests;
