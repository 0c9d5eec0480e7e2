use super::*;
use crate::metric::fixture::{MS, random_run, three_requests};
use crate::metric::{Slo, Stats};
use crate::record::{RunRecord, Status, Telling, TokenLog, replay};
use crate::units::SimDuration;
use approx::assert_relative_eq;
use proptest::prelude::*;

/// Anything that can be asked of a summary.
fn options() -> impl Strategy<Value = SummaryOptions> {
    let target = || prop::option::of((1u64..120).prop_map(SimDuration));
    let window = prop_oneof![
        Just(Window::WHOLE),
        (0u64..150, prop::option::of(1u64..2_000))
            .prop_map(|(from, length)| Window::after(SimDuration(from), length.map(SimDuration))),
    ];
    let quantile = prop::option::of(0.5..=1.0f64);
    (window, [target(), target(), target(), target()], quantile).prop_map(
        |(window, targets, itl_quantile)| {
            let [ttft, itl, tpot, e2e] = targets;
            let (attainment, errors) = (Some(0.9), Some(0.1));
            let slo = Slo {
                ttft,
                itl,
                itl_quantile,
                tpot,
                e2e,
                attainment,
                errors,
            };
            SummaryOptions {
                slo,
                window,
                ..SummaryOptions::default()
            }
        },
    )
}

/// A random run in which some requests are cut off and batches stay as they are for a while.
fn run() -> impl Strategy<Value = RunRecord> {
    (random_run(), any::<u64>(), any::<bool>()).prop_map(|(mut run, bits, long)| {
        for (i, request) in run.requests.iter_mut().enumerate() {
            request.preemptions = (bits >> (i % 50)) as u32 & 3;
            request.cached_tokens = (bits >> (i % 40)) as u32 & 31;
            let cut_off = bits >> (i % 60) & 7 == 7;
            if cut_off {
                (request.status, request.finish_reason) = (Status::Unfinished, None);
            }
        }
        for replica in run.replicas.iter_mut().filter(|_| long) {
            replica.running.fill(3);
            replica.waiting.fill(2);
        }
        run
    })
}

/// The same run `k` times as slow.
fn slower(mut run: RunRecord, k: u64) -> RunRecord {
    let scale = |t: &mut SimTime| t.0 *= k;
    for r in &mut run.requests {
        scale(&mut r.scheduled);
        scale(&mut r.sent);
        for t in [
            &mut r.enqueued,
            &mut r.first_scheduled,
            &mut r.first_token,
            &mut r.last_token,
        ] {
            t.iter_mut().for_each(scale);
        }
    }
    for r in &mut run.replicas {
        r.step_starts.iter_mut().for_each(scale);
        r.step_ends.iter_mut().for_each(scale);
    }
    scale(&mut run.end);
    run
}

/// The run as clients see it: each token at its own instant.
fn seen(run: &RunRecord, front_end: &FrontEnd) -> RunRecord {
    let mut seen = run.clone();
    for (request, made) in seen.requests.iter_mut().zip(&run.requests) {
        let times: Vec<SimTime> = run.token_times(made).collect();
        let of = |i: usize| front_end.seen(times[i], times.partition_point(|&t| t < times[i]) as u32);
        let times: Vec<SimTime> = (0..times.len()).map(of).collect();
        (request.first_token, request.last_token) = (times.first().copied(), times.last().copied());
        seen.end = seen.end.max(request.last_token.unwrap_or_default());
        request.tokens = TokenLog::Times(times);
    }
    seen
}

fn arrivals(run: &RunRecord, options: &SummaryOptions) -> Option<ArrivalSpan> {
    let served = run.requests.iter().filter(|r| r.status != Status::Rejected);
    ArrivalSpan::of(served.map(|r| r.scheduled), &options.window)
}

fn totals(run: &RunRecord) -> Vec<ReplicaTotals> {
    let totals = |r: &crate::record::ReplicaRecord| ReplicaTotals {
        usable_blocks: r.usable_blocks,
        free_blocks_at_end: r.free_blocks_at_end,
        preemptions: r.preemptions,
        livelock: r.livelock,
        busy: r.busy,
    };
    run.replicas.iter().map(totals).collect()
}

/// The part of a run that one of its replicas served.
fn part(run: &RunRecord, replica: u32) -> RunRecord {
    let mut part = run.clone();
    part.requests.retain(|r| r.replica == replica);
    for (_, other) in (0..).zip(&mut part.replicas).filter(|(i, _)| *i != replica) {
        *other = crate::record::ReplicaRecord::default();
    }
    part
}

fn told(run: &RunRecord, mut listener: StreamedSummary, telling: Telling) -> Summary {
    replay(run, telling, &mut listener).unwrap();
    listener.finish(run.end, &totals(run))
}

fn without_percentiles(mut summary: Summary) -> Summary {
    let blank = |stats: &mut Stats| {
        (stats.p50, stats.p90, stats.p95, stats.p99) = (None, None, None, None);
    };
    let l = &mut summary.latency;
    [
        &mut l.ttft,
        &mut l.ttft_from_send,
        &mut l.itl,
        &mut l.tpot,
        &mut l.e2e,
        &mut l.e2e_from_send,
        &mut l.stall,
        &mut l.queue,
        &mut l.prefill,
        &mut l.send_lag,
        &mut l.step,
    ]
    .into_iter()
    .for_each(blank);
    summary.notes.clear();
    let targets = summary.slo.iter_mut().flat_map(|slo| &mut slo.targets);
    targets.for_each(|target| target.p99_within = None);
    summary
}

