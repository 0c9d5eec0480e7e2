//! `kneeboard preflight`: the whole job on measured data.

use std::path::{Path, PathBuf};

use clap::Args;

use super::compare::compare_all;
use super::stdout::{FILE_WIDTH, complain, width};
use super::sweep::{outcome_of, sweep, write_tables};
use super::{Global, Outcome, output, overrides, print, progress};
use crate::calibrate::dataset::Dataset;
use crate::calibrate::observed_capture::ServedDefaults;
use crate::calibrate::{FitOptions, fit_steps};
use crate::input::{InputError, prepare_output_folder};
use crate::report::compare::{comparison_text, medians_table, runs_table};
use crate::report::preflight_page::{Calibrated, preflight_page};
use crate::report::sweep_page::{shown_table, sweep_plots, verdict};
use crate::scenario::{Plan, StepTimeSource, machine};
use crate::steptime::AnyFit;
use crate::steptime::Fit;

/// Scenario and result folder when none is named.
const DEFAULT_SCENARIO: &str = "scenarios/preflight-cpu.yaml";
const DEFAULT_OUTPUT: &str = "preflight-out";

/// Calibrate, compare with held-out runs, sweep, find capacities and knees, write the report.
///
/// Step times are fitted to the runs of role `fit` in the scenario's `calibration.dataset`; simulated runs are
/// laid beside the measured ones of role `holdout`; the sweep runs on that fit. A scenario without a data set
/// is swept on the step times that it names.
#[derive(Debug, Args)]
pub struct PreflightArgs {
    /// Scenario file (YAML) [default: scenarios/preflight-cpu.yaml, here or in a folder above].
    scenario: Option<PathBuf>,
    /// Replace one value: a dotted path of the scenario and a YAML value. May be given often; later ones win.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Folder for the results [default: preflight-out, whose earlier results are replaced].
    #[arg(short, long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Replace the results of an earlier run in that folder.
    #[arg(long)]
    overwrite: bool,
}

/// Runs `kneeboard preflight`.
///
/// # Errors
/// [`InputError`] for a scenario, data set or fit that cannot be used; a simulation that cannot go on; I/O.
pub fn run(args: &PreflightArgs, global: &Global) -> anyhow::Result<Outcome> {
    let scenario = match &args.scenario {
        Some(path) => path.clone(),
        None => default_scenario()?,
    };
    let plan = Plan::load(&scenario, &overrides(&args.set)?)?;
    let folder = args
        .output_dir
        .clone()
        .unwrap_or_else(|| PathBuf::from(DEFAULT_OUTPUT));
    let overwrite = args.overwrite || args.output_dir.is_none();
    prepare_output_folder(&folder, overwrite)?;

    let fitted = match plan.dataset() {
        Some(dataset) => {
            refuse_other_step_times(&plan)?;
            Some(fit_dataset(&dataset, global)?)
        }
        None => {
            say(
                global,
                "the scenario names no calibration.dataset: no fit and no comparison are made",
            );
            plan.machine()?;
            None
        }
    };
    // Earlier results go only now that there are new ones.
    output::prepare(&folder, overwrite)?;
    let calibrated = fitted
        .map(|(set, fit)| compare_holdout(set, fit, &folder))
        .transpose()?;
    let machine = match &calibrated {
        Some(c) => Some(machine::of_fit(&c.fit, &folder.join(FIT_FILE))?),
        None => None,
    };
    let configurations = sweep(&plan, machine.as_ref(), &folder, global)?;
    let mut plots = sweep_plots(&plan, &configurations);
    let page = preflight_page(&plan, calibrated.as_ref(), &configurations, &mut plots);
    write_tables(&folder, &configurations)?;
    output::report(&folder, &plan, &page, &plots)?;
    output::seal(
        &folder,
        &output::command_line("preflight", &scenario, &args.set),
        &plan,
    )?;

    let mut text = String::new();
    if let Some(c) = &calibrated {
        text += &format!("{}\n\n", runs_table(&c.comparison.captures).terminal(width()));
        text += &format!("{}\n\n", medians_table(&c.comparison.captures).terminal(width()));
    }
    text += &format!("{}\n\n", shown_table(&configurations).terminal(width()));
    text += &format!("{}\n", verdict(&plan, &configurations).join("\n"));
    text += &format!("report: {}\n", folder.join("report.html").display());
    print(&text)?;
    Ok(outcome_of(&configurations))
}

