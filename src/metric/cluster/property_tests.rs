//! Whatever happens, sums over groups are totals.

use proptest::prelude::*;

use super::fixture::{facts, full_options};
use super::*;
use crate::cluster::lifecycle::{Phase, Stage};
use crate::metric::fixture::random_run;
use crate::record::{GroupRecord, JobRecord, Status};

/// Any life of a group.
fn life() -> impl Strategy<Value = Vec<(u64, usize)>> {
    prop::collection::vec((0..400_u64, 0..9_usize), 1..12)
}

const PHASES: [Phase; 9] = [
    Phase::Ready,
    Phase::Draining,
    Phase::Failed,
    Phase::Stopped,
    Phase::Starting(Stage::Provision),
    Phase::Starting(Stage::LoadWeights),
    Phase::Starting(Stage::Compile),
    Phase::Starting(Stage::Capture),
    Phase::Starting(Stage::Warm),
];

fn live(pool: u32, replica: u32, steps: &[(u64, usize)]) -> GroupRecord {
    let mut now = 0;
    let mut phases: Vec<(SimTime, Phase)> = vec![(SimTime(0), Phase::Ready)];
    for &(later, phase) in steps {
        now += later;
        if phases.last().is_some_and(|last| last.1.can_become(PHASES[phase])) {
            phases.push((SimTime(now), PHASES[phase]));
        }
    }
    GroupRecord {
        cached_tokens_lost: 0,
        pool,
        replicas: vec![replica],
        revision: 0,
        phases,
    }
}

proptest! {
    #[test]
    fn sums_over_groups_are_totals(mut run in random_run(), lives in [life(), life()], is_one_pool: bool) {
        for replica in &mut run.replicas {
            let busy = replica.step_starts.iter().zip(&replica.step_ends).map(|(a, b)| b.since(*a).as_nanos());
            replica.busy.decode = SimDuration(busy.sum());
        }
        let pools = [0, u32::from(!is_one_pool)];
        let cluster = ClusterRecord {
            pools: vec!["main".into(), "other".into()],
            groups: (0..2).map(|g| live(pools[g as usize], g, &lives[g as usize])).collect(),
            jobs: run.requests.iter().map(|r| JobRecord {
                group: (r.status == Status::Completed).then_some(r.replica),
                prefill_group: (r.status == Status::Completed).then_some(1 - r.replica),
                ..JobRecord::default()
            }).collect(),
            ..ClusterRecord::default()
        };
        let mut options = full_options();
        options.window = None;
        options.pools.insert("other".into(), facts());
        let window = SimDuration((run.end.as_nanos() / 7).max(1));
        options.window = Some(window);
        let s = ClusterSummary::of(&run, &cluster, &options).unwrap();
        let end = run.end.as_secs_f64();
        for group in &s.groups {
            prop_assert!(group.phases.total() <= end * (1.0 + 1e-9) + 1e-12);
            prop_assert!(group.phases.values().iter().all(|p| p.1 >= 0.0));
        }
        let same = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs()) + 1e-15;
        for (i, (name, all)) in s.total.phases.values().into_iter().enumerate() {
            let of_groups: f64 = s.groups.iter().map(|g| g.phases.values()[i].1).sum();
            let of_pools: f64 = s.pools.iter().map(|p| p.phases.values()[i].1).sum();
            prop_assert!(same(of_groups, all) && same(of_pools, all), "{name}: {of_groups} {of_pools} {all}");
        }
        let answered: u64 = s.groups.iter().map(|g| g.served.answered).sum();
        prop_assert_eq!(answered, s.outcomes.completed);
        prop_assert_eq!(answered, s.total.served.answered);
        let prefilled: u64 = s.pools.iter().map(|p| p.served.prefilled).sum();
        prop_assert_eq!(prefilled, s.total.served.prefilled);
        let o = &s.outcomes;
        prop_assert_eq!(o.offered, o.by_state().iter().map(|(_, n)| n).sum::<u64>());
        prop_assert!(s.rates.goodput_rps <= s.rates.request_rps && s.rates.good_output_tok_s <= s.rates.output_tok_s);
        for conserving in &s.work_conservation {
            let idle = conserving.idle_while_backlogged_s.unwrap_or(0.0);
            let ready: f64 = s.pools.iter().filter(|p| p.pool == conserving.pool).map(|p| p.phases.ready_idle + p.phases.ready_busy).sum();
            prop_assert!(idle >= 0.0 && idle <= ready * (1.0 + 1e-9) + 1e-12);
        }
        let tenants: u64 = s.fairness.tenants.iter().map(|t| t.offered).sum();
        prop_assert_eq!(tenants, o.offered);
        let cost = s.cost.unwrap();
        prop_assert!(same(cost.usd, s.total.phases.total() / 3_600.0 * 5.0));
        let energy = s.energy.unwrap();
        prop_assert!(same(energy.total_j, energy.by_phase.total()));
        let series = ClusterSeries::of(&run, &cluster, &options).unwrap();
        let offered: f64 = series.offered.iter().enumerate().map(|(k, p)| {
            let to = series.offered.get(k + 1).map_or(end, |p| p.0);
            p.1 * (to - p.0)
        }).sum();
        prop_assert!(run.end == SimTime(0) || (offered - o.offered as f64).abs() < 1e-6);
    }
}
