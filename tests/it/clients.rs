//! Load generators as clients: timelines worked out by hand, and what holds of every run.

use kneeboard::engine::vllm::{Behaviour, VllmConfig};
use kneeboard::metric::{Summary, SummaryOptions};
use kneeboard::record::{RequestRecord, RunRecord, Status, bundle};
use kneeboard::scenario::{Override, Plan};
use kneeboard::sim::{
    ClientKind, ClientMachine, Clients, FrontEnd, HostTimes, LoadModel, Pace, WorldConfig, run, run_at,
};
use kneeboard::steptime::{BatchShape, StepTime};
use kneeboard::units::{SimDuration, SimTime};
use kneeboard::workload::trace::{Trace, TraceRequest};
use proptest::prelude::*;

/// Every step takes 10 ns, whatever it computes.
#[derive(Debug)]
struct Ten;

impl StepTime for Ten {
    fn duration(&self, _: &BatchShape) -> SimDuration {
        SimDuration(10)
    }
}

fn world(load: LoadModel) -> WorldConfig {
    WorldConfig {
        engine: VllmConfig {
            max_num_seqs: 8,
            num_gpu_blocks: 10_000,
            enable_prefix_caching: false,
            async_scheduling: false,
            ..VllmConfig::new(Behaviour::of("0.32.0").unwrap())
        },
        replicas: 1,
        load,
        host: HostTimes::default(),
        front_end: FrontEnd::default(),
        stall: None,
        deadline: None,
    }
}

fn clients(kind: ClientKind, concurrency: u32) -> Clients {
    Clients {
        kind,
        concurrency,
        think: SimDuration::ZERO,
        think_per_token: SimDuration::ZERO,
        machine: None,
    }
}

fn llmperf(start_up: u64, stagger: u64, timeout: Option<u64>) -> ClientKind {
    ClientKind::Llmperf {
        start_up: SimDuration(start_up),
        stagger: SimDuration(stagger),
        timeout: timeout.map(SimDuration),
    }
}

fn machine(cores: u32, send_cost: u64, chunk_cost: u64) -> Option<ClientMachine> {
    Some(ClientMachine {
        cores,
        send_cost: SimDuration(send_cost),
        chunk_cost: SimDuration(chunk_cost),
    })
}

/// Requests that arrive at these instants for so many tokens; their prompts are 11, 12, 13, ... tokens long.
fn rows(rows: &[(u64, u32)]) -> Trace {
    let requests = rows
        .iter()
        .zip(11..)
        .map(|(&(at, output), input)| TraceRequest::plain(SimTime(at), input, output));
    Trace {
        requests: requests.collect(),
    }
}

/// Prompt tokens, then when it was due, sent, and gave its first and last token.
type Line = (u32, u64, u64, Option<u64>, Option<u64>, Status);

fn lines(record: &RunRecord) -> Vec<Line> {
    let line = |r: &RequestRecord| {
        let (first, last) = (r.first_token.map(|t| t.0), r.last_token.map(|t| t.0));
        (r.input_tokens, r.scheduled.0, r.sent.0, first, last, r.status)
    };
    record.requests.iter().map(line).collect()
}

use Status::{Completed, Surplus, Unfinished, Unsent};

