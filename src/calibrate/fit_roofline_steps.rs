//! The door for measured steps: the roofline's parameters out of batches and the seconds that they took.
//!
//! Residuals are ln(predicted / measured) of single steps, measured in their own robust scale, which is estimated
//! along; [`super::posterior`] finds the parameters. Steps in which the machine stalled are left out, the gaps between
//! steps are not looked at. Where an engine schedules ahead, a step's interval lasts from its schedule call to its
//! end and overlaps with the one before: such intervals are longer than the device was busy.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use super::bootstrap::{Units, scatter_of};
use super::errors;
use super::fit_runs::{self, Priors, RunFit, RunFitOptions};
use super::fit_steps::{FitError, MIN_STEPS, refuse_duplicates, usable_steps};
use super::observe::Capture;
use super::observed_capture::{ServedDefaults, deployment_of};
use super::posterior::{self, Linear, Posterior, Residuals, Search};
use super::robust::RunSteps;
use super::roofline_file::{self, FitHead, LEAST_SPEED, NEW_MODEL, UNTESTED_SPEED};
use crate::steptime::fit_file::{RegimeError, StepError};
use crate::steptime::fit_parts::{FitData, FitError as FileError, FitRange, Misfit, SpeaksFor};
use crate::steptime::parameters::{Param, Parameters, SPECS};
use crate::steptime::roofline::MissingFigure;
use crate::steptime::roofline_fit::{Form, ROOFLINE_FIT_FORMAT, RooflineFit};
use crate::steptime::{BatchShape, Deployment, Hull, Roofline};

/// The steps of one run, and what served it.
#[derive(Debug, Clone)]
pub struct StepsRun {
    /// Name in reports.
    pub name: String,
    /// What served.
    pub deployment: Deployment,
    /// Batches with their seconds.
    pub steps: RunSteps,
}

/// A fit to steps.
#[derive(Debug, Clone, PartialEq)]
pub struct StepsFit {
    /// Parameters, their spread and draws; without figures of runs.
    pub fit: RunFit,
    /// Errors of the fitted steps by kind of batch.
    pub residuals: Vec<RegimeError>,
    /// What was left out in turn, and the errors of its runs.
    pub left_out: Vec<StepsLeftOut>,
}

/// What was left out, and the errors of its runs by their number.
pub type StepsLeftOut = (String, Vec<(usize, StepError)>);

/// Steps that the first rounds see, and those that a fit without one group sees.
const SAMPLE: usize = 10_000;
const SAMPLE_LEFT_OUT: usize = 4_000;
/// A kind of batch keeps at least so many steps of a run in a sample.
const LEAST_OF_A_KIND: usize = 20;
/// Least scatter of a step: beneath lies the rounding of times.
const LEAST_SCALE: f64 = 1e-7;
/// With fewer runs than this, stretches of runs are resampled instead of runs.
const FEWEST_RUNS: usize = 3;
/// Stretches of a run then.
const STRETCHES: usize = 8;

const SEARCH: Search = Search {
    rounds: 25,
    first_step: 1e-3,
    shrink: 0.7,
    tolerance: 1e-5,
    polish: 0,
    least_scale: Some(LEAST_SCALE),
};
const SEARCH_ALL: Search = Search { rounds: 1, ..SEARCH };
const SEARCH_LEFT_OUT: Search = Search { rounds: 3, ..SEARCH };

/// The steps of captures with what served them.
///
/// # Errors
/// [`FitError`] for a run given twice, one without usable steps, or one whose device and model nothing names.
pub fn steps_runs(captures: &[Capture], defaults: &ServedDefaults) -> Result<Vec<StepsRun>, FitError> {
    refuse_duplicates(captures)?;
    let mut runs = Vec::new();
    for capture in captures {
        let steps = usable_steps(capture);
        if steps.seconds.is_empty() {
            return Err(FitError::NoSteps(capture.name.clone()));
        }
        let asynchronous = capture.engine_config()?.async_scheduling;
        runs.push(StepsRun {
            name: capture.name.clone(),
            deployment: Deployment {
                asynchronous,
                ..deployment_of(capture, defaults)?
            },
            steps,
        });
    }
    Ok(runs)
}

