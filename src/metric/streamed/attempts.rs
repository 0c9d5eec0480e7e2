//! What has to be remembered of attempts that may be given up: their gaps and tokens are counted as they come, and taken
//! out again when nobody gets them.
//!
//! A request's chunks are kept as stretches of steps, and a replica's ends of steps as far back as somebody who is still
//! in the system has a stretch.

use std::collections::{BTreeMap, VecDeque};

use crate::units::SimTime;

/// Steps of a replica that follow each other and gave a request as many tokens each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub replica: u32,
    pub first_step: u64,
    pub steps: u64,
    /// Tokens of each step.
    pub tokens: u32,
    /// Output tokens before the first of them.
    pub before: u32,
    /// The gap before the first step, if the request had a chunk before it.
    pub first_gap: Option<Gap>,
}

/// A gap as it was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    pub nanoseconds: u64,
    /// It was counted with the others of its step.
    pub is_pooled: bool,
}

/// Stretches of one request, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Stretches(Vec<Stretch>);

impl Stretches {
    /// Adds a stretch; true when it is the first one of its replica.
    pub fn extend(&mut self, next: Stretch) -> bool {
        match self.0.last_mut() {
            Some(last) if last.is_followed_by(&next) => {
                last.steps += next.steps;
                false
            }
            last => {
                let is_new = last.is_none_or(|last| last.replica != next.replica);
                self.0.push(next);
                is_new
            }
        }
    }

    /// All of them.
    pub fn all(&self) -> &[Stretch] {
        &self.0
    }

    /// The first stretch at each replica in turn: replica and step.
    pub fn roots(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let mut last = None;
        self.0.iter().filter_map(move |s| {
            let is_new = last.replace(s.replica) != Some(s.replica);
            is_new.then_some((s.replica, s.first_step))
        })
    }
}

impl Stretch {
    fn is_followed_by(&self, next: &Self) -> bool {
        self.replica == next.replica
            && self.tokens == next.tokens
            && self.first_step + self.steps == next.first_step
            && self.is_pooled_within() == next.first_gap.is_none_or(|gap| gap.is_pooled)
    }

    /// Gaps after one token are counted by step, those after several are not where tokens delay each other. Where they do
    /// not, it makes no difference.
    const fn is_pooled_within(&self) -> bool {
        self.tokens == 1
    }
}

/// Ends of a replica's steps, as far back as they are needed.
#[derive(Debug, Clone, Default)]
pub(super) struct StepEnds {
    /// Number of the first one kept.
    first: u64,
    ends: VecDeque<SimTime>,
    /// Steps that requests in the system had their first tokens in, and how many.
    roots: BTreeMap<u64, u32>,
}

impl StepEnds {
    /// Steps have ended; those that nobody needs are forgotten.
    pub fn add(&mut self, ends: &[SimTime]) {
        let next = self.first + self.ends.len() as u64;
        let needed = self.roots.first_key_value().map_or(next, |(&step, _)| step);
        let over = needed.saturating_sub(self.first).min(self.ends.len() as u64);
        self.ends.drain(..over as usize);
        self.first += over;
        self.ends.extend(ends);
    }

    /// When a step ended, if that is still known.
    pub fn end(&self, step: u64) -> Option<SimTime> {
        let index = usize::try_from(step.checked_sub(self.first)?).ok()?;
        self.ends.get(index).copied()
    }

    /// From a step on, ends are needed.
    pub fn need(&mut self, step: u64) {
        *self.roots.entry(step).or_default() += 1;
    }

    /// By one request less.
    pub fn release(&mut self, step: u64) {
        if let Some(count) = self.roots.get_mut(&step) {
            *count -= 1;
            if *count == 0 {
                self.roots.remove(&step);
            }
        }
    }
}
