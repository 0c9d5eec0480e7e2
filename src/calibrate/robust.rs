//! Robust non-negative regression of step times with a constant of its own for every run.
//!
//! The same batch takes up to 20 % longer in one run than in another, because the machine differs, and most of
//! the difference is the same for small and large batches: it lies in the fixed cost of a step. A pooled
//! regression would mistake it for an effect of whatever the slow runs have in common. So each run has its own
//! constant, which is fitted along; the constant of the model is their median.

use ndarray::Array2;
use rayon::prelude::*;

use super::nnls::nnls;
use crate::steptime::BatchShape;
use crate::steptime::fitted::{TERMS, terms};

/// Huber's constant: 95 % efficiency on normal residuals.
const HUBER: f64 = 1.345;
/// A median absolute deviation times this estimates a normal standard deviation.
const MAD_TO_SIGMA: f64 = 1.4826;
/// Rounds of reweighting at most, for the result and for the search of the knee.
const MAX_ROUNDS: usize = 60;
const SEARCH_ROUNDS: usize = 12;
/// Relative change of the coefficients at which the rounds end.
const CONVERGED: f64 = 1e-10;
/// A step that is off by more than this share is a mishap and not counted in a run's mean.
const MISHAP: f64 = 0.5;
/// Residuals this small are rounding.
const EXACT: f64 = 1e-13;
/// The largest knee tried, in decode rows.
const MAX_KNEE: u32 = 32;

/// The steps of one run that are fitted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunSteps {
    /// Batches.
    pub batches: Vec<BatchShape>,
    /// Their measured seconds, each above 0.
    pub seconds: Vec<f64>,
}

/// What was fitted.
#[derive(Debug, Clone, PartialEq)]
pub struct RobustFit {
    /// Coefficients of the terms; the first, the constant, is the median of `own_steps`.
    pub coefficients: [f64; TERMS],
    /// The knee in decode rows.
    pub knee: u32,
    /// Each run's own constant in seconds: the mean of what the other terms leave of its steps; NaN when
    /// it has none but mishaps.
    pub own_steps: Vec<f64>,
    /// Mean absolute relative residual, each run with its own constant.
    pub loss: f64,
}

/// Fits all runs; the knee is the number of rows with the least mean absolute relative residual. Rows are
/// whole, so every candidate is tried.
pub fn fit(runs: &[&RunSteps]) -> RobustFit {
    let most = runs
        .iter()
        .flat_map(|r| &r.batches)
        .map(|b| b.decode_tokens)
        .max()
        .unwrap_or(0);
    // With fewer than two rows above it, a knee could not be told from noise.
    let candidates: Vec<u32> = (1..=most.saturating_sub(2).clamp(1, MAX_KNEE)).collect();
    let losses: Vec<(f64, u32)> = candidates
        .par_iter()
        .map(|&knee| (fit_with_knee(runs, knee, SEARCH_ROUNDS).loss, knee))
        .collect();
    let knee = losses
        .into_iter()
        .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
        .map_or(1, |(_, knee)| knee);
    fit_with_knee(runs, knee, MAX_ROUNDS)
}

/// A quick fit with a knee that is known.
pub fn fit_near(runs: &[&RunSteps], knee: u32) -> RobustFit {
    fit_with_knee(runs, knee, SEARCH_ROUNDS)
}

/// Iteratively reweighted least squares with Huber's weights on relative residuals.
fn fit_with_knee(runs: &[&RunSteps], knee: u32, rounds: usize) -> RobustFit {
    let rows: Vec<Row> = runs
        .iter()
        .enumerate()
        .flat_map(|(run, r)| {
            r.batches
                .iter()
                .zip(&r.seconds)
                .map(move |(batch, &seconds)| Row {
                    run,
                    terms: terms(batch, knee),
                    seconds,
                })
        })
        .collect();
    let mut weights = vec![1.0; rows.len()];
    let mut coefficients = [0.0; TERMS];
    let mut absolute = Vec::new();
    for _ in 0..rounds {
        let before = coefficients;
        let (shape, constants) = weighted(&rows, &weights, runs.len());
        coefficients = shape;
        absolute = absolute_residuals(&rows, &coefficients, &constants);
        let limit = HUBER * MAD_TO_SIGMA * median(&absolute).unwrap_or(0.0);
        if limit <= EXACT || change(&before, &coefficients) < CONVERGED {
            break;
        }
        for (weight, r) in weights.iter_mut().zip(&absolute) {
            *weight = if *r <= limit { 1.0 } else { limit / r };
        }
    }
    let own_steps = own_steps(&rows, &coefficients, &absolute, runs.len());
    // A constant below 0 is no step time; runs so odd leave it at 0.
    let told: Vec<f64> = own_steps.iter().copied().filter(|s| s.is_finite()).collect();
    coefficients[0] = median(&told).unwrap_or(0.0).max(0.0);
    RobustFit {
        coefficients,
        knee,
        loss: absolute.iter().sum::<f64>() / absolute.len().max(1) as f64,
        own_steps,
    }
}

