//! What serves: a model on devices, in which number formats, split how. Plain data for step-time models.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BatchShape;
use super::graphs::{CaptureSizes, GraphMode, StepMode};
use super::static_shape::StaticShapes;
use crate::input::InputError;
use crate::profile::{Accelerator, Model};

/// Bytes of one weight of embeddings, LM head, norms and router: the usual checkpoints quantise the linear
/// layers of attention and feed-forward only.
pub const UNQUANTISED_BYTES: f64 = 2.0;

/// Number format of the linear layers' weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WeightDtype {
    /// bfloat16.
    Bf16,
    /// IEEE half precision; the same size and rate as bf16.
    Fp16,
    /// 8-bit floating point, weights and activations.
    Fp8,
    /// 8-bit integers, weights and activations (w8a8).
    Int8,
    /// 4-bit integers, weights only (w4a16: GPTQ, AWQ).
    Int4,
    /// OCP microscaling 4-bit floating point.
    Mxfp4,
    /// NVIDIA's 4-bit floating point.
    Nvfp4,
}

/// The arithmetic that a format asks for; decides which peak rate bounds a matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeClass {
    /// 16-bit floating point.
    Bf16,
    /// 8-bit floating point.
    Fp8,
    /// 8-bit integers.
    Int8,
    /// 4-bit floating point.
    Fp4,
}

impl WeightDtype {
    /// Every format, in the order of the definition.
    pub const ALL: [Self; 7] = [
        Self::Bf16,
        Self::Fp16,
        Self::Fp8,
        Self::Int8,
        Self::Int4,
        Self::Mxfp4,
        Self::Nvfp4,
    ];

    /// Bytes of one weight, its share of the scales included.
    ///
    /// int4: 4 bits, a 16-bit scale and a 4-bit zero point for each 128 weights (the usual group of GPTQ and AWQ).
    /// mxfp4: 4 bits and an 8-bit scale for each 32. nvfp4: 4 bits and an 8-bit scale for each 16. The scales of
    /// fp8 and int8 (one a channel, or one for a block of 128 x 128) are below 0.1 % and left out.
    pub const fn bytes_per_weight(self) -> f64 {
        match self {
            Self::Bf16 | Self::Fp16 => 2.0,
            Self::Fp8 | Self::Int8 => 1.0,
            Self::Int4 => (4.0 + (16.0 + 4.0) / 128.0) / 8.0,
            Self::Mxfp4 => (4.0 + 8.0 / 32.0) / 8.0,
            Self::Nvfp4 => (4.0 + 8.0 / 16.0) / 8.0,
        }
    }

    /// The arithmetic that the format asks for. A device without it computes in bf16 after widening the weights,
    /// as vLLM's weight-only kernels do: what is saved is the reading of weights, not the arithmetic.
    pub const fn compute(self) -> ComputeClass {
        match self {
            Self::Bf16 | Self::Fp16 | Self::Int4 => ComputeClass::Bf16,
            Self::Fp8 => ComputeClass::Fp8,
            Self::Int8 => ComputeClass::Int8,
            Self::Mxfp4 | Self::Nvfp4 => ComputeClass::Fp4,
        }
    }

    /// The format whose size is nearest to the `bytes` that a model profile states for one weight; among equals
    /// the first: 2 is bf16, 1 is fp8.
    pub fn of_bytes(bytes: f64) -> Self {
        let distance = |d: &Self| (d.bytes_per_weight() - bytes).abs();
        Self::ALL
            .into_iter()
            .min_by(|a, b| distance(a).total_cmp(&distance(b)))
            .unwrap_or(Self::Bf16)
    }

    /// The name in scenarios and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
        }
    }
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WeightDtype {
    type Err = InputError;

    fn from_str(text: &str) -> Result<Self, InputError> {
        // Tables and servers also spell out the 16-bit formats.
        let short = match text {
            "bfloat16" => "bf16",
            "float16" | "half" => "fp16",
            other => other,
        };
        named("dtype", text, &Self::ALL, Self::name, short)
    }
}

/// Number format of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// 16 bits.
    #[default]
    Bf16,
    /// 8 bits.
    Fp8,
}

impl KvDtype {
    /// Every format.
    pub const ALL: [Self; 2] = [Self::Bf16, Self::Fp8];

