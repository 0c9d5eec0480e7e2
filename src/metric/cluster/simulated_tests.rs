//! The figures of simulated clusters: what the event loop tells is what they read.

use approx::assert_relative_eq;

use super::*;
use crate::cluster::fault::{Fault, FaultKind};
use crate::cluster::lifecycle::RestartPlan;
use crate::engine::vllm::{Behaviour, VllmConfig};
use crate::record::Status;
use crate::sim::fleet::{Fate, FleetConfig, PoolConfig, PoolRole, Recovery, run};
use crate::sim::{LoadModel, Pace};
use crate::steptime::{BatchShape, StepTime};
use crate::workload::trace::{Trace, TraceRequest};

const MS: u64 = 1_000_000;

/// 10 ms, and 0.1 ms a prompt token.
#[derive(Debug)]
struct Price;

impl StepTime for Price {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        SimDuration(10 * MS + MS / 10 * u64::from(batch.prefill_tokens))
    }
}

fn engine() -> VllmConfig {
    VllmConfig {
        max_num_seqs: 8,
        max_num_batched_tokens: 8192,
        max_model_len: 100_000,
        num_gpu_blocks: 100_000,
        enable_prefix_caching: false,
        async_scheduling: false,
        ..VllmConfig::new(Behaviour::of("0.32.0").unwrap())
    }
}

fn simulate(config: &FleetConfig, requests: u64, every_ms: u64) -> ClusterSummary {
    let requests = (0..requests).map(|i| TraceRequest::plain(SimTime(i * every_ms * MS), 100, 20));
    let trace = Trace {
        requests: requests.collect(),
    };
    let (run, cluster) = run(Pace::Leap, config, &[&Price], &trace).unwrap();
    let options = ClusterOptions {
        window: Some(SimDuration::from_millis(500)),
        ..ClusterOptions::default()
    };
    let summary = ClusterSummary::of(&run, &cluster, &options).unwrap();
    assert_eq!(summary.outcomes.offered, trace.requests.len() as u64);
    let served = run
        .requests
        .iter()
        .filter(|r| r.status == Status::Completed)
        .count() as u64;
    assert_eq!(summary.total.served.answered, served);
    summary
}

#[test]
fn a_simulated_crash_is_read_as_it_was_configured() {
    let mut pool = PoolConfig::plain("main", PoolRole::Unified, 2, engine());
    pool.start = RestartPlan {
        warm: SimDuration::from_millis(2_000),
        ..RestartPlan::NOTHING
    };
    let mut config = FleetConfig::plain(vec![pool], LoadModel::OpenLoop);
    config.faults = vec![Fault {
        at: SimTime(10_000 * MS),
        duration: None,
        kind: FaultKind::GroupCrash { group: 1 },
    }];
    config.recovery = Recovery {
        detection: SimDuration::from_millis(300),
        route_removal: SimDuration::from_millis(200),
        in_flight: Fate::Fail,
        restart: true,
    };
    let s = simulate(&config, 400, 50);
    let fault = &s.faults[0];
    assert_eq!(
        (s.faults.len(), fault.ready_lost, &fault.groups[..]),
        (1, 1, &[1][..])
    );
    assert_relative_eq!(fault.detected_after_s.unwrap(), 0.3, max_relative = 1e-9);
    assert_relative_eq!(fault.routes_removed_after_s.unwrap(), 0.5, max_relative = 1e-9);
    assert_relative_eq!(fault.capacity_back_after_s.unwrap(), 2.5, max_relative = 1e-9);
    assert!(fault.recovery.as_ref().unwrap().dipped && s.outcomes.failed > 0);
    assert_relative_eq!(s.groups[1].phases.failed, 0.5, max_relative = 1e-9);
    assert_relative_eq!(s.groups[1].phases.warm, 2.0, max_relative = 1e-9);
    assert_relative_eq!(
        s.total.phases.total(),
        2.0 * s.judged_by.end_s,
        max_relative = 1e-9
    );
}

#[test]
fn simulated_prefill_and_decode_are_told_apart() {
    let pool = |name, role| PoolConfig {
        block_bytes: 16_000,
        ..PoolConfig::plain(name, role, 1, engine())
    };
    let pools = vec![pool("p", PoolRole::Prefill), pool("d", PoolRole::Decode)];
    let s = simulate(&FleetConfig::plain(pools, LoadModel::OpenLoop), 100, 100);
    assert_eq!(
        (s.outcomes.completed, s.demand.by, s.demand.transfers),
        (100, DemandBy::Pool, 100)
    );
    assert!(s.pools[0].is_prefill && !s.pools[1].is_prefill);
    assert_eq!(
        (s.pools[0].served.prefilled, s.pools[1].served.answered),
        (100, 100)
    );
    // Prompts of 100 tokens in one step each: 20 ms a request, one every 0.1 s over 99 such gaps.
    assert_relative_eq!(
        s.demand.prefill_groups.unwrap(),
        100.0 * 0.020 / 9.9,
        max_relative = 1e-9
    );
    assert!(s.demand.decode_groups.unwrap() > s.demand.prefill_groups.unwrap());
    assert!(s.demand.transferred_bytes > 0);
}