/// Fits the steps of all runs. `tick` is called after each part of the work with what it was.
///
/// # Errors
/// [`FitError`] when there are too few steps, or a device's profile lacks a figure.
pub fn fit_roofline_steps(
    runs: &[StepsRun],
    priors: &Priors,
    options: RunFitOptions,
    tick: &(dyn Fn(&str) + Sync),
) -> Result<StepsFit, FitError> {
    let steps = runs.iter().map(|r| r.steps.seconds.len()).sum();
    if steps < MIN_STEPS {
        return Err(FitError::TooFewSteps {
            steps,
            captures: runs.len(),
        });
    }
    let sample = sample(runs, SAMPLE);
    let (responsive, near) = search(runs, &sample, priors)?;
    tick("a sample of the steps");
    let log = fit_runs::log_priors(priors, &responsive);
    let sampled: usize = sample.iter().map(Vec::len).sum();
    let posterior = if sampled < steps {
        let every = runs
            .iter()
            .map(|r| (0..r.steps.seconds.len()).collect())
            .collect();
        let model = Model::new(runs, every, priors, &responsive);
        posterior::find(&model, &log, &near.linear.x, SEARCH_ALL)?
    } else {
        near
    };
    tick("all steps");
    let parameters = Model::new(runs, Vec::new(), priors, &responsive).parameters(&posterior.linear.x);
    let linear = if sampled < steps {
        posterior.linear.rows(&rows_of_sample(runs, &sample))
    } else {
        posterior.linear.clone()
    };
    let draws = fit_runs::draw(
        &linear,
        &units(&sample),
        priors,
        &responsive,
        options.seed,
        options.draws,
    );
    let left_out = if options.hold_out {
        leave_out(runs, priors, &responsive, &posterior.linear.x, tick)?
    } else {
        Vec::new()
    };
    let residuals = residuals(runs, &parameters)?;
    Ok(StepsFit {
        fit: RunFit {
            parameters,
            responsive,
            posterior,
            draws,
            fitted: Vec::new(),
            left_out: Vec::new(),
        },
        residuals,
        left_out,
    })
}

/// The most probable parameters on some steps. Which parameters respond is asked at the priors and again where the
/// search ends: a cost that hides behind another at the priors may stand out there.
fn search(
    runs: &[StepsRun],
    sample: &[Vec<usize>],
    priors: &Priors,
) -> Result<(Vec<Param>, Posterior), FitError> {
    let mut at = priors.values;
    let mut free = responsive_at(runs, sample, priors, &at)?;
    loop {
        let log = fit_runs::log_priors(priors, &free);
        let start: Vec<f64> = free.iter().map(|p| at[*p].ln()).collect();
        let model = Model::new(runs, sample.to_vec(), priors, &free);
        let found = posterior::find(&model, &log, &start, SEARCH)?;
        at = model.parameters(&found.linear.x);
        let mut wider = free.clone();
        wider.extend(responsive_at(runs, sample, priors, &at)?);
        wider.sort_unstable();
        wider.dedup();
        if wider == free {
            return Ok((free, found));
        }
        free = wider;
    }
}

fn responsive_at(
    runs: &[StepsRun],
    sample: &[Vec<usize>],
    priors: &Priors,
    at: &Parameters,
) -> Result<Vec<Param>, FitError> {
    let every: Vec<Param> = SPECS.iter().map(|s| s.param).collect();
    let model = Model::new(runs, sample.to_vec(), priors, &every);
    let x: Vec<f64> = at.0.iter().map(|v| v.ln()).collect();
    let residuals = model.at(&x)?;
    let log = fit_runs::log_priors(priors, &every);
    let linear: Linear = posterior::differentiate(&model, &log, &x, residuals, SEARCH.first_step);
    Ok(fit_runs::responsive(&linear))
}

