use proptest::prelude::*;

use super::*;

fn secs(s: u64) -> SimTime {
    SimTime(s * 1_000_000_000)
}

fn config(surge: u32, max_unavailable: u32) -> RolloutConfig {
    RolloutConfig {
        at: SimTime::ZERO,
        surge,
        max_unavailable,
        canary: None,
        drain_timeout: SimDuration::from_millis(30_000),
    }
}

fn old(old_ready: u32) -> FleetState {
    FleetState {
        old_ready,
        ..FleetState::default()
    }
}

/// Does what it is told to at once; gives true when done.
fn apply(state: &mut FleetState, actions: &[Action]) -> bool {
    for &action in actions {
        match action {
            Action::StartNew(n) => state.new_starting += n,
            Action::StartOld(n) => state.old_starting += n,
            Action::DrainOld(n) => {
                let cancelled = n.min(state.old_starting);
                state.old_starting -= cancelled;
                state.old_ready -= n - cancelled;
                state.old_draining += n - cancelled;
            }
            Action::DrainNew(n) => {
                let cancelled = n.min(state.new_starting);
                state.new_starting -= cancelled;
                state.new_ready -= n - cancelled;
                state.new_draining += n - cancelled;
            }
            Action::RollBack
            | Action::CanaryPassed(_)
            | Action::CanaryFailed(_)
            | Action::CanaryUndecided(_) => {}
            Action::Done => return true,
        }
    }
    false
}

#[test]
fn a_surge_of_one_goes_one_by_one() {
    let mut rollout = Rollout::new(config(1, 0), 3).unwrap();
    let mut state = old(3);
    assert_eq!(rollout.next(secs(0), &state), [Action::StartNew(1)]);
    apply(&mut state, &[Action::StartNew(1)]);
    assert_eq!(rollout.next(secs(1), &state), []);
    (state.new_starting, state.new_ready) = (0, 1);
    assert_eq!(rollout.next(secs(2), &state), [Action::DrainOld(1)]);
    apply(&mut state, &[Action::DrainOld(1)]);
    // The draining group still holds its hardware.
    assert_eq!(rollout.next(secs(3), &state), []);
    state.old_draining = 0;
    assert_eq!(rollout.next(secs(4), &state), [Action::StartNew(1)]);
}

#[test]
fn without_surge_room_is_made_first() {
    let mut rollout = Rollout::new(config(0, 2), 5).unwrap();
    let mut state = old(5);
    assert_eq!(rollout.next(secs(0), &state), [Action::DrainOld(2)]);
    apply(&mut state, &[Action::DrainOld(2)]);
    state.old_draining = 1;
    assert_eq!(rollout.next(secs(1), &state), [Action::StartNew(1)]);
}

#[test]
fn both_bounds_are_used_as_in_a_deployment() {
    // 10 groups at 25 %: surge 3 (rounded up), 2 unavailable (rounded down): 3 start and 2 are drained at once.
    let mut rollout = Rollout::new(config(3, 2), 10).unwrap();
    let actions = rollout.next(secs(0), &old(10));
    assert_eq!(actions, [Action::StartNew(3), Action::DrainOld(2)]);
}

#[test]
fn a_new_revision_that_never_is_ready_leaves_the_rest_alone() {
    let mut rollout = Rollout::new(config(1, 1), 4).unwrap();
    let mut state = old(4);
    for s in 0..100 {
        let actions = rollout.next(secs(s), &state);
        apply(&mut state, &actions);
        state.old_draining = 0;
    }
    assert_eq!((state.old_ready, state.new_starting), (3, 2));
    assert_eq!(rollout.phase(), RolloutPhase::Rolling);
}

