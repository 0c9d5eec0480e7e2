//! Ready groups beyond need of a shipped scenario, against its gauges.

use std::path::Path;

use kneeboard::cluster::lifecycle::Phase;
use kneeboard::explore::cluster::ClusterOutcome;
use kneeboard::explore::study::{Study, StudyRun};
use kneeboard::record::ReplicaRecord;
use kneeboard::scenario::Plan;
use kneeboard::units::SimTime;

const SAMPLE_MS: u64 = 50;

/// Running and waiting requests at an instant: as after the newest step's schedule, until a tenth of a second after its end.
fn requests_at(replica: &ReplicaRecord, at: SimTime) -> u32 {
    let begun = replica.step_starts.partition_point(|&start| start <= at);
    let Some(newest) = begun.checked_sub(1) else {
        return 0;
    };
    if at.as_nanos() > replica.step_ends[newest].as_nanos() + 100_000_000 {
        return 0;
    }
    replica.running[newest] + replica.waiting[newest]
}

/// Group-hours beyond need of groups of 64 requests, one at least, instant by instant.
fn sampled(run: &StudyRun) -> f64 {
    let cluster = run.cluster.as_ref().unwrap();
    let samples = run.record.end.as_nanos() / (SAMPLE_MS * 1_000_000);
    let beyond = (0..samples).map(|i| {
        let at = SimTime(i * SAMPLE_MS * 1_000_000);
        let is_ready = |phases: &[(SimTime, Phase)]| {
            let begun = phases.partition_point(|p| p.0 <= at);
            begun > 0 && phases[begun - 1].1 == Phase::Ready
        };
        let ready = cluster.groups.iter().filter(|g| is_ready(&g.phases)).count() as u32;
        let requests: u32 = run.record.replicas.iter().map(|r| requests_at(r, at)).sum();
        ready.saturating_sub(requests.div_ceil(64).max(1))
    });
    f64::from(beyond.sum::<u32>()) * SAMPLE_MS as f64 / 1e3 / 3_600.0
}

#[test]
fn six_groups_with_ten_requests_are_beyond_need() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/autoscale-burst.yaml");
    let study = Study::of(Plan::load(&path, &[]).unwrap()).unwrap();
    let run = study.run(0).unwrap();
    let whole = ClusterOutcome::of(run.figures.as_ref().unwrap());
    let streamed = study.summarise(0, |_| ()).unwrap().figures.unwrap();
    let beyond = |outcome: &ClusterOutcome| outcome.pools[0].overshoot_group_h.unwrap();
    assert!(
        (beyond(&whole) - beyond(&streamed)).abs() < 1e-9,
        "{whole:?} {streamed:?}"
    );
    // Five groups for three minutes are a quarter of an hour of groups.
    assert!(beyond(&whole) > 0.25, "{}", beyond(&whole));
    let sampled = sampled(&run);
    assert!(
        (beyond(&whole) / sampled - 1.0).abs() < 0.05,
        "{} {sampled}",
        beyond(&whole)
    );
}