/// Chosen steps of each run as a model of plain logarithmic residuals.
struct Model<'a> {
    runs: &'a [StepsRun],
    chosen: Vec<Vec<usize>>,
    base: Parameters,
    free: &'a [Param],
}

impl<'a> Model<'a> {
    fn new(runs: &'a [StepsRun], chosen: Vec<Vec<usize>>, priors: &Priors, free: &'a [Param]) -> Self {
        Self {
            runs,
            chosen,
            base: priors.values,
            free,
        }
    }

    fn parameters(&self, x: &[f64]) -> Parameters {
        let mut out = self.base;
        for (param, value) in self.free.iter().zip(x) {
            out[*param] = value.exp();
        }
        out.clamped()
    }
}

impl Residuals for Model<'_> {
    type Error = MissingFigure;

    fn at(&self, x: &[f64]) -> Result<Vec<f64>, MissingFigure> {
        let parameters = self.parameters(x);
        let mut out = Vec::new();
        for (run, chosen) in self.runs.iter().zip(&self.chosen) {
            let roofline = Roofline::new(run.deployment.clone(), parameters)?;
            let of_run: Vec<f64> = chosen
                .par_iter()
                .with_min_len(256)
                .map(|&i| (roofline.parts(&run.steps.batches[i]).total_s() / run.steps.seconds[i]).ln())
                .collect();
            out.extend(of_run);
        }
        Ok(out)
    }
}

/// At most about `most` steps of all runs, by number: each kind of batch of each run keeps the same share, evenly
/// spread over the run, but never fewer than a few.
fn sample(runs: &[StepsRun], most: usize) -> Vec<Vec<usize>> {
    let steps: usize = runs.iter().map(|r| r.steps.seconds.len()).sum();
    runs.iter()
        .map(|run| {
            if steps <= most {
                return (0..run.steps.seconds.len()).collect();
            }
            let mut kinds: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
            for (index, batch) in run.steps.batches.iter().enumerate() {
                kinds.entry(errors::regime(batch).1).or_default().push(index);
            }
            let mut kept: Vec<usize> = kinds
                .values()
                .flat_map(|all| {
                    let n = all.len();
                    let keep = (n * most / steps).max(LEAST_OF_A_KIND).min(n);
                    (0..keep).map(move |i| all[i * n / keep])
                })
                .collect();
            kept.sort_unstable();
            kept
        })
        .collect()
}

/// The rows of the sampled steps among those of all steps.
fn rows_of_sample(runs: &[StepsRun], sample: &[Vec<usize>]) -> Vec<usize> {
    let mut first = 0;
    let mut out = Vec::new();
    for (run, chosen) in runs.iter().zip(sample) {
        out.extend(chosen.iter().map(|i| first + i));
        first += run.steps.seconds.len();
    }
    out
}

/// What is resampled: runs, or stretches of them where there are too few.
fn units(sample: &[Vec<usize>]) -> Units {
    if sample.len() >= FEWEST_RUNS {
        return Units::of_sizes(sample.iter().map(Vec::len));
    }
    Units::of_sizes(sample.iter().flat_map(|chosen| {
        let n = chosen.len();
        (0..STRETCHES).map(move |k| (k + 1) * n / STRETCHES - k * n / STRETCHES)
    }))
}

