//! Step time from physics: what a batch computes, reads and exchanges on one rank, over what the device can do.
//!
//! Every row counts with its own length; batch means never enter (attention.rs). Per layer: matrix products (compute
//! and weight traffic joined smoothly), prefill attention of each chunk, KV reads of each decode, elementwise traffic,
//! two all-reduces; per step: the LM head on the rows that sample, fixed times, the host. Dense layers run at the
//! padded size of a captured graph, attention at real lengths (rules S84 to S88). Formulas: step-time.md 3.1 to 3.7.

mod layout;
mod stages;

use super::attention::{Attention, AttentionRates, Decodes};
use super::batch::Growth;
use super::collective::{self, Link};
use super::deployment::{ComputeClass, Deployment};
use super::fitted::step_of;
use super::graphs::StepMode;
use super::parameters::{Param, Parameters};
use super::{BatchShape, RowShape, StepTime};
use crate::profile::Accelerator;
use crate::units::SimDuration;

/// Bytes of an activation element: bf16, whatever the weights are.
const ACTIVATION_BYTES: f64 = 2.0;
/// Residual stream elements read and written a token and layer by norms, residual additions and rotary
/// embedding, about half fused (step-time.md 3.1).
const ELEMENTWISE_PASSES: f64 = 8.0;

/// Seconds to quantise one activation element before an 8-bit product: 3 to 5 ps in the kernel tables of all five
/// devices, whatever their bandwidth (docs/CALIBRATION.md, Kernels).
const QUANTISE_S: f64 = 3.7e-12;

/// What 8-bit KV reaches of the bandwidth of 16-bit KV: 0.89 (H100) and 0.73 (H200) in the kernel tables.
const NARROW_KV_BANDWIDTH: f64 = 0.8;
/// Exponent with which compute and memory of products narrower than 16 bits join: 2.0 (H100), 1.5 (H200) there.
const NARROW_JOIN: f64 = 1.75;
/// The same for grouped expert products, 1.0 to 1.1 on all devices there, and the fixed time of their kernels, 30 to
/// 37 us a layer on all but L40S.
const EXPERT_JOIN: f64 = 1.05;
const EXPERT_LAYER_S: f64 = 33e-6;

/// A device that lacks a figure the roofline cannot do without.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the accelerator profile '{accelerator}' states no {figure}, so step times cannot be derived")]
pub struct MissingFigure {
    /// The profile.
    pub accelerator: String,
    /// The figure.
    pub figure: &'static str,
}

/// Matrix products of one layer (or the LM head) on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Gemm {
    /// Weights.
    pub(super) params: f64,
    /// Bytes of one weight.
    pub(super) weight_bytes: f64,
    /// Activation elements read and written for one token.
    elements_per_token: f64,
}

/// Experts of one layer on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Experts {
    pub(super) layers: f64,
    /// Experts of the model.
    pub(super) total: f64,
    pub(super) per_token: f64,
    /// Share of the experts that this rank holds.
    pub(super) share: f64,
    /// Weights of one expert on this rank.
    pub(super) params: f64,
    pub(super) weight_bytes: f64,
    /// Activation elements read and written for one token and expert.
    elements_per_token: f64,
    /// Shared experts and the router.
    pub(super) always: Gemm,
}

/// A device under a model: everything about the deployment that step times need, in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Roofline {
    parameters: Parameters,
    deployment: Deployment,
    /// Matrix products of dense layers, of routed experts, of the LM head and the router.
    arithmetic: Arithmetic,
    expert_arithmetic: Arithmetic,
    head_arithmetic: Arithmetic,
    weight_bytes_per_s: f64,
    attention_rates: AttentionRates,
    link: Option<Link>,
    pub(super) layers: f64,
    pub(super) attention_gemm: Gemm,
    pub(super) mlp: Gemm,
    pub(super) mlp_layers: f64,
    pub(super) experts: Option<Experts>,
    pub(super) attention: [Attention; 2],
    pub(super) lm_head: Gemm,
    pub(super) hidden: f64,
    vocab_per_rank: f64,
    /// All-reduces of a layer.
    pub(super) reduces_per_layer: f64,
    /// Passes that quantise activations, elements a token and layer.
    quantised_elements: f64,
}

