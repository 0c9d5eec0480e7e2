//! What a deployment puts on one rank, in numbers.

use super::{Arithmetic, Experts, Gemm, Roofline};
use crate::steptime::attention::{Attention, AttentionRates};
use crate::steptime::deployment::{ComputeClass, Deployment, UNQUANTISED_BYTES};
use crate::steptime::parameters::Parameters;

impl Roofline {
    /// Weights, heads and cache of one rank. All pipeline stages of a step follow each other, so all layers count.
    pub(in crate::steptime) fn layout(deployment: &Deployment) -> Self {
        let model = &deployment.model;
        let tp = f64::from(deployment.tp.max(1));
        let hidden = f64::from(model.hidden.value);
        let layers = f64::from(model.layers.value);
        let heads = (f64::from(model.heads.value) / tp).ceil();
        let kv_heads = (f64::from(model.kv_heads.value) / tp).ceil().max(1.0);
        let weight_bytes = deployment.weight_bytes();
        let (attention_gemm, pair_prefill, pair_decode, kv_elements) = match &model.mla {
            None => {
                let d = f64::from(model.head_dim.value);
                let params = hidden * d * (2.0 * heads + 2.0 * kv_heads);
                let elements = 2.0 * hidden + d * (2.0 * heads + 2.0 * kv_heads);
                let pair = 4.0 * heads * d;
                (
                    gemm(params, weight_bytes, elements),
                    pair,
                    pair,
                    2.0 * kv_heads * d,
                )
            }
            Some(mla) => {
                let [q, r, nope, rope, v] = [
                    &mla.q_lora_rank,
                    &mla.kv_lora_rank,
                    &mla.qk_nope_head_dim,
                    &mla.qk_rope_head_dim,
                    &mla.v_head_dim,
                ]
                .map(|f| f64::from(f.value));
                let query = if q > 0.0 {
                    hidden * q + q * heads * (nope + rope)
                } else {
                    hidden * heads * (nope + rope)
                };
                let params = query + hidden * (r + rope) + r * heads * (nope + v) + heads * v * hidden;
                let elements = 2.0 * hidden + heads * (nope + rope + v) + q + r + rope;
                let prefill = 2.0 * heads * (nope + rope + v);
                (
                    gemm(params, weight_bytes, elements),
                    prefill,
                    2.0 * heads * (2.0 * r + rope),
                    r + rope,
                )
            }
        };
        let inter = f64::from(model.intermediate.value) / tp;
        let attention_width = heads * f64::from(model.head_dim.value);
        let kv_bytes = kv_elements * f64::from(deployment.kv_bytes());
        let windowed = f64::from(model.windowed_layers());
        let attention = |layers: f64, window: f64| Attention {
            layers,
            flops_per_pair_prefill: pair_prefill,
            flops_per_pair_decode: pair_decode,
            kv_bytes,
            window,
        };
        let window = model
            .window
            .as_ref()
            .map_or(f64::INFINITY, |w| f64::from(w.tokens.value));
        let vocab_per_rank = (f64::from(model.vocab.value) / tp).ceil();
        let eight_bit = deployment.dtype.compute() != ComputeClass::Bf16;
        let experts = model.moe.as_ref().map(|moe| {
            let ep = f64::from(deployment.ep.max(1));
            let (share, split) = if deployment.ep > 1 {
                (1.0 / ep, 1.0)
            } else {
                (1.0, tp)
            };
            let width = f64::from(moe.intermediate.value) / split;
            let shared = f64::from(moe.shared_intermediate.value) / tp;
            let router = hidden * f64::from(moe.experts.value);
            Experts {
                layers: f64::from(model.moe_layers()),
                total: f64::from(moe.experts.value),
                per_token: f64::from(moe.experts_per_token.value),
                share,
                params: 3.0 * hidden * width,
                weight_bytes: deployment.expert_weight_bytes(),
                elements_per_token: 2.0 * hidden + 5.0 * width,
                always: gemm(
                    3.0 * hidden * shared + router,
                    weight_bytes,
                    2.0 * hidden + 2.0 * shared,
                ),
            }
        });
        Self {
            parameters: Parameters::default(),
            deployment: deployment.clone(),
            arithmetic: Arithmetic::NONE,
            expert_arithmetic: Arithmetic::NONE,
            head_arithmetic: Arithmetic::NONE,
            weight_bytes_per_s: 1.0,
            attention_rates: AttentionRates {
                flops: 1.0,
                kv_bytes_per_s: 1.0,
                lost_pairs: 0.0,
                key_s: 0.0,
            },
            link: None,
            layers,
            attention_gemm,
            mlp: gemm(3.0 * hidden * inter, weight_bytes, 2.0 * hidden + 5.0 * inter),
            mlp_layers: layers - f64::from(model.moe_layers()),
            experts,
            attention: [
                attention(layers - windowed, f64::INFINITY),
                attention(windowed, window),
            ],
            lm_head: gemm(
                hidden * vocab_per_rank,
                UNQUANTISED_BYTES,
                hidden + vocab_per_rank,
            ),
            hidden,
            vocab_per_rank,
            reduces_per_layer: 2.0,
            quantised_elements: if eight_bit {
                // Inputs of the QKV, output, gate-and-up and down products.
                2.0 * hidden + attention_width + inter
            } else {
                0.0
            },
        }
    }
}

fn gemm(params: f64, weight_bytes: f64, elements_per_token: f64) -> Gemm {
    Gemm {
        params,
        weight_bytes,
        elements_per_token,
    }
}
