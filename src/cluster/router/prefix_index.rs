//! Which prompts a router believes to be cached where (rules D21, D22, D30).
//!
//! The approximate index keeps, for each target, the blocks of the prompts that it sent there, the least recently used
//! out first. Blocks have no hashes here: block i of a group's shared prefix is (group, i), and the rest of a prompt is
//! its own and never found again, though it takes room. A block that straddles the end of the shared part is of the
//! rest.
//!
//! A request uses the blocks of its prompt in order, so the blocks of a group that were last used by one request are
//! neighbours in the LRU list: a [`Run`]. The list is a list of runs, and whatever is done to it costs by runs, not by
//! blocks. An LRU list of C blocks holds the C most recently used, so it does not matter that a request's blocks come
//! one by one: they are put in together, and the oldest over C thrown out after. As the first block of a run is its
//! oldest, what goes first is the beginning of a prefix, and a prefix without its beginning is not found: so it is in
//! a real index that walks the hashes of a prompt until the first miss.

use std::collections::{BTreeMap, VecDeque};

use super::policy::{Asked, Candidate, Index};
use crate::units::{SimDuration, SimTime};

/// An index over all targets.
#[derive(Debug)]
pub(super) enum PrefixIndex {
    Approximate(Approximate),
    Precise,
}

/// The router's own record of what it sent where.
#[derive(Debug)]
pub(super) struct Approximate {
    block_size: u32,
    capacity_blocks: u32,
    ttl: Option<SimDuration>,
    targets: BTreeMap<u32, Recent>,
}

/// Full blocks of a prompt.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    group: u32,
    shared: u32,
    total: u32,
}

impl PrefixIndex {
    pub(super) fn new(index: Index) -> Self {
        match index {
            Index::Approximate {
                block_size,
                capacity_blocks,
                ttl,
            } => Self::Approximate(Approximate {
                block_size: block_size.max(1),
                capacity_blocks,
                ttl,
                targets: BTreeMap::new(),
            }),
            Index::Precise => Self::Precise,
        }
    }

    /// Tokens of the prompt that are believed to be cached at `candidate`.
    pub(super) fn overlap_tokens(&mut self, now: SimTime, asked: &Asked, candidate: &Candidate) -> u32 {
        match self {
            Self::Precise => candidate.cached_tokens.min(asked.input_tokens),
            Self::Approximate(index) => index.matched(now, asked, candidate.target) * index.block_size,
        }
    }

    /// `overlap` of the prompt's tokens as matched blocks / total blocks (D21): full blocks by the index's own size, or
    /// plain tokens where KV events tell. A prompt without a full block matches nothing.
    pub(super) fn share(&self, asked: &Asked, overlap: u32) -> f64 {
        let whole = match self {
            Self::Precise => asked.input_tokens,
            Self::Approximate(index) => asked.input_tokens / index.block_size * index.block_size,
        };
        if whole == 0 {
            0.0
        } else {
            f64::from(overlap) / f64::from(whole)
        }
    }

    /// The request is sent to `target` (D22: the decision counts, not the execution).
    pub(super) fn sent(&mut self, now: SimTime, asked: &Asked, target: u32) {
        if let Self::Approximate(index) = self {
            let blocks = index.blocks(asked);
            let recent = index.targets.entry(target).or_default();
            recent.expire(now, index.ttl);
            recent.put(now, blocks);
            recent.shrink(u64::from(index.capacity_blocks));
        }
    }

    pub(super) fn forget(&mut self, target: u32) {
        if let Self::Approximate(index) = self {
            index.targets.remove(&target);
        }
    }
}

impl Approximate {
    fn blocks(&self, asked: &Asked) -> Blocks {
        let (group, shared_tokens) = asked.prefix.unwrap_or((0, 0));
        Blocks {
            group,
            shared: shared_tokens.min(asked.input_tokens) / self.block_size,
            total: asked.input_tokens / self.block_size,
        }
    }

