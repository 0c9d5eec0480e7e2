//! `kneeboard simulate`: one scenario, every replication.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use super::progress::delayed_bar;
use super::stdout::{complain, width};
use super::{Global, Outcome, ScenarioArgs, output, print};
use crate::explore::study::{Study, StudyError, StudyRun, is_stranded, summary_options};
use crate::input::{InputError, prepare_output_folder};
use crate::metric::Summary;
use crate::metric::export::{
    LENS_FILE, SCRAPES_FILE, write_figures, write_json, write_lens, write_scrapes, write_summary_csv,
};
use crate::metric::scrape::{Visibility, scrape};
use crate::metric::vllm_bench::{BenchInfo, BenchResult};
use crate::record::ClusterRecord;
use crate::record::Scrape;
use crate::record::bundle::{self, BundleParts};
use crate::report::cluster as cluster_report;
use crate::report::compare::intervals_table;
use crate::report::number::counted;
use crate::report::run_page::{cluster_plots, distributions, run_page};
use crate::report::run_tables::summary_tables;
use crate::report::tool_tables::tool_tables;
use crate::scenario::Plan;
use crate::sim::{HostTimes, Pace};
use crate::units::SimDuration;
use crate::verify::guises::GUISES;
use crate::verify::predicted::{Draws, FEWEST_DRAWS, Prediction, predicted};

/// Simulate a scenario at its own load.
///
/// Writes a folder: one subfolder a replication (raw-events.csv, summary.json, summary.csv, token-gaps.csv,
/// result.json in the shape of `vllm bench serve`, lens.csv as the load generator of load.client prints it; of a cluster
/// cluster.json, groups.csv, tenants.csv, failure-timeline.jsonl, too), plots, report.html, resolved.yaml, checksums.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Folder for the results.
    #[arg(short, long, value_name = "DIR")]
    output_dir: PathBuf,
    /// Replace the results of an earlier run in that folder.
    #[arg(long)]
    overwrite: bool,
    /// Also write every step and the steps of every token (large).
    #[arg(long)]
    save_detailed: bool,
    /// Keep no request and no step: write summary.json and summary.csv alone. Memory then does not grow with the
    /// number of requests. Percentiles of more than 16,384 distinct values (of gaps and steps: 4,096) are off by up
    /// to 0.05 % of themselves.
    #[arg(long, conflicts_with = "save_detailed")]
    summary_only: bool,
    /// Take every step singly, row by row, instead of many at once. The results are the same to the last bit, later.
    #[arg(long, conflicts_with = "summary_only")]
    step_by_step: bool,
    /// Tell what priorities cost the requests that have the lower ones: of a cluster, the same requests run once more
    /// with equal priorities and the same seed, which takes twice the time.
    #[arg(long, conflicts_with = "summary_only")]
    victims: bool,
    /// Repeat the run in so many guises of the fits behind its step times, 8 to 16, for 90 % intervals of its figures; or
    /// off. Without it all 16 are run, of a large cluster 8 or none.
    #[arg(long, value_name = "N|off", value_parser = draws, default_value = "auto", hide_default_value = true,
          conflicts_with = "summary_only")]
    intervals: Draws,
    /// Print the summaries as JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// What `--intervals` takes.
pub(super) fn draws(text: &str) -> Result<Draws, String> {
    match text {
        "auto" => Ok(Draws::Auto),
        "off" => Ok(Draws::Off),
        number => number
            .parse()
            .ok()
            .filter(|n| (FEWEST_DRAWS..=GUISES as u8).contains(n))
            .map(Draws::Of)
            .ok_or_else(|| format!("allowed: a number from {FEWEST_DRAWS} to {GUISES}, off, or auto")),
    }
}

