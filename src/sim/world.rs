//! One run: a trace, a load model, replicas behind a router, until nothing is left to do.

use std::collections::VecDeque;

use super::front::FrontEnd;
use super::host::HostTimes;
use super::kernel::{Class, Kernel};
use super::replica::{Replica, Surroundings};
use super::router::RoundRobin;
use super::stall::Stall;
use crate::engine::RequestId;
use crate::engine::vllm::{VllmConfig, VllmEngine};
use crate::record::{RequestRecord, RunRecord, Status, TokenLog};
use crate::steptime::StepTime;
use crate::units::{SimDuration, SimTime};
use crate::workload::trace::Trace;

/// How requests are offered (contract section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadModel {
    /// At the trace's arrival times, whatever the server does.
    OpenLoop,
    /// A fixed number of clients: send, wait for the end, think, send the next row.
    ClosedLoop {
        /// Clients.
        concurrency: u32,
        /// Pause of a client between an answer and its next request.
        think: SimDuration,
    },
    /// Everything is ready at time 0.
    Offline,
}

/// Everything a run needs but the trace and the step-time model.
#[derive(Debug, Clone, PartialEq)]
pub struct WorldConfig {
    /// Every replica's engine.
    pub engine: VllmConfig,
    /// Replicas behind a round-robin router.
    pub replicas: u32,
    /// How requests are offered.
    pub load: LoadModel,
    /// Host time around the steps.
    pub host: HostTimes,
    /// The way between clients and engine.
    pub front_end: FrontEnd,
    /// Machine stalls, if they are part of the scenario.
    pub stall: Option<Stall>,
    /// The run is cut off here; what is not finished by then stays unfinished.
    pub deadline: Option<SimTime>,
}

/// A run that cannot go on: a broken invariant or a model that never ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// Unfinished work without any future event.
    #[error("no event is left at {at:?} but {unfinished} requests are unfinished")]
    LostWakeUp {
        /// When.
        at: SimTime,
        /// How many.
        unfinished: u32,
    },
    /// Requests wait, but nothing that could run or arrive will ever make room for them.
    #[error(
        "at {at:?} {unfinished} requests wait for ever: the engine can schedule none of them and nothing is left to \
         run or to arrive (a request that was preempted may have outgrown the token budget or the KV cache)"
    )]
    Stuck {
        /// When.
        at: SimTime,
        /// How many.
        unfinished: u32,
    },
    /// A step of no time, or simulated time at its end: the step-time model gives no usable durations.
    #[error("a step at {at:?} lasts {what}: the step times are not those of a machine")]
    UnusableStepTime {
        /// When.
        at: SimTime,
        /// `0 ns`, or that it passes the end of simulated time.
        what: &'static str,
    },
    /// Too many events at one instant.
    #[error("more than {limit} events at {at:?}: time does not advance")]
    ZeroTimeSpin {
        /// When.
        at: SimTime,
        /// The limit.
        limit: u64,
    },
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A replica's step ends, or its host is free again.
    Wake(u32),
    /// A client sends a request.
    Send(RequestId),
    /// A request has come through the front end.
    Deliver(RequestId),
}

/// Runs `trace` on the configured system until all work is done or the deadline has come (what is not done by
/// then stays [`Status::Unfinished`]).
///
/// # Errors
/// [`SimError`] when the run cannot go on.
pub fn run(config: &WorldConfig, step_time: &dyn StepTime, trace: &Trace) -> Result<RunRecord, SimError> {
    World::new(config, step_time, trace).run()
}

struct World<'a> {
    config: &'a WorldConfig,
    step_time: &'a dyn StepTime,
    trace: &'a Trace,
    kernel: Kernel<Event>,
    replicas: Vec<Replica>,
    router: RoundRobin,
    requests: Vec<RequestRecord>,
    /// Requests not sent yet, in sending order.
    unsent: VecDeque<RequestId>,
    /// Replicas touched in the present instant.
    touched: Vec<bool>,
    ended: Vec<RequestId>,
}

/// Events at one instant beyond which time has stopped: every request and replica may have a few.
fn spin_limit(requests: usize, replicas: u32) -> u64 {
    10_000 + 8 * (requests as u64 + u64::from(replicas))
}

impl<'a> World<'a> {
    fn new(config: &'a WorldConfig, step_time: &'a dyn StepTime, trace: &'a Trace) -> Self {
        let replicas = (0..config.replicas)
            .map(|_| {
                let engine = Box::new(VllmEngine::new(config.engine.clone()));
                Replica::new(engine, config.host, config.stall, config.engine.usable_blocks())
            })
            .collect();
        let mut order: Vec<RequestId> = (0..trace.requests.len() as u32).collect();
        if config.load == LoadModel::OpenLoop {
            order.sort_by_key(|&id| trace.requests[id as usize].arrival);
        }
        Self {
            config,
            step_time,
            trace,
            kernel: Kernel::new(spin_limit(trace.requests.len(), config.replicas)),
            replicas,
            router: RoundRobin::new(config.replicas),
            requests: trace.requests.iter().map(offered).collect(),
            unsent: order.into(),
            touched: vec![false; config.replicas as usize],
            ended: Vec::new(),
        }
    }

