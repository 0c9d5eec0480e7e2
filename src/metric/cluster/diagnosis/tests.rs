//! Simulated clusters, each built to be limited by one thing.

use super::*;
use crate::cluster::fault::{Fault, FaultKind};
use crate::cluster::lifecycle::RestartPlan;
use crate::cluster::link::LinkConfig;
use crate::cluster::push::PushFrom;
use crate::engine::vllm::{Behaviour, VllmConfig};
use crate::metric::goodput::Slo;
use crate::sim::fleet::{FleetConfig, PoolConfig, PoolRole, TransferMode, run};
use crate::sim::{LoadModel, Pace};
use crate::steptime::{BatchShape, StepTime};
use crate::units::SimDuration;
use crate::workload::trace::{Trace, TraceRequest};

const MS: u64 = 1_000_000;
/// Tokens of a block, and of a prompt.
const BLOCK: u32 = 16;
const PROMPT: u32 = 100;

/// 10 ms, 0.1 ms a prompt token, 0.1 ms a request that decodes.
#[derive(Debug)]
struct Price;

impl StepTime for Price {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        let tenths = 100 + u64::from(batch.prefill_tokens) + u64::from(batch.decode_seqs);
        SimDuration(tenths * MS / 10)
    }
}

fn engine(seats: u32, blocks: u32) -> VllmConfig {
    VllmConfig {
        max_num_seqs: seats,
        // Two prompts a step: 30 ms.
        max_num_batched_tokens: 2 * PROMPT,
        max_model_len: 10_000,
        block_size: BLOCK,
        num_gpu_blocks: blocks + 1,
        enable_prefix_caching: false,
        async_scheduling: false,
        ..VllmConfig::new(Behaviour::of("0.32.0").unwrap())
    }
}

const SEATS: u32 = 64;
const BLOCKS: u32 = 100_000;

fn pool(name: &str, role: PoolRole, groups: u32, engine: VllmConfig) -> PoolConfig {
    PoolConfig {
        block_bytes: 1_000,
        ..PoolConfig::plain(name, role, groups, engine)
    }
}

/// A prefill group that can do 66 prompts a second, and a decode group.
fn apart(decode: VllmConfig) -> FleetConfig {
    let pools = vec![
        pool("p", PoolRole::Prefill, 1, engine(SEATS, BLOCKS)),
        pool("d", PoolRole::Decode, 1, decode),
    ];
    FleetConfig::plain(pools, LoadModel::OpenLoop)
}

fn together(groups: u32, of: VllmConfig) -> FleetConfig {
    FleetConfig::plain(
        vec![pool("main", PoolRole::Unified, groups, of)],
        LoadModel::OpenLoop,
    )
}

fn steady(requests: u64, per_s: u64, output: u32) -> Vec<TraceRequest> {
    let every = 1_000 * MS / per_s;
    let requests = (0..requests).map(|i| TraceRequest::plain(SimTime(i * every), PROMPT, output));
    requests.collect()
}

fn diagnose(config: &FleetConfig, requests: Vec<TraceRequest>, slo: Slo) -> ClusterDiagnosis {
    let (run, cluster) = run(Pace::Leap, config, &[&Price], &Trace { requests }).unwrap();
    let limits = config.pools.iter().map(|p| {
        let limits = PoolLimits {
            seats: p.engine.max_num_seqs,
            block_size: BLOCK,
            first_chunk: None,
            reserved_blocks: 0,
        };
        (p.name.clone(), limits)
    });
    let links = config.links.iter();
    let options = ClusterOptions {
        slo,
        limits: limits.collect(),
        link_bytes_per_s: links.map(|l| (l.name.clone(), l.bandwidth_bytes_per_s)).collect(),
        concurrency: config.load.concurrency(),
        kv_is_pushed: config.transfer.mode != TransferMode::Pull,
        ..ClusterOptions::default()
    };
    let summary = ClusterSummary::of(&run, &cluster, &options).unwrap();
    let found = summary.diagnosis.unwrap();
    for both in &found.little {
        assert_ne!(both.agrees, Some(false), "{both:?}");
    }
    found
}

