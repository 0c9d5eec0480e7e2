//! Captured CUDA graphs: which batch sizes have one, and how a batch runs (rules S84 to S88).
//!
//! A batch runs at the smallest captured size that holds its tokens, so step time is a staircase in the number of
//! tokens, with a cliff above the largest size. Padding is computed by the dense layers; attention follows the
//! real lengths (rule S88).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BatchShape;

/// Largest captured size by default, in tokens.
pub const CAPTURE_CEILING: u32 = 512;

/// Largest captured size by default on data-centre Blackwell (compute capability 10.x), in tokens.
pub const CAPTURE_CEILING_BLACKWELL: u32 = 1024;

/// Which batches run as a captured graph; vLLM's `cudagraph_mode` (rule S86).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum GraphMode {
    /// No graphs: every batch at its exact size.
    #[serde(alias = "none")]
    None,
    /// Graphs between the attention operations, which run outside.
    #[serde(alias = "piecewise")]
    Piecewise,
    /// One graph of the whole step, whatever the batch.
    #[serde(alias = "full")]
    Full,
    /// One graph for uniform decodes; all else without.
    #[serde(alias = "full_decode_only")]
    FullDecodeOnly,
    /// One graph for uniform decodes, piecewise for mixed batches: the default of optimisation level 2.
    #[default]
    #[serde(alias = "full_and_piecewise")]
    FullAndPiecewise,
}

/// How one step is launched. `padded` is the captured size in tokens that it runs at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepMode {
    /// One graph, attention included.
    Full {
        /// Tokens that the dense layers compute.
        padded: u32,
    },
    /// A graph for each piece between attention operations.
    Piecewise {
        /// Tokens that the dense layers compute.
        padded: u32,
    },
    /// No graph: each kernel launched on its own.
    Eager {
        /// Tokens that the dense layers compute: those of the batch, unless other ranks took a graph away for which they had
        /// been padded already.
        tokens: u32,
    },
}

impl StepMode {
    /// Tokens that the dense layers compute.
    pub const fn computed_tokens(self) -> u32 {
        match self {
            Self::Full { padded } | Self::Piecewise { padded } => padded,
            Self::Eager { tokens } => tokens,
        }
    }

    /// What ranks that step together make of what each would do alone (rule S72; vLLM's `coordinate_batch_across_dp`): the
    /// most restrictive mode of all, and, if that is a graph, the most tokens of all.
    pub fn agree(modes: &mut [Self]) {
        let restricts = |mode: &Self| match mode {
            Self::Eager { .. } => 0,
            Self::Piecewise { .. } => 1,
            Self::Full { .. } => 2,
        };
        let Some(agreed) = modes.iter().copied().min_by_key(restricts) else {
            return;
        };
        let padded = modes.iter().map(|mode| mode.computed_tokens()).max().unwrap_or(0);
        for mode in modes {
            *mode = match agreed {
                Self::Full { .. } => Self::Full { padded },
                Self::Piecewise { .. } => Self::Piecewise { padded },
                Self::Eager { .. } => Self::Eager {
                    tokens: mode.computed_tokens(),
                },
            };
        }
    }
}

/// The batch sizes, in tokens, for which graphs were captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaptureSizes {
    /// Rising, without repeats.
    sizes: Vec<u32>,
    /// Tokens of a row in a uniform decode: 1, or 1 + K with K speculative tokens.
    tokens_per_decode: u32,
}

impl CaptureSizes {
    /// No captured graphs (`enforce_eager`).
    pub const fn none() -> Self {
        Self {
            sizes: Vec::new(),
            tokens_per_decode: 1,
        }
    }

    /// A user's list (`cudagraph_capture_sizes`), in any order: 0, and what exceeds the step's token budget, is
    /// dropped (rule S84).
    pub fn from_list(sizes: &[u32], max_num_batched_tokens: u32, tokens_per_decode: u32) -> Self {
        Self::sorted(
            sizes
                .iter()
                .copied()
                .filter(|&s| s > 0 && s <= max_num_batched_tokens)
                .collect(),
            tokens_per_decode,
        )
    }

