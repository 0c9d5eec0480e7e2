//! A cluster's run for people: tables, plots, a section of the page, files of the run folder.

mod diagnosis;
mod files;
mod money;
mod plots;
mod rollouts;
mod tables;
mod tenants;
mod troubles;

use super::html::{Block, Section};
use super::plot::Plot;
use super::table::Table;
use crate::explore::rollouts::RolloutFigures;
use crate::metric::cluster::ClusterSummary;

pub use files::{
    CLUSTER_FILE, FAILURE_TIMELINE_FILE, GROUPS_FILE, ROLLOUTS_FILE, TENANTS_FILE, failure_timeline,
    groups_csv, tenants_csv, write,
};
pub use plots::plots;
pub use tables::groups_table;
pub use tenants::tenants_table;

/// A table of one row stands upright when it has more columns.
const FEW_COLUMNS: usize = 7;

/// All tables of a run in print order, without what says nothing; groups one by one only while they are few.
pub fn all_tables(summary: &ClusterSummary, rollouts: &[RolloutFigures]) -> Vec<Table> {
    let mut all = vec![tables::outcomes(summary)];
    all.extend(tables::targets(summary));
    all.push(tables::rates(summary));
    all.extend(tables::gateway(summary));
    all.extend([tables::pools(summary), tables::pool_phases(summary)]);
    if summary.groups.len() <= tables::FEW_GROUPS {
        all.extend([tables::groups(summary), tables::group_phases(summary)]);
    }
    all.extend(diagnosis::tables(summary));
    all.extend(tables::dummies(summary));
    all.push(tables::demand(summary));
    all.extend(tables::needs(summary));
    all.extend(tables::links(summary));
    all = all.iter().map(Table::condensed).collect();
    // What never came to be is a finding here: a dash stays.
    all.extend(troubles::faults(summary));
    all.extend(troubles::recoveries(summary));
    let mut rest: Vec<Table> = rollouts::overview(rollouts).into_iter().collect();
    rest.extend(rollouts.iter().map(rollouts::by_revision));
    rest.extend(troubles::scaling(summary));
    rest.extend(tenants::tenants(summary));
    rest.extend(tenants::victims(summary));
    rest.extend(money::cost(summary));
    rest.extend(money::energy(summary));
    all.extend(rest.iter().map(Table::condensed));
    all.into_iter().map(upright_if_wide).collect()
}

fn upright_if_wide(table: Table) -> Table {
    if table.columns.len() > FEW_COLUMNS {
        table.upright()
    } else {
        table
    }
}

/// The tables for a terminal of so many characters, with what they do not say under them.
pub fn tables(summary: &ClusterSummary, rollouts: &[RolloutFigures], width: Option<u16>) -> String {
    let mut text = String::new();
    for table in all_tables(summary, rollouts) {
        text += &table.terminal(width);
        text += "\n\n";
    }
    for limitation in &summary.limitations {
        text += &format!("note: {limitation}\n");
    }
    text
}

/// The section of the page.
pub fn section(
    summary: &ClusterSummary,
    rollouts: &[RolloutFigures],
    plots: &[(&'static str, Plot)],
) -> Section {
    let tables = all_tables(summary, rollouts).into_iter().map(Block::Table);
    let plots = plots.iter().map(|(_, plot)| Block::Plot(plot.clone()));
    let notes = summary.limitations.iter().cloned().map(Block::Text);
    Section {
        heading: "Cluster".into(),
        blocks: tables.chain(plots).chain(notes).collect(),
    }
}

#[cfg(test)]
mod tests;
