use std::path::Path;

use super::*;
use crate::profile::catalog;
use crate::profile::figure::Figure;
use crate::profile::model::{Mla, Moe, Window};
use crate::steptime::{CaptureSizes, KvDtype, WeightDtype};

fn knobs() -> SizingKnobs {
    SizingKnobs {
        gpu_memory_utilization: 0.9,
        block_size: 16,
        max_num_seqs: 128,
        max_num_batched_tokens: 2048,
        max_model_len: 4096,
        subtracts_graphs: false,
        runtime_reserve_bytes: None,
        kv_cache_memory_bytes: None,
    }
}

fn model(name: &str) -> Model {
    catalog::model(name, Path::new("")).unwrap()
}

fn on(device: &str, model: Model, tp: u32) -> Deployment {
    let device = catalog::accelerator(device, Path::new("")).unwrap();
    Deployment {
        tp,
        ..Deployment::new(model, device)
    }
}

/// Dimensions as published; all else of a Llama without tied embeddings.
fn llama(layers: u32, hidden: u32, intermediate: u32, heads: u32, kv_heads: u32) -> Model {
    let mut m = model("llama-3.1-8b");
    m.layers.value = layers;
    m.hidden.value = hidden;
    m.intermediate.value = intermediate;
    m.heads.value = heads;
    m.kv_heads.value = kv_heads;
    m.vocab.value = 32_000;
    m
}

fn figure<T>(value: T) -> Figure<T> {
    Figure {
        value,
        source: "test".into(),
        doubt: None,
    }
}

#[test]
fn bytes_per_token_match_hand_counts() {
    // TinyLlama: 22 layers * 2 (K, V) * 4 heads * 64 * 2 bytes.
    assert_eq!(kv_bytes_per_token(&model("tinyllama-1.1b"), 1), 22_528);
    assert_eq!(kv_bytes_per_token(&model("llama-3.1-8b"), 1), 131_072);
    assert_eq!(kv_bytes_per_token(&model("llama-3.1-70b"), 8), 40_960);
    // 8 KV heads on 16 ranks are replicated: no less than one head a rank.
    assert_eq!(kv_bytes_per_token(&model("llama-3.1-70b"), 16), 40_960);
    assert_eq!(kv_bytes_per_token(&model("kneeboard-small"), 1), 4_096);
}

/// vLLM 0.15.1 on H100 80 GB at utilization 0.9, budget 2048, 128 seats; block counts as its servers printed them.
/// Two constants (runtime, collectives) serve three models, and neither knows which model it is.
#[test]
fn one_rule_gives_the_measured_block_counts_of_three_models() {
    for (name, tp, measured) in [
        ("llama-2-7b", 1, 7462),
        ("codellama-34b", 2, 26_602),
        ("llama-2-70b", 4, 31_356),
    ] {
        let got = ledger(&on("h100-sxm", model(name), tp), knobs()).unwrap();
        let error = f64::from(got.num_gpu_blocks) / f64::from(measured) - 1.0;
        println!(
            "{name}: {} against {measured}, {:+.3} %",
            got.num_gpu_blocks,
            error * 100.0
        );
        assert!(error.abs() < 0.005, "{name}: {got}");
    }
}

#[test]
fn a_hand_ledger_of_llama_8b_on_h100() {
    let got = ledger(&on("h100-sxm", model("llama-3.1-8b"), 1), knobs()).unwrap();
    let device = 80u64 << 30;
    assert_eq!(got.driver, 858_993_459);
    assert_eq!(got.requested, ((device - 858_993_459) as f64 * 0.9).ceil() as u64);
    let parts = got.weight_parts;
    assert_eq!(parts.attention, 2 * 32 * 2 * 4096 * 128 * (32 + 8));
    assert_eq!(parts.mlp, 2 * 32 * 3 * 4096 * 14_336);
    assert_eq!(parts.embeddings, 2 * 2 * 128_256 * 4096);
    assert_eq!(parts.norms, 2 * 65 * 4096);
    assert_eq!(parts.experts, 0);
    // Residual and hidden states 2 * 2048 * 4096 * 2 bytes; sampler 128 * 128,256 * 26 above gate and up's
    // 2048 * 3 * 14,336 * 2.
    assert_eq!(got.reserve_parts.activations, 33_554_432 + 128 * 128_256 * 26);
    assert_eq!(got.block, 16 * 131_072);
    let kv = got.requested - got.weights - got.reserve;
    assert_eq!(u64::from(got.num_gpu_blocks), kv / (16 * 131_072));
    assert_eq!(got.blocks_per_request, 256);
    assert_eq!(got.printed_tokens(), u64::from(got.num_gpu_blocks) * 16);
}

