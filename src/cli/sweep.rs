//! `kneeboard sweep` and `kneeboard capacity`.

use std::path::{Path, PathBuf};

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

use super::simulate::{draws, unwrap_input};
use super::stdout::{complain, width};
use super::{Global, Outcome, ScenarioArgs, output, print, progress};
use crate::explore::grid::{MOST_CONFIGURATIONS, Setting, combinations, overrides};
use crate::explore::group_plan::{Demand, GroupPlan, NoGroupPlan, Survive, group_plan};
use crate::explore::study::StudyError;
use crate::explore::sweep::{Configuration, ConfigurationOutcome, run_sweep, run_sweep_told};
use crate::input::InputError;
use crate::metric::export::write_json;
use crate::report::group_plan::group_plan_tables;
use crate::report::sweep_page::{
    best, configurations_table, points_table, shown_table, sweep_page, sweep_plots, verdict,
};
use crate::scenario::{Machine, Plan};
use crate::units::written;
use crate::verify::predicted::{Draws, FEWEST_DRAWS, capacity_interval};

/// Run every combination of a scenario's sweep axes, and find the capacity of each if the scenario asks for it.
///
/// Writes a folder: configurations/ (one file each, as it finishes), sweep.json, sweep.csv, loads.csv, plots,
/// report.html, resolved.yaml, checksums.
#[derive(Debug, Args)]
pub struct SweepArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Folder for the results.
    #[arg(short, long, value_name = "DIR")]
    output_dir: PathBuf,
    /// Replace the results of an earlier sweep in that folder.
    #[arg(long)]
    overwrite: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    intervals: IntervalArgs,
}

/// How sure a capacity is.
#[derive(Debug, Args)]
pub struct IntervalArgs {
    /// Search the best capacity again in so many guises of the fits behind its step times, 8 to 16: the interval says
    /// whether the boundary is certain. Costs a few loads a guise.
    #[arg(long, value_name = "N|off", value_parser = draws, default_value = "off", hide_default_value = true)]
    intervals: Draws,
}

/// Find the highest load that one scenario carries at its SLO; its sweep axes are left aside.
#[derive(Debug, Args)]
pub struct CapacityArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Of a cluster: the load to plan groups for, requests a second; without it, the scenario's own rate.
    #[arg(long, value_name = "RATE")]
    peak: Option<f64>,
    /// Of a cluster: how much more than that may come, as a share, such as 0.2.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    margin: f64,
    /// Of a cluster: what may fail at the peak.
    #[arg(long, value_enum, default_value_t = SurviveArg::Node)]
    survive: SurviveArg,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    intervals: IntervalArgs,
}

/// What may fail at the peak.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum SurviveArg {
    /// Nothing: no reserve.
    Nothing,
    /// One group.
    Group,
    /// The node with the most groups of a pool.
    Node,
    /// The zone with the most groups of a pool.
    Zone,
}

/// What `sweep --json` and `capacity --json` print, and `sweep.json` holds.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SweepReport {
    /// Configurations, the last axis changing fastest.
    pub configurations: Vec<Configuration>,
    /// Of `capacity` on a cluster: whole groups for a load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups_to_plan: Option<GroupPlan>,
}

/// Runs `kneeboard sweep`.
///
/// # Errors
/// [`InputError`] for a scenario that cannot be run; a simulation that cannot go on; I/O.
pub fn run(args: &SweepArgs, global: &Global) -> anyhow::Result<Outcome> {
    let plan = args.scenario.plan()?;
    // A fit that cannot be read is the scenario's fault, not that of one configuration.
    plan.machines()?;
    output::prepare(&args.output_dir, args.overwrite)?;
    let mut configurations = sweep(&plan, None, &args.output_dir, global)?;
    args.intervals.tell(&plan, &mut configurations, global)?;
    let plots = sweep_plots(&plan, &configurations);
    let page = sweep_page(&plan, &configurations, &plots);
    write_tables(&args.output_dir, &configurations)?;
    output::report(&args.output_dir, &plan, &page, &plots)?;
    output::seal(
        &args.output_dir,
        &output::command_line("sweep", &args.scenario.scenario, &args.scenario.set),
        &plan,
    )?;
    let folder = format!("results: {}\n", args.output_dir.display());
    finish(&plan, configurations, None, args.json, &folder)
}

/// Runs `kneeboard capacity`.
///
/// # Errors
/// As [`run`].
pub fn run_capacity(args: &CapacityArgs, global: &Global) -> anyhow::Result<Outcome> {
    let plan = args.scenario.plan()?;
    // A fit that cannot be read is the scenario's fault, not that of one configuration.
    plan.machines()?;
    if plan.capacity_rates().is_none() {
        return Err(InputError::new(plan.origin(), "asks for no capacity search")
            .at("sweep.search.capacity")
            .allowed("give a range, as --set 'sweep.search.capacity={rate: [0.5, 30]}'")
            .into());
    }
    if !plan.axes().is_empty() {
        complain(
            "kneeboard: note: axes are swept by `kneeboard sweep`; capacity is searched for the base configuration only",
        );
    }
    let demand = demand(args, &plan)?;
    let bar = progress::delayed_count("searching", global.progress());
    let told = || bar.inc(1);
    let mut configurations =
        run_sweep_told(&plan, None, &[Setting::new()], |_, _| Ok(()), &told).map_err(unwrap_input)?;
    let planned = match (demand, configurations.first().and_then(Configuration::capacity)) {
        (Some(demand), Some(capacity)) => {
            Some(group_plan(&plan, &demand, capacity, &told).map_err(unwrap_input)?)
        }
        _ => None,
    };
    bar.finish_and_clear();
    args.intervals.tell(&plan, &mut configurations, global)?;
    finish(&plan, configurations, planned, args.json, "")
}

