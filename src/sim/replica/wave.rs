//! A replica as a rank of a group that steps together (rules S70 to S73).

use super::{Host, InFlight, Replica, Surroundings};
use crate::record::Recorder;
use crate::steptime::BatchShape;
use crate::units::{SimDuration, SimTime};

impl Replica {
    /// Takes part in a wave (rule S70): one schedule call, whose step waits for those of the other ranks; prompts are left
    /// for later if they are `throttled` and can wait (rule S73). Says whether there is something to compute.
    pub fn prepare<R: Recorder>(
        &mut self,
        now: SimTime,
        throttled: bool,
        around: &mut Surroundings<'_, R>,
    ) -> bool {
        self.tell_arrived();
        while let Some(id) = self.inbox.pop_front() {
            self.submit(id, now, around);
        }
        self.engine.throttle_prefills(throttled);
        let mut empty_calls = 0;
        loop {
            if !self.engine.has_unfinished() {
                return false;
            }
            let plan = self.plan(now, around);
            let (empty, preempted) = (plan.is_empty(), !plan.preempted.is_empty());
            self.in_flight.push_back(InFlight {
                plan,
                start: now,
                end: now,
            });
            if empty {
                self.drop_empty_batches();
                empty_calls += 1;
                if preempted || empty_calls < self.pipeline.stages {
                    continue;
                }
            }
            return !empty;
        }
    }

    /// The batch that was prepared, if there is one.
    pub fn prepared(&mut self) -> Option<&mut BatchShape> {
        self.in_flight.back_mut().map(|batch| &mut batch.plan.shape)
    }

    /// The wave's step begins: the slowest rank's time is everybody's. A rank with nothing to compute runs a dummy batch;
    /// says whether it does, and when the step ends.
    pub fn launch<R: Recorder>(
        &mut self,
        now: SimTime,
        duration: SimDuration,
        around: &mut Surroundings<'_, R>,
    ) -> (bool, SimTime) {
        let (start, end) = self.occupy(now, duration, None);
        match self.in_flight.back_mut() {
            Some(batch) => {
                (batch.start, batch.end) = (start, end);
                self.host = Host::Blocked;
                self.tell_prompts(around);
            }
            None => self.host = Host::Between,
        }
        (self.host == Host::Between, end)
    }

    /// Waits for the end of a dummy batch that is under way.
    pub fn hold(&mut self) {
        self.host = Host::Between;
    }

    /// Something was delivered to it that its engine has not taken in.
    pub fn has_news(&self) -> bool {
        !self.inbox.is_empty() || !self.arrived.is_empty()
    }
}
