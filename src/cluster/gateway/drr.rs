//! Deficit round-robin: Shreedhar and Varghese, "Efficient Fair Queueing Using Deficit Round Robin" (1995).
//!
//! Tenants with something to send stand in a ring. On each visit a tenant's deficit grows by its quantum, and
//! it sends as long as its oldest request is within the deficit. What it does not use is kept for the next
//! visit, unless nothing of it waits.
//!
//! A request costs its input tokens, at least 1; output tokens are not known when it is sent. Where the
//! quanta are as long as the longest request (the paper's condition) one of the ring's first two is next.
//! Where they are shorter, the visits that would send nothing are computed rather than made, so one request
//! costs one pass over those who wait, however small the quantum.

use std::collections::BTreeMap;

use super::{GatewayError, MILLION};

#[derive(Debug, Clone, Copy)]
struct Member {
    place: u64,
    deficit: u128,
}

#[derive(Debug, Clone)]
pub(super) struct Drr {
    /// Quanta by tenant in millionths of a token, as are deficits; `other` is that of tenants beyond.
    quanta: Vec<u128>,
    other: u128,
    /// Who waits, in the order of their visits.
    ring: BTreeMap<u64, u32>,
    members: BTreeMap<u32, Member>,
    next_place: u64,
    /// Whether the first of the ring has had its quantum on this visit.
    visited: bool,
}

/// Who sends next, and the visits until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    /// Quanta that the tenant gets before it sends.
    visits: u128,
    /// How many of the ring are visited before it in the last lap.
    ahead: usize,
    pub tenant: u32,
}

impl Drr {
    pub fn new(quantum_tokens: u64, weights: &[f64]) -> Result<Self, GatewayError> {
        if quantum_tokens == 0 {
            return Err(GatewayError::Zero {
                what: "the quantum of deficit round-robin",
            });
        }
        let quantum = |weight| u128::from(quantum_tokens) * u128::from(weight);
        Ok(Self {
            quanta: super::queue::tenant_weights(weights)?
                .into_iter()
                .map(quantum)
                .collect(),
            other: quantum(MILLION),
            ring: BTreeMap::new(),
            members: BTreeMap::new(),
            next_place: 0,
            visited: false,
        })
    }

    fn quantum(&self, tenant: u32) -> u128 {
        self.quanta.get(tenant as usize).copied().unwrap_or(self.other)
    }

    /// What a request of so many input tokens takes from a deficit.
    fn cost(input_tokens: u32) -> u128 {
        u128::from(input_tokens.max(1)) * u128::from(MILLION)
    }

    fn deficit_of(&self, tenant: u32) -> u128 {
        self.members.get(&tenant).map_or(0, |member| member.deficit)
    }

    /// A tenant of whom nothing waited has a request now.
    pub fn enter(&mut self, tenant: u32) {
        self.members.insert(
            tenant,
            Member {
                place: self.next_place,
                deficit: 0,
            },
        );
        self.ring.insert(self.next_place, tenant);
        self.next_place += 1;
    }

    /// Nothing waits of a tenant any more: its deficit is lost.
    pub fn leave(&mut self, tenant: u32) {
        if self
            .ring
            .first_key_value()
            .is_some_and(|(_, &first)| first == tenant)
        {
            self.visited = false;
        }
        if let Some(member) = self.members.remove(&tenant) {
            self.ring.remove(&member.place);
        }
    }

    /// Who sends next, given the input tokens of each tenant's oldest request.
    pub fn next(&self, oldest: impl Fn(u32) -> u32) -> Option<Turn> {
        let mut best: Option<Turn> = None;
        for (place, &tenant) in self.ring.values().enumerate() {
            let lacking = Self::cost(oldest(tenant)).saturating_sub(self.deficit_of(tenant));
            let visits = lacking.div_ceil(self.quantum(tenant));
            // The first of the ring may send within the visit that it has; else its next visit comes after
            // all others'.
            let (visits, ahead) = match (place, self.visited) {
                (0, true) if visits == 0 => (0, 0),
                (0, true) => (visits, self.ring.len()),
                _ => (visits.max(1), place),
            };
            let turn = Turn {
                visits,
                ahead,
                tenant,
            };
            best = Some(best.map_or(turn, |best| best.min(turn)));
            if best.is_some_and(|best| best.visits == 0 || (best.visits == 1 && best.ahead < self.ring.len()))
            {
                break;
            }
        }
        best
    }

    /// Makes the visits of a turn and takes the request's cost from the tenant's deficit.
    pub fn serve(&mut self, turn: Turn, input_tokens: u32) {
        if turn.visits > 0 {
            self.visit(turn);
        }
        if let Some(member) = self.members.get_mut(&turn.tenant) {
            member.deficit = member.deficit.saturating_sub(Self::cost(input_tokens));
        }
    }

    fn visit(&mut self, turn: Turn) {
        let lap_before = turn.visits - 1;
        let all = self.ring.len();
        let reached = if lap_before > 0 {
            all
        } else {
            all.min(turn.ahead + 1)
        };
        let ring: Vec<u32> = self.ring.values().copied().take(reached).collect();
        for (place, &tenant) in ring.iter().enumerate() {
            // The first one's visit under way is over; its next is the last of the lap.
            let last = place == 0 && self.visited;
            let visits = match tenant == turn.tenant {
                true => turn.visits,
                false if place < turn.ahead && !last => turn.visits,
                false => lap_before,
            };
            let quantum = self.quantum(tenant);
            if let Some(member) = self.members.get_mut(&tenant) {
                member.deficit += quantum * visits;
            }
        }
        let moved = if turn.ahead == all { 0 } else { turn.ahead };
        for &tenant in &ring[..moved] {
            self.move_back(tenant);
        }
        self.visited = true;
    }

    fn move_back(&mut self, tenant: u32) {
        if let Some(member) = self.members.get_mut(&tenant) {
            self.ring.remove(&member.place);
            member.place = self.next_place;
            self.ring.insert(self.next_place, tenant);
            self.next_place += 1;
        }
    }

    /// A tenant's deficit in tokens.
    pub fn deficit(&self, tenant: u32) -> f64 {
        self.deficit_of(tenant) as f64 / MILLION as f64
    }
}
