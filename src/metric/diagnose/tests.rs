use proptest::prelude::*;

use super::*;
use crate::metric::fixture::{MS, offered, random_run};
use crate::metric::little;
use crate::record::{ReplicaRecord, RequestRecord, Scrape, Segment, Status, TokenLog};
use crate::units::SimDuration;

/// A small server: a step a millisecond while anything is there, a token a step for each running request, first
/// come first served, `seats` and `blocks` (one a request and `need` in all until it ends).
struct World {
    seats: usize,
    blocks: u32,
    need: u32,
}

impl World {
    /// Serves requests of (due, sent) milliseconds for `steps` steps each.
    fn serve(&self, arrivals: &[(u64, u64)], steps: u32) -> RunRecord {
        let mut requests: Vec<RequestRecord> = arrivals
            .iter()
            .map(|&(due, sent)| RequestRecord {
                sent: SimTime(sent * MS),
                enqueued: Some(SimTime(sent * MS)),
                input_tokens: self.need * 16,
                ..offered(SimTime(due * MS))
            })
            .collect();
        let mut replica = ReplicaRecord {
            usable_blocks: self.blocks,
            ..ReplicaRecord::default()
        };
        let (mut running, mut next): (Vec<(usize, u32)>, usize) = (Vec::new(), 0);
        let mut now = 0u64;
        while next < requests.len() || !running.is_empty() {
            let free = |running: &[(usize, u32)]| self.blocks - self.need * running.len() as u32;
            while next < requests.len()
                && requests[next].sent.as_nanos() <= now
                && running.len() < self.seats
                && free(&running) >= self.need
            {
                let first_step = replica.step_ends.len() as u32;
                requests[next].first_scheduled = Some(SimTime(now));
                requests[next].first_token = Some(SimTime(now + MS));
                requests[next].tokens = TokenLog::Segments(
                    vec![Segment {
                        first_step,
                        steps,
                        tokens_per_step: 1,
                    }]
                    .into(),
                );
                running.push((next, steps));
                next += 1;
            }
            if running.is_empty() {
                now = requests[next].sent.as_nanos();
                continue;
            }
            let here = requests.iter().filter(|r| r.sent.as_nanos() <= now).count();
            replica.step_starts.push(SimTime(now));
            replica.step_ends.push(SimTime(now + MS));
            replica.running.push(running.len() as u32);
            replica.waiting.push((here - next) as u32);
            replica.free_blocks.push(free(&running));
            now += MS;
            for (i, left) in &mut running {
                *left -= 1;
                if *left == 0 {
                    requests[*i].last_token = Some(SimTime(now));
                    requests[*i].output_tokens = steps;
                    requests[*i].status = Status::Completed;
                }
            }
            running.retain(|(_, left)| *left > 0);
        }
        RunRecord {
            requests,
            replicas: vec![replica],
            end: SimTime(now),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            max_num_seqs: Some(self.seats as u32),
            block_size: Some(16),
            ..Limits::default()
        }
    }
}

/// One every `gap` ms, `late` ms after it was due.
fn every(gap: u64, n: u64, late: u64) -> Vec<(u64, u64)> {
    (0..n).map(|i| (i * gap, i * gap + late)).collect()
}

fn verdict(run: &RunRecord, limits: &Limits) -> Verdict {
    Diagnosis::of_run(run, &Window::WHOLE, limits).verdict
}

const SMALL: World = World {
    seats: 4,
    blocks: 100,
    need: 2,
};

#[test]
fn more_than_the_seats_hold_is_the_server() {
    // Each request needs 40 ms; 4 seats serve one every 10 ms, and one comes every 8.
    let found = Diagnosis::of_run(
        &SMALL.serve(&every(8, 100, 0), 40),
        &Window::WHOLE,
        &SMALL.limits(),
    );
    assert_eq!(found.verdict, Verdict::Server, "{found:?}");
    assert!(found.because.contains("max_num_seqs (4)"), "{}", found.because);
    let seats = found
        .evidence
        .iter()
        .find(|e| e.what.contains("every seat taken"));
    assert_eq!(seats.and_then(|e| e.value), Some(1.0));
}

#[test]
fn too_few_blocks_are_kv() {
    let tight = World {
        seats: 16,
        blocks: 9,
        need: 2,
    };
    assert_eq!(
        verdict(&tight.serve(&every(8, 100, 0), 40), &tight.limits()),
        Verdict::Kv
    );
    // The same with seats to match the blocks is the server's queue.
    let matched = World { seats: 4, ..tight };
    assert_eq!(
        verdict(&matched.serve(&every(8, 100, 0), 40), &matched.limits()),
        Verdict::Server
    );
}

