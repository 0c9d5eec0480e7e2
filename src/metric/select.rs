//! The usual figures of values in any order, exact, without sorting them all.
//!
//! Sorting is most of the cost of a summary, and only eight order statistics are wanted. One pass counts the values
//! by bin ([`super::bins`]), which tells in which bins the wanted ranks lie; a second takes the values of those bins
//! out, and these few are sorted.

use super::bins::bin_of;
use super::moments::Moments;
use super::percentile::{Sample, Stats, Unit, quantile};

/// Fewer values than this are sorted outright.
const FEW: usize = 512;

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
        let mut moments = Moments::default();
        moments.add_slice(&values, 1);
        if values.len() < FEW {
            values.sort_unstable();
            let std = moments.std_of(values.iter().map(|&v| (v, 1)));
            return Self::of(&moments, std, |rank| values.get(rank as usize).copied());
        }
        Self::selected(&moments, values.iter().map(|&v| (v, 1)))
    }

    /// Of (nanoseconds, count) in any order, possibly repeated.
    pub fn of_counts(pairs: Vec<(u64, u64)>) -> Self {
        if pairs.len() < FEW {
            return Self::of_sample(&Sample::from_counts(pairs));
        }
        let moments = Moments::of(pairs.iter().copied());
        Self::selected(&moments, pairs.iter().copied())
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
        let values = order_statistics(moments, items.clone(), &ranks);
        let at_rank = |rank| Some(values[ranks.binary_search(&rank).ok()?]);
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

/// The values at `ranks`, which rise.
fn order_statistics(
    moments: &Moments,
    items: impl Iterator<Item = (u64, u64)> + Clone,
    ranks: &[u64],
) -> Vec<u64> {
    let (Some(min), Some(max)) = (moments.min(), moments.max()) else {
        return vec![0; ranks.len()];
    };
    let base = bin_of(min);
    let mut counts = vec![0u64; bin_of(max) - base + 1];
    for (value, count) in items.clone() {
        counts[bin_of(value) - base] += count;
    }
    // Which group of values to take out each bin belongs to; group 0 is left alone.
    let mut group_of = vec![0u8; counts.len()];
    let mut groups: Vec<(u64, Vec<(u64, u64)>)> = vec![(0, Vec::new())];
    let (mut before, mut next) = (0u64, 0);
    for (bin, &count) in counts.iter().enumerate() {
        if next < ranks.len() && ranks[next] < before + count {
            group_of[bin] = groups.len() as u8;
            groups.push((before, Vec::new()));
            while next < ranks.len() && ranks[next] < before + count {
                next += 1;
            }
        }
        before += count;
    }
    for (value, count) in items {
        let group = group_of[bin_of(value) - base];
        if group > 0 {
            groups[usize::from(group)].1.push((value, count));
        }
    }
    groups
        .iter_mut()
        .for_each(|(_, group)| group.sort_unstable_by_key(|p| p.0));
    ranks.iter().map(|&rank| value_at(&groups, rank)).collect()
}

/// The value at a rank, from sorted groups that each know how many values lie before them.
fn value_at(groups: &[(u64, Vec<(u64, u64)>)], rank: u64) -> u64 {
    let group = groups.partition_point(|(before, group)| group.is_empty() || *before <= rank);
    let Some((before, group)) = groups.get(group.saturating_sub(1)) else {
        return 0;
    };
    let mut upto = *before;
    for &(value, count) in group {
        upto += count;
        if rank < upto {
            return value;
        }
    }
    group.last().map_or(0, |p| p.0)
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
            prop_assert_eq!(Figures::of_counts(pairs), Figures::of_sample(&sample));
        }
    }
}
