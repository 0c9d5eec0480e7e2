//! Does the backlog grow?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::window::Window;
use crate::record::{RequestRecord, RunRecord, Status};

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
/// one). A closed loop never grows. Rejected requests are not backlog. How often the rule is right on single
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
        let arrivals = window.select(run).filter(|r| r.status != Status::Rejected);
        let (mut first, mut last, mut n) = (u64::MAX, 0, 0u64);
        for request in arrivals {
            let at = request.scheduled.as_nanos();
            (first, last, n) = (first.min(at), last.max(at), n + 1);
        }
        let span = last
            .checked_sub(first)
            .filter(|&s| s >= 4 && n >= FEWEST_ARRIVALS)?;
        let quarter = span / 4;
        let early = mean_backlog(run, first + quarter, first + 2 * quarter);
        let late = mean_backlog(run, last - quarter, last);
        let growth = late - early;
        let growth_share = growth / (n as f64 / 2.0);
        let noise = SIGMAS * (early + 1.0).sqrt();
        Some(Self {
            early,
            late,
            growth_share,
            saturated: growth_share > GROWTH_SHARE && growth > noise,
        })
    }
}

/// Mean number of requests over `[from, to)` that are due and have no first token; exact integral.
fn mean_backlog(run: &RunRecord, from: u64, to: u64) -> f64 {
    let overlap = |r: &RequestRecord| {
        let due = r.scheduled.as_nanos().max(from);
        let served = r.first_token.map_or(to, |t| t.as_nanos().min(to));
        u128::from(served.saturating_sub(due))
    };
    let all = run.requests.iter().filter(|r| r.status != Status::Rejected);
    all.map(overlap).sum::<u128>() as f64 / (to - from) as f64
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
}
