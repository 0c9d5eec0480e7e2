//! The most probable parameters given measurements and priors, and how sure one can be of them.
//!
//! One engine for all doors (steps, events, points, kernels). A model turns a vector of logarithms of parameters
//! into standardised residuals: ln(predicted / measured) over the figure's own scatter. The sum of a robust
//! (Huber) loss and the prior's quadratic is minimised by repeating three things: difference the model around the
//! present point by steps large enough to stand above the granularity of a simulation, solve the linear problem
//! (conjugate gradients of argmin), accept what lowers the true loss. Every evaluation sees the same random
//! numbers. Nelder and Mead's simplex (argmin) on the true loss, in the directions that the data determine, polishes
//! what differences can no longer improve.

use argmin::core::{CostFunction, Executor, Operator, State};
use argmin::solver::conjugategradient::ConjugateGradient;
use argmin::solver::neldermead::NelderMead;
use ndarray::Array2;
use rayon::prelude::*;

use super::robust::median;

/// Residuals beyond this many standard deviations count linearly.
const HUBER: f64 = 1.5;
/// Conjugate-gradient steps: on preconditioned equations the first does nearly all.
const CG_ITERATIONS: u64 = 6;

/// What is known of one free parameter, in logarithms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogPrior {
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub sd: f64,
    /// Bounds.
    pub bounds: (f64, f64),
}

/// A model of the measurements.
pub trait Residuals: Sync {
    /// Why it cannot be evaluated.
    type Error: Send;

    /// Standardised residuals at `x` (logarithms of the free parameters); always the same number in the same order.
    ///
    /// # Errors
    /// When the model cannot be evaluated at `x`.
    fn at(&self, x: &[f64]) -> Result<Vec<f64>, Self::Error>;
}

/// How the minimum is looked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// Most rounds of differences.
    pub rounds: usize,
    /// Step of the differences in the first round, as a share of the prior's standard deviation.
    pub first_step: f64,
    /// Factor on the step after each round.
    pub shrink: f64,
    /// Two rounds in a row that lower the loss by less than this share end the search.
    pub tolerance: f64,
    /// Evaluations of the simplex at the end; 0 = none.
    pub polish: u64,
    /// The scatter is unknown: the model gives plain logarithms, and each round measures them in their own robust
    /// scale, which is taken to be no smaller than this. `None`: residuals come standardised.
    pub least_scale: Option<f64>,
}

/// The model around a point: value and slopes.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// The point.
    pub x: Vec<f64>,
    /// Residuals there.
    pub residuals: Vec<f64>,
    /// One row a residual, one column a parameter.
    pub slopes: Array2<f64>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Posterior {
    /// The model around the most probable parameters.
    pub linear: Linear,
    /// Its loss.
    pub loss: f64,
    /// Evaluations of the model.
    pub evaluations: usize,
    /// Covariance of the logarithms.
    pub covariance: Array2<f64>,
    /// What the residuals are measured in; 1 where they came standardised.
    pub scale: f64,
}

/// Huber's loss of a standardised residual.
fn huber(r: f64) -> f64 {
    let a = r.abs();
    if a <= HUBER {
        0.5 * r * r
    } else {
        HUBER * (a - 0.5 * HUBER)
    }
}

/// The loss: robust misfit and distance from the prior.
pub fn loss(residuals: &[f64], weights: &[f64], x: &[f64], priors: &[LogPrior]) -> f64 {
    let misfit: f64 = residuals.iter().zip(weights).map(|(r, w)| w * huber(*r)).sum();
    let prior: f64 = x
        .iter()
        .zip(priors)
        .map(|(x, p)| 0.5 * ((x - p.mean) / p.sd).powi(2))
        .sum();
    misfit + prior
}

