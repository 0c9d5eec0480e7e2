use proptest::prelude::*;

use super::*;

fn secs(s: u64) -> SimTime {
    SimTime(s * 1_000_000_000)
}

fn span(s: u64) -> SimDuration {
    SimDuration::from_millis(s * 1000)
}

/// Acts at once, on what is there now.
fn eager(metric: ScaleMetric, target: f64, max_groups: u32) -> AutoscalerConfig {
    AutoscalerConfig {
        up: ScaleRule::default(),
        down: ScaleRule::default(),
        ..AutoscalerConfig::kubernetes(metric, target, 1, max_groups)
    }
}

fn per(max: MaxStep, s: u64) -> StepLimit {
    StepLimit { max, per: span(s) }
}

fn kv(ready: u32, kv_usage: f64) -> Observed {
    Observed {
        ready,
        reading: Reading {
            ready,
            kv_usage,
            ..Reading::default()
        },
        ..Observed::default()
    }
}

fn waiting(ready: u32, starting: u32, waiting: u64) -> Observed {
    Observed {
        ready,
        starting,
        reading: Reading {
            ready,
            waiting,
            ..Reading::default()
        },
        ..Observed::default()
    }
}

fn first(config: AutoscalerConfig, observed: &Observed) -> Option<i32> {
    Autoscaler::new(config).unwrap().decide(SimTime::ZERO, observed)
}

/// Applies each decision at once; gives the sizes after each interval of 15 s.
fn sizes(
    scaler: &mut Autoscaler,
    mut current: u32,
    steps: u64,
    kv_usage: impl Fn(u64, u32) -> f64,
) -> Vec<u32> {
    let mut seen = Vec::new();
    for step in 0..steps {
        let observed = kv(current, kv_usage(step, current));
        let change = scaler.decide(secs(15 * step), &observed).unwrap_or(0);
        current = u32::try_from(i64::from(current) + i64::from(change)).unwrap();
        seen.push(current);
    }
    seen
}

#[test]
fn the_formula_is_that_of_the_hpa() {
    // "Algorithm details": 200m of a target of 100m doubles the pods, 50m halves them.
    let doubled = eager(ScaleMetric::KvUsage, 0.1, 100);
    assert_eq!(first(doubled.clone(), &kv(5, 0.2)), Some(5));
    assert_eq!(first(doubled, &kv(6, 0.05)), Some(-3));
    // Kubernetes blog on v1.33: 50 * (90 / 75) = 60.
    assert_eq!(
        first(eager(ScaleMetric::KvUsage, 0.75, 100), &kv(50, 0.9)),
        Some(10)
    );
    // Rounded up: 3 * 0.5 / 0.4 = 3.75.
    assert_eq!(first(eager(ScaleMetric::KvUsage, 0.4, 100), &kv(3, 0.5)), Some(1));
}

#[test]
fn within_the_tolerance_nothing_changes() {
    let config = eager(ScaleMetric::KvUsage, 0.5, 100);
    for (usage, change) in [(0.55, None), (0.45, None), (0.556, Some(2)), (0.44, Some(-1))] {
        assert_eq!(first(config.clone(), &kv(10, usage)), change, "{usage}");
    }
}

#[test]
fn whole_numbers_are_not_rounded_up_by_rounding_errors() {
    // In floating point 10 * 0.9 / 0.3 = 30.000000000000004.
    assert_eq!(
        first(eager(ScaleMetric::KvUsage, 0.3, 100), &kv(10, 0.9)),
        Some(20)
    );
}

#[test]
fn sums_and_means_are_told_apart() {
    let reading = Reading {
        ready: 4,
        waiting: 30,
        waiting_at_gateway: 0,
        running: 100,
        in_flight: 130,
        kv_usage: 0.6,
        requests_per_s: 12.0,
        oldest_waiting: span(10),
    };
    let observed = Observed {
        ready: 4,
        reading,
        ..Observed::default()
    };
    let wanted = |metric, target| first(eager(metric, target, 1000), &observed);
    assert_eq!(wanted(ScaleMetric::WaitingPerGroup, 5.0), Some(2));
    assert_eq!(wanted(ScaleMetric::RunningPerGroup, 20.0), Some(1));
    assert_eq!(wanted(ScaleMetric::InFlightPerGroup, 13.0), Some(6));
    assert_eq!(wanted(ScaleMetric::RequestRate, 1.5), Some(4));
    assert_eq!(wanted(ScaleMetric::KvUsage, 0.4), Some(2));
    assert_eq!(wanted(ScaleMetric::QueueAge, 5.0), Some(4));
}

