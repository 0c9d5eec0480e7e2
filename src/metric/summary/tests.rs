use super::*;
use crate::metric::fixture::{MS, expand, random_run, three_requests};
use crate::record::TokenLog;
use crate::units::{SimDuration, SimTime};
use approx::assert_relative_eq;
use proptest::prelude::*;

#[test]
fn the_timeline_by_hand() {
    let slo = Slo {
        ttft: Some(SimDuration(16 * MS)),
        ..Slo::default()
    };
    let summary = Summary::of(
        &three_requests(),
        &SummaryOptions {
            slo,
            ..SummaryOptions::default()
        },
    );
    assert_relative_eq!(summary.duration_s, 0.060);
    assert_eq!(
        summary.tokens,
        TokenCounts {
            input: 300,
            cached: 32,
            output: 9
        }
    );
    assert_relative_eq!(summary.throughput.request_rps.unwrap(), 50.0);
    assert_relative_eq!(summary.throughput.output_tok_s.unwrap(), 150.0);
    assert_relative_eq!(summary.throughput.total_logical_tok_s.unwrap(), 5150.0);
    assert_relative_eq!(
        summary.throughput.total_computed_tok_s.unwrap(),
        309.0 / 0.060 - 32.0 / 0.060
    );
    assert_relative_eq!(summary.latency.ttft.mean.unwrap(), 0.015);
    assert_relative_eq!(summary.latency.itl.p50.unwrap(), 0.008);
    assert_relative_eq!(summary.in_system_mean.unwrap(), 81.0 / 60.0);
    assert_eq!(summary.funnel.within_slo, Some(2));
    assert_eq!((summary.preemptions, summary.saturated), (1, None));
    assert!(
        summary.notes.iter().any(|n| n.starts_with("1 of 4 offered")),
        "{:?}",
        summary.notes
    );
    assert!(
        summary.notes.iter().any(|n| n.contains("client sent")),
        "{:?}",
        summary.notes
    );
}

#[test]
fn a_window_measures_its_arrivals_and_its_events() {
    let window = Window {
        from: SimTime(2 * MS),
        to: Some(SimTime(42 * MS)),
    };
    let summary = Summary::of(
        &three_requests(),
        &SummaryOptions {
            window,
            ..SummaryOptions::default()
        },
    );
    // Two requests arrive in the window and are followed to their ends at 40 and 60 ms.
    assert_eq!((summary.funnel.offered, summary.latency.e2e.n), (2, 2));
    assert_eq!(
        (summary.period.arrivals_before, summary.period.arrivals_after),
        (1, 1)
    );
    // Inside the 40 ms: completions at 26 and 40, all tokens but the one at 60.
    assert_relative_eq!(summary.throughput.request_rps.unwrap(), 50.0);
    assert_relative_eq!(summary.throughput.output_tok_s.unwrap(), 200.0);
}

#[test]
fn an_empty_run_has_no_figures() {
    let summary = Summary::of(&RunRecord::default(), &SummaryOptions::default());
    assert!(
        summary
            .latency
            .named()
            .iter()
            .all(|(_, s)| s.n == 0 && s.mean.is_none())
    );
    assert_eq!(summary.throughput, Throughput::default());
    assert_eq!(
        (summary.error_rate, summary.in_system_mean, &summary.slo),
        (None, None, &None)
    );
    let json = serde_json::to_value(&summary).unwrap();
    assert!(json["latency"]["ttft"]["p99"].is_null());
}

#[test]
fn without_token_times_gaps_are_unknown_not_good() {
    let mut run = three_requests();
    run.requests[0].tokens = TokenLog::Times(Vec::new());
    let slo = Slo {
        itl: Some(SimDuration(99 * MS)),
        ..Slo::default()
    };
    let summary = Summary::of(
        &run,
        &SummaryOptions {
            slo,
            ..SummaryOptions::default()
        },
    );
    assert_eq!(summary.latency.itl.n, 0);
    let report = summary.slo.unwrap();
    assert_eq!((report.met, report.targets[0].attainment), (None, None));
    assert_relative_eq!(summary.throughput.output_tok_s.unwrap(), 150.0);
}

