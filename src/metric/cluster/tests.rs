//! Every figure on records worked out by hand.

use approx::assert_relative_eq;

use super::fixture::*;
use super::*;
use crate::cluster::lifecycle::{Phase, Stage};

fn summary() -> ClusterSummary {
    let (run, cluster) = outage();
    ClusterSummary::of(&run, &cluster, &full_options()).unwrap()
}

#[test]
fn phases_and_busy_time_by_group_and_pool() {
    let s = summary();
    let (first, second) = (&s.groups[0], &s.groups[1]);
    assert_eq!((first.name.as_str(), second.name.as_str()), ("main/0", "main/1"));
    let expected = PhaseSeconds {
        load_weights: 6.0,
        warm: 2.0,
        ready_idle: 20.0,
        ready_busy: 10.0,
        failed: 2.0,
        ..PhaseSeconds::default()
    };
    assert_eq!(second.phases, expected);
    assert_relative_eq!(first.phases.ready_idle, 10.0);
    assert_relative_eq!(first.busy.prefill_share.unwrap(), 0.25);
    assert_relative_eq!(first.busy.utilisation.unwrap(), 0.75);
    // 2 running for 10 s and 4 for 20 s.
    assert_relative_eq!(first.mean_running.unwrap(), 100.0 / 30.0);
    let pool = &s.pools[0];
    assert_relative_eq!(pool.phases.total(), 80.0);
    // One of the two is away from 10 to 20 s of 40.
    assert_eq!((pool.groups_at_start, pool.groups_most), (2, 2));
    assert_relative_eq!(pool.ready_mean.unwrap(), 1.75);
    assert_relative_eq!(pool.busy.prefill_share.unwrap(), 14.0 / 70.0);
    assert_relative_eq!(pool.busy.decode_share.unwrap(), 26.0 / 70.0);
    assert_eq!(
        (
            first.served.answered,
            second.served.answered,
            pool.served.answered
        ),
        (40, 10, 50)
    );
    assert_eq!(
        (pool.served.input_tokens, pool.served.output_tokens),
        (5_000, 500)
    );
}

#[test]
fn requests_retries_and_waste() {
    let o = summary().outcomes;
    assert_eq!(
        (o.offered, o.completed, o.good, o.failed, o.timed_out),
        (53, 50, 50, 2, 1)
    );
    assert_eq!(
        (
            o.retried,
            o.retries,
            o.retries_refused,
            o.attempts,
            o.most_attempts
        ),
        (1, 2, 1, 52, 3)
    );
    assert_eq!((o.first_tries, o.hedges, o.unsent), (53, 0, 0));
    assert_relative_eq!(o.amplification.unwrap(), 55.0 / 53.0);
    assert_eq!((o.lost_input_tokens, o.lost_output_tokens), (100, 11));
    assert_eq!(o.resumed, None, "nobody kept it");
    // 100 in and 7 + 4 out wasted, at 1 and 2; 50 requests of 100 in and 10 out served.
    assert_relative_eq!(o.lost_work_share.unwrap(), 122.0 / (122.0 + 6_000.0));
}

#[test]
fn the_gateway_holds_them() {
    let g = summary().gateway;
    // 1 for 1 s, 2 for 2 s, 5 for 9 s, of 40.
    assert_relative_eq!(g.queue_mean.unwrap(), 50.0 / 40.0);
    assert_eq!((g.queue_max, g.wait.n, g.never_dispatched), (5, 50, 3));
    assert_relative_eq!(g.wait.max.unwrap(), 2.0);
}

#[test]
fn an_outage_second_by_second() {
    let faults = summary().faults;
    let fault = &faults[0];
    assert_eq!(
        (fault.what.as_str(), &fault.groups[..], fault.ready_lost),
        ("group_crash main/1", &[1][..], 1)
    );
    let after = (
        fault.detected_after_s,
        fault.routes_removed_after_s,
        fault.capacity_back_after_s,
    );
    assert_eq!(after, (Some(1.0), Some(2.0), Some(10.0)));
    assert_eq!((fault.mended_after_s, fault.is_overlapped), (None, false));
    let r = fault.recovery.as_ref().unwrap();
    assert_eq!((r.baseline_windows, r.dipped), (5, true));
    assert_relative_eq!(r.goodput_before_rps, 2.0);
    assert_eq!(
        (r.recovered_after_s, r.queue_back_after_s, r.queue_max),
        (Some(10.0), Some(11.0), 5)
    );
    assert_relative_eq!(r.trough_rps, 0.0);
    assert_relative_eq!(r.below_s, 10.0);
    // One waits for 1 of the 5 s before; then 2 for 2 s and 5 for 9 s.
    assert_relative_eq!(r.queue_before, 0.2);
    assert_relative_eq!(r.queue_area_request_s, 1.8 * 2.0 + 4.8 * 9.0, max_relative = 1e-9);
}