/// So many groups that are ready and were read, run without having told anything, and are pending, which need so many
/// groups in all.
fn of_groups(ready: u32, missing: u32, pending: u32, needed: u64) -> Observed {
    Observed {
        pending,
        ..waiting(ready, missing + pending, 10 * needed)
    }
}

/// Kubernetes, "Algorithm details": pods that are not ready are set aside, and when that would scale up, "the controller
/// conservatively assumes that not-yet-ready pods are consuming 0% of the desired metric, further dampening the magnitude
/// of a scale up". Pods that miss metrics are assumed to be "at 100% of the desired value in case of a scale down, and 0%
/// in case of a scale up". And "if the new ratio reverses the scale direction, or is within the tolerance, the controller
/// doesn't take any scaling action".
#[test]
fn groups_without_metrics_are_assumed_to_change_least() {
    let config = AutoscalerConfig {
        source: MetricSource::Pods,
        ..eager(ScaleMetric::WaitingPerGroup, 10.0, 100)
    };
    let decided =
        |ready, missing, pending, needed| first(config.clone(), &of_groups(ready, missing, pending, needed));
    // All told: 4 * 1.5 = 6.
    assert_eq!(decided(4, 0, 0, 6), Some(2));
    // Up, pending: 6 needed of 4 and 1 at 0: 6 / 5 = 1.2, so 6 again, of which one is there already.
    assert_eq!(decided(4, 0, 1, 6), Some(1));
    // Up, missing: the same.
    assert_eq!(decided(4, 1, 0, 6), Some(1));
    // Up, but with those that come it is enough (6 / 6), or more than that (6 / 8 turns round): nothing.
    assert_eq!(decided(4, 1, 1, 6), None);
    assert_eq!(decided(4, 2, 2, 6), None);
    // Down, pending: they are left out: 4 ready at half the target need 2 of the 6 there are.
    assert_eq!(decided(4, 0, 2, 2), Some(-4));
    // Down, missing: two more are assumed at the target: (2 + 2) / 6, so 4.
    assert_eq!(decided(4, 2, 0, 2), Some(-2));
    // At the target: four that come are not sent away. Divided among all it would be half of it.
    assert_eq!(decided(4, 0, 4, 4), None);
    let external = AutoscalerConfig {
        source: MetricSource::External,
        ..config.clone()
    };
    assert_eq!(first(external, &of_groups(4, 0, 4, 4)), Some(-4));
    // "did not receive metrics for any ready pods".
    assert_eq!(decided(0, 3, 0, 9), None);
}

/// The gateway's queue is in nobody's own metrics.
#[test]
fn groups_tell_of_their_own_queues() {
    let config = AutoscalerConfig {
        source: MetricSource::Pods,
        ..eager(ScaleMetric::WaitingPerGroup, 10.0, 100)
    };
    let mut observed = waiting(2, 0, 60);
    observed.reading.waiting_at_gateway = 40;
    assert_eq!(first(config.clone(), &observed), None);
    observed.reading.waiting_at_gateway = 30;
    assert_eq!(first(config.clone(), &observed), Some(1));
    let of_the_gateway = AutoscalerConfig {
        metric: ScaleMetric::QueueAge,
        ..config
    };
    assert_eq!(of_the_gateway.check(), Err(ScaleConfigError::NotOfGroups));
}

/// A controller that begins records the size as its first recommendation (`recordInitialRecommendation` of Kubernetes'
/// horizontal.go), so an empty pool is not sent home before the window of 300 s has passed.
#[test]
fn nothing_is_taken_away_before_a_whole_window_has_passed() {
    let config = AutoscalerConfig::kubernetes(ScaleMetric::KvUsage, 0.5, 1, 10);
    let mut scaler = Autoscaler::new(config).unwrap();
    for step in 0..20 {
        assert_eq!(scaler.decide(secs(15 * step), &kv(4, 0.0)), None, "{step}");
    }
    assert_eq!(scaler.decide(secs(300), &kv(4, 0.0)), Some(-3));
}

