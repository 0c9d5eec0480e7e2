//! What a server's gauges tell: every step of it, or readings now and then.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::Limits;
use crate::metric::scrape::ended_in_steps;
use crate::record::{RunRecord, Scrape, Status};
use crate::units::SimTime;

/// vLLM publishes its gauges when the requests that ended in a step have left, so a scrape of a full server shows
/// fewer than its seats by those that just ended: with blocks to spare this share of them counts as full. Real
/// scrapes of 16 seats under a standing queue show 13 to 16.
const FULL_IN_SCRAPES: f64 = 0.8;
/// A scrape with this share of the KV blocks in use has none to spare, where the next prompt's need is not known.
const KV_FULL: f64 = 0.95;

/// One state of the gauges and how long it lasted.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Reading {
    from: SimTime,
    /// Equal to `from` for a scrape.
    to: SimTime,
    running: u64,
    waiting: u64,
    full: bool,
    /// The free blocks cannot hold the next request; `None` when that is not known.
    short: Option<bool>,
}

/// A server as its gauges show it.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerView {
    readings: Vec<Reading>,
    sampled: bool,
    replicas: u64,
    preemptions: Option<u64>,
}

/// What the gauges showed in an interval: nanoseconds of all replicas, or numbers of scrapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shares {
    pub sampled: bool,
    pub readings: u64,
    /// All of it.
    pub total: u128,
    /// Something waits.
    pub queued: u128,
    /// Every seat is taken.
    pub full: u128,
    /// Something waits and every seat is taken.
    pub pinned: u128,
    /// Something waits, a seat is free, and blocks are too few.
    pub short: u128,
    /// Something waits, and seats and blocks are free.
    pub room: u128,
    /// Something waits, a seat is free, and of blocks nothing is known.
    pub unknown: u128,
    /// Weighed sums of the gauges.
    running: u128,
    waiting: u128,
    /// Largest running gauge of one reading.
    pub running_max: u64,
    replicas: u64,
}

impl Shares {
    /// Of all time.
    pub fn share(&self, part: u128) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        part as f64 / self.total as f64
    }

    /// A reading of steps is of one replica, one of scrapes of them all.
    fn mean(&self, sum: u128) -> Option<f64> {
        let of_one = if self.sampled { 1.0 } else { self.replicas as f64 };
        (self.total > 0).then(|| sum as f64 / self.total as f64 * of_one)
    }

    /// Mean running requests of all replicas together.
    pub fn running(&self) -> Option<f64> {
        self.mean(self.running)
    }

    /// Mean waiting requests of all replicas together.
    pub fn waiting(&self) -> Option<f64> {
        self.mean(self.waiting)
    }
}

impl ServerView {
    /// Every step of a record. `None` when it has no steps or no gauges.
    pub fn of_record(run: &RunRecord, limits: &Limits) -> Option<Self> {
        let mut readings = Vec::new();
        for (number, replica) in run.replicas.iter().enumerate() {
            let steps = replica.step_starts.len().min(replica.step_ends.len());
            if replica.running.len() < steps || replica.waiting.len() < steps {
                return None;
            }
            readings.extend(of_replica(run, number, limits));
        }
        (!readings.is_empty()).then(|| Self {
            readings,
            sampled: false,
            replicas: run.replicas.len() as u64,
            preemptions: Some(run.replicas.iter().map(|r| r.preemptions).sum()),
        })
    }

    /// Readings taken now and then, of all replicas together. `mean_prompt` is the mean number of prompt tokens, from
    /// which the next request's need of blocks is told.
    pub fn of_scrapes(scrapes: &[Scrape], mean_prompt: Option<f64>, limits: &Limits) -> Self {
        let replicas = u64::from(limits.replicas.max(1));
        let seats = limits.max_num_seqs.map(|s| f64::from(s) * replicas as f64);
        let need = mean_prompt
            .zip(limits.block_size.filter(|&b| b > 0))
            .map(|(tokens, block)| {
                let tokens = limits.first_chunk.map_or(tokens, |c| tokens.min(f64::from(c)));
                (tokens / f64::from(block)).ceil() + f64::from(limits.reserved_blocks)
            });
        let short = |use_share: f64| match need.zip(limits.usable_blocks) {
            Some((need, usable)) => (1.0 - use_share) * f64::from(usable) < need,
            None => use_share >= KV_FULL,
        };
        let readings = scrapes.iter().filter_map(|s| {
            let at = SimTime::try_from_secs_f64(s.at_s).ok()?;
            let short = s.kv_usage.map(short);
            let nearly = if short == Some(true) { 1.0 } else { FULL_IN_SCRAPES };
            Some(Reading {
                from: at,
                to: at,
                running: s.running.max(0.0) as u64,
                waiting: s.waiting.max(0.0) as u64,
                full: seats.is_some_and(|seats| s.running >= nearly * seats),
                short,
            })
        });
        let counted = |s: &Scrape| s.preemptions;
        let preemptions = scrapes
            .first()
            .and_then(counted)
            .zip(scrapes.last().and_then(counted));
        Self {
            readings: readings.collect(),
            sampled: true,
            replicas,
            preemptions: preemptions.map(|(first, last)| (last - first).max(0.0) as u64),
        }
    }

