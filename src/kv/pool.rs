//! The block pool of one engine and the blocks that each request holds.

use super::chain::{ChainSlot, NONE};
use super::prefix::{BlockId, PrefixCache};
use super::stream::TokenStream;

/// Blocks held by one request. A table that was released serves another request as well and keeps its memory.
#[derive(Debug, Clone)]
pub struct BlockTable {
    held: u32,
    /// Leading blocks that are registered (rule K25).
    registered: u32,
    /// Which blocks; empty when the pool does not reuse content, since then only their number matters.
    ids: Vec<BlockId>,
    /// Where the chains of its request's shared and further blocks were last seen.
    chains: [ChainSlot; 2],
}

impl Default for BlockTable {
    fn default() -> Self {
        Self {
            held: 0,
            registered: 0,
            ids: Vec::new(),
            chains: [NONE; 2],
        }
    }
}

impl BlockTable {
    /// Blocks held.
    pub const fn held(&self) -> u32 {
        self.held
    }

    /// Counts blocks that [`KvCache::take`] took as held by this table. Without prefix caching only.
    pub fn add_held(&mut self, blocks: u32) {
        self.held += blocks;
    }
}

/// One engine's KV blocks.
///
/// Without prefix caching blocks have no identity and the pool is a counter; with it every block, the free
/// queue's order and the index are kept exactly as vLLM keeps them.
#[derive(Debug)]
pub struct KvCache {
    block_size: u32,
    usable: u32,
    free: u32,
    prefix: Option<PrefixCache>,
    /// Blocks found by the last look-up.
    hits: Vec<BlockId>,
    /// How many of them nobody holds.
    free_hits: u32,
    /// The chains that it looked into.
    hit_chains: [ChainSlot; 2],
}

impl KvCache {
    /// A cache of `usable` blocks (the null block not counted) of `block_size` tokens. `unhashed_first` says
    /// where freed blocks without a hash go (rule K14); it matters with prefix caching only.
    pub fn new(usable: u32, block_size: u32, prefix_caching: bool, unhashed_first: bool) -> Self {
        Self {
            block_size,
            usable,
            free: usable,
            prefix: prefix_caching.then(|| PrefixCache::new(usable, unhashed_first)),
            hits: Vec::new(),
            free_hits: 0,
            hit_chains: [NONE; 2],
        }
    }

    /// Blocks of the cache.
    pub const fn usable(&self) -> u32 {
        self.usable
    }

    /// Blocks that nobody holds, cached ones included (rule K12).
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// Blocks that hold `tokens`.
    pub const fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    /// Looks up the longest run of cached full blocks at the start of a sequence of `known` tokens, at most up
    /// to its last token but one (rules K31, K32), less the last block with `drop_last` (rule K33). Returns
    /// the hit in tokens; [`Self::admit`] takes it.
    pub fn look_up(&mut self, stream: &TokenStream, known: u32, drop_last: bool) -> u32 {
        self.hits.clear();
        self.free_hits = 0;
        self.hit_chains = [NONE; 2];
        let Some(prefix) = &self.prefix else { return 0 };
        let end = known.saturating_sub(1) / self.block_size;
        let shared = stream.shared_blocks(self.block_size).min(end);
        if shared > 0 {
            self.hit_chains[0] = prefix.chains.find(stream.shared());
            self.hits
                .extend_from_slice(prefix.chains.run(self.hit_chains[0], 0, shared));
        }
        if self.hits.len() as u32 == shared && shared < end {
            self.hit_chains[1] = prefix.chains.find(stream.tail());
            self.hits
                .extend_from_slice(prefix.chains.run(self.hit_chains[1], shared, end));
        }
        if drop_last {
            self.hits.pop();
        }
        self.free_hits = self.hits.iter().filter(|&&b| prefix.is_free(b)).count() as u32;
        self.hits.len() as u32 * self.block_size
    }

    /// Free blocks that a sequence of `tokens` would take after the last look-up, hits that nobody holds
    /// included, since they come out of the free count too (rule K22).
    pub fn needed_after_look_up(&self, tokens: u32) -> u32 {
        self.blocks_for(tokens).saturating_sub(self.hits.len() as u32) + self.free_hits
    }

    /// Gives an empty table the blocks found by the last look-up and new ones up to `tokens`. The caller has
    /// checked [`Self::needed_after_look_up`].
    pub fn admit(&mut self, table: &mut BlockTable, tokens: u32) {
        debug_assert!(table.held == 0, "a waiting request holds no block");
        if let Some(prefix) = &mut self.prefix {
            for &block in &self.hits {
                prefix.touch(block);
            }
            table.ids.extend_from_slice(&self.hits);
            table.registered = self.hits.len() as u32;
            table.chains = self.hit_chains;
        }
        table.held = self.hits.len() as u32;
        self.free -= self.free_hits;
        self.hits.clear();
        self.free_hits = 0;
        let grown = self.grow(table, tokens);
        debug_assert!(grown, "the need was checked before");
    }

