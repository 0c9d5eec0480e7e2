//! Compiled static shapes: which program a Neuron device runs for a batch (rules N20 to N28, N41, N42).
//!
//! Nothing runs on the device but programs that were compiled beforehand: context encoding for prompts, token
//! generation for decodes, each for a few fixed shapes. A batch is padded to the shape of its program, so that a
//! step's time depends on the program and on nothing else.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BatchShape;

/// Smallest bucket of prompts and contexts (rule N22).
pub const SMALLEST_BUCKET: u32 = 128;
/// Smallest bucket of new tokens and of cached ones where prompts may begin in the prefix cache (rule N26).
pub const SMALLEST_PREFIX_BUCKET: u32 = 512;
/// Smallest bucket of contexts in decodes over a KV cache in blocks (rule N26).
pub const SMALLEST_BLOCK_BUCKET: u32 = 256;

/// The shapes that a model was compiled for. Lists are rising and not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticShapes {
    /// New tokens of a context-encoding program.
    pub context_buckets: Vec<u32>,
    /// Computed tokens before them: cached ones, or those of a cut prompt's earlier segments. The longest context alone
    /// where prompts are cut and not cached (rule N41); empty where every prompt is computed from its first token on.
    pub prefix_buckets: Vec<u32>,
    /// A prompt as long as a bucket takes the next one, unless there is none (rule N23).
    pub strict: bool,
    /// Positions whose KV a token-generation program reads, for every one of its rows.
    pub token_buckets: Vec<u32>,
    /// Rows of the token-generation programs (rules N25, N42).
    pub decode_batches: Vec<u32>,
    /// Tokens are sampled on the device; else logits go to the host, which samples (rule N21).
    pub on_device_sampling: bool,
    /// A decode is issued before the one before it has come back, as long as the batch stays (rules N30, N44).
    pub asynchronous: bool,
}

/// A compiled program, by its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// Computes a prompt.
    ContextEncoding {
        /// New tokens, padded.
        tokens: u32,
        /// Cached tokens before them, padded.
        prefix: u32,
    },
    /// One token of every row.
    TokenGeneration {
        /// Positions read for each row.
        positions: u32,
        /// Rows, padded.
        batch: u32,
    },
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ContextEncoding { tokens, prefix: 0 } => write!(f, "context encoding of {tokens} tokens"),
            Self::ContextEncoding { tokens, prefix } => {
                write!(f, "context encoding of {tokens} tokens after {prefix}")
            }
            Self::TokenGeneration { positions, batch } => {
                write!(f, "token generation of {batch} rows over {positions} positions")
            }
        }
    }
}

/// Powers of two from `smallest` on, and `largest` in place of the one nearest to it (rule N22). One bucket when
/// `largest` is not above `smallest`.
pub fn buckets(smallest: u32, largest: u32) -> Vec<u32> {
    if largest <= smallest {
        return vec![largest.max(1)];
    }
    let nearest = f64::from(largest).log2().round() as u32;
    (smallest.max(1).ilog2()..nearest)
        .map(|power| 1 << power)
        .filter(|&bucket| bucket < largest)
        .chain([largest])
        .collect()
}

/// Powers of two up to `most`, and `most` (rule N42).
pub fn batch_buckets(most: u32) -> Vec<u32> {
    (0..32)
        .map(|power| 1 << power)
        .take_while(|&bucket| bucket < most)
        .chain([most.max(1)])
        .collect()
}

/// The first bucket that holds `needed`; beyond all, the last. Nothing but a compiled shape: 0 where there is none.
fn first_holding(buckets: &[u32], needed: u32) -> u32 {
    let place = buckets.partition_point(|&bucket| bucket < needed);
    buckets.get(place).or(buckets.last()).copied().unwrap_or(0)
}

impl StaticShapes {
    /// The program of `tokens` new tokens of a prompt after `computed` ones.
    pub fn context_program(&self, tokens: u32, computed: u32) -> Program {
        let needed = if self.strict {
            tokens.saturating_add(1)
        } else {
            tokens
        };
        Program::ContextEncoding {
            tokens: first_holding(&self.context_buckets, needed),
            prefix: if computed == 0 {
                0
            } else {
                first_holding(&self.prefix_buckets, computed)
            },
        }
    }