/// Finds the most probable parameters from `start`.
///
/// # Errors
/// The model's own, at the start; a point at which it cannot be evaluated later is passed over.
pub fn find<M: Residuals>(
    model: &M,
    priors: &[LogPrior],
    start: &[f64],
    search: Search,
) -> Result<Posterior, M::Error> {
    let mut x = clamp(start.to_vec(), priors);
    let mut raw = model.at(&x)?;
    let weights = vec![1.0; raw.len()];
    let mut step = search.first_step;
    let mut evaluations = 1;
    let mut scale = scale_of(&raw, priors.len(), search.least_scale);
    let mut idle = 0;
    let loss_at = |raw: &[f64], x: &[f64], scale: f64| {
        let residuals: Vec<f64> = raw.iter().map(|r| r / scale).collect();
        loss(&residuals, &weights, x, priors)
    };
    for _ in 0..search.rounds {
        let linear = differentiate(model, priors, &x, raw.clone(), step).over(scale);
        evaluations += priors.len();
        let before = loss_at(&raw, &x, scale);
        let mut best = before;
        let target = minimise(&linear, &weights, priors, &linear.x);
        // A full step, then shorter ones: the model is not linear far away.
        for share in [1.0, 0.5, 0.2] {
            let tried = x.iter().zip(&target).map(|(a, b)| a + share * (b - a)).collect();
            let tried = clamp(tried, priors);
            evaluations += 1;
            let Ok(found) = model.at(&tried) else { continue };
            let value = loss_at(&found, &tried, scale);
            if value < best {
                (best, x, raw) = (value, tried, found);
                break;
            }
        }
        step *= search.shrink;
        let next = scale_of(&raw, priors.len(), search.least_scale);
        let settled = next > STABLE_SCALE * scale;
        scale = next;
        // A simulation is a staircase: one round may find no way down where the next, with other steps, does.
        idle = if settled && before - best <= search.tolerance * before.abs() {
            idle + 1
        } else {
            0
        };
        if idle == IDLE_ROUNDS {
            break;
        }
    }
    if search.polish > 0
        && search.least_scale.is_none()
        && let Some((polished, value)) = polish(model, priors, &x, loss_at(&raw, &x, 1.0), &weights, search)
    {
        evaluations += search.polish as usize;
        if let Ok(found) = model.at(&polished)
            && value < loss_at(&raw, &x, 1.0)
        {
            (x, raw) = (polished, found);
        }
    }
    let best = loss_at(&raw, &x, scale);
    // The spread wants wide steps again: what a simulation's grain adds to a slope grows as the step shrinks, and every
    // such error passes for information.
    let wide = search.first_step;
    let above = differentiate(model, priors, &x, raw.clone(), wide);
    let below = differentiate(model, priors, &x, raw, -wide);
    let linear = above.between(&below).over(scale);
    evaluations += 2 * priors.len();
    let covariance = covariance(&linear, &weights, priors);
    Ok(Posterior {
        linear,
        loss: best,
        evaluations,
        covariance,
        scale,
    })
}

/// Rounds without progress that end a search.
const IDLE_ROUNDS: u32 = 2;
/// A scale that shrank by less than this factor has settled.
const STABLE_SCALE: f64 = 0.98;

/// Robust standard deviation of plain residuals around 0: 1.4826 of their median size, more where there are hardly
/// more of them than of parameters, and at least `least`. 1 for residuals that came standardised.
fn scale_of(raw: &[f64], parameters: usize, least: Option<f64>) -> f64 {
    let Some(least) = least else { return 1.0 };
    let sizes: Vec<f64> = raw.iter().map(|r| r.abs()).collect();
    let n = sizes.len() as f64;
    let spent = n / (n - parameters as f64).max(1.0);
    (1.4826 * median(&sizes).unwrap_or(0.0) * spent.sqrt()).max(least)
}

