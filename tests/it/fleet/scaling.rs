//! Rollouts and autoscaling, by hand. A step takes 10 ms and 1 ms a prefill token; a group takes 20 ms to warm.

use super::*;
use kneeboard::cluster::autoscale::{Autoscaler, AutoscalerConfig, ScaleMetric, ScalePolicy, ScaleRule};
use kneeboard::cluster::fault::{Fallback, Fault, FaultKind};
use kneeboard::cluster::lifecycle::{Phase, RestartPlan, Stage};
use kneeboard::cluster::ratio::Ratio;
use kneeboard::cluster::rollout::{Canary, RolloutConfig};
use kneeboard::record::Status;
use kneeboard::sim::fleet::{Fate, PoolRollout};

pub const PRICE: Price = Price {
    step: 10 * MS,
    prefill_token: MS,
};

pub fn warming(groups: u32, max_groups: u32, warm: u64) -> FleetConfig {
    let mut config = unified(groups, roomy(8));
    config.pools[0].max_groups = max_groups;
    config.pools[0].start = RestartPlan {
        warm: ms(warm),
        ..RestartPlan::NOTHING
    };
    config
}

pub fn phases(cluster: &ClusterRecord, group: usize) -> Vec<(u64, Phase)> {
    let phases = cluster.groups[group].phases.iter();
    phases.map(|&(at, phase)| (at.0 / MS, phase)).collect()
}

pub const WARM: Phase = Phase::Starting(Stage::Warm);

fn rolling(config: &mut FleetConfig, canary: Option<Canary>) {
    let rollout = RolloutConfig {
        at: at_ms(50),
        surge: 1,
        max_unavailable: 0,
        canary,
        drain_timeout: ms(1_000),
    };
    let slowdown = Ratio::new(1, 2);
    config.rollouts = vec![(
        0,
        PoolRollout {
            config: rollout,
            slowdown,
        },
    )];
}

/// One more group than two at any time: new, old out, new, old out. Old streams end where they are.
#[test]
fn a_rolling_update_with_a_surge_of_one() {
    let mut config = warming(2, 3, 20);
    rolling(&mut config, None);
    // Groups 0 and 1 have streams until 40 + 20 + 8 * 10 = 140 and 41 + 20 + 40 = 101. Newest old ones go first.
    let rows = [
        (40, 10, 9),
        (41, 10, 5),
        (80, 10, 1),
        (90, 10, 1),
        (130, 10, 1),
        (200, 10, 1),
    ];
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&rows));
    assert!(record.requests.iter().all(|r| r.status == Status::Completed));
    // 50: group 2 starts. 70: it is ready, group 1 drains until 101. Then group 3 starts, is ready at 121, and group 0
    // drains; its stream ends at 140, or later if others were put there.
    assert_eq!(phases(&cluster, 2), [(50, WARM), (70, Phase::Ready)]);
    assert_eq!(
        phases(&cluster, 1),
        [(0, Phase::Ready), (70, Phase::Draining), (101, Phase::Stopped)]
    );
    assert_eq!(phases(&cluster, 3), [(101, WARM), (121, Phase::Ready)]);
    let revisions: Vec<_> = cluster.groups.iter().map(|g| g.revision).collect();
    assert_eq!(revisions, [0, 0, 1, 1]);
    // In turn after group 1: group 2 at 80, in half the time: 90. Group 0 at 90, in its step to 90, with which it begins
    // the next one: 110. So group 0's stream is at 60, 70, 80, 90, 110, ... 150.
    assert_eq!((record.requests[2].replica, tokens_ms(&record, 2)), (2, vec![90]));
    assert_eq!(
        (record.requests[3].replica, tokens_ms(&record, 3)),
        (0, vec![110])
    );
    assert_eq!(tokens_ms(&record, 0), [60, 70, 80, 90, 110, 120, 130, 140, 150]);
    assert_eq!(
        phases(&cluster, 0),
        [(0, Phase::Ready), (121, Phase::Draining), (150, Phase::Stopped)]
    );
    let later: Vec<_> = record.requests[4..].iter().map(|r| r.replica).collect();
    assert_eq!(later, [2, 3], "the new ones only");
    let last = told(&cluster).pop().unwrap();
    assert_eq!((last.0, last.1), (150, "rollout_done"));
}

