//! Faults and what follows from them, by hand. A step takes 10 ms and 1 ms a prefill token.

use super::*;
use kneeboard::cluster::fault::{Fault, FaultKind};
use kneeboard::cluster::lifecycle::{Phase, RestartPlan, Stage};
use kneeboard::cluster::link::LinkConfig;
use kneeboard::cluster::ratio::Ratio;
use kneeboard::record::Status;
use kneeboard::sim::fleet::Fate;

const PRICE: Price = Price {
    step: 10 * MS,
    prefill_token: MS,
};

fn fault(at: u64, lasts: Option<u64>, kind: FaultKind) -> Vec<Fault> {
    vec![Fault {
        at: at_ms(at),
        duration: lasts.map(ms),
        kind,
    }]
}

fn phases(cluster: &ClusterRecord, group: usize) -> Vec<(u64, Phase)> {
    let phases = cluster.groups[group].phases.iter();
    phases.map(|&(at, phase)| (at.0 / MS, phase)).collect()
}

/// 40 + 30 + 20 + 5 + 1 = 96 ms on a new node, 56 on one that lives.
const START: RestartPlan = RestartPlan {
    provision: SimDuration(40 * MS),
    weight_bytes: 300,
    weight_bandwidth: 10_000,
    compile: SimDuration(20 * MS),
    capture: SimDuration(5 * MS),
    warm: SimDuration(MS),
};

/// A rank takes its group with it; until the routes are gone the router goes on sending there.
#[test]
fn a_crash_is_noticed_then_routed_around_then_mended() {
    let mut config = unified(2, roomy(8));
    config.pools[0].start = START;
    config.recovery.detection = ms(6);
    config.recovery.route_removal = ms(11);
    config.recovery.in_flight = Fate::Fail;
    config.faults = fault(100, None, FaultKind::RankCrash { group: 0, rank: 0 });
    let rows = [
        (90, 10, 9),  // Group 0, dies with it: known at 106.
        (101, 10, 1), // Group 1.
        (102, 10, 1), // Group 0, not known to be dead: fails at 106.
        (109, 10, 1), // Group 1.
        (110, 10, 1), // Group 0, known to be dead but routed until 117: refused at once.
        (118, 10, 1), // Group 1.
        (119, 10, 1), // Group 1, as group 0 is out.
        (174, 10, 1), // Group 0 is back at 117 + 56 = 173.
    ];
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&rows));
    let replicas: Vec<_> = record.requests.iter().map(|r| r.replica).collect();
    assert_eq!(replicas, [0, 1, 0, 1, 0, 1, 1, 0]);
    let failed =
        |r: usize| (record.requests[r].status == Status::Failed).then(|| in_ms(cluster.jobs[r].ended)[0]);
    let failures: Vec<_> = (0..rows.len()).map(failed).collect();
    assert_eq!(
        failures,
        [Some(106), None, Some(106), None, Some(110), None, None, None]
    );
    // One prefill token costs 1 ms: 174 + 20.
    assert_eq!(tokens_ms(&record, 7), [194]);
    let expected = [
        (0, Phase::Ready),
        (100, Phase::Failed),
        (117, Phase::Starting(Stage::LoadWeights)),
        (147, Phase::Starting(Stage::Compile)),
        (167, Phase::Starting(Stage::Capture)),
        (172, Phase::Starting(Stage::Warm)),
        (173, Phase::Ready),
    ];
    assert_eq!(phases(&cluster, 0), expected);
    let happened = [
        (100, "fault", None),
        (100, "crash", Some(0)),
        (106, "detected", Some(0)),
        (117, "routes_removed", Some(0)),
        (117, "starting", Some(0)),
        (173, "ready", Some(0)),
    ];
    assert_eq!(told(&cluster), happened);
}

/// A lost node is away for a while; then its group starts on a new one, which has to be provisioned.
#[test]
fn a_lost_node_is_replaced_when_it_can_be() {
    let mut config = unified(2, roomy(8));
    config.pools[0].start = START;
    config.faults = fault(100, Some(50), FaultKind::NodeLoss { node: 1 });
    let (_, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 1), (400, 10, 1)]));
    let began: Vec<u64> = phases(&cluster, 1).iter().map(|p| p.0).collect();
    // Lost at 100, to be had again at 150: 40 + 30 + 20 + 5 + 1.
    assert_eq!(began, [0, 100, 150, 190, 220, 240, 245, 246]);
    assert_eq!(phases(&cluster, 0), [(0, Phase::Ready)]);
}

/// A slow weight store makes restarts long.
#[test]
fn weights_load_slowly_while_their_store_is_slow() {
    let mut config = unified(2, roomy(8));
    config.pools[0].start = START;
    config.faults = fault(
        90,
        Some(500),
        FaultKind::WeightStoreSlow {
            factor: Ratio::new(3, 1),
        },
    );
    config
        .faults
        .extend(fault(100, None, FaultKind::GroupCrash { group: 0 }));
    let (_, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 1), (700, 10, 1)]));
    // 3 * 30 + 20 + 5 + 1.
    assert_eq!(phases(&cluster, 0).last(), Some(&(216, Phase::Ready)));
}

