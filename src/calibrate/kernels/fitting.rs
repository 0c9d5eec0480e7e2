//! Fitting one kind of kernel: a formula with a few positive parameters to measured times, by argmin.
//!
//! The loss is relative and robust: sqrt(r^2 + s^2) - s of the logarithm r of predicted over measured time, which
//! is quadratic for small and absolute for large errors. Held-out errors come from refits that each start afresh
//! and leave out a fifth of the families of shapes (never single rows: neighbours of a left-out row would tell
//! its time).

use std::collections::BTreeMap;

use argmin::core::{CostFunction, Error, Executor, State};
use argmin::solver::neldermead::NelderMead;
use rayon::prelude::*;

use super::{KernelParameter, PartFit, RegimeErrors};
use crate::calibrate::robust::{median, quantile};

/// Width of the quadratic middle of the loss: errors of single kernels below it are measurement noise.
const LOSS_WIDTH: f64 = 0.05;
/// Pull of a parameter's logarithm towards its start: decides only what the data leave open.
const PULL: f64 = 1e-4;
/// Rows a fit sees at most, taken at equal distances: more do not move it.
const FITTED_ROWS: usize = 6000;
/// Groups of families, each left out once.
const FOLDS: usize = 5;
/// Restarts of the simplex around its best point: it may have collapsed on the way.
const RESTARTS: usize = 4;
/// Steps of the simplex a parameter and restart.
const STEPS_PER_PARAMETER: u64 = 150;
/// Share of a time that a parameter must make for the row to tell about it.
const TELLING: f64 = 0.5;
/// A median absolute deviation times this estimates a normal standard deviation.
const MAD_TO_SIGMA: f64 = 1.4826;
/// No parameter is known better than this, whatever the rows say: clocks and machines differ.
const LEAST_LOG_SD: f64 = 0.03;
/// What is said of a parameter that nothing tells.
const UNKNOWN_LOG_SD: f64 = 0.7;
/// What is said at least of a parameter that only all rows together tell, as the exponent of a join: the fit knows
/// it for the average shape, but no family shows what it would want.
const JOINT_LOG_SD: f64 = 0.3;

/// One parameter of a formula.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// Name.
    pub name: &'static str,
    /// Unit; `1` for fractions and exponents.
    pub unit: &'static str,
    /// Smallest and largest value.
    pub bounds: (f64, f64),
    /// Where fits start.
    pub start: f64,
}

/// A measured kernel.
#[derive(Debug, Clone)]
pub struct Sample<S> {
    /// What the formula needs to know.
    pub shape: S,
    /// Measured seconds.
    pub seconds: f64,
    /// Family that is left out together.
    pub family: String,
    /// Regime it is reported under.
    pub regime: String,
}

/// A formula of one kind of kernel.
pub trait Formula: Sync {
    /// What it needs to know of a kernel.
    type Shape: Sync;
    /// Its parameters.
    fn specs(&self) -> Vec<Spec>;
    /// Seconds of a kernel under parameters in the order of [`Formula::specs`].
    fn seconds(&self, parameters: &[f64], shape: &Self::Shape) -> f64;
}

/// Fits `formula`; none when there are fewer rows than ten a parameter.
pub fn fit<F: Formula>(
    part: &str,
    formula: &F,
    samples: &[Sample<F::Shape>],
    note: Option<String>,
) -> Option<PartFit>
where
    F::Shape: Sync,
{
    let specs = formula.specs();
    if samples.len() < 10 * specs.len() {
        return None;
    }
    let all: Vec<&Sample<F::Shape>> = samples.iter().collect();
    let values = optimise(formula, &specs, &all);
    let families: BTreeMap<&str, usize> = {
        let mut names: Vec<&str> = samples.iter().map(|s| s.family.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
            .into_iter()
            .enumerate()
            .map(|(i, n)| (n, i % FOLDS))
            .collect()
    };
    let folds: Vec<(Vec<f64>, usize)> = (0..FOLDS.min(families.len()))
        .into_par_iter()
        .map(|fold| {
            let rest: Vec<_> = all
                .iter()
                .copied()
                .filter(|s| families[s.family.as_str()] != fold)
                .collect();
            (optimise(formula, &specs, &rest), fold)
        })
        .collect();
    let mut held_out: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        let fold = families[sample.family.as_str()];
        if let Some((values, _)) = folds.iter().find(|(_, f)| *f == fold) {
            let error = formula.seconds(values, &sample.shape) / sample.seconds - 1.0;
            held_out.entry(sample.regime.as_str()).or_default().push(error);
        }
    }
    let everything: Vec<f64> = held_out.values().flatten().copied().collect();
    let mut errors = vec![RegimeErrors::of("all", &everything)];
    errors.extend(held_out.iter().map(|(regime, e)| RegimeErrors::of(regime, e)));
    let parameters = specs
        .iter()
        .enumerate()
        .map(|(index, spec)| {
            let refits: Vec<f64> = folds.iter().map(|(v, _)| v[index].ln()).collect();
            parameter(formula, &values, samples, index, spec, jackknife(&refits))
        })
        .collect();
    Some(PartFit {
        part: part.to_owned(),
        rows: samples.len() as u64,
        families: families.len() as u64,
        parameters,
        held_out: errors,
        note,
    })
}

impl RegimeErrors {
    fn of(regime: &str, errors: &[f64]) -> Self {
        let absolute: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
        Self {
            regime: regime.to_owned(),
            rows: errors.len() as u64,
            bias: median(errors).unwrap_or(0.0),
            median_abs: median(&absolute).unwrap_or(0.0),
            p90_abs: quantile(&absolute, 0.9).unwrap_or(0.0),
        }
    }
}

