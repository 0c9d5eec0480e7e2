//! Taking many steps at once gives what taking them one by one gives, to the last bit.

use std::path::Path;
use std::sync::Arc;

use kneeboard::engine::neuron::NeuronEngine;
use kneeboard::engine::vllm::{Behaviour, Policy, SchedulerClass, VllmConfig, VllmEngine};
use kneeboard::engine::{Engine, Grant, StepPlan, StepResult};
use kneeboard::explore::study::Study;
use kneeboard::scenario::{Override, Plan};
use kneeboard::sim::{FrontEnd, HostTimes, LoadModel, Pace, Stall, WorldConfig, run_at};
use kneeboard::steptime::{BatchShape, LinearStepTime, StepTime};
use kneeboard::units::{SimDuration, SimTime};
use kneeboard::workload::trace::{Prefix, Trace, TraceRequest};
use proptest::prelude::*;

/// Counts rows one by one, so that it asks for each context and would notice a wrong one.
#[derive(Debug)]
struct ByRow;

impl StepTime for ByRow {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        let decodes: u64 = batch
            .decodes
            .iter()
            .map(|r| u64::from(r.computed.min(90)) * 37)
            .sum();
        let prefills: u64 = batch
            .prefills
            .iter()
            .map(|r| u64::from(r.computed + 9) * u64::from(r.tokens))
            .sum();
        SimDuration(
            if batch.repeated == Some(true) {
                800_000
            } else {
                900_000
            } + decodes
                + prefills,
        )
    }

    fn needs_decode_rows(&self) -> bool {
        true
    }
}

fn step_time(by_row: bool, step_ps: u64) -> Arc<dyn StepTime> {
    if by_row {
        return Arc::new(ByRow);
    }
    Arc::new(LinearStepTime {
        step_ps,
        any_prefill_ps: 5_000_000_000,
        prefill_row_ps: 1_234,
        prefill_token_ps: 45_000_000,
        prefill_context_token_ps: 77,
        decode_row_ps: 20_000_333,
        decode_context_token_ps: 20_001,
    })
}

prop_compose! {
    fn any_request()(
        gap in prop_oneof![Just(0u64), 0u64..3_000_000, 0u64..400_000_000],
        input in prop_oneof![1u32..40, 1u32..300],
        output in prop_oneof![1u32..8, 1u32..300],
        eos in prop::option::weighted(0.3, 1u32..200),
        prefix in prop::option::of((0u32..3, prop_oneof![0u32..150, Just(u32::MAX)], any::<bool>())),
        priority in 0i32..3,
    ) -> (u64, TraceRequest) {
        let prefix = prefix.map(|(group, shared_tokens, greedy_outputs)| Prefix { group, shared_tokens, greedy_outputs });
        (gap, TraceRequest { eos_at: eos, prefix, priority, ..TraceRequest::plain(SimTime::ZERO, input, output) })
    }
}

pub(super) fn any_trace() -> impl Strategy<Value = Trace> {
    prop::collection::vec(any_request(), 1..50).prop_map(|rows| {
        let mut at = 0;
        let requests = rows.into_iter().map(|(gap, request)| {
            at += gap;
            TraceRequest {
                arrival: SimTime(at),
                ..request
            }
        });
        Trace {
            requests: requests.collect(),
        }
    })
}

prop_compose! {
    pub(super) fn any_engine()(
        version in prop::sample::select(vec!["0.11.0", "0.13.0", "0.15.1", "0.19.1", "0.25.1", "0.28.0", "0.32.0"]),
        (seqs, budget) in prop_oneof![(1u32..20, 16u32..400), (20u32..40, 8u32..30), (1u32..4, 2u32..6)],
        (block_size, tokens) in (prop::sample::select(vec![1u32, 4, 16]), prop_oneof![80u32..300, 620u32..1_400, Just(40_000u32)]),
        max_model_len in prop::sample::select(vec![256u32, 600, 4096]),
        (caching, asynchronous, priority, gate, chunked, adaptive) in any::<(bool, bool, bool, bool, bool, bool)>(),
        threshold in prop::sample::select(vec![0u32, 0, 1, 2, 20, 64]),
        watermark in prop::sample::select(vec![0.0, 0.1]),
        drafts in prop::sample::select(vec![0u32, 0, 0, 2]),
        scheduler_cls in prop_oneof![
            5 => Just(SchedulerClass::Vllm),
            2 => Just(SchedulerClass::NeuronContinuousBatching),
            1 => Just(SchedulerClass::NeuronSegmented),
        ],
    ) -> VllmConfig {
        let neuron = scheduler_cls.is_neuron();
        let drafts = if neuron { 0 } else { drafts };
        VllmConfig {
            scheduler_cls,
            max_num_seqs: seqs,
            max_num_batched_tokens: budget,
            block_size,
            num_gpu_blocks: tokens / block_size + 1,
            max_model_len,
            enable_prefix_caching: caching,
            enable_chunked_prefill: chunked || threshold == 0,
            async_scheduling: asynchronous && !neuron,
            policy: if priority && !neuron { Policy::Priority } else { Policy::Fcfs },
            scheduler_reserve_full_isl: gate,
            long_prefill_token_threshold: threshold,
            adaptive_long_prefill_threshold: adaptive,
            watermark,
            num_speculative_tokens: drafts,
            num_lookahead_tokens: drafts,
            ..VllmConfig::new(Behaviour::of(version).unwrap())
        }
    }
}

