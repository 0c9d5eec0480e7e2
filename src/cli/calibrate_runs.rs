//! `kneeboard calibrate events`, `calibrate points` and `calibrate steps --form roofline`: the roofline's parameters.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use sha2::{Digest, Sha256};

use super::calibrate::StepsArgs;
use super::{Global, Outcome, progress};
use crate::calibrate::FitError;
use crate::calibrate::fit_roofline_steps::{data_rows, fit_roofline_steps, steps_file, steps_runs};
use crate::calibrate::fit_runs::{Priors, RunFitOptions, fit_runs};
use crate::calibrate::observed::ObservedRun;
use crate::calibrate::observed_capture::{ServedDefaults, observed};
use crate::calibrate::points::{PointDefaults, read_points};
use crate::calibrate::read_captures;
use crate::calibrate::roofline_file::{FitHead, priors_of, roofline_file};
use crate::input::{InputError, read_text, write_atomic};
use crate::report::roofline_fit::fit_text;
use crate::steptime::fit_parts::FitData;
use crate::steptime::roofline_fit::Door;
use crate::steptime::{Deployment, RooflineFit};

/// What all doors are told.
#[derive(Debug, Args)]
pub struct RunFitArgs {
    /// The fit file to write (YAML).
    #[arg(short, long, value_name = "FIT")]
    pub(super) output: PathBuf,
    /// Replace the fit file if it exists.
    #[arg(long)]
    pub(super) overwrite: bool,
    /// A fit whose parameters and spreads are believed beforehand, as `calibrate kernels` writes it; may be given again:
    /// of each parameter the first that identified it counts.
    #[arg(long, value_name = "FIT")]
    pub(super) priors: Vec<PathBuf>,
    /// Accelerator profile of data that name none.
    #[arg(long, value_name = "NAME")]
    pub(super) accelerator: Option<String>,
    /// Name of the fit; the output's name by default.
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Do not leave runs, models and degrees of parallelism out in turn; errors on unseen runs are then guessed.
    #[arg(long)]
    pub(super) no_hold_out: bool,
    /// Seed of the resampling.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Parameter vectors drawn for intervals.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u16).range(8..=200))]
    draws: u16,
    /// Print the fit as JSON instead of tables.
    #[arg(long)]
    pub(super) json: bool,
}

/// `calibrate events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Capture folders, or folders of capture folders; steps are not needed.
    #[arg(required = true, value_name = "CAPTURE")]
    captures: Vec<PathBuf>,
    /// Model profile of captures that name none.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Most requests of a capture whose times are compared, from the end of its warm-up on.
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(20..))]
    max_requests: u32,
    #[command(flatten)]
    fit: RunFitArgs,
}

/// `calibrate points`.
#[derive(Debug, Args)]
pub struct PointsArgs {
    /// Tables of summary rows (CSV).
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// vLLM release of rows that name none.
    #[arg(long, value_name = "VERSION")]
    engine_version: Option<String>,
    /// KV-cache format of rows that name none; the model profile's by default.
    #[arg(long, value_name = "FORMAT")]
    kv_dtype: Option<String>,
    /// Leave the first request of each client of a closed loop out of the figures.
    #[arg(long)]
    drop_first_round: bool,
    #[command(flatten)]
    fit: RunFitArgs,
}

/// Runs `kneeboard calibrate events`.
///
/// # Errors
/// Bad input, runs that cannot be simulated, or a file that cannot be written.
pub fn events(args: &EventsArgs, global: &Global) -> anyhow::Result<Outcome> {
    super::calibrate::refuse_existing(&args.fit.output, args.fit.overwrite)?;
    let captures = read_captures(&args.captures)?;
    let defaults = ServedDefaults {
        accelerator: args.fit.accelerator.clone(),
        model: args.model.clone(),
        engine_version: None,
    };
    let mut runs = Vec::new();
    let (mut data, mut notes, mut engines) = (Vec::new(), Vec::new(), Vec::new());
    for capture in &captures {
        let run = observed(capture, &defaults, args.max_requests as usize)?;
        let counted = run.counted.iter().filter(|c| **c).count();
        if counted == 0 {
            return Err(
                InputError::in_file(&capture.folder, "holds no request after its warm-up")
                    .at("warmup_s")
                    .allowed("a warm-up shorter than the run")
                    .into(),
            );
        }
        if counted == args.max_requests as usize {
            notes.push(format!(
                "{}: the first {counted} requests after the warm-up",
                run.name
            ));
        }
        notes.extend(
            capture
                .assumptions
                .iter()
                .map(|a| format!("{}: assumed {a}", run.name)),
        );
        data.push(FitData {
            run: run.name.clone(),
            sha256: capture.steps_sha256.clone(),
            n: counted as u64,
        });
        engines.push(format!("vllm {}", capture.manifest.vllm));
        runs.push(run);
    }
    let mut command = format!("kneeboard calibrate events {}", shown(&args.captures));
    if args.max_requests != 3000 {
        command += &format!(" --max-requests {}", args.max_requests);
    }
    if let Some(model) = &args.model {
        command += &format!(" --model {model}");
    }
    finish(
        &runs,
        Door::Events,
        command,
        data,
        notes,
        engines,
        &args.fit,
        global,
    )
}

