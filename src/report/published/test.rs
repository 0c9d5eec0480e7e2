//! The load generator's figures, its clock, and two explanations of them.

use super::curves::Curve;
use super::{figures_plot, figures_table, n, printed, stairs, text};
use crate::explore::published::{Explained, Played, Repeated};
use crate::metric::Window;
use crate::record::RunRecord;
use crate::report::html::{Block, Section};
use crate::report::plot::{Axis, Guide, Mark, Plot, Series};
use crate::report::table::{Cell, Column, Table};
use crate::sim::HostTimes;

const E2E: &str = "results_end_to_end_latency_s_mean";
const RATE: &str = "results_mean_output_throughput_token_per_s";

/// Clients of the test.
pub(super) fn clients(outcome: &Repeated) -> f64 {
    outcome.plan.scenario.load.concurrency.map_or(0.0, f64::from)
}

/// Printed figures beside simulated ones.
pub fn what_was_printed(e: &Explained) -> Section {
    let fitted: Vec<String> = (1..)
        .zip(&e.file.fitted)
        .map(|(i, f)| format!("({i}) {f}"))
        .collect();
    let inside = e.test.figures.iter().filter(|f| f.is_inside()).count();
    let worst = e
        .test
        .figures
        .iter()
        .map(|f| f.relative_error().abs())
        .fold(0.0, f64::max);
    let again = e.file.printed_again.iter().filter_map(|(name, value)| {
        let figure = e.test.figures.iter().find(|f| f.name == *name)?;
        let value = value.as_f64()?;
        let place = if (figure.band.0..=figure.band.1).contains(&value) {
            "inside"
        } else {
            "outside"
        };
        Some(format!(
            "A second run of the same test printed {name} {value}: {place} the band."
        ))
    });
    let mut blocks = vec![
        text(e.file.source.clone()),
        text(format!(
            "The scenario is {}. Fitted to the printed figures: {}. All else is the engine's rules and what the test \
             states.",
            e.test.plan.origin(),
            fitted.join("; ")
        )),
        text(format!(
            "The test was run once; the simulation was run with {} seeds, which draw other lengths. {inside} of {} \
             printed figures lie in the band that holds 90 % of the seeds; the median that is farthest from what was \
             printed is {:.1} % off.",
            e.file.seeds,
            e.test.figures.len(),
            100.0 * worst
        )),
        Block::Table(figures_table(
            "What llmperf printed, and what it prints of the simulation",
            &e.test,
            e.file.seeds,
        )),
        Block::Plot(figures_plot(&e.test)),
        Block::Plot(distribution(e)),
    ];
    blocks.extend(again.map(text));
    Section {
        heading: "The test again".into(),
        blocks,
    }
}

/// TTFT of the typical seed with the quantiles that were printed.
fn distribution(e: &Explained) -> Plot {
    let mut ttft: Vec<f64> = Window::WHOLE
        .select(&e.test.run.record)
        .filter_map(|r| Some(r.first_token?.since(r.sent).as_secs_f64()))
        .collect();
    ttft.sort_by(f64::total_cmp);
    let count = ttft.len().max(1) as f64;
    let simulated = (1..)
        .zip(&ttft)
        .map(|(i, t)| (*t, f64::from(i) / count))
        .collect();
    let quantiles = [
        (0.25, "p25"),
        (0.5, "p50"),
        (0.75, "p75"),
        (0.9, "p90"),
        (0.95, "p95"),
        (0.99, "p99"),
    ];
    let given = quantiles.iter().filter_map(|(q, name)| {
        Some((
            printed(&e.test.figures, &format!("results_ttft_s_quantiles_{name}"))?,
            *q,
        ))
    });
    Plot {
        title: format!(
            "Time to first token: seed {}, the nearest to the medians",
            e.test.typical
        ),
        x: Axis::linear("TTFT from the send", "s"),
        y: Axis::linear("share of the counted requests", ""),
        series: vec![
            stairs("simulated", simulated),
            Series {
                name: "printed".into(),
                mark: Mark::Dots,
                points: given.collect(),
            },
        ],
        guides: Vec::new(),
    }
}

/// How the load generator's clock is spent.
struct ClockSplit {
    first_send: f64,
    all_at_work: f64,
    last_full: f64,
    end: f64,
}

impl ClockSplit {
    fn of(run: &RunRecord, in_flight: &Curve) -> Self {
        let sends = run
            .requests
            .iter()
            .filter(|r| r.status.is_served())
            .map(|r| r.sent);
        let (all_at_work, last_full) = in_flight.span_of_largest();
        Self {
            first_send: sends.min().unwrap_or_default().as_secs_f64(),
            all_at_work,
            last_full,
            end: run.end.as_secs_f64(),
        }
    }