/// A spot node is told to go: nothing new, and what is not done in time is lost.
#[test]
fn a_spot_node_drains_and_goes() {
    let mut config = unified(2, roomy(8));
    config.pools[0].start = START;
    config.pools[0].max_groups = 4;
    config.recovery.detection = ms(6);
    config.recovery.in_flight = Fate::Retry;
    config.gateway.retry = retries(2);
    let notice = FaultKind::SpotNotice {
        node: 0,
        notice: ms(60),
    };
    config.faults = fault(50, None, notice);
    // Both at group 0; the second to group 1. Alone the first has its tokens at 20, 30, ... 70.
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 6), (1, 10, 1), (60, 10, 1)]));
    assert_eq!(tokens_ms(&record, 0).last(), Some(&70), "it is done in time");
    assert_eq!(record.requests[2].replica, 1, "not in the routes since 50");
    let expected = [(0, Phase::Ready), (50, Phase::Draining), (70, Phase::Stopped)];
    assert_eq!(phases(&cluster, 0), expected);

    // With 12 tokens, the last at 130, it is lost at 110, known at 116, again at 120: group 1.
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 12), (1, 10, 1), (300, 10, 1)]));
    let tokens = tokens_ms(&record, 0);
    assert_eq!((tokens[0], tokens[11], record.requests[0].replica), (140, 250, 1));
    let expected = [
        (0, Phase::Ready),
        (50, Phase::Draining),
        (110, Phase::Failed),
        (110, Phase::Stopped),
    ];
    assert_eq!(phases(&cluster, 0), expected);
    // One comes for it, on a new node: 110 + 96.
    assert_eq!(cluster.groups.len(), 3);
    assert_eq!(
        phases(&cluster, 2).first(),
        Some(&(110, Phase::Starting(Stage::Provision)))
    );
    assert_eq!(phases(&cluster, 2).last(), Some(&(206, Phase::Ready)));
    assert_eq!(record.requests[2].replica, 2, "after group 1 in turn");
}

/// A slow rank slows its group: steps that begin meanwhile take half as long again.
#[test]
fn a_straggler_makes_steps_longer_while_it_lasts() {
    let mut config = unified(2, roomy(8));
    let slow = FaultKind::SlowRank {
        group: 0,
        factor: Ratio::new(3, 2),
    };
    config.faults = fault(25, Some(30), slow);
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 6), (0, 10, 6)]));
    // The step from 20 has begun; those from 30 and 45 take 15; mended at 55, so that from 60 takes 10.
    assert_eq!(tokens_ms(&record, 0), [20, 30, 45, 60, 70, 80]);
    assert_eq!(tokens_ms(&record, 1), [20, 30, 40, 50, 60, 70]);
    assert_eq!(told(&cluster), [(25, "fault", None), (55, "mended", None)]);
}

/// A link that is down for a while stalls what crosses it, and loses nothing.
#[test]
fn transfers_wait_for_a_link_to_come_back() {
    let mut config = prefill_decode(1, 1, roomy(8));
    for pool in &mut config.pools {
        pool.block_bytes = 1_000;
    }
    config.links = vec![LinkConfig {
        name: "fabric".to_owned(),
        bandwidth_bytes_per_s: 100_000,
        latency: SimDuration::ZERO,
    }];
    config.transfer.fabric = vec![0];
    config.faults = fault(80, Some(20), FaultKind::LinkDown { link: 0 });
    let half = FaultKind::LinkDegradation {
        link: 0,
        factor: Ratio::new(1, 2),
    };
    config.faults.extend(fault(110, None, half));
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 64, 1)]));
    // Prefilled 74; 4 blocks of 10 ms: 6 ms done at 80, nothing until 100, 16 at 110, the other 24 at half the speed.
    assert_eq!(in_ms(cluster.jobs[0].transfer), [158]);
    assert_eq!(tokens_ms(&record, 0), [168]);
    assert_eq!(cluster.links[0].1, 4_000);
}

/// A group that has failed is not there when its spot node goes: only what replaces it comes back.
#[test]
fn a_failed_group_on_a_spot_node_comes_back_once() {
    for failed_at in [100, 190, 195] {
        let mut config = unified(2, roomy(8));
        config.pools[0].start = START;
        config.pools[0].max_groups = 4;
        config.recovery.detection = ms(6);
        config.recovery.route_removal = ms(11);
        let notice = FaultKind::SpotNotice {
            node: 0,
            notice: ms(10),
        };
        // Without the notice it would come back at 1100 or after.
        config.faults = fault(failed_at, Some(1_000), FaultKind::RankCrash { group: 0, rank: 0 });
        config.faults.extend(fault(190, None, notice));
        config.faults.sort_by_key(|f| f.at);
        let rows: Vec<_> = (0..20).map(|n| (250 + 100 * n, 10, 1)).collect();
        let (record, cluster) = run_fleet(&config, &PRICE, &trace(&rows));
        assert_eq!(
            phases(&cluster, 0).last().map(|p| p.1),
            Some(Phase::Stopped),
            "{failed_at}"
        );
        assert_eq!(
            (cluster.groups.len(), phases(&cluster, 2)[0].0),
            (3, 200),
            "{failed_at}"
        );
        assert!(
            record
                .requests
                .iter()
                .all(|r| r.replica > 0 && r.status == Status::Completed),
            "{failed_at}"
        );
    }
}

/// A spot node that is away for a while: its group comes back on another one after that.
#[test]
fn a_spot_node_that_is_away_for_a_while_is_replaced_then() {
    let mut config = unified(2, roomy(8));
    config.pools[0].start = START;
    config.pools[0].max_groups = 4;
    let notice = FaultKind::SpotNotice {
        node: 0,
        notice: ms(60),
    };
    config.faults = fault(50, Some(200), notice);
    let (_, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 10, 1), (500, 10, 1)]));
    // Told at 50, gone at 110, to be had again at 310: 40 + 30 + 20 + 5 + 1.
    let expected = [(0, Phase::Ready), (50, Phase::Draining), (50, Phase::Stopped)];
    assert_eq!(phases(&cluster, 0), expected);
    assert_eq!(
        phases(&cluster, 2).first(),
        Some(&(310, Phase::Starting(Stage::Provision)))
    );
    assert_eq!(phases(&cluster, 2).last(), Some(&(406, Phase::Ready)));
}
