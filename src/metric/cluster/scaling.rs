//! What autoscaling and rollouts did: capacity beyond need, thrash, how long a new group took, what draining cost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::curve::groups_in;
use super::groups::pool_name;
use super::need::{NeedRule, PoolWork, RankWork, StepWork};
use super::options::ClusterOptions;
use crate::cluster::lifecycle::Phase;
use crate::metric::percentile::{Sample, Stats};
use crate::record::{Busy, ClusterRecord, GroupRecord, ReplicaRecord, RunRecord};
use crate::units::{SimDuration, SimTime};

/// One pool's scaling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolScaling {
    /// Its name.
    pub pool: String,
    /// Ready groups, mean over the run; null for a run without length.
    pub ready_mean: Option<f64>,
    /// The fewest at an instant of the run.
    pub ready_min: u64,
    /// The most.
    pub ready_max: u64,
    /// Group-hours of ready groups beyond need. Need is told window by window: whole groups for the requests that run and
    /// wait in the pool's groups, by what one carries within the target for the time between tokens, and for the KV that
    /// they hold; of prefill pools those that could have been busy as long as the pool was. It is never less than the
    /// autoscaler's `min_groups`. Null when steps were not kept.
    pub overshoot_group_h: Option<f64>,
    /// Decisions for more groups.
    pub scale_ups: u64,
    /// Decisions for fewer.
    pub scale_downs: u64,
    /// Decisions in the other direction than the one before: thrash.
    pub reversals: u64,
    /// The shortest time between two such decisions.
    pub shortest_reversal_s: Option<f64>,
    /// From a decision for more groups to each new group's being ready.
    pub scale_up_latency: Stats,
    /// New groups that were never ready.
    pub never_ready: u64,
    /// From the end of a group's routes to its devices' being free, of all drains that ended: of autoscaling, rollouts and
    /// spot notices.
    pub drain: Stats,
    /// Drains that did not end by themselves: the time-out or a fault broke off what was left.
    pub drains_cut_off: u64,
    /// Tokens in the prefix caches of groups that drained to their end.
    pub cached_tokens_lost: u64,
}

/// Each pool's scaling.
pub fn scaling(
    run: &RunRecord,
    cluster: &ClusterRecord,
    window: SimDuration,
    options: &ClusterOptions,
) -> Vec<PoolScaling> {
    let pools = 0..cluster.pools.len() as u32;
    pools
        .map(|pool| of_pool(pool, run, cluster, window, options))
        .collect()
}

fn of_pool(
    pool: u32,
    run: &RunRecord,
    cluster: &ClusterRecord,
    window: SimDuration,
    options: &ClusterOptions,
) -> PoolScaling {
    let groups = || cluster.groups.iter().filter(move |g| g.pool == pool);
    let ready = groups_in(groups(), run.end, |phase| phase == Phase::Ready);
    let name = pool_name(cluster, pool);
    let decisions = decisions(cluster, &name);
    let reversals: Vec<SimDuration> = decisions
        .windows(2)
        .filter(|pair| (pair[0].1 > 0) != (pair[1].1 > 0))
        .map(|pair| pair[1].0.since(pair[0].0))
        .collect();
    let ups: Vec<SimTime> = decisions.iter().filter(|d| d.1 > 0).map(|d| d.0).collect();
    let started = groups().filter_map(|g| {
        let asked = g.phases.first()?.0;
        ups.binary_search(&asked).ok()?;
        let first_ready = g.phases.iter().find(|(_, phase)| *phase == Phase::Ready);
        Some(first_ready.map(|(at, _)| at.since(asked).as_nanos()))
    });
    let started: Vec<Option<u64>> = started.collect();
    let drains: Vec<(u64, Phase)> = groups().flat_map(drains).collect();
    let values: Vec<i64> = ready
        .stretches(SimTime::ZERO, run.end)
        .map(|(_, _, n)| n)
        .collect();
    let count = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    PoolScaling {
        ready_mean: ready.mean(SimTime::ZERO, run.end),
        ready_min: count(values.iter().copied().min()),
        ready_max: count(values.iter().copied().max()),
        overshoot_group_h: overshoot(run, groups(), window, &NeedRule::of(options, &name)),
        scale_ups: ups.len() as u64,
        scale_downs: (decisions.len() - ups.len()) as u64,
        reversals: reversals.len() as u64,
        shortest_reversal_s: reversals.iter().min().map(|d| d.as_secs_f64()),
        never_ready: started.iter().filter(|s| s.is_none()).count() as u64,
        scale_up_latency: Sample::from_values(started.into_iter().flatten()).stats_s(),
        drain: Sample::from_values(drains.iter().map(|d| d.0)).stats_s(),
        drains_cut_off: drains.iter().filter(|d| d.1 == Phase::Failed).count() as u64,
        cached_tokens_lost: groups().map(|g| g.cached_tokens_lost).sum(),
        pool: name,
    }
}

/// A group's drains that ended: how long each was, in nanoseconds, and what came then.
fn drains(group: &GroupRecord) -> impl Iterator<Item = (u64, Phase)> {
    let pairs = group.phases.windows(2).filter(|w| w[0].1 == Phase::Draining);
    pairs.map(|w| (w[1].0.since(w[0].0).as_nanos(), w[1].1))
}

/// Decisions about a pool by time: when, and how many groups more.
fn decisions(cluster: &ClusterRecord, pool: &str) -> Vec<(SimTime, i64)> {
    let of_pool = cluster
        .timeline
        .iter()
        .filter(|e| e.event == "scale")
        .filter_map(|event| {
            let (name, change) = event.what.rsplit_once(": ")?;
            let change = change.split(' ').next()?.parse().ok()?;
            (name == pool && change != 0).then_some((event.at, change))
        });
    of_pool.collect()
}

/// None when a replica's steps were not kept.
fn overshoot<'a>(
    run: &RunRecord,
    groups: impl Iterator<Item = &'a GroupRecord> + Clone,
    window: SimDuration,
    rule: &NeedRule,
) -> Option<f64> {
    let mut work = PoolWork::new(window, run.end);
    for group in groups.clone() {
        let ranks = group.replicas.iter();
        for replica in ranks.filter_map(|&r| run.replicas.get(r as usize)) {
            if replica.step_ends.is_empty() && replica.busy != Busy::default() {
                return None;
            }
            let rank = rank_work(replica, window);
            work.add(&rank, replica.usable_blocks, group.replicas.len());
        }
    }
    Some(work.beyond_need(groups, rule))
}

fn rank_work(replica: &ReplicaRecord, window: SimDuration) -> RankWork {
    let mut rank = RankWork::default();
    let gauge = |of: &[u32], i: usize| of.get(i).copied();
    let steps = replica.step_starts.iter().zip(&replica.step_ends);
    for (i, (&start, &end)) in steps.enumerate() {
        let requests = [&replica.running, &replica.waiting].map(|of| gauge(of, i).unwrap_or(0));
        let step = StepWork {
            start,
            end,
            requests: requests.map(u64::from).iter().sum(),
            free_blocks: gauge(&replica.free_blocks, i),
        };
        rank.count(step, window, usize::MAX);
    }
    rank
}
