//! A sample that takes any number of values in flat memory.

use super::distinct::Distinct;
use crate::metric::bins::Bins;
use crate::metric::latency::Pool;
use crate::metric::moments::Moments;
use crate::metric::percentile::Sample;
use crate::metric::select::Figures;

/// A sample with more distinct values than this is binned.
pub(super) const EXACT_UP_TO: usize = 1 << 14;

/// The same for samples of gaps and steps, of which there are far more values than of requests.
pub(super) const GAPS_EXACT_UP_TO: usize = 1 << 12;

/// A multiset of nanoseconds: exact up to [`EXACT_UP_TO`] distinct values, by bins beyond. Which of both depends on
/// the multiset alone, and so do all figures. Number, mean, deviation and ends are exact in any case.
#[derive(Debug, Clone)]
pub(super) struct StreamedSample {
    moments: Moments,
    values: Values,
    exact_up_to: usize,
}

#[derive(Debug, Clone)]
enum Values {
    Exact(Distinct),
    Binned(Bins),
}

impl Default for StreamedSample {
    fn default() -> Self {
        Self::new(EXACT_UP_TO)
    }
}

impl Pool for StreamedSample {
    fn note(&mut self, nanoseconds: u64) {
        self.add(nanoseconds, 1);
    }
}

impl StreamedSample {
    pub fn new(exact_up_to: usize) -> Self {
        Self {
            moments: Moments::default(),
            values: Values::Exact(Distinct::default()),
            exact_up_to,
        }
    }

    /// Adds `count` times `value`.
    pub fn add(&mut self, value: u64, count: u64) {
        if count > 0 {
            self.moments.add(value, count);
            self.add_values(&[value], count);
        }
    }

    /// Takes out `value`, which was added, `count` times.
    pub fn remove(&mut self, value: u64, count: u64) {
        self.moments.remove(value, count);
        match &mut self.values {
            Values::Exact(distinct) => distinct.remove(value, count),
            Values::Binned(bins) => bins.remove(value, count),
        }
    }

    /// Adds each value `count` times; `moments` are those of the values, and `rising` says that they never fall.
    pub fn add_slice(&mut self, values: &[u64], moments: &Moments, rising: bool, count: u64) {
        if count == 0 {
            return;
        }
        self.moments.add_times(moments, count);
        match &mut self.values {
            Values::Binned(bins) if rising => bins.add_rising(values, count),
            _ => self.add_values(values, count),
        }
    }

    fn add_values(&mut self, values: &[u64], count: u64) {
        let mut rest = values;
        if let Values::Exact(distinct) = &mut self.values {
            while let Some((&value, after)) = rest.split_first() {
                if distinct.len() > self.exact_up_to {
                    break;
                }
                let alike = 1 + after.iter().take_while(|&&v| v == value).count();
                distinct.add(value, count * alike as u64);
                rest = &rest[alike..];
            }
            if distinct.len() > self.exact_up_to {
                let mut bins = Bins::default();
                distinct.counts().for_each(|(v, c)| bins.add_slice(&[v], c));
                self.values = Values::Binned(bins);
            }
        }
        if let Values::Binned(bins) = &mut self.values {
            bins.add_slice(rest, count);
        }
    }

    /// Adds all that `other` holds.
    pub fn merge(&mut self, other: Self) {
        self.moments.merge(&other.moments);
        match (&mut self.values, other.values) {
            (Values::Binned(mine), Values::Binned(theirs)) => mine.merge(&theirs),
            (_, Values::Exact(theirs)) => {
                theirs.counts().for_each(|(v, c)| self.add_values(&[v], c));
            }
            (Values::Exact(mine), Values::Binned(mut theirs)) => {
                mine.counts().for_each(|(v, c)| theirs.add_slice(&[v], c));
                self.values = Values::Binned(theirs);
            }
        }
    }