/// A canary is watched for 100 ms and gets all of the traffic meanwhile; then the rest follows.
#[test]
fn a_canary_is_watched_before_the_rest_follows() {
    let mut config = warming(2, 3, 20);
    let canary = Canary {
        groups: 1,
        share: 1.0,
        hold: ms(100),
        analysis: None,
    };
    rolling(&mut config, Some(canary));
    let rows: Vec<_> = (0..30).map(|n| (10 * n, 1, 1)).collect();
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&rows));
    assert_eq!(phases(&cluster, 2), [(50, WARM), (70, Phase::Ready)]);
    assert_eq!(
        phases(&cluster, 1)[1].0,
        70,
        "the canary takes the place of an old one"
    );
    // Watched from 70 to 170, then group 3 starts.
    assert_eq!(phases(&cluster, 3), [(170, WARM), (190, Phase::Ready)]);
    for (r, &(at, ..)) in record.requests.iter().zip(&rows) {
        if at < 70 {
            assert!(r.replica < 2);
        } else if (80..170).contains(&at) {
            assert_eq!(r.replica, 2);
        }
    }
}

/// A burst that is over before the groups that it calls for are ready, and what they cost until they are sent away.
#[test]
fn a_scale_out_slower_than_its_burst_overshoots() {
    let mut config = warming(1, 4, 100);
    config.pools[0].engine = roomy(1);
    let scaler = AutoscalerConfig {
        interval: ms(20),
        up: ScaleRule::default(),
        down: ScaleRule {
            stabilization: ms(60),
            ..ScaleRule::default()
        },
        ..AutoscalerConfig::kubernetes(ScaleMetric::InFlightPerGroup, 2.0, 1, 4)
    };
    let scaler = ScalePolicy::Metric(Box::new(Autoscaler::new(scaler).unwrap()));
    config.scaling = vec![(0, scaler)];
    // Six of one step of 11 ms at 5: 16, 27, 38, 49, 60, 71. And one at 300, to see the end.
    let mut rows = vec![(5, 1, 1); 6];
    rows.push((300, 1, 1));
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&rows));
    let ends: Vec<_> = in_ms(record.requests.iter().map(|r| r.last_token.unwrap()));
    assert_eq!(ends, [16, 27, 38, 49, 60, 71, 311]);
    // 20: five in flight want ceil(5 / 2) = 3 groups. 40: three want 2, which counts down only when for 60 ms no more was
    // wanted: 60 ms after 20, at 80, the most of 40, 60, 80 is 2 (3 in flight at 40, 1 at 60, 0 at 80). 100: the most of 60,
    // 80, 100 is 1. So of the two groups that start at 20 one goes at 80 and one at 100, before they are ready at 120.
    let scaled: Vec<_> = told(&cluster)
        .into_iter()
        .filter(|t| t.1 == "scale")
        .map(|t| t.0)
        .collect();
    assert_eq!(scaled, [20, 80, 100]);
    assert_eq!(phases(&cluster, 1), [(20, WARM), (100, Phase::Stopped)]);
    assert_eq!(phases(&cluster, 2), [(20, WARM), (80, Phase::Stopped)]);
    assert!(
        record.requests.iter().all(|r| r.replica == 0),
        "they served nobody"
    );

    // With longer patience they become ready at 120, after the burst, and idle until they go.
    let mut slow = config.clone();
    let scaler = AutoscalerConfig {
        interval: ms(20),
        up: ScaleRule::default(),
        down: ScaleRule {
            stabilization: ms(160),
            ..ScaleRule::default()
        },
        ..AutoscalerConfig::kubernetes(ScaleMetric::InFlightPerGroup, 2.0, 1, 4)
    };
    slow.scaling = vec![(0, ScalePolicy::Metric(Box::new(Autoscaler::new(scaler).unwrap())))];
    let (record, cluster) = run_fleet(&slow, &PRICE, &trace(&rows));
    // 3 was wanted at 20: down to 2 at 180. 2 was wanted at 40: down to 1 at 200.
    let gone = |group| {
        [
            (20, WARM),
            (120, Phase::Ready),
            (group, Phase::Draining),
            (group, Phase::Stopped),
        ]
    };
    assert_eq!(phases(&cluster, 1), gone(200));
    assert_eq!(phases(&cluster, 2), gone(180));
    assert!(
        record.requests.iter().all(|r| r.replica == 0),
        "they served nobody"
    );
}