prop_compose! {
    fn any_world()(
        engine in any_engine(),
        replicas in prop_oneof![Just(1u32), 1u32..20],
        load in prop_oneof![
            3 => Just(LoadModel::OpenLoop),
            1 => Just(LoadModel::Offline),
            2 => (1u32..30, prop_oneof![Just(0u64), 0u64..5_000_000])
                .prop_map(|(concurrency, think)| LoadModel::ClosedLoop { concurrency, think: SimDuration(think) }),
        ],
        (add, gap, front) in prop::sample::select(vec![(0u64, 0u64, 0u64), (300_000, 0, 0), (0, 20_000, 0), (90_000, 7_000, 400_000)]),
        stalls in prop::option::weighted(0.2, 0u64..40_000_000),
        deadline in prop::option::weighted(0.2, 0u64..4_000_000_000),
    ) -> WorldConfig {
        WorldConfig {
            engine,
            replicas,
            load,
            host: HostTimes {
                add_request: SimDuration(add),
                add_further_request: SimDuration(add / 3),
                add_request_idle: SimDuration(2 * add),
                between_steps: SimDuration(gap),
            },
            front_end: FrontEnd {
                inbound: SimDuration(front),
                outbound: SimDuration(front / 2),
                per_output_token: SimDuration(front / 100),
            },
            stall: stalls.map(|phase| Stall {
                period: SimDuration(50_000_000),
                busy: SimDuration(45_000_000),
                phase: SimDuration(phase),
            }),
            deadline: deadline.map(SimTime),
        }
    }
}

/// Preemption without end is possible in old releases and is no matter of pace: such runs are cut off.
fn bounded(world: WorldConfig) -> WorldConfig {
    let limit = SimTime(10_000_000_000);
    WorldConfig {
        deadline: Some(world.deadline.unwrap_or(limit)),
        ..world
    }
}

pub(super) fn rows(grants: &[Grant]) -> Vec<(u32, u32, u32, bool)> {
    grants
        .iter()
        .map(|g| (g.id, g.tokens, g.computed, g.samples))
        .collect()
}

/// An engine whose queues can be looked at.
enum Subject {
    Vllm(VllmEngine),
    Neuron(NeuronEngine),
}

impl Subject {
    fn new(config: &VllmConfig, steady: bool) -> Self {
        let mut engine = VllmEngine::new(config.clone());
        if steady {
            engine = engine.with_steady_rows(true);
        }
        if config.scheduler_cls.is_neuron() {
            Self::Neuron(NeuronEngine::around(engine))
        } else {
            Self::Vllm(engine)
        }
    }

    fn engine(&mut self) -> &mut dyn Engine {
        match self {
            Self::Vllm(engine) => engine,
            Self::Neuron(engine) => engine,
        }
    }

