//! Exact ratios: how much longer something takes, or which part of a bandwidth is left.

use std::cmp::Ordering;
use std::fmt;

use crate::units::SimDuration;

/// A ratio of two whole numbers, never a floating-point one, so that times are the same on every platform. A
/// denominator of zero is refused by [`super::fault::validate`]; where one gets through all the same, it counts as
/// one.
#[derive(Debug, Clone, Copy)]
pub struct Ratio {
    /// What is above the line.
    pub numerator: u32,
    /// What is below the line.
    pub denominator: u32,
}

impl Ratio {
    /// Nothing changes.
    pub const ONE: Self = Self::new(1, 1);

    /// `numerator / denominator`.
    pub const fn new(numerator: u32, denominator: u32) -> Self {
        Self {
            numerator,
            denominator,
        }
    }

    /// Whether it is a number at all, and above zero.
    pub const fn is_positive(self) -> bool {
        self.numerator > 0 && self.denominator > 0
    }

    /// `duration` times this ratio, rounded up to whole nanoseconds; at most what a duration can hold.
    pub fn stretch(self, duration: SimDuration) -> SimDuration {
        let product = u128::from(duration.0) * u128::from(self.numerator);
        let ns = product.div_ceil(u128::from(self.denominator.max(1)));
        SimDuration(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// `amount` times this ratio, rounded down; at most what fits.
    pub fn part_of(self, amount: u64) -> u64 {
        let part = u128::from(amount) * u128::from(self.numerator) / u128::from(self.denominator.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// Equal as numbers: 2/4 is 1/2.
impl PartialEq for Ratio {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ratio {}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        let cross = |a: &Self, b: &Self| u64::from(a.numerator) * u64::from(b.denominator.max(1));
        cross(self, other).cmp(&cross(other, self))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_compare_as_numbers_and_round_against_the_optimist() {
        assert_eq!(Ratio::new(2, 4), Ratio::new(1, 2));
        assert!(Ratio::new(4, 3) > Ratio::ONE && Ratio::new(2, 3) < Ratio::ONE);
        assert_eq!(
            Ratio::new(4, 3).stretch(SimDuration(10)),
            SimDuration(14),
            "13.3 up"
        );
        assert_eq!(Ratio::new(2, 3).part_of(10), 6, "6.7 down");
    }

    #[test]
    fn nothing_overflows_and_nothing_divides_by_zero() {
        assert_eq!(
            Ratio::new(7, 1).stretch(SimDuration(u64::MAX)),
            SimDuration(u64::MAX)
        );
        assert_eq!(Ratio::new(7, 1).part_of(u64::MAX), u64::MAX);
        assert_eq!(Ratio::new(3, 0).stretch(SimDuration(5)), SimDuration(15));
        assert!(!Ratio::new(3, 0).is_positive() && !Ratio::new(0, 3).is_positive());
    }
}
