//! A step time with stated coefficients: what a scenario writes under `system.step_time`.
//!
//! duration = step + any_prefill (if the batch has a prefill row) + prefill_row * rows + prefill_token *
//! tokens + prefill_context_token * positions + decode_row * rows + decode_context_token * positions.
//! All arithmetic is in integer picoseconds, rounded once, half up, to nanoseconds.

use super::batch::Growth;
use super::{BatchShape, StepTime};
use crate::units::SimDuration;

const PICOS_PER_NANO: u64 = 1000;

/// The coefficients, in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinearStepTime {
    /// Every step.
    pub step_ps: u64,
    /// A step with at least one prefill row.
    pub any_prefill_ps: u64,
    /// A prefill row.
    pub prefill_row_ps: u64,
    /// A prefill token.
    pub prefill_token_ps: u64,
    /// A position attended by a prefill token.
    pub prefill_context_token_ps: u64,
    /// A decode row.
    pub decode_row_ps: u64,
    /// A position attended by a decode token.
    pub decode_context_token_ps: u64,
}

impl LinearStepTime {
    /// Each coefficient with what it multiplies.
    fn terms(&self, batch: &BatchShape) -> [(u64, u64); 7] {
        [
            (self.step_ps, 1),
            (self.any_prefill_ps, u64::from(batch.prefill_seqs > 0)),
            (self.prefill_row_ps, u64::from(batch.prefill_seqs)),
            (self.prefill_token_ps, u64::from(batch.prefill_tokens)),
            (self.prefill_context_token_ps, batch.prefill_token_context),
            (self.decode_row_ps, u64::from(batch.decode_seqs)),
            (self.decode_context_token_ps, batch.decode_context_tokens),
        ]
    }

    /// What each further step of a run takes more.
    fn growth_terms(&self, growth: Growth) -> [(u64, u64); 2] {
        [
            (self.prefill_context_token_ps, growth.prefill),
            (self.decode_context_token_ps, growth.decode),
        ]
    }
}

/// Sum of products; `None` beyond 64 bits, which 584 years of nanoseconds need and no believable step does.
fn narrow_sum(terms: &[(u64, u64)]) -> Option<u64> {
    terms.iter().try_fold(0_u64, |sum, &(coefficient, count)| {
        sum.checked_add(coefficient.checked_mul(count)?)
    })
}

/// Sum of products in 128 bits, so that nothing is cut short of the end of simulated time, where a run is refused.
#[cold]
fn wide_nanos(terms: &[(u64, u64)]) -> u64 {
    let ps = terms.iter().fold(0_u128, |sum, &(coefficient, count)| {
        sum.saturating_add(u128::from(coefficient) * u128::from(count))
    });
    let nanos = ps.saturating_add(u128::from(PICOS_PER_NANO / 2)) / u128::from(PICOS_PER_NANO);
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

impl StepTime for LinearStepTime {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        let terms = self.terms(batch);
        let half_up = narrow_sum(&terms).and_then(|ps| ps.checked_add(PICOS_PER_NANO / 2));
        SimDuration(half_up.map_or_else(|| wide_nanos(&terms), |ps| ps / PICOS_PER_NANO))
    }

    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        let growth = batch.growth();
        let first = narrow_sum(&self.terms(batch)).and_then(|ps| ps.checked_add(PICOS_PER_NANO / 2));
        let step = narrow_sum(&self.growth_terms(growth));
        let last = first
            .zip(step)
            .and_then(|(first, step)| first.checked_add(step.checked_mul(u64::try_from(out.len()).ok()?)?));
        let (Some(mut ps), Some(step), Some(_)) = (first, step, last) else {
            let mut later = batch.clone();
            for (duration, k) in out.iter_mut().zip(0..) {
                (later.prefill_token_context, later.decode_context_tokens) = batch.contexts_after(growth, k);
                *duration = self.duration(&later);
            }
            return;
        };
        for duration in out {
            *duration = SimDuration(ps / PICOS_PER_NANO);
            ps += step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 ms + 5 ms if anything is prefilled + 45 us a prefill token + 20 us a decode row + 20 ns a context token.
    const BENCH: LinearStepTime = LinearStepTime {
        step_ps: 8_000_000_000,
        any_prefill_ps: 5_000_000_000,
        prefill_row_ps: 0,
        prefill_token_ps: 45_000_000,
        prefill_context_token_ps: 0,
        decode_row_ps: 20_000_000,
        decode_context_token_ps: 20_000,
    };

    #[test]
    fn bench_durations_match_hand_counts() {
        let mut decode = BatchShape::default();
        for computed in [1023, 1100] {
            decode.add_decode(1, computed);
        }
        // 8 ms + 2 * 20 us + (1024 + 1101) * 20 ns
        assert_eq!(BENCH.duration(&decode), SimDuration(8_000_000 + 40_000 + 42_500));
        let mut mixed = decode;
        mixed.add_prefill(1024, 0);
        mixed.add_prefill(100, 400);
        let prefill = 5_000_000 + 1124 * 45_000;
        assert_eq!(
            BENCH.duration(&mixed),
            SimDuration(8_000_000 + 40_000 + 42_500 + prefill)
        );
    }

    #[test]
    fn fractions_of_a_nanosecond_add_up_before_they_are_rounded() {
        let model = LinearStepTime {
            decode_context_token_ps: 350,
            ..LinearStepTime::default()
        };
        let mut batch = BatchShape::default();
        batch.add_decode(1, 9_999);
        assert_eq!(model.duration(&batch), SimDuration(3_500));
        let model = LinearStepTime {
            prefill_context_token_ps: 500,
            ..LinearStepTime::default()
        };
        let mut batch = BatchShape::default();
        batch.add_prefill(2, 0);
        // 3 positions at half a nanosecond: 1.5 ns, half up.
        assert_eq!(model.duration(&batch), SimDuration(2));
    }

    #[test]
    fn absurd_coefficients_are_added_exactly_and_end_with_time() {
        let model = LinearStepTime {
            step_ps: u64::MAX,
            decode_row_ps: u64::MAX,
            ..LinearStepTime::default()
        };
        let mut batch = BatchShape::default();
        batch.add_decode(1, 1);
        let exact = (2 * u128::from(u64::MAX) + 500) / 1000;
        assert_eq!(u128::from(model.duration(&batch).as_nanos()), exact);
        batch.decode_seqs = u32::MAX;
        assert_eq!(model.duration(&batch).as_nanos(), u64::MAX);
    }
}