#[test]
fn a_large_run_is_summarised_fast() {
    // 100,000 requests of 64 tokens on one replica, 64 at a time.
    let mut run = three_requests();
    let waves = 1563u32;
    let steps = waves * 64;
    let replica = &mut run.replicas[0];
    replica.step_starts = (0..steps)
        .map(|i| SimTime(u64::from(i) * 9 * MS + u64::from(i % 97)))
        .collect();
    replica.step_ends = (0..steps)
        .map(|i| SimTime(u64::from(i + 1) * 9 * MS + u64::from(i % 89)))
        .collect();
    (replica.running, replica.waiting) = (vec![64; steps as usize], vec![0; steps as usize]);
    replica.free_blocks = vec![50; steps as usize];
    let template = run.requests[0].clone();
    run.end = SimTime(u64::from(steps + 1) * 9 * MS);
    run.requests = (0..100_000u32)
        .map(|i| {
            let first = i / 64 * 64;
            let mut request = template.clone();
            request.tokens = TokenLog::Segments(
                vec![crate::record::Segment {
                    first_step: first,
                    steps: 64,
                    tokens_per_step: 1,
                }]
                .into(),
            );
            let replica = &run.replicas[0];
            request.scheduled = replica.step_starts[first as usize];
            request.first_token = Some(replica.step_ends[first as usize]);
            request.last_token = Some(replica.step_ends[first as usize + 63]);
            request.output_tokens = 64;
            request
        })
        .collect();
    let start = std::time::Instant::now();
    let summary = Summary::of(&run, &SummaryOptions::default());
    let took = start.elapsed();
    println!("100,000 requests of 64 tokens: {took:?}");
    assert_eq!(summary.latency.itl.n, 6_300_000);
    // Generous: the test may run unoptimised beside others.
    assert!(took.as_secs_f64() < 3.0, "{took:?}");
}

#[test]
fn instants_of_two_clocks_are_counted() {
    let mut run = three_requests();
    run.requests[1].enqueued = Some(SimTime(10 * MS + 9));
    let summary = Summary::of(&run, &SummaryOptions::default());
    assert_eq!((summary.out_of_order, summary.latency.queue.n), (1, 3));
    assert_relative_eq!(summary.latency.queue.mean.unwrap(), 0.003);
    assert!(
        summary.notes.iter().any(|n| n.contains("out of order")),
        "{:?}",
        summary.notes
    );
}

#[test]
fn the_schema_names_every_field_of_a_summary() {
    let schema = schemars::schema_for!(Summary).to_value();
    let summary = serde_json::to_value(Summary::of(&three_requests(), &SummaryOptions::default())).unwrap();
    let fields = summary.as_object().unwrap();
    assert!(
        fields
            .keys()
            .all(|field| schema["properties"].get(field).is_some())
    );
    assert!(schema["$defs"]["Stats"]["properties"]["p99"]["description"].is_string());
}

proptest! {
    #[test]
    fn segments_and_times_give_the_same_summary(run in random_run(), from in 0u64..200, length in 1u64..300) {
        let window = Window { from: SimTime(from), to: Some(SimTime(from + length)) };
        let slo = Slo { itl: Some(SimDuration(20)), itl_quantile: Some(0.9), ..Slo::default() };
        for window in [window, Window::WHOLE] {
            let options = SummaryOptions { slo, window, ..SummaryOptions::default() };
            prop_assert_eq!(Summary::of(&run, &options), Summary::of(&expand(&run), &options));
        }
    }

    #[test]
    fn the_funnel_only_narrows(run in random_run()) {
        let slo = Slo { ttft: Some(SimDuration(30)), ..Slo::default() };
        let f = Summary::of(&run, &SummaryOptions { slo, ..SummaryOptions::default() }).funnel;
        let stages = [f.offered, f.admitted, f.started, f.first_token, f.completed, f.within_slo.unwrap()];
        prop_assert!(stages.windows(2).all(|w| w[0] >= w[1]), "{stages:?}");
        prop_assert_eq!(f.offered, f.completed + f.rejected + f.unfinished_waiting + f.unfinished_started + f.unsent);
    }
}
