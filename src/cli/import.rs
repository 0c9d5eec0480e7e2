//! `kneeboard import`: a load generator's file as a capture.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::stdout::width;
use super::{Outcome, print};
use crate::calibrate::actual::{diagnose, record_of, summary_options};
use crate::calibrate::front_end::front_end_of;
use crate::calibrate::import::{ServerFacts, folders_of, write_capture, write_joined};
use crate::calibrate::{Capture, TimeUnit};
use crate::input::{InputError, prepare_output_folder};
use crate::metric::lens::figures;
use crate::metric::summary::Summary;
use crate::record::Scrape;
use crate::record::import::{
    ClientRun, Clock, ImportOptions, ScrapeSeries, TableOptions, Tool, read, read_scrapes,
};
use crate::report::import::{Imported, import_text};

/// Make a capture from what a load generator wrote about each request.
///
/// Reads vllm bench serve (--save-detailed), guidellm benchmarks.json, aiperf profile_export.jsonl, genai-perf
/// profile_export.json, inference-perf per_request_lifecycle_metrics.json, llmperf *_individual_responses.json,
/// and CSV tables through a column map; plain or gzipped. Every figure that the tool printed is recomputed by
/// the tool's own definition and laid beside it.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The tool's per-request file.
    file: PathBuf,
    /// The capture folder to write; one folder a run below it when the file holds several.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Which tool wrote it; told from the file when it is not given.
    #[arg(long, value_name = "TOOL")]
    tool: Option<String>,
    /// Facts about the server (YAML or JSON): a manifest, or knobs such as max_num_seqs.
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// One fact about the server, such as max_num_seqs=128, vllm=0.15.1 or accelerator=h100-sxm.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The engine's own capture of the same run: the output then holds its steps and both clocks.
    #[arg(long, value_name = "CAPTURE")]
    engine: Option<PathBuf>,
    /// Clients of a closed loop, where the file does not tell.
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// Prompt tokens of every request, where the file does not tell.
    #[arg(long, value_name = "N")]
    input_tokens: Option<u32>,
    /// Gauges of the server during the run: /metrics scrapes as JSON lines, or a CSV table with a time, running and
    /// waiting. They decide what held the run back.
    #[arg(long, value_name = "FILE", conflicts_with = "engine")]
    gauges: Option<PathBuf>,
    /// When the first request was sent, on the clock of the gauges' file, where the two files share no clock.
    #[arg(long, value_name = "SECONDS", requires = "gauges")]
    gauges_start: Option<f64>,
    /// Requests of the first seconds load the system but are in no statistic.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    warmup: f64,
    /// Columns of a CSV table, as ours=theirs: ttft_s=TTFT,arrival_s=start.
    #[arg(long, value_name = "OURS=THEIRS", value_delimiter = ',')]
    columns: Vec<String>,
    /// Unit of the times in a CSV table: s, ms, us or ns.
    #[arg(long, value_name = "UNIT", default_value = "s")]
    time_unit: String,
    /// Rows of a CSV table to keep, as COLUMN=VALUE; all must hold.
    #[arg(long = "where", value_name = "COLUMN=VALUE")]
    keep: Vec<String>,
    /// Columns of a CSV table whose combinations of values are runs of their own.
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    group_by: Vec<String>,
    /// Replace a capture that is there.
    #[arg(long)]
    overwrite: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Runs `kneeboard import`.
///
/// # Errors
/// [`InputError`] for a file that is no tool's, broken, or without what a capture needs.
pub fn run(args: &ImportArgs) -> anyhow::Result<Outcome> {
    let mut options = options_of(args)?;
    if args.engine.is_some() {
        // The engine's record has the lengths.
        options.input_tokens = options.input_tokens.or(Some(0));
    }
    let mut facts = ServerFacts::default();
    if let Some(path) = &args.manifest {
        facts.read(path)?;
    }
    for text in &args.set {
        facts.set(text)?;
    }
    let runs = read(&args.file, &options)?;
    let gauges = gauges_of(args, &facts)?;
    prepare_output_folder(&args.output, args.overwrite)?;
    let folders = folders_of(&runs, &args.output);
    let stem = args
        .file
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let stem = stem.split('.').next().unwrap_or_default();
    let imported = runs
        .into_iter()
        .zip(folders)
        .map(|(run, folder)| one(run, folder, stem, (&facts, gauges.as_ref()), args))
        .collect::<Result<Vec<_>, InputError>>()?;
    let text = if args.json {
        serde_json::to_string_pretty(&json_of(&imported))? + "\n"
    } else {
        import_text(&imported, width()) + "\n"
    };
    print(&text)?;
    Ok(Outcome::Done)
}

