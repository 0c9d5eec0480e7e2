//! Whatever befalls a cluster, each offered request ends in exactly one terminal state and nothing leaks.

use super::*;
use kneeboard::cluster::autoscale::{Autoscaler, AutoscalerConfig, ScaleMetric, ScalePolicy};
use kneeboard::cluster::fault::{Fault, FaultKind};
use kneeboard::cluster::gateway::{FairPolicy, HedgePolicy, RetryOn, RetryPolicy};
use kneeboard::cluster::lifecycle::RestartPlan;
use kneeboard::cluster::link::LinkConfig;
use kneeboard::cluster::push::PushFrom;
use kneeboard::cluster::ratio::Ratio;
use kneeboard::cluster::rollout::{Canary, RolloutConfig};
use kneeboard::cluster::router::{Index, Picker, PrefillDecider, RouterPolicy, Scorer};
use kneeboard::metric::cluster::{ClusterOptions, ClusterSummary};
use kneeboard::record::{RequestRecord, Status};
use kneeboard::sim::LoadModel;
use kneeboard::sim::fleet::{Fate, PoolConfig, PoolRole, PoolRollout, TransferMode};
use kneeboard::steptime::{CaptureSizes, GraphMode};
use kneeboard::workload::trace::Prefix;
use proptest::prelude::*;

fn any_kind(groups: u32) -> impl Strategy<Value = FaultKind> {
    let group = 0..groups;
    let slow = (1u32..4).prop_map(|n| Ratio::new(n + 1, 1));
    prop_oneof![
        group.clone().prop_map(|group| FaultKind::GroupCrash { group }),
        group
            .clone()
            .prop_map(|group| FaultKind::RankCrash { group, rank: 0 }),
        group.clone().prop_map(|node| FaultKind::NodeLoss { node }),
        Just(FaultKind::ZoneLoss { zone: 0 }),
        (group.clone(), slow).prop_map(|(group, factor)| FaultKind::SlowRank { group, factor }),
        group
            .clone()
            .prop_map(|group| FaultKind::PrefixCacheFlush { group }),
        Just(FaultKind::LinkDown { link: 0 }),
        Just(FaultKind::LinkDegradation {
            link: 0,
            factor: Ratio::new(1, 4)
        }),
        (group, 1u64..200).prop_map(|(node, notice)| FaultKind::SpotNotice {
            node,
            notice: ms(notice)
        }),
    ]
}

fn any_faults(groups: u32) -> impl Strategy<Value = Vec<Fault>> {
    let fault = (0u64..2_000, 0u64..600, any_kind(groups)).prop_map(|(at, lasts, kind)| Fault {
        at: at_ms(at),
        // What lasts for ever could leave requests that wait for ever.
        duration: (!matches!(kind, FaultKind::PrefixCacheFlush { .. })).then(|| ms(lasts)),
        kind,
    });
    prop::collection::vec(fault, 0..8).prop_map(|mut faults| {
        faults.sort_by_key(|f| f.at);
        faults
    })
}

fn any_policy() -> impl Strategy<Value = RouterPolicy> {
    prop::sample::select(vec![
        RouterPolicy::RoundRobin,
        RouterPolicy::Random,
        RouterPolicy::LeastOutstanding,
        RouterPolicy::PowerOfTwo,
        RouterPolicy::VllmDp {
            clients: 1,
            before_0_28: false,
        },
        RouterPolicy::SessionAffinity {
            load_bound: Some(1.25),
            virtual_nodes: 8,
        },
        RouterPolicy::KvCost {
            overlap_weight: 1.0,
            temperature: 0.0,
            block_size: 16,
            index: Index::Precise,
        },
        RouterPolicy::Scorers {
            scorers: vec![
                (Scorer::Queue, 1.0),
                (Scorer::KvUsage, 1.0),
                (Scorer::Prefix(Index::Precise), 2.0),
            ],
            picker: Picker::Max,
        },
    ])
}

fn pools(disaggregated: bool, groups: u32) -> Vec<PoolConfig> {
    let engine = VllmConfig {
        num_gpu_blocks: 60,
        max_num_seqs: 4,
        max_num_batched_tokens: 128,
        max_model_len: 512,
        enable_prefix_caching: true,
        ..roomy(4)
    };
    let pool = |name: &str, role, groups| PoolConfig {
        start: RestartPlan {
            provision: ms(50),
            weight_bytes: 10,
            weight_bandwidth: 1_000,
            compile: ms(5),
            capture: ms(3),
            warm: ms(2),
        },
        max_groups: groups + 8,
        block_bytes: 1_000,
        nic_bytes_per_s: 1_000_000,
        ..PoolConfig::plain(name, role, groups, engine.clone())
    };
    if disaggregated {
        vec![
            pool("prefill", PoolRole::Prefill, groups.div_ceil(2)),
            pool("decode", PoolRole::Decode, groups - groups.div_ceil(2)),
        ]
    } else {
        vec![pool("all", PoolRole::Unified, groups)]
    }
}

