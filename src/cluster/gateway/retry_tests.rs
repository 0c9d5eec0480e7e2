//! Budgets count exactly, waits double up to their cap.

use proptest::prelude::*;

use rand_pcg::Pcg64;

use super::MILLION;
use super::retry::*;
use crate::rng::{Purpose, stream};
use crate::units::{SimDuration, SimTime};

fn rng() -> Pcg64 {
    stream(1, Purpose::Routing, 0)
}

#[test]
fn only_what_is_named_is_retried_and_only_so_often() {
    let retry_on = RetryOn {
        failed: true,
        timed_out: false,
        rejected: true,
    };
    let policy = RetryPolicy {
        attempts: 3,
        retry_on,
        ..RetryPolicy::default()
    };
    assert!(policy.wants(1, Cause::Failed) && policy.wants(2, Cause::Rejected));
    assert!(!policy.wants(3, Cause::Failed) && !policy.wants(1, Cause::TimedOut));
    let all = RetryOn {
        failed: true,
        timed_out: true,
        rejected: true,
    };
    assert!(
        !RetryPolicy {
            retry_on: all,
            ..RetryPolicy::default()
        }
        .wants(1, Cause::Failed)
    );
}

#[test]
fn waits_double_up_to_the_cap_and_draw_nothing_without_a_jitter() {
    let policy = RetryPolicy {
        backoff_base: SimDuration::from_millis(100),
        backoff_cap: SimDuration::from_millis(750),
        ..RetryPolicy::default()
    };
    let mut r = rng();
    let waits: Vec<u64> = [2, 3, 4, 5, 6, 66, 67, u32::MAX]
        .map(|a| policy.backoff(a, &mut r).as_nanos() / 1_000_000)
        .to_vec();
    assert_eq!(waits, [100, 200, 400, 750, 750, 750, 750, 750]);
    assert_eq!(r, rng());
    let none = RetryPolicy {
        backoff_base: SimDuration::ZERO,
        ..policy
    };
    assert_eq!(none.backoff(u32::MAX, &mut r), SimDuration::ZERO);
}

#[test]
fn jitter_spreads_a_wait_evenly_below_its_full_length() {
    let policy = RetryPolicy {
        backoff_base: SimDuration(1_000_000),
        jitter: 0.25,
        ..RetryPolicy::default()
    };
    let mut r = rng();
    let waits: Vec<u64> = (0..10_000)
        .map(|_| policy.backoff(2, &mut r).as_nanos())
        .collect();
    assert!(waits.iter().all(|wait| (750_000..=1_000_000).contains(wait)));
    let mean = waits.iter().sum::<u64>() / 10_000;
    assert!((872_000..878_000).contains(&mean), "{mean}");
    // The whole range of a wait of any length.
    let endless = RetryPolicy {
        backoff_base: SimDuration(u64::MAX),
        jitter: 1.0,
        ..policy
    };
    let _ = endless.backoff(9, &mut r);
}

#[test]
fn a_fifth_of_ten_is_two_and_the_third_waits_for_five_more() {
    let policy = RetryPolicy {
        budget_ratio: Some(0.2),
        ..RetryPolicy::default()
    };
    let mut budget = policy.budget().expect("a ratio");
    assert!(
        !budget.may_retry(SimTime(0)),
        "nothing is owed before the first attempt"
    );
    (0..10).for_each(|_| budget.first_attempt());
    assert!(budget.may_retry(SimTime(0)) && budget.may_retry(SimTime(0)) && !budget.may_retry(SimTime(0)));
    (0..4).for_each(|_| budget.first_attempt());
    assert!(!budget.may_retry(SimTime(0)));
    budget.first_attempt();
    assert!(budget.may_retry(SimTime(0)));
    assert_eq!(
        (budget.first_attempts(), budget.granted(), budget.refused()),
        (15, 3, 3)
    );
}

