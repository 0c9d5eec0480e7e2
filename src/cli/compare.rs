//! `kneeboard compare`: captures beside their simulation.

use std::path::{Path, PathBuf};

use clap::Args;
use rayon::prelude::*;

use super::stdout::width;
use super::{Outcome, print};
use crate::calibrate::observed_capture::ServedDefaults;
use crate::calibrate::points::{Boundary, PointDefaults, read_rows};
use crate::calibrate::repeats::spreads_of_repeats;
use crate::calibrate::{Capture, read_captures};
use crate::input::InputError;
use crate::report::compare::{comparison_text, points_text};
use crate::scenario::machine::{locate, require};
use crate::steptime::AnyFit;
use crate::steptime::fit_file::{RepeatSpread, merge_repeats};
use crate::verify::compare::{
    CaptureComparison, CompareError, CompareReport, Skipped, compare, reason_to_skip,
};
use crate::verify::guises::Guises;
use crate::verify::points::{PointComparison, PointsReport, compare_point};

/// Simulate captures' own arrivals and knobs and print predicted beside actual.
///
/// Latencies are counted from the due time of a request; ITL pools all gaps of all requests; TPOT is one value
/// a request; percentiles interpolate linearly. Errors are (predicted - actual) / actual.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Capture folders, or folders of capture folders; steps are not needed where the fit is one of the roofline.
    #[arg(required_unless_present = "points", value_name = "CAPTURE")]
    captures: Vec<PathBuf>,
    /// A table of summary rows (CSV) instead of captures.
    #[arg(long, value_name = "FILE", conflicts_with = "captures")]
    points: Option<PathBuf>,
    /// Fit of the machine: a file, or the name of one in calibration/fits.
    #[arg(long, value_name = "FIT")]
    fit: PathBuf,
    /// Accelerator profile of captures and rows that name none.
    #[arg(long, value_name = "NAME")]
    accelerator: Option<String>,
    /// Model profile of captures that name none.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// vLLM release of rows that name none; that of the fit by default.
    #[arg(long, value_name = "VERSION")]
    engine_version: Option<String>,
    /// KV-cache format of rows that name none; that of the fit by default.
    #[arg(long, value_name = "FORMAT")]
    kv_dtype: Option<String>,
    /// Leave the first request of each client of a closed loop out of a row's figures.
    #[arg(long, requires = "points")]
    drop_first_round: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Runs `kneeboard compare`.
///
/// # Errors
/// [`crate::input::InputError`] for a capture or a fit that cannot be used; a simulation that cannot go on.
pub fn run(args: &CompareArgs) -> anyhow::Result<Outcome> {
    let (name, here) = (args.fit.to_string_lossy(), Path::new(""));
    require(&name, here, "--fit")?;
    let path = locate(&name, here);
    let fit = AnyFit::read(&path)?;
    if let Some(table) = &args.points {
        return points(args, table, &fit, &path);
    }
    let captures = read_captures(&args.captures)?;
    let defaults = ServedDefaults {
        accelerator: args.accelerator.clone(),
        model: args.model.clone(),
        engine_version: None,
    };
    let report = compare_all(&captures, &fit, &path, &defaults)?;
    let text = if args.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        comparison_text(&report, width()) + "\n"
    };
    print(&text)?;
    Ok(Outcome::Done)
}

/// `compare --points`.
fn points(args: &CompareArgs, table: &Path, fit: &AnyFit, path: &Path) -> anyhow::Result<Outcome> {
    let AnyFit::Roofline(fit) = fit else {
        return Err(InputError::in_file(path, "knows one model on one machine alone")
            .allowed("a fit of the roofline, as `calibrate events`, `points` or `kernels` writes it")
            .into());
    };
    let defaults = PointDefaults {
        accelerator: args.accelerator.clone(),
        engine_version: args.engine_version.clone(),
        kv_dtype: args.kv_dtype.clone(),
        drop_first_round: args.drop_first_round,
    }
    .or(fit);
    let rows = read_rows(table, &defaults)?;
    let points = rows
        .par_iter()
        .enumerate()
        .map(|(row, point)| {
            let compared = match point {
                Ok(point) => {
                    let client = point.boundary == Boundary::Client;
                    Guises::roofline(fit, path, &point.run.deployment, client)
                        .map_err(|e| e.to_string())
                        .and_then(|g| compare_point(point, &g).map_err(|e| e.to_string()))
                }
                Err(e) => Err(e.to_string()),
            };
            // A row that cannot be simulated does not take the others with it.
            compared.unwrap_or_else(|error| PointComparison {
                row,
                metrics: Vec::new(),
                assumptions: Vec::new(),
                error: Some(error),
            })
        })
        .collect();
    let report = PointsReport { points };
    if let Some(Err(e)) = rows.into_iter().find(Result::is_err)
        && report.points.iter().all(|p| p.error.is_some())
    {
        return Err(e.into());
    }
    let text = if args.json {
        serde_json::to_string_pretty(&report)?
    } else {
        points_text(&report)
    };
    print(&(text + "\n"))?;
    Ok(Outcome::Done)
}

/// Compares every capture that has arrivals of its own; the others are listed with the reason.
///
/// # Errors
/// As [`run`].
pub fn compare_all(
    captures: &[Capture],
    fit: &AnyFit,
    fit_path: &Path,
    defaults: &ServedDefaults,
) -> anyhow::Result<CompareReport> {
    // How much real repeats differ is measured, not predicted: repeats among the compared captures tell it too.
    let fitted: &[RepeatSpread] = match fit {
        AnyFit::Linear(fit) => &fit.repeats,
        AnyFit::Roofline(_) | AnyFit::StaticShape(_) => &[],
    };
    let repeats = merge_repeats(fitted, &spreads_of_repeats(captures)?);
    let outcomes: Vec<anyhow::Result<Result<CaptureComparison, Skipped>>> = captures
        .par_iter()
        .map(|capture| {
            if let Some(reason) = reason_to_skip(capture) {
                return Ok(Err(Skipped {
                    name: capture.name.clone(),
                    reason: reason.to_owned(),
                }));
            }
            let guises = Guises::of_capture(fit, fit_path, capture, defaults)?;
            Ok(Ok(compare(capture, &guises, &repeats).map_err(unwrap_input)?))
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
