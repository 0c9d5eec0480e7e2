//! Replay of recorded scheduler logs through the engine, step by step.
//!
//! Three kinds of record are understood: golden cases (`trace.csv`, `config.json`, `steps.jsonl[.gz]`), call
//! logs (`NN_name.json[.gz]`), and captures of a real engine (`steps.csv[.gz]` with its manifest).

mod call_log;
mod capture;
mod golden;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::calibrate::observe;
use crate::input::InputError;

/// The kind of a recorded case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CaseKind {
    /// Scheduler log under a virtual clock.
    Golden,
    /// One record a schedule call.
    CallLog,
    /// Steps of a real engine; the recorded times drive the clock.
    Capture,
}

/// A recorded case on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// What it is.
    pub kind: CaseKind,
    /// Its folder or file.
    pub path: PathBuf,
}

/// The first place where engine and record differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Divergence {
    /// Step or call number, as the record counts.
    pub step: u64,
    /// Which recorded figure.
    pub field: String,
    /// What the record says.
    pub expected: String,
    /// What the engine did.
    pub actual: String,
    /// The rules that decide this figure.
    pub rules: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "step {}, {}: expected {}, came {}; see rules {}",
            self.step, self.field, self.expected, self.actual, self.rules
        )
    }
}

/// Outcome of one case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct CaseReport {
    /// Path of the case.
    pub name: String,
    /// Its kind.
    pub kind: CaseKind,
    /// vLLM version whose rules were applied.
    pub version: String,
    /// Recorded steps.
    pub steps: u64,
    /// Leading steps that are identical in every compared figure.
    pub identical: u64,
    /// Where they part, if they do.
    pub divergence: Option<Divergence>,
}

impl CaseReport {
    /// Every step is identical.
    pub fn is_identical(&self) -> bool {
        self.divergence.is_none() && self.identical == self.steps
    }
}

/// Finds every case at or below `path`, in path order.
///
/// # Errors
/// [`InputError`] when nothing there is a recorded case, or a folder cannot be read.
pub fn find_cases(path: &Path) -> Result<Vec<Case>, InputError> {
    let mut cases = Vec::new();
    collect(path, 0, &mut cases)?;
    if cases.is_empty() {
        return Err(
            InputError::in_file(path, "holds no recorded scheduler log").allowed(
                "expected a golden case (trace.csv, config.json, steps.jsonl[.gz]), a call log \
             (NN_name.json[.gz]), a capture (manifest.json, steps.csv[.gz]), or a folder of these",
            ),
        );
    }
    Ok(cases)
}

/// Deeper trees are not what anybody keeps logs in; the bound also ends a loop of links.
const MAX_DEPTH: u32 = 8;

fn collect(path: &Path, depth: u32, cases: &mut Vec<Case>) -> Result<(), InputError> {
    if path.is_file() {
        if is_call_log_name(path) || depth == 0 {
            cases.push(Case {
                kind: CaseKind::CallLog,
                path: path.to_owned(),
            });
        }
        return Ok(());
    }
    if golden::is_case(path) {
        cases.push(Case {
            kind: CaseKind::Golden,
            path: path.to_owned(),
        });
        return Ok(());
    }
    if observe::is_capture_with_steps(path) {
        cases.push(Case {
            kind: CaseKind::Capture,
            path: path.to_owned(),
        });
        return Ok(());
    }
    if depth == MAX_DEPTH {
        return Ok(());
    }
    let entries = std::fs::read_dir(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| {
            InputError::in_file(path, format!("cannot be read ({e})")).allowed("give a file or a folder")
        })?;
    let mut paths: Vec<_> = entries.into_iter().map(|e| e.path()).collect();
    paths.sort();
    paths.iter().try_for_each(|p| collect(p, depth + 1, cases))
}

/// `NN_name.json` or `NN_name.json.gz`.
fn is_call_log_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let stem = name.strip_suffix(".gz").unwrap_or(name);
    let Some((number, _)) = stem.split_once('_') else {
        return false;
    };
    stem.ends_with(".json") && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

/// Replays one case.
///
/// # Errors
/// [`InputError`] when the record cannot be read, is inconsistent in itself, or holds nothing to compare.
pub fn replay(case: &Case) -> Result<CaseReport, InputError> {
    let report = match case.kind {
        CaseKind::Golden => golden::replay(&case.path),
        CaseKind::CallLog => call_log::replay(&case.path),
        CaseKind::Capture => capture::replay(&case.path),
    }?;
    // An empty record agrees with everything, which is no proof of anything.
    if report.steps == 0 {
        return Err(InputError::in_file(&case.path, "records no step").allowed("expected at least one"));
    }
    Ok(report)
}

/// A recorded figure that the engine can take.
fn within(
    value: u32,
    allowed: RangeInclusive<u32>,
    path: &Path,
    place: impl fmt::Display,
) -> Result<u32, InputError> {
    if allowed.contains(&value) {
        return Ok(value);
    }
    let (from, to) = allowed.into_inner();
    Err(InputError::in_file(path, format!("found {value}"))
        .at(place)
        .allowed(format!("allowed: a whole number from {from} to {to}")))
}

/// Compares recorded with produced figures and keeps the first difference.
#[derive(Debug, Default)]
struct Comparison {
    step: u64,
    divergence: Option<Divergence>,
}

impl Comparison {
    /// Begins the comparison of a step; `false` once something has differed.
    fn begin(&mut self, step: u64) -> bool {
        self.step = step;
        self.divergence.is_none()
    }

    fn check<T: PartialEq + fmt::Debug + ?Sized>(
        &mut self,
        field: &str,
        rules: &str,
        expected: &T,
        actual: &T,
    ) {
        if self.divergence.is_none() && expected != actual {
            self.divergence = Some(Divergence {
                step: self.step,
                field: field.to_owned(),
                expected: brief(expected),
                actual: brief(actual),
                rules: rules.to_owned(),
            });
        }
    }
}

/// A value as it is shown in a divergence: whole when short, its beginning when long.
fn brief(value: &(impl fmt::Debug + ?Sized)) -> String {
    const MOST: usize = 400;
    let mut text = format!("{value:?}");
    if text.len() > MOST {
        let cut = (0..=MOST).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        text.truncate(cut);
        text.push_str(" ...");
    }
    text
}

/// Rules that decide a figure, for the hint of a divergence.
mod rules {
    pub(super) const SCHEDULED: &str = "S10-S17 (running pass), S20-S29 (admission), S60 (drafts)";
    pub(super) const ADMITTED: &str = "S20-S28, K21-K23 (fits), K30-K36 (prefix hits)";
    pub(super) const PREEMPTED: &str = "S16, S30-S36";
    pub(super) const RUNNING: &str = "S4, S20, S43";
    pub(super) const WAITING: &str = "S20, S24, S32";
    pub(super) const FREE: &str = "K10-K14, K20-K26";
    pub(super) const TOKENS: &str = "S40-S42, S54, S62";
    pub(super) const FINISHED: &str = "S41, S43, S54";
    pub(super) const LIVELOCK: &str = "N14";
    pub(super) const CLOCK: &str = "S50-S52";
    pub(super) const SHAPE: &str = "S5 (prefill or decode), the batch's shape";
}
