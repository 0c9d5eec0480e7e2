//! Figures of groups and pools, and their sums.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::curve::groups_in;
use super::phases::{BusyShares, PhaseSeconds, PhaseTimes, steps_of};
use crate::cluster::lifecycle::Phase;
use crate::record::{
    ClusterRecord, DummySteps, GroupRecord, JobRecord, ReplicaRecord, RequestRecord, RunRecord,
};
use crate::units::SimTime;

/// What was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Served {
    /// Requests that it answered.
    pub answered: u64,
    /// Their prompt tokens.
    pub input_tokens: u64,
    /// Their output tokens.
    pub output_tokens: u64,
    /// Requests for which it did the prefill that another group went on from.
    pub prefilled: u64,
    /// Their prompt tokens.
    pub prefilled_tokens: u64,
}

impl Served {
    fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.prefilled += other.prefilled;
        self.prefilled_tokens += other.prefilled_tokens;
    }
}

/// One group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupFigures {
    /// Its number, from 0.
    pub group: u32,
    /// What the timeline calls it: its pool and its place in it. A place is taken again when a group has stopped.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Revision that it serves.
    pub revision: u32,
    /// Data-parallel ranks.
    pub ranks: u64,
    /// What it served.
    pub served: Served,
    /// Seconds in each phase.
    pub phases: PhaseSeconds,
    /// How busy it was.
    pub busy: BusyShares,
    /// Running requests, mean over its busy time; null when it had none or steps were not kept.
    pub mean_running: Option<f64>,
}

/// Dummy batches of data-parallel ranks that step together: a rank with nothing to compute takes part in every step of the
/// others, and all of them go on for a while when nobody has anything left (rules S70, S71).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct DummyFigures {
    /// Dummy batches, each rank's counted.
    pub steps: u64,
    /// Seconds of ranks in them.
    pub rank_s: f64,
    /// Of the steps, those in which no rank of the group had anything to compute.
    pub idle_steps: u64,
    /// Seconds of ranks in those.
    pub idle_rank_s: f64,
}

/// Dummy batches in whole nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DummySums {
    steps: u64,
    rank_ns: u128,
    idle_steps: u64,
    idle_rank_ns: u128,
}

impl DummySums {
    fn count(&mut self, dummy: &DummySteps) {
        let lasts = u128::from(dummy.to.since(dummy.from).as_nanos());
        self.steps += dummy.steps;
        self.rank_ns += lasts;
        if dummy.is_idle {
            self.idle_steps += dummy.steps;
            self.idle_rank_ns += lasts;
        }
    }

    fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.rank_ns += other.rank_ns;
        self.idle_steps += other.idle_steps;
        self.idle_rank_ns += other.idle_rank_ns;
    }

    /// In seconds; none where there were no dummy batches.
    fn figures(&self) -> Option<DummyFigures> {
        (self.rank_ns > 0).then(|| DummyFigures {
            steps: self.steps,
            rank_s: self.rank_ns as f64 / 1e9,
            idle_steps: self.idle_steps,
            idle_rank_s: self.idle_rank_ns as f64 / 1e9,
        })
    }
}

/// Several groups together: a pool, or all.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PoolFigures {
    /// Its name.
    pub pool: String,
    /// Groups that there ever were: one that is replaced by a rollout or scaled away counts, and so does what follows it.
    pub groups: u64,
    /// Groups at the start of the run.
    #[serde(default)]
    pub groups_at_start: u64,
    /// The most at an instant, those that start or drain among them; one that has failed is not there.
    #[serde(default)]
    pub groups_most: u64,
    /// Ready groups, mean over the run; null for a run without length.
    #[serde(default)]
    pub ready_mean: Option<f64>,
    /// It did prefills that other groups went on from.
    pub is_prefill: bool,
    /// What it served.
    pub served: Served,
    /// Group-seconds in each phase.
    pub phases: PhaseSeconds,
    /// How busy it was, over all groups. Dummy batches are not in it.
    pub busy: BusyShares,
    /// Dummy batches of ranks that step together; left out where there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dummy: Option<DummyFigures>,
}

/// A group's raw sums.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSums {
    /// Number of its pool.
    pub pool: u32,
    /// What it served.
    pub served: Served,
    /// Its phases.
    pub times: PhaseTimes,
    /// Its dummy batches.
    pub dummy: DummySums,
}

/// What all groups served, and how long each was in which phase.
pub fn sums(run: &RunRecord, cluster: &ClusterRecord) -> Vec<GroupSums> {
    let mut sums: Vec<GroupSums> = cluster
        .groups
        .iter()
        .map(|group| GroupSums {
            pool: group.pool,
            served: Served::default(),
            times: PhaseTimes::of(group, run),
            dummy: DummySums::default(),
        })
        .collect();
    count_dummies(&mut sums, cluster);
    for (request, job) in run.requests.iter().zip(&cluster.jobs) {
        count(&mut sums, request, job);
    }
    sums
}

fn count_dummies(sums: &mut [GroupSums], cluster: &ClusterRecord) {
    if cluster.dummy_steps.is_empty() {
        return;
    }
    let mut group_of: BTreeMap<u32, usize> = BTreeMap::new();
    for (number, group) in cluster.groups.iter().enumerate() {
        group_of.extend(group.replicas.iter().map(|&replica| (replica, number)));
    }
    for dummy in &cluster.dummy_steps {
        if let Some(group) = group_of.get(&dummy.replica).and_then(|&g| sums.get_mut(g)) {
            group.dummy.count(dummy);
        }
    }
}

