//! `kneeboard trace inspect|synth`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};

use super::{Outcome, ScenarioArgs, print};
use crate::input::{self, InputError};
use crate::workload::formats::csv;
use crate::workload::trace::Trace;

/// What to do with traces.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Say what is in a trace file: requests, rate, lengths, prefixes, priorities.
    Inspect {
        /// Trace file (CSV, possibly .gz).
        path: PathBuf,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write the requests of a scenario as a trace file.
    Synth(SynthArgs),
}

/// What to write.
#[derive(Debug, Args)]
pub struct SynthArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Which replication's draws.
    #[arg(long, default_value_t = 0)]
    replication: u64,
    /// Output file; without it, stdout.
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Replace the output file if it exists.
    #[arg(long)]
    overwrite: bool,
}

/// Runs the command.
pub fn run(command: &TraceCommand) -> anyhow::Result<Outcome> {
    match command {
        TraceCommand::Inspect { path, json } => {
            let trace = csv::read_trace(path)?;
            let facts = facts(&trace);
            if *json {
                print(&(serde_json::to_string_pretty(&facts)? + "\n"))?;
            } else {
                print(&text(&facts))?;
            }
        }
        TraceCommand::Synth(args) => {
            if let Some(path) = args.output.as_ref().filter(|p| p.exists() && !args.overwrite) {
                return Err(InputError::in_file(path, "exists")
                    .allowed("name another file with -o, or give --overwrite to replace it")
                    .into());
            }
            synth(args)?;
        }
    }
    Ok(Outcome::Done)
}

/// Writes requests as they are drawn.
fn synth(args: &SynthArgs) -> anyhow::Result<()> {
    let plan = args.scenario.plan()?;
    let Some(path) = &args.output else {
        let trace = plan.trace(args.replication)?;
        let mut out = Vec::new();
        csv::write_trace(&trace, &mut out)?;
        return Ok(print(&String::from_utf8_lossy(&out))?);
    };
    let mut refused = None;
    let written = input::write_atomic(path, |w| {
        csv::write_header(w)?;
        let rows = plan
            .requests(args.replication)
            .map_err(|e| keep(&mut refused, e))?;
        for row in rows {
            csv::write_row(&row.map_err(|e| keep(&mut refused, e))?, w)?;
        }
        Ok(())
    });
    match refused {
        Some(reason) => Err(reason.into()),
        None => written.with_context(|| format!("{}: cannot be written", path.display())),
    }
}

/// Bad input ends the writing, and is told as what it is.
fn keep(refused: &mut Option<InputError>, reason: InputError) -> std::io::Error {
    *refused = Some(reason);
    std::io::ErrorKind::InvalidData.into()
}

fn facts(trace: &Trace) -> serde_json::Map<String, serde_json::Value> {
    let rows = &trace.requests;
    let span = rows.last().map_or(0.0, |r| r.arrival.as_secs_f64());
    let inputs = spread(rows.iter().map(|r| r.input_tokens));
    let outputs = spread(rows.iter().map(|r| r.output_tokens()));
    let groups: std::collections::BTreeSet<u32> =
        rows.iter().filter_map(|r| r.prefix.map(|p| p.group)).collect();
    let members = rows.iter().filter(|r| r.prefix.is_some()).count();
    let priorities: std::collections::BTreeSet<i32> = rows.iter().map(|r| r.priority).collect();
    let facts = serde_json::json!({
        "requests": rows.len(),
        "last_arrival_s": span,
        "mean_rate_rps": if span > 0.0 { Some(rows.len() as f64 / span) } else { None },
        "input_tokens": inputs,
        "output_tokens": outputs,
        "prefix_groups": groups.len(),
        "requests_in_groups": members,
        "priorities": priorities,
    });
    match facts {
        serde_json::Value::Object(map) => map,
        _ => serde_json::Map::new(),
    }
}

fn spread(values: impl Iterator<Item = u32>) -> serde_json::Value {
    let mut sorted: Vec<u32> = values.collect();
    sorted.sort_unstable();
    let n = sorted.len();
    let total: u64 = sorted.iter().map(|v| u64::from(*v)).sum();
    // Linear interpolation between the two nearest ranks, as numpy does by default.
    let at = |q: f64| {
        let place = q * n.saturating_sub(1) as f64;
        let (low, share) = (place.floor() as usize, place.fract());
        let pick = |i: usize| f64::from(sorted.get(i.min(n.saturating_sub(1))).copied().unwrap_or(0));
        pick(low) + share * (pick(low + 1) - pick(low))
    };
    serde_json::json!({
        "sum": total,
        "mean": if n > 0 { total as f64 / n as f64 } else { 0.0 },
        "min": at(0.0), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0),
    })
}

fn text(facts: &serde_json::Map<String, serde_json::Value>) -> String {
    facts.iter().map(|(k, v)| format!("{k:<20} {v}\n")).collect()
}
