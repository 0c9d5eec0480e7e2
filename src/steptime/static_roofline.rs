//! What one compiled program takes, from physics: the padded shape is computed, read and exchanged whatever is live.
//!
//! Of a rank (a logical core): matrix products of the padded tokens joined with the reading of all weights, attention
//! over the padded square of a prompt or the reading of every row's padded context, two all-reduces a layer, and fixed
//! times. Formulas: step-time.md 3.1 to 3.6, 3.9; rules N20 to N28.

use super::attention::Attention;
use super::collective;
use super::deployment::Deployment;
use super::neuron_link::NeuronLink;
use super::roofline::{Experts, Gemm, MissingFigure, Roofline, join};
use super::static_parameters::{StaticParam, StaticParameters};
use super::static_shape::Program;

/// Bytes of an activation: bf16, whatever the weights are.
const ACTIVATION_BYTES: f64 = 2.0;
/// Bytes of a logit that the host samples from.
const LOGIT_BYTES: f64 = 4.0;

/// A rank under a model: what its programs need, in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct StaticRoofline {
    p: StaticParameters,
    layout: Roofline,
    tp: u32,
    pp: u32,
    flops: f64,
    bytes_per_s: f64,
    /// Bandwidth of a rank's share of the link, in bytes a second; none with one rank.
    link_bytes_per_s: Option<f64>,
    /// The program knows rows by slots of the cache.
    slots: bool,
    /// Positions of a slot.
    slot_positions: u32,
    kv_element_bytes: f64,
    vocab: f64,
    on_device_sampling: bool,
}

/// Where the time of a program goes, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub struct ProgramParts {
    /// Matrix products and the reading of weights, LM head included.
    pub matrices_s: f64,
    /// Attention: of prompts, or the reading of padded contexts.
    pub attention_s: f64,
    /// Rows in slots: looking them up, writing prompts into them.
    pub slots_s: f64,
    /// Exchange between ranks.
    pub collectives_s: f64,
    /// Fixed times of layers and program.
    pub fixed_s: f64,
}

impl ProgramParts {
    /// The program.
    pub fn total_s(&self) -> f64 {
        self.matrices_s + self.attention_s + self.slots_s + self.collectives_s + self.fixed_s
    }
}

