//! Ranges and ticks of axes, linear and logarithmic, for any finite data.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::Scale;
use crate::report::number::short;

/// About how many ticks an axis gets.
const TICKS: f64 = 6.0;

/// A finite, non-empty range with its ticks, as plotters wants it.
#[derive(Debug, Clone)]
pub(super) struct Span {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Span {
    /// The range of the values that the scale can show, a little wider. `None` when there is none.
    pub fn of(values: impl Iterator<Item = f64>, scale: Scale) -> Option<Self> {
        // Within 1e-280..1e280 nothing that is computed below can overflow or vanish.
        let tiny_is_zero = |v: f64| {
            if scale == Scale::Linear && v.abs() < 1e-280 {
                0.0
            } else {
                v
            }
        };
        let shown = values.map(tiny_is_zero).filter(|v| match scale {
            Scale::Linear => v.abs() <= 1e280,
            Scale::Log => (1e-280..=1e280).contains(v),
        });
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| {
            (l.min(v), h.max(v))
        });
        (low <= high).then(|| match scale {
            Scale::Linear => Self::linear(low, high),
            Scale::Log => Self::log(low, high),
        })
    }

    fn linear(low: f64, high: f64) -> Self {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let width = if high > low { high - low } else { 1.0 };
        let pad = width * 0.05;
        let low = if low < 0.0 { low - pad } else { 0.0 };
        let high = if high > 0.0 || low >= 0.0 {
            high.max(low + width * 0.5) + pad
        } else {
            0.0
        };
        Self {
            low,
            high,
            scale: Scale::Linear,
        }
    }

    fn log(low: f64, high: f64) -> Self {
        // At least a factor of two to look at, and a margin of a twentieth on both sides.
        let decades = (high.log10() - low.log10()).max(std::f64::consts::LOG10_2);
        let middle = (low.log10() + high.log10()) / 2.0;
        let reach = decades * 0.55;
        Self {
            low: 10f64.powf(middle - reach),
            high: 10f64.powf(middle + reach),
            scale: Scale::Log,
        }
    }

    /// Both are linear, or both logarithmic.
    pub fn same_scale(&self, other: &Self) -> bool {
        self.scale == other.scale
    }

    /// A point that the axis can show.
    pub fn shows(&self, value: f64) -> bool {
        value.is_finite() && (self.low..=self.high).contains(&value)
    }

    /// Powers of ten between the ends of a logarithmic span; from logarithms, because the ratio may overflow.
    fn decades(&self) -> f64 {
        self.high.log10() - self.low.log10()
    }

    /// Where a value lies: 0 at the low end, 1 at the high end.
    fn position(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.log10() - self.low.log10()) / self.decades(),
        }
    }

    /// The value at a position between 0 and 1.
    pub fn at(&self, position: f64) -> f64 {
        let value = match self.scale {
            Scale::Linear => self.low + (self.high - self.low) * position,
            Scale::Log => 10f64.powf(self.low.log10() + self.decades() * position),
        };
        value.clamp(self.low, self.high)
    }

    /// Numbers that a reader would write at this axis.
    pub fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Log if self.decades() >= 1.0 => self.log_ticks(self.decades()),
            _ => self.linear_ticks(),
        }
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let raw = (self.high - self.low) / TICKS;
        let magnitude = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|m| m * magnitude)
            .into_iter()
            .find(|&s| s >= raw)
            .unwrap_or(raw);
        let first = (self.low / step).ceil();
        let ticks = (0..=20).map(|i| (first + f64::from(i)) * step);
        ticks.take_while(|&t| t <= self.high * (1.0 + 1e-12)).collect()
    }

    fn log_ticks(&self, decades: f64) -> Vec<f64> {
        let stride = (decades / (TICKS + 1.0)).ceil().max(1.0) as i32;
        let within: &[f64] = match decades {
            d if d < 2.0 => &[1.0, 2.0, 3.0, 5.0],
            d if d < 3.5 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let first = (self.low.log10().floor() as i32).div_euclid(stride) * stride;
        let last = self.high.log10().ceil() as i32;
        (first..=last)
            .step_by(stride.unsigned_abs() as usize)
            .flat_map(|exponent| within.iter().map(move |m| m * 10f64.powi(exponent)))
            .filter(|&t| self.shows(t))
            .collect()
    }
}

impl Ranged for Span {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (from, to) = (f64::from(limit.0), f64::from(limit.1));
        // Guides may lie outside: they are cut at the frame.
        let position = self.position(*value).clamp(0.0, 1.0);
        (from + (to - from) * position).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Span {
    fn format(value: &f64) -> String {
        short(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(values: &[f64], scale: Scale) -> Vec<String> {
        Span::of(values.iter().copied(), scale)
            .unwrap()
            .ticks()
            .into_iter()
            .map(short)
            .collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(ticks(&[0.0, 95.0], Scale::Linear), ["0", "20", "40", "60", "80"]);
        assert_eq!(
            ticks(&[-1.0, 1.0], Scale::Linear),
            ["-1", "-0.5", "0", "0.5", "1"]
        );
        assert_eq!(ticks(&[1.0, 100.0], Scale::Log), ["1", "3", "10", "30", "100"]);
        assert_eq!(ticks(&[2.0, 40.0], Scale::Log), ["2", "3", "5", "10", "20", "30"]);
        assert_eq!(
            ticks(&[1e-3, 1e6], Scale::Log),
            ["0.01", "1", "100", "10,000", "1,000,000"]
        );
    }

    #[test]
    fn every_finite_input_has_a_range_and_few_ticks() {
        let values = [
            0.0,
            -0.0,
            5e-324,
            1e-300,
            1e-9,
            1.0,
            7.3,
            1e9,
            1e279,
            f64::MAX,
            -3.0,
            f64::NAN,
        ];
        for scale in [Scale::Linear, Scale::Log] {
            for a in values {
                for b in values {
                    let Some(span) = Span::of([a, b].into_iter(), scale) else {
                        continue;
                    };
                    assert!(span.low < span.high && span.high.is_finite(), "{a} {b} {span:?}");
                    assert!(
                        (2..=21).contains(&span.ticks().len()),
                        "{a} {b} {:?}",
                        span.ticks()
                    );
                }
            }
        }
        assert!(Span::of([0.0].into_iter(), Scale::Log).is_none());
        assert!(Span::of(std::iter::empty(), Scale::Linear).is_none());
    }
}
