//! A replica as a rank of a group that steps together (rules S70, S72).

use super::{Host, InFlight, Replica, Surroundings};
use crate::record::Recorder;
use crate::units::{SimDuration, SimTime};

impl Replica {
    /// Takes part in a wave (rule S70): one schedule call, whose step waits for those of the other ranks. Returns how long
    /// it would take; `None` if there is nothing to compute.
    pub fn prepare<R: Recorder>(
        &mut self,
        now: SimTime,
        around: &mut Surroundings<'_, R>,
    ) -> Option<SimDuration> {
        self.tell_arrived();
        while let Some(id) = self.inbox.pop_front() {
            self.submit(id, now, around);
        }
        let mut empty_calls = 0;
        loop {
            if !self.engine.has_unfinished() {
                return None;
            }
            let plan = self.plan(now, around);
            let (empty, preempted) = (plan.is_empty(), !plan.preempted.is_empty());
            let duration = (!empty).then(|| {
                around.step_time.observe(&plan.shape, 1);
                self.slowed(around.step_time.duration(&plan.shape))
            });
            self.in_flight.push_back(InFlight {
                plan,
                start: now,
                end: now,
            });
            if empty {
                self.drop_empty_batches();
                empty_calls += 1;
                if preempted || empty_calls < self.stages {
                    continue;
                }
            }
            return duration;
        }
    }

    /// The wave's step begins: the slowest rank's time is everybody's. A rank with nothing to compute runs a dummy batch.
    pub fn launch<R: Recorder>(
        &mut self,
        now: SimTime,
        duration: SimDuration,
        around: &mut Surroundings<'_, R>,
    ) -> SimTime {
        let (start, end) = self.occupy(now, duration, None);
        match self.in_flight.back_mut() {
            Some(batch) => {
                (batch.start, batch.end) = (start, end);
                self.host = Host::Blocked;
                self.tell_prompts(around);
            }
            None => self.host = Host::Between,
        }
        end
    }
}