/// Slopes by steps of `step` prior standard deviations, downwards where it is negative, the other way at a bound. A parameter at which the
/// model fails gets no slope.
pub fn differentiate<M: Residuals>(
    model: &M,
    priors: &[LogPrior],
    x: &[f64],
    residuals: Vec<f64>,
    step: f64,
) -> Linear {
    let columns: Vec<Option<(Vec<f64>, f64)>> = priors
        .par_iter()
        .enumerate()
        .map(|(j, p)| {
            let mut h = step * p.sd;
            if !(p.bounds.0..=p.bounds.1).contains(&(x[j] + h)) {
                h = -h;
            }
            let mut moved = x.to_vec();
            moved[j] += h;
            model.at(&moved).ok().map(|r| (r, h))
        })
        .collect();
    let mut slopes = Array2::zeros((residuals.len(), priors.len()));
    for (j, column) in columns.into_iter().enumerate() {
        let Some((moved, h)) = column else { continue };
        for (i, (a, b)) in moved.iter().zip(&residuals).enumerate() {
            slopes[[i, j]] = (a - b) / h;
        }
    }
    Linear {
        x: x.to_vec(),
        residuals,
        slopes,
    }
}

/// The most probable parameters of the linear problem with a weight a residual, prior means at `means` of the
/// priors; `from` is where the robust weights start.
pub fn minimise(linear: &Linear, weights: &[f64], priors: &[LogPrior], from: &[f64]) -> Vec<f64> {
    let mut x = from.to_vec();
    // Reweighting settles within a few rounds; parameters at a bound that they press against stay there.
    for _ in 0..8 {
        let residuals = linear.at(&x);
        let robust: Vec<f64> = residuals
            .iter()
            .zip(weights)
            .map(|(r, w)| w * (HUBER / r.abs().max(HUBER)))
            .collect();
        let mut free = vec![true; x.len()];
        let mut base = x.clone();
        let next = loop {
            let step = solve(linear, &robust, priors, &base, &free);
            let next: Vec<f64> = base.iter().zip(&step).map(|(a, b)| a + b).collect();
            let outside: Vec<usize> = (0..x.len())
                .filter(|&j| free[j] && !(priors[j].bounds.0..=priors[j].bounds.1).contains(&next[j]))
                .collect();
            if outside.is_empty() {
                break next;
            }
            for j in outside {
                free[j] = false;
                base[j] = next[j].clamp(priors[j].bounds.0, priors[j].bounds.1);
            }
        };
        let moved = x
            .iter()
            .zip(&next)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max);
        x = next;
        if moved < 1e-10 {
            break;
        }
    }
    clamp(x, priors)
}

impl Linear {
    /// The same, measured in `scale`.
    #[must_use]
    pub fn over(mut self, scale: f64) -> Self {
        if (scale - 1.0).abs() > 0.0 {
            self.residuals.iter_mut().for_each(|r| *r /= scale);
            self.slopes /= scale;
        }
        self
    }

    /// The mean of slopes to both sides: half the grain, and no bend.
    #[must_use]
    fn between(mut self, other: &Self) -> Self {
        self.slopes = (self.slopes + &other.slopes) / 2.0;
        self
    }

    /// The rows of these numbers alone.
    #[must_use]
    pub fn rows(&self, which: &[usize]) -> Self {
        Self {
            x: self.x.clone(),
            residuals: which.iter().map(|&i| self.residuals[i]).collect(),
            slopes: self.slopes.select(ndarray::Axis(0), which),
        }
    }

    /// Residuals at `x` if the model were linear.
    pub fn at(&self, x: &[f64]) -> Vec<f64> {
        (0..self.residuals.len())
            .map(|i| {
                let moved: f64 = (0..x.len())
                    .map(|j| self.slopes[[i, j]] * (x[j] - self.x[j]))
                    .sum();
                self.residuals[i] + moved
            })
            .collect()
    }
}

/// The normal equations in units of the priors' standard deviations, N = S J' W J S + 1, in the coordinates in which
/// they are nearly the identity: each parameter over the root of its diagonal (D), turned by the Cholesky factor L of
/// D N D. Without it the conjugate gradients would need hundreds of steps where some parameters are known a thousand
/// times better than others; with it a few steps end what rounding in the factor leaves.
struct Normal {
    matrix: Array2<f64>,
    diagonal: Vec<f64>,
    factor: Array2<f64>,
}

