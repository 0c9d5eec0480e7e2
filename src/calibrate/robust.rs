//! Robust non-negative regression of step times with a speed of its own for every run.
//!
//! The same batch takes up to 20 % longer in one run than in another, because the machine differs. A pooled
//! regression would mistake that for an effect of whatever the slow runs have in common. So each run has a
//! factor, its slowness, that is fitted along and whose median over the runs is 1.

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
    /// Coefficients of the terms.
    pub coefficients: [f64; TERMS],
    /// The knee in decode rows.
    pub knee: u32,
    /// Slowness of each run; the median is 1.
    pub slowness: Vec<f64>,
    /// Mean absolute relative residual, each run's slowness taken into account.
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
    let mut slowness = vec![1.0; runs.len()];
    let mut weights = vec![1.0; rows.len()];
    let mut coefficients = [0.0; TERMS];
    for _ in 0..rounds {
        let before = coefficients;
        coefficients = weighted(&rows, &weights, &slowness);
        update_slowness(&rows, &mut coefficients, &mut slowness);
        let residuals = residuals(&rows, &coefficients, &slowness);
        let absolute: Vec<f64> = residuals.iter().map(|r| r.abs()).collect();
        let limit = HUBER * MAD_TO_SIGMA * median(&absolute).unwrap_or(0.0);
        if limit <= EXACT {
            break;
        }
        for (weight, r) in weights.iter_mut().zip(&absolute) {
            *weight = if *r <= limit { 1.0 } else { limit / r };
        }
        if change(&before, &coefficients) < CONVERGED {
            break;
        }
    }
    let residuals = residuals(&rows, &coefficients, &slowness);
    RobustFit {
        coefficients,
        knee,
        loss: residuals.iter().map(|r| r.abs()).sum::<f64>() / residuals.len().max(1) as f64,
        slowness,
    }
}

struct Row {
    run: usize,
    terms: [f64; TERMS],
    seconds: f64,
}

impl Row {
    fn predicted(&self, coefficients: &[f64; TERMS]) -> f64 {
        self.terms.iter().zip(coefficients).map(|(x, c)| x * c).sum()
    }
}

fn weighted(rows: &[Row], weights: &[f64], slowness: &[f64]) -> [f64; TERMS] {
    let mut matrix = Array2::zeros((rows.len(), TERMS));
    let mut target = Vec::with_capacity(rows.len());
    for ((row, weight), mut out) in rows.iter().zip(weights).zip(matrix.rows_mut()) {
        let root = weight.sqrt();
        for (slot, term) in out.iter_mut().zip(row.terms) {
            *slot = root * slowness[row.run] * term / row.seconds;
        }
        target.push(root);
    }
    let solution = nnls(matrix.view(), &target);
    let mut coefficients = [0.0; TERMS];
    coefficients.copy_from_slice(&solution);
    coefficients
}

/// A run's slowness is its measured time over its predicted time: how long a run takes is what a prediction
/// must get right first. The median over the runs is then made 1.
fn update_slowness(rows: &[Row], coefficients: &mut [f64; TERMS], slowness: &mut [f64]) {
    let mut sums = vec![(0.0, 0.0); slowness.len()];
    for row in rows {
        sums[row.run].0 += row.seconds;
        sums[row.run].1 += row.predicted(coefficients);
    }
    for (slot, (measured, predicted)) in slowness.iter_mut().zip(sums) {
        *slot = if predicted > 0.0 {
            measured / predicted
        } else {
            1.0
        };
    }
    let level = median(slowness).filter(|m| *m > 0.0).unwrap_or(1.0);
    slowness.iter_mut().for_each(|s| *s /= level);
    coefficients.iter_mut().for_each(|c| *c *= level);
}

fn residuals(rows: &[Row], coefficients: &[f64; TERMS], slowness: &[f64]) -> Vec<f64> {
    rows.iter()
        .map(|row| slowness[row.run] * row.predicted(coefficients) / row.seconds - 1.0)
        .collect()
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
