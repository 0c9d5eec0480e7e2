//! Language models: the dimensions that decide memory and work.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::{Problem, Severity};
use super::figure::{Figure, FigureRow};
use super::{Facts, Kind};

/// One model: a decoder with full, sliding-window or latent attention and dense or mixture-of-experts layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Format version; 1.
    pub kneeboard_profile: u32,
    /// `model`.
    pub kind: ModelKind,
    /// Name used in scenarios; equals the file's name.
    pub name: String,
    /// One line about it.
    pub description: String,
    /// Its repository on Hugging Face; scenarios, captures and points may name it so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf_repo: Option<String>,
    /// Other names under which it is found: repositories with the same dimensions, short names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Sources by key.
    pub sources: BTreeMap<String, String>,
    /// Parameters in all, embeddings included.
    pub parameters: Figure<u64>,
    /// That total as its makers state it, for comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_parameters: Option<Figure<u64>>,
    /// Transformer layers.
    pub layers: Figure<u32>,
    /// Width of the residual stream.
    pub hidden: Figure<u32>,
    /// Width of the feed-forward layer.
    pub intermediate: Figure<u32>,
    /// Query heads.
    pub heads: Figure<u32>,
    /// Key and value heads.
    pub kv_heads: Figure<u32>,
    /// Width of a head.
    pub head_dim: Figure<u32>,
    /// Vocabulary entries.
    pub vocab: Figure<u32>,
    /// Longest sequence of the model's own configuration, in tokens.
    pub max_positions: Figure<u32>,
    /// Bytes of one weight as served (2 = bf16).
    pub weight_bytes: Figure<f64>,
    /// Bytes of one element of the KV cache (2 = bf16).
    pub kv_bytes: Figure<u32>,
    /// Input and output embedding are one matrix.
    pub tied_embeddings: Figure<bool>,
    /// Parameters that one token uses; absent for dense models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_parameters: Option<Figure<u64>>,
    /// That number as its makers state it, for comparison; some leave out embeddings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_active_parameters: Option<Figure<u64>>,
    /// Mixture of experts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moe: Option<Moe>,
    /// Multi-head latent attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mla: Option<Mla>,
    /// Layers that attend to the last positions only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Remarks that belong to no single figure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Mixture of experts: which layers have experts, how many, how large.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    /// Routed experts of a layer.
    pub experts: Figure<u32>,
    /// Routed experts that a token uses.
    pub experts_per_token: Figure<u32>,
    /// Width of one routed expert.
    pub intermediate: Figure<u32>,
    /// Experts that every token uses.
    pub shared_experts: Figure<u32>,
    /// Width of all shared experts together; 0 without any.
    pub shared_intermediate: Figure<u32>,
    /// Dense layers before the first layer with experts.
    pub first_dense_layers: Figure<u32>,
    /// Of the layers after those, every how many-th has experts (1 = all).
    pub every: Figure<u32>,
    /// Bytes of one weight of a routed expert, where it differs from `weight_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_weight_bytes: Option<Figure<f64>>,
}

/// Multi-head latent attention: one compressed vector a token in the cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mla {
    /// Rank of the query's compression; 0 = none.
    pub q_lora_rank: Figure<u32>,
    /// Rank of the latent vector in the cache.
    pub kv_lora_rank: Figure<u32>,
    /// Width of a head's part without position.
    pub qk_nope_head_dim: Figure<u32>,
    /// Width of the part with position, shared by all heads.
    pub qk_rope_head_dim: Figure<u32>,
    /// Width of a head's value.
    pub v_head_dim: Figure<u32>,
}

/// Sliding-window (or chunked) attention.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Positions that a windowed layer attends to.
    pub tokens: Figure<u32>,
    /// One layer in this many has full attention; 0 = none has.
    pub full_every: Figure<u32>,
}

/// The word `model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// A language model.
    Model,
}

impl Model {
    /// Layers with experts.
    pub fn moe_layers(&self) -> u32 {
        self.moe.as_ref().map_or(0, |m| {
            self.layers.value.saturating_sub(m.first_dense_layers.value) / m.every.value.max(1)
        })
    }

    /// Layers that attend to a window only.
    pub fn windowed_layers(&self) -> u32 {
        self.window.as_ref().map_or(0, |w| match w.full_every.value {
            0 => self.layers.value,
            every => self.layers.value - self.layers.value / every,
        })
    }

