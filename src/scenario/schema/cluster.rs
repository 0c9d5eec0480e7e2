//! `cluster`: pools of replica groups, routers, gateway, transfers of KV, links, recovery.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::System;
use crate::scenario::quantity::{Bandwidth, Finite, Size, Span};

mod control;
mod cost;
mod gateway;
mod routing;

pub use control::*;
pub use cost::*;
pub use gateway::*;
pub use routing::*;

/// Pools of replica groups, and what is in front of them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Groups of equal replicas: one unified pool, or a prefill and a decode pool.
    pub pools: Option<Vec<Pool>>,
    /// Who gets which request.
    #[serde(default)]
    pub router: Router,
    /// Admission, queue, retries.
    pub gateway: Option<Gateway>,
    /// How KV gets from prefill to decode groups.
    pub transfer: Option<Transfer>,
    /// Links that transfers share beside the groups' own adapters.
    pub links: Option<Vec<Link>>,
    /// What is done about a crash.
    pub recovery: Option<RecoveryRules>,
}

/// Equal replica groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Its name: faults, overrides and axes name it (cluster.pools.NAME.groups). Left out, its role.
    pub name: Option<String>,
    /// What they do.
    pub role: Role,
    /// How many groups at the start.
    pub groups: u32,
    /// The most groups at a time; left out, what its autoscaler or its rollout may reach.
    pub max_groups: Option<u32>,
    /// Data-parallel ranks of a group: engines of their own behind its balancer.
    pub dp: Option<u32>,
    /// These ranks step together, each step as long as the slowest one's (rules S70 to S73): so it is by default for a
    /// mixture of experts with expert parallelism. Ranks without work compute dummy batches.
    pub lockstep: Option<bool>,
    /// Keys of `system` that differ in this pool.
    pub system: Option<System>,
    /// How a group starts: after a crash, at a scale-out, in a rollout.
    pub start: Option<Start>,
    /// Bandwidth of a group's network adapters together, each way; left out, the instance's.
    pub nic: Option<Bandwidth>,
    /// Instance profile that the groups run on.
    pub instance: Option<String>,
    /// What its machines cost, in place of the price of the instance's profile.
    pub price: Option<PriceRule>,
    /// Clock and power cap of its accelerators; left out, the full clock and no cap.
    pub power: Option<PowerRule>,
    /// Where the groups stand.
    pub placement: Option<PlacementRule>,
    /// Who changes the number of groups.
    pub autoscale: Option<Autoscale>,
    /// A new revision that replaces the groups during the run.
    pub rollout: Option<RolloutRule>,
}

/// What a pool does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Prefill and decode.
    Unified,
    /// Prefill alone; needs a decode pool.
    Prefill,
    /// Decode alone; needs a prefill pool.
    Decode,
}

/// How long a group takes to start, by stage.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Until a node is there; not for a process that restarts on a node that lives.
    pub provision: Option<Span>,
    /// What a group reads in all; left out, the model's weights on all ranks.
    pub weights: Option<Size>,
    /// How fast a group reads its weights, over all ranks.
    pub weight_bandwidth: Option<Bandwidth>,
    /// Compilation.
    pub compile: Option<Span>,
    /// Capture of device graphs.
    pub capture: Option<Span>,
    /// From then on until the first request.
    pub warm: Option<Span>,
}

/// Where groups stand. Nodes are named POOL/node-0, POOL/node-1 and so on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlacementRule {
    /// Names of the zones that nodes, or groups of several nodes, are dealt out to in turn.
    pub zones: Option<Vec<String>>,
    /// Groups that share a node.
    pub groups_per_node: Option<u32>,
    /// Nodes that a group is spread over.
    pub nodes_per_group: Option<u32>,
}

/// How KV gets from prefill to decode groups.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// Who moves KV, and when.
    pub mode: Option<TransferWord>,
    /// Layers of the model that hold KV, for push where no model is named.
    pub layers: Option<u32>,
    /// To post one descriptor.
    pub per_descriptor: Option<Span>,
    /// To post a transfer at all.
    pub fixed: Option<Span>,
    /// Names of the links that each transfer crosses beside both groups' adapters.
    pub fabric: Option<Vec<String>>,
    /// From the end of a prefill to the proxy's hearing of it; with push, from the decode group's making room for a prompt
    /// to the prefill group's hearing of the blocks.
    pub response: Option<Span>,
    /// Life of a prefill's blocks that nobody has read.
    pub lease: Option<Span>,
    /// How often a decode group renews the lease; 0s: never.
    pub heartbeat: Option<Span>,
    /// Life of the blocks from each renewal on.
    pub renewal: Option<Span>,
    /// What becomes of a request whose transfer fails.
    pub on_failure: Option<OnFailure>,
    /// When its prefill group dies before it answers, a request is prefilled by a decode group.
    pub local_fallback: Option<bool>,
    /// Decode groups begin a transfer only where requests under way keep the blocks that they still need. Without it they
    /// may block each other for ever.
    pub reserve_for_loads: Option<bool>,
    /// Bytes of a KV block over all ranks of a group, where no model and accelerator are named.
    pub block: Option<Size>,
    /// Descriptors of a block's transfer, where no model and accelerator are named.
    pub block_descriptors: Option<u32>,
}

