//! Many steps at once: while nothing arrives and the engine says that its last plan repeats itself, steps follow each
//! other without an event, a plan or a commit each. Times, blocks and records are those of stepping one by one, bit
//! for bit.

use std::collections::VecDeque;

use super::replica::{InFlight, Replica, Surroundings};
use crate::record::{Recorder, StepRun};
use crate::steptime::BatchShape;
use crate::units::{SimDuration, SimTime};

/// Most steps that are foreseen at a time.
const MOST_FORESEEN: u32 = 256;

/// Memory used again.
#[derive(Debug, Default)]
pub(super) struct Leap {
    starts: Vec<SimTime>,
    ends: Vec<SimTime>,
    free_blocks: Vec<u32>,
    foreseen: Vec<u32>,
    durations: Vec<SimDuration>,
    shape: BatchShape,
    under_way: VecDeque<Timed>,
}

/// When a batch under way runs, and the free KV blocks after its schedule.
#[derive(Debug, Clone, Copy)]
struct Timed {
    start: SimTime,
    end: SimTime,
    free_blocks: u32,
}

impl Replica {
    /// Takes as many steps as end before `horizon`, the earliest instant at which anything can reach the replica, and
    /// returns when it wants to be woken then and the instant that its host has come to; `None` if it cannot leap.
    pub fn leap<R: Recorder>(
        &mut self,
        now: SimTime,
        horizon: SimTime,
        around: &mut Surroundings<'_, R>,
    ) -> Option<(SimTime, SimTime)> {
        if !self.can_leap(horizon) {
            return None;
        }
        let mut leap = std::mem::take(&mut self.leap);
        let mut host_at = now;
        let mut taken_in_all = 0;
        loop {
            let most = self.engine.repeats().min(MOST_FORESEEN);
            self.engine.foresee(most, &mut leap.foreseen);
            let Some(asked) = self.foresee_durations(horizon, &mut leap, around) else {
                break;
            };
            let taken = self.take_steps(horizon, &mut host_at, &mut leap);
            if taken == 0 {
                break;
            }
            self.engine.leap(taken);
            around.step_time.observe(&leap.shape, taken);
            self.tell_steps(&leap, around);
            self.advance_batches(&leap, taken);
            taken_in_all += taken;
            if taken < asked {
                break;
            }
        }
        self.leap = leap;
        let oldest = self.in_flight.front()?;
        (taken_in_all > 0).then_some((oldest.end.max(host_at), host_at))
    }

    /// When it wants to be woken if nothing reaches it before: after the steps that only repeat, or as many of them as
    /// are foreseen at a time. Takes none of them.
    pub fn foresee_wake<R: Recorder>(
        &mut self,
        now: SimTime,
        around: &Surroundings<'_, R>,
    ) -> Option<SimTime> {
        const EVER: SimTime = SimTime(u64::MAX);
        if !self.can_leap(EVER) {
            return None;
        }
        let mut leap = std::mem::take(&mut self.leap);
        let most = self.engine.repeats().min(MOST_FORESEEN);
        self.engine.foresee(most, &mut leap.foreseen);
        let before = (self.stall, self.device_free, self.totals.free_blocks_at_end);
        let mut host_at = now;
        let asked = self.foresee_durations(EVER, &mut leap, around);
        let taken = asked.map_or(0, |_| self.take_steps(EVER, &mut host_at, &mut leap));
        (self.stall, self.device_free, self.totals.free_blocks_at_end) = before;
        let wake = leap.under_way.front().map(|oldest| oldest.end.max(host_at));
        self.leap = leap;
        wake.filter(|_| taken > 0)
    }

    fn can_leap(&self, horizon: SimTime) -> bool {
        let (Some(oldest), Some(newest)) = (self.in_flight.front(), self.in_flight.back()) else {
            return false;
        };
        let rows = |b: &'_ InFlight| b.plan.grants.len();
        let same_rows = || {
            let pairs = oldest.plan.grants.iter().zip(&newest.plan.grants);
            rows(oldest) == rows(newest)
                && pairs
                    .into_iter()
                    .all(|(a, b)| (a.slot, a.tokens) == (b.slot, b.tokens))
        };
        self.only_waits()
            && !self.tells_prompts
            && oldest.end < horizon
            && self
                .in_flight
                .iter()
                .all(|b| b.plan.only_repeats() && !b.plan.is_empty())
            && (self.in_flight.len() == 1 || same_rows())
    }

    /// Durations of the next steps: as many as are foreseen and may end before `horizon`. `None` for none.
    fn foresee_durations<R: Recorder>(
        &self,
        horizon: SimTime,
        leap: &mut Leap,
        around: &Surroundings<'_, R>,
    ) -> Option<u32> {
        let (oldest, newest) = (self.in_flight.front()?, self.in_flight.back()?);
        let last = newest.end.since(newest.start).as_nanos().max(1);
        let fitting = horizon.since(oldest.end).as_nanos() / last + 2;
        let asked = (leap.foreseen.len() as u64).min(fitting) as usize;
        if asked == 0 {
            return None;
        }
        leap.shape.clone_from(&newest.plan.shape);
        leap.shape.advance(1);
        leap.durations.clear();
        leap.durations.resize(asked, SimDuration::ZERO);
        around.step_time.durations(&leap.shape, &mut leap.durations);
        leap.durations.iter_mut().for_each(|d| *d = self.slowed(*d));
        Some(asked as u32)
    }

