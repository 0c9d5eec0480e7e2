//! What each fault did, and how long it took to get over it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::curve::{Curve, groups_in};
use super::good::Good;
use super::options::ClusterOptions;
use crate::cluster::lifecycle::Phase;
use crate::record::{ClusterRecord, RunRecord, TimelineEvent};
use crate::units::{SimDuration, SimTime};

/// One fault of the timeline. Times are seconds after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FaultFigures {
    /// When, seconds from the start of the run.
    pub at_s: f64,
    /// What.
    pub what: String,
    /// Groups that it took, or that it made drain: their numbers.
    pub groups: Vec<u32>,
    /// Of these, how many had been ready.
    pub ready_lost: u64,
    /// All crashes of it are known; null without a crash, or when one was never detected as such.
    pub detected_after_s: Option<f64>,
    /// Routers have taken out all groups that crashed.
    pub routes_removed_after_s: Option<f64>,
    /// As many groups are ready as before in every pool that lost some; null when none was lost or they never were.
    pub capacity_back_after_s: Option<f64>,
    /// A fault that lasts was over.
    pub mended_after_s: Option<f64>,
    /// Another fault came before this one was over.
    pub is_overlapped: bool,
    /// Goodput and queue; null when there is no whole window under load before it or after it.
    pub recovery: Option<Recovery>,
}

/// How goodput and queue took a fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recovery {
    /// Windows before the fault that tell what was usual.
    pub baseline_windows: u64,
    /// Goodput in them, requests a second.
    pub goodput_before_rps: f64,
    /// Some window was below what is allowed.
    pub dipped: bool,
    /// Start of the first of the windows in which goodput is back, none before all crashes are detected and their routes
    /// removed; 0 when it never was away, null when it did not come back under load.
    pub recovered_after_s: Option<f64>,
    /// Lowest goodput of a window until then, requests a second.
    pub trough_rps: f64,
    /// Time in windows below what is allowed until then.
    pub below_s: f64,
    /// Requests waiting at the gateway and in engines, mean of the windows before.
    pub queue_before: f64,
    /// Requests waiting above that, times seconds, until the queue is back after goodput is.
    pub queue_area_request_s: f64,
    /// The longest queue until then.
    pub queue_max: u64,
    /// When the queue was back; null when it was not before the end of the run.
    pub queue_back_after_s: Option<f64>,
}

/// Everything that faults are judged by.
pub struct Judge<'a> {
    run: &'a RunRecord,
    cluster: &'a ClusterRecord,
    options: &'a ClusterOptions,
    good: &'a Good,
    queue: &'a Curve,
    /// Ready groups, by pool.
    ready: Vec<Curve>,
}

impl<'a> Judge<'a> {
    pub fn new(
        run: &'a RunRecord,
        cluster: &'a ClusterRecord,
        options: &'a ClusterOptions,
        good: &'a Good,
        queue: &'a Curve,
    ) -> Self {
        let ready = (0..cluster.pools.len() as u32).map(|pool| {
            let groups = cluster.groups.iter().filter(move |g| g.pool == pool);
            groups_in(groups, run.end, |phase| phase == Phase::Ready)
        });
        Self {
            run,
            cluster,
            options,
            good,
            queue,
            ready: ready.collect(),
        }
    }

    /// All faults of the timeline.
    pub fn faults(&self) -> Vec<FaultFigures> {
        let timeline = &self.cluster.timeline;
        let faults = timeline.iter().enumerate().filter(|(_, e)| e.event == "fault");
        faults.map(|(index, fault)| self.fault(index, fault)).collect()
    }

    fn fault(&self, index: usize, fault: &TimelineEvent) -> FaultFigures {
        let later = &self.cluster.timeline[index + 1..];
        let at = fault.at;
        let direct: Vec<&TimelineEvent> = later
            .iter()
            .take_while(|e| e.at == at && e.event != "fault")
            .collect();
        let of = |event: &str| -> Vec<u32> {
            direct
                .iter()
                .filter(|e| e.event == event)
                .filter_map(|e| e.group)
                .collect()
        };
        let (crashed, drained) = (of("crash"), of("draining"));
        let was_ready = |&&group: &&u32| self.phase_before(group, at) == Some(Phase::Ready);
        let ready_crashed: Vec<u32> = crashed.iter().filter(was_ready).copied().collect();
        let after = |instant: SimTime| instant.since(at).as_secs_f64();
        let ready_lost: Vec<u32> = ready_crashed.iter().chain(&drained).copied().collect();
        let capacity_back = self.capacity_back(&ready_lost, at);
        let mended = later
            .iter()
            .find(|e| e.event == "mended" && e.what == fault.what)
            .map(|e| e.at);
        let next = later.iter().find(|e| e.event == "fault").map(|e| e.at);
        let over = capacity_back.max(mended).unwrap_or(at);
        let detected = told(later, "detected", &crashed);
        let routes_removed = told(later, "routes_removed", &ready_crashed);
        // Until then its streams hang and requests are sent to what is gone: nothing is over.
        let dealt_with = detected.max(routes_removed).unwrap_or(at);
        let recovery = self.recovery(at, (dealt_with, over), next);
        let end = recovery.as_ref().map_or(over, |(_, recovered)| {
            recovered.map_or(self.run.end, |r| r.max(over))
        });
        FaultFigures {
            at_s: at.as_secs_f64(),
            what: fault.what.clone(),
            ready_lost: ready_lost.len() as u64,
            detected_after_s: detected.map(after),
            routes_removed_after_s: routes_removed.map(after),
            capacity_back_after_s: capacity_back.map(after),
            mended_after_s: mended.map(after),
            is_overlapped: next.is_some_and(|next| next < end || next == at),
            recovery: recovery.map(|(recovery, _)| recovery),
            groups: crashed.into_iter().chain(drained).collect(),
        }
    }

