//! The parameters of the roofline model: everything about a step that physics does not fix.
//!
//! Each is a positive number with bounds and a log-normal prior. Efficiencies are fractions of a peak that the
//! accelerator's profile states; times are seconds. One vector serves every model, precision and degree of
//! parallelism on one kind of device.

use super::param_table::{Spec, parameter_table};

/// One parameter of the roofline model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Param {
    /// Fraction of the bf16 peak that large matrix products reach.
    GemmCompute,
    /// Fraction of the 8-bit (and narrower) peak that large matrix products reach.
    GemmCompute8Bit,
    /// Fraction of the memory bandwidth reached when weights are read.
    WeightBandwidth,
    /// Exponent q that joins compute and memory time: (c^q + m^q)^(1/q); large = the plain maximum.
    Join,
    /// Fraction of the memory bandwidth reached when the KV cache is read.
    KvBandwidth,
    /// Fraction of the bf16 peak that prefill attention reaches over long prompts.
    PrefillAttention,
    /// Positions that each prefill token costs beside those it attends to, twice: at a prompt of this length half of
    /// the peak share is reached.
    PrefillHalfLength,
    /// Time that prefill attention needs to walk over one key: a tile of queries reads all its keys in a row.
    PrefillKeyTime,
    /// What grouped expert products reach of what dense ones reach.
    MoeEfficiency,
    /// Fixed time of a layer: launches, small kernels, tails of waves.
    LayerTime,
    /// Fixed time of a step on the device's path: sampler, input copies.
    StepTime,
    /// Time of a row of the batch.
    RowTime,
    /// Extra fixed time of a step with prefill rows, whose attention runs outside the full graph.
    MixedStepTime,
    /// Extra time of a layer in such a step.
    MixedLayerTime,
    /// Extra time of a layer without any captured graph.
    EagerLayerTime,
    /// Latency of an all-reduce between two ranks.
    AllReduceLatency,
    /// Fraction of the link bandwidth that an all-reduce reaches.
    AllReduceBandwidth,
    /// Host time of a step; hidden behind the device with asynchronous scheduling.
    HostStepTime,
    /// Host time of a row; hidden alike.
    HostRowTime,
    /// From the client's send to the engine's queue.
    FrontEndIn,
    /// From the end of a step to the client's sight of its token.
    FrontEndOut,
    /// What a streamed token adds to the gap before the next, as the client sees it.
    ClientTokenTime,
}

/// What is known of a parameter before anything is measured.
pub type ParamSpec = Spec<Param>;

parameter_table! {
    Param, PARAMS;
    /// All parameters in the order of the vector. The priors are those of a data-centre GPU under vLLM where
    /// kernels of the device say nothing better; sources: docs/CALIBRATION.md.
    SPECS;
    /// A vector of all parameters.
    Parameters;
    GemmCompute "gemm_compute" "1" 0.05..1.0 prior 0.76 sd 0.15;
    GemmCompute8Bit "gemm_compute_8bit" "1" 0.05..1.0 prior 0.45 sd 0.25;
    WeightBandwidth "weight_bandwidth" "1" 0.1..1.0 prior 0.80 sd 0.10;
    Join "join" "1" 1.0..16.0 prior 3.0 sd 0.5;
    KvBandwidth "kv_bandwidth" "1" 0.1..1.0 prior 0.80 sd 0.15;
    PrefillAttention "prefill_attention" "1" 0.02..1.0 prior 0.62 sd 0.25;
    PrefillHalfLength "prefill_half_length" "tokens" 1.0..20000.0 prior 800.0 sd 0.4;
    PrefillKeyTime "prefill_key_time" "s/token" 1e-10..1e-6 prior 18e-9 sd 0.4;
    MoeEfficiency "moe_efficiency" "1" 0.1..1.2 prior 0.85 sd 0.20;
    LayerTime "layer_time" "s" 1e-7..2e-3 prior 25e-6 sd 0.35;
    StepTime "step_time" "s" 1e-6..2e-2 prior 5e-4 sd 0.7;
    RowTime "row_time" "s" 1e-8..1e-3 prior 6e-6 sd 0.8;
    MixedStepTime "mixed_step_time" "s" 1e-7..2e-2 prior 6e-4 sd 1.0;
    MixedLayerTime "mixed_layer_time" "s" 1e-8..1e-3 prior 15e-6 sd 1.0;
    EagerLayerTime "eager_layer_time" "s" 1e-7..2e-3 prior 60e-6 sd 1.0;
    AllReduceLatency "allreduce_latency" "s" 1e-6..1e-3 prior 4.5e-6 sd 0.3;
    AllReduceBandwidth "allreduce_bandwidth" "1" 0.01..1.0 prior 0.55 sd 0.3;
    HostStepTime "host_step_time" "s" 1e-6..5e-2 prior 1e-3 sd 0.7;
    HostRowTime "host_row_time" "s" 1e-8..1e-3 prior 1e-5 sd 0.8;
    FrontEndIn "front_end_in" "s" 1e-6..1.0 prior 4e-3 sd 0.6;
    FrontEndOut "front_end_out" "s" 1e-6..1.0 prior 1.5e-3 sd 0.6;
    ClientTokenTime "client_token_time" "s" 1e-9..1e-2 prior 3e-5 sd 1.0;
}
