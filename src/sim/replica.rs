//! One replica: an engine, its device and its host process.

use std::collections::VecDeque;

use super::host::HostTimes;
use super::stall::{Stall, StallState};
use crate::engine::{Engine, FinishReason, Refusal, RequestId, StepPlan, StepResult};
use crate::record::{ReplicaRecord, RequestRecord, Segment, Status, TokenLog};
use crate::steptime::StepTime;
use crate::units::{SimDuration, SimTime};
use crate::workload::trace::TraceRequest;

/// What the host process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    /// Nothing; it acts as soon as there is something to do.
    Free,
    /// Taking a request into the engine.
    Adding(RequestId),
    /// The gap after a step.
    Between,
    /// Waiting for the oldest batch under way.
    Blocked,
}

/// A batch under way.
#[derive(Debug)]
struct InFlight {
    plan: StepPlan,
    start: SimTime,
    end: SimTime,
}

/// One replica at work.
#[derive(Debug)]
pub(super) struct Replica {
    engine: Box<dyn Engine>,
    asynchronous: bool,
    host_times: HostTimes,
    stall: Option<(Stall, StallState)>,
    host: Host,
    /// A step has just ended; its gap has not begun.
    owes_gap: bool,
    /// When its last own event came and what it ended; an arrival at another instant finds the host idle.
    woke: Option<(SimTime, Host)>,
    /// Delivered requests that the engine has not taken yet.
    inbox: VecDeque<RequestId>,
    in_flight: VecDeque<InFlight>,
    device_free: SimTime,
    /// What is wrong with a step's duration, once one was unusable.
    unusable_step: Option<&'static str>,
    /// Plans to be used again.
    spare: Vec<StepPlan>,
    result: StepResult,
    pub(super) record: ReplicaRecord,
}

/// What a replica reads and writes while it works.
pub(super) struct Surroundings<'a> {
    pub trace: &'a [TraceRequest],
    pub step_time: &'a dyn StepTime,
    pub requests: &'a mut [RequestRecord],
    /// Requests that ended, for the client.
    pub ended: &'a mut Vec<RequestId>,
}

impl Replica {
    pub fn new(
        engine: Box<dyn Engine>,
        host_times: HostTimes,
        stall: Option<Stall>,
        usable_blocks: u32,
    ) -> Self {
        Self {
            asynchronous: engine.queue_depth() > 1,
            engine,
            host_times,
            stall: stall.map(|s| (s, StallState::default())),
            host: Host::Free,
            owes_gap: false,
            woke: None,
            inbox: VecDeque::new(),
            in_flight: VecDeque::new(),
            device_free: SimTime::ZERO,
            unusable_step: None,
            spare: Vec::new(),
            result: StepResult::default(),
            record: ReplicaRecord {
                usable_blocks,
                free_blocks_at_end: usable_blocks,
                ..ReplicaRecord::default()
            },
        }
    }

    /// A request reaches the replica.
    pub fn deliver(&mut self, id: RequestId) {
        self.inbox.push_back(id);
    }

