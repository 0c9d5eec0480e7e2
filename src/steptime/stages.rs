//! Pipeline stages: which layers each holds.

use std::ops::Range;

use crate::profile::Model;

/// The layers of each pipeline stage: equal counts, what is left over to the later stages but the last, which
/// holds the LM head (vLLM's `get_pp_indices`).
pub fn stage_layers(layers: u32, stages: u32) -> Vec<Range<u32>> {
    let stages = stages.max(1);
    let (each, left) = (layers / stages, layers % stages);
    let mut start = 0;
    (0..stages)
        .map(|stage| {
            let from_end = stages - stage;
            let extra = u32::from(stages > 1 && from_end >= 2 && from_end < 2 + left);
            let range = start..start + each + extra;
            start = range.end;
            range
        })
        .collect()
}

/// Whether layer `index` has experts.
pub fn has_experts(model: &Model, index: u32) -> bool {
    model.moe.as_ref().is_some_and(|moe| {
        let every = moe.every.value.max(1);
        index
            .checked_sub(moe.first_dense_layers.value)
            .is_some_and(|after| (after + 1).is_multiple_of(every))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_share_layers_as_vllm_does() {
        assert_eq!(stage_layers(32, 2), [0..16, 16..32]);
        assert_eq!(stage_layers(32, 4), [0..8, 8..16, 16..24, 24..32]);
        // 30 over 4: the second and third stage take one more.
        assert_eq!(stage_layers(30, 4), [0..7, 7..15, 15..23, 23..30]);
    }
}