#[test]
fn a_closed_loop_below_the_seats_is_the_client() {
    // Two clients, one request after another.
    let arrivals: Vec<(u64, u64)> = (0..60).map(|i| (i / 2 * 41, i / 2 * 41)).collect();
    let run = SMALL.serve(&arrivals, 40);
    let closed = Limits {
        concurrency: Some(2),
        ..SMALL.limits()
    };
    let found = Diagnosis::of_run(&run, &Window::WHOLE, &closed);
    assert_eq!(found.verdict, Verdict::Client);
    let sentence = found.sentence();
    assert!(
        sentence.starts_with("client: a closed loop of 2 clients"),
        "{sentence}"
    );
    let paced = Limits {
        paced: true,
        ..closed
    };
    assert_eq!(verdict(&run, &paced), Verdict::None);
    // The same arrivals on a schedule of their own are below capacity.
    assert_eq!(verdict(&run, &SMALL.limits()), Verdict::None);
    // Five clients on four seats are the server's queue.
    let five = Limits {
        concurrency: Some(5),
        ..SMALL.limits()
    };
    assert_eq!(
        verdict(&SMALL.serve(&every(10, 60, 0), 44), &five),
        Verdict::Server
    );
}

#[test]
fn late_sends_are_the_client() {
    let run = SMALL.serve(&every(20, 60, 15), 40);
    assert_eq!(verdict(&run, &SMALL.limits()), Verdict::Client);
    let busy = Limits {
        client_busy: Some(0.97),
        ..SMALL.limits()
    };
    assert_eq!(
        verdict(&SMALL.serve(&every(20, 60, 0), 40), &busy),
        Verdict::Client
    );
}

#[test]
fn busy_cores_are_named_where_few_clients_are_the_limit() {
    let arrivals: Vec<(u64, u64)> = (0..60).map(|i| (i / 2 * 41, i / 2 * 41)).collect();
    let run = SMALL.serve(&arrivals, 40);
    let because = |busy| {
        let limits = Limits {
            concurrency: Some(2),
            client_busy: Some(busy),
            ..SMALL.limits()
        };
        let found = Diagnosis::of_run(&run, &Window::WHOLE, &limits);
        assert_eq!(found.verdict, Verdict::Client);
        found.because
    };
    let (strained, calm) = (because(0.84), because(0.2));
    assert!(
        strained.contains("84 % busy") && strained.contains("part of the cause"),
        "{strained}"
    );
    assert!(calm.contains("20 % busy") && !calm.contains("cause"), "{calm}");
}

#[test]
fn as_many_clients_as_seats_limit_as_much_as_the_server() {
    // Four clients, each sends when its answer has come.
    let arrivals: Vec<(u64, u64)> = (0..80).map(|i| (i / 4 * 40, i / 4 * 40)).collect();
    let closed = Limits {
        concurrency: Some(4),
        ..SMALL.limits()
    };
    let found = Diagnosis::of_run(&SMALL.serve(&arrivals, 40), &Window::WHOLE, &closed);
    assert_eq!(found.verdict, Verdict::Undecidable, "{found:?}");
    assert!(
        found.because.contains("limit alike") && found.because.contains("100 %"),
        "{}",
        found.because
    );
}

#[test]
fn a_request_that_was_never_sent_is_held_and_not_in_flight() {
    let run = RunRecord {
        requests: vec![
            RequestRecord {
                enqueued: Some(SimTime(0)),
                ..offered(SimTime(0))
            },
            RequestRecord {
                status: Status::Unsent,
                ..offered(SimTime(10 * MS))
            },
        ],
        replicas: Vec::new(),
        end: SimTime(40 * MS),
    };
    let view = ClientView::of_record(&run);
    assert_eq!(
        view.in_flight().collect::<Vec<_>>(),
        [(SimTime(0), SimTime(40 * MS))]
    );
    assert_eq!(view.held().last(), Some((SimTime(10 * MS), SimTime(40 * MS))));
}

#[test]
fn what_is_missing_or_mixed_is_undecidable() {
    let mut run = SMALL.serve(&every(8, 100, 0), 40);
    let unknown_cap = Limits {
        max_num_seqs: None,
        ..SMALL.limits()
    };
    assert_eq!(verdict(&run, &unknown_cap), Verdict::Undecidable);
    // Every seat taken, and never a queue.
    let level = SMALL.serve(&every(10, 100, 0), 40);
    assert_eq!(verdict(&level, &SMALL.limits()), Verdict::Undecidable);
    // Seats without end, and more comes than is served: it only grows.
    let wide = World {
        seats: 1000,
        blocks: 10_000,
        need: 1,
    };
    let growing = wide.serve(&every(4, 100, 0), 2000);
    assert_eq!(verdict(&growing, &wide.limits()), Verdict::Undecidable);
    run.replicas[0] = ReplicaRecord::default();
    let found = Diagnosis::of_run(&run, &Window::WHOLE, &SMALL.limits());
    assert_eq!(found.verdict, Verdict::Undecidable);
    assert!(
        found.because.contains("num_requests_waiting"),
        "{}",
        found.because
    );
    assert_eq!(found.little.running, None);
}

