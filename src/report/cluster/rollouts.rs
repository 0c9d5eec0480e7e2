//! Tables of rollouts.

use super::tables::ms;
use crate::explore::rollouts::RolloutFigures;
use crate::report::table::{Cell, Column, Table};

/// A row a rollout: when, and how many groups there were meanwhile. Nothing without rollouts.
pub(super) fn overview(rollouts: &[RolloutFigures]) -> Option<Table> {
    let columns = vec![
        Column::plain("pool"),
        Column::with_unit("began", "s"),
        Column::with_unit("ended", "s"),
        Column::with_unit("took", "s"),
        Column::with_unit("rolled back", "s"),
        Column::with_unit("ready, fewest", "groups"),
        Column::with_unit("existing, most", "groups"),
    ];
    let mut table = Table::new("Rollouts", columns).with_keys(1);
    for rollout in rollouts {
        table.push(vec![
            rollout.pool.as_str().into(),
            rollout.began_s.into(),
            rollout.ended_s.into(),
            rollout.ended_s.map(|end| end - rollout.began_s).into(),
            rollout.rolled_back_s.into(),
            rollout.ready_fewest.into(),
            rollout.existing_most.into(),
        ]);
    }
    let is_open = rollouts.iter().any(|r| r.ended_s.is_none());
    table.note = Some(format!(
        "Fewest ready and most existing (starting, ready, draining) groups while it lasted; ended: all are of one revision and \
         ready.{}",
        if is_open {
            " Without an end, a rollout was under way when the run ended."
        } else {
            ""
        }
    ));
    (!table.rows.is_empty()).then_some(table)
}

fn columns() -> Vec<Column> {
    vec![
        Column::plain("due"),
        Column::plain("answered by"),
        Column::with_unit("answered by", "groups"),
        Column::with_unit("offered", "requests"),
        Column::with_unit("errors", "requests"),
        Column::plain("attainment"),
        Column::with_unit("TTFT p50", "ms"),
        Column::with_unit("TTFT p99", "ms"),
        Column::with_unit("ITL p50", "ms"),
        Column::with_unit("ITL p99", "ms"),
    ]
}

/// How requests fared, by when they were due and who answered.
pub(super) fn by_revision(rollout: &RolloutFigures) -> Table {
    let title = format!("Rollout of {}: requests by revision", rollout.pool);
    let mut table = Table::new(title, columns()).with_keys(2);
    table.rows = rows(rollout).collect();
    table.note = Some(
        "Due before the rollout began, while it lasted, after it had ended. A request that no group answered (it failed, timed \
         out or was rejected) counts for no revision, and within no target."
            .into(),
    );
    table
}

fn rows(rollout: &RolloutFigures) -> impl Iterator<Item = Vec<Cell>> + '_ {
    rollout.served.iter().map(|served| {
        vec![
            served.period.name().into(),
            served
                .revision
                .map_or_else(|| "nobody".to_owned(), |r| format!("revision {r}"))
                .into(),
            served.groups.into(),
            served.offered.into(),
            served.errors.into(),
            Cell::Share(served.attainment),
            ms(served.ttft.p50),
            ms(served.ttft.p99),
            ms(served.itl.p50),
            ms(served.itl.p99),
        ]
    })
}

/// All rollouts, a row a period and revision: for a file.
pub(super) fn all_rows(rollouts: &[RolloutFigures]) -> Table {
    let mut of_rollout = vec![Column::plain("pool")];
    of_rollout.extend(["began", "ended"].map(|name| Column::with_unit(name, "s")));
    of_rollout.push(Column::with_unit("rolled back", "s"));
    of_rollout.extend(columns());
    let mut table = Table::new("Rollouts", of_rollout);
    for rollout in rollouts {
        for row in rows(rollout) {
            let mut whole: Vec<Cell> = vec![
                rollout.pool.as_str().into(),
                rollout.began_s.into(),
                rollout.ended_s.into(),
                rollout.rolled_back_s.into(),
            ];
            whole.extend(row);
            table.push(whole);
        }
    }
    table
}