/// Eight groups and a surge of two, at the load of eight: 8 / 10 is outside the tolerance, and asks for the eight that the
/// pool is to have anyway. The ceiling is on those eight, too.
#[test]
fn the_surge_of_a_rollout_is_not_too_many_groups() {
    let config = eager(ScaleMetric::WaitingPerGroup, 10.0, 8);
    let rolling = |needed| Observed {
        rolled: Some(8),
        ..of_groups(8, 2, 0, needed)
    };
    assert_eq!(first(config.clone(), &rolling(8)), None);
    assert_eq!(first(config.clone(), &rolling(6)), Some(-2));
    let larger = AutoscalerConfig {
        max_groups: 20,
        ..config
    };
    assert_eq!(first(larger, &rolling(12)), Some(4));
}

/// While a fault makes metrics stale nothing newer is seen, and what was seen once is not forgotten.
#[test]
fn stale_metrics_reach_the_autoscaler_late() {
    let mut scaler = Autoscaler::new(eager(ScaleMetric::WaitingPerGroup, 4.0, 100)).unwrap();
    let stale = |load| Observed {
        stale_by: span(60),
        ..waiting(2, 0, load)
    };
    assert_eq!(scaler.decide(secs(0), &waiting(2, 0, 8)), None);
    for s in [15, 30, 45, 60] {
        assert_eq!(scaler.decide(secs(s), &stale(40)), None, "{s}");
    }
    assert_eq!(scaler.decide(secs(75), &stale(40)), Some(8));
}

#[test]
fn what_is_ordered_is_not_ordered_again() {
    // 40 waiting at 4 a group need 10 groups; 2 serve and take minutes to be helped.
    let mut scaler = Autoscaler::new(eager(ScaleMetric::WaitingPerGroup, 4.0, 100)).unwrap();
    assert_eq!(scaler.decide(secs(0), &waiting(2, 0, 40)), Some(8));
    for step in 1..40 {
        assert_eq!(scaler.decide(secs(15 * step), &waiting(2, 8, 40)), None);
    }
    // Draining groups are no capacity.
    let drained = Observed {
        draining: 3,
        ..waiting(2, 5, 40)
    };
    assert_eq!(scaler.decide(secs(900), &drained), Some(3));
}

#[test]
fn metrics_are_as_old_as_they_are() {
    let config = AutoscalerConfig {
        metric_age: span(30),
        ..eager(ScaleMetric::WaitingPerGroup, 4.0, 100)
    };
    let mut scaler = Autoscaler::new(config).unwrap();
    assert_eq!(scaler.decide(secs(0), &waiting(2, 0, 8)), None);
    assert_eq!(scaler.decide(secs(15), &waiting(2, 0, 40)), None);
    // Sees the calm of time 0, then the 40 of 15 s, though all is over by now.
    assert_eq!(scaler.decide(secs(30), &waiting(2, 0, 0)), None);
    assert_eq!(scaler.decide(secs(45), &waiting(2, 0, 0)), Some(8));
    // A reading between decisions is seen when it is old enough, not a whole interval later.
    scaler.observe(secs(50), waiting(2, 0, 48).reading);
    assert_eq!(scaler.decide(secs(80), &waiting(2, 8, 0)), Some(2));
}

#[test]
fn the_way_down_looks_back_at_the_highest() {
    let mut scaler =
        Autoscaler::new(AutoscalerConfig::kubernetes(ScaleMetric::KvUsage, 0.5, 1, 100)).unwrap();
    // Busy once at time 0, then nearly idle: 10 groups stay for 300 s (until step 20).
    let seen = sizes(&mut scaler, 10, 30, |step, _| if step == 0 { 0.5 } else { 0.1 });
    assert_eq!(seen[..20], [10; 20]);
    assert_eq!(seen[20], 2);
}

#[test]
fn the_way_up_looks_back_at_the_lowest() {
    let config = AutoscalerConfig {
        up: ScaleRule {
            stabilization: span(60),
            ..ScaleRule::default()
        },
        ..eager(ScaleMetric::WaitingPerGroup, 1.0, 100)
    };
    let mut scaler = Autoscaler::new(config).unwrap();
    let seen: Vec<_> = [2, 9, 8, 9, 9]
        .into_iter()
        .enumerate()
        .map(|(step, load)| scaler.decide(secs(15 * step as u64), &waiting(2, 0, load)))
        .collect();
    assert_eq!(seen, [None, None, None, None, Some(6)]);
}