#[test]
fn llmperf_starts_up_staggers_counts_after_its_tokenizer_and_waits_for_the_surplus() {
    let load = |timeout| {
        LoadModel::Clients(Clients {
            think: SimDuration(4),
            think_per_token: SimDuration(1),
            ..clients(llmperf(100, 5, timeout), 2)
        })
    };
    let trace = rows(&[(0, 2), (0, 3), (0, 3)]);
    // Steps from 100 on, 10 ns each. Client 0 sends row 0 at 100, whose tokens come at 110 and 120; it is counted at
    // 120 + 4 + 2 = 126, when row 2 is sent: tokens at 140, 150, 160, counted at 167, the third and last.
    // Client 1 sends row 1 at 105: tokens at 120, 130, 140, counted at 147; it goes on with row (1 + 2) mod 3 = 0 again:
    // tokens at 160 and 170. At 176 three answers are counted, so this one is surplus, but the clock runs on until then.
    let whole = run(&world(load(None)), &Ten, &trace).unwrap();
    let expected = [
        (11, 100, 100, Some(110), Some(120), Completed),
        (12, 105, 105, Some(120), Some(140), Completed),
        (13, 126, 126, Some(140), Some(160), Completed),
        (11, 147, 147, Some(160), Some(170), Surplus),
    ];
    assert_eq!(lines(&whole), expected);
    assert_eq!(whole.end, SimTime(176));
    // The summary covers the first three over the whole clock, and tells of the fourth.
    let summary = Summary::of(&whole, &SummaryOptions::default());
    assert_eq!(
        (summary.funnel.offered, summary.funnel.completed, summary.surplus),
        (3, 3, 1)
    );
    assert_eq!((summary.tokens.input, summary.tokens.output), (36, 8));
    assert_eq!(summary.throughput.output_tok_s, Some(8.0 / 176e-9));
    assert_eq!(summary.latency.e2e.n, 3);
    assert_eq!(summary.latency.e2e.max, Some(35e-9));
    // In the system are all four: 20 + 35 + 34 + 23 of 176 ns.
    assert!((summary.in_system_mean.unwrap() - 112.0 / 176.0).abs() < 1e-12);
    assert!(
        summary.notes.iter().any(|n| n.starts_with("1 further requests")),
        "{:?}",
        summary.notes
    );
    // No request is sent from the timeout on; what is under way is counted.
    let cut = run(&world(load(Some(147))), &Ten, &trace).unwrap();
    assert_eq!(lines(&cut), expected[..3]);
    let short = run(&world(load(Some(120))), &Ten, &trace).unwrap();
    assert_eq!(lines(&short), expected[..2]);
}

#[test]
fn more_clients_of_llmperf_than_rows_share_them() {
    let load = LoadModel::Clients(clients(llmperf(0, 0, None), 3));
    let record = run(&world(load), &Ten, &rows(&[(0, 1), (0, 2)])).unwrap();
    // Rows 0, 1 and 0 again at once. Clients 0 and 2 have their answers at 10: client 0 is the first to count its own
    // and, as that is one of two, goes on with row (0 + 3) mod 2; client 2 counts the second and is done. The step from
    // 10 on has begun without the new request.
    let expected = [
        (11, 0, 0, Some(10), Some(10), Completed),
        (12, 0, 0, Some(10), Some(20), Surplus),
        (11, 0, 0, Some(10), Some(10), Completed),
        (12, 10, 10, Some(30), Some(40), Surplus),
    ];
    assert_eq!(lines(&record), expected);
}

#[test]
fn a_thread_pool_receives_its_answers_whole() {
    let load = LoadModel::Clients(Clients {
        think: SimDuration(4),
        ..clients(ClientKind::ThreadPool, 2)
    });
    let front_end = FrontEnd {
        inbound: SimDuration::ZERO,
        outbound: SimDuration(3),
        per_output_token: SimDuration(1),
    };
    let config = WorldConfig {
        front_end,
        ..world(load)
    };
    // Rows 0 and 1 are made at 20 and 30 and there at 23 and 33. Worker 0 sends row 2 at 27, which joins the step at 30.
    let record = run(&config, &Ten, &rows(&[(0, 2), (0, 3), (0, 1)])).unwrap();
    let expected = [
        (11, 0, 0, None, Some(23), Completed),
        (12, 0, 0, None, Some(33), Completed),
        (13, 27, 27, None, Some(43), Completed),
    ];
    assert_eq!(lines(&record), expected);
    assert_eq!(record.end, SimTime(47));
    let times: Vec<u64> = record.token_times(&record.requests[1]).map(|t| t.0).collect();
    assert_eq!(times, [33, 33, 33]);
    let summary = Summary::of(&record, &SummaryOptions::default());
    let latency = &summary.latency;
    assert_eq!(
        (latency.ttft.n, latency.itl.n, latency.tpot.n, latency.e2e.n),
        (0, 0, 0, 3)
    );
    assert_eq!((summary.funnel.first_token, summary.tpot_undefined), (3, 0));
    assert!(
        summary
            .notes
            .iter()
            .any(|n| n.starts_with("3 requests were received whole"))
    );
    // The record comes back from its files as it went.
    let folder = tempfile::tempdir().unwrap();
    bundle::write(folder.path(), &record, bundle::BundleParts::default()).unwrap();
    assert_eq!(bundle::read(folder.path()).unwrap(), record);
}

