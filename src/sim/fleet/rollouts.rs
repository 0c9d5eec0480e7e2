//! Rollouts of pools: what they are told of the fleet, and what is done of what they say.

use super::config::PoolRollout;
use super::control::Control;
use super::jobs::Place;
use super::world::{Event, Fleet};
use crate::cluster::lifecycle::Phase;
use crate::cluster::ratio::Ratio;
use crate::cluster::rollout::{Action, Ended, FleetState, Rollout, RolloutError, RolloutPhase};
use crate::record::Recorder;
use crate::units::{SimDuration, SimTime};

/// The revisions of a pool: what it starts with, and what a rollout brings.
const OLD: u32 = 0;
const NEW: u32 = 1;

/// A rollout under way.
#[derive(Debug)]
pub(super) struct Roll {
    pool: usize,
    rollout: Rollout,
    slowdown: Ratio,
    /// When it wants to be asked, as far as that is among the events.
    due: Option<SimTime>,
}

impl Roll {
    /// The rollout of a pool of so many groups.
    pub fn new(pool: usize, rollout: &PoolRollout, groups: u32) -> Result<Self, RolloutError> {
        Ok(Self {
            pool,
            rollout: Rollout::new(rollout.config, groups)?,
            slowdown: rollout.slowdown,
            due: None,
        })
    }
}

/// How traffic is split while a canary is watched.
#[derive(Debug, Clone, Copy)]
pub(super) struct CanarySplit {
    /// Of the new revision.
    pub share: f64,
    pub new: u32,
    pub old: u32,
}

impl Control {
    pub fn canary_share(&self, is_among: impl Fn(usize) -> bool) -> Option<CanarySplit> {
        let roll = self
            .rolls
            .iter()
            .find(|r| is_among(r.pool) && r.rollout.canary_share().is_some())?;
        Some(CanarySplit {
            share: roll.rollout.canary_share()?,
            new: NEW,
            old: OLD,
        })
    }

    /// What the new revision of a pool takes of the old one's step time.
    pub fn revision_slowdown(&self, pool: usize) -> Option<Ratio> {
        self.rolls.iter().find(|r| r.pool == pool).map(|r| r.slowdown)
    }
}