#[test]
fn a_canary_is_watched_before_the_rest_follows() {
    let canary = Canary {
        groups: 1,
        share: 0.1,
        hold: SimDuration::from_millis(60_000),
        analysis: None,
    };
    let with_canary = RolloutConfig {
        at: secs(10),
        canary: Some(canary),
        ..config(1, 0)
    };
    let mut rollout = Rollout::new(with_canary, 4).unwrap();
    let mut state = old(4);
    assert_eq!(
        (rollout.next(secs(9), &state), rollout.wake()),
        (vec![], Some(secs(10)))
    );
    assert_eq!(rollout.next(secs(10), &state), [Action::StartNew(1)]);
    assert_eq!((rollout.canary_share(), rollout.wake()), (None, None));
    (state.new_starting, state.new_ready) = (0, 1);
    assert_eq!(rollout.next(secs(20), &state), [Action::DrainOld(1)]);
    assert_eq!(
        (rollout.canary_share(), rollout.wake()),
        (Some(0.1), Some(secs(80)))
    );
    state.old_ready = 3;
    assert_eq!(rollout.next(secs(79), &state), []);
    // It fails, comes back, and is watched anew.
    state.new_ready = 0;
    assert_eq!(rollout.next(secs(79), &state), [Action::StartNew(1)]);
    assert_eq!(rollout.canary_share(), None);
    state.new_ready = 1;
    assert_eq!(rollout.next(secs(100), &state), []);
    assert_eq!(rollout.wake(), Some(secs(160)));
    assert_eq!(rollout.next(secs(160), &state), [Action::StartNew(1)]);
    assert_eq!(
        (rollout.phase(), rollout.canary_share()),
        (RolloutPhase::Rolling, None)
    );
}

#[test]
fn a_rejected_canary_is_rolled_back() {
    let canary = Canary {
        groups: 2,
        share: 0.5,
        hold: SimDuration::from_millis(60_000),
        analysis: None,
    };
    let with_canary = RolloutConfig {
        canary: Some(canary),
        ..config(1, 1)
    };
    let mut rollout = Rollout::new(with_canary, 4).unwrap();
    rollout.next(secs(0), &old(4));
    let mut state = FleetState {
        new_ready: 2,
        ..old(2)
    };
    assert_eq!(rollout.next(secs(10), &state), []);
    rollout.reject();
    let actions = rollout.next(secs(11), &state);
    assert_eq!(
        actions,
        [Action::RollBack, Action::StartOld(1), Action::DrainNew(1)]
    );
    apply(&mut state, &actions);
    (state.old_ready, state.old_starting, state.new_draining) = (3, 0, 0);
    let actions = rollout.next(secs(12), &state);
    assert_eq!(actions, [Action::StartOld(1), Action::DrainNew(1)]);
    apply(&mut state, &actions);
    (state.old_ready, state.old_starting, state.new_draining) = (4, 0, 0);
    assert_eq!(rollout.next(secs(13), &state), [Action::Done]);
    assert_eq!(rollout.next(secs(14), &state), []);
}

/// One group of four, watched for 60 s; a check every 20 s needs two requests of each revision, of which TTFT may double.
fn judged(undecided: Undecided) -> Rollout {
    let limits = CanaryLimits {
        ttft_ratio: Some(2.0),
        ..CanaryLimits::default()
    };
    let analysis = Analysis {
        interval: SimDuration::from_millis(20_000),
        min_requests: 2,
        undecided,
        progress_deadline: SimDuration::from_millis(300_000),
        ..Analysis::usual(limits)
    };
    let canary = Canary {
        groups: 1,
        share: 0.25,
        hold: SimDuration::from_millis(60_000),
        analysis: Some(analysis),
    };
    let config = RolloutConfig {
        canary: Some(canary),
        ..config(1, 0)
    };
    Rollout::new(config, 4).unwrap()
}

/// Two requests of each revision.
fn four(rollout: &mut Rollout, at_s: u64, new_ms: u64, old_ms: u64) {
    for (by_new, ttft) in [(true, new_ms), (false, old_ms)].repeat(2) {
        let ttft = SimDuration::from_millis(ttft);
        rollout.observe(Ended {
            at: secs(at_s),
            by_new,
            failed: false,
            latencies: [Some(ttft); 3],
        });
    }
}

/// The canary of [`judged`], ready at 10 s in the place of an old group.
fn watched(undecided: Undecided) -> (Rollout, FleetState) {
    let mut rollout = judged(undecided);
    rollout.next(secs(0), &old(4));
    let with_canary = FleetState {
        new_ready: 1,
        ..old(4)
    };
    assert_eq!(rollout.next(secs(10), &with_canary), [Action::DrainOld(1)]);
    assert_eq!((rollout.is_judging(), rollout.wake()), (true, Some(secs(30))));
    let state = FleetState {
        new_ready: 1,
        ..old(3)
    };
    (rollout, state)
}

#[test]
fn a_canary_that_holds_its_limits_is_followed_by_the_rest() {
    let (mut rollout, state) = watched(Undecided::Wait);
    four(&mut rollout, 12, 200, 100);
    assert_eq!(rollout.next(secs(30), &state), []);
    assert_eq!(rollout.wake(), Some(secs(50)));
    assert_eq!(rollout.next(secs(50), &state), []);
    // Watched until 70 s, where a third check is due, too.
    let actions = rollout.next(secs(70), &state);
    let [Action::CanaryPassed(evidence), Action::StartNew(1)] = actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!((evidence.passed, evidence.failed, evidence.unknown), (1, 0, 2));
    assert!(!rollout.is_judging() && !rollout.is_rolled_back());
}

