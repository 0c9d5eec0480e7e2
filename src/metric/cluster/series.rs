//! What a cluster's run looked like over time, window by window, for plots.

use super::ClusterError;
use super::curve::{gateway_queue, groups_in, queue};
use super::good::Good;
use super::options::ClusterOptions;
use crate::cluster::lifecycle::Phase;
use crate::record::{ClusterRecord, RunRecord};
use crate::units::{SimDuration, SimTime};

/// Points of a curve at most.
const POINTS: u64 = 500;

/// Points of (seconds, value), each held until the next.
pub type Points = Vec<(f64, f64)>;

/// A run over time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClusterSeries {
    /// Groups starting, ready, draining, failed.
    pub groups: Vec<(&'static str, Points)>,
    /// The longest queue at the gateway in each window.
    pub gateway_queue: Points,
    /// The longest queue at the gateway and in engines together.
    pub queue: Points,
    /// Goodput, requests a second.
    pub goodput: Points,
    /// Offered requests a second.
    pub offered: Points,
    /// KV bytes whose transfer ended, a second.
    pub transfers: Points,
    /// Length of a window in seconds.
    pub window_s: f64,
}

impl ClusterSeries {
    /// Of a run.
    ///
    /// # Errors
    /// As [`super::ClusterSummary::of`].
    pub fn of(
        run: &RunRecord,
        cluster: &ClusterRecord,
        options: &ClusterOptions,
    ) -> Result<Self, ClusterError> {
        super::check(run, cluster, options)?;
        let good = Good::of(run, options)?;
        let windows = Windows::new(run.end, good.window);
        let arrivals = run.requests.iter().map(|r| (r.scheduled, 1));
        let moved = cluster
            .jobs
            .iter()
            .filter_map(|j| Some((j.transfer?, j.transferred_bytes)));
        let most =
            |curve: &super::curve::Curve| windows.map(|from, to| curve.max(from, to).unwrap_or(0) as f64);
        Ok(Self {
            groups: groups(run, cluster),
            gateway_queue: most(&gateway_queue(cluster)),
            queue: most(&queue(run, cluster)),
            goodput: windows.map(|from, to| good.rate(from, to).unwrap_or(0.0)),
            offered: windows.rates(arrivals),
            transfers: windows.rates(moved),
            window_s: windows.length.as_secs_f64(),
        })
    }
}

/// A name, and which phases it counts.
type Kind = (&'static str, fn(Phase) -> bool);

fn groups(run: &RunRecord, cluster: &ClusterRecord) -> Vec<(&'static str, Points)> {
    let kinds: [Kind; 4] = [
        ("ready", |p| p == Phase::Ready),
        ("starting", |p| matches!(p, Phase::Starting(_))),
        ("draining", |p| p == Phase::Draining),
        ("failed", |p| p == Phase::Failed),
    ];
    let curves = kinds.map(|(name, counts)| {
        let curve = groups_in(cluster.groups.iter(), run.end, counts);
        let first = (0.0, curve.at(SimTime::ZERO) as f64);
        let last = (run.end.as_secs_f64(), curve.at(run.end) as f64);
        let inner = curve
            .points()
            .iter()
            .filter(|p| p.0 > SimTime::ZERO && p.0 < run.end);
        let inner = inner.map(|&(at, n)| (at.as_secs_f64(), n as f64));
        (name, std::iter::once(first).chain(inner).chain([last]).collect())
    });
    curves.into_iter().collect()
}

/// Windows from the start of a run to its end: those of the goodput, several together where they are many.
#[derive(Debug, Clone, Copy)]
struct Windows {
    length: SimDuration,
    end: SimTime,
    count: u64,
}

impl Windows {
    fn new(end: SimTime, window: SimDuration) -> Self {
        let window = window.as_nanos().max(1);
        let together = end.as_nanos().div_ceil(window).div_ceil(POINTS).max(1);
        let length = window.saturating_mul(together);
        Self {
            length: SimDuration(length),
            end,
            count: end.as_nanos().div_ceil(length),
        }
    }

    fn bounds(&self, k: u64) -> (SimTime, SimTime) {
        let at = |k: u64| SimTime(k.saturating_mul(self.length.as_nanos())).min(self.end);
        (at(k), at(k + 1))
    }

    fn map(&self, value: impl Fn(SimTime, SimTime) -> f64) -> Points {
        let points = (0..self.count).map(|k| {
            let (from, to) = self.bounds(k);
            (from.as_secs_f64(), value(from, to))
        });
        points.collect()
    }

    /// Sums of amounts at instants, a second. What is at the very end counts in the last window.
    fn rates(&self, amounts: impl Iterator<Item = (SimTime, u64)>) -> Points {
        let mut sums = vec![0_u64; self.count as usize];
        let last = sums.len().saturating_sub(1);
        for (at, amount) in amounts {
            let k = (at.as_nanos() / self.length.as_nanos()) as usize;
            if let Some(sum) = sums.get_mut(k.min(last)) {
                *sum += amount;
            }
        }
        let rates = (0..).zip(&sums).map(|(k, &sum)| {
            let (from, to) = self.bounds(k);
            (from.as_secs_f64(), sum as f64 / to.since(from).as_secs_f64())
        });
        rates.collect()
    }
}
