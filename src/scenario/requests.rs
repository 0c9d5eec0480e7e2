//! The requests of a plan, one by one or all at once. Each must be one that the engine can serve.

use std::sync::Arc;

use super::plan::Plan;
use super::quantity::Span;
use super::work::{TraceFile, WorkSource};
use crate::engine::Refusal;
use crate::input::{InputError, TextFile};
use crate::sim::LoadModel;
use crate::units::SimTime;
use crate::workload::formats::csv::{self, TraceRows};
use crate::workload::synth::{self, ArrivalSpan, SynthError};
use crate::workload::trace::{Trace, TraceRequest};

/// Requests of one replication in order of arrival, each checked. After an error there is no further one.
///
/// What is wrong with the whole (no request at all, or none after the warm-up) is told last, when it is known.
#[derive(Debug)]
pub struct PlanRequests<'a> {
    plan: &'a Plan,
    source: Source,
    /// Requests so far.
    count: u32,
    last: SimTime,
    ended: bool,
}

#[derive(Debug)]
enum Source {
    Draw(Box<synth::Requests>),
    Kept {
        trace: Arc<Trace>,
        scale: f64,
    },
    File {
        rows: Box<TraceRows<TextFile>>,
        scale: f64,
    },
}

impl<'a> PlanRequests<'a> {
    pub(super) fn new(plan: &'a Plan, replication: u64) -> Result<Self, InputError> {
        let source = match plan.work() {
            WorkSource::Draw(spec) => {
                let drawn = synth::stream(spec, plan.measure.seed, replication);
                Source::Draw(Box::new(drawn.map_err(|e| refused_draw(plan, e))?))
            }
            WorkSource::Replay { file, time_scale } => match &file.trace {
                Some(trace) => Source::Kept {
                    trace: trace.clone(),
                    scale: *time_scale,
                },
                None => Source::File {
                    rows: Box::new(csv::stream_trace(&file.path)?),
                    scale: *time_scale,
                },
            },
        };
        Ok(Self {
            plan,
            source,
            count: 0,
            last: SimTime::ZERO,
            ended: false,
        })
    }

    fn take(&mut self) -> Option<Result<TraceRequest, InputError>> {
        match &mut self.source {
            Source::Draw(drawn) => Some(drawn.next()?.map_err(|e| refused_draw(self.plan, e))),
            Source::Kept { trace, scale } => {
                let request = trace.requests.get(self.count as usize)?.clone();
                Some(stretched(request, *scale, self.plan))
            }
            Source::File { rows, scale } => {
                let request = rows.next()?;
                Some(request.and_then(|r| stretched(r, *scale, self.plan)))
            }
        }
    }
}

impl Iterator for PlanRequests<'_> {
    type Item = Result<TraceRequest, InputError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let Some(taken) = self.take() else {
            self.ended = true;
            return check_whole(self.plan, self.count, self.last).err().map(Err);
        };
        let checked = taken.and_then(|request| match check_request(self.plan, self.count, &request) {
            Ok(()) => Ok(request),
            Err(e) => Err(e),
        });
        match &checked {
            Ok(request) => {
                self.last = request.arrival;
                self.count += 1;
            }
            Err(_) => self.ended = true,
        }
        Some(checked)
    }
}

/// All requests of a replication, in memory.
pub(super) fn whole(plan: &Plan, replication: u64) -> Result<Arc<Trace>, InputError> {
    match plan.work() {
        WorkSource::Replay { file, time_scale } => {
            let Some(trace) = &file.trace else {
                return Err(csv::too_long(&file.path));
            };
            if is_one(*time_scale) {
                for (id, request) in trace.requests.iter().enumerate() {
                    check_request(plan, id as u32, request)?;
                }
                check_whole(plan, file.span.count, file.span.last)?;
                return Ok(trace.clone());
            }
        }
        WorkSource::Draw(spec) => {
            let drawn = synth::synthesize(spec, plan.measure.seed, replication);
            let requests = drawn.map_err(|e| refused_draw(plan, e))?.requests;
            for (id, request) in requests.iter().enumerate() {
                check_request(plan, id as u32, request)?;
            }
            let last = requests.last().map_or(SimTime::ZERO, |r| r.arrival);
            check_whole(plan, requests.len() as u32, last)?;
            return Ok(Arc::new(Trace { requests }));
        }
    }
    let requests = PlanRequests::new(plan, replication)?.collect::<Result<_, _>>()?;
    Ok(Arc::new(Trace { requests }))
}