fn count(sums: &mut [GroupSums], request: &RequestRecord, job: &JobRecord) {
    if let Some(group) = job.group.and_then(|g| sums.get_mut(g as usize)) {
        group.served.answered += 1;
        group.served.input_tokens += u64::from(request.input_tokens);
        group.served.output_tokens += u64::from(request.output_tokens);
    }
    if let Some(group) = job.prefill_group.and_then(|g| sums.get_mut(g as usize)) {
        group.served.prefilled += 1;
        group.served.prefilled_tokens += u64::from(request.input_tokens);
    }
}

/// The figures of each group.
pub fn group_figures(run: &RunRecord, cluster: &ClusterRecord, sums: &[GroupSums]) -> Vec<GroupFigures> {
    let names = names(cluster);
    let groups = (0..).zip(&cluster.groups).zip(sums).zip(names);
    groups
        .map(|(((number, group), sums), name)| GroupFigures {
            group: number,
            name,
            pool: pool_name(cluster, group.pool),
            revision: group.revision,
            ranks: group.replicas.len() as u64,
            served: sums.served,
            phases: sums.times.seconds(),
            busy: sums.times.busy(),
            mean_running: mean_running(
                group
                    .replicas
                    .iter()
                    .filter_map(|&r| run.replicas.get(r as usize)),
            ),
        })
        .collect()
}

/// The figures of each pool.
pub fn pool_figures(cluster: &ClusterRecord, sums: &[GroupSums], end: SimTime) -> Vec<PoolFigures> {
    let of_pool = |pool| sums.iter().filter(move |s| s.pool == pool);
    let pools = (0_u32..).zip(&cluster.pools);
    pools
        .map(|(pool, name)| {
            let groups = || cluster.groups.iter().filter(move |g| g.pool == pool);
            counted(together(name, of_pool(pool)), groups, end)
        })
        .collect()
}

/// The figures of all groups.
pub fn total(cluster: &ClusterRecord, sums: &[GroupSums], end: SimTime) -> PoolFigures {
    counted(together("all", sums.iter()), || cluster.groups.iter(), end)
}

/// With how many groups there were at a time.
fn counted<'a, I: Iterator<Item = &'a GroupRecord>>(
    figures: PoolFigures,
    groups: impl Fn() -> I,
    end: SimTime,
) -> PoolFigures {
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    let existing = groups_in(groups(), end, Phase::exists);
    let most = existing.points().iter().map(|p| p.1).max();
    PoolFigures {
        groups_at_start: count(existing.at(SimTime::ZERO)),
        groups_most: count(most.unwrap_or(0)),
        ready_mean: groups_in(groups(), end, |phase| phase == Phase::Ready).mean(SimTime::ZERO, end),
        ..figures
    }
}

/// Several groups together.
pub fn together<'a>(name: &str, sums: impl Iterator<Item = &'a GroupSums>) -> PoolFigures {
    let (mut groups, mut served, mut times) = (0, Served::default(), PhaseTimes::default());
    let mut dummy = DummySums::default();
    for group in sums {
        groups += 1;
        served.add(&group.served);
        times += &group.times;
        dummy.add(&group.dummy);
    }
    PoolFigures {
        pool: name.to_owned(),
        groups,
        is_prefill: served.prefilled > 0,
        served,
        phases: times.seconds(),
        busy: times.busy(),
        dummy: dummy.figures(),
        ..PoolFigures::default()
    }
}

/// A pool's name; its number, if the record has none.
pub fn pool_name(cluster: &ClusterRecord, pool: u32) -> String {
    cluster
        .pools
        .get(pool as usize)
        .cloned()
        .unwrap_or_else(|| pool.to_string())
}

/// Events whose text is the group's name alone.
const NAMING: [&str; 6] = [
    "starting",
    "ready",
    "detected",
    "routes_removed",
    "draining",
    "stopped",
];

/// Each group as the timeline calls it; by its order in its pool where it never does.
pub fn names(cluster: &ClusterRecord) -> Vec<String> {
    let mut told: BTreeMap<u32, &str> = BTreeMap::new();
    for event in cluster.timeline.iter().filter(|e| NAMING.contains(&e.event)) {
        if let Some(group) = event.group {
            told.entry(group).or_insert(&event.what);
        }
    }
    let mut in_pool: BTreeMap<u32, u32> = BTreeMap::new();
    let named = (0..).zip(&cluster.groups).map(|(number, group)| {
        let place = in_pool.entry(group.pool).or_default();
        let by_order = format!("{}/{place}", pool_name(cluster, group.pool));
        *place += 1;
        told.get(&number).map_or(by_order, |name| (*name).to_owned())
    });
    named.collect()
}

fn mean_running<'a>(replicas: impl Iterator<Item = &'a ReplicaRecord>) -> Option<f64> {
    let (mut running_ns, mut busy_ns) = (0, 0);
    for replica in replicas {
        for ((start, end), &running) in steps_of(replica, 0).zip(&replica.running) {
            let lasts = u128::from(end.since(start).as_nanos());
            busy_ns += lasts;
            running_ns += lasts * u128::from(running);
        }
    }
    (busy_ns > 0).then(|| running_ns as f64 / busy_ns as f64)
}
