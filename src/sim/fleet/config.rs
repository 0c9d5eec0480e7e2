//! What a cluster is made of and how it is run, resolved and checked.

use crate::cluster::autoscale::ScalePolicy;
use crate::cluster::fault::Fault;
use crate::cluster::gateway::{FairPolicy, HedgePolicy, Limits, RetryPolicy, Timeouts};
use crate::cluster::lifecycle::RestartPlan;
use crate::cluster::link::LinkConfig;
use crate::cluster::push::PushFrom;
use crate::cluster::ratio::Ratio;
use crate::cluster::rollout::RolloutConfig;
use crate::cluster::router::{PrefillDecider, RouterPolicy};
use crate::cluster::topology::{Node, Placement, Topology};
use crate::engine::vllm::VllmConfig;
use crate::sim::{FrontEnd, HostTimes, LoadModel, Stall};
use crate::steptime::{CaptureSizes, GraphMode};
use crate::units::{SimDuration, SimTime};

/// A cluster, its load and what befalls it.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetConfig {
    /// Pools; either one of [`PoolRole::Unified`], or one each of the two others.
    pub pools: Vec<PoolConfig>,
    /// How requests are offered. Modelled clients ([`LoadModel::Clients`]) are not for clusters.
    pub load: LoadModel,
    /// The way between clients and engines.
    pub front_end: FrontEnd,
    /// Admission, queue, retries.
    pub gateway: GatewayConfig,
    /// Who is sent where.
    pub routing: Routing,
    /// How KV gets from prefill to decode groups.
    pub transfer: TransferConfig,
    /// Zones, nodes, and where the groups of all pools are, in the order of the pools. Groups that an autoscaler or a
    /// rollout adds stand on nodes of their own, which no stated fault names.
    pub topology: Topology,
    /// Links that transfers share beside the groups' own adapters.
    pub links: Vec<LinkConfig>,
    /// What goes wrong, by time.
    pub faults: Vec<Fault>,
    /// What is done about it.
    pub recovery: Recovery,
    /// Who rules the size of a pool, by the pool's number.
    pub scaling: Vec<(usize, ScalePolicy)>,
    /// Rollouts, by the pool's number.
    pub rollouts: Vec<(usize, PoolRollout)>,
    /// The run is cut off here.
    pub deadline: Option<SimTime>,
    /// A run in which nothing but control loops has happened for so long is over: what is open then is stranded.
    pub patience: SimDuration,
    /// Seed of routing, backoffs and canary draws.
    pub seed: u64,
    /// Number of the repeat.
    pub replication: u64,
}

/// What the groups of a pool do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolRole {
    /// Prefill and decode.
    Unified,
    /// Prefill (rule D3).
    Prefill,
    /// Decode (rule D6).
    Decode,
}

/// Equal replica groups.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolConfig {
    /// Its name.
    pub name: String,
    /// What its groups do.
    pub role: PoolRole,
    /// Groups at the start.
    pub groups: u32,
    /// The most groups there may ever be at a time.
    pub max_groups: u32,
    /// Data-parallel ranks of a group: engines of their own behind its balancer (rules S70, S74).
    pub dp_ranks: u32,
    /// Its ranks step together, as those of a mixture of experts with expert parallelism do: a step takes what the
    /// slowest rank's takes, and a rank without work computes a dummy batch (rules S70, S72). Else they are independent.
    pub lockstep: bool,
    /// Captured sizes and graph mode, by which ranks that step together agree how a step is launched (rule S72). Without
    /// them each one's step takes what it would take alone.
    pub graphs: Option<(CaptureSizes, GraphMode)>,
    /// Every rank's engine.
    pub engine: VllmConfig,
    /// Number of its step-time model among those of the run.
    pub step_time: usize,
    /// Host time around the steps.
    pub host: HostTimes,
    /// Machine stalls, if they are part of the scenario.
    pub stall: Option<Stall>,
    /// What a group goes through before it serves.
    pub start: RestartPlan,
    /// Bytes of one KV block, over all ranks of the group.
    pub block_bytes: u64,
    /// Descriptors of one block's transfer (rule D17: layers, times two where K and V lie apart).
    pub block_descriptors: u32,
    /// Bandwidth of a group's network adapters together, each way, bytes a second; `u64::MAX` is no limit.
    pub nic_bytes_per_s: u64,
}

/// The gateway in front of the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayConfig {
    /// Order of its queue.
    pub fairness: FairPolicy,
    /// What it lets in.
    pub limits: Limits,
    /// How long clients wait.
    pub timeouts: Timeouts,
    /// What it tries again.
    pub retry: RetryPolicy,
    /// What it sends twice.
    pub hedge: Option<HedgePolicy>,
    /// From a client's giving up to the engine's hearing of it.
    pub cancel_latency: SimDuration,
}

/// Who is sent where.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// To unified or decode groups.
    pub policy: RouterPolicy,
    /// To prefill groups.
    pub prefill: RouterPolicy,
    /// Among the data-parallel ranks of a group.
    pub balancer: RouterPolicy,
    /// How often routers read the engines' metrics (rule D22); zero: they see the present.
    pub metrics_interval: SimDuration,
    /// When a prompt is prefilled elsewhere (rules D23, D31).
    pub decider: PrefillDecider,
}

