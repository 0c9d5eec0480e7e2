//! Captures out of what load generators wrote.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value, json};

use super::assume::KNOBS;
use crate::input::{InputError, first_existing, read_text, write_atomic};
use crate::metric::diagnose::Limits;
use crate::record::import::{ClientRequest, ClientRun, Clock};
use crate::yaml;

/// A client's send lies before the engine's receipt; their clocks agree to this.
const CLOCK_SLACK_S: f64 = 2e-3;
/// How far two senders may have overtaken each other when requests are joined by their order.
const OVERTAKING: usize = 32;

/// What the user says of the server: keys of a manifest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerFacts(Map<String, Value>);

impl ServerFacts {
    /// Takes the keys of a manifest or a list of knobs (YAML or JSON).
    ///
    /// # Errors
    /// [`InputError`] when it cannot be read or is no map.
    pub fn read(&mut self, path: &Path) -> Result<(), InputError> {
        let origin = path.display().to_string();
        let Value::Object(keys) = yaml::parse_value(&read_text(path)?, &origin)? else {
            return Err(InputError::in_file(path, "is no map of keys and values")
                .allowed("a manifest.json, or knobs such as 'max_num_seqs: 128'"));
        };
        // Of another run only what describes the server is taken, not what was counted or timed.
        let counted = [
            "steps",
            "requests",
            "tokens_out",
            "preemptions",
            "duration_s",
            "name",
            "mode",
            "clock",
        ];
        for (key, value) in keys {
            if !counted.contains(&key.as_str()) {
                self.put(&key, value);
            }
        }
        Ok(())
    }

    /// Sets `key=value`, the value being YAML.
    ///
    /// # Errors
    /// [`InputError`] when there is no `=` or the value is no YAML.
    pub fn set(&mut self, text: &str) -> Result<(), InputError> {
        let origin = format!("--set {text}");
        let (key, value) = text.split_once('=').ok_or_else(|| {
            InputError::new(&origin, "there is no '='").allowed("write KEY=VALUE, such as max_num_seqs=128")
        })?;
        let mut parsed = yaml::parse_value(value.trim(), &origin)?;
        // A release looks like a number only when it has two parts.
        if key.trim() == "vllm" && !parsed.is_string() {
            parsed = Value::String(value.trim().to_owned());
        }
        self.put(key.trim(), parsed);
        Ok(())
    }

    /// The limits that they state; what is not among them stays unknown.
    pub fn limits(&self) -> Limits {
        let knob = |name: &str| {
            let at_top = self.0.get(name);
            let value = at_top.or_else(|| self.0.get("engine_effective")?.get(name))?;
            value.as_u64().and_then(|n| u32::try_from(n).ok())
        };
        Limits {
            max_num_seqs: knob("max_num_seqs"),
            replicas: knob("data_parallel_size").unwrap_or(1),
            usable_blocks: knob("usable_blocks").or(knob("num_gpu_blocks").map(|n| n.saturating_sub(1))),
            block_size: knob("block_size"),
            first_chunk: knob("max_num_batched_tokens"),
            ..Limits::default()
        }
    }

    fn put(&mut self, key: &str, value: Value) {
        // A format or a degree may stand in either place; at the top it is seen first.
        let at_top = [
            "dtype",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
        ];
        if KNOBS.contains(&key) && !at_top.contains(&key) {
            let knobs = self
                .0
                .entry("engine_effective")
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(knobs) = knobs {
                knobs.insert(key.to_owned(), value);
            }
        } else {
            self.0.insert(key.to_owned(), value);
        }
    }
}

