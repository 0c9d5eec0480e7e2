//! Captures: folders that hold the requests of one run of a real engine, and where it was instrumented, every
//! step and token time.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::assume::{RawManifest, TimeUnit};
use super::manifest::{CaptureManifest, CaptureMode};
use super::plausible;
use super::rows::{CLOCK_ROUNDING_S, CaptureRequest, CaptureStep, read_requests, read_steps};
use super::served::system_of;
use crate::engine::vllm::VllmConfig;
use crate::input::{InputError, first_existing, read_text};
use crate::scenario::ResolvedSystem;
use crate::units::SimTime;
use crate::workload::trace::{Prefix, Trace, TraceRequest};

const MANIFEST: &[&str] = &["manifest.json"];
const STEPS: &[&str] = &["steps.csv", "steps.csv.gz"];
const REQUESTS: &[&str] = &["requests.csv", "requests.csv.gz"];
const TOKENS: &[&str] = &["tokens.jsonl", "tokens.jsonl.gz"];

/// How deep [`find_captures`] looks into a tree.
const MAX_DEPTH: usize = 16;

/// One run of a real engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Capture {
    /// Where it was read from.
    pub folder: PathBuf,
    /// Its name in reports: the last two components of the folder, as `serve-s16-b2048/r12`.
    pub name: String,
    /// How the run was made.
    pub manifest: CaptureManifest,
    /// Engine steps in order; empty where nobody looked into the engine.
    pub steps: Vec<CaptureStep>,
    /// Requests; a request's id is its index.
    pub requests: Vec<CaptureRequest>,
    /// SHA-256 of the uncompressed text of the steps, or of the requests where there are none, in hexadecimal.
    pub steps_sha256: String,
    /// What was assumed because the files do not say it, one sentence each.
    pub assumptions: Vec<String>,
}

/// Whether `folder` holds a capture: requests and a manifest. Steps may be missing.
pub fn is_capture(folder: &Path) -> bool {
    [MANIFEST, REQUESTS]
        .iter()
        .all(|names| first_existing(folder, names).is_some())
}

/// Whether `folder` holds a capture with the engine's steps.
pub fn is_capture_with_steps(folder: &Path) -> bool {
    is_capture(folder) && first_existing(folder, STEPS).is_some()
}

/// The captures at or below `path`, sorted.
///
/// # Errors
/// [`InputError`] when `path` cannot be read or holds none.
pub fn find_captures(path: &Path) -> Result<Vec<PathBuf>, InputError> {
    let mut found = Vec::new();
    collect(path, MAX_DEPTH, &mut found)?;
    if found.is_empty() {
        return Err(InputError::in_file(path, "holds no capture").allowed(
            "a folder with manifest.json, requests.csv[.gz] and, if the engine was instrumented, steps.csv[.gz]; or a \
             folder of such folders",
        ));
    }
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), InputError> {
    if is_capture(folder) {
        found.push(folder.to_owned());
        return Ok(());
    }
    let entries = std::fs::read_dir(folder)
        .map_err(|e| InputError::in_file(folder, format!("cannot be listed ({e})")).allowed("a folder"))?;
    for entry in entries {
        let entry = entry.map_err(|e| InputError::in_file(folder, format!("cannot be listed ({e})")))?;
        // A link could lead back up, so only real folders are entered.
        if depth > 0 && entry.file_type().is_ok_and(|t| t.is_dir()) {
            collect(&entry.path(), depth - 1, found)?;
        }
    }
    Ok(())
}

/// Reads every capture at or below the paths, in order.
///
/// # Errors
/// [`InputError`] for a path without a capture, or one that cannot be read.
pub fn read_captures(paths: &[PathBuf]) -> Result<Vec<Capture>, InputError> {
    let mut captures = Vec::new();
    for path in paths {
        for folder in find_captures(path)? {
            captures.push(Capture::read(&folder)?);
        }
    }
    Ok(captures)
}

