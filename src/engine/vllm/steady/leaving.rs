//! How requests leave the steady set: at their end, or all of them when a step has to be told row by row.

use std::cmp::Reverse;

use super::steady_row;
use crate::engine::vllm::request::State;
use crate::engine::vllm::scheduler::VllmEngine;
use crate::engine::{Grant, Left};

impl VllmEngine {
    /// Takes a request out of the steady set and writes its state back, as it is after the plan `last`, the last one
    /// that it had a row in, and the commits of all plans before number `committed`.
    fn leave(&mut self, slot: u32, last: u64, committed: u64) {
        let steady = &mut self.steady;
        let r = &mut self.requests[slot as usize];
        let class = steady.class(r);
        steady.class_rows[class] -= 1;
        if let Some(members) = steady.class_slots.get_mut(class) {
            members.retain(|&s| s != slot);
        }
        let plans = (last + 1).saturating_sub(r.steady_since) as u32;
        let commits = ((last + 1).min(committed).saturating_sub(r.steady_since)) as u32;
        let under_way = (plans - commits) as u8;
        r.computed += plans;
        r.outputs += commits;
        r.in_flight += under_way;
        r.in_flight_samples += under_way;
        if self.config.async_scheduling {
            r.placeholders += u32::from(under_way);
        }
        if !self.config.enable_prefix_caching {
            let blocks = self.kv.blocks_for(r.computed);
            r.table.add_held(blocks.saturating_sub(r.table.held()));
        }
        r.steady_since = 0;
        steady.rows -= 1;
        steady.computed -= u64::from(r.computed);
        steady.shared_tails -= u32::from(r.shares_tail);
        steady.left.push(Left {
            id: r.id,
            steps: commits,
        });
    }

    /// Before a plan: lists the requests whose last token is under way, where the scheduler knows it.
    pub(super) fn take_out_foreseen(&mut self) {
        while let Some(&Reverse(end)) = self.steady.ends.peek() {
            if end.plan >= self.planned {
                return;
            }
            self.steady.ends.pop();
            self.steady.foreseen.push_back(end);
            if end.is_foreseen {
                self.leave(end.slot, end.plan, self.committed + 1);
                let requests = &self.requests;
                let listed = &mut self.steady.listed;
                let at = listed.partition_point(|&s| requests[s as usize].order < end.order);
                listed.insert(at, end.slot);
            }
        }
    }

    /// Writes every steady request's state back and lists it: what follows goes row by row.
    pub(in crate::engine::vllm) fn write_back(&mut self, last: u64) {
        if self.steady.rows == 0 {
            return;
        }
        self.steady.repeatable = false;
        for plan in self.committed + 1..=last {
            let was_in = |&slot: &u32| {
                let since = self.request(slot).steady_since;
                since > 0 && since <= plan
            };
            let slots: Vec<u32> = self.running.slots().iter().copied().filter(was_in).collect();
            // It may be there from the last time that its state was written back.
            match self.steady.written_back.iter_mut().find(|(of, _)| *of == plan) {
                Some((_, listed)) => listed.extend(slots),
                None => self.steady.written_back.push_back((plan, slots)),
            }
        }
        for place in 0..self.running.len() {
            let slot = self.running.slots()[place];
            if self.request(slot).steady_since > 0 {
                self.leave(slot, last, self.committed + 1);
            }
        }
        self.steady.ends.clear();
        self.steady.foreseen.retain(|end| end.is_foreseen);
        self.steady.listed.clear();
        self.steady.listed.extend_from_slice(self.running.slots());
    }

    /// Rows of the plan that is being committed which it does not list, but whose outcome is more than one token
    /// more: they end, or their state has been written back. In the order of the running list.
    pub(in crate::engine::vllm) fn unlisted_rows(&mut self, rows: &mut Vec<Grant>) {
        rows.clear();
        let plan = self.committed;
        if self
            .steady
            .written_back
            .front()
            .is_some_and(|(of, _)| *of == plan)
        {
            let (_, slots) = self.steady.written_back.pop_front().unwrap_or_default();
            rows.extend(slots.into_iter().map(|slot| steady_row(self.request(slot), slot)));
        }
        while let Some(end) = self.steady.foreseen.front().copied().filter(|e| e.plan == plan) {
            self.steady.foreseen.pop_front();
            if !end.is_foreseen {
                self.leave_at_end(end.slot, plan);
            }
            rows.push(steady_row(self.request(end.slot), end.slot));
        }
        while let Some(&Reverse(end)) = self.steady.ends.peek() {
            if end.plan != plan {
                break;
            }
            self.steady.ends.pop();
            self.leave_at_end(end.slot, plan);
            rows.push(steady_row(self.request(end.slot), end.slot));
        }
        rows.sort_by_key(|row| row.order);
    }

    /// A steady request ends with the plan that is being committed; its row of a later plan is wasted (rule S54).
    fn leave_at_end(&mut self, slot: u32, plan: u64) {
        self.leave(slot, self.planned, plan);
        let r = &mut self.requests[slot as usize];
        let wasted = (self.planned - plan) as u8;
        r.in_flight -= wasted;
        r.in_flight_samples -= wasted;
    }

    /// Forgets listed rows that do not run any more.
    pub(in crate::engine::vllm) fn unlist_ended(&mut self) {
        let requests = &self.requests;
        self.steady
            .listed
            .retain(|&s| requests[s as usize].state == State::Running);
    }
}
