//! Fair-shared links: transfers that cross several links at once, each at its max-min fair rate.
//!
//! # The model
//!
//! A transfer is a fluid. From its start it moves over all links of its path at one rate, the max-min fair one
//! (`link/fair.rs`) among all transfers under way; rates change only when a transfer starts, ends or is cancelled
//! or when a link's bandwidth changes. When the last byte has left (the *fluid end*) the links are free for others,
//! and the transfer is done one path latency later: completion = fluid end + sum of the latencies of its path. So
//! latency takes no bandwidth, and a lone transfer over one link takes bytes / bandwidth + latency.
//!
//! # Exactness
//!
//! Rates are whole bytes a second, and progress is counted in byte-nanoseconds a second, that is bytes x
//! [`UNITS_PER_BYTE`], in 128 bits. A rate times nanoseconds is a whole number of such units, so nothing is ever
//! rounded: a transfer that is done has moved exactly its bytes over each of its links. Its fluid end is the first
//! whole nanosecond at which that is so; the part of that nanosecond that is left over is given to nobody, which
//! costs a full link at most one nanosecond a transfer.
//!
//! # Special cases
//!
//! * A bandwidth of `u64::MAX` is infinite: the link holds nobody back. A transfer that nothing holds back takes its
//!   latency only, and with none is done at the instant of its start.
//! * A transfer of zero bytes takes its latency only, whatever the links carry, even when they are down.
//! * A link that is down (factor 0) or shared by more transfers than it has bytes a second gives some a rate of 0:
//!   they stall, lose nothing, and have no event of their own until rates change.
//! * What has passed its fluid end arrives, whatever becomes of the links.

use std::collections::{BTreeMap, BTreeSet};

use crate::units::{SimDuration, SimTime};

mod fair;
mod growing;

use fair::{Flow, UNBOUNDED};

/// Progress is counted in units of this part of a byte: one byte a second moves one unit a nanosecond.
pub const UNITS_PER_BYTE: u128 = 1_000_000_000;

/// One direction of one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkConfig {
    /// What users and reports call it.
    pub name: String,
    /// What all transfers on it share, bytes a second. `u64::MAX` is infinite.
    pub bandwidth_bytes_per_s: u64,
    /// How long a byte is under way.
    pub latency: SimDuration,
}

/// Why links make no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Nothing would ever cross it.
    #[error("link {name} (number {link}) has a bandwidth of 0 bytes/s; to take it down, use a fault")]
    NoBandwidth {
        /// Its number.
        link: u32,
        /// Its name.
        name: String,
    },
    /// Two links of one name.
    #[error("links {first} and {second} are both called {name}; give each its own name")]
    SameName {
        /// The number of the one.
        first: u32,
        /// The number of the other.
        second: u32,
        /// What both are called.
        name: String,
    },
}

/// A transfer. Numbers go up in the order of starts and are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

#[derive(Debug)]
struct Link {
    config: LinkConfig,
    /// Bandwidth at present, bytes a second.
    capacity: u64,
    flowing: BTreeSet<TransferId>,
    /// Units that have crossed, as of each transfer's `since`.
    moved: u128,
}

#[derive(Debug)]
struct Transfer {
    path: Vec<u32>,
    bytes: u64,
    cap: u64,
    latency: SimDuration,
    /// Units moved by `since`.
    moved: u128,
    /// Bytes a second from `since` on.
    rate: u64,
    since: SimTime,
    flowing: bool,
    /// Its entry among the events: the fluid end while it flows, then its arrival. None: stalled, or done.
    event: Option<SimTime>,
}

impl Transfer {
    fn units(&self) -> u128 {
        u128::from(self.bytes) * UNITS_PER_BYTE
    }

    /// Units moved between `since` and `now`.
    fn moved_since(&self, now: SimTime) -> u128 {
        let fluid = u128::from(self.rate) * u128::from(now.since(self.since).0);
        if self.flowing {
            fluid.min(self.units() - self.moved)
        } else {
            0
        }
    }

