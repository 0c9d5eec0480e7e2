//! One replica: an engine, its device and its host process.

mod device;
mod loss;
mod telling;
mod wave;

use std::collections::VecDeque;

use super::host::HostTimes;
use super::leap::Leap;
use super::live::LiveRequests;
use super::stall::{Stall, StallState};
use crate::engine::vllm::VllmConfig;
use crate::engine::{Engine, Gauges, Load, Refusal, RequestId, StepPlan, StepResult};
use crate::record::{Busy, LivelockSince, Recorder, ReplicaTotals, Status};
use crate::steptime::StepTime;
use crate::units::{SimDuration, SimTime};

/// What the host process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Host {
    /// Nothing; it acts as soon as there is something to do.
    Free,
    /// Taking a request into the engine; none, if it was given up meanwhile.
    Adding(Option<RequestId>),
    /// The gap after a step.
    Between,
    /// Waiting for the oldest batch under way.
    Blocked,
    /// Looking again and again for transfers that end, with nothing to compute (rules S58, D10).
    Polling,
}

/// How often an engine that only waits for transfers looks for them (rule S58).
const POLL: SimDuration = SimDuration::from_millis(1);

/// A batch under way.
#[derive(Debug)]
pub(super) struct InFlight {
    pub plan: StepPlan,
    pub start: SimTime,
    pub end: SimTime,
}

/// One replica at work.
#[derive(Debug)]
pub(super) struct Replica {
    number: u32,
    pub(super) engine: Box<dyn Engine>,
    schedules_ahead: bool,
    pipeline: device::Pipeline,
    pub(super) host_times: HostTimes,
    pub(super) stall: Option<(Stall, StallState)>,
    host: Host,
    /// A step has just ended; its gap has not begun.
    owes_gap: bool,
    /// When its last own event came and what it ended; an arrival at another instant finds the host idle.
    woke: Option<(SimTime, Host)>,
    /// Delivered requests that the engine has not taken yet.
    inbox: VecDeque<RequestId>,
    /// Requests whose transfers ended or broke off (after so many tokens); the engine hears of it with a result (D8).
    arrived: Vec<(RequestId, Option<u32>)>,
    /// Since when it only waits for transfers.
    polls_since: Option<SimTime>,
    /// Steps take `slowdown.0 / slowdown.1` of their time.
    slowdown: (u32, u32),
    pub(super) in_flight: VecDeque<InFlight>,
    pub(super) device_free: SimTime,
    /// What is wrong with a step's duration, once one was unusable.
    unusable_step: Option<&'static str>,
    /// Plans to be used again.
    spare: Vec<StepPlan>,
    result: StepResult,
    /// Steps that ended.
    pub(super) steps: u64,
    /// End of the last one.
    pub(super) last_end: SimTime,
    /// Measured requests that get a token in every step without being told of.
    pub(super) steady_measured: u32,
    pub(super) leap: Leap,
    /// Its batches are told of as they start, so that it never leaps: KV is written layer by layer.
    pub(super) tells_prompts: bool,
    pub(super) totals: ReplicaTotals,
}

/// What a replica reads and writes while it works.
pub(super) struct Surroundings<'a, R: Recorder> {
    pub step_time: &'a dyn StepTime,
    pub live: &'a mut LiveRequests<R::Request>,
    pub recorder: &'a mut R,
    /// What happened to requests, for those around the replica.
    pub heard: &'a mut Heard,
}

/// What replicas told of requests since it was last looked at.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Requests that ended.
    pub ended: Vec<RequestId>,
    /// Requests that got their first token.
    pub started: Vec<RequestId>,
    /// Transfers that are to start, and where to.
    pub loads: Vec<(u32, Load)>,
    /// Prompts under way, of replicas that tell of them.
    pub prompts: Vec<(RequestId, PromptNews)>,
}

/// How the computation of a prompt goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PromptNews {
    /// A batch computes so many tokens beyond those that are there.
    Computes {
        computed: u32,
        tokens: u32,
        start: SimTime,
        end: SimTime,
    },
    /// It is preempted.
    Lost,
}

impl Heard {
    pub fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.started.is_empty() && self.loads.is_empty() && self.prompts.is_empty()
    }

    pub fn clear(&mut self) {
        self.ended.clear();
        self.started.clear();
        self.loads.clear();
        self.prompts.clear();
    }
}