#[test]
fn one_good_window_is_no_recovery() {
    let (mut run, mut cluster) = outage();
    for i in 0..3 {
        let (request, job) = served(150 + i, 0);
        run.requests.push(request);
        cluster.jobs.push(job);
    }
    let recovered = |hold_windows| {
        let options = ClusterOptions {
            hold_windows,
            ..options()
        };
        let summary = ClusterSummary::of(&run, &cluster, &options).unwrap();
        summary.faults[0].recovery.as_ref().unwrap().recovered_after_s
    };
    assert_eq!(
        (recovered(1), recovered(2), recovered(11)),
        (Some(5.0), Some(10.0), None)
    );
}

/// The windows at 5 and 6 s after the fault would be good enough, had the dead group been routed around by then.
#[test]
fn nothing_is_back_before_the_fault_is_dealt_with() {
    let (mut run, mut cluster) = outage();
    for i in 0..6 {
        let (request, job) = served(150 + 5 * i, 0);
        run.requests.push(request);
        cluster.jobs.push(job);
    }
    let recovered = |cluster: &ClusterRecord| {
        let options = ClusterOptions {
            hold_windows: 1,
            ..options()
        };
        let summary = ClusterSummary::of(&run, cluster, &options).unwrap();
        summary.faults[0].recovery.as_ref().unwrap().recovered_after_s
    };
    let soon = recovered(&cluster).unwrap();
    for event in &mut cluster.timeline {
        if event.event == "routes_removed" {
            event.at = SimTime(event.at.0 + 6_000_000_000);
        }
    }
    cluster.timeline.sort_by_key(|event| event.at);
    assert!(soon < 8.0 && recovered(&cluster).unwrap() >= 8.0, "{soon}");
}

#[test]
fn a_fault_without_a_dip_has_nothing_to_recover_from() {
    let (mut run, mut cluster) = outage();
    // What was lost is served after all, and at once.
    for s in 10..20_u64 {
        for i in 2..4 {
            let (request, job) = served(10 * s + i, 0);
            run.requests.push(request);
            cluster.jobs.push(job);
        }
    }
    cluster.gateway_queue.clear();
    let fault = &ClusterSummary::of(&run, &cluster, &options()).unwrap().faults[0];
    let r = fault.recovery.as_ref().unwrap();
    assert_eq!((r.dipped, r.recovered_after_s), (false, Some(0.0)));
    assert_relative_eq!(r.below_s, 0.0);
    assert_relative_eq!(r.queue_area_request_s, 0.0);
}

#[test]
fn faults_that_crash_nobody_end_when_they_are_mended() {
    let (run, mut cluster) = outage();
    cluster.timeline = vec![
        event(10, "fault", None, "link_down spine"),
        event(15, "fault", None, "slow_rank main/0"),
        event(19, "mended", None, "link_down spine"),
    ];
    let faults = ClusterSummary::of(&run, &cluster, &options()).unwrap().faults;
    assert_eq!(
        (faults[0].mended_after_s, faults[0].is_overlapped),
        (Some(9.0), true)
    );
    assert_eq!(
        (faults[0].detected_after_s, faults[0].capacity_back_after_s),
        (None, None)
    );
    assert_eq!(faults[1].mended_after_s, None);
}

#[test]
fn a_group_that_crashes_again_before_it_was_noticed_was_not_noticed() {
    let (run, mut cluster) = outage();
    cluster
        .timeline
        .insert(2, event(10, "crash", Some(1), "main/1: again"));
    cluster
        .timeline
        .insert(2, event(10, "fault", None, "group_crash main/1"));
    let faults = ClusterSummary::of(&run, &cluster, &options()).unwrap().faults;
    assert_eq!(
        (faults[0].detected_after_s, faults[1].detected_after_s),
        (None, Some(1.0))
    );
    assert!(faults[0].is_overlapped);
}

#[test]
fn demands_by_step_where_groups_do_both() {
    let d = summary().demand;
    assert_eq!(d.by, DemandBy::Step);
    assert_relative_eq!(d.offered_s, 30.0);
    assert_relative_eq!(d.prefill_groups.unwrap(), 14.0 / 30.0);
    assert_relative_eq!(d.decode_groups.unwrap(), 26.0 / 30.0);
    assert_relative_eq!(d.prefill_per_decode.unwrap(), 14.0 / 26.0);
}

