//! Autoscaling: how many groups a pool should have, from the figures that a controller would really see.
//!
//! The formula, its tolerance, the windows of stabilisation and the limits of speed are those of Kubernetes'
//! HorizontalPodAutoscaler (autoscaling/v2, with `behavior`), in its order: recommend, stabilise, limit. As there, the
//! size at the first decision is the first recommendation, so nothing is taken away before a whole window has passed.
//!
//! *A group that starts counts as capacity.* It takes minutes to warm, and a controller that counted ready groups only
//! would order the same groups again at every interval. How it counts is the metric's [`MetricSource`]. Draining groups
//! are no capacity, and `max_groups` does not count them: hardware may hold a few more groups than that while some drain.
//!
//! *While a rollout replaces groups*, metrics are those of both revisions, and its surge counts in the tolerance; but
//! what is decided is the size without the surge ([`Observed::rolled`]), as an HPA sets `spec.replicas` and leaves the
//! surge to the Deployment. The bounds are on that size, so a surge above `max_groups` is not taken for too many groups.

use std::collections::VecDeque;

use crate::units::{SimDuration, SimTime};

mod config;
mod recommend;
mod schedule;

pub use config::{
    AutoscalerConfig, MaxStep, MetricSource, ScaleConfigError, ScaleMetric, ScaleRule, Select, StepLimit,
};
pub use schedule::{Schedule, ScheduleError};

/// What was measured at one instant over the whole pool.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reading {
    /// Groups that served then; means such as `kv_usage` are over them.
    pub ready: u32,
    /// Requests that waited: in queues of the engines and of the gateway.
    pub waiting: u64,
    /// Those of them that waited at the gateway, which no group's metrics show.
    pub waiting_at_gateway: u64,
    /// Requests that ran.
    pub running: u64,
    /// Requests sent and not ended, as the gateway counts them.
    pub in_flight: u64,
    /// Share of KV blocks in use, 0 to 1, mean over ready groups.
    pub kv_usage: f64,
    /// Requests that arrived a second, over the whole pool.
    pub requests_per_s: f64,
    /// How long the oldest waiting request had waited; zero when none waits.
    pub oldest_waiting: SimDuration,
}

/// The pool at the moment of a decision. Its counts are fresh: a controller knows what it ordered.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Observed {
    /// Groups that serve.
    pub ready: u32,
    /// Groups ordered and not yet ready; failed groups that are being replaced belong here too.
    pub starting: u32,
    /// Those of them whose node is not there yet: their processes do not run, as those of pending pods.
    pub pending: u32,
    /// Groups that finish what they have; no capacity.
    pub draining: u32,
    /// While a rollout replaces groups: how many the pool is to have, those of the surge apart, as `spec.replicas` of a
    /// Deployment. That is what is added to and taken from then; outside a rollout it is what there is.
    pub rolled: Option<u32>,
    /// What is measured now; the controller will see it `metric_age` later.
    pub reading: Reading,
    /// How much later than that, while a fault makes metrics stale.
    pub stale_by: SimDuration,
}

impl Observed {
    /// Groups that count as capacity: ready and starting, those of a rollout's surge among them.
    pub const fn capacity(&self) -> u32 {
        self.ready.saturating_add(self.starting)
    }

    /// The size that a decision changes: what a rollout under way leads to, else the capacity.
    pub const fn size(&self) -> u32 {
        match self.rolled {
            Some(total) => total,
            None => self.capacity(),
        }
    }
}

/// How a pool's size is ruled.
#[derive(Debug, Clone, PartialEq)]
pub enum ScalePolicy {
    /// Nobody changes it.
    Fixed,
    /// A plan made beforehand.
    Schedule(Schedule),
    /// A metric and its target.
    Metric(Box<Autoscaler>),
}

impl ScalePolicy {
    /// Groups to add (positive) or to drain (negative); none means leave it. Never `Some(0)`.
    pub fn decide(&mut self, now: SimTime, observed: &Observed) -> Option<i32> {
        match self {
            Self::Fixed => None,
            Self::Schedule(schedule) => schedule.decide(now, observed),
            Self::Metric(autoscaler) => autoscaler.decide(now, observed),
        }
    }

    /// When it wants to be asked next, given that it was asked at `now`.
    pub fn next_at(&self, now: SimTime) -> Option<SimTime> {
        match self {
            Self::Fixed => None,
            Self::Schedule(schedule) => schedule.next_after(now),
            Self::Metric(autoscaler) => Some(autoscaler.next_at()),
        }
    }
}

/// The controller of one pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Autoscaler {
    config: AutoscalerConfig,
    next_at: SimTime,
    /// The newest reading that was seen.
    in_force: Option<Reading>,
    /// Later ones in the order of time: they are not old enough yet.
    readings: VecDeque<(SimTime, Reading)>,
    /// Recommendations before stabilisation, as far back as the longer window.
    recommended: VecDeque<(SimTime, u32)>,
    /// Changes ordered, as far back as the longest period of a limit.
    ordered: VecDeque<(SimTime, i32)>,
    last_change: Option<(SimTime, bool)>,
    has_begun: bool,
    changes: u32,
    reversals: u32,
}