/// What groups are planned for; nothing where the scenario is no cluster or nobody says how much.
fn demand(args: &CapacityArgs, plan: &Plan) -> Result<Option<Demand>, InputError> {
    let refuse = |flag: &str, value: f64, allowed: &str| {
        Err(InputError::new(flag, format!("{} cannot be used", written(value))).allowed(allowed))
    };
    if let Some(peak) = args.peak.filter(|p| !(p.is_finite() && *p > 0.0)) {
        return refuse("--peak", peak, "requests a second, above 0");
    }
    if !(0.0..=100.0).contains(&args.margin) {
        return refuse("--margin", args.margin, "a share of 0 or more, such as 0.2");
    }
    let own = plan.scenario.load.arrival.rate.map(|r| r.0);
    let peak_rps = args.peak.or(own).filter(|_| plan.cluster().is_some());
    Ok(peak_rps.map(|peak_rps| Demand {
        peak_rps,
        margin: args.margin,
        survive: match args.survive {
            SurviveArg::Nothing => Survive::Nothing,
            SurviveArg::Group => Survive::Group,
            SurviveArg::Node => Survive::Node,
            SurviveArg::Zone => Survive::Zone,
        },
    }))
}

impl IntervalArgs {
    /// Adds the interval of the best capacity, if it is asked for.
    fn tell(&self, plan: &Plan, configurations: &mut [Configuration], global: &Global) -> anyhow::Result<()> {
        let draws = match self.intervals {
            Draws::Off => return Ok(()),
            Draws::Auto => FEWEST_DRAWS,
            Draws::Of(n) => n,
        };
        let best = best(configurations).map(|b| b.label.clone());
        let Some(best) = configurations
            .iter_mut()
            .find(|c| Some(&c.label) == best.as_ref())
        else {
            return Ok(());
        };
        let bar = progress::delayed_bar("searching again", 1, global.progress());
        let plan = plan.point(&overrides(&best.setting))?;
        if let ConfigurationOutcome::Capacity(capacity) = &mut best.outcome {
            capacity.interval = capacity_interval(&plan, capacity, draws).map_err(unwrap_input)?;
        }
        bar.finish_and_clear();
        Ok(())
    }
}

/// Runs every combination with a progress bar; each configuration's outcome is on disk as soon as it is known.
pub(super) fn sweep(
    plan: &Plan,
    machine: Option<&Machine>,
    folder: &Path,
    global: &Global,
) -> anyhow::Result<Vec<Configuration>> {
    let settings = combinations(plan.axes()).ok_or_else(|| {
        InputError::new(
            plan.origin(),
            format!("asks for more than {MOST_CONFIGURATIONS} configurations"),
        )
        .at("sweep.axes")
        .allowed("fewer axes or fewer values")
    })?;
    let bar = progress::delayed_bar("configurations", settings.len() as u64, global.progress());
    let outcomes = run_sweep(plan, machine, &settings, |index, configuration| {
        let path = folder.join("configurations").join(format!("{index:06}.json"));
        write_json(&path, configuration)
            .map_err(|e| StudyError::Input(InputError::in_file(&path, format!("cannot be written ({e})"))))?;
        bar.inc(1);
        Ok(())
    });
    bar.finish_and_clear();
    outcomes.map_err(unwrap_input)
}

/// The tables of a sweep as files.
pub(super) fn write_tables(folder: &Path, configurations: &[Configuration]) -> anyhow::Result<()> {
    output::csv(folder, "sweep.csv", &configurations_table(configurations))?;
    output::csv(folder, "loads.csv", &points_table(configurations))?;
    let report = SweepReport {
        configurations: configurations.to_vec(),
        groups_to_plan: None,
    };
    output::text(
        &folder.join("sweep.json"),
        &(serde_json::to_string_pretty(&report)? + "\n"),
    )
}

fn finish(
    plan: &Plan,
    configurations: Vec<Configuration>,
    planned: Option<Result<GroupPlan, NoGroupPlan>>,
    json: bool,
    folder: &str,
) -> anyhow::Result<Outcome> {
    let outcome = outcome_of(&configurations);
    let text = if json {
        let groups_to_plan = planned.and_then(Result::ok);
        serde_json::to_string_pretty(&SweepReport {
            configurations,
            groups_to_plan,
        })? + "\n"
    } else {
        let mut lines = verdict(plan, &configurations).join("\n");
        match &planned {
            Some(Ok(planned)) => {
                for table in group_plan_tables(planned) {
                    lines += &format!("\n\n{}", table.terminal(width()));
                }
                lines.push('\n');
            }
            Some(Err(no)) => lines += &format!("\nnote: {}", no.0),
            None if plan.cluster().is_some() && planned_for(&configurations) => {
                lines += "\nnote: --peak RATE plans whole groups for a load";
            }
            None => {}
        }
        for limitation in plan.limitations() {
            lines += &format!("\nlimitation: {limitation}");
        }
        format!(
            "{}\n\n{lines}\n{folder}",
            shown_table(&configurations).terminal(width())
        )
    };
    print(&text)?;
    Ok(outcome)
}

/// A capacity alone was searched, so that groups could be planned.
fn planned_for(configurations: &[Configuration]) -> bool {
    matches!(configurations, [one] if one.setting.is_empty() && one.capacity().is_some())
}

/// Nothing feasible: no configuration could be run, or none of those searched carries any load.
pub(super) fn outcome_of(configurations: &[Configuration]) -> Outcome {
    let useful = |c: &Configuration| match c.capacity() {
        Some(capacity) => capacity.capacity_rps.is_some(),
        None => c.is_feasible(),
    };
    if configurations.iter().any(useful) {
        Outcome::Done
    } else {
        Outcome::NothingFeasible
    }
}
