//! Kinds of model as `model_type` names them: which keys hold what, and what a file may leave out.

use serde_json::Value;

use super::config::Config;
use crate::input::InputError;

/// One kind of model.
pub(super) struct Family {
    /// `model_type` of the language part.
    pub name: &'static str,
    /// Key of the width of dense layers.
    pub intermediate_key: &'static str,
    /// Experts, if it can have any.
    pub experts: Option<Experts>,
    /// Layers with a window.
    pub window: WindowRule,
    /// Its length when the file does not mention it; a null says that there is none.
    pub window_tokens: Option<u32>,
    /// Embeddings are tied unless the file says otherwise.
    pub tied: bool,
    /// Defaults of what files of this kind are known to leave out.
    pub heads: Option<u32>,
    pub kv_heads: Option<u32>,
    pub head_dim: Option<u32>,
    pub vocab: Option<u32>,
    pub max_positions: Option<u32>,
}

/// Where a kind of model says what its experts are.
pub(super) struct Experts {
    /// Number of routed experts.
    pub count_keys: &'static [&'static str],
    /// Width of one.
    pub width_key: &'static str,
    /// Width of all shared experts together; without it `n_shared_experts` times the width of one.
    pub shared_width_key: Option<&'static str>,
    /// One layer in this many has experts.
    pub every_key: &'static str,
    /// There is one shared expert, which the file does not mention.
    pub always_shared: bool,
}

/// Which layers have a window.
#[derive(Clone, Copy)]
pub(super) enum WindowRule {
    /// None has.
    None,
    /// All have, when the file states a window.
    AllLayers,
    /// Only when `use_sliding_window` is on.
    Switch,
    /// All but one in so many.
    Every(u32),
    /// Attention in chunks on all but one in four.
    Chunks,
}

const PLAIN: Family = Family {
    name: "llama",
    intermediate_key: "intermediate_size",
    experts: None,
    window: WindowRule::None,
    window_tokens: None,
    tied: false,
    heads: None,
    kv_heads: None,
    head_dim: None,
    vocab: None,
    max_positions: None,
};

const DEEPSEEK: Experts = Experts {
    count_keys: &["n_routed_experts"],
    width_key: "moe_intermediate_size",
    shared_width_key: None,
    every_key: "moe_layer_freq",
    always_shared: false,
};

const LOCAL: Experts = Experts {
    count_keys: &["num_local_experts", "num_experts"],
    width_key: "intermediate_size",
    shared_width_key: None,
    every_key: "decoder_sparse_step",
    always_shared: false,
};

const QWEN_MOE: Experts = Experts {
    count_keys: &["num_experts", "num_local_experts"],
    width_key: "moe_intermediate_size",
    shared_width_key: Some("shared_expert_intermediate_size"),
    every_key: "decoder_sparse_step",
    always_shared: false,
};

const LLAMA4: Family = Family {
    name: "llama4_text",
    intermediate_key: "intermediate_size_mlp",
    experts: Some(Experts {
        count_keys: &["num_local_experts"],
        width_key: "intermediate_size",
        shared_width_key: None,
        every_key: "interleave_moe_layer_step",
        always_shared: true,
    }),
    window: WindowRule::Chunks,
    window_tokens: Some(8192),
    ..PLAIN
};

const GEMMA3: Family = Family {
    name: "gemma3_text",
    window: WindowRule::Every(6),
    window_tokens: Some(4096),
    tied: true,
    heads: Some(8),
    kv_heads: Some(4),
    head_dim: Some(256),
    vocab: Some(262_208),
    max_positions: Some(131_072),
    ..PLAIN
};

macro_rules! family {
    ($name:literal, $($field:ident: $value:expr),* ; $base:expr) => {
        Family { name: $name, $($field: $value,)* ..$base }
    };
}

static FAMILIES: &[Family] = &[
    PLAIN,
    family!("mistral", window: WindowRule::AllLayers, window_tokens: Some(4096); PLAIN),
    family!("mixtral", experts: Some(LOCAL), window: WindowRule::AllLayers; PLAIN),
    family!("qwen2", window: WindowRule::Switch; PLAIN),
    family!("qwen2_moe", experts: Some(QWEN_MOE), window: WindowRule::Switch; PLAIN),
    family!("qwen3", window: WindowRule::Switch; PLAIN),
    family!("qwen3_moe", experts: Some(QWEN_MOE), window: WindowRule::Switch; PLAIN),
    family!("deepseek_v2", experts: Some(DEEPSEEK); PLAIN),
    family!("deepseek_v3", experts: Some(DEEPSEEK); PLAIN),
    family!("kimi_k2", experts: Some(DEEPSEEK); PLAIN),
    family!("gpt_oss", experts: Some(LOCAL), window: WindowRule::Every(2), window_tokens: Some(128); PLAIN),
    family!("gemma", tied: true, head_dim: Some(256); PLAIN),
    family!("gemma2", tied: true, head_dim: Some(256), window: WindowRule::Every(2), window_tokens: Some(4096); PLAIN),
    GEMMA3,
    family!("gemma3", ; GEMMA3),
    family!("phi3", window: WindowRule::AllLayers; PLAIN),
    LLAMA4,
    family!("llama4", ; LLAMA4),
];

