//! The figures of a cluster's run that get intervals.

use crate::calibrate::repeats::figures;
use crate::explore::study::StudyRun;
use crate::metric::cluster::ClusterSummary;

/// How a figure's interval is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Law {
    /// Of the draws' logarithms, and of what predictions of it miss by beside.
    Scatters,
    /// Of the draws alone: shares, groups, costs.
    Plain,
    /// The same; a draw without a value is one of infinity: a cost per good request where none is good, a time until
    /// something that never comes.
    OpenAbove,
}

/// A figure of one run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClusterFigure {
    pub metric: String,
    pub stat: String,
    pub value: Option<f64>,
    pub law: Law,
    /// The pool, if it is about scaling it.
    pub scales: Option<String>,
}

fn figure(metric: impl Into<String>, stat: &str, value: Option<f64>, law: Law) -> ClusterFigure {
    ClusterFigure {
        metric: metric.into(),
        stat: stat.to_owned(),
        value,
        law,
        scales: None,
    }
}

/// Counts may be 0, and nothing was held out that would tell what predictions of them miss by.
fn law_of(metric: &str) -> Law {
    match metric {
        "preemptions" | "cached_tokens" => Law::Plain,
        _ => Law::Scatters,
    }
}

/// All of a run, in print order.
pub(super) fn cluster_figures(run: &StudyRun) -> Vec<ClusterFigure> {
    let summary = &run.summary;
    let latencies = figures(summary)
        .into_iter()
        .map(|f| figure(f.metric, f.stat, f.value, law_of(f.metric)));
    let mut all: Vec<ClusterFigure> = latencies.collect();
    let slo = summary.slo.as_ref();
    all.extend([
        figure("attainment", "value", slo.and_then(|s| s.attainment), Law::Plain),
        figure(
            "goodput_rps",
            "value",
            slo.and_then(|s| s.goodput_rps),
            Law::Plain,
        ),
        figure("error_rate", "value", summary.error_rate, Law::Plain),
    ]);
    if let Some(cluster) = &run.figures {
        all.extend(of_cluster(cluster));
    }
    all
}

fn of_cluster(cluster: &ClusterSummary) -> Vec<ClusterFigure> {
    let cost = cluster.cost.as_ref();
    let needs = cluster.demand.needs.as_ref();
    let per_good_request = cost.and_then(|c| c.usd_per_good_request);
    let per_tokens = cost.and_then(|c| c.usd_per_m_good_output_tokens);
    let joules = cluster.energy.as_ref().and_then(|e| e.j_per_good_request);
    let wait = &cluster.gateway.wait;
    let mut all = vec![
        figure("gateway_wait_s", "mean", wait.mean, Law::Plain),
        figure("gateway_wait_s", "p99", wait.p99, Law::Plain),
        figure("usd", "value", cost.map(|c| c.usd), Law::Plain),
        figure("usd_per_good_request", "value", per_good_request, Law::OpenAbove),
        figure(
            "usd_per_m_good_output_tokens",
            "value",
            per_tokens,
            Law::OpenAbove,
        ),
        figure("j_per_good_request", "value", joules, Law::OpenAbove),
        figure(
            "prefill_groups_needed",
            "value",
            needs.map(|n| n.prefill_groups),
            Law::Plain,
        ),
        figure(
            "decode_groups_needed",
            "value",
            needs.map(|n| n.decode_groups),
            Law::Plain,
        ),
    ];
    for pool in &cluster.scaling {
        let named = |what: &str| format!("{what}[{}]", pool.pool);
        let figures = [
            figure(named("ready_groups"), "mean", pool.ready_mean, Law::Plain),
            figure(
                named("ready_groups"),
                "max",
                Some(pool.ready_max as f64),
                Law::Plain,
            ),
            figure(
                named("overshoot_group_h"),
                "value",
                pool.overshoot_group_h,
                Law::Plain,
            ),
        ];
        all.extend(figures.map(|figure| ClusterFigure {
            scales: Some(pool.pool.clone()),
            ..figure
        }));
    }
    for (number, fault) in cluster.faults.iter().enumerate() {
        let back = fault.recovery.as_ref().and_then(|r| r.recovered_after_s);
        let metric = format!("goodput_back_after_s[fault {number}]");
        all.push(figure(metric, "value", back, Law::OpenAbove));
    }
    all
}