fn limit(found: &ClusterDiagnosis) -> (ClusterLimit, Option<&str>) {
    (found.limit, found.whose.as_deref())
}

fn place(found: &ClusterDiagnosis, place: Place) -> &PlaceFigures {
    found.places.iter().find(|p| p.place == place).unwrap()
}

#[test]
fn nothing_limits_a_cluster_that_keeps_up() {
    let found = diagnose(&apart(engine(SEATS, BLOCKS)), steady(200, 20, 20), Slo::default());
    assert_eq!(limit(&found), (ClusterLimit::None, None), "{}", found.sentence());
    assert_eq!((found.followed, found.not_followed), (200, 0));
    // A prompt alone takes 20 ms; 19 more tokens at about 10.5 ms each.
    assert!((place(&found, Place::Prefill).mean_s.unwrap() - 0.020).abs() < 1e-9);
    assert!((place(&found, Place::Decode).mean_s.unwrap() - 0.2).abs() < 0.01);
    let shares: f64 = found.places.iter().filter_map(|p| p.share).sum();
    assert!((shares - 1.0).abs() < 1e-9);
    assert!(
        found.little.iter().all(|b| b.agrees == Some(true)),
        "{:?}",
        found.little
    );
    let found = diagnose(
        &together(2, engine(SEATS, BLOCKS)),
        steady(200, 20, 20),
        Slo::default(),
    );
    assert_eq!(limit(&found), (ClusterLimit::None, None), "{}", found.sentence());
    assert!(
        found.little.iter().all(|b| b.agrees == Some(true)),
        "{:?}",
        found.little
    );
}

#[test]
fn prompts_that_wait_are_the_limit_of_prefill_groups() {
    let found = diagnose(
        &apart(engine(SEATS, BLOCKS)),
        steady(600, 100, 20),
        Slo::default(),
    );
    assert_eq!(
        limit(&found),
        (ClusterLimit::Prefill, Some("p")),
        "{}",
        found.sentence()
    );
    assert_eq!(found.advice.as_deref(), Some("add prefill groups"));
    // What came is more than what could be there: the backlog grew.
    let little = found.little.iter().find(|b| b.part == "p").unwrap();
    assert!(little.by_law.unwrap() > 1.5 * little.in_it, "{little:?}");
}

#[test]
fn seats_that_are_all_taken_are_the_limit_of_decode_groups() {
    let found = diagnose(&apart(engine(4, BLOCKS)), steady(600, 40, 20), Slo::default());
    assert_eq!(
        limit(&found),
        (ClusterLimit::Decode, Some("d")),
        "{}",
        found.sentence()
    );
    assert!(found.because.contains("all 4 seats"), "{}", found.because);
    assert!(found.advice.unwrap().starts_with("add decode groups"));
}

#[test]
fn kv_blocks_are_the_limit_where_seats_are_free() {
    // A request of 120 tokens takes 8 blocks: 4 at a time.
    let found = diagnose(&apart(engine(SEATS, 32)), steady(600, 40, 20), Slo::default());
    assert_eq!(
        limit(&found),
        (ClusterLimit::Kv, Some("d")),
        "{}",
        found.sentence()
    );
    let found = diagnose(
        &together(1, engine(SEATS, 32)),
        steady(600, 40, 20),
        Slo::default(),
    );
    assert_eq!(
        limit(&found),
        (ClusterLimit::Kv, Some("main")),
        "{}",
        found.sentence()
    );
}

