//! Step times that count the steps which leave what they were fitted to.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::steptime::hull::HullBounds;
use crate::steptime::{BatchShape, StepTime};
use crate::units::SimDuration;

/// Steps, those outside the hull, and those outside by axis, in the order of
/// [`axis_names`](crate::steptime::hull::axis_names).
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub steps: AtomicU64,
    pub outside: AtomicU64,
    pub by_axis: [AtomicU64; 10],
}

impl Seen {
    /// Adds what another run has seen.
    pub fn add(&self, other: &Self) {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        self.steps.fetch_add(get(&other.steps), Ordering::Relaxed);
        self.outside.fetch_add(get(&other.outside), Ordering::Relaxed);
        for (mine, theirs) in self.by_axis.iter().zip(&other.by_axis) {
            mine.fetch_add(get(theirs), Ordering::Relaxed);
        }
    }
}

/// Passes durations on and counts the steps that are taken outside the hull.
#[derive(Debug)]
pub(super) struct Watched<'a> {
    pub inner: &'a dyn StepTime,
    pub bounds: Option<HullBounds>,
    pub seen: Seen,
}

impl StepTime for Watched<'_> {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        self.inner.duration(batch)
    }

    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        self.inner.durations(batch, out);
    }

    fn wrapped(&self) -> Option<&dyn StepTime> {
        Some(self.inner)
    }

    fn observe(&self, batch: &BatchShape, steps: u32) {
        if let Some(bounds) = &self.bounds {
            let seen = &self.seen;
            seen.steps.fetch_add(u64::from(steps), Ordering::Relaxed);
            let outside = bounds.outside(batch, steps);
            if outside > 0 {
                seen.outside.fetch_add(u64::from(outside), Ordering::Relaxed);
                for (slot, n) in seen.by_axis.iter().zip(bounds.outside_by_axis(batch, steps)) {
                    if n > 0 {
                        slot.fetch_add(u64::from(n), Ordering::Relaxed);
                    }
                }
            }
        }
        self.inner.observe(batch, steps);
    }
}

/// Share of the steps of all pools that were taken outside of what their step times were fitted to.
pub(super) fn share_outside(pools: &[Watched<'_>]) -> Option<f64> {
    let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let counts = pools.iter().map(|w| (get(&w.seen.steps), get(&w.seen.outside)));
    let (steps, outside) = counts.fold((0, 0), |all, pool| (all.0 + pool.0, all.1 + pool.1));
    (steps > 0).then(|| outside as f64 / steps as f64)
}

/// Passes the pools' step times on.
pub(super) fn step_times<'a>(watched: &'a [Watched<'_>]) -> Vec<&'a dyn StepTime> {
    watched.iter().map(|w| w as &dyn StepTime).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steptime::hull::axis_names;
    use crate::steptime::{Hull, LinearStepTime};

    #[test]
    fn steps_are_counted_when_they_are_taken() {
        let inner = LinearStepTime {
            step_ps: 1_000_000,
            ..LinearStepTime::default()
        };
        let mut seen = [BatchShape::default(), BatchShape::default()];
        seen[0].add_decodes(2, 20);
        seen[1].add_decodes(2, 100);
        let watched = Watched {
            inner: &inner,
            bounds: Some(Hull::of(&seen).bounds()),
            seen: Seen::default(),
        };
        let mut batch = BatchShape::default();
        batch.add_decodes(2, 90);
        watched.durations(&batch, &mut [SimDuration::ZERO; 40]);
        watched.duration(&batch);
        watched.observe(&batch, 10);
        // 90, 92, ..., 108 positions: the last four exceed 100.
        let all = Seen::default();
        all.add(&watched.seen);
        all.add(&watched.seen);
        assert_eq!(share_outside(&[watched]), Some(0.4));
        assert_eq!((all.steps.into_inner(), all.outside.into_inner()), (20, 8));
        let axis = axis_names()
            .iter()
            .position(|&n| n == "decode_context_tokens")
            .unwrap();
        assert_eq!(all.by_axis[axis].load(Ordering::Relaxed), 8);
        assert_eq!(
            all.by_axis[0].load(Ordering::Relaxed),
            0,
            "as many tokens as were seen"
        );
    }
}