#[test]
fn vllm_bench_waits_for_a_place_before_its_clock_starts() {
    let load =
        |arrivals, concurrency| LoadModel::Clients(clients(ClientKind::VllmBench { arrivals }, concurrency));
    let trace = rows(&[(0, 2), (4, 2), (50, 2)]);
    let timed = run(&world(load(true, 1)), &Ten, &trace).unwrap();
    let expected = [
        (11, 0, 0, Some(10), Some(20), Completed),
        (12, 4, 20, Some(30), Some(40), Completed),
        (13, 50, 50, Some(60), Some(70), Completed),
    ];
    assert_eq!(lines(&timed), expected);
    assert_eq!(timed.end, SimTime(70));
    let at_once = run(&world(load(false, 1)), &Ten, &trace).unwrap();
    let expected = [
        (11, 0, 0, Some(10), Some(20), Completed),
        (12, 0, 20, Some(30), Some(40), Completed),
        (13, 0, 40, Some(50), Some(60), Completed),
    ];
    assert_eq!(lines(&at_once), expected);
    // Two places: the third request takes that of the first, at 20, when the step from 20 on has begun without it.
    let two = run(&world(load(true, 2)), &Ten, &rows(&[(0, 2), (1, 2), (2, 2)])).unwrap();
    let expected = [
        (11, 0, 0, Some(10), Some(20), Completed),
        (12, 1, 1, Some(20), Some(30), Completed),
        (13, 2, 20, Some(40), Some(50), Completed),
    ];
    assert_eq!(lines(&two), expected);
}

#[test]
fn sends_and_chunks_wait_for_a_core() {
    let load = |cores| {
        LoadModel::Clients(Clients {
            machine: machine(cores, 3, 4),
            ..clients(ClientKind::Plain, 2)
        })
    };
    let trace = rows(&[(0, 2), (0, 2)]);
    // One core sends at 3 and 6. Steps end at 13 (row 0), 23 (both), 33 (row 1); chunks are taken in from 13 to 17, 23
    // to 27 (row 0), 27 to 31 (row 1, which waited), 33 to 37.
    let one = run(&world(load(1)), &Ten, &trace).unwrap();
    let expected = [
        (11, 0, 3, Some(17), Some(27), Completed),
        (12, 0, 6, Some(31), Some(37), Completed),
    ];
    assert_eq!(lines(&one), expected);
    assert_eq!(one.end, SimTime(37));
    let times: Vec<u64> = one.token_times(&one.requests[1]).map(|t| t.0).collect();
    assert_eq!(times, [31, 37]);
    // Two cores: both at 3, both chunks at once.
    let two = run(&world(load(2)), &Ten, &trace).unwrap();
    let expected = [
        (11, 0, 3, Some(17), Some(27), Completed),
        (12, 0, 3, Some(17), Some(27), Completed),
    ];
    assert_eq!(lines(&two), expected);
}

#[test]
fn what_a_client_does_with_an_answer_holds_up_the_others() {
    let load = LoadModel::Clients(Clients {
        think: SimDuration(5),
        machine: machine(1, 3, 4),
        ..clients(ClientKind::Plain, 2)
    });
    // As above until row 0 is answered at 27. The core is busy with row 1's chunk until 31, thinks from 31 to 36; row
    // 1's last chunk, there since 33, is taken in from 36 to 40; row 2, due at 36, is sent from 40 to 43. Then the core
    // thinks about row 1 until 48. Row 2's step ends at 53, its chunk is in at 57, and the core thinks until 62.
    let record = run(&world(load), &Ten, &rows(&[(0, 2), (0, 2), (0, 1)])).unwrap();
    let expected = [
        (11, 0, 3, Some(17), Some(27), Completed),
        (12, 0, 6, Some(31), Some(40), Completed),
        (13, 36, 43, Some(57), Some(57), Completed),
    ];
    assert_eq!(lines(&record), expected);
    assert_eq!(record.end, SimTime(62));
    let summary = Summary::of(&record, &SummaryOptions::default());
    assert_eq!(summary.latency.send_lag.max, Some(7e-9));
}

#[test]
fn a_whole_answer_is_one_chunk_for_the_machine() {
    let load = LoadModel::Clients(Clients {
        machine: machine(1, 0, 4),
        ..clients(ClientKind::ThreadPool, 2)
    });
    let record = run(&world(load), &Ten, &rows(&[(0, 3), (0, 3)])).unwrap();
    let expected = [
        (11, 0, 0, None, Some(34), Completed),
        (12, 0, 0, None, Some(38), Completed),
    ];
    assert_eq!(lines(&record), expected);
}

