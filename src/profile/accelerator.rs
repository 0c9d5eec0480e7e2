//! Accelerators: memory, bandwidth and peak rates of one device.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::{Problem, not_above};
use super::figure::{Figure, FigureRow};
use super::{Facts, Kind};

/// One device as a serving engine sees it. Absent figures are unknown, never guessed. Rates are dense: without
/// structured sparsity.
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
    /// Other names under which it is found, such as the one that its driver prints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// What vLLM's defaults depend on.
    pub platform: Platform,
    /// Sources by key.
    pub sources: BTreeMap<String, String>,
    /// Device memory in bytes, as the driver reports it where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Figure<u64>>,
    /// Memory that an engine takes beside weights, KV blocks, activations, captured graphs and buffers of collectives:
    /// workspaces, loaded kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_reserve_bytes: Option<Figure<u64>>,
    /// Memory bandwidth in GB/s (10^9 bytes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bandwidth_gb_s: Option<Figure<f64>>,
    /// Dense bf16 peak in TFLOP/s; of fp16 where the device has no bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_tflops: Option<Figure<f64>>,
    /// Dense fp8 peak in TFLOP/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp8_tflops: Option<Figure<f64>>,
    /// Dense int8 peak in TOP/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8_tops: Option<Figure<f64>>,
    /// Dense fp4 peak in TFLOP/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp4_tflops: Option<Figure<f64>>,
    /// Cores that ranks are placed on, each with its share of memory, bandwidth and rates (NeuronCores); absent where a
    /// rank is a whole device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<Figure<u32>>,
    /// Memory on the chip that all its cores reach (last-level cache or scratchpad), in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_chip_bytes: Option<Figure<u64>>,
    /// What that memory is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_chip_kind: Option<Figure<String>>,
    /// Name of the link to the neighbours of the same node; absent when they are reached over PCIe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaleup_link: Option<Figure<String>>,
    /// That link, GB/s in one direction, all its lanes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaleup_gb_s: Option<Figure<f64>>,
    /// How neighbours are linked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaleup_topology: Option<Figure<String>>,
    /// PCIe, GB/s in one direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_gb_s: Option<Figure<f64>>,
    /// Power limit in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tdp_w: Option<Figure<f64>>,
    /// Idle power in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_w: Option<Figure<f64>>,
    /// Remarks that belong to no single figure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
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
    /// NVIDIA data-centre Blackwell, compute capability 10.x: captures graphs of larger batches (rule S84).
    Blackwell,
    /// Any other NVIDIA device.
    Cuda,
    /// AMD.
    Rocm,
    /// Intel Gaudi.
    Gaudi,
    /// Google TPU.
    Tpu,
    /// AWS Neuron.
    Neuron,
    /// A CPU.
    Cpu,
}

impl Platform {
    /// The word in a profile.
    pub fn word(self) -> &'static str {
        match self {
            Self::A100 => "a100",
            Self::Blackwell => "blackwell",
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Gaudi => "gaudi",
            Self::Tpu => "tpu",
            Self::Neuron => "neuron",
            Self::Cpu => "cpu",
        }
    }

    /// A device of NVIDIA.
    pub fn is_nvidia(self) -> bool {
        matches!(self, Self::A100 | Self::Blackwell | Self::Cuda)
    }
}

impl Facts for Accelerator {
    super::common_facts!(Kind::Accelerator);

    fn aliases(&self) -> Vec<&str> {
        self.aliases.iter().map(String::as_str).collect()
    }

    fn figures(&self) -> Vec<FigureRow<'_>> {
        let mut rows = Vec::new();
        macro_rules! known {
            ($($field:ident),+) => { $(rows.extend(self.$field.as_ref().map(|f| f.row(stringify!($field))));)+ };
        }
        known!(
            memory_bytes,
            runtime_reserve_bytes,
            memory_bandwidth_gb_s,
            bf16_tflops,
            fp8_tflops,
            int8_tops,
            fp4_tflops,
            cores,
            on_chip_bytes,
            on_chip_kind,
            scaleup_link,
            scaleup_gb_s,
            scaleup_topology,
            pcie_gb_s,
            tdp_w,
            idle_w
        );
        rows
    }

    fn contradictions(&self) -> Vec<Problem> {
        // A rate of narrower numbers below that of wider ones, or idling above the limit, is a slip.
        [
            not_above("bf16_tflops", &self.bf16_tflops, "fp8_tflops", &self.fp8_tflops),
            not_above("fp8_tflops", &self.fp8_tflops, "fp4_tflops", &self.fp4_tflops),
            not_above("idle_w", &self.idle_w, "tdp_w", &self.tdp_w),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
