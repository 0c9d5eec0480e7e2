//! What prefill, decode and transfers demand, apart (contract, section 12).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::good::Good;
use super::groups::PoolFigures;
use super::options::ClusterOptions;
use crate::record::{ClusterRecord, RunRecord};

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
            transfer_bytes_per_s: per_s(transferred_bytes as f64),
            transferred_bytes,
            transfers: cluster.jobs.iter().filter(|j| j.transfer.is_some()).count() as u64,
            failed_transfers: cluster.failed_transfers,
            leases_expired: cluster.leases_expired,
            links: links(run, cluster, options),
        }
    }
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
