//! How many KV blocks fit beside the weights (rules K1 to K8): a ledger of one device's memory.
//!
//! With pipeline stages the ledger is that of the stage with the fewest blocks, which decides for all (K4).

mod layout;
mod reserve;
mod weights;

use std::fmt;
use std::ops::Range;

pub use layout::{KvLayout, layer_bytes};
pub use reserve::{COLLECTIVE_BYTES, DRIVER_SHARE, RUNTIME_BYTES, ReserveBytes, activations};
pub use weights::{WeightBytes, stage_weights};

use crate::profile::Model;
use crate::steptime::Deployment;
use crate::steptime::stages::stage_layers;

const GIB: f64 = (1u64 << 30) as f64;

/// What the block count depends on besides the deployment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizingKnobs {
    /// Share of the device memory that the engine may take, 0 to 1.
    pub gpu_memory_utilization: f64,
    /// Tokens of a block.
    pub block_size: u32,
    /// Most running requests: rows that are sampled in the largest step.
    pub max_num_seqs: u32,
    /// Tokens of the largest step.
    pub max_num_batched_tokens: u32,
    /// Longest request, in tokens.
    pub max_model_len: u32,
    /// The release subtracts captured graphs (vLLM 0.22.1 and later).
    pub subtracts_graphs: bool,
    /// All memory beside weights and blocks, a device, instead of what is computed.
    pub runtime_reserve_bytes: Option<u64>,
    /// Memory of the KV cache, a device, instead of what is left (K4).
    pub kv_cache_memory_bytes: Option<u64>,
}

impl SizingKnobs {
    /// Tokens that can be scheduled and not yet processed (K7): a batch in each pipeline stage, or two with
    /// asynchronous scheduling.
    pub fn in_flight(&self, deployment: &Deployment) -> u32 {
        let batches = deployment.pp.max(if deployment.asynchronous { 2 } else { 1 });
        self.max_num_batched_tokens.saturating_mul(batches)
    }
}

/// Where the memory of one device goes. All figures in bytes, a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MemoryLedger {
    /// Device memory, as its profile states it.
    pub device: u64,
    /// What the driver keeps of it.
    pub driver: u64,
    /// What the engine may take: the rest times utilization (K2).
    pub requested: u64,
    /// Weights on this rank.
    pub weights: u64,
    /// The same by part.
    pub weight_parts: WeightBytes,
    /// Memory beside weights and blocks (K3).
    pub reserve: u64,
    /// The same by part.
    pub reserve_parts: ReserveBytes,
    /// What is left for KV blocks, or was given for them (K4); 0 when nothing is left.
    pub kv: u64,
    /// How the KV cache is cut into blocks.
    pub layout: KvLayout,
    /// One block over the layers of its group (K6).
    pub block: u64,
    /// Blocks that fit (K5), the null block included.
    pub num_gpu_blocks: u32,
    /// Blocks that one request of the greatest length can hold (K7).
    pub blocks_per_request: u64,
    /// Longest request, in tokens.
    pub max_model_len: u32,
    /// Pipeline stage that this is the ledger of, from 0.
    pub stage: u32,
    /// Pipeline stages.
    pub stages: u32,
}

impl MemoryLedger {
    /// Requests of the greatest length that fit at once, as vLLM prints it ("Maximum concurrency", K8).
    pub fn max_concurrency(&self) -> f64 {
        f64::from(self.num_gpu_blocks) / self.blocks_per_request.max(1) as f64
    }

    /// The cache's size in tokens as vLLM prints it ("GPU KV cache size", K8): concurrency times length.
    pub fn printed_tokens(&self) -> u64 {
        (self.max_concurrency() * f64::from(self.max_model_len)) as u64
    }

