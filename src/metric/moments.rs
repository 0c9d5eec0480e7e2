//! Number, sum, spread and ends of a multiset of integers, exact and in any order.

/// Values that are added up at a time.
const CHUNK: usize = 256;
/// Squares of as many distances as are in a chunk fit 64 bits when they are below this.
const CLOSE: u64 = 1 << 24;

/// What can be known of a multiset without keeping it. Adding values, one by one or all at once, in any order and
/// in any parts, gives the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moments {
    n: u64,
    sum: u128,
    /// Sum of the squares modulo 2^128; see [`Moments::std`].
    squares: u128,
    min: u64,
    max: u64,
}

impl Default for Moments {
    fn default() -> Self {
        Self {
            n: 0,
            sum: 0,
            squares: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

impl Moments {
    /// Of (value, count) pairs.
    pub fn of(pairs: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut moments = Self::default();
        pairs.into_iter().for_each(|(v, c)| moments.add(v, c));
        moments
    }

    /// Of single values.
    pub fn of_slice(values: &[u64]) -> Self {
        let mut moments = Self::default();
        values.chunks(CHUNK).for_each(|chunk| moments.add_chunk(chunk));
        moments
    }

    /// Of single values that never fall, so that their ends need not be looked for.
    pub fn of_rising(values: &[u64]) -> Self {
        let mut moments = Self::default();
        for chunk in values.chunks(CHUNK) {
            if let (Some(&min), Some(&max)) = (chunk.first(), chunk.last()) {
                moments.add_between(chunk, min, max);
            }
        }
        moments
    }

    fn add_chunk(&mut self, values: &[u64]) {
        let min = values.iter().fold(u64::MAX, |a, &b| a.min(b));
        let max = values.iter().fold(0, |a, &b| a.max(b));
        if !values.is_empty() {
            self.add_between(values, min, max);
        }
    }

    /// Adds up distances from the smallest value, in 64 bits where the values lie close together.
    fn add_between(&mut self, values: &[u64], min: u64, max: u64) {
        let (n, base) = (values.len() as u128, u128::from(min));
        let (mut sum, mut squares) = (0u128, 0u128);
        if max - min < CLOSE {
            let (mut near, mut near_squares) = (0u64, 0u64);
            for &value in values {
                let distance = u64::from((value - min) as u32);
                near += distance;
                near_squares += distance * distance;
            }
            sum += u128::from(near);
            squares += u128::from(near_squares);
        } else {
            for &value in values {
                let distance = u128::from(value - min);
                sum += distance;
                squares = squares.wrapping_add(distance * distance);
            }
        }
        self.n += values.len() as u64;
        self.sum += n * base + sum;
        self.squares = self
            .squares
            .wrapping_add(squares)
            .wrapping_add((2 * base).wrapping_mul(sum))
            .wrapping_add((base * base).wrapping_mul(n));
        self.min = self.min.min(min);
        self.max = self.max.max(max);
    }

    /// Adds `count` times `value`.
    pub fn add(&mut self, value: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.n = self.n.saturating_add(count);
        let (value, wide) = (u128::from(value), u128::from(count));
        self.sum = self.sum.saturating_add(value * wide);
        self.squares = self.squares.wrapping_add((value * value).wrapping_mul(wide));
        self.min = self.min.min(value as u64);
        self.max = self.max.max(value as u64);
    }

    /// Takes out `value`, which was added, `count` times. The ends stay as they are: they bound what is left.
    pub fn remove(&mut self, value: u64, count: u64) {
        let (value, wide) = (u128::from(value), u128::from(count));
        self.n = self.n.saturating_sub(count);
        self.sum = self.sum.saturating_sub(value * wide);
        self.squares = self.squares.wrapping_sub((value * value).wrapping_mul(wide));
    }

    /// Adds all that `other` holds `count` times.
    pub fn add_times(&mut self, other: &Self, count: u64) {
        if count == 0 {
            return;
        }
        let wide = u128::from(count);
        self.merge(&Self {
            n: other.n.saturating_mul(count),
            sum: other.sum.saturating_mul(wide),
            squares: other.squares.wrapping_mul(wide),
            ..*other
        });
    }

    /// Adds all that `other` holds.
    pub fn merge(&mut self, other: &Self) {
        self.n = self.n.saturating_add(other.n);
        self.sum = self.sum.saturating_add(other.sum);
        self.squares = self.squares.wrapping_add(other.squares);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// How many values.
    pub const fn n(&self) -> u64 {
        self.n
    }

    /// Their sum.
    pub const fn sum(&self) -> u128 {
        self.sum
    }

    /// The smallest.
    pub fn min(&self) -> Option<u64> {
        (self.n > 0).then_some(self.min)
    }

    /// The largest.
    pub fn max(&self) -> Option<u64> {
        (self.n > 0).then_some(self.max)
    }

    /// The arithmetic mean, exact up to the division.
    pub fn mean(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum as f64 / self.n as f64)
    }

    /// The population standard deviation (divisor n, as in numpy and in vLLM's tables).
    ///
    /// With q the whole part and r the rest of sum / n, the sum of (v - q)^2 is that of v^2 less 2 q sum plus
    /// n q^2, in whole numbers modulo 2^128; and the variance is that sum over n, less (r / n)^2. `None` for no
    /// values, and where n (max - min)^2 reaches 2^128, so that the sum may not be what it is modulo 2^128: a
    /// million million values would have to be five hours apart.
    pub fn std(&self) -> Option<f64> {
        let range = u128::from(self.max()? - self.min()?);
        (range * range).checked_mul(u128::from(self.n))?;
        let n = u128::from(self.n);
        let (whole, rest) = (self.sum / n, self.sum % n);
        let about_whole = self
            .squares
            .wrapping_sub(whole.wrapping_mul(2).wrapping_mul(self.sum))
            .wrapping_add(whole.wrapping_mul(whole).wrapping_mul(n));
        let n = self.n as f64;
        let about_mean = about_whole as f64 - rest as f64 * (rest as f64 / n);
        Some((about_mean.max(0.0) / n).sqrt())
    }

    /// [`Moments::std`]; where that is not known, from the values themselves in floating point.
    pub fn std_of(&self, pairs: impl Iterator<Item = (u64, u64)>) -> Option<f64> {
        let mean = self.mean()?;
        self.std().or_else(|| {
            let squares: f64 = pairs.map(|(v, c)| (v as f64 - mean).powi(2) * c as f64).sum();
            Some((squares / self.n as f64).sqrt())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;
    use proptest::prelude::*;

    #[test]
    fn a_deviation_of_a_nanosecond_on_top_of_hours_is_seen() {
        let hours = 36_000_000_000_000;
        let moments = Moments::of([(hours, 500_000_000), (hours + 2, 500_000_000)]);
        assert_relative_eq!(moments.std().unwrap(), 1.0);
        assert_relative_eq!(moments.mean().unwrap(), 36_000_000_000_001.0);
        assert_eq!(Moments::of([(hours, 3)]).std(), Some(0.0));
    }

    #[test]
    fn what_could_overflow_comes_from_the_values() {
        let pairs = [(0, 2), (u64::MAX, 2)];
        let moments = Moments::of(pairs);
        assert_eq!(moments.std(), None);
        assert_relative_eq!(
            moments.std_of(pairs.into_iter()).unwrap(),
            u64::MAX as f64 / 2.0,
            max_relative = 1e-12
        );
        assert_eq!(
            (Moments::default().std(), Moments::default().mean()),
            (None, None)
        );
    }

    proptest! {
        #[test]
        fn parts_in_any_order_are_the_whole(values in prop::collection::vec(0u64..1 << 40, 1..60), cut in 0usize..60, near: bool) {
            let values: Vec<u64> = values.into_iter().map(|v| if near { v >> 18 } else { v }).collect();
            let mut whole = Moments::default();
            whole.add_times(&Moments::of_slice(&values), 3);
            let mut turned = values.clone();
            turned.rotate_left(cut % values.len());
            let (a, b) = turned.split_at(cut.min(turned.len()));
            let mut parts = Moments::of(b.iter().map(|&v| (v, 3)));
            parts.merge(&Moments::of(a.iter().map(|&v| (v, 3))));
            prop_assert_eq!(whole, parts);
            let mut rising = values.clone();
            rising.sort_unstable();
            prop_assert_eq!(Moments::of_rising(&rising), Moments::of_slice(&values));
            let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
            let variance = values.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / values.len() as f64;
            prop_assert!((whole.std().unwrap() - variance.sqrt()).abs() <= 1e-6 * variance.sqrt() + 1e-6);
        }
    }
}