#[test]
fn a_canary_that_breaks_a_limit_is_rolled_back_at_once() {
    let (mut rollout, mut state) = watched(Undecided::Wait);
    four(&mut rollout, 12, 201, 100);
    let actions = rollout.next(secs(30), &state);
    let [
        Action::CanaryFailed(evidence),
        Action::RollBack,
        Action::StartOld(1),
    ] = actions[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!((evidence.passed, evidence.failed), (0, 1));
    // Nothing is sent to it any more, but it counts as ready until an old one is.
    assert_eq!(rollout.canary_share(), Some(0.0));
    state.old_starting = 1;
    assert_eq!(rollout.next(secs(40), &state), []);
    (state.old_starting, state.old_ready) = (0, 4);
    assert_eq!(rollout.next(secs(50), &state), [Action::DrainNew(1)]);
    (state.new_ready, state.new_draining) = (0, 1);
    assert_eq!(rollout.next(secs(51), &state), []);
    state.new_draining = 0;
    assert_eq!(rollout.next(secs(52), &state), [Action::Done]);
    assert!(rollout.is_rolled_back());
}

#[test]
fn an_undecided_canary_does_what_it_was_told() {
    let undecided = |rollout: &mut Rollout, state: &FleetState| {
        rollout.next(secs(30), state);
        rollout.next(secs(50), state);
        let mut actions = rollout.next(secs(70), state);
        assert!(
            matches!(actions.remove(0), Action::CanaryUndecided(e) if (e.passed, e.failed, e.unknown) == (0, 0, 3))
        );
        actions
    };
    let (mut promoted, state) = watched(Undecided::Promote);
    assert_eq!(undecided(&mut promoted, &state), [Action::StartNew(1)]);
    let (mut back, state) = watched(Undecided::RollBack);
    assert_eq!(
        undecided(&mut back, &state),
        [Action::RollBack, Action::StartOld(1)]
    );
    // It waits for a check that can tell, and says so once.
    let (mut waits, state) = watched(Undecided::Wait);
    assert_eq!(undecided(&mut waits, &state), []);
    assert_eq!(waits.wake(), Some(secs(90)));
    assert_eq!(waits.next(secs(90), &state), []);
    four(&mut waits, 95, 100, 100);
    let actions = waits.next(secs(110), &state);
    assert!(
        matches!(actions[..], [Action::CanaryPassed(_), Action::StartNew(1)]),
        "{actions:?}"
    );
}

#[test]
fn a_canary_that_is_never_ready_fails_at_its_deadline() {
    let mut rollout = judged(Undecided::Promote);
    assert_eq!(rollout.next(secs(0), &old(4)), [Action::StartNew(1)]);
    let mut state = FleetState {
        new_starting: 1,
        ..old(4)
    };
    assert_eq!(rollout.next(secs(299), &state), []);
    assert_eq!(rollout.wake(), Some(secs(300)));
    let actions = rollout.next(secs(300), &state);
    let [
        Action::CanaryFailed(evidence),
        Action::RollBack,
        Action::DrainNew(1),
    ] = actions[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!(
        evidence.to_string(),
        "not ready for 300.000 s, its progress deadline"
    );
    state.new_starting = 0;
    assert_eq!(rollout.next(secs(301), &state), [Action::Done]);
}

#[test]
fn it_is_not_done_while_anything_drains() {
    let mut rollout = Rollout::new(config(1, 1), 2).unwrap();
    rollout.next(secs(0), &old(2));
    rollout.reject();
    // Drained before the rollback, and of the revision that stays.
    let mut state = FleetState {
        old_draining: 1,
        ..old(2)
    };
    assert_eq!(rollout.next(secs(1), &state), [Action::RollBack]);
    state.old_draining = 0;
    assert_eq!(rollout.next(secs(2), &state), [Action::Done]);
}

#[test]
fn rollouts_that_cannot_move_are_refused() {
    assert_eq!(Rollout::new(config(0, 0), 3), Err(RolloutError::Stuck));
    assert_eq!(Rollout::new(config(1, 0), 0), Err(RolloutError::NoGroups));
    let with = |groups, share| {
        let canary = Some(Canary {
            groups,
            share,
            hold: SimDuration::ZERO,
            analysis: None,
        });
        Rollout::new(
            RolloutConfig {
                canary,
                ..config(1, 0)
            },
            3,
        )
        .unwrap_err()
    };
    assert_eq!(with(4, 0.5), RolloutError::CanaryGroups { groups: 4, total: 3 });
    assert_eq!(with(0, 0.5), RolloutError::CanaryGroups { groups: 0, total: 3 });
    assert!(matches!(with(1, f64::NAN), RolloutError::CanaryShare(_)));
    assert_eq!(with(1, 1.5), RolloutError::CanaryShare(1.5));
}

/// What happens to the fleet between two calls: so many of each become ready, end their drain, or die.
#[derive(Debug, Clone, Copy)]
struct Fate {
    ready: u32,
    drained: u32,
    dies: Option<bool>,
    reject: bool,
    /// Requests of the new revision and of the old one, with these TTFTs in ms.
    served: [u64; 2],
}

fn fate() -> impl Strategy<Value = Fate> {
    let dies = prop_oneof![9 => Just(None), 1 => any::<bool>().prop_map(Some)];
    let served = [1u64..40, 1u64..40];
    (0u32..4, 0u32..4, dies, prop::bool::weighted(0.01), served).prop_map(
        |(ready, drained, dies, reject, served)| Fate {
            ready,
            drained,
            dies,
            reject,
            served,
        },
    )
}

fn suffer(state: &mut FleetState, fate: Fate) {
    let moved = fate.ready.min(state.new_starting);
    (state.new_starting, state.new_ready) = (state.new_starting - moved, state.new_ready + moved);
    let moved = fate.ready.min(state.old_starting);
    (state.old_starting, state.old_ready) = (state.old_starting - moved, state.old_ready + moved);
    state.old_draining -= fate.drained.min(state.old_draining);
    state.new_draining -= fate.drained.min(state.new_draining);
    match fate.dies {
        Some(true) => state.new_ready = state.new_ready.saturating_sub(1),
        Some(false) => state.old_ready = state.old_ready.saturating_sub(1),
        None => {}
    }
}

proptest! {
    #[test]
    fn both_bounds_hold_and_it_ends(
        total in 1u32..20,
        surge in 0u32..5,
        max_unavailable in 0u32..5,
        canary in prop::option::of((1u32..20, 0u64..30)),
        judged in prop::option::of((1u64..9, 0u32..3, 0u64..60)),
        fates in prop::collection::vec(fate(), 0..60),
    ) {
        prop_assume!(surge + max_unavailable > 0);
        let canary = canary.map(|(groups, hold)| Canary {
            groups: 1 + groups % total,
            share: 0.2,
            hold: SimDuration::from_millis(1000 * hold.max(judged.map_or(0, |(interval, ..)| interval))),
            analysis: judged.map(|(interval, failure_limit, deadline)| Analysis {
                interval: SimDuration::from_millis(1000 * interval),
                min_requests: 2,
                failure_limit,
                progress_deadline: SimDuration::from_millis(1000 * deadline),
                ..Analysis::usual(CanaryLimits { ttft_ratio: Some(1.5), ..CanaryLimits::default() })
            }),
        });
        let config = RolloutConfig { canary, ..config(surge, max_unavailable) };
        let mut rollout = Rollout::new(config, total).unwrap();
        let mut state = old(total);
        let calm = Fate { ready: 1, drained: 1, dies: None, reject: false, served: [20, 20] };
        let rest = std::iter::repeat_n(calm, 1000);
        let mut done = false;
        for (s, fate) in fates.into_iter().chain(rest).enumerate() {
            suffer(&mut state, fate);
            if fate.reject {
                rollout.reject();
            }
            four(&mut rollout, s as u64, fate.served[0], fate.served[1]);
            let before = state;
            done = apply(&mut state, &rollout.next(secs(s as u64), &before));
            prop_assert!(state.existing() <= total + surge);
            // Deaths may lead below; the rollout itself never does.
            let least = total.saturating_sub(max_unavailable).min(before.ready());
            prop_assert!(state.ready() >= least, "{before:?} {state:?}");
            if done {
                break;
            }
        }
        prop_assert!(done, "{state:?}");
        let (ready, gone) = if rollout.is_rolled_back() { (state.old_ready, state.new_ready) } else { (state.new_ready, state.old_ready) };
        prop_assert_eq!((ready, gone, state.existing()), (total, 0, total));
    }
}