/// Writes a run as a capture without steps: manifest, requests, and token times where every answer has them.
///
/// # Errors
/// [`InputError`] when nothing was served; any I/O error is one about the folder.
pub fn write_capture(
    run: &ClientRun,
    name: &str,
    facts: &ServerFacts,
    warmup_s: f64,
    folder: &Path,
) -> Result<(), InputError> {
    let served: Vec<&ClientRequest> = run.completed().collect();
    if served.is_empty() {
        return Err(InputError::in_file(folder, "no request of the run was served")
            .allowed("a run with at least one answer"));
    }
    let io_error = |e: io::Error| InputError::in_file(folder, format!("cannot be written ({e})"));
    let times: Vec<Vec<f64>> = served.iter().map(|r| r.token_times()).collect();
    let whole = times
        .iter()
        .zip(&served)
        .all(|(t, r)| t.len() == r.output_tokens as usize);
    write_atomic(&folder.join("requests.csv"), |w| write_requests(w, &served)).map_err(io_error)?;
    let tokens = folder.join("tokens.jsonl.gz");
    if whole {
        write_atomic(&tokens, |w| {
            let mut gz = GzEncoder::new(w, Compression::default());
            for (id, t) in times.iter().enumerate() {
                let t: Vec<f64> = t.iter().map(|t| (t * 1e9).round() / 1e9).collect();
                writeln!(gz, "{}", json!({"id": id, "t": t}))?;
            }
            gz.finish().map(drop)
        })
        .map_err(io_error)?;
    } else if tokens.is_file() {
        // Left from another run under --overwrite, it would be read as this one's.
        std::fs::remove_file(&tokens).map_err(io_error)?;
    }
    let manifest = manifest(run, &served, name, facts, warmup_s, whole);
    write_atomic(&folder.join("manifest.json"), |w| {
        writeln!(w, "{}", serde_json::to_string_pretty(&manifest)?)
    })
    .map_err(io_error)
}

fn manifest(
    run: &ClientRun,
    served: &[&ClientRequest],
    name: &str,
    facts: &ServerFacts,
    warmup_s: f64,
    has_times: bool,
) -> Value {
    let mut notes = run.notes.clone();
    let failed = run.requests.len() - served.len();
    if failed > 0 {
        notes.push(format!(
            "{failed} of {} requests failed and are left out, as if they had never loaded the engine",
            run.requests.len()
        ));
    }
    if !has_times {
        notes.push("no token times in the file: gaps between tokens are not known".into());
    }
    let mut manifest = Map::new();
    manifest.insert("name".into(), name.into());
    manifest.insert("imported_from".into(), run.tool.name().into());
    manifest.insert("clock".into(), "client".into());
    manifest.insert("requests".into(), served.len().into());
    manifest.insert("warmup_s".into(), warmup_s.into());
    if let Some(concurrency) = run.concurrency {
        let load = json!({"model": "closed-loop", "concurrency": concurrency});
        manifest.insert("load".into(), load);
    }
    for (key, value) in &facts.0 {
        manifest.insert(key.clone(), value.clone());
    }
    // The instant of this capture's time 0, not that of the capture whose facts were taken.
    for key in ["t0_unix_s", "t0_perf_counter_s"] {
        manifest.shift_remove(key);
    }
    match run.clock {
        Clock::Unix => drop(manifest.insert("t0_unix_s".into(), run.t0_s.into())),
        Clock::Monotonic => drop(manifest.insert("t0_perf_counter_s".into(), run.t0_s.into())),
        Clock::Own => {}
    }
    manifest.insert("assumptions".into(), notes.into());
    Value::Object(manifest)
}

fn write_requests(w: &mut dyn Write, served: &[&ClientRequest]) -> io::Result<()> {
    let any = |has: fn(&ClientRequest) -> bool| served.iter().any(|r| has(r));
    let mut header = vec![
        "id",
        "arrival_s",
        "first_token_s",
        "last_token_s",
        "input_tokens",
        "output_tokens",
    ];
    let (named, capped) = (any(|r| r.id.is_some()), any(|r| r.requested_tokens.is_some()));
    let (cached, grouped) = (
        any(|r| r.cached_tokens.is_some()),
        any(|r| r.prefix_group.is_some()),
    );
    let ranked = any(|r| r.priority != 0);
    for (wanted, columns) in [
        (named, &["request_id"][..]),
        (capped, &["max_tokens"]),
        (cached, &["cached_input_tokens"]),
        (grouped, &["prefix_group", "prefix_tokens"]),
        (ranked, &["priority"]),
    ] {
        header.extend(columns.iter().filter(|_| wanted));
    }
    let mut csv = csv::Writer::from_writer(w);
    csv.write_record(&header)?;
    for (id, r) in served.iter().enumerate() {
        let times = r.token_times();
        let time = |t: Option<f64>| t.map_or(String::new(), |t| format!("{t:.9}"));
        let mut row = vec![
            id.to_string(),
            time(Some(r.sent_s)),
            time(times.first().copied().or(r.first_token_s())),
            time(times.last().copied().or(r.last_s)),
            r.input_tokens.unwrap_or(0).to_string(),
            r.output_tokens.to_string(),
        ];
        if named {
            row.push(r.id.clone().unwrap_or_default());
        }
        if capped {
            row.push(
                r.requested_tokens
                    .unwrap_or(r.output_tokens)
                    .max(r.output_tokens)
                    .to_string(),
            );
        }
        if cached {
            row.push(r.cached_tokens.unwrap_or(0).to_string());
        }
        if grouped {
            row.push(r.prefix_group.map_or("-1".to_owned(), |g| g.to_string()));
            row.push(r.prefix_tokens.to_string());
        }
        if ranked {
            row.push(r.priority.to_string());
        }
        csv.write_record(&row)?;
    }
    csv.flush()
}

