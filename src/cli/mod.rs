//! The command line. Only this floor knows clap; one file a subcommand.
//!
//! Data go to stdout, everything else to stderr. A command returns an [`Outcome`]; an error is printed once,
//! as one paragraph.

mod calibrate;
mod calibrate_runs;
mod compare;
mod completions;
mod conform;
mod explain;
mod import;
mod output;
mod preflight;
mod profile;
mod progress;
mod schema;
mod show;
mod simulate;
mod stdout;
mod sweep;
mod trace;

use std::io;
use std::process::ExitCode;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::input::InputError;
use crate::profile::catalog;
use crate::scenario::Override;

pub use schema::{SchemaEntry, schemas};
pub use stdout::print;

/// How a command ended; the process's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Done.
    Done = 0,
    /// The run failed.
    Failed = 1,
    /// Bad usage or bad input.
    BadInput = 2,
    /// It finished, but a check that was asked for failed.
    CheckFailed = 3,
    /// Nothing feasible was found.
    NothingFeasible = 4,
    /// Interrupted; what was finished is kept.
    Interrupted = 130,
}

/// The pre-flight for LLM serving: simulate a serving engine, calibrated by real traces, before you rent it.
#[derive(Debug, Parser)]
#[command(name = "kneeboard", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 run failed, 2 bad input, 3 a requested check failed, \
                        4 nothing feasible, 130 interrupted."
)]
pub struct Cli {
    /// What every subcommand knows.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every subcommand.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// Say more on stderr; twice for still more.
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub verbose: u8,
    /// Say nothing on stderr but errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// No progress bars (there are none anyway when stderr is no terminal).
    #[arg(long, global = true)]
    pub no_progress: bool,
    /// Folder of your own profiles (accelerators/, models/, instances/, engines/, or files side by side), which
    /// win over those that ship; without it, the one that $KNEEBOARD_PROFILES names.
    #[arg(long, global = true, value_name = "DIR")]
    pub profiles: Option<std::path::PathBuf>,
}

impl Global {
    /// Progress bars are wanted.
    pub fn progress(&self) -> bool {
        use io::IsTerminal;
        !self.no_progress && !self.quiet && io::stderr().is_terminal()
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The whole job: calibrate, compare with held-out runs, sweep, find capacities and knees, write the report.
    Preflight(preflight::PreflightArgs),
    /// Simulate a scenario at its own load.
    Simulate(simulate::SimulateArgs),
    /// Run every combination of a scenario's sweep axes.
    Sweep(sweep::SweepArgs),
    /// Find the highest load that a scenario carries at its SLO.
    Capacity(sweep::CapacityArgs),
    /// Replay recorded vLLM scheduler logs through the engine, step by step.
    Conform(conform::ConformArgs),
    /// Fit models to measurements.
    Calibrate(calibrate::CalibrateArgs),
    /// Make a capture from what a load generator wrote about each request.
    Import(import::ImportArgs),
    /// Lay captures of a real engine beside their simulation.
    Compare(compare::CompareArgs),
    /// Repeat a published load test as a simulated experiment, and explain its figures.
    Explain(explain::ExplainArgs),
    /// Show a scenario as it is resolved: every value, and where it came from.
    Show(show::ShowArgs),
    /// List the JSON Schemas of the file formats, or print one.
    Schema(schema::SchemaArgs),
    /// List, show or check the profiles of accelerators, models, instances and engines; import a model.
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    /// Look into trace files, or make one from a scenario.
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    /// Print a completion script for a shell.
    Completions(completions::CompletionsArgs),
}

/// A scenario file with its overrides; shared by the subcommands that take one.
#[derive(Debug, Clone, Args)]
pub struct ScenarioArgs {
    /// Scenario file (YAML).
    pub scenario: std::path::PathBuf,
    /// Replace one value: a dotted path of the scenario and a YAML value. May be given often; later ones win.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub set: Vec<String>,
}

impl ScenarioArgs {
    /// The resolved plan.
    ///
    /// # Errors
    /// [`InputError`] for whatever is wrong with the scenario or an override.
    pub fn plan(&self) -> Result<crate::scenario::Plan, InputError> {
        crate::scenario::Plan::load(&self.scenario, &overrides(&self.set)?)
    }
}

/// The overrides of the command line, in their order.
///
/// # Errors
/// [`InputError`] for the first that is none.
pub fn overrides(set: &[String]) -> Result<Vec<Override>, InputError> {
    set.iter().map(|s| Override::parse(s)).collect()
}

/// Parses the command line, runs it, prints an error once; the exit code of the process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are no errors; clap knows which stream each goes to.
            let code = e.exit_code();
            let _ = e.print();
            return ExitCode::from(u8::try_from(code).unwrap_or(Outcome::BadInput as u8));
        }
    };
    let outcome = match run(&cli) {
        Ok(outcome) => outcome,
        Err(e) if is_broken_pipe(&e) => Outcome::Done,
        Err(e) => {
            stdout::complain(&format!("kneeboard: {}", one_paragraph(&e)));
            if e.downcast_ref::<InputError>().is_some() {
                Outcome::BadInput
            } else {
                Outcome::Failed
            }
        }
    };
    ExitCode::from(outcome as u8)
}

fn run(cli: &Cli) -> anyhow::Result<Outcome> {
    let folder = cli.global.profiles.clone();
    let folder = folder.or_else(|| std::env::var_os("KNEEBOARD_PROFILES").map(Into::into));
    if let Some(folder) = folder.filter(|f| !f.as_os_str().is_empty()) {
        catalog::use_folder(&folder)?;
    }
    match &cli.command {
        Command::Preflight(args) => preflight::run(args, &cli.global),
        Command::Simulate(args) => simulate::run(args, &cli.global),
        Command::Explain(args) => explain::run(args, &cli.global),
        Command::Sweep(args) => sweep::run(args, &cli.global),
        Command::Capacity(args) => sweep::run_capacity(args, &cli.global),
        Command::Conform(args) => conform::run(args),
        Command::Calibrate(args) => calibrate::run(args, &cli.global),
        Command::Import(args) => import::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Show(args) => show::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Profile(command) => profile::run(command),
        Command::Trace(command) => trace::run(command),
        Command::Completions(args) => completions::run(args),
    }
}

/// The reader of our output has gone away (`kneeboard … | head`): nothing is wrong.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|e| e.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// The chain of causes on one line, each cause once.
fn one_paragraph(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if !parts.iter().any(|p| p.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_cause_is_said_once() {
        let e = anyhow::Error::new(InputError::new("s.yaml", "broken")).context("s.yaml: broken");
        assert_eq!(one_paragraph(&e), "s.yaml: broken");
        assert!(e.downcast_ref::<InputError>().is_some());
    }
}
