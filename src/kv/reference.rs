//! The block pool as it was before chains: one hash map from a block's content to the block. Slow, and plain enough to be
//! compared with (random_tests.rs).

use std::collections::HashMap;

use super::stream::TokenStream;

type BlockId = u32;

const NONE: u32 = u32::MAX;

/// Content of a full block together with everything before it: its stream and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BlockKey {
    pub stream: u64,
    pub block: u32,
}

const PRIVATE: u64 = 1 << 62;
const SCRIPTED: u64 = 1 << 63;

/// Key of the block with number `block` in a cache of `block_size` tokens a block.
fn key(stream: &TokenStream, block: u32, block_size: u32) -> BlockKey {
    let end = (u64::from(block) + 1) * u64::from(block_size);
    let shared_end = if stream.scripted_prompt > 0 {
        stream.scripted_prompt
    } else {
        stream.shared_tokens
    };
    let stream = if end <= u64::from(shared_end) {
        u64::from(stream.group)
    } else if stream.scripted_prompt > 0 {
        SCRIPTED | u64::from(stream.scripted_prompt & 0x3fff_ffff) << 32 | u64::from(stream.group)
    } else {
        PRIVATE | u64::from(stream.owner)
    };
    BlockKey { stream, block }
}

/// As [`super::BlockTable`].
#[derive(Debug, Clone, Default)]
pub(super) struct ReferenceTable {
    pub held: u32,
    registered: u32,
    ids: Vec<BlockId>,
}

/// As [`super::KvCache`].
#[derive(Debug)]
pub(super) struct Reference {
    block_size: u32,
    free: u32,
    prefix: Option<PrefixCache>,
    hits: Vec<BlockId>,
    free_hits: u32,
}

impl Reference {
    pub fn new(usable: u32, block_size: u32, prefix_caching: bool, unhashed_first: bool) -> Self {
        Self {
            block_size,
            free: usable,
            prefix: prefix_caching.then(|| PrefixCache::new(usable, unhashed_first)),
            hits: Vec::new(),
            free_hits: 0,
        }
    }

    pub fn free(&self) -> u32 {
        self.free
    }

    pub fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    pub fn look_up(&mut self, stream: &TokenStream, known: u32, drop_last: bool) -> u32 {
        self.hits.clear();
        self.free_hits = 0;
        let Some(prefix) = &self.prefix else { return 0 };
        for block in 0..known.saturating_sub(1) / self.block_size {
            let Some(id) = prefix.find(key(stream, block, self.block_size)) else {
                break;
            };
            self.hits.push(id);
        }
        if drop_last {
            self.hits.pop();
        }
        self.free_hits = self.hits.iter().filter(|&&b| prefix.is_free(b)).count() as u32;
        self.hits.len() as u32 * self.block_size
    }

    pub fn needed_after_look_up(&self, tokens: u32) -> u32 {
        self.blocks_for(tokens).saturating_sub(self.hits.len() as u32) + self.free_hits
    }

    pub fn admit(&mut self, table: &mut ReferenceTable, tokens: u32) {
        debug_assert!(table.held == 0, "a waiting request holds no block");
        if let Some(prefix) = &mut self.prefix {
            for &block in &self.hits {
                prefix.touch(block);
            }
            table.ids.extend_from_slice(&self.hits);
            table.registered = self.hits.len() as u32;
        }
        table.held = self.hits.len() as u32;
        self.free -= self.free_hits;
        self.hits.clear();
        self.free_hits = 0;
        let grown = self.grow(table, tokens);
        debug_assert!(grown, "the need was checked before");
    }

    pub fn grow(&mut self, table: &mut ReferenceTable, tokens: u32) -> bool {
        let need = self.blocks_for(tokens).saturating_sub(table.held);
        if need == 0 {
            return true;
        }
        if need > self.free {
            return false;
        }
        self.free -= need;
        table.held += need;
        if let Some(prefix) = &mut self.prefix {
            table.ids.extend((0..need).map(|_| prefix.pop()));
        }
        true
    }

    pub fn register(&mut self, table: &mut ReferenceTable, stream: &TokenStream, tokens: u32) {
        let Some(prefix) = &mut self.prefix else { return };
        let full = (tokens / self.block_size).min(table.held);
        for block in table.registered..full {
            prefix.register(table.ids[block as usize], key(stream, block, self.block_size));
        }
        table.registered = table.registered.max(full);
    }

    pub fn release(&mut self, table: &mut ReferenceTable) {
        self.free += match &mut self.prefix {
            Some(prefix) => prefix.release(&table.ids),
            None => table.held,
        };
        table.ids.clear();
        (table.held, table.registered) = (0, 0);
    }

    /// Blocks in the free queue with their content, front first.
    pub fn free_queue(&self) -> Vec<(BlockId, Option<BlockKey>)> {
        let prefix = self.prefix.as_ref();
        let order = prefix.map(PrefixCache::free_order).unwrap_or_default();
        let key = |b: BlockId| prefix.and_then(|p| p.keys[b as usize]);
        order.into_iter().map(|b| (b, key(b))).collect()
    }
}

/// Blocks with identity: free queue, reference counts and the index of hashed blocks.
#[derive(Debug)]
struct PrefixCache {
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
    fn new(blocks: u32, unhashed_first: bool) -> Self {
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
    fn pop(&mut self) -> BlockId {
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
    fn find(&self, key: BlockKey) -> Option<BlockId> {
        self.index.get(&key).copied()
    }

    /// Nobody holds the block: it is a hit candidate in the free queue (rule K12).
    fn is_free(&self, block: BlockId) -> bool {
        self.refs[block as usize] == 0
    }

    /// One more holder; a free block leaves the queue (rule K13).
    fn touch(&mut self, block: BlockId) {
        if self.is_free(block) {
            self.unlink(block);
        }
        self.refs[block as usize] += 1;
    }

    /// Enters a full block in the index (rule K25).
    fn register(&mut self, block: BlockId, key: BlockKey) {
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
    fn release(&mut self, blocks: &[BlockId]) -> u32 {
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
    fn free_order(&self) -> Vec<BlockId> {
        let mut order = Vec::new();
        let mut at = self.next[self.sentinel() as usize];
        while at != self.sentinel() {
            order.push(at);
            at = self.next[at as usize];
        }
        order
    }
}
