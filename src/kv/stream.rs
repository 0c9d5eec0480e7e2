//! Where a request's tokens come from, and so which of its blocks equal those of others (rules K30-K36).

use crate::workload::trace::Prefix;

/// Where a request's tokens come from.
///
/// vLLM chains hashes over the whole prefix of a block. Here a request's tokens are streams, so a block's stream and
/// number already say what the chained hash says: two full blocks of the same stream and number are equal, with all
/// tokens before them, and no others are. A request begins in the stream that it shares with its group, if any, and
/// goes on in one of its own, or in one of those whose equal prompts have equal answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenStream {
    pub(super) owner: u32,
    pub(super) group: u32,
    pub(super) shared_tokens: u32,
    /// Prompt length, if the outputs are a function of a wholly shared prompt.
    pub(super) scripted_prompt: u32,
}

/// One stream of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StreamId(pub(super) u64);

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

    /// Every block of the request that gets full after its first `known` tokens is its own: no other request can find
    /// it in the cache.
    pub const fn tail_is_private(&self, known: u32) -> bool {
        self.scripted_prompt == 0 && known >= self.shared_tokens
    }

    /// How many leading blocks lie wholly in the stream of the group.
    pub(super) const fn shared_blocks(&self, block_size: u32) -> u32 {
        let shared_tokens = if self.scripted_prompt > 0 {
            self.scripted_prompt
        } else {
            self.shared_tokens
        };
        shared_tokens / block_size
    }

    /// The stream of the group, to which the shared blocks belong.
    pub(super) fn shared(&self) -> StreamId {
        StreamId(u64::from(self.group))
    }

    /// The stream of all blocks after the shared ones.
    pub(super) fn tail(&self) -> StreamId {
        StreamId(if self.scripted_prompt > 0 {
            SCRIPTED | u64::from(self.scripted_prompt & 0x3fff_ffff) << 32 | u64::from(self.group)
        } else {
            PRIVATE | u64::from(self.owner)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_group(owner: u32, prompt_tokens: u32, shared_tokens: u32, greedy_outputs: bool) -> TokenStream {
        let prefix = Prefix {
            group: 3,
            shared_tokens,
            greedy_outputs,
        };
        TokenStream::new(owner, prompt_tokens, Some(prefix))
    }

    #[test]
    fn greedy_outputs_of_equal_prompts_share_blocks_and_other_lengths_do_not() {
        let (a, b, longer) = (
            in_group(0, 20, 64, true),
            in_group(1, 20, 64, true),
            in_group(2, 40, 64, true),
        );
        assert_eq!(a.shared(), longer.shared());
        assert_eq!((a.shared_blocks(16), longer.shared_blocks(16)), (1, 2));
        assert_eq!(a.tail(), b.tail());
        assert_ne!(a.tail(), longer.tail());
    }

    #[test]
    fn a_tail_is_private_past_what_is_shared_if_answers_are_no_script() {
        let own = TokenStream::new(7, 20, None);
        assert!(own.tail_is_private(0));
        let partly = in_group(7, 200, 100, false);
        assert!(!partly.tail_is_private(99));
        assert!(partly.tail_is_private(100));
        // A prompt that is not wholly shared has answers of its own.
        assert!(in_group(7, 200, 100, true).tail_is_private(100));
        assert!(!in_group(7, 100, 100, true).tail_is_private(5000));
        // A session's answers continue its stream.
        assert!(!in_group(7, 100, u32::MAX, false).tail_is_private(5000));
    }
}
