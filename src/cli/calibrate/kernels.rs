//! `kneeboard calibrate kernels`: what measured kernels say about a device's parameters.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use comfy_table::Table;

use super::{percent, refuse_existing, table};
use crate::calibrate::kernels::{KernelFit, PartFit, carry_over, fit_kernels, read_folder};
use crate::cli::Outcome;
use crate::input::write_atomic;
use crate::profile::catalog;

/// `calibrate kernels`.
#[derive(Debug, Args)]
pub struct KernelsArgs {
    /// Folder with the kernel tables (Parquet) of one device, at any depth.
    #[arg(required_unless_present = "carry_over", value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Profile of the accelerator that the kernels ran on.
    #[arg(long, value_name = "NAME")]
    accelerator: String,
    /// The fit file to write (YAML): the step-time model's parameters, for `--priors` of other fits.
    #[arg(short, long, value_name = "FIT")]
    output: PathBuf,
    /// Also write everything that the kernels tell, by kind of kernel (YAML).
    #[arg(long, value_name = "FILE")]
    details: Option<PathBuf>,
    /// Take the mean and the spread of these details of other devices instead of tables.
    #[arg(long, value_name = "DETAILS", num_args = 1.., conflicts_with = "folder")]
    carry_over: Vec<PathBuf>,
    /// Name of the fit in reports; NAME-kernels without it.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Replace files that exist.
    #[arg(long)]
    overwrite: bool,
    /// Print the fit as JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Runs `kneeboard calibrate kernels`.
///
/// # Errors
/// Bad input ([`crate::input::InputError`]), or a file that cannot be written.
pub fn run(args: &KernelsArgs) -> anyhow::Result<Outcome> {
    refuse_existing(&args.output, args.overwrite)?;
    if let Some(details) = &args.details {
        refuse_existing(details, args.overwrite)?;
    }
    let accelerator = catalog::accelerator(&args.accelerator, Path::new("."))?;
    let fit = match &args.folder {
        Some(folder) => fit_kernels(folder, &read_folder(folder)?, &accelerator)?,
        None => {
            let fits = args
                .carry_over
                .iter()
                .map(|p| KernelFit::read(p))
                .collect::<Result<Vec<_>, _>>()?;
            carry_over(&accelerator, &fits)?
        }
    };
    let name = args
        .name
        .clone()
        .unwrap_or_else(|| format!("{}-kernels", fit.accelerator));
    let roofline = fit.to_roofline(&name, &command(args));
    write(&args.output, &roofline.to_yaml())?;
    if let Some(details) = &args.details {
        write(details, &fit.to_yaml())?;
    }
    let text = if args.json {
        serde_json::to_string_pretty(&fit)?
    } else {
        tables(&fit)
    };
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(Outcome::Done)
}

fn write(path: &Path, yaml: &Result<String, String>) -> anyhow::Result<()> {
    let yaml = yaml
        .as_ref()
        .map_err(|e| anyhow!("{e}"))
        .context("the fit cannot be written as YAML")?;
    write_atomic(path, |w| w.write_all(yaml.as_bytes()))
        .with_context(|| format!("{}: cannot be written", path.display()))
}

/// The command that makes the fit again; paths as they were given.
fn command(args: &KernelsArgs) -> String {
    let mut words = vec!["kneeboard calibrate kernels".to_owned()];
    words.extend(args.folder.iter().map(|f| f.display().to_string()));
    words.push(format!("--accelerator {}", args.accelerator));
    if !args.carry_over.is_empty() {
        words.push("--carry-over".into());
        words.extend(args.carry_over.iter().map(|f| f.display().to_string()));
    }
    words.extend(args.name.iter().map(|n| format!("--name {n}")));
    words.push(format!("-o {}", args.output.display()));
    words.join(" ")
}

fn tables(fit: &KernelFit) -> String {
    let source = if fit.carried_over {
        "carried over from"
    } else {
        "measured on"
    };
    let mut blocks = vec![
        format!(
            "Kernels for {}, {source} {}",
            fit.accelerator,
            fit.devices.join(", ")
        ),
        format!(
            "Parameters, each a log-normal prior\n{}",
            parameter_table(&fit.parts)
        ),
    ];
    if fit.parts.iter().any(|p| !p.held_out.is_empty()) {
        blocks.push(format!(
            "Error on families of shapes left out of the fit, (predicted - measured) / measured\n{}",
            error_table(&fit.parts)
        ));
    }
    for part in &fit.parts {
        blocks.extend(part.note.as_ref().map(|note| format!("{}: {note}", part.part)));
    }
    for left in fit.data.iter().filter(|d| d.left_out.is_some()) {
        blocks.push(format!(
            "not read: {} ({})",
            left.file,
            left.left_out.as_deref().unwrap_or_default()
        ));
    }
    blocks.join("\n\n")
}

fn parameter_table(parts: &[PartFit]) -> Table {
    let mut t = table(&["kernels", "name", "value", "unit", "log sd", "telling rows", ""]);
    for part in parts {
        for p in &part.parameters {
            t.add_row(vec![
                part.part.clone(),
                p.name.clone(),
                format!("{:.4e}", p.value),
                p.unit.clone(),
                format!("{:.3}", p.log_sd),
                p.telling_rows.to_string(),
                if p.at_bound {
                    "at its bound".into()
                } else {
                    String::new()
                },
            ]);
        }
    }
    t
}

fn error_table(parts: &[PartFit]) -> Table {
    let mut t = table(&["kernels", "regime", "rows", "bias", "median abs", "p90 abs"]);
    for part in parts {
        for e in &part.held_out {
            t.add_row(vec![
                part.part.clone(),
                e.regime.clone(),
                e.rows.to_string(),
                percent(e.bias),
                percent(e.median_abs),
                percent(e.p90_abs),
            ]);
        }
    }
    t
}