impl Replica {
    pub fn new(
        number: u32,
        config: &VllmConfig,
        engine: Box<dyn Engine>,
        host_times: HostTimes,
        stall: Option<Stall>,
    ) -> Self {
        let usable_blocks = config.usable_blocks();
        Self {
            number,
            schedules_ahead: config.schedules_ahead(),
            pipeline: device::Pipeline::of(config.pipeline_parallel_size),
            engine,
            host_times,
            stall: stall.map(|s| (s, StallState::default())),
            host: Host::Free,
            owes_gap: false,
            woke: None,
            inbox: VecDeque::new(),
            arrived: Vec::new(),
            polls_since: None,
            slowdown: (1, 1),
            in_flight: VecDeque::new(),
            device_free: SimTime::ZERO,
            unusable_step: None,
            spare: Vec::new(),
            result: StepResult::default(),
            steps: 0,
            last_end: SimTime::ZERO,
            steady_measured: 0,
            leap: Leap::default(),
            tells_prompts: false,
            totals: ReplicaTotals {
                usable_blocks,
                free_blocks_at_end: usable_blocks,
                preemptions: 0,
                livelock: None,
                busy: Busy::default(),
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

    /// It waits for the oldest batch under way and has nothing else to do.
    pub fn only_waits(&self) -> bool {
        self.host == Host::Blocked
            && self.inbox.is_empty()
            && self.arrived.is_empty()
            && self.in_flight.len() == self.engine.queue_depth()
    }

    /// The replica has a future event of its own.
    pub fn is_waiting_for_event(&self) -> bool {
        self.host != Host::Free
    }

    /// Its event has come: a result, or the host is free again.
    pub fn wake<R: Recorder>(&mut self, now: SimTime, around: &mut Surroundings<'_, R>) {
        let ended = std::mem::replace(&mut self.host, Host::Free);
        self.woke = Some((now, ended));
        match ended {
            Host::Adding(Some(id)) => self.submit(id, now, around),
            Host::Blocked => {
                self.take_result(now, around);
                self.owes_gap = self.host_times.between_steps > SimDuration::ZERO;
                self.tell_arrived();
            }
            Host::Polling => self.tell_arrived(),
            Host::Adding(None) | Host::Between | Host::Free => {}
        }
    }

    /// After all events of an instant: acts until it has to wait. Returns when it wants to be woken.
    pub fn settle<R: Recorder>(&mut self, now: SimTime, around: &mut Surroundings<'_, R>) -> Option<SimTime> {
        match self.host {
            Host::Free => {}
            Host::Adding(_) | Host::Between | Host::Blocked | Host::Polling => return None,
        }
        if !self.arrived.is_empty() && self.in_flight.is_empty() {
            // It looked in vain at every tick since it began to poll; the next tick finds them.
            let since = self.polls_since.unwrap_or(now);
            let ticks = now.since(since).as_nanos().div_ceil(POLL.as_nanos());
            self.host = Host::Polling;
            return Some(since + POLL * ticks);
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
        let mut empty_calls = 0;
        loop {
            let wants = if self.schedules_ahead {
                self.engine.wants_schedule()
            } else {
                self.engine.has_unfinished()
            };
            if wants {
                let (empty, preempted) = self.schedule(now, around);
                if empty && !self.in_flight.iter().any(|b| !b.plan.is_empty()) {
                    self.drop_empty_batches();
                    if preempted || (self.engine.wants_schedule() && !self.engine.has_unfinished()) {
                        continue;
                    }
                    // In a pipeline a row may have to sit out as many calls as there are stages (rule S15).
                    empty_calls += 1;
                    if empty_calls < self.pipeline.stages {
                        continue;
                    }
                    // Nothing fits and nothing is under way: only an arrival can change that, if anything.
                    if let Some(state) = self.engine.livelock() {
                        // It began at the first such call; who waits is told as of the last.
                        let at = self.totals.livelock.map_or(now, |since| since.at);
                        self.totals.livelock = Some(LivelockSince { at, state });
                    }
                    if self.engine.is_loading_only() {
                        self.polls_since.get_or_insert(now);
                    }
                    return None;
                }
                let room = self.in_flight.len() < self.engine.queue_depth();
                // With nothing to schedule it waits for the oldest result (rule S52).
                if room && !empty {
                    continue;
                }
            }
            let oldest = self.in_flight.front()?;
            self.host = Host::Blocked;
            return Some(oldest.end.max(now));
        }
    }

    /// Takes requests into the engine; true when the host is busy with one now.
    fn take_inbox<R: Recorder>(&mut self, now: SimTime, around: &mut Surroundings<'_, R>) -> bool {
        while let Some(id) = self.inbox.pop_front() {
            if self.host_times.adds_take_time() {
                self.host = Host::Adding(Some(id));
                return true;
            }
            self.submit(id, now, around);
        }
        false
    }

    fn submit<R: Recorder>(&mut self, id: RequestId, now: SimTime, around: &mut Surroundings<'_, R>) {
        let live = around.live.get(id);
        if live.has_ended {
            // Its client gave it up on the way.
            return;
        }
        match self.engine.submit_leg(id, &live.asked, live.leg) {
            Ok(()) => live.record.enqueued = Some(now),
            Err(refusal) => {
                debug_assert!(matches!(
                    refusal,
                    Refusal::PromptTooLong { .. }
                        | Refusal::LargerThanCache { .. }
                        | Refusal::LargerThanBudget { .. }
                ));
                live.record.status = Status::Rejected;
                live.has_ended = true;
                around.heard.ended.push(id);
            }
        }
    }

    /// One schedule call and the start of its batch. Says whether it was empty and whether it preempted.
    fn schedule<R: Recorder>(&mut self, now: SimTime, around: &mut Surroundings<'_, R>) -> (bool, bool) {
        let plan = self.plan(now, around);
        let (empty, preempted) = (plan.is_empty(), !plan.preempted.is_empty());
        let before = self.in_flight.back().map(|b| b.end);
        let (start, end) = if empty {
            let at = now.max(before.unwrap_or(now));
            (at, at)
        } else {
            self.polls_since = None;
            let start = now.max(self.device_free);
            let duration = self.slowed(around.step_time.duration(&plan.shape));
            around.step_time.observe(&plan.shape, 1);
            self.pipeline.share(around.step_time, &plan.shape);
            self.occupy(start, duration, before)
        };
        self.in_flight.push_back(InFlight { plan, start, end });
        self.tell_prompts(around);
        (empty, preempted)
    }

    /// One schedule call, and what it tells.
    fn plan<R: Recorder>(&mut self, now: SimTime, around: &mut Surroundings<'_, R>) -> StepPlan {
        let mut plan = self.spare.pop().unwrap_or_default();
        self.engine.plan(&mut plan);
        for admission in plan.admitted.iter().filter(|a| a.first) {
            let record = &mut around.live.get(admission.id).record;
            record.first_scheduled = Some(now);
            record.cached_tokens = admission.cached_tokens;
        }
        for &id in &plan.preempted {
            if self.tells_prompts {
                around.heard.prompts.push((id, PromptNews::Lost));
            }
            around.live.get(id).record.preemptions += 1;
        }
        self.totals.preemptions += plan.preempted.len() as u64;
        let loads = plan.loads.iter().map(|load| (self.number, *load));
        around.heard.loads.extend(loads);
        for left in &plan.left {
            self.close(*left, around);
        }
        plan
    }

    /// Tells of the prompts of the newest batch.
    fn tell_prompts<R: Recorder>(&self, around: &mut Surroundings<'_, R>) {
        let Some(batch) = self.in_flight.back().filter(|_| self.tells_prompts) else {
            return;
        };
        let prompts = batch.plan.grants.iter().map(|grant| {
            let news = PromptNews::Computes {
                computed: grant.computed,
                tokens: grant.tokens,
                start: batch.start,
                end: batch.end,
            };
            (grant.id, news)
        });
        around.heard.prompts.extend(prompts);
    }

    /// Commits batches that computed nothing and have nothing before them.
    fn drop_empty_batches(&mut self) {
        while let Some(batch) = self.in_flight.pop_front() {
            self.engine.commit(&batch.plan, &mut self.result);
            self.spare.push(batch.plan);
        }
    }

    fn take_result<R: Recorder>(&mut self, now: SimTime, around: &mut Surroundings<'_, R>) {
        let Some(batch) = self.in_flight.pop_front() else {
            return;
        };
        let mut result = std::mem::take(&mut self.result);
        self.engine.commit(&batch.plan, &mut result);
        self.totals.free_blocks_at_end = result.free_blocks;
        if !batch.plan.is_empty() {
            for left in &result.left {
                self.close(*left, around);
            }
            self.tell_step(&batch, now, &result, around);
            for &id in &batch.plan.entered {
                let live = around.live.get(id);
                live.is_steady = true;
                self.steady_measured += u32::from(live.is_measured);
            }
            for &(id, reason) in &result.finished {
                let live = around.live.get(id);
                live.record.status = Status::Completed;
                live.record.finish_reason = Some(reason);
                live.has_ended = true;
                around.heard.ended.push(id);
            }
        }
        self.result = result;
        self.spare.push(batch.plan);
    }

    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    /// A transfer to a request here has ended; after `valid_tokens` only, if it broke off.
    pub fn transferred(&mut self, id: RequestId, valid_tokens: Option<u32>) {
        self.arrived.push((id, valid_tokens));
    }

    fn tell_arrived(&mut self) {
        for (id, valid_tokens) in self.arrived.drain(..) {
            match valid_tokens {
                None => self.engine.load_done(id),
                Some(valid) => self.engine.load_failed(id, valid),
            };
        }
    }

    /// Requests that were delivered and not taken in yet.
    pub fn undelivered(&self) -> u32 {
        self.inbox.len() as u32
    }

    /// What its engine shows of itself.
    pub fn gauges(&self) -> Gauges {
        self.engine.gauges()
    }
}
