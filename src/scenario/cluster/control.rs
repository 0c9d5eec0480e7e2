//! `cluster.pools.*.autoscale` and `rollout`, and with them how many groups there may be.

use super::super::check::written;
use super::super::provenance::Source;
use super::super::quantity::Finite;
use super::super::schema::{
    Autoscale, RolloutRule, ScaleMetricWord, ScaleRuleWords, Scenario, SelectWord, StepLimitWords,
};
use super::faults::ratio;
use super::{Filling, span};
use crate::cluster::autoscale::{
    Autoscaler, AutoscalerConfig, MaxStep, ScaleMetric, ScalePolicy, ScaleRule, Schedule, Select, StepLimit,
};
use crate::cluster::rollout::{Canary, Rollout, RolloutConfig};
use crate::input::InputError;
use crate::sim::fleet::PoolRollout;
use crate::units::{SimDuration, SimTime};

/// Grace period of a pod in Kubernetes.
const DRAIN: SimDuration = SimDuration::from_millis(30_000);

/// Who changes a pool.
#[derive(Debug)]
pub(super) struct Controlled {
    pub scaling: Option<ScalePolicy>,
    pub rollout: Option<PoolRollout>,
    pub max_groups: u32,
}

/// Fills and checks both.
pub(super) fn resolve(
    scenario: &mut Scenario,
    i: usize,
    f: &mut Filling<'_>,
) -> Result<Controlled, InputError> {
    let path = format!("cluster.pools.{i}");
    let Some(pool) = scenario.cluster.pools.as_mut().and_then(|pools| pools.get_mut(i)) else {
        return Err(f.error("cluster.pools", "a pool is missing", "this is a bug"));
    };
    let groups = pool.groups;
    let (mut most, mut scaling) = (groups, None);
    if let Some(rule) = &mut pool.autoscale {
        let (policy, ceiling) = autoscale(rule, &format!("{path}.autoscale"), f)?;
        scaling = Some(policy);
        most = most.max(ceiling);
    }
    let rollout = match &mut pool.rollout {
        None => None,
        Some(rule) => Some(self::rollout(rule, groups, &format!("{path}.rollout"), f)?),
    };
    let surge = rollout.as_ref().map_or(0, |r| r.config.surge);
    let reached = most.saturating_add(surge);
    let from = Source::Derived("the most that is started".to_owned());
    let max_groups = f.fill(&path, "max_groups", &mut pool.max_groups, from, reached);
    if max_groups < reached {
        return Err(f.error(
            &format!("{path}.max_groups"),
            format!("found {max_groups}, but there may be {reached} groups at a time"),
            "raise it, or leave it out",
        ));
    }
    Ok(Controlled {
        scaling,
        rollout,
        max_groups,
    })
}

/// The shortest time between two decisions of an autoscaler: real ones take seconds.
const SHORTEST_INTERVAL: SimDuration = SimDuration::from_millis(100);

/// Kubernetes allows no longer ones.
const LONGEST_STABILIZATION: SimDuration = SimDuration::from_millis(3_600_000);
/// Recommendations that are looked back at, at most: an hour's at one a second.
const MOST_LOOKED_BACK: u64 = 3_600;

