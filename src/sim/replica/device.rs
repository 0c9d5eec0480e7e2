//! A replica's device: when it is done with a batch, in one piece or stage by stage.

use super::Replica;
use crate::steptime::{BatchShape, StepTime};
use crate::units::{SimDuration, SimTime};

/// The stages that a batch goes through (rules S66, S68).
#[derive(Debug)]
pub(super) struct Pipeline {
    /// How many.
    pub stages: u64,
    /// How the next batch's time is shared by them; equally, if nothing is said.
    shares: Vec<u64>,
    /// When each has done all that it was given, where shares are told.
    free: Vec<SimTime>,
}

impl Pipeline {
    pub fn of(stages: u32) -> Self {
        Self {
            stages: u64::from(stages.max(1)),
            shares: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Looks up how the time of the batch that comes next is shared.
    pub fn share(&mut self, step_time: &dyn StepTime, batch: &BatchShape) {
        if self.stages > 1 {
            step_time.stage_shares(batch, &mut self.shares);
        }
    }

    /// Everything that is in the stages is lost.
    pub fn clear(&mut self) {
        self.free.clear();
    }

    /// Sends a batch through stages whose shares are known: each begins with it when it has come from the stage before and
    /// the batch before it is done there. Returns when the first stage is free again and when the last one is done.
    fn pass(&mut self, start: SimTime, duration: SimDuration) -> Option<(SimTime, SimTime)> {
        let total: u128 = self.shares.iter().map(|&s| u128::from(s)).sum();
        if total == 0 || self.shares.len() as u64 != self.stages {
            return None;
        }
        self.free.resize(self.shares.len(), SimTime::ZERO);
        let (mut share, mut spent, mut done) = (0_u128, 0_u64, start);
        for (weight, free) in self.shares.iter().zip(&mut self.free) {
            share += u128::from(*weight);
            // Cut at the sums, so that the stages add up to the batch to the nanosecond.
            let until = (u128::from(duration.0) * share / total) as u64;
            done = done.max(*free) + SimDuration(until - spent);
            (*free, spent) = (done, until);
        }
        Some((self.free[0], done))
    }
}

impl Replica {
    /// When a batch that starts at `start` is done. In a pipeline the next one may start when its first stage is free. Where
    /// the step-time model does not tell the stages apart all take the same time, and no batch passes the one before it,
    /// done at `before` (rule S68).
    pub(super) fn occupy(
        &mut self,
        start: SimTime,
        duration: SimDuration,
        before: Option<SimTime>,
    ) -> (SimTime, SimTime) {
        let mut end = self.finish_work(start, duration);
        if duration == SimDuration::ZERO {
            self.unusable_step = Some("0 ns");
        } else if end.0 == u64::MAX {
            self.unusable_step = Some("past the end of simulated time");
        }
        let stages = self.pipeline.stages;
        if stages <= 1 {
            self.device_free = end;
        } else if let Some((first_free, done)) = self.pipeline.pass(start, duration) {
            end = end.max(done);
            self.device_free = first_free;
        } else {
            let stage = SimDuration(duration.0.div_ceil(stages));
            end = end.max(before.unwrap_or(start) + stage);
            self.device_free = start + stage;
        }
        (start, end)
    }

    /// When `work` that starts at `start` is done, machine stalls included.
    pub(in crate::sim) fn finish_work(&mut self, start: SimTime, work: SimDuration) -> SimTime {
        match &mut self.stall {
            Some((stall, state)) => state.finish(*stall, start, work),
            None => start + work,
        }
    }

    /// A step's duration on a machine that is slower than its model, or faster.
    pub(in crate::sim) fn slowed(&self, duration: SimDuration) -> SimDuration {
        match self.slowdown {
            (a, b) if a == b => duration,
            (a, b) => {
                let slowed = u128::from(duration.as_nanos()) * u128::from(a) / u128::from(b.max(1));
                SimDuration(u64::try_from(slowed).unwrap_or(u64::MAX).max(1))
            }
        }
    }

    /// Steps that start from now on take `numerator / denominator` of their time.
    pub fn set_slowdown(&mut self, numerator: u32, denominator: u32) {
        self.slowdown = (numerator, denominator);
    }
}