/// The gauges' file, with no more running requests than the server is stated to have seats.
fn gauges_of(args: &ImportArgs, facts: &ServerFacts) -> Result<Option<ScrapeSeries>, InputError> {
    if let Some(start) = args.gauges_start.filter(|s| !s.is_finite()) {
        return Err(InputError::new("--gauges-start", format!("found {start}"))
            .allowed("allowed: a number of seconds on the clock of the gauges' file"));
    }
    let Some(path) = &args.gauges else {
        return Ok(None);
    };
    let (series, limits) = (read_scrapes(path)?, facts.limits());
    if let Some(seats) = limits.max_num_seqs {
        series.check_seats(path, u64::from(seats) * u64::from(limits.replicas.max(1)))?;
    }
    Ok(Some(series))
}

fn one(
    mut run: ClientRun,
    folder: PathBuf,
    stem: &str,
    (facts, gauges): (&ServerFacts, Option<&ScrapeSeries>),
    args: &ImportArgs,
) -> Result<Imported, InputError> {
    std::fs::create_dir_all(&folder)
        .map_err(|e| InputError::in_file(&folder, format!("cannot be made ({e})")))?;
    if let Some(engine) = &args.engine {
        if args.input_tokens.is_none() {
            run.requests
                .iter_mut()
                .for_each(|r| r.input_tokens = r.input_tokens.filter(|&n| n > 0));
            run.notes.retain(|n| !n.starts_with("input_tokens = 0 "));
        }
        let found = write_joined(&mut run, engine, &folder)?;
        run.notes
            .push(format!("{found} requests found in the engine's record"));
    } else {
        let name = run.name.clone().unwrap_or_else(|| stem.to_owned());
        write_capture(&run, &name, facts, args.warmup, &folder)?;
    }
    let capture = Capture::read(&folder)?;
    let mut assumptions = capture.assumptions.clone();
    if args.engine.is_some() {
        assumptions.extend(run.notes.iter().cloned());
    }
    let scrapes = match gauges {
        Some(series) => Some(on_clock(series, &run, args)?),
        None => None,
    };
    let diagnosis = diagnose(&run, &capture, scrapes.as_deref(), &facts.limits())?;
    Ok(Imported {
        diagnosis,
        figures: figures(&run),
        summary: Summary::of(&record_of(&capture)?, &summary_options(&capture)?),
        front_end: front_end_of(&capture),
        assumptions,
        folder,
        run,
    })
}

/// The gauges on the clock of the client's run.
fn on_clock(series: &ScrapeSeries, run: &ClientRun, args: &ImportArgs) -> Result<Vec<Scrape>, InputError> {
    series.on_clock_of(run, args.gauges_start).ok_or_else(|| {
        InputError::new(
            "--gauges",
            format!("the file and that of {} share no clock", run.tool),
        )
        .allowed("give --gauges-start: when the first request was sent, on the clock of the gauges' file")
    })
}

fn options_of(args: &ImportArgs) -> Result<ImportOptions, InputError> {
    let pair = |flag: &str, text: &str| {
        let (a, b) = text.split_once('=').ok_or_else(|| {
            InputError::new(format!("{flag} {text}"), "there is no '='").allowed("write NAME=VALUE")
        })?;
        Ok((a.trim().to_owned(), b.trim().to_owned()))
    };
    let unit = match args.time_unit.as_str() {
        "s" => TimeUnit::Seconds,
        "ms" => TimeUnit::Millis,
        "us" => TimeUnit::Micros,
        "ns" => TimeUnit::Nanos,
        other => {
            return Err(
                InputError::new("--time-unit", format!("unknown unit '{other}'")).allowed("s, ms, us or ns")
            );
        }
    };
    let mut table = TableOptions {
        per_second: unit.per_second(),
        group_by: args.group_by.clone(),
        ..TableOptions::default()
    };
    for text in &args.columns {
        let (ours, theirs) = pair("--columns", text)?;
        table.columns.map(&ours, &theirs)?;
    }
    for text in &args.keep {
        table.keep.push(pair("--where", text)?);
    }
    Ok(ImportOptions {
        tool: args.tool.as_deref().map(Tool::named).transpose()?,
        concurrency: args.concurrency,
        input_tokens: args.input_tokens,
        table,
    })
}

fn json_of(imported: &[Imported]) -> Value {
    let runs: Vec<Value> = imported
        .iter()
        .map(|i| {
            let figures: Vec<Value> = i
                .figures
                .iter()
                .map(|f| json!({"name": f.name, "printed": f.printed, "recomputed": f.recomputed}))
                .collect();
            json!({
                "folder": shown(&i.folder),
                "tool": i.run.tool.name(),
                "requests": i.run.requests.len(),
                "completed": i.run.completed().count(),
                "clock": match i.run.clock { Clock::Unix => "unix", Clock::Monotonic => "monotonic", Clock::Own => "own" },
                "figures": figures,
                "summary": i.summary,
                "diagnosis": i.diagnosis,
                "assumptions": i.assumptions,
                "front_end": i.front_end.map(|f| json!({
                    "inbound_s": f.inbound_s, "inbound_median_s": f.inbound_median_s,
                    "outbound_s": f.outbound_s, "outbound_median_s": f.outbound_median_s,
                    "per_output_token_s": f.per_output_token_s, "n": f.n, "client": f.client,
                })),
            })
        })
        .collect();
    json!({ "runs": runs })
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
