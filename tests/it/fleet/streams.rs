//! Streams that break, are sent twice, or that nobody waits for any longer, by hand. A step takes 10 ms and 1 ms a
//! prefill token.

use super::*;
use kneeboard::cluster::fault::{Fault, FaultKind};
use kneeboard::cluster::gateway::HedgePolicy;
use kneeboard::cluster::ratio::Ratio;
use kneeboard::record::Status;
use kneeboard::sim::fleet::Fate;

const PRICE: Price = Price {
    step: 10 * MS,
    prefill_token: MS,
};

/// Two groups, the first of which is lost at 43 ms for a second; that is known at 49 and out of the routes at 54.
fn death_at_43() -> FleetConfig {
    let mut config = unified(2, roomy(8));
    config.faults = vec![Fault {
        at: at_ms(43),
        duration: Some(ms(1_000)),
        kind: FaultKind::GroupCrash { group: 0 },
    }];
    config.recovery.detection = ms(6);
    config.recovery.route_removal = ms(5);
    config.gateway.retry = retries(3);
    config
}

/// A stream of 5 tokens with 10 of prompt: alone at 20, 30, 40, 50, 60. At 43 it has three of them.
#[test]
fn a_death_in_mid_stream_that_is_not_mended() {
    let mut config = death_at_43();
    config.recovery.in_flight = Fate::Fail;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 5)]));
    let r = &record.requests[0];
    assert_eq!((r.status, r.output_tokens), (Status::Failed, 3));
    assert_eq!(tokens_ms(&record, 0), [20, 30, 40]);
    assert_eq!(in_ms(cluster.jobs[0].ended), [49]);
    assert_eq!((cluster.jobs[0].attempts, cluster.jobs[0].retries), (1, 0));
}

#[test]
fn a_death_in_mid_stream_with_a_retry_from_the_start() {
    let mut config = death_at_43();
    config.recovery.in_flight = Fate::Retry;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 5)]));
    // Broken at 49, 4 ms of backoff, group 1 at 53: 53 + 20, then four more.
    assert_eq!(tokens_ms(&record, 0), [73, 83, 93, 103, 113]);
    let job = cluster.jobs[0];
    assert_eq!(
        (job.attempts, job.retries, job.resumes, job.group),
        (2, 1, Some(0), Some(1))
    );
    assert_eq!((job.wasted_output_tokens, job.wasted_input_tokens), (3, 10));
    assert_eq!(record.requests[0].status, Status::Completed);
}

#[test]
fn a_death_in_mid_stream_that_goes_on_elsewhere() {
    let mut config = death_at_43();
    config.recovery.in_flight = Fate::Resume;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 5)]));
    // At 53 with a prompt of 10 + 3 tokens: 53 + 23, then one more.
    assert_eq!(tokens_ms(&record, 0), [20, 30, 40, 76, 86]);
    let job = cluster.jobs[0];
    assert_eq!(
        (job.attempts, job.retries, job.resumes, job.group),
        (2, 1, Some(1), Some(1))
    );
    assert_eq!((job.wasted_output_tokens, job.wasted_input_tokens), (0, 10));
    let r = &record.requests[0];
    assert_eq!(
        (r.status, r.input_tokens, r.output_tokens),
        (Status::Completed, 10, 5)
    );
}

/// Waits double, and what is sent to a dead group before its routes are gone is refused at once when it is known.
#[test]
fn backoffs_double() {
    let mut config = death_at_43();
    config.recovery.in_flight = Fate::Retry;
    config.recovery.route_removal = ms(100);
    // One group only: 49, again at 53, refused; 8 ms, again at 61, refused; that was the third attempt.
    config.pools[0].groups = 1;
    config.pools[0].max_groups = 1;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 5)]));
    assert_eq!(record.requests[0].status, Status::Failed);
    assert_eq!(in_ms(cluster.jobs[0].ended), [61]);
    assert_eq!((cluster.jobs[0].attempts, cluster.jobs[0].retries), (3, 2));
}