    /// Weights of one layer's attention, all ranks together.
    pub fn attention_parameters_per_layer(&self) -> u64 {
        let h = u64::from(self.hidden.value);
        let heads = u64::from(self.heads.value);
        if let Some(mla) = &self.mla {
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
        let head_dim = u64::from(self.head_dim.value);
        2 * h * head_dim * (heads + u64::from(self.kv_heads.value))
    }

    /// Weights of all routed experts.
    pub fn routed_expert_parameters(&self) -> u64 {
        self.moe.as_ref().map_or(0, |m| {
            let one = 3 * u64::from(self.hidden.value) * u64::from(m.intermediate.value);
            u64::from(self.moe_layers()) * u64::from(m.experts.value) * one
        })
    }

    /// Bytes of all weights, routed experts at their own width where they have one.
    pub fn weight_bytes_total(&self) -> u64 {
        let own = self.moe.as_ref().and_then(|m| m.expert_weight_bytes.as_ref());
        let routed = own.map_or(0, |_| self.routed_expert_parameters());
        let rest = self.parameters.value.saturating_sub(routed) as f64 * self.weight_bytes.value;
        (rest + own.map_or(0.0, |f| routed as f64 * f.value)).ceil() as u64
    }

    /// Parameters that one token uses: all of a dense model, and of the routed experts those that it is sent to.
    pub fn active_parameters_from_dimensions(&self) -> u64 {
        self.moe.as_ref().map_or(self.parameters_from_dimensions(), |m| {
            let idle = m.experts.value.saturating_sub(m.experts_per_token.value);
            let one = 3 * u64::from(self.hidden.value) * u64::from(m.intermediate.value);
            let unused = u64::from(self.moe_layers()) * u64::from(idle) * one;
            self.parameters_from_dimensions().saturating_sub(unused)
        })
    }

    /// Parameters that the dimensions give: attention, gated feed-forward, embeddings; norms and biases left
    /// out. Used to catch a mistyped profile.
    pub fn parameters_from_dimensions(&self) -> u64 {
        let (h, inter) = (u64::from(self.hidden.value), u64::from(self.intermediate.value));
        let moe_layers = u64::from(self.moe_layers());
        let dense = (u64::from(self.layers.value) - moe_layers) * 3 * h * inter;
        let experts = self.moe.as_ref().map_or(0, |m| {
            let routed = u64::from(m.experts.value) * 3 * h * u64::from(m.intermediate.value);
            let router = h * u64::from(m.experts.value);
            moe_layers * (routed + router + 3 * h * u64::from(m.shared_intermediate.value))
        });
        let embeddings = h * u64::from(self.vocab.value) * if self.tied_embeddings.value { 1 } else { 2 };
        u64::from(self.layers.value) * self.attention_parameters_per_layer() + dense + experts + embeddings
    }
}

impl Facts for Model {
    super::common_facts!(Kind::Model);

    fn aliases(&self) -> Vec<&str> {
        self.hf_repo
            .iter()
            .chain(&self.aliases)
            .map(String::as_str)
            .collect()
    }

    fn figures(&self) -> Vec<FigureRow<'_>> {
        let mut rows = vec![
            self.parameters.row("parameters"),
            self.layers.row("layers"),
            self.hidden.row("hidden"),
            self.intermediate.row("intermediate"),
            self.heads.row("heads"),
            self.kv_heads.row("kv_heads"),
            self.head_dim.row("head_dim"),
            self.vocab.row("vocab"),
            self.max_positions.row("max_positions"),
            self.weight_bytes.row("weight_bytes"),
            self.kv_bytes.row("kv_bytes"),
            self.tied_embeddings.row("tied_embeddings"),
        ];
        macro_rules! known {
            ($($field:ident),+) => { $(rows.extend(self.$field.as_ref().map(|f| f.row(stringify!($field))));)+ };
        }
        known!(
            published_parameters,
            active_parameters,
            published_active_parameters
        );
        if let Some(moe) = &self.moe {
            rows.extend([
                moe.experts.row("moe.experts"),
                moe.experts_per_token.row("moe.experts_per_token"),
                moe.intermediate.row("moe.intermediate"),
                moe.shared_experts.row("moe.shared_experts"),
                moe.shared_intermediate.row("moe.shared_intermediate"),
                moe.first_dense_layers.row("moe.first_dense_layers"),
                moe.every.row("moe.every"),
            ]);
            rows.extend(
                moe.expert_weight_bytes
                    .as_ref()
                    .map(|f| f.row("moe.expert_weight_bytes")),
            );
        }
        if let Some(mla) = &self.mla {
            rows.extend([
                mla.q_lora_rank.row("mla.q_lora_rank"),
                mla.kv_lora_rank.row("mla.kv_lora_rank"),
                mla.qk_nope_head_dim.row("mla.qk_nope_head_dim"),
                mla.qk_rope_head_dim.row("mla.qk_rope_head_dim"),
                mla.v_head_dim.row("mla.v_head_dim"),
            ]);
        }
        if let Some(window) = &self.window {
            rows.extend([
                window.tokens.row("window.tokens"),
                window.full_every.row("window.full_every"),
            ]);
        }
        rows
    }

    /// Dimensions that contradict each other are mistypes; a few percent are norms, biases and rounding.
    fn contradictions(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut say = |place: &str, found: String, allowed: &str| {
            problems.push(Problem::new(Severity::Error, place, found, allowed));
        };
        let (heads, kv_heads) = (self.heads.value, self.kv_heads.value);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            say(
                "kv_heads",
                format!("{heads} heads cannot share {kv_heads} kv_heads"),
                "heads must be a multiple of kv_heads",
            );
        }
        let derived = self.parameters_from_dimensions() as f64;
        let counts = [
            ("parameters", Some(&self.parameters)),
            ("published_parameters", self.published_parameters.as_ref()),
        ];
        for (place, stated) in counts {
            let Some(stated) = stated.map(|f| f.value as f64) else {
                continue;
            };
            if (derived / stated - 1.0).abs() > 0.05 {
                say(
                    place,
                    format!("{stated:.4e} parameters are stated, but the dimensions give {derived:.4e}"),
                    "the two may differ by 5 %: correct the count or the dimensions",
                );
            }
        }
        let total = self.parameters.value;
        if let Some(active) = self.active_parameters.as_ref().filter(|a| a.value > total) {
            say(
                "active_parameters",
                format!("{} of {total} parameters", active.value),
                "a token cannot use more parameters than there are",
            );
        }
        if let Some(moe) = &self.moe {
            let (used, experts) = (moe.experts_per_token.value, moe.experts.value);
            if used > experts {
                say(
                    "moe.experts_per_token",
                    format!("{used} of {experts} experts"),
                    "a token cannot use more experts than there are",
                );
            }
            if moe.first_dense_layers.value > self.layers.value {
                say(
                    "moe.first_dense_layers",
                    format!("{} of {} layers", moe.first_dense_layers.value, self.layers.value),
                    "allowed: up to the number of layers",
                );
            }
        }
        problems
    }
}
