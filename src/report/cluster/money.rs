//! Tables of cost and energy.

use super::tables::figures;
use crate::metric::cluster::ClusterSummary;
use crate::metric::cost::ByPhase;
use crate::report::table::{Cell, Column, Table};

/// A row a pool, what stands beside them, and all of it.
pub(super) fn cost(summary: &ClusterSummary) -> Option<Table> {
    let cost = summary.cost.as_ref()?;
    let mut columns: Vec<Column> = ["for", "instance", "region", "price of"]
        .map(Column::plain)
        .to_vec();
    columns.extend(["price", "a group"].map(|name| Column::with_unit(name, "USD/h")));
    // Phases that nobody was in are left out.
    let all_phases = cost.usd_by_phase.values();
    let shown: Vec<usize> = (0..all_phases.len()).filter(|&i| all_phases[i].1 > 0.0).collect();
    columns.extend(
        shown
            .iter()
            .map(|&i| Column::with_unit(all_phases[i].0.replace('_', ", "), "USD")),
    );
    columns.extend([
        Column::with_unit("all", "USD"),
        Column::with_unit("for nothing", "USD"),
    ]);
    let mut table = Table::new("Cost", columns);
    let phases = |usd: &ByPhase| -> Vec<Cell> {
        let values = usd.values();
        shown.iter().map(|&i| Cell::Number(values[i].1)).collect()
    };
    for pool in &cost.pools {
        let price = &pool.price;
        let mut row: Vec<Cell> = vec![
            pool.pool.as_str().into(),
            price.instance.as_str().into(),
            price.region.clone().into(),
            price.price_date.clone().into(),
            price.usd_h.into(),
            pool.group_usd_h.into(),
        ];
        row.extend(phases(&pool.usd_by_phase));
        row.extend([pool.usd.into(), pool.wasted_usd.into()]);
        table.push(row);
    }
    let blank = |n: usize| std::iter::repeat_n(Cell::Absent, n);
    for other in &cost.other {
        let mut row: Vec<Cell> = vec![other.cost.name.as_str().into()];
        row.extend(blank(3));
        row.extend([other.cost.usd_h.into(), Cell::Absent]);
        row.extend(blank(shown.len()));
        row.extend([other.usd.into(), Cell::Absent]);
        table.push(row);
    }
    let mut all: Vec<Cell> = vec!["all".into()];
    all.extend(blank(5));
    all.extend(phases(&cost.usd_by_phase));
    let wasted: f64 = cost.pools.iter().map(|p| p.wasted_usd).sum();
    all.extend([cost.usd.into(), wasted.into()]);
    table.push(all);
    let figure = |x: Option<f64>| Cell::from(x).display();
    table.note = Some(format!(
        "{} USD a good request, {} USD a million good output tokens, {} USD a million output tokens: money, requests and tokens \
         of the whole run, what drains after the last arrival included.",
        figure(cost.usd_per_good_request),
        figure(cost.usd_per_m_good_output_tokens),
        figure(cost.usd_per_m_output_tokens),
    ));
    if let (Some(note), Some(rented)) = (&mut table.note, rented(summary)) {
        *note += &format!("\n{rented}");
    }
    Some(table)
}

/// What is rented where groups take a share of a machine; nothing where they take whole ones.
fn rented(summary: &ClusterSummary) -> Option<String> {
    let cost = summary.cost.as_ref()?;
    let of_pools = cost.pools.iter().filter(|p| p.instances_per_group.fract() != 0.0);
    let machines: Vec<String> = of_pools
        .filter_map(|pool| {
            let most = summary.scaling.iter().find(|s| s.pool == pool.pool)?.ready_max;
            // The tolerance is for shares such as a third.
            let needed = (most as f64 * pool.instances_per_group - 1e-9).ceil();
            Some(format!(
                "{needed} {} for the {most} groups of {} ready at most",
                pool.price.instance, pool.pool
            ))
        })
        .collect();
    (!machines.is_empty()).then(|| {
        format!(
            "Groups are priced at their share of a machine, but whole machines are rented, at least: {}.",
            machines.join(", ")
        )
    })
}

/// Joules and watts.
pub(super) fn energy(summary: &ClusterSummary) -> Option<Table> {
    let e = summary.energy.as_ref()?;
    let split = [
        ("all", e.total_j.into(), "J"),
        ("waiting", e.by_phase.waiting.into(), "J"),
        ("prompts", e.by_phase.prefill.into(), "J"),
        ("output tokens", e.by_phase.decode.into(), "J"),
    ];
    let dummies = (e.by_phase.dummy > 0.0).then(|| ("dummy batches", e.by_phase.dummy.into(), "J"));
    let mut table = figures(
        "Energy of the accelerators",
        split.into_iter().chain(dummies).chain([
            ("prompts over input tokens", e.j_per_input_token.into(), "J/token"),
            (
                "output over output tokens",
                e.j_per_output_token.into(),
                "J/token",
            ),
            (
                "all over output tokens",
                e.total_j_per_output_token.into(),
                "J/token",
            ),
            ("all over good requests", e.j_per_good_request.into(), "J/request"),
            ("mean power", e.mean_w.into(), "W"),
            ("peak power", e.peak_w.into(), "W"),
            ("with the site's overhead", e.facility_j.into(), "J"),
        ]),
    );
    table.note = e
        .pue
        .as_ref()
        .map(|pue| format!("PUE {}: {}.", pue.value, pue.source));
    Some(table)
}
