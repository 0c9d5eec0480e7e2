//! Autoscaling: how many groups a pool should have, from the figures that a controller would really see.
//!
//! The formula, its tolerance, the windows of stabilisation and the limits of speed are those of Kubernetes'
//! HorizontalPodAutoscaler (autoscaling/v2, with `behavior`), in its order: recommend, stabilise, limit.
//!
//! *A group that starts counts as capacity.* It takes minutes to warm, and a controller that counted ready groups only
//! would order the same groups again at every interval. So the load is spread over ready and starting groups alike, as
//! the HPA does with pods that are not ready yet when it scales up. Draining groups are no capacity, and `max_groups`
//! does not count them: hardware may hold a few more groups than that while some drain.

use std::collections::VecDeque;

use crate::units::{SimDuration, SimTime};

mod config;
mod schedule;

pub use config::{AutoscalerConfig, MaxStep, ScaleConfigError, ScaleMetric, ScaleRule, Select, StepLimit};
pub use schedule::{Schedule, ScheduleError};

/// What was measured at one instant over the whole pool.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reading {
    /// Groups that served then; means such as `kv_usage` are over them.
    pub ready: u32,
    /// Requests that waited: in queues of the engines and of the gateway.
    pub waiting: u64,
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
    /// Groups that finish what they have; no capacity.
    pub draining: u32,
    /// What is measured now; the controller will see it `metric_age` later.
    pub reading: Reading,
}

impl Observed {
    /// Groups that count as capacity: ready and starting.
    pub const fn capacity(&self) -> u32 {
        self.ready.saturating_add(self.starting)
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
    /// Readings in the order of time; the first is the one in force, the rest is not old enough yet.
    readings: VecDeque<(SimTime, Reading)>,
    /// Recommendations before stabilisation, as far back as the longer window.
    recommended: VecDeque<(SimTime, u32)>,
    /// Changes ordered, as far back as the longest period of a limit.
    ordered: VecDeque<(SimTime, i32)>,
    last_change: Option<(SimTime, bool)>,
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
            readings: VecDeque::new(),
            recommended: VecDeque::new(),
            ordered: VecDeque::new(),
            last_change: None,
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
        let current = observed.capacity();
        let within = current.clamp(self.config.min_groups, self.config.max_groups);
        if within != current {
            return self.order(now, current, within);
        }
        let reading = self.reading_in_force(now)?;
        let recommended = self.recommend(current, &reading)?;
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

    /// The newest reading that is at least `metric_age` old.
    fn reading_in_force(&mut self, now: SimTime) -> Option<Reading> {
        let visible = |at: SimTime| at + self.config.metric_age <= now;
        while self.readings.get(1).is_some_and(|&(at, _)| visible(at)) {
            self.readings.pop_front();
        }
        self.readings
            .front()
            .filter(|&&(at, _)| visible(at))
            .map(|&(_, reading)| reading)
    }

    /// `ceil(current * metric / target)`, and `current` within the tolerance. With spare groups the formula rules the
    /// others: `ceil((current - spare) * metric / target) + spare`. None when the metric cannot be known.
    fn recommend(&self, current: u32, reading: &Reading) -> Option<u32> {
        let config = &self.config;
        let needed = config.metric.total(reading)? / config.target;
        let serving = current.saturating_sub(config.spare);
        if serving > 0 && (needed / f64::from(serving) - 1.0).abs() <= config.tolerance + ROUNDING {
            return Some(current);
        }
        // Saturates far beyond `max_groups`, which the caller applies.
        let groups = (needed * (1.0 - ROUNDING)).ceil() as u32;
        Some(groups.saturating_add(config.spare))
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

/// Relative slack for products such as 10 * 0.9 / 0.3 that land a bit above the whole number meant.
const ROUNDING: f64 = 1e-9;

#[cfg(test)]
#[path = "autoscale_tests.rs"]
mod tests;