impl<R: Recorder> Fleet<'_, R> {
    /// The revision of groups that an autoscaler adds: the one that a rollout is bringing in, if there is one.
    pub(super) fn revision_to_start(&self, pool: usize) -> u32 {
        let Some(roll) = self.control.rolls.iter().find(|r| r.pool == pool) else {
            return OLD;
        };
        match roll.rollout.phase() {
            RolloutPhase::Rolling => NEW,
            RolloutPhase::Done if !roll.rollout.is_rolled_back() => NEW,
            RolloutPhase::Waiting | RolloutPhase::RollingBack | RolloutPhase::Done => OLD,
            RolloutPhase::Canary => {
                let of_pool = self.groups.iter().filter(|g| g.pool == pool);
                let serving = of_pool.filter(|g| g.phase() == Phase::Ready);
                serving.map(|g| g.revision).min().unwrap_or(OLD)
            }
        }
    }

    /// The revision whose groups go, while a rollout replaces them.
    pub(super) fn leaving_revision(&self, pool: usize) -> Option<u32> {
        let roll = self.control.rolls.iter().find(|r| r.pool == pool)?;
        match roll.rollout.phase() {
            RolloutPhase::Canary | RolloutPhase::Rolling => Some(OLD),
            RolloutPhase::RollingBack => Some(NEW),
            RolloutPhase::Waiting | RolloutPhase::Done => None,
        }
    }

    /// How many groups a pool is to have while a rollout replaces them; those of its surge come on top.
    pub(super) fn rollout_total(&self, pool: usize) -> Option<u32> {
        let of_pool = self.control.rolls.iter().filter(|r| r.pool == pool);
        let mut under_way = of_pool.filter(|r| r.rollout.is_under_way());
        under_way.next().map(|r| r.rollout.total())
    }

    /// An autoscaler has added groups to a pool, or taken some away.
    pub(super) fn set_rollout_total(&mut self, pool: usize, added: u32, taken: u32) {
        let state = self.fleet_state(pool);
        let there = state.ready() + state.old_starting + state.new_starting;
        for roll in self.control.rolls.iter_mut().filter(|r| r.pool == pool) {
            let total = if roll.rollout.is_under_way() {
                (roll.rollout.total() + added).saturating_sub(taken)
            } else {
                there
            };
            roll.rollout.set_total(total);
        }
    }

    /// A group is done with an attempt. Canaries that are judged hear of it: of what the group's own metrics show.
    pub(super) fn tell_canaries(&mut self, place: Place, failed: bool) {
        if !self.control.rolls.iter().any(|r| r.rollout.is_judging()) {
            return;
        }
        let now = self.now();
        let attempt = self.attempts.get(place);
        let (job, group) = (attempt.job, &self.groups[attempt.group as usize]);
        let (pool, revision) = (group.pool, group.revision);
        let is_resumed = !self.jobs.has_ended(job) && self.jobs.get(job).resumed_tokens > 0;
        let record = &self.attempts.live(place).record;
        // Of one that goes on from another group's tokens the first is not this group's.
        let times = record
            .enqueued
            .zip(record.first_token)
            .zip(record.last_token)
            .filter(|_| !failed && !is_resumed);
        let latencies = times.map_or([None; 3], |((enqueued, first), last)| {
            let gaps = u64::from(record.output_tokens.saturating_sub(1));
            let tpot = last.since(first).as_nanos().checked_div(gaps).map(SimDuration);
            [Some(first.since(enqueued)), tpot, Some(last.since(enqueued))]
        });
        let ended = Ended {
            at: now,
            by_new: revision == NEW,
            failed,
            latencies,
        };
        for roll in self.control.rolls.iter_mut().filter(|r| r.pool == pool) {
            roll.rollout.observe(ended);
        }
    }

    /// After all else at an instant: rollouts hear of groups in new phases. Whether there were any.
    pub(super) fn settle_control(&mut self) -> bool {
        let changed = std::mem::take(&mut self.control.pools_changed);
        if changed {
            for index in 0..self.control.rolls.len() {
                self.roll(index);
            }
        }
        changed
    }

    pub(super) fn wake_rollouts(&mut self) {
        for index in 0..self.control.rolls.len() {
            let roll = &mut self.control.rolls[index];
            let wake = roll
                .rollout
                .wake()
                .filter(|&at| roll.due.is_none_or(|due| due != at));
            if let Some(at) = wake {
                roll.due = Some(at);
                let at = at.max(self.now());
                self.schedule_control(at, Event::Rollout(index as u32));
            }
        }
    }

    /// A rollout takes its next steps.
    pub(super) fn roll(&mut self, index: usize) {
        let (now, pool) = (self.now(), self.control.rolls[index].pool);
        let state = self.fleet_state(pool);
        let roll = &mut self.control.rolls[index];
        if roll.rollout.phase() == RolloutPhase::Waiting && now < roll.rollout.config().at {
            return;
        }
        let timeout = Some(roll.rollout.config().drain_timeout);
        let begins = roll.rollout.phase() == RolloutPhase::Waiting;
        let actions = roll.rollout.next(now, &state);
        let is_rolled_back = roll.rollout.is_rolled_back();
        let name = self.config.pools[pool].name.clone();
        if begins {
            self.tell("rollout_began", None, name.clone());
        }
        for action in actions {
            match action {
                Action::StartNew(count) => self.start_some(pool, count, NEW),
                Action::StartOld(count) => self.start_some(pool, count, OLD),
                Action::DrainOld(count) => _ = self.drain_some(pool, count, Some(OLD), timeout),
                Action::DrainNew(count) => _ = self.drain_some(pool, count, Some(NEW), timeout),
                Action::CanaryPassed(why) => self.tell("canary_passed", None, format!("{name}: {why}")),
                Action::CanaryFailed(why) => self.tell("canary_failed", None, format!("{name}: {why}")),
                Action::CanaryUndecided(why) => self.tell("canary_undecided", None, format!("{name}: {why}")),
                Action::RollBack => self.tell("rollback", None, name.clone()),
                Action::Done if is_rolled_back => self.tell("rolled_back", None, name.clone()),
                Action::Done => self.tell("rollout_done", None, name.clone()),
            }
        }
        self.wake_rollouts();
    }

    fn start_some(&mut self, pool: usize, count: u32, revision: u32) {
        for _ in 0..count {
            let group = self.add_group(pool, revision);
            self.start_group(group);
        }
    }

    fn fleet_state(&self, pool: usize) -> FleetState {
        let mut state = FleetState::default();
        for group in self.groups.iter().filter(|g| g.pool == pool) {
            let of_new = group.revision > 0;
            let count = match (group.phase(), of_new) {
                (Phase::Starting(_) | Phase::Failed, false) => &mut state.old_starting,
                (Phase::Ready, false) => &mut state.old_ready,
                (Phase::Draining, false) => &mut state.old_draining,
                (Phase::Starting(_) | Phase::Failed, true) => &mut state.new_starting,
                (Phase::Ready, true) => &mut state.new_ready,
                (Phase::Draining, true) => &mut state.new_draining,
                (Phase::Absent | Phase::Stopped, _) => continue,
            };
            *count += 1;
        }
        state
    }
}
