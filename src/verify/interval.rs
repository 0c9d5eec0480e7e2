//! 90 % intervals: what parameter draws make of a figure, and what predictions miss by beside.

use rand_distr::{Distribution, StandardNormal};

use crate::rng::{Purpose, stream};

/// Normal quantile of a two-sided 90 % interval.
const Z90: f64 = 1.645;

/// The 90 % interval around `central`: the 5th and 95th percentile of what the draws predict, widened by a relative
/// scatter of `misfit`. Either side is at least as wide as the misfit alone; near a knee the upper side may be many
/// times the lower one. `None` without a usable figure.
pub fn interval(central: f64, draws: &[f64], misfit: f64) -> Option<(f64, f64)> {
    around(central, draws, misfit, quantile)
}

/// As [`interval`]; of fewer than 16 draws it ends at the outermost ones, which lie about where the quantiles do.
pub fn interval_of_few(central: f64, draws: &[f64], misfit: f64) -> Option<(f64, f64)> {
    around(central, draws, misfit, end)
}

fn around(central: f64, draws: &[f64], misfit: f64, quantile: fn(&[f64], f64) -> f64) -> Option<(f64, f64)> {
    if !(central.is_finite() && central > 0.0) {
        return None;
    }
    let mut logs: Vec<f64> = draws
        .iter()
        .filter(|d| d.is_finite() && **d > 0.0)
        .map(|d| (d / central).ln())
        .collect();
    logs.sort_by(f64::total_cmp);
    let beside = Z90 * misfit;
    let (low, high) = if logs.is_empty() {
        (0.0, 0.0)
    } else {
        (quantile(&logs, 0.05).min(0.0), quantile(&logs, 0.95).max(0.0))
    };
    Some((
        central * (-low.hypot(beside)).exp(),
        central * high.hypot(beside).exp(),
    ))
}

/// The 90 % interval of a figure that need not be above 0, such as a share or a number of groups: the 5th and 95th
/// percentile of what the draws predict (of few draws, the outermost), wide enough to hold `central`. A draw of infinity
/// is one without an end, and so may the interval be.
pub fn plain_interval(central: f64, draws: &[f64]) -> (f64, f64) {
    let mut sorted: Vec<f64> = draws.iter().copied().filter(|d| !d.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    if sorted.is_empty() {
        return (central, central);
    }
    (end(&sorted, 0.05).min(central), end(&sorted, 0.95).max(central))
}

/// From so many draws on the ends of an interval are quantiles between them.
const MANY_DRAWS: usize = 16;

fn end(sorted: &[f64], q: f64) -> f64 {
    if sorted.len() < MANY_DRAWS {
        return quantile(sorted, q.round());
    }
    quantile(sorted, q)
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = q * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
    if below.is_infinite() {
        return below;
    }
    below + (above - below) * rank.fract()
}

/// `n` factors on the step time of a run as a whole, log-normal with standard deviation `log_sd`: in pairs of
/// opposite sign and scaled to exactly that spread, so that few of them stand for all.
pub fn speed_factors(n: usize, log_sd: f64) -> Vec<f64> {
    let mut rng = stream(1, Purpose::Noise, 0);
    let half: Vec<f64> = (0..n.div_ceil(2))
        .map(|_| StandardNormal.sample(&mut rng))
        .collect();
    let rms = (half.iter().map(|z: &f64| z * z).sum::<f64>() / half.len().max(1) as f64).sqrt();
    (0..n)
        .map(|i| {
            let z = half[i / 2] / rms;
            (log_sd * if i % 2 == 0 { z } else { -z }).exp()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    #[test]
    fn misfit_alone_is_symmetric_in_logarithms_and_draws_widen_their_side() {
        let (lo, hi) = interval(2.0, &[], 0.1).unwrap();
        assert_relative_eq!(lo * hi, 4.0, max_relative = 1e-12);
        assert_relative_eq!(hi, 2.0 * (0.1645_f64).exp(), max_relative = 1e-12);
        let skewed: Vec<f64> = (0..20).map(|i| 2.0 * (1.0 + f64::from(i))).collect();
        let (lo2, hi2) = interval(2.0, &skewed, 0.1).unwrap();
        assert!(hi2 > 30.0, "{hi2}");
        assert_relative_eq!(lo2, lo, max_relative = 1e-12);
        assert_eq!(interval(f64::NAN, &[], 0.1), None);
    }

    #[test]
    fn figures_that_may_be_0_or_without_end_have_intervals_too() {
        let draws: Vec<f64> = (0..16).map(|i| f64::from(i) / 10.0).collect();
        let (lo, hi) = plain_interval(0.9, &draws);
        assert_relative_eq!(lo, 0.075, max_relative = 1e-12);
        assert_relative_eq!(hi, 1.425, max_relative = 1e-12);
        let (_, hi) = plain_interval(3.0, &draws);
        assert_relative_eq!(hi, 3.0, max_relative = 1e-12);
        assert_eq!(plain_interval(3.0, &[]), (3.0, 3.0));
        let open: Vec<f64> = (0..16)
            .map(|i| if i < 13 { 1.0 } else { f64::INFINITY })
            .collect();
        assert_eq!(plain_interval(1.0, &open), (1.0, f64::INFINITY));
        assert_eq!(
            plain_interval(0.5, &[0.2, 0.4, 0.6, 0.8]),
            (0.2, 0.8),
            "few: the outermost"
        );
    }

    #[test]
    fn speed_factors_have_the_spread_asked_for() {
        let logs: Vec<f64> = speed_factors(24, 0.02).iter().map(|f| f.ln()).collect();
        let mean = logs.iter().sum::<f64>() / 24.0;
        let sd = (logs.iter().map(|l| l * l).sum::<f64>() / 24.0).sqrt();
        assert_relative_eq!(mean, 0.0, epsilon = 1e-12);
        assert_relative_eq!(sd, 0.02, max_relative = 1e-9);
    }
}