    fn all_rows(&self, plan: &StepPlan) -> Vec<Grant> {
        match self {
            Self::Vllm(engine) => engine.all_rows(plan),
            Self::Neuron(engine) => engine.base().all_rows(plan),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2500, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn of_whole_runs(
        world in any_world(), trace in any_trace(), by_row in prop::bool::weighted(0.2),
        step_ps in prop::sample::select(vec![8_000_000_000u64, 100_000_077]),
    ) {
        let world = bounded(world);
        let model = step_time(by_row, step_ps);
        let leaping = run_at(Pace::Leap, &world, model.as_ref(), &trace);
        let stepping = run_at(Pace::Step, &world, model.as_ref(), &trace);
        prop_assert_eq!(leaping, stepping);
    }

    /// The steady rows are those that the reference lists: every plan alike, row by row.
    #[test]
    fn of_every_plan(config in any_engine(), trace in any_trace(), arrivals in prop::collection::vec(0usize..4, 1..40)) {
        let mut engines = [Subject::new(&config, false), Subject::new(&config, true)];
        let mut under_way: [Vec<StepPlan>; 2] = Default::default();
        let (mut ids, mut results) = (0.., [StepResult::default(), StepResult::default()]);
        let mut waiting = trace.requests.iter();
        for step in 0..400 {
            for request in waiting.by_ref().take(arrivals[step % arrivals.len()]) {
                let id = ids.next().unwrap();
                let taken = engines.each_mut().map(|e| e.engine().submit(id, request));
                prop_assert_eq!(taken[0], taken[1]);
            }
            if !engines[0].engine().has_unfinished() && under_way[0].is_empty() {
                continue;
            }
            let mut plans = [StepPlan::default(), StepPlan::default()];
            for (engine, plan) in engines.iter_mut().zip(&mut plans) {
                engine.engine().plan(plan);
            }
            let listed = engines[1].all_rows(&plans[1]);
            let steady = |id: u32| !plans[1].grants.iter().any(|g| g.id == id);
            let reference: Vec<_> = plans[0].grants.clone();
            prop_assert_eq!(rows(&listed).len(), rows(&reference).len(), "step {}", step);
            for (a, b) in rows(&listed).into_iter().zip(rows(&reference)) {
                prop_assert_eq!((a.0, a.1, a.2), (b.0, b.1, b.2));
                prop_assert!(a.3 == b.3 || steady(a.0));
            }
            prop_assert_eq!(&plans[0].admitted, &plans[1].admitted);
            prop_assert_eq!(&plans[0].preempted, &plans[1].preempted);
            prop_assert_eq!(plans[0].shape.sums(), plans[1].shape.sums());
            prop_assert_eq!(plans[0].shape.repeated, plans[1].shape.repeated);
            let livelocks = engines.each_mut().map(|e| e.engine().livelock());
            prop_assert_eq!(livelocks[0], livelocks[1]);
            prop_assert_eq!(
                (plans[0].running, plans[0].waiting, plans[0].free_blocks),
                (plans[1].running, plans[1].waiting, plans[1].free_blocks)
            );
            let depth = engines[0].engine().queue_depth();
            for ((engine, plan), (queue, result)) in
                engines.iter_mut().zip(plans).zip(under_way.iter_mut().zip(&mut results))
            {
                queue.push(plan);
                if queue.len() >= depth {
                    let oldest = queue.remove(0);
                    engine.engine().commit(&oldest, result);
                }
            }
            if under_way[0].len() + 1 >= depth {
                prop_assert_eq!(&results[0].finished, &results[1].finished);
                prop_assert_eq!(results[0].free_blocks, results[1].free_blocks);
            }
        }
    }
}

/// Every scenario that ships, shortened where it is long, at both paces; and its streamed summary.
#[test]
fn of_every_shipped_scenario() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut tried = 0;
    for folder in [root.clone(), root.join("bench")] {
        let mut files: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        files.sort();
        for path in files
            .into_iter()
            .filter(|p| p.extension().is_some_and(|e| e == "yaml"))
        {
            if !super::shared::has_its_data("leaping::of_every_shipped_scenario", &path) {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let short = Override::new("workload.synthetic.num_requests", 400);
            let drawn = text.contains("num_requests");
            let plan = Plan::load(&path, if drawn { std::slice::from_ref(&short) } else { &[] }).unwrap();
            let study = Study::of(plan.clone()).unwrap();
            let leaping = study.run(0).unwrap();
            let stepping = Study::of(plan).unwrap().at_pace(Pace::Step).run(0).unwrap();
            assert_eq!(leaping.record, stepping.record, "{}", path.display());
            assert_eq!(leaping.summary, stepping.summary, "{}", path.display());
            assert_eq!(
                leaping.extrapolated_share,
                stepping.extrapolated_share,
                "{}",
                path.display()
            );
            let mut streamed = study.summarise(0, |_| ()).unwrap();
            // Steps are not kept, so there is no diagnosis, which a note says.
            let mut whole = leaping.summary.clone();
            if streamed.summary.diagnosis.is_none() {
                whole.diagnosis = None;
                streamed.summary.notes.retain(|n| !n.starts_with("no diagnosis"));
            }
            if study.plan().is_cluster() {
                whole.notes.retain(|n| !n.starts_with("no diagnosis"));
            }
            let binned = streamed.summary.notes.iter().any(|n| n.contains("bins"));
            assert!(binned || streamed.summary == whole, "{}", path.display());
            assert_eq!(
                streamed.extrapolated_share,
                leaping.extrapolated_share,
                "{}",
                path.display()
            );
            tried += 1;
        }
    }
    assert!(tried >= 8, "{tried} scenarios");
}
