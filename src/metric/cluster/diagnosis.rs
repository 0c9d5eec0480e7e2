//! What limits a cluster: where its requests spend their time, Little's law both ways, and a verdict with its evidence.
//!
//! A request passes places one after another: the gateway's queue, the queue for prefill, prefill, and where prefill and
//! decode are disaggregated the queue for room at a decode group, the transfer of its KV and the queue for a seat; then
//! decode. What limits is looked for from the last place to the first, since a place that is full holds up those before it
//! and never those after it. A queue that stands for most of the time is a limit of what the cluster carries; where no
//! queue stands but a target is missed, it is named where late requests spent most of their time.
//!
//! Only the time in which load was offered is judged, as in [`crate::metric::diagnose`]. Where the evidence is thin or
//! mixed the verdict is undecidable.

mod evidence;
mod flow;
mod gauges;
mod judge;
mod links;
mod room;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ClusterSummary;
use super::options::ClusterOptions;
use crate::metric::diagnose::{ClientView, Evidence};
use crate::record::{ClusterRecord, RunRecord};
use crate::units::{SimDuration, SimTime};

pub use flow::{Place, PlaceFigures};
pub use gauges::{PoolQueues, Role};
pub use links::{BusiestLink, TransferFigures};

/// What one replica of a pool has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolLimits {
    /// Most running requests.
    pub seats: u32,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// Prompt tokens for which a request needs blocks to be admitted: the first chunk. `None`: the whole prompt.
    pub first_chunk: Option<u32>,
    /// Blocks that admission leaves free.
    pub reserved_blocks: u32,
}

/// What limits a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterLimit {
    /// Nothing: every place kept up with what was offered.
    None,
    /// The gateway lets in less than there is room for.
    Gateway,
    /// Prefill groups: prompts wait to be computed, or take too long.
    Prefill,
    /// The way of KV from prefill to decode groups.
    Transfer,
    /// Decode groups: seats, or steps that take too long.
    Decode,
    /// Groups that do both: seats, room in a step, or steps that take too long.
    Serving,
    /// KV memory of a pool.
    Kv,
    /// Groups that have failed or are not ready yet.
    Capacity,
    /// Requests wait at some groups while others have room.
    Routing,
    /// The clients keep too few requests in flight.
    Client,
    /// The evidence is thin or mixed.
    Undecidable,
}

impl ClusterLimit {
    /// As in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gateway => "gateway",
            Self::Prefill => "prefill",
            Self::Transfer => "transfer",
            Self::Decode => "decode",
            Self::Serving => "serving",
            Self::Kv => "kv",
            Self::Capacity => "capacity",
            Self::Routing => "routing",
            Self::Client => "client",
            Self::Undecidable => "undecidable",
        }
    }
}

/// A verdict and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterDiagnosis {
    /// What limits.
    pub limit: ClusterLimit,
    /// The pool or link that it is about.
    pub whose: Option<String>,
    /// Why, in a sentence.
    pub because: String,
    /// What would help; null where nothing is known to.
    pub advice: Option<String>,
    /// Start of the judged time, in seconds.
    pub judged_from_s: f64,
    /// Its end.
    pub judged_to_s: f64,
    /// Requests sent in it whose way is known: served at their first try.
    pub followed: u64,
    /// Requests sent in it whose way is not: tried again, or not served.
    pub not_followed: u64,
    /// The figures that the verdict rests on.
    pub evidence: Vec<Evidence>,
    /// Each place on a request's way.
    pub places: Vec<PlaceFigures>,
    /// Little's law both ways: requests in each part of the cluster by their own times and by its gauges.
    pub little: Vec<BothWays>,
    /// Queues and seats of each pool.
    pub pools: Vec<PoolQueues>,
    /// Moving KV; null where none was moved.
    pub transfers: Option<TransferFigures>,
}

/// Requests in one part of a cluster, by two accounts that know nothing of each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BothWays {
    /// `gateway`, or the name of a pool.
    pub part: String,
    /// lambda: requests a second that came in the judged time, of those that are followed.
    pub rate_rps: f64,
    /// W: how long they were in it, on the average, in seconds.
    pub mean_s: Option<f64>,
    /// lambda * W. More than `in_it` where a backlog grew: what came is not yet what was there.
    pub by_law: Option<f64>,
    /// Requests in it, mean over the judged time, by requests' own times.
    pub in_it: f64,
    /// The same by its own gauges.
    pub by_gauges: Option<f64>,
    /// Both accounts agree, but for what gauges see late: arrivals until the next step. Null where requests were not
    /// followed, which only gauges count.
    pub agrees: Option<bool>,
}

/// All that a verdict is made of.
struct Facts<'a> {
    pub cluster: &'a ClusterRecord,
    pub options: &'a ClusterOptions,
    pub judged: (SimTime, SimTime),
    pub flow: flow::Flow,
    pub pools: Vec<PoolQueues>,
    pub transfers: Option<TransferFigures>,
    /// Share of the judged time in which requests wait at the gateway.
    pub gateway_queued: f64,
    pub rejected_share: f64,
    /// Requests sent in the judged time over those that the gateway sent on in it; 1 where it kept up.
    pub offered_over_let_in: f64,
    /// Requests in flight early and late, when they grew beyond chance.
    pub growth: Option<(f64, f64)>,
}

