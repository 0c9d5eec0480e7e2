//! What an engine takes beside weights and KV blocks: activations, captured graphs, runtime (rule K3).
//!
//! vLLM measures these at start; here they are computed. The two constants of the runtime are what start-up block
//! counts of vLLM 0.15.1 on H100 leave unexplained (TP 1, 2 and 4 of three models, all three within 0.1 %).

use std::ops::Range;

use crate::profile::Model;
use crate::steptime::stages::has_experts;
use crate::steptime::{Deployment, GraphMode};

/// Library workspaces and loaded kernels of an NVIDIA device.
pub const RUNTIME_BYTES: u64 = 300_000_000;

/// Buffers of collectives, where a replica has more than one device.
pub const COLLECTIVE_BYTES: u64 = 460_000_000;

/// What the driver keeps of an NVIDIA device's stated memory: CUDA offers 79.1 to 79.2 GiB of an H100's 80 and 79.25
/// of an A100's; other devices lie between 0.4 and 1.8 %.
pub const DRIVER_SHARE: f64 = 0.01;

/// Memory of one captured graph, a layer. Start-up logs of vLLM 0.21 and later give 0.1 to 0.4 GiB for 20 to 40
/// graphs; vLLM's own estimate, which is what counts, is known to be several times too large for some models.
const GRAPH_BYTES_PER_LAYER: u64 = 150_000;

/// Bytes of an activation.
const ACTIVATION_BYTES: u64 = 2;

/// Bytes of each logit while rows are sampled: the model's own in 16 bits, fp32 copy, sorted values, 64-bit sort
/// indices, probabilities, their running sums.
const SAMPLER_BYTES: u64 = 2 + 4 + 4 + 8 + 4 + 4;

/// vLLM computes experts in chunks of at most so many tokens.
const EXPERT_CHUNK: u64 = 32_768;

/// Memory beside weights and KV blocks, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct ReserveBytes {
    /// Workspaces, loaded kernels, buffers of collectives; or the whole reserve, where it was stated.
    pub runtime: u64,
    /// Peak of the activations in a step of `max_num_batched_tokens` tokens.
    pub activations: u64,
    /// Captured graphs, as far as the release subtracts them.
    pub graphs: u64,
}

impl ReserveBytes {
    /// All of it.
    pub const fn total(&self) -> u64 {
        self.runtime
            .saturating_add(self.activations)
            .saturating_add(self.graphs)
    }
}

/// Runtime of a device, from its profile or, for NVIDIA, the constant above; `None` = unknown.
pub fn runtime(deployment: &Deployment) -> Option<u64> {
    let device = &deployment.accelerator;
    let nvidia = device.platform.is_nvidia();
    let base = match &device.runtime_reserve_bytes {
        Some(figure) => figure.value,
        None if nvidia => RUNTIME_BYTES,
        None => return None,
    };
    let collectives = if deployment.tp * deployment.pp > 1 {
        COLLECTIVE_BYTES
    } else {
        0
    };
    Some(base + collectives)
}

/// Peak of the activations of a step of `tokens` tokens, of which `rows` are sampled, on a rank that holds
/// `layers`.
///
/// The residual stream and the hidden states stay throughout; beside them live, one after the other, the largest
/// of: queries, keys, values and the attention's output; the gate and up projections and their product; the same
/// for each of a token's experts, with the router's logits; and the logits with the sampler's copies.
pub fn activations(deployment: &Deployment, layers: &Range<u32>, tokens: u32, rows: u32) -> u64 {
    let model = &deployment.model;
    let (t, h) = (u64::from(tokens), u64::from(model.hidden.value));
    let tp = u64::from(deployment.tp.max(1));
    let mut largest = t * attention_width(model, tp) * ACTIVATION_BYTES;
    if layers.clone().any(|l| !has_experts(model, l)) {
        largest = largest.max(t * 3 * u64::from(model.intermediate.value).div_ceil(tp) * ACTIVATION_BYTES);
    }
    if layers.clone().any(|l| has_experts(model, l)) {
        largest = largest.max(expert_activations(deployment, t));
    }
    if layers.end == model.layers.value {
        let rows = u64::from(rows.min(tokens));
        largest = largest.max(rows * u64::from(model.vocab.value) * SAMPLER_BYTES);
    }
    2 * t * h * ACTIVATION_BYTES + largest
}

/// Elements of a token's attention intermediates on one rank.
fn attention_width(model: &Model, tp: u64) -> u64 {
    let heads = u64::from(model.heads.value).div_ceil(tp);
    match &model.mla {
        None => {
            let kv_heads = u64::from(model.kv_heads.value).div_ceil(tp);
            u64::from(model.head_dim.value) * (2 * heads + 2 * kv_heads)
        }
        Some(mla) => {
            let [q, kv, nope, rope, v] = [
                &mla.q_lora_rank,
                &mla.kv_lora_rank,
                &mla.qk_nope_head_dim,
                &mla.qk_rope_head_dim,
                &mla.v_head_dim,
            ]
            .map(|f| u64::from(f.value));
            // Latents, then queries, unfolded keys and values, and the output.
            q + kv + rope + heads * (2 * (nope + rope) + 2 * v)
        }
    }
}

fn expert_activations(deployment: &Deployment, tokens: u64) -> u64 {
    let Some(moe) = &deployment.model.moe else {
        return 0;
    };
    let tp = u64::from(deployment.tp.max(1));
    let h = u64::from(deployment.model.hidden.value);
    let split = if deployment.ep > 1 { 1 } else { tp };
    let width = u64::from(moe.intermediate.value).div_ceil(split);
    let copies = tokens.min(EXPERT_CHUNK) * u64::from(moe.experts_per_token.value);
    let shared = tokens * 3 * u64::from(moe.shared_intermediate.value).div_ceil(tp);
    // The gate and up products and the down product share one buffer.
    let elements = copies * ((2 * width).max(h) + width) + shared;
    elements * ACTIVATION_BYTES + tokens * u64::from(moe.experts.value) * 4
}

/// Memory of the captured graphs of a rank with `layers` layers: each size once for each routine of the mode, and
/// the pool that all share, which holds the activations of the largest.
pub fn graphs(deployment: &Deployment, layers: &Range<u32>, max_num_seqs: u32) -> u64 {
    let sizes = deployment.graphs.sizes();
    let (Some(largest), true) = (
        deployment.graphs.largest(),
        deployment.graph_mode != GraphMode::None,
    ) else {
        return 0;
    };
    let seats = u64::from(max_num_seqs) * u64::from(deployment.graphs.tokens_per_decode());
    let decodes = sizes.iter().filter(|&&s| u64::from(s) <= seats).count() as u64;
    let all = sizes.len() as u64;
    let captured = match deployment.graph_mode {
        GraphMode::None => 0,
        GraphMode::Piecewise | GraphMode::Full => all,
        GraphMode::FullDecodeOnly => decodes,
        GraphMode::FullAndPiecewise => all + decodes,
    };
    let count = u64::from(layers.end - layers.start);
    captured * count * GRAPH_BYTES_PER_LAYER + activations(deployment, layers, largest, 0)
}
