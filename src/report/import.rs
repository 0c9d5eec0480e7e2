//! An imported run: the tool's figures beside those recomputed from its requests, and ours.

use std::path::PathBuf;

use super::diagnosis_tables::diagnosis_tables;
use super::table::{Cell, Column, Table};
use crate::calibrate::front_end::FrontEndFit;
use crate::metric::lens::LensFigure;
use crate::metric::summary::Summary;
use crate::metric::{Diagnosis, Stats};
use crate::record::import::ClientRun;

/// A recomputed figure further than this from the printed one is pointed out.
const ROUNDING: f64 = 1e-3;

/// A run that was imported.
#[derive(Debug)]
pub struct Imported {
    /// Where it lies.
    pub folder: PathBuf,
    /// As the tool wrote it.
    pub run: ClientRun,
    /// The tool's own figures, recomputed.
    pub figures: Vec<LensFigure>,
    /// Ours, by the contract's definitions.
    pub summary: Summary,
    /// What held the run back.
    pub diagnosis: Diagnosis,
    /// What was assumed.
    pub assumptions: Vec<String>,
    /// The front end, where both clocks are there.
    pub front_end: Option<FrontEndFit>,
}

/// Every run of a file as text.
pub fn import_text(runs: &[Imported], width: Option<u16>) -> String {
    runs.iter()
        .map(|run| run_text(run, width))
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn run_text(imported: &Imported, width: Option<u16>) -> String {
    let mut parts = Vec::new();
    if !imported.figures.is_empty() {
        parts.push(tool_table(imported).terminal(width));
        parts.push(check_line(&imported.figures));
    }
    parts.push(our_table(&imported.summary).terminal(width));
    parts.extend(diagnosis_tables(&imported.diagnosis).map(|t| t.terminal(width)));
    if let Some(f) = imported.front_end {
        parts.push(front_end_line(&f));
    }
    if !imported.assumptions.is_empty() {
        parts.push("the file does not say, and this was assumed:".into());
        parts.extend(imported.assumptions.iter().map(|a| format!("  {a}")));
    }
    parts.push(format!("capture: {}", imported.folder.display()));
    parts.join("\n")
}

/// The figures that people look at; all of them were checked.
fn is_shown(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let shown = ["mean", "avg", "median", "p50", "p90", "p95", "p99"];
    shown.contains(&last)
        || shown.iter().any(|s| name.starts_with(&format!("{s}_")))
        || shown.iter().any(|s| name.ends_with(&format!("_{s}")))
        || name.contains("throughput")
        || name == "completed"
}

fn tool_table(imported: &Imported) -> Table {
    let tool = imported.run.tool;
    let title = format!(
        "{tool}: {} requests, {} served; its figures under its own names and definitions",
        imported.run.requests.len(),
        imported.run.completed().count()
    );
    let columns = ["figure", "printed", "recomputed", "difference"];
    let mut table = Table::new(title, columns.map(Column::plain).to_vec());
    for figure in imported.figures.iter().filter(|f| is_shown(&f.name)) {
        table.push(vec![
            figure.name.as_str().into(),
            figure.printed.into(),
            figure.recomputed.into(),
            figure.relative_error().map_or(Cell::Absent, Cell::Relative),
        ]);
    }
    table
}

fn check_line(figures: &[LensFigure]) -> String {
    let off: Vec<&str> = figures
        .iter()
        .filter(|f| f.relative_error().is_none_or(|e| e > ROUNDING))
        .map(|f| f.name.as_str())
        .collect();
    if off.is_empty() {
        format!(
            "all {} printed figures that follow from the requests agree to 0.1 %",
            figures.len()
        )
    } else {
        format!(
            "{} of {} printed figures differ by more than 0.1 %: {}",
            off.len(),
            figures.len(),
            off.join(", ")
        )
    }
}

fn our_table(summary: &Summary) -> Table {
    let columns = [
        "by our definitions",
        "n",
        "mean (s)",
        "p50 (s)",
        "p90 (s)",
        "p99 (s)",
    ];
    let throughput = summary.throughput.output_tok_s;
    let title = match throughput {
        Some(rate) => format!("docs/METRICS.md has the definitions; {rate:.2} output tokens/s over the run"),
        None => "docs/METRICS.md has the definitions".to_owned(),
    };
    let mut table = Table::new(title, columns.map(Column::plain).to_vec());
    let l = &summary.latency;
    let rows: [(&str, &Stats); 4] = [
        ("TTFT", &l.ttft),
        ("ITL", &l.itl),
        ("TPOT", &l.tpot),
        ("E2E", &l.e2e),
    ];
    for (name, s) in rows {
        table.push(vec![
            name.into(),
            s.n.into(),
            s.mean.into(),
            s.p50.into(),
            s.p90.into(),
            s.p99.into(),
        ]);
    }
    table
}

fn front_end_line(f: &FrontEndFit) -> String {
    let whose = if f.client { "client" } else { "API server" };
    format!(
        "front end from {} requests, mean (median): {whose} to engine {:.2} ({:.2}) ms, engine to {whose} {:.2} ({:.2}) ms, \
         {:+.4} ms a further token",
        f.n,
        f.inbound_s * 1e3,
        f.inbound_median_s * 1e3,
        f.outbound_s * 1e3,
        f.outbound_median_s * 1e3,
        f.per_output_token_s * 1e3
    )
}