impl StaticRoofline {
    /// The model of a deployment with static shapes under these parameters; of one without, for a single row.
    ///
    /// # Errors
    /// [`MissingFigure`] when the accelerator's profile lacks bandwidth, peak rate, or (for several ranks) the link.
    pub fn new(deployment: &Deployment, parameters: StaticParameters) -> Result<Self, MissingFigure> {
        let device = &deployment.accelerator;
        let share = deployment.share_of_device();
        let figure = |value: Option<f64>, figure: &'static str| {
            value.filter(|v| *v > 0.0).ok_or_else(|| MissingFigure {
                accelerator: device.name.clone(),
                figure,
            })
        };
        let value = |f: &Option<crate::profile::Figure<f64>>| f.as_ref().map(|f| f.value);
        let bytes_per_s =
            1e9 * share * figure(value(&device.memory_bandwidth_gb_s), "memory_bandwidth_gb_s")?;
        let flops = 1e12 * share * figure(value(&device.bf16_tflops), "bf16_tflops")?;
        let link_bytes_per_s = if deployment.tp > 1 || deployment.pp > 1 {
            Some(1e9 * share * figure(value(&device.scaleup_gb_s), "scaleup_gb_s")?)
        } else {
            None
        };
        let shapes = deployment.static_shapes.as_ref();
        let most_rows = shapes.and_then(|s| s.decode_batches.last()).copied().unwrap_or(1);
        let longest = |s: &super::StaticShapes| s.token_buckets.last().copied();
        Ok(Self {
            p: parameters,
            layout: Roofline::layout(&with_whole_heads(deployment)),
            tp: deployment.tp,
            pp: deployment.pp,
            flops,
            bytes_per_s,
            link_bytes_per_s,
            slots: most_rows > 1,
            slot_positions: shapes.and_then(longest).unwrap_or(u32::MAX),
            kv_element_bytes: f64::from(deployment.kv_bytes()),
            vocab: f64::from(deployment.model.vocab.value),
            on_device_sampling: shapes.is_none_or(|s| s.on_device_sampling),
        })
    }

    /// The same rank under other parameters.
    #[must_use]
    pub fn under(&self, parameters: StaticParameters) -> Self {
        Self {
            p: parameters,
            ..self.clone()
        }
    }

    /// Where the time of a program goes.
    pub fn parts(&self, program: Program) -> ProgramParts {
        let layers = self.layout.layers;
        let fixed_s = layers * self.p[StaticParam::LayerTime] + self.p[StaticParam::ProgramTime];
        let rate = self.weight_rate(program);
        match program {
            Program::ContextEncoding { tokens, prefix } => {
                let (n, prefix) = (f64::from(tokens), f64::from(prefix));
                ProgramParts {
                    matrices_s: self.matrices(n, 1.0, rate),
                    attention_s: self.prompt_attention(n, prefix),
                    slots_s: self.slot_writes(tokens),
                    collectives_s: self.collectives(n, 1.0),
                    fixed_s,
                }
            }
            Program::TokenGeneration { positions, batch } => {
                let rows = f64::from(batch);
                ProgramParts {
                    matrices_s: self.matrices(rows, rows, rate),
                    attention_s: self.padded_reads(rows, f64::from(positions)),
                    slots_s: if self.slots {
                        layers * self.p[StaticParam::SlotLayerTime]
                    } else {
                        0.0
                    },
                    collectives_s: self.collectives(rows, rows),
                    fixed_s,
                }
            }
        }
    }

    /// Host time to sample the padded rows of a program; none where the device does.
    pub fn sampling_s(&self, program: Program) -> f64 {
        if self.on_device_sampling {
            return 0.0;
        }
        let rows = match program {
            Program::ContextEncoding { .. } => 1,
            Program::TokenGeneration { batch, .. } => batch,
        };
        f64::from(rows) * self.vocab * self.p[StaticParam::SamplingTime]
    }

    /// Bytes of the layers' weights read a second.
    fn weight_rate(&self, program: Program) -> f64 {
        let share = match program {
            Program::ContextEncoding { .. } => StaticParam::ContextWeightBandwidth,
            Program::TokenGeneration { .. } => StaticParam::WeightBandwidth,
        };
        self.bytes_per_s * self.p[share]
    }

    /// Matrix products of all layers on `tokens`, and of the LM head on the rows that give a token: few in any program,
    /// so its weights are read as in token generation.
    fn matrices(&self, tokens: f64, sampled: f64, rate: f64) -> f64 {
        let l = &self.layout;
        let experts = l.experts.map_or(0.0, |e| self.experts(&e, tokens, rate));
        let head_rate = self.bytes_per_s * self.p[StaticParam::WeightBandwidth];
        l.layers * self.product(&l.attention_gemm, tokens, rate)
            + l.mlp_layers * self.product(&l.mlp, tokens, rate)
            + experts
            + self.product(&l.lm_head, sampled, head_rate)
    }

    fn product(&self, gemm: &Gemm, tokens: f64, rate: f64) -> f64 {
        self.joined(2.0 * tokens * gemm.params, gemm.params * gemm.weight_bytes, rate)
    }

    /// Experts that the padded tokens touch if routing is even (step-time.md 3.3): padding is routed too.
    fn experts(&self, e: &Experts, tokens: f64, rate: f64) -> f64 {
        let touched = e.total * (1.0 - (1.0 - e.per_token / e.total).powf(tokens)) * e.share;
        let routed = self.joined(
            2.0 * tokens * e.per_token * e.share * e.params,
            touched * e.params * e.weight_bytes,
            rate,
        );
        e.layers * (routed + self.product(&e.always, tokens, rate))
    }

    fn joined(&self, flops: f64, bytes: f64, bytes_per_s: f64) -> f64 {
        join(
            flops / (self.flops * self.p[StaticParam::MatrixCompute]),
            bytes / bytes_per_s,
            self.p[StaticParam::Join],
        )
    }

    fn kinds(&self) -> impl Iterator<Item = &Attention> {
        self.layout.attention.iter().filter(|a| a.layers > 0.0)
    }

    /// The whole square of queries and keys: what the mask hides is computed too.
    fn prompt_attention(&self, tokens: f64, prefix: f64) -> f64 {
        let flops = self.flops * self.p[StaticParam::AttentionCompute];
        let square = |a: &Attention| a.layers * a.flops_per_pair_prefill * tokens * (tokens + prefix) / flops;
        let reads = |a: &Attention| a.layers * a.kv_bytes * prefix / self.kv_bytes_per_s();
        self.kinds().map(|a| square(a) + reads(a)).sum()
    }

    fn padded_reads(&self, rows: f64, positions: f64) -> f64 {
        self.kinds()
            .map(|a| a.layers * rows * positions.min(a.window) * a.kv_bytes / self.kv_bytes_per_s())
            .sum()
    }

    fn kv_bytes_per_s(&self) -> f64 {
        self.bytes_per_s * self.p[StaticParam::KvBandwidth]
    }

    /// A prompt's keys and values are scattered to the slot of its row; a bucket as long as the slot is written as a
    /// whole, and where there is one row alone there are no slots.
    fn slot_writes(&self, tokens: u32) -> f64 {
        if !self.slots || tokens >= self.slot_positions {
            return 0.0;
        }
        let elements: f64 = self
            .kinds()
            .map(|a| a.layers * a.kv_bytes / self.kv_element_bytes)
            .sum();
        f64::from(tokens) * elements * self.p[StaticParam::SlotWriteTime]
    }

    fn collectives(&self, tokens: f64, sampled: f64) -> f64 {
        let Some(link_bytes_per_s) = self.link_bytes_per_s else {
            return 0.0;
        };
        let link = NeuronLink {
            latency_s: self.p[StaticParam::CollectiveLatency],
            bytes_per_s: link_bytes_per_s * self.p[StaticParam::CollectiveBandwidth],
        };
        let message = tokens * self.layout.hidden * ACTIVATION_BYTES;
        // One more for the vocabulary-parallel embedding.
        let reduces = self.layout.reduces_per_layer * self.layout.layers + 1.0;
        let logits = if self.on_device_sampling {
            0.0
        } else {
            let whole = collective::Link {
                latency_s: link.latency_s,
                bytes_per_s: link.bytes_per_s,
                all_to_all: false,
            };
            collective::all_gather(whole, self.tp, sampled * self.vocab * LOGIT_BYTES)
        };
        reduces * link.all_reduce(self.tp, message)
            + logits
            + f64::from(self.pp.saturating_sub(1)) * link.point_to_point(message)
    }
}

/// The deployment as the Neuron libraries shard it: query heads are padded to a multiple of the ranks, and where ranks
/// and KV heads do not divide one another every query head gets KV heads of its own (step-time.md 1.3).
fn with_whole_heads(deployment: &Deployment) -> Deployment {
    let mut padded = deployment.clone();
    let (tp, kv) = (deployment.tp.max(1), deployment.model.kv_heads.value.max(1));
    padded.model.heads.value = deployment.model.heads.value.next_multiple_of(tp);
    if !tp.is_multiple_of(kv) && !kv.is_multiple_of(tp) {
        padded.model.kv_heads.value = padded.model.heads.value;
    }
    padded
}
