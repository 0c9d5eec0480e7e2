//! Replicas that are advanced when something reaches them or looks at them.
//!
//! A replica whose steps only repeat has one event, at the end of the last of them. Whatever concerns it before first
//! [touches](Fleet::touch) it, which takes the steps up to then; so the order of things is that of stepping one by one:
//! at one instant steps end first.

use super::world::{Event, Fleet};
use crate::record::{Recorder, ReplicaTotals};
use crate::sim::kernel::Class;
use crate::sim::replica::Replica;
use crate::sim::world::SimError;
use crate::units::SimTime;

/// A replica, and how far it has come.
#[derive(Debug)]
pub(super) struct Slot {
    pub replica: Replica,
    /// Which step-time model is its.
    pub step_time: usize,
    /// When its host last acted.
    acted: SimTime,
    /// When its present step ends, or its host is free.
    wake: Option<SimTime>,
    /// Of its event; those of other versions are void.
    version: u32,
    is_touched: bool,
}

impl Slot {
    pub fn new(replica: Replica, step_time: usize) -> Self {
        Self {
            replica,
            step_time,
            acted: SimTime::ZERO,
            wake: None,
            version: 0,
            is_touched: false,
        }
    }

    /// Its events are void, after a crash.
    pub fn forget_wake(&mut self) {
        self.wake = None;
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
    pub(super) fn wake(&mut self, replica: u32, version: u32) {
        if self.replicas[replica as usize].version == version {
            self.touch(replica);
        }
    }

    /// Brings a replica to the present: all its steps that have ended by now.
    pub(super) fn touch(&mut self, replica: u32) {
        let (now, leaps) = (self.kernel.now(), self.leaps);
        if std::mem::replace(&mut self.replicas[replica as usize].is_touched, true) {
            return;
        }
        self.touched.push(replica);
        at_replica!(self, replica, |slot, around| {
            let Some(wake) = slot.wake else { return };
            if leaps && wake < now
                && let Some((wake, acted)) = slot.replica.leap(slot.acted, now, &mut around)
            {
                slot.wake = Some(wake);
                slot.acted = acted;
            }
            debug_assert!(slot.wake >= Some(now), "a step was missed");
            if slot.wake == Some(now) {
                slot.wake = None;
                slot.replica.wake(now, &mut around);
            }
        });
    }

    /// Lets every touched replica act.
    pub(super) fn settle_replicas(&mut self) -> Result<(), SimError> {
        let (now, leaps) = (self.kernel.now(), self.leaps);
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        for replica in touched.drain(..) {
            at_replica!(self, replica, |slot, around| {
                slot.is_touched = false;
                if let Some(at) = slot.replica.settle(now, &mut around) {
                    slot.wake = Some(at);
                    slot.acted = now;
                }
                if let Some(what) = slot.replica.unusable_step() {
                    return Err(SimError::UnusableStepTime { at: now, what });
                }
                slot.version = slot.version.wrapping_add(1);
                if let Some(wake) = slot.wake {
                    let far = leaps.then(|| slot.replica.foresee_wake(slot.acted, &around)).flatten();
                    let event = Event::Wake {
                        replica,
                        version: slot.version,
                    };
                    self.kernel
                        .schedule_ranked(far.unwrap_or(wake), Class::StepEnd, u64::from(replica), event);
                }
            });
        }
        self.touched = touched;
        Ok(())
    }

    /// At the end of the run: takes the steps that end by then and tells of the tokens that are not told yet. Returns the
    /// end.
    pub(super) fn take_steps_left(&mut self) -> SimTime {
        let limit = self.config.deadline.map_or(self.kernel.now(), |d| d.max(self.kernel.now()));
        let (horizon, leaps) = (SimTime(limit.0.saturating_add(1)), self.leaps);
        let mut end = self.last_progress;
        for replica in 0..self.replicas.len() as u32 {
            at_replica!(self, replica, |slot, around| {
                if leaps && slot.wake.is_some_and(|w| w < horizon)
                    && let Some((_, acted)) = slot.replica.leap(slot.acted, horizon, &mut around)
                {
                    end = end.max(acted);
                }
                slot.replica.cut_off(&mut around);
            });
        }
        end
    }
}
