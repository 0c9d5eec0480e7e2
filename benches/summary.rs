//! How fast a run is summarised: from its record, and while it goes on.
//!
//! `record/b1-10k-1replica` times [`Summary::of`] on the record of the shipped scenario; `streamed/steps` what a
//! [`StreamedSummary`] needs for each step once its samples are binned, told in slices of 256 steps as a simulator does
//! that leaps; criterion prints steps a second.

use std::path::Path;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kneeboard::metric::{StreamedSummary, Summary, SummaryOptions};
use kneeboard::record::{Recorder, StepRun};
use kneeboard::scenario::Plan;
use kneeboard::sim::{self, FrontEnd, HostTimes};
use kneeboard::units::SimTime;

/// Steps of scenarios/bench/b1-10k-1replica.yaml.
const B1_STEPS: u64 = 85_564;

fn of_record(c: &mut Criterion) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/bench/b1-10k-1replica.yaml");
    let plan = Plan::load(&file, &[]).expect("the shipped scenario resolves");
    let trace = plan.trace(0).expect("its requests can be drawn");
    let machine = plan.machine().expect("its step times are stated in it");
    let world = plan.world(HostTimes::default());
    let run =
        sim::run(&world, machine.step_time.as_ref(), &trace).expect("the shipped scenario runs to its end");
    let options = SummaryOptions::default();
    let summary = Summary::of(&run, &options);
    assert_eq!(
        summary.gauges.steps, B1_STEPS,
        "the scenario is no longer the same run"
    );

    let mut group = c.benchmark_group("record");
    group.throughput(Throughput::Elements(B1_STEPS));
    group.bench_function("b1-10k-1replica", |b| b.iter(|| Summary::of(&run, &options)));
    group.finish();
}

/// Decode steps of a full batch: 20 ns a row longer each, and a jump back now and then.
fn steps(from: SimTime, n: u64) -> (Vec<SimTime>, Vec<SimTime>) {
    let mut now = from.as_nanos();
    let duration = |i: u64| 13_000_000 + (i % 3_000) * 5_120 + i.wrapping_mul(2_654_435_761) % 1_000;
    (0..n)
        .map(|i| {
            let start = now;
            now += duration(i);
            (SimTime(start), SimTime(now))
        })
        .unzip()
}

fn streamed(c: &mut Criterion) {
    const STEPS: u64 = 1 << 18;
    const SLICE: usize = 256;
    let (starts, ends) = steps(SimTime::ZERO, STEPS);
    let free_blocks: Vec<u32> = (0..SLICE as u32).map(|i| 9_000 - i).collect();
    let mut listener = StreamedSummary::new(&SummaryOptions::default(), None, &FrontEnd::default());
    let mut tell = || {
        for (starts, ends) in starts.chunks(SLICE).zip(ends.chunks(SLICE)) {
            listener.steps(&StepRun {
                replica: 0,
                starts,
                ends,
                free_blocks: &free_blocks,
                running: 256,
                waiting: 3,
                gaps_first: 250,
                gaps_rest: 256,
            });
        }
    };
    // So many distinct durations are beyond what is kept exactly.
    tell();
    let mut group = c.benchmark_group("streamed");
    group.throughput(Throughput::Elements(STEPS));
    group.bench_function("steps", |b| b.iter(&mut tell));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = of_record, streamed
}
criterion_main!(benches);
