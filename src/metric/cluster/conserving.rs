//! Whether groups work while something waits for them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::curve::{Curve, gateway_queue, spans};
use super::groups::{PoolFigures, pool_name};
use super::money::steps_were_kept;
use super::phases::steps_of;
use crate::cluster::lifecycle::Phase;
use crate::record::{ClusterRecord, ReplicaRecord, RunRecord};
use crate::units::SimTime;

/// A pool's time without work while requests waited. A pool that loses none is work-conserving: whatever order serves
/// them, no policy could have served more in that time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkConservation {
    /// Its name.
    pub pool: String,
    /// Group-seconds in which a ready group computed nothing while requests waited in its own engine or, where it takes
    /// requests from the gateway, there: the mean over its data-parallel ranks. Time of the host between two steps and
    /// waits for KV that is on its way count. Null when steps were not kept.
    pub idle_while_backlogged_s: Option<f64>,
    /// Over the group-seconds in which it was ready; null without any.
    pub share_of_ready: Option<f64>,
}

/// Of each pool, in order.
pub fn conservation(
    run: &RunRecord,
    cluster: &ClusterRecord,
    pools: &[PoolFigures],
) -> Vec<WorkConservation> {
    let gateway = gateway_queue(cluster);
    let nothing = Curve::of_changes(Vec::new());
    let is_split = pools.iter().any(|p| p.is_prefill);
    let is_known = steps_were_kept(run);
    let of_pool = |(number, pool): (u32, &PoolFigures)| {
        let before_it = if !is_split || pool.is_prefill {
            &gateway
        } else {
            &nothing
        };
        let (mut idle_s, mut ready_s) = (0.0, 0.0);
        for group in cluster.groups.iter().filter(|g| g.pool == number) {
            let ranks = group.replicas.len().max(1) as f64;
            let ready = spans(group, run.end).filter(|&(_, _, phase)| phase == Phase::Ready);
            for (from, to, _) in ready {
                ready_s += to.since(from).as_secs_f64();
                let replicas = group
                    .replicas
                    .iter()
                    .filter_map(|&r| run.replicas.get(r as usize));
                let idle: f64 = replicas.map(|r| idle_backlogged_s(r, before_it, from, to)).sum();
                idle_s += idle / ranks;
            }
        }
        WorkConservation {
            pool: pool_name(cluster, number),
            idle_while_backlogged_s: is_known.then_some(idle_s),
            share_of_ready: (is_known && ready_s > 0.0).then(|| idle_s / ready_s),
        }
    };
    (0..).zip(pools).map(of_pool).collect()
}

/// Seconds of `[from, to)` without a step while something waits for the replica.
fn idle_backlogged_s(replica: &ReplicaRecord, before_it: &Curve, from: SimTime, to: SimTime) -> f64 {
    let first = replica.step_ends.partition_point(|&end| end <= from);
    let (mut done, mut waits, mut idle_s) = (from, false, 0.0);
    let mut idle = |since: SimTime, until: SimTime, waits: bool| {
        if since >= until {
            return;
        }
        idle_s += if waits {
            until.since(since).as_secs_f64()
        } else {
            before_it.integral(since, until, |n| f64::from(u8::from(n > 0)))
        };
    };
    for (index, (start, end)) in steps_of(replica, first).enumerate() {
        if start >= to {
            break;
        }
        idle(done, start, waits);
        done = done.max(end);
        waits = replica.waiting.get(first + index).is_some_and(|&n| n > 0);
    }
    idle(done, to, waits);
    idle_s
}
