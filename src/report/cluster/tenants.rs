//! Tables of tenants.

use std::collections::BTreeMap;

use super::tables::{ms, share};
use crate::metric::cluster::{ClusterSummary, TenantService};
use crate::metric::fairness::TenantFairness;
use crate::report::number::short;
use crate::report::table::{Cell, Column, Table};

/// Its fairness, its name, and how it was served.
type Tenant<'a> = (&'a TenantFairness, Option<&'a String>, Option<&'a TenantService>);

/// A column: its heading and unit, and its cell of a tenant.
type Figure = (&'static str, Option<&'static str>, fn(&Tenant<'_>) -> Cell);

const WHO: [Figure; 2] = [
    ("tenant", None, |(t, ..)| u64::from(t.tenant).into()),
    ("name", None, |(_, name, _)| name.cloned().into()),
];

const WORK: [Figure; 6] = [
    ("weight", None, |(t, ..)| t.weight.into()),
    ("offered", Some("requests"), |(t, ..)| t.offered.into()),
    ("admitted", Some("requests"), |(t, ..)| t.admitted.into()),
    ("completed", Some("requests"), |(t, ..)| t.completed.into()),
    ("work done", Some("weighted tokens"), |(t, ..)| {
        t.completed_work.into()
    }),
    ("work done", Some("share"), |(t, ..)| share(t.completed_share)),
];

/// A tenant that asked for less than its share may have been kept from it all the same, so both are told.
const OFF_AND_WHY: [Figure; 2] = [
    (
        "off its due while it waited",
        Some("service over due - 1"),
        |(t, ..)| deviation(t.share_deviation),
    ),
    ("asked for less than its share", None, |(t, ..)| {
        if t.asked_less { "yes" } else { "no" }.into()
    }),
];

fn deviation(x: Option<f64>) -> Cell {
    x.map_or(Cell::Absent, Cell::Relative)
}

const SERVICE: [Figure; 5] = [
    ("within SLO", Some("requests"), |(.., s)| s.map(|s| s.good).into()),
    ("attainment", Some("share of offered"), |(.., s)| {
        share(s.and_then(|s| s.attainment))
    }),
    (
        "TTFT, mean",
        Some("ms"),
        |(.., s)| ms(s.and_then(|s| s.ttft.mean)),
    ),
    ("TTFT p50", Some("ms"), |(.., s)| ms(s.and_then(|s| s.ttft.p50))),
    ("TTFT p99", Some("ms"), |(.., s)| ms(s.and_then(|s| s.ttft.p99))),
];

/// How many requests, where the table tells nothing else of work.
const REQUESTS: [Figure; 2] = [WORK[1], WORK[3]];

const WAITS: [Figure; 8] = [
    ("backlogged", Some("s"), |(t, ..)| t.backlogged_s.into()),
    ("wait, mean", Some("s"), |(t, ..)| t.queue_age_mean_s.into()),
    ("wait, most", Some("s"), |(t, ..)| t.queue_age_max_s.into()),
    ("starved, most", Some("s"), |(t, ..)| {
        t.longest_starvation_s.into()
    }),
    ("KV held", Some("byte-s"), |(t, ..)| {
        t.kv_share.map(|_| t.kv_byte_seconds).into()
    }),
    ("KV held", Some("share"), |(t, ..)| share(t.kv_share)),
    ("cached", Some("share of its prompts"), |(t, ..)| {
        share(t.cached_share_of_input)
    }),
    ("cached", Some("share of all finds"), |(t, ..)| {
        share(t.cached_share_of_all)
    }),
];

fn table(title: &str, figures: &[&[Figure]], summary: &ClusterSummary) -> Table {
    let figures = || figures.iter().copied().flatten();
    let columns = figures().map(|(name, unit, _)| Column {
        name: (*name).to_owned(),
        unit: unit.map(str::to_owned),
    });
    let mut table = Table::new(title, columns.collect()).with_keys(WHO.len());
    let services: BTreeMap<u32, &TenantService> = summary.tenants.iter().map(|s| (s.tenant, s)).collect();
    for t in &summary.fairness.tenants {
        let service = services.get(&t.tenant).copied();
        let tenant = (t, summary.tenant_names.get(&t.tenant), service);
        table.push(figures().map(|(_, _, cell)| cell(&tenant)).collect());
    }
    table
}

/// For people: service by the targets, work, then waits and memory. Nothing where there is one tenant alone.
pub(super) fn tenants(summary: &ClusterSummary) -> Vec<Table> {
    if summary.fairness.tenants.len() < 2 {
        return Vec::new();
    }
    let mut work = table("Tenants", &[&WHO, &WORK, &OFF_AND_WHY], summary);
    let index = |x: Option<f64>| x.map_or_else(|| "–".to_owned(), short);
    work.note = Some(format!(
        "Off its due counts only while something of the tenant waited; a dash: nothing was due then. A tenant that asked for \
         less than its share got all of it in the end, and may have waited for it.\nJain's index of work done in the whole run over weight {} (the same for every policy \
         when all is served in the end), of service over service due while they waited {}.",
        index(summary.fairness.jain_completed),
        index(summary.fairness.jain_backlogged),
    ));
    let service = table("Tenants: service", &[&WHO, &REQUESTS, &SERVICE], summary);
    vec![
        service,
        work,
        table("Tenants: waits and KV", &[&WHO, &WAITS], summary),
    ]
}

/// What priorities cost each class, where that was asked for and there are any.
pub(super) fn victims(summary: &ClusterSummary) -> Option<Table> {
    let cost = summary.priority_cost.as_ref()?;
    let mut columns = vec![Column::plain("tenant"), Column::plain("priority")];
    columns.extend([
        Column::plain("served first"),
        Column::with_unit("offered", "requests"),
        Column::with_unit("completed, fewer by", "requests"),
        Column::with_unit("attainment, less by", "share of offered"),
        Column::with_unit("TTFT mean, more by", "ms"),
        Column::with_unit("TTFT p99, more by", "ms"),
        Column::with_unit("wait mean, more by", "s"),
        Column::with_unit("wait most, more by", "s"),
        Column::with_unit("starved most, more by", "s"),
    ]);
    let mut table = Table::new("What priorities cost", columns);
    for c in &cost.classes {
        let name = summary.tenant_names.get(&c.tenant).cloned();
        table.push(vec![
            name.unwrap_or_else(|| c.tenant.to_string()).into(),
            c.priority.to_string().into(),
            if c.is_favoured { "yes" } else { "no" }.into(),
            c.offered.into(),
            (c.completed_lost as f64).into(),
            share(c.attainment_lost),
            ms(c.ttft_mean_added_s),
            ms(c.ttft_p99_added_s),
            c.queue_age_mean_added_s.into(),
            c.queue_age_max_added_s.into(),
            c.starvation_added_s.into(),
        ]);
    }
    table.note = Some(
        "Against the same requests with equal priorities and the same seed; what is negative was gained."
            .into(),
    );
    Some(table)
}

/// A row a tenant, with everything: for a file.
pub fn tenants_table(summary: &ClusterSummary) -> Table {
    table("Tenants", &[&WHO, &WORK, &OFF_AND_WHY, &SERVICE, &WAITS], summary)
}
