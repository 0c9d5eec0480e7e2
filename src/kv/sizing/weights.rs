//! Weights on one rank, by part: what tensor, pipeline and expert parallelism divide, and what they copy.

use std::ops::Range;

use crate::profile::Model;
use crate::steptime::Deployment;
use crate::steptime::deployment::UNQUANTISED_BYTES;
use crate::steptime::stages::has_experts;

/// Entries that a vocabulary is filled up to before ranks share it (vLLM's `DEFAULT_VOCAB_PADDING_SIZE`).
const VOCAB_PADDING: u64 = 64;

/// Bytes of weights on one rank, by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct WeightBytes {
    /// Projections of attention.
    pub attention: u64,
    /// Dense feed-forward layers, and the shared experts.
    pub mlp: u64,
    /// Routed experts and their routers.
    pub experts: u64,
    /// Input embedding and LM head.
    pub embeddings: u64,
    /// Norms.
    pub norms: u64,
}

impl WeightBytes {
    /// All parts.
    pub const fn total(&self) -> u64 {
        self.attention + self.mlp + self.experts + self.embeddings + self.norms
    }
}

/// Weights of a rank in the pipeline stage that holds `layers`.
pub fn stage_weights(deployment: &Deployment, layers: &Range<u32>) -> WeightBytes {
    let model = &deployment.model;
    let (tp, ep) = (u64::from(deployment.tp.max(1)), u64::from(deployment.ep.max(1)));
    let h = u64::from(model.hidden.value);
    let count = u64::from(layers.end - layers.start);
    let moe_layers = layers.clone().filter(|&l| has_experts(model, l)).count() as u64;
    let linear = |parameters: u64| (parameters as f64 * deployment.weight_bytes()).ceil() as u64;
    let plain = |parameters: u64| (parameters as f64 * UNQUANTISED_BYTES).ceil() as u64;

    let dense = (count - moe_layers) * 3 * h * u64::from(model.intermediate.value).div_ceil(tp);
    let (mut shared, mut experts) = (0, 0);
    if let Some(moe) = &model.moe {
        let width = u64::from(moe.intermediate.value);
        // Expert-parallel ranks hold whole experts; otherwise each rank holds a slice of all.
        let routed = if ep > 1 {
            u64::from(moe.experts.value).div_ceil(ep) * 3 * h * width
        } else {
            u64::from(moe.experts.value) * 3 * h * width.div_ceil(tp)
        };
        let router = h * u64::from(moe.experts.value);
        shared = moe_layers * 3 * h * u64::from(moe.shared_intermediate.value).div_ceil(tp);
        let routed = (moe_layers * routed) as f64 * deployment.expert_weight_bytes();
        experts = routed.ceil() as u64 + plain(moe_layers * router);
    }
    let matrix = u64::from(model.vocab.value)
        .next_multiple_of(VOCAB_PADDING)
        .div_ceil(tp)
        * h;
    let (first, last) = (layers.start == 0, layers.end == model.layers.value);
    let matrices = match (first, last) {
        (true, true) if model.tied_embeddings.value => 1,
        _ => u64::from(first) + u64::from(last),
    };
    WeightBytes {
        attention: linear(count * attention_per_rank(model, tp)),
        mlp: linear(dense + shared),
        experts,
        embeddings: plain(matrices * matrix),
        norms: plain(2 * count * h + u64::from(last) * h),
    }
}

/// Weights of one layer's attention on one rank. KV heads are copied once there are more ranks than heads; the
/// compressing projections of latent attention are copied to every rank.
fn attention_per_rank(model: &Model, tp: u64) -> u64 {
    let h = u64::from(model.hidden.value);
    let heads = u64::from(model.heads.value).div_ceil(tp);
    if let Some(mla) = &model.mla {
        let [q, kv, nope, rope, v] = [
            &mla.q_lora_rank,
            &mla.kv_lora_rank,
            &mla.qk_nope_head_dim,
            &mla.qk_rope_head_dim,
            &mla.v_head_dim,
        ]
        .map(|f| u64::from(f.value));
        let query = if q == 0 {
            h * heads * (nope + rope)
        } else {
            h * q + q * heads * (nope + rope)
        };
        return query + h * (kv + rope) + kv * heads * (nope + v) + heads * v * h;
    }
    let kv_heads = u64::from(model.kv_heads.value).div_ceil(tp);
    2 * h * u64::from(model.head_dim.value) * (heads + kv_heads)
}
