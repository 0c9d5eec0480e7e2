use ndarray::Array2;
use rand_distr::{Distribution, StandardNormal};

use super::*;
use crate::calibrate::posterior::{Posterior, Residuals, Search};
use crate::rng::{Purpose, stream};

/// Logarithms of times of steps, of several runs: the time is a sum of three parts whose shares differ from step to
/// step.
struct Steps {
    shares: Array2<f64>,
    logs: Vec<f64>,
}

impl Residuals for Steps {
    type Error = std::convert::Infallible;

    fn at(&self, x: &[f64]) -> Result<Vec<f64>, Self::Error> {
        Ok(self
            .shares
            .rows()
            .into_iter()
            .zip(&self.logs)
            .map(|(shares, log)| {
                let time: f64 = shares.iter().zip(x).map(|(s, x)| s * x.exp()).sum();
                time.ln() - log
            })
            .collect())
    }
}

const RUNS: usize = 8;
const STEPS: usize = 20;
const PRIOR: LogPrior = LogPrior {
    mean: 0.0,
    sd: 0.5,
    bounds: (-5.0, 5.0),
};

/// A problem with known parameters: runs differ by `between`, steps by `within`.
fn problem(seed: u64, between: f64, within: f64) -> (Steps, Vec<f64>) {
    let mut rng = stream(seed, Purpose::Noise, 0);
    let mut normal = || -> f64 { StandardNormal.sample(&mut rng) };
    let truth: Vec<f64> = (0..3).map(|_| PRIOR.mean + PRIOR.sd * normal()).collect();
    let mut shares = Array2::zeros((RUNS * STEPS, 3));
    let mut logs = Vec::new();
    for run in 0..RUNS {
        let speed = between * normal();
        for step in 0..STEPS {
            let mut row = shares.row_mut(run * STEPS + step);
            row.iter_mut().for_each(|s| *s = (0.8 * normal()).exp());
            let time: f64 = row.iter().zip(&truth).map(|(s, x)| s * x.exp()).sum();
            logs.push(time.ln() + speed + within * normal());
        }
    }
    (Steps { shares, logs }, truth)
}

fn fitted(steps: &Steps) -> Posterior {
    let search = Search {
        rounds: 25,
        first_step: 1e-3,
        shrink: 0.7,
        tolerance: 1e-6,
        polish: 0,
        least_scale: Some(1e-7),
    };
    posterior::find(steps, &[PRIOR; 3], &[0.0; 3], search).unwrap()
}

#[test]
fn without_noise_the_parameters_come_back_to_a_millionth() {
    for seed in 1..6 {
        let (steps, truth) = problem(seed, 0.0, 0.0);
        let found = fitted(&steps);
        for (x, t) in found.linear.x.iter().zip(&truth) {
            approx::assert_abs_diff_eq!(x, t, epsilon = 1e-6);
        }
    }
}

/// Truths drawn from the prior, runs that differ, as many draws as fits make: how often does the interval of a
/// parameter hold it?
#[test]
fn nine_intervals_of_ten_hold_the_truth() {
    const REPEATS: u64 = 200;
    let units = Units::of_sizes([STEPS; RUNS]);
    for (between, within) in [(0.03, 0.03), (0.0, 0.05), (0.1, 0.02)] {
        let mut held = [0u32; 3];
        for seed in 0..REPEATS {
            let (steps, truth) = problem(1000 + seed, between, within);
            let found = fitted(&steps);
            let draws: Vec<Vec<f64>> = (0..24)
                .map(|index| {
                    let mut rng = stream(seed, Purpose::Bootstrap, index);
                    let normals: Vec<f64> = (0..3).map(|_| StandardNormal.sample(&mut rng)).collect();
                    resample(&found.linear, &[PRIOR; 3], &units, &normals, &mut rng)
                })
                .collect();
            for j in 0..3 {
                let best = found.linear.x[j];
                let sd = log_sd(
                    draws.iter().map(|d| d[j]),
                    best,
                    found.covariance[[j, j]].sqrt(),
                    PRIOR.sd,
                );
                let (low, high) = interval_90(best, sd);
                held[j] += u32::from((low..=high).contains(&truth[j].exp()));
            }
        }
        let shares = held.map(|h| f64::from(h) / REPEATS as f64);
        let all = shares.iter().sum::<f64>() / 3.0;
        assert!(
            (0.85..=0.95).contains(&all),
            "between {between}, within {within}: {shares:?}"
        );
    }
}

#[test]
fn few_units_widen_and_one_unit_says_nothing() {
    let of = |n: usize| Units::of_sizes(vec![3; n]).widening();
    assert!(of(2) > 5.0 && of(4) > 1.5 && of(8) < 1.3 && of(100) < 1.02);
    approx::assert_relative_eq!(of(1), 1.0);
}
