//! The notebook of a published load test: what it printed, why, and what it could not show.

pub mod curves;
mod outlook;
mod script;
mod server;
mod test;

use crate::explore::published::{Explained, PrintedFigure, Repeated};
use crate::report::context::{context, footer, question};
use crate::report::html::{Block, Page};
use crate::report::number::significant;
use crate::report::plot::{Axis, Guide, Mark, Plot, Series};
use crate::report::table::{Cell, Column, Table};

/// The whole notebook.
pub fn page(e: &Explained) -> Page {
    let mut sections = vec![
        test::what_was_printed(e),
        test::in_flight(e),
        test::hypotheses(e),
        server::inter_token(e),
        server::decode_rate(e),
    ];
    sections.extend(script::section(e));
    sections.extend([outlook::scrapes(e), outlook::price(e), outlook::sweeps(e)]);
    sections.extend(outlook::capacity(e));
    let mut limitations = e.test.plan.limitations();
    limitations.push(format!(
        "{} constants are fitted to the figures that they are compared with ({}): agreement shows that the explanation \
         is possible, not that it is the only one",
        e.file.fitted.len(),
        e.file.fitted.join("; ")
    ));
    Page {
        title: e.file.title.clone(),
        question: question(&e.test.plan),
        context: context(&e.test.plan),
        sections,
        limitations,
        footer: footer(),
    }
}

fn text(words: impl Into<String>) -> Block {
    Block::Text(words.into())
}

/// A number in running text: whole ones without decimals.
fn n(value: f64) -> String {
    if value.fract().abs() < 1e-9 && value.abs() < 1e6 {
        format!("{value:.0}")
    } else {
        significant(value, 3)
    }
}

/// What was printed under a name, in the study file.
fn printed(figures: &[PrintedFigure], name: &str) -> Option<f64> {
    figures.iter().find(|f| f.name == name).map(|f| f.printed)
}

/// Milliseconds.
fn ms(seconds: f64) -> f64 {
    seconds * 1e3
}

fn stairs(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.into(),
        mark: Mark::Steps,
        points,
    }
}

/// Printed figures beside the simulated ones.
pub fn figures_table(title: &str, outcome: &Repeated, seeds: u32) -> Table {
    let mut table = Table::new(
        title,
        vec![
            Column::plain("figure"),
            Column::plain("printed"),
            Column::plain(format!("median of {seeds} seeds")),
            Column::plain("apart"),
            Column::plain("5 % of seeds below"),
            Column::plain("95 % below"),
            Column::plain("printed is between"),
        ],
    );
    for f in &outcome.figures {
        table.push(vec![
            f.name.as_str().into(),
            f.printed.into(),
            f.median.into(),
            Cell::Relative(f.relative_error()),
            f.band.0.into(),
            f.band.1.into(),
            if f.is_inside() { "yes" } else { "no" }.into(),
        ]);
    }
    table.note = Some(
        "Units are in the names: s = seconds, token_per_s = tokens a second, per_min = a minute. Between: to within half \
         of the last printed digit."
            .into(),
    );
    table
}

/// The band of the seeds around 1, in units of what was printed.
fn figures_plot(outcome: &Repeated) -> Plot {
    let numbered = || (1..).zip(&outcome.figures).map(|(i, f)| (f64::from(i), f));
    let series = |name: &str, mark, of: &dyn Fn(&PrintedFigure) -> f64| Series {
        name: name.into(),
        mark,
        points: numbered().map(|(i, f)| (i, of(f) / f.printed)).collect(),
    };
    Plot {
        title: "Simulated over printed, each figure in the order of the table".into(),
        x: Axis::linear("figure, by its row", ""),
        y: Axis::linear("simulated / printed", ""),
        series: vec![
            series("median of the seeds", Mark::Dots, &|f| f.median),
            series("5 % of the seeds are below", Mark::Dots, &|f| f.band.0),
            series("95 % are below", Mark::Dots, &|f| f.band.1),
        ],
        guides: vec![Guide::Horizontal {
            y: 1.0,
            label: "as printed".into(),
        }],
    }
}