/// A row of the engine's own table, as far as it is needed to find the client's request.
struct EngineRow {
    request_id: String,
    received_s: f64,
    input_tokens: u32,
    output_tokens: u32,
}

/// The engine's capture in `engine` with what the client saw of the same requests beside it, as a capture with
/// both clocks in `folder`. Requests are joined by id where the client knows it, else by order and lengths.
/// Returns how many were joined.
///
/// # Errors
/// [`InputError`] when the engine's capture tells no common clock, or too few requests are found in it.
pub fn write_joined(run: &mut ClientRun, engine: &Path, folder: &Path) -> Result<usize, InputError> {
    let manifest_path = engine.join("manifest.json");
    let manifest = yaml::parse_value(&read_text(&manifest_path)?, &manifest_path.display().to_string())?;
    let key = match run.clock {
        Clock::Unix => "t0_unix_s",
        Clock::Monotonic => "t0_perf_counter_s",
        Clock::Own => {
            return Err(
                InputError::in_file(engine, format!("{} writes no clock that it shares", run.tool))
                    .allowed("a tool's file with unix or monotonic times"),
            );
        }
    };
    let t0 = manifest.get(key).and_then(Value::as_f64).ok_or_else(|| {
        InputError::in_file(&manifest_path, format!("has no {key}"))
            .allowed("the instant of the capture's time 0 on the client's clock")
    })?;
    let offset = run.t0_s - t0;
    let table = first_existing(engine, &["requests.csv", "requests.csv.gz"])
        .ok_or_else(|| InputError::in_file(engine, "has no requests.csv"))?;
    let text = read_text(&table)?;
    let (header, records, rows) = engine_rows(&table, &text)?;
    let joined = join(run, &rows, offset);
    let found = joined.iter().flatten().count();
    let served = run.completed().count();
    if found * 10 < served * 9 {
        return Err(InputError::in_file(
            &table,
            format!("holds {found} of the {served} requests of the client"),
        )
        .allowed("the engine's record of the same run"));
    }
    for (row, &client) in rows.iter().zip(&joined) {
        if let Some(r) = client.and_then(|c| run.requests.get_mut(c)) {
            r.input_tokens = r.input_tokens.or(Some(row.input_tokens));
        }
    }
    let io_error = |e: io::Error| InputError::in_file(folder, format!("cannot be written ({e})"));
    write_atomic(&folder.join("requests.csv"), |w| {
        let mut csv = csv::Writer::from_writer(w);
        let ours = ["client_send_s", "client_first_token_s", "client_last_token_s"];
        csv.write_record(header.iter().chain(ours))?;
        for (record, client) in records.iter().zip(&joined) {
            let r = client.and_then(|c| run.requests.get(c));
            let time = |t: Option<f64>| t.map_or(String::new(), |t| format!("{:.9}", t + offset));
            let added = [
                time(r.map(|r| r.sent_s)),
                time(r.and_then(ClientRequest::first_token_s)),
                time(r.and_then(|r| r.last_s)),
            ];
            csv.write_record(record.iter().map(str::to_owned).chain(added))?;
        }
        csv.flush()
    })
    .map_err(io_error)?;
    for name in [
        "manifest.json",
        "steps.csv",
        "steps.csv.gz",
        "tokens.jsonl",
        "tokens.jsonl.gz",
    ] {
        let from = engine.join(name);
        if from.is_file() {
            let bytes = std::fs::read(&from)
                .map_err(|e| InputError::in_file(&from, format!("cannot be read ({e})")))?;
            write_atomic(&folder.join(name), |w| w.write_all(&bytes)).map_err(io_error)?;
        }
    }
    Ok(found)
}