#[test]
fn a_floor_by_the_second_helps_where_traffic_is_thin() {
    let policy = RetryPolicy {
        budget_ratio: Some(0.0),
        min_retries_per_s: 2.0,
        ..RetryPolicy::default()
    };
    let mut budget = policy.budget().expect("a rate");
    let mut at = |ms: u64| budget.may_retry(SimTime(ms * 1_000_000));
    assert!(at(0) && at(0) && !at(0));
    assert!(!at(499) && at(500) && !at(500));
    assert!(
        at(9_000) && at(9_000) && !at(9_000),
        "a second's worth is saved, not nine"
    );
}

#[test]
fn savings_are_capped_and_no_ratio_is_no_budget() {
    let policy = RetryPolicy {
        budget_ratio: Some(0.5),
        budget_max: Some(3),
        ..RetryPolicy::default()
    };
    let mut budget = policy.budget().expect("a ratio");
    (0..1_000_000).for_each(|_| budget.first_attempt());
    assert_eq!((0..10).filter(|_| budget.may_retry(SimTime(0))).count(), 3);
    let mut free = RetryPolicy::default().budget().expect("no budget");
    assert!((0..1000).all(|_| free.may_retry(SimTime(0))));
}

#[test]
fn hedges_are_due_after_the_last_copy_until_there_are_enough() {
    let hedge = HedgePolicy {
        after: SimDuration(50),
        max_extra: 2,
        budget_ratio: Some(0.01),
    };
    assert_eq!(hedge.next_at(SimTime(100), 0), Some(SimTime(150)));
    assert_eq!(hedge.next_at(SimTime(150), 1), Some(SimTime(200)));
    assert_eq!(hedge.next_at(SimTime(200), 2), None);
    let mut budget = hedge.budget().expect("a ratio");
    (0..99).for_each(|_| budget.first_attempt());
    assert!(!budget.may_retry(SimTime(0)));
    budget.first_attempt();
    assert!(budget.may_retry(SimTime(0)) && !budget.may_retry(SimTime(0)));
}

#[test]
fn numbers_that_mean_nothing_are_refused_in_words() {
    let good = RetryPolicy::default();
    assert_eq!(good.check(), Ok(()));
    for bad in [
        RetryPolicy { attempts: 0, ..good },
        RetryPolicy { jitter: 1.5, ..good },
        RetryPolicy {
            jitter: f64::NAN,
            ..good
        },
        RetryPolicy {
            budget_ratio: Some(-0.1),
            ..good
        },
        RetryPolicy {
            min_retries_per_s: f64::INFINITY,
            ..good
        },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
    let text = RetryPolicy { jitter: 1.5, ..good }
        .check()
        .expect_err("too much")
        .to_string();
    assert_eq!(text, "the jitter of a backoff is 1.5; it must be between 0 and 1");
}

/// One retry in 1e-15.
const RETRY: u128 = 1_000_000_000_000_000;

proptest! {
    #[test]
    fn retries_never_exceed_ratio_and_floor(
        ratio in 0_u64..3_000_000, rate in 0_u64..5_000_000, most in prop::option::of(0_u32..5),
        steps in prop::collection::vec((any::<bool>(), 0_u64..300_000_000), 1..200),
    ) {
        let policy = RetryPolicy {
            budget_ratio: Some(ratio as f64 / 1e6),
            min_retries_per_s: rate as f64 / 1e6,
            budget_max: most,
            ..RetryPolicy::default()
        };
        let mut budget = policy.budget().expect("in range");
        let mut now = 0;
        for (first, gap) in steps {
            now += gap;
            if first {
                budget.first_attempt();
            } else {
                let before = budget.granted();
                let granted = budget.may_retry(SimTime(now));
                prop_assert_eq!(budget.granted() - before, u64::from(granted));
                // Without a cap nothing is refused that the ratio would pay for.
                let earned = u128::from(ratio) * u128::from(budget.first_attempts());
                prop_assert!(granted || most.is_some() || u128::from(before + 1) * 1_000_000 > earned);
            }
            // In 1e-15 of a retry, so that no side is rounded.
            let floor = if rate == 0 { 0 } else { u128::from((rate / MILLION).max(1)) * RETRY };
            let most = u128::from(ratio) * u128::from(budget.first_attempts()) * 1_000_000_000
                + floor + u128::from(rate) * u128::from(now);
            prop_assert!(u128::from(budget.granted()) * RETRY <= most);
        }
    }
}
