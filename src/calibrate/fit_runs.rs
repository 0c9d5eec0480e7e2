//! The doors for runs without steps: request times (events) and summary figures (points). Both simulate every run
//! under trial parameters and compare the figures; see [`super::posterior`] for how the parameters move.

use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

use super::bootstrap::{self, Units};
use super::observed::{ObservedError, ObservedRun};
use super::posterior::{self, Linear, LogPrior, Posterior, Residuals, Search};
use crate::rng::{Purpose, stream};
use crate::steptime::parameters::{PARAMS, Param, ParamSpec, Parameters, SPECS};

/// What is believed before the runs: a value and a spread for each parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Priors {
    /// Medians.
    pub values: Parameters,
    /// Standard deviations of the logarithms.
    pub log_sd: [f64; PARAMS],
}

impl Default for Priors {
    /// The general ones of the model.
    fn default() -> Self {
        Self {
            values: Parameters::default(),
            log_sd: SPECS.map(|s| s.prior_log_sd),
        }
    }
}

impl Priors {
    fn of(&self, param: Param) -> LogPrior {
        let spec = param.spec();
        LogPrior {
            mean: self.values[param].ln(),
            sd: self.log_sd[param as usize],
            bounds: (spec.bounds.0.ln(), spec.bounds.1.ln()),
        }
    }
}

/// How the fit is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunFitOptions {
    /// Seed of the resampling.
    pub seed: u64,
    /// Parameter vectors drawn.
    pub draws: usize,
    /// Whether runs, models and degrees of parallelism are left out in turn.
    pub hold_out: bool,
    /// Simplex steps at the end.
    pub polish: u64,
}

impl Default for RunFitOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            draws: 24,
            hold_out: true,
            polish: 0,
        }
    }
}

/// One predicted figure of a run beside the measured one.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFigure {
    /// Index of the run.
    pub run: usize,
    /// Index of its observation.
    pub observation: usize,
    /// Predicted.
    pub predicted: f64,
}

/// Runs that were left out together, as a fit to the others predicts them.
#[derive(Debug, Clone, PartialEq)]
pub struct LeftOut {
    /// What was left out, as `run NAME` or `model NAME`.
    pub what: String,
    /// Its figures.
    pub figures: Vec<RunFigure>,
}

/// A fit to runs.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFit {
    /// The most probable parameters.
    pub parameters: Parameters,
    /// Parameters that the runs say anything about, in the order of the columns of the covariance.
    pub responsive: Vec<Param>,
    /// Around the most probable parameters.
    pub posterior: Posterior,
    /// Vectors that agree with the runs about as well.
    pub draws: Vec<Parameters>,
    /// The fitted figures.
    pub fitted: Vec<RunFigure>,
    /// What was left out in turn.
    pub left_out: Vec<LeftOut>,
}

/// Rounds of a full fit, and of one that starts near.
const ROUNDS: usize = 6;
const ROUNDS_LEFT_OUT: usize = 3;

/// Fits the runs. `tick` is called after each part of the work with what it was.
///
/// # Errors
/// [`ObservedError`] when a run cannot be simulated under the priors.
pub fn fit_runs(
    runs: &[ObservedRun],
    priors: &Priors,
    options: RunFitOptions,
    tick: &(dyn Fn(&str) + Sync),
) -> Result<RunFit, ObservedError> {
    let all: Vec<&ObservedRun> = runs.iter().collect();
    let first = around_priors(&all, priors)?;
    let responsive = responsive(&first);
    let base = narrowed(&first, &responsive);
    tick("slopes at the priors");
    let posterior = fit_from(&all, priors, &responsive, &base, ROUNDS, options.polish)?;
    let model = Model::new(all.clone(), priors, &responsive);
    let parameters = model.parameters(&posterior.linear.x);
    tick("all runs");
    let left_out = if options.hold_out {
        leave_out(runs, priors, &responsive, &base, tick)?
    } else {
        Vec::new()
    };
    Ok(RunFit {
        draws: draw(
            &posterior.linear,
            &Units::of_sizes(runs.iter().map(|r| r.observations.len())),
            priors,
            &responsive,
            options.seed,
            options.draws,
        ),
        fitted: predict(runs, 0..runs.len(), &parameters)?,
        parameters,
        responsive,
        posterior,
        left_out,
    })
}