    /// vLLM's default sizes (rule S84).
    ///
    /// `tokens_per_decode` is 1, or 1 + K with speculation. `uniform_decode_sizes` is the addition of vLLM 0.32:
    /// a decode of all seats has a graph of its own. `ceiling` is [`CAPTURE_CEILING`] or
    /// [`CAPTURE_CEILING_BLACKWELL`].
    pub fn default_for(
        max_num_seqs: u32,
        max_num_batched_tokens: u32,
        tokens_per_decode: u32,
        uniform_decode_sizes: bool,
        ceiling: u32,
    ) -> Self {
        let q = tokens_per_decode.max(1);
        let top = max_num_seqs
            .saturating_mul(2)
            .saturating_mul(q)
            .min(ceiling)
            .min(max_num_batched_tokens);
        let mut sizes = grid(top);
        // The budget itself can be the largest batch, and then it is one that a full prefill always hits.
        if max_num_batched_tokens <= top {
            sizes.push(max_num_batched_tokens);
        }
        if uniform_decode_sizes {
            let mut requests = vec![max_num_seqs];
            if q > 1 {
                requests.extend(grid(max_num_seqs.min(top)));
            }
            sizes.extend(
                requests
                    .into_iter()
                    .map(|n| n.saturating_mul(q))
                    .filter(|&s| s > 0 && s <= top),
            );
        }
        Self::sorted(sizes, q)
    }

    fn sorted(mut sizes: Vec<u32>, tokens_per_decode: u32) -> Self {
        sizes.sort_unstable();
        sizes.dedup();
        Self {
            sizes,
            tokens_per_decode: tokens_per_decode.max(1),
        }
    }

    /// The sizes in tokens, rising.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// The largest size, if any graph was captured.
    pub fn largest(&self) -> Option<u32> {
        self.sizes.last().copied()
    }

    /// Tokens of a row in a uniform decode.
    pub const fn tokens_per_decode(&self) -> u32 {
        self.tokens_per_decode
    }

    /// The captured size at which a batch of `tokens` runs; `None` when it is larger than every one (rule S85).
    pub fn pad(&self, tokens: u32) -> Option<u32> {
        let at = self.sizes.partition_point(|&s| s < tokens);
        self.sizes.get(at).copied()
    }

    /// How `batch` is launched under `mode` (rule S86).
    pub fn run_mode(&self, mode: GraphMode, batch: &BatchShape) -> StepMode {
        let eager = StepMode::Eager {
            tokens: batch.tokens(),
        };
        let Some(padded) = self.pad(batch.tokens()) else {
            return eager;
        };
        let full = StepMode::Full { padded };
        let piecewise = StepMode::Piecewise { padded };
        match mode {
            GraphMode::None => eager,
            GraphMode::Piecewise => piecewise,
            GraphMode::Full => full,
            GraphMode::FullDecodeOnly | GraphMode::FullAndPiecewise if self.is_uniform_decode(batch) => full,
            GraphMode::FullDecodeOnly => eager,
            GraphMode::FullAndPiecewise => piecewise,
        }
    }

    /// Every row feeds exactly one decode's tokens. vLLM looks at counts alone, so the last token of a prompt on
    /// its own passes for a decode.
    pub fn is_uniform_decode(&self, batch: &BatchShape) -> bool {
        let q = self.tokens_per_decode;
        // A shape made from sums alone has no rows to look at: then any prefill counts as mixed.
        let rows_known = batch.prefills.len() == batch.prefill_seqs as usize;
        // Decodes that are not listed have equally many tokens each, so the totals speak for them; and rows of one
        // token on average have one token each.
        (batch.prefill_seqs == 0 || rows_known)
            && u64::from(batch.tokens()) == u64::from(q) * u64::from(batch.num_seqs())
            && (q == 1
                || batch
                    .prefills
                    .iter()
                    .chain(&batch.decodes)
                    .all(|row| row.tokens == q))
    }
}

