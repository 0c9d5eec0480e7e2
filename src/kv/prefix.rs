//! Content identity of KV blocks and the free queue of a pool that reuses them (rules K11-K15, K25, K30-K36).

use std::collections::HashMap;

use crate::workload::trace::Prefix;

/// Number of a KV block, from 0; the null block is not among them.
pub(super) type BlockId = u32;

const NONE: u32 = u32::MAX;

/// Content of a full block together with everything before it.
///
/// vLLM chains hashes over the whole prefix. Here a request's tokens are streams, so a block's stream and
/// index already say what the chained hash says: two keys are equal exactly when all tokens up to the end of
/// the block are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockKey {
    stream: u64,
    block: u32,
}

/// Where a request's tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenStream {
    owner: u32,
    group: u32,
    shared_tokens: u32,
    /// Prompt length, if the outputs are a function of a wholly shared prompt.
    scripted_prompt: u32,
}

const PRIVATE: u64 = 1 << 62;
const SCRIPTED: u64 = 1 << 63;

impl TokenStream {
    /// The stream of request `owner` with `prompt_tokens`.
    pub fn new(owner: u32, prompt_tokens: u32, prefix: Option<Prefix>) -> Self {
        let Some(p) = prefix else {
            return Self {
                owner,
                group: 0,
                shared_tokens: 0,
                scripted_prompt: 0,
            };
        };
        let scripted = p.greedy_outputs && prompt_tokens <= p.shared_tokens;
        Self {
            owner,
            group: p.group,
            shared_tokens: p.shared_tokens,
            scripted_prompt: if scripted { prompt_tokens } else { 0 },
        }
    }

    /// Every block that gets full after `known` tokens is this request's own: nobody else can find it.
    pub fn tail_is_private(&self, known: u32) -> bool {
        self.scripted_prompt == 0 && self.shared_tokens <= known
    }

    /// Key of the block with number `block` in a cache of `block_size` tokens a block.
    pub fn key(&self, block: u32, block_size: u32) -> BlockKey {
        let end = (u64::from(block) + 1) * u64::from(block_size);
        let shared_end = if self.scripted_prompt > 0 {
            self.scripted_prompt
        } else {
            self.shared_tokens
        };
        let stream = if end <= u64::from(shared_end) {
            u64::from(self.group)
        } else if self.scripted_prompt > 0 {
            SCRIPTED | u64::from(self.scripted_prompt & 0x3fff_ffff) << 32 | u64::from(self.group)
        } else {
            PRIVATE | u64::from(self.owner)
        };
        BlockKey { stream, block }
    }
}

/// Blocks with identity: free queue, reference counts and the index of hashed blocks.
#[derive(Debug)]
pub(super) struct PrefixCache {
    /// Reference count of each block.
    refs: Vec<u32>,
    /// Key of each hashed block.
    keys: Vec<Option<BlockKey>>,
    /// Free queue as a doubly linked list; the last entry is the sentinel.
    next: Vec<u32>,
    prev: Vec<u32>,
    /// First registered block of each key; further ones follow in `duplicate`, oldest first (rule K15).
    index: HashMap<BlockKey, BlockId>,
    duplicate: Vec<u32>,
    /// Freed blocks without a key go to the front of the queue (rule K14).
    unhashed_first: bool,
    scratch: Vec<BlockId>,
}

impl PrefixCache {
    pub(super) fn new(blocks: u32, unhashed_first: bool) -> Self {
        let n = blocks as usize;
        Self {
            refs: vec![0; n],
            keys: vec![None; n],
            next: (0..=blocks)
                .map(|i| if i == blocks { 0 } else { i + 1 })
                .collect(),
            prev: (0..=blocks)
                .map(|i| if i == 0 { blocks } else { i - 1 })
                .collect(),
            index: HashMap::new(),
            duplicate: vec![NONE; n],
            unhashed_first,
            scratch: Vec::new(),
        }
    }

    fn sentinel(&self) -> u32 {
        self.refs.len() as u32
    }

    fn unlink(&mut self, block: u32) {
        let (p, n) = (self.prev[block as usize], self.next[block as usize]);
        self.next[p as usize] = n;
        self.prev[n as usize] = p;
    }

    fn link_between(&mut self, block: u32, p: u32, n: u32) {
        self.next[p as usize] = block;
        self.prev[n as usize] = block;
        self.prev[block as usize] = p;
        self.next[block as usize] = n;
    }

    fn push_back(&mut self, block: u32) {
        let s = self.sentinel();
        self.link_between(block, self.prev[s as usize], s);
    }

    fn push_front(&mut self, block: u32) {
        let s = self.sentinel();
        self.link_between(block, s, self.next[s as usize]);
    }

    /// Takes the front of the free queue, evicting its hash (rule K11). The caller knows one is free.
    pub(super) fn pop(&mut self) -> BlockId {
        let block = self.next[self.sentinel() as usize];
        debug_assert_ne!(block, self.sentinel(), "the free count said a block is free");
        self.unlink(block);
        if let Some(key) = self.keys[block as usize].take() {
            self.evict(block, key);
        }
        self.refs[block as usize] = 1;
        block
    }

    fn evict(&mut self, block: BlockId, key: BlockKey) {
        let after = std::mem::replace(&mut self.duplicate[block as usize], NONE);
        let Some(head) = self.index.get_mut(&key) else {
            return;
        };
        if *head == block {
            if after == NONE {
                self.index.remove(&key);
            } else {
                *head = after;
            }
            return;
        }
        let mut before = *head;
        while self.duplicate[before as usize] != block {
            before = self.duplicate[before as usize];
        }
        self.duplicate[before as usize] = after;
    }

    /// The block that holds `key`, if any: the one registered first.
    pub(super) fn find(&self, key: BlockKey) -> Option<BlockId> {
        self.index.get(&key).copied()
    }

    /// Nobody holds the block: it is a hit candidate in the free queue (rule K12).
    pub(super) fn is_free(&self, block: BlockId) -> bool {
        self.refs[block as usize] == 0
    }

    /// One more holder; a free block leaves the queue (rule K13).
    pub(super) fn touch(&mut self, block: BlockId) {
        if self.is_free(block) {
            self.unlink(block);
        }
        self.refs[block as usize] += 1;
    }

    /// Enters a full block in the index (rule K25).
    pub(super) fn register(&mut self, block: BlockId, key: BlockKey) {
        self.keys[block as usize] = Some(key);
        match self.index.entry(key) {
            std::collections::hash_map::Entry::Vacant(e) => {
                e.insert(block);
            }
            std::collections::hash_map::Entry::Occupied(e) => {
                let mut last = *e.get();
                while self.duplicate[last as usize] != NONE {
                    last = self.duplicate[last as usize];
                }
                self.duplicate[last as usize] = block;
            }
        }
    }

    /// One holder less for each block, tail first (rule K14). Returns how many became free.
    pub(super) fn release(&mut self, blocks: &[BlockId]) -> u32 {
        let mut freed = 0;
        let mut unhashed = std::mem::take(&mut self.scratch);
        for &block in blocks.iter().rev() {
            let refs = &mut self.refs[block as usize];
            *refs -= 1;
            if *refs > 0 {
                continue;
            }
            freed += 1;
            if self.unhashed_first && self.keys[block as usize].is_none() {
                unhashed.push(block);
            } else {
                self.push_back(block);
            }
        }
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
        let mut at = self.next[self.sentinel() as usize];
        while at != self.sentinel() {
            order.push(at);
            at = self.next[at as usize];
        }
        order
    }
}