/// Runs `kneeboard calibrate points`.
///
/// # Errors
/// As [`events`].
pub fn points(args: &PointsArgs, global: &Global) -> anyhow::Result<Outcome> {
    super::calibrate::refuse_existing(&args.fit.output, args.fit.overwrite)?;
    let defaults = PointDefaults {
        accelerator: args.fit.accelerator.clone(),
        engine_version: args.engine_version.clone(),
        kv_dtype: args.kv_dtype.clone(),
        drop_first_round: args.drop_first_round,
    };
    let mut runs = Vec::new();
    let (mut data, mut notes, mut engines) = (Vec::new(), Vec::new(), Vec::new());
    for file in &args.files {
        let points = read_points(file, &defaults)?;
        let name = file
            .file_stem()
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        data.push(FitData {
            run: name.clone(),
            sha256: Sha256::digest(read_text(file)?.as_bytes())
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect(),
            n: points.len() as u64,
        });
        for mut point in points {
            if point.run.observations.is_empty() {
                continue;
            }
            point.run.name = format!("{name} {}", point.run.name);
            for assumption in point.assumptions {
                let note = format!("{name}: assumed {assumption}");
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
            engines.push(format!("vllm {}", point.run.engine.behaviour.version));
            runs.push(point.run);
        }
    }
    if runs.is_empty() {
        return Err(InputError::new("points", "no row holds a measured figure")
            .allowed("at least one of ttft_ms, tpot_ms, e2e_ms, throughput_tok_s")
            .into());
    }
    let mut command = format!("kneeboard calibrate points {}", shown(&args.files));
    if let Some(version) = &args.engine_version {
        command += &format!(" --engine-version {version}");
    }
    if let Some(format) = &args.kv_dtype {
        command += &format!(" --kv-dtype {format}");
    }
    if args.drop_first_round {
        command += " --drop-first-round";
    }
    finish(
        &runs,
        Door::Points,
        command,
        data,
        notes,
        engines,
        &args.fit,
        global,
    )
}

fn shown(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|p| p.display().to_string())
        .collect::<Vec<_>>()
        .join(" ")
}

#[allow(clippy::too_many_arguments)] // the two doors differ in nothing else
fn finish(
    runs: &[ObservedRun],
    door: Door,
    mut command: String,
    data: Vec<FitData>,
    mut notes: Vec<String>,
    mut engines: Vec<String>,
    args: &RunFitArgs,
    global: &Global,
) -> anyhow::Result<Outcome> {
    let priors = priors(
        args,
        &accelerators(runs.iter().map(|r| &r.deployment)),
        &mut notes,
    )?;
    command += &args.of_command();
    let bar = progress::delayed_bar("fitting", 1, global.progress());
    let fit = fit_runs(runs, &priors, args.options(), &|what| {
        bar.set_message(what.to_owned());
        bar.tick();
    })
    .map_err(|e| InputError::new("runs", e.to_string()))?;
    engines.sort();
    engines.dedup();
    let name = args.name.clone().unwrap_or_else(|| stem(&args.output));
    let head = FitHead {
        name,
        door,
        command,
        data,
        notes,
        engines,
    };
    let file =
        roofline_file(head, runs, &priors, &fit).map_err(|e| InputError::new("runs", e.to_string()))?;
    bar.finish_and_clear();
    deliver(&file, args)
}

