//! Clusters: degenerate cases, conservation through faults, hand-worked timelines.

mod canary;
mod closed_forms;
mod conservation;
mod degenerate;
mod disaggregated;
mod fairness;
mod faults;
mod push;
mod ranks;
mod scaling;
mod storms;
mod streamed;
mod streams;

use kneeboard::cluster::gateway::{RetryOn, RetryPolicy};
use kneeboard::engine::vllm::{Behaviour, VllmConfig};
use kneeboard::record::{ClusterRecord, RunRecord};
use kneeboard::sim::fleet::{FleetConfig, PoolConfig, PoolRole, run};
use kneeboard::sim::{LoadModel, Pace};
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

/// Instants in whole ms.
pub fn in_ms(times: impl IntoIterator<Item = SimTime>) -> Vec<u64> {
    let whole = |t: SimTime| {
        assert_eq!(t.0 % MS, 0, "{t:?} is no whole ms");
        t.0 / MS
    };
    times.into_iter().map(whole).collect()
}

/// When a request's tokens came, in ms.
pub fn tokens_ms(record: &RunRecord, request: usize) -> Vec<u64> {
    in_ms(record.token_times(&record.requests[request]))
}

/// What befell the cluster: (ms, event, group).
pub fn told(cluster: &ClusterRecord) -> Vec<(u64, &'static str, Option<u32>)> {
    let timeline = cluster.timeline.iter();
    timeline.map(|t| (t.at.0 / MS, t.event, t.group)).collect()
}

/// Some groups of one rank that do all.
pub fn unified(groups: u32, engine: VllmConfig) -> FleetConfig {
    FleetConfig::plain(
        vec![PoolConfig::plain("all", PoolRole::Unified, groups, engine)],
        LoadModel::OpenLoop,
    )
}

/// Groups 0 to `prefill - 1` prefill, the others decode.
pub fn prefill_decode(prefill: u32, decode: u32, engine: VllmConfig) -> FleetConfig {
    let pools = vec![
        PoolConfig::plain("prefill", PoolRole::Prefill, prefill, engine.clone()),
        PoolConfig::plain("decode", PoolRole::Decode, decode, engine),
    ];
    FleetConfig::plain(pools, LoadModel::OpenLoop)
}

/// Failed and timed out requests are sent again: so many attempts, the first after 4 ms, then 8, 16...
pub fn retries(attempts: u32) -> RetryPolicy {
    RetryPolicy {
        attempts,
        backoff_base: ms(4),
        retry_on: RetryOn {
            failed: true,
            timed_out: true,
            rejected: false,
        },
        ..RetryPolicy::default()
    }
}
