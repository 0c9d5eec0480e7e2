//! Canaries that judge themselves, and rollouts of pools that an autoscaler rules, by hand. A step takes 10 ms and 1 ms a
//! prefill token; a group takes 20 ms to warm.

use super::scaling::{PRICE, WARM, phases, warming};
use super::*;
use kneeboard::cluster::autoscale::{
    Autoscaler, AutoscalerConfig, ScaleMetric, ScalePolicy, ScaleRule, Schedule,
};
use kneeboard::cluster::fault::{Fallback, Fault, FaultKind};
use kneeboard::cluster::lifecycle::{Phase, RestartPlan};
use kneeboard::cluster::ratio::Ratio;
use kneeboard::cluster::rollout::{Analysis, Canary, CanaryLimits, RolloutConfig, Undecided};
use kneeboard::record::Status;
use kneeboard::sim::fleet::PoolRollout;

/// Two groups, of which one is replaced first and gets half of the traffic; a check each 200 ms, and the rest after 400.
fn judged(analysis: Analysis) -> FleetConfig {
    let mut config = warming(2, 3, 20);
    let canary = Canary {
        groups: 1,
        share: 0.5,
        hold: ms(400),
        analysis: Some(analysis),
    };
    roll(&mut config, Some(canary));
    config
}

fn roll(config: &mut FleetConfig, canary: Option<Canary>) {
    let rollout = RolloutConfig {
        at: at_ms(50),
        surge: 1,
        max_unavailable: 0,
        canary,
        drain_timeout: ms(1_000),
    };
    config.rollouts = vec![(
        0,
        PoolRollout {
            config: rollout,
            slowdown: Ratio::ONE,
        },
    )];
}

fn analysis(limits: CanaryLimits) -> Analysis {
    Analysis {
        interval: ms(200),
        min_requests: 1,
        progress_deadline: ms(300),
        ..Analysis::usual(limits)
    }
}

const TWICE_THE_TTFT: CanaryLimits = CanaryLimits {
    ttft_ratio: Some(2.0),
    errors: None,
    tpot_ratio: None,
    e2e_ratio: None,
};

/// One request of one token each 40 ms, which a group serves in 11 ms: nobody waits.
fn calm() -> Trace {
    let rows: Vec<_> = (0..30).map(|n| (40 * n, 1, 1)).collect();
    trace(&rows)
}

fn fallback(revision: u32, times: u32) -> Fault {
    Fault {
        at: at_ms(0),
        duration: None,
        kind: FaultKind::KernelFallback {
            on: Fallback::Revision(revision),
            factor: Ratio::new(times, 1),
        },
    }
}

fn what(cluster: &ClusterRecord, event: &str) -> Vec<(u64, String)> {
    let of = cluster.timeline.iter().filter(|t| t.event == event);
    of.map(|t| (t.at.0 / MS, t.what.clone())).collect()
}

/// Both paces, which must agree.
fn run_both(config: &FleetConfig, trace: &Trace) -> (RunRecord, ClusterRecord) {
    let leapt = run_fleet(config, &PRICE, trace);
    let stepped = run(Pace::Step, config, &[&PRICE], trace).unwrap();
    assert_eq!(leapt, stepped);
    leapt
}

/// The new revision's kernels take three times as long: 33 ms instead of 11. Group 2 is ready at 70, so the first check is
/// at 270. From then on nothing is sent to it; an old group is ready at 290, and only then group 2 goes.
#[test]
fn a_canary_whose_kernels_fall_back_is_caught() {
    let mut config = judged(analysis(TWICE_THE_TTFT));
    config.faults = vec![fallback(1, 3)];
    let (record, cluster) = run_both(&config, &calm());
    let failed = what(&cluster, "canary_failed");
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0, 270);
    let said = &failed[0].1;
    assert!(
        said.starts_with("all: 0 checks passed, 1 failed, 0 had too few requests; 0.070 to 0.270 s: 0 of "),
        "{said}"
    );
    assert!(
        said.ends_with("TTFT p99 0.0330 s to the old revision's 0.0110 s (limit 2 times)"),
        "{said}"
    );
    assert_eq!(
        phases(&cluster, 2),
        [
            (50, WARM),
            (70, Phase::Ready),
            (290, Phase::Draining),
            (290, Phase::Stopped)
        ]
    );
    assert_eq!(phases(&cluster, 3), [(270, WARM), (290, Phase::Ready)]);
    let revisions: Vec<_> = cluster.groups.iter().map(|g| g.revision).collect();
    assert_eq!(revisions, [0, 0, 1, 0]);
    let later = record.requests.iter().filter(|r| r.sent >= at_ms(270));
    assert!(later.clone().count() > 20 && later.clone().all(|r| r.replica != 2));
    let ends: Vec<_> = told(&cluster)
        .into_iter()
        .filter(|t| t.1.starts_with("roll"))
        .collect();
    assert_eq!(
        ends,
        [
            (50, "rollout_began", None),
            (270, "rollback", None),
            (290, "rolled_back", None)
        ]
    );
}

