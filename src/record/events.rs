//! What happened in a run: raw events from which every metric is derived, simulated or imported alike.

use super::full::Busy;
use super::segments::Segments;
use crate::engine::{FinishReason, Livelock};
use crate::units::SimTime;

/// How an offered request ended. Each has exactly one terminal state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// All its output arrived.
    Completed,
    /// Refused: it could never be served by this configuration.
    Rejected,
    /// Sent, and still on its way, waiting or running when the run was cut off.
    Unfinished,
    /// What served it broke off, and nothing else took it over.
    Failed,
    /// Its client, or the gateway on its behalf, waited no longer.
    #[serde(rename = "timed-out")]
    TimedOut,
    /// Offered, but not sent when the run was cut off: it has no `t_send`.
    Unsent,
    /// All its output arrived, after its load generator had counted all that it wanted to: it loads the system and
    /// is in no figure about requests.
    Surplus,
}

impl Status {
    /// All its output arrived, counted or not.
    pub const fn is_served(self) -> bool {
        matches!(self, Self::Completed | Self::Surplus)
    }

    /// It was in the system at some time: its client sent it, and the engine did not refuse it.
    pub const fn was_in_system(self) -> bool {
        !matches!(self, Self::Rejected | Self::Unsent)
    }
}

/// When a request's output tokens became visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenLog {
    /// By the replica's steps (simulated runs).
    Segments(Segments),
    /// One instant a token (imported runs).
    Times(Vec<SimTime>),
}

/// One offered request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRecord {
    /// When it was due (`t_scheduled`).
    pub scheduled: SimTime,
    /// When the client sent it (`t_send`); equals `scheduled` for an unlimited open-loop client. Of an
    /// [`Status::Unsent`] request it says nothing and is `scheduled`: see [`RequestRecord::sent_at`].
    pub sent: SimTime,
    /// When the engine took it into its queue (`t_enqueued`).
    pub enqueued: Option<SimTime>,
    /// Start of the first step that computed some of it (`t_prefill_start`).
    pub first_scheduled: Option<SimTime>,
    /// First output token (`t_first_token`); none for a client that receives its answer whole.
    pub first_token: Option<SimTime>,
    /// Last output token (`t_last_token`).
    pub last_token: Option<SimTime>,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Prompt tokens found in the prefix cache at the first admission.
    pub cached_tokens: u32,
    /// Output tokens produced.
    pub output_tokens: u32,
    /// Times it was preempted.
    pub preemptions: u32,
    /// How it ended.
    pub status: Status,
    /// Why it ended, when completed.
    pub finish_reason: Option<FinishReason>,
    /// Replica that served it.
    pub replica: u32,
    /// Scheduling priority.
    pub priority: i32,
    /// Whose it is: number of the tenant; 0 where that was not kept.
    pub tenant: u32,
    /// When its tokens came.
    pub tokens: TokenLog,
}

impl RequestRecord {
    /// When the client sent it; `None` of one that was never sent.
    pub fn sent_at(&self) -> Option<SimTime> {
        (self.status != Status::Unsent).then_some(self.sent)
    }
}

/// A replica whose engine schedules nothing any more, though requests wait (rule N14, or D12 switched off).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LivelockSince {
    /// When it was first seen: the call of the scheduler whose step is empty.
    pub at: SimTime,
    /// Who waits for what, at the last call.
    pub state: Livelock,
}

/// One replica's steps, gauges and totals.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicaRecord {
    /// End of every step that computed something, in order.
    pub step_ends: Vec<SimTime>,
    /// Start of the same steps.
    pub step_starts: Vec<SimTime>,
    /// Running requests after each step's schedule.
    pub running: Vec<u32>,
    /// Waiting requests after each step's schedule.
    pub waiting: Vec<u32>,
    /// Free KV blocks after each step's schedule.
    pub free_blocks: Vec<u32>,
    /// Usable KV blocks.
    pub usable_blocks: u32,
    /// Free KV blocks after the last commit; all of them when every request has ended.
    pub free_blocks_at_end: u32,
    /// Preemptions in all.
    pub preemptions: u64,
    /// Its engine came to a livelock and stayed in it.
    pub livelock: Option<LivelockSince>,
    /// How long its device computed.
    pub busy: Busy,
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunRecord {
    /// Offered requests in trace order.
    pub requests: Vec<RequestRecord>,
    /// Replicas by number.
    pub replicas: Vec<ReplicaRecord>,
    /// When the last event happened.
    pub end: SimTime,
}

impl RunRecord {
    /// The instants of a request's output tokens, in order.
    pub fn token_times<'a>(&'a self, request: &'a RequestRecord) -> Box<dyn Iterator<Item = SimTime> + 'a> {
        match &request.tokens {
            TokenLog::Times(times) => Box::new(times.iter().copied()),
            TokenLog::Segments(segments) => {
                let ends = &self.replicas[request.replica as usize].step_ends;
                Box::new(segments.iter().flat_map(move |s| {
                    let steps = s.first_step as usize..(s.first_step + s.steps) as usize;
                    ends[steps]
                        .iter()
                        .flat_map(move |&t| std::iter::repeat_n(t, s.tokens_per_step as usize))
                }))
            }
        }
    }
}
