//! What is counted over a run's requests: all that is a sum, so that it can be taken one request at a time.

use super::funnel::Funnel;
use super::goodput::{Judged, Slo};
use super::latency::tpot_parts;
use super::summary::TokenCounts;
use super::tokens::GapProfile;
use super::window::Window;
use crate::record::{RequestRecord, Status};

/// Counts over the requests of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Tally {
    /// Of the requests that arrive in the window.
    pub measured: MeasuredTally,
    /// Of all requests.
    pub run: RunTally,
}

/// Counts over the requests that arrive in the window.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct MeasuredTally {
    pub funnel: Funnel,
    pub tokens: TokenCounts,
    pub tpot_undefined: u64,
    pub out_of_order: u64,
    pub preemptions: u64,
    pub judged: Judged,
}

/// Counts over all requests.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct RunTally {
    pub arrivals_before: u64,
    pub arrivals_after: u64,
    /// Not counted by their load generator.
    pub surplus: u64,
    /// Completed inside the window.
    pub completed: u64,
    /// Of these, those that met every target.
    pub good: u64,
    /// Completed inside the window, and nobody knows whether they met every target.
    pub not_judged: u64,
    /// Prompt tokens of those whose first token came inside the window.
    pub input: u64,
    /// Of these, tokens of the prefix cache.
    pub cached: u64,
    /// Nanoseconds in the system, summed.
    pub in_system_ns: u128,
    /// Requests whose time in the system is not known: unfinished, or ended before they were sent.
    pub in_system_unknown: u64,
}

impl MeasuredTally {
    /// Counts one request; `profile` is what it saw.
    pub fn count(&mut self, r: &RequestRecord, profile: &GapProfile, slo: &Slo) {
        self.funnel.count(r);
        if r.status == Status::Completed {
            self.tokens.input += u64::from(r.input_tokens);
            self.tokens.cached += u64::from(r.cached_tokens);
            self.tokens.output += u64::from(r.output_tokens);
            self.tpot_undefined += u64::from(r.first_token.is_some() && tpot_parts(r).is_none());
        }
        self.out_of_order += u64::from(is_out_of_order(r));
        self.preemptions += u64::from(r.preemptions);
        self.judged.count(slo, r, profile);
    }

    pub fn merge(&mut self, other: &Self) {
        self.funnel.merge(&other.funnel);
        self.tokens.input += other.tokens.input;
        self.tokens.cached += other.tokens.cached;
        self.tokens.output += other.tokens.output;
        self.tpot_undefined += other.tpot_undefined;
        self.out_of_order += other.out_of_order;
        self.preemptions += other.preemptions;
        self.judged.merge(&other.judged);
    }
}

impl RunTally {
    /// Completed inside the window.
    pub fn completes_inside(r: &RequestRecord, window: &Window) -> bool {
        r.status == Status::Completed && r.last_token.is_some_and(|t| window.contains(t))
    }

    /// Counts one request; `is_good` says whether it met every target, if that is known.
    pub fn count(&mut self, r: &RequestRecord, window: &Window, is_good: Option<bool>) {
        if r.status == Status::Surplus {
            self.surplus += 1;
        } else {
            self.arrivals_before += u64::from(r.scheduled < window.from);
            self.arrivals_after += u64::from(window.to.is_some_and(|to| r.scheduled >= to));
            let inside = |t| window.contains(t);
            if Self::completes_inside(r, window) {
                self.completed += 1;
                self.good += u64::from(is_good == Some(true));
                self.not_judged += u64::from(is_good.is_none());
            }
            // An answer that is received whole has no first token of its own.
            if r.first_token.or(r.last_token).is_some_and(inside) {
                self.input += u64::from(r.input_tokens);
                self.cached += u64::from(r.cached_tokens);
            }
        }
        match (r.status, r.last_token) {
            (Status::Rejected | Status::Unsent, _) => {}
            (Status::Completed | Status::Surplus, Some(left)) if left >= r.sent => {
                self.in_system_ns += u128::from(left.since(r.sent).as_nanos());
            }
            _ => self.in_system_unknown += 1,
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.arrivals_before += other.arrivals_before;
        self.arrivals_after += other.arrivals_after;
        self.surplus += other.surplus;
        self.completed += other.completed;
        self.good += other.good;
        self.not_judged += other.not_judged;
        self.input += other.input;
        self.cached += other.cached;
        self.in_system_ns += other.in_system_ns;
        self.in_system_unknown += other.in_system_unknown;
    }
}

impl Tally {
    pub fn merge(&mut self, other: &Self) {
        self.measured.merge(&other.measured);
        self.run.merge(&other.run);
    }
}

/// Some instant lies before one that it must follow.
fn is_out_of_order(r: &RequestRecord) -> bool {
    let mut latest = r.scheduled.max(r.sent);
    let mut before = r.sent < r.scheduled;
    for instant in [r.enqueued, r.first_scheduled, r.first_token, r.last_token]
        .into_iter()
        .flatten()
    {
        before |= instant < latest;
        latest = instant;
    }
    before
}
