//! A capture as a run's raw events, so that measured and simulated runs go through the same metrics.

use super::manifest::ClockSide;
use super::observe::Capture;
use crate::engine::FinishReason;
use crate::input::InputError;
use crate::metric::diagnose::{ClientView, Diagnosis, Limits, ServerView};
use crate::metric::summary::{Boundary, SummaryOptions};
use crate::metric::window::Window;
use crate::record::import::{ClientRun, Clock};
use crate::record::{ReplicaRecord, RequestRecord, RunRecord, Scrape, Status, TokenLog};
use crate::units::{SimDuration, SimTime};

/// The raw events of a capture's run. Arrival is the due time; tokens are visible when their step ends.
///
/// # Errors
/// [`InputError`] when token times are missing or an instant is not a time.
pub fn record_of(capture: &Capture) -> Result<RunRecord, InputError> {
    let instant = |seconds: f64| {
        SimTime::try_from_secs_f64(seconds).map_err(|e| InputError::in_file(&capture.folder, e.to_string()))
    };
    let optional = |seconds: Option<f64>| seconds.map(instant).transpose();
    let trace = capture.trace()?;
    let times = if capture.has_token_times() {
        capture.token_times()?
    } else {
        // Without steps either, a client's first and last token are all that is known.
        times_from_steps(capture)
    };
    let mut requests = Vec::with_capacity(capture.requests.len());
    for ((row, offered), times) in capture.requests.iter().zip(&trace.requests).zip(times) {
        // What a client reports has ended, at the cap or before.
        let complete = row.output_tokens == row.requested_output_tokens || !capture.has_steps();
        requests.push(RequestRecord {
            scheduled: offered.arrival,
            sent: offered.arrival,
            enqueued: optional(row.add_end_s)?,
            first_scheduled: optional(row.first_scheduled_s)?,
            first_token: optional(row.first_token_s)?,
            last_token: optional(row.last_token_s)?,
            input_tokens: row.input_tokens,
            cached_tokens: row.cached_input_tokens,
            output_tokens: row.output_tokens,
            preemptions: row.preemptions,
            status: if complete {
                Status::Completed
            } else {
                Status::Unfinished
            },
            finish_reason: complete.then_some(FinishReason::Length),
            replica: 0,
            priority: row.priority,
            tenant: 0,
            tokens: TokenLog::Times(times.into_iter().map(instant).collect::<Result<_, _>>()?),
        });
    }
    let knobs = &capture.manifest.engine_effective;
    let mut replica = ReplicaRecord {
        usable_blocks: knobs.num_gpu_blocks.saturating_sub(1),
        free_blocks_at_end: knobs.num_gpu_blocks.saturating_sub(1),
        ..ReplicaRecord::default()
    };
    for step in capture.steps.iter().filter(|s| !s.batch.is_empty()) {
        replica.step_starts.push(instant(step.t_start_s)?);
        replica.step_ends.push(instant(step.t_end_s)?);
        replica.running.push(step.running);
        replica.waiting.push(step.waiting);
        replica.free_blocks.push(step.free_blocks);
        replica.preemptions += u64::from(step.preempted);
    }
    let end = instant(capture.manifest.duration_s)?;
    Ok(RunRecord {
        requests,
        replicas: vec![replica],
        end,
    })
}

/// What held an imported run back: the client's file beside the engine's own steps if the capture has them, else
/// beside scrapes (on the client's clock), else alone. `stated` is what the user said of the server; the knobs of an
/// engine's own capture are facts, those of any other may have been assumed and are not used.
///
/// # Errors
/// As [`record_of`].
pub fn diagnose(
    run: &ClientRun,
    capture: &Capture,
    scrapes: Option<&[Scrape]>,
    stated: &Limits,
) -> Result<Diagnosis, InputError> {
    let mut limits = Limits {
        concurrency: run.concurrency,
        ..*stated
    };
    if capture.has_steps() {
        let knobs = &capture.manifest.engine_effective;
        limits.max_num_seqs = Some(knobs.max_num_seqs);
        limits.block_size = Some(knobs.block_size);
        limits.first_chunk = knobs
            .enable_chunked_prefill
            .then_some(knobs.max_num_batched_tokens);
        let t0 = match run.clock {
            Clock::Unix => capture.manifest.t0_unix_s,
            Clock::Monotonic => capture.manifest.t0_monotonic_s,
            Clock::Own => None,
        };
        let record = record_of(capture)?;
        let server = ServerView::of_record(&record, &limits);
        let client = match t0 {
            Some(t0) => ClientView::of_client(run, run.t0_s - t0),
            None => ClientView::of_record(&record),
        };
        return Ok(Diagnosis::of(&client, server.as_ref(), &Window::WHOLE, &limits));
    }
    let prompts: Vec<u32> = run.completed().filter_map(|r| r.input_tokens).collect();
    let tokens: u64 = prompts.iter().map(|&n| u64::from(n)).sum();
    let mean_prompt = (!prompts.is_empty()).then(|| tokens as f64 / prompts.len() as f64);
    let server = scrapes.map(|s| ServerView::of_scrapes(s, mean_prompt, &limits));
    let client = ClientView::of_client(run, 0.0);
    Ok(Diagnosis::of(&client, server.as_ref(), &Window::WHOLE, &limits))
}

/// How a capture's run is to be summarised: what arrives in its warm-up is in no statistic.
///
/// # Errors
/// [`InputError`] when the warm-up is not a span.
pub fn summary_options(capture: &Capture) -> Result<SummaryOptions, InputError> {
    let warmup = SimDuration::try_from_secs_f64(capture.manifest.warmup_s)
        .map_err(|e| InputError::in_file(&capture.folder, e.to_string()).at("warmup_s"))?;
    Ok(SummaryOptions {
        window: Window::after(warmup, None),
        boundary: match capture.manifest.clock {
            ClockSide::Engine => Boundary::Engine,
            ClockSide::Client => Boundary::Serving,
        },
        ..SummaryOptions::default()
    })
}

/// Token times by the steps alone: a request yields a token at the end of each step whose row reaches the last
/// of its known tokens (rule S40). Captures have no speculation.
fn times_from_steps(capture: &Capture) -> Vec<Vec<f64>> {
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); capture.requests.len()];
    for step in &capture.steps {
        for row in &step.work {
            let id = row.id as usize;
            let (Some(request), Some(times)) = (capture.requests.get(id), times.get_mut(id)) else {
                continue;
            };
            if row.computed + row.tokens >= request.input_tokens + times.len() as u32 {
                times.push(step.t_end_s);
            }
        }
    }
    times
}
