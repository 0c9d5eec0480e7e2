//! Ready groups beyond need of a run whose steps are not kept: what [`crate::metric::cluster::PoolScaling`] tells of a whole
//! record, counted while the run goes on.

use crate::engine::RequestId;
use crate::metric::cluster::{NeedRule, PoolWork, RankWork, StepWork};
use crate::record::{Chunk, ClusterRecord, Recorder, ReplicaTotals, RequestRecord, StepRun};
use crate::units::{SimDuration, SimTime};

/// A run has at most so many windows.
const MOST_WINDOWS: usize = 100_000;

/// Tells another recorder of a run, and counts what each replica had to do in each window.
#[derive(Debug)]
pub(super) struct Windowed<R> {
    pub inner: R,
    pub busy: BusyWindows,
}

/// What replicas had to do.
#[derive(Debug)]
pub(super) struct BusyWindows {
    /// Length of a window; none when nobody counts.
    length: Option<SimDuration>,
    replicas: Vec<RankWork>,
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
        let rank = &mut self.replicas[index];
        let mut fits = true;
        for (i, (&start, &end)) in run.starts.iter().zip(run.ends).enumerate() {
            let step = StepWork {
                start,
                end,
                requests: u64::from(run.running) + u64::from(run.waiting),
                free_blocks: run.free_blocks.get(i).copied(),
            };
            fits &= rank.count(step, length, MOST_WINDOWS);
        }
        if !fits {
            self.length = None;
        }
    }

    /// Group-hours of a pool's ready groups beyond need, as of [`crate::metric::cluster::PoolScaling`]; none when it was not
    /// counted.
    pub fn beyond_need(
        &self,
        (cluster, replicas, end): (&ClusterRecord, &[ReplicaTotals], SimTime),
        pool: u32,
        rule: &NeedRule,
    ) -> Option<f64> {
        let length = self.length?;
        let windows = usize::try_from(end.as_nanos().div_ceil(length.as_nanos())).ok()?;
        if windows > MOST_WINDOWS {
            return None;
        }
        let groups = || cluster.groups.iter().filter(|g| g.pool == pool);
        let mut work = PoolWork::new(length, end);
        for group in groups() {
            for &number in &group.replicas {
                let number = number as usize;
                let usable = replicas.get(number).map_or(0, |r| r.usable_blocks);
                if let Some(rank) = self.replicas.get(number) {
                    work.add(rank, usable, group.replicas.len());
                }
            }
        }
        Some(work.beyond_need(groups(), rule))
    }
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

    /// Counts what it is told.
    #[derive(Debug, Default)]
    struct Told {
        given_up: u32,
    }

    impl Recorder for Told {
        type Request = ();

        fn measures(&self, _scheduled: SimTime) -> bool {
            true
        }

        fn steps(&mut self, _run: &StepRun<'_>) {}

        fn chunk(&mut self, _request: &mut RequestRecord, _kept: &mut (), _chunk: Chunk) {}

        fn further_chunks(&mut self, _: &mut RequestRecord, _kept: &mut (), _steps: u32, _end: SimTime) {}

        fn given_up(&mut self, _request: &RequestRecord, _kept: ()) {
            self.given_up += 1;
        }

        fn ended(&mut self, _id: RequestId, _request: RequestRecord, _kept: ()) {}
    }

    #[test]
    fn attempts_given_up_are_told_on() {
        let mut windowed = Windowed::new(Told::default(), None);
        windowed.given_up(&crate::metric::fixture::offered(SimTime::ZERO), ());
        assert_eq!(windowed.inner.given_up, 1);
    }
}
