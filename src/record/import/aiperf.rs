//! aiperf `profile_export.jsonl` (rule M31): unix nanoseconds and milliseconds.
//!
//! Output lengths are the client's own unless it was run with `--use-server-token-count`; the server's count is
//! taken where the record has it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{ClientRequest, ClientRun, Clock, Tool, numbers, sibling};
use crate::input::{InputError, read_text};

#[derive(Deserialize)]
struct Record {
    metadata: Metadata,
    #[serde(default)]
    metrics: BTreeMap<String, Metric>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Metadata {
    x_request_id: Option<String>,
    credit_issued_ns: Option<u64>,
    request_start_ns: u64,
    request_end_ns: Option<u64>,
    benchmark_phase: Option<String>,
    #[serde(default)]
    was_cancelled: bool,
}

#[derive(Deserialize)]
struct Metric {
    value: Value,
    #[serde(default)]
    unit: String,
}

pub(super) fn read(path: &Path, text: &str) -> Result<Vec<ClientRun>, InputError> {
    let mut records = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let mut json = serde_json::Deserializer::from_str(line);
        let record: Record = serde_path_to_error::deserialize(&mut json).map_err(|e| {
            InputError::in_file(path, format!("cannot be used ({})", e.inner()))
                .at(format!("line {}, {}", index + 1, e.path()))
                .allowed("a record of aiperf's profile_export.jsonl; the file may have been cut off")
        })?;
        records.push((index + 1, record));
    }
    let mut run = ClientRun {
        clock: Clock::Unix,
        ..ClientRun::new(Tool::Aiperf)
    };
    let warmups = records
        .iter()
        .filter(|(_, r)| r.metadata.benchmark_phase.as_deref() == Some("warmup"))
        .count();
    if warmups > 0 {
        run.notes
            .push(format!("{warmups} requests of the warm-up phase are left out"));
    }
    records.retain(|(_, r)| r.metadata.benchmark_phase.as_deref() != Some("warmup"));
    let Some(first) = records.iter().map(|(_, r)| r.metadata.request_start_ns).min() else {
        return Err(InputError::in_file(path, "holds no request").allowed("at least one record"));
    };
    run.t0_s = first as f64 / 1e9;
    let mut recounted = 0;
    for (line, record) in &records {
        let r = request(path, *line, record, first)?;
        recounted += usize::from(r.completed() && r.output_tokens != r.counted_tokens);
        run.requests.push(r);
    }
    if recounted > 0 {
        run.notes.push(format!(
            "{recounted} answers were counted differently by client and server; the server's count is taken"
        ));
    }
    if let Some(summary) = sibling(path, "profile_export_aiperf.json") {
        let value: Value = super::parse(&summary, &read_text(&summary)?)?;
        run.duration_s = span_s(&value);
        run.printed = numbers(&value, |name| {
            name.split('.').count() == 2 && !name.starts_with("input_config")
        });
    }
    Ok(vec![run.settle(path)?])
}

fn request(path: &Path, line: usize, record: &Record, first: u64) -> Result<ClientRequest, InputError> {
    let m = &record.metadata;
    let since = |ns: u64| ns as f64 / 1e9 - first as f64 / 1e9;
    let exact = |ns: u64| (i128::from(ns) - i128::from(first)) as f64 / 1e9;
    let sent_s = exact(m.request_start_ns);
    let spans = |name: &str| -> Result<Vec<f64>, InputError> {
        let Some(metric) = record.metrics.get(name) else {
            return Ok(Vec::new());
        };
        let scale = match metric.unit.as_str() {
            "ms" | "" => 1e-3,
            "s" | "sec" | "seconds" => 1.0,
            "us" => 1e-6,
            "ns" => 1e-9,
            other => {
                return Err(InputError::in_file(path, format!("{name} is in '{other}'"))
                    .at(format!("line {line}"))
                    .allowed("ms, s, us or ns"));
            }
        };
        let values = match &metric.value {
            Value::Array(values) => values.iter().filter_map(Value::as_f64).collect(),
            value => value.as_f64().into_iter().collect::<Vec<_>>(),
        };
        Ok(values.into_iter().map(|v| v * scale).collect())
    };
    let span = |name: &str| spans(name).map(|v| v.first().copied());
    let count = |name: &str| {
        let value = record.metrics.get(name)?.value.as_f64()?;
        (0.0..=1e9).contains(&value).then_some(value as u32)
    };
    let (ttft, latency) = (span("time_to_first_token")?, span("request_latency")?);
    let mut chunks_s: Vec<f64> = ttft.map(|t| sent_s + t).into_iter().collect();
    for gap in spans("inter_chunk_latency")? {
        chunks_s.extend(chunks_s.last().map(|last| last + gap));
    }
    let counted = count("output_sequence_length").unwrap_or(0);
    let error = match &record.error {
        Some(Value::Null) | None => m.was_cancelled.then(|| "cancelled".to_owned()),
        Some(error) => Some(
            error
                .get("message")
                .and_then(Value::as_str)
                .unwrap_or("error")
                .to_owned(),
        ),
    };
    Ok(ClientRequest {
        id: m.x_request_id.clone(),
        due_s: m.credit_issued_ns.map(since),
        sent_s,
        first_s: ttft.map(|t| sent_s + t),
        last_s: latency.map(|l| sent_s + l),
        end_s: m.request_end_ns.map(exact),
        chunks_s,
        input_tokens: count("usage_prompt_tokens").or_else(|| count("input_sequence_length")),
        output_tokens: count("usage_completion_tokens").unwrap_or(counted),
        counted_tokens: counted,
        error,
        ..ClientRequest::default()
    })
}

/// From `start_time` to `end_time`, by which aiperf divides its throughputs. Both are local times of one day or
/// of two that follow each other.
fn span_s(summary: &Value) -> Option<f64> {
    let clock = |key: &str| {
        let text = summary.get(key)?.as_str()?;
        let (_, time) = text.split_once('T')?;
        let time = time.trim_end_matches('Z');
        let mut parts = time.split(':').map(str::parse::<f64>);
        let (h, m, s) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
        Some(h * 3600.0 + m * 60.0 + s)
    };
    let span = clock("end_time")? - clock("start_time")?;
    Some(if span < 0.0 { span + 86_400.0 } else { span }).filter(|s| *s > 0.0)
}
