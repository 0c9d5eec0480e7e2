//! Exact percentiles of a weighted multiset of integers.
//!
//! Most gaps between tokens are shared by every request of a batch, so a sample is held as (value, count)
//! pairs: millions of gaps cost as little as their distinct values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::moments::Moments;

/// A 99th percentile of fewer values than this is an extrapolation from one or two of them.
pub const THIN_BELOW: u64 = 100;

/// Pairs that are kept before equal values among them are added up.
const FEWEST_KEPT: usize = 1 << 15;

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Unit {
    /// Seconds.
    #[serde(rename = "s")]
    Second,
    /// Requests.
    #[serde(rename = "requests")]
    Request,
    /// A share between 0 and 1.
    #[serde(rename = "1")]
    Share,
}

impl Unit {
    /// The symbol printed in headings.
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Second => "s",
            Self::Request => "requests",
            Self::Share => "1",
        }
    }
}

/// A multiset of integers (usually nanoseconds), sorted, each distinct value once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sample {
    values: Vec<u64>,
    /// How many values are at or below `values[i]`; strictly increasing.
    cumulative: Vec<u64>,
}

impl Sample {
    /// A sample of single values in any order.
    pub fn from_values(values: impl IntoIterator<Item = u64>) -> Self {
        let mut values: Vec<u64> = values.into_iter().collect();
        values.sort_unstable();
        Self::merge(values.into_iter().map(|v| (v, 1)))
    }

    /// A sample of (value, count) pairs in any order; equal values are added up, counts of 0 left out.
    pub fn from_counts(mut pairs: Vec<(u64, u64)>) -> Self {
        pairs.sort_unstable_by_key(|p| p.0);
        Self::merge(pairs.into_iter())
    }

    /// [`Sample::from_counts`] of pairs of which there are many more than distinct values: memory goes by the latter.
    pub fn from_many(pairs: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut kept = Counts::default();
        pairs
            .into_iter()
            .for_each(|(value, count)| kept.add(value, count));
        Self::from_counts(kept.pairs)
    }

    fn merge(sorted: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut sample = Self::default();
        let mut n = 0u64;
        for (value, count) in sorted.filter(|p| p.1 > 0) {
            n = n.saturating_add(count);
            match (sample.values.last(), sample.cumulative.last_mut()) {
                (Some(last), Some(total)) if *last == value => *total = n,
                _ => {
                    sample.values.push(value);
                    sample.cumulative.push(n);
                }
            }
        }
        sample
    }

    /// How many values it holds.
    pub fn n(&self) -> u64 {
        self.cumulative.last().copied().unwrap_or(0)
    }

    /// The distinct values in rising order with their counts.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let before = std::iter::once(0).chain(self.cumulative.iter().copied());
        self.values
            .iter()
            .zip(self.cumulative.iter().zip(before))
            .map(|(&v, (&upto, before))| (v, upto - before))
    }

    /// The smallest value.
    pub fn min(&self) -> Option<u64> {
        self.values.first().copied()
    }

    /// The largest value.
    pub fn max(&self) -> Option<u64> {
        self.values.last().copied()
    }

    /// The sum of all values, exact.
    pub fn sum(&self) -> u128 {
        self.counts().map(|(v, c)| u128::from(v) * u128::from(c)).sum()
    }

    /// The arithmetic mean.
    pub fn mean(&self) -> Option<f64> {
        (self.n() > 0).then(|| self.sum() as f64 / self.n() as f64)
    }

    fn moments(&self) -> Moments {
        Moments::of(self.counts())
    }

    /// The population standard deviation (divisor n, as in numpy and in vLLM's tables).
    pub fn std(&self) -> Option<f64> {
        self.moments().std_of(self.counts())
    }

    /// The `q`-quantile (0 to 1) by linear interpolation between order statistics: rank `(n - 1) * q`, numpy's
    /// default (type 7 of Hyndman and Fan, 1996). `None` when the sample is empty or `q` is not in 0..=1.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        quantile(self.n(), q, |rank| self.order_statistic(rank))
    }

    /// The value at `rank` (from 0) of the sorted multiset.
    pub(super) fn order_statistic(&self, rank: u64) -> Option<u64> {
        let rank = rank.min(self.n().checked_sub(1)?);
        let index = self.cumulative.partition_point(|&upto| upto <= rank);
        self.values.get(index).copied()
    }

    /// How many values are at or below `bound`.
    pub fn count_at_most(&self, bound: u64) -> u64 {
        let index = self.values.partition_point(|&v| v <= bound);
        index.checked_sub(1).map_or(0, |i| self.cumulative[i])
    }

    /// Points of the empirical distribution function, (value, share at or below it), thinned to about
    /// `max_points`: evenly spread ranks, and the smallest and largest value always.
    pub fn distribution(&self, max_points: usize) -> Vec<(u64, f64)> {
        let n = self.n() as f64;
        let all = self.values.iter().zip(&self.cumulative);
        if self.values.len() <= max_points.max(2) {
            return all.map(|(&v, &upto)| (v, upto as f64 / n)).collect();
        }
        let stride = n / max_points.max(2) as f64;
        let mut due = 0.0;
        let last = self.values.len() - 1;
        all.enumerate()
            .filter_map(|(i, (&v, &upto))| {
                let take = i == 0 || i == last || upto as f64 >= due;
                take.then(|| {
                    due = upto as f64 + stride;
                    (v, upto as f64 / n)
                })
            })
            .collect()
    }

    /// The usual figures, every value divided by `per_unit`: 1e9 takes nanoseconds to seconds. Divided, not
    /// multiplied by an inexact 1e-9, so that 8,000,000 ns print as 0.008.
    pub fn stats(&self, unit: Unit, per_unit: f64) -> Stats {
        let moments = self.moments();
        let std = moments.std_of(self.counts());
        Stats::of(unit, per_unit, &moments, std, |q| self.quantile(q))
    }

    /// [`Sample::stats`] of nanoseconds, in seconds.
    pub fn stats_s(&self) -> Stats {
        self.stats(Unit::Second, 1e9)
    }
}