    fn run(mut self) -> Result<RunRecord, SimError> {
        self.start_clients();
        while let Some(at) = self.kernel.next_at() {
            if self.config.deadline.is_some_and(|d| at > d) {
                return Ok(self.into_record());
            }
            while self.kernel.next_at() == Some(at) {
                let event = self.kernel.pop().map_err(|s| SimError::ZeroTimeSpin {
                    at: s.at,
                    limit: s.limit,
                })?;
                if let Some(event) = event {
                    self.handle(event);
                }
            }
            self.settle();
            if let Some(what) = self.replicas.iter().find_map(Replica::unusable_step) {
                return Err(SimError::UnusableStepTime { at, what });
            }
        }
        self.check_nothing_is_lost()?;
        Ok(self.into_record())
    }

    fn start_clients(&mut self) {
        match self.config.load {
            LoadModel::OpenLoop => self.send_next(None),
            LoadModel::ClosedLoop { concurrency, .. } => {
                let clients = concurrency.min(self.unsent.len() as u32);
                (0..clients).for_each(|_| self.send_next(Some(SimTime::ZERO)));
            }
            LoadModel::Offline => {
                while !self.unsent.is_empty() {
                    self.send_next(Some(SimTime::ZERO));
                }
            }
        }
    }

    /// Schedules the next unsent request, at its own arrival time or at `at`.
    fn send_next(&mut self, at: Option<SimTime>) {
        let Some(id) = self.unsent.pop_front() else { return };
        let at = at.unwrap_or(self.trace.requests[id as usize].arrival);
        let record = &mut self.requests[id as usize];
        (record.scheduled, record.sent) = (at, at);
        self.kernel.schedule(at, Class::Arrival, Event::Send(id));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Send(id) => {
                let inbound = self.config.front_end.inbound;
                if inbound == SimDuration::ZERO {
                    self.deliver(id);
                } else {
                    let at = self.kernel.now() + inbound;
                    self.kernel.schedule(at, Class::Arrival, Event::Deliver(id));
                }
                if self.config.load == LoadModel::OpenLoop {
                    self.send_next(None);
                }
            }
            Event::Deliver(id) => self.deliver(id),
            Event::Wake(replica) => {
                let now = self.kernel.now();
                let mut around = Surroundings {
                    trace: &self.trace.requests,
                    step_time: self.step_time,
                    requests: &mut self.requests,
                    ended: &mut self.ended,
                };
                self.replicas[replica as usize].wake(now, &mut around);
                self.touched[replica as usize] = true;
            }
        }
    }

    fn deliver(&mut self, id: RequestId) {
        let replica = self.router.choose();
        self.requests[id as usize].replica = replica;
        self.replicas[replica as usize].deliver(id);
        self.touched[replica as usize] = true;
    }

    /// Lets every touched replica act, then the clients of requests that ended.
    fn settle(&mut self) {
        let now = self.kernel.now();
        for (index, replica) in self.replicas.iter_mut().enumerate() {
            if !std::mem::take(&mut self.touched[index]) {
                continue;
            }
            let mut around = Surroundings {
                trace: &self.trace.requests,
                step_time: self.step_time,
                requests: &mut self.requests,
                ended: &mut self.ended,
            };
            if let Some(at) = replica.settle(now, &mut around) {
                self.kernel
                    .schedule(at, Class::StepEnd, Event::Wake(index as u32));
            }
        }
        if let LoadModel::ClosedLoop { think, .. } = self.config.load {
            for index in 0..self.ended.len() {
                let id = self.ended[index];
                let seen = self.config.front_end.seen(now, self.tokens_before_last(id));
                self.send_next(Some(seen + think));
            }
        }
        self.ended.clear();
    }

    /// Output tokens that an ended request had before those of its last step.
    fn tokens_before_last(&self, id: RequestId) -> u32 {
        let request = &self.requests[id as usize];
        let last = match &request.tokens {
            TokenLog::Segments(segments) => segments.last().map_or(0, |s| s.tokens_per_step),
            TokenLog::Times(_) => 1,
        };
        request.output_tokens.saturating_sub(last)
    }

    /// When no event is left, all work must be done. A replica that waits for an event of its own has lost it; one
    /// that does not has been told by its engine that nothing fits and nothing runs.
    fn check_nothing_is_lost(&self) -> Result<(), SimError> {
        let unfinished = self
            .requests
            .iter()
            .filter(|r| r.status == Status::Unfinished)
            .count() as u32;
        if unfinished == 0 {
            return Ok(());
        }
        let at = self.kernel.now();
        let stuck = self.replicas.iter().any(Replica::has_unfinished)
            && !self.replicas.iter().any(Replica::is_waiting_for_event);
        Err(if stuck {
            SimError::Stuck { at, unfinished }
        } else {
            SimError::LostWakeUp { at, unfinished }
        })
    }

    fn into_record(self) -> RunRecord {
        let mut run = RunRecord {
            end: self.kernel.now(),
            requests: self.requests,
            replicas: self.replicas.into_iter().map(|r| r.record).collect(),
        };
        self.config.front_end.shift_tokens(&mut run);
        run
    }
}

fn offered(request: &crate::workload::trace::TraceRequest) -> RequestRecord {
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
        status: Status::Unfinished,
        finish_reason: None,
        replica: 0,
        priority: request.priority,
        tokens: TokenLog::Segments(Vec::new()),
    }
}
