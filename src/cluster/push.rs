//! What a prefill group may have written of a prompt's KV while it computes the prompt: layer-wise push.
//!
//! # The model
//!
//! Bytes are those of whole blocks (rule D5): a block may be written when its last token is computed, the prompt's last
//! block when the prompt is. So all bytes together are those that a pull would read.
//!
//! A step computes a model's `L` layers one after another, each in the same time, and a layer's KV may be written when
//! it is computed. As a fluid: the bytes of the first `L - 1` layers may flow from the end of the first layer on, evenly
//! and so that the last of them moves at the end of the step at the earliest; the last layer's bytes, a part of `L` of
//! the step's, from the end of the step on. Nothing is ever moved before it is computed. What is left over from before
//! keeps this pace, too, until the step ends. (Rates are whole bytes a second, so less than a byte a second of the step
//! may be left then.)
//!
//! Before the decode group has told its blocks nothing can be written; then everything that is computed by then is. A
//! prompt that is preempted loses what is not written yet; what was written once is not written again.
//!
//! A write is posted while the next layer is computed, so that costs no time (rule D17), but for the last layer, and for
//! all that had to wait for the blocks.

use crate::units::{SimDuration, SimTime};

/// Which steps write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushFrom {
    /// Each step writes what it computes.
    EveryChunk,
    /// The step that ends the prompt writes all of it, layer by layer, as vLLM's MoRIIO connector does.
    LastChunk,
}

/// What a decode group wants of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Blocks at the prompt's start that it has.
    pub cached_blocks: u32,
    /// Blocks that it wants, from there to the prompt's end.
    pub blocks: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Bytes of a block, all layers.
    pub block_bytes: u64,
    /// Descriptors of a block, all layers.
    pub block_descriptors: u32,
}

/// What posting costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostCost {
    /// A write at all.
    pub fixed: SimDuration,
    /// One descriptor of it.
    pub per_descriptor: SimDuration,
}

impl PostCost {
    fn of(self, descriptors: u64) -> SimDuration {
        if descriptors == 0 {
            return SimDuration::ZERO;
        }
        self.fixed + self.per_descriptor * descriptors
    }
}

/// A step's part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunk {
    /// Tokens of the prompt that are there before it and after it.
    from: u32,
    to: u32,
    start: SimTime,
    end: SimTime,
}

impl Chunk {
    fn first_layer(self, layers: u32) -> SimTime {
        self.start + SimDuration(self.end.since(self.start).0.div_ceil(u64::from(layers)))
    }
}

/// What may move from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Due {
    /// Bytes beyond those of before.
    pub bytes: u64,
    /// No byte of all that is under way may be the last one before then.
    pub even_until: Option<SimTime>,
    /// When to ask again, beside the instants told by [`LayerWise::computes`].
    pub again: Option<SimTime>,
}

/// One prompt on its way.
#[derive(Debug, Clone)]
pub struct LayerWise {
    layers: u32,
    from: PushFrom,
    prompt_tokens: u32,
    wanted: Option<Wanted>,
    /// When the prefill group has posted what had waited for the blocks to be known.
    begins: SimTime,
    post: PostCost,
    /// Tokens of which all layers are there and posted.
    ready: u32,
    /// Steps under way or not posted, in their order.
    chunks: Vec<Chunk>,
    /// Bytes that were told to be due.
    issued: u64,
    /// After so many bytes all layers of whole blocks are there, ascending.
    whole: Vec<u64>,
}

impl LayerWise {
    /// A prompt of which nothing is computed, of a model of so many layers.
    pub fn new(prompt_tokens: u32, layers: u32, from: PushFrom, post: PostCost) -> Self {
        Self {
            layers: layers.max(1),
            from,
            prompt_tokens,
            wanted: None,
            begins: SimTime::ZERO,
            post,
            ready: 0,
            chunks: Vec::new(),
            issued: 0,
            whole: Vec::new(),
        }
    }

    /// A step from `start` to `end` brings the prompt from `computed` tokens by so many on. Returns when to ask what is
    /// due: when its first layer is computed, and when its last one is.
    pub fn computes(&mut self, computed: u32, tokens: u32, start: SimTime, end: SimTime) -> [SimTime; 2] {
        let chunk = Chunk {
            from: computed,
            to: computed.saturating_add(tokens),
            start,
            end,
        };
        self.chunks.push(chunk);
        [chunk.first_layer(self.layers), end]
    }

