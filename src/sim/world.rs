//! One run: a trace, a load model, replicas behind a router, until nothing is left to do.

use crate::engine::vllm::VllmConfig;
use crate::record::RunRecord;
use crate::steptime::StepTime;
use crate::units::{SimDuration, SimTime};
use crate::workload::trace::Trace;

/// How requests are offered (contract section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadModel {
    /// At the trace's arrival times, whatever the server does.
    OpenLoop,
    /// A fixed number of clients: send, wait for the end, think, send the next row.
    ClosedLoop {
        /// Clients.
        concurrency: u32,
        /// Pause of a client between an answer and its next request.
        think: SimDuration,
    },
    /// Everything is ready at time 0.
    Offline,
}

/// Time of the host process around the steps, where a capture shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostTimes {
    /// Taking one request into the engine, paid between steps.
    pub add_request: SimDuration,
    /// From the end of one step to the start of the next.
    pub between_steps: SimDuration,
}

/// A machine that takes the engine's core away after long continuous use (a real-time bandwidth limit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Length of the accounting period.
    pub period: SimDuration,
    /// Most busy time in a period; more is followed by a stall of `period - busy`.
    pub busy: SimDuration,
}

/// Everything a run needs but the trace and the step-time model.
#[derive(Debug, Clone, PartialEq)]
pub struct WorldConfig {
    /// Every replica's engine.
    pub engine: VllmConfig,
    /// Replicas behind a round-robin router.
    pub replicas: u32,
    /// How requests are offered.
    pub load: LoadModel,
    /// Host time around the steps.
    pub host: HostTimes,
    /// Machine stalls, if they are part of the scenario.
    pub stall: Option<Stall>,
    /// The run is cut off here; what is not finished by then stays unfinished.
    pub deadline: Option<SimTime>,
}

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
    /// Too many events at one instant.
    #[error("more than {limit} events at {at:?}: time does not advance")]
    ZeroTimeSpin {
        /// When.
        at: SimTime,
        /// The limit.
        limit: u64,
    },
}

/// Runs `trace` on the configured system.
///
/// # Errors
/// [`SimError`] when the run cannot go on.
pub fn run(config: &WorldConfig, step_time: &dyn StepTime, trace: &Trace) -> Result<RunRecord, SimError> {
    let _ = (config, step_time, trace);
    todo!("written with the engine")
}
