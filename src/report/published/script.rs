//! The second load generator: a script whose tokens are words and whose speed is no throughput.

use super::{figures_plot, figures_table, n, printed, text};
use crate::explore::published::Explained;
use crate::report::html::{Block, Section};
use crate::report::plot::{Axis, Mark, Plot, Series};

/// What its figures mean; `None` without a script.
pub fn section(e: &Explained) -> Option<Section> {
    let script = e.script.as_ref()?;
    let find = |name: &str| printed(&script.figures, name);
    let mut blocks = Vec::new();
    if let (Some(words), Some(mean), Some(speed)) = (
        find("words_per_response"),
        find("mean_latency_s"),
        find("tokens_per_second"),
    ) {
        blocks.push(text(format!(
            "{} words a response over a mean latency of {} s are {}: the printed {} \"tokens per second\" are words, \
             divided by the sum of the latencies of requests that ran side by side. It is about the speed of one \
             request, and it does not rise with the number of workers, while what comes through does.",
            n(words),
            n(mean),
            n(words / mean),
            n(speed)
        )));
    }
    let requests = script.run.record.requests.len();
    let place = |q: f64| (requests as f64 * q) as usize;
    blocks.push(text(format!(
        "Its percentiles are taken by index, int(n * q): of {requests} requests p99 is number {} of 0 to {}, the \
         maximum, and p95 is number {}.",
        place(0.99),
        requests.saturating_sub(1),
        place(0.95)
    )));
    if let Some(min) = find("min_latency_s") {
        let tokens = (min - e.steps.prompt_s) / e.steps.decode_s;
        blocks.push(text(format!(
            "Its shortest latency, {} s, leaves time for about {} tokens after a prompt: some answers stop early. Their \
             lengths are not published, so the scenario states an assumption, and this table explains and does not \
             score: {}.",
            n(min),
            n(tokens.max(0.0)),
            script.plan.origin()
        )));
    }
    blocks.push(Block::Table(figures_table(
        "What the script printed, and what it prints of the simulation under that assumption",
        script,
        e.file.seeds,
    )));
    blocks.push(Block::Plot(figures_plot(script)));
    let series = |name: &str, of: fn(&crate::explore::published::WorkerPoint) -> f64| Series {
        name: name.into(),
        mark: Mark::LineAndDots,
        points: e.workers.iter().map(|p| (f64::from(p.workers), of(p))).collect(),
    };
    blocks.push(Block::Plot(Plot {
        title: "What the script prints, and what comes through".into(),
        x: Axis::linear("workers", ""),
        y: Axis::linear("words", "1/s"),
        series: vec![
            series("words over the sum of latencies: what it prints", |p| {
                p.printed_per_s
            }),
            series("words over wall clock: throughput", |p| p.words_per_s),
        ],
        guides: Vec::new(),
    }));
    Some(Section {
        heading: "Why the script's tokens per second are no throughput".into(),
        blocks,
    })
}