    fn phase_before(&self, group: u32, at: SimTime) -> Option<Phase> {
        let phases = &self.cluster.groups.get(group as usize)?.phases;
        phases
            .iter()
            .rev()
            .find(|(since, _)| *since < at)
            .map(|&(_, phase)| phase)
    }

    /// When as many groups are ready as before, in the pools of those that were lost.
    fn capacity_back(&self, lost: &[u32], at: SimTime) -> Option<SimTime> {
        let pools = lost
            .iter()
            .filter_map(|&g| Some(self.cluster.groups.get(g as usize)?.pool));
        let mut back = None;
        for pool in pools {
            let ready = self.ready.get(pool as usize)?;
            let before = ready.before(at);
            let mut later = ready.points().iter().filter(|p| p.0 > at);
            let this = if ready.at(at) >= before {
                at
            } else {
                later.find(|p| p.1 >= before)?.0
            };
            back = back.max(Some(this));
        }
        back
    }

    /// Goodput and queue around a fault that was known and routed around at `dealt_with` and over at `over`, and when
    /// goodput was back.
    fn recovery(
        &self,
        at: SimTime,
        (dealt_with, over): (SimTime, SimTime),
        next: Option<SimTime>,
    ) -> Option<(Recovery, Option<SimTime>)> {
        let (load_from, load_to) = self.good.load?;
        let window = self.good.window;
        let windows = |span: SimDuration| span.as_nanos() / window.as_nanos().max(1);
        let baseline = windows(at.since(load_from)).min(self.options.baseline_windows.into());
        let count = windows(load_to.since(at));
        if baseline == 0 || count == 0 {
            return None;
        }
        let from = SimTime(at.0 - baseline * window.as_nanos());
        let before_rps = self.good.rate(from, at)?;
        let start = |k: u64| at + SimDuration(k * window.as_nanos());
        let rates: Vec<f64> = (0..count)
            .filter_map(|k| self.good.rate(start(k), start(k + 1)))
            .collect();
        let allowed = before_rps * (1.0 - self.options.back_within) - 1e-9;
        // What dips long after the fault is over, or after another one, is not of this one.
        let patience = at + SimDuration(u64::from(self.options.baseline_windows) * window.as_nanos());
        let until = next
            .filter(|&n| n > at)
            .unwrap_or(load_to)
            .min(patience.max(over));
        let own = windows(until.since(at)).clamp(1, count) as usize;
        let dip = rates[..own].iter().position(|&r| r < allowed);
        let soonest = dealt_with.since(at).as_nanos().div_ceil(window.as_nanos().max(1)) as usize;
        let back = dip.map_or(Some(0), |dip| {
            back_from(&rates, dip.max(soonest), allowed, self.options.hold_windows)
        });
        let looked_at = match (dip, back) {
            (None, _) => &rates[..own],
            (Some(_), back) => &rates[..back.unwrap_or(rates.len())],
        };
        let recovered = back.map(|k| start(k as u64));
        let queue_before = self.queue.mean(from, at)?;
        let settled = recovered.map(|r| if dip.is_some() { r } else { until.max(r) });
        let queue_back = settled.and_then(|settled| self.queue_back(settled, queue_before));
        let queue_end = queue_back.unwrap_or(self.run.end);
        let above = |waiting: i64| (waiting as f64 - queue_before).max(0.0);
        let recovery = Recovery {
            baseline_windows: baseline,
            goodput_before_rps: before_rps,
            dipped: dip.is_some(),
            recovered_after_s: recovered.map(|r| r.since(at).as_secs_f64()),
            trough_rps: looked_at.iter().copied().fold(f64::INFINITY, f64::min),
            below_s: looked_at.iter().filter(|&&r| r < allowed).count() as f64 * window.as_secs_f64(),
            queue_before,
            queue_area_request_s: self.queue.integral(at, queue_end, above),
            queue_max: self
                .queue
                .max(at, queue_end)
                .map_or(0, |m| u64::try_from(m).unwrap_or(0)),
            queue_back_after_s: queue_back.map(|b| b.since(at).as_secs_f64()),
        };
        Some((recovery, recovered))
    }

    /// The first instant from `from` on with no more waiting than `level`.
    fn queue_back(&self, from: SimTime, level: f64) -> Option<SimTime> {
        let mut stretches = self.queue.stretches(from, self.run.end);
        stretches
            .find(|&(_, _, waiting)| waiting as f64 <= level)
            .map(|(since, _, _)| since)
    }
}

/// The first window after a dip from which on goodput is within what is allowed for `hold` windows.
fn back_from(rates: &[f64], dip: usize, allowed: f64, hold: u32) -> Option<usize> {
    let hold = hold.max(1) as usize;
    let mut runs = rates.windows(hold).enumerate().skip(dip);
    runs.find(|(_, run)| run.iter().all(|&rate| rate >= allowed))
        .map(|(k, _)| k)
}

/// When the last of these groups was told of, each before it crashes again; none when one never was, or without groups.
fn told(later: &[TimelineEvent], event: &str, groups: &[u32]) -> Option<SimTime> {
    let mut last = None;
    for &group in groups {
        let of_group = later.iter().filter(|e| e.group == Some(group));
        // Its own crash is the first of its events; another one ends the search.
        let mut own = of_group
            .skip_while(|e| e.event != "crash")
            .skip(1)
            .take_while(|e| e.event != "crash");
        last = last.max(Some(own.find(|e| e.event == event)?.at));
    }
    last
}
