//! Whole numbers over time: each value holds until the next.

use std::collections::BTreeMap;

use crate::cluster::lifecycle::Phase;
use crate::record::{ClusterRecord, GroupRecord, ReplicaRecord, RunRecord};
use crate::units::SimTime;

/// A value over time, 0 before its first change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Curve {
    /// When it changed and to what, by time, one change an instant.
    points: Vec<(SimTime, i64)>,
}

impl Curve {
    /// From changes in any order.
    pub fn of_changes(mut changes: Vec<(SimTime, i64)>) -> Self {
        changes.sort_unstable_by_key(|&(at, _)| at);
        let mut points: Vec<(SimTime, i64)> = Vec::new();
        let mut value = 0;
        for (at, change) in changes {
            value += change;
            match points.last_mut() {
                Some(last) if last.0 == at => last.1 = value,
                _ => points.push((at, value)),
            }
        }
        Self { points }
    }

    /// When it changed and to what.
    pub fn points(&self) -> &[(SimTime, i64)] {
        &self.points
    }

    /// Its value at an instant, after all changes of that instant.
    pub fn at(&self, at: SimTime) -> i64 {
        let next = self.points.partition_point(|p| p.0 <= at);
        next.checked_sub(1).map_or(0, |i| self.points[i].1)
    }

    /// Its value just before an instant.
    pub fn before(&self, at: SimTime) -> i64 {
        let next = self.points.partition_point(|p| p.0 < at);
        next.checked_sub(1).map_or(0, |i| self.points[i].1)
    }

    /// Stretches of equal value in `[from, to)`: start, end, value.
    pub fn stretches(
        &self,
        from: SimTime,
        to: SimTime,
    ) -> impl Iterator<Item = (SimTime, SimTime, i64)> + '_ {
        let first = self.points.partition_point(|p| p.0 <= from);
        let mut next = first;
        let mut at = from;
        std::iter::from_fn(move || {
            if at >= to {
                return None;
            }
            let value = next.checked_sub(1).map_or(0, |i| self.points[i].1);
            let until = self.points.get(next).map_or(to, |p| p.0).min(to);
            let stretch = (at, until, value);
            (at, next) = (until, next + 1);
            Some(stretch)
        })
    }

    /// The integral of `value_of` over `[from, to)`, in value times seconds.
    pub fn integral(&self, from: SimTime, to: SimTime, value_of: impl Fn(i64) -> f64) -> f64 {
        self.stretches(from, to)
            .map(|(a, b, value)| value_of(value) * b.since(a).as_secs_f64())
            .sum()
    }

    /// The mean over `[from, to)`; none of nothing.
    pub fn mean(&self, from: SimTime, to: SimTime) -> Option<f64> {
        let seconds = to.since(from).as_secs_f64();
        (seconds > 0.0).then(|| self.integral(from, to, |v| v as f64) / seconds)
    }

    /// The highest value in `[from, to)`; none of nothing.
    pub fn max(&self, from: SimTime, to: SimTime) -> Option<i64> {
        self.stretches(from, to).map(|(_, _, value)| value).max()
    }
}

/// Spans of a group's phases until the end of the run.
pub fn spans(group: &GroupRecord, end: SimTime) -> impl Iterator<Item = (SimTime, SimTime, Phase)> + '_ {
    group.phases.iter().enumerate().map(move |(i, &(from, phase))| {
        let to = group.phases.get(i + 1).map_or(end, |next| next.0);
        (from.min(end), to.min(end), phase)
    })
}

/// How many groups are in a phase that `counts`.
pub fn groups_in<'a>(
    groups: impl Iterator<Item = &'a GroupRecord>,
    end: SimTime,
    counts: impl Fn(Phase) -> bool,
) -> Curve {
    let spans = groups
        .flat_map(|group| spans(group, end))
        .filter(|&(_, _, phase)| counts(phase));
    // A phase at the very end lasts no time and is shown all the same.
    let changes = spans.flat_map(|(from, to, _)| [(from, 1), (to, if to == end { 0 } else { -1 })]);
    Curve::of_changes(changes.collect())
}

/// Requests that wait at the gateway.
pub fn gateway_queue(cluster: &ClusterRecord) -> Curve {
    Curve {
        points: cluster
            .gateway_queue
            .iter()
            .map(|&(at, n)| (at, i64::from(n)))
            .collect(),
    }
}

/// Requests that wait at the gateway or in an engine. Engines show what waits after each step's schedule; what waits in a
/// group that fails or stops is gone.
pub fn queue(run: &RunRecord, cluster: &ClusterRecord) -> Curve {
    let mut changes = Vec::new();
    let mut before = 0;
    for &(at, n) in &cluster.gateway_queue {
        changes.push((at, i64::from(n) - before));
        before = i64::from(n);
    }
    let mut ends: BTreeMap<u32, Vec<SimTime>> = BTreeMap::new();
    for group in &cluster.groups {
        let over = group
            .phases
            .iter()
            .filter(|(_, phase)| matches!(phase, Phase::Failed | Phase::Stopped));
        let over: Vec<SimTime> = over.map(|&(at, _)| at).collect();
        ends.extend(group.replicas.iter().map(|&replica| (replica, over.clone())));
    }
    for (number, replica) in (0..).zip(&run.replicas) {
        waiting_changes(replica, ends.get(&number).map_or(&[], |e| e), &mut changes);
    }
    Curve::of_changes(changes)
}

fn waiting_changes(replica: &ReplicaRecord, ends: &[SimTime], changes: &mut Vec<(SimTime, i64)>) {
    let mut ends = ends.iter().copied().peekable();
    let mut waits = 0;
    let mut become_at = |at: SimTime, now: i64| {
        if now != waits {
            changes.push((at, now - waits));
            waits = now;
        }
    };
    for (&start, &waiting) in replica.step_starts.iter().zip(&replica.waiting) {
        while let Some(end) = ends.next_if(|&end| end <= start) {
            become_at(end, 0);
        }
        become_at(start, i64::from(waiting));
    }
    for end in ends {
        become_at(end, 0);
    }
}