    /// Bytes of one element.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Bf16 => 2,
            Self::Fp8 => 1,
        }
    }

    /// The format that a model profile's bytes of one element mean.
    pub const fn of_bytes(bytes: u32) -> Self {
        if bytes <= 1 { Self::Fp8 } else { Self::Bf16 }
    }

    /// The name in scenarios and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvDtype {
    type Err = InputError;

    fn from_str(text: &str) -> Result<Self, InputError> {
        let short = match text {
            "bfloat16" | "float16" | "fp16" => "bf16",
            "fp8_e4m3" | "fp8_e5m2" => "fp8",
            other => other,
        };
        named("kv_dtype", text, &Self::ALL, Self::name, short)
    }
}

fn named<T: Copy>(
    key: &str,
    given: &str,
    all: &[T],
    name: fn(T) -> &'static str,
    wanted: &str,
) -> Result<T, InputError> {
    let names = || all.iter().map(|&d| name(d));
    all.iter().copied().find(|&d| name(d) == wanted).ok_or_else(|| {
        InputError::new(key, format!("unknown number format '{given}'"))
            .allowed(format!("known: {}", names().collect::<Vec<_>>().join(", ")))
            .nearest_of(given, names())
    })
}

/// Cores of a logical one where nothing else is said (rule N1): two on chips of eight, one on those of two; `None` for
/// devices that are not divided.
pub fn default_logical_core(accelerator: &Accelerator) -> Option<u32> {
    let cores = accelerator.cores.as_ref()?.value;
    Some(if cores > 2 { 2 } else { 1 })
}

/// One replica: a model on devices, in which formats, split how, launched how.
#[derive(Debug, Clone, PartialEq)]
pub struct Deployment {
    /// The model.
    pub model: Model,
    /// The device; of it there are as many as [`Self::devices`] says.
    pub accelerator: Accelerator,
    /// Format of the linear layers' weights (attention, feed-forward, shared experts).
    pub dtype: WeightDtype,
    /// Format of the routed experts' weights; equals `dtype` for dense models.
    pub expert_dtype: WeightDtype,
    /// Format of the KV cache.
    pub kv_dtype: KvDtype,
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Expert-parallel ranks: 1, or as many as there are tensor-parallel ones, which then hold whole experts.
    pub ep: u32,
    /// Captured graph sizes.
    pub graphs: CaptureSizes,
    /// Which batches run as a graph.
    pub graph_mode: GraphMode,
    /// Steps are scheduled one ahead of the device, which hides the host's work (rule S51).
    pub asynchronous: bool,
    /// Cores of the device that make up one rank (Neuron: LNC); `None` where a rank is a whole device.
    pub logical_core: Option<u32>,
    /// The compiled shapes of an engine that knows no others; `None` where batches are computed as they are.
    pub static_shapes: Option<StaticShapes>,
}

impl Deployment {
    /// A model in the formats of its profile on one device, with vLLM's default graphs for 256 seats and a budget
    /// of 8192 tokens. A start for tests and for callers that then set what they know.
    pub fn new(model: Model, accelerator: Accelerator) -> Self {
        let dtype = WeightDtype::of_bytes(model.weight_bytes.value);
        let expert = model.moe.as_ref().and_then(|m| m.expert_weight_bytes.as_ref());
        Self {
            dtype,
            expert_dtype: expert.map_or(dtype, |f| WeightDtype::of_bytes(f.value)),
            kv_dtype: KvDtype::of_bytes(model.kv_bytes.value),
            tp: 1,
            pp: 1,
            ep: 1,
            graphs: CaptureSizes::default_for(256, 8192, 1, true, super::graphs::CAPTURE_CEILING),
            graph_mode: GraphMode::default(),
            asynchronous: true,
            logical_core: None,
            static_shapes: None,
            model,
            accelerator,
        }
    }

    /// Bytes of one weight of a linear layer.
    pub const fn weight_bytes(&self) -> f64 {
        self.dtype.bytes_per_weight()
    }

    /// Bytes of one weight of a routed expert.
    pub const fn expert_weight_bytes(&self) -> f64 {
        self.expert_dtype.bytes_per_weight()
    }

    /// Bytes of one element of the KV cache.
    pub const fn kv_bytes(&self) -> u32 {
        self.kv_dtype.bytes()
    }