#[test]
fn links_are_the_limit_where_kv_does_not_get_through() {
    let mut config = apart(engine(SEATS, BLOCKS));
    // 7 blocks of 1 kB a request, 20 requests a second.
    config.links = vec![LinkConfig {
        name: "spine".into(),
        bandwidth_bytes_per_s: 140_000,
        latency: SimDuration::ZERO,
    }];
    config.transfer.fabric = vec![0];
    let found = diagnose(&config, steady(600, 30, 20), Slo::default());
    assert_eq!(
        limit(&found),
        (ClusterLimit::Transfer, Some("spine")),
        "{}",
        found.sentence()
    );
    assert!(found.advice.unwrap().starts_with("links are the limit"));
    // At half of what it carries it is none.
    let found = diagnose(&config, steady(300, 10, 20), Slo::default());
    assert_eq!(found.limit, ClusterLimit::None, "{}", found.sentence());
    let busiest = found.transfers.unwrap().busiest.unwrap();
    assert!(
        (busiest.share - 0.5).abs() < 0.02 && busiest.slowdown.unwrap() < 1.01,
        "{busiest:?}"
    );
}

#[test]
fn a_gateway_that_lets_in_too_few_is_the_limit() {
    let mut config = apart(engine(SEATS, BLOCKS));
    config.gateway.limits.max_in_flight = Some(2);
    let found = diagnose(&config, steady(300, 20, 20), Slo::default());
    assert_eq!(
        limit(&found),
        (ClusterLimit::Gateway, Some("gateway")),
        "{}",
        found.sentence()
    );
    // One that lets in what there are seats for protects groups that are full.
    let mut config = together(1, engine(4, BLOCKS));
    config.gateway.limits.max_in_flight = Some(4);
    let found = diagnose(&config, steady(300, 40, 20), Slo::default());
    assert_eq!(
        limit(&found),
        (ClusterLimit::Serving, Some("main")),
        "{}",
        found.sentence()
    );
}

/// Prompts take all of the group's time though seats are free: more of them in flight would only wait behind the gateway.
#[test]
fn a_gateway_before_groups_without_room_is_no_limit() {
    let mut config = together(1, engine(SEATS, BLOCKS));
    config.gateway.limits.max_in_flight = Some(6);
    let found = diagnose(&config, steady(600, 90, 2), Slo::default());
    assert_eq!(
        limit(&found),
        (ClusterLimit::Serving, Some("main")),
        "{}",
        found.sentence()
    );
    assert_eq!(
        found.advice.as_deref(),
        Some("add groups; the gateway's queue keeps these from overload")
    );
    let evidence = |what: &str| found.evidence.iter().find(|e| e.what.contains(what)).unwrap();
    assert!(evidence("full batches carry").value > evidence("full batches carry").threshold);
    // Outputs alone leave room in steps; but not where their pace misses its target already.
    let mut config = apart(engine(SEATS, BLOCKS));
    config.gateway.limits.max_in_flight = Some(2);
    let slow = Slo {
        tpot: Some(SimDuration::from_millis(10)),
        attainment: Some(0.9),
        ..Slo::default()
    };
    let found = diagnose(&config, steady(300, 20, 20), slow);
    assert_eq!(
        limit(&found),
        (ClusterLimit::Decode, Some("d")),
        "{}",
        found.sentence()
    );
    assert!(found.because.contains("TPOT"), "{}", found.because);
}

#[test]
fn pushed_kv_has_no_time_alone_and_no_queue_that_contradicts_the_verdict() {
    let mut config = apart(engine(SEATS, BLOCKS));
    config.links = vec![LinkConfig {
        name: "spine".into(),
        bandwidth_bytes_per_s: 1_000_000,
        latency: SimDuration::ZERO,
    }];
    config.transfer.fabric = vec![0];
    config.transfer.mode = TransferMode::Push {
        layers: 4,
        from: PushFrom::EveryChunk,
    };
    let found = diagnose(&config, steady(300, 20, 20), Slo::default());
    assert_eq!(found.limit, ClusterLimit::None, "{}", found.sentence());
    let busiest = found.transfers.as_ref().and_then(|t| t.busiest.as_ref()).unwrap();
    assert_eq!(busiest.slowdown, None);
    let compared = found
        .evidence
        .iter()
        .filter(|e| e.what.starts_with("d: time in which"));
    for e in compared.filter(|e| e.threshold.is_some()) {
        assert!(e.value < e.threshold, "{e:?}");
    }
}

