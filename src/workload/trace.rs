//! The trace: one integer row a request, sampled once before the run.

use crate::units::SimTime;

/// What a request's tokens share with other requests (rule K30, contract section 4).
///
/// Token ids are never stored. Position `p` of a request belongs to the common stream of `group` when
/// `p < shared_tokens`, else to the request alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Requests of one group have equal tokens in their shared positions.
    pub group: u32,
    /// How many leading positions (prompt, then outputs) are shared; `u32::MAX` for a whole session, whose
    /// answers continue the stream.
    pub shared_tokens: u32,
    /// Outputs are a function of the prompt alone (greedy decoding, a scripted model): requests whose whole
    /// prompts are equal have equal outputs too.
    pub greedy_outputs: bool,
}

/// One request of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceRequest {
    /// Intended arrival from the start of the trace. For closed-loop and offline load it is ignored.
    pub arrival: SimTime,
    /// Prompt tokens, special tokens included; at least 1.
    pub input_tokens: u32,
    /// The cap sent with the request (`max_tokens`); at least 1.
    pub max_output_tokens: u32,
    /// The model ends by EOS at this output token, if that comes before the cap.
    pub eos_at: Option<u32>,
    /// What it shares with others.
    pub prefix: Option<Prefix>,
    /// Scheduling priority; smaller is served first (rule S20).
    pub priority: i32,
    /// Whose request it is: tenants are numbered from 0.
    pub tenant: u32,
    /// The conversation that it belongs to, for routers that keep one together.
    pub session: Option<u32>,
    /// Accepted drafts per verification, used cyclically (speculative decoding); empty = none accepted.
    pub accepted_drafts: Vec<u8>,
}

impl TraceRequest {
    /// A request with nothing special about it.
    pub const fn plain(arrival: SimTime, input_tokens: u32, output_tokens: u32) -> Self {
        Self {
            arrival,
            input_tokens,
            max_output_tokens: output_tokens,
            eos_at: None,
            prefix: None,
            priority: 0,
            tenant: 0,
            session: None,
            accepted_drafts: Vec::new(),
        }
    }

    /// Output tokens it produces if nothing else stops it.
    pub fn output_tokens(&self) -> u32 {
        self.eos_at
            .map_or(self.max_output_tokens, |e| e.min(self.max_output_tokens))
    }
}

/// Requests in arrival order; ties keep their order in the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// The rows. A request's id is its index here.
    pub requests: Vec<TraceRequest>,
}
