//! Tables of tenants.

use super::tables::share;
use crate::metric::cluster::ClusterSummary;
use crate::metric::fairness::TenantFairness;
use crate::report::number::short;
use crate::report::table::{Cell, Column, Table};

type Tenant<'a> = (&'a TenantFairness, Option<&'a String>);

/// A column: its heading and unit, and its cell of a tenant.
type Figure = (&'static str, Option<&'static str>, fn(&Tenant<'_>) -> Cell);

const WHO: [Figure; 2] = [
    ("tenant", None, |(t, _)| u64::from(t.tenant).into()),
    ("name", None, |(_, name)| name.cloned().into()),
];

const WORK: [Figure; 7] = [
    ("weight", None, |(t, _)| t.weight.into()),
    ("offered", Some("requests"), |(t, _)| t.offered.into()),
    ("admitted", Some("requests"), |(t, _)| t.admitted.into()),
    ("completed", Some("requests"), |(t, _)| t.completed.into()),
    ("work done", Some("weighted tokens"), |(t, _)| {
        t.completed_work.into()
    }),
    ("work done", Some("share"), |(t, _)| share(t.completed_share)),
    ("off its due", Some("service over due - 1"), |(t, _)| {
        t.share_deviation.map_or(Cell::Absent, Cell::Relative)
    }),
];

const WAITS: [Figure; 8] = [
    ("backlogged", Some("s"), |(t, _)| t.backlogged_s.into()),
    ("wait, mean", Some("s"), |(t, _)| t.queue_age_mean_s.into()),
    ("wait, most", Some("s"), |(t, _)| t.queue_age_max_s.into()),
    ("starved, most", Some("s"), |(t, _)| t.longest_starvation_s.into()),
    ("KV held", Some("byte-s"), |(t, _)| {
        t.kv_share.map(|_| t.kv_byte_seconds).into()
    }),
    ("KV held", Some("share"), |(t, _)| share(t.kv_share)),
    ("cached", Some("share of its prompts"), |(t, _)| {
        share(t.cached_share_of_input)
    }),
    ("cached", Some("share of all finds"), |(t, _)| {
        share(t.cached_share_of_all)
    }),
];

fn table(title: &str, figures: &[&[Figure]], summary: &ClusterSummary) -> Table {
    let figures = || figures.iter().copied().flatten();
    let columns = figures().map(|(name, unit, _)| Column {
        name: (*name).to_owned(),
        unit: unit.map(str::to_owned),
    });
    let mut table = Table::new(title, columns.collect());
    for t in &summary.fairness.tenants {
        let tenant = (t, summary.tenant_names.get(&t.tenant));
        table.push(figures().map(|(_, _, cell)| cell(&tenant)).collect());
    }
    table
}

/// For people: work, then waits and memory. Nothing where there is one tenant alone.
pub(super) fn tenants(summary: &ClusterSummary) -> Vec<Table> {
    if summary.fairness.tenants.len() < 2 {
        return Vec::new();
    }
    let mut work = table("Tenants", &[&WHO, &WORK], summary);
    let index = |x: Option<f64>| x.map_or_else(|| "–".to_owned(), short);
    work.note = Some(format!(
        "Jain's index of completed work over weight {}, of service over service due {}.",
        index(summary.fairness.jain_completed),
        index(summary.fairness.jain_backlogged),
    ));
    vec![work, table("Tenants: waits and KV", &[&WHO, &WAITS], summary)]
}

/// A row a tenant, with everything: for a file.
pub fn tenants_table(summary: &ClusterSummary) -> Table {
    table("Tenants", &[&WHO, &WORK, &WAITS], summary)
}