impl Normal {
    /// `scale` is the priors' standard deviations, 0 for what is held fast.
    fn new(linear: &Linear, weights: &[f64], scale: &[f64]) -> Self {
        let p = scale.len();
        let mut matrix = Array2::<f64>::eye(p);
        let mut scaled = vec![0.0; p];
        for (row, w) in linear.slopes.rows().into_iter().zip(weights) {
            for (slot, (j, s)) in scaled.iter_mut().zip(row.iter().zip(scale)) {
                *slot = j * s;
            }
            for a in 0..p {
                let wa = w * scaled[a];
                for b in 0..=a {
                    matrix[[a, b]] += wa * scaled[b];
                }
            }
        }
        let diagonal: Vec<f64> = (0..p).map(|a| matrix[[a, a]].max(1.0).sqrt()).collect();
        for a in 0..p {
            for b in 0..=a {
                let value = matrix[[a, b]] / (diagonal[a] * diagonal[b]);
                matrix[[a, b]] = value;
                matrix[[b, a]] = value;
            }
        }
        Self {
            factor: cholesky(&matrix),
            matrix,
            diagonal,
        }
    }

    /// The solution for a right-hand side.
    fn solve(&self, right: &[f64]) -> Vec<f64> {
        let scaled: Vec<f64> = right.iter().zip(&self.diagonal).map(|(r, d)| r / d).collect();
        let turned = forward(&self.factor, &scaled);
        let found = backward(&self.factor, &conjugate_gradient(self, turned));
        found.iter().zip(&self.diagonal).map(|(v, d)| v / d).collect()
    }
}

impl Operator for &Normal {
    type Param = Vec<f64>;
    type Output = Vec<f64>;

    fn apply(&self, p: &Vec<f64>) -> Result<Vec<f64>, argmin::core::Error> {
        let inner = ndarray::Array1::from(backward(&self.factor, p));
        Ok(forward(
            &self.factor,
            self.matrix.dot(&inner).as_slice().unwrap_or(&[]),
        ))
    }
}

/// Least pivot of a matrix with ones on its diagonal: rounding alone makes up smaller ones.
const LEAST_PIVOT: f64 = 1e-13;

/// Lower Cholesky factor of a positive matrix whose diagonal is 1.
fn cholesky(matrix: &Array2<f64>) -> Array2<f64> {
    let p = matrix.nrows();
    let mut factor = Array2::<f64>::zeros((p, p));
    for a in 0..p {
        for b in 0..=a {
            let dot: f64 = (0..b).map(|k| factor[[a, k]] * factor[[b, k]]).sum();
            let left = matrix[[a, b]] - dot;
            factor[[a, b]] = if a == b {
                left.max(LEAST_PIVOT).sqrt()
            } else {
                left / factor[[b, b]]
            };
        }
    }
    factor
}

/// Solves L y = r.
fn forward(factor: &Array2<f64>, right: &[f64]) -> Vec<f64> {
    let mut out = right.to_vec();
    for a in 0..out.len() {
        let dot: f64 = (0..a).map(|k| factor[[a, k]] * out[k]).sum();
        out[a] = (out[a] - dot) / factor[[a, a]];
    }
    out
}

/// Solves L' y = r.
fn backward(factor: &Array2<f64>, right: &[f64]) -> Vec<f64> {
    let mut out = right.to_vec();
    for a in (0..out.len()).rev() {
        let dot: f64 = (a + 1..out.len()).map(|k| factor[[k, a]] * out[k]).sum();
        out[a] = (out[a] - dot) / factor[[a, a]];
    }
    out
}

