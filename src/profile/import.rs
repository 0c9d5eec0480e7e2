//! A model profile out of a Hugging Face `config.json`: dimensions from the file, parameters from the dimensions.
//! What the file leaves to the defaults of its family is filled in and marked as doubtful; what a profile cannot
//! say is refused.

mod config;
mod family;
mod quantization;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::check::{self, Severity};
use super::figure::Figure;
use super::model::{Mla, ModelKind, Moe, Window};
use super::{Facts, Model};
use crate::input::InputError;
use config::{Config, doubtful, figure, stated};
use family::{Experts, Family, WindowRule};

/// Reads a configuration. `name` names the profile; without it the repository in the file does.
///
/// # Errors
/// [`InputError`] for what is no configuration, an architecture that a profile cannot describe, a dimension that
/// is missing or out of range, or when no name can be found.
pub fn model(text: &str, origin: &str, name: Option<&str>) -> Result<Model, InputError> {
    let outer: Map<String, Value> = serde_json::from_str(text).map_err(|e| {
        InputError::new(origin, format!("is not a JSON object ({e})")).allowed("give a model's config.json")
    })?;
    let inner = match outer.get("text_config") {
        Some(Value::Object(inner)) => inner,
        _ => &outer,
    };
    let config = Config {
        origin,
        inner,
        outer: &outer,
    };
    let family = Family::of(&config)?;
    let repo = config.text("_name_or_path").filter(|r| is_repository(r));
    let name = match (name, repo) {
        (Some(given), _) if given.is_empty() || given.contains(['/', '\\']) => {
            return Err(InputError::new("--name", format!("found '{given}'"))
                .allowed("allowed: what can be the name of a file"));
        }
        (Some(given), _) => given.to_owned(),
        (None, Some(repo)) => profile_name(repo),
        (None, None) => {
            return Err(
                InputError::new(origin, "the file does not name its model").allowed("name it with --name")
            );
        }
    };
    let mut model = build(&config, family, name, repo)?;
    // In range first: products of absurd dimensions overflow.
    if let Some(problem) = check::out_of_range(&model).into_iter().next() {
        return Err(problem.into_error(origin));
    }
    model.parameters.value = model.parameters_from_dimensions();
    if model.moe.is_some() {
        model.active_parameters = Some(Figure {
            value: model.active_parameters_from_dimensions(),
            source: "dims".to_owned(),
            doubt: None,
        });
    }
    check::refuse_errors(&model, origin)?;
    let unused = check::problems(&model)
        .into_iter()
        .filter(|p| p.severity == Severity::Warning);
    for key in unused.filter_map(|p| p.place.strip_prefix("sources.").map(str::to_owned)) {
        model.sources.remove(&key);
    }
    Ok(model)
}

/// The profile as a file: each figure on a line, as the shipped ones.
pub fn to_yaml(model: &Model) -> String {
    let quoted = |s: &str| Value::from(s).to_string();
    let mut out = format!(
        "# Each figure: {{value, source: key of sources, doubt: why it is uncertain}}.\nkneeboard_profile: 1\n\
         kind: model\nname: {}\ndescription: {}\n",
        quoted(&model.name),
        quoted(&model.description)
    );
    if let Some(repo) = &model.hf_repo {
        out += &format!("hf_repo: {}\n", quoted(repo));
    }
    out += "sources:\n";
    for (key, source) in &model.sources {
        out += &format!("  {key}: {}\n", quoted(source));
    }
    let mut part = "";
    for row in model.figures() {
        let (group, field) = row.name.split_once('.').unwrap_or(("", row.name));
        if group != part && !group.is_empty() {
            out += &format!("{group}:\n");
        }
        part = group;
        let indent = if group.is_empty() { "" } else { "  " };
        let doubt = row
            .doubt
            .map_or(String::new(), |d| format!(", doubt: {}", quoted(d)));
        out += &format!(
            "{indent}{field}: {{value: {}, source: {}{doubt}}}\n",
            row.value, row.source
        );
    }
    if !model.notes.is_empty() {
        out += "notes:\n";
        for note in &model.notes {
            out += &format!("  - {}\n", quoted(note));
        }
    }
    out
}

