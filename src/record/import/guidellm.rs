//! guidellm `benchmarks.json` (rule M30). Unix seconds; latencies start at `request_start`.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{ClientRequest, ClientRun, Clock, Tool, numbers, parse};
use crate::input::InputError;

#[derive(Deserialize)]
struct Document {
    benchmarks: Vec<Benchmark>,
}

#[derive(Deserialize)]
struct Benchmark {
    #[serde(default)]
    config: Value,
    #[serde(default)]
    metrics: Value,
    requests: Requests,
}

#[derive(Deserialize)]
struct Requests {
    successful: Vec<Request>,
    #[serde(default)]
    incomplete: Vec<Request>,
    #[serde(default)]
    errored: Vec<Request>,
}

#[derive(Deserialize)]
struct Request {
    response_id: Option<String>,
    info: Info,
    prompt_tokens: Option<u32>,
    output_tokens: Option<u32>,
    cached_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Info {
    timings: Timings,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Timings {
    targeted_start: Option<f64>,
    request_start: Option<f64>,
    first_token_iteration: Option<f64>,
    last_token_iteration: Option<f64>,
    request_end: Option<f64>,
}

pub(super) fn read(path: &Path, text: &str) -> Result<Vec<ClientRun>, InputError> {
    let document: Document = parse(path, text)?;
    if document.benchmarks.is_empty() {
        return Err(InputError::in_file(path, "holds no benchmark").at("benchmarks"));
    }
    let several = document.benchmarks.len() > 1;
    document
        .benchmarks
        .iter()
        .zip(0..)
        .map(|(benchmark, index)| {
            let mut run = one(benchmark).settle(path)?;
            run.name = several.then(|| name_of(&benchmark.config, index));
            Ok(run)
        })
        .collect()
}

fn one(benchmark: &Benchmark) -> ClientRun {
    let Requests {
        successful,
        incomplete,
        errored,
    } = &benchmark.requests;
    let failed = |why: &'static str| {
        move |r: &Request| {
            let told = r
                .info
                .error
                .as_ref()
                .and_then(Value::as_str)
                .unwrap_or(why)
                .to_owned();
            request(r).map(|r| ClientRequest {
                error: Some(told),
                ..r
            })
        }
    };
    let requests = successful
        .iter()
        .filter_map(request)
        .chain(incomplete.iter().filter_map(failed("incomplete")))
        .chain(errored.iter().filter_map(failed("errored")))
        .collect();
    ClientRun {
        requests,
        clock: Clock::Unix,
        concurrency: streams(&benchmark.config),
        printed: numbers(&benchmark.metrics, |name| name.contains(".successful.")),
        ..ClientRun::new(Tool::Guidellm)
    }
}

/// A request that was sent; guidellm also lists those that it never came to.
fn request(r: &Request) -> Option<ClientRequest> {
    let t = &r.info.timings;
    let tokens = r.output_tokens.unwrap_or(0);
    Some(ClientRequest {
        id: r.response_id.clone(),
        due_s: t.targeted_start,
        sent_s: t.request_start?,
        first_s: t.first_token_iteration,
        last_s: t.last_token_iteration,
        end_s: t.request_end,
        input_tokens: r.prompt_tokens,
        output_tokens: tokens,
        counted_tokens: tokens,
        cached_tokens: r.cached_tokens,
        ..ClientRequest::default()
    })
}

/// The strategy with its rate or streams, as a folder's name.
fn name_of(config: &Value, index: usize) -> String {
    let strategy = config.get("strategy").unwrap_or(&Value::Null);
    let kind = ["kind", "type_", "type"]
        .iter()
        .find_map(|k| strategy.get(k)?.as_str());
    let rate = ["rate", "streams", "max_concurrency"]
        .iter()
        .find_map(|k| strategy.get(k)?.as_f64());
    match (kind, rate) {
        (Some(kind), Some(rate)) => format!("{index}-{kind}-{rate}"),
        (Some(kind), None) => format!("{index}-{kind}"),
        _ => format!("benchmark-{index}"),
    }
}

/// Streams of the concurrent and synchronous strategies, which are closed loops.
fn streams(config: &Value) -> Option<u32> {
    let strategy = config.get("strategy")?;
    let kind = ["kind", "type_", "type"]
        .iter()
        .find_map(|k| strategy.get(k)?.as_str())?;
    match kind {
        "synchronous" => Some(1),
        "concurrent" => u32::try_from(strategy.get("streams")?.as_u64()?).ok(),
        _ => None,
    }
}