#[test]
fn what_a_client_has_not_seen_when_the_run_is_cut_off_is_unfinished() {
    let load = LoadModel::Clients(Clients {
        machine: machine(1, 0, 4),
        ..clients(ClientKind::Plain, 2)
    });
    let config = WorldConfig {
        deadline: Some(SimTime(26)),
        ..world(load)
    };
    // Both end at 20 for the engine: tokens are taken in at 14, 18, 24 and 28.
    let record = run(&config, &Ten, &rows(&[(0, 2), (0, 2), (0, 2)])).unwrap();
    let expected = [
        (11, 0, 0, Some(14), Some(24), Completed),
        (12, 0, 0, Some(18), Some(18), Unfinished),
        // The core is busy until 28, so it is never sent.
        (13, 24, 24, None, None, Unsent),
    ];
    assert_eq!(lines(&record), expected);
    assert_eq!(record.requests[1].output_tokens, 1);
}

#[test]
fn a_late_client_of_llmperf_looks_at_the_time_and_the_count_before_its_first_send() {
    let load = |concurrency, timeout| LoadModel::Clients(clients(llmperf(0, 30, timeout), concurrency));
    let trace = rows(&[(0, 2), (0, 2)]);
    let sent = |load| {
        let record = run(&world(load), &Ten, &trace).unwrap();
        record.requests.iter().map(|r| r.sent.0).collect::<Vec<_>>()
    };
    // Clients 1 and 2 come at 30 and at 60. Client 0 has two answers at 20 and at 40.
    assert_eq!(sent(load(3, None)), [0, 20, 30]);
    // The time is up at 30, when client 1 comes.
    assert_eq!(sent(load(3, Some(30))), [0, 20]);
    assert_eq!(sent(load(3, Some(31))), [0, 20, 30]);
}

/// Writes a record, reads it back, and gives its summary.
fn through_a_folder(record: &RunRecord) -> Summary {
    let folder = tempfile::tempdir().unwrap();
    bundle::write(folder.path(), record, bundle::BundleParts::default()).unwrap();
    assert_eq!(&bundle::read(folder.path()).unwrap(), record);
    Summary::of(record, &SummaryOptions::default())
}

#[test]
fn what_a_deadline_keeps_from_being_sent_is_unsent_under_every_load() {
    let cut = |load| WorldConfig {
        deadline: Some(SimTime(26)),
        ..world(load)
    };
    // At 20 the next request is due at 20 + 50; the last has no client yet.
    let thinks = LoadModel::ClosedLoop {
        concurrency: 1,
        think: SimDuration(50),
    };
    // A send of 9 ns that ends at 29 and requests that no client came to.
    let slow = LoadModel::Clients(Clients {
        machine: machine(1, 9, 0),
        ..clients(ClientKind::Plain, 1)
    });
    // One place: the second request has been due since 5.
    let places = LoadModel::Clients(clients(ClientKind::VllmBench { arrivals: true }, 1));
    for (load, offered, due) in [
        (thinks, &[(0, 2), (0, 2), (0, 2)], [70, 20]),
        (slow, &[(0, 1), (0, 2), (0, 2)], [19, 19]),
        (places, &[(0, 9), (5, 2), (30, 2)], [5, 30]),
        (LoadModel::OpenLoop, &[(0, 2), (27, 2), (90, 2)], [27, 90]),
    ] {
        let record = run(&cut(load), &Ten, &rows(offered)).unwrap();
        let unsent = |r: &RequestRecord| r.status == Unsent && r.sent_at().is_none();
        assert!(record.requests[1..].iter().all(unsent), "{:?}", lines(&record));
        assert_eq!(record.requests[1].scheduled.0, due[0], "{load:?}");
        assert!(record.requests[2].scheduled.0 >= due[1], "{load:?}");
        let summary = through_a_folder(&record);
        assert_eq!(
            (summary.funnel.offered, summary.funnel.unsent),
            (3, 2),
            "{load:?}"
        );
        // One send: no lag of those that were not sent.
        assert_eq!(summary.latency.send_lag.n, 1, "{load:?}");
    }
}

