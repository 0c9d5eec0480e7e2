//! Blocks with identity: free queue, holders and the index of full blocks (rules K11-K15, K25).

use super::chain::{ChainSlot, Chains, NONE};

/// Number of a KV block, from 0; the null block is not among them.
pub(super) type BlockId = u32;

/// One block. Aligned so that it never lies in two lines of the processor's cache.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(super) struct Block {
    /// Requests that hold it.
    refs: u32,
    /// Neighbours in the free queue while nobody does.
    next: u32,
    prev: u32,
    /// Its chain and its number there, once it is full and registered; [`NONE`] before.
    chain: ChainSlot,
    number: u32,
    /// Neighbours in the ring of blocks with equal content, oldest first (rule K15); itself where it is the only one.
    younger: BlockId,
    older: BlockId,
}

/// The blocks of a cache that reuses content.
#[derive(Debug)]
pub(super) struct PrefixCache {
    /// The free queue is a ring through all blocks that nobody holds; the last entry is where it begins and ends.
    blocks: Vec<Block>,
    pub(super) chains: Chains,
    /// Freed blocks that are not registered go to the front of the queue (rule K14).
    unhashed_first: bool,
    scratch: Vec<BlockId>,
}

impl PrefixCache {
    pub(super) fn new(blocks: u32, unhashed_first: bool) -> Self {
        let ring = |i: u32| Block {
            refs: 0,
            next: if i == blocks { 0 } else { i + 1 },
            prev: if i == 0 { blocks } else { i - 1 },
            chain: NONE,
            number: 0,
            younger: i,
            older: i,
        };
        Self {
            blocks: (0..=blocks).map(ring).collect(),
            chains: Chains::default(),
            unhashed_first,
            scratch: Vec::new(),
        }
    }

    fn sentinel(&self) -> u32 {
        self.blocks.len() as u32 - 1
    }

    fn unlink(&mut self, block: BlockId) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        self.blocks[prev as usize].next = next;
        self.blocks[next as usize].prev = prev;
    }

    fn push_front(&mut self, block: BlockId) {
        let s = self.sentinel();
        let first = std::mem::replace(&mut self.blocks[s as usize].next, block);
        self.blocks[first as usize].prev = block;
        let b = &mut self.blocks[block as usize];
        (b.prev, b.next) = (s, first);
    }

    /// Takes `count` blocks from the front of the free queue, evicting their content (rule K11). The caller knows that
    /// so many are free.
    #[inline(never)]
    pub(super) fn pop(&mut self, count: u32, ids: &mut Vec<BlockId>) {
        let s = self.sentinel();
        let mut block = self.blocks[s as usize].next;
        for _ in 0..count {
            debug_assert_ne!(block, s, "the free count said a block is free");
            let b = &mut self.blocks[block as usize];
            b.refs = 1;
            let (next, hashed) = (b.next, b.chain != NONE);
            if hashed {
                self.evict(block);
            }
            ids.push(block);
            block = next;
        }
        self.blocks[s as usize].next = block;
        self.blocks[block as usize].prev = s;
    }

    fn evict(&mut self, block: BlockId) {
        let b = &mut self.blocks[block as usize];
        let (chain, number, younger, older) = (b.chain, b.number, b.younger, b.older);
        (b.chain, b.younger, b.older) = (NONE, block, block);
        let next = if younger == block {
            NONE
        } else {
            self.blocks[older as usize].younger = younger;
            self.blocks[younger as usize].older = older;
            younger
        };
        self.chains.replace(chain, number, block, next);
    }

    /// Forgets the content of all blocks in the free queue.
    pub(super) fn flush(&mut self) {
        let s = self.sentinel();
        let mut block = self.blocks[s as usize].next;
        while block != s {
            if self.blocks[block as usize].chain != NONE {
                self.evict(block);
            }
            block = self.blocks[block as usize].next;
        }
    }

    /// Blocks with content that a request could find.
    pub(super) fn cached(&self) -> u32 {
        self.blocks.iter().filter(|b| b.chain != NONE).count() as u32
    }

    /// Nobody holds the block: it is a hit candidate in the free queue (rule K12).
    pub(super) fn is_free(&self, block: BlockId) -> bool {
        self.blocks[block as usize].refs == 0
    }

    /// One more holder; a free block leaves the queue (rule K13).
    pub(super) fn touch(&mut self, block: BlockId) {
        if self.is_free(block) {
            self.unlink(block);
        }
        self.blocks[block as usize].refs += 1;
    }

    /// Enters full blocks in a chain from `number` on (rule K25), each behind those of equal content (rule K15).
    pub(super) fn register(&mut self, mut blocks: &[BlockId], chain: ChainSlot, mut number: u32) {
        while let Some((&block, others)) = blocks.split_first() {
            if self.chains.append(chain, number, blocks) {
                break;
            }
            if let Some(oldest) = self.chains.enter(chain, number, block) {
                self.follow(oldest, block);
            }
            self.note(block, chain, number);
            (blocks, number) = (others, number + 1);
        }
        for &block in blocks {
            self.note(block, chain, number);
            number += 1;
        }
    }

    fn note(&mut self, block: BlockId, chain: ChainSlot, number: u32) {
        let b = &mut self.blocks[block as usize];
        (b.chain, b.number) = (chain, number);
    }

    /// Makes a block the youngest of those with the content of `oldest`.
    fn follow(&mut self, oldest: BlockId, block: BlockId) {
        let youngest = std::mem::replace(&mut self.blocks[oldest as usize].older, block);
        self.blocks[youngest as usize].younger = block;
        let b = &mut self.blocks[block as usize];
        (b.older, b.younger) = (youngest, oldest);
    }

    /// One holder less for each block, tail first (rule K14). Returns how many became free.
    pub(super) fn release(&mut self, blocks: &[BlockId]) -> u32 {
        let mut freed = 0;
        let mut unhashed = std::mem::take(&mut self.scratch);
        let s = self.sentinel();
        let mut last = self.blocks[s as usize].prev;
        for &block in blocks.iter().rev() {
            let b = &mut self.blocks[block as usize];
            b.refs -= 1;
            if b.refs > 0 {
                continue;
            }
            freed += 1;
            if self.unhashed_first && b.chain == NONE {
                unhashed.push(block);
            } else {
                b.prev = last;
                self.blocks[last as usize].next = block;
                last = block;
            }
        }
        self.blocks[last as usize].next = s;
        self.blocks[s as usize].prev = last;
        for block in unhashed.drain(..).rev() {
            self.push_front(block);
        }
        self.scratch = unhashed;
        freed
    }

    /// Blocks in the free queue, front first.
    #[cfg(test)]
    pub(super) fn free_order(&self) -> Vec<BlockId> {
        let mut order = Vec::new();
        let mut at = self.blocks[self.sentinel() as usize].next;
        while at != self.sentinel() {
            order.push(at);
            at = self.blocks[at as usize].next;
        }
        order
    }

    /// Stream and number of a registered block.
    #[cfg(test)]
    pub(super) fn content(&self, block: BlockId) -> Option<(super::stream::StreamId, u32)> {
        let b = self.blocks[block as usize];
        self.chains.stream(b.chain).map(|stream| (stream, b.number))
    }
}