    /// The ledger as (line, bytes), from the device's memory down to what is left; parts are indented.
    pub fn rows(&self) -> Vec<(&'static str, u64)> {
        let mut rows = vec![
            ("device memory", self.device),
            ("  kept by the driver", self.driver),
            ("engine may take", self.requested),
            ("weights", self.weights),
            ("  attention", self.weight_parts.attention),
            ("  feed-forward", self.weight_parts.mlp),
            ("  routed experts", self.weight_parts.experts),
            ("  embeddings and LM head", self.weight_parts.embeddings),
            ("  norms", self.weight_parts.norms),
            ("reserve", self.reserve),
            ("  runtime and collectives", self.reserve_parts.runtime),
            ("  activations", self.reserve_parts.activations),
            ("  captured graphs", self.reserve_parts.graphs),
            ("KV cache", self.kv),
        ];
        rows.retain(|(name, bytes)| *bytes > 0 || !name.starts_with(' '));
        rows
    }

    /// What the rows do not say: blocks, groups, what one request needs.
    pub fn summary(&self) -> String {
        let l = &self.layout;
        let groups = if l.is_hybrid() {
            format!(
                " ({} full and {} windowed groups of {} layers share the pool)",
                l.full_groups, l.window_groups, l.group_layers
            )
        } else {
            String::new()
        };
        let stage = if self.stages > 1 {
            format!("; tightest of {} stages: number {}", self.stages, self.stage)
        } else {
            String::new()
        };
        format!(
            "{} blocks of {} tokens and {} bytes{groups}; a request of {} tokens holds {}: {:.2} at once{stage}",
            self.num_gpu_blocks,
            l.block_size,
            self.block,
            self.max_model_len,
            self.blocks_per_request,
            self.max_concurrency()
        )
    }
}

impl fmt::Display for MemoryLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |b: u64| b as f64 / GIB;
        let (w, r) = (&self.weight_parts, &self.reserve_parts);
        write!(
            f,
            "device {:.2} GiB, of which the engine may take {:.2}; weights {:.2} (attention {:.2}, feed-forward \
             {:.2}, experts {:.2}, embeddings {:.2}), reserve {:.2} (runtime {:.2}, activations {:.2}, graphs \
             {:.2}), left for KV {:.2} GiB = {} blocks of {} bytes",
            gib(self.device),
            gib(self.requested),
            gib(self.weights),
            gib(w.attention),
            gib(w.mlp),
            gib(w.experts),
            gib(w.embeddings),
            gib(self.reserve),
            gib(r.runtime),
            gib(r.activations),
            gib(r.graphs),
            gib(self.kv),
            self.num_gpu_blocks,
            self.block
        )?;
        if self.stages > 1 {
            write!(f, ", in stage {} of {}", self.stage, self.stages)?;
        }
        Ok(())
    }
}

/// Why a model cannot be served on a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizingError {
    /// A figure of the device is unknown.
    #[error("the profile '{0}' states no {1}, so the block count cannot be derived")]
    Unknown(String, &'static str),
    /// The weights alone exceed what the engine may take.
    #[error("the model is larger than the memory: {0}")]
    ModelTooLarge(Box<MemoryLedger>),
    /// Weights and reserve leave no room for two blocks (one is the null block, K10).
    #[error("no KV block is left: {0}")]
    NoBlockLeft(Box<MemoryLedger>),
    /// The stated KV cache does not fit beside the weights.
    #[error("the stated KV cache does not fit: {0}")]
    CacheTooLarge(Box<MemoryLedger>),
}

/// Bytes of KV cache of one token on one rank, over all layers (K6), in the format of the model's profile.
pub fn kv_bytes_per_token(model: &Model, tp: u32) -> u64 {
    u64::from(model.layers.value) * layer_bytes(model, tp, model.kv_bytes.value)
}