/// The step of the free parameters that solves the normal equations.
fn solve(linear: &Linear, weights: &[f64], priors: &[LogPrior], x: &[f64], free: &[bool]) -> Vec<f64> {
    let residuals = linear.at(x);
    let scale: Vec<f64> = priors
        .iter()
        .zip(free)
        .map(|(p, f)| if *f { p.sd } else { 0.0 })
        .collect();
    let mut right: Vec<f64> = (0..x.len())
        .map(|j| {
            if free[j] {
                (priors[j].mean - x[j]) / priors[j].sd
            } else {
                0.0
            }
        })
        .collect();
    for (i, r) in residuals.iter().enumerate() {
        for (j, slot) in right.iter_mut().enumerate() {
            *slot -= weights[i] * r * linear.slopes[[i, j]] * scale[j];
        }
    }
    Normal::new(linear, weights, &scale)
        .solve(&right)
        .iter()
        .zip(&scale)
        .map(|(v, s)| v * s)
        .collect()
}

fn conjugate_gradient(normal: &Normal, right: Vec<f64>) -> Vec<f64> {
    if right.iter().all(|v| v.abs() <= 0.0) {
        return right;
    }
    let start = vec![0.0; right.len()];
    Executor::new(normal, ConjugateGradient::<Vec<f64>, f64>::new(right))
        .configure(|s| s.param(start.clone()).max_iters(CG_ITERATIONS).target_cost(0.0))
        .run()
        .ok()
        .and_then(|r| r.state().get_best_param().cloned())
        .filter(|v| v.iter().all(|e| e.is_finite()))
        .unwrap_or(start)
}

/// Covariance of the logarithms: the inverse of the normal equations, column by column.
pub fn covariance(linear: &Linear, weights: &[f64], priors: &[LogPrior]) -> Array2<f64> {
    let n = priors.len();
    let robust: Vec<f64> = linear
        .residuals
        .iter()
        .zip(weights)
        .map(|(r, w)| w * (HUBER / r.abs().max(HUBER)))
        .collect();
    let scale: Vec<f64> = priors.iter().map(|p| p.sd).collect();
    let normal = Normal::new(linear, &robust, &scale);
    let mut out = Array2::zeros((n, n));
    for j in 0..n {
        let mut unit = vec![0.0; n];
        unit[j] = 1.0;
        for (i, v) in normal.solve(&unit).into_iter().enumerate() {
            out[[i, j]] = v * priors[i].sd * priors[j].sd;
        }
    }
    out
}

/// The true loss, for the simplex.
struct TrueLoss<'a, M> {
    model: &'a M,
    priors: &'a [LogPrior],
    weights: &'a [f64],
}

impl<M: Residuals> CostFunction for TrueLoss<'_, M> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, x: &Vec<f64>) -> Result<f64, argmin::core::Error> {
        let inside = clamp(x.clone(), self.priors);
        let out = self
            .model
            .at(&inside)
            .map_or(1e12, |r| loss(&r, self.weights, &inside, self.priors));
        Ok(out)
    }
}

/// A few steps of the simplex from `x`; its first corners lie a tenth of a prior's standard deviation away.
fn polish<M: Residuals>(
    model: &M,
    priors: &[LogPrior],
    x: &[f64],
    best: f64,
    weights: &[f64],
    search: Search,
) -> Option<(Vec<f64>, f64)> {
    let mut corners = vec![x.to_vec()];
    for (j, p) in priors.iter().enumerate() {
        let mut corner = x.to_vec();
        let h = 0.1 * p.sd;
        corner[j] += if x[j] + h > p.bounds.1 { -h } else { h };
        corners.push(corner);
    }
    let cost = TrueLoss {
        model,
        priors,
        weights,
    };
    let result = Executor::new(cost, NelderMead::new(corners))
        .configure(|s| s.max_iters(search.polish))
        .run()
        .ok()?;
    let state = result.state();
    let found = clamp(state.get_best_param()?.clone(), priors);
    (state.get_best_cost() < best).then(|| (found, state.get_best_cost()))
}

fn clamp(mut x: Vec<f64>, priors: &[LogPrior]) -> Vec<f64> {
    for (v, p) in x.iter_mut().zip(priors) {
        *v = v.clamp(p.bounds.0, p.bounds.1);
    }
    x
}
