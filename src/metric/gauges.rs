//! What the engine's gauges showed over a run.
//!
//! A gauge is read after each step's schedule and stands for that step. Means weigh each step by its duration,
//! so they are means over busy time, replicas pooled; idle time is not in them (see `utilisation`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::moments::Moments;
use super::window::Window;
use crate::record::{ReplicaRecord, RunRecord};
use crate::units::{SimDuration, SimTime};

/// Mean over busy time and maximum of one gauge.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gauge {
    /// Mean over the time in which some step was under way.
    pub mean: f64,
    /// Largest reading of any replica.
    pub max: f64,
}

/// The gauges of a window; null without a step in it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Gauges {
    /// Running requests of one replica.
    pub running: Option<Gauge>,
    /// Waiting requests of one replica.
    pub waiting: Option<Gauge>,
    /// Share of the usable KV blocks that are in use, 0 to 1; cached blocks that nobody uses count as free, as
    /// in vLLM's `kv_cache_usage_perc`.
    pub kv_usage: Option<Gauge>,
    /// Share of wall clock in which a replica computed, mean over replicas; a step counts where it starts. Of a cluster,
    /// whose groups come and go: share of the time ready or draining, over the whole run; null where only a part is measured.
    pub utilisation: Option<f64>,
    /// Steps that start in the window.
    pub steps: u64,
}

/// Readings that are added up at a time.
const CHUNK: usize = 64;

/// Readings of one gauge: weighed by nanoseconds, exact whatever the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Readings {
    /// Reading times nanoseconds, summed.
    sum: u128,
    /// Nanoseconds.
    weight: u128,
    min: u32,
    max: u32,
}

impl Default for Readings {
    fn default() -> Self {
        Self {
            sum: 0,
            weight: 0,
            min: u32::MAX,
            max: 0,
        }
    }
}

impl Readings {
    /// The same reading for so many nanoseconds.
    fn add(&mut self, value: u32, nanoseconds: u128) {
        self.sum += u128::from(value) * nanoseconds;
        self.weight += nanoseconds;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// A reading for each span of nanoseconds, the longest of which is `longest`; in 64 bits where that is enough.
    fn add_each(&mut self, values: &[u32], nanoseconds: &[u64], longest: u64) {
        let n = values.len().min(nanoseconds.len());
        let (values, nanoseconds) = (&values[..n], &nanoseconds[..n]);
        let largest = values.iter().fold(0, |a, &b| a.max(b));
        let most = u128::from(longest) * u128::from(largest.max(1)) * CHUNK as u128;
        if most > u128::from(u64::MAX) {
            let readings = values.iter().zip(nanoseconds);
            readings.for_each(|(&value, &ns)| self.add(value, u128::from(ns)));
            return;
        }
        for (values, spans) in values.chunks(CHUNK).zip(nanoseconds.chunks(CHUNK)) {
            let (mut sum, mut weight) = (0u64, 0u64);
            for (&value, &ns) in values.iter().zip(spans) {
                sum += u64::from(value) * ns;
                weight += ns;
            }
            self.sum += u128::from(sum);
            self.weight += u128::from(weight);
        }
        self.min = values.iter().fold(self.min, |a, &b| a.min(b));
        self.max = self.max.max(largest);
    }

    fn merge(&mut self, other: &Self) {
        self.sum += other.sum;
        self.weight += other.weight;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn gauge(&self) -> Option<Gauge> {
        (self.weight > 0).then(|| Gauge {
            mean: self.sum as f64 / self.weight as f64,
            max: f64::from(self.max),
        })
    }
}

/// What one replica's gauges showed in the steps of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct GaugeSums {
    busy_ns: u128,
    /// Of that, what counts twice: the batches of a pipeline overlap.
    overlap_ns: u128,
    steps: u64,
    running: Readings,
    waiting: Readings,
    free_blocks: Readings,
}

impl GaugeSums {
    /// Adds steps that all had as many requests; `moments` are those of their durations.
    pub fn add_run(
        &mut self,
        [running, waiting]: [u32; 2],
        free_blocks: &[u32],
        durations: &[u64],
        moments: &Moments,
    ) {
        let busy = moments.sum();
        self.busy_ns += busy;
        self.steps += durations.len() as u64;
        self.running.add(running, busy);
        self.waiting.add(waiting, busy);
        let longest = moments.max().unwrap_or(0);
        self.free_blocks.add_each(free_blocks, durations, longest);
    }

    /// Of the steps that start in the window, the time before the end of the step before each.
    pub fn overlap(&mut self, before: SimTime, starts: &[SimTime], ends: &[SimTime], window: &Window) {
        let earlier = std::iter::once(&before).chain(ends);
        let steps = starts
            .iter()
            .zip(earlier)
            .filter(|(start, _)| window.contains(**start));
        let overlap =
            steps.map(|(&start, &earlier)| u128::from(earlier.since(start.min(earlier)).as_nanos()));
        self.overlap_ns += overlap.sum::<u128>();
    }

