//! Arrival processes. Gaps are drawn with mean 1 and divided by the rate, so the same draws serve every rate
//! of a search (common random numbers).

use rand_distr::{Distribution, Exp1, Gamma};
use rand_pcg::Pcg64;

use crate::units::{SimTime, TimeError};

/// The law of the gaps between arrivals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gaps {
    /// All equal.
    Constant,
    /// Exponential: arrivals are Poisson.
    Poisson,
    /// Gamma with this shape, vLLM's `burstiness` (rule M10): 1 is Poisson, below 1 is burstier, above 1
    /// more even; the squared coefficient of variation is 1 / burstiness.
    Gamma(f64),
}

/// When to stop generating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// This many arrivals.
    Count(u32),
    /// Arrivals before this instant.
    Time(SimTime),
}

/// Why arrivals could not be generated.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ArrivalError {
    /// Not a rate.
    #[error("a rate of {0} requests a second")]
    Rate(f64),
    /// Not a shape.
    #[error("a burstiness of {0}")]
    Burstiness(f64),
    /// A time beyond what 64-bit nanoseconds hold.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// More arrivals than one run may have.
    #[error("more than {MAX_ARRIVALS} arrivals")]
    TooMany,
}

/// Most arrivals of one run; bounds the memory of a mistyped rate.
pub const MAX_ARRIVALS: u32 = 10_000_000;

/// Arrival instants at `rate` a second. The first comes one gap after 0, as in vLLM's benchmark.
///
/// With `rescale` (rule M10) the times are stretched so that the last of `n` arrivals is at n / rate exactly,
/// as vLLM's benchmark does: the total is then fixed and the arrivals are no independent Poisson process.
/// It applies to [`Until::Count`] only.
///
/// # Errors
/// [`ArrivalError`] for a rate or burstiness that is not positive and finite, and for absurd lengths.
pub fn times(
    gaps: Gaps,
    rate: f64,
    until: Until,
    rescale: bool,
    rng: &mut Pcg64,
) -> Result<Vec<SimTime>, ArrivalError> {
    if !(rate.is_finite() && rate > 0.0) {
        return Err(ArrivalError::Rate(rate));
    }
    let expected = match until {
        Until::Count(n) => f64::from(n),
        Until::Time(end) => rate * end.as_secs_f64() / 2.0, // chance may halve it, hardly more
    };
    if expected > f64::from(MAX_ARRIVALS) {
        return Err(ArrivalError::TooMany);
    }
    let mut gap = sampler(gaps)?;
    let mut total = 0.0;
    let mut units = Vec::new();
    loop {
        match until {
            Until::Count(n) if units.len() >= n as usize => break,
            _ => {}
        }
        total += gap(rng);
        if let Until::Time(end) = until
            && total / rate >= end.as_secs_f64()
        {
            break;
        }
        if units.len() >= MAX_ARRIVALS as usize {
            return Err(ArrivalError::TooMany);
        }
        units.push(total);
    }
    let stretch = match until {
        Until::Count(n) if rescale && total > 0.0 => f64::from(n) / total,
        _ => 1.0,
    };
    units
        .into_iter()
        .map(|u| Ok(SimTime::try_from_secs_f64(u * stretch / rate)?))
        .collect()
}

type Sampler = Box<dyn FnMut(&mut Pcg64) -> f64>;

fn sampler(gaps: Gaps) -> Result<Sampler, ArrivalError> {
    Ok(match gaps {
        Gaps::Constant => Box::new(|_| 1.0),
        Gaps::Poisson => Box::new(|rng| Exp1.sample(rng)),
        Gaps::Gamma(shape) => {
            let bad = ArrivalError::Burstiness(shape);
            if !(shape.is_finite() && shape > 0.0) {
                return Err(bad);
            }
            let law = Gamma::new(shape, 1.0 / shape).map_err(|_| bad)?;
            Box::new(move |rng| law.sample(rng))
        }
    })
}

#[cfg(test)]
mod tests {
    use approx::assert_relative_eq;

    use super::*;
    use crate::rng::{Purpose, stream};

    const N: u32 = 200_000;

    fn gaps_of(gaps: Gaps, rate: f64) -> Vec<f64> {
        let mut rng = stream(7, Purpose::Arrivals, 0);
        let times = times(gaps, rate, Until::Count(N), false, &mut rng).unwrap();
        let mut before = 0.0;
        times
            .iter()
            .map(|t| {
                let gap = t.as_secs_f64() - before;
                before = t.as_secs_f64();
                gap
            })
            .collect()
    }