/// Leaves runs, models and degrees of tensor parallelism out in turn. The fits to the others start from the fit to
/// all.
fn leave_out(
    runs: &[StepsRun],
    priors: &Priors,
    free: &[Param],
    start: &[f64],
    tick: &(dyn Fn(&str) + Sync),
) -> Result<Vec<StepsLeftOut>, FitError> {
    let keys: Vec<[String; 3]> = runs
        .iter()
        .map(|r| {
            let d = &r.deployment;
            [r.name.clone(), d.model.name.clone(), d.tp.to_string()]
        })
        .collect();
    let sample = sample(runs, SAMPLE_LEFT_OUT);
    let log = fit_runs::log_priors(priors, free);
    let mut out = Vec::new();
    for (what, left) in fit_runs::groups(&keys) {
        let kept: Vec<Vec<usize>> = sample
            .iter()
            .enumerate()
            .map(|(i, s)| if left.contains(&i) { Vec::new() } else { s.clone() })
            .collect();
        let model = Model::new(runs, kept, priors, free);
        let found = posterior::find(&model, &log, start, SEARCH_LEFT_OUT)?;
        let parameters = model.parameters(&found.linear.x);
        let mut of_runs = Vec::new();
        for index in left {
            of_runs.push((index, errors::summarise(&pairs(&runs[index], &parameters)?)));
        }
        tick(&format!("without {what}"));
        out.push((what, of_runs));
    }
    Ok(out)
}

/// Predicted and measured seconds of all steps of a run.
fn pairs(run: &StepsRun, parameters: &Parameters) -> Result<Vec<(f64, f64)>, MissingFigure> {
    let roofline = Roofline::new(run.deployment.clone(), *parameters)?;
    Ok(run
        .steps
        .batches
        .par_iter()
        .zip(&run.steps.seconds)
        .with_min_len(256)
        .map(|(batch, seconds)| (roofline.parts(batch).total_s(), *seconds))
        .collect())
}

fn residuals(runs: &[StepsRun], parameters: &Parameters) -> Result<Vec<RegimeError>, MissingFigure> {
    let mut all: Vec<(&BatchShape, (f64, f64))> = Vec::new();
    for run in runs {
        all.extend(run.steps.batches.iter().zip(pairs(run, parameters)?));
    }
    Ok(errors::by_regime_of_pairs(all))
}

/// The file of a fit to steps.
pub fn steps_file(head: FitHead, runs: &[StepsRun], priors: &Priors, steps: &StepsFit) -> RooflineFit {
    let fit = &steps.fit;
    let parameters = roofline_file::parameters(priors, fit);
    let open: Vec<&str> = parameters
        .iter()
        .filter(|p| !p.identified)
        .map(|p| p.name.as_str())
        .collect();
    let mut notes = head.notes;
    notes.extend(thin(runs));
    if !open.is_empty() {
        notes.push(format!(
            "the steps do not tell {}: they stand at or near their priors",
            open.join(", ")
        ));
    }
    notes.push("nothing is known of the way between clients and engine: steps say nothing of it".to_owned());
    RooflineFit {
        kneeboard_fit: ROOFLINE_FIT_FORMAT,
        form: Form::Roofline,
        name: head.name,
        fitted_with: format!("kneeboard {}", env!("CARGO_PKG_VERSION")),
        door: head.door,
        command: head.command,
        speaks_for: speaks_for(runs, head.engines),
        parameters,
        correlation: roofline_file::correlation(fit),
        draws: fit.draws.iter().map(|d| d.0.to_vec()).collect(),
        misfit: misfit(runs, steps),
        hull: hull(runs),
        residuals: steps
            .residuals
            .iter()
            .flat_map(|r| error_rows(&r.regime, "all", &r.error))
            .collect(),
        held_out: steps
            .left_out
            .iter()
            .flat_map(|(what, of_runs)| {
                of_runs
                    .iter()
                    .flat_map(|(index, e)| error_rows(what, &runs[*index].name, e))
            })
            .collect(),
        data: head.data,
        notes,
    }
}

/// The runs as the file lists them.
pub fn data_rows(captures: &[Capture], runs: &[StepsRun]) -> Vec<FitData> {
    captures
        .iter()
        .zip(runs)
        .map(|(capture, run)| FitData {
            run: capture.name.clone(),
            sha256: capture.steps_sha256.clone(),
            n: run.steps.seconds.len() as u64,
        })
        .collect()
}

