//! Requests as clients see them, and the attempts to serve them.

use std::collections::VecDeque;

use crate::cluster::link::TransferId;
use crate::engine::{Leg, Load, RequestId};
use crate::record::{JobRecord, Recorder, RequestRecord};
use crate::sim::live::{Live, LiveRequests, offered};
use crate::units::{SimDuration, SimTime};
use crate::workload::trace::TraceRequest;

/// A request's number in the order of sending.
pub(super) type JobNumber = u32;
/// An attempt's number in the order of their starts; the engines' name for it.
pub(super) type Place = u32;

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobState {
    /// Not sent yet.
    Due,
    /// In the gateway's queue.
    Queued,
    /// Attempts are under way.
    Active,
    /// It waits before it is tried again.
    BacksOff,
    /// It has its terminal state.
    Ended,
}

/// One offered request.
#[derive(Debug)]
pub(super) struct Job<K> {
    pub id: RequestId,
    pub asked: TraceRequest,
    pub state: JobState,
    /// What its client saw; of the attempt that served it in the end.
    pub record: RequestRecord,
    pub kept: K,
    /// Attempts under way that may answer it.
    pub places: Vec<Place>,
    /// Tokens that a broken attempt left it, to go on from.
    pub resumed_tokens: u32,
    pub hedges: u32,
    /// When its present wait at the gateway is too long.
    pub gives_up: Option<SimTime>,
    /// What the group that prefilled for it told.
    pub prefilled: Option<RequestRecord>,
    /// The group that is to decode it, if it was chosen first (rule D23).
    pub decode_group: Option<u32>,
    /// When its client gives up on the first token of the present try.
    pub first_token_due: Option<SimTime>,
    /// Prefills elsewhere are over for it: one has failed.
    pub prefill_locally: bool,
    pub told: JobRecord,
}

/// What is told of a request that nothing has happened to.
pub(super) fn offered_job(asked: &TraceRequest) -> JobRecord {
    JobRecord {
        tenant: asked.tenant,
        resumes: Some(0),
        ..JobRecord::default()
    }
}

/// Jobs in the order of sending. Those before the oldest that has not ended are gone.
#[derive(Debug)]
pub(super) struct Jobs<K> {
    first: JobNumber,
    window: VecDeque<Job<K>>,
    /// Jobs that have not ended, and those of them that have not been sent.
    pub open: u32,
    pub due: u32,
    /// Those that are gone, and what is kept of them.
    ids: Vec<RequestId>,
    told: Vec<JobRecord>,
}

impl<K: Default> Jobs<K> {
    pub fn new() -> Self {
        Self {
            first: 0,
            window: VecDeque::new(),
            open: 0,
            due: 0,
            ids: Vec::new(),
            told: Vec::new(),
        }
    }

    /// How many clients have sent.
    pub fn sent(&self) -> u64 {
        u64::from(self.first) + self.window.len() as u64 - u64::from(self.due)
    }

    pub fn add(&mut self, id: RequestId, asked: TraceRequest, at: SimTime) -> JobNumber {
        let record = RequestRecord {
            scheduled: at,
            sent: at,
            ..offered(&asked)
        };
        let told = offered_job(&asked);
        self.window.push_back(Job {
            id,
            asked,
            state: JobState::Due,
            record,
            kept: K::default(),
            places: Vec::new(),
            resumed_tokens: 0,
            hedges: 0,
            gives_up: None,
            prefilled: None,
            decode_group: None,
            first_token_due: None,
            prefill_locally: false,
            told,
        });
        self.open += 1;
        self.due += 1;
        self.first + self.window.len() as u32 - 1
    }

    pub fn get(&mut self, job: JobNumber) -> &mut Job<K> {
        &mut self.window[(job - self.first) as usize]
    }

    /// It is over, or gone already.
    pub fn has_ended(&self, job: JobNumber) -> bool {
        let index = job.checked_sub(self.first).map(|i| i as usize);
        index
            .and_then(|i| self.window.get(i))
            .is_none_or(|j| j.state == JobState::Ended)
    }

    /// Numbers of those that have not been told of.
    pub fn numbers(&self) -> std::ops::Range<JobNumber> {
        self.first..self.first + self.window.len() as u32
    }

    /// Tells of those that have ended and that no open one precedes.
    pub fn tell_ended(&mut self, recorder: &mut impl Recorder<Request = K>) {
        while self.window.front().is_some_and(|j| j.state == JobState::Ended) {
            self.tell_first(recorder);
        }
    }

    /// Tells of all that are left.
    pub fn tell_all(&mut self, recorder: &mut impl Recorder<Request = K>) {
        while !self.window.is_empty() {
            self.tell_first(recorder);
        }
    }

    fn tell_first(&mut self, recorder: &mut impl Recorder<Request = K>) {
        if let Some(job) = self.window.pop_front() {
            self.first += 1;
            recorder.ended(job.id, job.record, job.kept);
            self.keep(job.id, job.told);
        }
    }

