//! Tables of faults and scaling.

use crate::metric::cluster::ClusterSummary;
use crate::report::table::{Column, Table};

/// A row a fault: who knew when.
pub(super) fn faults(summary: &ClusterSummary) -> Option<Table> {
    let columns = vec![
        Column::with_unit("at", "s"),
        Column::plain("fault"),
        Column::plain("groups"),
        Column::plain("ready lost"),
        Column::with_unit("detected", "s"),
        Column::with_unit("routes out", "s"),
        Column::with_unit("capacity back", "s"),
        Column::with_unit("mended", "s"),
        Column::plain("overlapped"),
    ];
    let mut table = Table::new("Faults", columns).with_keys(2);
    for fault in &summary.faults {
        table.push(vec![
            fault.at_s.into(),
            fault.what.as_str().into(),
            (fault.groups.len() as u64).into(),
            fault.ready_lost.into(),
            fault.detected_after_s.into(),
            fault.routes_removed_after_s.into(),
            fault.capacity_back_after_s.into(),
            fault.mended_after_s.into(),
            if fault.is_overlapped { "yes" } else { "no" }.into(),
        ]);
    }
    table.note = Some("Detected, routes out, capacity back, mended: seconds after the fault.".into());
    (!table.rows.is_empty()).then_some(table)
}

/// A row a fault: goodput and queue.
pub(super) fn recoveries(summary: &ClusterSummary) -> Option<Table> {
    let columns = vec![
        Column::with_unit("at", "s"),
        Column::plain("fault"),
        Column::with_unit("before", "requests/s"),
        Column::with_unit("trough", "requests/s"),
        Column::with_unit("below", "s"),
        Column::with_unit("back", "s"),
        Column::with_unit("queued before", "requests"),
        Column::with_unit("queued, most", "requests"),
        Column::with_unit("queue area", "request-s"),
        Column::with_unit("queue back", "s"),
    ];
    let mut table = Table::new("Recovery", columns).with_keys(2);
    for fault in &summary.faults {
        let Some(r) = &fault.recovery else { continue };
        table.push(vec![
            fault.at_s.into(),
            fault.what.as_str().into(),
            r.goodput_before_rps.into(),
            r.trough_rps.into(),
            r.below_s.into(),
            r.recovered_after_s.into(),
            r.queue_before.into(),
            r.queue_max.into(),
            r.queue_area_request_s.into(),
            r.queue_back_after_s.into(),
        ]);
    }
    let by = &summary.judged_by;
    table.note = Some(format!(
        "Goodput in windows of {} s; before: up to {} of them. Back: no more than {} % below that for {} in a row. A dash: not before \
         the end.",
        by.window_s,
        by.baseline_windows,
        crate::report::number::short(100.0 * by.back_within),
        by.hold_windows,
    ));
    (!table.rows.is_empty()).then_some(table)
}

/// A row a pool, if anything ever scaled.
pub(super) fn scaling(summary: &ClusterSummary) -> Option<Table> {
    let columns = vec![
        Column::plain("pool"),
        Column::with_unit("ready, mean", "groups"),
        Column::with_unit("fewest", "groups"),
        Column::with_unit("most", "groups"),
        Column::with_unit("beyond need", "group-h"),
        Column::with_unit("up", "decisions"),
        Column::with_unit("down", "decisions"),
        Column::with_unit("reversals", "decisions"),
        Column::with_unit("shortest reversal", "s"),
        Column::with_unit("ready after, mean", "s"),
        Column::with_unit("ready after, most", "s"),
        Column::with_unit("never ready", "groups"),
    ];
    let mut table = Table::new("Scaling", columns).with_keys(1);
    let scales = summary.scaling.iter().any(|s| s.scale_ups + s.scale_downs > 0);
    for pool in summary.scaling.iter().filter(|_| scales) {
        table.push(vec![
            pool.pool.as_str().into(),
            pool.ready_mean.into(),
            pool.ready_min.into(),
            pool.ready_max.into(),
            pool.overshoot_group_h.into(),
            pool.scale_ups.into(),
            pool.scale_downs.into(),
            pool.reversals.into(),
            pool.shortest_reversal_s.into(),
            pool.scale_up_latency.mean.into(),
            pool.scale_up_latency.max.into(),
            pool.never_ready.into(),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}
