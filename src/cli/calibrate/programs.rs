//! `kneeboard calibrate programs`: fit static shapes to measured times of compiled programs.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use sha2::{Digest, Sha256};

use super::refuse_existing;
use crate::calibrate::fit_programs::{ProgramFitHead, StaticPriors, fit_programs};
use crate::calibrate::programs::{read_programs, refuse_contradictions};
use crate::cli::Outcome;
use crate::input::{InputError, nearest, read_text, write_atomic};
use crate::report::roofline_fit::static_fit_text;
use crate::steptime::fit_parts::FitData;
use crate::steptime::static_parameters::{STATIC_SPECS, StaticParam};
use crate::steptime::{AnyFit, StaticFit};

/// `calibrate programs`.
#[derive(Debug, Args)]
pub struct ProgramsArgs {
    /// Tables of measured programs (CSV; docs/FORMATS.md).
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The fit file to write (YAML).
    #[arg(short, long, value_name = "FIT")]
    output: PathBuf,
    /// Name of the fit in reports; that of the file without it.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A fit of static shapes of another device or model, whose parameters are the priors of this one.
    #[arg(long, value_name = "FIT")]
    priors: Option<PathBuf>,
    /// What is known of a parameter beforehand: its median and the standard deviation of its logarithm.
    #[arg(long = "prior", value_name = "NAME=MEDIAN:LOG_SD")]
    own_priors: Vec<String>,
    /// What standard deviations of the priors that --priors gives are multiplied by, since another model or device is
    /// never quite like it: 1 to 100; 2 without it.
    #[arg(long, value_name = "FACTOR", allow_hyphen_values = true)]
    widen: Option<String>,
    /// The engine that ran the programs, as `vllm-neuron 0.2.0`.
    #[arg(long, value_name = "ENGINE")]
    engine: Vec<String>,
    /// A remark for readers of the fit.
    #[arg(long, value_name = "TEXT")]
    note: Vec<String>,
    /// Leave no deployments out to test the fit.
    #[arg(long)]
    no_hold_out: bool,
    /// Replace a file that exists.
    #[arg(long)]
    overwrite: bool,
    /// Print the fit as JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Runs `kneeboard calibrate programs`.
///
/// # Errors
/// Bad input ([`InputError`]), or a file that cannot be written.
pub fn run(args: &ProgramsArgs) -> anyhow::Result<Outcome> {
    refuse_existing(&args.output, args.overwrite)?;
    let priors = priors(args)?;
    let (mut rows, mut data) = (Vec::new(), Vec::new());
    for file in &args.files {
        let of_file = read_programs(file)?;
        data.push(FitData {
            run: stem(file),
            sha256: Sha256::digest(read_text(file)?.as_bytes())
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect(),
            n: of_file.len() as u64,
        });
        rows.extend(of_file);
    }
    refuse_contradictions(&rows)?;
    let head = ProgramFitHead {
        name: args.name.clone().unwrap_or_else(|| stem(&args.output)),
        command: command(args),
        data,
        engines: args.engine.clone(),
        notes: args.note.clone(),
    };
    let fit = fit_programs(&rows, &priors, head, !args.no_hold_out).map_err(|e| {
        InputError::new("accelerator", e.to_string()).allowed("add the figure to the profile")
    })?;
    let yaml = fit
        .to_yaml()
        .map_err(|e| anyhow!(e))
        .context("the fit cannot be written as YAML")?;
    write_atomic(&args.output, |w| w.write_all(yaml.as_bytes()))
        .with_context(|| format!("{}: cannot be written", args.output.display()))?;
    let text = if args.json {
        serde_json::to_string_pretty(&fit)?
    } else {
        static_fit_text(&fit)
    };
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(Outcome::Done)
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

fn priors(args: &ProgramsArgs) -> Result<StaticPriors, InputError> {
    let mut priors = StaticPriors::default();
    let widen = widen(args)?;
    if let Some(path) = &args.priors {
        let AnyFit::StaticShape(fit) = AnyFit::read(path)? else {
            return Err(InputError::in_file(path, "is no fit of static shapes")
                .at("--priors")
                .allowed("a fit that `kneeboard calibrate programs` wrote"));
        };
        take(&mut priors, &fit, widen);
    }
    for text in &args.own_priors {
        let (param, median, log_sd) = own_prior(text)?;
        priors.values[param] = median;
        priors.log_sd[param as usize] = log_sd;
    }
    Ok(priors)
}

/// The factor of `--widen`, which says something only of the priors of another fit.
fn widen(args: &ProgramsArgs) -> Result<f64, InputError> {
    let Some(text) = &args.widen else {
        return Ok(WIDEN);
    };
    if args.priors.is_none() {
        return Err(
            InputError::new("--widen", "widens the priors of a fit, and none is given")
                .allowed("name the fit with --priors, or leave --widen out"),
        );
    }
    match text.parse() {
        Ok(factor) if (1.0..=100.0).contains(&factor) => Ok(factor),
        _ => Err(InputError::new("--widen", format!("found '{text}'")).allowed("a number from 1 to 100")),
    }
}

/// What priors of another fit are widened by where nothing is said.
const WIDEN: f64 = 2.0;

/// Parameters of another fit, with more doubt, but never with more than there was without it.
fn take(priors: &mut StaticPriors, fit: &StaticFit, widen: f64) {
    priors.values = fit.values();
    for ((sd, p), spec) in priors.log_sd.iter_mut().zip(&fit.parameters).zip(STATIC_SPECS) {
        *sd = (widen * p.log_sd).clamp(LEAST_PRIOR_SD, spec.prior_log_sd.max(LEAST_PRIOR_SD));
    }
}

/// A prior without any width would hold the parameter fast.
const LEAST_PRIOR_SD: f64 = 1e-3;

/// `matrix_compute=0.7:0.1`.
fn own_prior(text: &str) -> Result<(StaticParam, f64, f64), InputError> {
    let wrong = |found: String| InputError::new("--prior", found);
    let parts = text.split_once('=').and_then(|(name, rest)| {
        let (median, log_sd) = rest.split_once(':')?;
        Some((name, median.parse::<f64>().ok()?, log_sd.parse::<f64>().ok()?))
    });
    let Some((name, median, log_sd)) = parts else {
        return Err(wrong(format!("'{text}' cannot be read"))
            .allowed("NAME=MEDIAN:LOG_SD, as matrix_compute=0.7:0.1"));
    };
    let Some(param) = StaticParam::named(name) else {
        let names = STATIC_SPECS.map(|s| s.name);
        let mut error = wrong(format!("'{name}' is no parameter")).allowed(names.join(", "));
        error.nearest = nearest(name, names);
        return Err(error);
    };
    let (low, high) = param.spec().bounds;
    if !(low..=high).contains(&median) || !(LEAST_PRIOR_SD..=10.0).contains(&log_sd) {
        return Err(wrong(format!("'{text}' is out of bounds")).allowed(format!(
            "a median of {low} to {high}, a deviation of {LEAST_PRIOR_SD} to 10"
        )));
    }
    Ok((param, median, log_sd))
}

/// The command that makes the fit again; paths as they were given.
fn command(args: &ProgramsArgs) -> String {
    let mut words = vec!["kneeboard calibrate programs".to_owned()];
    words.extend(args.files.iter().map(|f| f.display().to_string()));
    if let Some(priors) = &args.priors {
        let widen = args.widen.clone().unwrap_or_else(|| WIDEN.to_string());
        words.push(format!("--priors {} --widen {widen}", priors.display()));
    }
    words.extend(args.own_priors.iter().map(|p| format!("--prior {p}")));
    words.extend(args.engine.iter().map(|e| format!("--engine {e:?}")));
    words.extend(args.note.iter().map(|n| format!("--note {n:?}")));
    words.extend(args.no_hold_out.then(|| "--no-hold-out".to_owned()));
    words.extend(args.name.iter().map(|n| format!("--name {n}")));
    words.push(format!("-o {}", args.output.display()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stated_prior_is_read_and_slips_are_told() {
        let (param, median, sd) = own_prior("matrix_compute=0.7:0.1").unwrap();
        assert_eq!((param, median, sd), (StaticParam::MatrixCompute, 0.7, 0.1));
        let told = |text: &str| own_prior(text).unwrap_err().to_string();
        assert!(told("matrix_computes=0.7:0.1").contains("matrix_compute"));
        assert!(told("matrix_compute=0.7").contains("LOG_SD"));
        assert!(told("matrix_compute=7:0.1").contains("0.02 to 1"));
    }
}