    /// What is wrong with a step's duration, if one was unusable.
    pub fn unusable_step(&self) -> Option<&'static str> {
        self.unusable_step
    }

    /// Requests wait or run here.
    pub fn has_unfinished(&self) -> bool {
        self.engine.has_unfinished() || !self.inbox.is_empty()
    }

    /// The replica has a future event of its own.
    pub fn is_waiting_for_event(&self) -> bool {
        self.host != Host::Free
    }

    /// Its event has come: a result, or the host is free again.
    pub fn wake(&mut self, now: SimTime, around: &mut Surroundings<'_>) {
        let ended = std::mem::replace(&mut self.host, Host::Free);
        self.woke = Some((now, ended));
        match ended {
            Host::Adding(id) => self.submit(id, now, around),
            Host::Blocked => {
                self.take_result(now, around);
                self.owes_gap = self.host_times.between_steps > SimDuration::ZERO;
            }
            Host::Between | Host::Free => {}
        }
    }

    /// After all events of an instant: acts until it has to wait. Returns when it wants to be woken.
    pub fn settle(&mut self, now: SimTime, around: &mut Surroundings<'_>) -> Option<SimTime> {
        match self.host {
            Host::Free => {}
            Host::Adding(_) | Host::Between | Host::Blocked => return None,
        }
        if std::mem::take(&mut self.owes_gap) && self.has_unfinished() {
            self.host = Host::Between;
            return Some(self.finish_work(now, self.host_times.between_steps));
        }
        if self.take_inbox(now, around) {
            let times = &self.host_times;
            let add = match self.woke {
                Some((at, Host::Adding(_))) if at == now => times.add_further_request,
                Some((at, _)) if at == now => times.add_request,
                _ => times.add_request_idle,
            };
            return Some(self.finish_work(now, add));
        }
        loop {
            let wants = if self.asynchronous {
                self.engine.wants_schedule()
            } else {
                self.engine.has_unfinished()
            };
            if wants {
                let (empty, preempted) = self.schedule(now, around);
                if empty && !self.in_flight.iter().any(|b| !b.plan.grants.is_empty()) {
                    self.drop_empty_batches();
                    if preempted || (self.engine.wants_schedule() && !self.engine.has_unfinished()) {
                        continue;
                    }
                    // Nothing fits and nothing is under way: only an arrival can change that.
                    return None;
                }
                let room = self.in_flight.len() < self.engine.queue_depth();
                if room && (!empty || self.engine.wants_schedule()) {
                    continue;
                }
            }
            let oldest = self.in_flight.front()?;
            self.host = Host::Blocked;
            return Some(oldest.end.max(now));
        }
    }

    /// Takes requests into the engine; true when the host is busy with one now.
    fn take_inbox(&mut self, now: SimTime, around: &mut Surroundings<'_>) -> bool {
        while let Some(id) = self.inbox.pop_front() {
            if self.host_times.adds_take_time() {
                self.host = Host::Adding(id);
                return true;
            }
            self.submit(id, now, around);
        }
        false
    }

    fn submit(&mut self, id: RequestId, now: SimTime, around: &mut Surroundings<'_>) {
        let record = &mut around.requests[id as usize];
        match self.engine.submit(id, &around.trace[id as usize]) {
            Ok(()) => record.enqueued = Some(now),
            Err(refusal) => {
                debug_assert!(matches!(
                    refusal,
                    Refusal::PromptTooLong { .. }
                        | Refusal::LargerThanCache { .. }
                        | Refusal::LargerThanBudget { .. }
                ));
                record.status = Status::Rejected;
                around.ended.push(id);
            }
        }
    }

    /// One schedule call and the start of its batch. Says whether it was empty and whether it preempted.
    fn schedule(&mut self, now: SimTime, around: &mut Surroundings<'_>) -> (bool, bool) {
        let mut plan = self.spare.pop().unwrap_or_default();
        self.engine.plan(&mut plan);
        for admission in plan.admitted.iter().filter(|a| a.first) {
            let record = &mut around.requests[admission.id as usize];
            record.first_scheduled = Some(now);
            record.cached_tokens = admission.cached_tokens;
        }
        for &id in &plan.preempted {
            around.requests[id as usize].preemptions += 1;
        }
        self.record.preemptions += plan.preempted.len() as u64;
        let (empty, preempted) = (plan.grants.is_empty(), !plan.preempted.is_empty());
        let (start, end) = if empty {
            let after = self.in_flight.back().map_or(now, |b| b.end);
            (now.max(after), now.max(after))
        } else {
            let start = now.max(self.device_free);
            let duration = around.step_time.duration(&plan.shape);
            around.step_time.observe(&plan.shape, 1);
            let end = self.finish_work(start, duration);
            if duration == SimDuration::ZERO {
                self.unusable_step = Some("0 ns");
            } else if end.0 == u64::MAX {
                self.unusable_step = Some("past the end of simulated time");
            }
            self.device_free = end;
            (start, end)
        };
        self.in_flight.push_back(InFlight { plan, start, end });
        (empty, preempted)
    }

    /// When `work` that starts at `start` is done, machine stalls included.
    fn finish_work(&mut self, start: SimTime, work: SimDuration) -> SimTime {
        match &mut self.stall {
            Some((stall, state)) => state.finish(*stall, start, work),
            None => start + work,
        }
    }

    /// Commits batches that computed nothing and have nothing before them.
    fn drop_empty_batches(&mut self) {
        while let Some(batch) = self.in_flight.pop_front() {
            self.engine.commit(&batch.plan, &mut self.result);
            self.spare.push(batch.plan);
        }
    }

    fn take_result(&mut self, now: SimTime, around: &mut Surroundings<'_>) {
        let Some(batch) = self.in_flight.pop_front() else {
            return;
        };
        self.engine.commit(&batch.plan, &mut self.result);
        self.record.free_blocks_at_end = self.result.free_blocks;
        if !batch.plan.grants.is_empty() {
            let step = self.record.step_ends.len() as u32;
            self.record.step_starts.push(batch.start);
            self.record.step_ends.push(now);
            self.record.running.push(batch.plan.running);
            self.record.waiting.push(batch.plan.waiting);
            self.record.free_blocks.push(batch.plan.free_blocks);
            for &(id, tokens) in &self.result.emitted {
                note_tokens(&mut around.requests[id as usize], step, now, tokens);
            }
            for &(id, reason) in &self.result.finished {
                finish(&mut around.requests[id as usize], reason);
                around.ended.push(id);
            }
        }
        self.spare.push(batch.plan);
    }
}

fn note_tokens(record: &mut RequestRecord, step: u32, now: SimTime, tokens: u32) {
    record.first_token.get_or_insert(now);
    record.last_token = Some(now);
    record.output_tokens += tokens;
    let TokenLog::Segments(segments) = &mut record.tokens else {
        return;
    };
    match segments.last_mut() {
        Some(s) if s.first_step + s.steps == step && s.tokens_per_step == tokens => s.steps += 1,
        _ => segments.push(Segment {
            first_step: step,
            steps: 1,
            tokens_per_step: tokens,
        }),
    }
}

fn finish(record: &mut RequestRecord, reason: FinishReason) {
    record.status = Status::Completed;
    record.finish_reason = Some(reason);
}
