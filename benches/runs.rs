//! How fast whole runs go, leaping and stepping. `cargo bench --bench runs` takes about half a minute.
//!
//! Each benchmark is a shipped scenario with a few values replaced, recorded in full, and criterion prints its steps a
//! second. Steps are counted once before they are timed, at both paces, and must be those stated here, so that a
//! change of what is simulated cannot pass for a change of speed. No data but the repository's own are needed.

use std::path::Path;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use kneeboard::scenario::{Override, Plan};
use kneeboard::sim::{self, HostTimes, Pace};

/// A scenario and what is replaced in it.
struct Case {
    name: &'static str,
    file: &'static str,
    overrides: &'static [&'static str],
    steps: usize,
}

const CASES: [Case; 5] = [
    Case {
        name: "b1-10k-1replica",
        file: "scenarios/bench/b1-10k-1replica.yaml",
        overrides: &[],
        steps: 85_564,
    },
    // As scenarios/bench/w2.yaml, with lengths drawn from laws that are near those of its trace.
    Case {
        name: "chunked-mix",
        file: "scenarios/bench/b1-10k-1replica.yaml",
        overrides: &[
            "system.engine.max_num_seqs=128",
            "system.engine.max_num_batched_tokens=512",
            "system.engine.num_gpu_blocks=7001",
            "workload.synthetic.num_requests=1000",
            "workload.synthetic.lengths={independent: {
                input: {lognormal: {median: 1020, sigma: 0.97, min: 4, max: 4075}},
                output: {lognormal: {median: 129, sigma: 0.87, min: 1, max: 1000}}}}",
            "load.arrival.rate=3",
        ],
        steps: 31_127,
    },
    Case {
        name: "saturated",
        file: "scenarios/bench/saturated.yaml",
        overrides: &["workload.synthetic.num_requests=1000"],
        steps: 4_058,
    },
    Case {
        name: "saturated-prefix",
        file: "scenarios/bench/saturated-prefix.yaml",
        overrides: &["workload.synthetic.num_requests=1000"],
        steps: 4_034,
    },
    Case {
        name: "roofline",
        file: "scenarios/h100-llama-70b.yaml",
        overrides: &["workload.synthetic.num_requests=200"],
        steps: 2_761,
    },
];

fn plan(case: &Case) -> Plan {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(case.file);
    let overrides: Vec<Override> = case
        .overrides
        .iter()
        .map(|text| Override::parse(text).expect("a path of the scenario and a value"))
        .collect();
    Plan::load(&file, &overrides).expect("the shipped scenario resolves")
}

fn whole_runs(c: &mut Criterion) {
    let mut group = c.benchmark_group("run");
    // Some take a tenth of a second, which growing numbers of iterations would take too long for.
    group.sampling_mode(SamplingMode::Flat);
    for case in &CASES {
        let plan = plan(case);
        let trace = plan.trace(0).expect("its requests can be drawn");
        let machine = plan.machine().expect("its step times are known");
        let world = plan.world(HostTimes::default());
        let run = |pace: Pace| {
            sim::run_at(pace, &world, machine.step_time.as_ref(), &trace)
                .expect("the shipped scenario runs to its end")
        };
        group.throughput(Throughput::Elements(case.steps as u64));
        for (pace, word) in [(Pace::Leap, "leaping"), (Pace::Step, "stepping")] {
            let steps: usize = run(pace).replicas.iter().map(|r| r.step_ends.len()).sum();
            assert_eq!(steps, case.steps, "{} is no longer the same run", case.name);
            group.bench_function(BenchmarkId::new(case.name, word), |b| b.iter(|| run(pace)));
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = whole_runs
}
criterion_main!(benches);
