//! The parameters of the static-shape model: everything about a compiled program that physics does not fix.
//!
//! As with the roofline ([`super::parameters`]) each is a positive number with bounds and a log-normal prior;
//! efficiencies are fractions of what a rank has of its device's peak. The priors are those of public Neuron figures
//! before anything of a fit's own data is seen (docs/CALIBRATION.md, Static shapes).

use super::param_table::{Spec, parameter_table};

/// One parameter of the static-shape model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StaticParam {
    /// Fraction of the bf16 peak that matrix products of many tokens reach.
    MatrixCompute,
    /// Fraction of the memory bandwidth reached when weights are read for one token of each row.
    WeightBandwidth,
    /// The same for prompts, whose products are long enough to fetch the weights of the next ones meanwhile.
    ContextWeightBandwidth,
    /// Exponent q that joins compute and memory time: (c^q + m^q)^(1/q); 1 = one after the other.
    Join,
    /// Fraction of the memory bandwidth reached when the padded KV cache is read.
    KvBandwidth,
    /// Fraction of the bf16 peak that attention of prompts reaches.
    AttentionCompute,
    /// Fixed time of a layer: launch, small operations.
    LayerTime,
    /// Fixed time of a program.
    ProgramTime,
    /// What a layer of token generation takes more where rows have slots of the cache, so that the program must look
    /// up which: wherever it was compiled for more than one row.
    SlotLayerTime,
    /// Time to scatter one element of a prompt's keys and values to the slot of its row, where the bucket is shorter
    /// than the slot.
    SlotWriteTime,
    /// Latency of one round of an all-reduce.
    CollectiveLatency,
    /// Fraction of a rank's share of the link bandwidth that an all-reduce reaches.
    CollectiveBandwidth,
    /// Host time of a step.
    HostStepTime,
    /// Host time to sample, a logit of a padded row, where tokens are not sampled on the device.
    SamplingTime,
    /// From the client's send to the engine's queue.
    FrontEndIn,
    /// From the end of a step to the client's sight of its token.
    FrontEndOut,
    /// What a streamed token adds to the gap before the next, as the client sees it.
    ClientTokenTime,
}

/// What is known of a parameter before anything is measured.
pub type StaticSpec = Spec<StaticParam>;

parameter_table! {
    StaticParam, STATIC_PARAMS;
    /// All parameters in the order of the vector.
    STATIC_SPECS;
    /// A vector of all parameters.
    StaticParameters;
    MatrixCompute "matrix_compute" "1" 0.02..1.0 prior 0.5 sd 0.5;
    WeightBandwidth "weight_bandwidth" "1" 0.05..1.0 prior 0.65 sd 0.25;
    ContextWeightBandwidth "context_weight_bandwidth" "1" 0.05..1.0 prior 0.7 sd 0.25;
    Join "join" "1" 1.0..16.0 prior 3.0 sd 0.5;
    KvBandwidth "kv_bandwidth" "1" 0.02..1.0 prior 0.55 sd 0.3;
    AttentionCompute "attention_compute" "1" 0.01..1.0 prior 0.3 sd 0.6;
    LayerTime "layer_time" "s" 1e-7..5e-3 prior 2e-5 sd 1.2;
    ProgramTime "program_time" "s" 1e-6..2e-2 prior 2e-4 sd 1.0;
    SlotLayerTime "slot_layer_time" "s" 1e-7..5e-3 prior 3e-5 sd 1.2;
    SlotWriteTime "slot_write_time" "s/element" 1e-13..1e-7 prior 1e-10 sd 1.5;
    CollectiveLatency "collective_latency" "s" 1e-6..1e-3 prior 1.5e-5 sd 0.6;
    CollectiveBandwidth "collective_bandwidth" "1" 0.01..1.0 prior 0.4 sd 0.5;
    HostStepTime "host_step_time" "s" 1e-6..5e-2 prior 5e-4 sd 1.0;
    SamplingTime "sampling_time" "s/logit" 1e-11..1e-6 prior 5.8e-9 sd 0.5;
    FrontEndIn "front_end_in" "s" 1e-6..1.0 prior 2e-3 sd 0.7;
    FrontEndOut "front_end_out" "s" 1e-6..1.0 prior 5e-4 sd 0.7;
    ClientTokenTime "client_token_time" "s" 1e-9..1e-2 prior 3e-5 sd 1.0;
}
