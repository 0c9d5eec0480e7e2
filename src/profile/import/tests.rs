//! Configurations written for these tests, with the keys that files of each kind have; the profiles that ship
//! are what they must come to.

use std::path::Path;

use serde_json::{Value, json};

use super::{model, profile_name, to_yaml};
use crate::profile::{Facts, Model, catalog};

fn import(config: &Value) -> Model {
    model(&config.to_string(), "config.json", Some("mine")).unwrap_or_else(|e| panic!("{e}"))
}

/// Name and value of each figure that an import can know.
fn values(model: &Model) -> Vec<(&'static str, String)> {
    model
        .figures()
        .into_iter()
        .filter(|f| !f.name.starts_with("published_"))
        .map(|f| (f.name, f.value))
        .collect()
}

fn assert_is(config: &Value, shipped: &str) -> Model {
    let got = import(config);
    let expected = catalog::model(shipped, Path::new("")).unwrap();
    assert_eq!(values(&got), values(&expected), "{shipped}");
    got
}

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "rope_theta": 500000.0,
        "_name_or_path": "meta-llama/Meta-Llama-3.1-8B"
    })
}

/// `base` with the keys of `changes`; a null takes a key away.
fn with(mut base: Value, changes: Value) -> Value {
    let (Value::Object(map), Value::Object(new)) = (&mut base, changes) else {
        panic!("two objects");
    };
    for (key, value) in new {
        if value.is_null() {
            map.remove(&key);
        } else {
            map.insert(key, value);
        }
    }
    base
}

#[test]
fn dense_families() {
    let got = assert_is(&llama(), "llama-3.1-8b");
    assert_eq!(got.hf_repo.as_deref(), Some("meta-llama/Meta-Llama-3.1-8B"));
    assert!(got.figures().iter().all(|f| f.doubt.is_none()), "{got:?}");
    let mistral = json!({"model_type": "mistral", "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 4096});
    assert_is(&with(llama(), mistral), "mistral-7b-v0.1");
    // Editions without a window say null.
    let mut v3 = with(llama(), json!({"model_type": "mistral", "vocab_size": 32768}));
    assert!(
        import(&v3).window.unwrap().tokens.doubt.is_some(),
        "left out, it is the default"
    );
    v3["sliding_window"] = Value::Null;
    assert!(import(&v3).window.is_none());
    let qwen2 = json!({
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
        "max_position_embeddings": 32768, "use_sliding_window": false, "sliding_window": 131072,
        "max_window_layers": 28
    });
    assert_is(&with(llama(), qwen2), "qwen2.5-7b");
    let qwen3 = json!({
        "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
        "tie_word_embeddings": true, "use_sliding_window": false
    });
    assert_is(&with(llama(), qwen3), "qwen3-0.6b");
    let phi = json!({
        "model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40,
        "num_attention_heads": 40, "num_key_value_heads": 10, "vocab_size": 32064,
        "max_position_embeddings": 4096, "sliding_window": 2047
    });
    assert_is(&with(llama(), phi), "phi-3-medium");
}

#[test]
fn gemma_has_a_nested_text_part_and_leaves_out_what_is_default() {
    let gemma2 = json!({
        "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
        "num_attention_heads": 16, "head_dim": 256, "vocab_size": 256000, "max_position_embeddings": 8192,
        "sliding_window": 4096, "tie_word_embeddings": null
    });
    assert_is(&with(llama(), gemma2), "gemma-2-9b");
    let gemma3 = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024
        }
    });
    let got = assert_is(&gemma3, "gemma-3-4b");
    for name in ["heads", "kv_heads", "head_dim", "vocab", "window.full_every"] {
        let figures = got.figures();
        let figure = figures.iter().find(|f| f.name == name).unwrap();
        assert!(figure.source == "default" && figure.doubt.is_some(), "{figure:?}");
    }
    assert!(got.notes[0].contains("vision"), "{:?}", got.notes);
}

#[test]
fn mixtures_of_experts() {
    let mixtral = json!({
        "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
        "max_position_embeddings": 32768
    });
    assert_is(&with(llama(), mixtral), "mixtral-8x7b");
    let qwen = json!({
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
        "mlp_only_layers": []
    });
    assert_is(&with(llama(), qwen), "qwen3-30b-a3b");
    let maverick = json!({
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192,
            "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048,
            "max_position_embeddings": 1048576, "num_local_experts": 128, "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2, "attention_chunk_size": 8192, "torch_dtype": "bfloat16"
        }
    });
    assert_is(&maverick, "llama-4-maverick-17b-128e");
    let types: Vec<_> = (0..24)
        .map(|i| {
            if i % 2 == 0 {
                "sliding_attention"
            } else {
                "full_attention"
            }
        })
        .collect();
    let oss = json!({
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
        "max_position_embeddings": 131072, "num_local_experts": 32, "num_experts_per_tok": 4,
        "sliding_window": 128, "layer_types": types, "quantization_config": {"quant_method": "mxfp4"}
    });
    assert_is(&with(llama(), oss), "gpt-oss-20b");
}

