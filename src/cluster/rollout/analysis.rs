//! Canary analysis: a canary that judges itself by what its requests fared beside those of the old revision.
//!
//! Modelled on the analysis of Argo Rollouts (`AnalysisTemplate`: `interval`, `failureLimit`, an inconclusive run pauses)
//! and on Flagger's (`interval`, `threshold`, `progressDeadlineSeconds`): every interval the requests that ended in it are
//! looked at, a check that breaks a limit counts as failed, and one failed check more than allowed ends the canary. A
//! check without enough requests says nothing. What is compared is the old revision *over the same interval*, so a load
//! that rises does not count against the canary.
//!
//! Percentiles are those of the requests themselves (the nearest rank), not those of a histogram's buckets.

use std::collections::VecDeque;
use std::fmt;

use crate::units::{SimDuration, SimTime, written};

/// What a canary must hold; what is not stated is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CanaryLimits {
    /// Share of its requests that may fail, 0 to 1.
    pub errors: Option<f64>,
    /// Time to the first token as a multiple of the old revision's.
    pub ttft_ratio: Option<f64>,
    /// Time per output token after the first, a mean of each request, as a multiple of the old revision's.
    pub tpot_ratio: Option<f64>,
    /// Time to the last token as a multiple of the old revision's.
    pub e2e_ratio: Option<f64>,
}

/// What becomes of a canary that was watched long enough, of which no check could say anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Undecided {
    /// It goes on until a check can (Argo Rollouts pauses).
    #[default]
    Wait,
    /// The rest follows.
    Promote,
    /// The old revision comes back (Flagger counts missing metrics as a failed check).
    RollBack,
}

/// How a canary is judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Analysis {
    /// From check to check; each looks at the requests that ended in so long (Flagger: 60 s, both).
    pub interval: SimDuration,
    /// How old metrics are when they are seen.
    pub metric_age: SimDuration,
    /// Which percentile of latencies is compared, above 0 and up to 1 (Flagger's `request-duration`: 0.99).
    pub percentile: f64,
    /// Fewer requests than that, of either revision, say nothing (Spinnaker asks for 50 points a metric).
    pub min_requests: u32,
    /// Checks that may fail (Argo Rollouts' `failureLimit`: 0).
    pub failure_limit: u32,
    /// What it must hold.
    pub limits: CanaryLimits,
    /// If no check says anything.
    pub undecided: Undecided,
    /// The longest that the canary may be without all of its groups ready (Flagger's `progressDeadlineSeconds`: 600 s).
    pub progress_deadline: SimDuration,
}

/// Why an analysis is refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AnalysisError {
    /// Checks without end at one instant.
    #[error("interval is 0; checks need time between them (Flagger: 60 s)")]
    Interval,
    /// It would judge nothing.
    #[error("no limit is given; state errors, ttft_ratio, tpot_ratio or e2e_ratio")]
    NoLimits,
    /// A percentile of nothing.
    #[error("percentile is {}; it must be above 0 and at most 100", written(*.0))]
    Percentile(f64),
    /// A limit that no canary or every canary holds.
    #[error("the limit {name} is {found}; {allowed}")]
    Limit {
        /// Its name.
        name: &'static str,
        /// What it is.
        found: f64,
        /// What it may be.
        allowed: &'static str,
    },
    /// No check falls into the time for which the canary is watched.
    #[error(
        "the canary is held for {hold} s, but its first check comes after {first} s (interval and metric_age)"
    )]
    HoldTooShort {
        /// How long it is watched, seconds.
        hold: f64,
        /// When the first check is, seconds after all of it is ready.
        first: f64,
    },
    /// It would judge by nobody.
    #[error("min_requests is 0; a check needs at least 1 request")]
    NoRequests,
}

impl Analysis {
    /// The defaults of those that it is modelled on, with the limits given.
    pub const fn usual(limits: CanaryLimits) -> Self {
        Self {
            interval: SimDuration::from_millis(60_000),
            metric_age: SimDuration::ZERO,
            percentile: 0.99,
            min_requests: 50,
            failure_limit: 0,
            limits,
            undecided: Undecided::Wait,
            progress_deadline: SimDuration::from_millis(600_000),
        }
    }

