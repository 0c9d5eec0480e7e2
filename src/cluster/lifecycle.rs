//! The life of a group of ranks: how it starts, stage by stage, and which phases may follow each other.
//!
//! Figures that others measured stand here as constants with their sources, from the survey of cold starts in the
//! project's step-time study (section 4). They are of single systems, not averages: state your own where you know them.

use super::link::UNITS_PER_BYTE;
use super::ratio::Ratio;
use crate::units::SimDuration;

const fn seconds(s: u64) -> SimDuration {
    SimDuration::from_millis(1_000 * s)
}

/// A Kubernetes node with GPUs is ready 2 to 8 minutes after it was asked for (alivedise BEE-30068, dev.to,
/// codingwithtaz; weak sources): the middle.
pub const NODE_READY: SimDuration = seconds(5 * 60);

/// vLLM, Llama 70B in FP8 on 8 GPUs, June 2025: Dynamo 15 s and torch.compile 70 s without a compile cache (vLLM issue
/// 19824).
pub const VLLM_70B_COMPILE: SimDuration = seconds(15 + 70);

/// vLLM, a model of 3.4 GiB, compile cache kept (vLLM issue 20264).
pub const VLLM_SMALL_COMPILE_CACHED: SimDuration = SimDuration::from_millis(7_500);

/// vLLM, Llama 70B in FP8 on 8 GPUs: capture of CUDA graphs (vLLM issue 19824).
pub const VLLM_70B_CAPTURE: SimDuration = seconds(60);

/// vLLM, a model of 3.4 GiB: capture of CUDA graphs (vLLM issue 20264).
pub const VLLM_SMALL_CAPTURE: SimDuration = seconds(17);

/// vLLM, Llama 70B in FP8 on 8 GPUs: the check of peer-to-peer access takes about 60 s, and the first request 30 to 60 s
/// more (vLLM issue 19824): the check and the middle.
pub const VLLM_70B_WARM: SimDuration = seconds(60 + 45);

/// Weights from a gp3 SSD with plain safetensors, bytes a second: a model of 15 to 16 GB in 48.0 s (hyper.ai on Run:ai;
/// the model's size is inferred).
pub const GP3_BYTES_PER_S: u64 = 300_000_000;

/// The same with Run:ai's streamer: 14.3 s.
pub const GP3_STREAMER_BYTES_PER_S: u64 = 1_100_000_000;

/// The same from an io2 SSD: 7.5 s.
pub const IO2_STREAMER_BYTES_PER_S: u64 = 2_100_000_000;

/// Weights that are in the page cache of the host: about 70 GB in 10 s (vLLM issue 19824, Llama 70B in FP8; the size is
/// taken as a byte a parameter).
pub const PAGE_CACHE_BYTES_PER_S: u64 = 7_000_000_000;

/// DeepSeek-V3 on Trainium, 64 shards of 21.4 GB in 7.8 min (neuronx-distributed-inference).
pub const NEURON_LOAD_BYTES_PER_S: u64 = 2_900_000_000;

/// Neuron compilation of a 7B model takes 230 to 430 s (contributed models of neuronx-distributed-inference): the
/// middle. About 1 s from a cache; 70B and more: 30 to 60 min.
pub const NEURON_7B_COMPILE: SimDuration = seconds(330);

/// What a group does between the decision to start it and its first request, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The node is ordered, boots and pulls its image.
    Provision,
    /// Weights are read into the devices.
    LoadWeights,
    /// Kernels and graphs are compiled.
    Compile,
    /// Device graphs are captured.
    Capture,
    /// First steps, checks and registration, until it takes requests.
    Warm,
}

impl Stage {
    /// All, in their order.
    pub const ALL: [Self; 5] = [
        Self::Provision,
        Self::LoadWeights,
        Self::Compile,
        Self::Capture,
        Self::Warm,
    ];

    /// How reports call it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Provision => "provision",
            Self::LoadWeights => "load_weights",
            Self::Compile => "compile",
            Self::Capture => "capture",
            Self::Warm => "warm",
        }
    }
}

/// How long a group takes to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPlan {
    /// Until a node is there.
    pub provision: SimDuration,
    /// What the group reads in all, bytes.
    pub weight_bytes: u64,
    /// How fast it reads it, bytes a second over all ranks. `u64::MAX` takes no time; 0 never ends.
    pub weight_bandwidth: u64,
    /// Compilation.
    pub compile: SimDuration,
    /// Capture of device graphs.
    pub capture: SimDuration,
    /// From then on until the first request.
    pub warm: SimDuration,
}

