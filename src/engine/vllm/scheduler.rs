//! The schedule call: who gets how many tokens in the next step (rules S1-S36).

use super::admission::{RunningPass, WaitingPass};
use super::budget::Budget;
use super::config::{Policy, VllmConfig};
use super::queue::{Rank, WaitingQueue};
use super::request::{Request, State};
use super::running::RunningList;
use super::steady::SteadySet;
use crate::engine::{Engine, Gauges, Grant, Left, Leg, Livelock, Refusal, RequestId, StepPlan, StepResult};
use crate::kv::{KvCache, TokenStream};
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
    /// Waiting requests that hold blocks, since their load has ended; served before the others (rules S20, D8).
    pub(super) ready: WaitingQueue,
    /// Requests whose KV is being loaded, in the order of their start (rule D6).
    pub(super) loading: Vec<u32>,
    /// Prefill legs that have ended and keep their blocks (rule D3).
    pub(super) held: Vec<u32>,
    /// The last call could do nothing, and nothing has happened since.
    pub(super) stalled: bool,
    /// Requests finished since the last schedule call, which the next one flushes.
    pub(super) unflushed: bool,
    pub(super) watermark_blocks: u32,
    pub(super) pause: Pause,
    pub(super) throttle: Throttle,
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

/// Prompts that wait for the steps meant for them (rule S73).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Throttle {
    /// The present step is not meant for prompts.
    is_on: bool,
    /// The last step that took prompts left some waiting: then no step is kept from them.
    is_capacity_bound: bool,
    /// The present call leaves prompts for later.
    pub defers: bool,
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

impl VllmEngine {
    /// An empty engine.
    pub fn new(mut config: VllmConfig) -> Self {
        config.async_scheduling = config.schedules_ahead();
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
            ready: WaitingQueue::new(config.policy),
            loading: Vec::new(),
            held: Vec::new(),
            stalled: false,
            unflushed: false,
            // Truncated like vLLM's int(); a fraction was validated to lie in 0..1.
            watermark_blocks: (watermark * f64::from(config.num_gpu_blocks)) as u32,
            pause: Pause::None,
            throttle: Throttle::default(),
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

    /// Waiting requests, those whose KV is loaded or being loaded among them (rule D6).
    pub(in crate::engine) fn waiting_count(&self) -> usize {
        self.waiting.len() + self.ready.len() + self.loading.len()
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
        let requests = self.running.len() + self.waiting_count();
        match c.long_prefill_token_threshold {
            0 => u32::MAX,
            _ if c.behaviour.threshold_exempts_lone_request && requests == 1 => u32::MAX,
            t if c.adaptive_long_prefill_threshold => {
                t.max(c.max_num_batched_tokens / requests.max(1) as u32)
            }
            t => t,
        }
    }

    /// Tokens of a running request in this call; 0 passes it over (rules S11-S15).
    pub(super) fn running_tokens(&self, r: &Request, threshold: u32, budget: &Budget) -> u32 {
        let in_flight_reaches_end = self.config.behaviour.async_stops_at_max_tokens
            && r.placeholders > 0
            && r.computed + 2 - r.placeholders >= r.prompt + r.max_tokens;
        let deferred = self.throttle.defers && r.mid_prompt;
        if in_flight_reaches_end || self.planned < r.eligible_from || deferred {
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
        (r.loaded, r.eligible_from) = (false, 0);
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

    /// Stops or resumes admission and scheduling (rule S7).
    pub fn set_pause(&mut self, pause: Pause) {
        self.pause = pause;
    }

    /// One call of the scheduler, which sees only some of the requests; see [`Engine::plan`].
    pub(in crate::engine) fn plan_view(&mut self, plan: &mut StepPlan, view: View) {
        plan.clear();
        self.unflushed = false;
        let mut budget = Budget::of_a_step(&self.config, self.pause == Pause::All);
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
        self.throttle.defers = self.throttle.is_on && !self.throttle.is_capacity_bound && self.decodes();
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
            if !self.throttle.defers {
                self.throttle.is_capacity_bound = !self.waiting.is_empty();
            }
        }
        if let Some(hidden) = hidden {
            self.running.show(hidden);
        }
        self.advance(plan);
        self.settle(plan, together.is_none());
        if together.is_some() {
            self.note_repetition(plan, !admission.skipped, admission.looked_up);
        } else {
            self.forbid_repetition();
        }
        self.take_left(&mut plan.left);
        plan.running = self.running.len() as u32;
        plan.waiting = self.waiting_count() as u32;
        plan.free_blocks = self.kv.free();
        self.stalled = plan.is_empty() && plan.loads.is_empty() && plan.preempted.is_empty();
    }

    /// Somebody of the running list has its prompt behind it.
    fn decodes(&self) -> bool {
        let slots = self.running.slots().iter();
        slots.into_iter().any(|&slot| !self.request(slot).mid_prompt)
    }

    /// Advances the counters right after the schedule is built, before the device has run (rules S5, S53), and
    /// sums up the batch's shape.
    fn advance(&mut self, plan: &mut StepPlan) {
        let drafts = self.config.drafts_after(plan.grants.len());
        let stages = self.config.pipeline_parallel_size;
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
                    if stages > 1 {
                        r.eligible_from = self.planned + u64::from(stages);
                    }
                }
            }
            // What is left to do of a loaded prompt is a decode (rule D2).
            let from = r.prompt - u32::from(r.loaded);
            let decode = grant.tokens == 1 + grant.drafts && grant.computed >= from;
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
        self.enqueue(id, request, Leg::Whole)
    }