/// Each pool's rate is of what is sent to it, whoever else is scaled.
#[test]
fn pools_see_their_own_request_rates() {
    let mut config = prefill_decode(1, 1, roomy(8));
    for (pool, target) in [(0, 60.0), (1, 35.0)] {
        config.pools[pool].max_groups = 4;
        let scaler = AutoscalerConfig {
            interval: ms(100),
            up: ScaleRule::default(),
            ..AutoscalerConfig::kubernetes(ScaleMetric::RequestRate, target, 1, 4)
        };
        config.scaling.push((
            pool,
            ScalePolicy::Metric(Box::new(Autoscaler::new(scaler).unwrap())),
        ));
    }
    // Ten are sent by 100: 100 a second, ceil(100 / 60) = 2 prefill groups. One group prefills one in 11 ms, at 12, 23, ...
    // 89, and 100 is heard after that: 80 a second go to decode groups, ceil(80 / 35) = 3. Later rates are near that.
    let rows: Vec<_> = (0..20).map(|n| (10 * n + 1, 1, 1)).collect();
    let (_, cluster) = run_fleet(&config, &PRICE, &trace(&rows));
    let of_pool = |pool| cluster.groups.iter().filter(|g| g.pool == pool).count();
    assert_eq!((of_pool(0), of_pool(1)), (2, 3));
    let scaled = cluster.timeline.iter().filter(|t| t.event == "scale");
    let scaled: Vec<_> = scaled.map(|t| (t.at.0 / MS, t.what.as_str())).collect();
    assert_eq!(scaled, [(100, "prefill: +1 groups"), (100, "decode: +2 groups")]);
}

/// A fallback on a revision slows those of its groups that come later, too, while it lasts.
#[test]
fn a_kernel_fallback_slows_groups_of_its_revision_that_start_later() {
    let mut config = warming(1, 2, 20);
    rolling(&mut config, None);
    config.rollouts[0].1.slowdown = Ratio::ONE;
    config.faults = vec![Fault {
        at: at_ms(10),
        duration: Some(ms(290)),
        kind: FaultKind::KernelFallback {
            on: Fallback::Revision(1),
            factor: Ratio::new(2, 1),
        },
    }];
    let (record, _) = run_fleet(&config, &PRICE, &trace(&[(0, 5, 1), (100, 5, 1), (300, 5, 1)]));
    let ends = in_ms(record.requests.iter().map(|r| r.last_token.unwrap()));
    assert_eq!(ends, [15, 130, 315]);
}

/// A drain that takes too long is cut off, and its streams are tried again.
#[test]
fn a_drain_that_takes_too_long_is_cut_off() {
    let mut config = warming(1, 2, 20);
    rolling(&mut config, None);
    config.rollouts[0].1.slowdown = Ratio::ONE;
    config.rollouts[0].1.config.drain_timeout = ms(40);
    config.gateway.retry = retries(2);
    config.recovery.in_flight = Fate::Resume;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 12)]));
    // Drained from 70, cut off at 110 with 10 tokens; at 114 to group 1 with 20 of prompt: 144, 154.
    assert_eq!(
        tokens_ms(&record, 0),
        [20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 144, 154]
    );
    assert_eq!(
        phases(&cluster, 0)[1..],
        [(70, Phase::Draining), (110, Phase::Failed), (110, Phase::Stopped)]
    );
}

/// A group with nothing to do drains in no time, whatever else happens.
#[test]
fn an_idle_group_drains_at_once() {
    let mut config = warming(2, 3, 20);
    rolling(&mut config, None);
    config.rollouts[0].1.config.drain_timeout = ms(7);
    let (_, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 1), (1_000, 10, 1)]));
    assert_eq!(
        phases(&cluster, 1)[1..],
        [(70, Phase::Draining), (70, Phase::Stopped)]
    );
    assert_eq!(
        phases(&cluster, 0)[1..],
        [(90, Phase::Draining), (90, Phase::Stopped)]
    );
    assert_eq!(phases(&cluster, 3), [(70, WARM), (90, Phase::Ready)]);
}
