//! How fast step times, the KV cache and the engine go, each without the others. `cargo bench --bench scheduler` takes
//! about half a minute. Whole runs are in runs.rs.
//!
//! The engine here schedules every step row by row, as `Pace::Step` does: what leaping leaves to be done at arrivals,
//! ends and evictions. Each benchmark counts its steps once before it is timed, so that criterion prints steps a second.

use std::path::Path;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kneeboard::engine::vllm::version::Behaviour;
use kneeboard::engine::vllm::{VllmConfig, VllmEngine};
use kneeboard::engine::{Engine, StepPlan, StepResult};
use kneeboard::kv::{BlockTable, KvCache, TokenStream};
use kneeboard::profile::catalog;
use kneeboard::steptime::{
    BatchShape, Deployment, FittedStepTime, LinearStepTime, Parameters, Roofline, StepTime,
};
use kneeboard::units::{SimDuration, SimTime};
use kneeboard::workload::trace::{Prefix, TraceRequest};

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

/// Blocks that [`serve_from_cache`] allocates.
const CACHE_BLOCKS: u64 = 2000 * 188;

/// 2,000 requests of 2,000 + 1,000 tokens, 96 of them at a time, through a cache of 20,000 blocks of 16 tokens and no
/// engine; half of each prompt is one of 64 shared ones. Steps of 8 tokens, so that a block is asked for twice.
fn serve_from_cache(prefix_caching: bool) -> u64 {
    let mut cache = KvCache::new(20_000, 16, prefix_caching, true);
    let mut running: Vec<(BlockTable, TokenStream, u32)> = Vec::new();
    let mut spare: Vec<BlockTable> = Vec::new();
    let (mut next, mut hits) = (0, 0_u64);
    while next < 2000 || !running.is_empty() {
        while running.len() < 96 && next < 2000 {
            let prefix = Prefix {
                group: next * 37 % 64,
                shared_tokens: 1000,
                greedy_outputs: false,
            };
            let stream = TokenStream::new(next, 2000, Some(prefix));
            hits += u64::from(cache.look_up(&stream, 2000, false));
            let mut table = spare.pop().unwrap_or_default();
            cache.admit(&mut table, 2000);
            cache.register(&mut table, &stream, 2000);
            running.push((table, stream, 2000 + next % 64));
            next += 1;
        }
        for (table, stream, tokens) in &mut running {
            *tokens += 8;
            assert!(cache.grow(table, *tokens), "the cache is large enough");
            cache.register(table, stream, *tokens);
        }
        running.retain_mut(|(table, _, tokens)| {
            let goes_on = *tokens < 3000;
            if !goes_on {
                cache.release(table);
                spare.push(std::mem::take(table));
            }
            goes_on
        });
    }
    hits
}

fn kv_cache(c: &mut Criterion) {
    let mut group = c.benchmark_group("kv");
    group.throughput(Throughput::Elements(CACHE_BLOCKS));
    for (name, prefix_caching) in [("counter", false), ("half-hits", true)] {
        group.bench_function(name, |b| b.iter(|| serve_from_cache(prefix_caching)));
    }
    group.finish();
}

/// Steps of a run that is asked for at once.
const RUN: usize = 1000;

/// Step times of 256 decodes, a run of equal steps at once and one by one.
fn step_times(c: &mut Criterion) {
    let linear = LinearStepTime {
        step_ps: 8_000_000_000,
        decode_row_ps: 20_000_000,
        decode_context_token_ps: 20_000,
        ..LinearStepTime::default()
    };
    let fitted = FittedStepTime::new([8e-3, 1e-3, 2e-4, 1e-7, 5e-5, 3e-4, 9e-4, 6e-9], 4);
    let roofline = |model: &str| {
        let here = Path::new("");
        let deployment = Deployment::new(
            catalog::model(model, here).expect("the model is in the catalog"),
            catalog::accelerator("h100-sxm", here).expect("the device is in the catalog"),
        );
        Roofline::new(deployment, Parameters::default()).expect("its profile states all figures")
    };
    let (dense, windowed) = (roofline("llama-3.1-8b"), roofline("gpt-oss-20b"));
    let fitted = fitted.expect("the coefficients are positive");
    let models: [(&str, &dyn StepTime); 4] = [
        ("linear", &linear),
        ("fitted", &fitted),
        ("roofline", &dense),
        ("roofline-windows", &windowed),
    ];
    let mut group = c.benchmark_group("steptime");
    group.throughput(Throughput::Elements(RUN as u64));
    for (name, model) in models {
        let mut batch = BatchShape::default();
        if model.needs_decode_rows() {
            (0..256).for_each(|i| batch.add_decode(1, 900 + 16 * i));
        } else {
            batch.add_decodes(256, 753_000);
        }
        let mut out = vec![SimDuration::ZERO; RUN];
        group.bench_function(format!("{name}/run"), |b| {
            b.iter(|| model.durations(&batch, &mut out));
        });
        group.bench_function(format!("{name}/steps"), |b| {
            b.iter(|| (0..RUN).map(|_| model.duration(&batch).as_nanos()).sum::<u64>());
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = step_times, kv_cache, engine_steps
}
criterion_main!(benches);
