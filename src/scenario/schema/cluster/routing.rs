//! `cluster.router`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::quantity::{Finite, Span};

macro_rules! router_keys {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $key:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// How it chooses.
            pub policy: Option<RouterPolicy>,
            /// vllm-dp: API server processes that route, each with a snapshot of its own.
            pub clients: Option<u32>,
            /// scorers: what is scored, with weights.
            pub scorers: Option<Vec<ScorerRule>>,
            /// scorers: how one is taken by the sums.
            pub picker: Option<PickerWord>,
            /// kv-cost: weight of the blocks to prefill.
            pub overlap_weight: Option<Finite>,
            /// kv-cost: 0 takes the lowest cost; above, chance grows with it.
            pub temperature: Option<Finite>,
            /// kv-cost: tokens a block; left out, the engine's.
            pub block_size: Option<u32>,
            /// kv-cost: where the router knows from what is cached.
            pub index: Option<IndexRule>,
            /// session-affinity: no group gets more than this many times the mean load; left out, no bound.
            pub load_bound: Option<Finite>,
            /// session-affinity: points on the ring a group.
            pub virtual_nodes: Option<u32>,
            $($(#[$doc])* pub $key: $type,)*
        }
    };
}

router_keys! {
    /// The router.
    pub struct Router {
        /// Who gets a prefill; the keys are those of the router itself.
        pub prefill: Option<RouterRule>,
        /// Who gets a request among the data-parallel ranks of a group; left out, vLLM's balancer.
        pub balancer: Option<RouterRule>,
        /// How often routers read the engines' metrics; 0s: they see the present.
        pub metrics_interval: Option<Span>,
        /// When a prompt is prefilled by a prefill group.
        pub decider: Option<Decider>,
    }
}

router_keys! {
    /// How one router chooses.
    pub struct RouterRule {}
}

impl Router {
    /// How it chooses, apart.
    pub fn rule(&self) -> RouterRule {
        RouterRule {
            policy: self.policy,
            clients: self.clients,
            scorers: self.scorers.clone(),
            picker: self.picker,
            overlap_weight: self.overlap_weight,
            temperature: self.temperature,
            block_size: self.block_size,
            index: self.index.clone(),
            load_bound: self.load_bound,
            virtual_nodes: self.virtual_nodes,
        }
    }

    /// Takes over how it chooses.
    pub fn set_rule(&mut self, rule: RouterRule) {
        self.policy = rule.policy;
        self.clients = rule.clients;
        self.scorers = rule.scorers;
        self.picker = rule.picker;
        self.overlap_weight = rule.overlap_weight;
        self.temperature = rule.temperature;
        self.block_size = rule.block_size;
        self.index = rule.index;
        self.load_bound = rule.load_bound;
        self.virtual_nodes = rule.virtual_nodes;
    }
}

/// How a router chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RouterPolicy {
    /// One after the other.
    RoundRobin,
    /// Any, with equal chance.
    Random,
    /// The one with the fewest of the router's requests in flight.
    LeastOutstanding,
    /// Of two at random the one with fewer requests in flight.
    PowerOfTwo,
    /// vLLM's balancer between data-parallel ranks.
    VllmDp,
    /// Weighted sum of scores, as in llm-d.
    Scorers,
    /// Cost of the blocks to prefill and to decode, as in Dynamo.
    KvCost,
    /// Consistent hashing of the session.
    SessionAffinity,
}

/// A scorer and its weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScorerRule {
    /// What is scored.
    pub kind: ScorerWord,
    /// Its weight; left out, 1.
    pub weight: Option<Finite>,
    /// prefix: where the router knows from what is cached.
    pub index: Option<IndexRule>,
    /// active-request: highest score of a busy group.
    pub factor: Option<Finite>,
    /// active-request: up to how many requests in flight a group counts as idle.
    pub idle: Option<u32>,
}

/// What is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScorerWord {
    /// Few requests waiting.
    Queue,
    /// Few requests running.
    Running,
    /// Few KV blocks in use.
    KvUsage,
    /// Few requests waiting, on a scale of its own.
    LoadAware,
    /// Much of the prompt cached.
    Prefix,
    /// Few of the router's requests in flight.
    ActiveRequest,
    /// Few tokens in flight.
    TokenLoad,
    /// Served this session last.
    SessionAffinity,
    /// Long without a request of which nothing was cached.
    NoHitLru,
}

/// How one is taken by the sums of scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PickerWord {
    /// The highest.
    Max,
    /// At random, with chances as the sums.
    WeightedRandom,
}

/// Where a router knows from which prompts are cached where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IndexRule {
    /// Its own record, or the engines' events.
    pub kind: IndexWord,
    /// approximate: tokens a block; left out, the engine's.
    pub block_size: Option<u32>,
    /// approximate: blocks that it remembers of each group; left out, those that the engine has.
    pub capacity_blocks: Option<u32>,
    /// approximate: how long a block is remembered; left out, until there are too many.
    pub ttl: Option<Span>,
}

/// Kinds of indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IndexWord {
    /// The router's own record of what it sent where.
    Approximate,
    /// KV events of the engines.
    Precise,
}

/// When a prompt is prefilled by a prefill group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decider {
    /// Which rule.
    pub kind: DeciderWord,
    /// uncached, long-and-free: tokens that are not cached at the decode group.
    pub threshold: Option<u32>,
    /// long-and-free: prefills that wait, from which on a prompt stays with its decode group.
    pub queue_limit: Option<u32>,
}

/// Rules of conditional disaggregation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeciderWord {
    /// Every prompt.
    Always,
    /// llm-d: from threshold tokens on.
    Uncached,
    /// Dynamo: above threshold tokens, while fewer than queue_limit prefills wait.
    LongAndFree,
}
