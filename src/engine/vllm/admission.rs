//! Admission from the waiting queues (rules S20-S29), and the start of loads on the way (rules D6, D7).

use super::budget::Budget;
use super::request::State;
use super::scheduler::VllmEngine;
use super::version::AdmissionPadding;
use crate::engine::{Admission, Grant, Leg, StepPlan};

/// What the running pass of a call did, as far as admission depends on it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RunningPass {
    /// A running request was scheduled.
    pub scheduled: bool,
    /// One of those scheduled was in the middle of its prompt before.
    pub mid_prompt: bool,
}

/// How the admission of a call ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WaitingPass {
    /// Requests at the head of the waiting queue that were passed over.
    pub passed_over: usize,
    /// Somebody was passed over, in whichever queue.
    pub skipped: bool,
    /// The request at which it ended was looked up in the prefix cache.
    pub looked_up: bool,
}

/// What admission knows of the call it belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub threshold: u32,
    pub pass: RunningPass,
    /// Requests that were running before it.
    pub running: usize,
    /// Blocks that those of them need for the rest of their prompts, once somebody has asked (rule D12).
    pub reserved: Option<u64>,
}

/// What became of a request that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// It runs, or is being loaded, and waits no more.
    Taken,
    /// The next one is looked at (rule S22).
    PassedOver,
    /// Nobody behind it is looked at (rule S23).
    Ends,
}

/// What is done with an admission of one token.
enum Padding {
    None,
    Drafts(u32),
    EndsAdmission,
}

impl VllmEngine {
    /// The waiting pass of a call: those that hold blocks, then the others, of whom `visible` are seen (rule S20).
    /// Looked at only if nobody was preempted.
    pub(super) fn schedule_waiting(
        &mut self,
        plan: &mut StepPlan,
        budget: &mut Budget,
        threshold: u32,
        pass: RunningPass,
        visible: usize,
    ) -> WaitingPass {
        let mut call = Call {
            threshold,
            pass,
            running: self.running.len(),
            reserved: None,
        };
        let mut walk = WaitingPass::default();
        let seats = self.seats();
        let mut place = 0;
        while self.running.len() < seats && !budget.is_spent() {
            let Some(slot) = self.ready.get(place) else { break };
            match self.try_to_admit(plan, budget, &mut call, slot) {
                Attempt::Taken => self.ready.remove(place),
                Attempt::PassedOver => (place, walk.skipped) = (place + 1, true),
                Attempt::Ends => return walk,
            }
        }
        while self.running.len() < seats && !budget.is_spent() {
            let seen = walk.passed_over + plan.admitted.len() < visible;
            let Some(slot) = self.waiting.get(walk.passed_over).filter(|_| seen) else {
                break;
            };
            walk.looked_up = true;
            match self.try_to_admit(plan, budget, &mut call, slot) {
                Attempt::Taken => {
                    walk.looked_up = false;
                    self.waiting.remove(walk.passed_over);
                }
                Attempt::PassedOver => (walk.passed_over, walk.skipped) = (walk.passed_over + 1, true),
                Attempt::Ends => break,
            }
        }
        walk
    }

    /// Most requests of the running list (rule S21).
    fn seats(&self) -> usize {
        let c = &self.config;
        let seats = match c.max_num_active_seqs {
            Some(active) if c.behaviour.has_max_num_active_seqs => active.min(c.max_num_seqs),
            _ => c.max_num_seqs,
        };
        seats as usize
    }

