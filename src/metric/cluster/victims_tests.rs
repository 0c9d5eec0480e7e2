use approx::assert_relative_eq;

use super::*;
use crate::metric::cluster::fixture::{options, served, tenths};
use crate::units::{SimDuration, SimTime};

/// Four requests of 0.4 s each, one after another; those of priority 5 are sent first and come last.
fn runs() -> ((RunRecord, ClusterRecord), (RunRecord, ClusterRecord)) {
    let run = |starts: [u64; 4], priorities: [i32; 4]| {
        let pairs = starts.iter().zip(priorities).map(|(&start, priority)| {
            let (mut request, job) = served(start, 0);
            (request.scheduled, request.sent) = (SimTime::ZERO, SimTime::ZERO);
            request.priority = priority;
            (request, job)
        });
        let (requests, jobs) = pairs.unzip();
        let run = RunRecord {
            requests,
            end: tenths(16),
            ..RunRecord::default()
        };
        let cluster = ClusterRecord {
            jobs,
            ..ClusterRecord::default()
        };
        (run, cluster)
    };
    (run([8, 12, 0, 4], [5, 5, 0, 0]), run([0, 4, 8, 12], [0; 4]))
}

#[test]
fn who_is_overtaken_pays_and_who_overtakes_gains() {
    let (with, equal) = runs();
    let mut options = options();
    options.slo.ttft = Some(SimDuration::from_millis(700));
    let cost = PriorityCost::of((&with.0, &with.1), (&equal.0, &equal.1), &options)
        .unwrap()
        .unwrap();
    assert_eq!(cost.favoured_priority, 0);
    let [favoured, victim] = &cost.classes[..] else {
        panic!("{cost:?}")
    };
    assert_eq!(
        (favoured.priority, favoured.is_favoured, favoured.offered),
        (0, true, 2)
    );
    assert_eq!(
        (victim.priority, victim.is_favoured, victim.completed_lost),
        (5, false, 0)
    );
    // First tokens 0.2 s after each start: at 1.0 and 1.4 where they were at 0.2 and 0.6.
    assert_relative_eq!(victim.ttft_mean_added_s.unwrap(), 0.8);
    assert_relative_eq!(victim.queue_age_max_added_s.unwrap(), 0.8);
    assert_relative_eq!(victim.starvation_added_s, 0.8);
    assert_eq!(victim.attainment_lost, Some(1.0));
    assert_relative_eq!(favoured.ttft_mean_added_s.unwrap(), -0.8);
    assert_eq!(favoured.attainment_lost, Some(-1.0));
}

#[test]
fn equal_priorities_have_no_victims() {
    let (_, equal) = runs();
    let of = PriorityCost::of((&equal.0, &equal.1), (&equal.0, &equal.1), &options());
    assert_eq!(of.unwrap(), None);
}
