//! The schedule call: who gets how many tokens in the next step (rules S1-S36).

use super::config::{Policy, VllmConfig};
use super::queue::{Rank, WaitingQueue};
use super::request::{Request, State};
use super::running::RunningList;
use super::steady::SteadySet;
use super::version::AdmissionPadding;
use crate::engine::{Admission, Engine, Grant, Left, Refusal, RequestId, StepPlan, StepResult};
use crate::kv::{BlockTable, KvCache};
use crate::workload::trace::TraceRequest;

/// One vLLM engine: scheduler and KV cache, without clock and model.
#[derive(Debug)]
pub struct VllmEngine {
    pub(super) config: VllmConfig,
    pub(super) kv: KvCache,
    pub(super) requests: Vec<Request>,
    /// Places in `requests` that can be used again.
    pub(super) vacant: Vec<u32>,
    /// Running requests in admission order (rule S4).
    pub(super) running: RunningList,
    /// Those of them that only decode.
    pub(super) steady: SteadySet,
    /// Number of the last plan made, and of the last one committed.
    pub(super) planned: u64,
    pub(super) committed: u64,
    /// Rows of a commit that its plan does not list; memory used again.
    pub(super) unlisted: Vec<Grant>,
    pub(super) waiting: WaitingQueue,
    /// Requests finished since the last schedule call, which the next one flushes.
    pub(super) unflushed: bool,
    watermark_blocks: u32,
    pub(super) pause: Pause,
}

/// What a paused engine still does (rule S7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pause {
    /// Everything: it is not paused.
    #[default]
    None,
    /// Running requests go on; nobody is admitted.
    New,
    /// Nothing is scheduled.
    All,
}

/// Which requests a call of the scheduler sees: a plugin may hide some from it (rules N10, N11, N41).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum View {
    /// All.
    All,
    /// The head of the waiting queue alone.
    Head,
    /// The first one of the running list alone.
    FirstRunning,
    /// The running list, and nobody who waits.
    Running,
}

/// What is left of a step's budgets (rule S2).
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    tokens: u32,
    input: u32,
    draft_slots: u32,
}

impl Budget {
    fn is_spent(&self) -> bool {
        self.tokens == 0 || self.input <= self.draft_slots
    }

    fn cap(&self) -> u32 {
        self.tokens.min(self.input - self.draft_slots)
    }

    pub fn take(&mut self, tokens: u32) {
        self.tokens -= tokens;
        self.input -= tokens + self.draft_slots;
    }

    /// Takes one token for each of some decode rows without draft slots; false, with nothing done, if it is too much.
    pub fn take_rows(&mut self, rows: u32) -> bool {
        let enough = rows <= self.tokens && rows <= self.input;
        if enough {
            self.tokens -= rows;
            self.input -= rows;
        }
        enough
    }

    fn give_back(&mut self, tokens: u32) {
        self.tokens += tokens;
        self.input += tokens + self.draft_slots;
    }
}

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
struct WaitingPass {
    /// Requests at the head that were passed over.
    passed_over: usize,
    /// The request at which it ended was looked up in the prefix cache.
    looked_up: bool,
}

/// What is done with an admission of one token.
enum Padding {
    None,
    Drafts(u32),
    EndsAdmission,
}

impl VllmEngine {
    /// An empty engine.
    pub fn new(config: VllmConfig) -> Self {
        let watermark = if config.behaviour.has_watermark {
            config.watermark
        } else {
            0.0
        };
        Self {
            kv: KvCache::new(
                config.usable_blocks(),
                config.block_size,
                config.enable_prefix_caching,
                config.behaviour.unhashed_blocks_first,
            ),
            requests: Vec::new(),
            vacant: Vec::new(),
            running: RunningList::new(config.scheduler_cls.is_neuron()),
            steady: SteadySet::new(&config),
            planned: 0,
            committed: 0,
            unlisted: Vec::new(),
            waiting: WaitingQueue::new(config.policy),
            unflushed: false,
            // Truncated like vLLM's int(); a fraction was validated to lie in 0..1.
            watermark_blocks: (watermark * f64::from(config.num_gpu_blocks)) as u32,
            pause: Pause::None,
            config,
        }
    }