impl Capture {
    /// Reads a capture folder; files may be plain or gzipped. Token times are left for
    /// [`Capture::token_times`].
    ///
    /// # Errors
    /// [`InputError`] with file, line and column for anything missing, broken or inconsistent.
    pub fn read(folder: &Path) -> Result<Self, InputError> {
        let manifest_path = require(folder, MANIFEST)?;
        let raw = RawManifest::read(&manifest_path)?;
        let requests_path = require(folder, REQUESTS)?;
        let requests_text = read_text(&requests_path)?;
        let steps_path = first_existing(folder, STEPS);
        let unit = raw.time_unit.unwrap_or(TimeUnit::Seconds);
        let mut requests = read_requests(&requests_path, &requests_text, unit, steps_path.is_some())?;
        if steps_path.is_none() {
            plausible::check(&requests_path, &requests, raw.time_unit)?;
        }
        let (live, given) = (raw.is_live(), raw.says_how_many());
        if given.is_some_and(|n| n != requests.len() as u64) {
            return Err(disagree(&manifest_path, "requests", given, requests.len() as u64));
        }
        let mut left_out = None;
        let (steps, hashed) = match &steps_path {
            Some(path) => {
                let text = read_text(path)?;
                (read_steps(path, &text, &requests)?, text)
            }
            None => {
                left_out = leave_out_failed(&requests_path, &mut requests)?;
                (Vec::new(), requests_text)
            }
        };
        let mut manifest = CaptureManifest::of(raw, &manifest_path, &requests)?;
        if live && let Some(last) = steps.last() {
            // The probe of a live server writes how long it was watched; the run ends with its last step.
            manifest.duration_s = last.t_end_s;
        }
        let mut assumptions = manifest.assumptions.clone();
        assumptions.extend(left_out);
        assumptions.extend(unknown_prefixes(&manifest, &requests));
        let capture = Self {
            folder: folder.to_owned(),
            name: name_of(folder),
            manifest,
            steps,
            requests,
            steps_sha256: hex(&Sha256::digest(hashed.as_bytes())),
            assumptions,
        };
        capture.check_totals(&manifest_path)?;
        Ok(capture)
    }

    /// Whether the capture tells the engine's steps.
    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    fn check_totals(&self, manifest_path: &Path) -> Result<(), InputError> {
        let tokens_out: u64 = self.requests.iter().map(|r| u64::from(r.output_tokens)).sum();
        let preemptions: u64 = self.steps.iter().map(|s| u64::from(s.preempted)).sum();
        let per_request: u64 = self.requests.iter().map(|r| u64::from(r.preemptions)).sum();
        let m = &self.manifest;
        if self.has_steps() {
            for (field, told, counted) in [
                ("steps", m.steps, self.steps.len() as u64),
                ("tokens_out", m.tokens_out, tokens_out),
                ("preemptions", m.preemptions, preemptions),
                ("preemptions", m.preemptions, per_request),
            ] {
                // A live server's probe counts preemptions, but not by request.
                let comparable = told.is_some_and(|t| t != counted);
                if comparable && !(m.t0_unix_s.is_some() && field == "preemptions") {
                    return Err(disagree(manifest_path, field, told, counted));
                }
            }
            let end = self.steps.last().map_or(0.0, |s| s.t_end_s);
            if (m.duration_s - end).abs() > CLOCK_ROUNDING_S {
                let found = format!("says {} s but the last step ends at {end} s", m.duration_s);
                return Err(InputError::in_file(manifest_path, found).at("duration_s"));
            }
        }
        Ok(())
    }

    /// The requests as they were offered. In mode `batch`, where `arrival_s` is a group number, a request
    /// arrives when the driver began to add it.
    ///
    /// # Errors
    /// [`InputError`] when a request of mode `batch` was never added.
    pub fn trace(&self) -> Result<Trace, InputError> {
        let mut requests = Vec::with_capacity(self.requests.len());
        for (id, request) in self.requests.iter().enumerate() {
            let seconds = match self.manifest.mode {
                CaptureMode::Open => request.arrival_s,
                CaptureMode::Batch => request.add_start_s.ok_or_else(|| {
                    InputError::in_file(&self.folder, format!("request {id} was never added"))
                        .allowed("a run that was not cut off")
                })?,
            };
            let arrival = SimTime::try_from_secs_f64(seconds)
                .map_err(|e| InputError::in_file(&self.folder, format!("request {id}: {e}")))?;
            requests.push(TraceRequest {
                prefix: request.prefix_group.map(|group| Prefix {
                    group,
                    shared_tokens: request.prefix_tokens.min(request.input_tokens),
                    greedy_outputs: false,
                }),
                priority: request.priority,
                // A client's request that ended before its cap ended by itself.
                eos_at: Some(request.output_tokens)
                    .filter(|&n| !self.has_steps() && n > 0 && n < request.requested_output_tokens),
                ..TraceRequest::plain(arrival, request.input_tokens, request.requested_output_tokens)
            });
        }
        Ok(Trace { requests })
    }

    /// The engine's configuration.
    ///
    /// # Errors
    /// [`InputError`] when the vLLM version has no behaviour set; it lists those that have.
    pub fn engine_config(&self) -> Result<VllmConfig, InputError> {
        self.manifest.engine_config(&self.folder.join(MANIFEST[0]))
    }

