//! Inference engines: which request gets how many tokens in which step.
//!
//! An engine knows no clock, no router and no file. The caller submits requests, asks for a plan, lets the
//! planned batch take its time, and commits it; with asynchronous scheduling two plans may be under way.

pub mod neuron;
pub mod vllm;

use neuron::NeuronEngine;
use vllm::{VllmConfig, VllmEngine};

use crate::steptime::BatchShape;
use crate::workload::trace::TraceRequest;

/// The caller's name for a request: its index in the trace.
pub type RequestId = u32;

/// Which part of a request an engine serves, when prefill and decode are apart (rules D1-D13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leg {
    /// All of it.
    #[default]
    Whole,
    /// Its prompt and the one output token that nobody reads (rules D1, D2). Its blocks stay when it ends, until
    /// [`Engine::release_held`] (rule D3).
    Prefill,
    /// Its output. The KV of its prompt comes by a transfer (rule D6), see [`StepPlan::loads`].
    Decode,
}

/// One row of a step's batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Whose tokens.
    pub id: RequestId,
    /// The engine's own place for the request; meaningless to the caller.
    pub slot: u32,
    /// Scheduled tokens, drafts included.
    pub tokens: u32,
    /// Tokens computed before this step.
    pub computed: u32,
    /// Drafts among the scheduled tokens.
    pub drafts: u32,
    /// The row reaches the last known token, so it yields output.
    pub samples: bool,
    /// The request's place in the running list: rows with smaller numbers stand before it.
    pub(crate) order: u64,
}

/// A request that decoded steadily (see [`StepPlan::steady`]) and does no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Which request.
    pub id: RequestId,
    /// Steps that followed its last listed row, were committed, and gave it one token each.
    pub steps: u32,
}

/// A request taken from the waiting queue in a step, for the first time or after a preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Which request.
    pub id: RequestId,
    /// Tokens found in the prefix cache.
    pub cached_tokens: u32,
    /// False when it comes back after a preemption.
    pub first: bool,
}

/// A transfer of a prompt's KV that starts with a schedule call (rules D6, D7). It ends with [`Engine::load_done`] or
/// [`Engine::load_failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Whose prompt.
    pub id: RequestId,
    /// Tokens found in the prefix cache, which need not be read.
    pub cached_tokens: u32,
    /// Blocks to be read, whole ones and the last partial one (rule D5).
    pub blocks: u32,
    /// Tokens in them.
    pub tokens: u32,
}

/// What can be seen of an engine from outside at any moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gauges {
    /// Requests of the running list.
    pub running: u32,
    /// Waiting requests; those whose KV is being loaded are among them, as in vLLM's own gauge (rule D6).
    pub waiting: u32,
    /// Free KV blocks; cached blocks that nobody uses count as free (rule K12).
    pub free_blocks: u32,
    /// KV blocks that requests can use (rule K10).
    pub usable_blocks: u32,
}

/// What one call of the scheduler decided.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StepPlan {
    /// Rows in batch order: running requests in list order, then the admitted ones. Without the steady ones.
    pub grants: Vec<Grant>,
    /// Rows that are not listed: requests that decode one token in this step as in the one before, with nothing to
    /// tell about them. An engine without a steady set lists every row.
    pub steady: u32,
    /// Requests of this batch that decode steadily from the next plan on.
    pub entered: Vec<RequestId>,
    /// Requests that were steady up to the plan before; their tokens under way are told by [`StepResult::emitted`].
    pub left: Vec<Left>,
    /// Requests admitted in this call, in order.
    pub admitted: Vec<Admission>,
    /// Requests preempted in this call, in order.
    pub preempted: Vec<RequestId>,
    /// Transfers that start with this call, in order (rule D6). A plan that only starts some is empty otherwise.
    pub loads: Vec<Load>,
    /// The batch as the step-time model sees it.
    pub shape: BatchShape,
    /// Running requests after the call.
    pub running: u32,
    /// Waiting requests after the call, with those whose KV is being loaded (rule D6).
    pub waiting: u32,
    /// Free KV blocks after the call; cached blocks that nobody uses count as free.
    pub free_blocks: u32,
}

impl StepPlan {
    /// Empties the plan, keeping its memory.
    pub fn clear(&mut self) {
        self.grants.clear();
        self.steady = 0;
        self.entered.clear();
        self.left.clear();
        self.admitted.clear();
        self.preempted.clear();
        self.loads.clear();
        self.shape.clear();
        (self.running, self.waiting, self.free_blocks) = (0, 0, 0);
    }

