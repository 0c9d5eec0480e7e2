//! Replica groups: whole units that start, serve, drain, crash and come back.

use super::config::{PoolConfig, PoolRole, TransferMode};
use super::lazy::{Slot, at_replica};
use super::waves::Wave;
use super::world::{Event, Fleet};
use crate::cluster::lifecycle::{Phase, Stage};
use crate::cluster::ratio::Ratio;
use crate::cluster::router::Router;
use crate::engine;
use crate::record::{GroupRecord, Recorder};
use crate::rng::{Purpose, class_stream};
use crate::sim::kernel::Class;
use crate::sim::replica::Replica;
use crate::units::{SimDuration, SimTime};

/// What was last read of an engine's metrics.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    pub waiting: u32,
    pub running: u32,
    pub kv_usage: f64,
}

/// A data-parallel rank as its group's balancer knows it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rank {
    pub seen: Seen,
    pub in_flight: u32,
}

/// One group.
#[derive(Debug)]
pub(super) struct Group {
    pub pool: usize,
    /// Place in its pool: a group that comes for one that went may take its place.
    pub slot: u32,
    pub replicas: Vec<u32>,
    pub ranks: Vec<Rank>,
    pub balancer: Router,
    pub revision: u32,
    pub phases: Vec<(SimTime, Phase)>,
    /// Lives so far: what was sent to an earlier one is lost.
    pub incarnation: u32,
    /// Routers know of it.
    pub is_routed: bool,
    /// When it last crashed.
    pub crashed: Option<SimTime>,
    /// It may start again from then on: what it stood on is mended.
    pub usable_from: SimTime,
    /// It comes back on another node.
    pub is_replaced: bool,
    /// Stages before it is ready, the next one last.
    stages: Vec<(Stage, SimDuration)>,
    /// What slows its steps: the revision's factor, then those of faults by their numbers.
    pub slowdowns: Vec<(Option<usize>, Ratio)>,
    pub seen: Seen,
    pub in_flight: u32,
    pub in_flight_tokens: u64,
    pub prefill_tokens: u64,
    pub active_blocks: u32,
    block_size: u32,
    pub wave: Wave,
    cached_tokens_lost: u64,
}

impl Group {
    pub fn phase(&self) -> Phase {
        self.phases.last().map_or(Phase::Absent, |&(_, phase)| phase)
    }

    /// It is alive and still has work to do, or takes it.
    pub fn takes_deliveries(&self) -> bool {
        matches!(self.phase(), Phase::Ready | Phase::Draining)
    }

    /// When a crash of it is noticed.
    pub fn noticed(&self, detection: SimDuration) -> SimTime {
        self.crashed.map_or(SimTime::ZERO, |at| at + detection)
    }

    fn blocks(&self, input_tokens: u32) -> u32 {
        input_tokens.div_ceil(self.block_size.max(1))
    }

    /// An attempt was sent here.
    pub fn took(&mut self, (input, output): (u32, u32)) {
        self.in_flight += 1;
        self.in_flight_tokens += u64::from(input) + u64::from(output);
        self.prefill_tokens += u64::from(input);
        self.active_blocks = self.active_blocks.saturating_add(self.blocks(input));
    }

    /// A prompt is computed.
    pub fn prompt_computed(&mut self, input: u32) {
        self.prefill_tokens = self.prefill_tokens.saturating_sub(u64::from(input));
    }

    /// An attempt is over here.
    pub fn gave_back(&mut self, replica: u32, (input, output): (u32, u32), has_started: bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.in_flight_tokens = self
            .in_flight_tokens
            .saturating_sub(u64::from(input) + u64::from(output));
        if !has_started {
            self.prompt_computed(input);
        }
        self.active_blocks = self.active_blocks.saturating_sub(self.blocks(input));
        if let Some(index) = self.replicas.iter().position(|&r| r == replica) {
            self.ranks[index].in_flight = self.ranks[index].in_flight.saturating_sub(1);
        }
    }

    pub fn into_record(self) -> GroupRecord {
        GroupRecord {
            pool: self.pool as u32,
            replicas: self.replicas,
            revision: self.revision,
            phases: self.phases,
            cached_tokens_lost: self.cached_tokens_lost,
        }
    }
}

