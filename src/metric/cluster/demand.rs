//! What prefill, decode and transfers demand, apart (contract, section 12).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::good::Good;
use super::groups::PoolFigures;
use super::options::ClusterOptions;
use crate::record::{ClusterRecord, RunRecord, Status};

/// What is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DemandBy {
    /// Prefill groups against the others: prefill and decode are disaggregated.
    Pool,
    /// Steps with prompt tokens against steps without: all groups do both, and a mixed step counts as prefill.
    Step,
}

/// Demands of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Demand {
    /// Seconds from the first to the last arrival: what all demands are divided by.
    pub offered_s: f64,
    /// How prefill and decode are told apart.
    pub by: DemandBy,
    /// Busy group-seconds of prefill a second under load: groups that never rest.
    pub prefill_groups: Option<f64>,
    /// Busy group-seconds of decode a second under load.
    pub decode_groups: Option<f64>,
    /// Prefill over decode: the P:D ratio of groups that these demands imply.
    pub prefill_per_decode: Option<f64>,
    /// Groups needed of each kind, where prefill and decode are disaggregated and what a group carries is known.
    #[serde(default)]
    pub needs: Option<GroupNeeds>,
    /// KV bytes moved for requests, a second under load.
    pub transfer_bytes_per_s: Option<f64>,
    /// KV bytes moved for requests.
    pub transferred_bytes: u64,
    /// Requests for which KV was moved.
    pub transfers: u64,
    /// Transfers that broke off.
    pub failed_transfers: u64,
    /// Prefills that nobody had read when their leases ended.
    pub leases_expired: u64,
    /// Each link.
    pub links: Vec<LinkFigures>,
}

/// What holds the throughput of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GroupBound {
    /// Prompt tokens of a step: `max_num_batched_tokens`.
    StepTokens,
    /// Requests that run at a time: `max_num_seqs`.
    Seats,
    /// KV blocks.
    Kv,
    /// The target for the time between tokens (TPOT or ITL).
    TokenTarget,
}

/// What one group of a pool carries of a workload at its best: steps as full as the engine, its memory and the target
/// for the time between tokens allow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupCapacity {
    /// Requests a second whose prompts it computes, or whose output tokens it makes.
    pub requests_per_s: f64,
    /// Requests in a full batch of a data-parallel rank: output tokens only.
    pub batch: Option<u32>,
    /// How long such a step takes, host time included, in seconds.
    pub step_s: Option<f64>,
    /// What holds it.
    pub bound: GroupBound,
}

/// How many groups of each kind the offered load needs: its rate over what one group carries.
///
/// Unlike busy time this does not depend on how full the batches of the run were. A decode group with one request is as
/// busy as one with a hundred; what it has left only its full batch tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupNeeds {
    /// Offered requests a second under load.
    pub offered_rps: f64,
    /// What a prefill group carries.
    pub prefill: GroupCapacity,
    /// What a decode group carries.
    pub decode: GroupCapacity,
    /// Prefill groups needed; not rounded.
    pub prefill_groups: f64,
    /// Decode groups needed.
    pub decode_groups: f64,
    /// Prefill over decode: the P:D ratio of groups that a planner wants.
    pub prefill_per_decode: f64,
}

impl GroupNeeds {
    /// Of a rate of requests. None where groups carry nothing.
    pub fn of(offered_rps: f64, prefill: GroupCapacity, decode: GroupCapacity) -> Option<Self> {
        let carries = |c: &GroupCapacity| c.requests_per_s.is_finite() && c.requests_per_s > 0.0;
        (carries(&prefill) && carries(&decode)).then(|| Self {
            offered_rps,
            prefill,
            decode,
            prefill_groups: offered_rps / prefill.requests_per_s,
            decode_groups: offered_rps / decode.requests_per_s,
            prefill_per_decode: decode.requests_per_s / prefill.requests_per_s,
        })
    }

