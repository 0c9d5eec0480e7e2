//! What changed between vLLM releases, as named behaviour sets (vllm-semantics.md, section 0.1).
//!
//! The scheduler asks these flags and never compares version numbers itself.

use crate::input::nearest;

/// Padding of an admission that needs exactly one token to 1 + K tokens, to keep a batch of decodes uniform for
/// its captured graph (rule S27). It needs speculation, and a step in which no running request is in the middle
/// of a prompt. Where 1 + K tokens exceed the budget, admission ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionPadding {
    /// None.
    Never,
    /// Only while a running request was scheduled in this step; admission ends where 1 + K tokens would pass
    /// `max_model_len`.
    BesideDecodes,
    /// Also when the request comes with cached tokens; where 1 + K tokens and the next one would pass
    /// `max_model_len` it is admitted without padding.
    BesideDecodesOrHits,
}

/// How one vLLM release schedules. Each flag names a behaviour that at least one inspected release lacks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Behaviour {
    /// The release, as vLLM prints it.
    pub version: &'static str,
    /// Asynchronous scheduling is on unless it is switched off (rule S56).
    pub async_by_default: bool,
    /// With chunked prefill off, a prompt over the remaining budget is skipped instead of ending the
    /// admission (rule S23).
    pub skips_oversized_prompt: bool,
    /// A priority victim already scheduled in this call gives its budget back, and the loop index follows
    /// it (rule S31).
    pub withdrawn_grant_returns_budget: bool,
    /// The loop index also follows a priority victim that stood earlier without a grant (rule S31).
    pub any_earlier_victim_shifts_index: bool,
    /// Asynchronous scheduling does not schedule past `max_tokens` (rule S14).
    pub async_stops_at_max_tokens: bool,
    /// `scheduler_reserve_full_isl` exists: the whole prompt must fit at admission (rule K21).
    pub has_full_prompt_gate: bool,
    /// `watermark` exists (rule K23).
    pub has_watermark: bool,
    /// Freed blocks without a hash are reused first (rule K14).
    pub unhashed_blocks_first: bool,
    /// The long-prefill threshold is ignored while only one request exists (rule S12).
    pub threshold_exempts_lone_request: bool,
    /// `max_num_active_seqs` exists (rule S21).
    pub has_max_num_active_seqs: bool,
    /// When a waiting request that needs one token is padded with dummy drafts (rule S27).
    pub admission_padding: AdmissionPadding,
    /// Look-ahead slots are allocated at admission already (rule S17).
    pub lookahead_at_admission: bool,
    /// A transfer of KV starts only where requests under way keep the blocks that they still need (rule D12,
    /// vllm#44560). The specification states no release, so only the newest set has it.
    pub reserves_for_loads: bool,
    /// Asynchronous scheduling works with pipeline stages, too: the V2 model runner (rules S15, S56). The specification
    /// states no release, so only the newest set has it; in the others a pipeline is scheduled synchronously.
    pub async_with_pipeline: bool,
    /// `prefill_schedule_interval` exists (rule S73).
    pub has_prefill_schedule_interval: bool,
    /// `dp_sync_interval` exists, and ranks that step together look after the first step of a wave, too, whether anybody
    /// has work left (rule S71). Before, they look every 32 steps.
    pub has_dp_sync_interval: bool,
    /// Default of `gpu_memory_utilization`.
    pub gpu_memory_utilization: f64,
}

const V0_11_0: Behaviour = Behaviour {
    version: "0.11.0",
    async_by_default: false,
    skips_oversized_prompt: true,
    withdrawn_grant_returns_budget: false,
    any_earlier_victim_shifts_index: false,
    async_stops_at_max_tokens: false,
    has_full_prompt_gate: false,
    has_watermark: false,
    unhashed_blocks_first: false,
    threshold_exempts_lone_request: false,
    has_max_num_active_seqs: false,
    admission_padding: AdmissionPadding::Never,
    lookahead_at_admission: false,
    reserves_for_loads: false,
    async_with_pipeline: false,
    has_prefill_schedule_interval: false,
    has_dp_sync_interval: false,
    gpu_memory_utilization: 0.9,
};
const V0_13_0: Behaviour = Behaviour {
    version: "0.13.0",
    skips_oversized_prompt: false,
    withdrawn_grant_returns_budget: true,
    async_stops_at_max_tokens: true,
    ..V0_11_0
};
const V0_15_1: Behaviour = Behaviour {
    version: "0.15.1",
    async_by_default: true,
    ..V0_13_0
};
const V0_17_1: Behaviour = Behaviour {
    version: "0.17.1",
    ..V0_15_1
};
const V0_19_1: Behaviour = Behaviour {
    version: "0.19.1",
    has_full_prompt_gate: true,
    ..V0_17_1
};
const V0_22_1: Behaviour = Behaviour {
    version: "0.22.1",
    gpu_memory_utilization: 0.92,
    ..V0_19_1
};
const V0_25_1: Behaviour = Behaviour {
    version: "0.25.1",
    admission_padding: AdmissionPadding::BesideDecodes,
    lookahead_at_admission: true,
    has_watermark: true,
    unhashed_blocks_first: true,
    has_prefill_schedule_interval: true,
    ..V0_22_1
};
const V0_28_0: Behaviour = Behaviour {
    version: "0.28.0",
    ..V0_25_1
};
const V0_32_0: Behaviour = Behaviour {
    version: "0.32.0",
    admission_padding: AdmissionPadding::BesideDecodesOrHits,
    any_earlier_victim_shifts_index: true,
    threshold_exempts_lone_request: true,
    has_max_num_active_seqs: true,
    reserves_for_loads: true,
    async_with_pipeline: true,
    has_dp_sync_interval: true,
    ..V0_28_0
};

/// Every release whose behaviour was inspected, oldest first.
pub static VERSIONS: [Behaviour; 9] = [
    V0_11_0, V0_13_0, V0_15_1, V0_17_1, V0_19_1, V0_22_1, V0_25_1, V0_28_0, V0_32_0,
];

/// A vLLM version without a behaviour set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("vLLM {given} has no behaviour set; known: {known}{hint}")]
pub struct UnknownVersion {
    /// What was asked for.
    pub given: String,
    known: String,
    hint: String,
}

impl Behaviour {
    /// The behaviour set of a release.
    ///
    /// # Errors
    /// [`UnknownVersion`], which lists the known ones.
    pub fn of(version: &str) -> Result<&'static Self, UnknownVersion> {
        VERSIONS
            .iter()
            .find(|b| b.version == version)
            .ok_or_else(|| UnknownVersion {
                given: version.to_owned(),
                known: VERSIONS.map(|b| b.version).join(", "),
                hint: nearest(version, VERSIONS.iter().map(|b| b.version))
                    .map_or(String::new(), |n| format!("; did you mean '{n}'?")),
            })
    }
}
