//! KV that prefill groups write while they compute: layer-wise push (rules D5-D8, D13-D15, D31).
//!
//! The proxy sends a request to both groups at once. The decode group's scheduler makes room for the prompt (D6, D7, D12)
//! and tells the prefill group its blocks, which takes [`TransferConfig::response`](super::TransferConfig); from then on
//! each layer that is computed is written (`cluster/push.rs`). All writes of a request are one flow on the links at a
//! time. The decode group goes on when all bytes have come, as after a read (D8), and the prefill group's blocks are free
//! then. A decode group only waits to be told of an end: it hears of a prefill group's death when that is noticed.

use super::config::TransferMode;
use super::disaggregated::Broken;
use super::jobs::{Attempt, JobNumber, Place, Reading};
use super::world::{Event, Fleet};
use crate::cluster::gateway::Cause;
use crate::cluster::link::{TransferId, UNITS_PER_BYTE};
use crate::cluster::push::{LayerWise, PostCost, Wanted};
use crate::engine::{Leg, Load, RequestId};
use crate::record::Recorder;
use crate::sim::kernel::Class;
use crate::sim::replica::PromptNews;
use crate::units::SimTime;

/// What a prefill attempt writes.
#[derive(Debug)]
pub(super) struct Push {
    /// The decode attempt that it writes to.
    to: Place,
    prompt: LayerWise,
    /// Writes whose bytes have not all arrived; the last one may be on its links.
    flows: Vec<(TransferId, u64)>,
    arrived: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It writes, or will.
    Open,
    /// All has come, before the prefill attempt has ended.
    Done,
    /// Nothing more will come; so many bytes of whole blocks have.
    Broken { valid_bytes: u64 },
    /// That is known, and the decode attempt recomputes when it has room for its prompt.
    Lost,
}

impl Push {
    /// All has come.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The decode group has told its blocks.
    pub fn knows_blocks(&self) -> bool {
        self.prompt.total_bytes().is_some()
    }
}

