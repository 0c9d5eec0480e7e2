//! Clusters: degenerate cases, conservation through faults, hand-worked timelines.

mod conservation;
mod degenerate;

use kneeboard::engine::vllm::{Behaviour, VllmConfig};
use kneeboard::record::{ClusterRecord, RunRecord};
use kneeboard::sim::Pace;
use kneeboard::sim::fleet::{FleetConfig, run};
use kneeboard::steptime::{BatchShape, StepTime};
use kneeboard::units::{SimDuration, SimTime};
use kneeboard::workload::trace::{Trace, TraceRequest};

/// A constant and a price a prefill token, in ns.
#[derive(Debug)]
pub struct Price {
    pub step: u64,
    pub prefill_token: u64,
}

impl StepTime for Price {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        SimDuration(self.step + self.prefill_token * u64::from(batch.prefill_tokens))
    }
}

/// An engine with so many seats and room for everything.
pub fn roomy(seats: u32) -> VllmConfig {
    VllmConfig {
        max_num_seqs: seats,
        max_num_batched_tokens: 8192,
        max_model_len: 100_000,
        num_gpu_blocks: 100_000,
        enable_prefix_caching: false,
        async_scheduling: false,
        ..VllmConfig::new(Behaviour::of("0.32.0").unwrap())
    }
}

pub fn run_fleet(
    config: &FleetConfig,
    step_time: &dyn StepTime,
    trace: &Trace,
) -> (RunRecord, ClusterRecord) {
    run(Pace::Leap, config, &[step_time], trace).unwrap()
}

pub const MS: u64 = 1_000_000;

pub fn ms(ms: u64) -> SimDuration {
    SimDuration(ms * MS)
}

pub fn at_ms(ms: u64) -> SimTime {
    SimTime(ms * MS)
}

/// Requests (arrival in ms, input, output).
pub fn trace(rows: &[(u64, u32, u32)]) -> Trace {
    let requests = rows
        .iter()
        .map(|&(at, input, output)| TraceRequest::plain(at_ms(at), input, output));
    Trace {
        requests: requests.collect(),
    }
}
