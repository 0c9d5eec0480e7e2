//! Conservation through faults while pools are scaled and rolled out, with pipelines, waves and engines that schedule ahead.

use super::conservation::{Launched, any_fleet, any_requests, assert_conserved};
use super::*;
use kneeboard::cluster::autoscale::{
    Autoscaler, AutoscalerConfig, MetricSource, ScaleMetric, ScalePolicy, ScaleRule,
};
use kneeboard::cluster::fault::{Fallback, Fault, FaultKind};
use kneeboard::cluster::ratio::Ratio;
use kneeboard::cluster::rollout::{Analysis, Canary, CanaryLimits, RolloutConfig, Undecided};
use kneeboard::cluster::router::PrefillDecider;
use kneeboard::sim::HostTimes;
use kneeboard::sim::fleet::PoolRollout;
use proptest::prelude::*;

fn any_scaler() -> impl Strategy<Value = ScalePolicy> {
    let metric = prop::sample::select(vec![
        ScaleMetric::InFlightPerGroup,
        ScaleMetric::WaitingPerGroup,
        ScaleMetric::RequestRate,
        ScaleMetric::KvUsage,
        ScaleMetric::QueueAge,
    ]);
    (metric, any::<bool>(), 1u32..40, 5u64..80, 0u64..100).prop_map(
        |(metric, by_groups, target, interval, patience)| {
            let of_groups = matches!(metric, ScaleMetric::WaitingPerGroup | ScaleMetric::KvUsage);
            let source = if by_groups && of_groups {
                MetricSource::Pods
            } else {
                MetricSource::External
            };
            let config = AutoscalerConfig {
                source,
                interval: ms(interval),
                up: ScaleRule::default(),
                down: ScaleRule {
                    stabilization: ms(patience),
                    ..ScaleRule::default()
                },
                ..AutoscalerConfig::kubernetes(metric, f64::from(target) / 4.0, 1, 5)
            };
            ScalePolicy::Metric(Box::new(Autoscaler::new(config).unwrap()))
        },
    )
}

/// Checks that all verdicts come of: some limits are broken by the new revision's longer steps, some by faults.
fn any_analysis() -> impl Strategy<Value = Analysis> {
    let limits = prop::sample::select(vec![
        (Some(0.0), None),
        (Some(0.5), None),
        (None, Some(0.5)),
        (Some(0.9), Some(1.3)),
    ]);
    let undecided = prop::sample::select(vec![Undecided::Wait, Undecided::Promote, Undecided::RollBack]);
    (
        1u64..150,
        0u64..40,
        1u32..5,
        0u32..2,
        limits,
        undecided,
        1u64..400,
    )
        .prop_map(
            |(interval, age, min_requests, failure_limit, (errors, ratio), undecided, deadline)| Analysis {
                interval: ms(interval),
                metric_age: ms(age),
                percentile: 0.5,
                min_requests,
                failure_limit,
                limits: CanaryLimits {
                    errors,
                    ttft_ratio: ratio,
                    tpot_ratio: ratio,
                    e2e_ratio: ratio,
                },
                undecided,
                progress_deadline: ms(deadline),
            },
        )
}

fn any_rollout() -> impl Strategy<Value = PoolRollout> {
    let canary = prop::option::of((0u64..100, prop::option::of(any_analysis())).prop_map(
        |(hold, analysis)| {
            let first = analysis.map_or(ms(0), |a: Analysis| a.interval + a.metric_age);
            Canary {
                groups: 1,
                share: 0.5,
                hold: first + ms(hold),
                analysis,
            }
        },
    ));
    (0u64..600, 1u32..3, 0u32..2, canary, 1u64..200).prop_map(
        |(at, surge, max_unavailable, canary, drain)| PoolRollout {
            config: RolloutConfig {
                at: at_ms(at),
                surge,
                max_unavailable,
                canary,
                drain_timeout: ms(drain),
            },
            slowdown: Ratio::new(3, 2),
        },
    )
}

