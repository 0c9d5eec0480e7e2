//! A cluster's run for people: tables, plots, a section of the page, files of the run folder.

mod diagnosis;
mod files;
mod money;
mod plots;
mod tables;
mod tenants;
mod troubles;

use super::html::{Block, Section};
use super::plot::Plot;
use super::table::Table;
use crate::metric::cluster::ClusterSummary;

pub use files::{
    CLUSTER_FILE, FAILURE_TIMELINE_FILE, GROUPS_FILE, TENANTS_FILE, failure_timeline, groups_csv,
    tenants_csv, write,
};
pub use plots::plots;
pub use tables::groups_table;
pub use tenants::tenants_table;

/// Characters of a line in the terminal; headings are broken to fit.
const WIDTH: Option<u16> = Some(160);

/// All tables of a summary, in print order; groups one by one only while they are few.
pub fn all_tables(summary: &ClusterSummary) -> Vec<Table> {
    let mut all = vec![
        tables::outcomes(summary),
        tables::gateway(summary),
        tables::pools(summary),
        tables::pool_phases(summary),
    ];
    if summary.groups.len() <= tables::FEW_GROUPS {
        all.extend([tables::groups(summary), tables::group_phases(summary)]);
    }
    all.extend(diagnosis::tables(summary));
    all.push(tables::demand(summary));
    all.extend(tables::needs(summary));
    all.extend(tables::links(summary));
    all.extend(troubles::faults(summary));
    all.extend(troubles::recoveries(summary));
    all.extend(troubles::scaling(summary));
    all.extend(tenants::tenants(summary));
    all.extend(money::cost(summary));
    all.extend(money::energy(summary));
    all
}

/// The tables for the terminal, with what they do not say under them.
pub fn tables(summary: &ClusterSummary) -> String {
    let mut text = String::new();
    for table in all_tables(summary) {
        text += &table.terminal(WIDTH);
        text += "\n\n";
    }
    for limitation in &summary.limitations {
        text += &format!("note: {limitation}\n");
    }
    text
}

/// The section of the page.
pub fn section(summary: &ClusterSummary, plots: &[(&'static str, Plot)]) -> Section {
    let tables = all_tables(summary).into_iter().map(Block::Table);
    let plots = plots.iter().map(|(_, plot)| Block::Plot(plot.clone()));
    let notes = summary.limitations.iter().cloned().map(Block::Text);
    Section {
        heading: "Cluster".into(),
        blocks: tables.chain(plots).chain(notes).collect(),
    }
}

#[cfg(test)]
mod tests;
