//! `system`: model, device, engine, step time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::vllm::Policy;
use crate::scenario::quantity::{Cost, Finite, Size};
use crate::steptime::{GraphMode, KvDtype, WeightDtype};

/// Model, device, engine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Model profile: a name or a path. Needed unless block count and max_model_len are given.
    pub model: Option<String>,
    /// Accelerator profile: a name or a path. Decides vLLM's defaults and the block count.
    pub accelerator: Option<String>,
    /// Number format of the linear layers' weights; auto = the model profile's. Embeddings stay in 16 bits.
    pub dtype: Option<DtypeChoice>,
    /// Number format of the KV cache; auto = the model profile's.
    pub kv_dtype: Option<KvDtypeChoice>,
    /// The engine and its knobs, by vLLM's names.
    #[serde(default)]
    pub engine: Engine,
    /// How a model is split over devices.
    #[serde(default)]
    pub parallel: Parallel,
    /// A fitted step-time model: a name (calibration/fits/NAME.yaml), a path, or auto for the nearest shipped one.
    pub fit: Option<String>,
    /// Stated step-time coefficients, instead of a fit.
    pub step_time: Option<StepTimeCosts>,
}

/// Number format of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DtypeChoice {
    /// The model profile's.
    Auto,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    Fp16,
    /// 8-bit floating point, weights and activations.
    Fp8,
    /// 8-bit integers, weights and activations.
    Int8,
    /// 4-bit integers, weights only.
    Int4,
    /// OCP microscaling 4-bit floating point.
    Mxfp4,
    /// NVIDIA's 4-bit floating point.
    Nvfp4,
}

impl DtypeChoice {
    /// The format; `None` = the profile's.
    pub const fn dtype(self) -> Option<WeightDtype> {
        Some(match self {
            Self::Auto => return None,
            Self::Bf16 => WeightDtype::Bf16,
            Self::Fp16 => WeightDtype::Fp16,
            Self::Fp8 => WeightDtype::Fp8,
            Self::Int8 => WeightDtype::Int8,
            Self::Int4 => WeightDtype::Int4,
            Self::Mxfp4 => WeightDtype::Mxfp4,
            Self::Nvfp4 => WeightDtype::Nvfp4,
        })
    }
}

/// Number format of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KvDtypeChoice {
    /// The model profile's.
    Auto,
    /// 16 bits.
    Bf16,
    /// 8 bits.
    Fp8,
}

impl KvDtypeChoice {
    /// The format; `None` = the profile's.
    pub const fn dtype(self) -> Option<KvDtype> {
        match self {
            Self::Auto => None,
            Self::Bf16 => Some(KvDtype::Bf16),
            Self::Fp8 => Some(KvDtype::Fp8),
        }
    }
}

/// Engines that are modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// vLLM, V1 scheduler.
    Vllm,
    /// vLLM under a plugin for AWS Neuron devices: compiled static shapes, one prompt at a time before any decode.
    Neuron,
}