#[test]
fn demands_by_pool_where_they_are_apart() {
    let (mut run, mut cluster) = outage();
    cluster.pools = vec!["p".into(), "d".into()];
    cluster.groups[0].pool = 1;
    cluster.groups[1].pool = 0;
    for job in cluster.jobs.iter_mut().filter(|j| j.group.is_some()) {
        (job.group, job.prefill_group) = (Some(0), Some(1));
        (job.transferred_bytes, job.transfer) = (600, job.dispatched);
    }
    cluster.links = vec![("spine".into(), 30_000), ("p/0 out".into(), 30_000)];
    (cluster.failed_transfers, cluster.leases_expired) = (2, 3);
    let mut options = options();
    options.link_bytes_per_s.insert("spine".into(), 1_500);
    let s = ClusterSummary::of(&run, &cluster, &options).unwrap();
    let d = &s.demand;
    assert_eq!(
        (d.by, d.transfers, d.transferred_bytes),
        (DemandBy::Pool, 50, 30_000)
    );
    assert_eq!((d.failed_transfers, d.leases_expired), (2, 3));
    assert_relative_eq!(d.prefill_groups.unwrap(), 10.0 / 30.0);
    assert_relative_eq!(d.decode_groups.unwrap(), 30.0 / 30.0);
    assert_relative_eq!(d.transfer_bytes_per_s.unwrap(), 1_000.0);
    // 30,000 bytes in the 40 s of the run.
    assert_relative_eq!(d.links[0].bytes_per_s.unwrap(), 750.0);
    assert_relative_eq!(d.links[0].share.unwrap(), 0.5);
    assert_eq!(d.links[1].share, None);
    assert_eq!(
        (
            s.pools[0].served.prefilled,
            s.pools[0].served.answered,
            s.pools[1].served.answered
        ),
        (50, 0, 50)
    );
    run.requests.truncate(1);
    cluster.jobs.truncate(1);
    let d = ClusterSummary::of(&run, &cluster, &options).unwrap().demand;
    assert_eq!(
        (d.prefill_groups, d.transfer_bytes_per_s),
        (None, None),
        "no time under load"
    );
}

#[test]
fn cost_and_energy_of_an_outage() {
    let s = summary();
    let cost = s.cost.unwrap();
    // 80 group-seconds of half a machine.
    assert_relative_eq!(cost.usd, 80.0 / 3_600.0 * 5.0);
    assert_relative_eq!(cost.usd_per_good_request.unwrap(), cost.usd / 50.0);
    assert_relative_eq!(cost.usd_per_m_good_output_tokens.unwrap(), cost.usd / 500.0 * 1e6);
    // 8 s starting, 30 s idle, 2 s failed; of 40 s busy, what was for nothing.
    let wasted = 40.0 + 40.0 * s.outcomes.lost_work_share.unwrap();
    assert_relative_eq!(cost.wasted_share.unwrap(), wasted / 80.0);
    let energy = s.energy.unwrap();
    // Two devices each; with power for 40 and 38 s.
    assert_relative_eq!(energy.idle_j, 2.0 * 100.0 * 78.0);
    assert_relative_eq!(energy.by_phase.prefill, 2.0 * 700.0 * 14.0, max_relative = 1e-9);
    assert_relative_eq!(energy.by_phase.decode, 2.0 * 400.0 * 26.0, max_relative = 1e-9);
    assert_relative_eq!(energy.total_j, 48_000.0, max_relative = 1e-9);
    assert_relative_eq!(energy.j_per_good_request.unwrap(), 960.0, max_relative = 1e-9);
    assert_relative_eq!(
        energy.total_j_per_output_token.unwrap(),
        96.0,
        max_relative = 1e-9
    );
    // Both compute in the first 5 s, at 500 and 520 W a device.
    assert_relative_eq!(energy.peak_w.unwrap(), 2.0 * (500.0 + 520.0), max_relative = 1e-6);
}