#[test]
fn the_speed_down_is_that_of_the_hpa() {
    // "Scaling policies": from 80, at most 10 % or 4 pods a minute, whichever is more: 8 of 80, then 10 % of 72 = 7.2,
    // rounded up to 8; from 40 on 4 at a time.
    let config = AutoscalerConfig {
        interval: span(60),
        down: ScaleRule {
            limits: vec![per(MaxStep::Groups(4), 60), per(MaxStep::Percent(10), 60)],
            ..ScaleRule::default()
        },
        ..AutoscalerConfig {
            min_groups: 10,
            ..eager(ScaleMetric::KvUsage, 0.8, 100)
        }
    };
    let mut scaler = Autoscaler::new(config).unwrap();
    let (mut current, mut seen) = (80, Vec::new());
    for minute in 0..17 {
        let change = scaler.decide(secs(60 * minute), &kv(current, 0.01)).unwrap_or(0);
        current = current.checked_add_signed(change).unwrap();
        seen.push(current);
    }
    assert_eq!(
        seen,
        [72, 64, 57, 51, 45, 40, 36, 32, 28, 24, 20, 16, 12, 10, 10, 10, 10]
    );
}

#[test]
fn the_speed_up_counts_what_the_period_already_added() {
    let limits = vec![per(MaxStep::Groups(4), 60), per(MaxStep::Percent(100), 60)];
    let rule = |select| ScaleRule {
        limits: limits.clone(),
        select,
        ..ScaleRule::default()
    };
    let run = |select| {
        let config = AutoscalerConfig {
            up: rule(select),
            ..eager(ScaleMetric::KvUsage, 0.5, 100)
        };
        sizes(&mut Autoscaler::new(config).unwrap(), 1, 9, |_, _| 1.0e3)
    };
    // By most: 1 + 4, after a minute 5 doubled, after two 10 doubled. By least: 1 doubled, 2 doubled, 4 + 4.
    assert_eq!(run(Select::Most), [5, 5, 5, 5, 10, 10, 10, 10, 20]);
    assert_eq!(run(Select::Least), [2, 2, 2, 2, 4, 4, 4, 4, 8]);
}

#[test]
fn a_limit_of_none_forbids_a_direction() {
    let config = AutoscalerConfig {
        down: ScaleRule {
            limits: vec![per(MaxStep::Groups(0), 60)],
            ..ScaleRule::default()
        },
        ..eager(ScaleMetric::KvUsage, 0.5, 100)
    };
    assert_eq!(first(config, &kv(10, 0.0)), None);
}

#[test]
fn it_rests_after_a_change() {
    let config = AutoscalerConfig {
        cooldown: span(60),
        ..eager(ScaleMetric::WaitingPerGroup, 1.0, 100)
    };
    let mut scaler = Autoscaler::new(config).unwrap();
    assert_eq!(scaler.decide(secs(0), &waiting(1, 0, 2)), Some(1));
    assert_eq!(scaler.decide(secs(45), &waiting(2, 0, 9)), None);
    assert_eq!(scaler.decide(secs(60), &waiting(2, 0, 9)), Some(7));
    assert_eq!((scaler.changes(), scaler.reversals()), (2, 0));
    assert_eq!(scaler.decide(secs(120), &waiting(9, 0, 1)), Some(-8));
    assert_eq!((scaler.changes(), scaler.reversals()), (3, 1));
}

#[test]
fn spare_groups_stay_beside_the_need() {
    let config = AutoscalerConfig {
        spare: 2,
        ..eager(ScaleMetric::WaitingPerGroup, 4.0, 100)
    };
    assert_eq!(first(config.clone(), &waiting(3, 0, 40)), Some(9));
    assert_eq!(first(config.clone(), &waiting(12, 0, 40)), None);
    assert_eq!(first(config.clone(), &waiting(12, 0, 0)), Some(-10));
    // Fewer groups than the spare ones.
    assert_eq!(first(config, &waiting(1, 0, 4)), Some(2));
}

#[test]
fn a_pool_outside_its_bounds_comes_back_at_once() {
    let config = AutoscalerConfig {
        min_groups: 3,
        cooldown: span(1000),
        ..AutoscalerConfig::kubernetes(ScaleMetric::KvUsage, 0.5, 3, 8)
    };
    assert_eq!(first(config.clone(), &kv(0, f64::NAN)), Some(3));
    assert_eq!(first(config.clone(), &kv(20, 1.0)), Some(-12));
    assert_eq!(first(config, &kv(5, f64::NAN)), None);
}

