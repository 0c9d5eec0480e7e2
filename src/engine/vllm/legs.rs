//! Prefill and decode apart (rules D1-D13): legs of requests, loads of KV, and blocks that stay for a reader.
//!
//! A decode leg waits like any request until the waiting pass reaches it. There it gets all blocks of its prompt and its
//! load begins (rule D6); it takes no place of the running list and no token of the budget, but the pass only comes so
//! far while the running list has a place (rule D7). When the load has ended it waits in a queue that is served before
//! the ordinary one (rules S20, D8), needs the last token of its prompt once more (rule D2), and is then a request
//! like any other; a preemption makes it compute everything here (rule D11).
//!
//! The queue of its own is that of vLLM 0.32. Older releases keep loaded requests among the waiting ones (S24); they
//! are served in the order of 0.32 here, too.

use super::admission::{Attempt, Call};
use super::request::{Request, State};
use super::scheduler::{Pause, VllmEngine};
use crate::engine::{Leg, Livelock, Load, Refusal, RequestId, StepPlan};
use crate::kv::BlockTable;
use crate::workload::trace::TraceRequest;

impl VllmEngine {
    /// A leg of a request. A prefill leg is asked for one token (rule D1) and ends by length, whatever it is (rule D3).
    pub(super) fn enqueue_leg(
        &mut self,
        id: RequestId,
        request: &TraceRequest,
        leg: Leg,
    ) -> Result<(), Refusal> {
        if leg != Leg::Prefill {
            return self.enqueue(id, request, leg);
        }
        let one_token = TraceRequest {
            max_output_tokens: 1,
            eos_at: None,
            ..request.clone()
        };
        self.enqueue(id, &one_token, leg)
    }

    pub(super) fn enqueue(&mut self, id: RequestId, request: &TraceRequest, leg: Leg) -> Result<(), Refusal> {
        if let Some(refusal) = self.config.refusal(request) {
            return Err(refusal);
        }
        let slot = match self.vacant.pop() {
            Some(slot) => {
                let place = &mut self.requests[slot as usize];
                let table = std::mem::take(&mut place.table);
                *place = Request::new(id, request, leg, table);
                slot
            }
            None => {
                self.requests
                    .push(Request::new(id, request, leg, BlockTable::default()));
                self.requests.len() as u32 - 1
            }
        };
        let rank = self.rank(slot);
        self.waiting.push(slot, rank);
        self.stalled = false;
        Ok(())
    }

    /// Begins the load of a waiting decode leg if its whole prompt fits beside what is reserved (rules D6, D12).
    pub(super) fn start_load(&mut self, plan: &mut StepPlan, call: &mut Call, slot: u32) -> Attempt {
        let r = self.request(slot);
        let (id, prompt, stream) = (r.id, r.prompt, r.stream);
        let cached_tokens = self.kv.look_up(&stream, prompt, self.config.eagle);
        let reserved = if self.config.reserves_for_loads() {
            self.reserved_blocks(plan, call)
        } else {
            0
        };
        let need = u64::from(self.kv.needed_after_look_up(prompt)) + u64::from(self.watermark());
        if need + reserved > u64::from(self.kv.free()) {
            return Attempt::Ends;
        }
        let r = &mut self.requests[slot as usize];
        self.kv.admit(&mut r.table, prompt);
        (r.state, r.load_spent, r.local_hit) = (State::Loading, true, cached_tokens);
        plan.loads.push(Load {
            id,
            cached_tokens,
            blocks: r.table.held() - self.kv.blocks_for(cached_tokens),
            tokens: prompt - cached_tokens,
        });
        self.loading.push(slot);
        Attempt::Taken
    }