impl<R: Recorder> Fleet<'_, R> {
    /// The groups of the configuration, all ready at the start.
    pub(super) fn start_groups(&mut self) {
        for (pool, config) in self.config.pools.iter().enumerate() {
            for _ in 0..config.groups {
                let group = self.add_group(pool, 0);
                self.become_phase(group, Phase::Ready);
                self.groups[group as usize].is_routed = true;
            }
        }
    }

    /// The first place of a pool that no group of it has: each pass over the groups, as thousands are added at the start.
    fn free_slot(&self, pool: usize) -> u32 {
        // Slots are given from 0 on, so that none is beyond the number of groups.
        let mut taken = vec![false; self.groups.len() + 1];
        let of_pool = |g: &&Group| g.pool == pool && g.phase() != Phase::Stopped;
        for group in self.groups.iter().filter(of_pool) {
            taken[group.slot as usize] = true;
        }
        let free = taken.iter().position(|taken| !taken);
        free.unwrap_or(self.groups.len()) as u32
    }

    /// A new group of a pool, absent so far.
    pub(super) fn add_group(&mut self, pool: usize, revision: u32) -> u32 {
        let config: &PoolConfig = &self.config.pools[pool];
        let number = self.groups.len() as u32;
        let slot = self.free_slot(pool);
        let ranks = config.dp_ranks.max(1);
        let first = self.replicas.len() as u32;
        for replica in first..first + ranks {
            let step_time = self.step_times[config.step_time];
            let leaps = self.leaps && !config.lockstep;
            let engine = engine::build(&config.engine, leaps, step_time.needs_decode_rows());
            let mut replica = Replica::new(replica, &config.engine, engine, config.host, config.stall);
            let pushes = self.config.transfer.mode != TransferMode::Pull;
            replica.tells_prompts = pushes && config.role == PoolRole::Prefill;
            let wave = (config.lockstep && ranks > 1).then_some(number);
            self.replicas.push(Slot::new(replica, config.step_time, wave));
        }
        let draws = class_stream(
            self.config.seed,
            Purpose::Balancing,
            self.config.replication,
            &number.to_string(),
        );
        let mut slowdowns = Vec::new();
        if revision > 0
            && let Some(factor) = self.control.revision_slowdown(pool)
        {
            slowdowns.push((None, factor));
        }
        let slow = self
            .control
            .slow_revisions
            .iter()
            .filter(|(_, of, _)| *of == revision);
        slowdowns.extend(slow.map(|&(number, _, factor)| (Some(number), factor)));
        self.groups.push(Group {
            pool,
            slot,
            replicas: (first..first + ranks).collect(),
            ranks: vec![Rank::default(); ranks as usize],
            balancer: Router::new(self.config.routing.balancer.clone(), draws),
            revision,
            phases: Vec::new(),
            incarnation: 0,
            is_routed: false,
            crashed: None,
            usable_from: SimTime::ZERO,
            is_replaced: false,
            stages: Vec::new(),
            slowdowns,
            seen: Seen::default(),
            in_flight: 0,
            in_flight_tokens: 0,
            prefill_tokens: 0,
            active_blocks: 0,
            block_size: config.engine.block_size,
            wave: Wave::new(config),
            cached_tokens_lost: 0,
        });
        self.apply_slowdowns(number);
        number
    }

    /// A group as reports call it.
    pub(super) fn group_name(&self, number: u32) -> String {
        let group = &self.groups[number as usize];
        format!("{}/{}", self.config.pools[group.pool].name, group.slot)
    }

    pub(super) fn become_phase(&mut self, number: u32, phase: Phase) {
        let now = self.now();
        let group = &mut self.groups[number as usize];
        debug_assert!(
            group.phase().can_become(phase),
            "{:?} to {phase:?}",
            group.phase()
        );
        group.phases.push((now, phase));
        self.control.pools_changed = true;
    }

    /// Begins a group's way to readiness.
    pub(super) fn start_group(&mut self, number: u32) {
        let config = &self.config.pools[self.groups[number as usize].pool];
        let slow = self.control.weight_store();
        let group = &mut self.groups[number as usize];
        let on_live_node = group.crashed.is_some() && !group.is_replaced;
        let plan = if on_live_node {
            config.start.on_live_node()
        } else {
            config.start
        };
        group.stages = plan.stages(slow);
        group.stages.reverse();
        let name = self.group_name(number);
        self.tell("starting", Some(number), name);
        self.enter_next_stage(number);
    }

    fn enter_next_stage(&mut self, number: u32) {
        let now = self.now();
        let group = &mut self.groups[number as usize];
        let incarnation = group.incarnation;
        match group.stages.pop() {
            Some((stage, takes)) => {
                self.become_phase(number, Phase::Starting(stage));
                let event = Event::Stage {
                    group: number,
                    incarnation,
                };
                self.kernel.schedule(now + takes, Class::Control, event);
            }
            None => {
                group.is_routed = true;
                self.become_phase(number, Phase::Ready);
                let name = self.group_name(number);
                self.tell("ready", Some(number), name);
            }
        }
    }

    pub(super) fn next_stage(&mut self, number: u32, incarnation: u32) {
        let group = &self.groups[number as usize];
        if group.incarnation != incarnation {
            return;
        }
        match group.phase() {
            // It was ordered for this instant.
            Phase::Absent => self.start_group(number),
            Phase::Starting(_) => self.enter_next_stage(number),
            _ => {}
        }
    }

    /// Its steps take the product of all that slows it.
    pub(super) fn apply_slowdowns(&mut self, number: u32) {
        let group = &self.groups[number as usize];
        let (mut numerator, mut denominator) = (1_u128, 1_u128);
        for (_, factor) in &group.slowdowns {
            numerator *= u128::from(factor.numerator);
            denominator *= u128::from(factor.denominator);
            while numerator > u128::from(u32::MAX) || denominator > u128::from(u32::MAX) {
                (numerator, denominator) = ((numerator / 2).max(1), (denominator / 2).max(1));
            }
        }
        for replica in group.replicas.clone() {
            self.touch(replica);
            self.replicas[replica as usize]
                .replica
                .set_slowdown(numerator as u32, denominator as u32);
        }
        self.idle_at_new_speed(number);
    }

    /// Everything on a group is lost.
    pub(super) fn crash_group(&mut self, number: u32, why: &str) {
        let now = self.now();
        let phase = self.groups[number as usize].phase();
        if !phase.exists() {
            return;
        }
        // What ended at this instant ended before.
        for replica in self.groups[number as usize].replicas.clone() {
            self.touch(replica);
        }
        self.hear();
        self.become_phase(number, Phase::Failed);
        let config = &self.config.pools[self.groups[number as usize].pool];
        let group = &mut self.groups[number as usize];
        let incarnation = group.incarnation;
        group.incarnation += 1;
        group.crashed = Some(now);
        let was_draining = phase == Phase::Draining;
        for replica in group.replicas.clone() {
            let step_time = self.step_times[config.step_time];
            let leaps = self.leaps && !config.lockstep;
            let engine = engine::build(&config.engine, leaps, step_time.needs_decode_rows());
            at_replica!(self, replica, |slot, around| {
                slot.replica.crash(now, engine, &mut around);
                slot.forget_wake();
            });
        }
        self.break_wave(number);
        let what = format!("{}: {why}", self.group_name(number));
        self.tell("crash", Some(number), what);
        self.lose_attempts(number, incarnation);
        let detected = Event::Detected {
            group: number,
            incarnation: self.groups[number as usize].incarnation,
        };
        self.kernel
            .schedule(now + self.config.recovery.detection, Class::Fault, detected);
        if was_draining {
            // Nobody wants it back.
            self.become_phase(number, Phase::Stopped);
        }
    }

    /// Streams of a crashed group break when the crash is noticed; blocks that it held for others are gone.
    fn lose_attempts(&mut self, number: u32, incarnation: u32) {
        let at = self.now() + self.config.recovery.detection;
        for place in self.attempts.places() {
            let attempt = self.attempts.get(place);
            if (attempt.group, attempt.incarnation) != (number, incarnation) {
                continue;
            }
            if attempt.held.is_some() {
                self.lose_held(place);
            }
            if !self.attempts.get(place).is_over {
                self.break_push(place);
                self.stop_reading(place);
                self.kernel.schedule(at, Class::Fault, Event::Broken(place));
            }
        }
    }

    pub(super) fn crash_detected(&mut self, number: u32, incarnation: u32) {
        if self.groups[number as usize].incarnation != incarnation {
            return;
        }
        let name = self.group_name(number);
        self.tell("detected", Some(number), name);
        let event = Event::Unrouted {
            group: number,
            incarnation,
        };
        let at = self.now() + self.config.recovery.route_removal;
        self.kernel.schedule(at, Class::Fault, event);
    }

    /// Routers have taken a crashed group out; it starts again if that is wanted and what it stands on is there.
    pub(super) fn unroute_crashed(&mut self, number: u32, incarnation: u32) {
        let now = self.now();
        let group = &mut self.groups[number as usize];
        if group.incarnation != incarnation || group.phase() != Phase::Failed {
            return;
        }
        if std::mem::take(&mut group.is_routed) {
            self.router.left(number);
            self.prefill_router.left(number);
            let name = self.group_name(number);
            self.tell("routes_removed", Some(number), name);
        }
        let group = &self.groups[number as usize];
        if !self.config.recovery.restart {
            return;
        }
        if group.usable_from > now {
            let event = Event::Unrouted {
                group: number,
                incarnation,
            };
            let at = group.usable_from;
            self.kernel.schedule(at, Class::Fault, event);
        } else {
            self.start_group(number);
        }
    }

    /// A group takes nothing new and ends when it has nothing left.
    pub(super) fn drain_group(&mut self, number: u32, timeout: Option<SimDuration>) {
        match self.groups[number as usize].phase() {
            Phase::Ready => {
                self.become_phase(number, Phase::Draining);
                self.groups[number as usize].is_routed = false;
                self.router.left(number);
                self.prefill_router.left(number);
                let name = self.group_name(number);
                self.tell("draining", Some(number), name);
                let incarnation = self.groups[number as usize].incarnation;
                if let Some(timeout) = timeout {
                    let event = Event::DrainTimeout {
                        group: number,
                        incarnation,
                    };
                    let at = self.now() + timeout;
                    self.kernel.schedule(at, Class::Control, event);
                }
            }
            Phase::Starting(_) => self.stop_group(number),
            Phase::Failed => {
                // It does not come back.
                self.groups[number as usize].is_routed = false;
                self.stop_group(number);
            }
            _ => {}
        }
    }

    /// A failed group that never comes back is out of the routes.
    pub(super) fn give_up_group(&mut self, number: u32) {
        if std::mem::take(&mut self.groups[number as usize].is_routed) {
            self.router.left(number);
            self.prefill_router.left(number);
        }
        self.stop_group(number);
    }

    fn stop_group(&mut self, number: u32) {
        self.break_wave(number);
        if self.groups[number as usize].phase() == Phase::Draining {
            self.count_lost_cache(number);
        }
        self.groups[number as usize].incarnation += 1;
        self.become_phase(number, Phase::Stopped);
        let name = self.group_name(number);
        self.tell("stopped", Some(number), name);
    }

    /// What a group's caches hold when it has drained is of no use to anybody.
    fn count_lost_cache(&mut self, number: u32) {
        let mut blocks = 0;
        for replica in self.groups[number as usize].replicas.clone() {
            self.touch(replica);
            let engine = &self.replicas[replica as usize].replica.engine;
            blocks += u64::from(engine.cached_blocks());
        }
        let group = &mut self.groups[number as usize];
        group.cached_tokens_lost += blocks * u64::from(group.block_size);
    }

    /// What a draining group still has is broken off.
    pub(super) fn drain_timeout(&mut self, number: u32, incarnation: u32) {
        let group = &self.groups[number as usize];
        if group.incarnation == incarnation && group.phase() == Phase::Draining {
            self.crash_group(number, "drain timeout");
        }
    }

    /// Rollouts hear of groups in new phases, and draining groups that have nothing left end, until nothing changes.
    pub(super) fn settle_groups(&mut self) {
        loop {
            for number in 0..self.groups.len() as u32 {
                let group = &self.groups[number as usize];
                if group.phase() == Phase::Draining && group.in_flight == 0 && !self.has_work(number) {
                    self.stop_group(number);
                }
            }
            if !self.settle_control() {
                return;
            }
        }
    }

    /// Requests are in its engines (cancelled ones, too, until that is known there), or prefills that others have not read.
    fn has_work(&self, number: u32) -> bool {
        self.groups[number as usize].replicas.iter().any(|&replica| {
            let slot = &self.replicas[replica as usize];
            slot.is_busy() || slot.replica.has_unfinished() || slot.replica.engine.held_blocks() > 0
        })
    }

    /// Reads what a group's engines show now.
    pub(super) fn read_metrics(&mut self, number: u32) {
        let replicas = self.groups[number as usize].replicas.clone();
        let mut sum = Seen::default();
        for (index, &replica) in replicas.iter().enumerate() {
            self.touch(replica);
            let slot = &self.replicas[replica as usize].replica;
            let gauges = slot.gauges();
            let used = gauges.usable_blocks.saturating_sub(gauges.free_blocks);
            let seen = Seen {
                waiting: gauges.waiting + slot.undelivered(),
                running: gauges.running,
                kv_usage: f64::from(used) / f64::from(gauges.usable_blocks.max(1)),
            };
            self.groups[number as usize].ranks[index].seen = seen;
            sum.waiting += seen.waiting;
            sum.running += seen.running;
            sum.kv_usage += seen.kv_usage / replicas.len() as f64;
        }
        self.groups[number as usize].seen = sum;
    }
}