/// Where the time of a step goes, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub struct StepParts {
    /// Matrix products of all layers.
    pub dense_s: f64,
    /// Experts.
    pub experts_s: f64,
    /// Attention of prefill rows.
    pub prefill_attention_s: f64,
    /// Attention of decode rows.
    pub decode_attention_s: f64,
    /// Norms, residuals, activations, quantisation.
    pub elementwise_s: f64,
    /// LM head.
    pub lm_head_s: f64,
    /// Exchange between ranks and stages.
    pub collectives_s: f64,
    /// Fixed times of layers, step, rows, and of what runs outside a graph.
    pub fixed_s: f64,
    /// Host time that the device waits for.
    pub host_s: f64,
}

impl StepParts {
    /// The step.
    pub fn total_s(&self) -> f64 {
        self.device_s() + self.host_s
    }

    fn device_s(&self) -> f64 {
        self.dense_s
            + self.experts_s
            + self.prefill_attention_s
            + self.decode_attention_s
            + self.elementwise_s
            + self.lm_head_s
            + self.collectives_s
            + self.fixed_s
    }
}

impl Roofline {
    /// The model of a deployment under these parameters.
    ///
    /// # Errors
    /// [`MissingFigure`] when the accelerator's profile lacks bandwidth, peak rate, or (for several ranks) the link.
    pub fn new(deployment: Deployment, parameters: Parameters) -> Result<Self, MissingFigure> {
        let device = &deployment.accelerator;
        let figure = |value: Option<f64>, figure: &'static str| {
            value.filter(|v| *v > 0.0).ok_or_else(|| MissingFigure {
                accelerator: device.name.clone(),
                figure,
            })
        };
        let share = deployment.share_of_device();
        let bandwidth = 1e9
            * share
            * figure(
                device.memory_bandwidth_gb_s.as_ref().map(|f| f.value),
                "memory_bandwidth_gb_s",
            )?;
        let bf16 = 1e12 * share * figure(device.bf16_tflops.as_ref().map(|f| f.value), "bf16_tflops")?;
        let arithmetic = |class| Arithmetic::of(class, device, share, bf16, &parameters);
        let dense = arithmetic(deployment.dtype.compute());
        let expert = arithmetic(deployment.expert_dtype.compute());
        let link = if deployment.tp > 1 || deployment.pp > 1 {
            let own = device.scaleup_gb_s.as_ref().map(|f| f.value);
            let bus = device.pcie_gb_s.as_ref().map(|f| f.value);
            let gb_s = figure(own.or(bus), "scaleup_gb_s or pcie_gb_s")?;
            Some(Link {
                latency_s: parameters[Param::AllReduceLatency],
                bytes_per_s: 1e9 * share * gb_s * parameters[Param::AllReduceBandwidth],
                all_to_all: own.is_some() && reaches_all(device),
            })
        } else {
            None
        };
        let mut roofline = Self::layout(&deployment);
        roofline.arithmetic = dense;
        roofline.expert_arithmetic = expert;
        roofline.head_arithmetic = arithmetic(ComputeClass::Bf16);
        if !dense.narrow {
            roofline.quantised_elements = 0.0;
        }
        roofline.weight_bytes_per_s = bandwidth * parameters[Param::WeightBandwidth];
        let narrow_kv = if deployment.kv_bytes() < 2 {
            NARROW_KV_BANDWIDTH
        } else {
            1.0
        };
        roofline.attention_rates = AttentionRates {
            flops: bf16 * parameters[Param::PrefillAttention],
            kv_bytes_per_s: bandwidth * parameters[Param::KvBandwidth] * narrow_kv,
            lost_pairs: 0.5 * parameters[Param::PrefillHalfLength],
            key_s: parameters[Param::PrefillKeyTime],
        };
        roofline.link = link;
        roofline.parameters = parameters;
        roofline.deployment = deployment;
        Ok(roofline)
    }

    /// The parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Where the time of a step goes.
    pub fn parts(&self, batch: &BatchShape) -> StepParts {
        let mode = self.deployment.run_mode(batch);
        let mut parts = self.without_attention(batch, mode);
        parts.prefill_attention_s = self.prefill(&batch.prefills, 0);
        parts.decode_attention_s = self.decodes(batch, Growth::default()).next_s(0);
        parts.host_s = self.exposed_host_s(mode, f64::from(batch.num_seqs()), parts.device_s());
        parts
    }

    /// All that does not depend on contexts.
    fn without_attention(&self, batch: &BatchShape, mode: StepMode) -> StepParts {
        let p = &self.parameters;
        let tokens = f64::from(mode.computed_tokens());
        let rows = f64::from(batch.num_seqs());
        let mut parts = StepParts {
            dense_s: self.layers * self.gemm(&self.attention_gemm, tokens, self.arithmetic)
                + self.mlp_layers * self.gemm(&self.mlp, tokens, self.arithmetic),
            experts_s: self.experts.map_or(0.0, |e| self.experts(&e, tokens)),
            elementwise_s: self.layers * tokens * ACTIVATION_BYTES * ELEMENTWISE_PASSES * self.hidden
                / self.weight_bytes_per_s
                + self.layers * tokens * self.quantised_elements * QUANTISE_S,
            lm_head_s: self.gemm(
                &self.lm_head,
                f64::from(batch.prefill_seqs + batch.decode_tokens),
                self.head_arithmetic,
            ),
            collectives_s: self.collectives(tokens, rows),
            fixed_s: self.layers * p[Param::LayerTime] + p[Param::StepTime] + rows * p[Param::RowTime],
            ..StepParts::default()
        };
        if batch.prefill_seqs > 0 {
            parts.fixed_s += p[Param::MixedStepTime] + self.layers * p[Param::MixedLayerTime];
        }
        parts
    }

    /// Host time that the device waits for. Launching layer by layer runs ahead of the device, so it shows only
    /// where it is slower; scheduling does so with asynchronous scheduling, else it stands before the step.
    fn exposed_host_s(&self, mode: StepMode, rows: f64, device_s: f64) -> f64 {
        let p = &self.parameters;
        let launch = match mode {
            StepMode::Eager { .. } => self.layers * p[Param::EagerLayerTime],
            StepMode::Full { .. } | StepMode::Piecewise { .. } => 0.0,
        };
        let schedule = p[Param::HostStepTime] + rows * p[Param::HostRowTime];
        if self.deployment.asynchronous {
            (launch.max(schedule) - device_s).max(0.0)
        } else {
            schedule + (launch - device_s).max(0.0)
        }
    }

    fn gemm(&self, gemm: &Gemm, tokens: f64, arithmetic: Arithmetic) -> f64 {
        if tokens <= 0.0 || gemm.params <= 0.0 {
            return 0.0;
        }
        let compute = 2.0 * tokens * gemm.params / arithmetic.flops;
        let bytes = gemm.params * gemm.weight_bytes + tokens * gemm.elements_per_token * ACTIVATION_BYTES;
        join(
            compute,
            bytes / self.weight_bytes_per_s,
            self.parameters[Param::Join].min(arithmetic.join_at_most),
        )
    }

    fn experts(&self, e: &Experts, tokens: f64) -> f64 {
        if tokens <= 0.0 {
            return 0.0;
        }
        // Distinct experts that the batch touches if routing is even (step-time.md 3.3), of those on this rank.
        let touched = e.total * (1.0 - (1.0 - e.per_token / e.total).powf(tokens)) * e.share;
        let efficiency = self.parameters[Param::MoeEfficiency];
        let compute =
            2.0 * tokens * e.per_token * e.share * e.params / (self.expert_arithmetic.flops * efficiency);
        // Grouped products lose arithmetic, not bandwidth: on five devices they read weights at 0.96 to 1.11 of the
        // bandwidth that dense ones reach (docs/CALIBRATION.md, Kernels).
        let activations = tokens * e.per_token * e.share * e.elements_per_token * ACTIVATION_BYTES;
        let memory = (touched * e.params * e.weight_bytes + activations) / self.weight_bytes_per_s;
        let routed = join(compute, memory, EXPERT_JOIN) + EXPERT_LAYER_S;
        e.layers * (routed + self.gemm(&e.always, tokens, self.arithmetic))
    }

    /// Attention of a step's prefill chunks over all layers, `steps` steps later.
    fn prefill(&self, rows: &[RowShape], steps: u32) -> f64 {
        let kinds = self.attention.iter().filter(|a| a.layers > 0.0);
        kinds
            .map(|a| a.prefill_s(&self.attention_rates, rows, steps))
            .sum()
    }

    /// Attention of decodes over all layers, step after step.
    fn decodes<'a>(&'a self, batch: &'a BatchShape, growth: Growth) -> Decodes<'a> {
        Decodes::of(batch, growth, &self.attention, &self.attention_rates)
    }

    fn collectives(&self, tokens: f64, rows: f64) -> f64 {
        let Some(link) = self.link else { return 0.0 };
        let (tp, pp) = (self.deployment.tp, self.deployment.pp);
        let message = tokens * self.hidden * ACTIVATION_BYTES;
        // One more for the vocabulary-parallel embedding.
        let reduces = self.reduces_per_layer * self.layers + 1.0;
        let logits = rows * self.vocab_per_rank * f64::from(tp) * ACTIVATION_BYTES;
        reduces * collective::all_reduce(link, tp, message)
            + collective::all_gather(link, tp, logits)
            + f64::from(pp.saturating_sub(1)) * collective::point_to_point(link, message)
    }
}

