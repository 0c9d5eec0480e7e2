//! Tables of a cluster's run.

use crate::metric::cluster::{BusyShares, ClusterSummary, DemandBy, PhaseSeconds};
use crate::report::table::{Cell, Column, Table};

/// Groups are listed one by one up to so many.
pub(super) const FEW_GROUPS: usize = 24;

/// Figure, value, unit.
pub(super) type Row = (&'static str, Cell, &'static str);

/// A table of figures with a unit each.
pub(super) fn figures(title: &str, rows: impl IntoIterator<Item = Row>) -> Table {
    let mut table = Table::new(title, ["figure", "value", "unit"].map(Column::plain).to_vec());
    for (figure, value, unit) in rows {
        table.push(vec![figure.into(), value, unit.into()]);
    }
    table
}

fn share(value: Option<f64>) -> Cell {
    value.map_or(Cell::Absent, Cell::Share)
}

/// What became of requests.
pub(super) fn outcomes(summary: &ClusterSummary) -> Table {
    let o = &summary.outcomes;
    figures(
        "Requests of the cluster",
        [
            ("offered", o.offered.into(), "requests"),
            ("completed", o.completed.into(), "requests"),
            ("completed within all targets", o.good.into(), "requests"),
            ("failed", o.failed.into(), "requests"),
            ("timed out", o.timed_out.into(), "requests"),
            ("rejected", o.rejected.into(), "requests"),
            ("unfinished", o.unfinished.into(), "requests"),
            ("of these, stranded", o.stranded.into(), "requests"),
            ("tried again", o.retried.into(), "requests"),
            ("resumed elsewhere", o.resumed.into(), "requests"),
            ("retries", o.retries.into(), "attempts"),
            ("retries refused", o.retries_refused.into(), "attempts"),
            ("attempts", o.attempts.into(), "attempts"),
            ("retry amplification", o.amplification.into(), "attempts/request"),
            ("most attempts of one request", o.most_attempts.into(), "attempts"),
            ("prompt tokens wasted", o.wasted_input_tokens.into(), "tokens"),
            ("output tokens wasted", o.wasted_output_tokens.into(), "tokens"),
            (
                "output tokens given up",
                o.cancelled_output_tokens.into(),
                "tokens",
            ),
            (
                "work for nothing, estimate",
                share(o.lost_work_share),
                "of all work",
            ),
        ],
    )
}

/// The queue in front.
pub(super) fn gateway(summary: &ClusterSummary) -> Table {
    let g = &summary.gateway;
    let wait = &g.wait;
    figures(
        "Gateway",
        [
            ("queue, mean", g.queue_mean.into(), "requests"),
            ("queue, most", g.queue_max.into(), "requests"),
            ("wait, mean", wait.mean.into(), "s"),
            ("wait p50", wait.p50.into(), "s"),
            ("wait p90", wait.p90.into(), "s"),
            ("wait p99", wait.p99.into(), "s"),
            ("wait, longest", wait.max.into(), "s"),
            ("never sent on", g.never_dispatched.into(), "requests"),
        ],
    )
}

const PHASE_HEADINGS: [&str; 9] = [
    "provision",
    "load weights",
    "compile",
    "capture",
    "warm",
    "ready, idle",
    "ready, busy",
    "draining",
    "failed",
];

fn busy_columns() -> [Column; 3] {
    ["busy with prompts", "busy with output alone", "utilisation"]
        .map(|name| Column::with_unit(name, "of serving time"))
}

fn busy_cells(busy: &BusyShares) -> [Cell; 3] {
    [busy.prefill_share, busy.decode_share, busy.utilisation].map(share)
}

fn phase_columns(unit: &str) -> impl Iterator<Item = Column> + use<'_> {
    PHASE_HEADINGS
        .into_iter()
        .map(move |name| Column::with_unit(name, unit))
}

fn phase_cells(phases: &PhaseSeconds) -> impl Iterator<Item = Cell> + use<> {
    phases
        .values()
        .into_iter()
        .map(|(_, seconds)| Cell::Number(seconds))
}

fn served_columns() -> [Column; 4] {
    [
        Column::with_unit("answered", "requests"),
        Column::with_unit("prefilled for others", "requests"),
        Column::with_unit("prompts", "tokens"),
        Column::with_unit("output", "tokens"),
    ]
}

fn served_cells(served: &crate::metric::cluster::Served) -> [Cell; 4] {
    [
        served.answered.into(),
        served.prefilled.into(),
        (served.input_tokens + served.prefilled_tokens).into(),
        served.output_tokens.into(),
    ]
}

