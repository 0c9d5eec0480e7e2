//! The parameters of the roofline model: everything about a step that physics does not fix.
//!
//! Each is a positive number with bounds and a log-normal prior. Efficiencies are fractions of a peak that the
//! accelerator's profile states; times are seconds. One vector serves every model, precision and degree of
//! parallelism on one kind of device.

use std::ops::{Index, IndexMut};

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

/// Number of parameters.
pub const PARAMS: usize = 22;

/// What is known of a parameter before anything is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParamSpec {
    /// Which.
    pub param: Param,
    /// Name in fit files.
    pub name: &'static str,
    /// Unit; `1` for fractions.
    pub unit: &'static str,
    /// Smallest and largest value that is believed.
    pub bounds: (f64, f64),
    /// Median of the prior.
    pub prior: f64,
    /// Standard deviation of the prior's logarithm.
    pub prior_log_sd: f64,
}

macro_rules! specs {
    ($($param:ident $name:literal $unit:literal $low:literal..$high:literal prior $prior:literal sd $sd:literal;)+) => {
        /// All parameters in the order of the vector. The priors are those of a data-centre GPU under vLLM where
        /// kernels of the device say nothing better; sources: docs/CALIBRATION.md.
        pub const SPECS: [ParamSpec; PARAMS] = [$(ParamSpec {
            param: Param::$param, name: $name, unit: $unit, bounds: ($low, $high), prior: $prior, prior_log_sd: $sd,
        }),+];
    };
}

specs! {
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

impl Param {
    /// What is known of it.
    pub fn spec(self) -> &'static ParamSpec {
        &SPECS[self as usize]
    }

    /// The parameter of a name.
    pub fn named(name: &str) -> Option<Self> {
        SPECS.iter().find(|s| s.name == name).map(|s| s.param)
    }
}

/// A vector of all parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters(pub [f64; PARAMS]);

impl Default for Parameters {
    /// The medians of the general priors.
    fn default() -> Self {
        Self(SPECS.map(|s| s.prior))
    }
}

impl Index<Param> for Parameters {
    type Output = f64;
    fn index(&self, p: Param) -> &f64 {
        &self.0[p as usize]
    }
}

impl IndexMut<Param> for Parameters {
    fn index_mut(&mut self, p: Param) -> &mut f64 {
        &mut self.0[p as usize]
    }
}

impl Parameters {
    /// The first parameter outside its bounds (or not a number).
    pub fn out_of_bounds(&self) -> Option<(&'static ParamSpec, f64)> {
        SPECS
            .iter()
            .zip(self.0)
            .find(|(s, v)| !(s.bounds.0..=s.bounds.1).contains(v))
    }

    /// Every parameter moved inside its bounds.
    #[must_use]
    pub fn clamped(mut self) -> Self {
        for (value, spec) in self.0.iter_mut().zip(SPECS) {
            *value = value.clamp(spec.bounds.0, spec.bounds.1);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_its_priors_lie_within_bounds() {
        for (index, spec) in SPECS.iter().enumerate() {
            assert_eq!(spec.param as usize, index, "{}", spec.name);
            assert_eq!(Param::named(spec.name), Some(spec.param));
            assert!(spec.prior_log_sd > 0.0);
        }
        assert_eq!(Parameters::default().out_of_bounds(), None);
        let mut wrong = Parameters::default();
        wrong[Param::Join] = f64::NAN;
        assert_eq!(wrong.out_of_bounds().map(|(s, _)| s.name), Some("join"));
    }
}
