//! `kneeboard show SCENARIO`: the resolved plan.

use std::fmt::Write;

use clap::Args;
use serde_json::Value;

use super::{Outcome, ScenarioArgs, print};
use crate::kv::sizing::MemoryLedger;
use crate::scenario::{Plan, Resolved, StepTimeSource};

/// What to show.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// JSON: the resolved scenario and the source of each value.
    #[arg(long)]
    json: bool,
}

/// Resolves, draws the first replication's requests as a check, and prints.
pub fn run(args: &ShowArgs) -> anyhow::Result<Outcome> {
    let plan = args.scenario.plan()?;
    let requests = requests(&plan)?;
    let resolved = plan.resolved()?;
    let text = if args.json {
        json(&plan, &resolved)?
    } else {
        yaml(&plan, &resolved, &requests)
    };
    print(&text)?;
    Ok(Outcome::Done)
}

fn json(plan: &Plan, resolved: &[Resolved]) -> anyhow::Result<String> {
    let sources: serde_json::Map<String, Value> = resolved
        .iter()
        .map(|r| (r.path.clone(), r.source.to_string().into()))
        .collect();
    let all = serde_json::json!({
        "scenario": plan.resolved_tree()?,
        "sources": sources,
        "memory": plan.memory(),
        "limitations": plan.limitations(),
    });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// YAML that is a scenario again, each value with a comment that says where it came from.
fn yaml(plan: &Plan, resolved: &[Resolved], requests: &str) -> String {
    let lines = lines(resolved);
    let width = lines
        .iter()
        .filter(|(_, s)| s.is_some())
        .map(|(l, _)| l.chars().count())
        .max()
        .unwrap_or(0);
    let width = width.min(60);
    let mut out = format!("# {}, resolved\n", plan.origin());
    for (line, source) in &lines {
        let _ = match source {
            Some(source) => writeln!(out, "{line:<width$}  # {source}"),
            None => writeln!(out, "{line}"),
        };
    }
    let _ = writeln!(out, "\n# {requests}");
    match plan.cluster() {
        None => out += &machine("", &plan.step_time_source, plan.memory()),
        Some(cluster) => {
            for pool in cluster.served_by() {
                let of = format!(" of pool {}", pool.name);
                out += &machine(&of, &pool.step_time_source, pool.engine.ledger.as_ref());
            }
        }
    }
    for limit in plan.limitations() {
        let _ = writeln!(out, "# limitation: {limit}");
    }
    out
}

/// Where step times come from, and where the memory of a device goes.
fn machine(of: &str, step_time: &StepTimeSource, ledger: Option<&MemoryLedger>) -> String {
    let mut out = String::new();
    if let StepTimeSource::Fit(path) = step_time {
        let state = if path.is_file() { "" } else { " (not there yet)" };
        let _ = writeln!(out, "# step time{of}: {}{state}", path.display());
    }
    out + &ledger.map_or_else(String::new, |ledger| memory(of, ledger))
}

/// The ledger of one device, a line each.
fn memory(of: &str, ledger: &MemoryLedger) -> String {
    let mut out = format!("# memory of one device{of}, GiB\n");
    for (name, bytes) in ledger.rows() {
        let gib = bytes as f64 / (1u64 << 30) as f64;
        let _ = writeln!(out, "#   {name:<28}{gib:>9.3}");
    }
    let _ = writeln!(out, "# {}", ledger.summary());
    out
}

/// Draws all requests, one by one, so that whatever is wrong with them is told here.
fn requests(plan: &Plan) -> anyhow::Result<String> {
    let (mut count, mut input, mut output, mut last) = (0u32, 0u64, 0u64, 0.0);
    for request in plan.requests(0)? {
        let request = request?;
        count += 1;
        input += u64::from(request.input_tokens);
        output += u64::from(request.output_tokens());
        last = request.arrival.as_secs_f64();
    }
    Ok(format!(
        "requests of replication 0: {count}, the last at {last:.3} s; {input} prompt and {output} output tokens"
    ))
}

/// Leaves as nested YAML: a parent's line is written when its first leaf comes. List entries open with a dash.
fn lines(resolved: &[Resolved]) -> Vec<(String, Option<String>)> {
    let mut out = Vec::new();
    let mut open: Vec<String> = Vec::new();
    for leaf in resolved {
        let segments = segments(&leaf.path);
        let Some((last, parents)) = segments.split_last() else {
            continue;
        };
        let shared = open.iter().zip(parents).take_while(|(a, b)| a == b).count();
        open.truncate(shared);
        let mut dash = "";
        for parent in &parents[shared..] {
            if parent.parse::<usize>().is_ok() {
                dash = "- ";
            } else {
                out.push((format!("{}{dash}{parent}:", indent(&open)), None));
                dash = "";
            }
            open.push(parent.clone());
        }
        let pad = indent(&open);
        let pad = if dash.is_empty() {
            pad
        } else {
            pad[..pad.len() - 2].to_owned()
        };
        out.push((
            format!("{pad}{dash}{last}: {}", scalar(&leaf.value)),
            Some(leaf.source.to_string()),
        ));
    }
    out
}

/// An axis is one key, dots and all.
fn segments(path: &str) -> Vec<String> {
    match path.strip_prefix("sweep.axes.") {
        Some(axis) => vec!["sweep".to_owned(), "axes".to_owned(), axis.to_owned()],
        None => path.split('.').map(str::to_owned).collect(),
    }
}

fn indent(open: &[String]) -> String {
    "  ".repeat(open.len())
}

/// JSON is YAML; plain words need no quotes.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        other => other.to_string(),
    }
}

fn is_plain(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || "-_./ ".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && !text.ends_with(' ')
        && text.chars().all(word)
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
        )
}
