//! Tables of a cluster's run.

use crate::metric::cluster::{
    BusyShares, ClusterSummary, DemandBy, GroupBound, PhaseSeconds, PoolFigures, Served,
};
use crate::report::number::significant;
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

pub(super) fn share(value: Option<f64>) -> Cell {
    value.map_or(Cell::Absent, Cell::Share)
}

/// How the targets were met, each by itself and all together; nothing without targets.
pub(super) fn targets(summary: &ClusterSummary) -> Option<Table> {
    let slo = summary.slo.as_ref()?;
    let mut columns: Vec<Column> = vec![Column::plain("target"), Column::with_unit("at most", "ms")];
    columns.extend([
        Column::with_unit("met", "requests"),
        Column::with_unit("attainment", "share of offered"),
    ]);
    let mut table = Table::new("Targets over the whole run", columns);
    for t in &slo.targets {
        let target = (1e3 * t.target_s).into();
        table.push(vec![
            t.metric.name().into(),
            target,
            t.met.into(),
            share(t.attainment),
        ]);
    }
    table.push(vec![
        "all of them".into(),
        Cell::Absent,
        slo.met.into(),
        share(slo.attainment),
    ]);
    Some(table)
}

/// Rates over the whole run, and how much of it groups were idle while something waited.
pub(super) fn rates(summary: &ClusterSummary) -> Table {
    let r = &summary.rates;
    let mut table = figures(
        "Rates over the whole run",
        [
            ("over", r.over_s.into(), "s"),
            ("throughput", r.request_rps.into(), "requests/s"),
            ("goodput", r.goodput_rps.into(), "requests/s"),
            ("output of completed requests", r.output_tok_s.into(), "tokens/s"),
            ("output of good requests", r.good_output_tok_s.into(), "tokens/s"),
        ],
    );
    for pool in &summary.work_conservation {
        table.push(vec![
            format!("{}: idle while requests waited", pool.pool).into(),
            share(pool.share_of_ready),
            "of its ready time".into(),
        ]);
    }
    table
}

/// Seconds as milliseconds.
pub(super) fn ms(seconds: Option<f64>) -> Cell {
    seconds.map(|s| 1e3 * s).into()
}

/// What became of requests; of retries and wasted tokens only where there were any.
pub(super) fn outcomes(summary: &ClusterSummary) -> Table {
    let o = &summary.outcomes;
    let mut rows: Vec<Row> = vec![
        ("offered", o.offered.into(), "requests"),
        ("completed", o.completed.into(), "requests"),
        ("completed within all targets", o.good.into(), "requests"),
        ("failed", o.failed.into(), "requests"),
        ("timed out", o.timed_out.into(), "requests"),
        ("rejected", o.rejected.into(), "requests"),
        ("unfinished", o.unfinished.into(), "requests"),
    ];
    let mut if_any = |n: u64, row: Row| rows.extend((n > 0).then_some(row));
    if_any(o.unsent, ("unsent", o.unsent.into(), "requests"));
    if_any(
        o.surplus,
        ("not counted by their client", o.surplus.into(), "requests"),
    );
    if_any(o.stranded, ("of these, stranded", o.stranded.into(), "requests"));
    let tries = o.retries + o.retries_refused + o.resumed.unwrap_or(0);
    if_any(tries, ("tried again", o.retried.into(), "requests"));
    if_any(tries, ("resumed elsewhere", o.resumed.into(), "requests"));
    if_any(tries, ("retries", o.retries.into(), "attempts"));
    if_any(tries, ("retries refused", o.retries_refused.into(), "attempts"));
    let several = tries + o.most_attempts.saturating_sub(1);
    if_any(several, ("attempts", o.attempts.into(), "attempts"));
    if_any(o.hedges, ("hedges", o.hedges.into(), "attempts"));
    if_any(
        several,
        (
            "retry amplification, first tries and retries over first tries",
            o.amplification.into(),
            "tries/request",
        ),
    );
    if_any(
        several,
        ("most attempts of one request", o.most_attempts.into(), "attempts"),
    );
    let tokens = [
        ("prompt tokens wasted", o.wasted_input_tokens),
        ("output tokens wasted", o.wasted_output_tokens),
        ("output tokens given up", o.cancelled_output_tokens),
        ("prompt tokens for nothing, all", o.lost_input_tokens),
        ("output tokens for nothing, all", o.lost_output_tokens),
    ];
    for (name, n) in tokens {
        if_any(n, (name, n.into(), "tokens"));
    }
    rows.push((
        "work for nothing, estimate",
        share(o.lost_work_share),
        "of all work",
    ));
    let mut table = figures("Requests of the cluster", rows);
    if !has_gateway_queue(summary) {
        table.note = Some("Nobody waited at the gateway: waits are those in the engines.".into());
    }
    table
}