    /// Of a total of groups, how many prefill groups this ratio makes: at least one of each kind.
    pub fn split_of(&self, groups: u32) -> u32 {
        let share = self.prefill_groups / (self.prefill_groups + self.decode_groups);
        let rounded = (share * f64::from(groups)).round() as u32;
        rounded.clamp(1, groups.saturating_sub(1).max(1))
    }
}

/// One link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkFigures {
    /// Its name.
    pub link: String,
    /// Bytes that crossed it.
    pub bytes: u64,
    /// Over the whole run, a second.
    pub bytes_per_s: Option<f64>,
    /// Of its bandwidth; null when that is not known or without limit.
    pub share: Option<f64>,
}

impl Demand {
    /// Of a run with these pools.
    pub fn of(
        run: &RunRecord,
        cluster: &ClusterRecord,
        options: &ClusterOptions,
        pools: &[PoolFigures],
        good: &Good,
    ) -> Self {
        let offered_s = good
            .load
            .map_or(0.0, |(first, last)| last.since(first).as_secs_f64());
        let by = if pools.iter().any(|p| p.is_prefill) {
            DemandBy::Pool
        } else {
            DemandBy::Step
        };
        let (mut prefill_s, mut decode_s) = (0.0, 0.0);
        for pool in pools {
            let busy = &pool.busy;
            match (by, pool.is_prefill) {
                (DemandBy::Pool, true) => prefill_s += busy.prefill_s + busy.decode_s,
                (DemandBy::Pool, false) => decode_s += busy.prefill_s + busy.decode_s,
                (DemandBy::Step, _) => {
                    prefill_s += busy.prefill_s;
                    decode_s += busy.decode_s;
                }
            }
        }
        let per_s = |amount: f64| (offered_s > 0.0).then(|| amount / offered_s);
        let transferred_bytes = cluster.jobs.iter().map(|j| j.transferred_bytes).sum();
        Self {
            offered_s,
            by,
            prefill_groups: per_s(prefill_s),
            decode_groups: per_s(decode_s),
            prefill_per_decode: (decode_s > 0.0).then(|| prefill_s / decode_s),
            needs: needs(run, offered_s, options, pools),
            transfer_bytes_per_s: per_s(transferred_bytes as f64),
            transferred_bytes,
            transfers: cluster.jobs.iter().filter(|j| j.transfer.is_some()).count() as u64,
            failed_transfers: cluster.failed_transfers,
            leases_expired: cluster.leases_expired,
            links: links(run, cluster, options),
        }
    }
}

fn needs(
    run: &RunRecord,
    offered_s: f64,
    options: &ClusterOptions,
    pools: &[PoolFigures],
) -> Option<GroupNeeds> {
    let capacity = |is_prefill: bool| {
        let pool = pools.iter().find(|p| p.is_prefill == is_prefill)?;
        options.pools.get(&pool.pool)?.capacity
    };
    let (prefill, decode) = (capacity(true)?, capacity(false)?);
    let offered = run
        .requests
        .iter()
        .filter(|r| r.status != Status::Surplus)
        .count();
    let rps = (offered_s > 0.0).then(|| offered as f64 / offered_s)?;
    GroupNeeds::of(rps, prefill, decode)
}

fn links(run: &RunRecord, cluster: &ClusterRecord, options: &ClusterOptions) -> Vec<LinkFigures> {
    let seconds = run.end.as_secs_f64();
    let figures = cluster.links.iter().map(|(link, bytes)| {
        let bytes_per_s = (seconds > 0.0).then(|| *bytes as f64 / seconds);
        let bandwidth = options
            .link_bytes_per_s
            .get(link)
            .filter(|&&b| b > 0 && b < u64::MAX);
        LinkFigures {
            link: link.clone(),
            bytes: *bytes,
            bytes_per_s,
            share: bytes_per_s
                .zip(bandwidth)
                .map(|(moved, &most)| moved / most as f64),
        }
    });
    figures.collect()
}
