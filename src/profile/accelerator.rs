//! Accelerators: memory, bandwidth and peak rates of one device.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::figure::{Figure, FigureRow};

/// One device as a serving engine sees it. Absent figures are unknown, never guessed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Accelerator {
    /// Format version; 1.
    pub kneeboard_profile: u32,
    /// `accelerator`.
    pub kind: AcceleratorKind,
    /// Name used in scenarios; equals the file's name.
    pub name: String,
    /// One line about it.
    pub description: String,
    /// What vLLM's defaults depend on.
    pub platform: Platform,
    /// Sources by key.
    pub sources: BTreeMap<String, String>,
    /// Device memory in bytes, as the driver reports it.
    pub memory_bytes: Option<Figure<u64>>,
    /// Memory that an engine takes beside weights, KV blocks, activations, captured graphs and buffers of collectives:
    /// workspaces, loaded kernels.
    pub runtime_reserve_bytes: Option<Figure<u64>>,
    /// Memory bandwidth in GB/s (10^9 bytes).
    pub memory_bandwidth_gb_s: Option<Figure<f64>>,
    /// Dense bf16 peak in TFLOP/s.
    pub bf16_tflops: Option<Figure<f64>>,
    /// Dense fp8 peak in TFLOP/s.
    pub fp8_tflops: Option<Figure<f64>>,
    /// Link to the neighbours of the same node, GB/s in one direction.
    pub scaleup_gb_s: Option<Figure<f64>>,
    /// Power limit in watts.
    pub tdp_w: Option<Figure<f64>>,
    /// Idle power in watts.
    pub idle_w: Option<Figure<f64>>,
}

/// The word `accelerator`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AcceleratorKind {
    /// An accelerator, or a CPU that serves as one.
    Accelerator,
}

/// Families that an engine treats alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// NVIDIA A100: an exception in vLLM's batch defaults (rule S80).
    A100,
    /// Any other NVIDIA device.
    Cuda,
    /// AWS Neuron.
    Neuron,
    /// A CPU.
    Cpu,
}

impl Accelerator {
    /// Every known figure, in the order of the file.
    pub fn figures(&self) -> Vec<FigureRow<'_>> {
        let mut rows = Vec::new();
        rows.extend(self.memory_bytes.as_ref().map(|f| f.row("memory_bytes")));
        rows.extend(
            self.runtime_reserve_bytes
                .as_ref()
                .map(|f| f.row("runtime_reserve_bytes")),
        );
        rows.extend(
            self.memory_bandwidth_gb_s
                .as_ref()
                .map(|f| f.row("memory_bandwidth_gb_s")),
        );
        rows.extend(self.bf16_tflops.as_ref().map(|f| f.row("bf16_tflops")));
        rows.extend(self.fp8_tflops.as_ref().map(|f| f.row("fp8_tflops")));
        rows.extend(self.scaleup_gb_s.as_ref().map(|f| f.row("scaleup_gb_s")));
        rows.extend(self.tdp_w.as_ref().map(|f| f.row("tdp_w")));
        rows.extend(self.idle_w.as_ref().map(|f| f.row("idle_w")));
        rows
    }
}
