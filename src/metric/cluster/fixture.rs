//! A cluster's run worked out by hand, for tests.

use super::{ClusterOptions, PoolFacts, TenantFacts};
use crate::cluster::lifecycle::{Phase, Stage};
use crate::metric::cost::InstancePrice;
use crate::metric::energy::{Dynamic, PowerModel};
use crate::metric::fixture::offered;
use crate::record::{
    Busy, ClusterRecord, GroupRecord, JobRecord, ReplicaRecord, RequestRecord, RunRecord, Status,
    TimelineEvent,
};
use crate::units::{SimDuration, SimTime};

pub const S: u64 = 1_000_000_000;

/// An instant in tenths of a second.
pub fn tenths(tenths: u64) -> SimTime {
    SimTime(tenths * S / 10)
}

pub fn at(s: u64) -> SimTime {
    SimTime(s * S)
}

pub fn event(at_s: u64, event: &'static str, group: Option<u32>, what: &str) -> TimelineEvent {
    TimelineEvent {
        at: at(at_s),
        event,
        what: what.to_owned(),
        group,
    }
}

/// A replica with steps of (start, end, running) in seconds, nothing waiting, busy as told.
pub fn replica(steps: &[(u64, u64, u32)], prefill_s: u64, decode_s: u64) -> ReplicaRecord {
    ReplicaRecord {
        step_starts: steps.iter().map(|s| at(s.0)).collect(),
        step_ends: steps.iter().map(|s| at(s.1)).collect(),
        running: steps.iter().map(|s| s.2).collect(),
        waiting: vec![0; steps.len()],
        busy: Busy {
            prefill: SimDuration(prefill_s * S),
            decode: SimDuration(decode_s * S),
        },
        ..ReplicaRecord::default()
    }
}

pub fn group(pool: u32, replica: u32, phases: &[(u64, Phase)]) -> GroupRecord {
    GroupRecord {
        cached_tokens_lost: 0,
        pool,
        replicas: vec![replica],
        revision: 0,
        phases: phases.iter().map(|&(s, phase)| (at(s), phase)).collect(),
    }
}

/// A request of 100 tokens in and 10 out that is sent at `sent` tenths, scheduled at once and complete 0.4 s later.
pub fn served(sent: u64, group: u32) -> (RequestRecord, JobRecord) {
    let request = RequestRecord {
        first_scheduled: Some(tenths(sent)),
        first_token: Some(tenths(sent + 2)),
        last_token: Some(tenths(sent + 4)),
        output_tokens: 10,
        status: Status::Completed,
        ..offered(tenths(sent))
    };
    let job = JobRecord {
        attempts: 1,
        dispatched: Some(tenths(sent)),
        group: Some(group),
        ..JobRecord::default()
    };
    (request, job)
}

/// A request that came to nothing.
pub fn lost(sent: u64, status: Status) -> (RequestRecord, JobRecord) {
    let request = RequestRecord {
        status,
        ..offered(tenths(sent))
    };
    (request, JobRecord::default())
}

/// Two groups of a pool, 2 requests a second from 0 to 30 s. The second group crashes at 10 s, is noticed a second later,
/// starts at 12 s and is ready at 20 s. Meanwhile 1 request a second is served, none in the third second, three in the first
/// after it. Everything is over at 40 s.
pub fn outage() -> (RunRecord, ClusterRecord) {
    let mut jobs = Vec::new();
    for s in 0..30_u64 {
        let number = match s {
            12 => 0,
            10..20 => 1,
            20 => 3,
            _ => 2,
        };
        // Groups take turns before the crash.
        jobs.extend((0..number).map(|i| served(10 * s + i, u32::from(s < 10 && i == 1))));
        if s == 12 {
            jobs.extend([lost(120, Status::Failed), lost(121, Status::TimedOut)]);
        }
    }
    jobs.push(lost(300, Status::Failed));
    // One had to be tried three times, another waited for 2 s.
    let first = &mut jobs[0].1;
    (first.attempts, first.retries) = (3, 2);
    (first.wasted_input_tokens, first.wasted_output_tokens) = (100, 7);
    jobs[1].1.dispatched = Some(tenths(21));
    let (requests, jobs) = jobs.into_iter().unzip();
    let run = RunRecord {
        requests,
        replicas: vec![
            replica(&[(0, 10, 2), (10, 30, 4)], 10, 20),
            replica(&[(0, 5, 1), (20, 25, 1)], 4, 6),
        ],
        end: at(40),
    };
    let cluster = ClusterRecord {
        pools: vec!["main".into()],
        groups: vec![
            group(0, 0, &[(0, Phase::Ready)]),
            group(
                0,
                1,
                &[
                    (0, Phase::Ready),
                    (10, Phase::Failed),
                    (12, Phase::Starting(Stage::LoadWeights)),
                    (18, Phase::Starting(Stage::Warm)),
                    (20, Phase::Ready),
                ],
            ),
        ],
        timeline: vec![
            event(10, "fault", None, "group_crash main/1"),
            event(10, "crash", Some(1), "main/1: group_crash"),
            event(11, "detected", Some(1), "main/1"),
            event(12, "routes_removed", Some(1), "main/1"),
            event(12, "starting", Some(1), "main/1"),
            event(20, "ready", Some(1), "main/1"),
        ],
        jobs,
        gateway_queue: [(5, 1), (6, 0), (10, 2), (12, 5), (21, 0)]
            .map(|(s, n)| (at(s), n))
            .to_vec(),
        // 50 served, and what the first one's other tries and the given up ones made.
        attempted_input_tokens: 5_000 + 100,
        attempted_output_tokens: 500 + 7 + 4,
        cancelled_output_tokens: 4,
        retries_refused: 1,
        ..ClusterRecord::default()
    };
    (run, cluster)
}

/// Windows of a second, five before a fault.
pub fn options() -> ClusterOptions {
    ClusterOptions {
        window: Some(SimDuration(S)),
        baseline_windows: 5,
        ..ClusterOptions::default()
    }
}

/// 2 devices a group, half of a machine of 10 USD an hour; 100 W idle, 700 W in prompts, 400 W in output.
pub fn facts() -> PoolFacts {
    PoolFacts {
        accelerators_per_group: 2,
        price: Some(InstancePrice {
            instance: "box.4x".into(),
            usd_h: 10.0,
            region: Some("here".into()),
            price_date: Some("2026-01-01".into()),
            source: None,
        }),
        instances_per_group: 0.5,
        power: Some(PowerModel {
            idle_w: 100.0,
            dynamic: Dynamic::Phases {
                prefill_w: 700.0,
                decode_w: 400.0,
            },
            cap_w: None,
            frequency_ratio: None,
        }),
        capacity: None,
        group_requests: None,
        min_groups: 0,
    }
}

/// With prices, power and a named tenant.
pub fn full_options() -> ClusterOptions {
    let mut options = options();
    options.pools.insert("main".into(), facts());
    let tenant = TenantFacts {
        name: Some("first".into()),
        weight: 1.0,
    };
    options.tenants.insert(0, tenant);
    options.kv_bytes_per_token = Some(1_000.0);
    options
}
