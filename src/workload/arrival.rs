//! Arrival processes. Gaps are drawn with mean 1 and divided by the rate, so the same draws serve every rate
//! of a search (common random numbers). Arrivals are drawn one by one: memory does not grow with their number.

use rand_distr::{Distribution, Exp1, Gamma};
use rand_pcg::Pcg64;

use super::pattern::{Inverse, Pattern, PatternError};
use crate::units::{SimTime, TimeError, written};

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

/// A process of arrivals. The first comes one gap after 0, as in vLLM's benchmark.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArrivalLaw {
    /// Law of the gaps.
    pub gaps: Gaps,
    /// Requests a second; with a pattern, in the mean over a week.
    pub rate: f64,
    /// vLLM's rescaling (rule M10): the times are stretched so that the last of `n` arrivals is at n / rate exactly.
    /// The total is then fixed and the arrivals are no independent Poisson process. It applies to
    /// [`Until::Count`] only.
    pub rescale: bool,
    /// How the rate goes with the time of the day and of the week; `None` = it stands still.
    pub pattern: Option<Pattern>,
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
    #[error("a rate of {} requests a second", written(*.0))]
    Rate(f64),
    /// Not a shape.
    #[error("a burstiness of {}", written(*.0))]
    Burstiness(f64),
    /// Not a pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A time beyond what 64-bit nanoseconds hold.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// More arrivals than one run may have.
    #[error("more than {MAX_STREAMED} arrivals")]
    TooMany,
    /// More arrivals than are kept in memory.
    #[error(
        "more than {MAX_ARRIVALS} arrivals, which are not kept in memory; `kneeboard simulate --summary-only` takes \
         them one by one"
    )]
    TooManyInMemory,
    /// Rescaling where it has no meaning.
    #[error("rescaled times with several processes, or with a rate that varies")]
    Rescale,
}

/// Most arrivals of a workload that is kept in memory; bounds the memory of a mistyped rate.
pub const MAX_ARRIVALS: u32 = 10_000_000;
/// Most arrivals of a workload that is taken one by one; bounds the time of a mistyped rate.
pub const MAX_STREAMED: u32 = 1_000_000_000;

/// Arrivals of one process or of several, merged in order of time; equal times in the order of the processes.
/// Each is the number of its process and its instant.
#[derive(Debug, Clone)]
pub struct Arrivals {
    clocks: Vec<Clock>,
    until: Until,
    drawn: u32,
    ended: bool,
}

impl Arrivals {
    /// One process for each law, with the chance that it draws from.
    ///
    /// # Errors
    /// [`ArrivalError`] for a rate, burstiness or pattern that is none, and for absurd lengths.
    pub fn new(
        laws: impl IntoIterator<Item = (ArrivalLaw, Pcg64)>,
        until: Until,
    ) -> Result<Self, ArrivalError> {
        let (mut clocks, mut rate, mut rescale) = (Vec::new(), 0.0, false);
        for (law, rng) in laws {
            rate += law.rate;
            rescale |= law.rescale;
            clocks.push(Clock::new(&law, rng)?);
        }
        if expected(rate, until) > f64::from(MAX_STREAMED) {
            return Err(ArrivalError::TooMany);
        }
        if let (Until::Count(n), true) = (until, rescale) {
            match clocks.as_mut_slice() {
                [clock] if clock.warp.is_none() => clock.end_at_count(n),
                _ => return Err(ArrivalError::Rescale),
            }
        }
        for clock in &mut clocks {
            clock.advance();
        }
        Ok(Self {
            clocks,
            until,
            drawn: 0,
            ended: false,
        })
    }

    fn is_over(&self, secs: f64) -> bool {
        match self.until {
            Until::Count(n) => self.drawn >= n,
            Until::Time(end) => secs >= end.as_secs_f64(),
        }
    }
}

