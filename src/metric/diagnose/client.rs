//! What a client knows: when each request was due, when it was sent, when it had ended.

use crate::metric::window::Window;
use crate::record::import::ClientRun;
use crate::record::{RunRecord, Status};
use crate::units::{SimDuration, SimTime};

/// A load that is sent within this share of its run was offered at once.
const AT_ONCE: f64 = 0.1;

/// One request as its client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientSpan {
    /// When it was to be sent.
    pub due: SimTime,
    /// When it was sent; `None` when it never was.
    pub sent: Option<SimTime>,
    /// Its last token; `None` when it never came.
    pub ended: Option<SimTime>,
    /// It is among the requests that the client's own figures count.
    pub counted: bool,
}

impl ClientSpan {
    /// When it was due or sent, whichever came first.
    fn begin(&self) -> SimTime {
        self.sent.map_or(self.due, |sent| sent.min(self.due))
    }
}

/// A run as its client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientView {
    spans: Vec<ClientSpan>,
    /// When the client stopped looking.
    end: SimTime,
    wall_clock: SimDuration,
}

impl ClientView {
    /// Of requests in any order. `wall_clock` is the client's own measure of its run; without one it is the time
    /// from the first request to the last instant.
    pub fn new(spans: Vec<ClientSpan>, wall_clock: Option<SimDuration>) -> Self {
        let end = spans
            .iter()
            .filter_map(|s| s.ended.max(s.sent))
            .max()
            .unwrap_or_default();
        let first = spans.iter().map(ClientSpan::begin).min().unwrap_or(end);
        Self {
            spans,
            end,
            wall_clock: wall_clock.unwrap_or_else(|| end.since(first)),
        }
    }

    /// Of a record; rejected requests are not in flight.
    pub fn of_record(run: &RunRecord) -> Self {
        let served = run.requests.iter().filter(|r| r.status != Status::Rejected);
        let spans = served.map(|r| ClientSpan {
            due: r.scheduled,
            sent: r.sent_at(),
            ended: r.last_token.filter(|_| r.status != Status::Unfinished),
            counted: r.status == Status::Completed,
        });
        let mut view = Self::new(spans.collect(), Some(run.end.since(SimTime::ZERO)));
        view.end = view.end.max(run.end);
        view
    }

    /// Of a load generator's file, its first send at `first_send_s` on the server's clock (0 if there is none).
    /// Requests that failed are left out: when they left is not known. A request that waited for a slot of its tool
    /// was due before it was sent.
    pub fn of_client(run: &ClientRun, first_send_s: f64) -> Self {
        let at =
            |seconds: f64| SimTime::try_from_secs_f64((seconds + first_send_s).max(0.0)).unwrap_or_default();
        let spans = run.completed().map(|r| {
            let due = r.due_s.or(r.queued_s.map(|q| r.sent_s - q)).unwrap_or(r.sent_s);
            ClientSpan {
                due: at(due.min(r.sent_s)),
                sent: Some(at(r.sent_s)),
                ended: r.last_s.map(at),
                counted: true,
            }
        });
        let wall_clock = run
            .duration_s
            .and_then(|d| SimDuration::try_from_secs_f64(d).ok());
        Self::new(spans.collect(), wall_clock)
    }

    /// The client's own wall clock.
    pub(super) const fn wall_clock(&self) -> SimDuration {
        self.wall_clock
    }

    /// From the start to the last thing seen.
    pub(super) const fn span(&self) -> (SimTime, SimTime) {
        (SimTime::ZERO, self.end)
    }

    /// When each request that was sent was in flight; one that never ended is to the end.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = (SimTime, SimTime)> + '_ {
        let sent = self.spans.iter().filter_map(|s| Some((s.sent?, s.ended)));
        sent.map(|(sent, ended)| (sent, ended.unwrap_or(self.end)))
    }

    /// When each request was due and not sent; one that never was is held to the end.
    pub(super) fn held(&self) -> impl Iterator<Item = (SimTime, SimTime)> + '_ {
        self.spans.iter().map(|s| (s.due, s.sent.unwrap_or(self.end)))
    }

    /// Counted requests that ended, and the sum of their times from send to end in nanoseconds.
    pub(super) fn answered(&self) -> (u64, u128) {
        let ended = self.spans.iter().filter_map(|s| Some((s.sent?, s.ended?)));
        ended.fold((0, 0), |(n, sum), (sent, end)| {
            (n + 1, sum + u128::from(end.since(sent).as_nanos()))
        })
    }

    /// The time in which load was offered, inside the window.
    pub(in crate::metric) fn judged(&self, window: &Window) -> (SimTime, SimTime) {
        let first = self.spans.iter().map(ClientSpan::begin).min().unwrap_or_default();
        let last_sent = self.spans.iter().filter_map(|s| s.sent).max().unwrap_or_default();
        let last_end = self.in_flight().map(|(_, end)| end).max().unwrap_or_default();
        let last_end = last_end.max(last_sent);
        let offered = last_sent.since(first).as_nanos() as f64;
        let whole = last_end.since(first).as_nanos() as f64;
        let last = if offered < AT_ONCE * whole {
            last_end
        } else {
            last_sent
        };
        let from = first.max(window.from);
        let to = window.to.map_or(last, |to| to.min(last));
        (from, to.max(from))
    }

    /// Mean requests in flight over the second and over the last quarter of the judged time, when the later exceeds
    /// the earlier beyond chance: the server served less than came.
    pub(in crate::metric) fn growth(&self, (from, to): (SimTime, SimTime)) -> Option<(f64, f64)> {
        let quarter = to.since(from).as_nanos() / 4;
        let inside = |t: SimTime| from <= t && t <= to;
        let arrivals = self.spans.iter().filter(|s| s.sent.is_some_and(inside)).count();
        if quarter == 0 || arrivals < super::FEWEST_FOR_GROWTH {
            return None;
        }
        let mean = |from: u64| {
            let window = (SimTime(from), SimTime(from + quarter));
            presence(self.in_flight(), window).integral as f64 / quarter as f64
        };
        let (early, late) = (mean(from.0 + quarter), mean(to.0 - quarter));
        let grown = late - early;
        let share = grown / (arrivals as f64 / 2.0);
        (share > super::GROWTH_SHARE && grown > super::GROWTH_SIGMAS * (early + 1.0).sqrt())
            .then_some((early, late))
    }
}

/// How many were there over an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::metric) struct Presence {
    /// Their number, integrated over time, in nanoseconds.
    pub integral: u128,
    /// Time in which there was any, in nanoseconds.
    pub any_ns: u64,
}

/// Of spans in any order, the parts inside the interval. Spans that end before they start are empty.
pub(in crate::metric) fn presence(
    spans: impl Iterator<Item = (SimTime, SimTime)>,
    (from, to): (SimTime, SimTime),
) -> Presence {
    let cut = spans.map(|(a, b)| (a.max(from), b.min(to)));
    let mut inside: Vec<(SimTime, SimTime)> = cut.filter(|(a, b)| a < b).collect();
    inside.sort_unstable();
    let (mut found, mut upto) = (Presence::default(), from);
    for (a, b) in inside {
        found.integral += u128::from(b.since(a).as_nanos());
        found.any_ns += b.since(a.max(upto)).as_nanos();
        upto = upto.max(b);
    }
    found
}