    /// The system that served: profiles, memory, and the deployment where device and model are both named and
    /// have profiles.
    ///
    /// # Errors
    /// [`InputError`] when the manifest's facts contradict each other.
    pub fn system(&self) -> Result<ResolvedSystem, InputError> {
        system_of(&self.manifest, &self.folder.join(MANIFEST[0]))
    }

    /// Whether the folder holds token times.
    pub fn has_token_times(&self) -> bool {
        first_existing(&self.folder, TOKENS).is_some()
    }

    /// The times of every request's output tokens, in seconds from the start of the run.
    ///
    /// # Errors
    /// [`InputError`] when the file is missing, broken, or does not agree with the requests.
    pub fn token_times(&self) -> Result<Vec<Vec<f64>>, InputError> {
        let path = require(&self.folder, TOKENS)?;
        read_tokens(&path, &read_text(&path)?, &self.requests)
    }
}

fn disagree(manifest_path: &Path, field: &str, told: Option<u64>, counted: u64) -> InputError {
    let found = format!("says {} but the tables hold {counted}", told.unwrap_or_default());
    InputError::in_file(manifest_path, found)
        .at(field)
        .allowed("the files of one and the same run")
}

/// Requests that failed say nothing of the engine's speed, and what they would have asked is unknown.
fn leave_out_failed(path: &Path, requests: &mut Vec<CaptureRequest>) -> Result<Option<String>, InputError> {
    let all = requests.len();
    requests.retain(|r| !r.failed);
    let failed = all - requests.len();
    if requests.is_empty() {
        return Err(InputError::in_file(path, format!("all {all} requests failed"))
            .allowed("at least one request that was served"));
    }
    Ok((failed > 0).then(|| {
        format!("{failed} of {all} requests failed and are left out, as if they had never loaded the engine")
    }))
}

/// Prefix hits without the groups that share the prefixes cannot be simulated.
fn unknown_prefixes(manifest: &CaptureManifest, requests: &[CaptureRequest]) -> Option<String> {
    let hits = requests.iter().filter(|r| r.cached_input_tokens > 0).count();
    let grouped = requests.iter().any(|r| r.prefix_group.is_some());
    (manifest.engine_effective.enable_prefix_caching && hits > 0 && !grouped).then(|| {
        format!(
            "{hits} requests had prefix hits, but no prefix_group says with whom they share: simulated without hits"
        )
    })
}

#[derive(Deserialize)]
struct TokenLine {
    id: usize,
    t: Vec<f64>,
}

fn read_tokens(path: &Path, text: &str, requests: &[CaptureRequest]) -> Result<Vec<Vec<f64>>, InputError> {
    let mut all = Vec::with_capacity(requests.len());
    // Requests that failed were left out; their lines may still be there.
    let expected = |all: &Vec<Vec<f64>>| requests.get(all.len());
    for (index, line) in text.lines().enumerate() {
        let wrong = |found: String| InputError::in_file(path, found).at(format!("line {}", index + 1));
        let TokenLine { id, t } = serde_json::from_str(line).map_err(|e| {
            wrong(format!("is not a line of token times ({e})")).allowed("{\"id\": n, \"t\": [seconds, …]}")
        })?;
        if id == index && expected(&all).is_some_and(|r| (r.id as usize) > id) {
            continue;
        }
        let Some(request) = expected(&all).filter(|r| r.id as usize == id) else {
            return Err(wrong(format!("id {id} is out of order")).allowed(format!(
                "one line for each of the {} requests, in order",
                requests.len()
            )));
        };
        if t.len() != request.output_tokens as usize {
            return Err(wrong(format!(
                "{} times for {} output tokens",
                t.len(),
                request.output_tokens
            )));
        }
        if t.iter().any(|x| !x.is_finite() || *x < 0.0) || t.windows(2).any(|w| w[1] < w[0]) {
            return Err(wrong("times are negative or go back".into()).allowed("seconds in ascending order"));
        }
        all.push(t);
    }
    if all.len() != requests.len() {
        return Err(InputError::in_file(
            path,
            format!("has {} lines for {} requests", all.len(), requests.len()),
        ));
    }
    Ok(all)
}

fn require(folder: &Path, names: &[&str]) -> Result<PathBuf, InputError> {
    first_existing(folder, names).ok_or_else(|| {
        InputError::in_file(folder, format!("has no {}", names.join(" or ")))
            .allowed("a capture folder: manifest.json, steps.csv[.gz], requests.csv[.gz]")
    })
}

fn name_of(folder: &Path) -> String {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let mut names: Vec<_> = absolute
        .components()
        .rev()
        .filter_map(|c| match c {
            std::path::Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .take(2)
        .collect();
    names.reverse();
    names.join("/")
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
#[path = "observe_tests.rs"]
mod tests;
