//! A request as the scheduler sees it.

use crate::engine::{Leg, RequestId};
use crate::kv::{BlockTable, TokenStream};
use crate::units::SimTime;
use crate::workload::trace::TraceRequest;

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Running,
    /// Preempted and waiting again.
    Preempted,
    /// Its blocks are there, and the KV of its prompt comes (rule D6).
    Loading,
    /// It has come, all or a part of it; the request waits with its blocks (rules D8, D13).
    Ready,
    Finished,
}

#[derive(Debug)]
pub(super) struct Request {
    pub id: RequestId,
    pub state: State,
    pub priority: i32,
    pub arrival: SimTime,
    pub prompt: u32,
    pub max_tokens: u32,
    /// Output number of the EOS token; `u32::MAX` for none.
    pub eos_at: u32,
    /// Output tokens known by value.
    pub outputs: u32,
    /// Tokens scheduled so far, advanced before the device has run (rule S5).
    pub computed: u32,
    /// Outputs of steps under way, not known by value yet (rule S53).
    pub placeholders: u32,
    /// Drafts to be verified in the next decode.
    pub drafts: u32,
    /// Steps under way that hold a row of it.
    pub in_flight: u8,
    /// Those of them that will yield output.
    pub in_flight_samples: u8,
    /// Its last scheduled tokens did not reach its last known token.
    pub mid_prompt: bool,
    /// It was admitted before.
    pub admitted: bool,
    /// Place in the running list: admissions are numbered, and the list is in their order.
    pub order: u64,
    /// First plan of which it is a steady row (see `steady.rs`); 0 while it is none. What steady plans and commits did
    /// to it is not in the other fields until it leaves the steady set.
    pub steady_since: u64,
    /// As a steady row it may fill blocks that others could find in the prefix cache.
    pub shares_tail: bool,
    pub table: BlockTable,
    pub stream: TokenStream,
    pub leg: Leg,
    /// Its load has begun once; whatever becomes of it, there is no other (rule D11).
    pub load_spent: bool,
    /// Its prompt was loaded and is still there.
    pub loaded: bool,
    /// Tokens of its prompt that were in the prefix cache when its load began.
    pub local_hit: u32,
    /// It has ended and keeps its blocks (rule D3).
    pub held: bool,
    /// First plan that may schedule it again (rule S15).
    pub eligible_from: u64,
    accepted: Box<[u8]>,
    verifications: usize,
}

impl Request {
    /// A waiting request. `table` is an empty one whose memory is used again.
    pub fn new(id: RequestId, r: &TraceRequest, leg: Leg, table: BlockTable) -> Self {
        Self {
            id,
            state: State::Waiting,
            priority: r.priority,
            arrival: r.arrival,
            prompt: r.input_tokens,
            max_tokens: r.max_output_tokens,
            eos_at: r.eos_at.unwrap_or(u32::MAX),
            outputs: 0,
            computed: 0,
            placeholders: 0,
            drafts: 0,
            in_flight: 0,
            in_flight_samples: 0,
            mid_prompt: false,
            admitted: false,
            order: 0,
            steady_since: 0,
            shares_tail: false,
            table,
            stream: TokenStream::new(id, r.input_tokens, r.prefix),
            leg,
            load_spent: false,
            loaded: false,
            local_hit: 0,
            held: false,
            eligible_from: 0,
            accepted: r.accepted_drafts.as_slice().into(),
            verifications: 0,
        }
    }

    /// Prompt and outputs known by value.
    pub fn known(&self) -> u32 {
        self.prompt + self.outputs
    }

    /// How many of `drafts` the next verification accepts.
    pub fn accept(&mut self, drafts: u32) -> u32 {
        let Some(&accepted) = self.accepted.get(self.verifications % self.accepted.len().max(1)) else {
            return 0;
        };
        self.verifications += 1;
        u32::from(accepted).min(drafts)
    }
}
