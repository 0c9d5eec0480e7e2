//! Control loops: metrics and autoscalers. Those of rollouts are in `rollouts.rs`.

use std::collections::VecDeque;

use super::config::{FleetConfig, PoolRole};
use super::groups::{Rank, Seen};
use super::rollouts::Roll;
use super::world::{Event, Fleet};
use crate::cluster::autoscale::{Observed, Reading, ScalePolicy};
use crate::cluster::lifecycle::{Phase, Stage};
use crate::cluster::ratio::Ratio;
use crate::cluster::rollout::RolloutError;
use crate::record::Recorder;
use crate::sim::SimError;
use crate::sim::kernel::Class;
use crate::units::{SimDuration, SimTime};

/// What was read of all groups at some instant.
#[derive(Debug)]
struct Snapshot {
    at: SimTime,
    groups: Vec<(u32, Seen, Vec<Rank>)>,
}

/// The control loops.
#[derive(Debug)]
pub(super) struct Control {
    scalers: Vec<(usize, ScalePolicy)>,
    pub rolls: Vec<Roll>,
    snapshots: VecDeque<Snapshot>,
    /// Faults that slow the loading of weights, and that make metrics old.
    pub weight_slowdowns: Vec<(usize, Ratio)>,
    pub stale: Vec<(usize, SimDuration)>,
    /// Events of control loops to come, and how many came since anything else did.
    pub scheduled: u32,
    pub idle_turns: u64,
    /// Times that metrics of a group were read by a control loop.
    pub readings: u64,
    /// Some group has entered another phase.
    pub pools_changed: bool,
    /// Of each pool: attempts sent to its groups since its autoscaler last counted them, and when that was.
    pub arrivals: Vec<(u64, SimTime)>,
    /// Faults that slow a revision: groups of it that come later, too.
    pub slow_revisions: Vec<(usize, u32, Ratio)>,
}

impl Control {
    /// The loops of a cluster.
    ///
    /// # Errors
    /// [`RolloutError`] for a rollout that cannot be made.
    pub fn new(config: &FleetConfig) -> Result<Self, RolloutError> {
        let pools: Vec<usize> = config.rollouts.iter().map(|(pool, _)| *pool).collect();
        if let Some(at) = (1..pools.len()).find(|&at| pools[..at].contains(&pools[at])) {
            return Err(RolloutError::Several { pool: pools[at] });
        }
        let rolls = config
            .rollouts
            .iter()
            .map(|(pool, rollout)| Roll::new(*pool, rollout, config.pools[*pool].groups));
        Ok(Self {
            scalers: config.scaling.clone(),
            rolls: rolls.collect::<Result<_, _>>()?,
            snapshots: VecDeque::new(),
            weight_slowdowns: Vec::new(),
            stale: Vec::new(),
            scheduled: 0,
            idle_turns: 0,
            readings: 0,
            pools_changed: false,
            arrivals: vec![(0, SimTime::ZERO); config.pools.len()],
            slow_revisions: Vec::new(),
        })
    }

    /// What loading weights takes of its time now: the slowest of what slows it.
    pub fn weight_store(&self) -> Ratio {
        let slower = |a: &Ratio, b: &Ratio| {
            let (a_n, b_n) = (u64::from(a.numerator), u64::from(b.numerator));
            (a_n * u64::from(b.denominator)).cmp(&(b_n * u64::from(a.denominator)))
        };
        let factors = self.weight_slowdowns.iter().map(|(_, factor)| *factor);
        factors.max_by(slower).unwrap_or(Ratio::ONE)
    }
}

/// Turns of control loops and leases without anything else, after which nothing is expected of them any more (a transfer
/// may be due in years).
const MOST_IDLE_TURNS: u64 = 1_000_000;
/// Readings of groups by control loops that any run may have: some five seconds of ours.
const MOST_READINGS: u64 = 20_000_000;
/// And those that it may have for each request beyond.
const READINGS_A_REQUEST: u64 = 1_000;
/// What a decision of an autoscaler takes, its look back at earlier ones, as readings of a group.
const SCALER_READINGS: u64 = 50;
/// Groups that a run may start: all records, and all loops over groups, grow with them.
const MOST_GROUPS: u64 = 16_384;

