//! Requests in the system, from their sending to the moment the recorder has taken them.

use std::collections::VecDeque;

use crate::engine::{Leg, RequestId};
use crate::record::{Recorder, RequestRecord, Segments, Status, TokenLog};
use crate::units::SimTime;
use crate::workload::trace::TraceRequest;

/// One request, its record so far, and what the recorder keeps beside it.
#[derive(Debug)]
pub(super) struct Live<K> {
    /// Its id in the trace.
    pub id: RequestId,
    pub asked: TraceRequest,
    /// The part of it that is asked of its engine.
    pub leg: Leg,
    pub record: RequestRecord,
    pub kept: K,
    /// The replica's step that gave it its last tokens, told singly, and how many.
    pub last_chunk: Option<(u64, u32)>,
    /// Its gaps count in what the recorder is told of steps.
    pub is_measured: bool,
    /// It gets a token in every step without being told of.
    pub is_steady: bool,
    pub has_ended: bool,
    /// The modelled client that sent it, and when that saw each token so far.
    pub client: u32,
    pub seen: Vec<SimTime>,
}

/// Tokens that a request got in a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Emitted {
    pub request: RequestId,
    pub tokens: u32,
    /// Tokens that it had before.
    pub before: u32,
}

impl<K> Live<K> {
    /// Output tokens that it had before those of its last chunk.
    pub fn tokens_before_last(&self) -> u32 {
        let last = self.last_chunk.map_or(0, |(_, tokens)| tokens);
        self.record.output_tokens.saturating_sub(last)
    }

    /// It got tokens in the step just before this one.
    pub fn had_tokens_before(&self, step: u64) -> bool {
        self.last_chunk.is_some_and(|(last, _)| last + 1 == step)
    }
}

/// A window over the requests in the order of their sending. Places count from 0 over the whole run; those before the
/// oldest request that is not finished are gone.
#[derive(Debug)]
pub(super) struct LiveRequests<K> {
    first: u32,
    window: VecDeque<Live<K>>,
    /// Tokens told since they were last taken, if anyone wants to know.
    emitted: Option<Vec<Emitted>>,
}

impl<K: Default> LiveRequests<K> {
    pub fn new() -> Self {
        Self {
            first: 0,
            window: VecDeque::new(),
            emitted: None,
        }
    }

    /// Keeps what is told of tokens, for [`LiveRequests::take_emitted`].
    pub fn watch_tokens(&mut self) {
        self.emitted = Some(Vec::new());
    }

    /// A request just got its last chunk.
    pub fn note_emitted(&mut self, request: RequestId, tokens: u32) {
        if self.emitted.is_some() {
            let before = self.get(request).tokens_before_last();
            let emitted = Emitted {
                request,
                tokens,
                before,
            };
            self.emitted.iter_mut().for_each(|list| list.push(emitted));
        }
    }

    /// The chunks since they were last taken, in their order.
    pub fn take_emitted(&mut self) -> Vec<Emitted> {
        self.emitted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Every request that the recorder has not been told of.
    pub fn each_mut(&mut self) -> impl Iterator<Item = &mut Live<K>> {
        self.window.iter_mut()
    }

    /// Takes in the next request; returns its place.
    pub fn send(&mut self, id: RequestId, asked: TraceRequest, at: SimTime, is_measured: bool) -> u32 {
        let record = RequestRecord {
            sent: at,
            scheduled: at,
            ..offered(&asked)
        };
        self.window.push_back(Live {
            id,
            asked,
            leg: Leg::Whole,
            record,
            kept: K::default(),
            last_chunk: None,
            is_measured,
            is_steady: false,
            has_ended: false,
            client: 0,
            seen: Vec::new(),
        });
        self.first + self.window.len() as u32 - 1
    }

    pub fn get(&mut self, place: RequestId) -> &mut Live<K> {
        &mut self.window[(place - self.first) as usize]
    }

    /// Tells the recorder of the ended requests that no unfinished one precedes.
    pub fn tell_ended(&mut self, recorder: &mut impl Recorder<Request = K>) {
        while self.window.front().is_some_and(|live| live.has_ended) {
            self.tell_first(recorder);
        }
    }

    /// The oldest request, if any.
    pub fn oldest(&self) -> Option<&Live<K>> {
        self.window.front()
    }

    /// Takes out the oldest request without telling of it.
    pub fn take_oldest(&mut self) -> Option<Live<K>> {
        let oldest = self.window.pop_front();
        self.first += u32::from(oldest.is_some());
        oldest
    }

    /// Tells the recorder of all that are left, ended or not. Returns how many had not ended.
    pub fn tell_all(&mut self, recorder: &mut impl Recorder<Request = K>) -> u32 {
        let unfinished = self.window.iter().filter(|live| !live.has_ended).count();
        while !self.window.is_empty() {
            self.tell_first(recorder);
        }
        unfinished as u32
    }

    fn tell_first(&mut self, recorder: &mut impl Recorder<Request = K>) {
        if let Some(live) = self.window.pop_front() {
            self.first += 1;
            recorder.ended(live.id, live.record, live.kept);
        }
    }
}

/// The record of a request that nothing has happened to: it is not even sent.
pub(super) fn offered(request: &TraceRequest) -> RequestRecord {
    RequestRecord {
        scheduled: request.arrival,
        sent: request.arrival,
        enqueued: None,
        first_scheduled: None,
        first_token: None,
        last_token: None,
        input_tokens: request.input_tokens,
        cached_tokens: 0,
        output_tokens: 0,
        preemptions: 0,
        status: Status::Unsent,
        finish_reason: None,
        replica: 0,
        priority: request.priority,
        tenant: request.tenant,
        tokens: TokenLog::Segments(Segments::new()),
    }
}
