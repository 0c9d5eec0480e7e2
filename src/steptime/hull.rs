//! The region of batch shapes that a fit has seen.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BatchShape;

/// What is measured of a batch, by name. An axis is absent where it says nothing: a context per token without
/// tokens, the rows beside a prefill in a pure decode batch.
fn axes(batch: &BatchShape) -> [(&'static str, Option<f64>); 10] {
    axes_with(batch, (batch.prefill_token_context, batch.decode_context_tokens))
}

/// The axes of `batch` if its prefill and decode tokens attended these numbers of positions.
fn axes_with(batch: &BatchShape, contexts: (u64, u64)) -> [(&'static str, Option<f64>); 10] {
    let (prefill_context, decode_context) = (contexts.0 as f64, contexts.1 as f64);
    let prefills = batch.prefill_seqs > 0;
    let decodes = batch.decode_seqs > 0;
    let when = |condition: bool, value: f64| condition.then_some(value);
    [
        ("tokens", Some(f64::from(batch.tokens()))),
        ("prefill_seqs", when(prefills, f64::from(batch.prefill_seqs))),
        ("prefill_tokens", when(prefills, f64::from(batch.prefill_tokens))),
        ("prefill_token_context", when(prefills, prefill_context)),
        (
            "prefill_context_per_token",
            when(prefills, prefill_context / f64::from(batch.prefill_tokens.max(1))),
        ),
        ("decode_seqs", when(decodes, f64::from(batch.decode_seqs))),
        ("decode_context_tokens", when(decodes, decode_context)),
        (
            "decode_context_per_row",
            when(decodes, decode_context / f64::from(batch.decode_seqs.max(1))),
        ),
        (
            "prefill_tokens_beside_decodes",
            when(prefills && decodes, f64::from(batch.prefill_tokens)),
        ),
        (
            "decode_seqs_beside_prefills",
            when(prefills && decodes, f64::from(batch.decode_seqs)),
        ),
    ]
}

/// The names of all axes, in order.
pub fn axis_names() -> [&'static str; 10] {
    axes(&BatchShape::default()).map(|(name, _)| name)
}

/// The range seen of one axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AxisRange {
    /// Which axis.
    pub axis: String,
    /// Smallest value seen.
    pub low: f64,
    /// Largest value seen.
    pub high: f64,
}

/// The ranges seen of single axes and of axes beside others. An axis that is absent was never seen.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Hull {
    /// One range an axis.
    pub ranges: Vec<AxisRange>,
}

/// How a batch leaves the hull on one axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Exceeded {
    /// The axis.
    pub axis: &'static str,
    /// The batch's value.
    pub value: f64,
    /// The range seen, if the axis was seen at all.
    pub seen: Option<(f64, f64)>,
}

impl Hull {
    /// The hull of some batches.
    pub fn of<'a>(batches: impl IntoIterator<Item = &'a BatchShape>) -> Self {
        let mut seen: [Option<(f64, f64)>; 10] = [None; 10];
        for batch in batches {
            for (slot, (_, value)) in seen.iter_mut().zip(axes(batch)) {
                if let Some(v) = value {
                    *slot = Some(slot.map_or((v, v), |(low, high)| (low.min(v), high.max(v))));
                }
            }
        }
        let ranges = seen
            .iter()
            .zip(axis_names())
            .filter_map(|(slot, axis)| {
                slot.map(|(low, high)| AxisRange {
                    axis: axis.to_owned(),
                    low,
                    high,
                })
            })
            .collect();
        Self { ranges }
    }

    /// The axes on which `batch` lies outside of what was seen; empty inside the hull.
    pub fn exceeded(&self, batch: &BatchShape) -> Vec<Exceeded> {
        axes(batch)
            .into_iter()
            .filter_map(|(axis, value)| value.map(|v| (axis, v)))
            .filter_map(|(axis, value)| {
                let seen = self
                    .ranges
                    .iter()
                    .find(|r| r.axis == axis)
                    .map(|r| (r.low, r.high));
                let inside = seen.is_some_and(|(low, high)| low <= value && value <= high);
                (!inside).then_some(Exceeded { axis, value, seen })
            })
            .collect()
    }

    /// Whether `batch` lies inside on every axis.
    pub fn contains(&self, batch: &BatchShape) -> bool {
        self.bounds().contain(batch)
    }

    /// The ranges by axis number, for many look-ups.
    pub fn bounds(&self) -> HullBounds {
        HullBounds(axis_names().map(|axis| {
            self.ranges
                .iter()
                .find(|r| r.axis == axis)
                .map(|r| (r.low, r.high))
        }))
    }
}

/// The ranges of a [`Hull`] in the order of [`axis_names`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HullBounds([Option<(f64, f64)>; 10]);

impl HullBounds {
    /// Whether `batch` lies inside on every axis.
    pub fn contain(&self, batch: &BatchShape) -> bool {
        let axes = axes(batch);
        self.reached_by(&axes) && self.not_left_by(&axes)
    }

    /// How many of a run of `steps` steps lie outside, the first of `batch`, each later one of the batch advanced by
    /// one more ([`BatchShape::advance`]).
    pub fn outside(&self, batch: &BatchShape, steps: u32) -> u32 {
        if steps <= 1 {
            return steps * u32::from(!self.contain(batch));
        }
        let growth = batch.growth();
        let axes_at = |step| axes_with(batch, batch.contexts_after(growth, step));
        let (first, last) = (axes_at(0), axes_at(steps - 1));
        if self.reached_by(&first) && self.not_left_by(&last) {
            return 0;
        }
        // No axis falls from step to step: the steps inside come in a row, after those below and before those above.
        let below = first_step(steps, |step| self.reached_by(&axes_at(step)));
        let above = first_step(steps, |step| !self.not_left_by(&axes_at(step)));
        steps - above.saturating_sub(below)
    }