    fn submit_leg(&mut self, id: RequestId, request: &TraceRequest, leg: Leg) -> Result<(), Refusal> {
        self.enqueue_leg(id, request, leg)
    }

    fn load_done(&mut self, id: RequestId) -> bool {
        self.end_load(id)
    }

    fn load_failed(&mut self, id: RequestId, valid_tokens: u32) -> bool {
        self.fail_load(id, valid_tokens)
    }

    fn release_held(&mut self, id: RequestId) -> bool {
        self.release_blocks_of(id)
    }

    fn held_blocks(&self) -> u32 {
        self.held.iter().map(|&s| self.request(s).table.held()).sum()
    }

    fn gauges(&self) -> Gauges {
        Gauges {
            running: self.running.len() as u32,
            waiting: self.waiting_count() as u32,
            free_blocks: self.kv.free(),
            usable_blocks: self.kv.usable(),
        }
    }

    fn flush_cache(&mut self) {
        self.forbid_repetition();
        self.stalled = false;
        self.kv.flush();
    }

    fn cached_blocks(&self) -> u32 {
        self.kv.cached()
    }

    fn cached_tokens(&mut self, request: &TraceRequest, id: RequestId) -> u32 {
        let stream = TokenStream::new(id, request.input_tokens, request.prefix);
        self.kv.look_up(&stream, request.input_tokens, self.config.eagle)
    }

    fn is_loading_only(&self) -> bool {
        let all_load = self.waiting.is_empty() && self.ready.is_empty();
        self.running.is_empty() && !self.loading.is_empty() && (all_load || self.stalled)
    }

    fn livelock(&self) -> Option<Livelock> {
        self.blocked_loads()
    }

    fn plan(&mut self, plan: &mut StepPlan) {
        self.plan_view(plan, View::All);
    }

    fn throttle_prefills(&mut self, throttled: bool) {
        debug_assert!(
            !throttled || !self.steady.enabled,
            "throttled plans do not repeat"
        );
        self.throttle.is_on = throttled;
    }

    fn commit(&mut self, plan: &StepPlan, result: &mut StepResult) {
        self.take_output(plan, result);
    }

    fn abort(&mut self, id: RequestId) -> bool {
        self.abort_request(id)
    }

    fn has_unfinished(&self) -> bool {
        !self.running.is_empty() || self.waiting_count() > 0
    }

    fn wants_schedule(&self) -> bool {
        self.has_unfinished() || self.unflushed
    }

    fn queue_depth(&self) -> usize {
        self.config.queue_depth() as usize
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
