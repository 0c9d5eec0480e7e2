//! Goodput over time.

use super::ClusterError;
use super::options::ClusterOptions;
use crate::metric::saturation::ArrivalSpan;
use crate::metric::tokens::TokenGaps;
use crate::metric::window::Window;
use crate::record::{RequestRecord, RunRecord};
use crate::units::{SimDuration, SimTime};

/// A run has at most so many windows.
const MAX_WINDOWS: u64 = 1_000_000;

/// When load was offered, and when good requests ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Good {
    /// Last tokens of the good requests, by time.
    ends: Vec<SimTime>,
    /// Whether each request of the run is good, in its order.
    pub met: Vec<bool>,
    /// How many meet each target, in the order of [`crate::metric::Slo::targets`].
    pub by_target: Vec<u64>,
    /// Good output tokens.
    pub output_tokens: u64,
    /// First and last arrival.
    pub load: Option<(SimTime, SimTime)>,
    /// Length of a window.
    pub window: SimDuration,
}

impl Good {
    /// Of a run.
    ///
    /// # Errors
    /// [`ClusterError::Window`] for windows without a length or without number.
    pub fn of(run: &RunRecord, options: &ClusterOptions) -> Result<Self, ClusterError> {
        let slo = &options.slo;
        let limit = slo.gap_limit_ns();
        let gaps = slo.itl.map(|_| TokenGaps::new(run, limit));
        let mut by_target = vec![0; slo.targets().count()];
        let mut is_good = |request: &RequestRecord| {
            let profile = gaps
                .as_ref()
                .map(|g| g.profile(request, limit))
                .unwrap_or_default();
            for (met, (target, bound)) in by_target.iter_mut().zip(slo.targets()) {
                *met += u64::from(slo.meets(target, bound, request, &profile));
            }
            slo.meets_all(request, &profile)
        };
        let mut ends = Vec::new();
        let mut output_tokens = 0;
        let met: Vec<bool> = run.requests.iter().map(&mut is_good).collect();
        let good = run.requests.iter().zip(&met).filter(|(_, met)| **met);
        for (request, _) in good {
            ends.extend(request.last_token);
            output_tokens += u64::from(request.output_tokens);
        }
        ends.sort_unstable();
        let load = ArrivalSpan::of(run.requests.iter().map(|r| r.scheduled), &Window::WHOLE);
        let load = load.map(|span| (span.first, span.last));
        let under_load = load.map_or(SimDuration::ZERO, |(first, last)| last.since(first));
        // A run that goes on for very long after its load has no more windows than it may.
        let shown = under_load.max(SimDuration(run.end.as_nanos() / MAX_WINDOWS * 200));
        let window = options.window.unwrap_or_else(|| about_a_fiftieth(shown));
        let (length, end) = (window.as_nanos(), run.end.as_nanos());
        if length == 0 || end / length > MAX_WINDOWS {
            return Err(ClusterError::Window { window, end: run.end });
        }
        Ok(Self {
            ends,
            met,
            by_target,
            output_tokens,
            load,
            window,
        })
    }

    /// Good requests.
    pub fn requests(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Those that ended in `[from, to)`.
    pub fn within(&self, from: SimTime, to: SimTime) -> u64 {
        let until = |t| self.ends.partition_point(|&end| end < t);
        until(to).saturating_sub(until(from)) as u64
    }

    /// Goodput in `[from, to)`, requests a second.
    pub fn rate(&self, from: SimTime, to: SimTime) -> Option<f64> {
        let seconds = to.since(from).as_secs_f64();
        (seconds > 0.0).then(|| self.within(from, to) as f64 / seconds)
    }
}

/// 1, 2 or 5 times a power of ten nanoseconds, at most a fiftieth of a span; a millisecond at least.
fn about_a_fiftieth(span: SimDuration) -> SimDuration {
    let most = span.as_nanos() / 50;
    let mut length: u64 = 1_000_000;
    let factors = [2, 5, 10].into_iter().cycle();
    let mut decade = length;
    for factor in factors {
        let next = decade.saturating_mul(factor);
        if next > most || next == u64::MAX {
            break;
        }
        length = next;
        if factor == 10 {
            decade = next;
        }
    }
    SimDuration(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_lasts_far_longer_than_its_load_has_no_more_windows_than_it_may() {
        let run = RunRecord {
            requests: vec![crate::metric::fixture::offered(SimTime::ZERO)],
            end: SimTime(100_000 * 1_000_000_000),
            ..RunRecord::default()
        };
        let good = Good::of(&run, &ClusterOptions::default()).unwrap();
        assert!(run.end.as_nanos() / good.window.as_nanos() <= MAX_WINDOWS);
    }

    #[test]
    fn windows_are_round() {
        let of = |s: u64| about_a_fiftieth(SimDuration::from_millis(1_000 * s)).as_nanos() / 1_000_000;
        assert_eq!(
            [0, 1, 60, 300, 600, 3_600].map(of),
            [1, 20, 1_000, 5_000, 10_000, 50_000]
        );
    }
}
