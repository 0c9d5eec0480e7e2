//! The end of a step: output tokens, stops, freed blocks (rules S40-S43, S54, S55).

use super::request::State;
use super::scheduler::VllmEngine;
use crate::engine::{FinishReason, Grant, RequestId, StepPlan, StepResult};

impl VllmEngine {
    pub(super) fn take_output(&mut self, plan: &StepPlan, result: &mut StepResult) {
        result.clear();
        let drafts = self.config.drafts_after(plan.grants.len());
        let mut left_running = false;
        for grant in &plan.grants {
            left_running |= self.take_row(grant, drafts, result);
        }
        if left_running {
            let requests = &self.requests;
            self.running
                .retain(|&s| requests[s as usize].state == State::Running);
        }
        self.unflushed |= !result.finished.is_empty();
        result.free_blocks = self.kv.free();
    }

    /// Takes one row's outcome; true when its request leaves the running list.
    fn take_row(&mut self, grant: &Grant, drafts: u32, result: &mut StepResult) -> bool {
        let r = &mut self.requests[grant.slot as usize];
        r.in_flight -= 1;
        if r.state == State::Finished {
            // It stopped in an earlier step while this one was under way: the row was wasted (rule S54).
            if r.in_flight == 0 {
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
            stop = if r.outputs == r.eos_at {
                Some(FinishReason::Stop)
            } else if r.known() >= self.config.max_model_len || r.outputs >= r.max_tokens {
                Some(FinishReason::Length)
            } else {
                None
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
        self.finish(grant.slot, running);
        running
    }

    /// Ends a request that its client has given up; output under way is dropped (rule S46). False when the engine
    /// does not hold it.
    pub(super) fn abort_request(&mut self, id: RequestId) -> bool {
        let held = self.running.iter().copied().chain(self.waiting.iter());
        let Some(slot) = held.into_iter().find(|&s| self.request(s).id == id) else {
            return false;
        };
        let running = self.request(slot).state == State::Running;
        self.finish(slot, running);
        self.running.retain(|&s| s != slot);
        self.unflushed = true;
        true
    }

    fn finish(&mut self, slot: u32, running: bool) {
        let r = &mut self.requests[slot as usize];
        r.state = State::Finished;
        self.kv.release(&mut r.table);
        let idle = r.in_flight == 0;
        if !running {
            self.waiting.remove_slot(slot);
        }
        if idle {
            self.vacant.push(slot);
        }
    }
}