#[test]
fn it_decides_at_its_interval_only() {
    let mut scaler = Autoscaler::new(eager(ScaleMetric::WaitingPerGroup, 1.0, 9)).unwrap();
    assert_eq!(scaler.decide(secs(0), &waiting(1, 0, 1)), None);
    assert_eq!(scaler.next_at(), secs(15));
    assert_eq!(scaler.decide(secs(14), &waiting(1, 0, 9)), None);
    assert_eq!(scaler.decide(secs(15), &waiting(1, 0, 9)), Some(8));
}

#[test]
fn configurations_that_make_no_sense_are_refused() {
    let good = eager(ScaleMetric::KvUsage, 0.5, 9);
    let refused = |change: &dyn Fn(&mut AutoscalerConfig)| {
        let mut config = good.clone();
        change(&mut config);
        Autoscaler::new(config).unwrap_err()
    };
    assert!(matches!(
        refused(&|c| c.target = 0.0),
        ScaleConfigError::Target(_)
    ));
    assert!(matches!(
        refused(&|c| c.target = f64::NAN),
        ScaleConfigError::Target(_)
    ));
    assert!(matches!(
        refused(&|c| c.tolerance = -0.1),
        ScaleConfigError::Tolerance(_)
    ));
    assert_eq!(refused(&|c| c.min_groups = 0), ScaleConfigError::NoFloor);
    assert_eq!(
        refused(&|c| c.min_groups = 10),
        ScaleConfigError::Bounds { min: 10, max: 9 }
    );
    assert_eq!(refused(&|c| c.interval = span(0)), ScaleConfigError::Interval);
    assert_eq!(
        refused(&|c| c.up.limits.push(per(MaxStep::Groups(1), 0))),
        ScaleConfigError::Period
    );
}

#[test]
fn a_schedule_is_followed() {
    let plan = Schedule::new(vec![(secs(10), 4), (secs(20), 2)]).unwrap();
    let mut policy = ScalePolicy::Schedule(plan);
    let three = waiting(2, 1, 0);
    let changes: Vec<_> = [9, 10, 19, 20].map(|s| policy.decide(secs(s), &three)).into();
    assert_eq!(changes, [None, Some(1), Some(1), Some(-1)]);
    assert_eq!(policy.decide(secs(12), &waiting(3, 1, 0)), None);
    let next: Vec<_> = [0, 10, 20].map(|s| policy.next_at(secs(s))).into();
    assert_eq!(next, [Some(secs(10)), Some(secs(20)), None]);
    assert_eq!(
        Schedule::new(vec![(secs(1), 1), (secs(1), 2)]),
        Err(ScheduleError::Order { index: 1 })
    );
    assert_eq!(
        Schedule::new(vec![(secs(1), 0)]),
        Err(ScheduleError::Groups { index: 0, groups: 0 })
    );
    assert_eq!(ScalePolicy::Fixed.decide(secs(1), &three), None);
    assert_eq!(ScalePolicy::Fixed.next_at(secs(1)), None);
}

fn rule() -> impl Strategy<Value = ScaleRule> {
    let max = prop_oneof![
        (0u32..6).prop_map(MaxStep::Groups),
        (0u32..150).prop_map(MaxStep::Percent)
    ];
    let limit = (max, 1u64..90).prop_map(|(max, s)| per(max, s));
    let select = prop_oneof![Just(Select::Most), Just(Select::Least)];
    (0u64..120, prop::collection::vec(limit, 0..3), select).prop_map(|(s, limits, select)| ScaleRule {
        stabilization: span(s),
        limits,
        select,
    })
}

fn config() -> impl Strategy<Value = AutoscalerConfig> {
    let bounds = (1u32..5, 0u32..30, 0u32..3);
    (bounds, rule(), rule(), 0u64..60, 0u64..60, 0.5f64..8.0).prop_map(
        |((min, more, spare), up, down, cooldown, age, target)| AutoscalerConfig {
            up,
            down,
            spare,
            cooldown: span(cooldown),
            metric_age: span(age),
            ..AutoscalerConfig::kubernetes(ScaleMetric::WaitingPerGroup, target, min, min + more)
        },
    )
}