    fn spans(&self) -> [(&'static str, f64, f64); 4] {
        [
            ("start-up: the clock runs, nothing is sent", 0.0, self.first_send),
            (
                "clients start one after another",
                self.first_send,
                self.all_at_work,
            ),
            ("all clients at work", self.all_at_work, self.last_full),
            (
                "no more is sent; the rest is waited for",
                self.last_full,
                self.end,
            ),
        ]
    }
}

/// Little's law with the requests that the load generator counted, over its whole clock.
fn counted_in_flight(run: &RunRecord) -> f64 {
    let spent: f64 = Window::WHOLE
        .select(run)
        .filter_map(|r| Some(r.last_token?.since(r.sent).as_secs_f64()))
        .sum();
    spent / run.end.as_secs_f64()
}

/// Little's law both ways.
pub fn in_flight(e: &Explained) -> Section {
    let run = &e.test.run.record;
    let (flying, running, waiting) = (Curve::in_flight(run), Curve::running(run), Curve::waiting(run));
    let split = ClockSplit::of(run, &flying);
    let mut table = Table::new(
        "Where the load generator's clock goes",
        vec![
            Column::plain("span"),
            Column::with_unit("length", "s"),
            Column::plain("in flight, mean"),
            Column::plain("running, mean"),
            Column::plain("waiting, mean"),
        ],
    );
    let spans = split.spans();
    for (name, from, to) in spans.into_iter().chain([("the whole clock", 0.0, split.end)]) {
        table.push(vec![
            name.into(),
            (to - from).into(),
            flying.mean(from, to).into(),
            running.mean(from, to).into(),
            waiting.mean(from, to).into(),
        ]);
    }
    let clients = clients(&e.test);
    let whole = flying.mean(0.0, split.end);
    let counted = counted_in_flight(run);
    let full = flying.mean(split.all_at_work, split.last_full);
    let seats = e.test.plan.world(HostTimes::default()).engine.max_num_seqs;
    let mut blocks = Vec::new();
    let mut quotient = None;
    let tokens = printed(&e.test.figures, "results_number_output_tokens_mean");
    let rates = printed(&e.test.figures, RATE).zip(tokens);
    if let Some((e2e, (rate, tokens))) = printed(&e.test.figures, E2E).zip(rates) {
        quotient = Some(rate / tokens * e2e);
        blocks.push(text(format!(
            "Little's law on what was printed: {} tokens/s of {} tokens each are {} requests/s; times a mean latency \
             of {} s there were {} requests in flight, at {clients} concurrent ones. That number is not how many the \
             server ran.",
            n(rate),
            n(tokens),
            n(rate / tokens),
            n(e2e),
            n(rate / tokens * e2e)
        )));
    }
    blocks.push(text(format!(
        "The same arithmetic on the simulated run gives {}: the latencies of the counted requests, over a clock that also \
         runs while nothing is sent yet, while clients start one after another, and while surplus requests are waited \
         for that are not counted. With those requests {} are in flight over the clock; while all clients are at work it \
         is {} of {clients}. A client that waits for one of the {seats} seats is in flight for itself and not running \
         for the server, so the quotient lies near {seats} by chance, not because {seats} were admitted.",
        n(counted),
        n(whole),
        n(full)
    )));
    blocks.push(Block::Table(table));
    blocks.push(Block::Plot(gauges_plot(
        "In flight at the clients, running and waiting on the server",
        run,
        seats,
        true,
    )));
    Section {
        heading: format!(
            "Why {} in flight at concurrency {clients}",
            n(quotient.unwrap_or(counted))
        ),
        blocks,
    }
}

/// Gauges of a run over time.
pub(super) fn gauges_plot(title: &str, run: &RunRecord, seats: u32, with_clients: bool) -> Plot {
    let mut series = Vec::new();
    if with_clients {
        series.push(stairs("in flight at the clients", Curve::in_flight(run).0));
    }
    series.push(stairs("running", Curve::running(run).0));
    series.push(stairs("waiting", Curve::waiting(run).0));
    Plot {
        title: title.into(),
        x: Axis::linear("time on the load generator's clock", "s"),
        y: Axis::linear("requests", ""),
        series,
        guides: vec![Guide::Horizontal {
            y: f64::from(seats),
            label: "max_num_seqs".into(),
        }],
    }
}

/// The explanations side by side, with the gauges that would have told them apart.
pub fn hypotheses(e: &Explained) -> Section {
    let mut blocks = vec![text(
        "What a client prints does not tell who is slow. Each explanation below is played through with the same seeds; \
         the gauges of the server, which the test did not record, tell them apart.",
    )];
    let mut columns = vec![Column::plain("figure"), Column::plain("printed")];
    columns.extend(
        e.hypotheses
            .iter()
            .map(|h| Column::plain(format!("if {}", h.spec.name))),
    );
    let mut table = Table::new(
        "What each explanation prints (median of the seeds)",
        columns.clone(),
    );
    for (row, figure) in e.test.figures.iter().enumerate() {
        let mut cells: Vec<Cell> = vec![figure.name.as_str().into(), figure.printed.into()];
        cells.extend(e.hypotheses.iter().map(|h| match h.outcome.figures().get(row) {
            Some(figure) => Cell::from(figure.median),
            None => "livelock".into(),
        }));
        table.push(cells);
    }
    columns.remove(1);
    let mut gauges = Table::new(
        "What the server's gauges would have shown (typical seed)",
        columns,
    );
    for (name, of) in GAUGES {
        let mut cells: Vec<Cell> = vec![name.into()];
        cells.extend(e.hypotheses.iter().map(|h| of(&h.outcome)));
        gauges.push(cells);
    }
    for h in &e.hypotheses {
        let set: Vec<String> = h
            .spec
            .set
            .iter()
            .map(|(path, value)| format!("{path} = {value}"))
            .collect();
        let differs = if set.is_empty() {
            "the scenario as it is".to_owned()
        } else {
            set.join(", ")
        };
        blocks.push(text(format!(
            "If {}: {} ({differs}.) {}",
            h.spec.name,
            h.spec.says,
            came_of(&h.outcome, e.file.seeds)
        )));
    }
    blocks.extend([Block::Table(table), Block::Table(gauges)]);
    for h in &e.hypotheses {
        let seats = h.outcome.plan().world(HostTimes::default()).engine.max_num_seqs;
        let title = format!("Gauges if {}", h.spec.name);
        blocks.push(Block::Plot(gauges_plot(
            &title,
            &h.outcome.run().record,
            seats,
            true,
        )));
        let diagnosis = h.outcome.run().summary.diagnosis.as_ref();
        blocks.extend(diagnosis.map(|d| text(format!("Verdict of the diagnosis: {}", d.sentence()))));
    }
    Section {
        heading: "Server or client".into(),
        blocks,
    }
}

/// What came of an explanation, in a sentence.
fn came_of(outcome: &Played, seeds: u32) -> String {
    let figures = match outcome {
        Played::Livelocked(l) => {
            return format!(
                "The engine comes to a livelock at {} of {seeds} seeds, the first of them {}: the test would not have ended, \
                 so it is not what was measured.",
                l.livelocked, l.seed
            );
        }
        Played::Through(repeated) => &repeated.figures,
    };
    let inside = figures.iter().filter(|f| f.is_inside()).count();
    let farthest = figures
        .iter()
        .max_by(|a, b| a.relative_error().abs().total_cmp(&b.relative_error().abs()));
    let farthest = farthest.map_or(String::new(), |f| {
        format!(
            "; farthest off is {} ({:+.0} %)",
            f.name,
            100.0 * f.relative_error()
        )
    });
    format!(
        "{inside} of {} printed figures lie in its band{farthest}.",
        figures.len()
    )
}

type Reading = fn(&Played) -> Cell;

const GAUGES: [(&str, Reading); 4] = [
    ("running, mean while all clients are at work", |o| {
        loaded(o, |run, from, to| Curve::running(run).mean(from, to))
    }),
    ("waiting, mean", |o| {
        loaded(o, |run, from, to| Curve::waiting(run).mean(from, to))
    }),
    ("share of the time with somebody waiting", |o| {
        loaded(o, |run, from, to| {
            Curve::waiting(run).share_at_least(1.0, from, to)
        })
    }),
    ("seats (max_num_seqs)", |o| {
        Cell::Count(u64::from(
            o.plan().world(HostTimes::default()).engine.max_num_seqs,
        ))
    }),
];

fn loaded(outcome: &Played, of: impl Fn(&RunRecord, f64, f64) -> f64) -> Cell {
    let run = &outcome.run().record;
    let (from, to) = Curve::in_flight(run).span_of_largest();
    of(run, from, to).into()
}