/// Kinds that a profile cannot describe, and why.
static REFUSED: &[(&str, &str)] = &[
    ("mamba", RECURRENT),
    ("mamba2", RECURRENT),
    ("falcon_mamba", RECURRENT),
    ("falcon_h1", RECURRENT),
    ("jamba", RECURRENT),
    ("bamba", RECURRENT),
    ("zamba", RECURRENT),
    ("zamba2", RECURRENT),
    ("nemotron_h", RECURRENT),
    ("granitemoehybrid", RECURRENT),
    ("qwen3_next", RECURRENT),
    ("recurrent_gemma", RECURRENT),
    ("rwkv", RECURRENT),
    ("t5", ENCODER),
    ("bart", ENCODER),
    ("whisper", ENCODER),
    ("bert", ENCODER),
    ("gpt2", UNGATED),
    ("gpt_neox", UNGATED),
    ("gptj", UNGATED),
    ("opt", UNGATED),
    ("bloom", UNGATED),
    ("falcon", UNGATED),
    ("mpt", UNGATED),
    ("phi", UNGATED),
    ("starcoder2", UNGATED),
];

const RECURRENT: &str =
    "its recurrent layers (Mamba, linear attention) keep a state instead of keys and values";
const ENCODER: &str = "it has an encoder";
const UNGATED: &str = "its feed-forward layers have no gate";

impl Family {
    /// The kind of a configuration.
    pub(super) fn of(config: &Config<'_>) -> Result<&'static Self, InputError> {
        let stated = config.inner.get("model_type").and_then(Value::as_str);
        let outer = config.outer.get("model_type").and_then(Value::as_str);
        let Some(word) = stated.or(outer) else {
            return Err(config.missing("model_type"));
        };
        if let Some(why) = recurrent(config) {
            return Err(refusal(config, word, &why));
        }
        if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == word) {
            return Err(refusal(config, word, why));
        }
        FAMILIES.iter().find(|f| f.name == word).ok_or_else(|| {
            let names = FAMILIES.iter().map(|f| f.name);
            InputError::new(config.origin, format!("found '{word}', which is not known"))
                .at("model_type")
                .allowed(format!(
                    "known: {}; write the profile by hand, starting from `kneeboard profile show llama-3.1-8b --yaml`",
                    names.clone().collect::<Vec<_>>().join(", ")
                ))
                .nearest_of(word, names)
        })
    }
}

fn refusal(config: &Config<'_>, word: &str, why: &str) -> InputError {
    InputError::new(config.origin, format!("'{word}' cannot be described: {why}"))
        .at("model_type")
        .allowed("a profile describes decoders with full, windowed or latent attention and gated feed-forward layers")
}

/// Recurrent layers in a file of any kind.
fn recurrent(config: &Config<'_>) -> Option<String> {
    let keys = ["mamba_", "ssm_", "linear_num_", "rwkv_"];
    let mut all = config.inner.keys().chain(config.outer.keys());
    if let Some(key) = all.find(|key| keys.iter().any(|k| key.starts_with(k))) {
        return Some(format!("{RECURRENT} ({key})"));
    }
    let Some(Value::Array(types)) = config.get("layer_types") else {
        return None;
    };
    let odd = types
        .iter()
        .filter_map(Value::as_str)
        .find(|t| !t.ends_with("_attention") || t.starts_with("linear"))?;
    Some(format!("{RECURRENT} (layer_types: {odd})"))
}

/// `full_every` of a list of layer types: `None` when all are full, 0 when none is.
pub(super) fn pattern(config: &Config<'_>, types: &[Value], layers: u32) -> Result<Option<u32>, InputError> {
    let full: Vec<bool> = types
        .iter()
        .map(|t| t.as_str() == Some("full_attention"))
        .collect();
    let wrong = |found: String, allowed: &str| {
        Err(InputError::new(config.origin, found)
            .at("layer_types")
            .allowed(allowed.to_owned()))
    };
    if full.len() as u64 != u64::from(layers) {
        return wrong(
            format!("{} types of {layers} layers", full.len()),
            "one for each of num_hidden_layers",
        );
    }
    if full.iter().all(|f| *f) {
        return Ok(None);
    }
    if full.iter().all(|f| !*f) {
        return Ok(Some(0));
    }
    let count = full.iter().filter(|f| **f).count();
    let regular = (2..=full.len()).find(|every| {
        let last = (1usize..).zip(&full).all(|(i, f)| *f == (i % every == 0));
        let first = (0usize..).zip(&full).all(|(i, f)| *f == (i % every == 0));
        (last || first) && full.len() / every == count
    });
    match regular.and_then(|every| u32::try_from(every).ok()) {
        Some(every) => Ok(Some(every)),
        None => wrong(
            format!("{count} of {layers} layers have full attention, in no regular pattern"),
            "a profile can say that one layer in so many has full attention",
        ),
    }
}