    /// Extends a table to hold `tokens`, or returns false and changes nothing when too few blocks are free.
    #[inline]
    pub fn grow(&mut self, table: &mut BlockTable, tokens: u32) -> bool {
        if u64::from(tokens) <= u64::from(table.held) * u64::from(self.block_size) {
            return true;
        }
        let need = self.blocks_for(tokens) - table.held;
        if need > self.free {
            return false;
        }
        self.free -= need;
        table.held += need;
        if let Some(prefix) = &mut self.prefix {
            prefix.pop(need, &mut table.ids);
        }
        true
    }

    /// Registers the blocks that `tokens` known tokens fill, so that they are found (rules K25, S55).
    #[inline]
    pub fn register(&mut self, table: &mut BlockTable, stream: &TokenStream, tokens: u32) {
        if self.prefix.is_some()
            && u64::from(tokens) >= (u64::from(table.registered) + 1) * u64::from(self.block_size)
        {
            self.register_full(table, stream, (tokens / self.block_size).min(table.held));
        }
    }

    /// Registers the first `full` blocks of a table.
    fn register_full(&mut self, table: &mut BlockTable, stream: &TokenStream, full: u32) {
        let Some(prefix) = &mut self.prefix else { return };
        let shared = stream.shared_blocks(self.block_size);
        let mut from = table.registered;
        if from < shared.min(full) {
            let to = shared.min(full);
            let chain = prefix.chains.find_or_add(table.chains[0], stream.shared(), 0);
            prefix.register(&table.ids[from as usize..to as usize], chain, from);
            (table.chains[0], from) = (chain, to);
        }
        if from < full {
            let chain = prefix.chains.find_or_add(table.chains[1], stream.tail(), shared);
            prefix.register(&table.ids[from as usize..full as usize], chain, from);
            (table.chains[1], from) = (chain, full);
        }
        table.registered = from;
    }

    /// Takes free blocks without a table, so that many rows can be accounted for at once; each is counted to its row
    /// later ([`BlockTable::add_held`]). Without prefix caching only, where blocks have no identity. The caller has
    /// checked [`Self::free`].
    pub fn take(&mut self, blocks: u32) {
        debug_assert!(self.prefix.is_none(), "blocks with an identity belong to a table");
        debug_assert!(blocks <= self.free, "the free count was checked before");
        self.free = self.free.saturating_sub(blocks);
    }

    /// Takes all blocks back, tail first (rule K14); what is registered can be found until its block is taken.
    pub fn release(&mut self, table: &mut BlockTable) {
        self.free += match &mut self.prefix {
            Some(prefix) => prefix.release(&table.ids),
            None => table.held,
        };
        table.ids.clear();
        (table.held, table.registered) = (0, 0);
    }

    /// Blocks with content that a request could find, equal ones each; 0 without prefix caching. Costs by the blocks.
    pub fn cached(&self) -> u32 {
        self.prefix.as_ref().map_or(0, PrefixCache::cached)
    }

    /// Forgets the content of every block that nobody holds; the order of the free queue stays (rule K17).
    pub fn flush(&mut self) {
        if let Some(prefix) = &mut self.prefix {
            prefix.flush();
        }
    }

    /// Blocks in the free queue with stream and number of what they hold, front first.
    #[cfg(test)]
    pub(super) fn free_queue(&self) -> Vec<(BlockId, Option<(u64, u32)>)> {
        let Some(prefix) = &self.prefix else {
            return Vec::new();
        };
        let content = |b: BlockId| prefix.content(b).map(|(stream, number)| (stream.0, number));
        let order = prefix.free_order();
        order.into_iter().map(|b| (b, content(b))).collect()
    }

