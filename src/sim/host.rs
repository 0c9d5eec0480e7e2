//! Time of the host process around the steps.

use crate::units::SimDuration;

/// Time of the host process around the steps, where a capture shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostTimes {
    /// Taking the first request into a busy engine after a step.
    pub add_request: SimDuration,
    /// Taking a further request right behind another one.
    pub add_further_request: SimDuration,
    /// Taking one request into an engine that was idle, its wake-up included.
    pub add_request_idle: SimDuration,
    /// From the end of one step to the start of the next.
    pub between_steps: SimDuration,
}

impl HostTimes {
    /// Taking a request in costs time at all.
    pub(super) fn adds_take_time(&self) -> bool {
        [self.add_request, self.add_further_request, self.add_request_idle]
            .iter()
            .any(|d| *d > SimDuration::ZERO)
    }
}
