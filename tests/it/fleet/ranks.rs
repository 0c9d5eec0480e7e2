//! Data-parallel ranks, waves and pipelines, by hand. A step takes 10 ms and 1 ms a prefill token.

use super::*;
use kneeboard::cluster::router::RouterPolicy;
use kneeboard::steptime::{CaptureSizes, GraphMode, StepMode};
use proptest::prelude::*;

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

/// The engine of another release.
fn of_release(version: &str) -> VllmConfig {
    VllmConfig {
        behaviour: Behaviour::of(version).unwrap(),
        ..roomy(8)
    }
}

fn lockstep(engine: VllmConfig) -> FleetConfig {
    let mut config = unified(1, engine);
    (config.pools[0].dp_ranks, config.pools[0].lockstep) = (2, true);
    config.routing.balancer = RouterPolicy::RoundRobin;
    config
}

/// Dummy batches: (replica, from in ms, to in ms, steps, idle).
fn dummies(cluster: &ClusterRecord) -> Vec<(u32, u64, u64, u64, bool)> {
    let all = cluster.dummy_steps.iter();
    all.map(|d| (d.replica, d.from.0 / MS, d.to.0 / MS, d.steps, d.is_idle))
        .collect()
}

/// S71: before 0.32 ranks ask each other every 32 steps. The first request ends with step 1 at 20; 31 idle steps of 10 ms
/// follow, until 330.
#[test]
fn ranks_idle_on_until_they_next_ask_each_other() {
    let config = lockstep(of_release("0.28.0"));
    // Who comes at 33 waits for the step that ends at 40.
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 1), (33, 10, 2)]));
    assert_eq!(of(&record), [0, 1]);
    assert_eq!(tokens_ms(&record, 0), [20]);
    assert_eq!(tokens_ms(&record, 1), [60, 70]);
    assert_eq!(
        dummies(&cluster),
        [
            // Rank 1 beside the first request.
            (1, 0, 20, 1, false),
            // Both, in two idle steps: of the second one its end is waited for.
            (0, 20, 40, 2, true),
            (1, 20, 40, 2, true),
            // Rank 0 beside the second request.
            (0, 40, 70, 2, false),
        ]
    );
    // At the end of a step, at the end of the wave and after it nobody waits.
    for (at, first) in [(40, 60), (321, 350), (330, 350), (1_000, 1_020)] {
        let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 1), (at, 10, 1)]));
        assert_eq!(tokens_ms(&record, 1), [first], "{at}");
        let idle: u64 = cluster
            .dummy_steps
            .iter()
            .filter(|d| d.is_idle)
            .map(|d| d.steps)
            .sum();
        let steps = if at == 40 { 2 } else { 31 };
        assert_eq!(idle, 2 * steps, "{at}");
        // What follows the last request keeps no run alive.
        assert_eq!(cluster.end, at_ms(first));
    }
}

/// S71: from 0.32 on they also ask after a wave's first step, and the interval can be set.
#[test]
fn ranks_ask_each_other_after_a_first_step_and_at_their_interval() {
    let config = lockstep(VllmConfig {
        dp_sync_interval: 5,
        ..of_release("0.32.0")
    });
    // One step: at rest from 20 on.
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 1), (33, 10, 1)]));
    assert_eq!(tokens_ms(&record, 1), [53]);
    assert!(cluster.dummy_steps.iter().all(|d| !d.is_idle));
    // Two steps, until 30; three idle ones, until 60. A new wave begins then, and its first step at once.
    for (at, first) in [(31, 60), (51, 80), (60, 80), (61, 81)] {
        let (record, _) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 2), (at, 10, 1)]));
        assert_eq!(tokens_ms(&record, 1), [first], "{at}");
    }
}

/// A slow rank makes idle steps longer from the next one on; a crash breaks them off.
#[test]
fn idle_steps_go_at_the_speed_of_the_slowest_rank() {
    use kneeboard::cluster::fault::{Fault, FaultKind};
    use kneeboard::cluster::ratio::Ratio;
    let mut config = lockstep(of_release("0.28.0"));
    config.faults = vec![Fault {
        at: at_ms(43),
        duration: None,
        kind: FaultKind::SlowRank {
            group: 0,
            factor: Ratio::new(2, 1),
        },
    }];
    // Idle steps end at 30, 40, 50, 70, 90. A prompt takes 40 then.
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 1), (75, 10, 1)]));
    assert_eq!(tokens_ms(&record, 1), [130]);
    assert_eq!(dummies(&cluster)[1], (0, 20, 90, 5, true));
    config.faults[0].kind = FaultKind::GroupCrash { group: 0 };
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 1), (75, 10, 1)]));
    assert_eq!(dummies(&cluster)[1], (0, 20, 43, 2, true));
    // It is back at once, and begins a wave.
    assert_eq!(tokens_ms(&record, 1), [95]);
}