type Rows = (csv::StringRecord, Vec<csv::StringRecord>, Vec<EngineRow>);

fn engine_rows(path: &Path, text: &str) -> Result<Rows, InputError> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let broken = |e: csv::Error| InputError::in_file(path, format!("is not a readable table ({e})"));
    let header = reader.headers().map_err(broken)?.clone();
    let place = |names: &[&str]| {
        names
            .iter()
            .find_map(|n| header.iter().position(|h| h == *n))
            .ok_or_else(|| {
                InputError::in_file(path, format!("has no column '{}'", names.join("' or '")))
                    .allowed("the requests of a live server's probe")
            })
    };
    let received = place(&["engine_recv_s", "arrival_s"])?;
    let (input, output) = (place(&["input_tokens"])?, place(&["output_tokens"])?);
    let id = place(&["request_id"]).ok();
    let (mut records, mut rows) = (Vec::new(), Vec::new());
    for (index, record) in reader.into_records().enumerate() {
        let record = record.map_err(broken)?;
        let wrong = |place: usize| {
            InputError::in_file(
                path,
                format!("'{}' is not a number", record.get(place).unwrap_or_default()),
            )
            .at(format!("row {index}"))
        };
        let number = |place: usize| {
            record
                .get(place)
                .and_then(|c| c.trim().parse::<f64>().ok())
                .ok_or_else(|| wrong(place))
        };
        rows.push(EngineRow {
            request_id: id.and_then(|p| record.get(p)).unwrap_or_default().to_owned(),
            received_s: number(received)?,
            input_tokens: number(input)? as u32,
            output_tokens: number(output)? as u32,
        });
        records.push(record);
    }
    Ok((header, records, rows))
}

/// For each of the engine's requests the client's, if it is found.
fn join(run: &ClientRun, rows: &[EngineRow], offset: f64) -> Vec<Option<usize>> {
    let mut joined: Vec<Option<usize>> = vec![None; rows.len()];
    let mut from = 0;
    for (index, r) in run.requests.iter().enumerate().filter(|(_, r)| r.completed()) {
        let sent = r.sent_s + offset - CLOCK_SLACK_S;
        // What the engine received before the first of this run was sent are warm-ups.
        while from < rows.len() && (joined[from].is_some() || rows[from].received_s < sent && r.id.is_none())
        {
            from += 1;
        }
        let free = |row: &usize| joined[*row].is_none();
        let found = match &r.id {
            Some(id) => (0..rows.len())
                .filter(free)
                .find(|&row| rows[row].request_id.contains(id.as_str())),
            None => (from..rows.len().min(from + OVERTAKING))
                .filter(free)
                .find(|&row| {
                    let e = &rows[row];
                    e.received_s >= sent
                        && r.input_tokens.is_none_or(|n| n == e.input_tokens)
                        && r.output_tokens == e.output_tokens
                }),
        };
        if let Some(row) = found {
            joined[row] = Some(index);
        }
    }
    joined
}

/// The folder of each run: `folder` itself for a single one, else one below it by the run's name.
pub fn folders_of(runs: &[ClientRun], folder: &Path) -> Vec<PathBuf> {
    runs.iter()
        .zip(0..)
        .map(|(run, index): (&ClientRun, usize)| match &run.name {
            Some(name) if runs.len() > 1 => {
                let plain = |c: char| {
                    if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                        c
                    } else {
                        '-'
                    }
                };
                let name: String = name.chars().map(plain).collect();
                folder.join(if name.trim_matches('.').is_empty() {
                    format!("run-{index}")
                } else {
                    name
                })
            }
            _ if runs.len() > 1 => folder.join(format!("run-{index}")),
            _ => folder.to_owned(),
        })
        .collect()
}
