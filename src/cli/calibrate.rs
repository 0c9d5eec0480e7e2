//! `kneeboard calibrate`: fit step-time models to measurements.

mod kernels;
mod programs;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use comfy_table::{Table, presets};

use super::calibrate_runs::{self, EventsArgs, PointsArgs, RunFitArgs};
use super::{Global, Outcome, progress};
use crate::calibrate::{FitOptions, RunCheck, check_run, fit_steps, read_captures};
use crate::input::{InputError, write_atomic};
use crate::steptime::fit_file::{Fit, StepError};

/// Fit models to measurements.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    #[command(subcommand)]
    command: CalibrateCommand,
}

#[derive(Debug, Subcommand)]
enum CalibrateCommand {
    /// Fit step times to captures of a real engine.
    Steps(StepsArgs),
    /// Fit the roofline to request times of captures, which need no steps.
    Events(EventsArgs),
    /// Fit the roofline to summary rows of benchmarks.
    Points(PointsArgs),
    /// Check a fit of step times against captures, batch for batch.
    Check(CheckArgs),
    /// Fit a device's efficiencies to tables of measured kernels: priors for other fits.
    Kernels(kernels::KernelsArgs),
    /// Fit static shapes to measured times of compiled programs (Neuron).
    Programs(programs::ProgramsArgs),
}

/// `calibrate steps`.
#[derive(Debug, Args)]
pub struct StepsArgs {
    /// Capture folders, or folders of capture folders.
    #[arg(required = true, value_name = "CAPTURE")]
    pub(super) captures: Vec<PathBuf>,
    /// Which model of step times.
    #[arg(long, value_enum, default_value_t = FormArg::Linear)]
    form: FormArg,
    /// Model profile of captures that name none.
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    #[command(flatten)]
    pub(super) fit: RunFitArgs,
}

/// A model of step times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormArg {
    /// A sum of terms for one model on one machine.
    Linear,
    /// The roofline of a device: any model, number format and split.
    Roofline,
}

/// `calibrate check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Capture folders, or folders of capture folders.
    #[arg(required = true, value_name = "CAPTURE")]
    captures: Vec<PathBuf>,
    /// The fit file.
    #[arg(long, value_name = "FIT")]
    fit: PathBuf,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs `kneeboard calibrate`.
///
/// # Errors
/// Bad input ([`InputError`]), captures that nothing can be fitted to, or a file that cannot be written.
pub fn run(args: &CalibrateArgs, global: &Global) -> anyhow::Result<Outcome> {
    match &args.command {
        CalibrateCommand::Steps(args) if args.form == FormArg::Roofline => {
            calibrate_runs::roofline_steps(args, global)
        }
        CalibrateCommand::Steps(args) => steps(args, global),
        CalibrateCommand::Events(args) => calibrate_runs::events(args, global),
        CalibrateCommand::Points(args) => calibrate_runs::points(args, global),
        CalibrateCommand::Check(args) => check(args),
        CalibrateCommand::Kernels(args) => kernels::run(args),
        CalibrateCommand::Programs(args) => programs::run(args),
    }
}

