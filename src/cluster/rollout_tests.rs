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
            Action::RollBack => {}
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
}

fn fate() -> impl Strategy<Value = Fate> {
    let dies = prop_oneof![9 => Just(None), 1 => any::<bool>().prop_map(Some)];
    (0u32..4, 0u32..4, dies, prop::bool::weighted(0.01)).prop_map(|(ready, drained, dies, reject)| Fate {
        ready,
        drained,
        dies,
        reject,
    })
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
        fates in prop::collection::vec(fate(), 0..60),
    ) {
        prop_assume!(surge + max_unavailable > 0);
        let canary = canary.map(|(groups, hold)| Canary {
            groups: 1 + groups % total,
            share: 0.2,
            hold: SimDuration::from_millis(1000 * hold),
        });
        let config = RolloutConfig { canary, ..config(surge, max_unavailable) };
        let mut rollout = Rollout::new(config, total).unwrap();
        let mut state = old(total);
        let calm = Fate { ready: 1, drained: 1, dies: None, reject: false };
        let rest = std::iter::repeat_n(calm, 1000);
        let (mut done, mut rejected) = (false, false);
        for (s, fate) in fates.into_iter().chain(rest).enumerate() {
            suffer(&mut state, fate);
            if fate.reject {
                rollout.reject();
                rejected = true;
            }
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
        let (ready, gone) = if rejected { (state.old_ready, state.new_ready) } else { (state.new_ready, state.old_ready) };
        prop_assert_eq!((ready, gone, state.existing()), (total, 0, total));
    }
}