    /// The steps of a record that start in the window; gauges may be missing from it.
    fn of(replica: &ReplicaRecord, window: &Window) -> Self {
        let mut sums = Self::default();
        sums.overlap(SimTime::ZERO, &replica.step_starts, &replica.step_ends, window);
        let steps = replica.step_starts.iter().zip(&replica.step_ends);
        if replica.step_starts.iter().all(|&start| window.contains(start)) {
            let durations: Vec<u64> = steps.map(|(start, end)| end.since(*start).as_nanos()).collect();
            sums.busy_ns = durations.iter().map(|&d| u128::from(d)).sum();
            sums.steps = durations.len() as u64;
            let longest = durations.iter().fold(0, |a, &b| a.max(b));
            sums.running.add_each(&replica.running, &durations, longest);
            sums.waiting.add_each(&replica.waiting, &durations, longest);
            sums.free_blocks
                .add_each(&replica.free_blocks, &durations, longest);
            return sums;
        }
        for (i, (&start, &end)) in steps.enumerate() {
            if !window.contains(start) {
                continue;
            }
            let duration = u128::from(end.since(start).as_nanos());
            sums.busy_ns += duration;
            sums.steps += 1;
            let read = |readings: &mut Readings, values: &[u32]| {
                if let Some(&value) = values.get(i) {
                    readings.add(value, duration);
                }
            };
            read(&mut sums.running, &replica.running);
            read(&mut sums.waiting, &replica.waiting);
            read(&mut sums.free_blocks, &replica.free_blocks);
        }
        sums
    }

    /// Adds other steps of the same replica.
    pub fn merge(&mut self, other: &Self) {
        self.busy_ns += other.busy_ns;
        self.overlap_ns += other.overlap_ns;
        self.steps += other.steps;
        self.running.merge(&other.running);
        self.waiting.merge(&other.waiting);
        self.free_blocks.merge(&other.free_blocks);
    }
}

/// Share of usable blocks in use over all replicas. With one size of cache it is one division of whole numbers.
fn kv_usage(replicas: &[(GaugeSums, u32)]) -> Option<Gauge> {
    let (mut by_size, mut weight, mut max) = (BTreeMap::<u32, i128>::new(), 0u128, 0.0f64);
    for (sums, usable) in replicas {
        let free = &sums.free_blocks;
        if *usable == 0 || free.weight == 0 {
            continue;
        }
        let all = u128::from(*usable) * free.weight;
        *by_size.entry(*usable).or_default() += all as i128 - free.sum as i128;
        weight += free.weight;
        max = max.max(1.0 - f64::from(free.min) / f64::from(*usable));
    }
    let shares = by_size
        .into_iter()
        .map(|(usable, used)| used as f64 / (u128::from(usable) * weight) as f64);
    (weight > 0).then(|| Gauge {
        mean: shares.sum(),
        max,
    })
}

impl Gauges {
    /// Reads the gauges of the steps that start in the window.
    pub fn of(run: &RunRecord, window: &Window) -> Self {
        let replicas: Vec<(GaugeSums, u32)> = run
            .replicas
            .iter()
            .map(|r| (GaugeSums::of(r, window), r.usable_blocks))
            .collect();
        Self::of_sums(&replicas, window.duration(run))
    }

    /// From what each replica's gauges showed and its usable blocks, over a window of this wall clock.
    pub(super) fn of_sums(replicas: &[(GaugeSums, u32)], wall_clock: SimDuration) -> Self {
        let mut all = GaugeSums::default();
        replicas.iter().for_each(|(sums, _)| all.merge(sums));
        let wall_ns = u128::from(wall_clock.as_nanos()) * replicas.len() as u128;
        Self {
            running: all.running.gauge(),
            waiting: all.waiting.gauge(),
            kv_usage: kv_usage(replicas),
            utilisation: (wall_ns > 0).then(|| (all.busy_ns - all.overlap_ns) as f64 / wall_ns as f64),
            steps: all.steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::three_requests;
    use approx::assert_relative_eq;

    #[test]
    fn means_weigh_steps_by_their_duration() {
        let gauges = Gauges::of(&three_requests(), &Window::WHOLE);
        // Running 1, 2, 2, 1, 1 for 10, 8, 8, 14, 10 ms.
        let running = gauges.running.unwrap();
        assert_relative_eq!(running.mean, 66.0 / 50.0);
        assert_relative_eq!(running.max, 2.0);
        // KV use 10, 20, 20, 10, 5 %.
        assert_relative_eq!(
            gauges.kv_usage.unwrap().mean,
            (1.0 + 1.6 + 1.6 + 1.4 + 0.5) / 50.0
        );
        assert_relative_eq!(gauges.utilisation.unwrap(), 50.0 / 60.0);
        assert_eq!(gauges.steps, 5);
    }

    #[test]
    fn no_steps_no_gauges() {
        assert_eq!(
            Gauges::of(&RunRecord::default(), &Window::WHOLE),
            Gauges::default()
        );
    }
}
