//! Laws of lengths in tokens.

use crate::units::written;
use rand::RngExt;
use rand_distr::{Distribution, LogNormal, Normal};
use rand_pcg::Pcg64;

/// The longest prompt or output that is taken in, in tokens. Sums of a few such lengths still fit 32 bits.
pub const MAX_TOKENS: u32 = 1 << 30;
/// Redraws before a truncated law is given up as practically empty.
const MAX_REDRAWS: u32 = 1000;

/// A law of one length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LengthLaw {
    /// Always this many.
    Constant(u32),
    /// Whole numbers from `min` to `max`, both included.
    Uniform {
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
    /// Normal, rounded; draws outside `min..=max` are drawn again (a truncated law).
    Normal {
        /// Mean before truncation.
        mean: f64,
        /// Standard deviation before truncation.
        std: f64,
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
    /// Normal, rounded down; draws outside `min..=max` are drawn again. With `min` 1 this is llmperf's
    /// `sample_random_positive_int`.
    NormalRoundedDown {
        /// Mean before truncation and rounding.
        mean: f64,
        /// Standard deviation before truncation and rounding.
        std: f64,
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
    /// Lognormal, rounded; draws outside `min..=max` are drawn again.
    Lognormal {
        /// Median before truncation: exp of the mean of the logarithms.
        median: f64,
        /// Standard deviation of the logarithms.
        sigma: f64,
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
}

/// Why a law gives no length.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LengthError {
    /// Lengths start at one token.
    #[error("lengths start at 1 token")]
    Zero,
    /// Longer than anything that is simulated.
    #[error("{0} tokens are more than {MAX_TOKENS}")]
    TooLong(u32),
    /// An empty range.
    #[error("min {min} is above max {max}")]
    EmptyRange {
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
    /// A parameter outside its domain.
    #[error("{name} = {}", written(*value))]
    Parameter {
        /// Which.
        name: &'static str,
        /// What it was.
        value: f64,
    },
    /// Nearly all of the law lies outside the range.
    #[error("{MAX_REDRAWS} draws in a row fell outside {min} to {max}")]
    OutOfRange {
        /// Smallest.
        min: u32,
        /// Largest.
        max: u32,
    },
}

impl LengthLaw {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`LengthError`] naming the parameter at fault.
    pub fn check(&self) -> Result<(), LengthError> {
        let range = |min: u32, max: u32| match (min, max) {
            (0, _) => Err(LengthError::Zero),
            (min, max) if min > max => Err(LengthError::EmptyRange { min, max }),
            (_, max) if max > MAX_TOKENS => Err(LengthError::TooLong(max)),
            _ => Ok(()),
        };
        let positive = |name, value: f64| {
            if value.is_finite() && value > 0.0 {
                Ok(())
            } else {
                Err(LengthError::Parameter { name, value })
            }
        };
        match *self {
            Self::Constant(n) => range(n, n),
            Self::Uniform { min, max } => range(min, max),
            Self::Normal { mean, std, min, max } | Self::NormalRoundedDown { mean, std, min, max } => {
                positive("mean", mean)?;
                positive("std", std)?;
                range(min, max)
            }
            Self::Lognormal {
                median,
                sigma,
                min,
                max,
            } => {
                positive("median", median)?;
                positive("sigma", sigma)?;
                range(min, max)
            }
        }
    }

    /// One length.
    ///
    /// # Errors
    /// [`LengthError`] when the law is impossible or practically empty.
    pub fn sample(&self, rng: &mut Pcg64) -> Result<u32, LengthError> {
        match *self {
            Self::Constant(0) => Err(LengthError::Zero),
            Self::Constant(n) => Ok(n),
            Self::Uniform { min, max } if min <= max => Ok(rng.random_range(min..=max)),
            Self::Uniform { min, max } => Err(LengthError::EmptyRange { min, max }),
            Self::Normal { mean, std, min, max } => {
                let law = normal(mean, std)?;
                truncated(min, max, || law.sample(rng).round())
            }
            Self::NormalRoundedDown { mean, std, min, max } => {
                let law = normal(mean, std)?;
                truncated(min, max, || law.sample(rng).floor())
            }
            Self::Lognormal {
                median,
                sigma,
                min,
                max,
            } => {
                let law = LogNormal::new(median.ln(), sigma).map_err(|_| LengthError::Parameter {
                    name: "sigma",
                    value: sigma,
                })?;
                truncated(min, max, || law.sample(rng).round())
            }
        }
    }
}

fn normal(mean: f64, std: f64) -> Result<Normal<f64>, LengthError> {
    Normal::new(mean, std).map_err(|_| LengthError::Parameter {
        name: "std",
        value: std,
    })
}

/// Draws whole numbers until one lies in the range.
fn truncated(min: u32, max: u32, mut draw: impl FnMut() -> f64) -> Result<u32, LengthError> {
    for _ in 0..MAX_REDRAWS {
        let length = draw();
        if length >= f64::from(min) && length <= f64::from(max) {
            return Ok(length as u32);
        }
    }
    Err(LengthError::OutOfRange { min, max })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, stream};

    fn draws(law: LengthLaw, n: usize) -> Vec<u32> {
        let mut rng = stream(11, Purpose::Lengths, 0);
        (0..n).map(|_| law.sample(&mut rng).unwrap()).collect()
    }

    fn mean(x: &[u32]) -> f64 {
        x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64
    }

    #[test]
    fn uniform_reaches_both_ends_and_has_its_mean() {
        let got = draws(LengthLaw::Uniform { min: 3, max: 7 }, 50_000);
        assert_eq!((*got.iter().min().unwrap(), *got.iter().max().unwrap()), (3, 7));
        // Standard error of the mean: sqrt(2 / 50000) = 0.0063.
        assert!((mean(&got) - 5.0).abs() < 0.026, "{}", mean(&got));
    }

    #[test]
    fn a_symmetric_truncation_keeps_the_mean_and_the_bounds() {
        let got = draws(
            LengthLaw::Normal {
                mean: 100.0,
                std: 50.0,
                min: 50,
                max: 150,
            },
            50_000,
        );
        assert!(got.iter().all(|v| (50..=150).contains(v)));
        // Truncated at one sigma, the standard deviation is 0.54 * 50 = 27; four standard errors.
        assert!(
            (mean(&got) - 100.0).abs() < 4.0 * 27.0 / 50_000f64.sqrt(),
            "{}",
            mean(&got)
        );
    }

    #[test]
    fn rounding_down_takes_half_a_token_off_the_mean() {
        // Far from its bounds, a law of whole numbers has the mean of the normal one, or half a token less.
        let (mean_of, std, n) = (256.0, 50.0, 50_000);
        let law = |down: bool| {
            let (min, max) = (1, 1000);
            if down {
                LengthLaw::NormalRoundedDown {
                    mean: mean_of,
                    std,
                    min,
                    max,
                }
            } else {
                LengthLaw::Normal {
                    mean: mean_of,
                    std,
                    min,
                    max,
                }
            }
        };
        let (down, nearest) = (draws(law(true), n), draws(law(false), n));
        // The same draws: each is the same or one less, and half of them are one less.
        assert!(down.iter().zip(&nearest).all(|(d, r)| *d == *r || *d + 1 == *r));
        assert!((mean(&nearest) - mean(&down) - 0.5).abs() < 4.0 * 0.5 / (n as f64).sqrt());
        assert!(
            (mean(&down) - 255.5).abs() < 4.0 * std / (n as f64).sqrt(),
            "{}",
            mean(&down)
        );
    }

    #[test]
    fn a_law_that_is_rounded_down_is_drawn_again_until_it_is_positive() {
        let law = LengthLaw::NormalRoundedDown {
            mean: 0.5,
            std: 1.0,
            min: 1,
            max: 1000,
        };
        let got = draws(law, 50_000);
        // Of draws from 1 on, those below 2 become 1: (Phi(1.5) - Phi(0.5)) / (1 - Phi(0.5)) = 0.78348.
        let ones = got.iter().filter(|v| **v == 1).count() as f64 / 50_000.0;
        assert!(
            (ones - 0.783_48).abs() < 4.0 * (0.783_48 * 0.216_52 / 50_000.0f64).sqrt(),
            "{ones}"
        );
    }

    #[test]
    fn the_median_of_a_lognormal_is_its_median() {
        let law = LengthLaw::Lognormal {
            median: 512.0,
            sigma: 0.8,
            min: 1,
            max: 1_000_000,
        };
        let below = draws(law, 50_000).iter().filter(|v| **v <= 512).count();
        // Binomial: standard deviation sqrt(50000)/2 = 112; rounding puts a few more at or below.
        assert!((below as f64 - 25_000.0).abs() < 4.0 * 112.0 + 25.0, "{below}");
    }

    #[test]
    fn impossible_laws_are_refused() {
        for law in [
            LengthLaw::Constant(0),
            LengthLaw::Constant(u32::MAX),
            LengthLaw::Uniform { min: 0, max: 5 },
            LengthLaw::Uniform { min: 9, max: 5 },
            LengthLaw::Normal {
                mean: f64::NAN,
                std: 1.0,
                min: 1,
                max: 9,
            },
            LengthLaw::Normal {
                mean: 5.0,
                std: -1.0,
                min: 1,
                max: 9,
            },
            LengthLaw::Lognormal {
                median: 0.0,
                sigma: 1.0,
                min: 1,
                max: 9,
            },
        ] {
            assert!(law.check().is_err(), "{law:?}");
        }
        let far = LengthLaw::Normal {
            mean: 1e6,
            std: 1.0,
            min: 1,
            max: 9,
        };
        let mut rng = stream(1, Purpose::Lengths, 0);
        assert_eq!(
            far.sample(&mut rng),
            Err(LengthError::OutOfRange { min: 1, max: 9 })
        );
    }
}