    /// Blocks that requests under way still need before they decode (rule D12): running ones for the rest of their
    /// prompts; loads, which hold their prompts' blocks, for one step with speculation.
    fn reserved_blocks(&self, plan: &StepPlan, call: &mut Call) -> u64 {
        let rest = |slot: u32| {
            let r = self.request(slot);
            let all = self.kv.blocks_for(r.known().min(self.config.max_model_len));
            u64::from(all.saturating_sub(r.table.held()))
        };
        let running = *call.reserved.get_or_insert_with(|| {
            let slots = &self.running.slots()[..call.running];
            let mid_prompt = slots.iter().filter(|&&s| self.request(s).mid_prompt);
            mid_prompt.map(|&s| rest(s)).sum()
        });
        let admitted = &plan.grants[plan.grants.len() - plan.admitted.len()..];
        let c = &self.config;
        let step = self
            .kv
            .blocks_for(c.num_speculative_tokens + c.num_lookahead_tokens);
        let loads = (self.loading.len() + self.ready.len()) as u64 * u64::from(step);
        running + admitted.iter().map(|g| rest(g.slot)).sum::<u64>() + loads
    }

    /// The load of a request has ended: it is ready, and its blocks are found by others (rules D8, D9).
    pub(super) fn end_load(&mut self, id: RequestId) -> bool {
        let Some(slot) = self.take_from_loading(id) else {
            return false;
        };
        let r = &mut self.requests[slot as usize];
        self.kv.register(&mut r.table, &r.stream, r.prompt);
        // The last token of the prompt is computed again, for the first output (rule D2).
        r.computed = r.prompt.saturating_sub(1);
        r.loaded = true;
        self.make_ready(slot);
        true
    }

    /// The load of a request broke off with `valid` tokens of its prompt there (rule D13). What the prefix cache gave
    /// is there in any case. Without a whole block it waits at the head of the queue, as if preempted.
    pub(super) fn fail_load(&mut self, id: RequestId, valid: u32) -> bool {
        let Some(slot) = self.take_from_loading(id) else {
            return false;
        };
        let r = &mut self.requests[slot as usize];
        let size = self.config.block_size.max(1);
        let whole = valid.max(r.local_hit).min(r.prompt.saturating_sub(1)) / size * size;
        if whole == 0 {
            self.kv.release(&mut r.table);
            r.state = State::Waiting;
            let rank = self.rank(slot);
            self.waiting.push_preempted(slot, rank);
        } else {
            self.kv.register(&mut r.table, &r.stream, whole);
            r.computed = whole;
            self.make_ready(slot);
        }
        true
    }

    fn take_from_loading(&mut self, id: RequestId) -> Option<u32> {
        let place = self.loading.iter().position(|&s| self.request(s).id == id)?;
        self.forbid_repetition();
        self.stalled = false;
        Some(self.loading.remove(place))
    }

    fn make_ready(&mut self, slot: u32) {
        self.requests[slot as usize].state = State::Ready;
        let rank = self.rank(slot);
        self.ready.push(slot, rank);
    }

    /// Frees the blocks of a prefill leg that has ended (rules D3, D14).
    pub(super) fn release_blocks_of(&mut self, id: RequestId) -> bool {
        let Some(place) = self.held.iter().position(|&s| self.request(s).id == id) else {
            return false;
        };
        self.forbid_repetition();
        self.stalled = false;
        let slot = self.held.remove(place);
        let r = &mut self.requests[slot as usize];
        self.kv.release(&mut r.table);
        r.held = false;
        if r.in_flight == 0 {
            self.vacant.push(slot);
        }
        true
    }

    /// Loads that have ended and wait for blocks which only they hold: without the reserve of rule D12 that is for ever.
    pub(super) fn blocked_loads(&self) -> Option<Livelock> {
        let nothing_else = self.running.is_empty() && self.loading.is_empty() && self.held.is_empty();
        let head = self
            .ready
            .get(0)
            .filter(|_| nothing_else && self.stalled && self.pause == Pause::None)?;
        let r = self.request(head);
        Some(Livelock {
            head: r.id,
            needed_blocks: self.kv.blocks_for(r.known()),
            free_blocks: self.kv.free(),
            hidden: 0,
            waiting: self.waiting_count() as u32,
        })
    }
}