    /// The program of `rows` decodes of which the longest attends to `positions`, its new tokens included (rules N24,
    /// N25): every row pays for the longest one.
    pub fn token_program(&self, rows: u32, positions: u32) -> Program {
        Program::TokenGeneration {
            positions: first_holding(&self.token_buckets, positions),
            batch: first_holding(&self.decode_batches, rows),
        }
    }

    /// How many further steps, at most, a token-generation program serves whose longest row attends to `positions`
    /// now and to one more in each; `u32::MAX` for the last one.
    pub fn steps_in_bucket(&self, positions: u32) -> u32 {
        let bucket = first_holding(&self.token_buckets, positions);
        if self.token_buckets.last() == Some(&bucket) {
            u32::MAX
        } else {
            bucket - positions
        }
    }

    /// Positions that the longest decode row of a batch attends to; its decode rows must be listed.
    pub fn longest_decode(batch: &BatchShape) -> u32 {
        debug_assert_eq!(batch.decodes.len(), batch.decode_seqs as usize, "rows are listed");
        let attended = batch.decodes.iter().map(|r| r.computed.saturating_add(r.tokens));
        attended.max().unwrap_or(0)
    }

    /// The programs of a batch, in the order in which they run: prompts one after another (rule N27), then decodes.
    /// Decode rows must be listed.
    pub fn programs<'a>(&'a self, batch: &'a BatchShape) -> impl Iterator<Item = Program> + 'a {
        let prompts = batch
            .prefills
            .iter()
            .map(|row| self.context_program(row.tokens, row.computed));
        let decodes = (batch.decode_seqs > 0)
            .then(|| self.token_program(batch.decode_seqs, Self::longest_decode(batch)));
        prompts.chain(decodes)
    }