/// A price, more of it in graphs that are larger or none, and later stages of a pipeline that take longer.
#[derive(Debug)]
pub struct Launched(pub Price);

impl StepTime for Launched {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        let tokens = batch.launch.map_or(0, |mode| mode.computed_tokens());
        self.0.duration(batch) + SimDuration(MS / 16) * u64::from(tokens)
    }

    fn stage_shares(&self, batch: &BatchShape, shares: &mut Vec<u64>) {
        // As many as any pipeline here has; of other pipelines the stages are equal.
        *shares = vec![1, 2, 3 + u64::from(batch.decode_seqs)];
    }
}

prop_compose! {
    pub fn any_fleet()(
        (disaggregated, groups, policy) in (any::<bool>(), 2u32..5, any_policy()),
        faults in any_faults(2),
        fate in prop::sample::select(vec![Fate::Fail, Fate::Retry, Fate::Resume]),
        (detection, removal, cancel) in (0u64..40, 0u64..40, 0u64..20),
        attempts in 1u32..4,
        hedge in prop::option::of(5u64..60),
        (ttft, e2e, queue) in (prop::option::of(20u64..400), prop::option::of(50u64..900), prop::option::of(5u64..300)),
        in_flight in prop::option::of(1u32..8),
        fair in prop::sample::select(vec![FairPolicy::Fcfs, FairPolicy::Priority, FairPolicy::vtc(),
            FairPolicy::DeficitRoundRobin { quantum_tokens: 64, weights: vec![] }]),
        (recompute, fallback, interval, lease) in (any::<bool>(), any::<bool>(), prop::sample::select(vec![0u64, 7, 50]), 20u64..400),
        deadline in prop::option::of(100u64..3_000),
        closed in prop::option::of(1u32..6),
        (dp, lockstep, stages, asynchronous) in (1u32..3, any::<bool>(), 1u32..4, any::<bool>()),
        (sync, prompts_every, graphs) in (1u32..40, 1u32..5, any::<bool>()),
        scales in prop::option::of(1u32..6),
        rolls in prop::option::of((0u64..900, 0u32..2, any::<bool>())),
        threshold in prop::option::of(0u32..150),
        push in prop::option::of((1u32..6, prop::sample::select(vec![PushFrom::EveryChunk, PushFrom::LastChunk]))),
    ) -> FleetConfig {
        let load = match closed {
            Some(concurrency) => LoadModel::ClosedLoop { concurrency, think: ms(3) },
            None => LoadModel::OpenLoop,
        };
        let mut pools = pools(disaggregated, groups);
        for pool in &mut pools {
            (pool.dp_ranks, pool.lockstep) = (dp, lockstep);
            pool.engine.pipeline_parallel_size = stages;
            pool.engine.async_scheduling = asynchronous;
            pool.engine.dp_sync_interval = sync;
            pool.engine.prefill_schedule_interval = prompts_every;
            let sizes = CaptureSizes::from_list(&[1, 2, 4, 64], 128, 1);
            pool.graphs = graphs.then_some((sizes, GraphMode::FullAndPiecewise));
        }
        let total = pools[0].groups;
        let mut config = FleetConfig::plain(pools, load);
        config.links = vec![LinkConfig { name: "fabric".into(), bandwidth_bytes_per_s: 2_000_000, latency: ms(1) }];
        config.transfer.fabric = vec![0];
        config.transfer.failure_ends_request = !recompute;
        config.transfer.local_fallback = fallback;
        config.transfer.lease = ms(lease);
        config.transfer.heartbeat = ms(lease / 6);
        config.transfer.renewal = ms(lease * 2 / 3);
        config.transfer.response = ms(1);
        if let Some((layers, from)) = push {
            config.transfer.mode = TransferMode::Push { layers, from };
        }
        config.routing.policy = policy;
        config.routing.metrics_interval = ms(interval);
        config.faults = faults;
        config.recovery.in_flight = fate;
        config.recovery.detection = ms(detection);
        config.recovery.route_removal = ms(removal);
        config.gateway.cancel_latency = ms(cancel);
        config.gateway.fairness = fair;
        config.gateway.limits.max_in_flight = in_flight;
        config.gateway.timeouts.ttft = ttft.map(ms);
        config.gateway.timeouts.e2e = e2e.map(ms);
        config.gateway.timeouts.queue = queue.map(ms);
        config.gateway.retry = RetryPolicy {
            attempts,
            backoff_base: ms(4),
            backoff_cap: ms(50),
            jitter: 0.5,
            retry_on: RetryOn { failed: true, timed_out: true, rejected: false },
            ..RetryPolicy::default()
        };
        config.gateway.hedge = hedge.map(|after| HedgePolicy { after: ms(after), max_extra: 1, budget_ratio: None });
        config.patience = ms(5_000);
        config.deadline = deadline.map(at_ms);
        if let Some(target) = scales {
            let scaler = AutoscalerConfig {
                interval: ms(30),
                ..AutoscalerConfig::kubernetes(ScaleMetric::InFlightPerGroup, f64::from(target), 1, 6)
            };
            config.scaling = vec![(0, ScalePolicy::Metric(Box::new(Autoscaler::new(scaler).unwrap())))];
            config.pools[0].max_groups = 40;
        }
        if let Some((at, surge, has_canary)) = rolls {
            let rollout = RolloutConfig {
                at: at_ms(at),
                surge,
                max_unavailable: 1,
                canary: has_canary.then_some(Canary { groups: 1, share: 0.3, hold: ms(100), analysis: None }),
                drain_timeout: ms(150),
            };
            assert!(total > 0);
            config.rollouts = vec![(0, PoolRollout { config: rollout, slowdown: Ratio::new(3, 2) })];
        }
        if let Some(threshold) = threshold {
            config.routing.decider = PrefillDecider::Uncached { threshold };
        }
        config
    }
}