#[test]
fn what_is_not_known_is_absent_and_said() {
    let (run, cluster) = outage();
    let s = ClusterSummary::of(&run, &cluster, &options()).unwrap();
    assert_eq!((s.cost, s.energy), (None, None));
    let said = s.limitations.join("\n");
    for word in [
        "no cost: no price is known for the machines of main",
        "no energy",
        "no KV byte-seconds",
        "lower bounds",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let (mut run, cluster) = outage();
    for replica in &mut run.replicas {
        (
            replica.step_starts,
            replica.step_ends,
            replica.running,
            replica.waiting,
        ) = Default::default();
    }
    let s = ClusterSummary::of(&run, &cluster, &full_options()).unwrap();
    let energy = s.energy.unwrap();
    assert_relative_eq!(energy.total_j, 48_000.0, max_relative = 1e-9);
    assert_eq!(
        (
            energy.peak_w,
            s.groups[0].mean_running,
            s.scaling[0].overshoot_group_h
        ),
        (None, None, None)
    );
    assert_relative_eq!(s.pools[0].phases.ready_busy, 40.0);
}

#[test]
fn scaling_beyond_need_thrash_and_latency() {
    let (mut run, mut cluster) = outage();
    let warm = Phase::Starting(Stage::Warm);
    cluster.groups = vec![
        group(0, 0, &[(0, Phase::Ready)]),
        group(
            0,
            1,
            &[
                (10, warm),
                (16, Phase::Ready),
                (20, Phase::Draining),
                (22, Phase::Stopped),
            ],
        ),
        group(0, 2, &[(25, warm), (27, Phase::Ready)]),
        group(0, 3, &[(25, warm)]),
    ];
    cluster.groups[1].cached_tokens_lost = 4_096;
    run.replicas = vec![
        replica(&[(0, 30, 1)], 0, 30),
        replica(&[], 0, 0),
        replica(&[], 0, 0),
        replica(&[], 0, 0),
    ];
    cluster.jobs.iter_mut().for_each(|j| j.group = None);
    cluster.timeline = vec![
        event(10, "scale", None, "main: +1 groups"),
        event(11, "scale", None, "other: -1 groups"),
        event(20, "scale", None, "main: -1 groups"),
        event(25, "scale", None, "main: +2 groups"),
    ];
    let options = ClusterOptions {
        window: Some(SimDuration(10 * S)),
        ..options()
    };
    let scaling = ClusterSummary::of(&run, &cluster, &options).unwrap().scaling;
    let s = &scaling[0];
    assert_eq!(
        (s.scale_ups, s.scale_downs, s.reversals, s.never_ready),
        (2, 1, 2, 1)
    );
    assert_relative_eq!(s.shortest_reversal_s.unwrap(), 5.0);
    assert_eq!((s.scale_up_latency.n, s.scale_up_latency.max), (2, Some(6.0)));
    assert_relative_eq!(s.scale_up_latency.mean.unwrap(), 4.0);
    assert_eq!((s.ready_min, s.ready_max), (1, 2));
    assert_eq!((s.drain.n, s.drain.max, s.drains_cut_off), (1, Some(2.0), 0));
    assert_eq!(s.cached_tokens_lost, 4_096);
    assert_relative_eq!(s.ready_mean.unwrap(), (40.0 + 4.0 + 13.0) / 40.0);
    // One group is needed until 30 s, none then: 4 s, 3 s and 20 s are beyond.
    assert_relative_eq!(s.overshoot_group_h.unwrap(), 27.0 / 3_600.0, max_relative = 1e-9);
}

#[test]
fn tenants_wait_and_hold() {
    let (run, mut cluster) = outage();
    cluster.jobs.iter_mut().rev().take(1).for_each(|j| {
        (j.tenant, j.ended) = (1, Some(at(33)));
    });
    let fairness = ClusterSummary::of(&run, &cluster, &full_options())
        .unwrap()
        .fairness;
    let (first, second) = (&fairness.tenants[0], &fairness.tenants[1]);
    assert_eq!(
        (first.offered, first.completed, second.offered, second.completed),
        (52, 50, 1, 0)
    );
    // 50 requests hold 105 tokens of 1,000 bytes for 0.4 s each.
    assert_relative_eq!(
        first.kv_byte_seconds,
        50.0 * 105.0 * 1_000.0 * 0.4,
        max_relative = 1e-9
    );
    assert_relative_eq!(second.queue_age_max_s.unwrap(), 3.0);
}

#[test]
fn queues_in_engines_count_until_their_group_fails() {
    let (mut run, mut cluster) = outage();
    run.replicas[1].waiting = vec![3, 0];
    cluster.gateway_queue.clear();
    let queue = curve::queue(&run, &cluster);
    assert_eq!(queue.points(), [(at(0), 3), (at(10), 0)]);
    assert_relative_eq!(queue.mean(at(5), at(15)).unwrap(), 1.5);
}

#[test]
fn a_run_over_time() {
    let (run, cluster) = outage();
    let series = ClusterSeries::of(&run, &cluster, &options()).unwrap();
    assert_eq!(series.goodput.len(), 40);
    let near = |points: &Points, s: usize| points[s].1;
    assert_relative_eq!(near(&series.goodput, 12), 0.0);
    assert_relative_eq!(near(&series.goodput, 20), 3.0);
    assert_relative_eq!(near(&series.offered, 12), 2.0);
    assert_relative_eq!(near(&series.gateway_queue, 12), 5.0);
    let ready = &series.groups[0];
    assert_eq!(
        (ready.0, &ready.1[..]),
        ("ready", &[(0.0, 2.0), (10.0, 1.0), (20.0, 2.0), (40.0, 2.0)][..])
    );
}

#[test]
fn options_and_records_that_make_no_sense_are_refused() {
    let (run, mut cluster) = outage();
    let of = |options: &ClusterOptions, cluster: &ClusterRecord| {
        ClusterSummary::of(&run, cluster, options).unwrap_err()
    };
    let with = |change: fn(&mut ClusterOptions)| {
        let mut options = options();
        change(&mut options);
        options
    };
    assert!(matches!(
        of(&with(|o| o.window = Some(SimDuration(1))), &cluster),
        ClusterError::Window { .. }
    ));
    assert!(matches!(
        of(&with(|o| o.window = Some(SimDuration(0))), &cluster),
        ClusterError::Window { .. }
    ));
    let text = of(&with(|o| o.back_within = f64::NAN), &cluster).to_string();
    assert_eq!(text, "back_within is NaN; it must be 0 or more and below 1");
    assert!(matches!(
        of(&with(|o| o.target_utilisation = 0.0), &cluster),
        ClusterError::Share { .. }
    ));
    cluster.jobs.pop();
    assert!(
        of(&options(), &cluster)
            .to_string()
            .contains("53 requests and the cluster's record 52")
    );
}

#[test]
fn nothing_at_all_is_null_not_infinite() {
    let s = ClusterSummary::of(
        &RunRecord::default(),
        &ClusterRecord::default(),
        &ClusterOptions::default(),
    )
    .unwrap();
    assert_eq!(
        (
            s.outcomes.amplification,
            s.gateway.queue_mean,
            s.demand.prefill_groups
        ),
        (None, None, None)
    );
    assert_eq!((s.cost, s.energy, s.total.busy.utilisation), (None, None, None));
    let json = serde_json::to_string(&summary()).unwrap();
    assert_eq!(serde_json::from_str::<ClusterSummary>(&json).unwrap(), summary());
}

/// Of two groups the second's replica computes until 5 and from 20 to 25. It has dummy batches beside others' work from 5 to
/// 6, and idle steps from 25 to 29, 400 W for two devices.
#[test]
fn dummy_batches_draw_power_and_are_told_apart() {
    let (run, mut cluster) = outage();
    let dummy = |from, to, steps, is_idle| crate::record::DummySteps {
        replica: 1,
        from: at(from),
        to: at(to),
        steps,
        is_idle,
    };
    cluster.dummy_steps = vec![dummy(5, 6, 10, false), dummy(25, 29, 40, true)];
    let s = ClusterSummary::of(&run, &cluster, &full_options()).unwrap();
    let told = DummyFigures {
        steps: 50,
        rank_s: 5.0,
        idle_steps: 40,
        idle_rank_s: 4.0,
    };
    assert_eq!((s.pools[0].dummy, s.total.dummy), (Some(told), Some(told)));
    let (energy, without) = (s.energy.unwrap(), summary().energy.unwrap());
    assert_relative_eq!(energy.by_phase.dummy, 2.0 * 400.0 * 5.0, max_relative = 1e-9);
    assert_relative_eq!(
        energy.total_j - without.total_j,
        2.0 * 300.0 * 5.0,
        max_relative = 1e-9
    );
    // Neither prompts nor output tokens are charged with them, and nothing is busier.
    assert_eq!(energy.j_per_output_token, without.j_per_output_token);
    assert_eq!(s.pools[0].busy, summary().pools[0].busy);
    // Without steps the same joules.
    let mut streamed = run.clone();
    for replica in &mut streamed.replicas {
        (
            replica.step_starts,
            replica.step_ends,
            replica.running,
            replica.waiting,
        ) = Default::default();
    }
    let s = ClusterSummary::of(&streamed, &cluster, &full_options()).unwrap();
    assert_relative_eq!(s.energy.unwrap().total_j, energy.total_j, max_relative = 1e-9);
    // Who has none says nothing of them.
    let plain = serde_json::to_string(&summary()).unwrap();
    assert!(!plain.contains("dummy"));
}