#[test]
fn no_token_is_seen_after_the_deadline() {
    let late = |front_end, load, deadline| WorldConfig {
        front_end,
        deadline: Some(SimTime(deadline)),
        ..world(load)
    };
    let behind = FrontEnd {
        outbound: SimDuration(7),
        ..FrontEnd::default()
    };
    // Tokens are made at 10, 20 and 30 and seen at 17, 27 and 37.
    for load in [
        LoadModel::Clients(clients(llmperf(0, 0, None), 1)),
        LoadModel::ClosedLoop {
            concurrency: 1,
            think: SimDuration::ZERO,
        },
    ] {
        let record = run(&late(behind, load, 33), &Ten, &rows(&[(0, 3)])).unwrap();
        assert_eq!(
            lines(&record),
            [(11, 0, 0, Some(17), Some(27), Unfinished)],
            "{load:?}"
        );
        assert_eq!(record.requests[0].output_tokens, 2);
        assert!(record.end <= SimTime(33));
        through_a_folder(&record);
    }
    // On a core that needs 3 ns for a chunk: seen at 13, at 23 and not at 33. Nothing happens at 23.
    let slow = LoadModel::Clients(Clients {
        machine: machine(1, 0, 3),
        ..clients(ClientKind::Plain, 1)
    });
    let record = run(&late(FrontEnd::default(), slow, 24), &Ten, &rows(&[(0, 3)])).unwrap();
    assert_eq!(lines(&record), [(11, 0, 0, Some(13), Some(23), Unfinished)]);
    through_a_folder(&record);
}

#[test]
fn llmperf_keeps_the_tokens_of_an_answer_that_it_is_at_work_on() {
    let load = LoadModel::Clients(Clients {
        think: SimDuration(100),
        machine: machine(1, 0, 1),
        ..clients(llmperf(0, 0, None), 1)
    });
    let config = WorldConfig {
        deadline: Some(SimTime(60)),
        ..world(load)
    };
    let record = run(&config, &Ten, &rows(&[(0, 2)])).unwrap();
    assert_eq!(lines(&record), [(11, 0, 0, Some(11), Some(21), Unfinished)]);
    assert_eq!(record.requests[0].output_tokens, 2);
    through_a_folder(&record);
}

#[test]
fn a_time_at_the_end_of_all_times_is_an_error() {
    let load = LoadModel::ClosedLoop {
        concurrency: 1,
        think: SimDuration(u64::MAX),
    };
    let error = run(&world(load), &Ten, &rows(&[(0, 2), (0, 2)])).unwrap_err();
    assert_eq!(error, kneeboard::sim::SimError::EndOfTime { at: SimTime(20) });
}

/// Every figure that `result.json` and `lens.csv` both have is the same in both.
fn agree(record: &RunRecord) {
    use kneeboard::metric::tool::View;
    use kneeboard::metric::vllm_bench::{BenchInfo, BenchResult};
    let result = serde_json::to_value(BenchResult::of(record, &BenchInfo::default())).unwrap();
    let mut shared = 0;
    for figure in View::VllmBench.figures(record) {
        let Some(there) = result.get(&figure.name) else {
            continue;
        };
        let (there, here) = (there.as_f64(), figure.value);
        let close = match (there, here) {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs(),
            (a, b) => a == b,
        };
        assert!(close, "{}: result.json {there:?}, lens.csv {here:?}", figure.name);
        shared += 1;
    }
    assert!(shared >= 17, "{shared} figures in common");
}

#[test]
fn result_and_lens_divide_by_the_same_clock() {
    // Microseconds, so that nothing rounds away: the first request comes late.
    const US: u64 = 1_000;
    let load = LoadModel::Clients(clients(ClientKind::VllmBench { arrivals: true }, 2));
    let trace = rows(&[(40 * US, 2_000), (50 * US, 300), (60 * US, 9_000), (70 * US, 20)]);
    let whole = run(&world(load), &Ten, &trace).unwrap();
    agree(&whole);
    let cut = WorldConfig {
        deadline: Some(SimTime(75 * US)),
        ..world(load)
    };
    let cut = run(&cut, &Ten, &trace).unwrap();
    let done = cut.requests.iter().filter(|r| r.status == Completed);
    let last = done.filter_map(|r| r.last_token).max().unwrap();
    assert!(last < cut.end, "the run goes on after its last completion");
    agree(&cut);
}

/// A linear step time, in ns.
#[derive(Debug)]
struct Linear;

impl StepTime for Linear {
    fn duration(&self, b: &BatchShape) -> SimDuration {
        SimDuration(
            4_000_000
                + 40_000 * u64::from(b.prefill_tokens)
                + 30_000 * u64::from(b.decode_seqs)
                + 20 * b.decode_context_tokens,
        )
    }
}

