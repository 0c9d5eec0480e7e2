//! `vllm bench serve --save-result --save-detailed` (rules M12 to M19).
//!
//! Per-request arrays are in seconds. TTFT ends at the first chunk with a choice; with the chat endpoint that is
//! the role chunk, right before the first token's.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{ClientRequest, ClientRun, Clock, Tool, numbers, parse};
use crate::input::InputError;

#[derive(Deserialize)]
struct Result_ {
    endpoint_type: Option<String>,
    backend: Option<String>,
    max_concurrency: Option<u32>,
    request_rate: Option<Value>,
    duration: Option<f64>,
    input_lens: Vec<u32>,
    output_lens: Vec<u32>,
    ttfts: Vec<f64>,
    itls: Vec<Vec<f64>>,
    start_times: Option<Vec<f64>>,
    latencies: Option<Vec<f64>>,
    queue_times: Option<Vec<f64>>,
    errors: Option<Vec<String>>,
}

pub(super) fn read(path: &Path, text: &str) -> Result<Vec<ClientRun>, InputError> {
    let document: Value = parse(path, text)?;
    // A sweep's summary.json is a list of whole results.
    match document {
        Value::Array(results) => results
            .into_iter()
            .zip(0..)
            .map(|(result, index)| {
                let run = one(path, result).map_err(|e| {
                    let inner = e.place.clone().unwrap_or_default();
                    e.at(format!("result {index} {inner}"))
                })?;
                Ok(ClientRun {
                    name: Some(format!("run-{index}")),
                    ..run
                })
            })
            .collect(),
        one_result => Ok(vec![one(path, one_result)?]),
    }
}

fn one(path: &Path, document: Value) -> Result<ClientRun, InputError> {
    let printed = numbers(&document, is_summary);
    let result: Result_ = serde_path_to_error::deserialize(document).map_err(|e| {
        InputError::in_file(path, format!("cannot be used ({})", e.inner()))
            .at_field(e.path())
            .allowed("a result of vllm bench serve with --save-detailed")
    })?;
    let n = result.input_lens.len();
    check_lengths(path, &result, n)?;
    let starts = result.start_times.as_ref().ok_or_else(|| {
        InputError::in_file(path, "has no send times")
            .at("start_times")
            .allowed("a vLLM release whose --save-detailed writes start_times")
    })?;
    let chat = [&result.endpoint_type, &result.backend]
        .into_iter()
        .flatten()
        .any(|name| name.contains("chat"));
    let requests = (0..n)
        .map(|i| {
            let sent_s = starts[i];
            let error = result
                .errors
                .as_ref()
                .map(|e| e[i].clone())
                .filter(|e| !e.is_empty());
            let served = error.is_none() && result.output_lens[i] > 0;
            let latency = match &result.latencies {
                Some(latencies) => latencies[i],
                None => result.ttfts[i] + result.itls[i].iter().sum::<f64>(),
            };
            let mut chunks_s = vec![sent_s + result.ttfts[i]];
            for gap in &result.itls[i] {
                chunks_s.push(chunks_s[chunks_s.len() - 1] + gap);
            }
            let output_tokens = result.output_lens[i];
            ClientRequest {
                sent_s,
                first_s: served.then_some(sent_s + result.ttfts[i]),
                last_s: served.then_some(sent_s + latency),
                leading_role_chunk: chat && chunks_s.len() > output_tokens as usize,
                chunks_s: if served { chunks_s } else { Vec::new() },
                queued_s: result.queue_times.as_ref().map(|q| q[i]),
                input_tokens: Some(result.input_lens[i]),
                output_tokens,
                counted_tokens: output_tokens,
                error: error.or_else(|| (!served).then(|| "no output".to_owned())),
                ..ClientRequest::default()
            }
        })
        .collect();
    // With a finite rate the limit only caps what the arrivals ask for.
    let unlimited = matches!(&result.request_rate, Some(Value::String(rate)) if rate == "inf");
    let mut run = ClientRun {
        requests,
        clock: Clock::Monotonic,
        duration_s: result.duration,
        concurrency: result.max_concurrency.filter(|_| unlimited),
        printed,
        ..ClientRun::new(Tool::VllmBench)
    };
    if result.max_concurrency.is_some() && !unlimited {
        run.notes.push(
            "sent at a rate with a limit on requests in flight: arrivals are taken as they were sent".into(),
        );
    }
    run.settle(path)
}

/// All arrays are by request, so all are as long.
fn check_lengths(path: &Path, r: &Result_, n: usize) -> Result<(), InputError> {
    for (name, length) in [
        ("output_lens", Some(r.output_lens.len())),
        ("ttfts", Some(r.ttfts.len())),
        ("itls", Some(r.itls.len())),
        ("start_times", r.start_times.as_ref().map(Vec::len)),
        ("latencies", r.latencies.as_ref().map(Vec::len)),
        ("queue_times", r.queue_times.as_ref().map(Vec::len)),
        ("errors", r.errors.as_ref().map(Vec::len)),
    ] {
        if length.is_some_and(|l| l != n) {
            return Err(InputError::in_file(
                path,
                format!("has {} entries for {n} requests", length.unwrap_or_default()),
            )
            .at(name)
            .allowed("one entry a request in every array"));
        }
    }
    if r.itls.iter().flatten().any(|gap| *gap < 0.0) {
        return Err(InputError::in_file(path, "a gap is negative").at("itls"));
    }
    Ok(())
}

fn is_summary(name: &str) -> bool {
    let statistic = ["mean_", "median_", "std_", "p"]
        .iter()
        .any(|p| name.starts_with(p));
    (statistic && name.ends_with("_ms"))
        || [
            "completed",
            "duration",
            "total_input_tokens",
            "total_output_tokens",
            "request_throughput",
            "output_throughput",
            "total_token_throughput",
            "max_output_tokens_per_s",
            "max_concurrent_requests",
        ]
        .contains(&name)
}
