//! A simulated run as its load generator would have printed it.

use super::table::{Cell, Column, Table};
use crate::metric::tool::{LLMPERF_METRICS, LLMPERF_STATISTICS, ToolFigure, View};
use crate::record::RunRecord;

/// The figures of a run under the load generator's own names.
pub fn tool_tables(view: View, run: &RunRecord) -> Vec<Table> {
    let mut figures = view.figures(run);
    let mut tables = Vec::new();
    if view == View::Llmperf {
        tables.push(llmperf_table(&figures));
        let of_metric = |f: &ToolFigure| {
            LLMPERF_METRICS
                .iter()
                .any(|m| f.name.starts_with(&format!("results_{m}_")))
        };
        figures.retain(|f| !of_metric(f));
    }
    let columns = ["figure", "value"].map(Column::plain).to_vec();
    let mut table = Table::new(title(view), columns);
    for figure in figures {
        let name = figure.name.strip_prefix("results_").unwrap_or(&figure.name);
        table.push(vec![name.into(), figure.value.into()]);
    }
    tables.push(table);
    tables
}

fn title(view: View) -> String {
    match view {
        View::ThreadPool { words_per_token } => format!(
            "As the thread-pool script prints it (an answer has {words_per_token} words a token; tokens_per_second is \
             words over the sum of latencies, not a throughput)"
        ),
        View::Llmperf | View::VllmBench => format!("As {} prints it", view.name()),
    }
}

/// A row a metric, a column a statistic.
fn llmperf_table(figures: &[ToolFigure]) -> Table {
    let short = |s: &str| s.trim_start_matches("quantiles_").to_owned();
    let names = LLMPERF_STATISTICS.iter().map(|s| short(s));
    let columns = std::iter::once("metric".to_owned()).chain(names);
    let mut table = Table::new(title(View::Llmperf), columns.map(Column::plain).collect());
    for metric in LLMPERF_METRICS {
        let cells = LLMPERF_STATISTICS.iter().map(|statistic| {
            let name = format!("results_{metric}_{statistic}");
            let found = figures.iter().find(|f| f.name == name);
            Cell::from(found.and_then(|f| f.value))
        });
        table.push(std::iter::once(metric.into()).chain(cells).collect());
    }
    table.note = Some(
        "inter_token_latency_s is E2E / output tokens, with the TTFT inside: not a gap between tokens".into(),
    );
    table
}
