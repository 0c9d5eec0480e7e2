//! How many KV blocks fit beside the weights (rules K2, K3, K5, K6).

use std::fmt;

use crate::profile::{Accelerator, Model};

const GIB: f64 = (1u64 << 30) as f64;

/// What the block count depends on besides the two profiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizingKnobs {
    /// Share of the device memory that the engine may take, 0 to 1.
    pub gpu_memory_utilization: f64,
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Memory beside weights and blocks, a device; `None` = the accelerator profile's figure.
    pub runtime_reserve_bytes: Option<u64>,
}

/// Where the memory of one device goes. All figures in bytes, a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MemoryLedger {
    /// Device memory.
    pub device: u64,
    /// What the engine may take: device memory times utilization (K2).
    pub requested: u64,
    /// Weights on this rank.
    pub weights: u64,
    /// Context, workspaces, activations, graphs: a stated figure (K3 measures it).
    pub reserve: u64,
    /// What is left for KV blocks; 0 when nothing is.
    pub kv: u64,
    /// One block over all layers (K6).
    pub block: u64,
    /// Blocks that fit (K5), the null block included.
    pub num_gpu_blocks: u32,
}

impl fmt::Display for MemoryLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |b: u64| b as f64 / GIB;
        write!(
            f,
            "device {:.2} GiB, of which the engine may take {:.2}; weights {:.2}, reserve {:.2}, left for KV {:.2} \
             GiB = {} blocks of {} bytes",
            gib(self.device),
            gib(self.requested),
            gib(self.weights),
            gib(self.reserve),
            gib(self.kv),
            self.num_gpu_blocks,
            self.block
        )
    }
}

/// Why a model cannot be served on a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizingError {
    /// The device's memory is unknown.
    #[error("the profile '{0}' states no {1}, so the block count cannot be derived")]
    Unknown(String, &'static str),
    /// The weights alone exceed what the engine may take.
    #[error("the model is larger than the memory: {0}")]
    ModelTooLarge(MemoryLedger),
    /// Weights and reserve leave no room for two blocks (one is the null block, K10).
    #[error("no KV block is left: {0}")]
    NoBlockLeft(MemoryLedger),
}

/// Bytes of KV cache of one token on one rank, over all layers (K6). KV heads are replicated once TP
/// exceeds their number.
pub fn kv_bytes_per_token(model: &Model, tp: u32) -> u64 {
    let heads = (model.kv_heads.value / tp.max(1)).max(1);
    u64::from(model.layers.value)
        * u64::from(heads)
        * 2
        * u64::from(model.head_dim.value)
        * u64::from(model.kv_bytes.value)
}

/// The memory ledger of one device and the blocks that fit.
///
/// # Errors
/// [`SizingError`] when a figure is unknown, the model does not fit, or no block is left.
pub fn ledger(
    accelerator: &Accelerator,
    model: &Model,
    knobs: SizingKnobs,
) -> Result<MemoryLedger, SizingError> {
    let unknown = |what| SizingError::Unknown(accelerator.name.clone(), what);
    let device = accelerator
        .memory_bytes
        .as_ref()
        .ok_or_else(|| unknown("memory_bytes"))?
        .value;
    let reserve = match (knobs.runtime_reserve_bytes, &accelerator.runtime_reserve_bytes) {
        (Some(bytes), _) => bytes,
        (None, Some(figure)) => figure.value,
        (None, None) => return Err(unknown("runtime_reserve_bytes")),
    };
    let requested = (device as f64 * knobs.gpu_memory_utilization).ceil() as u64;
    let weights = model.weight_bytes_total().div_ceil(u64::from(knobs.tp.max(1)));
    let kv = requested.saturating_sub(weights).saturating_sub(reserve);
    let block = kv_bytes_per_token(model, knobs.tp) * u64::from(knobs.block_size.max(1));
    let blocks = u32::try_from(kv / block.max(1)).unwrap_or(u32::MAX);
    let ledger = MemoryLedger {
        device,
        requested,
        weights,
        reserve,
        kv,
        block,
        num_gpu_blocks: blocks,
    };
    if weights > requested {
        return Err(SizingError::ModelTooLarge(ledger));
    }
    if blocks < 2 {
        return Err(SizingError::NoBlockLeft(ledger));
    }
    Ok(ledger)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::profile::catalog;

    fn knobs(tp: u32) -> SizingKnobs {
        SizingKnobs {
            gpu_memory_utilization: 0.9,
            tp,
            block_size: 16,
            runtime_reserve_bytes: None,
        }
    }

    fn model(name: &str) -> Model {
        catalog::model(name, Path::new("")).unwrap()
    }

    fn device(name: &str) -> Accelerator {
        catalog::accelerator(name, Path::new("")).unwrap()
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

    #[test]
    fn a_hand_ledger_of_llama_8b_on_h100() {
        let got = ledger(&device("h100-sxm"), &model("llama-3.1-8b"), knobs(1)).unwrap();
        let requested = 77_309_411_328; // ceil(0.9 * 80 GiB)
        assert_eq!(got.requested, requested);
        assert_eq!(got.weights, 2 * 8_029_995_008);
        assert_eq!(got.block, 16 * 131_072);
        let kv = requested - 2 * 8_029_995_008 - 1_342_177_280;
        assert_eq!(u64::from(got.num_gpu_blocks), kv / (16 * 131_072));
    }

    /// A dense model of seven billion parameters with 32 KV heads: vLLM 0.15.1 gave 7,462 blocks on an H100.
    #[test]
    fn the_stated_reserve_gives_a_measured_block_count_within_two_percent() {
        let mut llama2 = model("llama-3.1-8b");
        llama2.parameters.value = 6_738_415_616;
        llama2.kv_heads.value = 32;
        let got = ledger(&device("h100-sxm"), &llama2, knobs(1)).unwrap();
        let error = f64::from(got.num_gpu_blocks) / 7462.0 - 1.0;
        assert!(error.abs() < 0.02, "{got}: {error}");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_ledger() {
        let e = ledger(&device("h100-sxm"), &model("llama-3.1-70b"), knobs(1)).unwrap_err();
        assert!(matches!(e, SizingError::ModelTooLarge(_)), "{e}");
        assert!(e.to_string().contains("weights 131.4"), "{e}");
        let mut tight = knobs(1);
        tight.runtime_reserve_bytes = Some(80 << 30);
        let e = ledger(&device("h100-sxm"), &model("llama-3.1-8b"), tight).unwrap_err();
        assert!(matches!(e, SizingError::NoBlockLeft(_)), "{e}");
        let e = ledger(&device("cpu-1core"), &model("kneeboard-small"), knobs(1)).unwrap_err();
        assert!(matches!(e, SizingError::Unknown(..)), "{e}");
    }
}