    fn try_to_admit(
        &mut self,
        plan: &mut StepPlan,
        budget: &mut Budget,
        call: &mut Call,
        slot: u32,
    ) -> Attempt {
        let r = self.request(slot);
        if r.in_flight_samples > 0 {
            // A preempted request whose last output is still under way is passed over (rule S35).
            return Attempt::PassedOver;
        }
        if r.leg == Leg::Decode && !r.load_spent {
            return self.start_load(plan, call, slot);
        }
        let (stream, known, holds_blocks) = (r.stream, r.known(), r.state == State::Ready);
        let computed = if holds_blocks {
            r.computed
        } else {
            self.kv.look_up(&stream, known, self.config.eagle)
        };
        if self.throttle.defers && computed + 1 < known {
            // A prompt, not what is left to do of a loaded one (rule S73).
            return Attempt::Ends;
        }
        let c = &self.config;
        let wanted = (known - computed).min(call.threshold);
        if !c.enable_chunked_prefill && wanted > budget.cap() {
            return if c.behaviour.skips_oversized_prompt {
                Attempt::PassedOver
            } else {
                Attempt::Ends
            };
        }
        let tokens = wanted.min(budget.cap());
        let drafts = match self.padding(call.pass, computed, known - computed) {
            Padding::None => 0,
            Padding::Drafts(drafts) if tokens + drafts <= budget.cap() => drafts,
            Padding::Drafts(_) | Padding::EndsAdmission => return Attempt::Ends,
        };
        let lookahead = if holds_blocks || c.behaviour.lookahead_at_admission {
            c.num_lookahead_tokens
        } else {
            0
        };
        let slots = (computed + tokens + drafts + lookahead).min(c.max_model_len);
        if !self.fits(slot, known, slots) {
            return Attempt::Ends;
        }
        let table = &mut self.requests[slot as usize].table;
        if holds_blocks {
            let grown = self.kv.grow(table, slots);
            debug_assert!(grown, "the need was checked before");
        } else {
            self.kv.admit(table, slots);
        }
        self.admit(plan, slot, computed, tokens + drafts, drafts);
        budget.take(tokens + drafts);
        Attempt::Taken
    }

    /// Dummy drafts for an admission that needs exactly `missing` = 1 token (rule S27).
    fn padding(&self, pass: RunningPass, computed: u32, missing: u32) -> Padding {
        let (k, limit) = (self.config.num_speculative_tokens, self.config.max_model_len);
        if k == 0 || missing != 1 || pass.mid_prompt {
            return Padding::None;
        }
        match self.config.behaviour.admission_padding {
            AdmissionPadding::BesideDecodes if pass.scheduled && computed + 1 + k > limit => {
                Padding::EndsAdmission
            }
            AdmissionPadding::BesideDecodes if pass.scheduled => Padding::Drafts(k),
            AdmissionPadding::BesideDecodesOrHits
                if (pass.scheduled || computed > 0) && computed + 1 + k < limit =>
            {
                Padding::Drafts(k)
            }
            _ => Padding::None,
        }
    }

    /// Blocks that stay free at an admission (rule K23).
    pub(super) fn watermark(&self) -> u32 {
        if self.running.is_empty() {
            0
        } else {
            self.watermark_blocks
        }
    }

    /// The KV blocks for an admission are there: the full-prompt gate, then this step's need with the
    /// watermark (rules K20-K24), for the blocks that the request holds or the last look-up found.
    fn fits(&self, slot: u32, known: u32, slots: u32) -> bool {
        let c = &self.config;
        let r = self.request(slot);
        let needed = |tokens: u32| match r.state {
            State::Ready => self.kv.blocks_for(tokens).saturating_sub(r.table.held()),
            _ => self.kv.needed_after_look_up(tokens),
        };
        let fits = |tokens: u32| needed(tokens) + self.watermark() <= self.kv.free();
        let gate = c.behaviour.has_full_prompt_gate && c.scheduler_reserve_full_isl;
        (!gate || fits(known.min(c.max_model_len))) && fits(slots)
    }

    fn admit(&mut self, plan: &mut StepPlan, slot: u32, computed: u32, tokens: u32, drafts: u32) {
        let r = &mut self.requests[slot as usize];
        let valued = (computed + tokens).min(r.known());
        self.kv.register(&mut r.table, &r.stream, valued);
        let cached_tokens = match r.state {
            State::Ready => r.local_hit,
            _ => computed,
        };
        plan.admitted.push(Admission {
            id: r.id,
            cached_tokens,
            first: !r.admitted,
        });
        r.order = self.running.admit(slot);
        plan.grants.push(Grant {
            id: r.id,
            slot,
            tokens,
            computed,
            drafts,
            samples: false,
            order: r.order,
        });
        r.admitted = true;
        r.state = State::Running;
        r.computed = computed;
    }
}
