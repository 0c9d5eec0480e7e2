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
        if let Some(watch) = self.watch
            && let Ok(mut seen) = watch.seen.lock()
        {
            seen.steps += 1;
            let mut reach = 0.0_f64;
            for exceeded in watch.hull.exceeded(batch) {
                *seen.outside.entry(exceeded.axis).or_default() += 1;
                if let Some((_, high)) = exceeded.seen
                    && SIZES.contains(&exceeded.axis)
                    && exceeded.value > high
                {
                    reach = reach.max((exceeded.value / high.max(1.0)).ln());
                }
            }
            seen.reach += reach;
        }
        let nanos = self.inner.duration(batch).as_nanos() as f64 * self.factor;
        SimDuration(nanos.round().max(1.0) as u64)
    }
}