    /// As [`HullBounds::outside`], of each axis by itself, in the order of [`axis_names`].
    pub fn outside_by_axis(&self, batch: &BatchShape, steps: u32) -> [u32; 10] {
        let growth = batch.growth();
        let axes_at = |step| axes_with(batch, batch.contexts_after(growth, step));
        let is_left = |axis: usize, value: Option<f64>, below: bool| {
            value.is_some_and(|v| match self.0[axis] {
                None => true,
                Some((low, high)) => {
                    if below {
                        v < low
                    } else {
                        v > high
                    }
                }
            })
        };
        let (first, last) = (axes_at(0), axes_at(steps.saturating_sub(1)));
        std::array::from_fn(|axis| {
            let is_outside = is_left(axis, first[axis].1, true) || is_left(axis, last[axis].1, false);
            if !is_outside {
                return 0;
            }
            let below = first_step(steps, |step| !is_left(axis, axes_at(step)[axis].1, true));
            let above = first_step(steps, |step| is_left(axis, axes_at(step)[axis].1, false));
            steps - above.saturating_sub(below)
        })
    }

    /// No axis lies below its range.
    fn reached_by(&self, axes: &[(&str, Option<f64>); 10]) -> bool {
        self.all(axes, |v, (low, _)| low <= v)
    }

    /// No axis lies above its range.
    fn not_left_by(&self, axes: &[(&str, Option<f64>); 10]) -> bool {
        self.all(axes, |v, (_, high)| v <= high)
    }

    fn all(&self, axes: &[(&str, Option<f64>); 10], holds: impl Fn(f64, (f64, f64)) -> bool) -> bool {
        axes.iter()
            .zip(&self.0)
            .all(|((_, value), seen)| value.is_none_or(|v| seen.is_some_and(|range| holds(v, range))))
    }
}

/// The first of `steps` steps for which `holds`, which then holds for all later ones; `steps` if it never does.
fn first_step(steps: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, steps);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(rows: u32, computed: u32) -> BatchShape {
        let mut batch = BatchShape::default();
        (0..rows).for_each(|_| batch.add_decode(1, computed));
        batch
    }

    #[test]
    fn batches_of_the_hull_are_inside_and_larger_ones_are_named() {
        let seen = [decode(1, 9), decode(4, 99)];
        let hull = Hull::of(&seen);
        assert!(seen.iter().all(|b| hull.contains(b)));
        assert!(hull.contains(&decode(3, 49)));
        let out: Vec<_> = hull
            .exceeded(&decode(5, 49))
            .into_iter()
            .map(|e| (e.axis, e.value))
            .collect();
        assert_eq!(out, [("tokens", 5.0), ("decode_seqs", 5.0)]);
        let out = hull.exceeded(&decode(1, 4));
        assert_eq!(
            (out[0].axis, out[0].seen),
            ("decode_context_tokens", Some((10.0, 400.0)))
        );
        assert_eq!((out[1].axis, out[1].value), ("decode_context_per_row", 5.0));
    }

    #[test]
    fn a_kind_of_batch_never_seen_is_outside_on_its_own_axes() {
        let mut prefill = BatchShape::default();
        prefill.add_prefill(4, 0);
        let hull = Hull::of(&[decode(4, 9), prefill]);
        let mut mixed = decode(2, 9);
        mixed.add_prefill(2, 0);
        let out: Vec<_> = hull
            .exceeded(&mixed)
            .into_iter()
            .map(|e| (e.axis, e.seen))
            .collect();
        assert!(out.contains(&("prefill_tokens_beside_decodes", None)), "{out:?}");
        assert!(out.contains(&("decode_seqs_beside_prefills", None)), "{out:?}");
    }

    proptest::proptest! {
        #[test]
        fn a_run_counts_as_many_steps_outside_as_its_steps_do(
            rows in proptest::collection::vec((1u32..3, 0u32..60), 0..4),
            chunk in proptest::option::of((1u32..9, 0u32..60)),
            low in 0u32..40, high in 0u32..90, steps in 0u32..60,
        ) {
            let mixed = |computed: u32| {
                let mut batch = decode(3, computed);
                batch.add_prefill(1 + computed / 9, computed);
                batch
            };
            let hull = Hull::of(&[decode(1, low), decode(4, high), mixed(low), mixed(high)]);
            let bounds = hull.bounds();
            let mut batch = BatchShape::default();
            rows.iter().for_each(|&(tokens, computed)| batch.add_decode(tokens, computed));
            chunk.iter().for_each(|&(tokens, computed)| batch.add_prefill(tokens, computed));
            let start = batch.clone();
            let counted = bounds.outside(&batch, steps);
            let mut one_by_one = 0;
            for _ in 0..steps {
                one_by_one += u32::from(!bounds.contain(&batch));
                batch.advance(1);
            }
            proptest::prop_assert_eq!(counted, one_by_one);
            batch.clone_from(&start);
            let mut by_axis = [0; 10];
            for _ in 0..steps {
                for exceeded in hull.exceeded(&batch) {
                    let axis = axis_names().iter().position(|&name| name == exceeded.axis).unwrap();
                    by_axis[axis] += 1;
                }
                batch.advance(1);
            }
            proptest::prop_assert_eq!(hull.bounds().outside_by_axis(&start, steps), by_axis);
        }
    }
}
