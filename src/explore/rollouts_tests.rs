use super::*;
use crate::cluster::lifecycle::Stage;
use crate::record::{GroupRecord, TimelineEvent};

const S: u64 = 1_000_000_000;

fn at(s: u64) -> SimTime {
    SimTime(s * S)
}

fn event(s: u64, event: &'static str) -> TimelineEvent {
    TimelineEvent {
        at: at(s),
        event,
        what: "chat".into(),
        group: None,
    }
}

fn group(revision: u32, phases: &[(u64, Phase)]) -> GroupRecord {
    GroupRecord {
        pool: 0,
        replicas: vec![0],
        revision,
        phases: phases.iter().map(|&(s, phase)| (at(s), phase)).collect(),
        cached_tokens_lost: 0,
    }
}

/// Due at `due` seconds, its first token after `ttft_ms`; answered by `group`, or by nobody.
fn request(due: u64, ttft_ms: u64, group: Option<u32>) -> (RequestRecord, JobRecord) {
    let mut record = crate::metric::fixture::offered(at(due));
    record.status = Status::Failed;
    if group.is_some() {
        record.status = Status::Completed;
        let first = SimTime(at(due).0 + ttft_ms * 1_000_000);
        (record.first_token, record.last_token) = (Some(first), Some(first));
        record.output_tokens = 1;
    }
    let job = JobRecord {
        group,
        ..JobRecord::default()
    };
    (record, job)
}

/// One old group and one new one; the rollout lasts from 10 to 30 s.
fn records() -> (RunRecord, ClusterRecord) {
    let start = Phase::Starting(Stage::Warm);
    let cluster = ClusterRecord {
        pools: vec!["chat".into()],
        groups: vec![
            group(
                0,
                &[(0, Phase::Ready), (20, Phase::Draining), (30, Phase::Stopped)],
            ),
            group(1, &[(10, start), (20, Phase::Ready)]),
        ],
        timeline: vec![event(10, "rollout_began"), event(30, "rollout_done")],
        ..ClusterRecord::default()
    };
    let (requests, jobs) = [
        request(5, 100, Some(0)),
        request(12, 300, Some(0)),
        request(13, 900, Some(0)),
        request(25, 200, Some(1)),
        request(26, 0, None),
        request(30, 400, Some(1)),
    ]
    .into_iter()
    .unzip();
    let run = RunRecord {
        requests,
        end: at(40),
        ..RunRecord::default()
    };
    (run, ClusterRecord { jobs, ..cluster })
}

fn judged(run: &RunRecord, cluster: &ClusterRecord) -> RolloutFigures {
    let judge = Judge {
        slo: Slo {
            ttft: Some(crate::units::SimDuration::from_millis(500)),
            ..Slo::default()
        },
        run,
        cluster,
    };
    judge.rollout(0, at(10))
}

#[test]
fn requests_are_told_by_when_they_were_due_and_who_answered() {
    let (run, cluster) = records();
    let rollout = judged(&run, &cluster);
    assert_eq!((rollout.began_s, rollout.ended_s), (10.0, Some(30.0)));
    assert_eq!(rollout.rolled_back_s, None);
    let rows: Vec<_> = rollout
        .served
        .iter()
        .map(|s| {
            (
                s.period.name(),
                s.revision,
                s.groups,
                s.offered,
                s.errors,
                s.attainment,
            )
        })
        .collect();
    let want = [
        ("before", Some(0), 1, 1, 0, 1.0),
        ("during", Some(0), 1, 2, 0, 0.5),
        ("during", Some(1), 1, 1, 0, 1.0),
        ("during", None, 0, 1, 1, 0.0),
        ("after", Some(1), 1, 1, 0, 1.0),
    ];
    assert_eq!(rows, want);
    assert_eq!(rollout.served[2].ttft.p50, Some(0.2));
}

#[test]
fn groups_are_counted_while_it_lasts() {
    let (run, mut cluster) = records();
    let rollout = judged(&run, &cluster);
    // The new one is ready the instant that the old one drains.
    assert_eq!((rollout.ready_fewest, rollout.existing_most), (1, 2));
    cluster.groups[1].phases[1].0 = at(22);
    assert_eq!(judged(&run, &cluster).ready_fewest, 0);
}

#[test]
fn a_rollout_that_does_not_end_lasts_to_the_end() {
    let (run, mut cluster) = records();
    cluster.timeline.pop();
    cluster.timeline.push(event(25, "rollback"));
    let rollout = judged(&run, &cluster);
    assert_eq!((rollout.ended_s, rollout.rolled_back_s), (None, Some(25.0)));
    assert!(rollout.served.iter().all(|s| s.period != Period::After));
    // Once it is rolled back, it is over.
    cluster.timeline.push(event(27, "rolled_back"));
    assert_eq!(judged(&run, &cluster).ended_s, Some(27.0));
    // Of another pool nothing is told.
    cluster.timeline[1].what = "chatter".into();
    assert_eq!(judged(&run, &cluster).rolled_back_s, None);
}