    /// Ids of the running requests in list order.
    pub fn running_ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.running.slots().iter().map(|&s| self.requests[s as usize].id)
    }

    /// Ids of the waiting requests in queue order.
    pub fn waiting_ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.waiting.iter().map(|s| self.requests[s as usize].id)
    }

    /// Its configuration.
    pub const fn config(&self) -> &VllmConfig {
        &self.config
    }

    /// Running requests.
    pub(in crate::engine) fn running_count(&self) -> usize {
        self.running.len()
    }

    /// Waiting requests.
    pub(in crate::engine) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// The first request of the running list is in the middle of its prompt.
    pub(in crate::engine) fn first_is_mid_prompt(&self) -> bool {
        let first = self.running.slots().first();
        first.is_some_and(|&slot| self.request(slot).mid_prompt)
    }

    /// The request at the head of the waiting queue, and the KV blocks that its known tokens fill.
    pub(in crate::engine) fn head(&self) -> Option<(RequestId, u32)> {
        let r = self.request(self.waiting.get(0)?);
        Some((r.id, self.kv.blocks_for(r.known())))
    }

    /// Free KV blocks now.
    pub fn free_blocks(&self) -> u32 {
        self.kv.free()
    }

    pub(super) fn request(&self, slot: u32) -> &Request {
        &self.requests[slot as usize]
    }

    pub(super) fn rank(&self, slot: u32) -> Rank {
        let r = self.request(slot);
        (r.priority, r.arrival, r.id)
    }

    /// Cap on a request's tokens in this call (rule S12).
    fn threshold(&self) -> u32 {
        let c = &self.config;
        let requests = self.running.len() + self.waiting.len();
        match c.long_prefill_token_threshold {
            0 => u32::MAX,
            _ if c.behaviour.threshold_exempts_lone_request && requests == 1 => u32::MAX,
            t if c.adaptive_long_prefill_threshold => {
                t.max(c.max_num_batched_tokens / requests.max(1) as u32)
            }
            t => t,
        }
    }

    /// Tokens of a running request in this call; 0 passes it over (rules S11-S14).
    pub(super) fn running_tokens(&self, r: &Request, threshold: u32, budget: &Budget) -> u32 {
        let in_flight_reaches_end = self.config.behaviour.async_stops_at_max_tokens
            && r.placeholders > 0
            && r.computed + 2 - r.placeholders >= r.prompt + r.max_tokens;
        if in_flight_reaches_end {
            return 0;
        }
        (r.known() + r.drafts + r.placeholders)
            .saturating_sub(r.computed)
            .min(threshold)
            .min(budget.cap())
            .min((self.config.max_model_len - 1).saturating_sub(r.computed))
    }

    /// The running list, completely (rules S10-S17).
    fn schedule_running(&mut self, plan: &mut StepPlan, budget: &mut Budget, threshold: u32) -> RunningPass {
        let mut pass = RunningPass::default();
        let lookahead = self.config.num_lookahead_tokens;
        let mut index = 0;
        while index < self.running.len() && !budget.is_spent() {
            let slot = self.running.slots()[index];
            let r = &self.requests[slot as usize];
            let tokens = self.running_tokens(r, threshold, budget);
            if tokens == 0 {
                index += 1;
                continue;
            }
            let slots = (r.computed + tokens + lookahead).min(self.config.max_model_len);
            loop {
                if self.kv.grow(&mut self.requests[slot as usize].table, slots) {
                    break;
                }
                let victim = self.preempt_one(plan, budget, &mut index);
                if victim == slot {
                    return pass;
                }
            }
            let r = &mut self.requests[slot as usize];
            let valued = (r.computed + tokens).min(r.known());
            self.kv.register(&mut r.table, &r.stream, valued);
            let drafts = (tokens + r.computed)
                .saturating_sub(r.known() + r.placeholders)
                .min(r.drafts);
            r.drafts = 0;
            pass.mid_prompt |= r.mid_prompt;
            plan.grants.push(Grant {
                id: r.id,
                slot,
                tokens,
                computed: r.computed,
                drafts,
                samples: false,
                order: r.order,
            });
            budget.take(tokens);
            index += 1;
        }
        pass.scheduled = !plan.grants.is_empty();
        pass
    }

    /// Preempts one running request (rules S30-S32) and returns its slot.
    fn preempt_one(&mut self, plan: &mut StepPlan, budget: &mut Budget, index: &mut usize) -> u32 {
        let place = match self.config.policy {
            Policy::Fcfs => self.running.len() - 1,
            Policy::Priority => self.lowest_priority_place(),
        };
        let victim = self.running.remove_at(place);
        if self.config.policy == Policy::Priority {
            let granted = plan.grants.iter().position(|g| g.slot == victim);
            if let Some(g) = granted {
                let grant = plan.grants.remove(g);
                if self.config.behaviour.withdrawn_grant_returns_budget {
                    budget.give_back(grant.tokens);
                }
            }
            let follows = match granted {
                Some(_) => self.config.behaviour.withdrawn_grant_returns_budget,
                None => self.config.behaviour.any_earlier_victim_shifts_index && place < *index,
            };
            *index -= usize::from(follows);
        }
        let r = &mut self.requests[victim as usize];
        self.kv.release(&mut r.table);
        r.state = State::Preempted;
        (r.computed, r.drafts, r.placeholders) = (0, 0, 0);
        plan.preempted.push(r.id);
        let rank = self.rank(victim);
        self.waiting.push_preempted(victim, rank);
        victim
    }

    /// Place of the running request with the largest (priority, arrival), the first one on a tie.
    fn lowest_priority_place(&self) -> usize {
        let key = |slot: u32| {
            let r = self.request(slot);
            (r.priority, r.arrival)
        };
        let (mut worst, slots) = (0, self.running.slots());
        for place in 1..slots.len() {
            if key(slots[place]) > key(slots[worst]) {
                worst = place;
            }
        }
        worst
    }

    /// Admission from the waiting queue (rules S20-S29). Looked at only if nobody was preempted.
    fn schedule_waiting(
        &mut self,
        plan: &mut StepPlan,
        budget: &mut Budget,
        threshold: u32,
        pass: RunningPass,
        visible: usize,
    ) -> WaitingPass {
        let c = &self.config;
        let seats = match c.max_num_active_seqs {
            Some(active) if c.behaviour.has_max_num_active_seqs => active.min(c.max_num_seqs),
            _ => c.max_num_seqs,
        };
        let mut place = 0;
        let mut looked_up = false;
        while self.running.len() < seats as usize && !budget.is_spent() {
            let seen = place + plan.admitted.len() < visible;
            let Some(slot) = self.waiting.get(place).filter(|_| seen) else {
                break;
            };
            looked_up = true;
            let r = self.request(slot);
            if r.in_flight_samples > 0 {
                // A preempted request whose last output is still under way is passed over (rule S35).
                place += 1;
                continue;
            }
            let stream = r.stream;
            let known = r.known();
            let cached = self.kv.look_up(&stream, known, self.config.eagle);
            let wanted = (known - cached).min(threshold);
            if !self.config.enable_chunked_prefill && wanted > budget.cap() {
                if self.config.behaviour.skips_oversized_prompt {
                    place += 1;
                    continue;
                }
                break;
            }
            let tokens = wanted.min(budget.cap());
            let drafts = match self.padding(pass, cached, known - cached) {
                Padding::None => 0,
                Padding::Drafts(drafts) if tokens + drafts <= budget.cap() => drafts,
                Padding::Drafts(_) | Padding::EndsAdmission => break,
            };
            let lookahead = if self.config.behaviour.lookahead_at_admission {
                self.config.num_lookahead_tokens
            } else {
                0
            };
            let slots = (cached + tokens + drafts + lookahead).min(self.config.max_model_len);
            if !self.fits(known, slots) {
                break;
            }
            looked_up = false;
            self.waiting.remove(place);
            self.kv.admit(&mut self.requests[slot as usize].table, slots);
            self.admit(plan, slot, cached, tokens + drafts, drafts);
            budget.take(tokens + drafts);
        }
        WaitingPass {
            passed_over: place,
            looked_up,
        }
    }

    /// Dummy drafts for an admission that needs exactly `missing` = 1 token (rule S27).
    fn padding(&self, pass: RunningPass, cached: u32, missing: u32) -> Padding {
        let (k, limit) = (self.config.num_speculative_tokens, self.config.max_model_len);
        if k == 0 || missing != 1 || pass.mid_prompt {
            return Padding::None;
        }
        match self.config.behaviour.admission_padding {
            AdmissionPadding::BesideDecodes if pass.scheduled && cached + 1 + k > limit => {
                Padding::EndsAdmission
            }
            AdmissionPadding::BesideDecodes if pass.scheduled => Padding::Drafts(k),
            AdmissionPadding::BesideDecodesOrHits
                if (pass.scheduled || cached > 0) && cached + 1 + k < limit =>
            {
                Padding::Drafts(k)
            }
            _ => Padding::None,
        }
    }

    /// The KV blocks for an admission are there: the full-prompt gate, then this step's need with the
    /// watermark (rules K20-K24), for the sequence found by the last look-up.
    fn fits(&self, known: u32, slots: u32) -> bool {
        let c = &self.config;
        let reserve = if self.running.is_empty() {
            0
        } else {
            self.watermark_blocks
        };
        let fits = |tokens: u32| self.kv.needed_after_look_up(tokens) + reserve <= self.kv.free();
        let gate = c.behaviour.has_full_prompt_gate && c.scheduler_reserve_full_isl;
        (!gate || fits(known.min(c.max_model_len))) && fits(slots)
    }

    fn admit(&mut self, plan: &mut StepPlan, slot: u32, cached: u32, tokens: u32, drafts: u32) {
        let r = &mut self.requests[slot as usize];
        let valued = (cached + tokens).min(r.known());
        self.kv.register(&mut r.table, &r.stream, valued);
        plan.admitted.push(Admission {
            id: r.id,
            cached_tokens: cached,
            first: !r.admitted,
        });
        r.order = self.running.admit(slot);
        plan.grants.push(Grant {
            id: r.id,
            slot,
            tokens,
            computed: cached,
            drafts,
            samples: false,
            order: r.order,
        });
        r.admitted = true;
        r.state = State::Running;
        r.computed = cached;
    }

    /// Stops or resumes admission and scheduling (rule S7).
    pub fn set_pause(&mut self, pause: Pause) {
        self.pause = pause;
    }

    /// One call of the scheduler, which sees only some of the requests; see [`Engine::plan`].
    pub(in crate::engine) fn plan_view(&mut self, plan: &mut StepPlan, view: View) {
        plan.clear();
        self.unflushed = false;
        let c = &self.config;
        let mut budget = Budget {
            tokens: c.max_num_scheduled_tokens.unwrap_or(c.max_num_batched_tokens),
            input: c.max_num_batched_tokens,
            draft_slots: c.draft_slots,
        };
        if self.pause == Pause::All {
            budget.tokens = 0;
        }
        self.planned += 1;
        let (shown, visible) = match view {
            View::All => (usize::MAX, usize::MAX),
            View::Head => (0, 1),
            View::FirstRunning => (1, 0),
            View::Running => (usize::MAX, 0),
        };
        let hidden = (shown < self.running.len()).then(|| {
            // Hidden rows do not decode in this step, so nobody is steady through it.
            self.write_back(self.planned - 1);
            self.running.hide_from(shown)
        });
        let threshold = self.threshold();
        let together = if hidden.is_some() {
            None
        } else {
            self.schedule_steady(plan, &mut budget, threshold)
        };
        let pass = together.unwrap_or_else(|| {
            self.write_back(self.planned - 1);
            self.schedule_running(plan, &mut budget, threshold)
        });
        let mut admission = WaitingPass::default();
        if plan.preempted.is_empty() && self.pause == Pause::None {
            admission = self.schedule_waiting(plan, &mut budget, threshold, pass, visible);
            if self.config.behaviour.skips_oversized_prompt {
                self.waiting.reverse_head(admission.passed_over);
            }
        }
        if let Some(hidden) = hidden {
            self.running.show(hidden);
        }
        self.advance(plan);
        self.settle(plan, together.is_none());
        if together.is_some() {
            self.note_repetition(plan, admission.passed_over == 0, admission.looked_up);
        } else {
            self.forbid_repetition();
        }
        self.take_left(&mut plan.left);
        plan.running = self.running.len() as u32;
        plan.waiting = self.waiting.len() as u32;
        plan.free_blocks = self.kv.free();
    }

    /// Advances the counters right after the schedule is built, before the device has run (rules S5, S53), and
    /// sums up the batch's shape.
    fn advance(&mut self, plan: &mut StepPlan) {
        let drafts = self.config.drafts_after(plan.grants.len());
        for grant in &mut plan.grants {
            let r = &mut self.requests[grant.slot as usize];
            r.computed += grant.tokens;
            grant.samples = r.computed >= r.known() + r.placeholders;
            r.in_flight += 1;
            r.mid_prompt = !grant.samples;
            if grant.samples {
                r.in_flight_samples += 1;
                if self.config.async_scheduling {
                    r.placeholders += 1 + grant.drafts;
                    r.drafts = drafts;
                }
            }
            let decode = grant.tokens == 1 + grant.drafts && grant.computed >= r.prompt;
            if decode {
                plan.shape.add_decode(grant.tokens, grant.computed);
            } else {
                plan.shape.add_prefill(grant.tokens, grant.computed);
            }
        }
    }
}