#[test]
fn a_larger_step_and_captured_graphs_cost_blocks() {
    let deployment = on("h100-sxm", model("llama-3.1-8b"), 1);
    let base = ledger(&deployment, knobs()).unwrap();
    let wide = SizingKnobs {
        max_num_batched_tokens: 16_384,
        ..knobs()
    };
    let wide = ledger(&deployment, wide).unwrap();
    assert_eq!(
        wide.reserve_parts.activations,
        2 * 16_384 * 4096 * 2 + 16_384 * 3 * 14_336 * 2
    );
    assert!(wide.num_gpu_blocks < base.num_gpu_blocks);
    let counted = SizingKnobs {
        subtracts_graphs: true,
        ..knobs()
    };
    let graphs = ledger(&deployment, counted).unwrap().reserve_parts.graphs;
    assert!((100 << 20..2 << 30).contains(&graphs), "{graphs}");
    let eager = Deployment {
        graphs: CaptureSizes::none(),
        ..deployment
    };
    assert_eq!(ledger(&eager, counted).unwrap().reserve_parts.graphs, 0);
}

#[test]
fn formats_change_linear_layers_and_cache_but_not_embeddings() {
    let bf16 = on("h100-sxm", model("llama-3.1-8b"), 1);
    let base = ledger(&bf16, knobs()).unwrap();
    let small = Deployment {
        dtype: WeightDtype::Nvfp4,
        kv_dtype: KvDtype::Fp8,
        ..bf16
    };
    let got = ledger(&small, knobs()).unwrap();
    assert_eq!(
        got.weight_parts.mlp * 32,
        base.weight_parts.mlp * 9,
        "4.5 of 16 bits"
    );
    assert_eq!(got.weight_parts.embeddings, base.weight_parts.embeddings);
    assert_eq!(got.block * 2, base.block);
}

#[test]
fn stages_divide_layers_and_the_tightest_decides() {
    let mut deployment = on("l40s", model("llama-3.1-8b"), 1);
    deployment.pp = 3;
    let got = ledger(&deployment, knobs()).unwrap();
    // 32 over 3: 11, 11, 10; the first also holds the embedding, the last the LM head and the sampler.
    assert_eq!((got.stage, got.stages), (0, 3));
    assert_eq!(got.layout.group_layers, 11);
    assert_eq!(got.weight_parts.embeddings, 2 * 128_256 * 4096);
    assert_eq!(got.block, 11 * 16 * 4096);
    assert!(got.to_string().ends_with("in stage 0 of 3"), "{got}");
}

