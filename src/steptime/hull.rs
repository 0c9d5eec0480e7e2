//! The region of batch shapes that a fit has seen.

use serde::{Deserialize, Serialize};

use super::BatchShape;

/// What is measured of a batch, by name. An axis is absent where it says nothing: a context per token without
/// tokens, the rows beside a prefill in a pure decode batch.
fn axes(batch: &BatchShape) -> [(&'static str, Option<f64>); 10] {
    let prefills = batch.prefill_seqs > 0;
    let decodes = batch.decode_seqs > 0;
    let when = |condition: bool, value: f64| condition.then_some(value);
    [
        ("tokens", Some(f64::from(batch.tokens()))),
        ("prefill_seqs", when(prefills, f64::from(batch.prefill_seqs))),
        ("prefill_tokens", when(prefills, f64::from(batch.prefill_tokens))),
        (
            "prefill_token_context",
            when(prefills, batch.prefill_token_context as f64),
        ),
        (
            "prefill_context_per_token",
            when(
                prefills,
                batch.prefill_token_context as f64 / f64::from(batch.prefill_tokens.max(1)),
            ),
        ),
        ("decode_seqs", when(decodes, f64::from(batch.decode_seqs))),
        (
            "decode_context_tokens",
            when(decodes, batch.decode_context_tokens as f64),
        ),
        (
            "decode_context_per_row",
            when(
                decodes,
                batch.decode_context_tokens as f64 / f64::from(batch.decode_seqs.max(1)),
            ),
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
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
        self.exceeded(batch).is_empty()
    }
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
}