/// Runs `kneeboard simulate`.
///
/// # Errors
/// [`crate::input::InputError`] for a scenario that cannot be run; a simulation that cannot go on; I/O.
pub fn run(args: &SimulateArgs, global: &Global) -> anyhow::Result<Outcome> {
    let plan = args.scenario.plan()?;
    let pace = if args.step_by_step { Pace::Step } else { Pace::Leap };
    let mut study = Study::of(plan)?.at_pace(pace);
    if args.victims {
        if !study.plan().is_cluster() {
            return Err(InputError::new(
                "--victims",
                "what priorities cost is told of clusters, and the scenario has none",
            )
            .allowed(
                "add a cluster to it, as `--set cluster.recovery.restart=true` does, or leave --victims out",
            )
            .into());
        }
        study = study.with_equal_priorities();
    }
    prepare_output_folder(&args.output_dir, args.overwrite)?;
    if args.summary_only && study.plan().measure.scrape_interval.is_some() {
        return Err(InputError::new(
            "--summary-only",
            "measure.scrape_interval asks for the gauges of a whole record",
        )
        .allowed("leave one of the two out")
        .into());
    }
    if args.summary_only {
        return summarise(args, &study, global.progress());
    }
    let bar = delayed_bar("simulating", 1, global.progress());
    let mut runs = study.runs().map_err(unwrap_input)?;
    bar.finish_and_clear();
    let scrapes = scrapes_of(&args.scenario.scenario, study.plan(), &mut runs)?;
    let intervals = match runs.first() {
        Some(first) => predicted(study.plan(), first, args.intervals).map_err(unwrap_input)?,
        None => Prediction::default(),
    };
    // Earlier results go only now that there are new ones.
    output::prepare(&args.output_dir, args.overwrite)?;
    let plan = study.plan();
    for (i, run) in runs.iter().enumerate() {
        let folder = args.output_dir.join(format!("run-{i}"));
        write_run(&folder, plan, run, args.save_detailed)
            .and_then(|()| match scrapes.get(i) {
                Some(scrapes) => write_scrapes(&folder.join(SCRAPES_FILE), scrapes),
                None => Ok(()),
            })
            .with_context(|| format!("{}: results cannot be written", args.output_dir.display()))?;
    }
    if !intervals.figures.is_empty() {
        output::text(
            &args.output_dir.join("intervals.json"),
            &(serde_json::to_string_pretty(&intervals.figures)? + "\n"),
        )?;
    }
    let plots = distributions(plan, &runs);
    let of_cluster = cluster_plots(&study, &runs).map_err(unwrap_input)?;
    let page = run_page(plan, &runs, &plots, &of_cluster, &intervals);
    let all: Vec<_> = plots.into_iter().chain(of_cluster).collect();
    output::report(&args.output_dir, plan, &page, &all)?;
    let command = if args.victims {
        "simulate --victims"
    } else {
        "simulate"
    };
    output::seal(
        &args.output_dir,
        &output::command_line(command, &args.scenario.scenario, &args.scenario.set),
        plan,
    )?;
    print(&text(args, plan, &runs, &intervals)?)?;
    Ok(outcome(runs.iter().map(|r| (&r.summary, r.cluster.as_ref()))))
}

/// A livelock, or requests that wait in vain, is a failure of the system that was simulated: everything is written, and
/// the exit code tells.
fn outcome<'a>(runs: impl Iterator<Item = (&'a Summary, Option<&'a ClusterRecord>)>) -> Outcome {
    let mut outcome = Outcome::Done;
    for (i, (summary, cluster)) in runs.enumerate() {
        if let Some(why) = failure(summary, is_stranded(cluster)) {
            complain(&format!("kneeboard: run {i} failed: {why}"));
            outcome = Outcome::Failed;
        }
    }
    outcome
}

/// Why a run failed, in the words of its own notes; none if it did not.
fn failure(summary: &Summary, is_stranded: bool) -> Option<&str> {
    let livelocked = !summary.livelocks.is_empty();
    let said = |start: &str| {
        let mut notes = summary.notes.iter().map(String::as_str);
        notes.find(|note| note.starts_with(start))
    };
    match (livelocked, is_stranded) {
        (true, _) => Some(said("livelock: ").unwrap_or("livelock: a replica schedules nothing any more")),
        (_, true) => Some(said("stranded: ").unwrap_or("stranded: requests wait in vain")),
        _ => None,
    }
}

/// The figures of every replication without its requests and steps.
fn summarise(args: &SimulateArgs, study: &Study, progress: bool) -> anyhow::Result<Outcome> {
    let plan = study.plan();
    let offered = u64::from(plan.arrival_span(0)?.count);
    let bar = delayed_bar("simulating", offered, progress);
    let runs = study
        .summaries(|read| bar.set_position(read))
        .map_err(unwrap_input)?;
    bar.finish_and_clear();
    output::prepare(&args.output_dir, args.overwrite)?;
    for (i, run) in runs.iter().enumerate() {
        let folder = args.output_dir.join(format!("run-{i}"));
        write_json(&folder.join("summary.json"), &run.summary)
            .and_then(|()| write_summary_csv(&folder.join("summary.csv"), &run.summary))
            .with_context(|| format!("{}: results cannot be written", folder.display()))?;
    }
    output::resolved(&args.output_dir, plan)?;
    let command = output::command_line(
        "simulate --summary-only",
        &args.scenario.scenario,
        &args.scenario.set,
    );
    output::seal(&args.output_dir, &command, plan)?;
    let mut text = String::new();
    if args.json {
        let summaries: Vec<_> = runs.iter().map(|r| &r.summary).collect();
        text += &(serde_json::to_string_pretty(&summaries)? + "\n");
    } else {
        for (i, run) in runs.iter().enumerate() {
            text += &run_text(i, run.steps, run.replicas, &run.summary, run.extrapolated_share);
        }
        text += &format!("results: {}\n", args.output_dir.display());
    }
    print(&text)?;
    Ok(outcome(runs.iter().map(|r| (&r.summary, r.cluster.as_ref()))))
}