/// A row a pool, and their sum.
pub(super) fn pools(summary: &ClusterSummary) -> Table {
    let mut columns = vec![Column::plain("pool"), Column::plain("groups")];
    columns.extend(served_columns());
    columns.extend(busy_columns());
    columns.extend(phase_columns("group-s"));
    let mut table = Table::new("Pools", columns);
    for pool in summary.pools.iter().chain([&summary.total]) {
        let mut row = vec![pool.pool.as_str().into(), pool.groups.into()];
        row.extend(served_cells(&pool.served));
        row.extend(busy_cells(&pool.busy));
        row.extend(phase_cells(&pool.phases));
        table.push(row);
    }
    table
}

/// A row a group.
pub fn groups_table(summary: &ClusterSummary) -> Table {
    let mut columns: Vec<Column> = ["number", "group", "pool", "revision", "ranks"]
        .map(Column::plain)
        .to_vec();
    columns.extend(served_columns());
    columns.extend(busy_columns());
    columns.push(Column::with_unit("running while busy, mean", "requests"));
    columns.extend(phase_columns("s"));
    let mut table = Table::new("Groups", columns);
    for group in &summary.groups {
        let mut row: Vec<Cell> = vec![
            u64::from(group.group).into(),
            group.name.as_str().into(),
            group.pool.as_str().into(),
            u64::from(group.revision).into(),
            group.ranks.into(),
        ];
        row.extend(served_cells(&group.served));
        row.extend(busy_cells(&group.busy));
        row.push(group.mean_running.into());
        row.extend(phase_cells(&group.phases));
        table.push(row);
    }
    table
}

/// Prefill, decode and transfers apart.
pub(super) fn demand(summary: &ClusterSummary) -> Table {
    let d = &summary.demand;
    let mut table = figures(
        "Demand",
        [
            ("time under load", d.offered_s.into(), "s"),
            ("prefill", d.prefill_groups.into(), "busy group-s/s"),
            ("decode", d.decode_groups.into(), "busy group-s/s"),
            (
                "prefill over decode (P:D)",
                d.prefill_per_decode.into(),
                "groups/group",
            ),
            ("KV transfer", d.transfer_bytes_per_s.into(), "bytes/s"),
            ("KV moved", d.transferred_bytes.into(), "bytes"),
            ("requests whose KV was moved", d.transfers.into(), "requests"),
            ("transfers that failed", d.failed_transfers.into(), "transfers"),
            ("leases that expired", d.leases_expired.into(), "prefills"),
        ],
    );
    table.note = Some(match d.by {
        DemandBy::Pool => "Prefill is what keeps prefill groups busy, decode what keeps the others.".into(),
        DemandBy::Step => {
            "Prefill is steps with prompt tokens, whatever else they compute; decode is the other steps."
                .into()
        }
    });
    table
}