/// The memory ledger of one device and the blocks that fit.
///
/// # Errors
/// [`SizingError`] when a figure is unknown, the model does not fit, or no block is left.
pub fn ledger(deployment: &Deployment, knobs: SizingKnobs) -> Result<MemoryLedger, SizingError> {
    let stages = stage_layers(deployment.model.layers.value, deployment.pp);
    let mut tightest: Option<MemoryLedger> = None;
    for (stage, layers) in stages.iter().enumerate() {
        let mut found = stage_ledger(deployment, layers, knobs)?;
        (found.stage, found.stages) = (stage as u32, stages.len() as u32);
        check(&found, knobs)?;
        if tightest.is_none_or(|t| found.num_gpu_blocks < t.num_gpu_blocks) {
            tightest = Some(found);
        }
    }
    tightest.ok_or_else(|| SizingError::Unknown(deployment.accelerator.name.clone(), "memory_bytes"))
}

fn stage_ledger(
    deployment: &Deployment,
    layers: &Range<u32>,
    knobs: SizingKnobs,
) -> Result<MemoryLedger, SizingError> {
    let accelerator = &deployment.accelerator;
    let unknown = |what| SizingError::Unknown(accelerator.name.clone(), what);
    let memory = accelerator.memory_bytes.as_ref();
    let device = memory.ok_or_else(|| unknown("memory_bytes"))?.value;
    let driver = if accelerator.platform.is_nvidia() {
        (device as f64 * DRIVER_SHARE) as u64
    } else {
        0
    };
    let requested = ((device - driver) as f64 * knobs.gpu_memory_utilization).ceil() as u64;
    let reserve_parts =
        reserve_of(deployment, layers, knobs).ok_or_else(|| unknown("runtime_reserve_bytes"))?;
    let (weight_parts, reserve) = (stage_weights(deployment, layers), reserve_parts.total());
    let weights = weight_parts.total();
    let left = requested.saturating_sub(weights).saturating_sub(reserve);
    let kv = knobs.kv_cache_memory_bytes.unwrap_or(left);
    let layout = KvLayout::of_stage(deployment, knobs.block_size, layers);
    let block = layout.block_bytes();
    Ok(MemoryLedger {
        device,
        driver,
        requested,
        weights,
        weight_parts,
        reserve,
        reserve_parts,
        kv,
        layout,
        block,
        num_gpu_blocks: u32::try_from(kv / block.max(1)).unwrap_or(u32::MAX),
        blocks_per_request: layout.blocks_of_request(knobs.max_model_len, knobs.in_flight(deployment)),
        max_model_len: knobs.max_model_len,
        stage: 0,
        stages: 1,
    })
}

/// A stated reserve stands for all of it.
fn reserve_of(deployment: &Deployment, layers: &Range<u32>, knobs: SizingKnobs) -> Option<ReserveBytes> {
    if let Some(runtime) = knobs.runtime_reserve_bytes {
        return Some(ReserveBytes {
            runtime,
            ..ReserveBytes::default()
        });
    }
    let (tokens, rows) = (knobs.max_num_batched_tokens, knobs.max_num_seqs);
    Some(ReserveBytes {
        runtime: reserve::runtime(deployment)?,
        activations: activations(deployment, layers, tokens, rows),
        graphs: if knobs.subtracts_graphs {
            reserve::graphs(deployment, layers, rows)
        } else {
            0
        },
    })
}

fn check(ledger: &MemoryLedger, knobs: SizingKnobs) -> Result<(), SizingError> {
    let boxed = || Box::new(*ledger);
    // A stated cache takes no heed of utilization: then all that the driver offers counts (K4).
    let offered = ledger.device - ledger.driver;
    let bound = if knobs.kv_cache_memory_bytes.is_some() {
        offered
    } else {
        ledger.requested
    };
    if ledger.weights > bound {
        return Err(SizingError::ModelTooLarge(boxed()));
    }
    if ledger.kv > offered - ledger.weights.min(offered) {
        return Err(SizingError::CacheTooLarge(boxed()));
    }
    if ledger.num_gpu_blocks < 2 {
        return Err(SizingError::NoBlockLeft(boxed()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
