//! A step-time model fitted to measured steps: a sum of non-negative terms, each with a physical meaning.
//!
//! `seconds = step + prefill_row * rows + prefill_token * tokens + prefill_token_context * positions
//!  + decode_row * rows + decode_row_above_knee * max(rows - knee, 0) + decode_pair * [exactly 2 decodes]
//!  + decode_context * positions`
//!
//! Every coefficient is at least 0, so time grows with the batch, outside the fitted region too. The one
//! exception is `decode_pair`, the extra time of a step of two decodes and nothing else: matrix kernels are
//! chosen by the number of rows, and the one for two rows can be slower than those for three or four.
//! A drafted token that is verified beside a decode counts as a further row.
//! Up to the knee a decode step is held up by work that all rows share (weights, launches); above it every
//! further row costs more.

use super::{BatchShape, StepTime};
use crate::units::{SimDuration, written};

/// Number of linear terms.
pub const TERMS: usize = 8;

/// Name and unit of each linear term's coefficient, in the order of [`terms`].
pub const TERM_NAMES: [(&str, &str); TERMS] = [
    ("step", "s"),
    ("prefill_row", "s/row"),
    ("prefill_token", "s/token"),
    ("prefill_token_context", "s/position"),
    ("decode_row", "s/row"),
    ("decode_row_above_knee", "s/row"),
    ("decode_pair", "s"),
    ("decode_context", "s/position"),
];

/// What each coefficient multiplies for `batch`, with the knee at `knee` decode rows.
pub fn terms(batch: &BatchShape, knee: u32) -> [f64; TERMS] {
    [
        1.0,
        f64::from(batch.prefill_seqs),
        f64::from(batch.prefill_tokens),
        batch.prefill_token_context as f64,
        f64::from(batch.decode_tokens),
        f64::from(batch.decode_tokens.saturating_sub(knee)),
        f64::from(u8::from(batch.decode_tokens == 2 && batch.prefill_seqs == 0)),
        batch.decode_context_tokens as f64,
    ]
}

/// A fitted step-time model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FittedStepTime {
    coefficients: [f64; TERMS],
    knee: u32,
}

/// Coefficients that no step-time model can have.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CoefficientError {
    /// Not a finite number of at least 0.
    #[error("{name} is {}; a coefficient is a finite number of at least 0", written(*value))]
    OutOfRange {
        /// Which.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// All are 0: steps would take no time.
    #[error("all coefficients are 0, so that steps would take no time")]
    AllZero,
}

impl FittedStepTime {
    /// A model with the coefficients of [`TERM_NAMES`] (seconds) and the knee in decode rows.
    ///
    /// # Errors
    /// [`CoefficientError`] for NaN, infinities, negative values, or nothing but zeros.
    pub fn new(coefficients: [f64; TERMS], knee: u32) -> Result<Self, CoefficientError> {
        for (value, (name, _)) in coefficients.iter().zip(TERM_NAMES) {
            if !(value.is_finite() && *value >= 0.0) {
                return Err(CoefficientError::OutOfRange { name, value: *value });
            }
        }
        if coefficients.iter().all(|c| *c <= 0.0) {
            return Err(CoefficientError::AllZero);
        }
        Ok(Self { coefficients, knee })
    }

    /// The same model on a machine on which every step takes `seconds` longer (shorter, if negative), as a speed
    /// probe tells. The constant stays at 0 or above; a shift that is not finite is ignored.
    #[must_use]
    pub fn shifted(mut self, seconds: f64) -> Self {
        if seconds.is_finite() {
            self.coefficients[0] = (self.coefficients[0] + seconds).max(0.0);
        }
        self
    }

    /// Predicted seconds of a step.
    pub fn seconds(&self, batch: &BatchShape) -> f64 {
        self.products(batch).iter().sum()
    }

    /// Seconds of each term.
    fn products(&self, batch: &BatchShape) -> [f64; TERMS] {
        let mut products = terms(batch, self.knee);
        for (x, c) in products.iter_mut().zip(&self.coefficients) {
            *x *= c;
        }
        products
    }
}

/// Terms of [`TERM_NAMES`] that change within a run of equal steps.
const PREFILL_CONTEXT: usize = 3;
const DECODE_CONTEXT: usize = 7;