pub fn any_requests() -> impl Strategy<Value = Trace> {
    let row = (
        0u64..60,
        1u32..200,
        1u32..60,
        0u32..3,
        prop::option::of(0u32..3),
        prop::option::of(0u32..3),
    );
    prop::collection::vec(row, 1..40).prop_map(|rows| {
        let mut at = 0;
        let requests = rows
            .into_iter()
            .map(|(gap, input, output, tenant, session, group)| {
                at += gap;
                TraceRequest {
                    tenant,
                    session,
                    priority: tenant as i32,
                    prefix: group.map(|group| Prefix {
                        group,
                        shared_tokens: 100,
                        greedy_outputs: false,
                    }),
                    ..TraceRequest::plain(at_ms(at), input, output)
                }
            });
        Trace {
            requests: requests.collect(),
        }
    })
}

pub fn assert_conserved(config: &FleetConfig, trace: &Trace, record: &RunRecord, cluster: &ClusterRecord) {
    assert_eq!(record.requests.len(), trace.requests.len());
    assert_eq!(cluster.jobs.len(), trace.requests.len());
    for (r, asked) in record.requests.iter().zip(&trace.requests) {
        let times: Vec<SimTime> = record.token_times(r).collect();
        assert_eq!(times.len() as u32, r.output_tokens, "{r:?}");
        assert!(times.is_sorted());
        assert_eq!(r.input_tokens, asked.input_tokens);
        match r.status {
            Status::Completed => assert_eq!(r.output_tokens, asked.output_tokens(), "{r:?}"),
            Status::Unfinished | Status::Unsent => {
                assert!(config.deadline.is_some() || cluster.stranded > 0, "{r:?}")
            }
            Status::Rejected | Status::Failed | Status::TimedOut => {}
            Status::Surplus => panic!("no such client here"),
        }
    }
    if config.deadline.is_none() && cluster.stranded == 0 {
        for replica in &record.replicas {
            assert_eq!(replica.free_blocks_at_end, replica.usable_blocks, "blocks leak");
        }
    }
    for replica in &record.replicas {
        // Batches of a pipeline overlap, and none makes a device busier than all the time.
        let busy = replica.busy.prefill + replica.busy.decode;
        assert!(
            busy.as_nanos() <= record.end.as_nanos(),
            "{busy:?} of {:?}",
            record.end
        );
    }
    assert!(cluster.timeline.iter().all(|event| event.at <= cluster.end));
    let figures = ClusterSummary::of(record, cluster, &ClusterOptions::default()).unwrap();
    let outcomes = &figures.outcomes;
    let ended: u64 = outcomes.by_state().iter().map(|(_, n)| n).sum();
    assert_eq!(outcomes.offered, ended);
    // Whatever was served was computed by somebody, and what was not is lost.
    let served = || record.requests.iter().filter(|r| r.status.is_served());
    let sum = |of: fn(&RequestRecord) -> u32| served().map(|r| u64::from(of(r))).sum::<u64>();
    let useful = (sum(|r| r.input_tokens), sum(|r| r.output_tokens));
    assert_eq!(
        cluster.attempted_input_tokens,
        useful.0 + outcomes.lost_input_tokens
    );
    assert_eq!(
        cluster.attempted_output_tokens,
        useful.1 + outcomes.lost_output_tokens
    );
    for (group, number) in cluster.groups.iter().zip(0..) {
        let legal = group
            .phases
            .windows(2)
            .all(|w| w[0].0 <= w[1].0 && w[0].1.can_become(w[1].1));
        assert!(legal, "group {number}: {:?}", group.phases);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn nothing_is_lost_through_any_faults(config in any_fleet(), trace in any_requests()) {
        let step = Launched(Price { step: 4 * MS, prefill_token: MS / 20 });
        let (record, cluster) = run_fleet(&config, &step, &trace);
        assert_conserved(&config, &trace, &record, &cluster);
        let stepped = kneeboard::sim::fleet::run(Pace::Step, &config, &[&step], &trace).unwrap();
        prop_assert_eq!(record, stepped.0);
        prop_assert_eq!(cluster, stepped.1);
    }
}
