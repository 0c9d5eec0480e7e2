//! What an autoscaler is told: metric, target, bounds, speed.

use super::Reading;
use crate::units::{SimDuration, written};

/// What is compared with the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleMetric {
    /// Requests waiting; target: a group.
    WaitingPerGroup,
    /// Requests running; target: a group.
    RunningPerGroup,
    /// Requests in flight as the gateway counts them; target: a group.
    InFlightPerGroup,
    /// Requests arriving a second; target: a group.
    RequestRate,
    /// Share of KV blocks in use, 0 to 1; target: the mean over groups.
    KvUsage,
    /// Wait of the oldest waiting request; target in seconds. It says little about how many groups are short: more
    /// groups do not divide a wait as they divide a load, so its recommendations overshoot.
    QueueAge,
}

/// Who tells the metric, and so which groups count: the kinds of an HPA's metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MetricSource {
    /// One figure for the whole pool, as from a query to Prometheus (`External` with an `AverageValue`, which is what KEDA
    /// makes): it is divided among all groups that there are, ready or not.
    #[default]
    External,
    /// A figure of each group, told by itself (`Pods`): groups that are not ready yet have none, and are assumed to be
    /// such as to change least.
    Pods,
}

impl ScaleMetric {
    /// The metric summed over groups: what the pool as a whole has to carry. A mean is multiplied by the groups that it
    /// was taken over. None when it is no number or nobody was there to measure.
    pub(super) fn total(self, reading: &Reading) -> Option<f64> {
        let over_ready = |mean: f64| (reading.ready > 0).then(|| mean * f64::from(reading.ready));
        let total = match self {
            Self::WaitingPerGroup => reading.waiting as f64,
            Self::RunningPerGroup => reading.running as f64,
            Self::InFlightPerGroup => reading.in_flight as f64,
            Self::RequestRate => reading.requests_per_s,
            Self::KvUsage => over_ready(reading.kv_usage)?,
            Self::QueueAge => over_ready(reading.oldest_waiting.as_secs_f64())?,
        };
        (total.is_finite() && total >= 0.0).then_some(total)
    }

    /// The same of what groups tell themselves: the gateway's queue is not among it.
    pub(super) fn total_of_groups(self, reading: &Reading) -> Option<f64> {
        self.total(&Reading {
            waiting: reading.waiting.saturating_sub(reading.waiting_at_gateway),
            ..*reading
        })
    }

    /// Whether groups tell it themselves.
    const fn is_of_groups(self) -> bool {
        matches!(
            self,
            Self::WaitingPerGroup | Self::RunningPerGroup | Self::KvUsage
        )
    }
}

/// The most that one limit lets a pool change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxStep {
    /// So many groups.
    Groups(u32),
    /// So many percent of the groups at the start of the period, rounded up to whole groups.
    Percent(u32),
}

/// How fast a pool may change in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimit {
    /// The most it may change.
    pub max: MaxStep,
    /// In any period of this length.
    pub per: SimDuration,
}

impl StepLimit {
    /// Groups that may be added to, or taken from, a pool of `start` groups.
    fn step(&self, start: u32) -> u32 {
        match self.max {
            MaxStep::Groups(groups) => groups,
            MaxStep::Percent(percent) => {
                let hundredths = u64::from(start) * u64::from(percent);
                u32::try_from(hundredths.div_ceil(100)).unwrap_or(u32::MAX)
            }
        }
    }
}

/// Which of several limits counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Select {
    /// The one that lets it change most (the default of Kubernetes).
    #[default]
    Most,
    /// The one that lets it change least.
    Least,
}

/// How a pool changes in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScaleRule {
    /// Recommendations of this long are looked back at: the least counts to go up, the greatest to go down.
    pub stabilization: SimDuration,
    /// Limits of speed; empty means none. A single limit of 0 groups forbids the direction.
    pub limits: Vec<StepLimit>,
    /// Which of them counts.
    pub select: Select,
}

impl ScaleRule {
    /// The most groups that the limits allow; `start` gives the size at the start of a period.
    pub(super) fn ceiling(&self, start: impl Fn(SimDuration) -> u32) -> u32 {
        let tops = self.limits.iter().map(|limit| {
            let start = start(limit.per);
            start.saturating_add(limit.step(start))
        });
        match self.select {
            Select::Most => tops.max(),
            Select::Least => tops.min(),
        }
        .unwrap_or(u32::MAX)
    }

    /// The fewest groups that the limits allow.
    pub(super) fn floor(&self, start: impl Fn(SimDuration) -> u32) -> u32 {
        let bottoms = self.limits.iter().map(|limit| {
            let start = start(limit.per);
            start.saturating_sub(limit.step(start))
        });
        match self.select {
            Select::Most => bottoms.min(),
            Select::Least => bottoms.max(),
        }
        .unwrap_or(0)
    }
}