impl Iterator for Arrivals {
    type Item = Result<(usize, SimTime), ArrivalError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut first = 0;
        for i in 1..self.clocks.len() {
            if self.clocks[i].secs < self.clocks[first].secs {
                first = i;
            }
        }
        let clock = self.clocks.get_mut(first)?;
        let secs = clock.secs;
        if self.ended || self.is_over(secs) {
            self.ended = true;
            return None;
        }
        self.clocks[first].advance();
        let checked = match SimTime::try_from_secs_f64(secs) {
            Ok(_) if self.drawn >= MAX_STREAMED => Err(ArrivalError::TooMany),
            Ok(time) => Ok((first, time)),
            Err(e) => Err(e.into()),
        };
        self.drawn += 1;
        self.ended = checked.is_err();
        Some(checked)
    }
}

/// How many arrivals there are at least, most probably: chance may halve those of a period, hardly more.
pub(super) fn expected(rate: f64, until: Until) -> f64 {
    match until {
        Until::Count(n) => f64::from(n),
        Until::Time(end) => rate * end.as_secs_f64() / 2.0,
    }
}

/// One process, at its next arrival.
#[derive(Debug, Clone)]
struct Clock {
    sampler: Sampler,
    rng: Pcg64,
    /// Sum of the gaps of mean 1.
    total: f64,
    stretch: f64,
    rate: f64,
    warp: Option<Inverse>,
    /// When it is, in seconds.
    secs: f64,
}

impl Clock {
    fn new(law: &ArrivalLaw, rng: Pcg64) -> Result<Self, ArrivalError> {
        if !(law.rate.is_finite() && law.rate > 0.0) {
            return Err(ArrivalError::Rate(law.rate));
        }
        let warp = match law.pattern {
            Some(pattern) => pattern.inverse()?,
            None => None,
        };
        Ok(Self {
            sampler: Sampler::new(law.gaps)?,
            rng,
            total: 0.0,
            stretch: 1.0,
            rate: law.rate,
            warp,
            secs: 0.0,
        })
    }

    /// Stretches the times so that the arrival number `n` is at n / rate: a first pass over the gaps alone.
    fn end_at_count(&mut self, n: u32) {
        let (mut rng, mut total) = (self.rng.clone(), 0.0);
        for _ in 0..n {
            total += self.sampler.draw(&mut rng);
        }
        if total > 0.0 {
            self.stretch = f64::from(n) / total;
        }
    }

    fn advance(&mut self) {
        self.total += self.sampler.draw(&mut self.rng);
        let even = self.total * self.stretch / self.rate;
        self.secs = match &mut self.warp {
            // Rounding must not turn two arrivals around.
            Some(warp) => warp.time(even).max(self.secs),
            None => even,
        };
    }
}

/// Draws gaps of mean 1.
#[derive(Debug, Clone, Copy)]
enum Sampler {
    Constant,
    Poisson,
    Gamma(Gamma<f64>),
}

impl Sampler {
    fn new(gaps: Gaps) -> Result<Self, ArrivalError> {
        Ok(match gaps {
            Gaps::Constant => Self::Constant,
            Gaps::Poisson => Self::Poisson,
            Gaps::Gamma(shape) => {
                let bad = ArrivalError::Burstiness(shape);
                if !(shape.is_finite() && shape > 0.0) {
                    return Err(bad);
                }
                Self::Gamma(Gamma::new(shape, 1.0 / shape).map_err(|_| bad)?)
            }
        })
    }

    fn draw(&self, rng: &mut Pcg64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Poisson => Exp1.sample(rng),
            Self::Gamma(law) => law.sample(rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use approx::assert_relative_eq;

    use super::*;
    use crate::rng::{Purpose, stream};

    const N: u32 = 200_000;

    fn times(
        gaps: Gaps,
        rate: f64,
        until: Until,
        rescale: bool,
        rng: &mut Pcg64,
    ) -> Result<Vec<SimTime>, ArrivalError> {
        let law = ArrivalLaw {
            gaps,
            rate,
            rescale,
            pattern: None,
        };
        let arrivals = Arrivals::new([(law, rng.clone())], until)?;
        arrivals.map(|a| a.map(|(_, time)| time)).collect()
    }

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
