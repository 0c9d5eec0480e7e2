//! Tables of cost and energy.

use super::tables::{figures, share};
use crate::metric::cluster::ClusterSummary;
use crate::metric::cost::Cost;
use crate::report::table::{Cell, Column, Table};

/// What is paid for, a row each: time of groups by phase, then what stands beside them. All of it is in the cost of a request.
pub(super) fn cost(summary: &ClusterSummary) -> Option<Table> {
    let cost = summary.cost.as_ref()?;
    let is_one = cost.pools.len() == 1;
    let mut columns = vec![Column::plain("paid for")];
    let pools = cost.pools.iter().filter(|_| !is_one);
    columns.extend(pools.map(|pool| Column::with_unit(pool.pool.as_str(), "USD")));
    columns.extend([Column::with_unit("all", "USD"), Column::plain("share")]);
    let mut table = Table::new("Cost", columns).with_keys(1);
    let mut push = |what: &str, of_pools: Vec<Option<f64>>, all: f64| {
        let mut row: Vec<Cell> = vec![what.into()];
        row.extend(of_pools.into_iter().filter(|_| !is_one).map(Cell::from));
        row.extend([all.into(), share((cost.usd > 0.0).then(|| all / cost.usd))]);
        table.push(row);
    };
    for (i, (phase, all)) in cost.usd_by_phase.values().into_iter().enumerate() {
        let of_pools = cost.pools.iter().map(|p| Some(p.usd_by_phase.values()[i].1));
        push(
            &format!("groups, {}", phase.replace('_', " and ")),
            of_pools.collect(),
            all,
        );
    }
    for other in &cost.other {
        push(&other.cost.name, vec![None; cost.pools.len()], other.usd);
    }
    let of_pools = cost.pools.iter().map(|p| Some(p.usd)).collect();
    push("all of it", of_pools, cost.usd);
    let wasted = cost.pools.iter().map(|p| Some(p.wasted_usd)).collect();
    push(
        "of that, for nothing",
        wasted,
        cost.pools.iter().map(|p| p.wasted_usd).sum(),
    );
    table.note = Some(cost_note(summary, cost));
    Some(table)
}

/// The costs of what was served, what is in them, and the prices.
fn cost_note(summary: &ClusterSummary, cost: &Cost) -> String {
    let figure = |x: Option<f64>| Cell::from(x).display();
    let mut lines = vec![
        format!(
            "{} USD a good request, {} USD a million good output tokens, {} USD a million output tokens: each is all of the \
             above over what was served, of the whole run, what drains after the last arrival included.",
            figure(cost.usd_per_good_request),
            figure(cost.usd_per_m_good_output_tokens),
            figure(cost.usd_per_m_output_tokens),
        ),
        "For nothing: groups that were provisioned, warmed, idle or failed, and work on requests that came to nothing.".into(),
    ];
    if cost.other.is_empty() {
        lines.push(
            "The machines' price alone: storage, network and control plane count where cost.other states them.".into(),
        );
    }
    for pool in &cost.pools {
        let price = &pool.price;
        let stated = [price.region.as_deref(), price.price_date.as_deref()];
        let stated: Vec<&str> = stated.into_iter().flatten().collect();
        let stated = match stated.as_slice() {
            [] => String::new(),
            known => format!(" ({})", known.join(", ")),
        };
        lines.push(format!(
            "Price for {}: {} at {} USD/h{stated}, a group {} USD/h.",
            pool.pool,
            price.instance,
            Cell::from(price.usd_h).display(),
            Cell::from(pool.group_usd_h).display(),
        ));
    }
    lines.extend(rented(summary));
    lines.join("\n")
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
            "Groups are priced at their share of a machine, but whole machines are rented, at least, where groups share them as closely \
             as they fit: {}. A placement that spreads groups over more nodes rents more.",
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
