//! Checks of the requests themselves: each must be one that the engine can serve.

use super::check::Blame;
use super::quantity::Span;
use super::resolve::Measurement;
use crate::engine::Refusal;
use crate::engine::vllm::VllmConfig;
use crate::input::InputError;
use crate::sim::LoadModel;
use crate::units::SimTime;
use crate::workload::trace::Trace;

/// The trace with its time axis stretched.
///
/// # Errors
/// [`InputError`] when a time would be longer than simulated time holds.
pub fn scaled(trace: &Trace, factor: f64, blame: &Blame<'_>) -> Result<Trace, InputError> {
    let mut out = trace.clone();
    // Not even a rounding step when nothing is to be stretched.
    if (factor - 1.0).abs() <= f64::EPSILON {
        return Ok(out);
    }
    for r in &mut out.requests {
        r.arrival = SimTime::try_from_secs_f64(r.arrival.as_secs_f64() * factor)
            .map_err(|e| blame.error("load.arrival", e.to_string(), "stretch the trace less"))?;
    }
    Ok(out)
}

/// Refuses the first row that could never be served.
///
/// # Errors
/// [`InputError`] naming the row, counted from 0 as request ids are.
pub fn rows(trace: &Trace, engine: &VllmConfig, origin: &str) -> Result<(), InputError> {
    for (id, request) in trace.requests.iter().enumerate() {
        if let Some(refusal) = engine.refusal(request) {
            let mend = match refusal {
                Refusal::PromptTooLong { .. } => "shorten the prompt or raise system.engine.max_model_len",
                Refusal::LargerThanCache { .. } => "shorten the request or give the engine more KV blocks",
                _ => "raise max_num_batched_tokens or turn enable_chunked_prefill on",
            };
            return Err(InputError::new(origin, refusal.to_string())
                .at(format!("request {id}"))
                .allowed(mend));
        }
    }
    Ok(())
}

/// The trace as a whole: not empty, and something is left after the warm-up.
///
/// # Errors
/// [`InputError`].
pub fn whole(
    trace: &Trace,
    load: LoadModel,
    measure: &Measurement,
    blame: &Blame<'_>,
) -> Result<(), InputError> {
    let Some(last) = trace.requests.last() else {
        return Err(blame.error(
            "workload",
            "no request arrives",
            "raise load.arrival.rate or measure.window, or give num_requests",
        ));
    };
    if load == LoadModel::OpenLoop && last.arrival.since(SimTime::ZERO) < measure.warmup {
        return Err(blame.error(
            "measure.warmup",
            format!(
                "the warm-up ({}) is longer than the run: the last request arrives at {}",
                Span(measure.warmup),
                last.arrival.since(SimTime::ZERO)
            ),
            "shorten the warm-up or offer more requests",
        ));
    }
    Ok(())
}
