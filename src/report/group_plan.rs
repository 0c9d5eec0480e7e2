//! Tables of the groups that a load asks for.

use super::number::significant;
use super::table::{Cell, Column, Table};
use crate::explore::group_plan::GroupPlan;

/// The groups of each pool, and what was simulated of them.
pub fn group_plan_tables(planned: &GroupPlan) -> [Table; 2] {
    [groups(planned), conditions(planned)]
}

fn groups(planned: &GroupPlan) -> Table {
    let mut columns = vec![
        Column::plain("pool"),
        Column::with_unit("as written", "groups"),
        Column::with_unit("a group carries", "requests/s"),
    ];
    let parts = ["for the traffic", "failure reserve", "rollout surge", "in all"];
    columns.extend(parts.map(|name| Column::with_unit(name, "groups")));
    let mut table = Table::new("Groups to plan with", columns).with_keys(1);
    for pool in &planned.pools {
        let whole = [pool.traffic, pool.reserve, pool.rollout, pool.groups];
        let mut row: Vec<Cell> = vec![
            pool.pool.as_str().into(),
            u64::from(pool.as_written).into(),
            pool.group_rps.into(),
        ];
        row.extend(whole.map(|n| Cell::from(u64::from(n))));
        table.push(row);
    }
    let mut lines = vec![format!(
        "For {} requests/s ({} at the peak and {} % more), while {} may fail. A group carries the capacity of all groups as \
         written, {}{} requests/s without faults and rollouts, over their number.",
        significant(planned.load_rps(), 4),
        significant(planned.peak_rps, 4),
        significant(100.0 * planned.margin, 3),
        planned.survive.name(),
        if planned.at_least { "at least " } else { "" },
        significant(planned.capacity_rps, 4),
    )];
    for pool in planned.pools.iter().filter(|p| p.added > 0) {
        lines.push(format!(
            "{}: {} of the groups for the traffic beyond the division, because fewer did not hold when simulated.",
            pool.pool, pool.added
        ));
    }
    table.note = Some(lines.join("\n"));
    table
}

fn conditions(planned: &GroupPlan) -> Table {
    let mut columns = vec![Column::plain("condition")];
    columns.extend(
        planned
            .pools
            .iter()
            .map(|pool| Column::with_unit(pool.pool.as_str(), "groups")),
    );
    columns.push(Column::with_unit("load", "requests/s"));
    columns.extend(["attainment", "errors", "holds"].map(Column::plain));
    let mut table = Table::new("Simulated with these groups", columns).with_keys(1);
    for condition in &planned.conditions {
        let mut row: Vec<Cell> = vec![condition.what.as_str().into()];
        row.extend(condition.groups.iter().map(|(_, n)| Cell::from(u64::from(*n))));
        row.extend([
            condition.rate_rps.into(),
            Cell::Share(condition.attainment),
            Cell::Share(condition.error_rate),
            if condition.holds { "yes" } else { "no" }.into(),
        ]);
        table.push(row);
    }
    if !planned.holds() {
        table.note = Some(
            "What does not hold does not keep the SLO with these groups: plan more of them, or another rollout, and run \
             capacity again."
                .into(),
        );
    }
    table
}