/// The same without the fault: checks at 270 and 470, which is the end of the 400 ms; then the rest follows.
#[test]
fn a_healthy_canary_is_promoted() {
    let config = judged(analysis(TWICE_THE_TTFT));
    let (_, cluster) = run_both(&config, &calm());
    let passed = what(&cluster, "canary_passed");
    assert_eq!(passed.len(), 1);
    assert_eq!(passed[0].0, 470);
    assert!(
        passed[0].1.starts_with("all: 2 checks passed, 0 failed"),
        "{}",
        passed[0].1
    );
    assert_eq!(phases(&cluster, 3), [(470, WARM), (490, Phase::Ready)]);
    assert_eq!(what(&cluster, "rollout_done").len(), 1);
    assert!(what(&cluster, "rollback").is_empty());
}

/// Ten requests come in 400 ms, and fifty are asked for in 200: no check can tell, whatever the canary does.
#[test]
fn a_canary_with_too_few_requests_is_undecided() {
    for (undecided, event) in [
        (Undecided::Wait, None),
        (Undecided::Promote, Some("rollout_done")),
        (Undecided::RollBack, Some("rolled_back")),
    ] {
        let analysis = Analysis {
            min_requests: 50,
            undecided,
            ..analysis(TWICE_THE_TTFT)
        };
        let mut config = judged(analysis);
        config.faults = vec![fallback(1, 3)];
        let (_, cluster) = run_both(&config, &calm());
        let told = what(&cluster, "canary_undecided");
        assert_eq!(told.len(), 1, "{undecided:?}");
        assert_eq!(told[0].0, 470);
        assert!(
            told[0]
                .1
                .starts_with("all: 0 checks passed, 0 failed, 2 had too few requests"),
            "{}",
            told[0].1
        );
        for ending in ["rollout_done", "rolled_back"] {
            assert_eq!(
                what(&cluster, ending).len(),
                usize::from(event == Some(ending)),
                "{undecided:?}"
            );
        }
    }
}

/// Weights come 4000 times slower than the 10 ms that they take: at its deadline, 300 ms after the start, the canary is
/// given up. The old groups have served all along.
#[test]
fn a_canary_that_never_comes_up_is_given_up() {
    let mut config = judged(analysis(TWICE_THE_TTFT));
    config.pools[0].start = RestartPlan {
        weight_bytes: 10,
        weight_bandwidth: 1_000,
        ..config.pools[0].start
    };
    config.faults = vec![Fault {
        at: at_ms(0),
        duration: None,
        kind: FaultKind::WeightStoreSlow {
            factor: Ratio::new(4_000, 1),
        },
    }];
    let (_, cluster) = run_both(&config, &calm());
    let failed = what(&cluster, "canary_failed");
    assert_eq!(
        failed,
        [(
            350,
            "all: not ready for 0.300 s, its progress deadline".to_owned()
        )]
    );
    assert_eq!(phases(&cluster, 0), [(0, Phase::Ready)]);
    assert_eq!(phases(&cluster, 1), [(0, Phase::Ready)]);
    assert_eq!(what(&cluster, "rolled_back"), [(350, "all".to_owned())]);
}

/// The canary takes 1.1 s for what clients wait 100 ms for. Those sent at 80, 120 and 160 have given up by 270: three of
/// three failed. There is no latency to compare, for none was served.
#[test]
fn a_canary_that_serves_nobody_in_time_is_caught_by_its_errors() {
    let limits = CanaryLimits {
        errors: Some(0.1),
        ..CanaryLimits::default()
    };
    let mut config = judged(analysis(limits));
    config.rollouts[0].1.config.canary.as_mut().unwrap().share = 1.0;
    config.gateway.timeouts.e2e = Some(ms(100));
    config.faults = vec![fallback(1, 100)];
    let (record, cluster) = run_both(&config, &calm());
    let timed_out = record.requests.iter().filter(|r| r.status == Status::TimedOut);
    assert_eq!(
        timed_out.map(|r| r.sent.0 / MS).collect::<Vec<_>>(),
        [80, 120, 160, 200, 240]
    );
    let failed = what(&cluster, "canary_failed");
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0, 270);
    assert!(
        failed[0]
            .1
            .contains(": 3 of 3 requests failed, 0 of 0 of the old revision"),
        "{}",
        failed[0].1
    );
}

