//! genai-perf `profile_export.json`, in Perf Analyzer's format: unix nanoseconds and raw events.
//!
//! The last events are the usage chunk and `[DONE]`; a chunk counts when it brings text. The file holds no prompt
//! lengths unless the server sent its usage.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{ClientRequest, ClientRun, Clock, Tool, numbers, parse, sibling};
use crate::input::{InputError, read_text};

#[derive(Deserialize)]
struct Document {
    experiments: Vec<Experiment>,
}

#[derive(Deserialize)]
struct Experiment {
    #[serde(default)]
    experiment: Setting,
    requests: Vec<Request>,
}

#[derive(Deserialize, Default)]
struct Setting {
    #[serde(default)]
    mode: String,
    value: Option<f64>,
}

#[derive(Deserialize)]
struct Request {
    timestamp: u64,
    #[serde(default)]
    response_timestamps: Vec<u64>,
    #[serde(default)]
    response_outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Output {
    #[serde(default)]
    response: String,
}

/// What the events of one answer say.
#[derive(Default)]
struct Answer {
    id: Option<String>,
    chunks: Vec<u64>,
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
}

pub(super) fn read(path: &Path, text: &str) -> Result<Vec<ClientRun>, InputError> {
    let document: Document = parse(path, text)?;
    let several = document.experiments.len() > 1;
    let printed = match sibling(path, "profile_export_genai_perf.json") {
        Some(summary) if !several => {
            let value: Value = parse(&summary, &read_text(&summary)?)?;
            numbers(&value, |name| {
                name.split('.').count() == 2 && !name.starts_with("input_config")
            })
        }
        _ => Vec::new(),
    };
    document
        .experiments
        .iter()
        .zip(0..)
        .map(|(experiment, index)| {
            let mut run = one(experiment).settle(path)?;
            run.printed.clone_from(&printed);
            run.name = several.then(|| format!("experiment-{index}"));
            Ok(run)
        })
        .collect()
}

fn one(experiment: &Experiment) -> ClientRun {
    let first = experiment.requests.iter().map(|r| r.timestamp).min().unwrap_or(0);
    let since = |ns: u64| (i128::from(ns) - i128::from(first)) as f64 / 1e9;
    let mut run = ClientRun {
        clock: Clock::Unix,
        t0_s: first as f64 / 1e9,
        ..ClientRun::new(Tool::GenaiPerf)
    };
    let mut uncounted = 0;
    for request in &experiment.requests {
        let answer = answer_of(request);
        let chunks_s: Vec<f64> = answer.chunks.iter().map(|&t| since(t)).collect();
        uncounted += usize::from(answer.completion_tokens.is_none());
        let tokens = answer.completion_tokens.unwrap_or(chunks_s.len() as u32);
        run.requests.push(ClientRequest {
            id: answer.id,
            sent_s: since(request.timestamp),
            first_s: chunks_s.first().copied(),
            last_s: chunks_s.last().copied(),
            end_s: request.response_timestamps.last().map(|&t| since(t)),
            input_tokens: answer.prompt_tokens,
            output_tokens: tokens,
            counted_tokens: tokens,
            error: chunks_s.is_empty().then(|| "no output".to_owned()),
            chunks_s,
            ..ClientRequest::default()
        });
    }
    if uncounted > 0 {
        run.notes.push(format!(
            "{uncounted} answers carry no usage: their chunks with text are counted as tokens"
        ));
    }
    run.notes.push(
        "genai-perf's output length, ITL and token throughput are by its own tokenizer, whose counts are not in the \
         file: they are not recomputed"
            .into(),
    );
    if experiment.experiment.mode == "concurrency" {
        run.concurrency = experiment.experiment.value.map(|v| v as u32).filter(|&n| n > 0);
    }
    run
}

fn answer_of(request: &Request) -> Answer {
    let mut answer = Answer::default();
    for (&at, output) in request.response_timestamps.iter().zip(&request.response_outputs) {
        let mut has_text = false;
        // One receipt may hold several events.
        for event in output
            .response
            .split("data:")
            .map(str::trim)
            .filter(|e| e.starts_with('{'))
        {
            let Ok(event) = serde_json::from_str::<Value>(event) else {
                continue;
            };
            if answer.id.is_none() {
                answer.id = event.get("id").and_then(Value::as_str).map(str::to_owned);
            }
            let usage = |key: &str| u32::try_from(event.get("usage")?.get(key)?.as_u64()?).ok();
            answer.prompt_tokens = usage("prompt_tokens").or(answer.prompt_tokens);
            answer.completion_tokens = usage("completion_tokens").or(answer.completion_tokens);
            let choice = event.get("choices").and_then(|c| c.get(0));
            let text = choice.and_then(|c| c.get("text").or_else(|| c.get("delta")?.get("content")));
            has_text |= text.and_then(Value::as_str).is_some_and(|t| !t.is_empty());
        }
        if has_text {
            answer.chunks.push(at);
        }
    }
    answer
}
