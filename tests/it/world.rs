//! Properties of every simulated run.

use kneeboard::engine::vllm::{Behaviour, Policy, VllmConfig, VllmEngine};
use kneeboard::engine::{Engine, StepPlan, StepResult};
use kneeboard::record::{RunRecord, Status};
use kneeboard::sim::{FrontEnd, HostTimes, LoadModel, Stall, WorldConfig, run};
use kneeboard::steptime::{BatchShape, StepTime};
use kneeboard::units::{SimDuration, SimTime};
use kneeboard::workload::trace::{Prefix, Trace, TraceRequest};
use proptest::prelude::*;

/// Linear in everything, in ns, times a whole factor.
#[derive(Debug)]
struct Linear(u64);

impl StepTime for Linear {
    fn duration(&self, b: &BatchShape) -> SimDuration {
        let ns = 4_000_000
            + 40_000 * u64::from(b.prefill_tokens)
            + 30_000 * u64::from(b.decode_seqs)
            + 20 * b.decode_context_tokens;
        SimDuration(ns * self.0)
    }
}

prop_compose! {
    fn any_request()(
        gap in 0u64..60_000_000,
        input in 1u32..200,
        output in 1u32..60,
        eos in prop::option::of(1u32..60),
        group in prop::option::of(0u32..3),
        shared_tokens in 0u32..150,
        priority in 0i32..3,
        accepted_drafts in prop::collection::vec(0u8..3, 0..4),
    ) -> (u64, TraceRequest) {
        let prefix = group.map(|group| Prefix { group, shared_tokens, greedy_outputs: false });
        let plain = TraceRequest::plain(SimTime::ZERO, input, output);
        (gap, TraceRequest { eos_at: eos, prefix, priority, accepted_drafts, ..plain })
    }
}

pub fn any_trace() -> impl Strategy<Value = Trace> {
    prop::collection::vec(any_request(), 1..40).prop_map(|rows| {
        let mut at = 0;
        let requests = rows
            .into_iter()
            .map(|(gap, request)| {
                at += gap;
                TraceRequest {
                    arrival: SimTime(at),
                    ..request
                }
            })
            .collect();
        Trace { requests }
    })
}

fn any_engine() -> impl Strategy<Value = VllmConfig> {
    let versions = prop::sample::select(vec!["0.13.0", "0.15.1", "0.19.1", "0.25.1", "0.28.0", "0.32.0"]);
    (
        versions,
        (1u32..12, 16u32..300, 17u32..80),
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        prop::sample::select(vec![0u32, 20, 64]),
        prop::sample::select(vec![0.0, 0.1]),
        0u32..3,
    )
        .prop_map(
            |(
                version,
                (seqs, budget, blocks),
                (caching, asynchronous, priority, gate),
                threshold,
                watermark,
                drafts,
            )| {
                VllmConfig {
                    max_num_seqs: seqs,
                    max_num_batched_tokens: budget,
                    num_gpu_blocks: blocks,
                    max_model_len: 1024,
                    enable_prefix_caching: caching,
                    async_scheduling: asynchronous,
                    policy: if priority { Policy::Priority } else { Policy::Fcfs },
                    scheduler_reserve_full_isl: gate,
                    long_prefill_token_threshold: threshold,
                    watermark,
                    num_speculative_tokens: drafts,
                    num_lookahead_tokens: drafts,
                    ..VllmConfig::new(Behaviour::of(version).unwrap())
                }
            },
        )
}

fn any_load() -> impl Strategy<Value = LoadModel> {
    prop_oneof![
        Just(LoadModel::OpenLoop),
        Just(LoadModel::Offline),
        (1u32..6, 0u64..5_000_000).prop_map(|(concurrency, think)| LoadModel::ClosedLoop {
            concurrency,
            think: SimDuration(think)
        }),
    ]
}

