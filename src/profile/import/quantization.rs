//! Bytes of a weight: `torch_dtype`, and `quantization_config` where there is one.

use serde_json::{Map, Value};

use super::config::{Config, doubtful, figure};
use crate::input::InputError;
use crate::profile::Figure;

const METHODS: [&str; 8] = [
    "fp8",
    "mxfp4",
    "awq",
    "gptq",
    "compressed-tensors",
    "bitsandbytes",
    "modelopt",
    "modelopt_fp4",
];

const LINEAR: &str = "of the linear layers; embeddings, norms and the output layer mostly stay at 2 bytes";

/// Bytes of a weight, those of a routed expert's where they differ, and remarks.
pub(super) type Weights = (Figure<f64>, Option<Figure<f64>>, Vec<String>);

/// Reads both keys.
pub(super) fn weights(config: &Config<'_>, has_experts: bool) -> Result<Weights, InputError> {
    let plain = plain(config)?;
    let Some(Value::Object(q)) = config.get("quantization_config") else {
        return Ok((plain, None, Vec::new()));
    };
    let text = |key: &str| q.get(key).and_then(Value::as_str);
    let place = "quantization_config";
    let Some(method) = text("quant_method") else {
        return Err(InputError::new(config.origin, "the key is missing")
            .at(format!("{place}.quant_method"))
            .allowed(format!("known: {}", METHODS.join(", "))));
    };
    let note = vec![format!("The weights are quantised ({method}).")];
    let experts_only = has_experts && leaves_attention(q);
    let linear = |bytes: f64| match experts_only {
        true => (plain.clone(), Some(figure(bytes, "config")), note.clone()),
        false => (doubtful(bytes, "config", LINEAR), None, note.clone()),
    };
    Ok(match method {
        "fp8" | "fbgemm_fp8" => linear(1.0),
        // 4 bits a weight and an 8-bit scale for every 32; only the experts are stored so.
        "mxfp4" if has_experts => (plain, Some(figure(0.53125, "config")), note),
        "mxfp4" => linear(0.53125),
        "awq" | "gptq" => {
            let bits = q.get("bits").or_else(|| q.get("w_bit")).and_then(Value::as_f64);
            linear(grouped(bits.unwrap_or(4.0), q.get("group_size"), true))
        }
        "compressed-tensors" => linear(compressed(config, q)?),
        "bitsandbytes" if q.get("load_in_8bit").and_then(Value::as_bool) == Some(true) => linear(1.0),
        // A 32-bit scale for every 64 weights.
        "bitsandbytes" => linear(0.5625),
        "modelopt" | "modelopt_fp4" => linear(modelopt(config, method, text("quant_algo"))?),
        other => {
            return Err(
                InputError::new(config.origin, format!("found '{other}', which is not known"))
                    .at(format!("{place}.quant_method"))
                    .allowed(format!("known: {}", METHODS.join(", ")))
                    .nearest_of(other, METHODS),
            );
        }
    })
}

/// Bytes of a weight in the compressed-tensors format: those of its first group.
fn compressed(config: &Config<'_>, q: &Map<String, Value>) -> Result<f64, InputError> {
    let groups = q.get("config_groups").and_then(Value::as_object);
    let first = groups.and_then(|g| g.values().next());
    let layer = first.and_then(|g| g.get("weights"));
    let bits = layer.and_then(|w| w.get("num_bits")).and_then(Value::as_f64);
    let bits = bits.ok_or_else(|| {
        InputError::new(config.origin, "the bits of a weight are missing")
            .at("quantization_config.config_groups")
            .allowed("expected: weights.num_bits in its first group")
    })?;
    Ok(grouped(bits, layer.and_then(|w| w.get("group_size")), false))
}

/// Bytes of a weight as ModelOpt names its formats.
fn modelopt(config: &Config<'_>, method: &str, algorithm: Option<&str>) -> Result<f64, InputError> {
    match algorithm {
        // 4 bits a weight and an 8-bit scale for every 16.
        Some("NVFP4") => Ok(0.5625),
        None if method == "modelopt_fp4" => Ok(0.5625),
        Some("FP8") => Ok(1.0),
        other => Err(
            InputError::new(config.origin, format!("found '{}'", other.unwrap_or("nothing")))
                .at("quantization_config.quant_algo")
                .allowed("known: FP8, NVFP4"),
        ),
    }
}

/// Attention is among what is not quantised; of a mixture of experts the routed experts then are all that is.
fn leaves_attention(q: &Map<String, Value>) -> bool {
    let lists = ["ignore", "exclude_modules", "modules_to_not_convert"];
    lists
        .iter()
        .filter_map(|key| q.get(*key).and_then(Value::as_array))
        .flatten()
        .filter_map(Value::as_str)
        // A pattern for all layers, as `re:.*self_attn.*`, and not the module of a single one.
        .any(|module| module.contains("self_attn") && module.contains('*'))
}

/// Bytes of a weight of so many bits with a 16-bit scale, and a zero point if there is one, for every group.
fn grouped(bits: f64, group: Option<&Value>, zero_point: bool) -> f64 {
    let size = group.and_then(Value::as_f64).filter(|g| *g >= 1.0);
    let extra = 16.0 + if zero_point { bits } else { 0.0 };
    bits / 8.0 + size.map_or(0.0, |g| extra / 8.0 / g)
}

fn plain(config: &Config<'_>) -> Result<Figure<f64>, InputError> {
    let word = config.text("torch_dtype").or_else(|| config.text("dtype"));
    let word = word.map(|w| w.strip_prefix("torch.").unwrap_or(w));
    Ok(match word {
        Some("bfloat16" | "float16") => figure(2.0, "config"),
        Some("float32") => doubtful(
            2.0,
            "assumed",
            "stored in 32 bits; vLLM's automatic choice serves such a model in 16",
        ),
        Some(w) if w.starts_with("float8") => doubtful(1.0, "config", LINEAR),
        None => doubtful(2.0, "assumed", "the file does not say; 16 bits are assumed"),
        Some(other) => {
            return Err(
                InputError::new(config.origin, format!("found '{other}', which is not known"))
                    .at("torch_dtype")
                    .allowed("known: bfloat16, float16, float32, float8_*"),
            );
        }
    })
}

/// Bytes of an element of the KV cache.
pub(super) fn kv_cache(config: &Config<'_>) -> Figure<u32> {
    let quantised = config.get("quantization_config").is_some_and(|q| {
        let named = |key: &str| q.get(key).is_some_and(|v| !v.is_null());
        named("kv_cache_scheme") || named("kv_cache_quant_algo")
    });
    if quantised {
        return doubtful(
            2,
            "assumed",
            "16 bits; the file has scales for a smaller cache, which counts if the server is started with it",
        );
    }
    figure(2, "assumed")
}