#[test]
fn groups_that_do_both_are_the_limit_by_seats_or_by_the_tokens_of_a_step() {
    let found = diagnose(
        &together(1, engine(4, BLOCKS)),
        steady(300, 40, 20),
        Slo::default(),
    );
    assert_eq!(
        limit(&found),
        (ClusterLimit::Serving, Some("main")),
        "{}",
        found.sentence()
    );
    assert!(found.because.contains("seats"), "{}", found.because);
    let found = diagnose(
        &together(1, engine(256, BLOCKS)),
        steady(600, 90, 2),
        Slo::default(),
    );
    assert_eq!(
        limit(&found),
        (ClusterLimit::Serving, Some("main")),
        "{}",
        found.sentence()
    );
    assert!(found.because.contains("prompt tokens"), "{}", found.because);
}

#[test]
fn groups_that_are_away_are_the_limit_and_not_their_number() {
    let mut config = together(2, engine(4, BLOCKS));
    config.pools[0].start = RestartPlan {
        warm: SimDuration::from_millis(8_000),
        ..RestartPlan::NOTHING
    };
    config.faults = vec![Fault {
        at: SimTime(1_000 * MS),
        duration: None,
        kind: FaultKind::GroupCrash { group: 1 },
    }];
    let found = diagnose(&config, steady(300, 30, 20), Slo::default());
    assert_eq!(
        limit(&found),
        (ClusterLimit::Capacity, Some("main")),
        "{}",
        found.sentence()
    );
}

#[test]
fn a_burst_that_waits_for_groups_to_start_is_no_matter_of_their_number() {
    let mut config = together(2, engine(4, BLOCKS));
    config.pools[0].start = RestartPlan {
        warm: SimDuration::from_millis(5_000),
        ..RestartPlan::NOTHING
    };
    config.faults = vec![Fault {
        at: SimTime(1_000 * MS),
        duration: None,
        kind: FaultKind::GroupCrash { group: 1 },
    }];
    let slo = Slo {
        ttft: Some(SimDuration::from_millis(200)),
        attainment: Some(0.9),
        ..Slo::default()
    };
    // One group carries 18 requests a second: a queue stands while the other is away, and for a while after.
    let found = diagnose(&config, steady(400, 25, 20), slo);
    assert_eq!(
        limit(&found),
        (ClusterLimit::Capacity, Some("main")),
        "{}",
        found.sentence()
    );
    let share = found
        .evidence
        .iter()
        .find(|e| e.what.contains("groups not ready"))
        .unwrap();
    assert!((0.1..0.2).contains(&share.value.unwrap()), "{share:?}");
}

#[test]
fn a_router_that_sends_all_that_is_long_to_one_group_is_the_limit() {
    let config = together(2, engine(4, BLOCKS));
    let mut requests = steady(400, 30, 40);
    for short in requests.iter_mut().skip(1).step_by(2) {
        *short = TraceRequest::plain(short.arrival, 10, 2);
    }
    let found = diagnose(&config, requests, Slo::default());
    assert_eq!(
        limit(&found),
        (ClusterLimit::Routing, Some("main")),
        "{}",
        found.sentence()
    );
}