    /// Nothing is computed.
    pub fn is_empty(&self) -> bool {
        self.grants.is_empty() && self.steady == 0
    }

    /// Its commit changes nothing but the number of tokens of the steady rows: nobody enters or ends.
    pub fn only_repeats(&self) -> bool {
        self.entered.is_empty() && self.grants.iter().all(|g| !g.samples)
    }
}

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// `max_tokens` or the model's length limit.
    Length,
    /// The EOS token.
    Stop,
}

/// What came out of a committed step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StepResult {
    /// Requests that were steady before this step; their token of this step is among the emitted ones.
    pub left: Vec<Left>,
    /// Output tokens by request, in batch order; rows without output and steady rows are absent.
    pub emitted: Vec<(RequestId, u32)>,
    /// Requests that ended, in batch order.
    pub finished: Vec<(RequestId, FinishReason)>,
    /// Free KV blocks after the commit.
    pub free_blocks: u32,
}

impl StepResult {
    /// Empties the result, keeping its memory.
    pub fn clear(&mut self) {
        self.left.clear();
        self.emitted.clear();
        self.finished.clear();
        self.free_blocks = 0;
    }
}

/// Why an engine refuses a request for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The prompt leaves no room for one output token (rule S83).
    #[error(
        "prompt of {input_tokens} tokens does not fit max_model_len {max_model_len} with one output token"
    )]
    PromptTooLong {
        /// Prompt tokens.
        input_tokens: u32,
        /// The engine's limit.
        max_model_len: u32,
    },
    /// The request can never hold all its tokens in the KV cache, so it would wait or be preempted forever.
    #[error("needs {needed} KV blocks at its full length, but the engine has {usable}")]
    LargerThanCache {
        /// Blocks at its full length.
        needed: u32,
        /// Blocks of the engine.
        usable: u32,
    },
    /// Chunked prefill is off and the prompt exceeds the token budget of a step (rule S23).
    #[error(
        "prompt of {input_tokens} tokens exceeds max_num_batched_tokens {budget} and chunked prefill is off"
    )]
    LargerThanBudget {
        /// Prompt tokens.
        input_tokens: u32,
        /// The step's budget.
        budget: u32,
    },
    /// The engine has no KV connector, so it serves whole requests only.
    #[error("this engine serves whole requests only: prefill and decode cannot be apart here")]
    WholeRequestsOnly,
}

/// Requests wait that an engine will never schedule, though it goes on calling its scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Livelock {
    /// The request that is let in and cannot be scheduled.
    pub head: RequestId,
    /// KV blocks that its tokens fill.
    pub needed_blocks: u32,
    /// KV blocks that are free.
    pub free_blocks: u32,
    /// Running requests that are hidden from the scheduler meanwhile, and so never end; 0 at a decode group that its
    /// loaded prompts block (rule D12 switched off).
    pub hidden: u32,
    /// Waiting requests, the head included.
    pub waiting: u32,
}

/// The engine of a configuration. At one that is to leap, rows that only repeat are not listed (see
/// [`StepPlan::steady`]), and `lists_contexts` says whether the batch's shape still has each one's context. An engine
/// with pipeline stages never leaps: its batches take turns, so that none repeats the one before (rule S66).
pub fn build(config: &VllmConfig, leaps: bool, lists_contexts: bool) -> Box<dyn Engine> {
    let mut engine = VllmEngine::new(config.clone());
    if leaps && config.pipeline_parallel_size <= 1 {
        engine = engine.with_steady_rows(lists_contexts);
    }
    if config.scheduler_cls.is_neuron() {
        Box::new(NeuronEngine::around(engine))
    } else {
        Box::new(engine)
    }
}

/// An inference engine.
pub trait Engine: std::fmt::Debug + Send {
    /// Puts a request in the waiting queue.
    ///
    /// # Errors
    /// [`Refusal`] when it could never be served.
    fn submit(&mut self, id: RequestId, request: &TraceRequest) -> Result<(), Refusal>;

    /// Puts one leg of a request in the waiting queue.
    ///
    /// # Errors
    /// [`Refusal`] when it could never be served; [`Refusal::WholeRequestsOnly`] from an engine without transfers.
    fn submit_leg(&mut self, id: RequestId, request: &TraceRequest, leg: Leg) -> Result<(), Refusal> {
        match leg {
            Leg::Whole => self.submit(id, request),
            Leg::Prefill | Leg::Decode => Err(Refusal::WholeRequestsOnly),
        }
    }

