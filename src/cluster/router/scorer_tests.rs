//! Hand-worked scores (rules D20, D21): each scorer alone against a rival of known score.

use super::tests::{idle, plain, router, shares, target};
use super::*;
use crate::units::SimDuration;

fn scored(scorers: Vec<(Scorer, f64)>) -> Router {
    router(RouterPolicy::Scorers {
        scorers,
        picker: Picker::Max,
    })
}

/// How often each candidate is chosen by `scorer` alone: the chances of a weighted random picker are as the scores.
fn shares_of(scorer: Scorer, candidates: &[Candidate], asked: &Asked) -> Vec<f64> {
    let mut router = router(RouterPolicy::Scorers {
        scorers: vec![(scorer, 1.0)],
        picker: Picker::WeightedRandom,
    });
    let mut counts = vec![0.0; candidates.len()];
    for _ in 0..40_000 {
        let chosen = router.choose(SimTime::ZERO, asked, candidates);
        counts[chosen.expect("there are candidates")] += 1.0 / 40_000.0;
    }
    counts
}

fn assert_scores(scorer: Scorer, candidates: &[Candidate], expected: &[f64]) {
    let sum: f64 = expected.iter().sum();
    let found = shares_of(scorer.clone(), candidates, &plain(160));
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected / sum).abs() < 0.012,
            "{scorer:?}: {found} for {expected}/{sum}"
        );
    }
}

fn three(set: impl Fn(&mut Candidate, u32), values: [u32; 3]) -> Vec<Candidate> {
    let candidate = |(target, value)| {
        let mut candidate = idle(target);
        set(&mut candidate, value);
        candidate
    };
    (0..3).zip(values).map(candidate).collect()
}

#[test]
fn queue_and_running_scale_between_the_least_and_the_most() {
    let waiting = |values| three(|c, x| c.waiting = x, values);
    assert_scores(Scorer::Queue, &waiting([2, 10, 4]), &[1.0, 0.0, 0.75]);
    assert_scores(Scorer::Queue, &waiting([7, 7, 7]), &[1.0, 1.0, 1.0]);
    let running = three(|c, x| c.running = x, [10, 0, 5]);
    assert_scores(Scorer::Running, &running, &[0.0, 1.0, 0.5]);
}

#[test]
fn kv_usage_is_what_is_left_clamped_to_one() {
    let usage = |values| three(|c, percent| c.kv_usage = f64::from(percent) / 100.0, values);
    assert_scores(Scorer::KvUsage, &usage([20, 60, 100]), &[0.8, 0.4, 0.0]);
    let mut broken = usage([150, 60, 0]);
    broken[2].kv_usage = f64::NAN;
    assert_scores(Scorer::KvUsage, &broken, &[0.0, 0.4, 0.0]);
    broken[0].kv_usage = -3.0;
    assert_scores(Scorer::KvUsage, &broken, &[1.0, 0.4, 0.0]);
}

#[test]
fn load_aware_halves_and_ends_at_128() {
    let waiting = three(|c, x| c.waiting = x, [0, 32, 200]);
    assert_scores(Scorer::LoadAware, &waiting, &[0.5, 0.375, 0.0]);
    // Half at the most: against 0.45 by prefix on the other, it still wins, against 0.55 it does not.
    let race = |cached| {
        let mut candidates = three(|_, _| (), [0; 3]);
        candidates[1].waiting = 128;
        candidates[2].waiting = 128;
        candidates[1].cached_tokens = cached;
        let scorers = vec![(Scorer::LoadAware, 1.0), (Scorer::Prefix(Index::Precise), 1.0)];
        target(&mut scored(scorers), &plain(100), &candidates)
    };
    assert_eq!((race(45), race(55)), (0, 1));
}

#[test]
fn active_requests_leave_a_gap_between_idle_and_busy() {
    let in_flight = three(|c, x| c.in_flight = x, [0, 4, 8]);
    let scorer = |factor, idle| Scorer::ActiveRequest { factor, idle };
    assert_scores(scorer(1.0, 0), &in_flight, &[1.0, 0.5, 0.0]);
    assert_scores(scorer(0.4, 0), &in_flight, &[1.0, 0.2, 0.0]);
    assert_scores(scorer(0.4, 4), &in_flight, &[1.0, 1.0, 0.0]);
}

#[test]
fn token_load_ends_at_four_mebitokens() {
    let tokens = three(
        |c, x| c.in_flight_tokens = u64::from(x),
        [1 << 20, 3 << 20, 5 << 20],
    );
    assert_scores(Scorer::TokenLoad, &tokens, &[0.75, 0.25, 0.0]);
}

#[test]
fn precise_prefix_is_the_cached_share_of_the_prompt() {
    let cached = three(|c, x| c.cached_tokens = x, [160, 80, 0]);
    assert_scores(Scorer::Prefix(Index::Precise), &cached, &[1.0, 0.5, 0.0]);
    let mut router = scored(vec![(Scorer::Prefix(Index::Precise), 1.0)]);
    assert!(router.wants_cached_tokens());
    assert_eq!(target(&mut router, &plain(100), &cached), 0);
    assert_eq!(router.believed_cached(), 100, "never more than the prompt");
}