    fn mean_and_variance(x: &[f64]) -> (f64, f64) {
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        (
            mean,
            x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0),
        )
    }

    #[test]
    fn constant_arrivals_are_exact() {
        let mut rng = stream(7, Purpose::Arrivals, 0);
        let got = times(Gaps::Constant, 4.0, Until::Count(3), false, &mut rng).unwrap();
        assert_eq!(got, [250_000_000, 500_000_000, 750_000_000].map(SimTime));
        let got = times(
            Gaps::Constant,
            4.0,
            Until::Time(SimTime(1_000_000_000)),
            false,
            &mut rng,
        )
        .unwrap();
        assert_eq!(got.len(), 3, "the arrival at the very end is outside");
    }

    /// Mean 1/rate and variance 1/(rate^2 * shape), within four standard errors of their estimates.
    #[test]
    fn gaps_have_the_mean_and_variance_of_their_law() {
        for (gaps, shape) in [
            (Gaps::Poisson, 1.0),
            (Gaps::Gamma(1.0), 1.0),
            (Gaps::Gamma(0.25), 0.25),
            (Gaps::Gamma(4.0), 4.0),
        ] {
            let rate = 5.0;
            let (mean, variance) = mean_and_variance(&gaps_of(gaps, rate));
            let want = 1.0 / (rate * rate * shape);
            let n = f64::from(N);
            assert!(
                (mean - 1.0 / rate).abs() < 4.0 * (want / n).sqrt(),
                "{gaps:?} mean {mean}"
            );
            // Kurtosis excess of a gamma law is 6/shape.
            let spread = want * ((2.0 + 6.0 / shape) / n).sqrt();
            assert!(
                (variance - want).abs() < 4.0 * spread,
                "{gaps:?} variance {variance}, want {want}"
            );
        }
    }

    #[test]
    fn rescaled_arrivals_end_exactly_and_keep_their_shape() {
        let mut a = stream(3, Purpose::Arrivals, 0);
        let mut b = stream(3, Purpose::Arrivals, 0);
        let plain = times(Gaps::Poisson, 2.0, Until::Count(100), false, &mut a).unwrap();
        let rescaled = times(Gaps::Poisson, 2.0, Until::Count(100), true, &mut b).unwrap();
        assert_eq!(rescaled[99], SimTime(50_000_000_000));
        let ratio = |t: &[SimTime]| t[10].as_secs_f64() / t[80].as_secs_f64();
        assert_relative_eq!(ratio(&plain), ratio(&rescaled), max_relative = 1e-9);
    }

    #[test]
    fn another_rate_stretches_the_same_draws() {
        let at = |rate| {
            let mut rng = stream(3, Purpose::Arrivals, 0);
            times(Gaps::Gamma(0.5), rate, Until::Count(50), false, &mut rng).unwrap()
        };
        for (slow, fast) in at(1.0).iter().zip(at(4.0)) {
            assert_relative_eq!(slow.as_secs_f64(), 4.0 * fast.as_secs_f64(), max_relative = 1e-6);
        }
    }

    #[test]
    fn the_first_draws_do_not_change_between_releases() {
        let mut rng = stream(1, Purpose::Arrivals, 0);
        let poisson = times(Gaps::Poisson, 1.0, Until::Count(3), false, &mut rng).unwrap();
        let mut rng = stream(1, Purpose::Arrivals, 0);
        let gamma = times(Gaps::Gamma(0.5), 1.0, Until::Count(3), false, &mut rng).unwrap();
        assert_eq!(poisson.iter().map(|t| t.0).collect::<Vec<_>>(), PINNED_POISSON);
        assert_eq!(gamma.iter().map(|t| t.0).collect::<Vec<_>>(), PINNED_GAMMA);
    }

    const PINNED_POISSON: [u64; 3] = [1_280_623_380, 2_433_915_699, 3_640_223_368];
    const PINNED_GAMMA: [u64; 3] = [3_429_743_921, 4_160_490_797, 4_160_511_992];

    #[test]
    fn rates_and_shapes_that_are_none_are_refused() {
        let mut rng = stream(1, Purpose::Arrivals, 0);
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(times(Gaps::Poisson, rate, Until::Count(1), false, &mut rng).is_err());
        }
        for shape in [0.0, -1.0, f64::NAN] {
            assert!(times(Gaps::Gamma(shape), 1.0, Until::Count(1), false, &mut rng).is_err());
        }
        let long = Until::Count(2);
        assert!(
            times(Gaps::Constant, 1e-18, long, false, &mut rng).is_err(),
            "beyond 584 years"
        );
    }
}
