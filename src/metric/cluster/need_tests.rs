use approx::assert_relative_eq;

use super::*;
use crate::metric::cluster::fixture::{S, at, group};

const WINDOW: SimDuration = SimDuration(10 * S);

fn rule(group_requests: u32, min_groups: u32) -> NeedRule {
    NeedRule {
        group_requests: Some(group_requests),
        min_groups,
        target_utilisation: 1.0,
    }
}

/// A rank with steps of (start, end, requests, free blocks of 100) in seconds.
fn rank(steps: &[(u64, u64, u64, u32)]) -> RankWork {
    let mut rank = RankWork::default();
    for &(start, end, requests, free) in steps {
        let step = StepWork {
            start: at(start),
            end: at(end),
            requests,
            free_blocks: Some(free),
        };
        assert!(rank.count(step, WINDOW, 100));
    }
    rank
}

fn work(ranks: &[RankWork], end: u64) -> PoolWork {
    let mut work = PoolWork::new(WINDOW, at(end));
    for rank in ranks {
        work.add(rank, 100, 1);
    }
    work
}

fn two_ready() -> [GroupRecord; 2] {
    [0, 1].map(|n| group(0, n, &[(0, Phase::Ready)]))
}

#[test]
fn a_request_that_keeps_a_group_busy_needs_one_and_a_burst_needs_both() {
    // Of 4 requests a group: one request at each of two groups for 20 s, then 5 and 3, then nothing. All is busy throughout.
    let ranks = [
        rank(&[(0, 20, 1, 99), (20, 30, 5, 95)]),
        rank(&[(0, 20, 1, 99), (20, 30, 3, 97)]),
    ];
    let work = work(&ranks, 40);
    let beyond_s = |rule: &NeedRule| work.beyond_need(two_ready().iter(), rule) * 3_600.0;
    // One is beyond need for 20 s, none for 10 s, both for 10 s; of the last, one is the floor.
    assert_relative_eq!(beyond_s(&rule(4, 0)), 40.0, max_relative = 1e-9);
    assert_relative_eq!(beyond_s(&rule(4, 1)), 30.0, max_relative = 1e-9);
    assert_relative_eq!(beyond_s(&rule(4, 3)), 0.0);
    // Groups of one request each need both while there are two.
    assert_relative_eq!(beyond_s(&rule(1, 0)), 20.0, max_relative = 1e-9);
    // Half full is what they may be: 8 requests of 2 each.
    let half = NeedRule {
        target_utilisation: 0.125,
        ..rule(4, 0)
    };
    assert_relative_eq!(beyond_s(&half), 20.0, max_relative = 1e-9);
    // Busy time, as of prefill groups, cannot tell.
    let busy = NeedRule {
        group_requests: None,
        ..rule(4, 0)
    };
    assert_relative_eq!(beyond_s(&busy), 20.0, max_relative = 1e-9);
}

#[test]
fn kv_in_use_needs_groups_too() {
    // Two requests that fill 70 blocks of 100 each need both groups, though one has seats for both.
    let full = work(&[rank(&[(0, 10, 1, 30)]), rank(&[(0, 10, 1, 30)])], 10);
    assert_relative_eq!(full.beyond_need(two_ready().iter(), &rule(64, 0)), 0.0);
    let half = work(&[rank(&[(0, 10, 1, 50)]), rank(&[(0, 10, 1, 50)])], 10);
    assert_relative_eq!(
        half.beyond_need(two_ready().iter(), &rule(64, 0)),
        10.0 / 3_600.0,
        max_relative = 1e-9
    );
}

#[test]
fn a_short_pause_is_the_hosts_and_a_long_one_is_without_work() {
    // 2 s of pause after 4 s of step: 6 requests hold on until 6 s, those of the next until its end; then nobody is there.
    let paused = rank(&[(0, 4, 6, 100), (6, 8, 3, 100), (15, 16, 3, 100)]);
    let of = |k: usize| paused.windows[k];
    assert_eq!(of(0).requests, u128::from(S) * (6 * 6 + 2 * 3));
    assert_eq!(of(0).busy, 6 * S);
    assert_eq!((of(1).requests, of(1).busy), (u128::from(S) * 3, S));
    // Steps that overlap, as those of pipeline stages do, count once.
    let overlapping = rank(&[(0, 4, 1, 100), (2, 6, 1, 100)]);
    assert_eq!(overlapping.windows[0].busy, 6 * S);
}

#[test]
fn windows_have_an_end() {
    let mut rank = RankWork::default();
    let step = |start: u64, end: u64| StepWork {
        start: at(start),
        end: at(end),
        requests: 1,
        free_blocks: None,
    };
    assert!(rank.count(step(0, 25), WINDOW, 3));
    assert_eq!(
        rank.windows.iter().map(|w| w.busy).collect::<Vec<_>>(),
        [10 * S, 10 * S, 5 * S]
    );
    assert!(!rank.count(step(29, 31), WINDOW, 3));
}
