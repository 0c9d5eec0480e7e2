//! Runs: all requests of a trace, or a stream of them, on the configured system.
//!
//! Replicas behind a router that does not look at them, under a load that does not wait for them, never meet: each is
//! a world of its own, and worlds run in parallel. What comes out does not depend on how many threads there are.

use rayon::prelude::*;

use super::world::{Ended, LoadModel, Pace, SimError, World, WorldConfig};
use crate::engine::RequestId;
use crate::record::{FullRecorder, Recorder, ReplicaTotals, RunRecord};
use crate::steptime::StepTime;
use crate::units::SimTime;
use crate::workload::trace::{Trace, TraceRequest};

/// Requests that are read ahead of a stream at a time.
const BLOCK: usize = 1 << 16;

/// A run that was told to recorders.
#[derive(Debug)]
pub struct Told<R> {
    /// One recorder for all replicas, or one a replica, in their order.
    pub recorders: Vec<R>,
    /// Replicas by number.
    pub replicas: Vec<ReplicaTotals>,
    /// When the last event happened.
    pub end: SimTime,
}

/// Why a streamed run ended early.
#[derive(Debug, thiserror::Error)]
pub enum StreamError<E> {
    /// The simulation cannot go on.
    #[error(transparent)]
    Sim(SimError),
    /// The stream of requests broke off.
    #[error("{0}")]
    Requests(E),
}

/// Runs `trace` on the configured system until all work is done or the deadline has come (what is not done by
/// then stays [`crate::record::Status::Unfinished`]).
///
/// # Errors
/// [`SimError`] when the run cannot go on.
pub fn run(config: &WorldConfig, step_time: &dyn StepTime, trace: &Trace) -> Result<RunRecord, SimError> {
    run_at(Pace::Leap, config, step_time, trace)
}

/// [`run`] at a pace.
///
/// # Errors
/// As [`run`].
pub fn run_at(
    pace: Pace,
    config: &WorldConfig,
    step_time: &dyn StepTime,
    trace: &Trace,
) -> Result<RunRecord, SimError> {
    let requests = &trace.requests;
    let mut order: Vec<RequestId> = (0..requests.len() as u32).collect();
    if config.load == LoadModel::OpenLoop {
        order.sort_by_key(|&id| requests[id as usize].arrival);
    }
    let stream = order
        .into_iter()
        .map(|id| Ok::<_, std::convert::Infallible>((id, requests[id as usize].clone())));
    let told = run_told(
        pace,
        config,
        step_time,
        stream,
        requests.len(),
        FullRecorder::default,
    );
    let told = told.map_err(|e| match e {
        StreamError::Sim(e) => e,
        StreamError::Requests(never) => match never {},
    })?;
    let mut run = into_record(told);
    config.front_end.shift_tokens(&mut run);
    Ok(run)
}

/// Runs a stream of requests, in the order of their sending (for an open loop: of their arrivals), and tells recorders
/// of it. Memory grows with the requests in the system only, except under a closed or offline load, which takes all
/// requests in beforehand.
///
/// # Errors
/// [`StreamError`].
pub fn run_streamed<R: Recorder, E>(
    config: &WorldConfig,
    step_time: &dyn StepTime,
    requests: impl Iterator<Item = Result<TraceRequest, E>>,
    recorder: impl Fn() -> R,
) -> Result<Told<R>, StreamError<E>> {
    let numbered = (0..).zip(requests).map(|(id, request)| Ok((id, request?)));
    run_told(Pace::Leap, config, step_time, numbered, BLOCK, recorder)
}

fn run_told<R: Recorder, E>(
    pace: Pace,
    config: &WorldConfig,
    step_time: &dyn StepTime,
    mut requests: impl Iterator<Item = Result<(RequestId, TraceRequest), E>>,
    at_once: usize,
    recorder: impl Fn() -> R,
) -> Result<Told<R>, StreamError<E>> {
    let world = |numbers| World::new(config, step_time, numbers, pace, at_once, recorder());
    let closed = matches!(config.load, LoadModel::ClosedLoop { .. });
    let mut worlds: Vec<World<'_, R>> = if closed {
        vec![world(0..config.replicas)]
    } else {
        (0..config.replicas).map(|r| world(r..r + 1)).collect()
    };
    let block = if config.load == LoadModel::OpenLoop {
        BLOCK
    } else {
        usize::MAX
    };
    let mut next = 0;
    loop {
        let mut newest = None;
        for _ in 0..block {
            let Some(request) = requests.next() else { break };
            let (id, request) = request.map_err(StreamError::Requests)?;
            newest = Some(request.arrival);
            worlds[next].add(id, request);
            next = (next + 1) % worlds.len();
        }
        // What arrives at the very instant of the newest request may still be to come.
        let limit = newest.filter(|_| block == BLOCK).unwrap_or(SimTime(u64::MAX));
        advance(&mut worlds, limit).map_err(StreamError::Sim)?;
        if newest.is_none() || block != BLOCK {
            break;
        }
    }
    conclude(worlds.into_iter().map(World::end).collect()).map_err(StreamError::Sim)
}

/// Runs all worlds up to an instant. Of several that cannot go on, the earliest one's error is told.
fn advance<R: Recorder>(worlds: &mut [World<'_, R>], limit: SimTime) -> Result<(), SimError> {
    let failures: Vec<SimError> = if worlds.len() == 1 {
        worlds
            .iter_mut()
            .filter_map(|w| w.run_until(limit).err())
            .collect()
    } else {
        worlds
            .par_iter_mut()
            .filter_map(|w| w.run_until(limit).err())
            .collect()
    };
    failures.into_iter().min_by_key(SimError::at).map_or(Ok(()), Err)
}

/// Puts the worlds' ends together. When no event is left, all work must be done: a replica that waits for an event of
/// its own has lost it; one that does not has been told by its engine that nothing fits and nothing runs.
fn conclude<R>(worlds: Vec<Ended<R>>) -> Result<Told<R>, SimError> {
    let at = worlds.iter().map(|w| w.end).max().unwrap_or_default();
    let lost: Vec<&Ended<R>> = worlds.iter().filter(|w| !w.cut_off && w.unfinished > 0).collect();
    if !lost.is_empty() {
        let unfinished = lost.iter().map(|w| w.unfinished).sum();
        return Err(if lost.iter().all(|w| w.stuck) {
            SimError::Stuck { at, unfinished }
        } else {
            SimError::LostWakeUp { at, unfinished }
        });
    }
    let (mut recorders, mut replicas) = (Vec::new(), Vec::new());
    for world in worlds {
        recorders.push(world.recorder);
        replicas.extend(world.totals);
    }
    Ok(Told {
        recorders,
        replicas,
        end: at,
    })
}

fn into_record(told: Told<FullRecorder>) -> RunRecord {
    let mut recorders = told.recorders.into_iter();
    let mut all = recorders.next().unwrap_or_default();
    recorders.for_each(|other| all.merge(other));
    for (replica, totals) in (0..).zip(told.replicas) {
        all.set_totals(replica, totals);
    }
    all.into_run(told.end)
}