/// 1, 2, 4, then every 8 below 256, then every 16; nothing above `top`.
fn grid(top: u32) -> Vec<u32> {
    [1, 2, 4]
        .into_iter()
        .chain((8..256).step_by(8))
        .chain((256..=top.max(256)).step_by(16))
        .filter(|&s| s <= top)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default(seqs: u32, budget: u32) -> CaptureSizes {
        CaptureSizes::default_for(seqs, budget, 1, true, CAPTURE_CEILING)
    }

    fn decodes(rows: u32, tokens: u32) -> BatchShape {
        let mut batch = BatchShape::default();
        (0..rows).for_each(|_| batch.add_decode(tokens, 100));
        batch
    }

    #[test]
    fn the_examples_of_rule_s84() {
        let usual = default(256, 8192);
        assert_eq!(usual.sizes().len(), 51);
        assert_eq!(usual.sizes()[..5], [1, 2, 4, 8, 16]);
        assert_eq!(usual.sizes()[33..37], [248, 256, 272, 288]);
        assert_eq!(usual.largest(), Some(512));
        let hundred = default(100, 8192);
        assert_eq!(hundred.largest(), Some(200));
        assert!(hundred.sizes().contains(&100));
        let before = CaptureSizes::default_for(100, 8192, 1, false, CAPTURE_CEILING);
        assert!(!before.sizes().contains(&100), "only 0.32 adds it");
        assert_eq!(default(4, 8192).sizes(), [1, 2, 4, 8]);
    }

    #[test]
    fn the_ceiling_is_bounded_by_the_budget_and_doubles_on_blackwell() {
        let small = default(256, 100);
        assert_eq!(small.sizes()[small.sizes().len() - 2..], [96, 100]);
        let wide = CaptureSizes::default_for(1024, 16_384, 1, true, CAPTURE_CEILING_BLACKWELL);
        assert_eq!(wide.largest(), Some(1024));
        assert_eq!(wide.sizes().len(), 51 + 32);
    }

    #[test]
    fn with_drafts_every_multiple_of_the_request_grid_is_captured() {
        // q = 3, 100 seats: C = min(600, 512); 3 * {1, 2, 4, 8, …, 96, 100} joins the plain grid.
        let sizes = CaptureSizes::default_for(100, 8192, 3, true, CAPTURE_CEILING);
        for size in [3, 6, 12, 24, 264, 288, 300] {
            assert!(sizes.sizes().contains(&size), "{size}");
        }
        assert!(!sizes.sizes().contains(&312), "104 requests exceed the seats");
        assert_eq!(sizes.largest(), Some(512));
        assert!(sizes.is_uniform_decode(&decodes(5, 3)));
        assert!(!sizes.is_uniform_decode(&decodes(6, 2)));
    }

    #[test]
    fn t14_a_batch_runs_at_the_smallest_size_that_holds_it() {
        let sizes = default(1024, 8192);
        assert_eq!(sizes.pad(9), Some(16));
        assert_eq!(sizes.pad(16), Some(16));
        assert_eq!(sizes.pad(257), Some(272));
        assert_eq!(sizes.pad(512), Some(512));
        assert_eq!(sizes.pad(513), None);
        let mode = GraphMode::default();
        assert_eq!(
            sizes.run_mode(mode, &decodes(9, 1)),
            StepMode::Full { padded: 16 }
        );
        assert_eq!(
            sizes.run_mode(mode, &decodes(257, 1)),
            StepMode::Full { padded: 272 }
        );
        assert_eq!(
            sizes.run_mode(mode, &decodes(513, 1)),
            StepMode::Eager { tokens: 513 }
        );
    }

    #[test]
    fn t15_one_prompt_chunk_takes_the_batch_out_of_the_full_graph() {
        let sizes = default(256, 8192);
        let mut mixed = decodes(8, 1);
        mixed.add_prefill(200, 0);
        let mode = GraphMode::default();
        assert_eq!(sizes.run_mode(mode, &mixed), StepMode::Piecewise { padded: 208 });
        let eager = StepMode::Eager { tokens: 208 };
        assert_eq!(sizes.run_mode(GraphMode::FullDecodeOnly, &mixed), eager);
        assert_eq!(
            sizes.run_mode(GraphMode::Full, &mixed),
            StepMode::Full { padded: 208 }
        );
        assert_eq!(sizes.run_mode(GraphMode::None, &mixed), eager);
        let mut large = decodes(8, 1);
        large.add_prefill(2040, 0);
        assert_eq!(sizes.run_mode(mode, &large), StepMode::Eager { tokens: 2048 });
        assert_eq!(sizes.run_mode(mode, &mixed).computed_tokens(), 208);
    }

    #[test]
    fn the_last_token_of_a_prompt_passes_for_a_decode_only_if_its_row_is_known() {
        let sizes = default(256, 8192);
        let mut batch = decodes(3, 1);
        batch.add_prefill(1, 15);
        assert!(sizes.is_uniform_decode(&batch));
        batch.prefills.clear();
        assert!(!sizes.is_uniform_decode(&batch));
    }

    #[test]
    fn decodes_that_are_not_listed_are_uniform_if_one_token_is() {
        let mut batch = BatchShape::default();
        batch.add_decodes(5, 500);
        assert!(default(256, 8192).is_uniform_decode(&batch));
        let with_drafts = CaptureSizes::default_for(100, 8192, 3, true, CAPTURE_CEILING);
        assert!(!with_drafts.is_uniform_decode(&batch));
        batch.add_decode(2, 9);
        assert!(!default(256, 8192).is_uniform_decode(&batch));
    }

    #[test]
    fn lists_of_users_replace_the_default_and_eager_has_none() {
        let sizes = CaptureSizes::from_list(&[64, 8, 8, 4096, 0], 2048, 1);
        assert_eq!(sizes.sizes(), [8, 64]);
        assert_eq!(sizes.pad(65), None);
        assert_eq!(CaptureSizes::none().pad(1), None);
        assert_eq!(
            CaptureSizes::none().run_mode(GraphMode::default(), &decodes(1, 1)),
            StepMode::Eager { tokens: 1 }
        );
    }

    /// S72: decodes beside decodes run at the larger captured size; a prompt on one rank takes the full graph from all; one
    /// too large for any graph takes every graph, and what was padded stays padded.
    #[test]
    fn ranks_agree_on_the_most_restrictive_mode_and_the_most_tokens() {
        let agreed = |own: &[StepMode]| {
            let mut modes = own.to_vec();
            StepMode::agree(&mut modes);
            modes
        };
        let (full, piecewise) = (
            |padded| StepMode::Full { padded },
            |padded| StepMode::Piecewise { padded },
        );
        let eager = |tokens| StepMode::Eager { tokens };
        assert_eq!(agreed(&[full(8), full(32), full(1)]), [full(32); 3]);
        assert_eq!(agreed(&[full(8), piecewise(208), full(1)]), [piecewise(208); 3]);
        assert_eq!(agreed(&[full(256), piecewise(16)]), [piecewise(256); 2]);
        assert_eq!(
            agreed(&[full(16), eager(2048), piecewise(208)]),
            [eager(16), eager(2048), eager(208)]
        );
        assert_eq!(agreed(&[]), []);
    }

    #[test]
    fn modes_are_read_by_vllm_s_names_in_either_case() {
        for (text, mode) in [
            ("\"FULL_AND_PIECEWISE\"", GraphMode::FullAndPiecewise),
            ("\"full_decode_only\"", GraphMode::FullDecodeOnly),
        ] {
            assert_eq!(serde_json::from_str::<GraphMode>(text).unwrap(), mode);
        }
    }
}
