//! The end of a step: output tokens, stops, freed blocks (rules S40-S43, S54, S55).

use super::request::State;
use super::scheduler::VllmEngine;
use crate::engine::{FinishReason, Grant, Leg, RequestId, StepPlan, StepResult};

impl VllmEngine {
    pub(super) fn take_output(&mut self, plan: &StepPlan, result: &mut StepResult) {
        result.clear();
        self.stalled &= plan.is_empty();
        self.committed += 1;
        let mut unlisted = std::mem::take(&mut self.unlisted);
        self.unlisted_rows(&mut unlisted);
        self.take_left(&mut result.left);
        let drafts = self.config.drafts_after(plan.grants.len());
        let mut others = unlisted.iter().peekable();
        let mut listed_ended = false;
        for grant in &plan.grants {
            while let Some(row) = others.next_if(|row| row.order < grant.order) {
                listed_ended |= self.take_row(row, drafts, result);
            }
            listed_ended |= self.take_row(grant, drafts, result);
        }
        for row in others {
            listed_ended |= self.take_row(row, drafts, result);
        }
        if listed_ended {
            self.unlist_ended();
        }
        self.unlisted = unlisted;
        self.unflushed |= !result.finished.is_empty();
        result.free_blocks = self.kv.free();
    }

    /// Takes one row's outcome; true when its request leaves the running list with it.
    fn take_row(&mut self, grant: &Grant, drafts: u32, result: &mut StepResult) -> bool {
        let r = &mut self.requests[grant.slot as usize];
        r.in_flight -= 1;
        if r.state == State::Finished {
            // It stopped in an earlier step while this one was under way: the row was wasted (rule S54).
            if r.in_flight == 0 && !r.held {
                self.vacant.push(grant.slot);
            }
            return false;
        }
        if !grant.samples {
            return false;
        }
        r.in_flight_samples -= 1;
        let accepted = if grant.drafts > 0 {
            r.accept(grant.drafts)
        } else {
            0
        };
        let rejected = grant.drafts - accepted;
        // Both are 0 after a preemption, when nothing of the step is left to be rolled back (rules S32, S42).
        r.computed = r.computed.saturating_sub(rejected);
        r.placeholders = r.placeholders.saturating_sub(rejected);

        let mut tokens = 0;
        let mut stop = None;
        while tokens <= accepted && stop.is_none() {
            tokens += 1;
            r.outputs += 1;
            let at_length = r.known() >= self.config.max_model_len || r.outputs >= r.max_tokens;
            let at_eos = r.outputs == r.eos_at;
            // The plugin looks at lengths first (rule N14b).
            stop = match (at_length, at_eos) {
                (true, true) if !self.config.scheduler_cls.is_neuron() => Some(FinishReason::Stop),
                (true, _) => Some(FinishReason::Length),
                (false, true) => Some(FinishReason::Stop),
                (false, false) => None,
            };
        }
        result.emitted.push((r.id, tokens));
        r.placeholders = r.placeholders.saturating_sub(tokens);
        let running = r.state == State::Running;
        if running && self.config.async_scheduling {
            let valued = r.computed - r.placeholders;
            self.kv.register(&mut r.table, &r.stream, valued);
        }
        if !self.config.async_scheduling {
            r.drafts = drafts;
        }
        let Some(reason) = stop else { return false };
        result.finished.push((r.id, reason));
        // One that was preempted with this output under way (rule S35) has no blocks any more, but is read all the same.
        let keeps = r.leg == Leg::Prefill;
        self.finish(grant.slot, keeps);
        running
    }

    /// Ends a request that its client has given up; output under way is dropped (rule S46). False when the engine
    /// does not hold it.
    pub(super) fn abort_request(&mut self, id: RequestId) -> bool {
        let queues = self.waiting.iter().chain(self.ready.iter());
        let loading = self.loading.iter().copied();
        let all = self.running.slots().iter().copied().chain(queues).chain(loading);
        let Some(slot) = all.into_iter().find(|&s| self.request(s).id == id) else {
            return self.release_blocks_of(id);
        };
        self.write_back(self.planned);
        self.forbid_repetition();
        self.stalled = false;
        self.finish(slot, false);
        self.unlist_ended();
        self.unflushed = true;
        true
    }

    /// Ends a request where it stands; it frees its blocks unless it `keeps` them (rules S43, D3).
    fn finish(&mut self, slot: u32, keeps: bool) {
        let r = &mut self.requests[slot as usize];
        let state = std::mem::replace(&mut r.state, State::Finished);
        let order = r.order;
        if keeps {
            r.held = true;
            self.held.push(slot);
        } else {
            self.kv.release(&mut r.table);
            if r.in_flight == 0 {
                self.vacant.push(slot);
            }
        }
        match state {
            State::Running => self.running.remove(order),
            State::Loading => self.loading.retain(|&s| s != slot),
            State::Ready => self.ready.remove_slot(slot),
            State::Waiting | State::Preempted | State::Finished => self.waiting.remove_slot(slot),
        }
    }
}