fn any_trace() -> impl Strategy<Value = Trace> {
    prop::collection::vec((0u64..40_000_000, 1u32..200, 1u32..40), 1..25).prop_map(|rows| {
        let mut at = 0;
        let request = |(gap, input, output)| {
            at += gap;
            TraceRequest::plain(SimTime(at), input, output)
        };
        Trace {
            requests: rows.into_iter().map(request).collect(),
        }
    })
}

fn any_kind() -> impl Strategy<Value = ClientKind> {
    prop_oneof![
        Just(ClientKind::Plain),
        Just(ClientKind::ThreadPool),
        any::<bool>().prop_map(|arrivals| ClientKind::VllmBench { arrivals }),
        (
            0u64..300_000_000,
            0u64..30_000_000,
            prop::option::of(1u64..900_000_000)
        )
            .prop_map(|(start_up, stagger, timeout)| llmperf(start_up, stagger, timeout)),
    ]
}

prop_compose! {
    fn any_clients()(
        kind in any_kind(),
        concurrency in 1u32..7,
        think in prop::sample::select(vec![0u64, 3_000_000]),
        per_token in prop::sample::select(vec![0u64, 70_000]),
        machine in prop::option::of((1u32..4, 0u64..2_000_000, 0u64..900_000)),
    ) -> Clients {
        let thinks = !matches!(kind, ClientKind::VllmBench { .. });
        Clients {
            kind,
            concurrency,
            think: SimDuration(if thinks { think } else { 0 }),
            think_per_token: SimDuration(if thinks { per_token } else { 0 }),
            machine: machine.and_then(|(cores, send, chunk)| self::machine(cores, send, chunk)),
        }
    }
}

prop_compose! {
    fn any_world()(
        seats in 1u32..6,
        asynchronous in any::<bool>(),
        replicas in 1u32..3,
        front in prop::sample::select(vec![0u64, 400_000]),
        clients in any_clients(),
        deadline in prop::option::weighted(0.2, 1u64..900_000_000),
    ) -> WorldConfig {
        let base = world(LoadModel::Clients(clients));
        WorldConfig {
            engine: VllmConfig { max_num_seqs: seats, async_scheduling: asynchronous, ..base.engine.clone() },
            replicas,
            front_end: FrontEnd {
                inbound: SimDuration(front),
                outbound: SimDuration(front / 2),
                per_output_token: SimDuration::ZERO,
            },
            deadline: deadline.map(SimTime),
            ..base
        }
    }
}