fn has_gateway_queue(summary: &ClusterSummary) -> bool {
    summary.gateway.queue_max > 0 || summary.gateway.never_dispatched > 0
}

/// The queue in front, if anybody waited in it.
pub(super) fn gateway(summary: &ClusterSummary) -> Option<Table> {
    let g = &summary.gateway;
    let wait = &g.wait;
    let table = figures(
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
    );
    has_gateway_queue(summary).then_some(table)
}

/// Pools, and their sum where there are several.
fn pools_and_sum(summary: &ClusterSummary) -> impl Iterator<Item = &PoolFigures> {
    let sum = (summary.pools.len() > 1).then_some(&summary.total);
    summary.pools.iter().chain(sum)
}

fn busy_columns() -> [Column; 3] {
    ["busy, prompts", "busy, output", "busy"].map(|name| Column::with_unit(name, "share"))
}

fn busy_cells(busy: &BusyShares) -> [Cell; 3] {
    [busy.prefill_share, busy.decode_share, busy.utilisation].map(share)
}

fn served_columns() -> [Column; 4] {
    [
        Column::with_unit("answered", "requests"),
        Column::with_unit("prefilled", "requests"),
        Column::with_unit("prompts", "tokens"),
        Column::with_unit("output", "tokens"),
    ]
}

fn served_cells(served: &Served) -> [Cell; 4] {
    [
        served.answered.into(),
        served.prefilled.into(),
        // Once, where one pool computes what another one answers.
        served.input_tokens.max(served.prefilled_tokens).into(),
        served.output_tokens.into(),
    ]
}

/// A row a pool, and their sum: what they served, how busy they were of the time in which they serve.
pub(super) fn pools(summary: &ClusterSummary) -> Table {
    let mut columns = vec![Column::plain("pool")];
    columns.extend(["at start", "most", "ready, mean"].map(|name| Column::with_unit(name, "groups")));
    columns.extend(served_columns());
    columns.extend(busy_columns());
    let mut table = Table::new("Pools", columns).with_keys(1);
    for pool in pools_and_sum(summary) {
        let mut row: Vec<Cell> = vec![
            pool.pool.as_str().into(),
            pool.groups_at_start.into(),
            pool.groups_most.into(),
            pool.ready_mean.into(),
        ];
        row.extend(served_cells(&pool.served));
        row.extend(busy_cells(&pool.busy));
        table.push(row);
    }
    table
}

/// A row a group, the same.
pub(super) fn groups(summary: &ClusterSummary) -> Table {
    let mut columns = vec![Column::plain("group"), Column::plain("revision")];
    columns.extend(served_columns());
    columns.extend(busy_columns());
    columns.push(Column::with_unit("running, mean", "requests"));
    let mut table = Table::new("Groups", columns).with_keys(1);
    for group in &summary.groups {
        let mut row = vec![group.name.as_str().into(), u64::from(group.revision).into()];
        row.extend(served_cells(&group.served));
        row.extend(busy_cells(&group.busy));
        row.push(group.mean_running.into());
        table.push(row);
    }
    table
}

/// Time in phases; those that nobody was in are left out.
fn phases<'a>(
    title: &str,
    of: &str,
    unit: &str,
    rows: impl Iterator<Item = (&'a str, &'a PhaseSeconds)>,
) -> Table {
    let rows: Vec<(&str, &PhaseSeconds)> = rows.collect();
    let was_any = |i: usize| rows.iter().any(|(_, phases)| phases.values()[i].1 > 0.0);
    let shown: Vec<usize> = (0..PhaseSeconds::default().values().len())
        .filter(|&i| was_any(i))
        .collect();
    let names = PhaseSeconds::default().values();
    let mut columns = vec![Column::plain(of)];
    columns.extend(shown.iter().map(|&i| Column::with_unit(names[i].0, unit)));
    columns.push(Column::with_unit("all", unit));
    let mut table = Table::new(title, columns).with_keys(1);
    for (name, phases) in rows {
        let mut row: Vec<Cell> = vec![name.into()];
        row.extend(shown.iter().map(|&i| Cell::Number(phases.values()[i].1)));
        row.push(phases.total().into());
        table.push(row);
    }
    table
}

/// Time of pools by phase.
pub(super) fn pool_phases(summary: &ClusterSummary) -> Table {
    let rows = pools_and_sum(summary).map(|pool| (pool.pool.as_str(), &pool.phases));
    phases("Pools by phase", "pool", "group-s", rows)
}

/// Time of groups by phase.
pub(super) fn group_phases(summary: &ClusterSummary) -> Table {
    let rows = summary
        .groups
        .iter()
        .map(|group| (group.name.as_str(), &group.phases));
    phases("Groups by phase", "group", "s", rows)
}