impl<R: Recorder> Fleet<'_, R> {
    /// Whether control loops are not all that a run is made of.
    ///
    /// # Errors
    /// [`SimError::OnlyControl`], [`SimError::TooManyGroups`].
    pub(super) fn is_bounded(&self) -> Result<(), SimError> {
        let (at, readings, groups) = (self.now(), self.control.readings, self.groups.len() as u64);
        let requests = self.jobs.sent();
        if readings > MOST_READINGS + READINGS_A_REQUEST * requests {
            return Err(SimError::OnlyControl {
                at,
                readings,
                requests,
            });
        }
        if groups > MOST_GROUPS {
            return Err(SimError::TooManyGroups { at, groups });
        }
        Ok(())
    }

    /// Starts the control loops.
    pub(super) fn start_control(&mut self) {
        self.schedule_faults();
        if self.config.routing.metrics_interval > SimDuration::ZERO {
            self.schedule_control(SimTime::ZERO, Event::Scrape);
        }
        for index in 0..self.control.scalers.len() {
            let first = match &self.control.scalers[index].1 {
                ScalePolicy::Fixed => None,
                ScalePolicy::Schedule(_) => self.control.scalers[index].1.next_at(SimTime::ZERO),
                ScalePolicy::Metric(scaler) => Some(scaler.config().interval).map(|d| SimTime::ZERO + d),
            };
            if let Some(at) = first {
                self.schedule_control(at, Event::Scale(index as u32));
            }
        }
        self.wake_rollouts();
    }

    pub(super) fn schedule_control(&mut self, at: SimTime, event: Event) {
        self.control.scheduled += 1;
        self.kernel.schedule(at, Class::Control, event);
    }

    /// Nothing but control loops has happened for too long.
    pub(super) fn is_stranded(&mut self, at: SimTime) -> bool {
        let only_control = self.kernel.len() == self.control.scheduled as usize;
        let is_late = at.since(self.last_progress) > self.config.patience;
        let turns_idly = self.control.idle_turns > MOST_IDLE_TURNS && self.jobs.due == 0;
        let stranded = is_late && (only_control || turns_idly);
        if stranded {
            self.strand();
        }
        stranded
    }

    /// Requests are left that nobody will ever serve.
    pub(super) fn strand(&mut self) {
        let open = self.jobs.open;
        self.record.stranded = open;
        if open > 0 {
            let what = format!("{open} requests wait for groups or transfers that never come");
            self.tell_at(self.last_progress, "stranded", None, what);
        }
    }

    /// Routers see the engines as they are.
    pub(super) fn sees_the_present(&self) -> bool {
        self.config.routing.metrics_interval == SimDuration::ZERO && self.control.stale.is_empty()
    }

    /// The metrics of all groups are read; those that are old enough are what routers see.
    pub(super) fn scrape(&mut self) {
        let now = self.now();
        self.control.readings += self.groups.len() as u64;
        let mut groups = Vec::new();
        for number in 0..self.groups.len() as u32 {
            if self.groups[number as usize].takes_deliveries() {
                let before = {
                    let g = &self.groups[number as usize];
                    (g.seen, g.ranks.clone())
                };
                self.read_metrics(number);
                let group = &mut self.groups[number as usize];
                groups.push((number, group.seen, group.ranks.clone()));
                (group.seen, group.ranks) = before;
            }
        }
        self.control.snapshots.push_back(Snapshot { at: now, groups });
        let mut seen = None;
        while let Some(first) = self.control.snapshots.front()
            && self.seen_at(first.at) <= now
        {
            seen = self.control.snapshots.pop_front();
        }
        if let Some(snapshot) = seen {
            for (number, seen, ranks) in snapshot.groups {
                let group = &mut self.groups[number as usize];
                group.seen = seen;
                for (mine, read) in group.ranks.iter_mut().zip(ranks) {
                    mine.seen = read.seen;
                }
                group.balancer.snapshot();
            }
            self.router.snapshot();
            self.prefill_router.snapshot();
        }
        self.schedule_control(now + self.config.routing.metrics_interval, Event::Scrape);
    }

    /// An autoscaler decides.
    pub(super) fn scale(&mut self, index: usize) {
        let now = self.now();
        let pool = self.control.scalers[index].0;
        let observed = self.observe(pool);
        let decided = self.control.scalers[index].1.decide(now, &observed);
        if let Some(change) = decided {
            let name = self.config.pools[pool].name.clone();
            self.tell("scale", None, format!("{name}: {change:+} groups"));
            self.change_pool(pool, change);
        }
        if let Some(at) = self.control.scalers[index].1.next_at(now) {
            self.schedule_control(at.max(SimTime(now.0 + 1)), Event::Scale(index as u32));
        }
    }

    /// What an autoscaler would see of a pool.
    fn observe(&mut self, pool: usize) -> Observed {
        let now = self.now();
        self.control.readings += self.groups.len() as u64 + SCALER_READINGS;
        let mut observed = Observed {
            rolled: self.rollout_total(pool),
            stale_by: self.seen_at(now).since(now),
            ..Observed::default()
        };
        let mut kv = 0.0;
        let mut reading = Reading::default();
        for number in 0..self.groups.len() as u32 {
            if self.groups[number as usize].pool != pool {
                continue;
            }
            match self.groups[number as usize].phase() {
                Phase::Ready => {
                    observed.ready += 1;
                    let before = self.groups[number as usize].seen;
                    self.read_metrics(number);
                    let group = &mut self.groups[number as usize];
                    reading.waiting += u64::from(group.seen.waiting);
                    reading.running += u64::from(group.seen.running);
                    reading.in_flight += u64::from(group.in_flight);
                    kv += group.seen.kv_usage;
                    group.seen = before;
                }
                Phase::Starting(stage) => {
                    observed.starting += 1;
                    observed.pending += u32::from(stage == Stage::Provision);
                }
                Phase::Failed => observed.starting += 1,
                Phase::Draining => observed.draining += 1,
                Phase::Absent | Phase::Stopped => {}
            }
        }
        let (arrivals, counted_at) = std::mem::replace(&mut self.control.arrivals[pool], (0, now));
        let since = now.since(counted_at).as_secs_f64();
        reading.ready = observed.ready;
        reading.kv_usage = kv / f64::from(observed.ready.max(1));
        reading.requests_per_s = if since > 0.0 { arrivals as f64 / since } else { 0.0 };
        if self.config.pools[pool].role != PoolRole::Prefill {
            reading.waiting_at_gateway = self.gateway.queue.len() as u64;
            reading.waiting += reading.waiting_at_gateway;
            reading.in_flight += self.gateway.queue.len() as u64;
            reading.oldest_waiting = self
                .gateway
                .queue
                .peek()
                .map_or(SimDuration::ZERO, |item| now.since(item.at));
        }
        observed.reading = reading;
        observed
    }

    /// Adds groups to a pool, or drains some of it: those that still start, then the newest. While a rollout replaces
    /// groups, those of the revision that leaves go first, or it would have to start again what it has just started.
    fn change_pool(&mut self, pool: usize, change: i32) {
        let most = self.config.pools[pool].max_groups as usize;
        let of_pool = self.groups.iter().filter(|g| g.pool == pool);
        let exist = of_pool.filter(|g| g.phase() != Phase::Stopped).count();
        let room = most.saturating_sub(exist) as u32;
        let revision = self.revision_to_start(pool);
        let added = room.min(change.max(0).unsigned_abs());
        for _ in 0..added {
            let group = self.add_group(pool, revision);
            self.start_group(group);
        }
        let surplus = change.min(0).unsigned_abs();
        let gone = match self.leaving_revision(pool) {
            Some(leaving) => self.drain_some(pool, surplus, Some(leaving), None),
            None => 0,
        };
        self.drain_some(pool, surplus - gone, None, None);
        self.set_rollout_total(pool, added, surplus);
    }

    /// Drains so many groups of a pool, or all that there are; gives how many.
    pub(super) fn drain_some(
        &mut self,
        pool: usize,
        count: u32,
        revision: Option<u32>,
        timeout: Option<SimDuration>,
    ) -> u32 {
        let of_pool = |g: &super::groups::Group| g.pool == pool && revision.is_none_or(|r| r == g.revision);
        let mut chosen: Vec<(bool, u32)> = (0..)
            .zip(&self.groups)
            .filter(|(_, g)| {
                of_pool(g) && matches!(g.phase(), Phase::Ready | Phase::Starting(_) | Phase::Failed)
            })
            .map(|(number, g)| (g.phase() == Phase::Ready, number))
            .collect();
        chosen.sort_by_key(|&(ready, number)| (ready, std::cmp::Reverse(number)));
        chosen.truncate(count as usize);
        for &(_, number) in &chosen {
            self.drain_group(number, timeout);
        }
        chosen.len() as u32
    }
}