#[test]
fn latent_attention_and_fp8() {
    let v3 = json!({
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "vocab_size": 129280, "max_position_embeddings": 163840, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_nextn_predict_layers": 1,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    });
    let got = assert_is(&with(llama(), v3.clone()), "deepseek-v3");
    assert!(
        got.weight_bytes.doubt.is_some() && got.notes.len() == 2,
        "{got:?}"
    );
    let kimi = json!({
        "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163840,
        "max_position_embeddings": 131072, "n_routed_experts": 384, "first_k_dense_replace": 1
    });
    assert_is(&with(with(llama(), v3), kimi), "kimi-k2");
    let lite = json!({
        "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400,
        "max_position_embeddings": 163840, "n_routed_experts": 64, "num_experts_per_tok": 6,
        "n_shared_experts": 2, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "q_lora_rank": null,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128
    });
    assert_is(&with(llama(), lite), "deepseek-v2-lite");
}

#[test]
fn what_the_file_does_not_say_is_doubtful() {
    let silent = import(&with(
        llama(),
        json!({"torch_dtype": null, "tie_word_embeddings": null}),
    ));
    assert!(silent.weight_bytes.doubt.is_some() && silent.tied_embeddings.doubt.is_some());
    assert!(!silent.tied_embeddings.value);
    let awq = json!({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}});
    let awq = import(&with(llama(), awq));
    // 4 bits, and 16 + 4 bits for every 128 weights.
    assert!(
        (awq.weight_bytes.value - 0.519_531_25).abs() < 1e-12,
        "{}",
        awq.weight_bytes.value
    );
    assert!(awq.weight_bytes.doubt.is_some());
    // Four bits for routed experts alone, in groups of 32 with a 16-bit scale.
    let experts = json!({
        "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
        "quantization_config": {
            "quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"],
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}}
        }
    });
    let experts = import(&with(llama(), experts));
    assert!((experts.weight_bytes.value - 2.0).abs() < 1e-12);
    let width = experts.moe.unwrap().expert_weight_bytes.unwrap().value;
    assert!((width - 0.5625).abs() < 1e-12, "{width}");
}

#[test]
fn the_file_that_is_written_reads_back_as_the_same_profile() {
    let got = assert_is(&llama(), "llama-3.1-8b");
    let back = catalog::from_text(&to_yaml(&got), "mine.yaml").unwrap();
    assert_eq!(back, crate::profile::Profile::Model(Box::new(got)));
}

#[test]
fn what_cannot_be_described_is_refused() {
    let irregular: Vec<_> = (0..32)
        .map(|i| {
            if i < 5 {
                "full_attention"
            } else {
                "sliding_attention"
            }
        })
        .collect();
    for (changes, place, word) in [
        (json!({"model_type": "jamba"}), "model_type", "recurrent"),
        (json!({"mamba_d_state": 16}), "model_type", "mamba_d_state"),
        (
            json!({"layer_types": ["linear_attention"]}),
            "model_type",
            "linear_attention",
        ),
        (json!({"model_type": "gpt2"}), "model_type", "gate"),
        (
            json!({"model_type": "lama"}),
            "model_type",
            "did you mean 'llama'",
        ),
        (json!({"model_type": null}), "model_type", "missing"),
        (json!({"hidden_size": null}), "hidden_size", "missing"),
        (json!({"hidden_size": -1}), "hidden_size", "whole number"),
        (
            json!({"hidden_size": 4_000_000_000u32}),
            "hidden",
            "allowed: 1 to 131072",
        ),
        (json!({"num_hidden_layers": 0}), "layers", "found 0"),
        (json!({"num_attention_heads": 30}), "head_dim", "multiple"),
        (json!({"num_key_value_heads": 5}), "kv_heads", "cannot share"),
        (json!({"torch_dtype": "int3"}), "torch_dtype", "int3"),
        (
            json!({"quantization_config": {"quant_method": "magic"}}),
            "quantization_config.quant_method",
            "magic",
        ),
        (
            json!({"model_type": "gpt_oss", "sliding_window": 128, "layer_types": irregular, "num_local_experts": 4, "num_experts_per_tok": 2}),
            "layer_types",
            "regular",
        ),
        (
            json!({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 9}),
            "moe.experts_per_token",
            "9 of 8",
        ),
    ] {
        let config = with(llama(), changes);
        let e = model(&config.to_string(), "config.json", Some("mine")).unwrap_err();
        assert_eq!(e.place.as_deref(), Some(place), "{e}");
        assert!(e.to_string().contains(word), "{e}");
        assert!(!e.to_string().contains('\n'), "{e}");
    }
    for text in ["", "[]", "{", "{} {}"] {
        assert!(model(text, "config.json", Some("mine")).is_err(), "{text}");
    }
    let nameless = with(llama(), json!({"_name_or_path": "/home/me/checkpoint"}));
    let e = model(&nameless.to_string(), "config.json", None).unwrap_err();
    assert!(e.to_string().contains("--name"), "{e}");
}

#[test]
fn names_are_those_of_files() {
    assert_eq!(profile_name("meta-llama/Llama-3.1-8B"), "llama-3.1-8b");
    assert_eq!(profile_name("My Model"), "my-model");
}
