//! The usual figures of values in any order, exact, without sorting them all.
//!
//! Sorting is most of the cost of a summary, and only eight order statistics are wanted. One pass counts the values
//! in bins of equal width, which tells in which bins the wanted ranks lie; a second takes the values of those bins
//! out. If they are few they are sorted, otherwise the same is done with them.

use std::ops::Range;

use super::moments::Moments;
use super::percentile::{Counts, Sample, Stats, Unit, quantile};

/// Fewer values than this are sorted outright.
const FEW: usize = 512;
/// Bins to count in.
const BINS: usize = 1 << 11;

/// The figures of one latency.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figures {
    /// In seconds.
    pub stats: Stats,
    /// The 99th percentile in nanoseconds.
    pub p99_ns: Option<f64>,
}

impl Figures {
    /// Of a sample of nanoseconds.
    pub fn of_sample(sample: &Sample) -> Self {
        Self {
            stats: sample.stats_s(),
            p99_ns: sample.quantile(0.99),
        }
    }

    /// Of nanoseconds in any order.
    pub fn of_values(mut values: Vec<u64>) -> Self {
        let moments = Moments::of_slice(&values);
        if values.len() < FEW {
            values.sort_unstable();
            let std = moments.std_of(values.iter().map(|&v| (v, 1)));
            return Self::of(&moments, std, |rank| values.get(rank as usize).copied());
        }
        Self::selected(&moments, values.iter().map(|&v| (v, 1)))
    }

    /// Of nanoseconds in any order that are too many to keep: they are gone through several times.
    pub fn of_each(values: impl Iterator<Item = u64> + Clone) -> Self {
        Self::of_counts(values.map(|v| (v, 1)))
    }

    /// Of (nanoseconds, count) in any order, possibly repeated. They are gone through several times, not kept.
    pub fn of_counts(pairs: impl Iterator<Item = (u64, u64)> + Clone) -> Self {
        if pairs.clone().take(FEW).count() < FEW {
            return Self::of_sample(&Sample::from_counts(pairs.collect()));
        }
        let moments = Moments::of(pairs.clone());
        Self::selected(&moments, pairs)
    }

    /// From what is known of the values.
    pub fn of(moments: &Moments, std: Option<f64>, at_rank: impl Fn(u64) -> Option<u64>) -> Self {
        let at = |q| quantile(moments.n(), q, &at_rank);
        Self {
            stats: Stats::of(Unit::Second, 1e9, moments, std, at),
            p99_ns: at(0.99),
        }
    }

    fn selected(moments: &Moments, items: impl Iterator<Item = (u64, u64)> + Clone) -> Self {
        let ranks = wanted_ranks(moments.n());
        let ends = moments.min().zip(moments.max()).unwrap_or_default();
        let mut values = Vec::with_capacity(ranks.len());
        order_statistics(items.clone(), ends, &ranks, &mut values);
        let at_rank = |rank| values.get(ranks.binary_search(&rank).ok()?).copied();
        Self::of(moments, moments.std_of(items), at_rank)
    }
}

/// The ranks on both sides of each quantile, rising, each once.
fn wanted_ranks(n: u64) -> Vec<u64> {
    let mut ranks: Vec<u64> = Stats::QUANTILES
        .iter()
        .map(|q| n.saturating_sub(1) as f64 * q)
        .flat_map(|rank| [rank.floor() as u64, rank.ceil() as u64])
        .collect();
    ranks.dedup();
    ranks
}

/// Values of one bin, and which of the wanted ranks lie there.
struct Group {
    ranks: Range<usize>,
    /// Values in the bins below.
    before: u64,
    counts: Counts,
}

/// Appends the values at `ranks`, which rise. `min` and `max` are the ends of the items.
fn order_statistics(
    items: impl Iterator<Item = (u64, u64)> + Clone,
    (min, max): (u64, u64),
    ranks: &[u64],
    values: &mut Vec<u64>,
) {
    let shift = (u64::BITS - (max - min).leading_zeros()).saturating_sub(BINS.ilog2());
    let bin_of = |value: u64| ((value - min) >> shift) as usize % BINS;
    let mut counts = vec![0u64; BINS];
    items
        .clone()
        .for_each(|(value, count)| counts[bin_of(value)] += count);
    let (mut groups, group_of) = groups_of(&counts, ranks);
    items.for_each(|(value, count)| {
        // Group 0 is of no interest.
        if let Some(group) = usize::from(group_of[bin_of(value)]).checked_sub(1) {
            groups[group].counts.add(value, count);
        }
    });
    for group in &mut groups {
        let ranks: Vec<u64> = ranks[group.ranks.clone()]
            .iter()
            .map(|rank| rank - group.before)
            .collect();
        let pairs = &mut group.counts.pairs;
        if pairs.len() > FEW && shift > 0 {
            let ends = Moments::of(pairs.iter().copied());
            let ends = ends.min().zip(ends.max()).unwrap_or_default();
            order_statistics(pairs.iter().copied(), ends, &ranks, values);
        } else {
            if shift > 0 {
                pairs.sort_unstable_by_key(|p| p.0);
            }
            values.extend(ranks.iter().filter_map(|&rank| value_at(pairs, rank)));
        }
    }
}

/// The bins in which ranks lie, and for each bin the number of its group, counted from 1.
fn groups_of(counts: &[u64], ranks: &[u64]) -> (Vec<Group>, Vec<u8>) {
    let (mut groups, mut group_of) = (Vec::<Group>::new(), vec![0u8; counts.len()]);
    let (mut before, mut next) = (0u64, 0);
    for (bin, &count) in counts.iter().enumerate() {
        let from = next;
        next += ranks[from..].partition_point(|&rank| rank < before + count);
        if next > from {
            groups.push(Group {
                ranks: from..next,
                before,
                counts: Counts::default(),
            });
            group_of[bin] = groups.len() as u8;
        }
        before += count;
    }
    (groups, group_of)
}

/// The value at a rank of sorted pairs.
fn value_at(pairs: &[(u64, u64)], rank: u64) -> Option<u64> {
    let mut upto = 0;
    let found = pairs.iter().find(|(_, count)| {
        upto += count;
        rank < upto
    });
    found.map(|&(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Values of many sizes, some often.
    fn values() -> impl Strategy<Value = Vec<u64>> {
        let value = prop_oneof![0u64..5, 5_000u64..5_100, any::<u64>().prop_map(|v| v >> 20)];
        prop::collection::vec(value, 0..2_000)
    }

    proptest! {
        #[test]
        fn selecting_equals_sorting(values in values(), weight in 1u64..4) {
            let sample = Sample::from_values(values.iter().copied());
            prop_assert_eq!(Figures::of_values(values.clone()), Figures::of_sample(&sample));
            let pairs: Vec<(u64, u64)> = values.iter().map(|&v| (v, 1 + v % weight)).collect();
            let sample = Sample::from_counts(pairs.clone());
            prop_assert_eq!(Figures::of_counts(pairs.into_iter()), Figures::of_sample(&sample));
        }
    }
}
