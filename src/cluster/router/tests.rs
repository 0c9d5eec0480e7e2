//! Hand-worked choices of the policies without scorers, and what the tests of this module share.

use super::kv_cost::softmax_weights;
use super::*;
use crate::rng::{Purpose, stream};
use crate::units::SimDuration;

pub(super) fn router(policy: RouterPolicy) -> Router {
    Router::new(policy, stream(7, Purpose::Routing, 0))
}

/// An idle target.
pub(super) fn idle(target: u32) -> Candidate {
    Candidate {
        target,
        waiting: 0,
        running: 0,
        kv_usage: 0.0,
        in_flight: 0,
        in_flight_tokens: 0,
        prefill_tokens: 0,
        active_blocks: 0,
        cached_tokens: 0,
    }
}

/// A request of this many tokens without prefix and session.
pub(super) fn plain(input_tokens: u32) -> Asked {
    Asked {
        input_tokens,
        prefix: None,
        session: None,
        tenant: 0,
    }
}

pub(super) fn shares(group: u32, shared: u32, input_tokens: u32) -> Asked {
    Asked {
        prefix: Some((group, shared)),
        ..plain(input_tokens)
    }
}

/// The target chosen at time 0.
pub(super) fn target(router: &mut Router, asked: &Asked, candidates: &[Candidate]) -> u32 {
    let chosen = router
        .choose(SimTime::ZERO, asked, candidates)
        .expect("there are candidates");
    candidates[chosen].target
}

fn targets(router: &mut Router, candidates: &[Candidate], times: usize) -> Vec<u32> {
    (0..times)
        .map(|_| target(router, &plain(64), candidates))
        .collect()
}

fn loaded(target: u32, waiting: u32, running: u32, kv_usage: f64, in_flight: u32) -> Candidate {
    Candidate {
        waiting,
        running,
        kv_usage,
        in_flight,
        ..idle(target)
    }
}

#[test]
fn round_robin_goes_on_from_the_last_number_when_members_come_and_go() {
    let mut router = router(RouterPolicy::RoundRobin);
    let three = [idle(2), idle(5), idle(9)];
    assert_eq!(targets(&mut router, &three, 4), [2, 5, 9, 2]);
    // 5 is next; it leaves, so 9 is. 7 joins: 2, then 7.
    assert_eq!(targets(&mut router, &[idle(2), idle(9)], 2), [9, 2]);
    assert_eq!(
        targets(&mut router, &[idle(9), idle(7), idle(2)], 4),
        [7, 9, 2, 7]
    );
    let last = [idle(0), idle(u32::MAX)];
    assert_eq!(targets(&mut router, &last, 3), [u32::MAX, 0, u32::MAX]);
}

#[test]
fn least_outstanding_takes_the_fewest_in_flight_and_of_equals_the_lowest_target() {
    let mut router = router(RouterPolicy::LeastOutstanding);
    // The scraped figures, stale, say the opposite.
    let candidates = [
        loaded(3, 0, 0, 0.0, 2),
        loaded(4, 9, 9, 0.9, 1),
        loaded(1, 9, 9, 0.9, 1),
    ];
    assert_eq!(target(&mut router, &plain(1), &candidates), 1);
}

#[test]
fn random_gives_each_its_share_and_power_of_two_never_the_fullest() {
    let candidates = [
        loaded(0, 0, 0, 0.0, 0),
        loaded(1, 0, 0, 0.0, 1),
        loaded(2, 0, 0, 0.0, 2),
    ];
    let count = |policy| {
        let mut counts = [0_i32; 3];
        for chosen in targets(&mut router(policy), &candidates, 6000) {
            counts[chosen as usize] += 1;
        }
        counts
    };
    let near = |count: i32, expected: i32| (count - expected).abs() < 150;
    let random = count(RouterPolicy::Random);
    assert!(random.iter().all(|&c| near(c, 2000)), "{random:?}");
    // Of the pairs 01, 02, 12 the less loaded: 0, 0, 1.
    let two = count(RouterPolicy::PowerOfTwo);
    assert!(near(two[0], 4000) && near(two[1], 2000) && two[2] == 0, "{two:?}");
}

#[test]
fn a_draw_depends_on_how_many_calls_came_before_and_not_on_what_they_chose_from() {
    let index = Index::Precise;
    let policies = [
        RouterPolicy::Random,
        RouterPolicy::PowerOfTwo,
        RouterPolicy::Scorers {
            scorers: vec![(Scorer::Queue, 1.0)],
            picker: Picker::Max,
        },
        RouterPolicy::KvCost {
            overlap_weight: 1.0,
            temperature: 1.0,
            block_size: 16,
            index,
        },
        RouterPolicy::SessionAffinity {
            load_bound: None,
            virtual_nodes: 8,
        },
    ];
    let many: Vec<_> = (0..50).map(idle).collect();
    for policy in policies {
        let (mut one, mut other) = (router(policy.clone()), router(policy));
        for n in 0..40 {
            let _ = one.choose(SimTime::ZERO, &plain(8), &many[..n % 3]);
            let _ = other.choose(SimTime::ZERO, &plain(8), &many[..n]);
        }
        assert_eq!(targets(&mut one, &many, 20), targets(&mut other, &many, 20));
    }
}

