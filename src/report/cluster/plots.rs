//! A cluster's run over time.

use crate::metric::cluster::{ClusterSeries, ClusterSummary, Points};
use crate::report::figures::OverTime;
use crate::report::plot::{Guide, Plot};

/// Faults that are marked; more would hide the curves.
const MARKED: usize = 8;

/// The plots, each with a name for its file.
pub fn plots(summary: &ClusterSummary, series: &ClusterSeries) -> Vec<(&'static str, Plot)> {
    let end_s = summary.judged_by.end_s;
    let load = summary.judged_by.load_from_s.zip(summary.judged_by.load_to_s);
    let over_time = |title: &str, quantity: &str, unit: &str, curves: Vec<(&str, &Points)>| {
        let held = |points: &Points| {
            let mut points = points.clone();
            if let Some(&(at, value)) = points.last()
                && at < end_s
            {
                points.push((end_s, value));
            }
            points
        };
        OverTime {
            title: title.into(),
            quantity: quantity.into(),
            unit: unit.into(),
            curves: curves
                .into_iter()
                .map(|(name, points)| (name.to_owned(), held(points)))
                .collect(),
            readings: Vec::new(),
            load,
        }
        .plot()
    };
    let groups = series
        .groups
        .iter()
        .map(|(name, points)| (*name, points))
        .collect();
    let mut all = vec![
        (
            "cluster-groups",
            over_time("Groups by phase", "groups", "", groups),
        ),
        (
            "cluster-queue",
            over_time(
                "Requests that wait: the most in each window",
                "requests",
                "",
                vec![
                    ("at the gateway", &series.gateway_queue),
                    ("with those in engines", &series.queue),
                ],
            ),
        ),
        (
            "cluster-goodput",
            over_time(
                "Goodput over time",
                "requests",
                "requests/s",
                vec![("offered", &series.offered), ("good", &series.goodput)],
            ),
        ),
    ];
    if summary.demand.transfers > 0 {
        let curves = vec![("KV moved", &series.transfers)];
        all.push((
            "cluster-transfers",
            over_time("KV transfers by their ends", "KV", "bytes/s", curves),
        ));
    }
    let markers = markers(summary);
    for (_, plot) in &mut all {
        plot.guides.extend(markers.iter().cloned());
    }
    all
}

/// A line a fault; the last says how many more there are.
fn markers(summary: &ClusterSummary) -> Vec<Guide> {
    let more = summary.faults.len().saturating_sub(MARKED);
    let marked = summary.faults.iter().take(MARKED).enumerate();
    let lines = marked.map(|(i, fault)| Guide::Vertical {
        x: fault.at_s,
        label: if more > 0 && i + 1 == MARKED {
            format!("{} (and {more} more faults)", fault.what)
        } else {
            fault.what.clone()
        },
    });
    lines.collect()
}