/// The requests of a replication, one by one, after all of them have been checked.
pub(super) fn checked(plan: &Plan, replication: u64) -> Result<PlanRequests<'_>, InputError> {
    match plan.work() {
        WorkSource::Draw(_) => {
            PlanRequests::new(plan, replication)?.try_for_each(|request| request.map(|_| ()))?;
        }
        WorkSource::Replay { .. } => {
            whole(plan, replication)?;
        }
    }
    PlanRequests::new(plan, replication)
}

/// When the requests of a replication arrive.
pub(super) fn span(plan: &Plan, replication: u64) -> Result<ArrivalSpan, InputError> {
    match plan.work() {
        WorkSource::Draw(spec) => {
            let span = synth::arrival_span(spec, plan.measure.seed, replication);
            let span = span.map_err(|e| refused_draw(plan, e))?;
            span.ok_or_else(|| nothing_arrives(plan))
        }
        WorkSource::Replay { file, time_scale } => {
            let TraceFile { span, .. } = file.as_ref();
            let at = |time| stretched_time(time, *time_scale, plan);
            Ok(ArrivalSpan {
                first: at(span.first)?,
                last: at(span.last)?,
                count: span.count,
            })
        }
    }
}

fn refused_draw(plan: &Plan, error: SynthError) -> InputError {
    plan.blame().error(
        "workload.synthetic",
        error.to_string(),
        "change the law or the load",
    )
}

/// Not even a rounding step when nothing is to be stretched.
fn is_one(factor: f64) -> bool {
    (factor - 1.0).abs() <= f64::EPSILON
}

fn stretched(mut request: TraceRequest, factor: f64, plan: &Plan) -> Result<TraceRequest, InputError> {
    request.arrival = stretched_time(request.arrival, factor, plan)?;
    Ok(request)
}

fn stretched_time(time: SimTime, factor: f64, plan: &Plan) -> Result<SimTime, InputError> {
    if is_one(factor) {
        return Ok(time);
    }
    SimTime::try_from_secs_f64(time.as_secs_f64() * factor).map_err(|e| {
        plan.blame()
            .error("load.arrival", e.to_string(), "stretch the trace less")
    })
}

/// Refuses a request that could never be served; it is named by its number, counted from 0 as request ids are.
fn check_request(plan: &Plan, id: u32, request: &TraceRequest) -> Result<(), InputError> {
    let refusals = plan.engines().find_map(|(engine, prompt_alone)| {
        if !prompt_alone {
            return engine.refusal(request);
        }
        // A prefill group makes one token, which is thrown away (rule D2).
        engine.refusal(&TraceRequest {
            max_output_tokens: 1,
            ..request.clone()
        })
    });
    let Some(refusal) = refusals else {
        return Ok(());
    };
    let mend = match refusal {
        Refusal::PromptTooLong { .. } => "shorten the prompt or raise system.engine.max_model_len",
        Refusal::LargerThanCache { .. } => "shorten the request or give the engine more KV blocks",
        _ => "raise max_num_batched_tokens or turn enable_chunked_prefill on",
    };
    let origin = match plan.work() {
        WorkSource::Replay { file, .. } => file.path.display().to_string(),
        WorkSource::Draw(_) => format!("{}, workload.synthetic", plan.origin()),
    };
    Err(InputError::new(origin, refusal.to_string())
        .at(format!("request {id}"))
        .allowed(mend))
}

fn nothing_arrives(plan: &Plan) -> InputError {
    plan.blame().error(
        "workload",
        "no request arrives",
        "raise load.arrival.rate or measure.window, or give num_requests",
    )
}

/// The requests as a whole: there are some, and something is left after the warm-up.
fn check_whole(plan: &Plan, count: u32, last: SimTime) -> Result<(), InputError> {
    if count == 0 {
        return Err(nothing_arrives(plan));
    }
    let (warmup, length) = (plan.measure.warmup, last.since(SimTime::ZERO));
    if plan.load_model() == LoadModel::OpenLoop && length < warmup {
        return Err(plan.blame().error(
            "measure.warmup",
            format!(
                "the warm-up ({}) is longer than the run: the last request arrives at {length}",
                Span(warmup)
            ),
            "shorten the warm-up or offer more requests",
        ));
    }
    Ok(())
}
