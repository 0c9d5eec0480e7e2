//! Tables of a fit: parameters, residuals, errors on runs left out, host times, stalls, data.

use super::table::{Cell, Column, Table};
use crate::steptime::fit_file::{Fit, StepError};

/// Every table of a fit.
pub fn fit_tables(fit: &Fit) -> Vec<Table> {
    vec![
        parameters(fit),
        residuals(fit),
        held_out(fit),
        host(fit),
        stalls(fit),
    ]
}

fn parameters(fit: &Fit) -> Table {
    let columns = [
        "parameter",
        "value",
        "unit",
        "lowest left out",
        "highest left out",
    ];
    let mut table = Table::new("Step-time parameters", columns.map(Column::plain).to_vec());
    for p in &fit.parameters {
        table.push(vec![
            p.name.as_str().into(),
            p.value.into(),
            p.unit.as_str().into(),
            p.held_out_range.map(|r| r.0).into(),
            p.held_out_range.map(|r| r.1).into(),
        ]);
    }
    table.note = Some("lowest and highest value over the fits that leave one group of runs out".into());
    table
}

fn error_columns(first: &str) -> Vec<Column> {
    [
        first,
        "steps",
        "median error",
        "median |error|",
        "p90 |error|",
        "error of the sum",
    ]
    .map(Column::plain)
    .to_vec()
}

fn error_cells(name: &str, error: &StepError) -> Vec<Cell> {
    vec![
        name.into(),
        error.steps.into(),
        Cell::Relative(error.median),
        Cell::Share(error.median_abs),
        Cell::Share(error.p90_abs),
        Cell::Relative(error.sum),
    ]
}

fn residuals(fit: &Fit) -> Table {
    let mut table = Table::new(
        "Residuals on the fitted steps, (predicted - measured) / measured",
        error_columns("batch"),
    );
    for r in &fit.residuals {
        table.push(error_cells(&r.regime, &r.error));
    }
    table
}

fn held_out(fit: &Fit) -> Table {
    let title = format!(
        "Error on runs left out of the fit in turn ({})",
        fit.held_out.method
    );
    let mut table = Table::new(title, error_columns("run"));
    for r in &fit.held_out.runs {
        table.push(error_cells(&r.run, &r.error));
    }
    table
}

fn host(fit: &Fit) -> Table {
    let mut table = Table::new(
        "Host time around the steps (medians)",
        vec![
            Column::plain("what"),
            Column::with_unit("time", "s"),
            Column::plain("samples"),
        ],
    );
    let h = &fit.host;
    let rows = [
        ("between steps", Some(h.between_steps_s), h.between_steps_n),
        (
            "adding a request to a busy engine",
            Some(h.add_request_s),
            h.add_request_n,
        ),
        (
            "adding a further request behind it",
            h.add_further_request_s,
            h.add_further_request_n,
        ),
        (
            "adding a request to an idle engine",
            h.add_request_idle_s,
            h.add_request_idle_n,
        ),
    ];
    for (name, seconds, n) in rows {
        table.push(vec![name.into(), seconds.into(), n.into()]);
    }
    if let Some(f) = &fit.front_end {
        for (name, seconds) in [
            ("client to engine (mean)", f.inbound_s),
            ("engine to client (mean)", f.outbound_s),
        ] {
            table.push(vec![name.into(), seconds.into(), f.requests.into()]);
        }
    }
    table
}

fn stalls(fit: &Fit) -> Table {
    let mut table = Table::new(
        "Stalls that the machine caused, kept out of the step times",
        vec![
            Column::plain("scheduling class"),
            Column::plain("runs"),
            Column::plain("stalls"),
            Column::with_unit("in all", "s"),
            Column::plain("share of the runs"),
            Column::with_unit("median length", "s"),
            Column::plain("rule"),
        ],
    );
    for s in &fit.stalls {
        let rule = s.limit.map_or_else(
            || "none".to_owned(),
            |l| format!("at most {} s busy in each {} s", l.busy_s, l.period_s),
        );
        table.push(vec![
            s.scheduler_class.as_str().into(),
            s.runs.into(),
            s.count.into(),
            s.total_s.into(),
            Cell::Share(s.share),
            s.median_s.into(),
            rule.into(),
        ]);
    }
    table
}