fn autoscale(
    rule: &mut Autoscale,
    path: &str,
    f: &mut Filling<'_>,
) -> Result<(ScalePolicy, u32), InputError> {
    if rule.schedule.is_some() {
        return schedule(rule, path, f);
    }
    let Some(min_groups) = rule.min_groups else {
        return Err(f.error(
            &format!("{path}.min_groups"),
            "it is missing: an autoscaler needs a floor, below which nothing is taken away",
            "give the fewest groups, at least 1",
        ));
    };
    f.blame()
        .at_least_one(&format!("{path}.min_groups"), Some(min_groups))?;
    let missing =
        |f: &Filling<'_>, key: &str, mend: &str| f.error(&format!("{path}.{key}"), "it is missing", mend);
    let max_groups = rule
        .max_groups
        .ok_or_else(|| missing(f, "max_groups", "give the most groups"))?;
    if max_groups > super::MAX_GROUPS {
        let mend = format!("allowed: min_groups to {}", super::MAX_GROUPS);
        return Err(f.error(&format!("{path}.max_groups"), format!("found {max_groups}"), mend));
    }
    let metric = rule.metric.ok_or_else(|| {
        let mend = "name one, as waiting-per-group, or give a schedule";
        missing(f, "metric", mend)
    })?;
    let target = rule
        .target
        .ok_or_else(|| missing(f, "target", "give what the metric should be"))?;
    let usual = AutoscalerConfig::kubernetes(self::metric(metric), target.0, min_groups, max_groups);
    let kubernetes = || Source::Derived("Kubernetes".to_owned());
    let tolerance = Finite(usual.tolerance);
    let config = AutoscalerConfig {
        tolerance: f
            .fill(path, "tolerance", &mut rule.tolerance, kubernetes(), tolerance)
            .0,
        interval: f
            .fill(
                path,
                "interval",
                &mut rule.interval,
                kubernetes(),
                span(usual.interval),
            )
            .0,
        metric_age: f.span(path, "metric_age", &mut rule.metric_age, SimDuration::ZERO),
        up: direction(&mut rule.up, &usual.up, &format!("{path}.up"), f)?,
        down: direction(&mut rule.down, &usual.down, &format!("{path}.down"), f)?,
        cooldown: f.span(path, "cooldown", &mut rule.cooldown, SimDuration::ZERO),
        spare: f.fill(path, "spare", &mut rule.spare, Source::Default, 0),
        ..usual
    };
    f.not_below(&format!("{path}.interval"), config.interval, SHORTEST_INTERVAL)?;
    for (key, rule) in [("up", &config.up), ("down", &config.down)] {
        let longest = SimDuration(config.interval.0.saturating_mul(MOST_LOOKED_BACK));
        f.blame().at_most(
            &format!("{path}.{key}.stabilization"),
            Some(span(rule.stabilization)),
            span(longest.min(LONGEST_STABILIZATION)),
        )?;
    }
    let scaler = Autoscaler::new(config).map_err(|e| f.error(path, e.to_string(), "see its keys"))?;
    Ok((ScalePolicy::Metric(Box::new(scaler)), max_groups))
}

const fn metric(word: ScaleMetricWord) -> ScaleMetric {
    match word {
        ScaleMetricWord::WaitingPerGroup => ScaleMetric::WaitingPerGroup,
        ScaleMetricWord::RunningPerGroup => ScaleMetric::RunningPerGroup,
        ScaleMetricWord::InFlightPerGroup => ScaleMetric::InFlightPerGroup,
        ScaleMetricWord::RequestRate => ScaleMetric::RequestRate,
        ScaleMetricWord::KvUsage => ScaleMetric::KvUsage,
        ScaleMetricWord::QueueAge => ScaleMetric::QueueAge,
    }
}

fn schedule(rule: &Autoscale, path: &str, f: &Filling<'_>) -> Result<(ScalePolicy, u32), InputError> {
    let alone = Autoscale {
        schedule: rule.schedule.clone(),
        ..Autoscale::default()
    };
    if *rule != alone {
        return Err(f.error(
            path,
            "beside a schedule other keys are given",
            "a schedule stands alone: its steps say how many groups there are, min_groups and max_groups too belong to \
             a metric; leave out the one or the others",
        ));
    }
    let path = format!("{path}.schedule");
    let steps: Vec<(SimTime, u32)> = rule
        .schedule
        .iter()
        .flatten()
        .map(|s| (SimTime::ZERO + s.at.0, s.groups))
        .collect();
    let most = steps.iter().map(|(_, groups)| *groups).max().unwrap_or(0);
    if most > super::MAX_GROUPS {
        let mend = format!("allowed: 1 to {}", super::MAX_GROUPS);
        return Err(f.error(&path, format!("found {most} groups"), mend));
    }
    let schedule = Schedule::new(steps).map_err(|e| f.error(&path, e.to_string(), "mend that step"))?;
    Ok((ScalePolicy::Schedule(schedule), most))
}