impl Autoscaler {
    /// A controller that first decides at time 0.
    ///
    /// # Errors
    /// [`ScaleConfigError`] when the configuration contradicts itself.
    pub fn new(config: AutoscalerConfig) -> Result<Self, ScaleConfigError> {
        config.check()?;
        Ok(Self {
            config,
            next_at: SimTime::ZERO,
            in_force: None,
            readings: VecDeque::new(),
            recommended: VecDeque::new(),
            ordered: VecDeque::new(),
            last_change: None,
            has_begun: false,
            changes: 0,
            reversals: 0,
        })
    }

    /// What it was made with.
    pub const fn config(&self) -> &AutoscalerConfig {
        &self.config
    }

    /// The next instant at which [`Self::decide`] decides.
    pub const fn next_at(&self) -> SimTime {
        self.next_at
    }

    /// Changes ordered so far.
    pub const fn changes(&self) -> u32 {
        self.changes
    }

    /// Changes that undid the direction of the one before: the count of thrash.
    pub const fn reversals(&self) -> u32 {
        self.reversals
    }

    /// Takes a reading between decisions, in the order of time. Without it metrics are as old as `metric_age` rounded
    /// up to whole intervals.
    pub fn observe(&mut self, now: SimTime, reading: Reading) {
        self.readings.push_back((now, reading));
    }

    /// Groups to add (positive) or to drain (negative); none means leave it. Never `Some(0)`.
    ///
    /// Before [`Self::next_at`] it does nothing. A pool outside `min_groups..=max_groups` is brought back at once,
    /// whatever the metrics, limits and cooldown say. Of the groups to drain, those that still start should go first.
    pub fn decide(&mut self, now: SimTime, observed: &Observed) -> Option<i32> {
        if now < self.next_at {
            return None;
        }
        self.next_at = now + self.config.interval;
        self.observe(now, observed.reading);
        let current = observed.size();
        if !std::mem::replace(&mut self.has_begun, true) {
            self.recommended.push_back((now, current));
        }
        let within = current.clamp(self.config.min_groups, self.config.max_groups);
        if within != current {
            return self.order(now, current, within);
        }
        let reading = self.reading_in_force(now, observed.stale_by)?;
        let recommended = recommend::recommend(&self.config, observed, &reading)?;
        let stable = self.stabilise(now, current, recommended);
        if self.cools_down(now) {
            return None;
        }
        let allowed = self.limit(now, current, stable);
        self.order(
            now,
            current,
            allowed.clamp(self.config.min_groups, self.config.max_groups),
        )
    }

    /// The newest reading that is at least `metric_age` old, or was once.
    fn reading_in_force(&mut self, now: SimTime, stale_by: SimDuration) -> Option<Reading> {
        while let Some(&(at, reading)) = self.readings.front()
            && at + self.config.metric_age + stale_by <= now
        {
            self.in_force = Some(reading);
            self.readings.pop_front();
        }
        self.in_force
    }

    /// The least of the recommendations in the window to go up, the greatest in the window to go down.
    fn stabilise(&mut self, now: SimTime, current: u32, recommended: u32) -> u32 {
        let newer = |at: SimTime, window: SimDuration| now.since(at) < window;
        let (up, down) = (self.config.up.stabilization, self.config.down.stabilization);
        let longest = up.max(down);
        while self
            .recommended
            .front()
            .is_some_and(|&(at, _)| !newer(at, longest))
        {
            self.recommended.pop_front();
        }
        let (mut least, mut greatest) = (recommended, recommended);
        for &(at, past) in &self.recommended {
            if newer(at, up) {
                least = least.min(past);
            }
            if newer(at, down) {
                greatest = greatest.max(past);
            }
        }
        self.recommended.push_back((now, recommended));
        current.max(least).min(greatest)
    }

    fn cools_down(&self, now: SimTime) -> bool {
        self.last_change
            .is_some_and(|(at, _)| now.since(at) < self.config.cooldown)
    }

    /// As far towards `wanted` as the limits of speed let it go.
    fn limit(&mut self, now: SimTime, current: u32, wanted: u32) -> u32 {
        let longest = self.config.longest_period();
        while self
            .ordered
            .front()
            .is_some_and(|&(at, _)| now.since(at) >= longest)
        {
            self.ordered.pop_front();
        }
        // The pool as it was when the period began: what was ordered since is undone.
        let at_start_of = |per: SimDuration| {
            let since = self.ordered.iter().filter(|&&(at, _)| now.since(at) < per);
            let net: i64 = since.map(|&(_, change)| i64::from(change)).sum();
            u32::try_from(i64::from(current) - net).unwrap_or(0)
        };
        if wanted > current {
            let ceiling = self.config.up.ceiling(at_start_of);
            wanted.min(ceiling.max(current))
        } else {
            let floor = self.config.down.floor(at_start_of);
            wanted.max(floor.min(current))
        }
    }

    fn order(&mut self, now: SimTime, current: u32, wanted: u32) -> Option<i32> {
        let change = i32::try_from(i64::from(wanted) - i64::from(current)).ok()?;
        if change == 0 {
            return None;
        }
        let up = change > 0;
        self.reversals += u32::from(self.last_change.is_some_and(|(_, before)| before != up));
        self.changes += 1;
        self.last_change = Some((now, up));
        self.ordered.push_back((now, change));
        Some(change)
    }
}

#[cfg(test)]
#[path = "autoscale_tests.rs"]
mod tests;