/// Who moves KV, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TransferWord {
    /// The decode group reads all of a prompt's KV when the prefill has ended (NIXL).
    Pull,
    /// The prefill group writes each layer of each chunk as it is computed.
    Push,
    /// The prefill group writes all of a prompt's KV layer by layer while it computes the last chunk (MoRIIO).
    PushLastChunk,
}

/// What becomes of a request whose transfer fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// It ends with an error.
    Fail,
    /// The decode group computes what did not arrive.
    Recompute,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// What all transfers on it share.
    pub bandwidth: Bandwidth,
    /// How long a byte is under way.
    pub latency: Option<Span>,
}

/// What is done about a crash.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoveryRules {
    /// From a crash until its streams break and anybody knows.
    pub detection: Option<Span>,
    /// From then on until routers have taken the group out.
    pub route_removal: Option<Span>,
    /// What becomes of requests under way.
    pub in_flight: Option<FateWord>,
    /// Groups that crashed come back.
    pub restart: Option<bool>,
}

/// What becomes of a request whose group has crashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FateWord {
    /// It fails.
    Fail,
    /// It is sent again from its start; cluster.gateway.retry says how often.
    Retry,
    /// It is sent again with what it has got as part of its prompt, and goes on from there.
    Resume,
}

/// One thing that goes wrong during the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultEvent {
    /// When, from the start of the run.
    pub at: Span,
    /// How long it lasts. Left out: a crash can be started again at once, all else lasts until the end of the run.
    #[serde(rename = "for")]
    pub lasts: Option<Span>,
    /// What happens.
    pub kind: FaultWord,
    /// The group, as POOL/NUMBER.
    pub group: Option<String>,
    /// The rank in the group; left out, 0.
    pub rank: Option<u32>,
    /// The node, as POOL/node-NUMBER.
    pub node: Option<String>,
    /// The zone, as cluster.pools.*.placement.zones names it.
    pub zone: Option<String>,
    /// The link, as cluster.links names it, or a group's adapter as "POOL/NUMBER out" or "POOL/NUMBER in".
    pub link: Option<String>,
    /// The revision of the deployment: 0, or 1 after a rollout.
    pub revision: Option<u32>,
    /// Of time where things get slow (1.5 takes half as long again), of bandwidth where a link gets thin.
    pub factor: Option<Finite>,
    /// How much older metrics get.
    pub age: Option<Span>,
    /// How long before a spot node goes this is told; left out, 2min.
    pub notice: Option<Span>,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FaultWord {
    /// One rank ends, and its whole group with it.
    RankCrash,
    /// A whole group ends; its nodes live.
    GroupCrash,
    /// A node is gone, and all groups with a rank on it.
    NodeLoss,
    /// A zone is gone, and all groups with a rank in it.
    ZoneLoss,
    /// One rank is slow, and its whole group waits for it.
    SlowRank,
    /// A link carries less.
    LinkDegradation,
    /// A link carries nothing.
    LinkDown,
    /// A group's prefix cache is empty at once.
    PrefixCacheFlush,
    /// Weights are read slowly by all groups that start.
    WeightStoreSlow,
    /// Routers and autoscalers see all metrics older than they would.
    StaleMetrics,
    /// A slower kernel than the one meant is used: by a group, or by a revision.
    KernelFallback,
    /// A node will be taken away.
    SpotNotice,
}

/// Faults drawn by the seed: how often parts of each kind fail. A kind that is left out never does.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultRates {
    /// One device, and its group with it (rank-crash).
    pub device: Option<FaultRate>,
    /// One node (node-loss).
    pub node: Option<FaultRate>,
    /// One zone (zone-loss).
    pub zone: Option<FaultRate>,
    /// One link of cluster.links (link-down).
    pub link: Option<FaultRate>,
    /// Faults happen before this; left out, before measure.deadline or, without one, the last arrival.
    pub until: Option<Span>,
}

/// How often a part fails, and for how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultRate {
    /// Mean hours from its repair to its next fault; left out, a published figure where there is one.
    pub mtbf_hours: Option<Finite>,
    /// How long a fault lasts.
    pub repair: Span,
}

/// Numbers by tenant: the name of a class of the workload, or a tenant's number in a trace.
pub type ByTenant<T> = BTreeMap<String, T>;