#[test]
fn the_timeline_by_hand() {
    let run = three_requests();
    let options = SummaryOptions {
        slo: Slo {
            ttft: Some(SimDuration(16 * MS)),
            ..Slo::default()
        },
        ..SummaryOptions::default()
    };
    let listener = StreamedSummary::new(&options, arrivals(&run, &options), &FrontEnd::default());
    let summary = told(&run, listener, Telling::Singly);
    assert_eq!(summary, Summary::of(&run, &options));
    assert_relative_eq!(summary.latency.itl.mean.unwrap(), 0.038 / 4.0);
    assert_relative_eq!(summary.gauges.kv_usage.unwrap().mean, 6.1 / 50.0);
}

#[test]
fn longest_gaps_are_few_and_forgotten_when_nobody_goes_on() {
    let options = SummaryOptions::default();
    let mut listener = StreamedSummary::new(&options, None, &FrontEnd::default());
    let mut end = 0;
    let mut tell = |listener: &mut StreamedSummary, gaps| {
        let starts: Vec<SimTime> = (0..100).map(|i| SimTime(end + i * i % 97 * 1000)).collect();
        let mut now = end;
        let ends: Vec<SimTime> = (0..100u64)
            .map(|i| {
                now += 1_000_000 + (end / 7 + i * 7919) % 1009;
                SimTime(now)
            })
            .collect();
        end = now;
        listener.steps(&StepRun {
            replica: 0,
            starts: &starts,
            ends: &ends,
            free_blocks: &[7; 100],
            running: 1,
            waiting: 0,
            gaps_first: gaps,
            gaps_rest: gaps,
        });
    };
    for _ in 0..2_000 {
        tell(&mut listener, 1);
    }
    let kept = |listener: &StreamedSummary| listener.replicas[0].as_ref().unwrap().peaks_kept();
    assert!((1..1_000).contains(&kept(&listener)), "{}", kept(&listener));
    tell(&mut listener, 0);
    assert_eq!(kept(&listener), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_streamed_summary_is_the_summary_of_the_record(run in run(), options in options(), seed: u64) {
        let whole = Summary::of(&run, &options);
        let goodput = whole.slo.as_ref().and_then(|slo| slo.goodput_rps);
        prop_assert!(goodput <= whole.throughput.request_rps, "{goodput:?}");
        for telling in [Telling::Singly, Telling::Together, Telling::Mixed(seed)] {
            let listener = StreamedSummary::new(&options, arrivals(&run, &options), &FrontEnd::default());
            prop_assert_eq!(&told(&run, listener, telling), &whole);
        }
    }

    #[test]
    fn behind_a_front_end_it_is_the_summary_of_what_clients_saw(
        run in run(), options in options(), seed: u64, outbound in 0u64..30, per_output_token in 0u64..4,
    ) {
        let front_end = FrontEnd {
            outbound: SimDuration(outbound),
            per_output_token: SimDuration(per_output_token),
            ..FrontEnd::default()
        };
        let whole = Summary::of(&seen(&run, &front_end), &options);
        for telling in [Telling::Singly, Telling::Together, Telling::Mixed(seed)] {
            let listener = StreamedSummary::new(&options, arrivals(&run, &options), &front_end);
            prop_assert_eq!(&told(&run, listener, telling), &whole);
        }
    }

    #[test]
    fn groups_heard_apart_are_the_whole(run in run(), options in options(), seed: u64, limit in 1usize..200, turned: bool) {
        let front_end = FrontEnd { per_output_token: SimDuration(seed % 2), ..FrontEnd::default() };
        let new = || StreamedSummary::new(&options, arrivals(&run, &options), &front_end).exact_up_to(limit);
        let whole = told(&run, new(), Telling::Together);
        let mut parts: Vec<StreamedSummary> = (0..2)
            .map(|replica| {
                let mut listener = new();
                replay(&part(&run, replica), Telling::Mixed(seed), &mut listener).unwrap();
                listener
            })
            .collect();
        if turned {
            parts.reverse();
        }
        let mut all = new();
        parts.into_iter().for_each(|part| all.merge(part));
        prop_assert_eq!(all.finish(run.end, &totals(&run)), whole);
    }

    #[test]
    fn bins_touch_percentiles_alone_and_by_no_more_than_they_say(
        run in run(), options in options(), k in 1_000u64..10_000_000, limit in 1usize..40,
    ) {
        let run = slower(run, k);
        let whole = Summary::of(&run, &options);
        let listener = StreamedSummary::new(&options, arrivals(&run, &options), &FrontEnd::default());
        let binned = told(&run, listener.exact_up_to(limit), Telling::Together);
        for ((_, got), (_, want)) in binned.latency.named().iter().zip(whole.latency.named()) {
            for (got, want) in got.figures().iter().zip(want.figures()) {
                let (got, want) = (got.1.unwrap_or(0.0), want.1.unwrap_or(0.0));
                prop_assert!((got - want).abs() <= want / 2048.0 + 1e-15, "{got} {want}");
            }
        }
        let durations = run.replicas.iter().flat_map(|r| r.step_ends.iter().zip(&r.step_starts));
        let durations = durations.filter(|(_, start)| options.window.contains(**start)).map(|(end, start)| *end - *start);
        let distinct = durations.map(SimDuration::as_nanos).collect::<std::collections::BTreeSet<_>>().len();
        let named = |n: &String| n.split(" (more than").next().is_some_and(|names| names.contains("step"));
        let noted = binned.notes.iter().any(|n| n.contains("from") && n.contains("bins") && named(n));
        prop_assert_eq!(noted, distinct > limit);
        prop_assert_eq!(without_percentiles(binned), without_percentiles(whole));
    }
}