/// All that an autoscaler is told.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoscalerConfig {
    /// What is measured.
    pub metric: ScaleMetric,
    /// Who tells it.
    pub source: MetricSource,
    /// What it should be, in the unit of the metric.
    pub target: f64,
    /// Relative distance from the target within which nothing changes (Kubernetes: 0.1).
    pub tolerance: f64,
    /// Warm floor: never fewer ready and starting groups. At least 1, because nothing would be measured below.
    pub min_groups: u32,
    /// Never more ready and starting groups.
    pub max_groups: u32,
    /// Time between decisions (Kubernetes: 15 s).
    pub interval: SimDuration,
    /// How old metrics are when they are seen.
    pub metric_age: SimDuration,
    /// How it grows.
    pub up: ScaleRule,
    /// How it shrinks.
    pub down: ScaleRule,
    /// No change for this long after one. Not in Kubernetes; zero there.
    pub cooldown: SimDuration,
    /// Warm groups kept beyond the need, for the time that a new one takes.
    pub spare: u32,
}

impl AutoscalerConfig {
    /// The defaults of Kubernetes: tolerance 0.1, every 15 s; up at once, by 4 groups or 100 % per 15 s, whichever is
    /// more; down by all that is too many, after the highest recommendation of 300 s. (A comment in the API, on
    /// `behavior.scaleUp`, says 60 s; the defaults of its rules and the documentation say 15.)
    pub fn kubernetes(metric: ScaleMetric, target: f64, min_groups: u32, max_groups: u32) -> Self {
        let per = SimDuration::from_millis(15_000);
        let limit = |max| StepLimit { max, per };
        Self {
            metric,
            source: MetricSource::External,
            target,
            tolerance: 0.1,
            min_groups,
            max_groups,
            interval: per,
            metric_age: SimDuration::ZERO,
            up: ScaleRule {
                limits: vec![limit(MaxStep::Groups(4)), limit(MaxStep::Percent(100))],
                ..ScaleRule::default()
            },
            down: ScaleRule {
                stabilization: SimDuration::from_millis(300_000),
                limits: vec![limit(MaxStep::Percent(100))],
                ..ScaleRule::default()
            },
            cooldown: SimDuration::ZERO,
            spare: 0,
        }
    }

    /// Whether it makes sense.
    ///
    /// # Errors
    /// [`ScaleConfigError`] says what does not.
    pub fn check(&self) -> Result<(), ScaleConfigError> {
        if !(self.target.is_finite() && self.target > 0.0) {
            return Err(ScaleConfigError::Target(self.target));
        }
        if !(self.tolerance.is_finite() && self.tolerance >= 0.0) {
            return Err(ScaleConfigError::Tolerance(self.tolerance));
        }
        if self.source == MetricSource::Pods && !self.metric.is_of_groups() {
            return Err(ScaleConfigError::NotOfGroups);
        }
        if self.min_groups == 0 {
            return Err(ScaleConfigError::NoFloor);
        }
        if self.max_groups < self.min_groups || self.max_groups > i32::MAX as u32 {
            return Err(ScaleConfigError::Bounds {
                min: self.min_groups,
                max: self.max_groups,
            });
        }
        if self.interval == SimDuration::ZERO {
            return Err(ScaleConfigError::Interval);
        }
        let limits = self.up.limits.iter().chain(&self.down.limits);
        if limits.into_iter().any(|limit| limit.per == SimDuration::ZERO) {
            return Err(ScaleConfigError::Period);
        }
        Ok(())
    }

    /// The longest period of a limit of speed.
    pub(super) fn longest_period(&self) -> SimDuration {
        let limits = self.up.limits.iter().chain(&self.down.limits);
        limits.map(|limit| limit.per).max().unwrap_or(SimDuration::ZERO)
    }
}

/// Why a configuration of an autoscaler is refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScaleConfigError {
    /// Target is zero, negative or no number.
    #[error("target is {}; an autoscaler divides by it, so it must be above 0", written(*.0))]
    Target(f64),
    /// Tolerance is negative or no number.
    #[error("tolerance is {}; it must be 0 or more (Kubernetes uses 0.1)", written(*.0))]
    Tolerance(f64),
    /// Groups do not know this metric.
    #[error(
        "the metric is the gateway's, so groups cannot tell it; with source pods it is waiting-per-group, running-per-group \
         or kv-usage"
    )]
    NotOfGroups,
    /// The warm floor is missing.
    #[error("min_groups is 0; at least 1 group must stay, or nothing would be measured")]
    NoFloor,
    /// Bounds that hold nothing.
    #[error("max_groups is {max}; it must be between min_groups ({min}) and 2147483647")]
    Bounds {
        /// The floor.
        min: u32,
        /// The ceiling.
        max: u32,
    },
    /// It would decide without end at one instant.
    #[error("interval is 0; decisions need time between them (Kubernetes: 15 s)")]
    Interval,
    /// A limit of speed over no time.
    #[error("a limit's period is 0; it must be above 0 (Kubernetes: 15 s)")]
    Period,
}
