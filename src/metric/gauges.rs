//! What the engine's gauges showed over a run.
//!
//! A gauge is read after each step's schedule and stands for that step. Means weigh each step by its duration,
//! so they are means over busy time, replicas pooled; idle time is not in them (see `utilisation`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::window::Window;
use crate::record::RunRecord;

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
    /// Share of wall clock in which a replica computed, mean over replicas; a step counts where it starts.
    pub utilisation: Option<f64>,
    /// Steps that start in the window.
    pub steps: u64,
}

#[derive(Default)]
struct Weighted {
    sum: f64,
    weight: f64,
    max: f64,
}

impl Weighted {
    fn add(&mut self, value: f64, weight: f64) {
        self.sum += value * weight;
        self.weight += weight;
        self.max = self.max.max(value);
    }

    fn gauge(&self) -> Option<Gauge> {
        (self.weight > 0.0).then(|| Gauge {
            mean: self.sum / self.weight,
            max: self.max,
        })
    }
}

impl Gauges {
    /// Reads the gauges of the steps that start in the window.
    pub fn of(run: &RunRecord, window: &Window) -> Self {
        let (mut running, mut waiting, mut kv) =
            (Weighted::default(), Weighted::default(), Weighted::default());
        let (mut busy_ns, mut steps) = (0u128, 0u64);
        for replica in &run.replicas {
            for (i, (&start, &end)) in replica.step_starts.iter().zip(&replica.step_ends).enumerate() {
                if !window.contains(start) {
                    continue;
                }
                let duration = end.since(start).as_nanos();
                busy_ns += u128::from(duration);
                steps += 1;
                let weight = duration as f64;
                if let Some(&n) = replica.running.get(i) {
                    running.add(f64::from(n), weight);
                }
                if let Some(&n) = replica.waiting.get(i) {
                    waiting.add(f64::from(n), weight);
                }
                if let (Some(&free), true) = (replica.free_blocks.get(i), replica.usable_blocks > 0) {
                    kv.add(1.0 - f64::from(free) / f64::from(replica.usable_blocks), weight);
                }
            }
        }
        let wall_ns = u128::from(window.duration(run).as_nanos()) * run.replicas.len() as u128;
        Self {
            running: running.gauge(),
            waiting: waiting.gauge(),
            kv_usage: kv.gauge(),
            utilisation: (wall_ns > 0).then(|| busy_ns as f64 / wall_ns as f64),
            steps,
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
