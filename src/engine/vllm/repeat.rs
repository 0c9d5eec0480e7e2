//! Plans that only repeat the one before: whether, how often, with which blocks, and all of them at once.

use std::cmp::Reverse;

use super::scheduler::VllmEngine;
use crate::engine::{Left, StepPlan};

impl VllmEngine {
    /// Notes whether the plan just made can repeat itself. `stable` says that nobody can be admitted before something
    /// arrives or ends, unless what is found in the prefix cache changes, which `looked_up` says matters.
    pub(super) fn note_repetition(&mut self, plan: &StepPlan, stable: bool, looked_up: bool) {
        let changes = plan.is_empty()
            || !plan.admitted.is_empty()
            || !plan.preempted.is_empty()
            || !plan.loads.is_empty()
            || !plan.only_repeats();
        let chunks = &self.steady.chunks;
        let all_listed = chunks.len() == self.steady.listed.len();
        let private = |slot: u32| {
            let r = self.request(slot);
            r.stream.tail_is_private(r.computed)
        };
        let c = &self.config;
        // More hits let a request in. So do fewer, where one whose rest exceeds the budget then lets others pass: its
        // own cached blocks may be taken meanwhile.
        let fewer_matter = c.behaviour.skips_oversized_prompt && !c.enable_chunked_prefill;
        let hits_matter = looked_up
            && c.enable_prefix_caching
            && (fewer_matter || self.steady.shared_tails > 0 || !chunks.iter().all(|c| private(c.0)));
        self.steady.repeatable = self.steady.enabled && stable && !changes && all_listed && !hits_matter;
    }

    /// A plan that was made row by row does not repeat itself.
    pub(super) fn forbid_repetition(&mut self) {
        self.steady.repeatable = false;
    }

    pub(super) fn take_left(&mut self, into: &mut Vec<Left>) {
        into.append(&mut self.steady.left);
    }

    pub(super) fn repeats_of_last_plan(&self) -> u32 {
        let steady = &self.steady;
        if !steady.repeatable || !steady.foreseen.is_empty() || !steady.written_back.is_empty() {
            return 0;
        }
        let to_end = steady.ends.peek().map_or(u64::MAX, |Reverse(end)| {
            debug_assert!(end.plan >= self.planned, "an end was missed");
            end.plan.saturating_sub(self.planned)
        });
        let most = u32::try_from(to_end).unwrap_or(u32::MAX);
        steady.chunks.iter().fold(most, |most, &(slot, tokens)| {
            // Its last chunk is another matter: it yields output, and may be shorter.
            let r = self.request(slot);
            let chunks = (r.known() + r.placeholders).saturating_sub(r.computed + 1) / tokens;
            // A chunk of one token counts as a decode once it lies past the prompt (a preempted request's outputs are
            // computed again), so a repeated one must not cross that line.
            let before_line = if tokens == 1 && r.computed <= r.prompt {
                r.prompt - r.computed
            } else {
                u32::MAX
            };
            most.min(chunks).min(before_line)
        })
    }

    pub(super) fn foresee_blocks(&self, most: u32, free: &mut Vec<u32>) {
        free.clear();
        let steady = &self.steady;
        let classes = &steady.class_rows[..];
        let (mut left, mut phase) = (self.kv.free(), steady.phase as usize);
        for plan in 0..most {
            let mut need = classes[phase];
            for &(slot, tokens) in &steady.chunks {
                let r = self.request(slot);
                let before = r.computed + plan * tokens;
                // What is left of a failed load has its blocks already (rule D13).
                let held = r.table.held().max(self.kv.blocks_for(before));
                need += self.kv.blocks_for(before + tokens).saturating_sub(held);
            }
            let Some(after) = left.checked_sub(need) else {
                return;
            };
            left = after;
            free.push(left);
            phase += 1;
            if phase == classes.len() {
                phase = 0;
            }
        }
    }

    pub(super) fn take_repeats(&mut self, plans: u32) {
        if self.config.enable_prefix_caching {
            for _ in 0..plans {
                self.planned += 1;
                self.take_blocks();
                self.grow_chunks(1);
                self.steady.next_phase();
            }
        } else {
            self.planned += u64::from(plans);
            self.kv.take(self.steady.blocks_of(plans));
            self.grow_chunks(plans);
            for index in 0..self.steady.chunks.len() {
                let (slot, _) = self.steady.chunks[index];
                let r = &mut self.requests[slot as usize];
                self.kv.grow(&mut r.table, r.computed);
            }
            let classes = self.steady.class_rows.len() as u32;
            self.steady.phase = (self.steady.phase + plans % classes) % classes;
        }
        self.committed += u64::from(plans);
        self.steady.computed += u64::from(self.steady.rows) * u64::from(plans);
    }

    fn grow_chunks(&mut self, plans: u32) {
        for &(slot, tokens) in &self.steady.chunks {
            self.requests[slot as usize].computed += plans * tokens;
        }
    }
}