/// (value, count) pairs, some of them of one value; their number goes by that of distinct values.
#[derive(Debug)]
pub(super) struct Counts {
    pub pairs: Vec<(u64, u64)>,
    /// So many pairs are kept before those of one value are added up.
    most: usize,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            pairs: Vec::new(),
            most: FEWEST_KEPT,
        }
    }
}

impl Counts {
    pub fn add(&mut self, value: u64, count: u64) {
        match self.pairs.last_mut() {
            Some(last) if last.0 == value => last.1 = last.1.saturating_add(count),
            _ => self.pairs.push((value, count)),
        }
        if self.pairs.len() >= self.most {
            self.add_up();
            self.most = FEWEST_KEPT.max(2 * self.pairs.len());
        }
    }

    fn add_up(&mut self) {
        self.pairs.sort_unstable_by_key(|p| p.0);
        self.pairs.dedup_by(|next, first| {
            let is_same = next.0 == first.0;
            if is_same {
                first.1 = first.1.saturating_add(next.1);
            }
            is_same
        });
    }
}

/// The `q`-quantile of `n` values by linear interpolation between order statistics at rank `(n - 1) * q`;
/// `at_rank` gives the value at a rank counted from 0.
pub(super) fn quantile(n: u64, q: f64, at_rank: impl Fn(u64) -> Option<u64>) -> Option<f64> {
    if n == 0 || !(0.0..=1.0).contains(&q) {
        return None;
    }
    let rank = (n - 1) as f64 * q;
    let below = at_rank(rank.floor() as u64)? as f64;
    let above = at_rank(rank.ceil() as u64)? as f64;
    let (step, part) = (above - below, rank - rank.floor());
    // From the nearer end, so that the result is monotone in q and equals the ends exactly.
    Some(if part < 0.5 {
        below + step * part
    } else {
        above - step * (1.0 - part)
    })
}

/// The usual figures of one metric. All but `n` are null when there is no value: a zero would be a lie.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Unit of every figure below except `n`.
    pub unit: Unit,
    /// Number of values.
    pub n: u64,
    /// Arithmetic mean.
    pub mean: Option<f64>,
    /// Population standard deviation.
    pub std: Option<f64>,
    /// Smallest value.
    pub min: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
    /// Median; this and the other percentiles by linear interpolation (numpy's default).
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Fewer than 100 values: the 99th percentile rests on the largest one or two.
    pub thin: bool,
}

impl Stats {
    /// The quantiles among the figures.
    pub(super) const QUANTILES: [f64; 4] = [0.50, 0.90, 0.95, 0.99];

    /// From what is known of the values, everything divided by `per_unit`.
    pub(super) fn of(
        unit: Unit,
        per_unit: f64,
        moments: &Moments,
        std: Option<f64>,
        quantile: impl Fn(f64) -> Option<f64>,
    ) -> Self {
        let scaled = |x: Option<f64>| x.map(|x| x / per_unit);
        let [p50, p90, p95, p99] = Self::QUANTILES.map(|q| scaled(quantile(q)));
        Self {
            unit,
            n: moments.n(),
            mean: scaled(moments.mean()),
            std: scaled(std),
            min: scaled(moments.min().map(|v| v as f64)),
            max: scaled(moments.max().map(|v| v as f64)),
            p50,
            p90,
            p95,
            p99,
            thin: moments.n() < THIN_BELOW,
        }
    }

