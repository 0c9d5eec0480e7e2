//! How fast the engine schedules and a whole run goes. `cargo bench` takes about half a minute.
//!
//! Each benchmark counts its steps once before it is timed, so that criterion prints steps a second; where the
//! workload is a shipped scenario the count is checked, so that a change of what is simulated cannot pass for a
//! change of speed.

use std::path::Path;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kneeboard::engine::vllm::version::Behaviour;
use kneeboard::engine::vllm::{VllmConfig, VllmEngine};
use kneeboard::engine::{Engine, StepPlan, StepResult};
use kneeboard::scenario::Plan;
use kneeboard::sim::{self, HostTimes};
use kneeboard::units::SimTime;
use kneeboard::workload::trace::{Prefix, Trace, TraceRequest};

/// Steps of scenarios/bench/b1-10k-1replica.yaml.
const B1_STEPS: u64 = 85_564;

/// An engine with every request in its waiting queue.
fn engine(config: &VllmConfig, requests: &[TraceRequest]) -> VllmEngine {
    let mut engine = VllmEngine::new(config.clone());
    for (id, request) in (0..).zip(requests) {
        engine
            .submit(id, request)
            .expect("the benchmark's requests fit its engine");
    }
    engine
}

/// Steps until nothing is left to do.
fn run_dry(mut engine: VllmEngine) -> u64 {
    let (mut plan, mut result) = (StepPlan::default(), StepResult::default());
    let mut steps = 0;
    while engine.has_unfinished() {
        engine.plan(&mut plan);
        engine.commit(&plan, &mut result);
        steps += 1;
    }
    steps
}

fn config(prefix_caching: bool) -> VllmConfig {
    let behaviour = Behaviour::of("0.32.0").expect("0.32.0 has a behaviour set");
    VllmConfig {
        enable_prefix_caching: prefix_caching,
        async_scheduling: false,
        ..VllmConfig::new(behaviour)
    }
}

/// 256 short prompts with long answers: nearly every step is a full batch of decodes.
fn decode_heavy() -> (VllmConfig, Vec<TraceRequest>) {
    let requests = (0..256).map(|i| TraceRequest::plain(SimTime(0), 16, 400 + i % 64));
    (config(false), requests.collect())
}

/// 2,000 prompts in 20 groups that share 512 tokens, and a cache too small to keep all answers.
fn prefix_caching() -> (VllmConfig, Vec<TraceRequest>) {
    let requests = (0..2000).map(|i| TraceRequest {
        prefix: Some(Prefix {
            group: i % 20,
            shared_tokens: 512,
            greedy_outputs: false,
        }),
        ..TraceRequest::plain(SimTime(0), 560 + i % 100, 40)
    });
    let config = VllmConfig {
        num_gpu_blocks: 4096,
        ..config(true)
    };
    (config, requests.collect())
}

fn engine_steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    for (name, (config, requests)) in [
        ("decode-heavy", decode_heavy()),
        ("prefix-caching", prefix_caching()),
    ] {
        group.throughput(Throughput::Elements(run_dry(engine(&config, &requests))));
        group.bench_function(name, |b| {
            b.iter_batched(|| engine(&config, &requests), run_dry, BatchSize::LargeInput);
        });
    }
    group.finish();
}

fn whole_run(c: &mut Criterion) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/bench/b1-10k-1replica.yaml");
    let plan = Plan::load(&file, &[]).expect("the shipped scenario resolves");
    let trace = plan.trace(0).expect("its requests can be drawn");
    let machine = plan.machine().expect("its step times are stated in it");
    let world = plan.world(HostTimes::default());
    let run = |trace: &Trace| {
        sim::run(&world, machine.step_time.as_ref(), trace).expect("the shipped scenario runs to its end")
    };
    let steps: usize = run(&trace).replicas.iter().map(|r| r.step_ends.len()).sum();
    assert_eq!(steps as u64, B1_STEPS, "the scenario is no longer the same run");

    let mut group = c.benchmark_group("run");
    group.throughput(Throughput::Elements(B1_STEPS));
    group.bench_function("b1-10k-1replica", |b| b.iter(|| run(&trace)));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(5));
    targets = engine_steps, whole_run
}
criterion_main!(benches);
