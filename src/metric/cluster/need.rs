//! How many groups of a pool were needed, window by window, and what was ready beyond them.
//!
//! A group that makes output tokens is busy while it has one request: its busy time does not say whether it is needed.
//! What does is how many requests are in the pool's groups, and how much KV they hold, over what one group has room for. A
//! prefill group that computes is at work, so there busy time says it.

use super::curve::spans;
use super::options::ClusterOptions;
use crate::cluster::lifecycle::Phase;
use crate::record::GroupRecord;
use crate::units::{SimDuration, SimTime};

/// What tells a pool's need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NeedRule {
    /// Requests that a group carries at a time; none takes busy time.
    pub group_requests: Option<u32>,
    /// The fewest groups that the pool is to have.
    pub min_groups: u32,
    /// Share of what a group carries, or of the time that it may be busy, that counts as full.
    pub target_utilisation: f64,
}

impl NeedRule {
    /// Of a pool by name.
    pub fn of(options: &ClusterOptions, pool: &str) -> Self {
        let facts = options.pools.get(pool);
        Self {
            group_requests: facts.and_then(|f| f.group_requests).filter(|&rows| rows > 0),
            min_groups: facts.map_or(0, |f| f.min_groups),
            target_utilisation: options.target_utilisation,
        }
    }
}

/// A step of a rank, and what it had after the step's schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepWork {
    /// Start of the step.
    pub start: SimTime,
    /// Its end.
    pub end: SimTime,
    /// Running and waiting requests.
    pub requests: u64,
    /// Free KV blocks; none when nobody noted them.
    pub free_blocks: Option<u32>,
}

/// Amounts of a rank in one window, each times nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Amounts {
    busy: u64,
    requests: u128,
    /// Time for which free blocks are known, and how many there were.
    noted: u64,
    free_blocks: u128,
}

/// What a data-parallel rank had to do, window by window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankWork {
    before: Option<StepWork>,
    windows: Vec<Amounts>,
}

impl RankWork {
    /// Adds the next step; false when it lies beyond the last window that there may be.
    ///
    /// What a step's schedule left holds until its end, and on through a pause that is no longer than the step: that is the
    /// host's time between two steps. A longer one is a rank without work.
    pub fn count(&mut self, step: StepWork, window: SimDuration, most_windows: usize) -> bool {
        // A device does one thing at a time.
        let free_from = self.before.map_or(SimTime::ZERO, |b| b.end);
        let start = step.start.max(free_from).min(step.end);
        let mut fits = true;
        if let Some(before) = self.before {
            let goes_on = start.since(before.end) <= before.end.since(before.start);
            if start > before.end && goes_on {
                fits &= self.add((before.end, start), &before, false, (window, most_windows));
            }
        }
        fits &= self.add((start, step.end), &step, true, (window, most_windows));
        let end = step.end.max(free_from);
        self.before = Some(StepWork { start, end, ..step });
        fits
    }

    fn add(
        &mut self,
        (start, end): (SimTime, SimTime),
        work: &StepWork,
        is_busy: bool,
        (window, most_windows): (SimDuration, usize),
    ) -> bool {
        in_windows((start, end), window, |k, ns| {
            if k >= most_windows {
                return false;
            }
            if k >= self.windows.len() {
                self.windows.resize(k + 1, Amounts::default());
            }
            let amounts = &mut self.windows[k];
            amounts.busy += if is_busy { ns } else { 0 };
            amounts.requests += u128::from(work.requests) * u128::from(ns);
            if let Some(free) = work.free_blocks {
                amounts.noted += ns;
                amounts.free_blocks += u128::from(free) * u128::from(ns);
            }
            true
        })
    }
}

/// Deals a stretch of time out to its windows until one is refused; false then.
fn in_windows(
    (start, end): (SimTime, SimTime),
    window: SimDuration,
    mut takes: impl FnMut(usize, u64) -> bool,
) -> bool {
    let length = window.as_nanos().max(1);
    let mut at = start;
    while at < end {
        let k = at.as_nanos() / length;
        let until = SimTime((k + 1).saturating_mul(length)).min(end);
        if !takes(k as usize, until.since(at).as_nanos()) {
            return false;
        }
        at = until;
    }
    true
}

/// What a pool's groups had to do in a window, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct PoolAmounts {
    /// Of groups.
    busy_s: f64,
    /// Of requests.
    requests_s: f64,
    /// Of groups' KV in use.
    kv_s: f64,
}

/// What a pool's groups had to do.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolWork {
    window: SimDuration,
    end: SimTime,
    windows: Vec<PoolAmounts>,
}

impl PoolWork {
    /// Of a run that ends then.
    pub fn new(window: SimDuration, end: SimTime) -> Self {
        let windows = end.as_nanos().div_ceil(window.as_nanos().max(1));
        Self {
            window,
            end,
            windows: vec![PoolAmounts::default(); windows as usize],
        }
    }

    /// Adds a rank with so many usable KV blocks, one of `ranks` of its group.
    pub fn add(&mut self, rank: &RankWork, usable_blocks: u32, ranks: usize) {
        let of_a_rank = 1.0 / ranks.max(1) as f64;
        for (sum, amounts) in self.windows.iter_mut().zip(&rank.windows) {
            sum.busy_s += amounts.busy as f64 / 1e9 * of_a_rank;
            sum.requests_s += amounts.requests as f64 / 1e9;
            let all = u128::from(usable_blocks) * u128::from(amounts.noted);
            let used = all.saturating_sub(amounts.free_blocks);
            if usable_blocks > 0 {
                sum.kv_s += used as f64 / f64::from(usable_blocks) / 1e9 * of_a_rank;
            }
        }
    }

    /// Group-hours of the pool's ready groups beyond its need.
    pub fn beyond_need<'a>(&self, groups: impl Iterator<Item = &'a GroupRecord>, rule: &NeedRule) -> f64 {
        let mut ready_ns = vec![0_u64; self.windows.len()];
        let of_groups = groups.flat_map(|group| spans(group, self.end));
        for (from, to, _) in of_groups.filter(|&(_, _, phase)| phase == Phase::Ready) {
            in_windows((from, to), self.window, |k, ns| {
                ready_ns.get_mut(k).map(|sum| *sum += ns).is_some()
            });
        }
        let length = self.window.as_nanos();
        let beyond = (0_u64..)
            .zip(&self.windows)
            .zip(ready_ns)
            .map(|((k, work), ready_ns)| {
                let from = SimTime(k.saturating_mul(length));
                let to = SimTime((k + 1).saturating_mul(length)).min(self.end);
                let lasts = to.since(from).as_secs_f64();
                let need = groups_needed(work, lasts, rule).max(f64::from(rule.min_groups));
                (ready_ns as f64 / 1e9 - need * lasts).max(0.0)
            });
        beyond.sum::<f64>() / 3_600.0
    }
}

/// Whole groups for what there was in a window of so many seconds: the mean over it, since no group comes and goes within
/// one.
fn groups_needed(work: &PoolAmounts, lasts: f64, rule: &NeedRule) -> f64 {
    let group_s = rule.group_requests.map_or(work.busy_s, |requests| {
        (work.requests_s / f64::from(requests)).max(work.kv_s)
    });
    // The tolerance is for groups that were full all the time.
    (group_s / (rule.target_utilisation * lasts) - 1e-9)
        .ceil()
        .max(0.0)
}

#[cfg(test)]
#[path = "need_tests.rs"]
mod tests;