/// A ms for each token that dense layers compute, and 100 ms without a graph.
#[derive(Debug)]
struct BySize;

impl StepTime for BySize {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        match batch.launch {
            Some(mode @ StepMode::Eager { .. }) => ms(100 + u64::from(mode.computed_tokens())),
            Some(mode @ StepMode::Piecewise { .. }) => ms(1 + u64::from(mode.computed_tokens())),
            Some(mode @ StepMode::Full { .. }) => ms(u64::from(mode.computed_tokens())),
            None => panic!("ranks that step together agree"),
        }
    }
}

/// S72: graphs of 4, 8 and 32 tokens. All ranks run at the most tokens, in the mode that all can.
#[test]
fn ranks_pad_to_the_largest_and_run_as_the_most_restricted_of_them() {
    let mut config = lockstep(of_release("0.32.0"));
    config.pools[0].graphs = Some((
        CaptureSizes::from_list(&[4, 8, 32], 8192, 1),
        GraphMode::FullAndPiecewise,
    ));
    // A prompt of 6 tokens beside a dummy batch: piecewise at 8, 9 ms. Then decodes, at 4.
    let (record, _) = run_fleet(&config, &BySize, &trace(&[(0, 6, 3)]));
    assert_eq!(tokens_ms(&record, 0), [9, 13, 17]);
    // Six requests on each rank: prompts of 12 tokens run at 32, decodes of 6 rows at 8. One end before leaves a rank with
    // five rows: 8 again. Rank 0 alone in its last step: its one row runs at 4.
    let rows: Vec<_> = (0..12).map(|n| (0, 2, if n == 0 { 4 } else { 3 })).collect();
    let (record, _) = run_fleet(&config, &BySize, &trace(&rows));
    assert_eq!(tokens_ms(&record, 0), [33, 41, 49, 53]);
    // A prompt of 40 tokens fits no graph: nobody runs one, and each computes its own tokens. 140, then decodes at 4.
    let (record, _) = run_fleet(&config, &BySize, &trace(&[(0, 40, 2), (0, 6, 2)]));
    assert_eq!(
        (tokens_ms(&record, 0), tokens_ms(&record, 1)),
        (vec![140, 144], vec![140, 144])
    );
}

/// S73: beside decodes a rank takes prompts in every fourth step of a wave, unless some had to be left waiting.
#[test]
fn prompts_wait_for_the_steps_that_are_meant_for_them() {
    let with = |interval, budget| {
        lockstep(VllmConfig {
            prefill_schedule_interval: interval,
            max_num_batched_tokens: budget,
            ..of_release("0.25.1")
        })
    };
    // Steps 0 to 20, 30, 40, 50: who comes to rank 0 at 25 waits for the fifth, from 50 on. Rank 1 waits for it, too.
    let rows = [(0, 10, 9), (0, 10, 9), (25, 10, 2)];
    let (record, _) = run_fleet(&with(4, 8192), &PRICE, &trace(&rows));
    assert_eq!(of(&record), [0, 1, 0]);
    assert_eq!(tokens_ms(&record, 2), [70, 80]);
    assert_eq!(tokens_ms(&record, 1), [20, 30, 40, 50, 70, 80, 90, 100, 110]);
    let (record, _) = run_fleet(&with(1, 8192), &PRICE, &trace(&rows));
    assert_eq!(tokens_ms(&record, 2), [50, 60]);
    // A rank that decodes nothing takes prompts in any step.
    let (record, _) = run_fleet(&with(4, 8192), &PRICE, &trace(&[(0, 10, 9), (25, 10, 2)]));
    assert_eq!(of(&record), [0, 1]);
    assert_eq!(tokens_ms(&record, 1), [50, 60]);
    // The fifth step has room for one prompt of 10 beside a decode; the other one waits, so the sixth takes prompts, too.
    let rows = [(0, 10, 9), (0, 10, 9), (25, 10, 2), (25, 2, 9), (26, 10, 2)];
    let (record, _) = run_fleet(&with(4, 11), &PRICE, &trace(&rows));
    assert_eq!(of(&record), [0, 1, 0, 1, 0]);
    // 50: ten tokens of the first. 70: nine of the second beside two decodes. Nobody waits any more then, so its last token
    // is one for the ninth step: 89, 99, 109, 120.
    assert_eq!(tokens_ms(&record, 2), [70, 89]);
    assert_eq!(tokens_ms(&record, 4), [120, 130]);
}

