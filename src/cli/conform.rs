//! `kneeboard conform`: replay recorded scheduler logs through the engine.

use std::path::PathBuf;

use clap::Args;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;

use super::stdout::complain;
use super::{Outcome, print};
use crate::input::InputError;
use crate::verify::conform::{Case, CaseReport, find_cases, replay};

/// Replay recorded vLLM scheduler logs through the engine and compare every step.
///
/// Understands golden cases (trace.csv, config.json, steps.jsonl[.gz]), call logs (NN_name.json[.gz]), captures
/// (manifest.json, requests.csv, steps.csv[.gz]) and folders of these. Exits with 0 only when all steps of all
/// cases are identical, with 3 otherwise.
#[derive(Debug, Args)]
pub struct ConformArgs {
    /// Case folders, call-log files, or folders of them.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print JSON instead of one line a case.
    #[arg(long)]
    json: bool,
}

/// What `conform --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ConformReport {
    /// Cases in path order.
    pub cases: Vec<CaseReport>,
    /// Cases of which every step is identical.
    pub identical_cases: usize,
    /// Steps compared, in all.
    pub steps: u64,
    /// Leading identical steps, in all.
    pub identical_steps: u64,
}

/// Runs `kneeboard conform`.
///
/// # Errors
/// [`crate::input::InputError`] for a path without a case, or a record that cannot be read.
pub fn run(args: &ConformArgs) -> anyhow::Result<Outcome> {
    let mut cases: Vec<Case> = Vec::new();
    for path in &args.paths {
        cases.extend(find_cases(path)?);
    }
    // In order of the cases, whatever the number of threads.
    let replayed: Vec<Result<CaseReport, InputError>> = cases.par_iter().map(replay).collect();
    let (mut reports, mut broken) = (Vec::new(), Vec::new());
    for outcome in replayed {
        match outcome {
            Ok(report) => reports.push(report),
            Err(error) => broken.push(error),
        }
    }
    if let (true, Some(first)) = (reports.is_empty(), broken.first()) {
        return Err(first.clone().into());
    }
    // A record that cannot be read does not lose what the others showed.
    let report = ConformReport::of(reports);
    let text = if args.json {
        serde_json::to_string_pretty(&report)?
    } else {
        report.to_text()
    };
    print(&(text + "\n"))?;
    for error in &broken {
        complain(&format!("kneeboard: {error}"));
    }
    let all = report.identical_cases == report.cases.len();
    Ok(match (broken.is_empty(), all) {
        (false, _) => Outcome::BadInput,
        (true, true) => Outcome::Done,
        (true, false) => Outcome::CheckFailed,
    })
}

impl ConformReport {
    fn of(cases: Vec<CaseReport>) -> Self {
        Self {
            identical_cases: cases.iter().filter(|c| c.is_identical()).count(),
            steps: cases.iter().map(|c| c.steps).sum(),
            identical_steps: cases.iter().map(|c| c.identical).sum(),
            cases,
        }
    }

    fn to_text(&self) -> String {
        let mut lines: Vec<String> = self.cases.iter().map(line).collect();
        lines.push(format!(
            "{} of {} cases identical, {} of {} steps",
            self.identical_cases,
            self.cases.len(),
            self.identical_steps,
            self.steps
        ));
        lines.join("\n")
    }
}

fn line(case: &CaseReport) -> String {
    let head = format!("{} (vLLM {})", case.name, case.version);
    match &case.divergence {
        None => format!("{head}: identical {}/{}", case.identical, case.steps),
        Some(divergence) => format!(
            "{head}: identical {}/{}, then {divergence}",
            case.identical, case.steps
        ),
    }
}