impl<R: Recorder> Fleet<'_, R> {
    pub(super) fn pushes(&self) -> bool {
        self.config.transfer.mode != TransferMode::Pull
    }

    /// Sends a job to the group that prefills and to the one that decodes.
    pub(super) fn dispatch_both(&mut self, job: JobNumber, prefill: u32) {
        let chosen = self.jobs.get(job).decode_group.take();
        let Some(decode) = chosen.or_else(|| self.choose(job, super::dispatch::Among::Answering, None))
        else {
            return self.turned_down(job, Cause::Failed);
        };
        let from = self.send_attempt(job, prefill, Leg::Prefill, None);
        let reading = Reading {
            from,
            known: None,
            load: None,
            transfer: None,
            is_done: false,
            is_begun: false,
        };
        let to = self.send_attempt(job, decode, Leg::Decode, Some(reading));
        let TransferMode::Push { layers, from: chunks } = self.config.transfer.mode else {
            return;
        };
        let post = PostCost {
            fixed: self.config.transfer.fixed,
            per_descriptor: self.config.transfer.per_descriptor,
        };
        let tokens = self.attempts.live(from).asked.input_tokens;
        let push = Push {
            to,
            prompt: LayerWise::new(tokens, layers, chunks, post),
            flows: Vec::new(),
            arrived: 0,
            state: State::Open,
        };
        self.pushes.insert(from, push);
    }

    /// Prefill groups compute or lose prompts.
    pub(super) fn hear_prompts(&mut self, prompts: &[(RequestId, PromptNews)]) {
        for &(place, news) in prompts {
            let Some(push) = self.pushes.get_mut(&place) else {
                continue;
            };
            match news {
                PromptNews::Lost => push.prompt.loses(),
                PromptNews::Computes {
                    computed,
                    tokens,
                    start,
                    end,
                } => {
                    let (to, turns) = (push.to, push.prompt.computes(computed, tokens, start, end));
                    if let Some(reading) = self.attempts.find(to).and_then(|a| a.reading.as_mut()) {
                        reading.is_begun = true;
                    }
                    for at in turns {
                        self.schedule_turn(place, at);
                    }
                }
            }
        }
    }

    fn schedule_turn(&mut self, place: Place, at: SimTime) {
        let at = at.max(self.kernel.now());
        self.kernel.schedule(at, Class::Transfer, Event::PushTurn(place));
    }

    /// A decode group has made room and tells its blocks.
    pub(super) fn tell_blocks(&mut self, load: Load) {
        let at = self.now() + self.config.transfer.response;
        self.kernel
            .schedule(at, Class::Transfer, Event::BlocksKnown(load.id));
    }

    /// A prefill group hears of the blocks of a decode attempt, if it still has what to write there.
    pub(super) fn blocks_known(&mut self, to: Place) {
        let Some((reading, group)) = self.open_reading(to) else {
            return;
        };
        let (Some(load), from, now) = (reading.load, reading.from, self.now()) else {
            return;
        };
        let pool = &self.config.pools[self.groups[group as usize].pool];
        let size = pool.engine.block_size.max(1);
        let wanted = Wanted {
            cached_blocks: load.cached_tokens / size,
            blocks: load.blocks,
            block_size: size,
            block_bytes: pool.block_bytes,
            block_descriptors: pool.block_descriptors,
        };
        let Some(push) = self.pushes.get_mut(&from) else {
            return self.load_breaks(to, 0);
        };
        match push.state {
            State::Open => {
                let begins = push.prompt.hears(wanted, now);
                let job = self.attempts.get(to).job;
                if !self.jobs.has_ended(job) {
                    let told = &mut self.jobs.get(job).told;
                    told.transfer_start = told.handed.map(|_| now);
                }
                if load.blocks == 0 {
                    self.push_done(from);
                } else {
                    self.schedule_turn(from, begins);
                }
            }
            State::Lost => {
                self.pushes.remove(&from);
                self.break_reading(to, 0, Broken::Recomputes);
            }
            // It hears when the death is noticed.
            State::Broken { .. } | State::Done => {}
        }
    }

    /// Writes what has been computed.
    pub(super) fn push_turn(&mut self, from: Place) {
        let now = self.now();
        let Some(push) = self.pushes.get_mut(&from).filter(|p| p.state == State::Open) else {
            return;
        };
        let (due, to, last) = (push.prompt.due(now), push.to, push.flows.last().copied());
        let grows = last.filter(|&(id, _)| self.network.extend(now, id, due.bytes));
        let flow = match grows {
            Some((id, _)) => {
                if let Some(push) = self.pushes.get_mut(&from)
                    && let Some((_, bytes)) = push.flows.last_mut()
                {
                    *bytes += due.bytes;
                }
                Some(id)
            }
            None if due.bytes > 0 => self.start_write(from, to, due.bytes),
            None => None,
        };
        if let Some(id) = flow {
            let cap = due.even_until.and_then(|until| self.even_rate(id, until));
            self.network.set_cap(now, id, cap);
        }
        self.watch_network();
        if let Some(at) = due.again {
            self.schedule_turn(from, at);
        }
    }

    /// A write of its own; it stalls until it has its rate.
    fn start_write(&mut self, from: Place, to: Place, bytes: u64) -> Option<TransferId> {
        let source = self.attempts.find(from)?.group;
        let target = self.attempts.find(to)?.group;
        let path = self.path(source, target);
        let id = self.network.start(self.kernel.now(), &path, bytes, Some(0));
        self.transfers.insert(id, to);
        self.pushes.get_mut(&from)?.flows.push((id, bytes));
        Some(id)
    }

    /// The rate, bytes a second, at which all that is left of a transfer takes until then at least.
    fn even_rate(&self, id: TransferId, until: SimTime) -> Option<u64> {
        let units = u128::from(self.network.bytes_of(id)?) * UNITS_PER_BYTE;
        let left = units.saturating_sub(self.network.moved_of(id)?);
        let ns = until.since(self.kernel.now()).as_nanos();
        let rate = left.checked_div(u128::from(ns))?;
        u64::try_from(rate).ok()
    }

    /// The bytes of a write have come.
    pub(super) fn write_arrived(&mut self, to: Place, id: TransferId) {
        let Some((reading, _)) = self.open_reading(to) else {
            return;
        };
        let Some(push) = self.pushes.get_mut(&reading.from) else {
            return;
        };
        if let Some(index) = push.flows.iter().position(|&(flow, _)| flow == id) {
            push.arrived += push.flows.remove(index).1;
        }
        if push.prompt.total_bytes() == Some(push.arrived) {
            self.push_done(reading.from);
        }
    }

    fn push_done(&mut self, from: Place) {
        let Some(push) = self.pushes.get_mut(&from) else {
            return;
        };
        push.state = State::Done;
        let to = push.to;
        if self.attempts.find(from).is_none_or(|a| a.is_over) {
            self.pushes.remove(&from);
        }
        self.transfer_done(to);
    }

    /// A prefill that is written elsewhere has ended. Returns who waits for the rest of it; nobody, if all has come.
    pub(super) fn pushed_prefill_ended(&mut self, place: Place) -> Option<Place> {
        let push = self.pushes.get(&place)?;
        let (to, is_done) = (push.to, push.state == State::Done);
        if is_done {
            self.pushes.remove(&place);
        }
        (!is_done).then_some(to)
    }

    /// A prefill group is dead, or has let go of what it was to write: what moves stops.
    pub(super) fn break_push(&mut self, from: Place) {
        let Some(push) = self.pushes.get_mut(&from).filter(|p| p.state == State::Open) else {
            return;
        };
        let mut moved = push.arrived;
        for (id, _) in push.flows.drain(..) {
            self.transfers.remove(&id);
            moved += self.network.cancel(self.kernel.now(), id);
        }
        let valid_bytes = push.prompt.valid_bytes(moved);
        push.state = State::Broken { valid_bytes };
        self.watch_network();
    }

    /// A decode attempt hears that no more comes of a prefill: it fails, or recomputes what did not come as soon as it
    /// has room for its prompt (rule D13); always so if prompts are prefilled elsewhere for want of a prefill group
    /// (rule D15).
    pub(super) fn push_is_lost(&mut self, from: Place, falls_back: bool) {
        let Some(push) = self.pushes.get_mut(&from) else {
            return;
        };
        let State::Broken { valid_bytes } = push.state else {
            if push.is_done() {
                self.pushes.remove(&from);
            }
            return;
        };
        let to = push.to;
        let recomputes = falls_back || !self.config.transfer.failure_ends_request;
        let Some((reading, _)) = self.open_reading(to) else {
            self.pushes.remove(&from);
            return;
        };
        match (recomputes, reading.load) {
            (true, None) => {
                if let Some(push) = self.pushes.get_mut(&from) {
                    push.state = State::Lost;
                }
            }
            (true, Some(_)) => {
                self.pushes.remove(&from);
                self.break_reading(to, valid_bytes, Broken::Recomputes);
            }
            (false, _) => {
                self.pushes.remove(&from);
                self.break_reading(to, valid_bytes, Broken::Fails);
            }
        }
    }

    /// A prefill attempt's group is dead or does not take it; the decode attempt hears of it.
    pub(super) fn pushing_prefill_broken(&mut self, place: Place) {
        self.break_push(place);
        self.attempt_failed(place, Cause::Failed);
        self.push_is_lost(place, self.config.transfer.local_fallback);
    }

    /// A prefill group has let go of what it was to write. A decode attempt that has no room yet finds out later.
    pub(super) fn push_expires(&mut self, from: Place, reader: Place) {
        self.break_push(from);
        let has_room = self.open_reading(reader).is_some_and(|(r, _)| r.load.is_some());
        match self.pushes.remove(&from).map(|push| push.state) {
            Some(State::Broken { valid_bytes }) if has_room => self.load_breaks(reader, valid_bytes),
            _ => {}
        }
    }

    /// Nobody waits for a prefill's KV any more, or it will never be there.
    pub(super) fn close_push(&mut self, from: Place) {
        let Some(push) = self.pushes.remove(&from) else {
            return;
        };
        for (id, _) in push.flows {
            self.transfers.remove(&id);
            self.network.cancel(self.kernel.now(), id);
        }
        self.watch_network();
    }

    /// An attempt has failed: what is computed or awaited for it elsewhere is given up.
    pub(super) fn give_up_partner(&mut self, place: Place) {
        if !self.pushes() {
            return;
        }
        let Attempt {
            job, leg, reading, ..
        } = *self.attempts.get(place);
        let partner = match leg {
            Leg::Prefill => self.pushes.get(&place).map(|push| push.to),
            Leg::Decode => reading.map(|r| r.from),
            Leg::Whole => None,
        };
        let is_under_way = |p: &Place, fleet: &mut Self| {
            !fleet.jobs.has_ended(job) && fleet.jobs.get(job).places.contains(p)
        };
        if let Some(partner) = partner.filter(|p| is_under_way(p, self)) {
            if leg == Leg::Prefill {
                self.keep_stream(job, partner);
            }
            self.cancel(partner);
        }
    }
}
