//! Routers: which target a request is sent to (rules S74, D20-D23, D30-D32, D40-D42).
//!
//! A [`Router`] is told what it may choose from as a list of [`Candidate`]s and answers with an index into that list.
//! It knows no clock, no engine and no queue of events: the caller makes the scraped figures of a candidate
//! (`waiting`, `running`, `kv_usage`) as old as the metrics of the modelled router are, and the router's own counts
//! (`in_flight`, `in_flight_tokens`, `prefill_tokens`, `active_blocks`) as fresh as they are. That difference is what
//! herding comes from: all requests between two scrapes see the same scores (D22), and least-loaded on stale figures
//! does worse than round-robin for bursts shorter than the time between them (D42).
//!
//! # Order, ties, chance
//!
//! 1. Candidates are looked at in ascending order of `target`, whatever their order in the list, so a choice depends
//!    on who is in the list and not on where.
//! 2. Ties go to the lowest target, but for three policies: [`Picker::Max`] is random among equals (D20),
//!    [`RouterPolicy::VllmDp`] takes the first that it scans (S74), and a hash ring knows no ties.
//! 3. Policies with chance take a fixed number of draws a call, used or not, even from an empty list: one, and two for
//!    [`RouterPolicy::PowerOfTwo`]. The n-th call so sees the same draw whatever the calls before it chose from.
//!
//! # Which rule is where
//!
//! | rule | where |
//! | --- | --- |
//! | S74, D40 vLLM's balancer between data-parallel ranks | `vllm_dp`; external balancing is any other policy over the ranks |
//! | D20, D21 weighted scorers, pickers | `scorers` |
//! | D22 approximate prefix index | `prefix_index` |
//! | D23, D31 is a prefill elsewhere worth it | `decider` |
//! | D30 cost of prefill and decode blocks | `kv_cost` |
//! | D32 random, round-robin, kv | [`RouterPolicy::Random`], [`RouterPolicy::RoundRobin`], [`RouterPolicy::KvCost`] |
//! | D41 consistent hashing, bounded loads | `ring` |
//!
//! Not modelled: router replicas that share their state approximately (D32; give each replica a [`Router`] of its own
//! and they share nothing), and of D21 the context-length and latency-predictor scorers.

mod decider;
mod draw;
mod kv_cost;
mod policy;
mod prefix_index;
mod ring;
mod scorers;
mod view;
mod vllm_dp;

#[cfg(test)]
mod index_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod ring_tests;
#[cfg(test)]
mod scorer_tests;
#[cfg(test)]
mod tests;

use rand_pcg::Pcg64;

pub use decider::PrefillDecider;
pub use policy::{Asked, Candidate, Index, Picker, RouterPolicy, Scorer};

use crate::units::SimTime;
use draw::Draws;
use kv_cost::KvCost;
use ring::Ring;
use scorers::Scored;
use view::View;
use vllm_dp::VllmDp;

/// Which target a request is sent to. See the page of this module for the order of ties and draws.
#[derive(Debug)]
pub struct Router {
    chooser: Chooser,
    draws: Draws,
    order: Vec<usize>,
    wants_cached_tokens: bool,
    believed_cached: u32,
}

/// A policy and what it remembers.
#[derive(Debug)]
enum Chooser {
    RoundRobin { last: Option<u32> },
    Random,
    LeastOutstanding,
    PowerOfTwo,
    VllmDp(VllmDp),
    Scored(Scored),
    KvCost(KvCost),
    Ring(Ring),
}

impl Router {
    /// A router that has seen nothing yet. `rng` is the stream of its draws; a policy without chance takes none.
    pub fn new(policy: RouterPolicy, rng: Pcg64) -> Self {
        let wants_cached_tokens = policy.wants_cached_tokens();
        let chooser = match policy {
            RouterPolicy::RoundRobin => Chooser::RoundRobin { last: None },
            RouterPolicy::Random => Chooser::Random,
            RouterPolicy::LeastOutstanding => Chooser::LeastOutstanding,
            RouterPolicy::PowerOfTwo => Chooser::PowerOfTwo,
            RouterPolicy::VllmDp { clients, before_0_28 } => {
                Chooser::VllmDp(VllmDp::all_clients(clients, before_0_28))
            }
            RouterPolicy::Scorers { scorers, picker } => Chooser::Scored(Scored::new(scorers, picker)),
            RouterPolicy::KvCost {
                overlap_weight,
                temperature,
                block_size,
                index,
            } => Chooser::KvCost(KvCost::new(overlap_weight, temperature, block_size, index)),
            RouterPolicy::SessionAffinity {
                load_bound,
                virtual_nodes,
            } => Chooser::Ring(Ring::new(load_bound, virtual_nodes)),
        };
        Self {
            chooser,
            draws: Draws::new(rng),
            order: Vec::new(),
            wants_cached_tokens,
            believed_cached: 0,
        }
    }