    /// The first nanosecond at which all has left; none while it stalls, or beyond the end of time.
    fn fluid_end(&self) -> Option<SimTime> {
        let left = self.units() - self.moved;
        match self.rate {
            0 => None,
            UNBOUNDED => Some(self.since),
            rate => {
                let ns = left.div_ceil(u128::from(rate)) + u128::from(self.since.0);
                u64::try_from(ns).ok().map(SimTime)
            }
        }
    }
}

/// Links, numbered from 0 in the order given, and what moves over them. All methods that take `now` must be called
/// in the order of time; an earlier instant counts as the latest one seen.
///
/// A start, an end or a change of a factor costs O(links x transfers) of the transfers that it can affect: those that
/// share a limited link with it, directly or through others.
#[derive(Debug)]
pub struct Network {
    now: SimTime,
    links: Vec<Link>,
    transfers: BTreeMap<TransferId, Transfer>,
    started: u64,
    events: BTreeSet<(SimTime, TransferId)>,
    /// Done, but not yet reported.
    done: BTreeSet<TransferId>,
}

impl Network {
    /// A network in which nothing moves.
    ///
    /// # Errors
    /// A link without bandwidth; two links of one name.
    pub fn new(links: Vec<LinkConfig>) -> Result<Self, NetworkError> {
        let mut names = BTreeMap::new();
        for (number, config) in (0..).zip(&links) {
            let name = config.name.clone();
            if config.bandwidth_bytes_per_s == 0 {
                return Err(NetworkError::NoBandwidth { link: number, name });
            }
            if let Some(first) = names.insert(name.clone(), number) {
                return Err(NetworkError::SameName {
                    first,
                    second: number,
                    name,
                });
            }
        }
        let link = |config: LinkConfig| Link {
            capacity: config.bandwidth_bytes_per_s,
            config,
            flowing: BTreeSet::new(),
            moved: 0,
        };
        Ok(Self {
            now: SimTime::ZERO,
            links: links.into_iter().map(link).collect(),
            transfers: BTreeMap::new(),
            started: 0,
            events: BTreeSet::new(),
            done: BTreeSet::new(),
        })
    }

    /// How many links there are.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// The configuration of a link; none if there is no such link.
    pub fn link(&self, link: u32) -> Option<&LinkConfig> {
        self.links.get(link as usize).map(|link| &link.config)
    }

    /// Starts to move `bytes` over all links of `path`, never faster than `cap` bytes a second. A link that is named
    /// twice counts once; the order of the path does not matter. An empty path has no latency and no limit but the cap.
    /// A cap of 0 stalls for good.
    ///
    /// # Panics
    /// If a link of the path does not exist: check paths against [`Network::links`] when they are read.
    pub fn start(&mut self, now: SimTime, path: &[u32], bytes: u64, cap: Option<u64>) -> TransferId {
        self.pass(now);
        let mut path = path.to_vec();
        path.sort_unstable();
        path.dedup();
        let latency = path.iter().fold(SimDuration::ZERO, |sum, &link| {
            sum + self.links[link as usize].config.latency
        });
        let id = TransferId(self.started);
        self.started += 1;
        let flowing = bytes > 0;
        let event = (!flowing).then(|| self.now + latency);
        self.events.extend(event.map(|at| (at, id)));
        if flowing {
            for &link in &path {
                self.links[link as usize].flowing.insert(id);
            }
        }
        let transfer = Transfer {
            path,
            bytes,
            cap: cap.unwrap_or(UNBOUNDED),
            latency,
            moved: 0,
            rate: 0,
            since: self.now,
            flowing,
            event,
        };
        self.transfers.insert(id, transfer);
        if flowing {
            self.share_anew(BTreeSet::from([id]));
        }
        id
    }

    /// When something changes next by itself at present rates: the links become free of a transfer, or one is done.
    /// Call [`Network::advance`] then, even if nothing is done: rates change when a transfer leaves the links. An
    /// instant that is not after the latest `now` means that something waits to be reported.
    pub fn next_change(&self) -> Option<SimTime> {
        if self.done.is_empty() {
            self.events.first().map(|&(at, _)| at)
        } else {
            Some(self.now)
        }
    }

    /// Moves everything to `now` and adds all that are done by then to `done`, in the order of their starts. They are
    /// then forgotten.
    pub fn advance(&mut self, now: SimTime, done: &mut Vec<TransferId>) {
        self.pass(now);
        for id in std::mem::take(&mut self.done) {
            self.transfers.remove(&id);
            done.push(id);
        }
    }

