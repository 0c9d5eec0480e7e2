//! Prefill here, decode there: the proxy's flow, transfers, and the leases of what was computed (rules D1-D17).

use super::config::{FleetConfig, PoolRole};
use super::dispatch::Among;
use super::jobs::{Held, JobNumber, Place, Reading};
use super::push::Push;
use super::world::{Event, Fleet};
use crate::cluster::gateway::Cause;
use crate::cluster::link::{LinkConfig, Network, NetworkError};
use crate::cluster::ratio::Ratio;
use crate::cluster::router::PrefillDecider;
use crate::engine::{Leg, Load};
use crate::record::Recorder;
use crate::sim::kernel::Class;
use crate::units::{SimDuration, SimTime};

/// What becomes of a request whose KV does not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    Fails,
    Recomputes,
}

impl<R: Recorder> Fleet<'_, R> {
    /// The links of the configuration, then two for each place of a group in each pool: out and in.
    pub(super) fn links(config: &FleetConfig) -> Result<Network, NetworkError> {
        let mut links = config.links.clone();
        for pool in &config.pools {
            for slot in 0..pool.max_groups {
                for way in ["out", "in"] {
                    links.push(LinkConfig {
                        name: format!("{}/{slot} {way}", pool.name),
                        bandwidth_bytes_per_s: pool.nic_bytes_per_s.max(1),
                        latency: SimDuration::ZERO,
                    });
                }
            }
        }
        Network::new(links)
    }

    /// The links of a group: out and in.
    fn nic(&self, group: u32) -> (u32, u32) {
        let group = &self.groups[group as usize];
        let before: u32 = self.config.pools[..group.pool].iter().map(|p| p.max_groups).sum();
        let slot = group
            .slot
            .min(self.config.pools[group.pool].max_groups.saturating_sub(1));
        let first = self.config.links.len() as u32 + 2 * (before + slot);
        (first, first + 1)
    }

    /// A job's prompt is computed by a group of its own, unless that is not worth it (D23, D31).
    pub(super) fn dispatch_disaggregated(&mut self, job: JobNumber) {
        let decider = self.config.routing.decider;
        if decider != PrefillDecider::Always {
            let Some(decode) = self.choose(job, Among::Answering, None) else {
                return self.turned_down(job, Cause::Failed);
            };
            let queued = self.prefills_queued();
            let asked = &self.jobs.get(job).asked;
            if !decider.is_remote(asked.input_tokens, self.router.believed_cached(), queued) {
                self.send_attempt(job, decode, Leg::Whole, None);
                return;
            }
            self.jobs.get(job).decode_group = Some(decode);
        }
        match self.choose(job, Among::Prefill, None) {
            Some(group) if self.pushes() => self.dispatch_both(job, group),
            Some(group) => {
                self.send_attempt(job, group, Leg::Prefill, None);
            }
            None if self.config.transfer.local_fallback => {
                self.jobs.get(job).prefill_locally = true;
                self.dispatch(job);
            }
            None => self.turned_down(job, Cause::Failed),
        }
    }

    /// Prompts at prefill groups that have not been computed.
    fn prefills_queued(&self) -> u32 {
        let of_prefill = |g: &&super::groups::Group| self.config.pools[g.pool].role == PoolRole::Prefill;
        self.groups.iter().filter(of_prefill).map(|g| g.in_flight).sum()
    }

    /// A prompt is computed: its blocks wait to be read, and the proxy hears of it (D1, D3, D14).
    pub(super) fn prefill_ended(&mut self, place: Place) {
        let (until, pushes) = (self.now() + self.config.transfer.lease, self.pushes());
        let attempt = self.attempts.get(place);
        attempt.held = Some(Held {
            until,
            reader: None,
            is_kept: false,
        });
        attempt.is_unheard = !pushes;
        self.gateway.obligations += 1;
        if pushes {
            return self.pushing_prefill_ended(place, until);
        }
        self.schedule_control(until, Event::Lease(place));
        let answered = self.now() + self.config.transfer.response;
        self.kernel
            .schedule(answered, Class::Arrival, Event::PrefillAnswered(place));
    }

    /// With push nobody waits for the prefill's answer: only what is not written yet is left of it.
    fn pushing_prefill_ended(&mut self, place: Place, until: SimTime) {
        let job = self.attempts.get(place).job;
        if !self.jobs.has_ended(job) && self.jobs.get(job).places.contains(&place) {
            let record = self.attempts.live(place).record.clone();
            let now = self.now();
            let has_room = self.pushes.get(&place).is_some_and(|p| p.knows_blocks());
            let j = self.jobs.get(job);
            j.places.retain(|&p| p != place);
            j.prefilled = Some(record);
            j.told.handed = Some(now);
            j.told.transfer_start = has_room.then_some(now);
        }
        let is_written = self.pushes.get(&place).is_some_and(Push::is_done);
        let reader = self.pushed_prefill_ended(place);
        if is_written {
            return self.release_held(place);
        }
        if let Some(held) = &mut self.attempts.get(place).held {
            held.reader = reader;
        }
        self.schedule_control(until, Event::Lease(place));
    }

    pub(super) fn prefill_answered(&mut self, place: Place) {
        let attempt = self.attempts.get(place);
        attempt.is_unheard = false;
        let job = attempt.job;
        if self.jobs.has_ended(job) || !self.jobs.get(job).places.contains(&place) {
            return;
        }
        let record = self.attempts.live(place).record.clone();
        let j = self.jobs.get(job);
        j.places.retain(|&p| p != place);
        j.prefilled = Some(record);
        let wanted = j.decode_group.take();
        let wanted = wanted.filter(|&g| self.groups[g as usize].is_routed);
        let Some(group) = wanted.or_else(|| self.choose(job, Among::Answering, None)) else {
            return self.turned_down(job, Cause::Failed);
        };
        let reading = Reading {
            from: place,
            known: None,
            load: None,
            transfer: None,
            is_done: false,
            is_begun: true,
        };
        self.jobs.get(job).told.handed = Some(self.kernel.now());
        let reader = self.send_attempt(job, group, Leg::Decode, Some(reading));
        if let Some(held) = &mut self.attempts.get(place).held {
            held.reader = Some(reader);
        }
    }

    /// Decode groups have made room for prompts: their transfers are posted (D6, D17).
    pub(super) fn hear_loads(&mut self, loads: &[(u32, Load)]) {
        for &(_, load) in loads {
            let now = self.now();
            let Some(attempt) = self.attempts.find(load.id).filter(|a| !a.is_over) else {
                continue;
            };
            let group = attempt.group;
            if let Some(reading) = &mut attempt.reading {
                reading.load = Some(load);
            }
            if self.pushes() {
                self.tell_blocks(load);
                continue;
            }
            let pool = &self.config.pools[self.groups[group as usize].pool];
            let descriptors = u64::from(load.blocks) * u64::from(pool.block_descriptors);
            let transfer = &self.config.transfer;
            let posted = now + transfer.fixed + transfer.per_descriptor * descriptors;
            self.kernel
                .schedule(posted, Class::Transfer, Event::TransferPosted(load.id));
        }
    }

    /// Blocks begin to move, if they are still there.
    pub(super) fn transfer_posted(&mut self, place: Place) {
        let Some((reading, group)) = self.open_reading(place) else {
            return;
        };
        let (Some(load), from) = (reading.load, reading.from) else {
            return;
        };
        let source = self
            .attempts
            .find(from)
            .filter(|a| a.held.is_some())
            .map(|a| a.group);
        let Some(source) = source else {
            return self.load_breaks(place, 0);
        };
        let pool = &self.config.pools[self.groups[group as usize].pool];
        let bytes = u64::from(load.blocks) * pool.block_bytes;
        let path = self.path(source, group);
        let now = self.now();
        let id = self.network.start(now, &path, bytes, None);
        self.transfers.insert(id, place);
        let job = self.attempts.get(place).job;
        if !self.jobs.has_ended(job) {
            self.jobs.get(job).told.transfer_start = Some(now);
        }
        if let Some(reading) = &mut self.attempts.get(place).reading {
            reading.transfer = Some(id);
        }
        self.watch_network();
    }

    /// The links between two groups.
    pub(super) fn path(&self, source: u32, target: u32) -> Vec<u32> {
        let mut path = vec![self.nic(source).0, self.nic(target).1];
        path.extend(&self.config.transfer.fabric);
        path
    }

    /// The reading of a decode attempt that is still wanted, and its group.
    pub(super) fn open_reading(&mut self, place: Place) -> Option<(Reading, u32)> {
        let attempt = self.attempts.find(place).filter(|a| !a.is_over)?;
        Some((attempt.reading.filter(|r| !r.is_done)?, attempt.group))
    }

    pub(super) fn watch_network(&mut self) {
        self.network_version = self.network_version.wrapping_add(1);
        if let Some(at) = self.network.next_change() {
            let event = Event::Network(self.network_version);
            self.kernel
                .schedule(at.max(self.kernel.now()), Class::Transfer, event);
        }
    }

    pub(super) fn network_changes(&mut self, version: u32) {
        if version != self.network_version {
            return;
        }
        let mut done = Vec::new();
        self.network.advance(self.kernel.now(), &mut done);
        for id in done {
            match self.transfers.remove(&id) {
                Some(place) if self.pushes() => self.write_arrived(place, id),
                Some(place) => self.transfer_done(place),
                None => {}
            }
        }
        self.watch_network();
    }

    pub(super) fn set_link(&mut self, link: u32, factor: Ratio) {
        self.network
            .set_factor(self.kernel.now(), link, factor.numerator, factor.denominator);
        self.watch_network();
    }

    /// All blocks have come: the decode group may go on, and the prefill group's are free (D8, D3).
    pub(super) fn transfer_done(&mut self, place: Place) {
        let Some((reading, group)) = self.open_reading(place) else {
            return;
        };
        let now = self.now();
        let attempt = self.attempts.get(place);
        attempt.reading = Some(Reading {
            is_done: true,
            transfer: None,
            ..reading
        });
        let (replica, job) = (attempt.replica, attempt.job);
        self.touch(replica);
        self.replicas[replica as usize].replica.transferred(place, None);
        let pool = &self.config.pools[self.groups[group as usize].pool];
        let blocks = reading.load.map_or(0, |l| l.blocks);
        let bytes = u64::from(blocks) * pool.block_bytes;
        if !self.jobs.has_ended(job) {
            let told = &mut self.jobs.get(job).told;
            told.transferred_bytes += bytes;
            told.transfer = Some(now);
        }
        self.release_held(reading.from);
    }

    /// A transfer broke off after some bytes: the request ends, or the rest of its prompt is computed where it is (D13).
    pub(super) fn load_breaks(&mut self, place: Place, moved: u64) {
        let broken = if self.config.transfer.failure_ends_request {
            Broken::Fails
        } else {
            Broken::Recomputes
        };
        self.break_reading(place, moved, broken);
    }

    pub(super) fn break_reading(&mut self, place: Place, moved: u64, broken: Broken) {
        let Some((reading, group)) = self.open_reading(place) else {
            return;
        };
        let attempt = self.attempts.get(place);
        attempt.reading = Some(Reading {
            is_done: true,
            transfer: None,
            ..reading
        });
        let replica = attempt.replica;
        self.record.failed_transfers += 1;
        if broken == Broken::Fails {
            let job = self.attempts.get(place).job;
            self.keep_stream(job, place);
            self.cancel(place);
            if !self.jobs.has_ended(job) && self.jobs.get(job).places.is_empty() {
                // It has made no token. Its prompt was computed for nothing: that is counted as it is turned down.
                self.turned_down(job, Cause::Failed);
            }
            return;
        }
        let pool = &self.config.pools[self.groups[group as usize].pool];
        let blocks = u32::try_from(moved / pool.block_bytes.max(1)).unwrap_or(u32::MAX);
        let cached = reading.load.map_or(0, |l| l.cached_tokens);
        let valid = cached.saturating_add(blocks.saturating_mul(pool.engine.block_size));
        let attempt = self.attempts.get(place);
        let job = attempt.job;
        let again = self.attempts.live(place).asked.input_tokens.saturating_sub(valid);
        let asked = self.attempts.live(place).asked.input_tokens;
        // A prompt that nobody has begun elsewhere counts as a whole here, cached tokens included.
        self.attempts.get(place).recomputed_tokens = if reading.is_begun { again } else { asked };
        if reading.is_begun && !self.jobs.has_ended(job) {
            // What was computed elsewhere and did not come.
            self.waste(job, 0, again);
        }
        self.touch(replica);
        self.replicas[replica as usize]
            .replica
            .transferred(place, Some(valid));
    }

    /// A decode attempt reads no more; what it was to read stays until its lease ends (D15).
    pub(super) fn stop_reading(&mut self, place: Place) {
        let Some(reading) = &mut self.attempts.get(place).reading else {
            return;
        };
        reading.is_done = true;
        let (from, known) = (reading.from, reading.known);
        if self.pushes() {
            self.close_push(from);
        }
        let Some(reading) = &mut self.attempts.get(place).reading else {
            return;
        };
        if let Some(id) = reading.transfer.take() {
            self.transfers.remove(&id);
            self.network.cancel(self.kernel.now(), id);
            self.watch_network();
        }
        let (now, transfer) = (self.kernel.now(), &self.config.transfer);
        if let Some(held) = self.attempts.find(from).and_then(|a| a.held.as_mut()) {
            // Its heartbeats so far count; there will be no more.
            held.until = held.renewed(known, now, transfer.heartbeat, transfer.renewal);
            if std::mem::take(&mut held.is_kept) {
                let until = held.until;
                self.schedule_control(until, Event::Lease(from));
            }
        }
    }

    /// A prefill group has crashed: what it held is gone, and those that read it hear of it.
    pub(super) fn lose_held(&mut self, place: Place) {
        let Some(held) = self.attempts.get(place).held.take() else {
            return;
        };
        self.gateway.obligations -= 1;
        self.attempts.live(place).has_ended = true;
        let Some(reader) = held.reader else { return };
        if self.pushes() {
            self.break_push(place);
            let heard = self.now() + self.config.recovery.detection;
            self.kernel.schedule(heard, Class::Fault, Event::PushLost(place));
            return;
        }
        let transfer = self.attempts.find(reader).and_then(|a| a.reading?.transfer);
        if let Some(id) = transfer {
            self.transfers.remove(&id);
            let moved = self.network.cancel(self.kernel.now(), id);
            self.watch_network();
            self.load_breaks(reader, moved);
        }
    }

    /// A prefill's blocks are free.
    pub(super) fn release_held(&mut self, place: Place) {
        let Some(attempt) = self.attempts.find(place) else {
            return;
        };
        if attempt.held.take().is_none() {
            return;
        }
        let replica = attempt.replica;
        self.gateway.obligations -= 1;
        self.touch(replica);
        self.replicas[replica as usize].replica.engine.release_held(place);
    }

    /// A lease ends, unless heartbeats have renewed it (D14).
    pub(super) fn lease_ends(&mut self, place: Place) {
        let now = self.now();
        let Some(held) = self.attempts.find(place).and_then(|a| a.held) else {
            return;
        };
        let until = self.lease_until(held, now);
        if until > now {
            let renews = self.config.transfer.renewal >= self.config.transfer.heartbeat;
            let is_kept = renews && until > held.until;
            if !is_kept {
                self.schedule_control(until, Event::Lease(place));
            }
            if let Some(held) = &mut self.attempts.get(place).held {
                (held.until, held.is_kept) = (until, is_kept);
            }
            return;
        }
        self.record.leases_expired += 1;
        let reader = held
            .reader
            .and_then(|r| self.open_reading(r).map(|(reading, _)| (r, reading)));
        self.release_held(place);
        if self.pushes() {
            if let Some((reader, _)) = reader {
                self.push_expires(place, reader);
            }
            return;
        }
        if let Some((reader, reading)) = reader
            && let Some(id) = reading.transfer
        {
            self.transfers.remove(&id);
            let moved = self.network.cancel(now, id);
            self.watch_network();
            self.load_breaks(reader, moved);
        }
    }

    fn lease_until(&mut self, held: Held, now: SimTime) -> SimTime {
        let transfer = &self.config.transfer;
        let (heartbeat, renewal) = (transfer.heartbeat, transfer.renewal);
        let Some(reader) = held.reader else {
            return held.until;
        };
        let Some((reading, group)) = self.open_reading(reader) else {
            return held.until;
        };
        let attempt = self.attempts.get(reader);
        let (incarnation, known) = (attempt.incarnation, reading.known);
        if self.groups[group as usize].incarnation != incarnation {
            return held.until;
        }
        held.renewed(known, now, heartbeat, renewal)
    }

    /// Tells of the tokens of an attempt that are not told yet.
    pub(super) fn tell_tokens(&mut self, place: Place) {
        let attempt = self.attempts.get(place);
        let (group, incarnation, replica) = (attempt.group, attempt.incarnation, attempt.replica);
        if self.groups[group as usize].incarnation == incarnation {
            self.touch(replica);
            super::lazy::at_replica!(self, replica, |slot, around| {
                slot.replica.cut_off(&mut around);
            });
        }
    }
}