/// How KV gets from prefill to decode groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferConfig {
    /// Who moves it, and when.
    pub mode: TransferMode,
    /// To post one descriptor (rule D17).
    pub per_descriptor: SimDuration,
    /// To post a transfer at all.
    pub fixed: SimDuration,
    /// Links of [`FleetConfig::links`] that each transfer crosses beside both groups' adapters.
    pub fabric: Vec<u32>,
    /// From the end of a prefill to the proxy's hearing of it; with push, from a decode group's allocation of its blocks
    /// to the prefill group's hearing of them.
    pub response: SimDuration,
    /// Life of a prefill's blocks (rule D14).
    pub lease: SimDuration,
    /// How often a decode group renews it; each time it ends `renewal` later. Zero: never (before 0.22.1).
    pub heartbeat: SimDuration,
    /// See `heartbeat`.
    pub renewal: SimDuration,
    /// A transfer that fails ends its request; else the rest of the prompt is computed by the decode group (rule D13).
    pub failure_ends_request: bool,
    /// When its prefill group dies before it answers, a request is prefilled by a decode group (rule D15, llm-d).
    pub local_fallback: bool,
}

/// Who moves KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferMode {
    /// The decode group reads all of it when the prefill has ended and it has room (rule D4).
    Pull,
    /// The prefill group writes it layer by layer while it computes, once the decode group has told its blocks (rule
    /// D31). Both get the request at the same time.
    Push {
        /// Layers of the model that hold KV.
        layers: u32,
        /// Which steps write.
        from: PushFrom,
    },
}

/// What is done about a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// From a crash until its streams break and anybody knows.
    pub detection: SimDuration,
    /// From then on until routers have taken it out.
    pub route_removal: SimDuration,
    /// What becomes of requests under way.
    pub in_flight: Fate,
    /// Groups that crashed come back.
    pub restart: bool,
}

/// What becomes of a request whose group has crashed. Retries have to be allowed by [`RetryPolicy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It fails.
    Fail,
    /// It is sent again from its start.
    Retry,
    /// It is sent again with what it has got as part of its prompt, and goes on from there.
    Resume,
}

/// A new revision of a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolRollout {
    /// How the old one is replaced.
    pub config: RolloutConfig,
    /// Steps of the new one take so much of the old one's time.
    pub slowdown: Ratio,
}

impl FleetConfig {
    /// Pools under a load, with nothing special about them: round-robin routers that see the present, no limits, no
    /// timeouts, no retries, no faults, nodes of their own for all groups in one zone.
    pub fn plain(pools: Vec<PoolConfig>, load: LoadModel) -> Self {
        let groups: u32 = pools.iter().map(|p| p.groups).sum();
        Self {
            topology: one_node_a_group(groups),
            pools,
            load,
            front_end: FrontEnd::default(),
            gateway: GatewayConfig::default(),
            routing: Routing::default(),
            transfer: TransferConfig::default(),
            links: Vec::new(),
            faults: Vec::new(),
            recovery: Recovery::default(),
            scaling: Vec::new(),
            rollouts: Vec::new(),
            deadline: None,
            patience: SimDuration::from_millis(3_600_000),
            seed: 0,
            replication: 0,
        }
    }
}

impl PoolConfig {
    /// Groups of one rank each, with an engine and the run's first step-time model.
    pub fn plain(name: &str, role: PoolRole, groups: u32, engine: VllmConfig) -> Self {
        Self {
            name: name.to_owned(),
            role,
            groups,
            max_groups: groups,
            dp_ranks: 1,
            lockstep: false,
            graphs: None,
            engine,
            step_time: 0,
            host: HostTimes::default(),
            stall: None,
            start: RestartPlan::NOTHING,
            block_bytes: 1,
            block_descriptors: 1,
            nic_bytes_per_s: u64::MAX,
        }
    }
}

impl Default for GatewayConfig {
    /// Lets everything in, first come first served; no timeouts, retries or hedges.
    fn default() -> Self {
        Self {
            fairness: FairPolicy::Fcfs,
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            retry: RetryPolicy::default(),
            hedge: None,
            cancel_latency: SimDuration::ZERO,
        }
    }
}

impl Default for Routing {
    /// Each in turn; routers see the present.
    fn default() -> Self {
        Self {
            policy: RouterPolicy::RoundRobin,
            prefill: RouterPolicy::RoundRobin,
            balancer: RouterPolicy::VllmDp {
                clients: 1,
                before_0_28: false,
            },
            metrics_interval: SimDuration::ZERO,
            decider: PrefillDecider::Always,
        }
    }
}

impl Default for TransferConfig {
    /// Transfers that cost what their links cost; leases as of vLLM 0.22.1 (rule D14).
    fn default() -> Self {
        Self {
            mode: TransferMode::Pull,
            per_descriptor: SimDuration::ZERO,
            fixed: SimDuration::ZERO,
            fabric: Vec::new(),
            response: SimDuration::ZERO,
            lease: SimDuration::from_millis(30_000),
            heartbeat: SimDuration::from_millis(5_000),
            renewal: SimDuration::from_millis(20_000),
            failure_ends_request: true,
            local_fallback: false,
        }
    }
}

impl Default for Recovery {
    /// A crash is known at once, its requests fail, and its group comes back.
    fn default() -> Self {
        Self {
            detection: SimDuration::ZERO,
            route_removal: SimDuration::ZERO,
            in_flight: Fate::Fail,
            restart: true,
        }
    }
}

/// Nodes of their own for groups, in one zone.
fn one_node_a_group(groups: u32) -> Topology {
    Topology {
        zones: vec!["zone-0".to_owned()],
        nodes: (0..groups)
            .map(|n| Node {
                name: format!("node-{n}"),
                zone: 0,
            })
            .collect(),
        groups: (0..groups)
            .map(|g| Placement {
                name: format!("group-{g}"),
                ranks: vec![g],
            })
            .collect(),
    }
}
