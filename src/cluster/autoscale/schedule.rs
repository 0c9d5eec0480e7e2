//! A plan of pool sizes made beforehand.

use super::Observed;
use crate::units::SimTime;

/// Why a plan is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// Times must rise.
    #[error(
        "step {index} of the schedule is not later than the one before it; steps must be in the order of time"
    )]
    Order {
        /// Its number, from 0.
        index: usize,
    },
    /// A pool of none, or of more than can be told.
    #[error("step {index} of the schedule asks for {groups} groups; it must be between 1 and 2147483647")]
    Groups {
        /// Its number, from 0.
        index: usize,
        /// What it asks for.
        groups: u32,
    },
}

/// How many groups from which instant on; before the first nothing is changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schedule {
    steps: Vec<(SimTime, u32)>,
}

impl Schedule {
    /// A plan of (from when, how many groups).
    ///
    /// # Errors
    /// [`ScheduleError`] for steps out of order and for pools of no group.
    pub fn new(steps: Vec<(SimTime, u32)>) -> Result<Self, ScheduleError> {
        if let Some(at) = steps.windows(2).position(|pair| pair[1].0 <= pair[0].0) {
            return Err(ScheduleError::Order { index: at + 1 });
        }
        let wrong = |&(_, groups): &(SimTime, u32)| groups == 0 || groups > i32::MAX as u32;
        if let Some(index) = steps.iter().position(wrong) {
            return Err(ScheduleError::Groups {
                index,
                groups: steps[index].1,
            });
        }
        Ok(Self { steps })
    }

    /// Groups asked for at an instant; none before the first step.
    pub fn groups_at(&self, now: SimTime) -> Option<u32> {
        let past = self.steps.partition_point(|&(at, _)| at <= now);
        Some(self.steps[past.checked_sub(1)?].1)
    }

    /// The first step after an instant.
    pub fn next_after(&self, now: SimTime) -> Option<SimTime> {
        let past = self.steps.partition_point(|&(at, _)| at <= now);
        self.steps.get(past).map(|&(at, _)| at)
    }

    /// Groups to add or to drain; ready and starting groups count.
    pub fn decide(&self, now: SimTime, observed: &Observed) -> Option<i32> {
        let wanted = i64::from(self.groups_at(now)?);
        i32::try_from(wanted - i64::from(observed.size()))
            .ok()
            .filter(|&change| change != 0)
    }
}