#[test]
fn vllm_up_to_0_25_1_scores_four_waiting_plus_running() {
    let policy = RouterPolicy::VllmDp {
        clients: 2,
        before_0_28: true,
    };
    let mut router = Router::one_client(policy, 0, stream(7, Purpose::Routing, 0));
    // Scores 4*1+2 = 6 and 0+7 = 7; what is in flight does not count.
    let candidates = [loaded(0, 1, 2, 0.9, 99), loaded(1, 0, 7, 0.0, 0)];
    assert_eq!(target(&mut router, &plain(1), &candidates), 0);
    // Target 0 now waits 1 + 2 clients: 14 > 7. Target 1 then is at 4*2+7 = 15 > 14, and 0 at 4*5+2 = 22 > 15.
    assert_eq!(targets(&mut router, &candidates, 3), [1, 0, 1]);
    router.snapshot();
    assert_eq!(target(&mut router, &plain(1), &candidates), 0);
    // Raised by the number of clients, 2: 0 < 9, 4*2 = 8 < 9, 4*4 = 16 > 9.
    router.snapshot();
    let empty = [loaded(0, 0, 0, 0.0, 0), loaded(1, 0, 9, 0.0, 0)];
    assert_eq!(targets(&mut router, &empty, 3), [0, 0, 1]);
}

#[test]
fn vllm_from_0_28_scores_what_is_own_what_is_known_and_pressure_on_the_cache() {
    let policy = |clients| RouterPolicy::VllmDp {
        clients,
        before_0_28: false,
    };
    let one = |clients, client| Router::one_client(policy(clients), client, stream(7, Purpose::Routing, 0));
    // max(4*1, 0+3) = 4 against max(4*0, 2+1) + 6*2*max(0, 0.4-0.5) = 3.
    let candidates = [loaded(0, 0, 3, 0.0, 1), loaded(1, 2, 1, 0.4, 0)];
    assert_eq!(target(&mut one(4, 0), &plain(1), &candidates), 1);
    // Two waiting at 75 % of the cache: 3 + 6*2*0.25 = 6 > 4.
    let full = [candidates[0], loaded(1, 2, 1, 0.75, 0)];
    assert_eq!(target(&mut one(4, 0), &plain(1), &full), 0);
    // Nothing waits: a full cache costs nothing. max(4, 3) = 4 against 3.
    let running = [candidates[0], loaded(1, 0, 3, 1.0, 0)];
    assert_eq!(target(&mut one(4, 0), &plain(1), &running), 1);
    // The pressure begins above one half: 20 + 6*20*0 < 21, and 20 + 6*20*0.01 = 21.2 > 21.
    let half = |kv_usage| [loaded(0, 0, 21, 0.0, 0), loaded(1, 20, 0, kv_usage, 0)];
    assert_eq!(target(&mut one(4, 0), &plain(1), &half(0.5)), 1);
    assert_eq!(target(&mut one(4, 0), &plain(1), &half(0.51)), 0);
    // The local raise counts in both terms: after one choice target 1 has 4 waiting, 4 + 6*4*0.5 = 16 > 10.
    let raised = [loaded(0, 0, 10, 0.0, 0), loaded(1, 0, 0, 1.0, 0)];
    assert_eq!(targets(&mut one(4, 0), &raised, 2), [1, 0]);
    // One client alone: 4*2 = 8 > 5. All in one router: in flight is what they have together, 2 < 5.
    let flying = [loaded(0, 0, 0, 0.0, 2), loaded(1, 0, 5, 0.0, 0)];
    assert_eq!(target(&mut one(4, 0), &plain(1), &flying), 1);
    assert_eq!(target(&mut router(policy(4)), &plain(1), &flying), 0);
}

#[test]
fn the_scan_of_a_vllm_client_starts_at_its_own_offset_and_ties_go_to_the_first_scanned() {
    let policy = RouterPolicy::VllmDp {
        clients: 4,
        before_0_28: false,
    };
    let ranks: Vec<_> = (10..18).map(idle).collect();
    for client in 0..4 {
        let mut router = Router::one_client(policy.clone(), client, stream(7, Purpose::Routing, 0));
        // 8 ranks * client / 4.
        let start = 2 * client;
        let expected: Vec<_> = (0..8).map(|step| 10 + (start + step) % 8).collect();
        assert_eq!(targets(&mut router, &ranks, 8), expected);
    }
    // Together and in turn, each with raises of its own: all start at their offsets, then each takes its next one.
    let mut together = router(policy);
    assert_eq!(
        targets(&mut together, &ranks, 8),
        [10, 12, 14, 16, 11, 13, 15, 17]
    );
    // A new snapshot begins anew; a rank that left is not among the candidates.
    together.snapshot();
    together.left(10);
    assert_eq!(targets(&mut together, &ranks[1..], 4), [11, 12, 14, 16]);
}

