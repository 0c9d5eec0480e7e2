//! Checks of the requests themselves: each must be one that the engine can serve.

use super::check::Blame;
use super::quantity::Span;
use super::resolve::Measurement;
use crate::engine::Refusal;
use crate::engine::vllm::VllmConfig;
use crate::input::InputError;
use crate::sim::LoadModel;
use crate::units::SimTime;
use crate::workload::trace::{Trace, TraceRequest};

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
        if let Some(refusal) = refusal(request, engine) {
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

/// Why the engine would refuse the request for good; the same rule as the engine's own, which sees the cap and
/// not the EOS to come.
fn refusal(request: &TraceRequest, engine: &VllmConfig) -> Option<Refusal> {
    let input_tokens = request.input_tokens;
    if input_tokens >= engine.max_model_len {
        return Some(Refusal::PromptTooLong {
            input_tokens,
            max_model_len: engine.max_model_len,
        });
    }
    // The last output token's KV is never computed.
    let longest = u64::from(input_tokens)
        + u64::from(request.max_output_tokens).saturating_sub(1)
        + u64::from(engine.num_lookahead_tokens);
    let longest = longest
        .min(u64::from(engine.max_model_len))
        .max(u64::from(input_tokens));
    let needed = u32::try_from(longest.div_ceil(u64::from(engine.block_size))).unwrap_or(u32::MAX);
    if needed > engine.usable_blocks() {
        return Some(Refusal::LargerThanCache {
            needed,
            usable: engine.usable_blocks(),
        });
    }
    let budget = engine.max_num_batched_tokens;
    let one_piece = !engine.enable_chunked_prefill && engine.long_prefill_token_threshold == 0;
    (one_piece && input_tokens > budget).then_some(Refusal::LargerThanBudget { input_tokens, budget })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::vllm::Behaviour;

    fn engine(blocks: u32) -> VllmConfig {
        let mut e = VllmConfig::new(Behaviour::of("0.32.0").unwrap());
        e.num_gpu_blocks = blocks;
        e.max_model_len = 1000;
        e
    }

    /// 4 usable blocks of 16 hold 64 tokens. A prompt of 33 with 32 outputs computes KV of 64 tokens (the last
    /// output's is never computed) and fits; one output more does not.
    #[test]
    fn the_largest_request_that_fits_is_accepted() {
        let fits = TraceRequest::plain(SimTime::ZERO, 33, 32);
        assert_eq!(refusal(&fits, &engine(5)), None);
        let over = TraceRequest::plain(SimTime::ZERO, 33, 33);
        assert_eq!(
            refusal(&over, &engine(5)),
            Some(Refusal::LargerThanCache { needed: 5, usable: 4 })
        );
    }

    #[test]
    fn a_prompt_must_leave_room_for_one_token() {
        assert_eq!(
            refusal(&TraceRequest::plain(SimTime::ZERO, 999, 50), &engine(5000)),
            None
        );
        let long = refusal(&TraceRequest::plain(SimTime::ZERO, 1000, 1), &engine(5000));
        assert_eq!(
            long,
            Some(Refusal::PromptTooLong {
                input_tokens: 1000,
                max_model_len: 1000
            })
        );
    }

    #[test]
    fn without_chunking_a_prompt_must_fit_the_budget() {
        let mut e = engine(5000);
        e.enable_chunked_prefill = false;
        e.max_num_batched_tokens = 512;
        assert!(refusal(&TraceRequest::plain(SimTime::ZERO, 512, 5), &e).is_none());
        assert!(refusal(&TraceRequest::plain(SimTime::ZERO, 513, 5), &e).is_some());
    }

    /// The engine has the last word; what passes here must pass there, and the other way round.
    #[test]
    fn the_engine_refuses_the_same_requests() {
        use crate::engine::Engine;
        use crate::engine::vllm::VllmEngine;
        for blocks in [5, 30, 5000] {
            for (chunked, threshold, lookahead) in [(true, 0, 0), (false, 0, 3), (false, 64, 0)] {
                let mut config = engine(blocks);
                config.enable_chunked_prefill = chunked;
                config.long_prefill_token_threshold = threshold;
                config.num_lookahead_tokens = lookahead;
                config.max_num_batched_tokens = 512;
                for input in [1, 16, 33, 63, 64, 65, 500, 512, 513, 998, 999, 1000, 1001] {
                    for output in [1, 2, 16, 32, 33, 400, 5000] {
                        let request = TraceRequest::plain(SimTime::ZERO, input, output);
                        let there = VllmEngine::new(config.clone()).submit(0, &request).err();
                        assert_eq!(refusal(&request, &config), there, "{request:?} {config:?}");
                    }
                }
            }
        }
    }
}