impl StepTime for Roofline {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        step_of(self.parts(batch).total_s())
    }

    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        let mode = self.deployment.run_mode(batch);
        let rows = f64::from(batch.num_seqs());
        let mut parts = self.without_attention(batch, mode);
        let mut decodes = self.decodes(batch, batch.growth());
        decodes.count_leaving(out);
        for (duration, steps) in out.iter_mut().zip(0..) {
            if steps == 0 || !batch.prefills.is_empty() {
                parts.prefill_attention_s = self.prefill(&batch.prefills, steps);
            }
            parts.decode_attention_s = decodes.next_s(duration.as_nanos());
            parts.host_s = self.exposed_host_s(mode, rows, parts.device_s());
            *duration = step_of(parts.total_s());
        }
    }

    fn needs_decode_rows(&self) -> bool {
        self.attention.iter().any(Attention::is_windowed)
    }

    fn stage_shares(&self, batch: &BatchShape, shares: &mut Vec<u64>) {
        shares.clear();
        if self.deployment.pp > 1 {
            // Whole picoseconds: no step lasts long enough to exceed 64 bits of them by a stage.
            shares.extend(self.stages_s(batch).iter().map(|s| (s * 1e12) as u64));
        }
    }
}

/// How fast one kind of matrix product computes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Arithmetic {
    /// FLOP/s that large products reach.
    flops: f64,
    /// Largest exponent with which compute and memory time are joined.
    join_at_most: f64,
    /// Activations are quantised for units narrower than 16 bits.
    narrow: bool,
}