impl StepTime for FittedStepTime {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        step_of(self.seconds(batch))
    }

    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        let growth = batch.growth();
        let mut products = self.products(batch);
        for (duration, k) in out.iter_mut().zip(0..) {
            let (prefill, decode) = batch.contexts_after(growth, k);
            products[PREFILL_CONTEXT] = prefill as f64 * self.coefficients[PREFILL_CONTEXT];
            products[DECODE_CONTEXT] = decode as f64 * self.coefficients[DECODE_CONTEXT];
            *duration = step_of(products.iter().sum());
        }
    }
}

/// Nanoseconds below which a number and its fraction are exact.
const EXACT_NANOS: f64 = (1_u64 << 52) as f64;

/// The duration of a step that takes `seconds`, rounded as [`SimDuration::try_from_secs_f64`] does. All that can go
/// wrong with a sum of finite terms is a span beyond 584 years; and a step of no time at all would let the clock stand
/// still.
pub(super) fn step_of(seconds: f64) -> SimDuration {
    let nanos = seconds * 1e9;
    // Rounded by hand where that is exact: the library's rounding took most of the time of a run's steps.
    let nanos = if (0.0..EXACT_NANOS).contains(&nanos) {
        let whole = nanos as i64;
        whole as u64 + u64::from(nanos - whole as f64 >= 0.5)
    } else {
        SimDuration::try_from_secs_f64(seconds).map_or(u64::MAX, SimDuration::as_nanos)
    };
    SimDuration(nanos.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;
    use proptest::strategy::Strategy;

    #[test]
    fn terms_add_up_by_hand() {
        let model = FittedStepTime::new([8e-3, 1e-3, 2e-4, 1e-7, 5e-5, 3e-4, 9e-4, 6e-7], 4).unwrap();
        let mut batch = BatchShape::default();
        batch.add_prefill(10, 100); // attends 10 * 100 + 55 positions
        for _ in 0..6 {
            batch.add_decode(1, 49); // attends 50
        }
        let expected = 8e-3 + 1e-3 + 10.0 * 2e-4 + 1055.0 * 1e-7 + 6.0 * 5e-5 + 2.0 * 3e-4 + 300.0 * 6e-7;
        assert_relative_eq!(model.seconds(&batch), expected, max_relative = 1e-14);
        assert_relative_eq!(
            model.shifted(1e-3).seconds(&batch),
            expected + 1e-3,
            max_relative = 1e-14
        );
        assert_relative_eq!(
            model.shifted(-1.0).seconds(&batch),
            expected - 8e-3,
            max_relative = 1e-12
        );
        assert_eq!(model.shifted(f64::NAN), model);
        assert_eq!(
            model.duration(&batch),
            SimDuration((expected * 1e9).round() as u64)
        );
    }

    #[test]
    fn the_largest_batch_saturates_and_no_step_takes_no_time() {
        let huge = BatchShape {
            prefill_token_context: u64::MAX,
            ..BatchShape::default()
        };
        let model = FittedStepTime::new([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], 4).unwrap();
        assert_eq!(model.duration(&huge), SimDuration(u64::MAX));
        assert_eq!(model.duration(&BatchShape::default()), SimDuration(1));
    }

    #[test]
    fn coefficients_are_checked() {
        let with = |value| FittedStepTime::new([1e-3, 0.0, value, 0.0, 0.0, 0.0, 0.0, 0.0], 4);
        assert!(matches!(
            with(-1.0),
            Err(CoefficientError::OutOfRange {
                name: "prefill_token",
                ..
            })
        ));
        assert!(with(f64::NAN).is_err());
        assert_eq!(
            FittedStepTime::new([0.0; TERMS], 4),
            Err(CoefficientError::AllZero)
        );
    }

    proptest::proptest! {
        #[test]
        fn steps_are_rounded_like_all_durations(
            seconds in proptest::prop_oneof![
                0.0..1e-6,
                0.0..10.0,
                1e6..1e7,
                proptest::num::f64::ANY,
                // Halves of a nanosecond, and numbers beside them.
                (0u32..2_000_000, -2i64..3).prop_map(|(n, ulps)| {
                    let half = (f64::from(n) + 0.5) * 1e-9;
                    f64::from_bits(half.to_bits().wrapping_add_signed(ulps))
                }),
            ],
        ) {
            let expected = SimDuration::try_from_secs_f64(seconds).map_or(u64::MAX, SimDuration::as_nanos);
            proptest::prop_assert_eq!(step_of(seconds).as_nanos(), expected.max(1));
        }
    }
}
