//! A recorder that keeps everything.

use super::events::{LivelockSince, ReplicaRecord, RequestRecord, RunRecord, TokenLog};
use super::recorder::{Chunk, Recorder, StepRun};
use super::segments::Segment;
use crate::engine::RequestId;
use crate::steptime::BatchShape;
use crate::units::{SimDuration, SimTime};

/// What a replica knows of itself when a run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaTotals {
    /// Usable KV blocks.
    pub usable_blocks: u32,
    /// Free KV blocks after the last commit.
    pub free_blocks_at_end: u32,
    /// Preemptions in all.
    pub preemptions: u64,
    /// Its engine came to a livelock and stayed in it.
    pub livelock: Option<LivelockSince>,
    /// How long its device computed.
    pub busy: Busy,
}

/// How long a device computed, by what it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Busy {
    /// In steps with prompt tokens.
    pub prefill: SimDuration,
    /// In steps of decodes alone.
    pub decode: SimDuration,
}

impl Busy {
    /// Adds a step.
    pub(crate) fn add(&mut self, shape: &BatchShape, duration: SimDuration) {
        let of = if shape.prefill_seqs > 0 {
            &mut self.prefill
        } else {
            &mut self.decode
        };
        *of = SimDuration(of.0.saturating_add(duration.0));
    }
}

/// Keeps every request and every step: a [`RunRecord`] in the making.
///
/// Of groups of replicas that ran apart, each has a recorder of its own; [`FullRecorder::merge`] joins them. Requests
/// and replicas go by the ids they were told with, so it does not matter how they were dealt out.
#[derive(Debug, Clone, Default)]
pub struct FullRecorder {
    /// Who the requests are.
    ids: Vec<RequestId>,
    requests: Vec<RequestRecord>,
    replicas: Vec<ReplicaRecord>,
}

/// Puts what is known of requests into the order of their ids, `ids` being theirs as they stand.
pub(super) fn sort_by_id<T>(ids: &[RequestId], items: &mut [T]) {
    if ids.is_sorted() {
        return;
    }
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|&from| ids[from]);
    let mut place = vec![0; order.len()];
    for (to, from) in order.into_iter().enumerate() {
        place[from] = to;
    }
    // Each swap brings one item to its place.
    for here in 0..place.len() {
        while place[here] != here {
            let there = place[here];
            items.swap(here, there);
            place.swap(here, there);
        }
    }
}

impl FullRecorder {
    /// A recorder for a run of so many replicas. Replicas beyond are added when they are told of.
    pub fn new(replicas: u32) -> Self {
        Self {
            ids: Vec::new(),
            requests: Vec::new(),
            replicas: vec![ReplicaRecord::default(); replicas as usize],
        }
    }

    fn replica(&mut self, replica: u32) -> &mut ReplicaRecord {
        let index = replica as usize;
        if index >= self.replicas.len() {
            self.replicas.resize_with(index + 1, ReplicaRecord::default);
        }
        &mut self.replicas[index]
    }

    /// Notes what a replica knows of itself at the end.
    pub fn set_totals(&mut self, replica: u32, totals: ReplicaTotals) {
        let record = self.replica(replica);
        record.usable_blocks = totals.usable_blocks;
        record.free_blocks_at_end = totals.free_blocks_at_end;
        record.preemptions = totals.preemptions;
        record.livelock = totals.livelock;
        record.busy = totals.busy;
    }

    /// Takes over what another recorder kept, of other requests and other replicas of the same run.
    pub fn merge(&mut self, other: Self) {
        self.ids.extend(other.ids);
        self.requests.extend(other.requests);
        for (replica, theirs) in (0..).zip(other.replicas) {
            let mine = self.replica(replica);
            if *mine == ReplicaRecord::default() {
                *mine = theirs;
            }
        }
    }

    /// The whole run, requests in the order of their ids; `end` is when its last event happened.
    pub fn into_run(mut self, end: SimTime) -> RunRecord {
        self.replicas.iter_mut().for_each(give_back);
        sort_by_id(&self.ids, &mut self.requests);
        RunRecord {
            requests: self.requests,
            replicas: self.replicas,
            end,
        }
    }
}

/// Gives back the room that steps to come would have had.
fn give_back(record: &mut ReplicaRecord) {
    record.step_starts.shrink_to_fit();
    record.step_ends.shrink_to_fit();
    for gauge in [&mut record.running, &mut record.waiting, &mut record.free_blocks] {
        gauge.shrink_to_fit();
    }
}

/// A step's number as records keep it.
fn index(step: u64) -> u32 {
    u32::try_from(step).unwrap_or(u32::MAX)
}

/// Adds steps to a token log: to its last segment when they follow it with as many tokens each.
fn add_steps(request: &mut RequestRecord, first_step: u32, steps: u32, tokens_per_step: u32) {
    let TokenLog::Segments(segments) = &mut request.tokens else {
        return;
    };
    match segments.last_mut() {
        Some(s) if s.first_step + s.steps == first_step && s.tokens_per_step == tokens_per_step => {
            s.steps += steps;
        }
        _ => segments.push(Segment {
            first_step,
            steps,
            tokens_per_step,
        }),
    }
}

impl Recorder for FullRecorder {
    type Request = ();

    /// Gaps are derived from the record.
    fn measures(&self, _scheduled: SimTime) -> bool {
        false
    }

    fn steps(&mut self, run: &StepRun<'_>) {
        let record = self.replica(run.replica);
        record.step_starts.extend_from_slice(run.starts);
        record.step_ends.extend_from_slice(run.ends);
        record.free_blocks.extend_from_slice(run.free_blocks);
        let steps = record.step_ends.len();
        record.running.resize(steps, run.running);
        record.waiting.resize(steps, run.waiting);
    }

    fn chunk(&mut self, request: &mut RequestRecord, _kept: &mut (), chunk: Chunk) {
        if let TokenLog::Times(times) = &mut request.tokens {
            times.extend(std::iter::repeat_n(chunk.end, chunk.tokens as usize));
            return;
        }
        add_steps(request, index(chunk.step), 1, chunk.tokens);
    }

    fn further_chunks(&mut self, request: &mut RequestRecord, _kept: &mut (), steps: u32, _end: SimTime) {
        let newest = self.replica(request.replica).step_ends.len();
        if let TokenLog::Times(times) = &mut request.tokens {
            let ends = &self.replicas[request.replica as usize].step_ends;
            times.extend_from_slice(&ends[newest.saturating_sub(steps as usize)..]);
            return;
        }
        let first_step = index(newest as u64).saturating_sub(steps);
        add_steps(request, first_step, steps, 1);
    }

    /// Segments count the steps of one replica; from now on each token has its instant.
    fn broke(&mut self, request: &mut RequestRecord) {
        let TokenLog::Segments(segments) = &request.tokens else {
            return;
        };
        if segments.is_empty() {
            return;
        }
        let ends = &self.replica(request.replica).step_ends;
        let times = segments.iter().flat_map(|s| {
            let steps = ends.iter().skip(s.first_step as usize).take(s.steps as usize);
            steps.flat_map(|&end| std::iter::repeat_n(end, s.tokens_per_step as usize))
        });
        request.tokens = TokenLog::Times(times.collect());
    }

    /// A job's record is the one that it ends with: no other was kept.
    fn given_up(&mut self, _: &RequestRecord, (): ()) {}

    fn ended(&mut self, id: RequestId, request: RequestRecord, _kept: ()) {
        self.ids.push(id);
        self.requests.push(request);
    }
}
