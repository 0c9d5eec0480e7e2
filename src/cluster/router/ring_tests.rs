//! Consistent hashing and its bound (rule D41).

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::tests::{idle, plain, router, target};
use super::*;

fn ring(load_bound: Option<f64>) -> Router {
    router(RouterPolicy::SessionAffinity {
        load_bound,
        virtual_nodes: 100,
    })
}

fn of(session: u32) -> Asked {
    Asked {
        session: Some(session),
        ..plain(8)
    }
}

fn owners(router: &mut Router, members: &[u32], sessions: u32) -> Vec<u32> {
    let candidates: Vec<_> = members.iter().copied().map(idle).collect();
    (0..sessions)
        .map(|session| target(router, &of(session), &candidates))
        .collect()
}

#[test]
fn sessions_are_spread_and_stay() {
    let mut router = ring(None);
    let members: Vec<_> = (0..10).collect();
    let first = owners(&mut router, &members, 10_000);
    for member in &members {
        let share = first.iter().filter(|owner| *owner == member).count();
        assert!((600..1500).contains(&share), "{share} of 10000 at {member}");
    }
    assert_eq!(owners(&mut router, &members, 10_000), first);
    // Another router, another order of the list, an earlier departure: the same places.
    let mut other = ring(None);
    let reversed: Vec<_> = members.iter().copied().rev().chain([99]).collect();
    let _ = owners(&mut other, &reversed, 10);
    other.left(99);
    assert_eq!(owners(&mut other, &reversed[..10], 10_000), first);
}

#[test]
fn the_places_are_the_same_on_every_machine_and_release() {
    // Worked out apart from this code: SplitMix64 of targets, nodes and sessions, sorted.
    let expected = [1, 0, 0, 3, 3, 2, 2, 1, 3, 2, 1, 2];
    assert_eq!(owners(&mut ring(None), &[0, 1, 2, 3], 12), expected);
}

#[test]
fn requests_without_a_session_go_anywhere() {
    let candidates: Vec<_> = (0..4).map(idle).collect();
    let mut router = ring(None);
    let mut counts = [0; 4];
    for _ in 0..4000 {
        counts[target(&mut router, &plain(8), &candidates) as usize] += 1;
    }
    assert!(counts.iter().all(|&count| count > 500), "{counts:?}");
}

#[test]
fn a_full_target_is_passed_over_and_its_session_returns() {
    let mut router = ring(Some(1.25));
    let mut candidates: Vec<_> = (0..4).map(idle).collect();
    let home = target(&mut router, &of(5), &candidates);
    // 15 in flight and this one: ceil(1.25 * 16/4) = 5 is full, 4 is not.
    for candidate in &mut candidates {
        candidate.in_flight = if candidate.target == home { 4 } else { 0 };
    }
    let busy = (home as usize + 1) % 4;
    candidates[busy].in_flight = 11;
    assert_eq!(target(&mut router, &of(5), &candidates), home);
    candidates[busy].in_flight = 10;
    candidates[home as usize].in_flight = 5;
    let away = target(&mut router, &of(5), &candidates);
    assert_ne!(away, home);
    assert_eq!(candidates[away as usize].in_flight, 0);
    candidates[home as usize].in_flight = 0;
    assert_eq!(target(&mut router, &of(5), &candidates), home);
}

#[test]
fn one_hot_session_fills_targets_up_to_the_bound_only() {
    for bound in [1.0, 1.25, 2.0, f64::NAN, -3.0] {
        let mut router = ring(Some(bound));
        let mut candidates: Vec<_> = (0..7).map(idle).collect();
        for sent in 1..=500_u32 {
            let chosen = router
                .choose(SimTime::ZERO, &of(1), &candidates)
                .expect("never all full");
            candidates[chosen].in_flight += 1;
            let limit = (bound.max(1.0) * f64::from(sent) / 7.0).ceil();
            assert!(f64::from(candidates[chosen].in_flight) <= limit);
        }
    }
}

proptest! {
    #[test]
    fn only_sessions_of_the_changed_one_move(
        members in prop::collection::btree_set(0_u32..1000, 2..20),
        which in any::<prop::sample::Index>(),
        tell in any::<bool>(),
    ) {
        let all: Vec<_> = members.into_iter().collect();
        let gone = *which.get(&all);
        let rest: Vec<_> = all.iter().copied().filter(|&member| member != gone).collect();
        let mut router = ring(None);
        let before = owners(&mut router, &all, 500);
        if tell {
            router.left(gone);
        }
        let after = owners(&mut router, &rest, 500);
        let mut moved = BTreeMap::new();
        for (old, new) in before.iter().zip(&after) {
            if *old == gone {
                prop_assert_ne!(*new, gone);
                *moved.entry(*new).or_insert(0) += 1;
            } else {
                prop_assert_eq!(old, new);
            }
        }
        // It joins again: the same the other way round.
        prop_assert_eq!(owners(&mut router, &all, 500), before);
    }
}
