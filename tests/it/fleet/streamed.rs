//! A cluster's run that is summarised while it goes on has the figures of its record, whatever is given up on the way.

use super::conservation::{any_fleet, any_requests};
use super::*;
use kneeboard::cluster::fault::{Fault, FaultKind};
use kneeboard::metric::{Slo, StreamedSummary, Summary, SummaryOptions, Window};
use kneeboard::sim::fleet::{Fate, run_streamed};
use proptest::prelude::*;

/// What needs the arrivals that are not rejected beforehand is left out.
fn comparable(mut summary: Summary) -> Summary {
    (summary.backlog, summary.saturated) = (None, None);
    summary.notes.retain(|n| !n.starts_with("saturated"));
    summary
}

fn any_options() -> impl Strategy<Value = SummaryOptions> {
    let window = prop_oneof![
        Just(Window::WHOLE),
        (0u64..500, prop::option::of(1u64..1_500))
            .prop_map(|(from, length)| Window::after(ms(from), length.map(ms))),
    ];
    let target = || prop::option::of((1u64..300).prop_map(ms));
    (window, target(), target(), prop::option::of(0.5..=1.0f64)).prop_map(
        |(window, ttft, itl, itl_quantile)| SummaryOptions {
            slo: Slo {
                ttft,
                itl,
                itl_quantile,
                attainment: Some(0.9),
                errors: Some(0.1),
                ..Slo::default()
            },
            window,
            ..SummaryOptions::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn streamed_figures_are_those_of_the_record(
        config in any_fleet(), trace in any_requests(), options in any_options(),
        (inbound, outbound, per_token) in (0u64..4, 0u64..3, 0u64..2), draft in 0u32..3,
    ) {
        let (mut config, mut trace) = (config, trace);
        if config.load != LoadModel::OpenLoop {
            config.load = LoadModel::OpenLoop;
        }
        trace.requests.sort_by_key(|r| r.arrival);
        (config.front_end.inbound, config.front_end.outbound) = (ms(inbound), ms(outbound));
        config.front_end.per_output_token = SimDuration(per_token * 100_000);
        for pool in &mut config.pools {
            pool.engine.num_speculative_tokens = draft;
        }
        let step = Price { step: 4 * MS, prefill_token: MS / 20 };
        let (record, cluster) = run_fleet(&config, &step, &trace);
        let listener = StreamedSummary::new(&options, None, &config.front_end).with_attempts();
        let requests = trace.requests.iter().cloned().map(Ok::<_, std::convert::Infallible>);
        let told = run_streamed(&config, &[&step], requests, listener).unwrap();
        prop_assert_eq!(&told.cluster, &cluster);
        let streamed = comparable(told.recorder.finish(told.end, &told.replicas));
        prop_assert_eq!(streamed, comparable(Summary::of(&record, &options)));
    }
}

/// A stream of 5 tokens, 3 of which are lost with their group: the second try starts from nothing. Who does not remember
/// attempts counts all 8.
#[test]
fn tokens_of_a_broken_attempt_are_taken_out_again() {
    let mut config = unified(2, roomy(8));
    config.faults = vec![Fault {
        at: at_ms(43),
        duration: None,
        kind: FaultKind::GroupCrash { group: 0 },
    }];
    (config.recovery.in_flight, config.gateway.retry) = (Fate::Retry, retries(3));
    let price = Price {
        step: 10 * MS,
        prefill_token: MS,
    };
    let trace = trace(&[(0, 10, 5)]);
    let tokens = |remembers: bool| {
        let listener = StreamedSummary::new(&SummaryOptions::default(), None, &config.front_end);
        let listener = if remembers {
            listener.with_attempts()
        } else {
            listener
        };
        let requests = trace
            .requests
            .iter()
            .cloned()
            .map(Ok::<_, std::convert::Infallible>);
        let told = run_streamed(&config, &[&price], requests, listener).unwrap();
        let summary = told.recorder.finish(told.end, &told.replicas);
        let tokens = summary.throughput.output_tok_s.unwrap() * summary.duration_s;
        (tokens.round() as u64, summary.latency.itl.n)
    };
    assert_eq!((tokens(true), tokens(false)), ((5, 4), (8, 6)));
}