struct Row {
    run: usize,
    terms: [f64; TERMS],
    seconds: f64,
}

impl Row {
    /// What all terms but the constant predict, in seconds.
    fn variable(&self, coefficients: &[f64; TERMS]) -> f64 {
        self.terms
            .iter()
            .zip(coefficients)
            .skip(1)
            .map(|(x, c)| x * c)
            .sum()
    }
}

/// Weighted least squares of relative errors with a constant a run: the constants are eliminated by taking
/// each run's weighted means off (Frisch, Waugh and Lovell), the rest is solved under non-negativity. Returns
/// the coefficients (with 0 for the constant) and the runs' constants.
fn weighted(rows: &[Row], weights: &[f64], runs: usize) -> ([f64; TERMS], Vec<f64>) {
    let relative: Vec<f64> = rows
        .iter()
        .zip(weights)
        .map(|(r, w)| w / (r.seconds * r.seconds))
        .collect();
    let mut totals = vec![0.0; runs];
    let mut means = vec![([0.0; TERMS], 0.0); runs];
    for (row, w) in rows.iter().zip(&relative) {
        totals[row.run] += w;
        for (slot, term) in means[row.run].0.iter_mut().zip(row.terms) {
            *slot += w * term;
        }
        means[row.run].1 += w * row.seconds;
    }
    for ((terms, seconds), total) in means.iter_mut().zip(&totals).filter(|(_, t)| **t > 0.0) {
        terms.iter_mut().for_each(|t| *t /= total);
        *seconds /= total;
    }
    let mut matrix = Array2::zeros((rows.len(), TERMS - 1));
    let mut target = Vec::with_capacity(rows.len());
    for ((row, w), mut out) in rows.iter().zip(&relative).zip(matrix.rows_mut()) {
        let root = w.sqrt();
        let (mean_terms, mean_seconds) = &means[row.run];
        for (slot, k) in out.iter_mut().zip(1..TERMS) {
            *slot = root * (row.terms[k] - mean_terms[k]);
        }
        target.push(root * (row.seconds - mean_seconds));
    }
    let mut coefficients = [0.0; TERMS];
    coefficients[1..].copy_from_slice(&nnls(matrix.view(), &target));
    let constants = means
        .iter()
        .map(|(terms, seconds)| seconds - terms.iter().zip(&coefficients).map(|(x, c)| x * c).sum::<f64>())
        .collect();
    (coefficients, constants)
}

fn absolute_residuals(rows: &[Row], coefficients: &[f64; TERMS], constants: &[f64]) -> Vec<f64> {
    rows.iter()
        .map(|row| ((constants[row.run] + row.variable(coefficients)) / row.seconds - 1.0).abs())
        .collect()
}

/// Means, not medians: with its own constant a run takes as long as it did, but for mishaps, and how long a
/// run takes is what a prediction must get right first.
fn own_steps(rows: &[Row], coefficients: &[f64; TERMS], absolute: &[f64], runs: usize) -> Vec<f64> {
    let mut sums = vec![(0.0, 0.0); runs];
    for (row, _) in rows.iter().zip(absolute).filter(|(_, r)| **r <= MISHAP) {
        sums[row.run].0 += row.seconds - row.variable(coefficients);
        sums[row.run].1 += 1.0;
    }
    // A run of nothing but mishaps says nothing: 0 / 0.
    sums.iter().map(|(sum, n)| sum / n).collect()
}

fn change(before: &[f64; TERMS], after: &[f64; TERMS]) -> f64 {
    before
        .iter()
        .zip(after)
        .map(|(b, a)| (a - b).abs() / a.abs().max(f64::MIN_POSITIVE))
        .fold(0.0, f64::max)
}

/// The middle value; the mean of both middle ones for an even number.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The `q` quantile by linear interpolation between order statistics.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    Some(sorted[below] + (place - below as f64) * (sorted[above] - sorted[below]))
}

#[cfg(test)]
#[path = "robust_tests.rs"]
mod tests;
