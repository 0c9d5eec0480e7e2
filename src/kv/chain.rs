//! The cached blocks of each stream in the order of their numbers, so that a block is found, entered and removed by its
//! place in an array; only the chain of a stream is looked up in a map.

use std::collections::HashMap;

use super::prefix::BlockId;
use super::stream::StreamId;

/// No block, no chain.
pub(super) const NONE: u32 = u32::MAX;

/// Arrays of up to so many entries are kept as they are, for the chain or for others.
const SMALL: usize = 256;
/// Most arrays kept for others.
const MOST_SPARE: usize = 64;

/// Index of a chain in [`Chains`]; another chain may take its place once nothing of it is cached.
pub(super) type ChainSlot = u32;

/// The cached blocks of one stream.
#[derive(Debug)]
struct Chain {
    stream: StreamId,
    /// Block number of the first entry.
    base: u32,
    /// Entries that hold a block.
    cached: u32,
    /// By block number from `base` on the block registered first, or [`NONE`]. The last entry holds a block.
    heads: Vec<BlockId>,
}

/// The chains of all streams of which something is cached. They go with their last block, so that they take memory for
/// what is cached, however many requests there were.
#[derive(Debug, Default)]
pub(super) struct Chains {
    slots: Vec<Option<Chain>>,
    vacant: Vec<ChainSlot>,
    /// Arrays of chains that are gone, for new ones: requests come and go all the time.
    spare: Vec<Vec<BlockId>>,
    by_stream: HashMap<StreamId, ChainSlot>,
}

impl Chains {
    /// The chain of a stream; [`NONE`] if nothing of it is cached.
    pub fn find(&self, stream: StreamId) -> ChainSlot {
        self.by_stream.get(&stream).copied().unwrap_or(NONE)
    }

