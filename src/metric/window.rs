//! Which part of a run is measured.

use crate::record::{RequestRecord, RunRecord, Status};
use crate::units::{SimDuration, SimTime};

/// A half-open interval of intended arrivals. Requests that arrive in it are measured and followed to their
/// end, even past the window; the others only load the system (contract, section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// End of the warm-up.
    pub from: SimTime,
    /// Start of the cool-down; `None` measures to the end of the run.
    pub to: Option<SimTime>,
}

impl Window {
    /// The whole run.
    pub const WHOLE: Self = Self {
        from: SimTime::ZERO,
        to: None,
    };

    /// What follows a warm-up, for `length` or to the end of the run.
    pub fn after(warmup: SimDuration, length: Option<SimDuration>) -> Self {
        let from = SimTime::ZERO + warmup;
        Self {
            from,
            to: length.map(|l| from + l),
        }
    }

    /// The instant lies in the window.
    pub fn contains(&self, instant: SimTime) -> bool {
        self.from <= instant && self.to.is_none_or(|to| instant < to)
    }

    /// The measured requests, in trace order; not those that their load generator did not count.
    pub fn select<'a>(
        &self,
        run: &'a RunRecord,
    ) -> impl Iterator<Item = &'a RequestRecord> + Clone + use<'a> {
        let window = *self;
        run.requests
            .iter()
            .filter(move |r| window.contains(r.scheduled) && r.status != Status::Surplus)
    }

    /// The end of the part of the window that the run covered.
    pub fn end(&self, run: &RunRecord) -> SimTime {
        self.cut(run.end)
    }

    /// The end of the part of the window that a run until `end` covered.
    pub(super) fn cut(&self, end: SimTime) -> SimTime {
        self.to.map_or(end, |to| to.min(end))
    }

    /// Wall clock of the window: the T of every rate. The whole run lasts from its start, not from the first
    /// arrival, to its last event (as `vllm bench serve` has it, rule M17).
    pub fn duration(&self, run: &RunRecord) -> SimDuration {
        self.end(run).since(self.from)
    }

    /// The window as an interval of events: unlike [`Window::end`] it has room for what happens at the very
    /// end of the run.
    pub(crate) fn event_bounds(&self) -> (SimTime, SimTime) {
        (self.from, self.to.unwrap_or(SimTime(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::{MS, three_requests};

    #[test]
    fn a_window_is_half_open_and_by_intended_arrival() {
        let run = three_requests();
        let window = Window {
            from: SimTime(2 * MS),
            to: Some(SimTime(41 * MS)),
        };
        let arrivals: Vec<u64> = window.select(&run).map(|r| r.scheduled.as_nanos() / MS).collect();
        assert_eq!(arrivals, [2]);
        assert_eq!(window.duration(&run), SimDuration(39 * MS));
        assert_eq!(Window::WHOLE.select(&run).count(), 4);
        assert_eq!(Window::WHOLE.duration(&run), SimDuration(60 * MS));
    }

    #[test]
    fn a_window_ends_no_later_than_the_run() {
        let run = three_requests();
        let beyond = Window::after(SimDuration(10 * MS), Some(SimDuration(1000 * MS)));
        assert_eq!(beyond.duration(&run), SimDuration(50 * MS));
        let after_the_end = Window::after(SimDuration(99 * MS), None);
        assert_eq!(after_the_end.duration(&run), SimDuration::ZERO);
        assert_eq!(after_the_end.select(&run).count(), 0);
    }
}
