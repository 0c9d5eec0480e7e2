//! How the targets were met over the whole run, each by itself and all together.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::good::Good;
use super::options::ClusterOptions;
use crate::metric::goodput::Target;
use crate::record::{RunRecord, Status};

/// One target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetShare {
    /// Of which metric.
    pub metric: Target,
    /// The target in seconds.
    pub target_s: f64,
    /// Offered requests that met it.
    pub met: u64,
    /// `met` over offered requests; null without any.
    pub attainment: Option<f64>,
}

/// All targets, over all requests of the run but those that their load generator did not count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetShares {
    /// Each target by itself.
    pub targets: Vec<TargetShare>,
    /// Offered requests.
    pub offered: u64,
    /// Requests that met every target.
    pub met: u64,
    /// `met` over offered requests; null without any.
    pub attainment: Option<f64>,
    /// The share asked for, if one was.
    pub attainment_asked: Option<f64>,
    /// The largest share of requests allowed that do not complete, if one was given.
    pub errors_allowed: Option<f64>,
    /// The joint attainment and the errors are as asked: what a capacity search asks of a load, there of what its window
    /// measures. Null when nothing was asked or offered.
    pub holds: Option<bool>,
    /// Each target's own attainment and the errors are as asked.
    pub holds_each: Option<bool>,
}

impl TargetShares {
    /// Of a run; none without targets.
    pub fn of(run: &RunRecord, options: &ClusterOptions, good: &Good) -> Option<Self> {
        let slo = &options.slo;
        let counted = || run.requests.iter().filter(|r| r.status != Status::Surplus);
        let offered = counted().count() as u64;
        let completed = counted().filter(|r| r.status == Status::Completed).count() as u64;
        let share = |n: u64| (offered > 0).then(|| n as f64 / offered as f64);
        let targets: Vec<TargetShare> = slo
            .targets()
            .zip(&good.by_target)
            .map(|((metric, bound), &met)| TargetShare {
                metric,
                target_s: bound.as_secs_f64(),
                met,
                attainment: share(met),
            })
            .collect();
        let errors = share(offered - completed);
        let met = good.requests();
        (!targets.is_empty()).then(|| Self {
            offered,
            met,
            attainment: share(met),
            attainment_asked: slo.attainment,
            errors_allowed: slo.errors,
            holds: slo.holds([share(met)], errors),
            holds_each: slo.holds(targets.iter().map(|t| t.attainment), errors),
            targets,
        })
    }
}