fn build(
    config: &Config<'_>,
    family: &'static Family,
    name: String,
    repo: Option<&str>,
) -> Result<Model, InputError> {
    let defaulted = |key: &str, value: Option<u32>| config.count_or(key, value, family);
    let hidden = config.count("hidden_size")?;
    let layers = config.count("num_hidden_layers")?;
    let heads = defaulted("num_attention_heads", family.heads)?;
    let kv_heads = match family.kv_heads {
        Some(_) => defaulted("num_key_value_heads", family.kv_heads)?,
        // Without the key every head has its own keys and values.
        None => config
            .optional("num_key_value_heads")?
            .map_or_else(|| heads.clone(), stated),
    };
    let mla = mla(config)?;
    let head_dim = head_dim(config, family, mla.as_ref(), hidden.value, heads.value)?;
    let (intermediate, moe) = feed_forward(config, family)?;
    let (weight_bytes, expert_weight_bytes, mut notes) = quantization::weights(config, moe.is_some())?;
    let moe = moe.map(|m| Moe {
        expert_weight_bytes,
        ..m
    });
    notes.extend(remarks(config));
    let architecture = architecture(config).unwrap_or(family.name);
    Ok(Model {
        kneeboard_profile: 1,
        kind: ModelKind::Model,
        description: format!(
            "{}, imported from its configuration ({architecture})",
            repo.unwrap_or(&name)
        ),
        name,
        hf_repo: repo.map(str::to_owned),
        aliases: Vec::new(),
        sources: sources(config.origin),
        parameters: figure(1_000_000_000, "dims"),
        published_parameters: None,
        layers: layers.clone(),
        hidden,
        intermediate,
        heads,
        kv_heads,
        head_dim,
        vocab: defaulted("vocab_size", family.vocab)?,
        max_positions: defaulted("max_position_embeddings", family.max_positions)?,
        weight_bytes,
        kv_bytes: quantization::kv_cache(config),
        tied_embeddings: tied(config, family),
        active_parameters: None,
        published_active_parameters: None,
        window: window(config, family, layers.value)?,
        moe,
        mla,
        notes,
    })
}

fn sources(origin: &str) -> BTreeMap<String, String> {
    [
        ("config", format!("the model's configuration, {origin}")),
        (
            "default",
            "the default of the transformers library for this kind of model".to_owned(),
        ),
        (
            "dims",
            "attention, feed-forward, experts and embeddings from the dimensions below; norms and biases left out"
                .to_owned(),
        ),
        ("assumed", "assumed in the import".to_owned()),
    ]
    .into_iter()
    .map(|(key, text)| (key.to_owned(), text))
    .collect()
}

/// The class of the model, as the file names it.
fn architecture<'a>(config: &Config<'a>) -> Option<&'a str> {
    config.outer.get("architectures")?.get(0)?.as_str()
}

/// What the profile leaves out.
fn remarks(config: &Config<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if config.outer.contains_key("vision_config") {
        notes.push("The vision part is not counted.".to_owned());
    }
    if config
        .whole("num_nextn_predict_layers")
        .is_some_and(|layers| layers > 0)
    {
        notes.push("The layers for multi-token prediction are not counted.".to_owned());
    }
    notes
}

fn tied(config: &Config<'_>, family: &Family) -> Figure<bool> {
    match config.get("tie_word_embeddings").and_then(Value::as_bool) {
        Some(value) => figure(value, "config"),
        None => doubtful(
            family.tied,
            "default",
            "the file does not say; this is the default of its kind",
        ),
    }
}

fn head_dim(
    config: &Config<'_>,
    family: &Family,
    mla: Option<&Mla>,
    hidden: u32,
    heads: u32,
) -> Result<Figure<u32>, InputError> {
    if let Some(mla) = mla {
        return Ok(mla.qk_nope_head_dim.clone());
    }
    if let Some(value) = config.optional("head_dim")? {
        return Ok(stated(value));
    }
    if let Some(value) = family.head_dim {
        return Ok(doubtful(
            value,
            "default",
            "the file does not say; this is the default of its kind",
        ));
    }
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(InputError::new(
            config.origin,
            format!("it is missing, and hidden_size {hidden} is no multiple of {heads} heads"),
        )
        .at("head_dim")
        .allowed("add it to the configuration"));
    }
    Ok(figure(hidden / heads, "config"))
}

fn mla(config: &Config<'_>) -> Result<Option<Mla>, InputError> {
    if config.optional("kv_lora_rank")?.is_none() {
        return Ok(None);
    }
    Ok(Some(Mla {
        // Null and absent both say that queries are not compressed.
        q_lora_rank: stated(config.optional("q_lora_rank")?.unwrap_or(0)),
        kv_lora_rank: config.count("kv_lora_rank")?,
        qk_nope_head_dim: config.count("qk_nope_head_dim")?,
        qk_rope_head_dim: config.count("qk_rope_head_dim")?,
        v_head_dim: config.count("v_head_dim")?,
    }))
}