    /// The prompt is preempted: what is not written is gone, with the steps under way.
    pub fn loses(&mut self) {
        self.ready = 0;
        self.chunks.clear();
    }

    /// The prefill group hears of the decode group's blocks. Returns when it has posted what waited for them.
    pub fn hears(&mut self, wanted: Wanted, now: SimTime) -> SimTime {
        self.wanted = Some(wanted);
        let computed = self.chunks.iter().rfind(|c| c.end <= now).map(|c| c.to);
        self.ready = computed.unwrap_or(self.ready);
        self.chunks.retain(|c| c.end > now);
        let waited = self.blocks_of(self.ready);
        self.begins = now
            + self
                .post
                .of(u64::from(waited) * u64::from(wanted.block_descriptors));
        self.begins
    }

    /// All bytes; none before the blocks are known.
    pub fn total_bytes(&self) -> Option<u64> {
        self.wanted.map(|w| u64::from(w.blocks) * w.block_bytes)
    }

    /// Wanted blocks that may be written once so many tokens are computed.
    fn blocks_of(&self, tokens: u32) -> u32 {
        let Some(wanted) = self.wanted else { return 0 };
        if tokens >= self.prompt_tokens {
            return wanted.blocks;
        }
        if self.from == PushFrom::LastChunk {
            return 0;
        }
        let whole = tokens / wanted.block_size.max(1);
        whole.saturating_sub(wanted.cached_blocks).min(wanted.blocks)
    }

    fn bytes_of(&self, tokens: u32) -> u64 {
        u64::from(self.blocks_of(tokens)) * self.wanted.map_or(0, |w| w.block_bytes)
    }

    /// When the last layer of a step is posted.
    fn posted(&self, chunk: Chunk) -> SimTime {
        let blocks = self
            .blocks_of(chunk.to)
            .saturating_sub(self.blocks_of(chunk.from));
        let of_block = self.wanted.map_or(0, |w| w.block_descriptors);
        let descriptors = (u64::from(blocks) * u64::from(of_block)).div_ceil(u64::from(self.layers));
        chunk.end + self.post.of(descriptors)
    }

    /// What may move at `now`, beyond what was due before. Instants must be asked for in their order.
    pub fn due(&mut self, now: SimTime) -> Due {
        let mut due = Due::default();
        if self.wanted.is_none() || now < self.begins {
            return due;
        }
        let mut kept = 0;
        for index in 0..self.chunks.len() {
            let chunk = self.chunks[index];
            if now < self.posted(chunk) {
                self.chunks[kept] = chunk;
                kept += 1;
            } else {
                self.ready = chunk.to;
            }
        }
        self.chunks.truncate(kept);
        let whole = self.bytes_of(self.ready);
        if self.whole.last().is_none_or(|&last| whole > last) {
            self.whole.push(whole);
        }
        let mut reach = whole;
        for &chunk in &self.chunks {
            if now < chunk.first_layer(self.layers) {
                continue;
            }
            // What the step found in the cache is there.
            reach = reach.max(self.bytes_of(chunk.from));
            let new = self.bytes_of(chunk.to).saturating_sub(self.bytes_of(chunk.from));
            let early = self.bytes_of(chunk.from) + new - new.div_ceil(u64::from(self.layers));
            if early > reach {
                reach = early;
                if now < chunk.end {
                    due.even_until = due.even_until.max(Some(chunk.end));
                }
            }
            if chunk.end <= now {
                let posted = Some(self.posted(chunk));
                due.again = due.again.map_or(posted, |at| Some(at).min(posted));
            }
        }
        due.bytes = reach.saturating_sub(self.issued);
        self.issued = self.issued.max(reach);
        due
    }

    /// Of `moved` bytes, those of blocks with all layers.
    pub fn valid_bytes(&self, moved: u64) -> u64 {
        let whole = self.whole.partition_point(|&w| w <= moved);
        whole.checked_sub(1).map_or(0, |last| self.whole[last])
    }
}

#[cfg(test)]
#[path = "push_tests.rs"]
mod tests;
