//! Step times on their way: scaled, and watched for batches that the fit has not seen.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::guises::Guises;
use crate::steptime::hull::{AxisRange, Exceeded, Hull, HullBounds, axis_names};
use crate::steptime::{BatchShape, StepTime};
use crate::units::SimDuration;

/// Step times times a factor; counts the axes on which batches of steps that are taken leave the hull.
#[derive(Debug)]
pub(super) struct Scaled<'a> {
    pub inner: &'a dyn StepTime,
    pub factor: f64,
    pub watch: Option<&'a Watch>,
}

/// Steps, and those outside of the hull by axis.
#[derive(Debug)]
pub(super) struct Watch {
    hull: Hull,
    /// The hull again, for a quick look.
    bounds: HullBounds,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    steps: u64,
    outside: BTreeMap<&'static str, u64>,
    /// Sum over the steps of the logarithm of how many times the largest batch seen each was, on the worst axis.
    reach: f64,
}

/// Axes of a batch's size, along which a prediction is carried further the larger the batch is.
const SIZES: [&str; 4] = ["tokens", "prefill_tokens", "decode_seqs", "decode_context_tokens"];

/// An axis counts as left when more than this share of the steps lies outside on it.
const LEFT_ABOVE: f64 = 0.01;

impl Seen {
    /// Counts a step that leaves the hull so.
    fn add(&mut self, exceeded: &[Exceeded]) {
        let mut reach = 0.0_f64;
        for exceeded in exceeded {
            *self.outside.entry(exceeded.axis).or_default() += 1;
            if let Some((_, high)) = exceeded.seen
                && SIZES.contains(&exceeded.axis)
                && exceeded.value > high
            {
                reach = reach.max((exceeded.value / high.max(1.0)).ln());
            }
        }
        self.reach += reach;
    }
}

impl Watch {
    pub fn of(guises: &Guises) -> Self {
        let known = axis_names();
        let ranges = guises
            .hull
            .iter()
            .filter(|(axis, ..)| known.contains(&axis.as_str()))
            .map(|(axis, low, high)| AxisRange {
                axis: axis.clone(),
                low: *low,
                high: *high,
            })
            .collect();
        let hull = Hull { ranges };
        Self {
            bounds: hull.bounds(),
            hull,
            seen: Mutex::default(),
        }
    }

    /// Counts a run of steps, the first of `batch`, each later one of the batch advanced by one more.
    fn observe(&self, batch: &BatchShape, steps: u32) {
        let Ok(mut seen) = self.seen.lock() else { return };
        seen.steps += u64::from(steps);
        if self.bounds.outside(batch, steps) == 0 {
            return;
        }
        let mut batch = batch.clone();
        for _ in 0..steps {
            seen.add(&self.hull.exceeded(&batch));
            batch.advance(1);
        }
    }

    /// Axes that the run leaves.
    pub fn left(&self) -> Vec<String> {
        let Ok(seen) = self.seen.lock() else {
            return Vec::new();
        };
        seen.outside
            .iter()
            .filter(|(_, n)| **n as f64 > LEFT_ABOVE * seen.steps as f64)
            .map(|(axis, _)| (*axis).to_owned())
            .collect()
    }

    /// Mean logarithm of how far the steps reach beyond the largest batches seen; 0 inside.
    pub fn reach(&self) -> f64 {
        self.seen.lock().map_or(0.0, |seen| {
            if seen.steps == 0 {
                0.0
            } else {
                seen.reach / seen.steps as f64
            }
        })
    }
}

impl StepTime for Scaled<'_> {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        self.scaled(self.inner.duration(batch))
    }

    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        self.inner.durations(batch, out);
        for duration in out {
            *duration = self.scaled(*duration);
        }
    }

    fn wrapped(&self) -> Option<&dyn StepTime> {
        Some(self.inner)
    }

    fn observe(&self, batch: &BatchShape, steps: u32) {
        if let Some(watch) = self.watch {
            watch.observe(batch, steps);
        }
        self.inner.observe(batch, steps);
    }
}

impl Scaled<'_> {
    fn scaled(&self, duration: SimDuration) -> SimDuration {
        let nanos = duration.as_nanos() as f64 * self.factor;
        SimDuration(nanos.round().max(1.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steptime::LinearStepTime;

    fn watch() -> Watch {
        let mut batches = [BatchShape::default(), BatchShape::default()];
        batches[0].add_decodes(1, 100);
        batches[1].add_decodes(4, 1600);
        let hull = Hull::of(&batches);
        Watch {
            bounds: hull.bounds(),
            hull,
            seen: Mutex::default(),
        }
    }

    #[test]
    fn a_run_of_steps_is_watched_as_its_steps_are_and_asking_for_durations_is_not() {
        let inner = LinearStepTime {
            decode_context_token_ps: 1000,
            ..LinearStepTime::default()
        };
        // It enters the hull, leaves it, or stays outside.
        for (rows, context, steps) in [
            (1, 90, 30),
            (2, 700, 200),
            (4, 1500, 60),
            (9, 900, 5),
            (2, 300, 7),
        ] {
            let (at_once, one_by_one) = (watch(), watch());
            let scaled = |watch| Scaled {
                inner: &inner,
                factor: 1.25,
                watch: Some(watch),
            };
            let mut batch = BatchShape::default();
            batch.add_decodes(rows, context);
            scaled(&at_once).observe(&batch, steps);
            let mut durations = vec![SimDuration::ZERO; steps as usize];
            scaled(&at_once).durations(&batch, &mut durations);
            for duration in durations {
                scaled(&one_by_one).observe(&batch, 1);
                assert_eq!(duration, scaled(&one_by_one).duration(&batch));
                batch.advance(1);
            }
            let seen = |w: &Watch| {
                let seen = w.seen.lock().unwrap();
                (seen.steps, seen.outside.clone(), seen.reach.to_bits())
            };
            assert_eq!(seen(&at_once), seen(&one_by_one));
            assert_eq!(at_once.seen.lock().unwrap().steps, u64::from(steps));
        }
    }
}