/// Width of dense layers, and the experts if there are any.
fn feed_forward(config: &Config<'_>, family: &Family) -> Result<(Figure<u32>, Option<Moe>), InputError> {
    let dense = config.count(family.intermediate_key)?;
    let Some(Experts {
        count_keys,
        width_key,
        shared_width_key,
        every_key,
        always_shared,
    }) = &family.experts
    else {
        return Ok((dense, None));
    };
    let Some(experts) = config.first_of(count_keys)? else {
        return Ok((dense, None));
    };
    let width = config.count(width_key)?;
    let used = config
        .first_of(&["num_experts_per_tok", "experts_per_token"])?
        .ok_or_else(|| config.missing("num_experts_per_tok"))?;
    let shared = match (*always_shared, shared_width_key) {
        (true, _) => stated(1),
        (false, Some(key)) => stated(u32::from(config.optional(key)?.unwrap_or(0) > 0)),
        (false, None) => stated(config.optional("n_shared_experts")?.unwrap_or(0)),
    };
    let shared_width = match shared_width_key {
        Some(key) => config.optional(key)?.unwrap_or(0),
        None => shared.value.saturating_mul(width.value),
    };
    Ok((
        dense,
        Some(Moe {
            experts: stated(experts),
            experts_per_token: stated(used),
            intermediate: width,
            shared_experts: shared,
            shared_intermediate: stated(shared_width),
            first_dense_layers: stated(first_dense(config)?),
            every: stated(config.optional(every_key)?.unwrap_or(1)),
            expert_weight_bytes: None,
        }),
    ))
}

/// Dense layers before the first with experts, by either of the two ways to say so.
fn first_dense(config: &Config<'_>) -> Result<u32, InputError> {
    let first = config.optional("first_k_dense_replace")?.unwrap_or(0);
    let Some(Value::Array(dense)) = config.get("mlp_only_layers") else {
        return Ok(first);
    };
    let expected = (0u64..).zip(dense).all(|(i, layer)| layer.as_u64() == Some(i));
    if !expected {
        return Err(InputError::new(
            config.origin,
            "dense layers in between are not at its start, which a profile cannot say",
        )
        .at("mlp_only_layers")
        .allowed("allowed: none, or the first layers"));
    }
    Ok(first.max(u32::try_from(dense.len()).unwrap_or(u32::MAX)))
}

fn window(config: &Config<'_>, family: &Family, layers: u32) -> Result<Option<Window>, InputError> {
    let key = match family.window {
        WindowRule::Chunks => "attention_chunk_size",
        _ => "sliding_window",
    };
    let off = config.get("use_sliding_window").and_then(Value::as_bool) == Some(false);
    if off {
        return Ok(None);
    }
    let tokens = match (config.optional(key)?, family.window_tokens) {
        (Some(tokens), _) => stated(tokens),
        (None, Some(tokens)) if !config.mentions(key) => doubtful(
            tokens,
            "default",
            "the file does not say; this is the default of its kind",
        ),
        (None, _) => return Ok(None),
    };
    let full_every = if let Some(Value::Array(types)) = config.get("layer_types") {
        match family::pattern(config, types, layers)? {
            Some(every) => figure(every, "config"),
            None => return Ok(None),
        }
    } else {
        match family.window {
            WindowRule::None => return Ok(None),
            WindowRule::AllLayers => figure(0, "config"),
            WindowRule::Switch => {
                if config.get("use_sliding_window").and_then(Value::as_bool) != Some(true) {
                    return Ok(None);
                }
                return Err(InputError::new(
                    config.origin,
                    "windows from one layer on (max_window_layers) cannot be said in a profile",
                )
                .at("use_sliding_window")
                .allowed("give layer_types with a regular pattern, or use_sliding_window: false"));
            }
            WindowRule::Chunks => every(config, "no_rope_layer_interval", 4)?,
            WindowRule::Every(default) => every(config, "sliding_window_pattern", default)?,
        }
    };
    Ok(Some(Window { tokens, full_every }))
}

fn every(config: &Config<'_>, key: &str, default: u32) -> Result<Figure<u32>, InputError> {
    Ok(match config.optional(key)? {
        Some(value) => stated(value),
        None => doubtful(
            default,
            "default",
            "the file does not say which layers have full attention; this is the pattern of its kind",
        ),
    })
}

/// `owner/name`, and not the path of a folder.
fn is_repository(name: &str) -> bool {
    let parts: Vec<_> = name.split('/').collect();
    parts.len() == 2 && parts.iter().all(|p| !p.is_empty() && !p.starts_with('.'))
}

/// A name as those of the shipped profiles: the last part, lower case, no odd characters.
pub fn profile_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).find(|p| !p.is_empty()).unwrap_or(name);
    last.chars()
        .map(|c| match c {
            'a'..='z' | '0'..='9' | '.' | '-' | '_' => c,
            'A'..='Z' => c.to_ascii_lowercase(),
            _ => '-',
        })
        .collect()
}