    fn matched(&mut self, now: SimTime, asked: &Asked, target: u32) -> u32 {
        let blocks = self.blocks(asked);
        if blocks.shared == 0 {
            return 0;
        }
        self.targets.get_mut(&target).map_or(0, |recent| {
            recent.expire(now, self.ttl);
            recent.matched(blocks)
        })
    }
}

/// Blocks `start..end` of a group, or of a rest that nobody else has, all last used at `used`.
#[derive(Debug, Clone, Copy)]
struct Run {
    group: Option<u32>,
    start: u32,
    end: u32,
    used: SimTime,
}

/// The blocks of one target.
#[derive(Debug, Default)]
struct Recent {
    /// Runs by when they were put in: the first is the least recently used.
    runs: BTreeMap<u64, Run>,
    /// The runs of each group, oldest first. Their blocks then descend: of what a younger run has, an older one has
    /// only what lies beyond.
    chains: BTreeMap<u32, VecDeque<u64>>,
    blocks: u64,
    next: u64,
}

impl Recent {
    /// Blocks from the first on without a gap, as far as the prompt and the group go together.
    fn matched(&self, blocks: Blocks) -> u32 {
        let mut reached = 0;
        for run in self.chains.get(&blocks.group).into_iter().flatten().rev() {
            let run = &self.runs[run];
            if run.start > reached {
                break;
            }
            reached = run.end;
        }
        reached.min(blocks.shared)
    }

    fn put(&mut self, now: SimTime, blocks: Blocks) {
        if blocks.shared > 0 {
            self.take_from_older(blocks);
            let run = self.push(now, Some(blocks.group), blocks.shared);
            self.chains.entry(blocks.group).or_default().push_back(run);
        }
        if blocks.total > blocks.shared {
            self.push(now, None, blocks.total - blocks.shared);
        }
    }

    fn push(&mut self, used: SimTime, group: Option<u32>, end: u32) -> u64 {
        let number = self.next;
        self.next += 1;
        let run = Run {
            group,
            start: 0,
            end,
            used,
        };
        self.runs.insert(number, run);
        self.blocks += u64::from(end);
        number
    }

    /// The first `blocks.shared` blocks of the group are about to be used: older runs lose them.
    fn take_from_older(&mut self, blocks: Blocks) {
        let Some(chain) = self.chains.get_mut(&blocks.group) else {
            return;
        };
        while let Some(&youngest) = chain.back() {
            let Some(run) = self.runs.get_mut(&youngest) else {
                return;
            };
            if run.end > blocks.shared {
                let start = run.start.max(blocks.shared);
                self.blocks -= u64::from(start - run.start);
                run.start = start;
                return;
            }
            self.blocks -= u64::from(run.end - run.start);
            self.runs.remove(&youngest);
            chain.pop_back();
        }
    }

    /// Throws out the least recently used until at most `capacity` blocks are left.
    fn shrink(&mut self, capacity: u64) {
        while self.blocks > capacity {
            let Some(mut oldest) = self.runs.first_entry() else {
                return;
            };
            let run = oldest.get_mut();
            let length = u64::from(run.end - run.start);
            let excess = self.blocks - capacity;
            if excess < length {
                run.start += excess as u32;
                self.blocks = capacity;
                return;
            }
            self.drop_oldest();
        }
    }

    /// Throws out what was last used `ttl` ago or earlier.
    fn expire(&mut self, now: SimTime, ttl: Option<SimDuration>) {
        let Some(ttl) = ttl else { return };
        while let Some((_, run)) = self.runs.first_key_value() {
            if run.used + ttl > now {
                return;
            }
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some((_, run)) = self.runs.pop_first() else {
            return;
        };
        self.blocks -= u64::from(run.end - run.start);
        let Some(group) = run.group else { return };
        // The oldest run of all is the oldest of its group.
        if let Some(chain) = self.chains.get_mut(&group) {
            chain.pop_front();
            if chain.is_empty() {
                self.chains.remove(&group);
            }
        }
    }
}
