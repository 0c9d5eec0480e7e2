//! The knobs of one vLLM engine, by their vLLM names.

use super::version::Behaviour;
use crate::engine::Refusal;
use crate::workload::trace::TraceRequest;

/// vLLM's interval of [`VllmConfig::dp_sync_interval`]; before 0.32 there is no other.
pub const DP_SYNC_INTERVAL: u32 = 32;

/// Order of the waiting queue and choice of preemption victims (rules S20, S30).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// By (priority, arrival, id); smaller first.
    Priority,
}

/// The scheduler that runs: vLLM's own, or one that a platform plugin puts in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchedulerClass {
    /// vLLM's own.
    #[default]
    Vllm,
    /// `ContinuousBatchingNeuronScheduler` of the AWS Neuron plugin 0.2.0 (rules N10 to N14): one prompt a step, whole,
    /// and no decode beside it.
    NeuronContinuousBatching,
    /// The scheduler of the native Neuron plugin 0.24 (rules N40, N41): the same, with long prompts in segments.
    NeuronSegmented,
}

impl SchedulerClass {
    /// One of the Neuron plugins'.
    pub const fn is_neuron(self) -> bool {
        !matches!(self, Self::Vllm)
    }
}

/// One engine's resolved configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct VllmConfig {
    /// Which release's rules apply.
    pub behaviour: &'static Behaviour,
    /// Whose scheduler.
    pub scheduler_cls: SchedulerClass,
    /// Most running requests.
    pub max_num_seqs: u32,
    /// Tokens of a step (the input budget of rule S2).
    pub max_num_batched_tokens: u32,
    /// Token budget if it differs from `max_num_batched_tokens` (rule S2).
    pub max_num_scheduled_tokens: Option<u32>,
    /// Most requests that may be active, at most `max_num_seqs` (rule S21).
    pub max_num_active_seqs: Option<u32>,
    /// Longest prompt plus output.
    pub max_model_len: u32,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// KV blocks, the null block included (rule K10).
    pub num_gpu_blocks: u32,
    /// Reuse of full blocks with equal content.
    pub enable_prefix_caching: bool,
    /// Prompts may be computed in pieces.
    pub enable_chunked_prefill: bool,
    /// Cap on the tokens of a request in one step; 0 = off (rule S12).
    pub long_prefill_token_threshold: u32,
    /// Queue order.
    pub policy: Policy,
    /// One step is scheduled ahead of the device (rule S51).
    pub async_scheduling: bool,
    /// The whole prompt must fit at admission (rule K21).
    pub scheduler_reserve_full_isl: bool,
    /// Share of the blocks kept free at admission (rule K23).
    pub watermark: f64,
    /// The threshold is raised to at least the token budget divided by the number of requests (rule S12).
    pub adaptive_long_prefill_threshold: bool,
    /// Drafts per decode (rule S60); 0 = no speculation.
    pub num_speculative_tokens: u32,
    /// Drafts by the number of requests scheduled in a step, for the next one (rule S64): (most requests, drafts)
    /// in rising order; beyond the last entry, and where it is empty, `num_speculative_tokens`.
    pub dynamic_speculation: Vec<(u32, u32)>,
    /// Slots reserved past the scheduled tokens (rule S17).
    pub num_lookahead_tokens: u32,
    /// Extra input-budget slots a scheduled request takes (rule S2).
    pub draft_slots: u32,
    /// EAGLE-type drafter: prefix hits lose their last block (rules S65, K33).
    pub eagle: bool,
    /// Stages of the pipeline, each with a part of the layers (rule S66).
    pub pipeline_parallel_size: u32,
    /// Steps between two looks of ranks that step together at whether anybody has work left (rule S71).
    pub dp_sync_interval: u32,
    /// Ranks that step together compute prompts in every so many steps only, where they can (rule S73); 1 = in all.
    pub prefill_schedule_interval: u32,
    /// A transfer of KV starts only where the requests under way keep the blocks that they still need (rule D12);
    /// `None` is as the release has it. Off, loads may block each other for ever.
    pub reserve_for_loads: Option<bool>,
}

impl VllmConfig {
    /// A configuration with vLLM's defaults for everything but the sizes.
    pub fn new(behaviour: &'static Behaviour) -> Self {
        Self {
            behaviour,
            scheduler_cls: SchedulerClass::Vllm,
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            max_num_scheduled_tokens: None,
            max_num_active_seqs: None,
            max_model_len: 8192,
            block_size: 16,
            num_gpu_blocks: 8193,
            enable_prefix_caching: true,
            enable_chunked_prefill: true,
            long_prefill_token_threshold: 0,
            policy: Policy::Fcfs,
            async_scheduling: behaviour.async_by_default,
            scheduler_reserve_full_isl: true,
            watermark: 0.0,
            adaptive_long_prefill_threshold: false,
            num_speculative_tokens: 0,
            dynamic_speculation: Vec::new(),
            num_lookahead_tokens: 0,
            draft_slots: 0,
            eagle: false,
            pipeline_parallel_size: 1,
            dp_sync_interval: DP_SYNC_INTERVAL,
            prefill_schedule_interval: 1,
            reserve_for_loads: None,
        }
    }