    /// Whether it makes sense for a canary that is held for so long.
    ///
    /// # Errors
    /// [`AnalysisError`] says what does not.
    pub fn check(&self, hold: SimDuration) -> Result<(), AnalysisError> {
        if self.interval == SimDuration::ZERO {
            return Err(AnalysisError::Interval);
        }
        if self.min_requests == 0 {
            return Err(AnalysisError::NoRequests);
        }
        if !(self.percentile > 0.0 && self.percentile <= 1.0) {
            return Err(AnalysisError::Percentile(self.percentile * 100.0));
        }
        let limits = self.limits;
        if limits == CanaryLimits::default() {
            return Err(AnalysisError::NoLimits);
        }
        if let Some(found) = limits.errors.filter(|e| !(0.0..1.0).contains(e)) {
            return Err(AnalysisError::Limit {
                name: "errors",
                found,
                allowed: "it is a share of requests, from 0 to below 1",
            });
        }
        for (name, ratio) in limits.ratios() {
            if let Some(found) = ratio.filter(|r| !(r.is_finite() && *r > 0.0)) {
                return Err(AnalysisError::Limit {
                    name,
                    found,
                    allowed: "it is a multiple of the old revision's, above 0",
                });
            }
        }
        let first = self.first_check();
        if hold < first {
            let (hold, first) = (hold.as_secs_f64(), first.as_secs_f64());
            return Err(AnalysisError::HoldTooShort { hold, first });
        }
        Ok(())
    }

    /// The first check, after all of the canary is ready: a whole interval must be seen.
    fn first_check(&self) -> SimDuration {
        self.interval + self.metric_age
    }
}

impl CanaryLimits {
    /// Some limit is a multiple of the old revision's figure, which must serve something then.
    pub const fn is_relative(&self) -> bool {
        self.ttft_ratio.is_some() || self.tpot_ratio.is_some() || self.e2e_ratio.is_some()
    }

    const fn ratios(&self) -> [(&'static str, Option<f64>); 3] {
        [
            ("ttft_ratio", self.ttft_ratio),
            ("tpot_ratio", self.tpot_ratio),
            ("e2e_ratio", self.e2e_ratio),
        ]
    }
}

/// How reports call the latencies of [`Ended::latencies`].
const LATENCIES: [&str; 3] = ["TTFT", "TPOT", "E2E"];

/// A request that a group of the pool is done with, as that group's metrics tell of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// When.
    pub at: SimTime,
    /// By a group of the new revision.
    pub by_new: bool,
    /// It broke off, or its client gave up.
    pub failed: bool,
    /// From its arrival at the group to its first token, mean time of each later token, and to its last token; those
    /// that there are.
    pub latencies: [Option<SimDuration>; 3],
}

/// One revision's requests in one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Those that ended.
    pub requests: u32,
    /// Those of them that failed.
    pub failed: u32,
}

/// A latency of both revisions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// The new revision's percentile.
    pub new: SimDuration,
    /// The old one's.
    pub old: SimDuration,
    /// The new one's may be so many times the old one's.
    pub limit: f64,
}

impl Compared {
    fn holds(&self) -> bool {
        self.new.as_nanos() as f64 <= self.limit * self.old.as_nanos() as f64
    }
}

/// What one check found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Check {
    /// It looked at requests that ended from then on...
    pub from: SimTime,
    /// ... and before then.
    pub to: SimTime,
    /// Of the new revision.
    pub new: Tally,
    /// Of the old one.
    pub old: Tally,
    /// TTFT, TPOT and E2E, as far as they have limits and enough requests.
    pub latencies: [Option<Compared>; 3],
    /// Whether the limits held; none if there were too few requests to tell.
    pub held: Option<bool>,
}

/// What a verdict stands on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Evidence {
    /// Checks in which all limits held.
    pub passed: u32,
    /// Checks in which some did not.
    pub failed: u32,
    /// Checks with too few requests.
    pub unknown: u32,
    /// The last check that could tell, or the last one.
    pub last: Option<Check>,
    /// The percentile of its latencies, 0 to 1.
    pub percentile: f64,
    /// How long the canary was not ready when its deadline came.
    pub not_ready_for: Option<SimDuration>,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(since) = self.not_ready_for {
            return write!(
                f,
                "not ready for {:.3} s, its progress deadline",
                since.as_secs_f64()
            );
        }
        write!(
            f,
            "{} checks passed, {} failed, {} had too few requests",
            self.passed, self.failed, self.unknown
        )?;
        let Some(check) = self.last else {
            return Ok(());
        };
        write!(
            f,
            "; {:.3} to {:.3} s: {} of {} requests failed, {} of {} of the old revision",
            check.from.as_secs_f64(),
            check.to.as_secs_f64(),
            check.new.failed,
            check.new.requests,
            check.old.failed,
            check.old.requests
        )?;
        // 0.999 * 100 is not quite 99.9.
        let p = (self.percentile * 1e8).round() / 1e6;
        for (name, compared) in LATENCIES.iter().zip(check.latencies) {
            if let Some(c) = compared {
                let (new, old) = (c.new.as_secs_f64(), c.old.as_secs_f64());
                let limit = c.limit;
                write!(
                    f,
                    ", {name} p{p} {new:.4} s to the old revision's {old:.4} s (limit {limit} times)"
                )?;
            }
        }
        Ok(())
    }
}

