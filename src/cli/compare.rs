//! `kneeboard compare`: captures beside their simulation.

use std::path::PathBuf;

use clap::Args;
use rayon::prelude::*;

use super::stdout::WIDTH;
use super::{Outcome, print};
use crate::calibrate::repeats::spreads_of_repeats;
use crate::calibrate::{Capture, read_captures};
use crate::report::compare::comparison_text;
use crate::steptime::fit_file::{Fit, merge_repeats};
use crate::verify::compare::{
    CaptureComparison, CompareError, CompareReport, MachineModel, Skipped, compare, reason_to_skip,
};

/// Simulate captures' own arrivals and knobs and print predicted beside actual.
///
/// Latencies are counted from the due time of a request; ITL pools all gaps of all requests; TPOT is one value
/// a request; percentiles interpolate linearly. Errors are (predicted - actual) / actual.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Capture folders, or folders of capture folders.
    #[arg(required = true, value_name = "CAPTURE")]
    captures: Vec<PathBuf>,
    /// Fit of the machine, as `calibrate steps` writes it.
    #[arg(long, value_name = "FIT")]
    fit: PathBuf,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Runs `kneeboard compare`.
///
/// # Errors
/// [`crate::input::InputError`] for a capture or a fit that cannot be used; a simulation that cannot go on.
pub fn run(args: &CompareArgs) -> anyhow::Result<Outcome> {
    let fit = Fit::read(&args.fit)?;
    let captures = read_captures(&args.captures)?;
    let report = compare_all(&captures, &fit, &args.fit)?;
    let text = if args.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        comparison_text(&report, WIDTH) + "\n"
    };
    print(&text)?;
    Ok(Outcome::Done)
}

/// Compares every capture that has arrivals of its own; the others are listed with the reason.
///
/// # Errors
/// As [`run`].
pub fn compare_all(
    captures: &[Capture],
    fit: &Fit,
    fit_path: &std::path::Path,
) -> anyhow::Result<CompareReport> {
    // How much real repeats differ is measured, not predicted: repeats among the compared captures tell it too.
    let repeats = merge_repeats(&fit.repeats, &spreads_of_repeats(captures)?);
    let outcomes: Vec<anyhow::Result<Result<CaptureComparison, Skipped>>> = captures
        .par_iter()
        .map(|capture| {
            if let Some(reason) = reason_to_skip(capture) {
                return Ok(Err(Skipped {
                    name: capture.name.clone(),
                    reason: reason.to_owned(),
                }));
            }
            let model = MachineModel::of(fit, fit_path, capture)?;
            Ok(Ok(compare(capture, &model, &repeats).map_err(unwrap_input)?))
        })
        .collect();
    let mut report = CompareReport {
        captures: Vec::new(),
        skipped: Vec::new(),
    };
    for outcome in outcomes {
        match outcome? {
            Ok(comparison) => report.captures.push(comparison),
            Err(skipped) => report.skipped.push(skipped),
        }
    }
    Ok(report)
}

/// An input error inside a comparison error is the user's to mend, and is reported as such.
fn unwrap_input(error: CompareError) -> anyhow::Error {
    match error {
        CompareError::Input(e) => e.into(),
        other => other.into(),
    }
}