/// A zone is lost with two of four groups; what was there and what is sent there until 61 is tried again.
#[test]
fn a_zone_loss_with_retries() {
    let mut config = unified(4, roomy(8));
    config.topology.zones.push("zone-1".to_owned());
    config.topology.nodes[2].zone = 1;
    config.topology.nodes[3].zone = 1;
    config.faults = vec![Fault {
        at: at_ms(50),
        duration: Some(ms(200)),
        kind: FaultKind::ZoneLoss { zone: 1 },
    }];
    config.pools[0].start.warm = ms(30);
    config.recovery.detection = ms(6);
    config.recovery.route_removal = ms(5);
    config.recovery.in_flight = Fate::Retry;
    config.gateway.retry = retries(3);
    // In turn to groups 0, 1, 2, 3, then 0, 1, 2, which is dead. The last one comes when all is well again.
    let sent = [40, 41, 42, 43, 51, 52, 53, 300];
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&sent.map(|at| (at, 10, 2))));
    assert!(record.requests.iter().all(|r| r.status == Status::Completed));
    // Known to be lost at 56, and tried again at 60 in this order: the third at group 3, which is routed until 61 and
    // refuses at once; the fourth at 0; the seventh at 1. The third waits 8 ms more and goes to 0: 2 and 3 are out.
    let attempts: Vec<_> = cluster.jobs.iter().map(|j| j.attempts).collect();
    assert_eq!(attempts, [1, 1, 3, 2, 1, 1, 2, 1]);
    let groups: Vec<_> = cluster.jobs.iter().map(|j| j.group.unwrap()).collect();
    assert_eq!(groups, [0, 1, 0, 0, 0, 1, 1, 1]);
    // Group 0: 40 + 20 = 60; with the prompts of the fifth and the fourth 60 + 30 = 90; with the third's 110; 120.
    for (request, tokens) in [(0, [60, 90]), (4, [90, 110]), (3, [90, 110]), (2, [110, 120])] {
        assert_eq!(tokens_ms(&record, request), tokens);
    }
    // Group 1: 41 + 20 = 61; with two prompts 61 + 30 = 91; 101.
    for (request, tokens) in [(1, [61, 91]), (5, [91, 101]), (6, [91, 101])] {
        assert_eq!(tokens_ms(&record, request), tokens);
    }
    // The zone is back at 250, and its groups 30 ms later.
    for group in [2, 3] {
        let of_it = told(&cluster).into_iter().filter(|t| t.2 == Some(group));
        let of_it: Vec<_> = of_it.map(|(at, what, _)| (at, what)).collect();
        let expected = [
            (50, "crash"),
            (56, "detected"),
            (61, "routes_removed"),
            (250, "starting"),
            (280, "ready"),
        ];
        assert_eq!(of_it, expected);
    }
}

/// The loser of a hedge is given up when the winner has its first token; its engine hears of it 5 ms later.
#[test]
fn the_first_token_decides_a_hedge() {
    let mut config = unified(2, roomy(8));
    config.gateway.hedge = Some(HedgePolicy {
        after: ms(15),
        max_extra: 1,
        budget_ratio: None,
    });
    config.gateway.cancel_latency = ms(5);
    // Group 0 is four times as slow: 80 ms for the first token, then 40 ms each.
    config.faults = vec![Fault {
        at: at_ms(0),
        duration: None,
        kind: FaultKind::SlowRank {
            group: 0,
            factor: Ratio::new(4, 1),
        },
    }];
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(1, 10, 4)]));
    // Group 0 from 1; a copy to group 1 at 16: first token at 36. The loser's engine hears of it at 41, in its step to 81.
    assert_eq!(tokens_ms(&record, 0), [36, 46, 56, 66]);
    let job = cluster.jobs[0];
    assert_eq!((job.attempts, job.retries, job.group), (2, 0, Some(1)));
    assert_eq!(
        (record.requests[0].status, cluster.cancelled_output_tokens),
        (Status::Completed, 0)
    );
    let slow: Vec<_> = in_ms(record.replicas[0].step_ends.iter().copied());
    assert_eq!(slow, [81], "its step under way ends, and no other begins");

    // With 15 ms for a first token at group 0 there is no copy.
    config.faults.clear();
    let (_, cluster) = run_fleet(&config, &PRICE, &trace(&[(1, 5, 4)]));
    assert_eq!(cluster.jobs[0].attempts, 1);
}

/// One seat: the second request waits for the first one's end at 60.
fn one_seat() -> FleetConfig {
    let mut config = unified(1, roomy(1));
    config.gateway.cancel_latency = ms(2);
    config
}

#[test]
fn a_client_that_waits_too_long_for_its_first_token_gives_up() {
    let mut config = one_seat();
    config.gateway.timeouts.ttft = Some(ms(30));
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 5), (0, 10, 2), (35, 10, 1)]));
    assert_eq!(
        tokens_ms(&record, 0),
        [20, 30, 40, 50, 60],
        "a timely first token is enough"
    );
    assert_eq!(
        (record.requests[1].status, record.requests[1].output_tokens),
        (Status::TimedOut, 0)
    );
    assert_eq!(in_ms(cluster.jobs[1].ended), [30]);
    // It was gone from the engine at 32: the third follows the first at once, though too late for its client at 65.
    assert_eq!(record.requests[2].status, Status::TimedOut);
    assert_eq!(in_ms(record.requests[2].first_scheduled), [60]);
    assert_eq!(
        in_ms(record.replicas[0].step_ends.iter().copied()),
        [20, 30, 40, 50, 60, 80]
    );
    assert_eq!(cluster.cancelled_output_tokens, 0);
}

#[test]
fn a_client_that_waits_too_long_for_the_end_keeps_what_it_saw() {
    let mut config = one_seat();
    config.gateway.timeouts.e2e = Some(ms(35));
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 5), (1, 10, 1)]));
    let r = &record.requests[0];
    assert_eq!((r.status, r.output_tokens), (Status::TimedOut, 2));
    assert_eq!(tokens_ms(&record, 0), [20, 30]);
    assert_eq!(in_ms(cluster.jobs[0].ended), [35]);
    // The engine hears of it at 37, in the step to 40: then the second has its turn, and its client left at 36.
    assert_eq!(record.requests[1].status, Status::TimedOut);
    let (record, _) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 5), (26, 10, 1)]));
    assert_eq!(tokens_ms(&record, 1), [60]);
}