/// What the checks of a canary say together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    Failed,
    Undecided,
}

/// Makes the checks of one canary.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judge {
    analysis: Analysis,
    ended: VecDeque<Ended>,
    /// When the next check looks at what ended before it; none before the canary was ready for the first time.
    next_to: Option<SimTime>,
    evidence: Evidence,
}

impl Judge {
    pub(super) fn new(analysis: Analysis) -> Self {
        Self {
            analysis,
            ended: VecDeque::new(),
            next_to: None,
            evidence: Evidence {
                percentile: analysis.percentile,
                ..Evidence::default()
            },
        }
    }

    pub(super) const fn analysis(&self) -> &Analysis {
        &self.analysis
    }

    /// Takes note of a request, in the order of time. Before the canary was ready there is nothing to compare.
    pub(super) fn observe(&mut self, ended: Ended) {
        if self.next_to.is_some() {
            self.ended.push_back(ended);
        }
    }

    /// All of the canary is ready; only the first time counts, so what a crash breaks off is judged, too.
    pub(super) fn begin(&mut self, now: SimTime) {
        self.next_to.get_or_insert(now + self.analysis.interval);
    }

    /// When the next check is.
    pub(super) fn next_check(&self) -> Option<SimTime> {
        self.next_to.map(|to| to + self.analysis.metric_age)
    }

    /// Makes the checks that are due.
    pub(super) fn check(&mut self, now: SimTime) {
        while let Some(to) = self.next_to.filter(|&to| to + self.analysis.metric_age <= now) {
            let from = SimTime(to.as_nanos() - self.analysis.interval.as_nanos());
            while self.ended.front().is_some_and(|e| e.at < from) {
                self.ended.pop_front();
            }
            let check = self.look(from, to);
            self.next_to = Some(to + self.analysis.interval);
            let count = match check.held {
                Some(true) => &mut self.evidence.passed,
                Some(false) => &mut self.evidence.failed,
                None => &mut self.evidence.unknown,
            };
            *count += 1;
            let says_less = check.held.is_none() && self.evidence.last.is_some_and(|c| c.held.is_some());
            if !says_less {
                self.evidence.last = Some(check);
            }
            if self.verdict() == Verdict::Failed {
                return;
            }
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        if self.evidence.failed > self.analysis.failure_limit {
            Verdict::Failed
        } else if self.evidence.passed + self.evidence.failed == 0 {
            Verdict::Undecided
        } else {
            Verdict::Passed
        }
    }

    pub(super) const fn evidence(&self) -> Evidence {
        self.evidence
    }

    fn look(&self, from: SimTime, to: SimTime) -> Check {
        let seen = || self.ended.iter().filter(|e| (from..to).contains(&e.at));
        let tally = |of_new: bool| {
            let of = || seen().filter(|e| e.by_new == of_new);
            Tally {
                requests: of().count() as u32,
                failed: of().filter(|e| e.failed).count() as u32,
            }
        };
        let (new, old) = (tally(true), tally(false));
        let enough = self.analysis.min_requests;
        let limits = self.analysis.limits;
        let percentile = |of_new: bool, which: usize| {
            let of = seen().filter(|e| e.by_new == of_new);
            let values: Vec<SimDuration> = of.filter_map(|e| e.latencies[which]).collect();
            nearest_rank(values, self.analysis.percentile, enough)
        };
        let (mut broken, mut unknown) = (false, false);
        if let Some(limit) = limits.errors {
            unknown |= new.requests < enough;
            broken |= new.requests >= enough && f64::from(new.failed) > limit * f64::from(new.requests);
        }
        let mut latencies = [None; 3];
        for (which, (_, limit)) in limits.ratios().into_iter().enumerate() {
            let Some(limit) = limit else { continue };
            latencies[which] = percentile(true, which)
                .zip(percentile(false, which))
                .map(|(new, old)| Compared { new, old, limit });
            match &latencies[which] {
                Some(compared) => broken |= !compared.holds(),
                None => unknown = true,
            }
        }
        Check {
            from,
            to,
            new,
            old,
            latencies,
            held: if broken {
                Some(false)
            } else {
                (!unknown).then_some(true)
            },
        }
    }
}

/// The smallest value that at least the share `p` of all does not exceed; none of fewer than `enough`.
fn nearest_rank(mut values: Vec<SimDuration>, p: f64, enough: u32) -> Option<SimDuration> {
    let n = values.len();
    if n == 0 || n < enough as usize {
        return None;
    }
    // Whole products such as 0.99 * 100 may land a bit above.
    let rank = ((p * n as f64 - 1e-9).ceil() as usize).clamp(1, n);
    Some(*values.select_nth_unstable(rank - 1).1)
}

#[cfg(test)]
#[path = "analysis_tests.rs"]
mod tests;
