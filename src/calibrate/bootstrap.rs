//! Parameter vectors that agree with the data about as well as the best one, and the spread that they give a
//! parameter: runs are resampled whole, since steps or requests of one run share its machine's mood, and so are the
//! priors.

use rand::RngExt;
use rand_pcg::Pcg64;

use super::posterior::{self, Linear, LogPrior};

/// Which rows are drawn together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Units {
    of_row: Vec<usize>,
    number: usize,
}

/// Normal quantile of a two-sided 90 % interval.
const Z90: f64 = 1.645;
/// A resampled vector stays within this many standard deviations of the prior from the best one: two runs say next
/// to nothing of their spread, and Student's factor for them would leave all reason.
const FARTHEST: f64 = 2.0;

impl Units {
    /// Consecutive units of these numbers of rows.
    pub fn of_sizes(sizes: impl IntoIterator<Item = usize>) -> Self {
        let mut of_row = Vec::new();
        let mut number = 0;
        for size in sizes {
            of_row.extend(std::iter::repeat_n(number, size));
            number += 1;
        }
        Self { of_row, number }
    }

    /// What a deviation between resamples is to be multiplied by so that 1.645 of its standard deviation is a 90 %
    /// interval: a resample of n units has (n - 1) / n of their variance, and Student's quantile stands for the
    /// normal one.
    pub fn widening(&self) -> f64 {
        match self.number {
            0 | 1 => 1.0,
            n => (n as f64 / (n - 1) as f64).sqrt() * student(n - 1) / Z90,
        }
    }
}

/// One vector: the best one, moved by what resampled units change (widened for their small number) and by what
/// priors change whose means are moved by `normals` of their standard deviations. Both on the linear model.
pub fn resample(
    linear: &Linear,
    priors: &[LogPrior],
    units: &Units,
    normals: &[f64],
    rng: &mut Pcg64,
) -> Vec<f64> {
    let mut times = vec![0.0; units.number];
    for _ in 0..units.number {
        times[rng.random_range(0..units.number)] += 1.0;
    }
    let even = vec![1.0; units.of_row.len()];
    let drawn: Vec<f64> = units.of_row.iter().map(|&u| times[u]).collect();
    let moved: Vec<LogPrior> = priors
        .iter()
        .zip(normals)
        .map(|(p, z)| LogPrior {
            mean: p.mean + p.sd * z,
            ..*p
        })
        .collect();
    let centre = posterior::minimise(linear, &even, priors, &linear.x);
    let by_units = posterior::minimise(linear, &drawn, priors, &centre);
    let by_priors = posterior::minimise(linear, &even, &moved, &centre);
    let widening = units.widening();
    (0..priors.len())
        .map(|j| {
            let farthest = FARTHEST * priors[j].sd;
            let of_units = (widening * (by_units[j] - centre[j])).clamp(-farthest, farthest);
            let x = linear.x[j] + of_units + (by_priors[j] - centre[j]);
            x.clamp(priors[j].bounds.0, priors[j].bounds.1)
        })
        .collect()
}

/// Standard deviation of a parameter's logarithm: that of the draws about the best one, at least that of the linear
/// model (slopes alone are far too sure, but few units may happen to agree), at most the prior's.
pub fn log_sd(draws: impl Iterator<Item = f64>, best: f64, of_slopes: f64, prior: f64) -> f64 {
    let squares: Vec<f64> = draws.map(|d| (d - best).powi(2)).collect();
    let drawn = (squares.iter().sum::<f64>() / squares.len().max(1) as f64).sqrt();
    drawn.max(of_slopes).min(prior)
}

/// Ends of the 90 % interval of a parameter whose logarithm has this best value and standard deviation.
pub fn interval_90(best: f64, log_sd: f64) -> (f64, f64) {
    ((best - Z90 * log_sd).exp(), (best + Z90 * log_sd).exp())
}

/// Root mean square, widened so that 1.645 of it is Student's 90 % for so few errors.
pub fn scatter_of(errors: &[f64]) -> f64 {
    let n = errors.len().max(1);
    let rms = (errors.iter().map(|e| e * e).sum::<f64>() / n as f64).sqrt();
    rms * student(n) / Z90
}

/// Student's 95th percentile for `n` degrees of freedom.
pub fn student(n: usize) -> f64 {
    const T: [f64; 10] = [6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81];
    match n {
        0 => T[0],
        1..=10 => T[n - 1],
        _ => Z90 + 1.65 / n as f64,
    }
}

#[cfg(test)]
#[path = "bootstrap_tests.rs"]
mod tests;