/// A row a group, with everything: for a file.
pub fn groups_table(summary: &ClusterSummary) -> Table {
    let mut columns: Vec<Column> = ["number", "group", "pool", "revision", "ranks"]
        .map(Column::plain)
        .to_vec();
    columns.extend(served_columns());
    columns.extend(busy_columns());
    columns.push(Column::with_unit("running, mean", "requests"));
    let names = PhaseSeconds::default().values();
    columns.extend(names.map(|(name, _)| Column::with_unit(name, "s")));
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
        row.extend(group.phases.values().map(|(_, seconds)| Cell::Number(seconds)));
        table.push(row);
    }
    table
}

/// Prefill, decode and transfers apart.
pub(super) fn demand(summary: &ClusterSummary) -> Table {
    let d = &summary.demand;
    let mut rows: Vec<Row> = vec![
        ("time under load", d.offered_s.into(), "s"),
        ("prefill", d.prefill_groups.into(), "busy group-s/s"),
        ("decode", d.decode_groups.into(), "busy group-s/s"),
        (
            "P:D of busy time in this run (not for planning)",
            d.prefill_per_decode.into(),
            "groups/group",
        ),
    ];
    if d.transfers + d.failed_transfers + d.leases_expired > 0 {
        rows.extend([
            ("KV transfer", d.transfer_bytes_per_s.into(), "bytes/s"),
            ("KV moved", d.transferred_bytes.into(), "bytes"),
            ("requests whose KV was moved", d.transfers.into(), "requests"),
            ("transfers that failed", d.failed_transfers.into(), "transfers"),
            ("leases that expired", d.leases_expired.into(), "prefills"),
        ]);
    }
    let mut table = figures("Demand", rows);
    table.note = Some(match d.by {
        DemandBy::Pool => "Prefill is what keeps prefill groups busy, decode what keeps the others.".into(),
        DemandBy::Step => {
            "Prefill is steps with prompt tokens, whatever else they compute; decode is the other steps."
                .into()
        }
    });
    table
}

/// Groups needed of each kind.
pub(super) fn needs(summary: &ClusterSummary) -> Option<Table> {
    let n = summary.demand.needs.as_ref()?;
    let columns = vec![
        Column::plain("kind"),
        Column::with_unit("a group carries", "requests/s"),
        Column::with_unit("batch", "requests/rank"),
        Column::with_unit("step", "s"),
        Column::plain("held by"),
        Column::with_unit("needed", "groups"),
    ];
    let mut table = Table::new("Groups needed", columns).with_keys(1);
    let kinds = [
        ("prefill", &n.prefill, n.prefill_groups),
        ("decode", &n.decode, n.decode_groups),
    ];
    for (kind, capacity, needed) in kinds {
        table.push(vec![
            kind.into(),
            capacity.requests_per_s.into(),
            capacity.batch.map(u64::from).into(),
            capacity.step_s.into(),
            held_by(capacity.bound).into(),
            needed.into(),
        ]);
    }
    table.note = Some(format!(
        "P:D of groups needed: {} at {} requests/s: what full batches within the target for the time between tokens carry.",
        significant(n.prefill_per_decode, 3),
        significant(n.offered_rps, 3)
    ));
    Some(table)
}

const fn held_by(bound: GroupBound) -> &'static str {
    match bound {
        GroupBound::StepTokens => "tokens of a step",
        GroupBound::Seats => "seats",
        GroupBound::Kv => "KV blocks",
        GroupBound::TokenTarget => "target between tokens",
    }
}

/// A row a link that carried something; links without traffic are in `cluster.json`.
pub(super) fn links(summary: &ClusterSummary) -> Option<Table> {
    let columns = vec![
        Column::plain("link"),
        Column::with_unit("carried", "bytes"),
        Column::with_unit("rate", "bytes/s"),
        Column::with_unit("share", "of bandwidth"),
    ];
    let mut table = Table::new("Links", columns).with_keys(1);
    for link in summary.demand.links.iter().filter(|l| l.bytes > 0) {
        table.push(vec![
            link.link.as_str().into(),
            link.bytes.into(),
            link.bytes_per_s.into(),
            share(link.share),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Dummy batches by pool, where ranks step together.
pub(super) fn dummies(summary: &ClusterSummary) -> Option<Table> {
    let mut table = Table::new(
        "Dummy batches of ranks that step together",
        vec![
            Column::plain("pool"),
            Column::with_unit("dummy batches", "rank-steps"),
            Column::with_unit("their time", "rank-s"),
            Column::with_unit("while nobody had work", "rank-steps"),
            Column::with_unit("time of these", "rank-s"),
        ],
    );
    for pool in &summary.pools {
        if let Some(dummy) = &pool.dummy {
            table.push(vec![
                pool.pool.as_str().into(),
                dummy.steps.into(),
                dummy.rank_s.into(),
                dummy.idle_steps.into(),
                dummy.idle_rank_s.into(),
            ]);
        }
    }
    table.note = Some("They draw power and are in no figure of how busy groups were.".into());
    (!table.rows.is_empty()).then_some(table)
}
