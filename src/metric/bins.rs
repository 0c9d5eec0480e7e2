//! Counts of integers in log-linear bins: 1,024 to the octave.
//!
//! A value below 2,048 has a bin of its own. Above, a bin is 2^-10 of the lower end of its octave wide, so its
//! middle is off by at most half a bin: [`RELATIVE_ERROR`] of the value. Which bin a value is in depends on the value
//! alone, so counts can be added up in any order. An octave is 8 KiB, there once it holds something.

/// Bins of one octave.
const PER_OCTAVE: usize = 1 << BITS;
const BITS: u32 = 10;

/// How far the middle of a bin can be from a value in it, as a share of the value: 2^-11, below 0.05 %.
pub const RELATIVE_ERROR: f64 = 1.0 / 2048.0;

/// Octave 0 holds 0..1024; octave k the values from 2^(k + 9) below 2^(k + 10).
const fn octave_of(value: u64) -> u32 {
    (u64::BITS - value.leading_zeros()).saturating_sub(BITS)
}

/// The bin of a value; rises with it.
#[cfg(test)]
const fn bin_of(value: u64) -> usize {
    let octave = octave_of(value);
    octave as usize * PER_OCTAVE + (value >> octave.saturating_sub(1)) as usize % PER_OCTAVE
}

/// The middle of a bin.
const fn middle_of(bin: usize) -> u64 {
    let (octave, within) = (bin / PER_OCTAVE, (bin % PER_OCTAVE) as u64);
    match octave {
        0 => within,
        _ => {
            let width = 1 << (octave - 1);
            (PER_OCTAVE as u64 + within) * width + width / 2
        }
    }
}

/// Counts by bin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bins {
    octaves: Vec<Option<Box<[u64; PER_OCTAVE]>>>,
}

impl Bins {
    fn octave(&mut self, octave: u32) -> &mut [u64; PER_OCTAVE] {
        let octave = octave as usize;
        if octave >= self.octaves.len() {
            self.octaves.resize(octave + 1, None);
        }
        self.octaves[octave].get_or_insert_with(|| Box::new([0; PER_OCTAVE]))
    }

    /// Counts each value `count` times.
    pub fn add_slice(&mut self, values: &[u64], count: u64) {
        let mut rest = values;
        while let Some(&first) = rest.first() {
            // Values that follow each other are mostly of one octave, so it is looked up once for all of them.
            let octave = octave_of(first);
            let (shift, lead) = (octave.saturating_sub(1), u64::from(octave > 0));
            let bins = self.octave(octave);
            let mut taken = 0;
            for &value in rest {
                let scaled = value >> shift;
                if scaled >> BITS != lead {
                    break;
                }
                bins[scaled as usize % PER_OCTAVE] += count;
                taken += 1;
            }
            rest = &rest[taken..];
        }
    }

    /// As [`Bins::add_slice`], of values that never fall: each bin takes its stretch of them at once.
    pub fn add_rising(&mut self, values: &[u64], count: u64) {
        let mut rest = values;
        while let Some(&first) = rest.first() {
            let octave = octave_of(first);
            let shift = octave.saturating_sub(1);
            let scaled = first >> shift;
            let stretch = match rest.last() {
                Some(last) if last >> shift == scaled => rest.len(),
                _ => rest.partition_point(|value| value >> shift == scaled),
            };
            self.octave(octave)[scaled as usize % PER_OCTAVE] += count * stretch as u64;
            rest = &rest[stretch..];
        }
    }

    /// Counts a value that was counted `count` times less.
    pub fn remove(&mut self, value: u64, count: u64) {
        let octave = octave_of(value);
        let bin = (value >> octave.saturating_sub(1)) as usize % PER_OCTAVE;
        let held = &mut self.octave(octave)[bin];
        *held = held.saturating_sub(count);
    }

    /// Adds all that `other` counted.
    pub fn merge(&mut self, other: &Self) {
        for (octave, theirs) in (0..).zip(&other.octaves) {
            if let Some(theirs) = theirs {
                let mine = self.octave(octave);
                mine.iter_mut().zip(theirs.iter()).for_each(|(a, b)| *a += b);
            }
        }
    }

    /// The middle of each bin that holds something, rising, with its count.
    pub fn middles(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let octaves = self.octaves.iter().enumerate();
        octaves
            .filter_map(|(octave, bins)| Some((octave, bins.as_deref()?)))
            .flat_map(|(octave, bins)| {
                (octave * PER_OCTAVE..)
                    .zip(bins)
                    .filter(|(_, count)| **count > 0)
                    .map(|(bin, &count)| (middle_of(bin), count))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bins_follow_each_other_without_holes() {
        let mut last = 0;
        for value in 0..1 << 14 {
            let bin = bin_of(value);
            assert!(bin == last || bin == last + 1, "{value}");
            last = bin;
        }
        assert_eq!([0, 1023, 1024, 2047].map(bin_of), [0, 1023, 1024, 2047]);
        assert_eq!([2048, 2049, 2050].map(bin_of), [2048, 2048, 2049]);
        assert_eq!(bin_of(u64::MAX), 55 * PER_OCTAVE - 1);
    }

    proptest! {
        #[test]
        fn a_middle_is_within_half_a_bin(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let middle = middle_of(bin_of(value));
            prop_assert_eq!(bin_of(middle), bin_of(value));
            prop_assert!(middle.abs_diff(value) as f64 <= RELATIVE_ERROR * value as f64);
        }

        #[test]
        fn slices_and_parts_count_the_same(values in prop::collection::vec((any::<u64>(), 0u32..64), 0..80), cut in 0usize..80) {
            let values: Vec<u64> = values.into_iter().map(|(v, s)| v >> s).collect();
            let mut whole = Bins::default();
            whole.add_slice(&values, 2);
            let (a, b) = values.split_at(cut.min(values.len()));
            let (mut parts, mut first) = (Bins::default(), Bins::default());
            b.iter().for_each(|&v| parts.add_slice(&[v], 2));
            first.add_slice(a, 2);
            parts.merge(&first);
            let counts = |bins: &Bins| bins.middles().collect::<Vec<_>>();
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let mut rising = Bins::default();
            rising.add_rising(&sorted, 2);
            prop_assert_eq!(counts(&whole), counts(&rising));
            prop_assert_eq!(counts(&whole), counts(&parts));
            prop_assert_eq!(whole.middles().map(|(_, c)| c).sum::<u64>(), 2 * values.len() as u64);
            prop_assert!(whole.middles().map(|(m, _)| m).is_sorted());
        }
    }
}
