//! The event loop of a cluster.

use std::collections::BTreeMap;

use rand_pcg::Pcg64;

use super::config::{FleetConfig, PoolRole};
use super::control::Control;
use super::gateway::Gateway;
use super::groups::Group;
use super::jobs::{Attempts, JobNumber, JobState, Jobs, Place, offered_job};
use super::lazy::Slot;
use super::push::Push;
use super::run::FleetRun;
use crate::cluster::link::{Network, TransferId};
use crate::cluster::router::Router;
use crate::engine::RequestId;
use crate::record::{ClusterRecord, Recorder, TimelineEvent};
use crate::rng::{Purpose, stream};
use crate::sim::error::SimError;
use crate::sim::kernel::{Class, Kernel};
use crate::sim::replica::Heard;
use crate::sim::world::{EVENTS_AT_ONCE, LoadModel, Pace, SPIN_LIMIT};
use crate::steptime::StepTime;
use crate::units::SimTime;
use crate::workload::trace::TraceRequest;

#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A replica's own event; void if its version has passed.
    Wake {
        replica: u32,
        version: u32,
    },
    /// A client sends.
    Send(JobNumber),
    /// An attempt reaches its group.
    Deliver(Place),
    /// A job is tried again.
    Retry(JobNumber),
    /// A job may be sent once more than with this copy, if that is not over.
    Hedge(Place),
    /// A client gives up if it has no first token, no end, or no place behind the gateway.
    Timeout(JobNumber, Wait),
    /// A cancellation reaches the engine.
    Cancel(Place),
    /// A stream breaks, or a connection is refused.
    Broken(Place),
    /// The proxy hears of a prefill's end.
    PrefillAnswered(Place),
    /// A transfer's descriptors are posted.
    TransferPosted(Place),
    /// Something changes on the links; void if its version has passed.
    Network(u32),
    /// A prefill group hears of a decode group's blocks, for this decode attempt.
    BlocksKnown(Place),
    /// More of a prefill's KV may be written.
    PushTurn(Place),
    /// A decode attempt hears that this prefill's KV does not come.
    PushLost(Place),
    /// A prefill's lease may end.
    Lease(Place),
    /// A fault of the configuration begins or ends.
    Fault(u32),
    Mended(u32),
    /// A crash is noticed, then the group is out of the routes.
    Detected {
        group: u32,
        incarnation: u32,
    },
    Unrouted {
        group: u32,
        incarnation: u32,
    },
    /// A starting group's next stage, or its readiness.
    Stage {
        group: u32,
        incarnation: u32,
    },
    /// A draining group is ended.
    DrainTimeout {
        group: u32,
        incarnation: u32,
    },
    /// Control loops.
    Scrape,
    Scale(u32),
    Rollout(u32),
}

/// What a client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    FirstToken,
    End,
    Gateway,
}

/// A cluster at work.
pub(super) struct Fleet<'a, R: Recorder> {
    pub config: &'a FleetConfig,
    pub step_times: &'a [&'a dyn StepTime],
    pub leaps: bool,
    pub kernel: Kernel<Event>,
    pub recorder: R,
    pub replicas: Vec<Slot>,
    pub touched: Vec<u32>,
    /// The instant at which replicas last acted on what had happened.
    pub settled: Option<SimTime>,
    pub heard: Heard,
    pub groups: Vec<Group>,
    pub jobs: Jobs<R::Request>,
    pub attempts: Attempts<R::Request>,
    pub gateway: Gateway,
    /// Routers by what they choose among: [`PoolRole::Prefill`] groups, and all others.
    pub router: Router,
    pub prefill_router: Router,
    pub network: Network,
    pub network_version: u32,
    pub transfers: BTreeMap<TransferId, Place>,
    /// What prefill groups write, by the prefill attempt.
    pub pushes: BTreeMap<Place, Push>,
    pub control: Control,
    pub backoffs: Pcg64,
    pub canary_draws: Pcg64,
    /// When anything but a control loop last happened.
    pub last_progress: SimTime,
    /// Times that a request was tried again.
    pub retries: u64,
    pub record: ClusterRecord,
}

/// Gives the next request to be sent, if there is one.
pub(super) type Source<'s> = &'s mut dyn FnMut() -> Option<(RequestId, TraceRequest)>;

