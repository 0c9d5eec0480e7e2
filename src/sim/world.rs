//! Replicas behind a router and a load model, from event to event.

use std::collections::VecDeque;
use std::ops::Range;

use super::client::{ClientEvent, ClientKind, ClientSide, Clients, Reach};
use super::front::FrontEnd;
use super::host::HostTimes;
use super::kernel::{Class, Kernel};
use super::live::{LiveRequests, offered};
use super::replica::{Heard, Replica, Surroundings};
use super::router::RoundRobin;
use super::stall::Stall;
use crate::engine::vllm::VllmConfig;
use crate::engine::{self, RequestId};
use crate::record::{Recorder, ReplicaTotals, Status};
use crate::steptime::StepTime;
use crate::units::{SimDuration, SimTime};
use crate::workload::trace::TraceRequest;

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
    /// A closed loop with the clients of a load generator, on a machine of theirs.
    Clients(Clients),
    /// Everything is ready at time 0.
    Offline,
}

impl LoadModel {
    /// Clients wait for their answers before they send again.
    pub const fn is_closed(&self) -> bool {
        self.concurrency().is_some()
    }

    /// Clients of a closed loop.
    pub const fn concurrency(&self) -> Option<u32> {
        match self {
            Self::ClosedLoop { concurrency, .. } => Some(*concurrency),
            Self::Clients(clients) => Some(clients.concurrency),
            Self::OpenLoop | Self::Offline => None,
        }
    }

    /// Requests are due at instants that do not wait for a client to come to them.
    pub(super) const fn has_due_times(&self) -> bool {
        match self {
            Self::OpenLoop | Self::Offline => true,
            Self::Clients(clients) => matches!(clients.kind, ClientKind::VllmBench { .. }),
            Self::ClosedLoop { .. } => false,
        }
    }

    /// Requests come in the order of their arrival times.
    pub(super) const fn keeps_arrivals(&self) -> bool {
        match self {
            Self::OpenLoop => true,
            Self::Clients(clients) => clients.keep_arrivals(),
            Self::ClosedLoop { .. } | Self::Offline => false,
        }
    }