    /// Percentiles come from bins.
    pub fn is_binned(&self) -> bool {
        matches!(self.values, Values::Binned(_))
    }

    /// The figures of all values so far.
    pub fn figures(&self) -> Figures {
        match &self.values {
            Values::Exact(distinct) => {
                let counts: Vec<(u64, u64)> = distinct.counts().collect();
                Figures::of_counts(counts.iter().copied())
            }
            Values::Binned(bins) => {
                let ends = self.moments.min().zip(self.moments.max());
                let (mut min, mut max) = ends.unwrap_or_default();
                // An end that was taken out leaves its bin empty: the next one that is not tells the end.
                let mut middles = bins.middles().map(|(v, _)| v);
                let first = middles.next().unwrap_or(min);
                let last = middles.last().unwrap_or(first);
                let is_beyond = |end: u64, bin: u64| end.abs_diff(bin) > bin / 2048 + 1;
                min = if is_beyond(min, first) { first } else { min };
                max = if is_beyond(max, last) { last } else { max };
                // No value lies outside the ends, which are known.
                let middles = bins.middles().map(|(v, c)| (v.clamp(min, max), c));
                let sample = Sample::from_counts(middles.collect());
                let std = self.moments.std_of(sample.counts());
                Figures::of(&self.moments, std, |rank| sample.order_statistic(rank))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::bins::RELATIVE_ERROR;
    use proptest::prelude::*;

    fn of(values: &[u64], exact_up_to: usize, piece: usize) -> StreamedSample {
        let mut sample = StreamedSample::new(exact_up_to);
        values
            .chunks(piece)
            .for_each(|piece| sample.add_slice(piece, &Moments::of_slice(piece), piece.is_sorted(), 2));
        sample
    }

    #[test]
    fn one_distinct_value_more_than_allowed_is_binned() {
        let values: Vec<u64> = (0..=EXACT_UP_TO as u64).map(|v| v * 1001).collect();
        assert!(!of(&values[1..], EXACT_UP_TO, 100).is_binned());
        assert!(of(&values, EXACT_UP_TO, 100).is_binned());
    }

    proptest! {
        #[test]
        fn figures_depend_on_the_values_alone(
            values in prop::collection::vec(0u64..60, 1..90), scale in 1u64..1 << 30,
            limit in 1usize..60, pieces in (1usize..90, 1usize..90), cut in 0usize..90,
        ) {
            let values: Vec<u64> = values.into_iter().map(|v| v * scale).collect();
            let whole = of(&values, limit, pieces.0);
            let mut turned = values.clone();
            turned.reverse();
            let (a, b) = turned.split_at(cut.min(turned.len()));
            let mut parts = of(b, limit, pieces.1);
            parts.merge(of(a, limit, pieces.0));
            prop_assert_eq!(whole.is_binned(), parts.is_binned());
            prop_assert_eq!(whole.figures(), parts.figures());

            let exact = Figures::of_sample(&Sample::from_counts(values.iter().map(|&v| (v, 2)).collect()));
            let distinct = values.iter().collect::<std::collections::BTreeSet<_>>().len();
            prop_assert_eq!(whole.is_binned(), distinct > limit);
            let near = |a: Option<f64>, b: Option<f64>| {
                let (a, b) = (a.unwrap(), b.unwrap());
                (a - b).abs() <= b * RELATIVE_ERROR + 1e-15
            };
            let (got, want) = (whole.figures().stats, exact.stats.clone());
            if !whole.is_binned() {
                prop_assert_eq!(whole.figures(), exact);
            }
            prop_assert_eq!(
                (got.n, got.mean, got.std, got.min, got.max),
                (want.n, want.mean, want.std, want.min, want.max)
            );
            for (got, want) in [(got.p50, want.p50), (got.p90, want.p90), (got.p95, want.p95), (got.p99, want.p99)] {
                prop_assert!(near(got, want), "{got:?} {want:?}");
            }
        }
    }
}