    /// Chains, places for chains, and entries that they have room for.
    #[cfg(test)]
    pub(super) fn chain_size(&self) -> (usize, usize, usize) {
        self.prefix.as_ref().map_or((0, 0, 0), |p| p.chains.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::trace::Prefix;

    fn own(id: u32) -> TokenStream {
        TokenStream::new(id, 1, None)
    }

    /// Runs the set-up of T22 and T23 (vllm-semantics.md section 7) and returns the free queue in vLLM's
    /// numbering (block 0 is the null block there) after B, and after A.
    fn t22_t23(hashed: bool, unhashed_first: bool, a_prompt: u32) -> (Vec<u32>, Vec<u32>) {
        let mut kv = KvCache::new(10, 16, true, unhashed_first);
        let (mut a, mut b) = (BlockTable::default(), BlockTable::default());
        let order = |kv: &KvCache| -> Vec<u32> {
            kv.prefix
                .as_ref()
                .unwrap()
                .free_order()
                .iter()
                .map(|b| b + 1)
                .collect()
        };
        kv.look_up(&own(0), a_prompt, false);
        kv.admit(&mut a, a_prompt);
        kv.look_up(&own(1), 32, false);
        kv.admit(&mut b, 32);
        if hashed {
            kv.register(&mut a, &own(0), a_prompt);
            kv.register(&mut b, &own(1), 32);
        }
        kv.release(&mut b);
        let after_b = order(&kv);
        assert!(kv.grow(&mut a, a_prompt + 1));
        kv.release(&mut a);
        (after_b, order(&kv))
    }

    #[test]
    fn t22_unhashed_blocks_return_to_the_front_last_in_first_out() {
        let (after_b, after_a) = t22_t23(false, true, 48);
        assert_eq!(after_b, [5, 4, 6, 7, 8, 9, 10]);
        assert_eq!(after_a, [5, 3, 2, 1, 4, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn t23_hashed_blocks_return_to_the_tail_tail_first() {
        let (after_b, after_a) = t22_t23(true, true, 40);
        assert_eq!(after_b, [6, 7, 8, 9, 10, 5, 4]);
        assert_eq!(after_a, [3, 6, 7, 8, 9, 10, 5, 4, 2, 1]);
        let (_, older) = t22_t23(true, false, 40);
        assert_eq!(older, [6, 7, 8, 9, 10, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn t9_a_repeated_aligned_prompt_recomputes_its_last_block() {
        let mut kv = KvCache::new(20, 16, true, true);
        let stream = TokenStream::new(
            0,
            64,
            Some(Prefix {
                group: 1,
                shared_tokens: 64,
                greedy_outputs: false,
            }),
        );
        let mut table = BlockTable::default();
        kv.look_up(&stream, 64, false);
        kv.admit(&mut table, 64);
        kv.register(&mut table, &stream, 64);
        kv.release(&mut table);
        assert_eq!(kv.look_up(&stream, 64, false), 48);
        assert_eq!(kv.look_up(&stream, 65, false), 64);
        assert_eq!(kv.look_up(&stream, 65, true), 48);
    }

    #[test]
    fn duplicates_keep_both_copies_and_the_older_is_found() {
        let mut kv = KvCache::new(4, 16, true, true);
        let stream = TokenStream::new(
            0,
            32,
            Some(Prefix {
                group: 1,
                shared_tokens: 32,
                greedy_outputs: false,
            }),
        );
        let (mut a, mut b) = (BlockTable::default(), BlockTable::default());
        assert!(kv.grow(&mut a, 16) && kv.grow(&mut b, 16));
        kv.register(&mut a, &stream, 16);
        kv.register(&mut b, &stream, 16);
        assert_eq!(kv.look_up(&stream, 17, false), 16);
        assert_eq!(kv.hits, [0]);
        kv.release(&mut a);
        kv.release(&mut b);
        // Queue is now [2, 3, 0, 1]: taking three evicts the older copy, and the younger one is found.
        assert!(kv.grow(&mut a, 48));
        assert_eq!(kv.look_up(&stream, 17, false), 16);
        assert_eq!(kv.hits, [1]);
    }

    #[test]
    fn counted_blocks_are_taken_by_number_and_given_back_by_tables() {
        let mut kv = KvCache::new(100, 16, false, true);
        let mut table = BlockTable::default();
        assert!(kv.grow(&mut table, 33));
        kv.take(3);
        assert_eq!(kv.free(), 94);
        table.add_held(3);
        assert_eq!((kv.free(), table.held()), (94, 6));
        assert!(kv.grow(&mut table, 96), "it holds them already");
        assert_eq!(kv.free(), 94);
        kv.release(&mut table);
        assert_eq!((kv.free(), table.held()), (100, 0));
    }

    /// 500 requests of 40 tokens and one of 3,000, one after another, through 50 blocks.
    #[test]
    fn memory_is_for_what_is_cached_not_for_what_was() {
        let mut kv = KvCache::new(50, 16, true, true);
        let mut table = BlockTable::default();
        for id in 0..500 {
            let tokens = if id == 250 { 800 } else { 40 };
            kv.look_up(&own(id), tokens, false);
            kv.admit(&mut table, tokens);
            kv.register(&mut table, &own(id), tokens);
            kv.release(&mut table);
        }
        let (chains, places, entries) = kv.chain_size();
        assert!(chains <= 25, "{chains} chains of two blocks in a cache of 50");
        assert!(places <= 26, "{places}");
        assert!(
            entries <= 200,
            "{entries}: of 25 chains and what is kept for others"
        );
        assert_eq!(size_of::<crate::kv::prefix::Block>(), 32);
    }
}