impl Arithmetic {
    const NONE: Self = Self {
        flops: 1.0,
        join_at_most: f64::INFINITY,
        narrow: false,
    };

    /// What a device computes a format with: its own units, or, where it has none, bf16 after widening the weights,
    /// as vLLM's weight-only kernels do.
    fn of(class: ComputeClass, device: &Accelerator, share: f64, bf16: f64, parameters: &Parameters) -> Self {
        let figure = match class {
            ComputeClass::Bf16 => None,
            ComputeClass::Fp8 => device.fp8_tflops.as_ref(),
            ComputeClass::Int8 => device.int8_tops.as_ref(),
            ComputeClass::Fp4 => device.fp4_tflops.as_ref(),
        };
        match figure {
            Some(f) => Self {
                flops: 1e12 * share * f.value * parameters[Param::GemmCompute8Bit],
                join_at_most: NARROW_JOIN,
                narrow: true,
            },
            None => Self {
                flops: bf16 * parameters[Param::GemmCompute],
                ..Self::NONE
            },
        }
    }
}

/// The scale-up links of a device reach every other at full speed; tori, rings and bridges of pairs do not.
fn reaches_all(device: &Accelerator) -> bool {
    device.scaleup_topology.as_ref().is_none_or(|t| {
        let text = t.value.to_lowercase();
        ["all-to-all", "full mesh", "nvlink domain"]
            .iter()
            .any(|k| text.contains(k))
    })
}

/// Smooth maximum of two times: (a^q + b^q)^(1/q).
pub(crate) fn join(a: f64, b: f64, q: f64) -> f64 {
    let (low, high) = (a.min(b), a.max(b));
    if high <= 0.0 {
        return 0.0;
    }
    high * (1.0 + (low / high).powf(q)).powf(1.0 / q)
}