impl<'a, R: Recorder> Fleet<'a, R> {
    pub fn new(
        pace: Pace,
        config: &'a FleetConfig,
        step_times: &'a [&'a dyn StepTime],
        recorder: R,
    ) -> Result<Self, SimError> {
        let unusable = |what: String| SimError::UnusableConfiguration { what };
        let draws = |purpose| stream(config.seed, purpose, config.replication);
        let gateway = Gateway::new(&config.gateway).map_err(|e| unusable(e.to_string()))?;
        let watched = gateway.charges_tokens;
        let mut attempts = Attempts::new();
        if watched {
            attempts.live.watch_tokens();
        }
        let slots: u32 = config.pools.iter().map(|p| p.max_groups).sum();
        Ok(Self {
            leaps: pace == Pace::Leap && !watched,
            kernel: Kernel::new(SPIN_LIMIT + EVENTS_AT_ONCE * u64::from(slots)),
            recorder,
            replicas: Vec::new(),
            touched: Vec::new(),
            settled: None,
            heard: Heard::default(),
            groups: Vec::new(),
            jobs: Jobs::new(),
            attempts,
            gateway,
            router: Router::new(config.routing.policy.clone(), draws(Purpose::Routing)),
            prefill_router: Router::new(config.routing.prefill.clone(), draws(Purpose::PrefillRouting)),
            network: Self::links(config).map_err(|e| unusable(e.to_string()))?,
            network_version: 0,
            transfers: BTreeMap::new(),
            pushes: BTreeMap::new(),
            control: Control::new(config).map_err(|e| unusable(e.to_string()))?,
            backoffs: draws(Purpose::Backoff),
            canary_draws: draws(Purpose::Canary),
            last_progress: SimTime::ZERO,
            retries: 0,
            record: ClusterRecord {
                pools: config.pools.iter().map(|p| p.name.clone()).collect(),
                ..ClusterRecord::default()
            },
            config,
            step_times,
        })
    }

    pub fn now(&self) -> SimTime {
        self.kernel.now()
    }

    /// Prompts and outputs are served by different groups.
    pub fn is_disaggregated(&self) -> bool {
        self.config.pools.iter().any(|p| p.role == PoolRole::Decode)
    }

    pub fn tell(&mut self, event: &'static str, group: Option<u32>, what: impl Into<String>) {
        self.tell_at(self.now(), event, group, what.into());
    }

    pub(super) fn tell_at(&mut self, at: SimTime, event: &'static str, group: Option<u32>, what: String) {
        self.record.timeline.push(TimelineEvent {
            at,
            event,
            what,
            group,
        });
    }

    pub fn run(&mut self, source: Source<'_>) -> Result<(), SimError> {
        let limit = self
            .config
            .deadline
            .map_or(SimTime(u64::MAX), |d| SimTime(d.0.saturating_add(1)));
        self.start_clients(source);
        self.start_control();
        while let Some(at) = self.kernel.next_at().filter(|&at| at < limit) {
            if self.has_nothing_to_do() || self.is_stranded(at) {
                break;
            }
            while self.kernel.next_at() == Some(at) {
                let event = self.kernel.pop().map_err(|s| SimError::ZeroTimeSpin {
                    at: s.at,
                    limit: s.limit,
                })?;
                if let Some(event) = event {
                    self.handle(event, source);
                }
            }
            self.settle(source)?;
            self.is_bounded()?;
        }
        // A livelock is told of by its replica.
        let livelocked = self
            .replicas
            .iter()
            .any(|slot| slot.replica.totals.livelock.is_some());
        if self.kernel.is_empty() && self.jobs.open > 0 && !livelocked {
            self.strand();
        }
        Ok(())
    }

    fn start_clients(&mut self, source: Source<'_>) {
        match self.config.load {
            LoadModel::OpenLoop => self.send_next(None, source),
            LoadModel::ClosedLoop { concurrency, .. } => {
                // Clients beyond the requests there are do nothing.
                let mut idle = 0..concurrency;
                while idle.next().is_some() && self.send_next_of(Some(SimTime::ZERO), source) {}
            }
            LoadModel::Offline | LoadModel::Clients(_) => {
                while self.send_next_of(Some(SimTime::ZERO), source) {}
            }
        }
    }

    fn send_next(&mut self, at: Option<SimTime>, source: Source<'_>) {
        self.send_next_of(at, source);
    }

    /// Schedules the next request, at its own arrival or at `at`; false when there is none.
    fn send_next_of(&mut self, at: Option<SimTime>, source: Source<'_>) -> bool {
        let Some((id, request)) = source() else {
            return false;
        };
        self.kernel.allow(EVENTS_AT_ONCE);
        let at = at.unwrap_or(request.arrival).max(self.now());
        let job = self.jobs.add(id, request, at);
        self.kernel.schedule(at, Class::Arrival, Event::Send(job));
        true
    }

    fn handle(&mut self, event: Event, source: Source<'_>) {
        match event {
            Event::Scrape | Event::Scale(_) | Event::Rollout(_) | Event::Lease(_) => {
                self.control.scheduled -= 1;
                self.control.idle_turns += 1;
            }
            // What they bring about, if anything, counts.
            Event::Cancel(_) | Event::Timeout(..) | Event::Hedge(_) => {}
            Event::Wake { replica, version } if !self.is_due(replica, version) => return,
            _ => {
                self.last_progress = self.now();
                self.control.idle_turns = 0;
            }
        }
        match event {
            Event::Wake { replica, .. } => self.touch(replica),
            Event::Send(job) => {
                self.arrive(job);
                if self.config.load == LoadModel::OpenLoop {
                    self.send_next(None, source);
                }
            }
            Event::Deliver(place) => self.deliver(place),
            Event::Retry(job) => self.retry(job),
            Event::Hedge(place) => self.hedge(place),
            Event::Timeout(job, wait) => self.time_out(job, wait),
            Event::Cancel(place) => self.cancelled(place),
            Event::Broken(place) => self.broken(place),
            Event::PrefillAnswered(place) => self.prefill_answered(place),
            Event::TransferPosted(place) => self.transfer_posted(place),
            Event::BlocksKnown(place) => self.blocks_known(place),
            Event::PushTurn(place) => self.push_turn(place),
            Event::PushLost(place) => self.push_is_lost(place, false),
            Event::Network(version) => self.network_changes(version),
            Event::Lease(place) => self.lease_ends(place),
            Event::Fault(fault) => self.fault_begins(fault as usize),
            Event::Mended(fault) => self.fault_ends(fault as usize),
            Event::Detected { group, incarnation } => self.crash_detected(group, incarnation),
            Event::Unrouted { group, incarnation } => self.unroute_crashed(group, incarnation),
            Event::Stage { group, incarnation } => self.next_stage(group, incarnation),
            Event::DrainTimeout { group, incarnation } => self.drain_timeout(group, incarnation),
            Event::Scrape => self.scrape(),
            Event::Scale(index) => self.scale(index as usize),
            Event::Rollout(index) => self.roll(index as usize),
        }
    }

    /// Lets everybody act on what happened at this instant.
    fn settle(&mut self, source: Source<'_>) -> Result<(), SimError> {
        loop {
            self.settle_replicas()?;
            self.hear_tokens();
            if self.heard.is_empty() {
                break;
            }
            self.hear();
            self.pump();
        }
        self.settle_groups();
        self.pump();
        if let LoadModel::ClosedLoop { think, .. } = self.config.load {
            for seen in std::mem::take(&mut self.gateway.answered) {
                self.send_next(Some(seen + think), source);
            }
        }
        self.gateway.answered.clear();
        if self.touched.is_empty() {
            self.jobs.tell_ended(&mut self.recorder);
            self.forget_attempts();
            Ok(())
        } else {
            self.settle(source)
        }
    }

    /// All requests have their terminal state, and nothing is held or under way.
    fn has_nothing_to_do(&self) -> bool {
        self.jobs.open == 0
            && self.transfers.is_empty()
            && self.gateway.obligations == 0
            && self.groups.iter().all(|g| g.in_flight == 0)
            && !self.replicas.iter().any(Slot::is_busy)
    }

    /// Tells the recorder of what is left.
    pub fn end(mut self, source: Source<'_>) -> FleetRun<R> {
        let end = self.take_steps_left();
        (0..self.groups.len() as u32).for_each(|group| self.tell_idle_until(group, end));
        for job in self.jobs.numbers() {
            if self.jobs.get(job).state != JobState::Ended {
                self.leave_unfinished(job);
            }
        }
        self.forget_all_attempts();
        self.jobs.tell_all(&mut self.recorder);
        while let Some((id, mut request)) = source() {
            // A row that no client has come to is due at the end of the run at the earliest.
            if !self.config.load.has_due_times() {
                request.arrival = end;
            }
            let job = crate::sim::live::offered(&request);
            self.recorder.ended(id, job, R::Request::default());
            self.jobs.keep(id, offered_job(&request));
        }
        let timeline = &mut self.record.timeline;
        let events = timeline.len();
        timeline.retain(|event| event.at <= end);
        self.record.events_beyond_end = (events - timeline.len()) as u64;
        if self.retries > self.jobs.told() as u64 {
            let (retries, requests) = (self.retries, self.jobs.told());
            let what = format!(
                "{retries} retries of {requests} requests: a limit on retries or a budget is missing"
            );
            self.tell_at(end, "retry_storm", None, what);
        }
        self.record.end = end;
        let links = 0..self.network.links() as u32;
        let bytes = |link| u64::try_from(self.network.moved(link) / crate::cluster::link::UNITS_PER_BYTE);
        self.record.links = links
            .filter_map(|link| {
                Some((
                    self.network.link(link)?.name.clone(),
                    bytes(link).unwrap_or(u64::MAX),
                ))
            })
            .collect();
        self.record.retries_refused = self.gateway.retry_budget.refused();
        let (ids, jobs) = self.jobs.take_told();
        self.record.set_jobs(&ids, jobs);
        self.record.groups = self.groups.into_iter().map(Group::into_record).collect();
        FleetRun {
            recorder: self.recorder,
            steps: self.replicas.iter().map(|slot| slot.replica.steps).sum(),
            replicas: self.replicas.into_iter().map(Slot::into_totals).collect(),
            cluster: self.record,
            end,
        }
    }
}