    /// Scheduling runs ahead of the device. With pipeline stages only some releases can (rule S56).
    pub fn schedules_ahead(&self) -> bool {
        self.async_scheduling && (self.pipeline_parallel_size <= 1 || self.behaviour.async_with_pipeline)
    }

    /// Batches under way at once (rules S51, S56, S66).
    pub fn queue_depth(&self) -> u32 {
        self.pipeline_parallel_size.max(1) + u32::from(self.schedules_ahead())
    }

    /// A decode takes one token in every step: there is no speculation, and no pipeline whose batches take turns
    /// (rule S66).
    pub fn decodes_repeat(&self) -> bool {
        let speculates = self.num_speculative_tokens > 0 || !self.dynamic_speculation.is_empty();
        let looks_ahead = self.draft_slots > 0 || self.num_lookahead_tokens > 0;
        !speculates && !looks_ahead && self.pipeline_parallel_size <= 1
    }

    /// After `steps` steps of a wave, its ranks ask each other whether anybody has work left (rule S71).
    pub fn syncs_after(&self, steps: u64) -> bool {
        let first = self.behaviour.has_dp_sync_interval && steps == 1;
        first || steps.is_multiple_of(u64::from(self.dp_sync_interval.max(1)))
    }

    /// Whether prompts wait for a later step when `steps` steps of a wave have been taken (rule S73).
    pub fn throttles_prefills_after(&self, steps: u64) -> bool {
        !steps.is_multiple_of(u64::from(self.prefill_schedule_interval.max(1)))
    }

    /// Rule D12 is in force.
    pub fn reserves_for_loads(&self) -> bool {
        self.reserve_for_loads
            .unwrap_or(self.behaviour.reserves_for_loads)
    }

    /// KV blocks that requests can use (rule K10).
    pub fn usable_blocks(&self) -> u32 {
        self.num_gpu_blocks.saturating_sub(1)
    }

    /// Drafts that follow a step of `scheduled` requests (rule S64).
    pub fn drafts_after(&self, scheduled: usize) -> u32 {
        self.dynamic_speculation
            .iter()
            .find(|(most, _)| scheduled as u64 <= u64::from(*most))
            .map_or(self.num_speculative_tokens, |(_, drafts)| *drafts)
    }

    /// Why a request could never be served by an engine of this configuration, however long it waited.
    ///
    /// A request that ends early by EOS is judged by its real length: vLLM takes it, whatever its cap.
    pub fn refusal(&self, request: &TraceRequest) -> Option<Refusal> {
        let input_tokens = request.input_tokens;
        if input_tokens >= self.max_model_len {
            return Some(Refusal::PromptTooLong {
                input_tokens,
                max_model_len: self.max_model_len,
            });
        }
        // The last output token's KV is never computed.
        let longest = (u64::from(input_tokens)
            + u64::from(request.output_tokens()).saturating_sub(1)
            + u64::from(self.num_lookahead_tokens))
        .min(u64::from(self.max_model_len));
        let needed = u32::try_from(longest.div_ceil(u64::from(self.block_size))).unwrap_or(u32::MAX);
        if needed > self.usable_blocks() {
            return Some(Refusal::LargerThanCache {
                needed,
                usable: self.usable_blocks(),
            });
        }
        let budget = self.max_num_batched_tokens;
        let one_piece = !self.enable_chunked_prefill && self.long_prefill_token_threshold == 0;
        (one_piece && input_tokens > budget).then_some(Refusal::LargerThanBudget { input_tokens, budget })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SimTime;

    fn engine(blocks: u32) -> VllmConfig {
        let mut e = VllmConfig::new(Behaviour::of("0.32.0").unwrap());
        e.num_gpu_blocks = blocks;
        e.max_model_len = 1000;
        e
    }

    /// 4 usable blocks of 16 hold 64 tokens. A prompt of 33 with 32 outputs computes KV of 64 tokens (the last
    /// output's is never computed) and fits; one output more does not.
    #[test]
    fn the_largest_request_that_fits_is_accepted() {
        let fits = TraceRequest::plain(SimTime::ZERO, 33, 32);
        assert_eq!(engine(5).refusal(&fits), None);
        let over = TraceRequest::plain(SimTime::ZERO, 33, 33);
        assert_eq!(
            engine(5).refusal(&over),
            Some(Refusal::LargerThanCache { needed: 5, usable: 4 })
        );
    }

    #[test]
    fn a_prompt_must_leave_room_for_one_token() {
        assert_eq!(
            engine(5000).refusal(&TraceRequest::plain(SimTime::ZERO, 999, 50)),
            None
        );
        let long = engine(5000).refusal(&TraceRequest::plain(SimTime::ZERO, 1000, 1));
        assert_eq!(
            long,
            Some(Refusal::PromptTooLong {
                input_tokens: 1000,
                max_model_len: 1000
            })
        );
    }

    #[test]
    fn without_chunking_a_prompt_must_fit_the_budget() {
        let mut e = engine(5000);
        e.enable_chunked_prefill = false;
        e.max_num_batched_tokens = 512;
        assert!(e.refusal(&TraceRequest::plain(SimTime::ZERO, 512, 5)).is_none());
        assert!(e.refusal(&TraceRequest::plain(SimTime::ZERO, 513, 5)).is_some());
    }
}
