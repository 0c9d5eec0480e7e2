//! `cluster.gateway`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ByTenant;
use crate::scenario::quantity::{Finite, Span};

/// Admission, queue, retries.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    /// Order of its queue.
    pub fairness: Option<Fairness>,
    /// Requests behind the gateway at one time; left out, any number.
    pub max_in_flight: Option<u32>,
    /// Requests in its queue; 0: what does not pass is rejected. Left out, any number.
    pub max_queued_requests: Option<u32>,
    /// Input tokens in its queue, all requests together; left out, any number.
    pub max_queued_tokens: Option<u64>,
    /// Limits of rate by tenant.
    pub tenant_rates: Option<ByTenant<TenantRate>>,
    /// How long clients wait.
    pub timeouts: Option<ClientTimeouts>,
    /// What is tried again.
    pub retry: Option<Retry>,
    /// What is sent twice.
    pub hedge: Option<Hedge>,
    /// From a client's giving up to the engine's hearing of it.
    pub cancel_latency: Option<Span>,
}

/// Order of the gateway's queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fairness {
    /// Who is next.
    pub policy: Option<FairnessWord>,
    /// vtc, drr: weights by tenant; those left out weigh 1.
    pub weights: Option<ByTenant<Finite>>,
    /// vtc: what an input token counts.
    pub input_weight: Option<Finite>,
    /// vtc: what an output token counts.
    pub output_weight: Option<Finite>,
    /// drr: input tokens that a tenant of weight 1 may send on a visit.
    pub quantum_tokens: Option<u64>,
}

/// Who is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FairnessWord {
    /// First come, first served.
    Fcfs,
    /// The smallest priority value, then the older.
    Priority,
    /// The tenant with the smallest virtual token counter.
    Vtc,
    /// Deficit round-robin over input tokens.
    Drr,
}

/// A limit of rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantRate {
    /// Requests a second in the long run.
    pub rate: Finite,
    /// Requests that may come at once after a pause; left out, 1.
    pub burst: Option<u32>,
}

/// How long clients wait. What is left out is for ever.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientTimeouts {
    /// Until the first token: of each attempt where retry.on has timed-out, else from the first sending on.
    pub ttft: Option<Span>,
    /// Until the last token, from the first sending on and over all attempts: it ends the request and is never tried
    /// again, as a gRPC deadline and the timeout of a route in Envoy.
    pub e2e: Option<Span>,
    /// Until the request has left the gateway's queue, each time it is in it.
    pub queue: Option<Span>,
}

/// What is tried again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Attempts of one request, the first included.
    pub attempts: Option<u32>,
    /// Wait before the first retry; doubles with each one after it.
    pub backoff: Option<Span>,
    /// The longest wait.
    pub backoff_cap: Option<Span>,
    /// How much of a wait is left to chance, 0 to 1.
    pub jitter: Option<Finite>,
    /// Retries for each first attempt, over all requests; left out, no budget.
    pub budget_ratio: Option<Finite>,
    /// Retries a second that are allowed beyond the ratio.
    pub min_retries_per_s: Option<Finite>,
    /// The most retries that first attempts may save up.
    pub budget_max: Option<u32>,
    /// What is worth another attempt; left out, what failed.
    pub on: Option<Vec<RetryCause>>,
}

/// How an attempt went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RetryCause {
    /// Its group died or broke the connection.
    Failed,
    /// Its client waited too long for a first token or in the queue (timeouts.ttft, timeouts.queue).
    TimedOut,
    /// The gateway or the engine turned it away.
    Rejected,
}

/// What is sent twice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hedge {
    /// How long the last copy may be without a first token before the next one is sent.
    pub after: Span,
    /// Copies beside the original; left out, 1.
    pub max_extra: Option<u32>,
    /// Copies for each request, over all requests; left out, no budget.
    pub budget_ratio: Option<Finite>,
}
