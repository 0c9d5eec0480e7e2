//! What happened when, as stairs: requests in flight at the clients, running and waiting ones on the server.

use crate::record::{RunRecord, Status};
use crate::units::SimTime;

/// A value that changes at instants: from each instant in seconds on, the value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve(pub Vec<(f64, f64)>);

impl Curve {
    /// Requests between their send and their last token, as their clients see it; one that was cut off is in flight to
    /// the end of the run.
    pub fn in_flight(run: &RunRecord) -> Self {
        let mut changes: Vec<(SimTime, i64)> = Vec::new();
        for r in run.requests.iter().filter(|r| r.status.was_in_system()) {
            let last = r.last_token.filter(|_| r.status.is_served());
            changes.extend([(r.sent, 1), (last.unwrap_or(run.end), -1)]);
        }
        changes.sort_unstable();
        Self::of_changes(&changes)
    }

    /// Requests that were counted and have ended.
    pub fn completed(run: &RunRecord) -> Self {
        let done = run.requests.iter().filter(|r| r.status == Status::Completed);
        let mut changes: Vec<(SimTime, i64)> = done.filter_map(|r| Some((r.last_token?, 1))).collect();
        changes.sort_unstable();
        Self::of_changes(&changes)
    }

    /// Running requests of all replicas after each step's schedule.
    pub fn running(run: &RunRecord) -> Self {
        Self::gauge(run, |replica| &replica.running)
    }

    /// Waiting requests of all replicas after each step's schedule.
    pub fn waiting(run: &RunRecord) -> Self {
        Self::gauge(run, |replica| &replica.waiting)
    }

    fn gauge(run: &RunRecord, values: impl Fn(&crate::record::ReplicaRecord) -> &Vec<u32>) -> Self {
        let mut changes = Vec::new();
        for replica in &run.replicas {
            let mut before = 0;
            for (&start, &value) in replica.step_starts.iter().zip(values(replica)) {
                changes.push((start, i64::from(value) - before));
                before = i64::from(value);
            }
            // An idle engine shows nothing running.
            changes.extend(replica.step_ends.last().map(|&end| (end, -before)));
        }
        changes.sort_by_key(|c| c.0);
        Self::of_changes(&changes)
    }

    fn of_changes(changes: &[(SimTime, i64)]) -> Self {
        let mut points: Vec<(f64, f64)> = vec![(0.0, 0.0)];
        let mut value = 0;
        for &(at, change) in changes {
            value += change;
            let at = at.as_secs_f64();
            match points.last_mut() {
                Some(last) if last.0 >= at => last.1 = value as f64,
                Some(last) if (last.1 - value as f64).abs() < 0.5 => {}
                _ => points.push((at, value as f64)),
            }
        }
        Self(points)
    }

    /// The value at an instant.
    pub fn at(&self, second: f64) -> f64 {
        let after = self.0.partition_point(|p| p.0 <= second);
        after.checked_sub(1).map_or(0.0, |i| self.0[i].1)
    }

    /// Mean over a span of seconds.
    pub fn mean(&self, from: f64, to: f64) -> f64 {
        let ends = self.0.iter().skip(1).map(|p| p.0).chain([f64::INFINITY]);
        let area: f64 = self
            .0
            .iter()
            .zip(ends)
            .map(|(&(at, value), end)| (end.min(to) - at.max(from)).max(0.0) * value)
            .sum();
        if to > from { area / (to - from) } else { 0.0 }
    }

    /// Share of a span of seconds in which the value is at or above a threshold.
    pub fn share_at_least(&self, threshold: f64, from: f64, to: f64) -> f64 {
        let over = Self(
            self.0
                .iter()
                .map(|&(at, v)| (at, f64::from(u8::from(v >= threshold))))
                .collect(),
        );
        over.mean(from, to)
    }

    /// First and last instant at which it has its largest value.
    pub fn span_of_largest(&self) -> (f64, f64) {
        let largest = self.0.iter().fold(0.0, |most: f64, p| most.max(p.1));
        let at = |(_, value): &(f64, f64)| *value >= largest;
        let first = self.0.iter().position(at).unwrap_or(0);
        let last = self.0.iter().rposition(at).unwrap_or(0);
        let end = self.0.get(last + 1).map_or(self.0[last].0, |p| p.0);
        (self.0[first].0, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_by_hand() {
        let curve = Curve(vec![(0.0, 0.0), (1.0, 4.0), (3.0, 2.0), (4.0, 0.0)]);
        assert!((curve.mean(0.0, 5.0) - 2.0).abs() < 1e-12);
        assert!((curve.mean(2.0, 4.0) - 3.0).abs() < 1e-12);
        assert!((curve.share_at_least(2.0, 0.0, 4.0) - 0.75).abs() < 1e-12);
        assert_eq!(curve.span_of_largest(), (1.0, 3.0));
        assert!((curve.at(3.0) - 2.0).abs() < 1e-12);
    }
}