/// The engine's knobs. What is left out takes the default of the named vLLM version on that accelerator.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Which engine; left out, the one that runs on the accelerator.
    pub kind: Option<EngineKind>,
    /// vLLM release whose scheduling rules apply; of kind neuron, the plugin's release. Quote it.
    pub version: Option<String>,
    /// Most running requests; of kind neuron, the compiled batch, too.
    pub max_num_seqs: Option<u32>,
    /// Token budget of a step.
    pub max_num_batched_tokens: Option<u32>,
    /// Token budget of a step if it differs from max_num_batched_tokens.
    pub max_num_scheduled_tokens: Option<u32>,
    /// Most active requests, at most max_num_seqs (vLLM 0.32 and later).
    pub max_num_active_seqs: Option<u32>,
    /// Longest prompt plus output, in tokens.
    pub max_model_len: Option<u32>,
    /// Tokens of a KV block.
    pub block_size: Option<u32>,
    /// KV blocks, the null block included. Given, it replaces any derivation from memory.
    pub num_gpu_blocks: Option<u32>,
    /// Share of the device memory that the engine takes.
    pub gpu_memory_utilization: Option<Finite>,
    /// Memory of the KV cache, a device; replaces the derivation from gpu_memory_utilization.
    pub kv_cache_memory_bytes: Option<Size>,
    /// All memory beside weights and KV blocks, a device; replaces what is computed.
    pub runtime_reserve: Option<Size>,
    /// No captured CUDA graphs.
    pub enforce_eager: Option<bool>,
    /// Which batches run as a captured CUDA graph.
    pub cudagraph_mode: Option<GraphMode>,
    /// Batch sizes with a captured CUDA graph, in tokens.
    pub cudagraph_capture_sizes: Option<Vec<u32>>,
    /// Reuse of full KV blocks with equal content.
    pub enable_prefix_caching: Option<bool>,
    /// Prompts may be computed in pieces.
    pub enable_chunked_prefill: Option<bool>,
    /// Cap on the tokens of one request in a step; 0 = off.
    pub long_prefill_token_threshold: Option<u32>,
    /// Order of the waiting queue and choice of preemption victims.
    pub scheduling_policy: Option<Policy>,
    /// Schedule one step ahead of the device.
    pub async_scheduling: Option<bool>,
    /// A prompt is admitted only when all of it fits (vLLM 0.19 and later).
    pub scheduler_reserve_full_isl: Option<bool>,
    /// Share of the blocks kept free at admission (vLLM 0.25 and later).
    pub watermark: Option<Finite>,
    /// Drafts in a verification; 0 = no speculation.
    pub num_speculative_tokens: Option<u32>,
    /// KV slots reserved past the scheduled tokens (draft models).
    pub num_lookahead_tokens: Option<u32>,
    /// Steps between two looks of ranks that step together at whether anybody has work left (vLLM 0.32 and later; before, 32).
    pub dp_sync_interval: Option<u32>,
    /// Ranks that step together compute prompts in every so many steps only, unless prompts had to be left waiting or nobody
    /// decodes; 1 = in all (vLLM 0.25 and later).
    pub prefill_schedule_interval: Option<u32>,
    /// Neuron: NxDI's name of max_model_len.
    pub seq_len: Option<u32>,
    /// Neuron: physical cores that serve as one logical core (LNC), which system.parallel.tp counts; 1 or 2.
    pub lnc: Option<u32>,
    /// Neuron: KV blocks without the null block.
    pub pa_num_blocks: Option<u32>,
    /// Neuron plugin 0.2.0: programs for several lengths; off, every prompt and context is padded to seq_len.
    pub enable_bucketing: Option<bool>,
    /// Neuron plugin 0.2.0: lengths that prompts are padded to, rising; the last is seq_len.
    pub context_encoding_buckets: Option<Vec<u32>>,
    /// Neuron plugin 0.2.0: contexts whose KV a decode reads, rising; the last is seq_len.
    pub token_generation_buckets: Option<Vec<u32>>,
    /// Neuron plugin 0.2.0: rows that decodes are padded to, rising; the last is max_num_seqs.
    pub token_generation_batches: Option<Vec<u32>>,
    /// Native Neuron plugin: rows that decodes are padded to, rising; the last is max_num_seqs.
    pub num_seqs_buckets: Option<Vec<u32>>,
    /// Native Neuron plugin: contexts whose KV a decode reads, rising; the last is max_model_len.
    pub decode_context_length_buckets: Option<Vec<u32>>,
    /// Neuron plugin 0.2.0: vLLM's own scheduler instead of the plugin's, with its token budget; prompts then run beside
    /// decodes.
    pub disable_neuron_custom_scheduler: Option<bool>,
    /// Neuron: tokens are sampled on the device; off, by the host.
    pub on_device_sampling: Option<bool>,
    /// Neuron plugin 0.2.0: NxDI issues a decode before the one before it has come back.
    pub async_mode: Option<bool>,
}

/// How a model is split over devices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parallel {
    /// Tensor-parallel ranks.
    pub tp: Option<u32>,
    /// Pipeline stages: layers are dealt out as vLLM does, and as many batches are under way.
    pub pp: Option<u32>,
    /// Must be 1: replicas are cluster.pools.*.groups, data-parallel ranks of a group cluster.pools.*.dp.
    pub dp: Option<u32>,
    /// Expert-parallel ranks: 1, or as many as tp. They count in memory and step time.
    pub ep: Option<u32>,
}

/// duration = step + any_prefill (if anything is prefilled) + counts times the other costs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepTimeCosts {
    /// Every step.
    pub step: Cost,
    /// A step with at least one prefill row.
    pub any_prefill: Option<Cost>,
    /// A prefill row.
    pub prefill_row: Option<Cost>,
    /// A prefill token.
    pub prefill_token: Option<Cost>,
    /// A position attended by a prefill token.
    pub prefill_context_token: Option<Cost>,
    /// A decode row.
    pub decode_row: Option<Cost>,
    /// A position attended by a decode token.
    pub decode_context_token: Option<Cost>,
}
