use crate::metric::cluster::ClusterSummary;
use crate::metric::cluster::fixture::{options, outage, tenths};
use crate::units::SimDuration;

/// Every first token of the outage comes after 0.2 s; one of the first tenant is made late, 2 of it and 1 of the second
/// tenant never come.
#[test]
fn each_tenant_is_judged_by_the_targets_over_what_it_offered() {
    let (mut run, mut cluster) = outage();
    cluster.jobs.iter_mut().skip(40).for_each(|j| j.tenant = 1);
    run.requests[0].first_token = Some(tenths(3));
    let mut options = options();
    options.slo.ttft = Some(SimDuration::from_millis(200));
    let summary = ClusterSummary::of(&run, &cluster, &options).unwrap();
    let told: Vec<_> = summary
        .tenants
        .iter()
        .map(|t| {
            (
                t.tenant,
                t.offered,
                t.completed,
                t.good,
                t.attainment,
                t.ttft.p50,
                t.ttft.max,
            )
        })
        .collect();
    let want = [
        (0, 40, 38, 37, Some(37.0 / 40.0), Some(0.2), Some(0.3)),
        (1, 13, 12, 12, Some(12.0 / 13.0), Some(0.2), Some(0.2)),
    ];
    assert_eq!(told, want);
    let all: u64 = summary.tenants.iter().map(|t| t.good).sum();
    assert_eq!(all, summary.outcomes.good);
}