    /// The chain of a stream, made anew if there is none; `known` is where it was last seen.
    pub fn find_or_add(&mut self, known: ChainSlot, stream: StreamId, base: u32) -> ChainSlot {
        if self.get(known).is_some_and(|c| c.stream == stream) {
            return known;
        }
        if let Some(&slot) = self.by_stream.get(&stream) {
            return slot;
        }
        let chain = Some(Chain {
            stream,
            base,
            cached: 0,
            heads: self.spare.pop().unwrap_or_default(),
        });
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot as usize] = chain;
                slot
            }
            None => {
                self.slots.push(chain);
                self.slots.len() as ChainSlot - 1
            }
        };
        self.by_stream.insert(stream, slot);
        slot
    }

    fn get(&self, slot: ChainSlot) -> Option<&Chain> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// The cached blocks from number `from` on without a gap, at most up to before `to`.
    pub fn run(&self, slot: ChainSlot, from: u32, to: u32) -> &[BlockId] {
        let Some(chain) = self.get(slot) else { return &[] };
        let Some(start) = from.checked_sub(chain.base) else {
            return &[];
        };
        let most = to.saturating_sub(from) as usize;
        let heads = chain.heads.get(start as usize..).unwrap_or_default();
        let heads = &heads[..most.min(heads.len())];
        let gap = heads.iter().position(|h| *h == NONE);
        &heads[..gap.unwrap_or(heads.len())]
    }

    /// Enters blocks behind the last one if `number` is the next; false where it is not. The slot is that of a chain.
    pub fn append(&mut self, slot: ChainSlot, number: u32, blocks: &[BlockId]) -> bool {
        let Some(chain) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return false;
        };
        let next = chain.base as usize + chain.heads.len();
        if number as usize != next {
            return false;
        }
        chain.heads.extend_from_slice(blocks);
        chain.cached += blocks.len() as u32;
        true
    }

    /// Enters a block where none is, or returns the one that is there and stays. The slot is that of a chain.
    pub fn enter(&mut self, slot: ChainSlot, number: u32, block: BlockId) -> Option<BlockId> {
        let chain = self.slots.get_mut(slot as usize)?.as_mut()?;
        if number < chain.base {
            let before = (chain.base - number) as usize;
            chain.heads.splice(0..0, std::iter::repeat_n(NONE, before));
            chain.base = number;
        }
        let place = (number - chain.base) as usize;
        if place >= chain.heads.len() {
            chain.heads.resize(place + 1, NONE);
        }
        let head = &mut chain.heads[place];
        if *head != NONE {
            return Some(*head);
        }
        *head = block;
        chain.cached += 1;
        None
    }

    /// Puts `next` in the place of `block` if that is the one that is found; [`NONE`] leaves the place empty. The chain
    /// goes with its last block.
    pub fn replace(&mut self, slot: ChainSlot, number: u32, block: BlockId, next: BlockId) {
        let Some(chain) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let place = number.wrapping_sub(chain.base) as usize;
        let Some(head) = chain.heads.get_mut(place).filter(|h| **h == block) else {
            return;
        };
        *head = next;
        if next != NONE {
            return;
        }
        chain.cached -= 1;
        if chain.cached == 0 {
            self.by_stream.remove(&chain.stream);
            let mut heads = std::mem::take(&mut chain.heads);
            self.slots[slot as usize] = None;
            self.vacant.push(slot);
            if self.spare.len() < MOST_SPARE && heads.capacity() <= SMALL {
                heads.clear();
                self.spare.push(heads);
            }
            return;
        }
        if place + 1 < chain.heads.len() {
            return;
        }
        while chain.heads.last() == Some(&NONE) {
            chain.heads.pop();
        }
        // A part stays spare, so that a chain that wavers does not allocate each time.
        let room = chain.heads.capacity();
        if room > SMALL && chain.heads.len() < room / 4 {
            chain.heads.shrink_to(room / 2);
        }
    }

    /// Chains, places for chains, and entries that they have room for.
    #[cfg(test)]
    pub fn size(&self) -> (usize, usize, usize) {
        let heads = self.slots.iter().flatten().map(|c| &c.heads);
        let room = heads.chain(&self.spare).map(Vec::capacity);
        (self.by_stream.len(), self.slots.len(), room.sum())
    }

    /// What a chain's slot stands for.
    #[cfg(test)]
    pub fn stream(&self, slot: ChainSlot) -> Option<StreamId> {
        self.get(slot).map(|c| c.stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::TokenStream;

    #[test]
    fn room_goes_with_the_blocks_that_are_evicted() {
        let mut chains = Chains::default();
        let stream = TokenStream::new(0, 1, None).tail();
        let slot = chains.find_or_add(NONE, stream, 0);
        let blocks: Vec<BlockId> = (100..1100).collect();
        assert!(chains.append(slot, 0, &blocks));
        assert!(!chains.append(slot, 0, &blocks), "its blocks are there already");
        for number in (10..1000).rev() {
            chains.replace(slot, number, 100 + number, NONE);
        }
        assert_eq!(chains.run(slot, 2, 999), &blocks[2..10]);
        assert!(chains.size().2 <= SMALL, "{}", chains.size().2);
        for number in 0..10 {
            chains.replace(slot, number, 100 + number, NONE);
        }
        assert_eq!(chains.find(stream), NONE);
        let (chains, places, entries) = chains.size();
        assert_eq!((chains, places), (0, 1));
        assert!(entries <= SMALL);
    }

    #[test]
    fn a_run_ends_at_a_gap_and_a_chain_may_begin_earlier_than_it_did() {
        let mut chains = Chains::default();
        let slot = chains.find_or_add(NONE, TokenStream::new(0, 1, None).tail(), 5);
        assert_eq!(chains.enter(slot, 5, 70), None);
        assert_eq!(chains.enter(slot, 2, 80), None);
        assert_eq!(chains.enter(slot, 5, 90), Some(70));
        assert_eq!(chains.run(slot, 2, 6), [80]);
        assert_eq!(chains.run(slot, 5, 6), [70]);
        assert!(chains.run(slot, 3, 6).is_empty() && chains.run(slot, 0, 6).is_empty());
        assert!(chains.run(slot, 6, 9).is_empty() && chains.run(NONE, 0, 9).is_empty());
    }
}
