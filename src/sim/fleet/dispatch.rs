//! From a client's send through the gateway to a group.

use rand::RngExt;

use super::config::PoolRole;
use super::jobs::{Attempt, JobNumber, JobState, Place, Reading};
use super::lazy::at_replica;
use super::world::{Event, Fleet, Wait};
use crate::cluster::gateway::{Arrival, Cause, Decision, Item, LoadState};
use crate::cluster::router::{Asked, Candidate};
use crate::engine::Leg;
use crate::record::{Recorder, Segments, Status, TokenLog};
use crate::sim::kernel::Class;
use crate::units::SimDuration;
use crate::workload::trace::TraceRequest;

/// Which groups a request may be sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Among {
    /// Those that prefill for others.
    Prefill,
    /// Those that answer.
    Answering,
}

impl Among {
    fn has(self, role: PoolRole) -> bool {
        (role == PoolRole::Prefill) == (self == Self::Prefill)
    }
}

impl<R: Recorder> Fleet<'_, R> {
    /// A client sends.
    pub(super) fn arrive(&mut self, job: JobNumber) {
        self.hear();
        let now = self.now();
        let record = &mut self.jobs.get(job).record;
        (record.sent, record.status) = (now, Status::Unfinished);
        self.jobs.due -= 1;
        self.wait_for_first_token(job);
        if let Some(after) = self.config.gateway.timeouts.e2e {
            self.kernel
                .schedule(now + after, Class::Control, Event::Timeout(job, Wait::End));
        }
        self.enter_gateway(job);
    }

    /// A client begins to wait for the first token: of the request, or of another try where it tries again after a
    /// timeout.
    pub(super) fn wait_for_first_token(&mut self, job: JobNumber) {
        if let Some(after) = self.config.gateway.timeouts.ttft {
            let due = self.now() + after;
            self.jobs.get(job).first_token_due = Some(due);
            self.kernel
                .schedule(due, Class::Control, Event::Timeout(job, Wait::FirstToken));
        }
    }

    fn load_state(&self) -> LoadState {
        LoadState {
            in_flight: self.gateway.in_flight,
            queued_requests: self.gateway.queue.len() as u32,
            queued_tokens: self.gateway.queue.tokens(),
            held: !self.has_targets(),
        }
    }

    /// Some group would take a request now.
    fn has_targets(&self) -> bool {
        let routed = |among: Among| {
            self.groups
                .iter()
                .any(|g| g.is_routed && among.has(self.config.pools[g.pool].role))
        };
        routed(Among::Answering)
    }

    /// At the gateway, for the first time or again: it passes, waits, or is turned away.
    pub(super) fn enter_gateway(&mut self, job: JobNumber) {
        let now = self.now();
        let state = self.load_state();
        let asked = &self.jobs.get(job).asked;
        let (tenant, input_tokens, priority) = (asked.tenant, asked.input_tokens, asked.priority);
        let decision = self
            .gateway
            .gate
            .admit(now, Arrival { tenant, input_tokens }, &state);
        if let Decision::Reject(_) = decision {
            self.turned_down(job, Cause::Rejected);
            return;
        }
        self.jobs.get(job).state = JobState::Queued;
        self.gateway.queue.push(Item {
            id: job,
            tenant,
            priority,
            input_tokens,
            at: now,
        });
        let queue_timeout = self.config.gateway.timeouts.queue;
        let gives_up = [self.gateway.gate.gives_up_at(now), queue_timeout.map(|t| now + t)];
        if let Some(at) = gives_up.into_iter().flatten().min()
            && decision == Decision::Queue
        {
            self.jobs.get(job).gives_up = Some(at);
            self.kernel
                .schedule(at, Class::Control, Event::Timeout(job, Wait::Gateway));
        }
        self.pump();
        if self.jobs.get(job).state == JobState::Queued {
            self.note_queue();
        }
    }

    pub(super) fn note_queue(&mut self) {
        let (at, waiting) = (self.now(), self.gateway.queue.len() as u32);
        match self.record.gateway_queue.last_mut() {
            Some(last) if last.0 == at => last.1 = waiting,
            _ => self.record.gateway_queue.push((at, waiting)),
        }
    }

    /// Sends on what may be sent on.
    pub(super) fn pump(&mut self) {
        let mut changed = false;
        while !self.gateway.queue.is_empty() && self.gateway.gate.has_room(&self.load_state()) {
            let Some(item) = self.gateway.queue.pop() else {
                break;
            };
            changed = true;
            self.gateway.in_flight += 1;
            let now = self.now();
            let job = self.jobs.get(item.id);
            job.state = JobState::Active;
            if job.told.dispatched.is_none() {
                job.told.dispatched = Some(now);
                self.gateway.retry_budget.first_attempt();
                if let Some(budget) = &mut self.gateway.hedge_budget {
                    budget.first_attempt();
                }
            }
            self.dispatch(item.id);
        }
        if changed && !self.record.gateway_queue.is_empty() {
            self.note_queue();
        }
    }

    /// Chooses a group for a job and sends it there.
    pub(super) fn dispatch(&mut self, job: JobNumber) {
        if self.is_disaggregated() && !self.jobs.get(job).prefill_locally {
            self.dispatch_disaggregated(job);
        } else if let Some(group) = self.choose(job, Among::Answering, None) {
            self.send_attempt(job, group, Leg::Whole, None);
        } else {
            self.turned_down(job, Cause::Failed);
        }
    }

    /// The group that a router chooses; never `except`, if there is another one.
    pub(super) fn choose(&mut self, job: JobNumber, among: Among, except: Option<u32>) -> Option<u32> {
        let now = self.now();
        let mut candidates = std::mem::take(&mut self.gateway.candidates);
        candidates.clear();
        let revision = self.canary_revision(among);
        let fits = |g: &super::groups::Group, number: u32, pools: &[super::PoolConfig]| {
            g.is_routed && among.has(pools[g.pool].role) && Some(number) != except
        };
        for pass in 0..3 {
            // Of the drawn revision, then of any, then even the excepted one.
            for number in 0..self.groups.len() as u32 {
                let group = &self.groups[number as usize];
                let wanted = match pass {
                    0 => {
                        fits(group, number, &self.config.pools)
                            && revision.is_none_or(|r| r == group.revision)
                    }
                    1 => fits(group, number, &self.config.pools),
                    _ => group.is_routed && among.has(self.config.pools[group.pool].role),
                };
                if wanted {
                    candidates.push(self.candidate(number, job, among));
                }
            }
            if !candidates.is_empty() {
                break;
            }
        }
        let asked = &self.jobs.get(job).asked;
        let asked = Asked {
            input_tokens: asked.input_tokens,
            prefix: asked.prefix.map(|p| (p.group, p.shared_tokens)),
            session: asked.session,
            tenant: asked.tenant,
        };
        let sees_the_present = self.sees_the_present();
        let router = match among {
            Among::Prefill => &mut self.prefill_router,
            Among::Answering => &mut self.router,
        };
        if sees_the_present {
            router.snapshot();
        }
        let chosen = router.choose(now, &asked, &candidates);
        let chosen = chosen.map(|index| candidates[index].target);
        self.gateway.candidates = candidates;
        chosen
    }

    /// What the router sees of a group.
    fn candidate(&mut self, number: u32, job: JobNumber, among: Among) -> Candidate {
        let wants_cached = match among {
            Among::Prefill => self.prefill_router.wants_cached_tokens(),
            Among::Answering => self.router.wants_cached_tokens(),
        };
        let cached_tokens = if wants_cached {
            self.cached_at(number, job)
        } else {
            0
        };
        let reads_metrics = match among {
            Among::Prefill => self.prefill_router.reads_metrics(),
            Among::Answering => self.router.reads_metrics(),
        };
        if reads_metrics && self.sees_the_present() {
            self.read_metrics(number);
        }
        let group = &self.groups[number as usize];
        Candidate {
            target: number,
            waiting: group.seen.waiting,
            running: group.seen.running,
            kv_usage: group.seen.kv_usage,
            in_flight: group.in_flight,
            in_flight_tokens: group.in_flight_tokens,
            prefill_tokens: group.prefill_tokens,
            active_blocks: group.active_blocks,
            cached_tokens,
        }
    }

    /// Prompt tokens of a job that a group's caches hold now, at the best of its ranks.
    fn cached_at(&mut self, number: u32, job: JobNumber) -> u32 {
        let replicas = self.groups[number as usize].replicas.clone();
        let asked = self.jobs.get(job).asked.clone();
        let mut most = 0;
        for replica in replicas {
            self.touch(replica);
            let engine = &mut self.replicas[replica as usize].replica.engine;
            most = most.max(engine.cached_tokens(&asked, job));
        }
        most
    }

    /// Whether the next request goes to the new revision of a pool whose canary is watched.
    fn canary_revision(&mut self, among: Among) -> Option<u32> {
        let share = self
            .control
            .canary_share(|pool| among.has(self.config.pools[pool].role))?;
        let drawn = self.canary_draws.random::<f64>() < share.share;
        Some(if drawn { share.new } else { share.old })
    }

    /// Starts an attempt at a group.
    pub(super) fn send_attempt(
        &mut self,
        job: JobNumber,
        group: u32,
        leg: Leg,
        reading: Option<Reading>,
    ) -> Place {
        let now = self.now();
        let replica = self.choose_rank(job, group);
        let j = self.jobs.get(job);
        let asked = asked_of(&j.asked, j.resumed_tokens, leg);
        // A prefill goes on from nothing: it computes the prompt and all tokens since.
        let (id, resumed) = (j.id, j.resumed_tokens > 0 && leg != Leg::Prefill);
        let carried = resumed.then(|| (j.record.clone(), std::mem::take(&mut j.kept)));
        let scheduled = j.record.scheduled;
        let is_measured = leg != Leg::Prefill && self.recorder.measures(scheduled);
        let attempt = Attempt {
            job,
            leg,
            group,
            incarnation: self.groups[group as usize].incarnation,
            replica,
            is_over: false,
            is_unheard: false,
            held: None,
            reading,
            is_given_up: false,
            resumed_tokens: j.resumed_tokens,
            recomputed_tokens: 0,
        };
        self.last_progress = now;
        let size = (asked.input_tokens, asked.max_output_tokens);
        let place = self.attempts.start(id, asked, now, is_measured, attempt);
        let live = self.attempts.live(place);
        (live.record.scheduled, live.record.status) = (scheduled, Status::Unfinished);
        if let Some((record, kept)) = carried {
            live.record = record;
            // Whether its own engine has begun with it; its job's record has the first time.
            live.record.first_scheduled = None;
            live.kept = kept;
        }
        live.record.replica = replica;
        let j = self.jobs.get(job);
        match leg {
            Leg::Prefill => j.told.prefill_group = Some(group),
            Leg::Whole | Leg::Decode => j.told.attempts += 1,
        }
        j.places.push(place);
        self.groups[group as usize].took(size);
        self.control.arrivals[self.groups[group as usize].pool].0 += 1;
        let inbound = self.config.front_end.inbound;
        if inbound == SimDuration::ZERO {
            self.deliver(place);
        } else {
            self.kernel
                .schedule(now + inbound, Class::Arrival, Event::Deliver(place));
        }
        if let Some(hedge) = &self.config.gateway.hedge
            && leg == Leg::Whole
            && let Some(at) = hedge.next_at(now, self.jobs.get(job).hedges)
        {
            self.kernel.schedule(at, Class::Control, Event::Hedge(place));
        }
        place
    }

    /// The rank of a group that its balancer chooses (rule S74).
    fn choose_rank(&mut self, job: JobNumber, number: u32) -> u32 {
        let now = self.now();
        if let [only] = self.groups[number as usize].replicas[..] {
            return only;
        }
        let sees_the_present = self.sees_the_present();
        if sees_the_present {
            self.read_metrics(number);
            self.groups[number as usize].balancer.snapshot();
        }
        // In the present, what is on its way to a rank waits there, too.
        let waits = |rank: &super::groups::Rank| match sees_the_present {
            true => rank
                .seen
                .waiting
                .max(rank.in_flight.saturating_sub(rank.seen.running)),
            false => rank.seen.waiting,
        };
        let group = &mut self.groups[number as usize];
        let asked = &self.jobs.get(job).asked;
        let asked = Asked {
            input_tokens: asked.input_tokens,
            prefix: asked.prefix.map(|p| (p.group, p.shared_tokens)),
            session: asked.session,
            tenant: asked.tenant,
        };
        let candidates: Vec<Candidate> = group
            .replicas
            .iter()
            .zip(&group.ranks)
            .map(|(&replica, rank)| Candidate {
                target: replica,
                waiting: waits(rank),
                running: rank.seen.running,
                kv_usage: rank.seen.kv_usage,
                in_flight: rank.in_flight,
                in_flight_tokens: 0,
                prefill_tokens: 0,
                active_blocks: 0,
                cached_tokens: 0,
            })
            .collect();
        let index = group.balancer.choose(now, &asked, &candidates).unwrap_or(0);
        group.ranks[index].in_flight += 1;
        group.replicas[index]
    }

    /// An attempt reaches its group, or where it was.
    pub(super) fn deliver(&mut self, place: Place) {
        let now = self.now();
        // One that was given up on the way is ended by its cancellation.
        let Some(attempt) = self.attempts.find(place).filter(|a| !a.is_over) else {
            return;
        };
        let (number, incarnation, replica) = (attempt.group, attempt.incarnation, attempt.replica);
        if let Some(reading) = &mut attempt.reading {
            reading.known = Some(now);
        }
        let group = &self.groups[number as usize];
        if group.incarnation == incarnation && group.takes_deliveries() {
            self.touch(replica);
            self.replicas[replica as usize].replica.deliver(place);
        } else {
            let at = group.noticed(self.config.recovery.detection).max(now);
            self.kernel.schedule(at, Class::Fault, Event::Broken(place));
        }
    }

    /// The last copy of a job has waited so long that another one may be sent to a second group.
    pub(super) fn hedge(&mut self, last: Place) {
        let Some(attempt) = self.attempts.find(last).filter(|a| !a.is_over) else {
            return;
        };
        let job = attempt.job;
        let places = self.jobs.get(job).places.clone();
        let started = places
            .iter()
            .any(|&p| self.attempts.live(p).record.first_token.is_some());
        let now = self.now();
        let budget = &mut self.gateway.hedge_budget;
        if started || budget.as_mut().is_some_and(|b| !b.may_retry(now)) {
            return;
        }
        let used = self.attempts.get(last).group;
        let other = self
            .choose(job, Among::Answering, Some(used))
            .filter(|&g| g != used);
        if let Some(group) = other {
            let j = self.jobs.get(job);
            j.hedges += 1;
            j.told.hedges += 1;
            self.send_attempt(job, group, Leg::Whole, None);
        }
    }

    /// Tokens that attempts got are charged to their tenants.
    pub(super) fn hear_tokens(&mut self) {
        if self.gateway.charges_tokens {
            for emitted in self.attempts.live.take_emitted() {
                let tenant = self.attempts.live(emitted.request).asked.tenant;
                self.gateway
                    .queue
                    .charge_output(tenant, u64::from(emitted.tokens));
            }
        }
    }

    /// First tokens: the prompt is computed, and a hedge has a winner.
    pub(super) fn hear_started(&mut self, started: &[Place]) {
        for &place in started {
            let tokens = self.attempts.live(place).asked.input_tokens;
            let attempt = self.attempts.get(place);
            let (job, group, leg) = (attempt.job, attempt.group, attempt.leg);
            if attempt.is_over {
                continue;
            }
            self.groups[group as usize].prompt_computed(tokens);
            // Legs of one request do not compete.
            if leg != Leg::Whole || self.jobs.has_ended(job) || self.jobs.get(job).places.len() < 2 {
                continue;
            }
            for other in self.jobs.get(job).places.clone() {
                if other != place {
                    self.cancel(other);
                }
            }
        }
    }

    /// A cancellation reaches the engine.
    pub(super) fn cancelled(&mut self, place: Place) {
        self.gateway.obligations -= 1;
        let Some(attempt) = self.attempts.find(place) else {
            return;
        };
        let (group, incarnation, replica) = (attempt.group, attempt.incarnation, attempt.replica);
        if self.attempts.live(place).has_ended {
            // It ended before its cancellation came.
            return;
        }
        if self.groups[group as usize].incarnation == incarnation {
            self.touch(replica);
            at_replica!(self, replica, |slot, around| {
                slot.replica.abort(place, &mut around);
            });
        }
        self.attempts.live(place).has_ended = true;
        self.record.cancelled_output_tokens += self.own_output(place);
    }
}

/// What is asked of an engine for one leg of a request that has got some tokens before.
fn asked_of(whole: &TraceRequest, resumed: u32, leg: Leg) -> TraceRequest {
    let mut asked = whole.clone();
    asked.input_tokens += resumed;
    asked.max_output_tokens = asked.max_output_tokens.saturating_sub(resumed).max(1);
    asked.eos_at = asked.eos_at.map(|eos| eos.saturating_sub(resumed).max(1));
    if leg == Leg::Prefill {
        // It samples one token, which the proxy throws away (rule D2).
        (asked.max_output_tokens, asked.eos_at) = (1, None);
    }
    asked
}

/// An empty token log.
pub(super) fn no_tokens() -> TokenLog {
    TokenLog::Segments(Segments::new())
}
