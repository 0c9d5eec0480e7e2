//! What a router is asked, what it sees, and how it is configured.

use crate::units::SimDuration;

/// One candidate as the router sees it at this instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its stable number: not its place in a list, and never used again for another target.
    pub target: u32,
    /// Requests waiting in its engine, as last scraped.
    pub waiting: u32,
    /// Requests running in its engine, as last scraped.
    pub running: u32,
    /// Share of its KV blocks in use, as last scraped, 0 to 1.
    pub kv_usage: f64,
    /// Requests the router has sent there that have not ended: its own count, fresh.
    pub in_flight: u32,
    /// Tokens of these requests: its own count, fresh.
    pub in_flight_tokens: u64,
    /// Tokens still to prefill there, queued and in progress, without the request that is being routed: its own
    /// count, fresh.
    pub prefill_tokens: u64,
    /// Blocks of the requests that decode there: the router's own estimate.
    pub active_blocks: u32,
    /// Tokens of this prompt cached there by its KV events; 0 where [`super::Router::wants_cached_tokens`] says no.
    pub cached_tokens: u32,
}

/// The request that is being routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Tokens of its prompt.
    pub input_tokens: u32,
    /// The group that shares the beginning of its prompt, and how many tokens of it.
    pub prefix: Option<(u32, u32)>,
    /// Its session.
    pub session: Option<u32>,
    /// Its tenant. No policy looks at it yet.
    pub tenant: u32,
}

/// How a router chooses.
#[derive(Debug, Clone, PartialEq)]
pub enum RouterPolicy {
    /// Each in turn, in the order of their numbers. Who joins or leaves changes nobody else's turn.
    RoundRobin,
    /// Any, with equal chance.
    Random,
    /// The one with the fewest of the router's requests in flight.
    LeastOutstanding,
    /// Of two at random the one with fewer requests in flight (Mitzenmacher 2001).
    PowerOfTwo,
    /// vLLM's balancer between its data-parallel ranks (S74, D40).
    VllmDp {
        /// API server processes that route, each with a snapshot of its own; at least 1.
        clients: u32,
        /// The formula of vLLM 0.25.1 and before: 4 waiting + running.
        before_0_28: bool,
    },
    /// Weighted sum of scores, as in llm-d and the Gateway API inference extension (D20, D21).
    Scorers {
        /// Each scorer with its weight; a score is clamped to 0 to 1 before it is weighted.
        scorers: Vec<(Scorer, f64)>,
        /// How one is taken by the sums.
        picker: Picker,
    },
    /// Cost of the blocks to prefill and to decode, as in Dynamo (D30).
    KvCost {
        /// Weight of the blocks to prefill; Dynamo's default is 1.
        overlap_weight: f64,
        /// 0 takes the lowest cost; above, a softmax over costs scaled to 0 to 1. Dynamo's default is 0.
        temperature: f64,
        /// Tokens a block.
        block_size: u32,
        /// Where the router knows from what is cached.
        index: Index,
    },
    /// Consistent hashing of the session (D41). A request without a session goes to a random place of the ring.
    SessionAffinity {
        /// No target gets more than this many times the mean load (Mirrokni et al. 2018), e.g. 1.25; below 1 it is
        /// taken as 1. `None`: no load term.
        load_bound: Option<f64>,
        /// Points on the ring a target, at least 1. More points, more even shares.
        virtual_nodes: u32,
    },
}

/// What gives a candidate a score (D21). Higher is better.
#[derive(Debug, Clone, PartialEq)]
pub enum Scorer {
    /// (max - waiting)/(max - min) over the candidates; 1 for all where they are equal.
    Queue,
    /// The same of running requests.
    Running,
    /// 1 - share of KV blocks in use.
    KvUsage,
    /// 0.5 with nothing waiting, else 0.5 (1 - min(waiting, 128)/128).
    LoadAware,
    /// Blocks of the prompt that are cached there / blocks of the prompt.
    Prefix(Index),
    /// 1 for an idle one, else (max - c)/max times `factor`, c being the router's requests in flight there.
    ActiveRequest {
        /// Highest score of a busy one, 0 to 1. llm-d's default is 1.
        factor: f64,
        /// Up to how many requests in flight one counts as idle. llm-d's default is 0.
        idle: u32,
    },
    /// 1 - min(1, tokens in flight there / 4194304).
    TokenLoad,
    /// 1 for the one that served this session last, 0 for the others.
    SessionAffinity,
    /// A cold request (no [`Scorer::Prefix`] of this router finds a block of it anywhere): from 1 for the least
    /// recently used for cold requests down to 0 for the most recently used, in equal steps. A warm one: 0.5 for all.
    NoHitLru,
}

/// How one is taken by the sums of their scores (D20).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Picker {
    /// The highest; random among equals.
    Max,
    /// At random, with chances as the sums; all equal where no sum is above 0.
    WeightedRandom,
}

/// Where a router knows from which prompts are cached where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// Its own record of what it sent where, updated at the decision (D22).
    Approximate {
        /// Tokens a block of the index.
        block_size: u32,
        /// Blocks that it remembers of each target, least recently used out first.
        capacity_blocks: u32,
        /// How long a block is remembered after the last request with it. Dynamo: 120 s (D30).
        ttl: Option<SimDuration>,
    },
    /// KV events of the engines: [`Candidate::cached_tokens`].
    Precise,
}

impl RouterPolicy {
    /// Whether an index of this policy is precise.
    pub(super) fn wants_cached_tokens(&self) -> bool {
        match self {
            Self::Scorers { scorers, .. } => scorers
                .iter()
                .any(|(scorer, _)| matches!(scorer, Scorer::Prefix(Index::Precise))),
            Self::KvCost { index, .. } => *index == Index::Precise,
            _ => false,
        }
    }
}