fn kv_cost(temperature: f64, index: Index) -> Router {
    router(RouterPolicy::KvCost {
        overlap_weight: 1.0,
        temperature,
        block_size: 16,
        index,
    })
}

/// A prompt of 160 tokens. Target 0: (96 + 160 - 128)/16 + 30 = 38. Target 1: (0 + 160)/16 + 24 = 34. Target 2:
/// (24 + 160 - 64)/16 + 29 = 36.5.
fn three_workers() -> [Candidate; 3] {
    let worker = |target, prefill_tokens, cached_tokens, active_blocks| Candidate {
        prefill_tokens,
        cached_tokens,
        active_blocks,
        ..idle(target)
    };
    [worker(0, 96, 128, 30), worker(1, 0, 0, 24), worker(2, 24, 64, 29)]
}

#[test]
fn kv_cost_adds_prefill_and_decode_blocks() {
    let mut router = kv_cost(0.0, Index::Precise);
    assert!(router.wants_cached_tokens());
    assert_eq!(target(&mut router, &plain(160), &three_workers()), 1);
    assert_eq!(router.believed_cached(), 0);
    // Four decode blocks more there, 38, and the half block decides: 36.5.
    let mut busier = three_workers();
    busier[1].active_blocks = 28;
    assert_eq!(target(&mut router, &plain(160), &busier), 2);
    assert_eq!(router.believed_cached(), 64);
    // Prefill twice as dear: 8*2+30 = 46, 10*2+24 = 44, 7.5*2+29 = 44; the lower target of equals.
    let mut dear = super::Router::new(
        RouterPolicy::KvCost {
            overlap_weight: 2.0,
            temperature: 0.0,
            block_size: 16,
            index: Index::Precise,
        },
        stream(7, Purpose::Routing, 0),
    );
    assert_eq!(target(&mut dear, &plain(160), &three_workers()), 1);
}

#[test]
fn kv_cost_with_temperature_samples_a_softmax_of_costs_scaled_to_one() {
    // Costs 38, 34, 36.5 scale to 1, 0, 0.625; at temperature 0.5 the weights are e^-2, 1, e^-1.25.
    let expected = [(-2.0_f64).exp(), 1.0, (-1.25_f64).exp()];
    let weights = softmax_weights(&[38.0, 34.0, 36.5], 0.5);
    for (weight, expected) in weights.iter().zip(expected) {
        assert!((weight - expected).abs() < 1e-12);
    }
    let mut router = kv_cost(0.5, Index::Precise);
    let mut counts = [0.0; 3];
    for _ in 0..20_000 {
        counts[target(&mut router, &plain(160), &three_workers()) as usize] += 1.0;
    }
    let sum: f64 = expected.iter().sum();
    for (count, expected) in counts.iter().zip(expected) {
        assert!((count / 20_000.0 - expected / sum).abs() < 0.015, "{counts:?}");
    }
    // Equal costs: equal chances.
    assert!(
        softmax_weights(&[5.0, 5.0], 0.5)
            .iter()
            .all(|w| (w - 1.0).abs() < 1e-12)
    );
}

#[test]
fn kv_cost_learns_from_its_own_choices_and_forgets_after_the_ttl() {
    let ttl = SimDuration::from_millis(120_000);
    let mut router = kv_cost(
        0.0,
        Index::Approximate {
            block_size: 16,
            capacity_blocks: 1000,
            ttl: Some(ttl),
        },
    );
    assert!(!router.wants_cached_tokens());
    let workers = |busy: u32| {
        let mut two = [idle(0), idle(1)];
        two[0].active_blocks = busy;
        two
    };
    let asked = shares(3, 100, 160);
    let mut at = |secs: u64, busy| {
        let now = SimTime::ZERO + SimDuration::from_millis(1000 * secs);
        (
            router.choose(now, &asked, &workers(busy)),
            router.believed_cached(),
        )
    };
    assert_eq!(at(0, 0), (Some(0), 0));
    // 6 full blocks of the 100 shared tokens are believed there: (160 - 96)/16 + 5 = 9 < 10.
    assert_eq!(at(119, 5), (Some(0), 96));
    assert_eq!(at(119 + 119, 5), (Some(0), 96), "each use keeps them");
    assert_eq!(at(238 + 120, 5), (Some(1), 0), "120 s after the last");
}

#[test]
fn an_empty_list_has_no_choice() {
    for policy in [RouterPolicy::RoundRobin, RouterPolicy::PowerOfTwo] {
        assert_eq!(router(policy).choose(SimTime::ZERO, &plain(1), &[]), None);
    }
}
