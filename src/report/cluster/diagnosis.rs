//! Tables of what limits a cluster.

use super::tables::share;
use crate::metric::cluster::{BothWays, ClusterDiagnosis, ClusterSummary};
use crate::report::table::{Cell, Column, Table};

/// The verdict with its evidence, the places on a request's way, the pools' queues, and Little's law both ways.
pub(super) fn tables(summary: &ClusterSummary) -> Vec<Table> {
    let Some(diagnosis) = &summary.diagnosis else {
        return Vec::new();
    };
    vec![
        verdict(diagnosis),
        places(diagnosis),
        pools(diagnosis),
        little(diagnosis),
    ]
}

fn verdict(d: &ClusterDiagnosis) -> Table {
    let whose = d.whose.as_ref().map_or_else(String::new, |w| format!(", {w}"));
    let title = format!("What limits it: {}{whose}", d.limit.name());
    let columns = ["evidence", "value", "unit", "compared with"];
    let mut table = Table::new(title, columns.map(Column::plain).to_vec());
    for e in &d.evidence {
        let is_share = e.unit == "1";
        let cell = |x: Option<f64>| if is_share { share(x) } else { x.into() };
        let unit = if is_share { "" } else { &e.unit };
        table.push(vec![
            e.what.as_str().into(),
            cell(e.value),
            unit.into(),
            cell(e.threshold),
        ]);
    }
    let advice = d
        .advice
        .as_ref()
        .map_or_else(String::new, |a| format!("\nWhat would help: {a}."));
    table.note = Some(format!("{}.{advice}", d.because));
    table
}

fn places(d: &ClusterDiagnosis) -> Table {
    let columns = vec![
        Column::plain("place on the way"),
        Column::with_unit("came", "requests"),
        Column::with_unit("mean", "s"),
        Column::with_unit("longest", "s"),
        Column::with_unit("share", "of all time"),
        Column::with_unit("share", "of a late TTFT"),
        Column::with_unit("in it, mean", "requests"),
    ];
    let mut table = Table::new("Where requests are", columns);
    for p in &d.places {
        table.push(vec![
            p.place.name().into(),
            p.n.into(),
            p.mean_s.into(),
            p.max_s.into(),
            share(p.share),
            share(p.share_of_late_ttft),
            p.in_it.into(),
        ]);
    }
    table.note = Some(format!(
        "Of requests sent from {:.3} to {:.3} s: {} that were served at their first try, {} more are left out.",
        d.judged_from_s, d.judged_to_s, d.followed, d.not_followed
    ));
    table
}

fn pools(d: &ClusterDiagnosis) -> Table {
    let columns = vec![
        Column::plain("pool"),
        Column::with_unit("ready, mean", "groups"),
        Column::with_unit("not ready", "of their time"),
        Column::with_unit("busy", "of the time"),
        Column::with_unit("queue", "of the time"),
        Column::with_unit("for seats", "of it"),
        Column::with_unit("for KV blocks", "of it"),
        Column::with_unit("for tokens of a step", "of it"),
        Column::with_unit("seats full", "of the time"),
        Column::with_unit("running", "requests/replica"),
        Column::with_unit("seats", "requests/replica"),
        Column::with_unit("step", "s"),
    ];
    let mut table = Table::new("Queues of pools", columns);
    for p in &d.pools {
        table.push(vec![
            p.pool.as_str().into(),
            p.ready.into(),
            share(p.not_ready),
            share(p.busy),
            share(p.queued),
            share(p.pinned),
            share(p.short),
            share(p.room),
            share(p.full),
            p.batch.into(),
            u64::from(p.seats).into(),
            p.step_s.into(),
        ]);
    }
    table.note = d.transfers.as_ref().map(|t| {
        format!(
            "At a decode pool, requests whose KV moves are in the queue: {} transfers of {:.4} s, {:.2} under way on the average.",
            t.n, t.mean_s, t.under_way
        )
    });
    table
}

fn little(d: &ClusterDiagnosis) -> Table {
    let columns = vec![
        Column::plain("part"),
        Column::with_unit("lambda", "requests/s"),
        Column::with_unit("W", "s"),
        Column::with_unit("lambda * W", "requests"),
        Column::with_unit("by requests' times", "requests"),
        Column::with_unit("by gauges", "requests"),
        Column::plain("they agree"),
    ];
    let mut table = Table::new("Little's law both ways", columns);
    for b in &d.little {
        table.push(row(b));
    }
    table.note = Some(
        "Requests' own times and the engines' gauges are accounts apart; gauges see an arrival at the next step. lambda * W above \
         both is a backlog that grew."
            .into(),
    );
    table
}

fn row(b: &BothWays) -> Vec<Cell> {
    let agrees = match b.agrees {
        Some(true) => "yes",
        Some(false) => "no",
        None => "–",
    };
    vec![
        b.part.as_str().into(),
        b.rate_rps.into(),
        b.mean_s.into(),
        b.by_law.into(),
        b.in_it.into(),
        b.by_gauges.into(),
        agrees.into(),
    ]
}
