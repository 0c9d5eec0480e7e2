//! Runs of a cluster: of a trace or of a stream of requests, kept whole or told to a recorder.

use super::config::FleetConfig;
use super::world::Fleet;
use crate::engine::RequestId;
use crate::record::{ClusterRecord, FullRecorder, Recorder, ReplicaTotals, RunRecord};
use crate::sim::error::SimError;
use crate::sim::run::StreamError;
use crate::sim::world::{LoadModel, Pace};
use crate::steptime::StepTime;
use crate::units::SimTime;
use crate::workload::trace::{Trace, TraceRequest};

/// A run of a cluster that was told to a recorder.
#[derive(Debug)]
pub struct FleetRun<R> {
    /// What heard of it.
    pub recorder: R,
    /// Replicas by number.
    pub replicas: Vec<ReplicaTotals>,
    /// Groups, faults, and what became of each request on its way.
    pub cluster: ClusterRecord,
    /// When the last event happened.
    pub end: SimTime,
    /// Steps of all replicas.
    pub steps: u64,
}

/// Runs a trace on a cluster until all work is done or the deadline has come.
///
/// # Errors
/// [`SimError`] when the run cannot go on.
pub fn run(
    pace: Pace,
    config: &FleetConfig,
    step_times: &[&dyn StepTime],
    trace: &Trace,
) -> Result<(RunRecord, ClusterRecord), SimError> {
    let requests = &trace.requests;
    let mut order: Vec<RequestId> = (0..requests.len() as u32).collect();
    if config.load == LoadModel::OpenLoop {
        order.sort_by_key(|&id| requests[id as usize].arrival);
    }
    let stream = order
        .into_iter()
        .map(|id| Ok::<_, std::convert::Infallible>((id, requests[id as usize].clone())));
    record(pace, config, step_times, stream).map_err(|e| match e {
        StreamError::Sim(e) => e,
        StreamError::Requests(never) => match never {},
    })
}

/// As [`run`], of a stream of requests, in the order of their sending: none is kept but in the record.
///
/// # Errors
/// [`StreamError`].
pub fn run_recorded<E>(
    pace: Pace,
    config: &FleetConfig,
    step_times: &[&dyn StepTime],
    requests: impl Iterator<Item = Result<TraceRequest, E>>,
) -> Result<(RunRecord, ClusterRecord), StreamError<E>> {
    record(pace, config, step_times, numbered(requests))
}

fn record<E>(
    pace: Pace,
    config: &FleetConfig,
    step_times: &[&dyn StepTime],
    requests: impl Iterator<Item = Result<(RequestId, TraceRequest), E>>,
) -> Result<(RunRecord, ClusterRecord), StreamError<E>> {
    let told = run_told(pace, config, step_times, requests, FullRecorder::default())?;
    let mut recorder = told.recorder;
    for (replica, totals) in (0..).zip(told.replicas) {
        recorder.set_totals(replica, totals);
    }
    let mut run = recorder.into_run(told.end);
    let until = config.deadline.filter(|_| config.load.is_closed());
    config.front_end.shift_tokens(&mut run, until);
    Ok((run, told.cluster))
}

/// Runs a stream of requests, in the order of their sending, and tells a recorder of it. Memory grows with the requests
/// in the system and with a few counts of each request.
///
/// # Errors
/// [`StreamError`].
pub fn run_streamed<R: Recorder, E>(
    config: &FleetConfig,
    step_times: &[&dyn StepTime],
    requests: impl Iterator<Item = Result<TraceRequest, E>>,
    recorder: R,
) -> Result<FleetRun<R>, StreamError<E>> {
    run_told(Pace::Leap, config, step_times, numbered(requests), recorder)
}

fn numbered<E>(
    requests: impl Iterator<Item = Result<TraceRequest, E>>,
) -> impl Iterator<Item = Result<(RequestId, TraceRequest), E>> {
    (0..).zip(requests).map(|(id, request)| Ok((id, request?)))
}

fn run_told<R: Recorder, E>(
    pace: Pace,
    config: &FleetConfig,
    step_times: &[&dyn StepTime],
    mut requests: impl Iterator<Item = Result<(RequestId, TraceRequest), E>>,
    recorder: R,
) -> Result<FleetRun<R>, StreamError<E>> {
    let mut fleet = Fleet::new(pace, config, step_times, recorder).map_err(StreamError::Sim)?;
    fleet.start_groups();
    let mut failure = None;
    let mut next = || requests.next()?.map_err(|e| failure = Some(e)).ok();
    let ended = fleet.run(&mut next);
    let ended = ended.map(|()| fleet.end(&mut next));
    match failure {
        Some(e) => Err(StreamError::Requests(e)),
        None => ended.map_err(StreamError::Sim),
    }
}