#[test]
fn a_request_that_waits_too_long_at_the_gateway_is_given_up_there() {
    let mut config = one_seat();
    config.gateway.limits.max_in_flight = Some(1);
    config.gateway.timeouts.queue = Some(ms(25));
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 5), (10, 10, 1), (40, 10, 1)]));
    // The second leaves at 35; the third at 60, 20 after it came.
    assert_eq!(record.requests[1].status, Status::TimedOut);
    assert_eq!(in_ms(cluster.jobs[1].ended), [35]);
    assert_eq!((cluster.jobs[1].attempts, cluster.jobs[1].dispatched), (0, None));
    assert_eq!(tokens_ms(&record, 2), [80]);
    let queue: Vec<_> = cluster.gateway_queue.iter().map(|q| (q.0.0 / MS, q.1)).collect();
    assert_eq!(queue, [(10, 1), (35, 0), (40, 1), (60, 0)]);
}

/// A token that comes with the death still comes.
#[test]
fn a_step_that_ends_with_the_death_counts() {
    let mut config = death_at_43();
    config.recovery.in_flight = Fate::Fail;
    config.faults[0].at = at_ms(40);
    let (record, _) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 5)]));
    assert_eq!(tokens_ms(&record, 0), [20, 30, 40]);
}

/// Waits for a copy begin with each try, and all copies together are no more than allowed.
#[test]
fn hedges_of_a_try_that_broke_are_void() {
    let mut config = unified(4, roomy(8));
    config.faults = vec![Fault {
        at: at_ms(8),
        duration: Some(ms(1_000)),
        kind: FaultKind::GroupCrash { group: 0 },
    }];
    config.recovery.in_flight = Fate::Retry;
    config.gateway.retry = retries(2);
    config.gateway.hedge = Some(HedgePolicy {
        after: ms(15),
        max_extra: 1,
        budget_ratio: None,
    });
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 40, 2)]));
    // Lost at 8, again at 12 to group 1: 62, 72. A copy at 27 to group 2, not at 15, and no other.
    assert_eq!(tokens_ms(&record, 0), [62, 72]);
    assert_eq!(cluster.jobs[0].attempts, 3);
    assert_eq!(in_ms(record.replicas[2].step_starts.iter().copied()), [27]);
}

/// A request that comes to the gateway again may wait as long as one that comes for the first time.
#[test]
fn the_wait_at_the_gateway_begins_anew_with_each_try() {
    let mut config = unified(2, roomy(1));
    config.gateway.limits.max_in_flight = Some(1);
    config.gateway.limits.queue_timeout = Some(ms(100));
    config.gateway.retry = retries(2);
    config.recovery.in_flight = Fate::Retry;
    config.faults = vec![Fault {
        at: at_ms(75),
        duration: None,
        kind: FaultKind::GroupCrash { group: 1 },
    }];
    // First: group 0, 0 to 60. Second: it waits from 1 to 60, then group 1, which is lost at 75. Third: it waits from 2 to 75,
    // then group 0 until 75 + 20 + 60 = 155. Second again: it waits from 79 to 155, past 101, then group 1: 155 + 20.
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 5), (1, 10, 1), (2, 10, 7)]));
    assert_eq!(record.requests[1].status, Status::Completed);
    assert_eq!(tokens_ms(&record, 2).last(), Some(&155));
    assert_eq!(tokens_ms(&record, 1), [175]);
    assert_eq!(cluster.jobs[1].retries, 1);
}

/// A first token that is late while its request waits for another try changes nothing: it is tried again already.
#[test]
fn a_timeout_during_a_backoff_starts_no_second_one() {
    let mut config = unified(3, roomy(8));
    let crash = |group, at| Fault {
        at: at_ms(at),
        duration: Some(ms(1_000)),
        kind: FaultKind::GroupCrash { group },
    };
    config.faults = vec![crash(0, 38), crash(1, 43)];
    config.recovery.in_flight = Fate::Retry;
    config.gateway.retry = retries(3);
    config.gateway.timeouts.ttft = Some(ms(51));
    // 40 of prompt: 50 ms. The first try's patience ends at 51, the last one's at 102. Lost at 38, again at 42 to group 1, lost at 43, 8 ms: again at 51 to group 2.
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 40, 1)]));
    assert_eq!(tokens_ms(&record, 0), [101]);
    assert_eq!((cluster.jobs[0].attempts, cluster.jobs[0].retries), (3, 2));
    // Who does not try again what is late has waited long enough.
    config.gateway.retry.retry_on.timed_out = false;
    config.gateway.timeouts.ttft = Some(ms(40));
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 40, 1)]));
    assert_eq!(
        (record.requests[0].status, in_ms(cluster.jobs[0].ended)),
        (Status::TimedOut, vec![40])
    );
}
