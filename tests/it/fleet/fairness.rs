//! Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): the bound on what two
//! backlogged tenants get, and work conservation.

use super::*;
use kneeboard::cluster::gateway::FairPolicy;
use kneeboard::record::Status;
use proptest::prelude::*;

const PRICE: Price = Price {
    step: 4 * MS,
    prefill_token: MS / 20,
};

const SEATS: u32 = 4;
const INPUT_WEIGHT: i64 = 1;
const OUTPUT_WEIGHT: i64 = 2;

/// One engine whose seats are all that the gateway fills, by the counters.
fn fair(policy: FairPolicy) -> FleetConfig {
    let mut config = unified(1, roomy(SEATS));
    config.gateway.limits.max_in_flight = Some(SEATS);
    config.gateway.fairness = policy;
    config
}

/// Requests of tenants: (arrival ms, tenant, input, output).
fn of_tenants(rows: impl IntoIterator<Item = (u64, u32, u32, u32)>) -> Trace {
    let requests = rows.into_iter().map(|(at, tenant, input, output)| TraceRequest {
        tenant,
        ..TraceRequest::plain(at_ms(at), input, output)
    });
    Trace {
        requests: requests.collect(),
    }
}

/// What a tenant was served by time: its prompts when they were let in, its output tokens when they came.
fn served(record: &RunRecord, cluster: &ClusterRecord, tenant: u32) -> Vec<(SimTime, i64)> {
    let mut served = Vec::new();
    for (request, job) in record.requests.iter().zip(&cluster.jobs) {
        if job.tenant == tenant {
            served.extend(
                job.dispatched
                    .map(|at| (at, INPUT_WEIGHT * i64::from(request.input_tokens))),
            );
            served.extend(record.token_times(request).map(|at| (at, OUTPUT_WEIGHT)));
        }
    }
    served
}

/// The widest difference of the service of tenants 0 and 1 over any interval in which both have requests at the gateway;
/// all have come at the start.
fn widest_difference(record: &RunRecord, cluster: &ClusterRecord) -> i64 {
    let last_let_in = |tenant| {
        let of_it = cluster.jobs.iter().filter(|j| j.tenant == tenant);
        of_it.map(|j| j.dispatched.unwrap()).max().unwrap()
    };
    let until = last_let_in(0).min(last_let_in(1));
    let mut changes = served(record, cluster, 0);
    changes.extend(
        served(record, cluster, 1)
            .into_iter()
            .map(|(at, service)| (at, -service)),
    );
    changes.retain(|&(at, _)| at < until);
    changes.sort();
    let (mut sum, mut least, mut most) = (0, 0, 0);
    for instant in changes.chunk_by(|a, b| a.0 == b.0) {
        sum += instant.iter().map(|(_, service)| service).sum::<i64>();
        (least, most) = (least.min(sum), most.max(sum));
    }
    most - least
}

/// 2 * max(w_p * longest input, w_q * M), M being the tokens of a full batch.
fn bound(trace: &Trace) -> i64 {
    let longest = |length: fn(&TraceRequest) -> u32| trace.requests.iter().map(length).max().unwrap();
    let input = i64::from(longest(|r| r.input_tokens));
    let batch = i64::from(SEATS * longest(|r| r.input_tokens + r.max_output_tokens));
    2 * (INPUT_WEIGHT * input).max(OUTPUT_WEIGHT * batch)
}

fn lengths() -> impl Strategy<Value = Vec<(u32, u32)>> {
    (1u32..400, 1u32..80, 30usize..80)
        .prop_flat_map(|(input, output, n)| prop::collection::vec((1..=input, 1..=output), n))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever their lengths, two backlogged tenants never differ by more than the bound.
    #[test]
    fn backlogged_tenants_are_served_alike_within_the_bound(first in lengths(), second in lengths()) {
        let rows = first.iter().map(|&(i, o)| (0, 0, i, o)).chain(second.iter().map(|&(i, o)| (0, 1, i, o)));
        let trace = of_tenants(rows);
        let (record, cluster) = run_fleet(&fair(FairPolicy::vtc()), &PRICE, &trace);
        prop_assert!(record.requests.iter().all(|r| r.status == Status::Completed));
        let (widest, bound) = (widest_difference(&record, &cluster), bound(&trace));
        prop_assert!(widest <= bound, "{} above {}", widest, bound);
    }
}