fn steps(args: &StepsArgs, global: &Global) -> anyhow::Result<Outcome> {
    refuse_existing(&args.fit.output, args.fit.overwrite)?;
    refuse_roofline_options(args)?;
    let captures = read_captures(&args.captures)?;
    let bar = progress::delayed_bar("fitting", 1, global.progress());
    let options = FitOptions {
        hold_out: !args.fit.no_hold_out,
    };
    let fit = fit_steps(&captures, &options, &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    // What cannot be fitted is the captures' fault, so it is reported as bad input.
    let fit = fit.map_err(|e| InputError::new("captures", e.to_string()))?;
    let yaml = fit
        .to_yaml()
        .map_err(|e| anyhow!(e))
        .context("the fit cannot be written as YAML")?;
    let output = &args.fit.output;
    write_atomic(output, |w| w.write_all(yaml.as_bytes()))
        .with_context(|| format!("{}: cannot be written", output.display()))?;
    let text = if args.fit.json {
        serde_json::to_string_pretty(&fit)?
    } else {
        tables(&fit)
    };
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(Outcome::Done)
}

/// The linear form knows one machine and one model: what names others would be ignored.
fn refuse_roofline_options(args: &StepsArgs) -> Result<(), InputError> {
    let given = [
        ("--priors", !args.fit.priors.is_empty()),
        ("--accelerator", args.fit.accelerator.is_some()),
        ("--model", args.model.is_some()),
        ("--name", args.fit.name.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(InputError::new(flag, "means nothing for a fit of linear form")
            .allowed("only with --form roofline")),
        None => Ok(()),
    }
}

fn check(args: &CheckArgs) -> anyhow::Result<Outcome> {
    let fit = Fit::read(&args.fit)?;
    let model = fit.model(&args.fit)?;
    let captures = read_captures(&args.captures)?;
    let runs: Vec<RunCheck> = captures.iter().map(|c| check_run(&fit, &model, c)).collect();
    let text = if args.json {
        serde_json::to_string_pretty(&runs)?
    } else {
        check_table(&runs).to_string()
    };
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(Outcome::Done)
}

fn check_table(runs: &[RunCheck]) -> Table {
    let mut t = table(&[
        "run",
        "steps",
        "median",
        "median abs",
        "p90 abs",
        "sum",
        "sum with probe",
        "outside hull",
        "stalls s",
        "predicted s",
        "off by, of the run",
    ]);
    for r in runs {
        t.add_row(vec![
            r.run.clone(),
            r.error.steps.to_string(),
            percent(r.error.median),
            percent(r.error.median_abs),
            percent(r.error.p90_abs),
            percent(r.error.sum),
            r.sum_with_probe.map_or("-".into(), percent),
            r.outside_hull.to_string(),
            format!("{:.2}", r.stalled_s),
            r.predicted_stall_s.map_or("-".into(), |s| format!("{s:.2}")),
            r.predicted_stall_s
                .map_or("-".into(), |s| percent((s - r.stalled_s) / r.duration_s)),
        ]);
    }
    t
}

/// Refuses an output that is a folder, or that is there and may not be replaced.
///
/// # Errors
/// [`InputError`] that says how to mend it.
pub(super) fn refuse_existing(path: &Path, overwrite: bool) -> Result<(), InputError> {
    if path.is_dir() {
        return Err(InputError::in_file(path, "is a folder").allowed("name the fit file to write"));
    }
    if path.exists() && !overwrite {
        return Err(InputError::in_file(path, "exists")
            .allowed("name another file with -o, or give --overwrite to replace it"));
    }
    Ok(())
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    table
}

fn percent(x: f64) -> String {
    format!("{:+.1} %", x * 100.0)
}

fn tables(fit: &Fit) -> String {
    [
        format!("Parameters\n{}", parameter_table(fit)),
        format!(
            "Residuals on the fitted steps, (predicted - measured) / measured\n{}",
            error_table(
                "batch",
                fit.residuals.iter().map(|r| (r.regime.as_str(), &r.error, None))
            )
        ),
        format!(
            "Error on runs left out of the fit, {}\n{}",
            fit.held_out.method,
            error_table(
                "run",
                fit.held_out
                    .runs
                    .iter()
                    .map(|r| (r.run.as_str(), &r.error, Some(r.sum_with_probe)))
            )
        ),
        format!("Runs fitted\n{}", data_table(fit)),
        format!("Stalls of the machine, set aside\n{}", stall_table(fit)),
        host_line(fit),
    ]
    .join("\n\n")
}

fn parameter_table(fit: &Fit) -> Table {
    let mut t = table(&["name", "value", "unit", "range with runs left out"]);
    for p in &fit.parameters {
        let range = p
            .held_out_range
            .map_or(String::new(), |(low, high)| format!("{low:.4e} to {high:.4e}"));
        t.add_row(vec![
            p.name.clone(),
            format!("{:.4e}", p.value),
            p.unit.clone(),
            range,
        ]);
    }
    t
}

fn error_table<'a>(
    what: &str,
    rows: impl Iterator<Item = (&'a str, &'a StepError, Option<Option<f64>>)>,
) -> Table {
    let rows: Vec<_> = rows.collect();
    let probes = rows.iter().any(|r| matches!(r.2, Some(Some(_))));
    let mut header = vec![what, "steps", "median", "median abs", "p90 abs", "sum"];
    if probes {
        header.push("sum with probe");
    }
    let mut t = table(&header);
    for (name, e, probe) in rows {
        let mut cells = vec![
            name.to_owned(),
            e.steps.to_string(),
            percent(e.median),
            percent(e.median_abs),
            percent(e.p90_abs),
            percent(e.sum),
        ];
        if probes {
            cells.push(probe.flatten().map_or("-".into(), percent));
        }
        t.add_row(cells);
    }
    t
}

fn data_table(fit: &Fit) -> Table {
    let mut t = table(&["run", "steps", "stalled", "own constant ms", "slowness"]);
    for d in &fit.data {
        t.add_row(vec![
            d.run.clone(),
            d.steps.to_string(),
            d.stalled.to_string(),
            format!("{:.2}", d.own_step_s * 1e3),
            format!("{:.3}", d.slowness),
        ]);
    }
    t
}

fn stall_table(fit: &Fit) -> Table {
    let mut t = table(&[
        "class",
        "runs",
        "stalls",
        "share of time",
        "median ms",
        "p90 ms",
        "rule",
    ]);
    for s in &fit.stalls {
        let rule = s.limit.map_or("irregular".to_owned(), |l| {
            format!(
                "busy {:.3} s of each {:.3} s, then stalled; within {:.1} % of every run's length",
                l.busy_s,
                l.period_s,
                l.worst_error_share * 100.0
            )
        });
        t.add_row(vec![
            s.scheduler_class.clone(),
            s.runs.to_string(),
            s.count.to_string(),
            format!("{:.1} %", s.share * 100.0),
            format!("{:.1}", s.median_s * 1e3),
            format!("{:.1}", s.p90_s * 1e3),
            rule,
        ]);
    }
    t
}

fn host_line(fit: &Fit) -> String {
    let h = &fit.host;
    let mut line = format!(
        "Host: {:.1} us between steps (n {}), {:.1} us to add a request (n {})",
        h.between_steps_s * 1e6,
        h.between_steps_n,
        h.add_request_s * 1e6,
        h.add_request_n
    );
    if let Some(further) = h.add_further_request_s {
        line += &format!(
            ", {:.1} us for one right behind it (n {})",
            further * 1e6,
            h.add_further_request_n
        );
    }
    if let Some(idle) = h.add_request_idle_s {
        line += &format!(", {:.1} us when idle (n {})", idle * 1e6, h.add_request_idle_n);
    }
    if let Some(f) = &fit.front_end {
        line += &format!(
            "\nFront end: {:.2} ms from client to engine, {:.2} ms back (n {})",
            f.inbound_s * 1e3,
            f.outbound_s * 1e3,
            f.requests
        );
    }
    if let Some(p) = &fit.speed_probe
        && let (Some(without), Some(with)) = (p.held_out_without, p.held_out_with)
    {
        line += &format!(
            "\nSpeed probe: error of left-out runs' summed step time {:.1} % without, {:.1} % with it ({} runs)",
            without * 100.0,
            with * 100.0,
            p.runs
        );
    }
    line
}
