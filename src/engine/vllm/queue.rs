//! The waiting queue (rule S20).

use std::collections::{BTreeSet, VecDeque};

use super::config::Policy;
use crate::engine::RequestId;
use crate::units::SimTime;

/// A waiting request's place under the priority policy: (priority, arrival, id), smaller first.
pub(super) type Rank = (i32, SimTime, RequestId);

/// Waiting requests by their slots.
#[derive(Debug)]
pub(super) enum WaitingQueue {
    Fcfs(VecDeque<u32>),
    Priority(BTreeSet<(Rank, u32)>),
}

impl WaitingQueue {
    pub fn new(policy: Policy) -> Self {
        match policy {
            Policy::Fcfs => Self::Fcfs(VecDeque::new()),
            Policy::Priority => Self::Priority(BTreeSet::new()),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Fcfs(q) => q.len(),
            Self::Priority(q) => q.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A new request.
    pub fn push(&mut self, slot: u32, rank: Rank) {
        match self {
            Self::Fcfs(q) => q.push_back(slot),
            Self::Priority(q) => {
                q.insert((rank, slot));
            }
        }
    }

    /// A preempted request: the head, or its place by priority (rule S32).
    pub fn push_preempted(&mut self, slot: u32, rank: Rank) {
        match self {
            Self::Fcfs(q) => q.push_front(slot),
            Self::Priority(q) => {
                q.insert((rank, slot));
            }
        }
    }

    /// The request at a place, 0 = head.
    pub fn get(&self, place: usize) -> Option<u32> {
        match self {
            Self::Fcfs(q) => q.get(place).copied(),
            Self::Priority(q) => q.iter().nth(place).map(|&(_, slot)| slot),
        }
    }

    /// Takes out the request at a place.
    pub fn remove(&mut self, place: usize) {
        match self {
            Self::Fcfs(q) => {
                q.remove(place);
            }
            Self::Priority(q) => {
                if let Some(&entry) = q.iter().nth(place) {
                    q.remove(&entry);
                }
            }
        }
    }

    /// Turns round the order of the first `count` requests (rule S24 as vLLM up to 0.11 has it: each skipped
    /// request is put in front of those skipped before it). A heap keeps its order.
    pub fn reverse_head(&mut self, count: usize) {
        if let Self::Fcfs(q) = self {
            q.make_contiguous()[..count].reverse();
        }
    }

    /// Takes out a request wherever it stands.
    pub fn remove_slot(&mut self, slot: u32) {
        match self {
            Self::Fcfs(q) => q.retain(|&s| s != slot),
            Self::Priority(q) => q.retain(|&(_, s)| s != slot),
        }
    }

    /// Slots in queue order.
    pub fn iter(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            Self::Fcfs(q) => Box::new(q.iter().copied()),
            Self::Priority(q) => Box::new(q.iter().map(|&(_, slot)| slot)),
        }
    }
}