    /// The clockwork of steps and plans: commits the oldest batch and starts another, over and over, while both happen
    /// before `horizon`. Returns how often.
    fn take_steps(&mut self, horizon: SimTime, host_at: &mut SimTime, leap: &mut Leap) -> u32 {
        leap.starts.clear();
        leap.ends.clear();
        leap.free_blocks.clear();
        leap.under_way.clear();
        leap.under_way.extend(self.in_flight.iter().map(|b| Timed {
            start: b.start,
            end: b.end,
            free_blocks: b.plan.free_blocks,
        }));
        let is_plain = self.in_flight.len() == 1
            && self.stall.is_none()
            && self.host_times.between_steps == SimDuration::ZERO;
        if is_plain {
            self.take_plain_steps(horizon, host_at, leap)
        } else {
            self.take_any_steps(horizon, host_at, leap)
        }
    }

    /// One batch at a time, each starting when the one before ends.
    fn take_plain_steps(&mut self, horizon: SimTime, host_at: &mut SimTime, leap: &mut Leap) -> u32 {
        let Some(under_way) = leap.under_way.front_mut() else {
            return 0;
        };
        let mut at = under_way.end.max(*host_at);
        if at != under_way.end {
            return 0;
        }
        for &duration in &leap.durations {
            let end = at + duration;
            if at >= horizon || duration == SimDuration::ZERO || end.0 == u64::MAX {
                break;
            }
            leap.ends.push(at);
            at = end;
        }
        let taken = leap.ends.len();
        if let Some(&start) = leap.ends.last() {
            leap.starts.push(under_way.start);
            leap.starts.extend_from_slice(&leap.ends[..taken - 1]);
            leap.free_blocks.push(under_way.free_blocks);
            leap.free_blocks.extend_from_slice(&leap.foreseen[..taken - 1]);
            self.totals.free_blocks_at_end = leap.free_blocks[taken - 1];
            *under_way = Timed {
                start,
                end: at,
                free_blocks: leap.foreseen[taken - 1],
            };
            self.device_free = at;
            *host_at = start;
        }
        taken as u32
    }

    fn take_any_steps(&mut self, horizon: SimTime, host_at: &mut SimTime, leap: &mut Leap) -> u32 {
        let between = self.host_times.between_steps;
        let mut taken = 0;
        for (&duration, &free_blocks) in leap.durations.iter().zip(&leap.foreseen) {
            let Some(&oldest) = leap.under_way.front() else {
                break;
            };
            let ended = oldest.end.max(*host_at);
            if ended >= horizon {
                break;
            }
            let stall = self.stall;
            let planned = if between > SimDuration::ZERO {
                self.finish_work(ended, between)
            } else {
                ended
            };
            let start = planned.max(self.device_free);
            let end = self.finish_work(start, duration);
            if planned >= horizon || duration == SimDuration::ZERO || end.0 == u64::MAX {
                self.stall = stall;
                break;
            }
            self.device_free = end;
            leap.starts.push(oldest.start);
            leap.ends.push(ended);
            leap.free_blocks.push(oldest.free_blocks);
            let newest = leap.under_way.back().map_or(free_blocks, |b| b.free_blocks);
            self.totals.free_blocks_at_end = newest;
            leap.under_way.pop_front();
            leap.under_way.push_back(Timed {
                start,
                end,
                free_blocks,
            });
            *host_at = planned;
            taken += 1;
        }
        taken
    }

    fn tell_steps<R: Recorder>(&mut self, leap: &Leap, around: &mut Surroundings<'_, R>) {
        let (Some(oldest), Some(newest)) = (self.in_flight.front(), self.in_flight.back()) else {
            return;
        };
        // The first of these steps is the oldest batch; all others are like the newest.
        let gauges = |b: &InFlight| (b.plan.running, b.plan.waiting);
        let split = usize::from(gauges(oldest) != gauges(newest));
        for (range, batch) in [(0..split, oldest), (split..leap.ends.len(), newest)] {
            if !range.is_empty() {
                around.recorder.steps(&StepRun {
                    replica: self.number(),
                    starts: &leap.starts[range.clone()],
                    ends: &leap.ends[range.clone()],
                    free_blocks: &leap.free_blocks[range],
                    running: batch.plan.running,
                    waiting: batch.plan.waiting,
                    gaps_first: self.steady_measured,
                    gaps_rest: self.steady_measured,
                });
            }
        }
        let mut before = self.last_end;
        for (index, (&start, &end)) in leap.starts.iter().zip(&leap.ends).enumerate() {
            let batch = if index == 0 { oldest } else { newest };
            self.totals
                .busy
                .add(&batch.plan.shape, end.since(start.max(before)));
            before = end;
        }
        self.steps += leap.ends.len() as u64;
        self.last_end = leap.ends.last().copied().unwrap_or(self.last_end);
    }

    /// Makes the batches under way those that are now.
    fn advance_batches(&mut self, leap: &Leap, taken: u32) {
        let Some(mut newest) = self.in_flight.pop_back() else {
            return;
        };
        newest.plan.shape.advance(taken);
        for older in &mut self.in_flight {
            // All batches under way are like the newest one now.
            older.plan.shape.prefill_seqs = newest.plan.shape.prefill_seqs;
            older.plan.running = newest.plan.running;
            older.plan.waiting = newest.plan.waiting;
        }
        self.in_flight.push_back(newest);
        for (batch, timed) in self.in_flight.iter_mut().zip(&leap.under_way) {
            (batch.start, batch.end) = (timed.start, timed.end);
            batch.plan.free_blocks = timed.free_blocks;
        }
    }
}
