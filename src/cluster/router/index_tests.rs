//! The approximate prefix index: by hand, and against a plain LRU list of blocks.

use proptest::prelude::*;

use super::prefix_index::PrefixIndex;
use super::tests::{idle, shares};
use super::*;
use crate::units::SimDuration;

fn index(capacity_blocks: u32, ttl: Option<u64>) -> PrefixIndex {
    PrefixIndex::new(Index::Approximate {
        block_size: 10,
        capacity_blocks,
        ttl: ttl.map(SimDuration),
    })
}

#[test]
fn the_least_recently_used_goes_first_and_takes_the_beginning_of_its_prefix() {
    let mut index = index(6, None);
    let matched = |index: &mut PrefixIndex, group| {
        index.overlap_tokens(SimTime::ZERO, &shares(group, 100, 100), &idle(0)) / 10
    };
    index.sent(SimTime::ZERO, &shares(1, 40, 45), 0);
    assert_eq!((matched(&mut index, 1), matched(&mut index, 2)), (4, 0));
    // Only the first two are used again, and then comes another group of 3 with a rest of 1: 4 + 4 is 2 too many. The
    // oldest are blocks 2 and 3 of the first group.
    index.sent(SimTime::ZERO, &shares(1, 20, 20), 0);
    index.sent(SimTime::ZERO, &shares(2, 30, 40), 0);
    assert_eq!((matched(&mut index, 1), matched(&mut index, 2)), (2, 3));
    // One block more: it takes block 0 of the first group, and what is left of that is not found.
    index.sent(SimTime::ZERO, &shares(3, 10, 10), 0);
    assert_eq!((matched(&mut index, 1), matched(&mut index, 2)), (0, 3));
    index.forget(0);
    assert_eq!(matched(&mut index, 2), 0);
}

#[test]
fn a_prompt_longer_than_the_index_keeps_only_its_end() {
    let mut index = index(3, None);
    index.sent(SimTime::ZERO, &shares(1, 40, 40), 0);
    assert_eq!(
        index.overlap_tokens(SimTime::ZERO, &shares(1, 40, 40), &idle(0)),
        0
    );
    assert_eq!(
        index.overlap_tokens(SimTime::ZERO, &shares(1, 40, 40), &idle(1)),
        0
    );
}

#[test]
fn a_share_is_of_full_blocks() {
    let index = index(9, None);
    assert!((index.share(&shares(1, 40, 45), 20) - 0.5).abs() < 1e-12);
    assert!(index.share(&shares(1, 9, 9), 0).abs() < 1e-12);
    assert!((PrefixIndex::Precise.share(&shares(1, 40, 45), 9) - 0.2).abs() < 1e-12);
    assert!(PrefixIndex::Precise.share(&shares(1, 0, 0), 0).abs() < 1e-12);
}

/// Blocks one by one: the last is the most recently used.
#[derive(Default)]
struct Plain {
    blocks: Vec<((u32, u32), u64)>,
    capacity: usize,
    ttl: Option<u64>,
    rests: u32,
}

impl Plain {
    fn sent(&mut self, now: u64, group: u32, shared: u32, total: u32) {
        self.expire(now);
        self.rests += 1;
        let rest = (1000 + self.rests, total);
        for block in (0..shared)
            .map(|i| (group, i))
            .chain((shared..total).map(|i| (rest.0, i)))
        {
            self.blocks.retain(|(other, _)| *other != block);
            self.blocks.push((block, now));
            if self.blocks.len() > self.capacity {
                self.blocks.remove(0);
            }
        }
    }

    fn expire(&mut self, now: u64) {
        if let Some(ttl) = self.ttl {
            self.blocks.retain(|(_, used)| used + ttl > now);
        }
    }

    fn matched(&mut self, now: u64, group: u32, shared: u32) -> u32 {
        self.expire(now);
        let held = |i: &u32| self.blocks.iter().any(|(block, _)| *block == (group, *i));
        (0..shared).take_while(held).count() as u32
    }
}

proptest! {
    #[test]
    fn runs_are_an_lru_list_of_blocks(
        requests in prop::collection::vec((0_u32..4, 0_u32..9, 0_u32..5, 0_u64..4), 1..120),
        capacity in 0_u32..25,
        ttl in prop::option::of(1_u64..20),
    ) {
        let mut index = index(capacity, ttl);
        let mut plain = Plain { capacity: capacity as usize, ttl, ..Plain::default() };
        let mut now = 0;
        for (group, shared, rest, wait) in requests {
            now += wait;
            for group in 0..4 {
                let asked = shares(group, 80, 80);
                let found = index.overlap_tokens(SimTime(now), &asked, &idle(0)) / 10;
                prop_assert_eq!(found, plain.matched(now, group, 8));
            }
            // Five tokens that fill no block, in the shared part or after it.
            let asked = shares(group, shared * 10 + 5, (shared + rest) * 10 + 5);
            index.sent(SimTime(now), &asked, 0);
            plain.sent(now, group, shared, shared + rest);
        }
    }
}