#[test]
fn a_missed_target_without_a_queue_is_named_by_where_late_requests_are() {
    let slo = |ttft_ms: Option<u64>, tpot_us: Option<u64>| Slo {
        ttft: ttft_ms.map(SimDuration::from_millis),
        tpot: tpot_us.map(|us| SimDuration(us * 1_000)),
        attainment: Some(0.9),
        ..Slo::default()
    };
    let load = || steady(400, 40, 20);
    // About 8 requests decode at a time, and each adds 0.1 ms to steps of 10 ms.
    let config = apart(engine(SEATS, BLOCKS));
    let found = diagnose(&config, load(), slo(None, Some(10_200)));
    assert_eq!(
        limit(&found),
        (ClusterLimit::Decode, Some("d")),
        "{}",
        found.sentence()
    );
    assert!(found.advice.unwrap().contains("smaller"));
    let holds = diagnose(&config, load(), slo(Some(100), Some(20_000)));
    assert_eq!(holds.limit, ClusterLimit::None, "{}", holds.sentence());
    // Prompts of two steps of 30 ms each are not computed in 50 ms.
    let mut long = steady(200, 5, 20);
    long.iter_mut().for_each(|r| r.input_tokens = 4 * PROMPT);
    let found = diagnose(&config, long, slo(Some(50), None));
    assert_eq!(
        limit(&found),
        (ClusterLimit::Prefill, Some("p")),
        "{}",
        found.sentence()
    );
    assert!(found.advice.unwrap().contains("more devices"));
    // A long way, on which nothing is in another's.
    let mut config = config;
    config.links = vec![LinkConfig {
        name: "wan".into(),
        bandwidth_bytes_per_s: 1_000_000_000,
        latency: SimDuration::from_millis(200),
    }];
    config.transfer.fabric = vec![0];
    let found = diagnose(&config, load(), slo(Some(150), None));
    assert_eq!(
        limit(&found),
        (ClusterLimit::Transfer, Some("wan")),
        "{}",
        found.sentence()
    );
    assert!(place(&found, Place::Transfer).share_of_late_ttft.unwrap() > 0.8);
}

#[test]
fn thin_evidence_decides_nothing() {
    let found = diagnose(&apart(engine(1, BLOCKS)), steady(39, 100, 20), Slo::default());
    assert_eq!(found.limit, ClusterLimit::Undecidable, "{}", found.sentence());
    // Every second burst waits: neither seldom nor mostly, and nobody says whether that is too much.
    let bursts = (0..40_u64).flat_map(|burst| {
        (0..8_u64).map(move |i| TraceRequest::plain(SimTime(burst * 1_000 * MS + i * MS), PROMPT, 20))
    });
    let found = diagnose(&together(1, engine(4, BLOCKS)), bursts.collect(), Slo::default());
    assert_eq!(found.limit, ClusterLimit::Undecidable, "{}", found.sentence());
    assert!(found.because.starts_with("mixed"), "{}", found.because);
}

#[test]
fn few_clients_are_the_limit_of_a_closed_loop() {
    let mut config = apart(engine(SEATS, BLOCKS));
    config.load = LoadModel::ClosedLoop {
        concurrency: 2,
        think: SimDuration::from_millis(50),
    };
    let requests = (0..200)
        .map(|_| TraceRequest::plain(SimTime::ZERO, PROMPT, 20))
        .collect();
    let found = diagnose(&config, requests, Slo::default());
    assert_eq!(
        limit(&found),
        (ClusterLimit::Client, Some("clients")),
        "{}",
        found.sentence()
    );
}

#[test]
fn without_limits_or_steps_there_is_no_verdict() {
    let config = apart(engine(SEATS, BLOCKS));
    let trace = Trace {
        requests: steady(50, 20, 20),
    };
    let (mut run, cluster) = run(Pace::Leap, &config, &[&Price], &trace).unwrap();
    let summary = ClusterSummary::of(&run, &cluster, &ClusterOptions::default()).unwrap();
    assert_eq!(summary.diagnosis, None);
    let limits = ["p", "d"].map(|name| (name.to_owned(), PoolLimits::default()));
    let options = ClusterOptions {
        limits: limits.into(),
        ..ClusterOptions::default()
    };
    assert!(
        ClusterSummary::of(&run, &cluster, &options)
            .unwrap()
            .diagnosis
            .is_some()
    );
    run.replicas.iter_mut().for_each(|r| r.step_ends.clear());
    assert_eq!(
        ClusterSummary::of(&run, &cluster, &options).unwrap().diagnosis,
        None
    );
}