    /// Ends a transfer before its time, which is then never reported as done, and returns how many bytes it has moved over
    /// each of its links, rounded down. What moved stays counted in [`Network::moved`]. Zero for a transfer that is
    /// not under way.
    pub fn cancel(&mut self, now: SimTime, id: TransferId) -> u64 {
        self.pass(now);
        self.settle(id);
        let Some(transfer) = self.transfers.remove(&id) else {
            return 0;
        };
        self.done.remove(&id);
        if let Some(at) = transfer.event {
            self.events.remove(&(at, id));
        }
        if transfer.flowing {
            let freed = self.leave(id, &transfer.path);
            self.share_anew(freed);
        }
        u64::try_from(transfer.moved / UNITS_PER_BYTE).unwrap_or(u64::MAX)
    }

    /// From `now` on a link has `numerator / denominator` of its configured bandwidth, rounded down, but at least one byte
    /// a second unless the numerator is 0, which takes it down. Factors do not add up: the last one counts, and 1/1
    /// mends the link. An infinite link stays infinite unless it is down. A link that does not exist changes nothing,
    /// a denominator of 0 counts as 1.
    pub fn set_factor(&mut self, now: SimTime, link: u32, numerator: u32, denominator: u32) {
        self.pass(now);
        let Some(state) = self.links.get_mut(link as usize) else {
            return;
        };
        state.capacity = match (state.config.bandwidth_bytes_per_s, numerator) {
            (_, 0) => 0,
            (UNBOUNDED, _) => UNBOUNDED,
            (bandwidth, _) => super::ratio::Ratio::new(numerator, denominator)
                .part_of(bandwidth)
                .clamp(1, UNBOUNDED - 1),
        };
        let affected = state.flowing.clone();
        self.share_anew(affected);
    }

    /// What has crossed a link until the latest `now`, in units of 1 / [`UNITS_PER_BYTE`] byte: of those under way,
    /// cancelled and done. Zero for a link that does not exist.
    pub fn moved(&self, link: u32) -> u128 {
        self.links.get(link as usize).map_or(0, |link| {
            let under_way = link.flowing.iter().filter_map(|id| self.transfers.get(id));
            link.moved
                + under_way
                    .map(|transfer| transfer.moved_since(self.now))
                    .sum::<u128>()
        })
    }

    /// How many transfers have started and were neither reported as done nor cancelled.
    pub fn under_way(&self) -> usize {
        self.transfers.len()
    }