    /// Devices of the replica: as many as its ranks fill.
    pub fn devices(&self) -> u32 {
        let ranks = self.tp * self.pp;
        match (self.cores(), self.logical_core) {
            (Some(cores), Some(logical)) => (ranks * logical).div_ceil(cores),
            _ => ranks,
        }
    }

    /// What a rank has of its device's memory, bandwidth and rates: 1 where it is the whole device.
    pub fn share_of_device(&self) -> f64 {
        match (self.cores(), self.logical_core) {
            (Some(cores), Some(logical)) => f64::from(logical) / f64::from(cores),
            _ => 1.0,
        }
    }

    /// Memory of a rank in bytes, where the profile knows that of the device.
    pub fn rank_memory_bytes(&self) -> Option<f64> {
        let device = self.accelerator.memory_bytes.as_ref()?;
        Some(device.value as f64 * self.share_of_device())
    }

    fn cores(&self) -> Option<u32> {
        self.accelerator
            .cores
            .as_ref()
            .map(|f| f.value)
            .filter(|&c| c > 0)
    }

    /// How a batch is launched: as other ranks agreed (rule S72), or by its own size (rule S86).
    pub fn run_mode(&self, batch: &BatchShape) -> StepMode {
        batch
            .launch
            .unwrap_or_else(|| self.graphs.run_mode(self.graph_mode, batch))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::profile::catalog;

    #[test]
    fn sizes_hold_the_scales() {
        let bytes = WeightDtype::ALL.map(WeightDtype::bytes_per_weight);
        assert_eq!(
            bytes.map(|b| (b * 1e6).round() as u32),
            [
                2_000_000, 2_000_000, 1_000_000, 1_000_000, 519_531, 531_250, 562_500
            ]
        );
    }

    #[test]
    fn names_go_both_ways_and_slips_get_the_nearest() {
        for dtype in WeightDtype::ALL {
            assert_eq!(dtype.name().parse::<WeightDtype>().unwrap(), dtype);
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(json, format!("\"{dtype}\""));
        }
        let e = "mxpf4".parse::<WeightDtype>().unwrap_err();
        assert_eq!(e.nearest.as_deref(), Some("mxfp4"));
        assert_eq!("fp8_e4m3".parse::<KvDtype>().unwrap(), KvDtype::Fp8);
        assert!("int3".parse::<KvDtype>().is_err());
    }

    #[test]
    fn a_profile_s_bytes_name_its_format() {
        for (bytes, dtype) in [
            (2.0, WeightDtype::Bf16),
            (1.0, WeightDtype::Fp8),
            (0.53, WeightDtype::Mxfp4),
            (0.5625, WeightDtype::Nvfp4),
            (0.5, WeightDtype::Int4),
        ] {
            assert_eq!(WeightDtype::of_bytes(bytes), dtype);
        }
    }

    #[test]
    fn a_rank_on_neuron_is_a_logical_core() {
        let here = Path::new("");
        let model = catalog::model("qwen3-8b", here).unwrap();
        let whole = Deployment::new(model, catalog::accelerator("trn2", here).unwrap());
        assert!((whole.share_of_device() - 1.0).abs() < 1e-12);
        let on = |tp, logical_core| Deployment {
            tp,
            logical_core: Some(logical_core),
            ..whole.clone()
        };
        assert!((on(4, 2).share_of_device() - 0.25).abs() < 1e-12);
        let counts = [on(1, 2), on(4, 2), on(5, 2), on(8, 1)].map(|d| d.devices());
        assert_eq!(counts, [1, 1, 2, 1]);
        let gib = on(1, 2).rank_memory_bytes().unwrap() / 1024f64.powi(3);
        assert!((gib - 24.0).abs() < 1e-9);
    }

    #[test]
    fn a_deployment_of_a_profile_takes_its_formats() {
        let here = Path::new("");
        let model = catalog::model("llama-3.1-8b", here).unwrap();
        let got = Deployment::new(model, catalog::accelerator("h100-sxm", here).unwrap());
        assert_eq!(
            (got.dtype, got.expert_dtype),
            (WeightDtype::Bf16, WeightDtype::Bf16)
        );
        assert_eq!((got.kv_bytes(), got.devices()), (2, 1));
        let mut batch = BatchShape::default();
        batch.add_decode(1, 7);
        assert_eq!(got.run_mode(&batch), StepMode::Full { padded: 1 });
    }
}