prop_compose! {
    fn any_world()(
        engine in any_engine(),
        replicas in 1u32..4,
        load in any_load(),
        add in prop::sample::select(vec![0u64, 300_000]),
        gap in prop::sample::select(vec![0u64, 20_000]),
        stalls in any::<bool>(),
        front in prop::sample::select(vec![0u64, 400_000]),
    ) -> WorldConfig {
        let host = HostTimes {
            add_request: SimDuration(add),
            add_further_request: SimDuration(add / 3),
            add_request_idle: SimDuration(2 * add),
            between_steps: SimDuration(gap),
        };
        let stall = stalls.then_some(Stall { period: SimDuration(50_000_000), busy: SimDuration(45_000_000), phase: SimDuration(7_000_000) });
        let front_end = FrontEnd {
            inbound: SimDuration(front),
            outbound: SimDuration(front / 2),
            per_output_token: SimDuration(front / 100),
        };
        WorldConfig { engine, replicas, load, host, front_end, stall, deadline: None }
    }
}

/// Any world and step times for it.
pub fn any_step_time_world() -> impl Strategy<Value = (WorldConfig, impl StepTime)> {
    any_world().prop_map(|world| (world, Linear(1)))
}

/// Each request in exactly one terminal state, all its tokens there, no block kept.
fn assert_conserved(record: &RunRecord, trace: &Trace) {
    assert_eq!(record.requests.len(), trace.requests.len());
    for (r, asked) in record.requests.iter().zip(&trace.requests) {
        let times: Vec<SimTime> = record.token_times(r).collect();
        assert_eq!(times.len() as u32, r.output_tokens);
        assert!(times.windows(2).all(|w| w[0] <= w[1]), "time went back");
        assert_eq!(
            (times.first().copied(), times.last().copied()),
            (r.first_token, r.last_token)
        );
        match r.status {
            Status::Completed => {
                assert_eq!(r.output_tokens, asked.output_tokens());
                let instants = [
                    Some(r.scheduled),
                    Some(r.sent),
                    r.enqueued,
                    r.first_scheduled,
                    r.first_token,
                    r.last_token,
                ];
                assert!(
                    instants.windows(2).all(|w| w[0] <= w[1] && w[1].is_some()),
                    "{instants:?}"
                );
                assert!(r.cached_tokens < r.input_tokens);
            }
            Status::Rejected => assert_eq!((r.enqueued, r.output_tokens), (None, 0)),
            _ => panic!("left unfinished, not counted, or failed: {r:?}"),
        }
    }
    for replica in &record.replicas {
        assert_eq!(replica.free_blocks_at_end, replica.usable_blocks, "blocks leaked");
        assert!(
            replica
                .step_starts
                .iter()
                .zip(&replica.step_ends)
                .all(|(s, e)| s < e)
        );
        assert!(replica.step_ends.windows(2).all(|w| w[0] <= w[1]));
    }
}

