//! `cluster.pools.*.autoscale` and `rollout`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::quantity::{Finite, Span};

/// Who changes the number of a pool's groups: a metric and its target, or a schedule.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Autoscale {
    /// What is measured.
    pub metric: Option<ScaleMetricWord>,
    /// Who tells it, as the kinds of an HPA's metrics: `external`, one figure for all groups, or `pods`, each group its own;
    /// left out, external.
    pub source: Option<MetricSourceWord>,
    /// What it should be, in its own unit: requests, requests a second, a share, seconds.
    pub target: Option<Finite>,
    /// Never fewer ready and starting groups; beside a metric it must be given.
    pub min_groups: Option<u32>,
    /// Never more ready and starting groups; beside a metric it must be given.
    pub max_groups: Option<u32>,
    /// Relative distance from the target within which nothing changes.
    pub tolerance: Option<Finite>,
    /// Time between decisions.
    pub interval: Option<Span>,
    /// How old metrics are when they are seen.
    pub metric_age: Option<Span>,
    /// How it grows.
    pub up: Option<ScaleRuleWords>,
    /// How it shrinks.
    pub down: Option<ScaleRuleWords>,
    /// No change for this long after one.
    pub cooldown: Option<Span>,
    /// Warm groups kept beyond the need.
    pub spare: Option<u32>,
    /// Instead of a metric and all that belongs to it: how many groups from when on.
    pub schedule: Option<Vec<ScheduleStep>>,
}

/// What an autoscaler measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleMetricWord {
    /// Requests waiting, a group.
    WaitingPerGroup,
    /// Requests running, a group.
    RunningPerGroup,
    /// Requests in flight as the gateway counts them, a group.
    InFlightPerGroup,
    /// Requests arriving a second, a group.
    RequestRate,
    /// Share of KV blocks in use.
    KvUsage,
    /// Wait of the oldest waiting request, seconds.
    QueueAge,
}

/// Who tells an autoscaler's metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MetricSourceWord {
    /// One figure for the pool, divided among all groups that there are, ready or not.
    External,
    /// Each group its own: those that are not ready have none, and are taken to be such as to change least.
    Pods,
}

/// How a pool changes in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScaleRuleWords {
    /// Recommendations of this long are looked back at.
    pub stabilization: Option<Span>,
    /// Limits of speed.
    pub limits: Option<Vec<StepLimitWords>>,
    /// Which of them counts.
    pub select: Option<SelectWord>,
}

/// The most that a pool changes in a period: one of `groups` and `percent`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepLimitWords {
    /// So many groups.
    pub groups: Option<u32>,
    /// So many percent of the groups at the start of the period.
    pub percent: Option<u32>,
    /// The period.
    pub per: Span,
}

/// Which of several limits counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SelectWord {
    /// The one that lets it change most.
    Most,
    /// The one that lets it change least.
    Least,
}

/// So many groups from an instant on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleStep {
    /// From when on.
    pub at: Span,
    /// How many.
    pub groups: u32,
}

/// A new revision that replaces a pool's groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutRule {
    /// When it begins.
    pub at: Span,
    /// Groups that may exist above the total; left out, a quarter, rounded up.
    pub surge: Option<u32>,
    /// Groups of the total that may be not ready; left out, a quarter, rounded down.
    pub max_unavailable: Option<u32>,
    /// A few groups before the rest.
    pub canary: Option<CanaryRule>,
    /// How long a draining group may finish its streams; left out, 30s as in Kubernetes.
    pub drain_timeout: Option<Span>,
    /// Steps of the new revision take so much of the old one's time; left out, 1.
    pub step_factor: Option<Finite>,
}

/// A few groups of the new revision, watched before the rest follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CanaryRule {
    /// How many groups.
    pub groups: u32,
    /// Share of the traffic that they get.
    pub share: Finite,
    /// How long they are watched, all of them ready: the bake time.
    pub hold: Span,
    /// How they are judged meanwhile; left out, the rest follows whatever happens.
    pub analysis: Option<AnalysisRule>,
}

/// Limits that a canary must hold, or it is rolled back: one limit at least. Latencies are those that the groups' own
/// metrics show, from a request's arrival there.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnalysisRule {
    /// Share of the canary's requests that may fail or time out, from 0 to below 1.
    pub errors: Option<Finite>,
    /// TTFT may be so many times that of the old revision in the same interval.
    pub ttft_ratio: Option<Finite>,
    /// The same of the mean time per output token after the first.
    pub tpot_ratio: Option<Finite>,
    /// The same of the time to the last token.
    pub e2e_ratio: Option<Finite>,
    /// Which percentile of latencies is compared; left out, 99 as in Flagger's request-duration.
    pub percentile: Option<Finite>,
    /// Time between checks, each of the requests that ended in it; left out, 60s as in Flagger.
    pub interval: Option<Span>,
    /// How old metrics are when they are seen.
    pub metric_age: Option<Span>,
    /// Fewer requests of either revision in an interval say nothing; left out, 50 as in Spinnaker's guide.
    pub min_requests: Option<u32>,
    /// Checks that may fail; left out, 0 as in Argo Rollouts.
    pub failure_limit: Option<u32>,
    /// If at the end of `hold` no check could tell; left out, wait: Argo Rollouts pauses.
    pub undecided: Option<UndecidedWord>,
    /// The longest that the canary may be not ready; left out, 600s as in Flagger.
    pub progress_deadline: Option<Span>,
}

/// What becomes of a canary of which no check could tell anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UndecidedWord {
    /// It is watched until a check can tell.
    Wait,
    /// The rest follows.
    Promote,
    /// The old revision comes back.
    RollBack,
}
