//! Why a run cannot go on.

use crate::units::SimTime;

/// A run that cannot go on: a broken invariant or a model that never ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// Unfinished work without any future event.
    #[error("no event is left at {at:?} but {unfinished} requests are unfinished")]
    LostWakeUp {
        /// When.
        at: SimTime,
        /// How many.
        unfinished: u32,
    },
    /// Requests wait, but nothing that could run or arrive will ever make room for them.
    #[error(
        "at {at:?} {unfinished} requests wait for ever: the engine can schedule none of them and nothing is left to \
         run or to arrive (a request that was preempted may have outgrown the token budget or the KV cache)"
    )]
    Stuck {
        /// When.
        at: SimTime,
        /// How many.
        unfinished: u32,
    },
    /// A step of no time, or simulated time at its end: the step-time model gives no usable durations.
    #[error("a step at {at:?} lasts {what}: the step times are not those of a machine")]
    UnusableStepTime {
        /// When.
        at: SimTime,
        /// `0 ns`, or that it passes the end of simulated time.
        what: &'static str,
    },
    /// A part of a cluster cannot be made as configured.
    #[error("the cluster cannot be set up: {what}")]
    UnusableConfiguration {
        /// What is wrong.
        what: String,
    },
    /// Something is due at the end of simulated time: a time somewhere is absurdly long.
    #[error(
        "after {at:?} the next event is due at the end of simulated time (584 years): an arrival, a think time or \
         another time of the clients is far too long"
    )]
    EndOfTime {
        /// When the event before it happened.
        at: SimTime,
    },
    /// The control loops of a cluster are nearly all that happens.
    #[error(
        "until {at:?} routers and autoscalers have read the metrics of groups {readings} times for {requests} requests: \
         lengthen cluster.router.metrics_interval or the interval of autoscale, or cut the run off by measure.deadline"
    )]
    OnlyControl {
        /// When.
        at: SimTime,
        /// Readings of one group each.
        readings: u64,
        /// Requests sent so far.
        requests: u64,
    },
    /// Groups come and go without end.
    #[error(
        "until {at:?} {groups} groups have been started: autoscalers that grow and shrink without end are no plan; \
         give autoscale.down a stabilization or a cooldown"
    )]
    TooManyGroups {
        /// When.
        at: SimTime,
        /// How many, those of the start among them.
        groups: u64,
    },
    /// Too many events at one instant.
    #[error("more than {limit} events at {at:?}: time does not advance")]
    ZeroTimeSpin {
        /// When.
        at: SimTime,
        /// The limit.
        limit: u64,
    },
}

impl SimError {
    /// When.
    pub fn at(&self) -> SimTime {
        match self {
            Self::LostWakeUp { at, .. }
            | Self::Stuck { at, .. }
            | Self::UnusableStepTime { at, .. }
            | Self::EndOfTime { at }
            | Self::OnlyControl { at, .. }
            | Self::TooManyGroups { at, .. }
            | Self::ZeroTimeSpin { at, .. } => *at,
            Self::UnusableConfiguration { .. } => SimTime::ZERO,
        }
    }
}