/// Checks that a change in the direction of a single limit never brings the pool further from where it was one period
/// before than the limit allows. What was undone within the period may be done again, as in Kubernetes.
fn within_limit(limit: StepLimit, orders: &[(SimTime, u32, i32)], up: bool) -> bool {
    orders.iter().enumerate().all(|(i, &(now, before, change))| {
        if change == 0 || (change > 0) != up {
            return true;
        }
        let first = orders.iter().position(|&(at, _, _)| now.since(at) < limit.per);
        let start = i64::from(orders[first.unwrap_or(i)].1);
        let most = match limit.max {
            MaxStep::Groups(groups) => i64::from(groups),
            MaxStep::Percent(percent) => (start * i64::from(percent) + 99) / 100,
        };
        let gone = i64::from(before) + i64::from(change) - start;
        if up { gone <= most } else { -gone <= most }
    })
}

proptest! {
    /// Ready groups come late and die at random; the order never leads out of the bounds.
    #[test]
    fn it_stays_within_its_bounds_and_its_speed(
        config in config(),
        loads in prop::collection::vec((0u64..200, 0u32..3, prop::bool::weighted(0.1)), 1..80),
    ) {
        let (min, max) = (config.min_groups, config.max_groups);
        let mut scaler = Autoscaler::new(config).unwrap();
        let (mut ready, mut starting) = (min, 0u32);
        for (step, &(load, arrive, dies)) in loads.iter().enumerate() {
            let arrive = arrive.min(starting);
            (ready, starting) = (ready + arrive, starting - arrive);
            ready -= u32::from(dies && ready > 0);
            let now = secs(15 * step as u64);
            if let Some(change) = scaler.decide(now, &waiting(ready, starting, load)) {
                prop_assert!(change != 0);
                let after = i64::from(ready + starting) + i64::from(change);
                prop_assert!((i64::from(min)..=i64::from(max)).contains(&after), "{after}");
                match u32::try_from(change) {
                    Ok(more) => starting += more,
                    Err(_) => {
                        let fewer = change.unsigned_abs();
                        let cancelled = fewer.min(starting);
                        (starting, ready) = (starting - cancelled, ready - (fewer - cancelled));
                    }
                }
            }
        }
    }

    /// Of a single limit, whatever the load, a change stays within it.
    #[test]
    fn changes_are_bounded_by_the_limits(
        up in (0u32..6, 1u64..90),
        down in (0u32..60, 1u64..90),
        loads in prop::collection::vec(0u64..400, 1..80),
    ) {
        let up = per(MaxStep::Groups(up.0), up.1);
        let down = per(MaxStep::Percent(down.0), down.1);
        let rule = |limit| ScaleRule { limits: vec![limit], ..ScaleRule::default() };
        let config = AutoscalerConfig {
            up: rule(up),
            down: rule(down),
            ..AutoscalerConfig::kubernetes(ScaleMetric::WaitingPerGroup, 4.0, 1, 100)
        };
        let mut scaler = Autoscaler::new(config).unwrap();
        let (mut current, mut seen) = (5, Vec::new());
        for (step, &load) in loads.iter().enumerate() {
            let now = secs(15 * step as u64);
            let change = scaler.decide(now, &waiting(current, 0, load)).unwrap_or(0);
            seen.push((now, current, change));
            current = current.checked_add_signed(change).unwrap();
        }
        prop_assert!(within_limit(up, &seen, true));
        prop_assert!(within_limit(down, &seen, false));
    }

    /// A metric at its target, or within the tolerance of it, never changes anything.
    #[test]
    fn a_constant_metric_at_its_target_changes_nothing(
        mut config in config(),
        size in 0u32..30,
        off in -0.1f64..0.1,
    ) {
        config.metric = ScaleMetric::KvUsage;
        config.spare = 0;
        let size = config.min_groups + size % (config.max_groups - config.min_groups + 1);
        let usage = config.target * (1.0 + off);
        let mut scaler = Autoscaler::new(config).unwrap();
        for step in 0..60 {
            prop_assert_eq!(scaler.decide(secs(15 * step), &kv(size, usage)), None);
        }
    }

    /// A constant load is settled on once and then left alone: nothing is undone.
    #[test]
    fn a_constant_load_is_never_thrashed(config in config(), load in 0u64..300, start in 0u32..30) {
        let mut current = config.min_groups + start % (config.max_groups - config.min_groups + 1);
        let mut scaler = Autoscaler::new(config).unwrap();
        for step in 0..400 {
            let change = scaler.decide(secs(15 * step), &waiting(current, 0, load)).unwrap_or(0);
            current = current.checked_add_signed(change).unwrap();
        }
        prop_assert_eq!(scaler.reversals(), 0);
    }
}