#[test]
fn scrapes_tell_the_same_when_there_are_enough() {
    let run = SMALL.serve(&every(8, 100, 0), 40);
    let read = |interval_ms: u64| {
        let scrapes = crate::metric::scrape::scrape(&run, SimDuration(interval_ms * MS), SimDuration(0));
        let scrapes = scrapes.unwrap();
        let server = ServerView::of_scrapes(&scrapes, Some(32.0), &SMALL.limits());
        Diagnosis::of(
            &ClientView::of_record(&run),
            Some(&server),
            &Window::WHOLE,
            &SMALL.limits(),
        )
    };
    assert_eq!(read(10).verdict, Verdict::Server);
    let seldom = read(300);
    assert_eq!(seldom.verdict, Verdict::Undecidable);
    assert!(seldom.because.contains("only 3 readings"), "{}", seldom.because);
    // Gauges of a full KV cache without its number of blocks.
    let full = |kv_usage| {
        let scrapes: Vec<Scrape> = (0..20)
            .map(|i| Scrape {
                at_s: f64::from(i) * 0.02,
                running: 2.0,
                waiting: 3.0,
                kv_usage,
                ..Scrape::default()
            })
            .collect();
        let server = ServerView::of_scrapes(&scrapes, None, &SMALL.limits());
        Diagnosis::of(
            &ClientView::of_record(&run),
            Some(&server),
            &Window::WHOLE,
            &SMALL.limits(),
        )
        .verdict
    };
    assert_eq!(full(Some(0.99)), Verdict::Kv);
    assert_eq!(full(Some(0.3)), Verdict::Server);
    assert_eq!(full(None), Verdict::Undecidable);
}

#[test]
fn both_sides_of_the_law_agree_when_all_is_there_at_once() {
    // Offered at once, so that nothing waits for a scheduler that has not looked yet.
    let run = SMALL.serve(&[(0, 0); 10], 7);
    let found = Diagnosis::of_run(&run, &Window::WHOLE, &SMALL.limits()).little;
    // Steps of 1 ms: 4, 4 and 2 run for 7 ms each while 6, 2 and 0 wait.
    assert_eq!(
        (found.running, found.waiting),
        (Some(70.0 / 21.0), Some(56.0 / 21.0))
    );
    assert_eq!(found.in_flight_judged, Some(126.0 / 21.0));
    assert_eq!(found.in_flight, found.in_flight_judged);
    assert!(found.outside.unwrap().abs() < 1e-12);
    let rate = found.rate_rps.unwrap() * found.e2e_mean_s.unwrap();
    approx::assert_relative_eq!(rate, found.in_flight.unwrap(), max_relative = 1e-12);
}

#[test]
fn an_empty_run_has_no_verdict_and_no_figures() {
    let found = Diagnosis::of_run(&RunRecord::default(), &Window::WHOLE, &Limits::default());
    assert_eq!(found.verdict, Verdict::Undecidable);
    assert_eq!(found.little, TwoSides::default());
}

proptest! {
    #[test]
    fn the_order_of_requests_does_not_matter(
        run in random_run(),
        seats in 1u32..8,
        block in 1u32..64,
        cut in 0usize..40,
    ) {
        let limits = Limits { max_num_seqs: Some(seats), block_size: Some(block), ..Limits::default() };
        let whole = Diagnosis::of_run(&run, &Window::WHOLE, &limits);
        let mut other = run;
        let n = other.requests.len();
        other.requests.reverse();
        other.requests.rotate_left(if n == 0 { 0 } else { cut % n });
        prop_assert_eq!(Diagnosis::of_run(&other, &Window::WHOLE, &limits), whole);
    }

    #[test]
    fn the_clients_integral_is_the_sum_of_its_times(run in random_run()) {
        let view = ClientView::of_record(&run);
        let found = presence(view.in_flight(), view.span());
        prop_assert_eq!(Some(found.integral), little::in_system(&run).map(|i| i.integral));
        prop_assert_eq!(view.answered().1, found.integral);
        prop_assert!(u128::from(found.any_ns) <= found.integral);
    }
}
