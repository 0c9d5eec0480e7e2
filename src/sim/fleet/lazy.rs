//! Replicas that are advanced when something reaches them or looks at them.
//!
//! A replica whose steps only repeat has one event, at the end of the last of them. Whatever concerns it before first
//! [touches](Fleet::touch) it, which takes the steps up to then; so the order of things is that of stepping one by one:
//! at one instant steps end first.

use super::world::{Event, Fleet};
use crate::record::{Recorder, ReplicaTotals};
use crate::sim::error::SimError;
use crate::sim::kernel::Class;
use crate::sim::replica::{Replica, Surroundings};
use crate::units::SimTime;

/// A replica, and how far it has come.
#[derive(Debug)]
pub(super) struct Slot {
    pub replica: Replica,
    /// Which step-time model is its.
    pub step_time: usize,
    /// The group whose ranks it steps with.
    pub wave: Option<u32>,
    /// When its host last acted.
    pub acted: SimTime,
    /// When its present step ends, or its host is free.
    pub wake: Option<SimTime>,
    /// When its event comes, and its version; those of other versions are void.
    due: Option<SimTime>,
    version: u32,
    pub is_touched: bool,
    /// When the dummy batch began that it computes now.
    pub dummy_since: Option<SimTime>,
    /// Place of what was last told of its dummy batches.
    pub last_dummy: Option<usize>,
}

impl Slot {
    pub fn new(replica: Replica, step_time: usize, wave: Option<u32>) -> Self {
        Self {
            replica,
            step_time,
            wave,
            acted: SimTime::ZERO,
            wake: None,
            due: None,
            version: 0,
            is_touched: false,
            dummy_since: None,
            last_dummy: None,
        }
    }

    /// A step of it, or its host's work, is under way.
    pub fn is_busy(&self) -> bool {
        self.wake.is_some()
    }

    /// Its events are void, after a crash.
    pub fn forget_wake(&mut self) {
        self.wake = None;
    }

    /// Takes all steps that end before `horizon`.
    fn advance<R: Recorder>(&mut self, horizon: SimTime, around: &mut Surroundings<'_, R>) {
        while let Some(wake) = self.wake.filter(|&wake| wake < horizon) {
            if let Some((wake, acted)) = self.replica.leap(self.acted, horizon, around) {
                (self.wake, self.acted) = (Some(wake), acted);
                continue;
            }
            // Its host is at work at the horizon, between the step that ends here and the next.
            self.replica.wake(wake, around);
            self.wake = self.replica.settle(wake, around);
            self.acted = wake;
        }
    }

    /// Lets its host act until it has to wait.
    fn act<R: Recorder>(&mut self, now: SimTime, around: &mut Surroundings<'_, R>) {
        if self.wave.is_some() {
            // It acts with the others of its group.
            return;
        }
        if let Some(at) = self.replica.settle(now, around) {
            (self.wake, self.acted) = (Some(at), now);
        }
    }

    pub fn into_totals(self) -> ReplicaTotals {
        let mut totals = self.replica.totals;
        totals.free_blocks_at_end = self.replica.gauges().free_blocks;
        totals
    }
}

/// A replica and what it works with.
macro_rules! at_replica {
    ($fleet:ident, $replica:expr, |$slot:ident, $around:ident| $body:expr) => {{
        let $slot = &mut $fleet.replicas[$replica as usize];
        #[allow(unused_mut)]
        let mut $around = crate::sim::replica::Surroundings {
            step_time: $fleet.step_times[$slot.step_time],
            live: &mut $fleet.attempts.live,
            recorder: &mut $fleet.recorder,
            heard: &mut $fleet.heard,
        };
        $body
    }};
}
pub(super) use at_replica;

impl<R: Recorder> Fleet<'_, R> {
    /// A replica's event has come, if it is its present one.
    pub(super) fn is_due(&mut self, replica: u32, version: u32) -> bool {
        let slot = &mut self.replicas[replica as usize];
        let is_present = slot.version == version && slot.due.is_some();
        if is_present {
            slot.due = None;
        }
        is_present
    }

    /// Brings a replica to the present: all its steps that have ended by now.
    pub(super) fn touch(&mut self, replica: u32) {
        let (now, leaps) = (self.kernel.now(), self.leaps);
        let is_settled = self.settled == Some(now);
        if std::mem::replace(&mut self.replicas[replica as usize].is_touched, true) {
            return;
        }
        self.touched.push(replica);
        let wakes = at_replica!(self, replica, |slot, around| {
            if leaps {
                slot.advance(now, &mut around);
            }
            debug_assert!(slot.wake.is_none_or(|wake| wake >= now), "a step was missed");
            let wakes = slot.wake == Some(now);
            if wakes {
                slot.wake = None;
                slot.replica.wake(now, &mut around);
                if is_settled {
                    // All others whose steps end now have acted on it already.
                    slot.act(now, &mut around);
                }
            }
            wakes
        });
        if wakes {
            // As its event would have told, had it been stepped.
            self.last_progress = now;
        }
    }

    /// Lets every touched replica act.
    pub(super) fn settle_replicas(&mut self) -> Result<(), SimError> {
        let (now, leaps) = (self.kernel.now(), self.leaps);
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        self.start_waves(&mut touched);
        for replica in touched.drain(..) {
            at_replica!(self, replica, |slot, around| {
                slot.is_touched = false;
                slot.act(now, &mut around);
                if let Some(what) = slot.replica.unusable_step() {
                    return Err(SimError::UnusableStepTime { at: now, what });
                }
                let due = slot.wake.map(|wake| {
                    let far = leaps.then(|| slot.replica.foresee_wake(slot.acted, &around));
                    far.flatten().unwrap_or(wake)
                });
                if due != slot.due {
                    slot.due = due;
                    slot.version = slot.version.wrapping_add(1);
                    if let Some(at) = due {
                        let event = Event::Wake {
                            replica,
                            version: slot.version,
                        };
                        self.kernel
                            .schedule_ranked(at, Class::StepEnd, u64::from(replica), event);
                    }
                }
            });
        }
        self.touched = touched;
        self.settled = Some(now);
        Ok(())
    }

    /// At the end of the run: takes the steps that end by then and tells of the tokens that are not told yet. Returns the
    /// end.
    pub(super) fn take_steps_left(&mut self) -> SimTime {
        let limit = self
            .config
            .deadline
            .map_or(self.kernel.now(), |d| d.max(self.kernel.now()));
        let (horizon, leaps) = (SimTime(limit.0.saturating_add(1)), self.leaps);
        let mut end = self.last_progress;
        for replica in 0..self.replicas.len() as u32 {
            at_replica!(self, replica, |slot, around| {
                if leaps && slot.wave.is_none() && slot.wake.is_some_and(|wake| wake < horizon) {
                    slot.advance(horizon, &mut around);
                }
                end = end.max(slot.acted).max(slot.replica.last_end);
                slot.replica.cut_off(&mut around);
            });
        }
        end
    }
}
