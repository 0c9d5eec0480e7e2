//! Distinct integers with their counts, for a push in a few nanoseconds.

/// An open-addressing table: at most half full, probed step by step, hashed by a fixed multiplier, so that it is the
/// same in every process. Only its sorted content is ever given out.
#[derive(Debug, Clone, Default)]
pub(super) struct Distinct {
    /// (value, count); a count of 0 is a free slot. Empty, or a power of two long.
    slots: Vec<(u64, u64)>,
    len: usize,
}

const SMALLEST: usize = 16;
/// 2^64 over the golden ratio, made odd: spreads values that follow each other evenly (Knuth, TAOCP 3, 6.4).
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl Distinct {
    /// How many distinct values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Counts a value `count` times.
    pub fn add(&mut self, value: u64, count: u64) {
        if count == 0 {
            return;
        }
        if self.len * 2 >= self.slots.len() {
            self.grow();
        }
        let at = self.slot_of(value);
        let slot = &mut self.slots[at];
        self.len += usize::from(slot.1 == 0);
        slot.0 = value;
        slot.1 += count;
    }

    /// Counts a value `count` times less; what it was not counted for stays 0.
    pub fn remove(&mut self, value: u64, count: u64) {
        if self.slots.is_empty() || count == 0 {
            return;
        }
        let mut free = self.slot_of(value);
        let left = self.slots[free].1.saturating_sub(count);
        if left > 0 || self.slots[free].1 == 0 {
            self.slots[free].1 = left;
            return;
        }
        self.slots[free].1 = 0;
        self.len -= 1;
        // What was probed past the free slot moves up.
        let mask = self.slots.len() - 1;
        let mut at = free;
        loop {
            at = (at + 1) & mask;
            if self.slots[at].1 == 0 {
                return;
            }
            let wanted = (self.slots[at].0.wrapping_mul(MULTIPLIER) >> 32) as usize & mask;
            if (at.wrapping_sub(wanted) & mask) >= (at.wrapping_sub(free) & mask) {
                self.slots[free] = self.slots[at];
                self.slots[at].1 = 0;
                free = at;
            }
        }
    }

    /// Where a value is, or will be.
    fn slot_of(&self, value: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = (value.wrapping_mul(MULTIPLIER) >> 32) as usize & mask;
        while self.slots[at].1 != 0 && self.slots[at].0 != value {
            at = (at + 1) & mask;
        }
        at
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(SMALLEST);
        let old = std::mem::replace(&mut self.slots, vec![(0, 0); size]);
        for slot in old.into_iter().filter(|slot| slot.1 > 0) {
            let at = self.slot_of(slot.0);
            self.slots[at] = slot;
        }
    }

    /// The values with their counts, in no particular order.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.slots.iter().copied().filter(|slot| slot.1 > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Sample;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_table_counts_as_sorting_does(pairs in prop::collection::vec((0u64..300, 0u64..3), 0..600)) {
            let mut table = Distinct::default();
            pairs.iter().for_each(|&(v, c)| table.add(v << 32, c));
            let sorted = Sample::from_counts(pairs.into_iter().map(|(v, c)| (v << 32, c)).collect());
            prop_assert_eq!(table.len(), sorted.counts().count());
            prop_assert_eq!(Sample::from_counts(table.counts().collect()), sorted);
        }

        #[test]
        fn what_is_taken_out_was_never_in(
            stays in prop::collection::vec((0u64..300, 0u64..3), 0..300), goes in prop::collection::vec((0u64..300, 0u64..3), 0..300),
        ) {
            let (mut table, mut whole) = (Distinct::default(), Distinct::default());
            stays.iter().for_each(|&(v, c)| table.add(v, c));
            stays.iter().chain(&goes).for_each(|&(v, c)| whole.add(v, c));
            goes.iter().for_each(|&(v, c)| whole.remove(v, c));
            prop_assert_eq!(table.len(), whole.len());
            prop_assert_eq!(Sample::from_counts(table.counts().collect()), Sample::from_counts(whole.counts().collect()));
        }
    }
}
