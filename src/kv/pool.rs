//! The block pool of one engine and the blocks that each request holds.

use super::prefix::{BlockId, PrefixCache, TokenStream};

/// Blocks held by one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockTable {
    held: u32,
    /// Leading blocks that are in the prefix index (rule K25).
    registered: u32,
    /// Which blocks; empty when the pool does not reuse content, since then only their number matters.
    ids: Vec<BlockId>,
}

impl BlockTable {
    /// Blocks held.
    pub const fn held(&self) -> u32 {
        self.held
    }

    /// Counts blocks that [`KvCache::take`] took as this table's; without prefix caching only.
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
        let Some(prefix) = &self.prefix else { return 0 };
        for block in 0..known.saturating_sub(1) / self.block_size {
            let Some(id) = prefix.find(stream.key(block, self.block_size)) else {
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
        }
        table.held = self.hits.len() as u32;
        self.free -= self.free_hits;
        self.hits.clear();
        self.free_hits = 0;
        let grown = self.grow(table, tokens);
        debug_assert!(grown, "the need was checked before");
    }

    /// Takes free blocks for nobody in particular; [`BlockTable::add_held`] says later whose they are. Without prefix
    /// caching only. The caller has checked that they are free.
    pub fn take(&mut self, blocks: u32) {
        debug_assert!(self.prefix.is_none() && blocks <= self.free);
        self.free -= blocks;
    }

    /// Extends a table to hold `tokens`, or returns false and changes nothing when too few blocks are free.
    pub fn grow(&mut self, table: &mut BlockTable, tokens: u32) -> bool {
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

    /// Enters the blocks that `tokens` known tokens fill in the prefix index (rules K25, S55).
    pub fn register(&mut self, table: &mut BlockTable, stream: &TokenStream, tokens: u32) {
        let Some(prefix) = &mut self.prefix else { return };
        let full = (tokens / self.block_size).min(table.held);
        for block in table.registered..full {
            prefix.register(table.ids[block as usize], stream.key(block, self.block_size));
        }
        table.registered = table.registered.max(full);
    }

    /// Takes all blocks back, tail first (rule K14).
    pub fn release(&mut self, table: &mut BlockTable) {
        self.free += match &mut self.prefix {
            Some(prefix) => prefix.release(&table.ids),
            None => table.held,
        };
        table.ids.clear();
        (table.held, table.registered) = (0, 0);
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
    fn greedy_outputs_of_equal_prompts_share_blocks_and_other_lengths_do_not() {
        let prefix = Some(Prefix {
            group: 3,
            shared_tokens: 64,
            greedy_outputs: true,
        });
        let (a, b, longer) = (
            TokenStream::new(0, 20, prefix),
            TokenStream::new(1, 20, prefix),
            TokenStream::new(2, 40, prefix),
        );
        assert_eq!(a.key(0, 16), longer.key(0, 16));
        assert_eq!(a.key(1, 16), b.key(1, 16));
        assert_ne!(a.key(1, 16), longer.key(1, 16));
    }
}