fn clients_of(config: &WorldConfig) -> Clients {
    match config.load {
        LoadModel::Clients(clients) => clients,
        _ => unreachable!(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Every request that was sent is counted, surplus, unfinished or unsent, and no client has two at a time.
    #[test]
    fn what_is_sent_is_counted_surplus_or_unfinished(config in any_world(), trace in any_trace()) {
        let record = run(&config, &Linear, &trace).unwrap();
        let c = clients_of(&config);
        let (rows, many) = (trace.requests.len(), c.concurrency as usize);
        let of = |status| record.requests.iter().filter(|r| r.status == status).count();
        let (counted, surplus, unfinished) = (of(Completed), of(Surplus), of(Unfinished) + of(Unsent));
        prop_assert!(config.deadline.is_none_or(|deadline| record.end <= deadline));
        prop_assert_eq!(counted + surplus + unfinished, record.requests.len());
        if let ClientKind::Llmperf { timeout, .. } = c.kind {
            prop_assert!(counted <= rows && surplus < many);
            if config.deadline.is_none() {
                prop_assert!(unfinished == 0);
                prop_assert!(timeout.is_some() || counted == rows);
            }
        } else {
            prop_assert_eq!((record.requests.len(), surplus), (rows, 0));
            prop_assert!(config.deadline.is_some() || unfinished == 0);
        }
        let summary = Summary::of(&record, &SummaryOptions::default());
        prop_assert_eq!(summary.funnel.offered as usize, counted + unfinished);
        prop_assert_eq!(summary.surplus as usize, surplus);
        // At most as many requests at a time as there are clients: a sweep over sends and last tokens.
        let mut changes: Vec<(SimTime, i32)> = Vec::new();
        for r in record.requests.iter().filter(|r| r.status.is_served()) {
            prop_assert!(r.scheduled <= r.sent && Some(r.sent) <= r.enqueued && r.enqueued < r.last_token);
            prop_assert!(r.first_token.is_none_or(|t| Some(t) > r.enqueued && Some(t) <= r.last_token));
            let times: Vec<SimTime> = record.token_times(r).collect();
            prop_assert_eq!(times.len() as u32, r.output_tokens);
            prop_assert!(times.windows(2).all(|w| w[0] <= w[1]));
            prop_assert_eq!(times.last().copied(), r.last_token);
            changes.extend([(r.sent, 1), (r.last_token.unwrap(), -1)]);
        }
        changes.sort_unstable();
        let mut at_a_time = 0;
        for (_, change) in changes {
            at_a_time += change;
            prop_assert!(at_a_time <= many as i32);
        }
    }

    /// Leaping changes nothing.
    #[test]
    fn the_pace_changes_nothing(config in any_world(), trace in any_trace()) {
        let leaping = run_at(Pace::Leap, &config, &Linear, &trace).unwrap();
        prop_assert_eq!(leaping, run_at(Pace::Step, &config, &Linear, &trace).unwrap());
    }

    /// Clients whose machine costs nothing are the plain clients that there were before.
    #[test]
    fn a_machine_without_costs_changes_nothing(config in any_world(), trace in any_trace(), think in 0u64..9_000_000) {
        let concurrency = clients_of(&config).concurrency;
        let think = SimDuration(think);
        let plain = clients(ClientKind::Plain, concurrency);
        let load = if think == SimDuration::ZERO {
            LoadModel::Clients(Clients { machine: machine(2, 0, 0), ..plain })
        } else {
            LoadModel::Clients(Clients { think, ..plain })
        };
        let before = WorldConfig { load: LoadModel::ClosedLoop { concurrency, think }, deadline: None, ..config.clone() };
        let now = WorldConfig { load, deadline: None, ..config };
        prop_assert_eq!(run(&now, &Linear, &trace).unwrap().requests, run(&before, &Linear, &trace).unwrap().requests);
    }

    /// A machine can only make things later: with one client, each instant is the free machine's or later.
    #[test]
    fn costs_make_a_lone_client_later(trace in any_trace(), send in 0u64..900_000, chunk in 1u64..900_000) {
        let lone = |machine| world(LoadModel::Clients(Clients { machine, ..clients(ClientKind::Plain, 1) }));
        let free = run(&lone(None), &Linear, &trace).unwrap();
        let slow = run(&lone(machine(1, send, chunk)), &Linear, &trace).unwrap();
        let mut late = 0;
        for (f, s) in free.requests.iter().zip(&slow.requests) {
            // Each request pays its send and its last chunk (chunks are shorter than steps, so none waits).
            late += send + chunk;
            prop_assert_eq!(s.last_token.map(|t| t.0), f.last_token.map(|t| t.0 + late));
        }
    }
}

/// think_per_token of a plain client and a replayed arrival time that nobody asked for.
#[test]
fn clients_that_keep_no_arrivals_forget_them() {
    let load = LoadModel::Clients(Clients {
        think_per_token: SimDuration(2),
        ..clients(ClientKind::Plain, 1)
    });
    let record = run(&world(load), &Ten, &rows(&[(500, 2), (900, 1)])).unwrap();
    let expected = [
        (11, 0, 0, Some(10), Some(20), Completed),
        (12, 24, 24, Some(34), Some(34), Completed),
    ];
    assert_eq!(lines(&record), expected);
}

const SCENARIO: &str = r#"kneeboard: 1
system:
  engine: {kind: vllm, version: "0.32.0", max_num_seqs: 4, max_num_batched_tokens: 1024, max_model_len: 1024,
           block_size: 16, num_gpu_blocks: 400}
  step_time: {step: 8ms}
workload:
  synthetic:
    num_requests: 20
    lengths: {fixed: {input: 100, output: 20}}
load: {model: closed-loop, concurrency: 5}
measure: {seed: 1}
"#;

fn load_of(set: &[&str]) -> Result<LoadModel, String> {
    let overrides: Vec<Override> = set.iter().map(|s| Override::parse(s).unwrap()).collect();
    let plan = Plan::from_text(SCENARIO, "s.yaml", std::path::Path::new(""), &overrides);
    let plan = plan.map_err(|e| e.to_string())?;
    plan.trace(0).map_err(|e| e.to_string())?;
    Ok(plan.world(HostTimes::default()).load)
}

#[test]
fn scenarios_name_their_clients() {
    let before = LoadModel::ClosedLoop {
        concurrency: 5,
        think: SimDuration::ZERO,
    };
    assert_eq!(load_of(&[]), Ok(before));
    assert_eq!(load_of(&["load.client={kind: plain}"]), Ok(before));
    let llmperf_load = Clients {
        think: SimDuration(6_000_000),
        ..clients(llmperf(1_000_000_000, 0, Some(90_000_000_000)), 5)
    };
    let set = ["load.client={kind: llmperf, start_up: 1s}", "load.think=6ms"];
    assert_eq!(load_of(&set), Ok(LoadModel::Clients(llmperf_load)));
    let bench = |arrivals| LoadModel::Clients(clients(ClientKind::VllmBench { arrivals }, 5));
    assert_eq!(load_of(&["load.client={kind: vllm-bench}"]), Ok(bench(false)));
    let timed = ["load.client={kind: vllm-bench}", "load.arrival.rate=4"];
    assert_eq!(load_of(&timed), Ok(bench(true)));
    let on_cores = Clients {
        machine: machine(2, 0, 50_000),
        ..clients(ClientKind::ThreadPool, 5)
    };
    let set = ["load.client={kind: thread-pool, cores: 2, chunk_cost: 50us}"];
    assert_eq!(load_of(&set), Ok(LoadModel::Clients(on_cores)));
}

/// Rule M10: the tool stretches its arrival times so that the last is at n / rate.
#[test]
fn arrivals_of_vllm_bench_end_at_n_over_rate() {
    let set = ["load.client={kind: vllm-bench}", "load.arrival.rate=4"];
    let overrides: Vec<Override> = set.iter().map(|s| Override::parse(s).unwrap()).collect();
    let plan = Plan::from_text(SCENARIO, "s.yaml", std::path::Path::new(""), &overrides).unwrap();
    let trace = plan.trace(0).unwrap();
    assert_eq!(trace.requests.last().unwrap().arrival, SimTime(5_000_000_000));
}

#[test]
fn keys_of_another_kind_of_client_are_refused() {
    let cases: [(&[&str], &[&str]); 14] = [
        (&["load.client={kind: llmpref}"], &["load.client.kind", "llmperf"]),
        (
            &["load.client={kind: llmperf, stagger: 100000h}"],
            &["load.client.stagger", "found 100000h", "up to 30min"],
        ),
        (
            &["load.client={kind: thread-pool}", "load.think=100000h"],
            &["load.think", "found 100000h", "up to 1000h"],
        ),
        (
            &["load.think=1001h"],
            &["load.think", "found 1001h", "up to 1000h"],
        ),
        (
            &["load.client={kind: plain, stagger: 1s}"],
            &["load.client.stagger", "llmperf"],
        ),
        (
            &["load.client={kind: llmperf, words_per_token: 1}"],
            &["load.client.words_per_token", "thread-pool"],
        ),
        (
            &["load.client={kind: llmperf, chunk_cost: 1us}"],
            &["load.client.chunk_cost", "load.client.cores"],
        ),
        (
            &["load.client={kind: llmperf, cores: 0}"],
            &["load.client.cores", "from 1"],
        ),
        (
            &["load.client={kind: vllm-bench}", "load.think=1s"],
            &["load.think", "vllm bench serve"],
        ),
        (
            &["load.client={kind: llmperf}", "load.arrival.rate=4"],
            &["load.arrival.rate", "open-loop"],
        ),
        (
            &["load.client={kind: thread-pool}", "slo.ttft=1s"],
            &["slo.ttft", "slo.e2e"],
        ),
        (
            &["load.client={kind: thread-pool, words_per_token: -1}"],
            &["load.client.words_per_token", "above 0"],
        ),
        (
            &["load.client={kind: llmperf}", "load.concurrency=100001"],
            &["load.concurrency", "100000"],
        ),
        (
            &[
                "load.client={kind: plain}",
                "load.model=offline",
                "load.concurrency=null",
            ],
            &["load.client", "closed-loop"],
        ),
    ];
    for (set, parts) in cases {
        let error = load_of(set).expect_err(&format!("{set:?}"));
        assert!(parts.iter().all(|part| error.contains(part)), "{set:?}: {error}");
    }
}