/// Integral over time of the number in the system, by sweeping the instants of entry and exit.
fn integral_of_number_in_system(record: &RunRecord) -> u128 {
    let mut changes: Vec<(SimTime, i64)> = Vec::new();
    for r in &record.requests {
        if let (Some(from), Some(to)) = (r.enqueued, r.last_token) {
            changes.extend([(from, 1), (to, -1)]);
        }
    }
    changes.sort_unstable();
    let (mut number, mut last, mut area) = (0i64, SimTime::ZERO, 0u128);
    for (at, change) in changes {
        area += number as u128 * u128::from((at - last).as_nanos());
        (number, last) = (number + change, at);
    }
    assert_eq!(number, 0);
    area
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_run_conserves_requests_tokens_and_blocks(world in any_world(), trace in any_trace()) {
        let record = run(&world, &Linear(1), &trace).unwrap();
        assert_conserved(&record, &trace);
        let sojourns: u128 = record.requests.iter()
            .filter_map(|r| Some(u128::from((r.last_token? - r.enqueued?).as_nanos()))).sum();
        prop_assert_eq!(integral_of_number_in_system(&record), sojourns, "Little's law on the sample path");
    }

    #[test]
    fn the_same_run_twice_is_the_same(world in any_world(), trace in any_trace()) {
        prop_assert_eq!(run(&world, &Linear(1), &trace).unwrap(), run(&world, &Linear(1), &trace).unwrap());
    }

    /// Multiplying all times by a whole number multiplies every timestamp.
    #[test]
    fn time_has_no_scale_of_its_own(world in any_world(), trace in any_trace(), k in 2u64..5) {
        let scaled_trace = Trace {
            requests: trace.requests.iter()
                .map(|r| TraceRequest { arrival: SimTime(r.arrival.0 * k), ..r.clone() }).collect(),
        };
        let load = match world.load {
            LoadModel::ClosedLoop { concurrency, think } => LoadModel::ClosedLoop { concurrency, think: think * k },
            other => other,
        };
        let scaled = WorldConfig {
            load,
            host: HostTimes {
                add_request: world.host.add_request * k,
                add_further_request: world.host.add_further_request * k,
                add_request_idle: world.host.add_request_idle * k,
                between_steps: world.host.between_steps * k,
            },
            front_end: FrontEnd {
                inbound: world.front_end.inbound * k,
                outbound: world.front_end.outbound * k,
                per_output_token: world.front_end.per_output_token * k,
            },
            stall: world.stall.map(|s| Stall { period: s.period * k, busy: s.busy * k, phase: s.phase * k }),
            ..world.clone()
        };
        let base = run(&world, &Linear(1), &trace).unwrap();
        let slow = run(&scaled, &Linear(k), &scaled_trace).unwrap();
        for (a, b) in base.requests.iter().zip(&slow.requests) {
            prop_assert_eq!(a.last_token.map(|t| t.0 * k), b.last_token.map(|t| t.0));
            prop_assert_eq!(a.preemptions, b.preemptions);
        }
    }

    /// Limits that hold in every schedule call, whatever the load.
    #[test]
    fn no_schedule_call_exceeds_its_budgets(config in any_engine(), trace in any_trace()) {
        let mut engine = VllmEngine::new(config.clone());
        let (mut plan, mut result) = (StepPlan::default(), StepResult::default());
        let mut under_way = std::collections::VecDeque::new();
        let mut rows = trace.requests.iter().enumerate();
        let mut calls = 0;
        loop {
            if let Some((id, request)) = rows.next() {
                let _ = engine.submit(id as u32, request);
            } else if !engine.has_unfinished() {
                break;
            }
            engine.plan(&mut plan);
            calls += 1;
            prop_assert!(calls < 100_000, "no progress");
            let tokens: u32 = plan.grants.iter().map(|g| g.tokens).sum();
            prop_assert!(tokens <= config.max_num_batched_tokens);
            prop_assert_eq!(tokens, plan.shape.tokens());
            prop_assert!(plan.running <= config.max_num_seqs);
            prop_assert!(plan.grants.len() as u32 <= plan.running);
            prop_assert!(plan.free_blocks <= config.usable_blocks());
            prop_assert!(plan.grants.iter().all(|g| g.tokens > 0 && g.computed + g.tokens < config.max_model_len));
            prop_assert!(plan.preempted.is_empty() || plan.admitted.is_empty(), "S34");
            let mut ids: Vec<u32> = plan.grants.iter().map(|g| g.id).collect();
            ids.sort_unstable();
            prop_assert!(ids.windows(2).all(|w| w[0] != w[1]), "one row a request");
            // Work conservation: an idle engine with an empty running list admits its head.
            prop_assert!(plan.running > 0 || plan.waiting == 0 || !plan.preempted.is_empty());
            under_way.push_back(plan.clone());
            if under_way.len() >= engine.queue_depth() || plan.grants.is_empty() {
                let oldest = under_way.pop_front().unwrap();
                engine.commit(&oldest, &mut result);
            }
        }
        while let Some(oldest) = under_way.pop_front() {
            engine.commit(&oldest, &mut result);
        }
        prop_assert_eq!(engine.free_blocks(), config.usable_blocks());
    }
}

#[test]
fn the_deadline_leaves_what_is_not_done_unfinished() {
    let engine = VllmConfig {
        async_scheduling: false,
        num_gpu_blocks: 1000,
        ..VllmConfig::new(Behaviour::of("0.32.0").unwrap())
    };
    let config = WorldConfig {
        engine,
        replicas: 1,
        load: LoadModel::OpenLoop,
        host: HostTimes::default(),
        front_end: FrontEnd::default(),
        stall: None,
        deadline: Some(SimTime(50_000_000)),
    };
    let requests = (0..10)
        .map(|i| TraceRequest::plain(SimTime(i * 20_000_000), 10, 5))
        .collect();
    let record = run(&config, &Linear(1), &Trace { requests }).unwrap();
    assert!(record.requests.iter().any(|r| r.status == Status::Completed));
    assert!(record.requests.iter().any(|r| r.status == Status::Unfinished));
    assert!(record.end <= SimTime(50_000_000));
}

