//! What a cluster's run leaves in its folder.

use std::io;
use std::path::Path;

use serde::Serialize;

use super::rollouts::all_rows;
use super::{groups_table, tenants_table};
use crate::explore::rollouts::RolloutFigures;
use crate::input::write_atomic;
use crate::metric::cluster::{ClusterSummary, names};
use crate::record::ClusterRecord;

/// One JSON object a line: what befell groups, links, nodes and zones.
pub const FAILURE_TIMELINE_FILE: &str = "failure-timeline.jsonl";
/// A row a group.
pub const GROUPS_FILE: &str = "groups.csv";
/// A row a tenant.
pub const TENANTS_FILE: &str = "tenants.csv";
/// A row a rollout's period and revision; only where there was a rollout.
pub const ROLLOUTS_FILE: &str = "rollouts.csv";
/// All figures.
pub const CLUSTER_FILE: &str = "cluster.json";

/// A line of the failure timeline.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// Seconds from the start of the run.
    at_s: f64,
    event: &'a str,
    /// Name of the group, where it is about one.
    group: Option<&'a str>,
    /// Its number.
    group_number: Option<u32>,
    what: &'a str,
}

/// The failure timeline as text.
///
/// # Errors
/// None that is known: such a line can always be written.
pub fn failure_timeline(cluster: &ClusterRecord) -> io::Result<String> {
    let names = names(cluster);
    let mut text = String::new();
    for event in &cluster.timeline {
        let line = Line {
            at_s: event.at.as_secs_f64(),
            event: event.event,
            group: event
                .group
                .and_then(|g| names.get(g as usize))
                .map(String::as_str),
            group_number: event.group,
            what: &event.what,
        };
        text += &serde_json::to_string(&line)?;
        text.push('\n');
    }
    Ok(text)
}

/// The groups as CSV.
pub fn groups_csv(summary: &ClusterSummary) -> String {
    groups_table(summary).csv()
}

/// The tenants as CSV.
pub fn tenants_csv(summary: &ClusterSummary) -> String {
    tenants_table(summary).csv()
}

/// Writes the files into a run folder, each under its name only when whole.
///
/// # Errors
/// Any I/O error.
pub fn write(
    folder: &Path,
    cluster: &ClusterRecord,
    summary: &ClusterSummary,
    rollouts: &[RolloutFigures],
) -> io::Result<()> {
    let put = |name: &str, text: String| write_atomic(&folder.join(name), |w| w.write_all(text.as_bytes()));
    put(FAILURE_TIMELINE_FILE, failure_timeline(cluster)?)?;
    put(GROUPS_FILE, groups_csv(summary))?;
    put(TENANTS_FILE, tenants_csv(summary))?;
    if !rollouts.is_empty() {
        put(ROLLOUTS_FILE, all_rows(rollouts).csv())?;
    }
    put(CLUSTER_FILE, serde_json::to_string_pretty(summary)? + "\n")
}