    /// A prompt's KV has arrived. Its request can be scheduled in the next plan (rule D8), and its blocks are found in
    /// the prefix cache from now on (rule D9). False when the request is not being loaded.
    fn load_done(&mut self, id: RequestId) -> bool {
        let _ = id;
        false
    }

    /// A transfer failed, and the engine recomputes (rule D13, policy "recompute"; under "fail" the caller aborts): of
    /// its prompt's tokens the first `valid_tokens` are there, which are cut back to whole blocks, and the rest is
    /// prefilled here. False when the request is not being loaded.
    fn load_failed(&mut self, id: RequestId, valid_tokens: u32) -> bool {
        let _ = (id, valid_tokens);
        false
    }

    /// Frees the blocks of a prefill leg that has ended: they were read, or the lease ran out (rules D3, D14). False
    /// when the engine holds no such leg.
    fn release_held(&mut self, id: RequestId) -> bool {
        let _ = id;
        false
    }

    /// KV blocks of prefill legs that have ended; one that several hold counts for each.
    fn held_blocks(&self) -> u32 {
        0
    }

    /// What can be seen from outside now.
    fn gauges(&self) -> Gauges;

    /// Forgets the content of every cached block that nobody uses (rules K12, K17).
    fn flush_cache(&mut self);

    /// Full blocks whose content the prefix cache could still give to a request. Costs by the blocks: not for every step.
    fn cached_blocks(&self) -> u32;

    /// Tokens of a request's prompt that the prefix cache holds now (rules K31, K32). Nothing that can be observed
    /// changes.
    fn cached_tokens(&mut self, request: &TraceRequest, id: RequestId) -> u32;

    /// Unfinished requests exist and no call of the scheduler can do anything for them before a transfer ends or
    /// something else happens to the engine from outside: all are being loaded, or wait for blocks that these hold
    /// (rules S58, D10).
    fn is_loading_only(&self) -> bool {
        false
    }

    /// One call of the scheduler, written into `plan` (cleared first).
    fn plan(&mut self, plan: &mut StepPlan);

    /// Whether the plans from now on leave prompts for later: those of ranks that step together, between the steps that are
    /// meant for prompts (rule S73). Engines without such intervals leave none.
    fn throttle_prefills(&mut self, throttled: bool) {
        let _ = throttled;
    }

    /// Takes in the outcome of a planned batch, written into `result` (cleared first). Plans are committed in
    /// the order in which they were made.
    fn commit(&mut self, plan: &StepPlan, result: &mut StepResult);

    /// Ends a request that its client has given up, wherever it stands, and frees what it holds; output under way is
    /// dropped (rule S46). Of a prefill leg that has ended it frees the blocks. False when the engine does not hold it.
    fn abort(&mut self, id: RequestId) -> bool;

    /// Waiting or running requests exist.
    fn has_unfinished(&self) -> bool;

    /// A call of the scheduler would do something: unfinished requests, or finished ones that the next call
    /// flushes (rule S52).
    fn wants_schedule(&self) -> bool;

    /// Batches that may be under way at once: one a pipeline stage (rule S66), and one more with asynchronous
    /// scheduling (rules S51, S56).
    fn queue_depth(&self) -> usize;

    /// How many further plans, at most, would be the last one with every context longer by its row's tokens, if
    /// nothing arrives: nobody is admitted, preempted, or ends, and batches under way only repeat
    /// ([`StepPlan::only_repeats`]). 0 when that is not known.
    fn repeats(&self) -> u32 {
        0
    }

    /// Writes the free KV blocks after each of the next `most` repeated plans into `free` (cleared first), as far as
    /// there are blocks enough. `most` is at most [`Engine::repeats`].
    fn foresee(&self, most: u32, free: &mut Vec<u32>) {
        let _ = most;
        free.clear();
    }

    /// Takes `plans` repeated plans at once, and as many commits of the oldest batches under way. At most as many as
    /// [`Engine::foresee`] told.
    fn leap(&mut self, plans: u32) {
        debug_assert!(plans == 0, "an engine that foresees nothing cannot leap");
    }

    /// Why the last plan was empty and all further ones will be, though requests are unfinished; `None` while that is
    /// not so.
    fn livelock(&self) -> Option<Livelock> {
        None
    }

    /// Ends the steadiness of every request, into `left`: what they got is told, though the run is cut off here.
    fn list_all(&mut self, left: &mut Vec<Left>) {
        let _ = left;
    }
}