    pub(super) const fn preemptions(&self) -> Option<u64> {
        self.preemptions
    }

    /// What the gauges showed in an interval. Time without a reading (of an idle replica) is time without requests.
    pub(super) fn shares(&self, (from, to): (SimTime, SimTime)) -> Shares {
        let mut shares = Shares {
            sampled: self.sampled,
            replicas: self.replicas,
            total: u128::from(to.since(from).as_nanos()) * u128::from(self.replicas),
            ..Shares::default()
        };
        if self.sampled {
            shares.total = 0;
        }
        for r in &self.readings {
            let weight = if self.sampled {
                u128::from(from <= r.from && r.from <= to)
            } else {
                u128::from(r.to.min(to).since(r.from.max(from)).as_nanos())
            };
            if weight > 0 {
                shares.add(r, weight);
            }
        }
        if self.sampled {
            shares.total = u128::from(shares.readings);
        }
        shares
    }
}

impl Shares {
    fn add(&mut self, r: &Reading, weight: u128) {
        self.readings += 1;
        self.running += u128::from(r.running) * weight;
        self.waiting += u128::from(r.waiting) * weight;
        self.running_max = self.running_max.max(r.running);
        self.full += if r.full { weight } else { 0 };
        if r.waiting == 0 {
            return;
        }
        self.queued += weight;
        let cause = match (r.full, r.short) {
            (true, _) => &mut self.pinned,
            (false, Some(true)) => &mut self.short,
            (false, Some(false)) => &mut self.room,
            (false, None) => &mut self.unknown,
        };
        *cause += weight;
    }
}

/// A waiting request, the one that will be let in first in front: by the start of its first step, and of several
/// with the same start the one that needs most. So the order in which requests are listed does not matter.
type NextIn = (SimTime, Reverse<u32>, usize);

/// The readings of one replica. A step's gauges stand until the next step starts, unless nothing is left in between.
fn of_replica(run: &RunRecord, number: usize, limits: &Limits) -> Vec<Reading> {
    let replica = &run.replicas[number];
    let usable = limits.usable_blocks.unwrap_or(replica.usable_blocks);
    let block = limits.block_size.filter(|&b| b > 0 && usable > 0);
    let ended = ended_in_steps(run, number);
    let here =
        |r: &&crate::record::RequestRecord| r.replica as usize == number && r.status != Status::Rejected;
    let mut queue: Vec<(SimTime, NextIn)> = run
        .requests
        .iter()
        .filter(here)
        .enumerate()
        .filter_map(|(i, r)| {
            let tokens = limits
                .first_chunk
                .map_or(r.input_tokens, |c| r.input_tokens.min(c));
            let need = tokens.div_ceil(block.unwrap_or(1));
            let starts = r.first_scheduled.unwrap_or(SimTime(u64::MAX));
            Some((r.enqueued?, (starts, Reverse(need), i)))
        })
        .collect();
    queue.sort_unstable();
    let (mut arrived, mut waiting) = (0, BTreeSet::<NextIn>::new());
    let steps = replica.step_starts.len().min(replica.step_ends.len());
    let mut readings = Vec::with_capacity(steps);
    for (i, &start) in replica.step_starts.iter().enumerate().take(steps) {
        while let Some(&(_, next)) = queue.get(arrived).filter(|(enqueued, _)| *enqueued <= start) {
            waiting.insert(next);
            arrived += 1;
        }
        while waiting.first().is_some_and(|(starts, _, _)| *starts <= start) {
            waiting.pop_first();
        }
        let (running, queued) = (replica.running[i], replica.waiting[i]);
        let left = running.saturating_sub(ended[i]) + queued;
        let end = replica.step_ends[i];
        let next_start = replica
            .step_starts
            .get(i + 1)
            .copied()
            .unwrap_or(run.end.max(end));
        let free = replica.free_blocks.get(i).copied().filter(|_| block.is_some());
        readings.push(Reading {
            from: start,
            to: if left == 0 {
                end.min(next_start)
            } else {
                next_start
            },
            running: u64::from(running),
            waiting: u64::from(queued),
            full: limits.max_num_seqs.is_some_and(|seats| running >= seats),
            // Only preempted requests wait when none waits for its first step: they lack blocks by definition.
            short: free.map(|free| {
                waiting
                    .first()
                    .is_none_or(|(_, Reverse(need), _)| free < need.saturating_add(limits.reserved_blocks))
            }),
        });
    }
    readings
}