/// An input error inside a study error is the user's to mend, and is reported as such.
pub(super) fn unwrap_input(error: StudyError) -> anyhow::Error {
    match error {
        StudyError::Input(e) => e.into(),
        other => other.into(),
    }
}

/// What a dashboard would have read of each run, if the scenario asks for it; a load that is too short for the interval
/// gets a note.
fn scrapes_of(scenario: &Path, plan: &Plan, runs: &mut [StudyRun]) -> Result<Vec<Vec<Scrape>>, InputError> {
    let Some(interval) = plan.measure.scrape_interval else {
        return Ok(Vec::new());
    };
    let of_run = |run: &mut StudyRun| {
        let found = scrape(&run.record, interval, SimDuration::ZERO)
            .map_err(|e| InputError::in_file(scenario, e.to_string()).at("measure.scrape_interval"))?;
        let load_s = run
            .summary
            .diagnosis
            .as_ref()
            .map_or(0.0, |d| d.little.judged_to_s - d.little.judged_from_s);
        let seen = Visibility::of(load_s, interval.as_secs_f64());
        if seen.invisible {
            run.summary.notes.push(format!(
                "the load of {load_s:.3} s is invisible to gauges that are read every {} s: at most {} readings fall \
                 into it, and {:.3} s is the longest interval that would show it",
                seen.interval_s,
                seen.readings + 1,
                seen.longest_interval_s
            ));
        }
        Ok(found)
    };
    runs.iter_mut().map(of_run).collect()
}

fn write_run(folder: &Path, plan: &Plan, run: &StudyRun, detailed: bool) -> std::io::Result<()> {
    bundle::write(
        folder,
        &run.record,
        BundleParts {
            steps: detailed,
            tokens: detailed,
        },
    )?;
    let result = BenchResult::of(&run.record, &bench_info(plan, detailed));
    write_figures(folder, &run.record, &run.summary, &result)?;
    if let (Some(cluster), Some(figures)) = (&run.cluster, &run.figures) {
        cluster_report::write(folder, cluster, figures, &run.rollouts)?;
    }
    match plan.view() {
        Some(view) => write_lens(&folder.join(LENS_FILE), view, &run.record),
        None => Ok(()),
    }
}

fn bench_info(plan: &Plan, detailed: bool) -> BenchInfo {
    let load = plan.world(HostTimes::default()).load;
    let arrival = &plan.scenario.load.arrival;
    BenchInfo {
        // No date: the same scenario gives the same bytes.
        date: String::new(),
        backend: "kneeboard".into(),
        label: None,
        model_id: plan
            .scenario
            .system
            .model
            .clone()
            .unwrap_or_else(|| "unknown".into()),
        request_rate: arrival.rate.map(|r| r.0),
        burstiness: arrival.burstiness.map(|b| b.0),
        max_concurrency: load.concurrency(),
        slo: summary_options(plan).slo,
        detailed,
    }
}

fn text(
    args: &SimulateArgs,
    plan: &Plan,
    runs: &[StudyRun],
    intervals: &Prediction,
) -> anyhow::Result<String> {
    if args.json {
        let summaries: Vec<_> = runs.iter().map(|r| &r.summary).collect();
        return Ok(serde_json::to_string_pretty(&summaries)? + "\n");
    }
    let (mut text, view) = (String::new(), plan.view());
    for (i, run) in runs.iter().enumerate() {
        let replicas = run.record.replicas.len();
        text += &run_text(i, run.steps(), replicas, &run.summary, run.extrapolated_share);
        for table in view.map_or_else(Vec::new, |view| tool_tables(view, &run.record)) {
            text += &format!("\n{}\n", table.terminal(width()));
        }
        if let Some(figures) = &run.figures {
            text += &format!("\n{}", cluster_report::tables(figures, &run.rollouts, width()));
        }
    }
    if !intervals.figures.is_empty() {
        text += &intervals_table(&intervals.figures).terminal(width());
        text.push('\n');
    }
    for note in &intervals.notes {
        text += &format!("note: {note}\n");
    }
    text += &format!("results: {}\n", args.output_dir.display());
    Ok(text)
}

fn run_text(
    index: usize,
    steps: u64,
    replicas: usize,
    summary: &Summary,
    extrapolated: Option<f64>,
) -> String {
    let mut text = format!(
        "Run {index}: {steps} steps on {}\n\n",
        counted(replicas as u64, "replica")
    );
    for table in summary_tables(summary) {
        text += &table.terminal(width());
        text += "\n\n";
    }
    for note in &summary.notes {
        text += &format!("note: {note}\n");
    }
    if let Some(share) = extrapolated.filter(|s| *s > 0.0) {
        text += &format!(
            "extrapolated: {:.1} % of the steps lie outside of the fitted batches\n",
            100.0 * share
        );
    }
    text
}