#[test]
fn an_arrival_at_the_instant_a_step_ends_is_seen_by_the_next_schedule() {
    let engine = VllmConfig {
        async_scheduling: false,
        num_gpu_blocks: 1000,
        ..VllmConfig::new(Behaviour::of("0.32.0").unwrap())
    };
    let config = WorldConfig {
        engine,
        replicas: 1,
        load: LoadModel::OpenLoop,
        host: HostTimes::default(),
        front_end: FrontEnd::default(),
        stall: None,
        deadline: None,
    };
    // The first step prefills 100 tokens: 4 ms + 100 * 40 us = 8 ms.
    let requests = vec![
        TraceRequest::plain(SimTime(0), 100, 3),
        TraceRequest::plain(SimTime(8_000_000), 10, 1),
    ];
    let record = run(&config, &Linear(1), &Trace { requests }).unwrap();
    assert_eq!(record.requests[1].first_scheduled, Some(SimTime(8_000_000)));
}

/// A front end moves arrivals and tokens, and changes nothing that the engine does.
#[test]
fn a_front_end_shifts_what_clients_send_and_see() {
    let config = WorldConfig {
        engine: VllmConfig {
            async_scheduling: false,
            num_gpu_blocks: 1000,
            ..VllmConfig::new(Behaviour::of("0.32.0").unwrap())
        },
        replicas: 1,
        load: LoadModel::OpenLoop,
        host: HostTimes::default(),
        front_end: FrontEnd::default(),
        stall: None,
        deadline: None,
    };
    let trace = |shift: u64| Trace {
        requests: (0..20)
            .map(|i| TraceRequest::plain(SimTime(shift + i * 3_000_000), 50, 4))
            .collect(),
    };
    let front_end = FrontEnd {
        inbound: SimDuration(4_000_000),
        outbound: SimDuration(2_500_000),
        per_output_token: SimDuration(10_000),
    };
    let served = WorldConfig {
        front_end,
        ..config.clone()
    };
    let (engine, client) = (
        run(&config, &Linear(1), &trace(4_000_000)).unwrap(),
        run(&served, &Linear(1), &trace(0)).unwrap(),
    );
    assert_eq!(engine.replicas, client.replicas);
    for (e, c) in engine.requests.iter().zip(&client.requests) {
        assert_eq!((e.enqueued, e.first_scheduled), (c.enqueued, c.first_scheduled));
        assert_eq!(c.sent + front_end.inbound, e.sent);
        let shifted: Vec<SimTime> = engine
            .token_times(e)
            .zip(0..)
            .map(|(t, k)| t + front_end.outbound + front_end.per_output_token * k)
            .collect();
        assert_eq!(client.token_times(c).collect::<Vec<_>>(), shifted);
        assert_eq!(
            (c.first_token, c.last_token),
            (shifted.first().copied(), shifted.last().copied())
        );
    }
    assert!(client.requests.iter().all(|r| r.last_token <= Some(client.end)));
}

/// A client in a closed loop sends again when it has seen the last token, not when the engine made it.
#[test]
fn closed_loop_clients_wait_for_what_they_see() {
    let front_end = FrontEnd {
        inbound: SimDuration(1_000_000),
        outbound: SimDuration(500_000),
        per_output_token: SimDuration(1_000),
    };
    let think = SimDuration(7_000);
    let config = WorldConfig {
        engine: VllmConfig {
            async_scheduling: false,
            num_gpu_blocks: 1000,
            ..VllmConfig::new(Behaviour::of("0.32.0").unwrap())
        },
        replicas: 1,
        load: LoadModel::ClosedLoop {
            concurrency: 1,
            think,
        },
        host: HostTimes::default(),
        front_end,
        stall: None,
        deadline: None,
    };
    let requests = (1..6)
        .map(|i| TraceRequest::plain(SimTime(0), 10 * i, 3))
        .collect();
    let record = run(&config, &Linear(1), &Trace { requests }).unwrap();
    for pair in record.requests.windows(2) {
        assert_eq!(Some(pair[1].sent), pair[0].last_token.map(|t| t + think));
        assert_eq!(pair[1].enqueued, Some(pair[1].sent + front_end.inbound));
    }
}