/// A row a link that carried something or has a known bandwidth.
pub(super) fn links(summary: &ClusterSummary) -> Option<Table> {
    let columns = vec![
        Column::plain("link"),
        Column::with_unit("carried", "bytes"),
        Column::with_unit("rate", "bytes/s"),
        Column::with_unit("share", "of bandwidth"),
    ];
    let mut table = Table::new("Links", columns);
    for link in summary
        .demand
        .links
        .iter()
        .filter(|l| l.bytes > 0 || l.share.is_some())
    {
        table.push(vec![
            link.link.as_str().into(),
            link.bytes.into(),
            link.bytes_per_s.into(),
            share(link.share),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// A row a fault: who knew when.
pub(super) fn faults(summary: &ClusterSummary) -> Option<Table> {
    let columns = vec![
        Column::with_unit("at", "s"),
        Column::plain("fault"),
        Column::plain("groups hit"),
        Column::plain("ready ones lost"),
        Column::with_unit("detected after", "s"),
        Column::with_unit("routes removed after", "s"),
        Column::with_unit("capacity back after", "s"),
        Column::with_unit("mended after", "s"),
        Column::plain("overlapped"),
    ];
    let mut table = Table::new("Faults", columns);
    for fault in &summary.faults {
        table.push(vec![
            fault.at_s.into(),
            fault.what.as_str().into(),
            (fault.groups.len() as u64).into(),
            fault.ready_lost.into(),
            fault.detected_after_s.into(),
            fault.routes_removed_after_s.into(),
            fault.capacity_back_after_s.into(),
            fault.mended_after_s.into(),
            if fault.is_overlapped { "yes" } else { "no" }.into(),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// A row a fault: goodput and queue.
pub(super) fn recoveries(summary: &ClusterSummary) -> Option<Table> {
    let columns = vec![
        Column::with_unit("at", "s"),
        Column::plain("fault"),
        Column::with_unit("goodput before", "requests/s"),
        Column::with_unit("trough", "requests/s"),
        Column::with_unit("below", "s"),
        Column::with_unit("recovered after", "s"),
        Column::with_unit("queue before", "requests"),
        Column::with_unit("longest queue", "requests"),
        Column::with_unit("queue area", "request-s"),
        Column::with_unit("queue back after", "s"),
    ];
    let mut table = Table::new("Recovery", columns);
    for fault in &summary.faults {
        let Some(r) = &fault.recovery else { continue };
        table.push(vec![
            fault.at_s.into(),
            fault.what.as_str().into(),
            r.goodput_before_rps.into(),
            r.trough_rps.into(),
            r.below_s.into(),
            r.recovered_after_s.into(),
            r.queue_before.into(),
            r.queue_max.into(),
            r.queue_area_request_s.into(),
            r.queue_back_after_s.into(),
        ]);
    }
    let by = &summary.judged_by;
    table.note = Some(format!(
        "Windows of {} s; before: up to {} of them. Back: no more than {} % below that for {} in a row. A dash: not before \
         the end.",
        by.window_s,
        by.baseline_windows,
        crate::report::number::short(100.0 * by.back_within),
        by.hold_windows,
    ));
    (!table.rows.is_empty()).then_some(table)
}

/// A row a pool, if anything ever scaled.
pub(super) fn scaling(summary: &ClusterSummary) -> Option<Table> {
    let columns = vec![
        Column::plain("pool"),
        Column::with_unit("ready, mean", "groups"),
        Column::with_unit("fewest", "groups"),
        Column::with_unit("most", "groups"),
        Column::with_unit("beyond need", "group-h"),
        Column::with_unit("up", "decisions"),
        Column::with_unit("down", "decisions"),
        Column::with_unit("reversals", "decisions"),
        Column::with_unit("shortest reversal", "s"),
        Column::with_unit("new group ready, mean", "s"),
        Column::with_unit("new group ready, longest", "s"),
        Column::with_unit("never ready", "groups"),
    ];
    let mut table = Table::new("Scaling", columns);
    let scales = summary.scaling.iter().any(|s| s.scale_ups + s.scale_downs > 0);
    for pool in summary.scaling.iter().filter(|_| scales) {
        table.push(vec![
            pool.pool.as_str().into(),
            pool.ready_mean.into(),
            pool.ready_min.into(),
            pool.ready_max.into(),
            pool.overshoot_group_h.into(),
            pool.scale_ups.into(),
            pool.scale_downs.into(),
            pool.reversals.into(),
            pool.shortest_reversal_s.into(),
            pool.scale_up_latency.mean.into(),
            pool.scale_up_latency.max.into(),
            pool.never_ready.into(),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// A row a tenant.
pub fn tenants_table(summary: &ClusterSummary) -> Table {
    let columns = vec![
        Column::plain("tenant"),
        Column::plain("name"),
        Column::plain("weight"),
        Column::with_unit("offered", "requests"),
        Column::with_unit("admitted", "requests"),
        Column::with_unit("completed", "requests"),
        Column::with_unit("completed work", "weighted tokens"),
        Column::with_unit("completed", "of all work"),
        Column::with_unit("deviation from its share", "ratio - 1"),
        Column::with_unit("backlogged", "s"),
        Column::with_unit("wait, mean", "s"),
        Column::with_unit("wait, longest", "s"),
        Column::with_unit("longest starvation", "s"),
        Column::with_unit("KV held", "byte-s"),
        Column::with_unit("KV held", "of all"),
        Column::with_unit("found in prefix cache", "of its prompts"),
        Column::with_unit("found in prefix cache", "of all finds"),
    ];
    let mut table = Table::new("Tenants", columns);
    for t in &summary.fairness.tenants {
        table.push(vec![
            u64::from(t.tenant).into(),
            summary.tenant_names.get(&t.tenant).cloned().into(),
            t.weight.into(),
            t.offered.into(),
            t.admitted.into(),
            t.completed.into(),
            t.completed_work.into(),
            share(t.completed_share),
            t.share_deviation.map_or(Cell::Absent, Cell::Relative),
            t.backlogged_s.into(),
            t.queue_age_mean_s.into(),
            t.queue_age_max_s.into(),
            t.longest_starvation_s.into(),
            t.kv_share.map(|_| t.kv_byte_seconds).into(),
            share(t.kv_share),
            share(t.cached_share_of_input),
            share(t.cached_share_of_all),
        ]);
    }
    let index = |x: Option<f64>| x.map_or_else(|| "–".to_owned(), crate::report::number::short);
    table.note = Some(format!(
        "Jain's index of completed work over weight {}, of service over service due {}.",
        index(summary.fairness.jain_completed),
        index(summary.fairness.jain_backlogged),
    ));
    table
}