/// Latent attention: one vector of 512 + 64 elements a token and layer, on every rank in full.
#[test]
fn latent_attention_is_not_divided_and_experts_are() {
    let mut m = llama(61, 7168, 18_432, 128, 128);
    m.mla = Some(Mla {
        q_lora_rank: figure(1536),
        kv_lora_rank: figure(512),
        qk_nope_head_dim: figure(128),
        qk_rope_head_dim: figure(64),
        v_head_dim: figure(128),
    });
    m.moe = Some(Moe {
        experts: figure(256),
        experts_per_token: figure(8),
        intermediate: figure(2048),
        shared_experts: figure(1),
        shared_intermediate: figure(2048),
        first_dense_layers: figure(3),
        every: figure(1),
        expert_weight_bytes: None,
    });
    assert_eq!(kv_bytes_per_token(&m, 1), 61 * 576 * 2);
    assert_eq!(kv_bytes_per_token(&m, 8), 61 * 576 * 2);
    let layers = 0..61;
    let mut d = on("h200-sxm", m, 8);
    (d.dtype, d.expert_dtype) = (WeightDtype::Fp8, WeightDtype::Fp8);
    let sliced = stage_weights(&d, &layers);
    // 58 layers of 256 experts of 3 * 7168 * 2048 weights over 8 ranks, and a router in bf16 on each.
    assert_eq!(sliced.experts, 58 * (256 * 3 * 7168 * 2048 / 8 + 2 * 7168 * 256));
    d.ep = 8;
    let whole = stage_weights(&d, &layers);
    assert_eq!(whole.experts, sliced.experts, "as many bytes, other cuts");
    // Down-projections are whole on each rank: 7168 * (1536 + 512 + 64).
    let per_rank = 7168 * (1536 + 576) + 16 * (1536 * 192 + 512 * 256 + 128 * 7168);
    assert_eq!(whole.attention, 61 * per_rank);
    let all = d.model.parameters_from_dimensions();
    assert!(
        (6.6e11..6.8e11).contains(&(all as f64)),
        "DeepSeek V3 has 671 billion: {all}"
    );
}

#[test]
fn windowed_models_share_one_pool_and_say_what_a_request_holds() {
    // Gemma-like: 60 layers, every sixth with full attention, window 1024: 10 full, 50 windowed.
    let mut m = llama(60, 4096, 14_336, 32, 8);
    m.window = Some(Window {
        tokens: figure(1024),
        full_every: figure(6),
    });
    let d = on("h100-sxm", m, 1);
    let long = SizingKnobs {
        max_model_len: 32_768,
        ..knobs()
    };
    let got = ledger(&d, long).unwrap();
    assert_eq!(
        (
            got.layout.full_groups,
            got.layout.window_groups,
            got.layout.group_layers
        ),
        (1, 5, 10)
    );
    assert_eq!(got.block, 10 * 16 * 4096);
    // Two batches of 2048 in flight with asynchronous scheduling: ceil((1023 + 4096) / 16) + 1 = 321.
    assert_eq!(got.blocks_per_request, 2048 + 5 * 321);
    let concurrency = f64::from(got.num_gpu_blocks) / f64::from(2048 + 5 * 321);
    approx::assert_relative_eq!(got.max_concurrency(), concurrency);
    assert!(
        got.summary().contains("1 full and 5 windowed groups"),
        "{}",
        got.summary()
    );
}

#[test]
fn what_does_not_fit_is_refused_with_the_ledger() {
    let e = ledger(&on("h100-sxm", model("llama-3.1-70b"), 1), knobs()).unwrap_err();
    assert!(matches!(e, SizingError::ModelTooLarge(_)), "{e}");
    assert!(e.to_string().contains("weights 131.4"), "{e}");
    let small = on("h100-sxm", model("llama-3.1-8b"), 1);
    let mut tight = knobs();
    tight.runtime_reserve_bytes = Some(80 << 30);
    let e = ledger(&small, tight).unwrap_err();
    assert!(matches!(e, SizingError::NoBlockLeft(_)), "{e}");
    let mut greedy = knobs();
    greedy.kv_cache_memory_bytes = Some(70 << 30);
    let e = ledger(&small, greedy).unwrap_err();
    assert!(matches!(e, SizingError::CacheTooLarge(_)), "{e}");
    let e = ledger(&on("cpu-1core", model("kneeboard-small"), 1), knobs()).unwrap_err();
    assert!(matches!(e, SizingError::Unknown(..)), "{e}");
}

#[test]
fn a_stated_cache_replaces_the_derivation() {
    let mut stated = knobs();
    stated.kv_cache_memory_bytes = Some(10 << 30);
    let got = ledger(&on("h100-sxm", model("llama-3.1-8b"), 1), stated).unwrap();
    assert_eq!(u64::from(got.num_gpu_blocks), (10u64 << 30) / (16 * 131_072));
}
