//! Data-parallel ranks, waves and pipelines, by hand. A step takes 10 ms and 1 ms a prefill token.

use super::*;
use kneeboard::cluster::router::RouterPolicy;

const PRICE: Price = Price {
    step: 10 * MS,
    prefill_token: MS,
};

fn ranks(dp_ranks: u32) -> FleetConfig {
    let mut config = unified(1, roomy(8));
    config.pools[0].dp_ranks = dp_ranks;
    config
}

fn of(record: &RunRecord) -> Vec<u32> {
    record.requests.iter().map(|r| r.replica).collect()
}

/// S74: a burst within one interval is spread by what the balancer itself sent (T16), whatever the snapshot.
#[test]
fn a_burst_over_empty_ranks_is_spread_evenly() {
    for interval in [0, 100] {
        for before_0_28 in [false, true] {
            let mut config = ranks(4);
            config.routing.metrics_interval = ms(interval);
            config.routing.balancer = RouterPolicy::VllmDp {
                clients: 1,
                before_0_28,
            };
            let (record, _) = run_fleet(&config, &PRICE, &trace(&[(5, 10, 3); 8]));
            assert_eq!(of(&record), [0, 1, 2, 3, 0, 1, 2, 3]);
        }
    }
}

/// S74: a snapshot that is old sends a burst to one rank, while another has been idle for long.
#[test]
fn a_stale_snapshot_sends_a_burst_to_one_rank() {
    // In turn a long one to rank 0 and a short one to rank 1: 4 prompt tokens each, first tokens at 1 + 14 = 15. That is the
    // end at rank 1; rank 0 runs until 15 + 12 * 10 = 135. At 100 it is seen with 4 running, so at 150 a burst of four goes
    // to rank 1, as it is seen: 0, 1, 2, 3 against 4.
    let mut rows: Vec<_> = [(1, 1, 13), (1, 1, 1)].repeat(4);
    rows.extend([(150, 1, 1); 4]);
    let mut config = ranks(2);
    config.routing.metrics_interval = ms(100);
    let (record, _) = run_fleet(&config, &PRICE, &trace(&rows));
    assert_eq!(of(&record)[..8], [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(in_ms(record.requests[6].last_token), [135]);
    assert_eq!(of(&record)[8..], [1, 1, 1, 1]);
    // With the present in sight it would be spread.
    config.routing.metrics_interval = SimDuration::ZERO;
    let (record, _) = run_fleet(&config, &PRICE, &trace(&rows));
    assert_eq!(of(&record)[8..], [0, 1, 0, 1]);
}

/// S74: where routers see the present, what was sent long ago counts no more.
#[test]
fn a_balancer_that_sees_the_present_forgets_what_it_sent() {
    // Rank 0 has a long stream, rank 1 a short request every 30 ms, which takes 11 ms: it is idle whenever one comes.
    let mut rows = vec![(0, 10, 60)];
    rows.extend((0..10).map(|n| (1 + 30 * n, 1, 1)));
    for before_0_28 in [false, true] {
        let balancer = RouterPolicy::VllmDp {
            clients: 1,
            before_0_28,
        };
        let mut config = ranks(2);
        config.routing.balancer = balancer.clone();
        let (record, _) = run_fleet(&config, &PRICE, &trace(&rows));
        assert_eq!(of(&record), [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        // The same over groups of one rank.
        let mut config = unified(2, roomy(8));
        config.routing.policy = balancer;
        let (record, _) = run_fleet(&config, &PRICE, &trace(&rows));
        assert_eq!(of(&record), [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    }
}

/// What is on its way is sent, too: a burst is spread though no engine has seen any of it.
#[test]
fn a_burst_on_its_way_is_spread_evenly() {
    for before_0_28 in [false, true] {
        let mut config = ranks(4);
        config.front_end.inbound = ms(2);
        config.routing.balancer = RouterPolicy::VllmDp {
            clients: 1,
            before_0_28,
        };
        let (record, _) = run_fleet(&config, &PRICE, &trace(&[(5, 10, 3); 8]));
        assert_eq!(of(&record), [0, 1, 2, 3, 0, 1, 2, 3]);
    }
}

/// S70: independent ranks do not wait for each other.
#[test]
fn ranks_of_a_dense_model_step_alone() {
    let (record, _) = run_fleet(&ranks(2), &PRICE, &trace(&[(0, 30, 3), (0, 10, 3)]));
    assert_eq!(of(&record), [0, 1]);
    assert_eq!(tokens_ms(&record, 0), [40, 50, 60]);
    assert_eq!(tokens_ms(&record, 1), [20, 30, 40]);
}

/// S70, S72: ranks in lockstep take the slowest one's time, and who comes to an idle rank waits for the wave.
#[test]
fn ranks_of_experts_step_together() {
    let mut config = ranks(2);
    config.pools[0].lockstep = true;
    let (record, _) = run_fleet(&config, &PRICE, &trace(&[(0, 30, 3), (0, 10, 3)]));
    // Both steps end at 40, the slower one's.
    assert_eq!(tokens_ms(&record, 0), [40, 50, 60]);
    assert_eq!(tokens_ms(&record, 1), [40, 50, 60]);

    // Rank 1 idles (dummy batches) until 45; its prompt begins with the wave from 50, which rank 0 waits for.
    let (record, _) = run_fleet(&config, &PRICE, &trace(&[(0, 30, 4), (45, 10, 2)]));
    assert_eq!(of(&record), [0, 1]);
    assert_eq!(tokens_ms(&record, 0), [40, 50, 70, 80]);
    assert_eq!(tokens_ms(&record, 1), [70, 80]);

    // A group at rest begins at once.
    let (record, _) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 1), (33, 10, 2)]));
    assert_eq!(
        (tokens_ms(&record, 0), tokens_ms(&record, 1)),
        (vec![20], vec![53, 63])
    );
}

/// S66, S68: two stages, two batches under way, each through a stage in half its step's time.
#[test]
fn two_stages_overlap_two_batches() {
    let mut config = unified(1, roomy(8));
    config.pools[0].engine.pipeline_parallel_size = 2;
    config.pools[0].engine.max_num_batched_tokens = 10;
    let (record, _) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 3), (0, 10, 3)]));
    // First: 0 to 20, through its stages at 10 and 20. Second: its batch enters the first stage at 10: 30. At 20 the first's
    // decode enters, 5 ms a stage; it cannot pass the second's prompt, done at 30: 35. At 30 the second's decode enters: 40.
    // 35: 45. 40: 50. One batch every 5 ms, each 10 ms long.
    assert_eq!(tokens_ms(&record, 0), [20, 35, 45]);
    assert_eq!(tokens_ms(&record, 1), [30, 40, 50]);
    // With nothing to schedule the engine waits for its oldest batch (S52): who comes at 5 is taken in at 20, and both go
    // on in one batch.
    let (record, _) = run_fleet(&config, &PRICE, &trace(&[(0, 5, 3), (5, 5, 3)]));
    assert_eq!(tokens_ms(&record, 0), [15, 30, 40]);
    assert_eq!(tokens_ms(&record, 1), [30, 40, 50]);
    // A request alone gains nothing: the sum of its stages.
    let (record, _) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 3)]));
    assert_eq!(tokens_ms(&record, 0), [20, 30, 40]);
}
