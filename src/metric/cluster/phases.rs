//! Time in each phase of a group's life, whole nanoseconds, so that sums over groups are exact.

use std::ops::AddAssign;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::curve::spans;
use crate::cluster::lifecycle::{Phase, Stage};
use crate::metric::cost::ByPhase;
use crate::record::{GroupRecord, ReplicaRecord, RunRecord};
use crate::units::{SimDuration, SimTime};

/// Sums of one or several groups, in nanoseconds of a whole group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PhaseTimes {
    stages: [u128; 5],
    ready: u128,
    draining: u128,
    failed: u128,
    /// Of `ready`, busy.
    ready_busy: u128,
    /// Busy, in steps with prompt tokens and in the others.
    prefill: u128,
    decode: u128,
}

/// Group-seconds by phase.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PhaseSeconds {
    /// The node is ordered and boots.
    pub provision: f64,
    /// Weights are loaded.
    pub load_weights: f64,
    /// Kernels and graphs are compiled.
    pub compile: f64,
    /// Device graphs are captured.
    pub capture: f64,
    /// First steps, checks, registration.
    pub warm: f64,
    /// It takes requests and its devices wait.
    pub ready_idle: f64,
    /// It takes requests and its devices compute: the mean over its data-parallel ranks.
    pub ready_busy: f64,
    /// It finishes what it has.
    pub draining: f64,
    /// It is broken and not yet starting again.
    pub failed: f64,
}

impl PhaseSeconds {
    /// All phases: the time in which there was such a group.
    pub fn total(&self) -> f64 {
        self.values().iter().map(|(_, s)| s).sum()
    }

    /// Each with its name.
    pub const fn values(&self) -> [(&'static str, f64); 9] {
        [
            ("provision", self.provision),
            ("load weights", self.load_weights),
            ("compile", self.compile),
            ("capture", self.capture),
            ("warm", self.warm),
            ("ready, idle", self.ready_idle),
            ("ready, busy", self.ready_busy),
            ("draining", self.draining),
            ("failed", self.failed),
        ]
    }

    /// Group-hours as costs take them.
    pub fn hours(&self) -> ByPhase {
        let hours = |seconds: f64| seconds / 3_600.0;
        ByPhase {
            provisioning: hours(self.provision),
            warming: hours(self.load_weights + self.compile + self.capture + self.warm),
            ready_idle: hours(self.ready_idle),
            ready_busy: hours(self.ready_busy),
            draining: hours(self.draining),
            failed: hours(self.failed),
        }
    }
}

/// How busy devices were.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct BusyShares {
    /// Seconds in steps with prompt tokens, mean over the ranks of a group, summed over groups.
    pub prefill_s: f64,
    /// Seconds in steps of output tokens alone.
    pub decode_s: f64,
    /// `prefill_s` over the time ready or draining; null without any.
    pub prefill_share: Option<f64>,
    /// `decode_s` over the same.
    pub decode_share: Option<f64>,
    /// Both.
    pub utilisation: Option<f64>,
}

fn seconds(ns: u128) -> f64 {
    ns as f64 / 1e9
}

impl PhaseTimes {
    /// Of one group.
    pub fn of(group: &GroupRecord, run: &RunRecord) -> Self {
        let mut times = Self::default();
        let mut draining_busy = 0;
        let ranks = group.replicas.len().max(1) as u128;
        let replicas = || {
            group
                .replicas
                .iter()
                .filter_map(|&r| run.replicas.get(r as usize))
        };
        for (from, to, phase) in spans(group, run.end) {
            let lasts = u128::from(to.since(from).as_nanos());
            match phase {
                Phase::Absent | Phase::Stopped => {}
                Phase::Starting(stage) => times.stages[stage as usize] += lasts,
                Phase::Ready => times.ready += lasts,
                Phase::Failed => times.failed += lasts,
                Phase::Draining => {
                    times.draining += lasts;
                    let busy: u128 = replicas().map(|r| busy_within(r, from, to)).sum();
                    draining_busy += busy / ranks;
                }
            }
        }
        let sum = |of: fn(&ReplicaRecord) -> SimDuration| -> u128 {
            replicas().map(|r| u128::from(of(r).as_nanos())).sum::<u128>() / ranks
        };
        times.prefill = sum(|r| r.busy.prefill);
        times.decode = sum(|r| r.busy.decode);
        times.ready_busy = (times.prefill + times.decode)
            .saturating_sub(draining_busy)
            .min(times.ready);
        times
    }

    /// In seconds.
    pub fn seconds(&self) -> PhaseSeconds {
        let stage = |stage: Stage| seconds(self.stages[stage as usize]);
        PhaseSeconds {
            provision: stage(Stage::Provision),
            load_weights: stage(Stage::LoadWeights),
            compile: stage(Stage::Compile),
            capture: stage(Stage::Capture),
            warm: stage(Stage::Warm),
            ready_idle: seconds(self.ready - self.ready_busy),
            ready_busy: seconds(self.ready_busy),
            draining: seconds(self.draining),
            failed: seconds(self.failed),
        }
    }

    /// How busy.
    pub fn busy(&self) -> BusyShares {
        let serving = self.ready + self.draining;
        let share = |part: u128| (serving > 0).then(|| part as f64 / serving as f64);
        BusyShares {
            prefill_s: seconds(self.prefill),
            decode_s: seconds(self.decode),
            prefill_share: share(self.prefill),
            decode_share: share(self.decode),
            utilisation: share(self.prefill + self.decode),
        }
    }
}

impl AddAssign<&Self> for PhaseTimes {
    fn add_assign(&mut self, other: &Self) {
        for (mine, theirs) in self.stages.iter_mut().zip(other.stages) {
            *mine += theirs;
        }
        self.ready += other.ready;
        self.draining += other.draining;
        self.failed += other.failed;
        self.ready_busy += other.ready_busy;
        self.prefill += other.prefill;
        self.decode += other.decode;
    }
}

/// Nanoseconds of a replica's steps in `[from, to)`.
pub fn busy_within(replica: &ReplicaRecord, from: SimTime, to: SimTime) -> u128 {
    let first = replica.step_ends.partition_point(|&end| end <= from);
    steps_of(replica, first)
        .take_while(|&(start, _)| start < to)
        .map(|(start, end)| u128::from(end.min(to).since(start.max(from)).as_nanos()))
        .sum()
}

/// Steps from a number on, none before the end of the one before: a device does one thing at a time.
pub fn steps_of(replica: &ReplicaRecord, first: usize) -> impl Iterator<Item = (SimTime, SimTime)> + '_ {
    let starts = replica.step_starts.iter().skip(first);
    let mut before = first
        .checked_sub(1)
        .and_then(|i| replica.step_ends.get(i))
        .copied()
        .unwrap_or_default();
    starts
        .zip(replica.step_ends.iter().skip(first))
        .map(move |(&start, &end)| {
            let start = start.max(before).min(end);
            before = end.max(before);
            (start, end)
        })
}