    /// What clients see is not what the engine's steps and the front end say.
    pub fn clients_see_for_themselves(&self) -> bool {
        matches!(self, Self::Clients(clients) if clients.see_for_themselves())
    }
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

/// How a run gets from step to step. Results are the same to the last bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// Steps that only repeat the one before are taken many at once.
    #[default]
    Leap,
    /// Every step is scheduled, row by row: the reference.
    Step,
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
    /// A part of a cluster cannot be made as configured.
    #[error("the cluster cannot be set up: {what}")]
    UnusableConfiguration {
        /// What is wrong.
        what: String,
    },
    /// Something is due at the end of simulated time: a time somewhere is absurdly long.
    #[error(
        "after {at:?} the next event is due at the end of simulated time (584 years): an arrival, a think time or \
         another time of the clients is far too long"
    )]
    EndOfTime {
        /// When the event before it happened.
        at: SimTime,
    },
    /// The control loops of a cluster are nearly all that happens.
    #[error(
        "until {at:?} routers and autoscalers have read the metrics of groups {readings} times for {requests} requests: \
         lengthen cluster.router.metrics_interval or the interval of autoscale, or cut the run off by measure.deadline"
    )]
    OnlyControl {
        /// When.
        at: SimTime,
        /// Readings of one group each.
        readings: u64,
        /// Requests sent so far.
        requests: u64,
    },
    /// Groups come and go without end.
    #[error(
        "until {at:?} {groups} groups have been started: autoscalers that grow and shrink without end are no plan; \
         give autoscale.down a stabilization or a cooldown"
    )]
    TooManyGroups {
        /// When.
        at: SimTime,
        /// How many, those of the start among them.
        groups: u64,
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

impl SimError {
    /// When.
    pub fn at(&self) -> SimTime {
        match self {
            Self::LostWakeUp { at, .. }
            | Self::Stuck { at, .. }
            | Self::UnusableStepTime { at, .. }
            | Self::EndOfTime { at }
            | Self::OnlyControl { at, .. }
            | Self::TooManyGroups { at, .. }
            | Self::ZeroTimeSpin { at, .. } => *at,
            Self::UnusableConfiguration { .. } => SimTime::ZERO,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A replica's step ends, or its host is free again.
    Wake(u32),
    /// A client sends a request.
    Send(RequestId),
    /// A request has come through the front end.
    Deliver(RequestId),
    /// Something happens at the modelled clients.
    Client(ClientEvent),
}

/// What is left of a world when it has ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// When its last event happened.
    pub end: SimTime,
    pub totals: Vec<ReplicaTotals>,
    /// Steps of all its replicas.
    pub steps: u64,
    /// Requests that have not ended.
    pub unfinished: u32,
    /// It was cut off at its deadline.
    pub cut_off: bool,
    /// Some replica has work, and none has an event of its own.
    pub stuck: bool,
}

/// Replicas that share a clock, their clients, and the requests on their way.
pub(super) struct World<'a, R: Recorder> {
    config: &'a WorldConfig,
    step_time: &'a dyn StepTime,
    leaps: bool,
    kernel: Kernel<Event>,
    replicas: Vec<Replica>,
    router: RoundRobin,
    live: LiveRequests<R::Request>,
    /// Requests not sent yet, in sending order.
    unsent: VecDeque<(RequestId, TraceRequest)>,
    /// An open-loop arrival is among the events.
    arrival_is_due: bool,
    /// Clients that are modelled.
    clients: Option<ClientSide>,
    has_started: bool,
    /// Replicas touched in the present instant, and when those that acted want to be woken.
    touched: Vec<u32>,
    wakes: Vec<(u32, SimTime)>,
    heard: Heard,
    /// How far a replica's host has come in a leap.
    leapt_to: SimTime,
}

/// Events at one instant beyond which time has stopped: these, and for every request and replica a few.
pub(super) const SPIN_LIMIT: u64 = 10_000;
pub(super) const EVENTS_AT_ONCE: u64 = 8;

impl<'a, R: Recorder> World<'a, R> {
    /// Replicas `numbers` of the configured ones.
    pub fn new(
        config: &'a WorldConfig,
        step_time: &'a dyn StepTime,
        numbers: Range<u32>,
        pace: Pace,
    ) -> Self {
        let clients = match config.load {
            LoadModel::Clients(clients) => Some(clients),
            _ => None,
        };
        let watched = clients.is_some_and(|c| c.watch_tokens());
        let leaps = pace == Pace::Leap && !watched;
        let mut live = LiveRequests::new();
        if watched {
            live.watch_tokens();
        }
        let replicas = numbers
            .map(|number| {
                let engine = engine::build(&config.engine, leaps, step_time.needs_decode_rows());
                Replica::new(number, &config.engine, engine, config.host, config.stall)
            })
            .collect::<Vec<_>>();
        Self {
            config,
            step_time,
            leaps,
            kernel: Kernel::new(SPIN_LIMIT + EVENTS_AT_ONCE * replicas.len() as u64),
            router: RoundRobin::new(replicas.len() as u32),
            replicas,
            live,
            unsent: VecDeque::new(),
            arrival_is_due: false,
            clients: clients.map(ClientSide::new),
            has_started: false,
            touched: Vec::new(),
            wakes: Vec::new(),
            heard: Heard::default(),
            leapt_to: SimTime::ZERO,
        }
    }

    /// Adds a request behind those added before, in sending order.
    pub fn add(&mut self, id: RequestId, mut request: TraceRequest) {
        self.kernel.allow(EVENTS_AT_ONCE);
        if self.clients.is_some() && !self.config.load.keeps_arrivals() {
            request.arrival = SimTime::ZERO;
        }
        self.unsent.push_back((id, request));
    }

    /// Handles everything that happens before `limit`; what arrives before it must have been added.
    ///
    /// # Errors
    /// [`SimError`] when the run cannot go on.
    pub fn run_until(&mut self, limit: SimTime, recorder: &mut R) -> Result<(), SimError> {
        const END: SimTime = SimTime(u64::MAX);
        let limit = self
            .config
            .deadline
            .map_or(limit, |d| limit.min(SimTime(d.0.saturating_add(1))));
        self.start_clients(recorder);
        while let Some(at) = self.kernel.next_at().filter(|&at| at < limit) {
            while self.kernel.next_at() == Some(at) {
                let event = self.kernel.pop().map_err(|s| SimError::ZeroTimeSpin {
                    at: s.at,
                    limit: s.limit,
                })?;
                if let Some(event) = event {
                    self.handle(event, recorder);
                }
            }
            self.settle(limit, recorder);
            if let Some(what) = self.replicas.iter().find_map(Replica::unusable_step) {
                return Err(SimError::UnusableStepTime { at, what });
            }
        }
        if limit == END && self.kernel.next_at() == Some(END) {
            return Err(SimError::EndOfTime {
                at: self.kernel.now(),
            });
        }
        Ok(())
    }

    /// Tells the recorder of what is left.
    pub fn end(mut self, recorder: &mut R) -> Ended {
        let cut_off = self.kernel.next_at().is_some();
        let mut around = Surroundings {
            step_time: self.step_time,
            live: &mut self.live,
            recorder,
            heard: &mut self.heard,
        };
        for replica in &mut self.replicas {
            replica.cut_off(&mut around);
        }
        let mut end = self.kernel.now().max(self.leapt_to);
        if let Some(clients) = &self.clients {
            for live in self.live.each_mut() {
                clients.cut_off(live, self.config.deadline);
                // A chunk that is not the last is seen without an event of its own.
                if self.config.load.clients_see_for_themselves() {
                    end = end.max(live.record.last_token.unwrap_or_default());
                }
            }
            if clients.keeps_rows() {
                self.unsent.clear();
            }
        }
        let mut unfinished = self.live.tell_all(recorder);
        for (id, mut request) in self.unsent {
            // A row that no client has come to is due at the end of the run at the earliest.
            if !self.config.load.has_due_times() {
                request.arrival = end;
            }
            recorder.ended(id, offered(&request), R::Request::default());
            unfinished += 1;
        }
        Ended {
            end,
            steps: self.replicas.iter().map(|r| r.steps).sum(),
            unfinished,
            cut_off,
            stuck: self.replicas.iter().any(Replica::has_unfinished)
                && !self.replicas.iter().any(Replica::is_waiting_for_event),
            totals: self.replicas.into_iter().map(|r| r.totals).collect(),
        }
    }

    fn start_clients(&mut self, recorder: &R) {
        match self.config.load {
            LoadModel::OpenLoop => {
                if !self.arrival_is_due {
                    self.send_next(None, recorder);
                }
            }
            LoadModel::ClosedLoop { concurrency, .. } => {
                if !self.has_started {
                    let clients = concurrency.min(self.unsent.len() as u32);
                    (0..clients).for_each(|_| self.send_next(Some(SimTime::ZERO), recorder));
                }
            }
            LoadModel::Clients(_) => {
                if !self.has_started {
                    self.at_clients(recorder, ClientSide::start);
                }
            }
            LoadModel::Offline => {
                while !self.unsent.is_empty() {
                    self.send_next(Some(SimTime::ZERO), recorder);
                }
            }
        }
        self.has_started = true;
    }

    /// Lets the modelled clients act, if there are any.
    fn at_clients(&mut self, recorder: &R, act: impl FnOnce(&mut ClientSide, &mut Reach<'_, R>)) {
        if let Some(clients) = &mut self.clients {
            let mut reach = Reach {
                kernel: &mut self.kernel,
                live: &mut self.live,
                unsent: &mut self.unsent,
                front_end: self.config.front_end,
                recorder,
            };
            act(clients, &mut reach);
        }
    }

    /// Schedules the next unsent request, at its own arrival time or at `at`.
    fn send_next(&mut self, at: Option<SimTime>, recorder: &R) {
        self.arrival_is_due = false;
        let Some((id, request)) = self.unsent.pop_front() else {
            return;
        };
        let at = at.unwrap_or(request.arrival);
        let measured = recorder.measures(at);
        let place = self.live.send(id, request, at, measured);
        self.kernel.schedule(at, Class::Arrival, Event::Send(place));
        self.arrival_is_due = true;
    }

    fn handle(&mut self, event: Event, recorder: &mut R) {
        match event {
            Event::Send(id) => {
                let record = &mut self.live.get(id).record;
                record.status = Status::Unfinished;
                if self.clients.is_some() {
                    record.sent = self.kernel.now();
                }
                let inbound = self.config.front_end.inbound;
                if inbound == SimDuration::ZERO {
                    self.deliver(id);
                } else {
                    let at = self.kernel.now() + inbound;
                    self.kernel.schedule(at, Class::Arrival, Event::Deliver(id));
                }
                if self.config.load == LoadModel::OpenLoop {
                    self.send_next(None, recorder);
                }
            }
            Event::Deliver(id) => self.deliver(id),
            Event::Client(event) => {
                self.at_clients(recorder, |clients, reach| clients.handle(event, reach));
            }
            Event::Wake(replica) => {
                let now = self.kernel.now();
                let mut around = Surroundings {
                    step_time: self.step_time,
                    live: &mut self.live,
                    recorder,
                    heard: &mut self.heard,
                };
                self.replicas[replica as usize].wake(now, &mut around);
                self.touched.push(replica);
            }
        }
    }

    fn deliver(&mut self, id: RequestId) {
        let replica = self.router.choose();
        let chosen = &mut self.replicas[replica as usize];
        self.live.get(id).record.replica = chosen.number();
        chosen.deliver(id);
        self.touched.push(replica);
    }

    /// Lets every touched replica act, then those that only wait take many steps at once, then the clients of requests
    /// that ended.
    fn settle(&mut self, limit: SimTime, recorder: &mut R) {
        let now = self.kernel.now();
        let mut around = Surroundings {
            step_time: self.step_time,
            live: &mut self.live,
            recorder,
            heard: &mut self.heard,
        };
        self.touched.sort_unstable();
        self.touched.dedup();
        for replica in self.touched.drain(..) {
            if let Some(at) = self.replicas[replica as usize].settle(now, &mut around) {
                self.wakes.push((replica, at));
            }
        }
        if let LoadModel::ClosedLoop { think, .. } = self.config.load {
            for index in 0..self.heard.ended.len() {
                let id = self.heard.ended[index];
                let seen = self
                    .config
                    .front_end
                    .seen(now, self.live.get(id).tokens_before_last());
                self.send_next(Some(seen + think), recorder);
            }
        }
        if self.clients.is_some() {
            let ended = std::mem::take(&mut self.heard.ended);
            self.at_clients(recorder, |clients, reach| clients.deliver(&ended, reach));
            self.heard.ended = ended;
        }
        self.heard.clear();
        self.live.tell_ended(recorder);
        if self.leaps {
            self.leap(now, limit, recorder);
        }
        for (replica, at) in self.wakes.drain(..) {
            self.kernel
                .schedule_ranked(at, Class::StepEnd, u64::from(replica), Event::Wake(replica));
        }
    }

    /// Until the next event of anyone else nothing can reach a replica: it may take all its steps before that at once.
    fn leap(&mut self, now: SimTime, limit: SimTime, recorder: &mut R) {
        let mut around = Surroundings {
            step_time: self.step_time,
            live: &mut self.live,
            recorder,
            heard: &mut self.heard,
        };
        for index in 0..self.wakes.len() {
            let others = self.wakes.iter().enumerate().filter(|(other, _)| *other != index);
            let others = others.map(|(_, (_, at))| *at).min();
            let horizon = [self.kernel.next_at(), others]
                .into_iter()
                .flatten()
                .fold(limit, SimTime::min);
            let (replica, at) = &mut self.wakes[index];
            if let Some((wake, host_at)) = self.replicas[*replica as usize].leap(now, horizon, &mut around) {
                *at = wake;
                self.leapt_to = self.leapt_to.max(host_at);
            }
        }
    }
}