const FIT_FILE: &str = "fit.yaml";

/// A pre-flight with a data set runs on the fit that it makes: other step times would be ignored.
fn refuse_other_step_times(plan: &Plan) -> Result<(), InputError> {
    let refuse = |place: &str, found: &str| {
        Err(InputError::new(plan.origin(), found).at(place).allowed(
            "preflight fits the runs of calibration.dataset and sweeps on that fit; leave this out, or leave \
             calibration out (--set calibration=null)",
        ))
    };
    if matches!(plan.step_time_source, StepTimeSource::Linear(_)) {
        return refuse(
            "system.step_time",
            "step times are stated beside a data set to fit them to",
        );
    }
    let sets_step_time = |path: &str| {
        [
            "system.fit",
            "system.step_time",
            "system.model",
            "system.accelerator",
        ]
        .iter()
        .any(|p| path.starts_with(p))
    };
    let mut paths = plan.axes().iter().flat_map(|axis| &axis.paths);
    match paths.find(|path| sets_step_time(path)) {
        Some(path) => refuse(
            &format!("sweep.axes.{path}"),
            "one fit cannot serve several of these",
        ),
        None => Ok(()),
    }
}

/// Fits the runs of role `fit`.
fn fit_dataset(dataset: &Path, global: &Global) -> anyhow::Result<(Dataset, Fit)> {
    let set = Dataset::read(dataset)?;
    say(
        global,
        &format!(
            "{}: fitting {} runs, comparing with {} held-out runs",
            set.name,
            set.fit.len(),
            set.holdout.len()
        ),
    );
    let bar = progress::delayed_bar("fitting", 1, global.progress());
    let fit = fit_steps(&set.fit, &FitOptions::default(), &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let fit = fit.map_err(|e| InputError::in_file(dataset, e.to_string()))?;
    Ok((set, fit))
}

/// Writes the fit and compares it with the runs of role `holdout`.
fn compare_holdout(set: Dataset, fit: Fit, folder: &Path) -> anyhow::Result<Calibrated> {
    let path = folder.join(FIT_FILE);
    let yaml = fit
        .to_yaml()
        .map_err(|e| anyhow::anyhow!("the fit cannot be written as YAML: {e}"))?;
    output::text(&path, &yaml)?;
    let any = AnyFit::Linear(Box::new(fit.clone()));
    let comparison = compare_all(&set.holdout, &any, &path, &ServedDefaults::default())?;
    output::text(
        &folder.join("compare.txt"),
        &(comparison_text(&comparison, FILE_WIDTH) + "\n"),
    )?;
    output::text(
        &folder.join("compare.json"),
        &(serde_json::to_string_pretty(&comparison)? + "\n"),
    )?;
    Ok(Calibrated {
        dataset: set.name,
        split: set.split,
        fit,
        comparison,
    })
}

/// The default scenario in the present folder or the nearest one above that has it.
fn default_scenario() -> Result<PathBuf, InputError> {
    let here = std::env::current_dir().unwrap_or_default();
    let found = here
        .ancestors()
        .map(|f| f.join(DEFAULT_SCENARIO))
        .find(|p| p.is_file())
        .ok_or_else(|| {
            InputError::new(DEFAULT_SCENARIO, "is neither in this folder nor in one above")
                .allowed("run preflight in a checkout, or name a scenario")
        })?;
    // A path as the user would write it reads better in the report.
    Ok(found.strip_prefix(&here).map(Path::to_owned).unwrap_or(found))
}

fn say(global: &Global, text: &str) {
    if !global.quiet {
        complain(text);
    }
}