    /// The transfers that occupy a link at the latest `now`, in the order of their starts.
    pub fn on_link(&self, link: u32) -> impl Iterator<Item = TransferId> + '_ {
        self.links
            .get(link as usize)
            .into_iter()
            .flat_map(|link| link.flowing.iter().copied())
    }

    /// The size of a transfer under way; none once it was reported or cancelled.
    pub fn bytes_of(&self, id: TransferId) -> Option<u64> {
        self.transfers.get(&id).map(|transfer| transfer.bytes)
    }

    /// The rate of a transfer under way, bytes a second: 0 when it stalls or has left the links, `u64::MAX` when nothing
    /// holds it back.
    pub fn rate_of(&self, id: TransferId) -> Option<u64> {
        self.transfers
            .get(&id)
            .map(|transfer| if transfer.flowing { transfer.rate } else { 0 })
    }

    /// What a transfer under way has moved until the latest `now`, in units of 1 / [`UNITS_PER_BYTE`] byte.
    pub fn moved_of(&self, id: TransferId) -> Option<u128> {
        self.transfers
            .get(&id)
            .map(|transfer| transfer.moved + transfer.moved_since(self.now))
    }

    /// Handles all events up to `now`, instant by instant.
    fn pass(&mut self, now: SimTime) {
        while let Some(&(at, _)) = self.events.first()
            && at <= now
        {
            self.now = self.now.max(at);
            let mut affected = BTreeSet::new();
            while let Some(&(also_at, id)) = self.events.first()
                && also_at == at
            {
                self.events.pop_first();
                affected.extend(self.happens(id));
            }
            self.share_anew(affected);
        }
        self.now = self.now.max(now);
    }

    /// A transfer's event: it leaves the links, or is done. Returns who is affected.
    fn happens(&mut self, id: TransferId) -> BTreeSet<TransferId> {
        self.settle(id);
        let Some(transfer) = self.transfers.get_mut(&id) else {
            return BTreeSet::new();
        };
        if !transfer.flowing {
            transfer.event = None;
            self.done.insert(id);
            return BTreeSet::new();
        }
        let rest = transfer.units() - transfer.moved;
        transfer.moved += rest; // all of it at an infinite rate, else nothing
        transfer.flowing = false;
        let arrival = self.now + transfer.latency;
        transfer.event = Some(arrival);
        let path = transfer.path.clone();
        for &link in &path {
            self.links[link as usize].moved += rest;
        }
        self.events.insert((arrival, id));
        self.leave(id, &path)
    }

    /// Takes a transfer off its links and returns who else flows there.
    fn leave(&mut self, id: TransferId, path: &[u32]) -> BTreeSet<TransferId> {
        let mut others = BTreeSet::new();
        for &link in path {
            let link = &mut self.links[link as usize];
            link.flowing.remove(&id);
            if link.capacity != UNBOUNDED {
                others.extend(&link.flowing);
            }
        }
        others
    }

    /// Counts what a transfer moved until now.
    fn settle(&mut self, id: TransferId) {
        let now = self.now;
        if let Some(transfer) = self.transfers.get_mut(&id) {
            let moved = transfer.moved_since(now);
            transfer.moved += moved;
            transfer.since = now;
            for &link in &transfer.path {
                self.links[link as usize].moved += moved;
            }
        }
    }

    /// New rates for these transfers and for all that share a limited link with them, directly or through others.
    fn share_anew(&mut self, changed: BTreeSet<TransferId>) {
        let (affected, mut room) = self.affected_by(changed);
        let flows: Vec<Flow<'_>> = affected
            .iter()
            .filter_map(|id| self.transfers.get(id))
            .map(|transfer| Flow {
                path: &transfer.path,
                cap: transfer.cap,
            })
            .collect();
        let rates = fair::rates(&flows, &mut room);
        for (id, rate) in affected.into_iter().zip(rates) {
            self.set_rate(id, rate);
        }
    }

    /// The transfers whose rates can change, all of them flowing, in the order of their starts; and the bandwidth of
    /// each link.
    fn affected_by(&self, changed: BTreeSet<TransferId>) -> (BTreeSet<TransferId>, Vec<u64>) {
        let mut seen = vec![false; self.links.len()];
        let mut affected = changed;
        affected.retain(|id| self.transfers.get(id).is_some_and(|transfer| transfer.flowing));
        let mut to_visit: Vec<TransferId> = affected.iter().copied().collect();
        while let Some(id) = to_visit.pop() {
            for &link in &self.transfers[&id].path {
                let state = &self.links[link as usize];
                if state.capacity != UNBOUNDED && !std::mem::replace(&mut seen[link as usize], true) {
                    to_visit.extend(state.flowing.iter().filter(|&&other| affected.insert(other)));
                }
            }
        }
        (affected, self.links.iter().map(|link| link.capacity).collect())
    }

    /// Gives a flowing transfer a rate from now on.
    fn set_rate(&mut self, id: TransferId, rate: u64) {
        if self
            .transfers
            .get(&id)
            .is_none_or(|transfer| transfer.rate == rate)
        {
            return;
        }
        self.settle(id);
        if let Some(transfer) = self.transfers.get_mut(&id) {
            transfer.rate = rate;
        }
        self.renew_event(id);
    }

    /// The event of a flowing transfer is its fluid end, by what it has moved by now and by its rate.
    fn renew_event(&mut self, id: TransferId) {
        let Some(transfer) = self.transfers.get_mut(&id) else {
            return;
        };
        let end = transfer.fluid_end();
        if let Some(at) = std::mem::replace(&mut transfer.event, end) {
            self.events.remove(&(at, id));
        }
        self.events.extend(end.map(|at| (at, id)));
    }
}

#[cfg(test)]
#[path = "link/tests.rs"]
mod tests;
