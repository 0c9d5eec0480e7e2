//! `kneeboard explain`: a published load test, repeated as an experiment.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::progress::delayed_bar;
use super::simulate::unwrap_input;
use super::stdout::width;
use super::{Global, Outcome, output, print};
use crate::explore::published::{Explained, Played, PrintedFigure, StudyFile, explain, parts};
use crate::input::prepare_output_folder;
use crate::report::notebook::Notebook;
use crate::report::published::{figures_table, page};

/// Repeat a published load test as a simulated experiment, and explain its figures.
///
/// Writes a folder: figures.json, notebook.ipynb, report.html, plots/ and tables/ that the notebook shows, resolved.yaml, checksums.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Study file (YAML): the scenario, what was printed, and what is asked.
    study: PathBuf,
    /// Folder for the results.
    #[arg(short, long, value_name = "DIR")]
    output_dir: PathBuf,
    /// Replace the results of an earlier run in that folder.
    #[arg(long)]
    overwrite: bool,
    /// Run so many seeds instead of as many as the study says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: Option<u32>,
}

/// What `figures.json` holds: printed figures beside the simulated ones.
#[derive(Debug, Serialize)]
struct Figures<'a> {
    seeds: u32,
    test: &'a [PrintedFigure],
    hypotheses: Vec<(&'a str, &'a [PrintedFigure])>,
    /// Hypotheses that came to a livelock, and at how many of the seeds; they print nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    livelocked: Vec<(&'a str, u32)>,
    script: Option<&'a [PrintedFigure]>,
}

impl<'a> Figures<'a> {
    fn of(e: &'a Explained) -> Self {
        let hypotheses = e.hypotheses.iter();
        let livelocked = hypotheses.clone().filter_map(|h| match &h.outcome {
            Played::Livelocked(l) => Some((h.spec.name.as_str(), l.livelocked)),
            Played::Through(_) => None,
        });
        Self {
            livelocked: livelocked.collect(),
            seeds: e.file.seeds,
            test: &e.test.figures,
            hypotheses: hypotheses
                .map(|h| (h.spec.name.as_str(), h.outcome.figures()))
                .collect(),
            script: e.script.as_ref().map(|s| &s.figures[..]),
        }
    }
}

/// Runs `kneeboard explain`.
///
/// # Errors
/// [`crate::input::InputError`] for a study or a scenario that cannot be used; a simulation that cannot go on; I/O.
pub fn run(args: &ExplainArgs, global: &Global) -> anyhow::Result<Outcome> {
    let mut file = StudyFile::read(&args.study)?;
    file.seeds = args.seeds.unwrap_or(file.seeds);
    prepare_output_folder(&args.output_dir, args.overwrite)?;
    let bar = delayed_bar("experiments", parts(&file), global.progress());
    let explained = explain(file, &args.study, || bar.inc(1)).map_err(unwrap_input)?;
    bar.finish_and_clear();
    output::prepare(&args.output_dir, args.overwrite)?;
    let page = page(&explained);
    let mut command = output::command_line("explain", &args.study, &[]);
    if let Some(seeds) = args.seeds {
        command += &format!(" --seeds {seeds}");
    }
    Notebook::of(&page, &command)
        .write(&args.output_dir)
        .with_context(|| format!("{}: results cannot be written", args.output_dir.display()))?;
    let figures = serde_json::to_string_pretty(&Figures::of(&explained))?;
    output::text(&args.output_dir.join("figures.json"), &(figures + "\n"))?;
    output::report(&args.output_dir, &explained.test.plan, &page, &[])?;
    output::seal(&args.output_dir, &command, &explained.test.plan)?;
    let table = figures_table(&explained.file.title, &explained.test, explained.file.seeds);
    let livelocks = Figures::of(&explained).livelocked;
    let livelocks: String = livelocks
        .iter()
        .map(|(name, n)| {
            format!(
                "hypothesis '{name}': a livelock at {n} of {} seeds\n",
                explained.file.seeds
            )
        })
        .collect();
    print(&format!(
        "{}\n{livelocks}notebook: {}\n",
        table.terminal(width()),
        args.output_dir.join("notebook.ipynb").display()
    ))?;
    Ok(Outcome::Done)
}
