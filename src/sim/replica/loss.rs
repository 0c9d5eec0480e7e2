//! What a replica loses: requests that are given up, or everything.

use super::{Host, Replica, Surroundings};
use crate::engine::{Engine, RequestId};
use crate::record::Recorder;
use crate::units::SimTime;

impl Replica {
    /// Gives up a request, wherever it stands here. What it got is told.
    pub fn abort<R: Recorder>(&mut self, id: RequestId, around: &mut Surroundings<'_, R>) {
        self.inbox.retain(|&other| other != id);
        self.arrived.retain(|&(other, _)| other != id);
        if self.host == Host::Adding(Some(id)) {
            self.host = Host::Adding(None);
        }
        if self.engine.abort(id) {
            self.cut_off(around);
        }
    }

    /// Everything here is lost: what requests got is told, and a new engine takes the place of the old one.
    pub fn crash<R: Recorder>(
        &mut self,
        now: SimTime,
        engine: Box<dyn Engine>,
        around: &mut Surroundings<'_, R>,
    ) {
        self.cut_off(around);
        let mut before = self.last_end;
        for batch in self.in_flight.drain(..) {
            let spent = now.since(batch.start.max(before).min(now));
            before = now;
            self.totals.busy.add(&batch.plan.shape, spent);
            self.spare.push(batch.plan);
        }
        self.engine = engine;
        self.inbox.clear();
        self.arrived.clear();
        (self.host, self.owes_gap, self.woke, self.polls_since) = (Host::Free, false, None, None);
        self.device_free = now;
        self.pipeline.clear();
        self.steady_measured = 0;
    }
}