/// The value of a parameter with the spread of what the families of shapes say about it.
///
/// A family whose times are off by r although the parameter makes the share e of them (its elasticity) would be
/// met by a parameter off by r / e. The spread of that over the families is how far one value can be trusted for
/// a shape that was not measured, which is what a prior should say.
fn parameter<F: Formula>(
    formula: &F,
    values: &[f64],
    samples: &[Sample<F::Shape>],
    index: usize,
    spec: &Spec,
    uncertainty: f64,
) -> KernelParameter {
    const STEP: f64 = 0.01;
    let mut moved = values.to_vec();
    moved[index] *= 1.0 + STEP;
    let mut families: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut telling = 0;
    for sample in samples {
        let predicted = formula.seconds(values, &sample.shape);
        let elasticity = (formula.seconds(&moved, &sample.shape) / predicted).ln() / (1.0 + STEP).ln();
        if elasticity.abs() >= TELLING {
            telling += 1;
            let residual = (sample.seconds / predicted).ln() / elasticity;
            families.entry(sample.family.as_str()).or_default().push(residual);
        }
    }
    let offsets: Vec<f64> = families.values().filter_map(|r| median(r)).collect();
    let middle = median(&offsets).unwrap_or(0.0);
    let deviations: Vec<f64> = offsets.iter().map(|o| (o - middle).abs()).collect();
    let spread = median(&deviations).map(|mad| mad * MAD_TO_SIGMA);
    let low_high = (spec.bounds.0 * 1.001, spec.bounds.1 * 0.999);
    // Few families have no spread worth the name.
    let (sd, least) = match spread {
        Some(sd) if offsets.len() >= 3 => (sd.max(uncertainty), LEAST_LOG_SD),
        _ => (uncertainty, JOINT_LOG_SD),
    };
    let log_sd = if sd.is_finite() {
        sd.clamp(least, UNKNOWN_LOG_SD)
    } else {
        UNKNOWN_LOG_SD
    };
    KernelParameter {
        name: spec.name.to_owned(),
        value: values[index],
        unit: spec.unit.to_owned(),
        log_sd,
        telling_rows: telling,
        at_bound: !(low_high.0..=low_high.1).contains(&values[index]),
    }
}

/// Standard error of a logarithm from refits that each left out one of as many groups.
fn jackknife(refits: &[f64]) -> f64 {
    let n = refits.len() as f64;
    let mean = refits.iter().sum::<f64>() / n;
    (refits.iter().map(|v| (v - mean).powi(2)).sum::<f64>() * (n - 1.0) / n).sqrt()
}

struct Loss<'a, F: Formula> {
    formula: &'a F,
    specs: &'a [Spec],
    samples: &'a [&'a Sample<F::Shape>],
}

impl<F: Formula> CostFunction for Loss<'_, F> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, logs: &Self::Param) -> Result<f64, Error> {
        let (values, outside) = within(self.specs, logs);
        let sum: f64 = self
            .samples
            .iter()
            .map(|s| {
                let r = (self.formula.seconds(&values, &s.shape) / s.seconds).ln();
                r.hypot(LOSS_WIDTH) - LOSS_WIDTH
            })
            .sum();
        let pull: f64 = logs
            .iter()
            .zip(self.specs)
            .map(|(l, s)| (l - s.start.ln()).powi(2))
            .sum();
        let cost = sum / self.samples.len() as f64 + PULL * pull + outside;
        Ok(if cost.is_finite() { cost } else { f64::MAX })
    }
}

/// Values inside their bounds, and a penalty for how far outside the logarithms lie.
fn within(specs: &[Spec], logs: &[f64]) -> (Vec<f64>, f64) {
    let mut outside = 0.0;
    let values = logs
        .iter()
        .zip(specs)
        .map(|(&log, spec)| {
            let (low, high) = (spec.bounds.0.ln(), spec.bounds.1.ln());
            let inside = if log.is_nan() {
                spec.start.ln()
            } else {
                log.clamp(low, high)
            };
            outside += (log - inside).powi(2);
            inside.exp()
        })
        .collect();
    (values, outside)
}

fn optimise<F: Formula>(formula: &F, specs: &[Spec], samples: &[&Sample<F::Shape>]) -> Vec<f64> {
    let stride = samples.len().div_ceil(FITTED_ROWS).max(1);
    let chosen: Vec<_> = samples.iter().copied().step_by(stride).collect();
    let mut best: Vec<f64> = specs.iter().map(|s| s.start.ln()).collect();
    for round in 0..RESTARTS {
        let size = 0.4 / f64::from(1 << round);
        let mut simplex = vec![best.clone()];
        simplex.extend((0..specs.len()).map(|i| {
            let mut corner = best.clone();
            corner[i] += if corner[i] + size > specs[i].bounds.1.ln() {
                -size
            } else {
                size
            };
            corner
        }));
        let loss = Loss {
            formula,
            specs,
            samples: &chosen,
        };
        // The tolerance is positive, which is all that the solver asks of it.
        let Ok(solver) = NelderMead::new(simplex).with_sd_tolerance(1e-9) else {
            break;
        };
        let result = Executor::new(loss, solver)
            .configure(|state| state.max_iters(STEPS_PER_PARAMETER * specs.len() as u64))
            .run();
        if let Ok(found) = result
            && let Some(parameters) = found.state().get_best_param()
        {
            best.clone_from(parameters);
        }
    }
    within(specs, &best).0
}