    /// Keeps what is known of one that is told of.
    pub fn keep(&mut self, id: RequestId, told: JobRecord) {
        self.ids.push(id);
        self.told.push(told);
    }

    /// How many have been told of.
    pub fn told(&self) -> usize {
        self.told.len()
    }

    /// Takes out what is kept of those that have been told of: their ids, and each one's record.
    pub fn take_told(&mut self) -> (Vec<RequestId>, Vec<JobRecord>) {
        (std::mem::take(&mut self.ids), std::mem::take(&mut self.told))
    }
}

/// What is left of a prefill at its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// When its lease ends.
    pub until: SimTime,
    /// The decode attempt that is to read it.
    pub reader: Option<Place>,
    /// Heartbeats renew it for as long as it is read: its end is looked at again when they stop.
    pub is_kept: bool,
}

/// A decode attempt's way to its KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    /// The prefill attempt.
    pub from: Place,
    /// Since when its group knows of it and sends heartbeats (rule D14).
    pub known: Option<SimTime>,
    pub load: Option<Load>,
    pub transfer: Option<TransferId>,
    pub is_done: bool,
    /// The prompt's computation elsewhere has begun.
    pub is_begun: bool,
}

/// One try to serve a job, or the prefill of one.
#[derive(Debug)]
pub(super) struct Attempt {
    pub job: JobNumber,
    pub leg: Leg,
    /// Where it was sent: group, its life, and the replica.
    pub group: u32,
    pub incarnation: u32,
    pub replica: u32,
    /// It counts no more: it ended, broke or was given up.
    pub is_over: bool,
    /// Its prefill has ended and its proxy has not heard of it.
    pub is_unheard: bool,
    /// Its prefill's blocks are still at its group.
    pub held: Option<Held>,
    pub reading: Option<Reading>,
    /// It was given up before it ended.
    pub is_given_up: bool,
    /// Output tokens of the attempts before it that it goes on from.
    pub resumed_tokens: u32,
    /// Prompt tokens that it computes again, as their transfer broke off.
    pub recomputed_tokens: u32,
}

/// Attempts in the order of their starts, with what engines and recorder need of each.
#[derive(Debug)]
pub(super) struct Attempts<K> {
    pub live: LiveRequests<K>,
    first: Place,
    window: VecDeque<Attempt>,
}

impl<K: Default> Attempts<K> {
    pub fn new() -> Self {
        Self {
            live: LiveRequests::new(),
            first: 0,
            window: VecDeque::new(),
        }
    }

    pub fn start(
        &mut self,
        id: RequestId,
        asked: TraceRequest,
        at: SimTime,
        is_measured: bool,
        attempt: Attempt,
    ) -> Place {
        let place = self.live.send(id, asked, at, is_measured);
        self.live.get(place).leg = attempt.leg;
        self.window.push_back(attempt);
        place
    }

    pub fn get(&mut self, place: Place) -> &mut Attempt {
        &mut self.window[(place - self.first) as usize]
    }

    /// The attempt, unless it is gone.
    pub fn find(&mut self, place: Place) -> Option<&mut Attempt> {
        let index = place.checked_sub(self.first)?;
        self.window.get_mut(index as usize)
    }

    pub fn live(&mut self, place: Place) -> &mut Live<K> {
        self.live.get(place)
    }

    /// Places of all attempts that are kept.
    pub fn places(&self) -> std::ops::Range<Place> {
        self.first..self.first + self.window.len() as u32
    }

    /// Takes out the oldest one, if it is over and holds nothing.
    pub fn take_over(&mut self) -> Option<(Attempt, Live<K>)> {
        let is_over = |a: &Attempt| a.is_over && a.held.is_none() && !a.is_unheard;
        let has_ended = self.live.oldest().is_some_and(|live| live.has_ended);
        (has_ended && self.window.front().is_some_and(is_over)).then(|| self.take_oldest())?
    }

    /// Takes out the oldest one, over or not.
    pub fn take_oldest(&mut self) -> Option<(Attempt, Live<K>)> {
        let oldest = self.window.pop_front()?;
        self.first += 1;
        Some((oldest, self.live.take_oldest()?))
    }
}

impl Held {
    /// When the lease ends, if a reader that knows since `known` renews it `every` so often for `renewal` each time, until
    /// `now` (rule D14).
    pub fn renewed(
        self,
        known: Option<SimTime>,
        now: SimTime,
        every: SimDuration,
        renewal: SimDuration,
    ) -> SimTime {
        let Some(known) = known.filter(|&k| k <= now && every > SimDuration::ZERO) else {
            return self.until;
        };
        let beats = now.since(known).as_nanos() / every.as_nanos();
        (known + every * beats + renewal)
            .max(self.until.min(known + renewal))
            .max(self.until)
    }
}