fn further_faults() -> impl Strategy<Value = Vec<Fault>> {
    let kind = prop_oneof![
        (0u64..60).prop_map(|age| FaultKind::StaleMetrics { age: ms(age) }),
        Just(FaultKind::WeightStoreSlow {
            factor: Ratio::new(3, 1)
        }),
        (0u32..2).prop_map(|revision| FaultKind::KernelFallback {
            on: Fallback::Revision(revision),
            factor: Ratio::new(2, 1),
        }),
    ];
    let fault = (0u64..800, 1u64..400, kind).prop_map(|(at, lasts, kind)| Fault {
        at: at_ms(at),
        duration: Some(ms(lasts)),
        kind,
    });
    prop::collection::vec(fault, 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn nothing_is_lost_while_pools_change(
        config in any_fleet(), trace in any_requests(),
        (first, second) in (prop::option::of(any_scaler()), prop::option::of(any_scaler())),
        rollout in prop::option::of(any_rollout()), further in further_faults(),
        (kind, asynchronous) in (0u32..3, any::<bool>()), threshold in prop::option::of(0u32..150),
        (add, between) in (0u64..3, 0u64..3),
        (inbound, outbound, fixed, draft) in (0u64..4, 0u64..3, 0u64..20, 0u32..2),
    ) {
        let mut config = config;
        for pool in &mut config.pools {
            pool.engine.async_scheduling = asynchronous;
            pool.engine.num_speculative_tokens = draft;
            pool.lockstep = kind == 1;
            pool.engine.pipeline_parallel_size = if kind == 2 { 2 } else { 1 };
            if !pool.lockstep {
                let host = HostTimes { add_request: ms(add), add_request_idle: ms(add), ..HostTimes::default() };
                pool.host = HostTimes { between_steps: ms(between), ..host };
            }
        }
        (config.front_end.inbound, config.front_end.outbound) = (ms(inbound), ms(outbound));
        config.transfer.fixed = ms(fixed);
        let last = config.pools.len() - 1;
        config.scaling.extend(first.map(|scaler| (0, scaler)));
        config.scaling.extend(second.filter(|_| last > 0).map(|scaler| (last, scaler)));
        if let Some(rollout) = rollout {
            // A pool has one rollout.
            config.rollouts.retain(|(pool, _)| *pool != last);
            config.rollouts.push((last, rollout));
        }
        config.faults.extend(further);
        config.faults.sort_by_key(|f| f.at);
        if let Some(threshold) = threshold {
            config.routing.decider = PrefillDecider::Uncached { threshold };
        }
        let step = Launched(Price { step: 4 * MS, prefill_token: MS / 20 });
        let (record, cluster) = run_fleet(&config, &step, &trace);
        assert_conserved(&config, &trace, &record, &cluster);
        let stepped = kneeboard::sim::fleet::run(Pace::Step, &config, &[&step], &trace).unwrap();
        prop_assert_eq!(cluster, stepped.1);
        prop_assert_eq!(record, stepped.0);
    }
}

/// Two requests of an engine that schedules ahead are given up at 31 and 51, between its steps of 4 ms, and leave it 3 ms
/// later: each with the tokens of all steps that ended by then.
#[test]
fn giving_up_twice_loses_no_token_of_an_engine_that_schedules_ahead() {
    let mut config = unified(1, roomy(8));
    config.pools[0].engine.async_scheduling = true;
    config.gateway.cancel_latency = ms(3);
    config.gateway.timeouts.e2e = Some(ms(31));
    let step = Price {
        step: 4 * MS,
        prefill_token: 0,
    };
    // The second is in the plan that is made at 20 for the step from 24.
    let trace = trace(&[(0, 10, 40), (20, 10, 40)]);
    for pace in [Pace::Leap, Pace::Step] {
        let (record, cluster) = kneeboard::sim::fleet::run(pace, &config, &[&step], &trace).unwrap();
        assert_eq!(tokens_ms(&record, 0), [4, 8, 12, 16, 20, 24, 28]);
        assert_eq!(tokens_ms(&record, 1), [28, 32, 36, 40, 44, 48]);
        // One more each, at 32 and 52.
        assert_eq!(cluster.cancelled_output_tokens, 8 + 7, "{pace:?}");
    }
}

/// A request that is given up while its engine's host takes it in is not taken in.
#[test]
fn a_request_may_be_given_up_while_it_is_taken_in() {
    let mut config = unified(1, roomy(8));
    config.pools[0].host.add_request_idle = ms(5);
    config.gateway.timeouts.e2e = Some(ms(3));
    let step = Price {
        step: 4 * MS,
        prefill_token: 0,
    };
    let (record, _) = run_fleet(&config, &step, &trace(&[(0, 10, 4), (50, 10, 4)]));
    assert!(
        record
            .requests
            .iter()
            .all(|r| r.status == kneeboard::record::Status::TimedOut)
    );
    assert!(record.replicas[0].step_ends.is_empty());
}

/// The host's gap after a step ends at 35, when the only request is given up: the run ends then, not with the step's end at
/// 34, however it got there.
#[test]
fn a_run_ends_with_a_gap_that_ends_as_its_last_request_is_given_up() {
    let mut config = unified(1, roomy(8));
    config.pools[0].host.between_steps = ms(1);
    config.gateway.cancel_latency = ms(4);
    config.gateway.timeouts.e2e = Some(ms(31));
    let step = Price {
        step: 4 * MS,
        prefill_token: 0,
    };
    for pace in [Pace::Leap, Pace::Step] {
        let (record, cluster) =
            kneeboard::sim::fleet::run(pace, &config, &[&step], &trace(&[(0, 10, 100)])).unwrap();
        assert_eq!((record.end, cluster.end), (at_ms(35), at_ms(35)), "{pace:?}");
    }
}
