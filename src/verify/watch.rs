//! Step times on their way: scaled, and watched for batches that the fit has not seen.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::guises::Guises;
use crate::steptime::hull::{AxisRange, Hull, axis_names};
use crate::steptime::{BatchShape, StepTime};
use crate::units::SimDuration;

/// Step times times a factor; counts the axes on which batches leave the hull.
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
    seen: Mutex<(u64, BTreeMap<&'static str, u64>)>,
}

/// An axis counts as left when more than this share of the steps lies outside on it.
const LEFT_ABOVE: f64 = 0.01;

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
        Self {
            hull: Hull { ranges },
            seen: Mutex::default(),
        }
    }

    /// Axes that the run leaves.
    pub fn left(&self) -> Vec<String> {
        let Ok(seen) = self.seen.lock() else {
            return Vec::new();
        };
        let (steps, by_axis) = &*seen;
        by_axis
            .iter()
            .filter(|(_, n)| **n as f64 > LEFT_ABOVE * *steps as f64)
            .map(|(axis, _)| (*axis).to_owned())
            .collect()
    }
}

impl StepTime for Scaled<'_> {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        if let Some(watch) = self.watch
            && let Ok(mut seen) = watch.seen.lock()
        {
            seen.0 += 1;
            for exceeded in watch.hull.exceeded(batch) {
                *seen.1.entry(exceeded.axis).or_default() += 1;
            }
        }
        let nanos = self.inner.duration(batch).as_nanos() as f64 * self.factor;
        SimDuration(nanos.round().max(1.0) as u64)
    }
}
