//! Clock and event queue. See the crate page for the ordering rules.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::units::SimTime;

/// Order of events at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A batch's result, or a host that is free again.
    StepEnd,
    /// Something breaks or is mended.
    Fault,
    /// A transfer ends.
    Transfer,
    /// A client sends.
    Arrival,
    /// Timers of control loops.
    Control,
}

/// Key of an event: time, class, then the number of the replica whose step it ends, or the order in which it was
/// scheduled.
type Key = (SimTime, Class, u64);

/// Time does not advance: more events at one instant than the run can need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spin {
    /// The instant.
    pub at: SimTime,
    /// How many events it was allowed.
    pub limit: u64,
}

/// A clock that only moves forward and the events to come.
#[derive(Debug)]
pub struct Kernel<E> {
    now: SimTime,
    scheduled: u64,
    heap: BinaryHeap<Reverse<Entry<E>>>,
    at_this_instant: u64,
    most_at_one_instant: u64,
}

#[derive(Debug)]
struct Entry<E> {
    key: Key,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl<E> Kernel<E> {
    /// A clock at zero. More than `most_at_one_instant` events at one instant are a spin.
    pub fn new(most_at_one_instant: u64) -> Self {
        Self {
            now: SimTime::ZERO,
            scheduled: 0,
            heap: BinaryHeap::new(),
            at_this_instant: 0,
            most_at_one_instant,
        }
    }

    /// Allows so many events more at one instant.
    pub fn allow(&mut self, more: u64) {
        self.most_at_one_instant = self.most_at_one_instant.saturating_add(more);
    }

    /// The present instant.
    pub const fn now(&self) -> SimTime {
        self.now
    }

    /// Schedules an event; one in the past happens now. Events of one class at one instant come in the order in which
    /// they were scheduled.
    pub fn schedule(&mut self, at: SimTime, class: Class, event: E) {
        self.schedule_ranked(at, class, self.scheduled, event);
        self.scheduled += 1;
    }

    /// Schedules an event whose place among those of its class at one instant is given: when it was scheduled may
    /// depend on how many steps were taken at once.
    pub fn schedule_ranked(&mut self, at: SimTime, class: Class, rank: u64, event: E) {
        debug_assert!(at >= self.now, "an event in the past");
        let key = (at.max(self.now), class, rank);
        self.heap.push(Reverse(Entry { key, event }));
    }

    /// Events to come.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// When the next event happens.
    pub fn next_at(&self) -> Option<SimTime> {
        self.heap.peek().map(|Reverse(e)| e.key.0)
    }

    /// Takes the next event and moves the clock to it.
    ///
    /// # Errors
    /// [`Spin`] when time does not advance.
    pub fn pop(&mut self) -> Result<Option<E>, Spin> {
        let Some(Reverse(Entry { key, event })) = self.heap.pop() else {
            return Ok(None);
        };
        if key.0 > self.now {
            self.now = key.0;
            self.at_this_instant = 0;
        }
        self.at_this_instant += 1;
        if self.at_this_instant > self.most_at_one_instant {
            return Err(Spin {
                at: self.now,
                limit: self.most_at_one_instant,
            });
        }
        Ok(Some(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn at_one_instant_class_decides_then_order_of_scheduling() {
        let mut k = Kernel::new(100);
        k.schedule(SimTime(5), Class::Control, "tick");
        k.schedule(SimTime(5), Class::Arrival, "first arrival");
        k.schedule(SimTime(5), Class::Arrival, "second arrival");
        k.schedule(SimTime(5), Class::StepEnd, "step end");
        k.schedule(SimTime(4), Class::Control, "earlier");
        let order: Vec<_> = std::iter::from_fn(|| k.pop().unwrap()).collect();
        assert_eq!(
            order,
            ["earlier", "step end", "first arrival", "second arrival", "tick"]
        );
    }

    #[test]
    fn a_spin_at_one_instant_is_an_error_with_the_instant() {
        let mut k = Kernel::new(3);
        for _ in 0..4 {
            k.schedule(SimTime(7), Class::StepEnd, ());
        }
        for _ in 0..3 {
            assert_eq!(k.pop(), Ok(Some(())));
        }
        assert_eq!(
            k.pop(),
            Err(Spin {
                at: SimTime(7),
                limit: 3
            })
        );
    }

    proptest! {
        /// Events come out in the order of a stable sort by (time, class), and the clock never goes back.
        #[test]
        fn order_is_a_stable_sort(keys in prop::collection::vec((0u64..20, 0u8..2), 0..200)) {
            let class = |c: u8| if c == 0 { Class::StepEnd } else { Class::Arrival };
            let mut k = Kernel::new(u64::MAX);
            for (i, &(t, c)) in keys.iter().enumerate() {
                k.schedule(SimTime(t), class(c), i);
            }
            let mut expected: Vec<usize> = (0..keys.len()).collect();
            expected.sort_by_key(|&i| keys[i]);
            let mut came = Vec::new();
            let mut before = SimTime::ZERO;
            while let Some(i) = k.pop().unwrap() {
                prop_assert!(k.now() >= before);
                before = k.now();
                came.push(i);
            }
            prop_assert_eq!(came, expected);
        }
    }
}