    /// The figures with their usual names, in print order.
    pub fn figures(&self) -> [(&'static str, Option<f64>); 8] {
        [
            ("mean", self.mean),
            ("std", self.std),
            ("min", self.min),
            ("p50", self.p50),
            ("p90", self.p90),
            ("p95", self.p95),
            ("p99", self.p99),
            ("max", self.max),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;
    use proptest::prelude::*;

    /// Reference values: `numpy.percentile(x, p)` (numpy 2, default method).
    #[test]
    fn quantiles_equal_numpy() {
        let cases: [(&[u64], [f64; 8]); 2] = [
            (&[1, 2, 3, 4], [1.0, 1.03, 1.75, 2.5, 3.7, 3.85, 3.97, 4.0]),
            (
                &[13, 7, 7, 29, 101, 3, 55, 8, 9, 1000],
                [3.0, 3.36, 7.25, 11.0, 190.9, 595.45, 919.09, 1000.0],
            ),
        ];
        for (values, expected) in cases {
            let sample = Sample::from_values(values.iter().copied());
            for (p, want) in [0.0, 1.0, 25.0, 50.0, 90.0, 95.0, 99.0, 100.0]
                .iter()
                .zip(expected)
            {
                let got = sample.quantile(p / 100.0).unwrap();
                assert_relative_eq!(got, want, max_relative = 1e-12);
            }
        }
    }

    #[test]
    fn moments_equal_numpy() {
        let sample = Sample::from_values([13, 7, 7, 29, 101, 3, 55, 8, 9, 1000]);
        assert_relative_eq!(sample.mean().unwrap(), 123.2, max_relative = 1e-14);
        assert_relative_eq!(sample.std().unwrap(), 293.718_504_694_545_9, max_relative = 1e-12);
        assert_eq!(
            (sample.min(), sample.max(), sample.n()),
            (Some(3), Some(1000), 10)
        );
    }

    #[test]
    fn an_empty_sample_has_no_figures() {
        let stats = Sample::default().stats_s();
        assert_eq!(stats.n, 0);
        assert!(stats.figures().iter().all(|(_, figure)| figure.is_none()));
        assert_eq!(Sample::from_counts(vec![(5, 0)]), Sample::default());
    }

    #[test]
    fn thin_ends_at_a_hundred_values() {
        assert!(Sample::from_counts(vec![(5, 99)]).stats_s().thin);
        assert!(!Sample::from_counts(vec![(5, 100)]).stats_s().thin);
    }

    #[test]
    fn counts_at_most_a_bound() {
        let sample = Sample::from_counts(vec![(10, 3), (20, 2)]);
        let counted = [9, 10, 19, 20, 99].map(|bound| sample.count_at_most(bound));
        assert_eq!(counted, [0, 3, 3, 5, 5]);
    }

    #[test]
    fn a_thinned_distribution_keeps_its_ends_and_its_shape() {
        let points = Sample::from_values(0..100_000).distribution(200);
        assert!(points.len() <= 203, "{}", points.len());
        assert_eq!(points.first(), Some(&(0, 1e-5)));
        assert_eq!(points.last(), Some(&(99_999, 1.0)));
        assert!(points.windows(2).all(|w| w[0] < w[1] && w[1].1 - w[0].1 < 0.006));
    }

    proptest! {
        #[test]
        fn weighted_equals_expanded(pairs in prop::collection::vec((0u64..50, 0u64..6), 0..40), q in 0.0..=1.0f64) {
            let expanded: Vec<u64> =
                pairs.iter().flat_map(|&(v, c)| std::iter::repeat_n(v, c as usize)).collect();
            let weighted = Sample::from_counts(pairs);
            prop_assert_eq!(weighted.n(), expanded.len() as u64);
            prop_assert_eq!(&weighted, &Sample::from_values(expanded.iter().copied()));
            let mut sorted = expanded;
            sorted.sort_unstable();
            if let Some(got) = weighted.quantile(q) {
                let rank = (sorted.len() - 1) as f64 * q;
                let (low, high) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
                let want = low as f64 + (high - low) as f64 * (rank - rank.floor());
                prop_assert!((got - want).abs() < 1e-9, "{got} {want}");
            } else {
                prop_assert!(sorted.is_empty());
            }
        }
    }
}
