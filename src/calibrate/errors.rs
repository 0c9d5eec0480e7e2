//! Relative errors of predicted step times, by run and by kind of batch.

use super::robust::{RunSteps, median, quantile};
use crate::steptime::fit_file::{RegimeError, StepError};
use crate::steptime::{BatchShape, FittedStepTime};

/// Largest number of rows (decodes) or tokens (prefills) of each kind of batch.
const DECODE_ROWS: [(u32, &str); 6] = [
    (1, "decode only, 1 row"),
    (4, "decode only, 2 to 4 rows"),
    (8, "decode only, 5 to 8 rows"),
    (16, "decode only, 9 to 16 rows"),
    (32, "decode only, 17 to 32 rows"),
    (u32::MAX, "decode only, over 32 rows"),
];
const PREFILL_TOKENS: [(u32, &str); 4] = [
    (64, "prefill only, up to 64 tokens"),
    (256, "prefill only, 65 to 256 tokens"),
    (1024, "prefill only, 257 to 1024 tokens"),
    (u32::MAX, "prefill only, over 1024 tokens"),
];
const MIXED_TOKENS: [(u32, &str); 4] = [
    (64, "mixed, up to 64 prefill tokens"),
    (256, "mixed, 65 to 256 prefill tokens"),
    (1024, "mixed, 257 to 1024 prefill tokens"),
    (u32::MAX, "mixed, over 1024 prefill tokens"),
];

/// The kind of a batch: its place in the order of reports, and its name.
pub(super) fn regime(batch: &BatchShape) -> (usize, &'static str) {
    let (first, table, size): (usize, &[(u32, &str)], u32) = match (batch.prefill_seqs, batch.decode_seqs) {
        (0, rows) => (0, &DECODE_ROWS, rows),
        (_, 0) => (DECODE_ROWS.len(), &PREFILL_TOKENS, batch.prefill_tokens),
        _ => (
            DECODE_ROWS.len() + PREFILL_TOKENS.len(),
            &MIXED_TOKENS,
            batch.prefill_tokens,
        ),
    };
    let place = table
        .iter()
        .position(|(limit, _)| size <= *limit)
        .unwrap_or(table.len() - 1);
    (first + place, table[place].1)
}

/// Errors of `model` on the steps of all runs, by kind of batch.
pub fn by_regime(model: &FittedStepTime, runs: &[RunSteps]) -> Vec<RegimeError> {
    by_regime_of_pairs(runs.iter().flat_map(|run| {
        run.batches
            .iter()
            .zip(&run.seconds)
            .map(|(batch, &seconds)| (batch, (model.seconds(batch), seconds)))
    }))
}

/// Errors of (predicted, measured) seconds by kind of batch.
pub(super) fn by_regime_of_pairs<'a>(
    steps: impl IntoIterator<Item = (&'a BatchShape, (f64, f64))>,
) -> Vec<RegimeError> {
    let mut kinds: std::collections::BTreeMap<(usize, &str), Vec<(f64, f64)>> = Default::default();
    for (batch, pair) in steps {
        kinds.entry(regime(batch)).or_default().push(pair);
    }
    kinds
        .into_iter()
        .map(|((_, name), pairs)| RegimeError {
            regime: name.to_owned(),
            error: summarise(&pairs),
        })
        .collect()
}

/// Errors of `model` on the steps of one run.
pub fn of_run(model: &FittedStepTime, run: &RunSteps) -> StepError {
    let pairs: Vec<_> = run
        .batches
        .iter()
        .zip(&run.seconds)
        .map(|(b, s)| (model.seconds(b), *s))
        .collect();
    summarise(&pairs)
}

/// Summary of (predicted, measured) seconds; all 0 without any.
pub(super) fn summarise(pairs: &[(f64, f64)]) -> StepError {
    let relative: Vec<f64> = pairs.iter().map(|(p, m)| (p - m) / m).collect();
    let absolute: Vec<f64> = relative.iter().map(|r| r.abs()).collect();
    let (predicted, measured) = pairs.iter().fold((0.0, 0.0), |(p, m), (a, b)| (p + a, m + b));
    StepError {
        steps: pairs.len() as u64,
        median: median(&relative).unwrap_or(0.0),
        median_abs: median(&absolute).unwrap_or(0.0),
        p90_abs: quantile(&absolute, 0.9).unwrap_or(0.0),
        sum: if measured > 0.0 {
            predicted / measured - 1.0
        } else {
            0.0
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    #[test]
    fn summaries_by_hand() {
        let e = summarise(&[(1.1, 1.0), (1.8, 2.0), (3.0, 3.0)]);
        assert_eq!(e.steps, 3);
        assert_relative_eq!(e.median, 0.0);
        assert_relative_eq!(e.median_abs, 0.1, max_relative = 1e-12);
        assert_relative_eq!(e.sum, 5.9 / 6.0 - 1.0, max_relative = 1e-12);
        assert_eq!(summarise(&[]), StepError::default());
    }

    #[test]
    fn kinds_split_at_their_limits() {
        let mut batch = BatchShape::default();
        batch.add_decode(1, 5);
        assert_eq!(regime(&batch).1, "decode only, 1 row");
        (0..8).for_each(|_| batch.add_decode(1, 5));
        assert_eq!(regime(&batch).1, "decode only, 9 to 16 rows");
        batch.add_prefill(65, 0);
        assert_eq!(regime(&batch).1, "mixed, 65 to 256 prefill tokens");
    }
}