/// Runs `kneeboard calibrate steps --form roofline`.
///
/// # Errors
/// As [`events`].
pub fn roofline_steps(args: &StepsArgs, global: &Global) -> anyhow::Result<Outcome> {
    super::calibrate::refuse_existing(&args.fit.output, args.fit.overwrite)?;
    let captures = read_captures(&args.captures)?;
    let defaults = ServedDefaults {
        accelerator: args.fit.accelerator.clone(),
        model: args.model.clone(),
        engine_version: None,
    };
    // What cannot be fitted is the captures' fault, so it is reported as bad input.
    let unusable = |e: FitError| match e {
        FitError::Capture(e) => e,
        other => InputError::new("captures", other.to_string()),
    };
    let runs = steps_runs(&captures, &defaults).map_err(unusable)?;
    let mut notes: Vec<String> = captures
        .iter()
        .flat_map(|c| c.assumptions.iter().map(|a| format!("{}: assumed {a}", c.name)))
        .collect();
    let mut engines: Vec<String> = captures
        .iter()
        .map(|c| format!("vllm {}", c.manifest.vllm))
        .collect();
    engines.sort();
    engines.dedup();
    let priors = priors(
        &args.fit,
        &accelerators(runs.iter().map(|r| &r.deployment)),
        &mut notes,
    )?;
    let mut command = format!(
        "kneeboard calibrate steps {} --form roofline",
        shown(&args.captures)
    );
    if let Some(model) = &args.model {
        command += &format!(" --model {model}");
    }
    command += &args.fit.of_command();
    let bar = progress::delayed_bar("fitting", 1, global.progress());
    let fit = fit_roofline_steps(&runs, &priors, args.fit.options(), &|what| {
        bar.set_message(what.to_owned());
        bar.tick();
    })
    .map_err(unusable)?;
    bar.finish_and_clear();
    let head = FitHead {
        name: args.fit.name.clone().unwrap_or_else(|| stem(&args.fit.output)),
        door: Door::Steps,
        command,
        data: data_rows(&captures, &runs),
        notes,
        engines,
    };
    deliver(&steps_file(head, &runs, &priors, &fit), &args.fit)
}

/// Names of the accelerators that the runs were made on.
fn accelerators<'a>(deployments: impl Iterator<Item = &'a Deployment>) -> BTreeSet<String> {
    deployments.map(|d| d.accelerator.name.clone()).collect()
}

/// The priors that are named, or the general ones.
fn priors(
    args: &RunFitArgs,
    accelerators: &BTreeSet<String>,
    notes: &mut Vec<String>,
) -> Result<Priors, InputError> {
    let mut believed = Vec::new();
    for path in &args.priors {
        let fit = RooflineFit::read(path)?;
        notes.push(format!("priors: the fit {}", fit.name));
        believed.push(fit);
    }
    Ok(priors_of(&believed, accelerators))
}

impl RunFitArgs {
    fn options(&self) -> RunFitOptions {
        RunFitOptions {
            seed: self.seed,
            draws: usize::from(self.draws),
            hold_out: !self.no_hold_out,
            polish: 0,
        }
    }

    /// The options as the fit's file repeats them; defaults are left out.
    fn of_command(&self) -> String {
        let mut out = String::new();
        for (flag, value) in [
            ("--accelerator", self.accelerator.clone()),
            ("--name", self.name.clone()),
            ("--seed", (self.seed != 1).then(|| self.seed.to_string())),
            ("--draws", (self.draws != 24).then(|| self.draws.to_string())),
        ] {
            if let Some(value) = value {
                out += &format!(" {flag} {value}");
            }
        }
        for path in &self.priors {
            out += &format!(" --priors {}", path.display());
        }
        if self.no_hold_out {
            out += " --no-hold-out";
        }
        out + &format!(" -o {}", self.output.display())
    }
}

/// Writes the fit and prints it.
fn deliver(file: &RooflineFit, args: &RunFitArgs) -> anyhow::Result<Outcome> {
    write_fit(file, &args.output)?;
    let text = if args.json {
        serde_json::to_string_pretty(file)?
    } else {
        fit_text(file)
    };
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(Outcome::Done)
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .map_or_else(|| "fit".to_owned(), |n| n.to_string_lossy().into_owned())
}

/// Writes a fit, whole or not at all.
///
/// # Errors
/// When it cannot be written.
pub fn write_fit(file: &RooflineFit, output: &Path) -> anyhow::Result<()> {
    let yaml = file
        .to_yaml()
        .map_err(|e| anyhow!(e))
        .context("the fit cannot be written as YAML")?;
    write_atomic(output, |w| w.write_all(yaml.as_bytes()))
        .with_context(|| format!("{}: cannot be written", output.display()))?;
    Ok(())
}