    /// Every program that was compiled.
    pub fn all_programs(&self) -> Vec<Program> {
        let prefixes = || std::iter::once(0).chain(self.prefix_buckets.iter().copied());
        let prompts = self
            .context_buckets
            .iter()
            .flat_map(|&tokens| prefixes().map(move |prefix| Program::ContextEncoding { tokens, prefix }));
        let decodes = self.decode_batches.iter().flat_map(|&batch| {
            self.token_buckets
                .iter()
                .map(move |&positions| Program::TokenGeneration { positions, batch })
        });
        prompts.chain(decodes).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shapes(longest: u32) -> StaticShapes {
        StaticShapes {
            context_buckets: buckets(SMALLEST_BUCKET, longest),
            prefix_buckets: Vec::new(),
            strict: true,
            token_buckets: buckets(SMALLEST_BUCKET, longest),
            decode_batches: vec![4],
            on_device_sampling: true,
            asynchronous: false,
        }
    }

    const fn prompt(tokens: u32) -> Program {
        Program::ContextEncoding { tokens, prefix: 0 }
    }

    #[test]
    fn buckets_are_powers_of_two_and_the_largest() {
        assert_eq!(buckets(128, 1024), [128, 256, 512, 1024]);
        // The power nearest to the largest is left out: 1024 beside 1000 or 1100 would be of no use.
        assert_eq!(buckets(128, 1000), [128, 256, 512, 1000]);
        assert_eq!(buckets(128, 1100), [128, 256, 512, 1100]);
        assert_eq!(buckets(128, 1500), [128, 256, 512, 1024, 1500]);
        assert_eq!(buckets(128, 128), [128]);
        assert_eq!(buckets(128, 100), [100]);
        assert_eq!(batch_buckets(1), [1]);
        assert_eq!(batch_buckets(12), [1, 2, 4, 8, 12]);
        assert_eq!(batch_buckets(16), [1, 2, 4, 8, 16]);
    }

    /// Scenario T19 (rule N23).
    #[test]
    fn a_prompt_as_long_as_a_bucket_takes_the_next_one_but_for_the_largest() {
        let shapes = shapes(1024);
        for (tokens, bucket) in [
            (1, 128),
            (127, 128),
            (128, 256),
            (255, 256),
            (256, 512),
            (512, 1024),
            (1023, 1024),
            (1024, 1024),
        ] {
            assert_eq!(shapes.context_program(tokens, 0), prompt(bucket), "{tokens}");
        }
        let lenient = StaticShapes {
            strict: false,
            ..shapes
        };
        assert_eq!(lenient.context_program(256, 0), prompt(256));
        assert_eq!(lenient.context_program(257, 0), prompt(512));
    }

    /// Rules N24 and N25: one long row makes all pay, and the live rows do not count.
    #[test]
    fn decodes_are_padded_to_the_longest_row_and_the_compiled_batch() {
        let shapes = shapes(1024);
        let mut batch = BatchShape::default();
        batch.add_decode(1, 10);
        let program = |batch: &BatchShape| shapes.programs(batch).collect::<Vec<_>>();
        let of = |positions| vec![Program::TokenGeneration { positions, batch: 4 }];
        assert_eq!(program(&batch), of(128));
        batch.add_decode(1, 127);
        assert_eq!(
            program(&batch),
            of(128),
            "position 127 is the last of the first bucket"
        );
        batch.add_decode(1, 128);
        assert_eq!(program(&batch), of(256));
        batch.advance(127);
        assert_eq!(program(&batch), of(256));
        batch.advance(1);
        assert_eq!(program(&batch), of(512));
        assert_eq!(shapes.steps_in_bucket(129), 127);
        assert_eq!(shapes.steps_in_bucket(600), u32::MAX);
    }

    #[test]
    fn prompts_run_one_after_another_in_two_dimensions() {
        let two = StaticShapes {
            context_buckets: buckets(SMALLEST_PREFIX_BUCKET, 4096),
            prefix_buckets: buckets(SMALLEST_PREFIX_BUCKET, 4096),
            ..shapes(4096)
        };
        let mut batch = BatchShape::default();
        batch.add_prefill(100, 0);
        batch.add_prefill(600, 513);
        let got: Vec<Program> = two.programs(&batch).collect();
        assert_eq!(
            got,
            [
                prompt(512),
                Program::ContextEncoding {
                    tokens: 1024,
                    prefix: 1024
                }
            ]
        );
        assert_eq!(two.all_programs().len(), 4 * 5 + 6);
    }

    /// Rule N41: without prefix caching a later segment reads the whole context, however much of it is computed.
    #[test]
    fn a_later_segment_is_padded_to_the_longest_context_where_nothing_is_cached() {
        let segmented = StaticShapes {
            context_buckets: buckets(SMALLEST_BUCKET, 512),
            prefix_buckets: vec![4096],
            strict: false,
            ..shapes(4096)
        };
        for computed in [512, 1024, 3584] {
            let program = Program::ContextEncoding {
                tokens: 256,
                prefix: 4096,
            };
            assert_eq!(segmented.context_program(200, computed), program, "{computed}");
        }
        assert_eq!(segmented.context_program(512, 0), prompt(512));
        assert_eq!(segmented.all_programs().len(), 3 * 2 + 6);
    }

    /// A rising list of one to five buckets.
    fn rising() -> impl Strategy<Value = Vec<u32>> {
        proptest::collection::btree_set(1u32..3000, 1..6).prop_map(|set| set.into_iter().collect())
    }

    proptest! {
        #[test]
        fn no_batch_runs_what_was_not_compiled(
            lists in (rising(), rising(), rising(), rising()),
            prefixes in any::<bool>(),
            strict in any::<bool>(),
            prefills in proptest::collection::vec((1u32..4000, 0u32..4000), 0..4),
            decodes in proptest::collection::vec(0u32..4000, 0..9),
        ) {
            let (context_buckets, prefix_buckets, token_buckets, decode_batches) = lists;
            let shapes = StaticShapes {
                context_buckets,
                prefix_buckets: if prefixes { prefix_buckets } else { Vec::new() },
                strict,
                token_buckets,
                decode_batches,
                on_device_sampling: true,
                asynchronous: false,
            };
            let all = shapes.all_programs();
            let mut batch = BatchShape::default();
            prefills.iter().for_each(|&(tokens, computed)| batch.add_prefill(tokens, computed));
            decodes.iter().for_each(|&computed| batch.add_decode(1, computed));
            for program in shapes.programs(&batch) {
                prop_assert!(all.contains(&program), "{program}");
            }
        }
    }
}
