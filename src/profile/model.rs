//! Language models: the dimensions that decide memory and work.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::figure::{Figure, FigureRow};

/// One model. Only dense decoders with full (MHA, GQA or MQA) attention so far.
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
    /// Sources by key.
    pub sources: BTreeMap<String, String>,
    /// Parameters in all, embeddings included.
    pub parameters: Figure<u64>,
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
}

/// The word `model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// A language model.
    Model,
}

impl Model {
    /// Every figure, in the order of the file.
    pub fn figures(&self) -> Vec<FigureRow<'_>> {
        vec![
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
        ]
    }

    /// Bytes of all weights.
    pub fn weight_bytes_total(&self) -> u64 {
        (self.parameters.value as f64 * self.weight_bytes.value).ceil() as u64
    }

    /// Parameters that the dimensions give: attention, gated feed-forward, embeddings; norms and biases left
    /// out. Used to catch a mistyped profile.
    pub fn parameters_from_dimensions(&self) -> u64 {
        let (h, inter) = (u64::from(self.hidden.value), u64::from(self.intermediate.value));
        let head_dim = u64::from(self.head_dim.value);
        let q = u64::from(self.heads.value) * head_dim;
        let kv = u64::from(self.kv_heads.value) * head_dim;
        let layer = h * q * 2 + h * kv * 2 + 3 * h * inter;
        let embeddings = h * u64::from(self.vocab.value) * if self.tied_embeddings.value { 1 } else { 2 };
        u64::from(self.layers.value) * layer + embeddings
    }
}