/// First come, first served breaks the bound where counters keep it: a tenant with long requests gets almost all.
#[test]
fn counters_keep_a_bound_that_first_come_first_served_breaks() {
    let rows: Vec<_> = (0..200).flat_map(|_| [(0, 0, 8, 4), (0, 1, 200, 60)]).collect();
    let trace = of_tenants(rows);
    let widest = |policy| {
        let (record, cluster) = run_fleet(&fair(policy), &PRICE, &trace);
        widest_difference(&record, &cluster)
    };
    let bound = bound(&trace);
    assert!(widest(FairPolicy::vtc()) <= bound);
    assert!(widest(FairPolicy::Fcfs) > 10 * bound);
}

/// A tenant who is alone has all of the machine, to the nanosecond, whatever it was charged before.
#[test]
fn a_lone_tenant_gets_everything() {
    let rows: Vec<_> = (0..50)
        .map(|n| (3 * n, 7, 20 + n as u32, 5 + n as u32 % 30))
        .collect();
    let trace = of_tenants(rows);
    let alone = run_fleet(&fair(FairPolicy::Fcfs), &PRICE, &trace);
    assert_eq!(run_fleet(&fair(FairPolicy::vtc()), &PRICE, &trace), alone);
}

/// No seat is free while anybody waits: as many requests run as there are, up to the seats.
#[test]
fn no_seat_is_free_while_anybody_waits() {
    // Tenant 0 floods at the start, tenant 1 comes now and then.
    let mut rows: Vec<_> = (0..120).map(|n| (0, 0, 30 + n % 7, 10 + n % 5)).collect();
    rows.extend((0..8).map(|n| (50 + 100 * n, 1, 50, 10)));
    let (record, cluster) = run_fleet(&fair(FairPolicy::vtc()), &PRICE, &of_tenants(rows));
    let queue = &cluster.gateway_queue;
    let waiting_at = |at: SimTime| {
        queue[..queue.partition_point(|q| q.0 <= at)]
            .last()
            .map_or(0, |q| q.1)
    };
    for changed in cluster
        .jobs
        .iter()
        .flat_map(|j| [j.dispatched.unwrap(), j.ended.unwrap()])
    {
        let has_seat = |j: &&kneeboard::record::JobRecord| {
            j.dispatched.unwrap() <= changed && changed < j.ended.unwrap()
        };
        let seats = cluster.jobs.iter().filter(has_seat).count() as u32;
        assert!(
            seats == SEATS || waiting_at(changed) == 0,
            "{seats} at {changed:?}"
        );
    }
    // The engine fills a seat with the step after next: its next one begins before the gateway hears of the end.
    let replica = &record.replicas[0];
    for (&start, &running) in replica.step_starts.iter().zip(&replica.running) {
        let ended = record
            .requests
            .iter()
            .filter(|r| r.last_token == Some(start))
            .count() as u32;
        assert!(
            running + ended >= SEATS || waiting_at(start) == 0,
            "{running} run at {start:?}"
        );
    }
    // The newcomer is not behind the flood: it waits for one seat at the most.
    let waits = |tenant| {
        let jobs = record
            .requests
            .iter()
            .zip(&cluster.jobs)
            .filter(move |(_, j)| j.tenant == tenant);
        jobs.map(|(r, j)| j.dispatched.unwrap() - r.sent).max().unwrap()
    };
    assert!(
        waits(1) < ms(100) && waits(0) > ms(1_000),
        "{:?} {:?}",
        waits(1),
        waits(0)
    );
}