impl Engine for VllmEngine {
    fn submit(&mut self, id: RequestId, request: &TraceRequest) -> Result<(), Refusal> {
        if let Some(refusal) = self.config.refusal(request) {
            return Err(refusal);
        }
        let slot = match self.vacant.pop() {
            Some(slot) => {
                let place = &mut self.requests[slot as usize];
                let table = std::mem::take(&mut place.table);
                *place = Request::new(id, request, table);
                slot
            }
            None => {
                self.requests
                    .push(Request::new(id, request, BlockTable::default()));
                self.requests.len() as u32 - 1
            }
        };
        let rank = self.rank(slot);
        self.waiting.push(slot, rank);
        Ok(())
    }

    fn plan(&mut self, plan: &mut StepPlan) {
        self.plan_view(plan, View::All);
    }

    fn commit(&mut self, plan: &StepPlan, result: &mut StepResult) {
        self.take_output(plan, result);
    }

    fn abort(&mut self, id: RequestId) -> bool {
        self.abort_request(id)
    }

    fn has_unfinished(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty()
    }

    fn wants_schedule(&self) -> bool {
        self.has_unfinished() || self.unflushed
    }

    fn queue_depth(&self) -> usize {
        if self.config.async_scheduling { 2 } else { 1 }
    }

    fn repeats(&self) -> u32 {
        self.repeats_of_last_plan()
    }

    fn foresee(&self, most: u32, free: &mut Vec<u32>) {
        self.foresee_blocks(most, free);
    }

    fn leap(&mut self, plans: u32) {
        self.take_repeats(plans);
    }

    fn list_all(&mut self, left: &mut Vec<Left>) {
        self.write_back(self.planned);
        self.forbid_repetition();
        self.take_left(left);
    }
}
