//! Ready groups beyond need of a run whose steps are not kept: what [`crate::metric::cluster::PoolScaling`] tells of a whole
//! record, counted while the run goes on.

use crate::cluster::lifecycle::Phase;
use crate::engine::RequestId;
use crate::record::{Chunk, ClusterRecord, GroupRecord, Recorder, RequestRecord, StepRun};
use crate::units::{SimDuration, SimTime};

/// A run has at most so many windows.
const MOST_WINDOWS: usize = 100_000;

/// Nanoseconds by window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Windows(Vec<u64>);

impl Windows {
    /// Adds a stretch of time to the windows that it touches; false when it lies beyond the last one there may be.
    fn add(&mut self, start: SimTime, end: SimTime, length: u64) -> bool {
        let mut at = start;
        while at < end {
            let k = (at.as_nanos() / length) as usize;
            if k >= MOST_WINDOWS {
                return false;
            }
            if k >= self.0.len() {
                self.0.resize(k + 1, 0);
            }
            let until = SimTime((k as u64 + 1).saturating_mul(length)).min(end);
            self.0[k] += until.since(at).as_nanos();
            at = until;
        }
        true
    }

    fn seconds(&self, k: usize) -> f64 {
        self.0.get(k).copied().unwrap_or(0) as f64 / 1e9
    }
}

/// Tells another recorder of a run, and counts how busy each replica was in each window.
#[derive(Debug)]
pub(super) struct Windowed<R> {
    pub inner: R,
    pub busy: BusyWindows,
}

/// How busy replicas were.
#[derive(Debug)]
pub(super) struct BusyWindows {
    /// Length of a window; none when nobody counts.
    length: Option<SimDuration>,
    /// Of each replica: the end of its last step, and its busy time.
    replicas: Vec<(SimTime, Windows)>,
}

impl<R> Windowed<R> {
    /// Counts in windows of about a fiftieth of the time under load; without such a time, not at all.
    pub fn new(inner: R, under_load: Option<SimDuration>) -> Self {
        let length = under_load
            .filter(|d| *d > SimDuration::ZERO)
            .map(about_a_fiftieth);
        let replicas = Vec::new();
        Self {
            inner,
            busy: BusyWindows { length, replicas },
        }
    }
}

/// The windows of the figures of a whole record: 1, 2 or 5 times a power of ten, a millisecond at least.
fn about_a_fiftieth(span: SimDuration) -> SimDuration {
    const MILLISECOND: u64 = 1_000_000;
    let most = span.as_nanos() / 50;
    let decades = std::iter::successors(Some(MILLISECOND), |d| d.checked_mul(10));
    let lengths = decades.flat_map(|d| [Some(d), d.checked_mul(2), d.checked_mul(5)]);
    let fitting = lengths.flatten().take_while(|&length| length <= most);
    SimDuration(fitting.last().unwrap_or(MILLISECOND))
}

impl<R: Recorder> Recorder for Windowed<R> {
    type Request = R::Request;

    fn measures(&self, scheduled: SimTime) -> bool {
        self.inner.measures(scheduled)
    }

    fn steps(&mut self, run: &StepRun<'_>) {
        self.busy.count(run);
        self.inner.steps(run);
    }

    fn chunk(&mut self, request: &mut RequestRecord, kept: &mut Self::Request, chunk: Chunk) {
        self.inner.chunk(request, kept, chunk);
    }

    fn further_chunks(
        &mut self,
        request: &mut RequestRecord,
        kept: &mut Self::Request,
        steps: u32,
        end: SimTime,
    ) {
        self.inner.further_chunks(request, kept, steps, end);
    }

    fn broke(&mut self, request: &mut RequestRecord) {
        self.inner.broke(request);
    }

    fn given_up(&mut self, request: &RequestRecord, kept: Self::Request) {
        self.inner.given_up(request, kept);
    }

    fn ended(&mut self, id: RequestId, request: RequestRecord, kept: Self::Request) {
        self.inner.ended(id, request, kept);
    }
}

impl BusyWindows {
    fn count(&mut self, run: &StepRun<'_>) {
        let Some(length) = self.length else { return };
        let index = run.replica as usize;
        if index >= self.replicas.len() {
            self.replicas.resize_with(index + 1, Default::default);
        }
        let (before, windows) = &mut self.replicas[index];
        let mut fits = true;
        for (&start, &end) in run.starts.iter().zip(run.ends) {
            // A device does one thing at a time.
            let start = start.max(*before).min(end);
            *before = end.max(*before);
            fits &= windows.add(start, end, length.as_nanos());
        }
        if !fits {
            self.length = None;
        }
    }

    /// Group-hours of a pool's ready groups beyond need, as of [`crate::metric::cluster::PoolScaling`]; none when it was not
    /// counted.
    pub fn beyond_need(
        &self,
        cluster: &ClusterRecord,
        pool: u32,
        end: SimTime,
        target_utilisation: f64,
    ) -> Option<f64> {
        let length = self.length?.as_nanos();
        let windows = usize::try_from(end.as_nanos().div_ceil(length)).ok()?;
        if windows > MOST_WINDOWS {
            return None;
        }
        let groups = || cluster.groups.iter().filter(|g| g.pool == pool);
        let mut ready = Windows::default();
        for (from, to) in groups().flat_map(|g| ready_spans(g, end)) {
            ready.add(from, to, length);
        }
        let of_group = |group: &GroupRecord, k: usize| {
            let ranks = group
                .replicas
                .iter()
                .filter_map(|&r| self.replicas.get(r as usize));
            ranks.map(|(_, busy)| busy.seconds(k)).sum::<f64>() / group.replicas.len().max(1) as f64
        };
        let beyond = (0..windows).map(|k| {
            let from = SimTime(k as u64 * length);
            let lasts = SimTime(from.0.saturating_add(length))
                .min(end)
                .since(from)
                .as_secs_f64();
            let busy_s: f64 = groups().map(|g| of_group(g, k)).sum();
            // The tolerance is for groups that were busy all the time.
            let need = (busy_s / (target_utilisation * lasts) - 1e-9).ceil().max(0.0);
            (ready.seconds(k) - need * lasts).max(0.0)
        });
        Some(beyond.sum::<f64>() / 3_600.0)
    }
}

/// When a group was ready.
pub(super) fn ready_spans(
    group: &GroupRecord,
    end: SimTime,
) -> impl Iterator<Item = (SimTime, SimTime)> + '_ {
    let until = move |i: usize| group.phases.get(i + 1).map_or(end, |next| next.0).min(end);
    let spans = group.phases.iter().enumerate();
    spans
        .filter(|(_, (_, phase))| *phase == Phase::Ready)
        .map(move |(i, &(from, _))| (from.min(end), until(i)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_those_of_a_whole_record() {
        let of = |s: u64| about_a_fiftieth(SimDuration::from_millis(1_000 * s)).as_nanos() / 1_000_000;
        assert_eq!(
            [0, 1, 60, 300, 600, 3_600].map(of),
            [1, 20, 1_000, 5_000, 10_000, 50_000]
        );
    }

    #[test]
    fn a_stretch_is_dealt_out_to_its_windows() {
        let mut windows = Windows::default();
        assert!(windows.add(SimTime(15), SimTime(42), 10));
        assert_eq!(windows.0, [0, 5, 10, 10, 2]);
        assert!(!windows.add(SimTime(10 * MOST_WINDOWS as u64), SimTime(u64::MAX), 10));
    }
}