/// The four figures of some steps' errors.
fn error_rows(of: &str, run: &str, e: &StepError) -> [FileError; 4] {
    [
        ("p50", e.median),
        ("p50_abs", e.median_abs),
        ("p90_abs", e.p90_abs),
        ("sum", e.sum),
    ]
    .map(|(stat, rel_error)| FileError {
        of: of.to_owned(),
        run: run.to_owned(),
        metric: "step_s".to_owned(),
        stat: stat.to_owned(),
        actual: None,
        predicted: None,
        rel_error,
        interval_90: None,
        n: u32::try_from(e.steps).unwrap_or(u32::MAX),
    })
}

/// The speed of a run's steps as a whole, as runs and models that were left out tell it; what latencies miss by
/// beside is a guess, since steps alone tell nothing of it.
fn misfit(runs: &[StepsRun], steps: &StepsFit) -> Vec<Misfit> {
    let deployments: Vec<&Deployment> = runs.iter().map(|r| &r.deployment).collect();
    let speeds = |counts: &dyn Fn(&str, usize) -> bool| -> Vec<f64> {
        steps
            .left_out
            .iter()
            .flat_map(|(what, of_runs)| of_runs.iter().map(move |(index, e)| (what, *index, e)))
            .filter(|(what, index, _)| counts(what, *index))
            .map(|(_, _, e)| e.sum.ln_1p())
            .filter(|e| e.is_finite())
            .collect()
    };
    let mut out = Vec::new();
    let seen = speeds(&|what, _| what.starts_with("run "));
    let known = if seen.is_empty() {
        UNTESTED_SPEED
    } else {
        // Two runs tell hardly anything of how runs differ.
        let least = if runs.len() < 3 {
            UNTESTED_SPEED
        } else {
            LEAST_SPEED
        };
        scatter_of(&seen).max(least)
    };
    roofline_file::push(&mut out, "step", "run", known, seen.len());
    let unseen = speeds(&|what, index| roofline_file::leaves_model_out(what, index, &deployments));
    let new_model = if unseen.is_empty() {
        known.hypot(NEW_MODEL)
    } else {
        scatter_of(&unseen).max(known)
    };
    roofline_file::push(&mut out, "step", "new_model", new_model, unseen.len());
    roofline_file::push(&mut out, "ttft_s", "any", UNTESTED_TTFT, 0);
    roofline_file::push(&mut out, "e2e_s", "any", UNTESTED_E2E, 0);
    out
}

const UNTESTED_TTFT: f64 = 0.15;
const UNTESTED_E2E: f64 = 0.05;

fn hull(runs: &[StepsRun]) -> Vec<FitRange> {
    let batches = runs.iter().flat_map(|r| &r.steps.batches);
    let ranges = Hull::of(batches).ranges.into_iter();
    let mut out: Vec<FitRange> = ranges
        .map(|r| FitRange {
            axis: r.axis,
            low: r.low,
            high: r.high,
        })
        .collect();
    out.extend(roofline_file::deployment_ranges(
        runs.iter().map(|r| &r.deployment),
    ));
    out
}

fn speaks_for(runs: &[StepsRun], engines: Vec<String>) -> SpeaksFor {
    roofline_file::speaks_for(runs.iter().map(|r| &r.deployment), engines)
}

/// What too few runs leave open, and what asynchronous ones mean.
fn thin(runs: &[StepsRun]) -> Vec<String> {
    let mut out = roofline_file::thin_runs(runs.len(), runs.iter().map(|r| &r.deployment));
    if runs.len() < FEWEST_RUNS {
        out.push("too few runs to resample: stretches of them were resampled instead".to_owned());
    }
    let ahead: BTreeSet<&str> = runs
        .iter()
        .filter(|r| r.deployment.asynchronous)
        .map(|r| r.name.as_str())
        .collect();
    if !ahead.is_empty() {
        out.push(format!(
            "{} run(s) scheduled ahead of the device ({}, ...): their steps are intervals from schedule to end, which \
             overlap",
            ahead.len(),
            ahead.first().copied().unwrap_or_default()
        ));
    }
    out
}

#[cfg(test)]
#[path = "fit_roofline_steps_tests.rs"]
mod tests;
