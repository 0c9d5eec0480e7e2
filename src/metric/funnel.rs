//! How far the offered requests came.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::{RequestRecord, Status};

/// Counts of requests by how far they came, and every kind of failure.
///
/// `offered >= admitted >= started >= first_token >= completed >= within_slo`, and
/// `offered = completed + rejected + unfinished_* + unsent + broken + timed_out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Funnel {
    /// Intended to arrive in the window.
    pub offered: u64,
    /// Taken into the engine's queue.
    pub admitted: u64,
    /// Some of it was computed.
    pub started: u64,
    /// Gave its client a token, or the whole answer.
    pub first_token: u64,
    /// All its output arrived.
    pub completed: u64,
    /// Completed and met every target; null without targets, or when a target could not be judged.
    pub within_slo: Option<u64>,
    /// Failure: refused for good.
    pub rejected: u64,
    /// Failure: cut off at the end of the run before anything was computed.
    pub unfinished_waiting: u64,
    /// Failure: cut off at the end of the run after it had been started.
    pub unfinished_started: u64,
    /// Failure: the run was cut off before its client sent it. Absent in files of before there was this count.
    #[serde(default)]
    pub unsent: u64,
    /// Failure: what served it broke off, and nothing took it over. Left out when there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub broken: u64,
    /// Failure: its client waited no longer. Left out when there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub timed_out: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Funnel {
    /// Counts the given requests; `within_slo` is left null.
    pub fn of<'a>(requests: impl IntoIterator<Item = &'a RequestRecord>) -> Self {
        let mut funnel = Self::default();
        requests.into_iter().for_each(|request| funnel.count(request));
        funnel
    }

    /// Counts one more request; not one that its load generator did not count.
    pub(super) fn count(&mut self, request: &RequestRecord) {
        if request.status == Status::Surplus {
            return;
        }
        let rejected = request.status == Status::Rejected;
        self.offered += 1;
        self.admitted += u64::from(request.enqueued.is_some() && !rejected);
        self.started += u64::from(request.first_scheduled.is_some());
        self.first_token += u64::from(request.first_token.or(request.last_token).is_some());
        match (request.status, request.first_scheduled) {
            (Status::Completed, _) => self.completed += 1,
            (Status::Rejected, _) => self.rejected += 1,
            (Status::Unfinished, None) => self.unfinished_waiting += 1,
            (Status::Unfinished, Some(_)) => self.unfinished_started += 1,
            (Status::Unsent, _) => self.unsent += 1,
            (Status::Failed, _) => self.broken += 1,
            (Status::TimedOut, _) => self.timed_out += 1,
            (Status::Surplus, _) => {}
        }
    }

    /// Adds the counts of other requests.
    pub(super) fn merge(&mut self, other: &Self) {
        self.offered += other.offered;
        self.admitted += other.admitted;
        self.started += other.started;
        self.first_token += other.first_token;
        self.completed += other.completed;
        self.within_slo = self.within_slo.zip(other.within_slo).map(|(a, b)| a + b);
        self.rejected += other.rejected;
        self.unfinished_waiting += other.unfinished_waiting;
        self.unfinished_started += other.unfinished_started;
        self.unsent += other.unsent;
        self.broken += other.broken;
        self.timed_out += other.timed_out;
    }

    /// Offered requests that did not complete.
    pub const fn failed(&self) -> u64 {
        self.offered - self.completed
    }

    /// Share of offered requests that did not complete; null when none was offered.
    pub fn error_rate(&self) -> Option<f64> {
        (self.offered > 0).then(|| self.failed() as f64 / self.offered as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::three_requests;

    #[test]
    fn every_request_ends_in_one_place() {
        let mut run = three_requests();
        run.requests[1].status = Status::Unfinished;
        let waiting = crate::metric::fixture::offered(crate::units::SimTime(7));
        run.requests.push(waiting.clone());
        run.requests.push(crate::record::RequestRecord {
            status: Status::Unsent,
            ..waiting
        });
        let funnel = Funnel::of(&run.requests);
        let expected = Funnel {
            offered: 6,
            admitted: 3,
            started: 3,
            first_token: 3,
            completed: 2,
            within_slo: None,
            rejected: 1,
            unfinished_waiting: 1,
            unfinished_started: 1,
            unsent: 1,
            ..Funnel::default()
        };
        assert_eq!(funnel, expected);
        assert_eq!(funnel.failed(), 4);
        assert_eq!(funnel.error_rate(), Some(4.0 / 6.0));
    }
}
