//! Does the backlog grow?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::window::Window;
use crate::record::{RequestRecord, RunRecord, Status};
use crate::units::SimTime;

/// Fewer arrivals than this are not judged.
const FEWEST_ARRIVALS: u64 = 40;
/// Growth above this share of the arrivals is sustained overload.
const GROWTH_SHARE: f64 = 0.05;
/// Growth must also exceed this many standard deviations of a Poisson count of the earlier backlog.
const SIGMAS: f64 = 3.0;

/// Growth of the backlog over the span of arrivals.
///
/// The backlog is the number of requests that are due (intended arrival) but have no first token yet. Its mean
/// over the second quarter of the span of arrivals is compared with that over the last quarter. Half a span of
/// arrivals lies between the centres of the two. The run is saturated when the backlog grew by more than 5 % of
/// those arrivals and by more than three standard deviations of a Poisson count with the earlier mean (plus
/// one). A closed loop never grows. Rejected requests are arrivals, but never backlog. How often the rule is right on single
/// queues is tabulated in `docs/METRICS.md`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Backlog {
    /// Mean backlog over the second quarter.
    pub early: f64,
    /// Mean backlog over the last quarter.
    pub late: f64,
    /// `late - early` over the arrivals in half a span.
    pub growth_share: f64,
    /// The rule above says that it grows.
    pub saturated: bool,
}

impl Backlog {
    /// Judges the requests of a window. `None` with fewer than 40 arrivals or when all came at once (offline
    /// load, which has no arrival rate to keep up with).
    pub fn of(run: &RunRecord, window: &Window) -> Option<Self> {
        let arrivals = ArrivalSpan::of(run.requests.iter().map(|r| r.scheduled), window)?;
        let mut meter = BacklogMeter::new(arrivals)?;
        run.requests.iter().for_each(|r| meter.count(r));
        Some(meter.judge())
    }
}

/// First and last arrival of the measured requests, and how many there are: of all that are offered, rejected ones too,
/// since a run that is told while it goes on knows neither its last arrival nor what will be rejected, and the quarters
/// of the backlog depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrivalSpan {
    /// The first.
    pub first: SimTime,
    /// The last.
    pub last: SimTime,
    /// How many.
    pub n: u64,
}

impl ArrivalSpan {
    /// Of those arrivals that lie in the window, in any order. `None` when none does.
    pub fn of(arrivals: impl IntoIterator<Item = SimTime>, window: &Window) -> Option<Self> {
        let mut span: Option<Self> = None;
        for at in arrivals.into_iter().filter(|&at| window.contains(at)) {
            let known = span.unwrap_or(Self {
                first: at,
                last: at,
                n: 0,
            });
            span = Some(Self {
                first: known.first.min(at),
                last: known.last.max(at),
                n: known.n + 1,
            });
        }
        span
    }
}

/// Adds up the backlog of both quarters, one request at a time and in any order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BacklogMeter {
    arrivals: u64,
    early: Quarter,
    late: Quarter,
}

/// An interval and the time that requests spent in the backlog during it, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
struct Quarter {
    from: u64,
    to: u64,
    waited: u128,
}

impl Quarter {
    fn count(&mut self, r: &RequestRecord) {
        let due = r.scheduled.as_nanos().max(self.from);
        let served = r
            .first_token
            .or(r.last_token)
            .map_or(self.to, |t| t.as_nanos().min(self.to));
        self.waited += u128::from(served.saturating_sub(due));
    }

    fn mean(&self) -> f64 {
        self.waited as f64 / (self.to - self.from) as f64
    }
}

impl BacklogMeter {
    /// `None` when the arrivals are too few or have no span.
    pub fn new(arrivals: ArrivalSpan) -> Option<Self> {
        let (first, last) = (arrivals.first.as_nanos(), arrivals.last.as_nanos());
        let span = last.checked_sub(first)?;
        if span < 4 || arrivals.n < FEWEST_ARRIVALS {
            return None;
        }
        let quarter = |from, to| Quarter { from, to, waited: 0 };
        Some(Self {
            arrivals: arrivals.n,
            early: quarter(first + span / 4, first + 2 * (span / 4)),
            late: quarter(last - span / 4, last),
        })
    }

    /// Adds any request of the run.
    pub fn count(&mut self, r: &RequestRecord) {
        if r.status != Status::Rejected {
            self.early.count(r);
            self.late.count(r);
        }
    }

    /// Adds the requests that another meter of the same arrivals counted.
    pub fn merge(&mut self, other: &Self) {
        self.early.waited += other.early.waited;
        self.late.waited += other.late.waited;
    }

    /// The judgement on all requests counted.
    pub fn judge(&self) -> Backlog {
        let (early, late) = (self.early.mean(), self.late.mean());
        let growth = late - early;
        let growth_share = growth / (self.arrivals as f64 / 2.0);
        let noise = SIGMAS * (early + 1.0).sqrt();
        Backlog {
            early,
            late,
            growth_share,
            saturated: growth_share > GROWTH_SHARE && growth > noise,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::offered;
    use crate::units::SimTime;

    /// A D/D/1 queue: one arrival every `gap`, one first token every `service`.
    fn queue(n: u64, gap: u64, service: u64) -> RunRecord {
        let mut free = 0;
        let requests = (0..n).map(|i| {
            free = free.max(i * gap) + service;
            let mut request = offered(SimTime(i * gap));
            request.first_token = Some(SimTime(free));
            request
        });
        RunRecord {
            requests: requests.collect(),
            end: SimTime(n * gap.max(service)),
            ..RunRecord::default()
        }
    }

    #[test]
    fn overload_grows_by_its_excess() {
        // 25 % above capacity: a fifth of the arrivals stays behind.
        let backlog = Backlog::of(&queue(1000, 80, 100), &Window::WHOLE).unwrap();
        assert!(backlog.saturated);
        assert!((backlog.growth_share - 0.2).abs() < 0.01, "{backlog:?}");
    }

    #[test]
    fn a_load_below_capacity_does_not_grow() {
        let backlog = Backlog::of(&queue(1000, 100, 95), &Window::WHOLE).unwrap();
        assert!(!backlog.saturated, "{backlog:?}");
        assert!((backlog.early - 0.95).abs() < 0.01, "{backlog:?}");
    }

    #[test]
    fn few_or_simultaneous_arrivals_are_not_judged() {
        assert_eq!(Backlog::of(&queue(39, 80, 100), &Window::WHOLE), None);
        assert_eq!(Backlog::of(&queue(100, 0, 100), &Window::WHOLE), None);
    }

    /// A record and a run that is told while it goes on have the same arrivals, whichever were rejected.
    #[test]
    fn rejected_requests_are_arrivals_and_no_backlog() {
        let mut run = queue(60, 100, 95);
        run.requests.iter_mut().skip(20).for_each(|r| {
            r.status = Status::Rejected;
            r.first_token = None;
        });
        let backlog = Backlog::of(&run, &Window::WHOLE).unwrap();
        let span = ArrivalSpan::of(run.requests.iter().map(|r| r.scheduled), &Window::WHOLE);
        let mut told = BacklogMeter::new(span.unwrap()).unwrap();
        run.requests.iter().for_each(|r| told.count(r));
        assert_eq!(backlog, told.judge());
        assert!(backlog.late.abs() < 1e-12, "{backlog:?}");
        assert!(backlog.early > 0.0 && !backlog.saturated, "{backlog:?}");
    }
}