/// S68: stages of 1 to 3. A prompt of 8 tokens takes 16 ms, 4 and 12 of them; a decode 8, 2 and 6.
#[derive(Debug)]
struct Uneven;

impl StepTime for Uneven {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        ms(8 + u64::from(batch.prefill_tokens))
    }

    fn stage_shares(&self, _: &BatchShape, shares: &mut Vec<u64>) {
        *shares = vec![5, 15];
    }
}

#[test]
fn the_slowest_stage_sets_the_pace_and_all_of_them_the_latency() {
    let mut config = unified(1, roomy(8));
    config.pools[0].engine.pipeline_parallel_size = 2;
    config.pools[0].engine.max_num_batched_tokens = 8;
    let (record, _) = run_fleet(&config, &Uneven, &trace(&[(0, 8, 3), (0, 8, 3)]));
    // First stage: prompts at 0 to 4 and 4 to 8. Second: 4 to 16, 16 to 28. The first's decode enters at 16 and 28, and is
    // done at 34; the second's at 28 and 34, done at 40; then one batch every 6 ms, each 12 ms long.
    assert_eq!(tokens_ms(&record, 0), [16, 34, 46]);
    assert_eq!(tokens_ms(&record, 1), [28, 40, 52]);
    // Alone it takes the sum of its stages.
    let (record, _) = run_fleet(&config, &Uneven, &trace(&[(0, 8, 3)]));
    assert_eq!(tokens_ms(&record, 0), [16, 24, 32]);
}

proptest! {
    /// Requests that meet nobody wait for one dummy batch at most, and without idle steps for none.
    #[test]
    fn idle_steps_cost_a_request_one_dummy_batch_at_most(
        rows in prop::collection::vec((0u64..900, 1u32..50, 1u32..6), 1..12),
        interval in 1u32..40, version in prop::sample::select(vec!["0.22.1", "0.32.0"]),
    ) {
        let mut at = 0;
        let requests = rows.iter().map(|&(gap, input, output)| {
            let arrival = at;
            // The longest one takes 10 + 50 + 5 * 10 ms, after 10 of waiting.
            at += 130 + gap;
            (arrival, input, output)
        });
        let trace = trace(&requests.collect::<Vec<_>>());
        let config = lockstep(VllmConfig {
            dp_sync_interval: if version == "0.32.0" { interval } else { 32 },
            ..of_release(version)
        });
        let alone = lockstep(VllmConfig { dp_sync_interval: 1, ..of_release("0.32.0") });
        let (record, cluster) = run_fleet(&config, &PRICE, &trace);
        let (without, at_rest) = run_fleet(&alone, &PRICE, &trace);
        prop_assert!(at_rest.dummy_steps.iter().all(|d| !d.is_idle));
        for (with, without) in record.requests.iter().zip(&without.requests) {
            let (first, last) = (with.first_token.unwrap(), with.last_token.unwrap());
            let later = first.since(without.first_token.unwrap());
            prop_assert!(first >= without.first_token.unwrap() && later < ms(10), "{later}");
            prop_assert_eq!(last.since(first), without.last_token.unwrap().since(without.first_token.unwrap()));
        }
        // A rank computes one thing at a time.
        for (number, replica) in (0..).zip(&record.replicas) {
            let steps = replica.step_starts.iter().zip(&replica.step_ends).map(|(&from, &to)| (from, to));
            let dummies = cluster.dummy_steps.iter().filter(|d| d.replica == number).map(|d| (d.from, d.to));
            let mut all: Vec<_> = steps.chain(dummies).collect();
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|w| w[0].1 <= w[1].0), "{all:?}");
        }
    }
}