impl ClusterDiagnosis {
    /// Of a run whose other figures are known. `None` where steps were not kept, or what engines have room for is not
    /// known.
    pub fn of(
        run: &RunRecord,
        cluster: &ClusterRecord,
        options: &ClusterOptions,
        summary: &ClusterSummary,
    ) -> Option<Self> {
        let has_steps = run.replicas.iter().any(|r| !r.step_ends.is_empty());
        let is_known = cluster.pools.iter().all(|name| options.limits.contains_key(name));
        if !has_steps || !is_known {
            return None;
        }
        let client = ClientView::of_record(run);
        let judged = client.judged(&options.measured);
        let mut flow = flow::Flow::of(run, cluster, options, judged);
        let pools = gauges::pools(run, cluster, options, judged);
        let decode = pools.iter().find(|p| p.role == gauges::Role::Decode);
        let step = decode.and_then(|p| SimDuration::try_from_secs_f64(p.step_s?).ok());
        flow.find_decode_waits(run, cluster, step.unwrap_or_default());
        let transfers = links::TransferFigures::of(run, cluster, options, judged);
        let sent = run
            .requests
            .iter()
            .filter(|r| r.sent >= judged.0 && r.sent <= judged.1);
        let (mut offered, mut rejected) = (0_u64, 0_u64);
        for request in sent {
            offered += 1;
            rejected += u64::from(request.status == crate::record::Status::Rejected);
        }
        let inside = |t: &SimTime| judged.0 <= *t && *t <= judged.1;
        let let_in = cluster.jobs.iter().filter_map(|j| j.dispatched).filter(inside);
        let let_in = let_in.count();
        let facts = Facts {
            offered_over_let_in: (offered as f64 / let_in.max(1) as f64).max(1.0),
            gateway_queued: gauges::gateway_queued(cluster, judged),
            rejected_share: rejected as f64 / offered.max(1) as f64,
            growth: client.growth(judged).filter(|_| options.concurrency.is_none()),
            cluster,
            options,
            judged,
            flow,
            pools,
            transfers,
        };
        Some(facts.diagnosis(summary))
    }

    /// The verdict in one sentence.
    pub fn sentence(&self) -> String {
        let whose = self
            .whose
            .as_ref()
            .map_or_else(String::new, |w| format!(" ({w})"));
        let advice = self
            .advice
            .as_ref()
            .map_or_else(String::new, |a| format!("; {a}"));
        format!("{}{whose}: {}{advice}", self.limit.name(), self.because)
    }
}

impl Facts<'_> {
    fn diagnosis(self, summary: &ClusterSummary) -> ClusterDiagnosis {
        let found = self.judge();
        ClusterDiagnosis {
            limit: found.limit,
            whose: found.whose,
            because: found.because,
            advice: found.advice,
            judged_from_s: self.judged.0.as_secs_f64(),
            judged_to_s: self.judged.1.as_secs_f64(),
            followed: self.flow.followed,
            not_followed: self.flow.not_followed,
            evidence: self.evidence(summary),
            little: self.little(),
            places: self.flow.places(self.judged),
            transfers: self.transfers,
            pools: self.pools,
        }
    }

    /// Length of the judged time.
    fn seconds(&self) -> f64 {
        self.judged.1.since(self.judged.0).as_secs_f64()
    }

    fn little(&self) -> Vec<BothWays> {
        let (from, to) = self.judged;
        let gateway = super::curve::gateway_queue(self.cluster).mean(from, to);
        let mut all = vec![self.both_ways("gateway", &[Place::Gateway], gateway, 0.0)];
        for pool in &self.pools {
            let places: &[Place] = match pool.role {
                gauges::Role::Prefill => &[Place::Queue, Place::Prefill],
                gauges::Role::Decode => &[Place::Room, Place::Transfer, Place::Seat, Place::Decode],
                gauges::Role::Both => &[Place::Queue, Place::Prefill, Place::Decode],
            };
            let gauges = pool.running.zip(pool.waiting).map(|(r, w)| r + w);
            all.push(self.both_ways(&pool.pool, places, gauges, pool.step_s.unwrap_or(0.0)));
        }
        all
    }

    fn both_ways(&self, part: &str, places: &[Place], gauges: Option<f64>, step_s: f64) -> BothWays {
        let seconds = self.seconds();
        let sums = places.iter().map(|&p| self.flow.sum(p));
        let (came, spent_s, there_s) = sums.fold((0, 0.0, 0.0), |all: (u64, f64, f64), sum| {
            (all.0.max(sum.came), all.1 + sum.spent_s, all.2 + sum.there_s)
        });
        let rate_rps = if seconds > 0.0 { came as f64 / seconds } else { 0.0 };
        let in_it = if seconds > 0.0 { there_s / seconds } else { 0.0 };
        let mean_s = (came > 0).then(|| spent_s / came as f64);
        // An arrival is in no gauge until the next step starts; answers and requests are on their way for a while.
        let unseen = rate_rps * (step_s + self.flow.on_the_way_s);
        let near = |gauges: f64| (gauges - in_it).abs() <= AGREES_WITHIN * in_it.max(gauges) + unseen + 1.0;
        BothWays {
            part: part.to_owned(),
            rate_rps,
            mean_s,
            by_law: mean_s.map(|w| w * rate_rps),
            in_it,
            by_gauges: gauges,
            agrees: gauges.filter(|_| self.flow.not_followed == 0).map(near),
        }
    }
}

/// Both accounts of a number of requests may differ by this share, beside what one of them sees late.
const AGREES_WITHIN: f64 = 0.1;