impl RestartPlan {
    /// A group that is ready at once.
    pub const NOTHING: Self = Self {
        provision: SimDuration::ZERO,
        weight_bytes: 0,
        weight_bandwidth: u64::MAX,
        compile: SimDuration::ZERO,
        capture: SimDuration::ZERO,
        warm: SimDuration::ZERO,
    };

    /// vLLM with a model of the 70B class on 8 GPUs and no compile cache, on a node that must be ordered:
    /// [`NODE_READY`], [`VLLM_70B_COMPILE`], [`VLLM_70B_CAPTURE`] and [`VLLM_70B_WARM`].
    pub const fn vllm_70b(weight_bytes: u64, weight_bandwidth: u64) -> Self {
        Self {
            provision: NODE_READY,
            weight_bytes,
            weight_bandwidth,
            compile: VLLM_70B_COMPILE,
            capture: VLLM_70B_CAPTURE,
            warm: VLLM_70B_WARM,
        }
    }

    /// The restart of a process on a node that lives: nothing is provisioned. The plan as it stands is that of a
    /// replacement for a lost node.
    pub const fn on_live_node(self) -> Self {
        Self {
            provision: SimDuration::ZERO,
            ..self
        }
    }

    /// The stages that take time, in order. `slow_factor` lengthens the loading of weights, as
    /// [`super::fault::FaultKind::WeightStoreSlow`] says; [`Ratio::ONE`] leaves it.
    pub fn stages(&self, slow_factor: Ratio) -> Vec<(Stage, SimDuration)> {
        let length = |stage| match stage {
            Stage::Provision => self.provision,
            Stage::LoadWeights => slow_factor.stretch(self.load_weights()),
            Stage::Compile => self.compile,
            Stage::Capture => self.capture,
            Stage::Warm => self.warm,
        };
        let stages = Stage::ALL.map(|stage| (stage, length(stage)));
        stages
            .into_iter()
            .filter(|&(_, length)| length > SimDuration::ZERO)
            .collect()
    }

    /// All stages together; at most what a duration can hold.
    pub fn total(&self, slow_factor: Ratio) -> SimDuration {
        let stages = self.stages(slow_factor).into_iter();
        stages.fold(SimDuration::ZERO, |sum, (_, length)| sum + length)
    }

    /// Bytes over bandwidth, rounded up.
    fn load_weights(&self) -> SimDuration {
        match (self.weight_bytes, self.weight_bandwidth) {
            (0, _) | (_, u64::MAX) => SimDuration::ZERO,
            (_, 0) => SimDuration(u64::MAX),
            (bytes, bandwidth) => {
                let ns = (u128::from(bytes) * UNITS_PER_BYTE).div_ceil(u128::from(bandwidth));
                SimDuration(u64::try_from(ns).unwrap_or(u64::MAX))
            }
        }
    }
}

/// Where a group is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// It is in the plan, nothing of it exists.
    Absent,
    /// It costs, but serves nobody yet.
    Starting(Stage),
    /// It takes requests.
    Ready,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// A fault ended it; what it held is lost.
    Failed,
    /// It was ended on purpose, and its devices are free.
    Stopped,
}

impl Phase {
    /// Whether `next` may follow. Stages go forward, and any may be the first or be skipped (a plan leaves out those that
    /// take no time; with none left a group is ready at once). A fault can hit whatever exists; a group that failed or
    /// stopped starts again or, if it failed, is given up. A drain cannot be taken back: its routes are gone.
    pub fn can_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Starting(from), Self::Starting(to)) => from < to,
            (Self::Absent | Self::Failed | Self::Stopped, Self::Starting(_) | Self::Ready)
            | (Self::Starting(_), Self::Ready | Self::Failed | Self::Stopped)
            | (Self::Ready, Self::Draining | Self::Failed)
            | (Self::Draining, Self::Failed | Self::Stopped)
            | (Self::Failed, Self::Stopped) => true,
            _ => false,
        }
    }

    /// Whether a router may send it something new.
    pub const fn takes_requests(self) -> bool {
        matches!(self, Self::Ready)
    }

    /// Whether it has devices, and so can be hit by a fault and costs.
    pub const fn exists(self) -> bool {
        matches!(self, Self::Starting(_) | Self::Ready | Self::Draining)
    }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