    /// Client number `client` alone of the `clients` of a [`RouterPolicy::VllmDp`] (rule S74): its scan always starts
    /// at its own offset, and the `in_flight` of a candidate counts this client's requests only. Of any other policy
    /// it is the same as [`Router::new`].
    ///
    /// `Router::new` plays all clients of one front end, which take the requests in turn; `in_flight` is then what
    /// all of them have under way.
    pub fn one_client(policy: RouterPolicy, client: u32, rng: Pcg64) -> Self {
        let alone = match policy {
            RouterPolicy::VllmDp { clients, before_0_28 } => {
                Some(VllmDp::one_client(clients, client, before_0_28))
            }
            _ => None,
        };
        let mut router = Self::new(policy, rng);
        if let Some(alone) = alone {
            router.chooser = Chooser::VllmDp(alone);
        }
        router
    }

    /// Whether [`Candidate::cached_tokens`] must be told. Otherwise it may stay 0.
    pub fn wants_cached_tokens(&self) -> bool {
        self.wants_cached_tokens
    }

    /// Whether the scraped figures of candidates count: [`Candidate::waiting`], `running` and `kv_usage`.
    pub fn reads_metrics(&self) -> bool {
        matches!(self.chooser, Chooser::VllmDp(_) | Chooser::Scored(_))
    }

    /// The index in `candidates` of the one that gets the request; `None` if and only if the list is empty.
    ///
    /// The router takes it that the request is sent there: indexes of prefixes, sessions and local counts are updated
    /// now, at the decision (D22). No two candidates may have the same target.
    pub fn choose(&mut self, now: SimTime, asked: &Asked, candidates: &[Candidate]) -> Option<usize> {
        let view = View::new(candidates, &mut self.order);
        let draws = &mut self.draws;
        let mut believed = None;
        let rank = match &mut self.chooser {
            Chooser::RoundRobin { last } => round_robin(last, &view),
            Chooser::Random => draws.next().index(view.len()),
            Chooser::LeastOutstanding => view.lowest(|candidate| f64::from(candidate.in_flight)),
            Chooser::PowerOfTwo => power_of_two(draws, &view),
            Chooser::VllmDp(balancer) => balancer.choose(&view),
            Chooser::Scored(scored) => scored.choose(now, asked, &view, draws.next(), &mut believed),
            Chooser::KvCost(cost) => cost.choose(now, asked, &view, draws.next(), &mut believed),
            Chooser::Ring(ring) => ring.choose(asked, &view, draws.next()),
        };
        let chosen = rank.map(|rank| view.index(rank));
        let told = chosen.map_or(0, |index| candidates[index].cached_tokens);
        self.believed_cached = believed.unwrap_or(told).min(asked.input_tokens);
        chosen
    }

    /// Tokens of the prompt that the router believed cached at the target of its last choice, as of just before that
    /// choice: what a [`PrefillDecider`] asks about (D23). Policies without a prefix index say what the candidate's
    /// `cached_tokens` said.
    pub fn believed_cached(&self) -> u32 {
        self.believed_cached
    }

    /// A new snapshot of the scraped figures has arrived: what vLLM's balancer had added to the last one is forgotten
    /// (S74). Other policies add nothing.
    pub fn snapshot(&mut self) {
        if let Chooser::VllmDp(balancer) = &mut self.chooser {
            balancer.snapshot();
        }
    }

    /// `target` is gone, or has lost its cache: the router forgets what it believed to be there. A session that was
    /// last served there still names it, as the token is the client's and not the router's (D21).
    pub fn left(&mut self, target: u32) {
        match &mut self.chooser {
            Chooser::VllmDp(balancer) => balancer.left(target),
            Chooser::Scored(scored) => scored.left(target),
            Chooser::KvCost(cost) => cost.left(target),
            Chooser::Ring(ring) => ring.left(target),
            Chooser::RoundRobin { .. } | Chooser::Random => {}
            Chooser::LeastOutstanding | Chooser::PowerOfTwo => {}
        }
    }
}

/// The lowest target above the last one, else the lowest: an exact cycle through the numbers of whoever is there.
fn round_robin(last: &mut Option<u32>, view: &View<'_>) -> Option<usize> {
    if view.len() == 0 {
        return None;
    }
    let after = last.map_or(0, |last| view.rank_from(last.saturating_add(1)));
    let wrapped = *last == Some(u32::MAX) || after == view.len();
    let rank = if wrapped { 0 } else { after };
    *last = Some(view.at(rank).target);
    Some(rank)
}

/// Two different candidates at random, and of them the one with fewer requests in flight.
fn power_of_two(draws: &mut Draws, view: &View<'_>) -> Option<usize> {
    let (first, second) = (draws.next(), draws.next());
    let one = first.index(view.len())?;
    let Some(other) = second.index(view.len() - 1) else {
        return Some(one);
    };
    let other = if other >= one { other + 1 } else { other };
    let load = |rank: usize| (view.at(rank).in_flight, rank);
    Some(if load(one) <= load(other) { one } else { other })
}
