//! inference-perf `per_request_lifecycle_metrics.json` (rule M34): seconds on the monotonic clock.
//!
//! `output_tokens` is the client's own count, by which its TPOT divides; the server's usage is taken as the
//! length where it was sent. A token with empty text has no time at all.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{ClientRequest, ClientRun, Clock, Tool, numbers, parse, sibling};
use crate::input::{InputError, read_text};

#[derive(Deserialize)]
struct Record {
    start_time: f64,
    end_time: f64,
    response: Option<String>,
    info: Option<Info>,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Failure {
    #[serde(default)]
    error_type: String,
    #[serde(default)]
    error_msg: String,
}

#[derive(Deserialize)]
struct Info {
    request_metrics: Option<RequestMetrics>,
    response_metrics: Option<ResponseMetrics>,
    input_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct RequestMetrics {
    text: Option<TextMetrics>,
}

#[derive(Deserialize)]
struct TextMetrics {
    input_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct ResponseMetrics {
    output_tokens: Option<u32>,
    server_usage: Option<Usage>,
    #[serde(default)]
    output_token_times: Vec<f64>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
}

pub(super) fn read(path: &Path, text: &str) -> Result<Vec<ClientRun>, InputError> {
    let records: Vec<Record> = parse(path, text)?;
    let mut run = ClientRun {
        clock: Clock::Monotonic,
        requests: records.iter().map(request).collect(),
        ..ClientRun::new(Tool::InferencePerf)
    };
    let recounted = run
        .requests
        .iter()
        .filter(|r| r.completed() && r.output_tokens != r.counted_tokens)
        .count();
    if recounted > 0 {
        run.notes.push(format!(
            "{recounted} answers were counted differently by client and server; the server's count is taken"
        ));
    }
    if let Some(summary) = sibling(path, "summary_lifecycle_metrics.json") {
        let value: Value = parse(&summary, &read_text(&summary)?)?;
        run.printed = numbers(&value, |name| {
            name.starts_with("successes.latency.") || name.starts_with("successes.throughput.")
        });
    }
    Ok(vec![run.settle(path)?])
}

fn request(r: &Record) -> ClientRequest {
    let response = r.info.as_ref().and_then(|i| i.response_metrics.as_ref());
    let usage = response.and_then(|m| m.server_usage.as_ref());
    let text = r
        .info
        .as_ref()
        .and_then(|i| i.request_metrics.as_ref()?.text.as_ref()?.input_tokens);
    let times = response.map(|m| m.output_token_times.clone()).unwrap_or_default();
    let counted = response.and_then(|m| m.output_tokens).unwrap_or(0);
    let error = r
        .error
        .as_ref()
        .map(|e| format!("{} {}", e.error_type, e.error_msg).trim().to_owned());
    ClientRequest {
        id: r.response.as_deref().and_then(response_id),
        sent_s: r.start_time,
        first_s: times.first().copied(),
        last_s: times.last().copied(),
        end_s: Some(r.end_time),
        input_tokens: usage
            .and_then(|u| u.prompt_tokens)
            .or(text)
            .or_else(|| r.info.as_ref().and_then(|i| i.input_tokens)),
        output_tokens: usage.and_then(|u| u.completion_tokens).unwrap_or(counted),
        counted_tokens: counted,
        error: error.or_else(|| times.is_empty().then(|| "no output".to_owned())),
        chunks_s: times,
        ..ClientRequest::default()
    }
}

/// The id that the server gave: the first in its events.
fn response_id(response: &str) -> Option<String> {
    let (_, rest) = response.split_once("\"id\":")?;
    let rest = rest.trim_start().strip_prefix('"')?;
    rest.split_once('"').map(|(id, _)| id.to_owned())
}