/// The runs as a model of residuals.
struct Model<'a> {
    runs: Vec<&'a ObservedRun>,
    base: Parameters,
    free: &'a [Param],
}

impl<'a> Model<'a> {
    fn new(runs: Vec<&'a ObservedRun>, priors: &Priors, free: &'a [Param]) -> Self {
        Self {
            runs,
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
    type Error = ObservedError;

    fn at(&self, x: &[f64]) -> Result<Vec<f64>, ObservedError> {
        let parameters = self.parameters(x);
        let by_run: Vec<Result<Vec<f64>, ObservedError>> = self
            .runs
            .par_iter()
            .map(|run| {
                let predicted = run.predict(&parameters)?;
                let pairs = predicted.iter().zip(&run.observations);
                Ok(pairs.map(|(p, o)| residual(*p, o.value, o.log_sd)).collect())
            })
            .collect();
        let mut out = Vec::new();
        for run in by_run {
            out.extend(run?);
        }
        Ok(out)
    }
}

/// A figure that the simulation lacks is as wrong as a factor of ten.
fn residual(predicted: f64, actual: f64, log_sd: f64) -> f64 {
    let log = (predicted / actual).ln();
    if log.is_finite() {
        log / log_sd
    } else {
        std::f64::consts::LN_10 / log_sd
    }
}

pub(super) fn log_priors(priors: &Priors, free: &[Param]) -> Vec<LogPrior> {
    free.iter().map(|p| priors.of(*p)).collect()
}

/// Slopes of every parameter at the priors' medians.
fn around_priors(runs: &[&ObservedRun], priors: &Priors) -> Result<Linear, ObservedError> {
    let every: Vec<Param> = SPECS.iter().map(|s| s.param).collect();
    let model = Model::new(runs.to_vec(), priors, &every);
    let log = log_priors(priors, &every);
    let x: Vec<f64> = log.iter().map(|p| p.mean).collect();
    let residuals = model.at(&x)?;
    Ok(posterior::differentiate(&model, &log, &x, residuals, FIRST_STEP))
}

/// Step of the first differences, as a share of the prior's spread.
const FIRST_STEP: f64 = 0.3;

/// Parameters that move any figure at all.
pub(super) fn responsive(linear: &Linear) -> Vec<Param> {
    SPECS
        .iter()
        .map(|s| s.param)
        .filter(|p| linear.slopes.column(*p as usize).iter().any(|s| s.abs() > 1e-9))
        .collect()
}

/// The columns of these parameters.
pub(super) fn narrowed(linear: &Linear, free: &[Param]) -> Linear {
    let columns: Vec<usize> = free.iter().map(|p| *p as usize).collect();
    Linear {
        x: columns.iter().map(|&j| linear.x[j]).collect(),
        residuals: linear.residuals.clone(),
        slopes: linear.slopes.select(ndarray::Axis(1), &columns),
    }
}

/// A fit that starts where the linear problem at the priors has its minimum.
fn fit_from(
    runs: &[&ObservedRun],
    priors: &Priors,
    free: &[Param],
    at_priors: &Linear,
    rounds: usize,
    polish: u64,
) -> Result<Posterior, ObservedError> {
    let log = log_priors(priors, free);
    let weights = vec![1.0; at_priors.residuals.len()];
    let start = posterior::minimise(at_priors, &weights, &log, &at_priors.x);
    let search = Search {
        rounds,
        first_step: FIRST_STEP,
        shrink: 0.7,
        tolerance: 0.01,
        polish,
        least_scale: None,
    };
    posterior::find(&Model::new(runs.to_vec(), priors, free), &log, &start, search)
}

/// More runs than this are left out in so many folds, every run in one of them.
const FOLDS: usize = 8;

/// Leaves runs out: each alone (of many, each eighth), each model, each degree of tensor parallelism, as far as others remain.
fn leave_out(
    runs: &[ObservedRun],
    priors: &Priors,
    free: &[Param],
    at_priors: &Linear,
    tick: &(dyn Fn(&str) + Sync),
) -> Result<Vec<LeftOut>, ObservedError> {
    let mut out = Vec::new();
    let keys: Vec<[String; 3]> = runs
        .iter()
        .map(|r| {
            let d = &r.deployment;
            [r.name.clone(), d.model.name.clone(), d.tp.to_string()]
        })
        .collect();
    for (what, left) in groups(&keys) {
        let kept: Vec<usize> = (0..runs.len()).filter(|i| !left.contains(i)).collect();
        let chosen: Vec<&ObservedRun> = kept.iter().map(|&i| &runs[i]).collect();
        let rows = rows_of(runs, &kept);
        let linear = at_priors.rows(&rows);
        let found = fit_from(&chosen, priors, free, &linear, ROUNDS_LEFT_OUT, 0)?;
        let parameters = Model::new(chosen, priors, free).parameters(&found.linear.x);
        let figures = predict(runs, left.iter().copied(), &parameters)?;
        tick(&format!("without {what}"));
        out.push(LeftOut { what, figures });
    }
    Ok(out)
}

/// Groups of runs to leave out, each but once, from the run's name, model and degree of tensor parallelism.
pub(super) fn groups(keys: &[[String; 3]]) -> Vec<(String, Vec<usize>)> {
    let mut out: Vec<(String, Vec<usize>)> = Vec::new();
    let mut add = |what: String, left: Vec<usize>| {
        if left.len() < keys.len() && !out.iter().any(|(_, l)| *l == left) {
            out.push((what, left));
        }
    };
    if keys.len() <= FOLDS {
        for (index, key) in keys.iter().enumerate() {
            add(format!("run {}", key[0]), vec![index]);
        }
    } else {
        for fold in 0..FOLDS {
            let left: Vec<usize> = (fold..keys.len()).step_by(FOLDS).collect();
            let names: Vec<&str> = left.iter().map(|&i| keys[i][0].as_str()).collect();
            add(format!("run {}", names.join(" and ")), left);
        }
    }
    for (kind, k) in [("model", 1), ("tp", 2)] {
        for key in keys {
            let same = (0..keys.len()).filter(|&i| keys[i][k] == key[k]).collect();
            add(format!("{kind} {}", key[k]), same);
        }
    }
    out
}

/// Rows of the residuals that belong to these runs.
fn rows_of(runs: &[ObservedRun], kept: &[usize]) -> Vec<usize> {
    let mut starts = Vec::with_capacity(runs.len());
    let mut next = 0;
    for run in runs {
        starts.push(next);
        next += run.observations.len();
    }
    kept.iter()
        .flat_map(|&i| starts[i]..starts[i] + runs[i].observations.len())
        .collect()
}

fn predict(
    runs: &[ObservedRun],
    which: impl IntoIterator<Item = usize>,
    parameters: &Parameters,
) -> Result<Vec<RunFigure>, ObservedError> {
    let which: Vec<usize> = which.into_iter().collect();
    let by_run: Vec<Result<Vec<f64>, ObservedError>> =
        which.par_iter().map(|&i| runs[i].predict(parameters)).collect();
    let mut out = Vec::new();
    for (run, predicted) in which.into_iter().zip(by_run) {
        out.extend(
            predicted?
                .into_iter()
                .enumerate()
                .map(|(observation, predicted)| RunFigure {
                    run,
                    observation,
                    predicted,
                }),
        );
    }
    Ok(out)
}

/// Parameter vectors from resampled units and resampled priors, on the linear model around the best one. Parameters
/// that the data do not move are drawn from their priors.
pub(super) fn draw(
    linear: &Linear,
    units: &Units,
    priors: &Priors,
    free: &[Param],
    seed: u64,
    draws: usize,
) -> Vec<Parameters> {
    let log = log_priors(priors, free);
    (0..draws as u64)
        .into_par_iter()
        .map(|index| {
            let mut rng = stream(seed, Purpose::Bootstrap, index);
            let all: [f64; PARAMS] = std::array::from_fn(|_| StandardNormal.sample(&mut rng));
            let normals: Vec<f64> = free.iter().map(|p| all[*p as usize]).collect();
            let x = bootstrap::resample(linear, &log, units, &normals, &mut rng);
            let mut out = priors.values;
            for ParamSpec { param, .. } in SPECS {
                out[param] =
                    (priors.values[param].ln() + priors.log_sd[param as usize] * all[param as usize]).exp();
            }
            for (param, value) in free.iter().zip(x) {
                out[*param] = value.exp();
            }
            out.clamped()
        })
        .collect()
}

#[cfg(test)]
#[path = "fit_runs_tests.rs"]
mod tests;
