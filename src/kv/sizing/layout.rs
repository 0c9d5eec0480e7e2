//! How the KV cache of a model is cut into blocks (rules K6 to K8).

use std::ops::Range;

use crate::profile::Model;
use crate::steptime::Deployment;

/// The KV cache of one rank: groups of layers that share one pool of equal pages.
///
/// Layers of a kind (full attention, sliding window) are cut into groups of equal layer count; a request takes
/// blocks in every group. A model with one kind of layer has one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct KvLayout {
    /// Tokens of a block.
    pub block_size: u32,
    /// Bytes of a block in one layer on one rank (K6).
    pub page: u64,
    /// Layers of a group on this rank's pipeline stage.
    pub group_layers: u32,
    /// Groups with full attention.
    pub full_groups: u32,
    /// Groups with a sliding window.
    pub window_groups: u32,
    /// Positions of the window; 0 without one.
    pub window: u32,
}

impl KvLayout {
    /// The layout on the ranks that hold `layers`.
    pub fn of_stage(deployment: &Deployment, block_size: u32, layers: &Range<u32>) -> Self {
        let model = &deployment.model;
        let (windowed, full): (Vec<u32>, Vec<u32>) =
            (0..model.layers.value).partition(|&l| is_windowed(model, l));
        let size = group_size(full.len(), windowed.len());
        let groups = |n: usize| n.div_ceil(size.max(1));
        // vLLM deals the layers of a kind out to its groups in turn, so that pipeline stages share each evenly.
        let on_stage = |kind: &[u32]| {
            let n = groups(kind.len());
            (0..n)
                .map(|g| {
                    kind.iter()
                        .skip(g)
                        .step_by(n)
                        .filter(|l| layers.contains(l))
                        .count()
                })
                .max()
                .unwrap_or(0)
        };
        Self {
            block_size: block_size.max(1),
            page: u64::from(block_size.max(1)) * layer_bytes(model, deployment.tp, deployment.kv_bytes()),
            group_layers: on_stage(&full).max(on_stage(&windowed)) as u32,
            full_groups: groups(full.len()) as u32,
            window_groups: groups(windowed.len()) as u32,
            window: model.window.as_ref().map_or(0, |w| w.tokens.value),
        }
    }

    /// Bytes of a block over the layers of its group, on one rank.
    pub fn block_bytes(&self) -> u64 {
        self.page * u64::from(self.group_layers)
    }

    /// Blocks that one request of `tokens` can hold at most while `in_flight` tokens are scheduled and not yet
    /// processed (K7).
    pub fn blocks_of_request(&self, tokens: u32, in_flight: u32) -> u64 {
        let full = u64::from(tokens.div_ceil(self.block_size));
        let reach = (u64::from(self.window) + u64::from(in_flight)).saturating_sub(1);
        let windowed = reach.min(u64::from(tokens)).div_ceil(u64::from(self.block_size)) + 1;
        u64::from(self.full_groups) * full + u64::from(self.window_groups) * windowed
    }

    /// Layers of different kinds, or of windows alone: a request's blocks are not its tokens over the block size.
    pub const fn is_hybrid(&self) -> bool {
        self.window_groups > 0
    }

    /// Blocks of a pool with full attention alone that holds as many requests of `tokens` as `blocks` do here:
    /// the reading in which vLLM prints its cache size in tokens (K8).
    pub fn full_attention_equivalent(&self, blocks: u32, tokens: u32, in_flight: u32) -> u32 {
        if !self.is_hybrid() {
            return blocks;
        }
        let full = u128::from(tokens.div_ceil(self.block_size));
        let here = u128::from(self.blocks_of_request(tokens, in_flight).max(1));
        u32::try_from(u128::from(blocks) * full / here).unwrap_or(u32::MAX)
    }
}

/// Bytes of KV cache of one token in one layer on one rank (K6). Latent attention keeps one vector, whole on every
/// rank; otherwise KV heads are divided, and copied once there are more ranks than heads.
pub fn layer_bytes(model: &Model, tp: u32, element_bytes: u32) -> u64 {
    let elements = match &model.mla {
        Some(mla) => u64::from(mla.kv_lora_rank.value) + u64::from(mla.qk_rope_head_dim.value),
        None => {
            let heads = (model.kv_heads.value / tp.max(1)).max(1);
            2 * u64::from(heads) * u64::from(model.head_dim.value)
        }
    };
    elements * u64::from(element_bytes)
}

/// Layers of a group: the smaller count of the two kinds, or the larger one where it is below 1.5 times the
/// smaller (K8).
fn group_size(full: usize, windowed: usize) -> usize {
    let (small, large) = (full.min(windowed), full.max(windowed));
    if small == 0 || 2 * large < 3 * small {
        large
    } else {
        small
    }
}

/// Whether layer `index` attends to a window only: of each `full_every` layers the last has full attention.
fn is_windowed(model: &Model, index: u32) -> bool {
    model.window.as_ref().is_some_and(|w| match w.full_every.value {
        0 => true,
        every => !(index + 1).is_multiple_of(every),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_as_large_as_the_smaller_kind_unless_the_kinds_are_near() {
        // Gemma 3 27B: 10 full, 52 windowed layers; gpt-oss: as many of each; 12 and 10 are near.
        assert_eq!(group_size(10, 52), 10);
        assert_eq!(group_size(18, 18), 18);
        assert_eq!(group_size(10, 12), 12);
        assert_eq!(group_size(10, 15), 10);
        assert_eq!(group_size(0, 32), 32);
    }

    #[test]
    fn a_request_takes_blocks_in_each_group_by_hand() {
        let layout = KvLayout {
            block_size: 16,
            page: 1,
            group_layers: 10,
            full_groups: 1,
            window_groups: 6,
            window: 1024,
        };
        // Full: 32768 / 16 = 2048. Window: ceil((1023 + 2 * 2048) / 16) + 1 = 321, six times.
        assert_eq!(layout.blocks_of_request(32_768, 4096), 2048 + 6 * 321);
        // Shorter than the window: ceil(100 / 16) and ceil(100 / 16) + 1.
        assert_eq!(layout.blocks_of_request(100, 4096), 7 + 6 * 8);
        assert_eq!(
            layout.full_attention_equivalent(10_000, 32_768, 4096),
            (10_000 * 2048 / (2048 + 6 * 321)) as u32
        );
    }
}
