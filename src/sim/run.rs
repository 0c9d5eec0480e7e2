//! Runs: all requests of a trace, or a stream of them, on the configured system.
//!
//! Replicas behind a router that does not look at them, under a load that does not wait for them, never meet: each is
//! a world of its own, and worlds run in parallel. What comes out does not depend on how many threads there are.

use rayon::prelude::*;

use super::error::SimError;
use super::world::{Ended, LoadModel, Pace, World, WorldConfig};
use crate::engine::RequestId;
use crate::record::{FullRecorder, Recorder, ReplicaTotals, RunRecord};
use crate::steptime::StepTime;
use crate::units::SimTime;
use crate::workload::trace::{Trace, TraceRequest};

/// Requests that are read ahead of a stream at a time, for each replica and in all.
const BLOCK_A_REPLICA: usize = 1 << 8;
const SMALLEST_BLOCK: usize = 1 << 12;
const LARGEST_BLOCK: usize = 1 << 16;
/// Recorders of worlds that run apart, at most: enough for many cores, few enough that what each keeps is small.
const LANES: usize = 16;

/// A run that was told to recorders.
#[derive(Debug)]
pub struct Told<R> {
    /// Each heard of some of the replicas and of all requests that they served.
    pub recorders: Vec<R>,
    /// Replicas by number.
    pub replicas: Vec<ReplicaTotals>,
    /// When the last event happened.
    pub end: SimTime,
    /// Steps of all replicas.
    pub steps: u64,
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
/// then stays [`crate::record::Status::Unfinished`], what is not even sent [`crate::record::Status::Unsent`]).
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
    if config.load.keeps_arrivals() {
        order.sort_by_key(|&id| requests[id as usize].arrival);
    }
    let stream = order
        .into_iter()
        .map(|id| Ok::<_, std::convert::Infallible>((id, requests[id as usize].clone())));
    let told = run_told(pace, config, step_time, stream, FullRecorder::default);
    let told = told.map_err(|e| match e {
        StreamError::Sim(e) => e,
        StreamError::Requests(never) => match never {},
    })?;
    let mut run = into_record(told);
    if !config.load.clients_see_for_themselves() {
        // A load that does not wait for its answers goes on listening after its deadline, as a streamed summary does.
        let until = config.deadline.filter(|_| config.load.is_closed());
        config.front_end.shift_tokens(&mut run, until);
    }
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
    run_told(Pace::Leap, config, step_time, numbered, recorder)
}

/// Worlds that tell one recorder, one after another.
struct Lane<'a, R: Recorder> {
    recorder: R,
    worlds: Vec<World<'a, R>>,
}

impl<R: Recorder> Lane<'_, R> {
    fn run_until(&mut self, limit: SimTime) -> Option<SimError> {
        let recorder = &mut self.recorder;
        let failures = self
            .worlds
            .iter_mut()
            .filter_map(|w| w.run_until(limit, recorder).err());
        failures.min_by_key(SimError::at)
    }
}

fn run_told<R: Recorder, E>(
    pace: Pace,
    config: &WorldConfig,
    step_time: &dyn StepTime,
    mut requests: impl Iterator<Item = Result<(RequestId, TraceRequest), E>>,
    recorder: impl Fn() -> R,
) -> Result<Told<R>, StreamError<E>> {
    let world = |numbers| World::new(config, step_time, numbers, pace);
    let closed = config.load.is_closed();
    let parts = if closed { 1 } else { config.replicas as usize };
    let mut lanes: Vec<Lane<'_, R>> = (0..parts.min(LANES))
        .map(|_| Lane {
            recorder: recorder(),
            worlds: Vec::new(),
        })
        .collect();
    for part in 0..parts {
        let number = part as u32;
        let numbers = if closed {
            0..config.replicas
        } else {
            number..number + 1
        };
        lanes[part % LANES].worlds.push(world(numbers));
    }
    let block = match config.load {
        LoadModel::OpenLoop => (parts * BLOCK_A_REPLICA).clamp(SMALLEST_BLOCK, LARGEST_BLOCK),
        _ => usize::MAX,
    };
    let mut next = 0;
    loop {
        let mut newest = None;
        for _ in 0..block {
            let Some(request) = requests.next() else { break };
            let (id, request) = request.map_err(StreamError::Requests)?;
            newest = Some(request.arrival);
            lanes[next % LANES].worlds[next / LANES].add(id, request);
            next = (next + 1) % parts;
        }
        let is_last = newest.is_none() || block == usize::MAX;
        // What arrives at the very instant of the newest request may still be to come.
        let limit = newest.filter(|_| !is_last).unwrap_or(SimTime(u64::MAX));
        advance(&mut lanes, limit).map_err(StreamError::Sim)?;
        if is_last {
            break;
        }
    }
    conclude(lanes, parts).map_err(StreamError::Sim)
}

/// Runs all worlds up to an instant. Of several that cannot go on, the earliest one's error is told.
fn advance<R: Recorder>(lanes: &mut [Lane<'_, R>], limit: SimTime) -> Result<(), SimError> {
    let failures: Vec<SimError> = if lanes.len() == 1 {
        lanes
            .iter_mut()
            .filter_map(|lane| lane.run_until(limit))
            .collect()
    } else {
        lanes
            .par_iter_mut()
            .filter_map(|lane| lane.run_until(limit))
            .collect()
    };
    failures.into_iter().min_by_key(SimError::at).map_or(Ok(()), Err)
}

/// Puts the worlds' ends together. When no event is left, all work must be done: a replica that waits for an event of
/// its own has lost it; one that does not has been told by its engine that nothing fits and nothing runs. A livelock is
/// an outcome of the run: what is unfinished then is told as such.
fn conclude<R: Recorder>(lanes: Vec<Lane<'_, R>>, parts: usize) -> Result<Told<R>, SimError> {
    let mut ends: Vec<Option<Ended>> = (0..parts).map(|_| None).collect();
    let mut recorders = Vec::new();
    for (number, mut lane) in lanes.into_iter().enumerate() {
        for (index, world) in lane.worlds.into_iter().enumerate() {
            ends[index * LANES + number] = Some(world.end(&mut lane.recorder));
        }
        recorders.push(lane.recorder);
    }
    let worlds: Vec<Ended> = ends.into_iter().flatten().collect();
    let at = worlds.iter().map(|w| w.end).max().unwrap_or_default();
    let livelocked = |w: &Ended| w.totals.iter().any(|t| t.livelock.is_some());
    let lost: Vec<&Ended> = worlds
        .iter()
        .filter(|w| !w.cut_off && w.unfinished > 0 && !livelocked(w))
        .collect();
    if !lost.is_empty() {
        let unfinished = lost.iter().map(|w| w.unfinished).sum();
        return Err(if lost.iter().all(|w| w.stuck) {
            SimError::Stuck { at, unfinished }
        } else {
            SimError::LostWakeUp { at, unfinished }
        });
    }
    Ok(Told {
        recorders,
        steps: worlds.iter().map(|w| w.steps).sum(),
        replicas: worlds.into_iter().flat_map(|w| w.totals).collect(),
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