#[test]
fn a_pool_has_one_rollout() {
    let mut config = judged(analysis(TWICE_THE_TTFT));
    config.rollouts.extend(config.rollouts.clone());
    let refused = run(Pace::Leap, &config, &[&PRICE], &calm()).unwrap_err();
    assert!(
        refused.to_string().contains("pool 0 has more than one rollout"),
        "{refused}"
    );
}

fn scaled_by_rate(config: &mut FleetConfig, max_groups: u32) {
    let scaler = AutoscalerConfig {
        interval: ms(100),
        up: ScaleRule::default(),
        down: ScaleRule::default(),
        ..AutoscalerConfig::kubernetes(ScaleMetric::RequestRate, 50.0, 1, max_groups)
    };
    config.scaling = vec![(0, ScalePolicy::Metric(Box::new(Autoscaler::new(scaler).unwrap())))];
}

/// 100 a second for two groups of 50 each, which is the ceiling, too. While the rollout has a third group the autoscaler
/// neither sends it home (the ceiling is on the two) nor takes it for more than is needed.
#[test]
fn an_autoscaler_leaves_the_surge_to_the_rollout() {
    let mut config = warming(2, 3, 120);
    roll(&mut config, None);
    scaled_by_rate(&mut config, 2);
    let rows: Vec<_> = (0..120).map(|n| (10 * n + 1, 1, 1)).collect();
    let (_, cluster) = run_both(&config, &trace(&rows));
    assert_eq!(what(&cluster, "scale"), []);
    // 50: group 2 starts. 170: it is ready and group 1 goes; group 3 is ready 120 ms after that has stopped.
    assert_eq!(phases(&cluster, 2), [(50, WARM), (170, Phase::Ready)]);
    assert_eq!(cluster.groups.len(), 4);
    assert_eq!(what(&cluster, "rollout_done").len(), 1);
}

/// The rate doubles at 100, in the middle of the rollout: at 200 two more are ordered, of the new revision. At 600 it falls
/// to a quarter. Old groups go first, and in the end there is one group, a new one.
#[test]
fn an_autoscaler_sets_the_size_that_a_rollout_leads_to() {
    let mut config = warming(2, 5, 120);
    roll(&mut config, None);
    scaled_by_rate(&mut config, 4);
    let mut rows: Vec<_> = (0..10).map(|n| (10 * n + 1, 1, 1)).collect();
    rows.extend((0..100).map(|n| (101 + 5 * n, 1, 1)));
    rows.extend((0..30).map(|n| (601 + 20 * n, 1, 1)));
    let (_, cluster) = run_both(&config, &trace(&rows));
    let scaled = what(&cluster, "scale");
    assert_eq!(
        scaled,
        [
            (200, "all: +2 groups".to_owned()),
            (700, "all: -3 groups".to_owned())
        ]
    );
    let revisions: Vec<_> = cluster.groups.iter().map(|g| g.revision).collect();
    assert!(revisions[2..].iter().all(|&r| r == 1), "{revisions:?}");
    let lasts = cluster
        .groups
        .iter()
        .map(|g| (g.revision, g.phases.last().unwrap().1));
    assert_eq!(
        lasts.filter(|l| l.1 == Phase::Ready).collect::<Vec<_>>(),
        [(1, Phase::Ready)]
    );
    assert_eq!(what(&cluster, "rollout_done").len(), 1);
}

/// A plan takes the second of two groups away at 200. By then it has served a prompt of 40 tokens with nine tokens of output,
/// of which the last was not computed: 48 tokens, three full blocks, that nobody can find any more.
#[test]
fn scaling_in_loses_what_a_group_had_cached() {
    let mut config = warming(2, 2, 20);
    config.pools[0].engine.enable_prefix_caching = true;
    let plan = Schedule::new(vec![(at_ms(200), 1)]).unwrap();
    config.scaling = vec![(0, ScalePolicy::Schedule(plan))];
    let (_, cluster) = run_both(&config, &trace(&[(0, 40, 1), (0, 40, 9), (300, 1, 1)]));
    assert_eq!(
        phases(&cluster, 1),
        [(0, Phase::Ready), (200, Phase::Draining), (200, Phase::Stopped)]
    );
    let lost: Vec<_> = cluster.groups.iter().map(|g| g.cached_tokens_lost).collect();
    assert_eq!(lost, [0, 48]);
}