#[test]
fn a_sum_weighs_scores_and_the_highest_wins() {
    // Queue 1, 0, 0.75; prefix 0, 1, 0.5. With weights 2 and 3: 2, 3, 3. With 2 and 2.5: 2, 2.5, 2.75.
    let mut candidates = three(|c, x| c.waiting = x, [2, 10, 4]);
    for (candidate, cached) in candidates.iter_mut().zip([0, 160, 80]) {
        candidate.cached_tokens = cached;
    }
    let sum = |prefix| {
        scored(vec![
            (Scorer::Queue, 2.0),
            (Scorer::Prefix(Index::Precise), prefix),
        ])
    };
    assert_eq!(target(&mut sum(2.5), &plain(160), &candidates), 2);
    assert_eq!(target(&mut sum(5.0), &plain(160), &candidates), 1);
    // Random among equals (D20), and only among them.
    let mut equal = sum(3.0);
    let mut counts = [0; 3];
    for _ in 0..2000 {
        counts[target(&mut equal, &plain(160), &candidates) as usize] += 1;
    }
    assert_eq!(counts[0], 0);
    assert!(counts[1] > 900 && counts[2] > 900, "{counts:?}");
}

#[test]
fn a_session_goes_where_it_was_served_last() {
    let asked = |session| Asked {
        session: Some(session),
        ..plain(8)
    };
    let mut router = scored(vec![(Scorer::SessionAffinity, 1.0), (Scorer::Queue, 0.5)]);
    let free = |target: u32| three(|c, x| c.waiting = x, [0, 1, 2].map(|t| u32::from(t != target)));
    assert_eq!(target(&mut router, &asked(1), &free(2)), 2);
    assert_eq!(target(&mut router, &asked(2), &free(0)), 0);
    assert_eq!(target(&mut router, &asked(1), &free(1)), 2);
    // Its cache is lost: the token still names it. It is gone: the queue decides, and the token changes.
    router.left(2);
    assert_eq!(target(&mut router, &asked(1), &free(1)), 2);
    assert_eq!(target(&mut router, &asked(1), &free(1)[..2]), 1);
    assert_eq!(target(&mut router, &asked(1), &free(2)), 1);
}

#[test]
fn cold_requests_go_round_by_last_use_and_warm_ones_are_not_ranked() {
    let index = Index::Approximate {
        block_size: 16,
        capacity_blocks: 100,
        ttl: None,
    };
    let mut router = scored(vec![(Scorer::NoHitLru, 1.0), (Scorer::Prefix(index), 0.1)]);
    let all = [idle(0), idle(1), idle(2)];
    // Never used: by number. Each group is cold once.
    assert_eq!(target(&mut router, &shares(1, 64, 64), &all), 0);
    assert_eq!(target(&mut router, &shares(2, 64, 64), &all), 1);
    // Warm: 0.5 for all, and the prefix decides. It is no use as to cold requests.
    assert_eq!(target(&mut router, &shares(1, 64, 64), &all), 0);
    assert_eq!(router.believed_cached(), 64);
    assert_eq!(target(&mut router, &shares(3, 64, 64), &all), 2);
    assert_eq!(target(&mut router, &shares(4, 64, 64), &all), 0);
    // A new one comes before all that were used; so does one whose cache is lost.
    let more = [idle(0), idle(1), idle(2), idle(3)];
    assert_eq!(target(&mut router, &plain(64), &more), 3);
    router.left(0);
    assert_eq!(target(&mut router, &plain(64), &more), 0);
    assert_eq!(target(&mut router, &plain(64), &more), 1);
    // The steps are equal: of four, 1, 2/3, 1/3, 0. Without a prefix scorer all requests are cold.
    let mut alone = scored(vec![(Scorer::NoHitLru, 1.0)]);
    let round: Vec<_> = (0..5)
        .map(|_| target(&mut alone, &shares(1, 64, 64), &more))
        .collect();
    assert_eq!(round, [0, 1, 2, 3, 0]);
}

#[test]
fn requests_of_one_instant_herd_on_the_approximate_index() {
    // D22: the index knows at the decision, so the second request of a group follows the first at once, although
    // nothing is computed yet.
    let index = Index::Approximate {
        block_size: 16,
        capacity_blocks: 100,
        ttl: Some(SimDuration::from_millis(1)),
    };
    let mut router = scored(vec![(Scorer::Prefix(index), 1.0)]);
    let all: Vec<_> = (0..8).map(idle).collect();
    let first = target(&mut router, &shares(1, 40, 64), &all);
    assert_eq!(router.believed_cached(), 0);
    assert_eq!(target(&mut router, &shares(1, 40, 64), &all), first);
    assert_eq!(
        router.believed_cached(),
        32,
        "the block that straddles the end is not shared"
    );
}

#[test]
fn without_any_score_a_weighted_choice_is_even() {
    let candidates = three(|c, x| c.waiting = x, [200, 300, 400]);
    assert_scores(Scorer::LoadAware, &candidates, &[1.0, 1.0, 1.0]);
}