/// One direction; Kubernetes' where nothing is said.
fn direction(
    slot: &mut Option<ScaleRuleWords>,
    usual: &ScaleRule,
    path: &str,
    f: &mut Filling<'_>,
) -> Result<ScaleRule, InputError> {
    let kubernetes = || Source::Derived("Kubernetes".to_owned());
    let words = slot.get_or_insert_default();
    let limits = usual.limits.iter().map(|limit| StepLimitWords {
        groups: match limit.max {
            MaxStep::Groups(n) => Some(n),
            MaxStep::Percent(_) => None,
        },
        percent: match limit.max {
            MaxStep::Groups(_) => None,
            MaxStep::Percent(n) => Some(n),
        },
        per: span(limit.per),
    });
    let limits = f.fill(path, "limits", &mut words.limits, kubernetes(), limits.collect());
    let stabilization = span(usual.stabilization);
    let stabilization = f.fill(
        path,
        "stabilization",
        &mut words.stabilization,
        kubernetes(),
        stabilization,
    );
    let select = f.fill(path, "select", &mut words.select, kubernetes(), SelectWord::Most);
    let mut resolved = Vec::new();
    for (i, limit) in limits.iter().enumerate() {
        let max = match (limit.groups, limit.percent) {
            (Some(n), None) => MaxStep::Groups(n),
            (None, Some(n)) => MaxStep::Percent(n),
            _ => {
                return Err(f.error(
                    &format!("{path}.limits.{i}"),
                    "a limit is a number of groups or a percentage",
                    "give one of groups and percent",
                ));
            }
        };
        f.above_zero(&format!("{path}.limits.{i}.per"), Some(limit.per))?;
        resolved.push(StepLimit {
            max,
            per: limit.per.0,
        });
    }
    Ok(ScaleRule {
        stabilization: stabilization.0,
        limits: resolved,
        select: match select {
            SelectWord::Most => Select::Most,
            SelectWord::Least => Select::Least,
        },
    })
}

fn rollout(
    rule: &mut RolloutRule,
    groups: u32,
    path: &str,
    f: &mut Filling<'_>,
) -> Result<PoolRollout, InputError> {
    let kubernetes = || Source::Derived("Kubernetes".to_owned());
    let canary = rule.canary.as_ref().map(|c| Canary {
        groups: c.groups,
        share: c.share.0,
        hold: c.hold.0,
    });
    let config = RolloutConfig {
        at: SimTime::ZERO + rule.at.0,
        surge: f.fill(path, "surge", &mut rule.surge, kubernetes(), groups.div_ceil(4)),
        max_unavailable: f.fill(
            path,
            "max_unavailable",
            &mut rule.max_unavailable,
            kubernetes(),
            groups / 4,
        ),
        canary,
        drain_timeout: f
            .fill(
                path,
                "drain_timeout",
                &mut rule.drain_timeout,
                kubernetes(),
                span(DRAIN),
            )
            .0,
    };
    if config.surge > super::MAX_GROUPS {
        let mend = format!("allowed: 0 to {}", super::MAX_GROUPS);
        return Err(f.error(&format!("{path}.surge"), format!("found {}", config.surge), mend));
    }
    Rollout::new(config, groups).map_err(|e| f.error(path, e.to_string(), "see its keys"))?;
    let factor = f.number(path, "step_factor", &mut rule.step_factor, 1.0);
    let place = format!("{path}.step_factor");
    let slowdown =
        ratio(factor).ok_or_else(|| f.error(&place, format!("found {}", written(factor)), RATIO))?;
    Ok(PoolRollout { config, slowdown })
}

/// What a factor may be.
pub(super) const RATIO: &str = "allowed: a number from 0.000001 to 4000";
