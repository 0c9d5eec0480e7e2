//! Step times that count the steps which leave what they were fitted to.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::steptime::hull::HullBounds;
use crate::steptime::{BatchShape, StepTime};
use crate::units::SimDuration;

/// Passes durations on and counts the steps that are taken outside the hull.
#[derive(Debug)]
pub(super) struct Watched<'a> {
    pub inner: &'a dyn StepTime,
    pub bounds: Option<HullBounds>,
    pub steps: AtomicU64,
    pub outside: AtomicU64,
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
            self.steps.fetch_add(u64::from(steps), Ordering::Relaxed);
            let outside = bounds.outside(batch, steps);
            self.outside.fetch_add(u64::from(outside), Ordering::Relaxed);
        }
        self.inner.observe(batch, steps);
    }
}

/// Share of the steps of all pools that were taken outside of what their step times were fitted to.
pub(super) fn share_outside(pools: Vec<Watched<'_>>) -> Option<f64> {
    let counts = pools
        .into_iter()
        .map(|w| (w.steps.into_inner(), w.outside.into_inner()));
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
            steps: AtomicU64::new(0),
            outside: AtomicU64::new(0),
        };
        let mut batch = BatchShape::default();
        batch.add_decodes(2, 90);
        watched.durations(&batch, &mut [SimDuration::ZERO; 40]);
        watched.duration(&batch);
        watched.observe(&batch, 10);
        // 90, 92, ..., 108 positions: the last four exceed 100.
        assert_eq!(watched.steps.into_inner(), 10);
        assert_eq!(watched.outside.into_inner(), 4);
    }
}
