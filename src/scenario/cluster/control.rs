//! `cluster.pools.*.autoscale`, and with that and the rollout how many groups there may be.

use super::super::provenance::Source;
use super::super::quantity::Finite;
use super::super::schema::{
    Autoscale, MetricSourceWord, ScaleMetricWord, ScaleRuleWords, Scenario, SelectWord, StepLimitWords,
};
use super::{Filling, span};
use crate::cluster::autoscale::{
    Autoscaler, AutoscalerConfig, MaxStep, MetricSource, ScaleMetric, ScalePolicy, ScaleRule, Schedule,
    Select, StepLimit,
};
use crate::input::InputError;
use crate::sim::fleet::PoolRollout;
use crate::units::written;
use crate::units::{SimDuration, SimTime};

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
        Some(rule) => {
            let scaled = pool.autoscale.as_ref();
            let sizes = Sizes {
                groups,
                fewest: scaled.and_then(|scaled| fewest(scaled, rule.at.0)),
                most,
            };
            Some(super::rollout::resolve(
                rule,
                &sizes,
                &format!("{path}.rollout"),
                f,
            )?)
        }
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

/// How many groups a pool has.
pub(super) struct Sizes {
    /// At the start.
    pub groups: u32,
    /// The fewest that an autoscaler may leave while a rollout is under way.
    pub fewest: Option<u32>,
    /// The most at any time, without a rollout's surge.
    pub most: u32,
}

/// The fewest groups that an autoscaler may leave from some time on.
fn fewest(rule: &Autoscale, from: SimDuration) -> Option<u32> {
    let Some(steps) = &rule.schedule else {
        return rule.min_groups;
    };
    let in_force = steps.iter().filter(|s| s.at.0 <= from).max_by_key(|s| s.at.0);
    let later = steps.iter().filter(|s| s.at.0 > from);
    later.chain(in_force).map(|s| s.groups).min()
}

/// The shortest time between two decisions of an autoscaler: real ones take seconds.
const SHORTEST_INTERVAL: SimDuration = SimDuration::from_millis(100);

/// Kubernetes allows no longer ones.
const LONGEST_STABILIZATION: SimDuration = SimDuration::from_millis(3_600_000);
/// Metrics that are older are nobody's: a scraper reads every few seconds.
pub(super) const OLDEST_METRIC: SimDuration = SimDuration::from_millis(3_600_000);
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
    if max_groups > super::MAX_GROUPS || max_groups < min_groups {
        let mend = format!("allowed: min_groups ({min_groups}) to {}", super::MAX_GROUPS);
        return Err(f.error(&format!("{path}.max_groups"), format!("found {max_groups}"), mend));
    }
    let metric = rule.metric.ok_or_else(|| {
        let mend = "name one, as waiting-per-group, or give a schedule";
        missing(f, "metric", mend)
    })?;
    let target = rule
        .target
        .ok_or_else(|| missing(f, "target", "give what the metric should be"))?;
    if metric == ScaleMetricWord::KvUsage && !(target.0 > 0.0 && target.0 <= 1.0) {
        let found = format!(
            "found {}, but KV usage is a share of the blocks",
            written(target.0)
        );
        return Err(f.error(&format!("{path}.target"), found, "allowed: above 0, up to 1"));
    }
    let usual = AutoscalerConfig::kubernetes(self::metric(metric), target.0, min_groups, max_groups);
    let kubernetes = || Source::Derived("Kubernetes".to_owned());
    let tolerance = Finite(usual.tolerance);
    let source = f.fill(
        path,
        "source",
        &mut rule.source,
        Source::Default,
        MetricSourceWord::External,
    );
    let config = AutoscalerConfig {
        source: match source {
            MetricSourceWord::External => MetricSource::External,
            MetricSourceWord::Pods => MetricSource::Pods,
        },
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
    check(&config, path, f)?;
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

/// What would be without effect, or beyond all use.
fn check(config: &AutoscalerConfig, path: &str, f: &Filling<'_>) -> Result<(), InputError> {
    if config.spare > super::MAX_GROUPS {
        let mend = format!("allowed: 0 to {}", super::MAX_GROUPS);
        return Err(f.error(&format!("{path}.spare"), format!("found {}", config.spare), mend));
    }
    let age = Some(span(config.metric_age));
    f.blame()
        .at_most(&format!("{path}.metric_age"), age, span(OLDEST_METRIC))?;
    let is_none = |limit: &StepLimit| matches!(limit.max, MaxStep::Groups(0) | MaxStep::Percent(0));
    let limits = &config.up.limits;
    if !limits.is_empty() && limits.iter().all(is_none) {
        return Err(f.error(
            &format!("{path}.up.limits"),
            "all are 0, so no group is ever added",
            "let one of them allow a group",
        ));
    }
    Ok(())
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
    if steps.is_empty() {
        return Err(f.error(&path, "found no steps", "give one, or leave autoscale out"));
    }
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

/// What a factor may be.
pub(super) const RATIO: &str = "allowed: a number from 0.000001 to 4000";
