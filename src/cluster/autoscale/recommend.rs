//! How many groups a metric asks for, before windows and limits.

use super::{AutoscalerConfig, MetricSource, Observed, Reading};

/// Relative slack for products such as 10 * 0.9 / 0.3 that land a bit above the whole number meant.
const ROUNDING: f64 = 1e-9;

/// `ceil(current * metric / target)`, and the size as it is within the tolerance. With spare groups the formula rules the
/// others: `ceil((current - spare) * metric / target) + spare`. None when the metric cannot be known.
pub(super) fn recommend(config: &AutoscalerConfig, observed: &Observed, reading: &Reading) -> Option<u32> {
    match config.source {
        MetricSource::External => external(config, observed, reading),
        MetricSource::Pods => pods(config, observed, reading),
    }
}

/// `GetExternalPerPodMetricReplicas` of Kubernetes: one figure for all, divided among the groups that there are, ready or
/// not.
fn external(config: &AutoscalerConfig, observed: &Observed, reading: &Reading) -> Option<u32> {
    let needed = config.metric.total(reading)? / config.target;
    let capacity = observed.capacity();
    if is_near(config, needed, capacity) {
        return Some(capacity);
    }
    Some(groups(config, needed))
}

/// `calcPlainMetricReplicas` of Kubernetes, for figures that each group's process tells itself. Groups that are ready and
/// were read have a figure. Those whose process runs but has not told (they load, compile, warm, or became ready after
/// the reading) miss one: to shrink they are taken to be at the target, to grow to have none. Those that are pending are
/// left out to shrink, and have none to grow. If that turns the direction round, nothing changes.
fn pods(config: &AutoscalerConfig, observed: &Observed, reading: &Reading) -> Option<u32> {
    let running = observed.capacity().saturating_sub(observed.pending);
    let metered = reading.ready.min(running);
    if metered == 0 {
        return None;
    }
    let missing = running - metered;
    let size = observed.size();
    // Of groups that are gone nobody asks any more.
    let there = f64::from(metered) / f64::from(reading.ready);
    let needed = config.metric.total_of_groups(reading)? / config.target * there;
    let serving = f64::from(metered.saturating_sub(config.spare));
    let grows_with_pending = observed.pending > 0 && needed > serving;
    if missing == 0 && !grows_with_pending {
        let near = is_near(config, needed, metered);
        return Some(if near { size } else { groups(config, needed) });
    }
    let shrinks = needed < serving;
    let assumed = if shrinks {
        needed + f64::from(missing)
    } else {
        needed
    };
    let counted = metered + missing + if grows_with_pending { observed.pending } else { 0 };
    let serving = f64::from(counted.saturating_sub(config.spare));
    let turned = if shrinks {
        assumed > serving
    } else {
        assumed < serving
    };
    if turned || is_near(config, assumed, counted) {
        return Some(size);
    }
    let wanted = groups(config, assumed);
    let turned = if shrinks { wanted > size } else { wanted < size };
    Some(if turned { size } else { wanted })
}

/// What is needed is within the tolerance of what these groups carry.
fn is_near(config: &AutoscalerConfig, needed: f64, groups: u32) -> bool {
    let serving = groups.saturating_sub(config.spare);
    serving > 0 && (needed / f64::from(serving) - 1.0).abs() <= config.tolerance + ROUNDING
}

/// Saturates far beyond `max_groups`, which the caller applies.
fn groups(config: &AutoscalerConfig, needed: f64) -> u32 {
    let groups = (needed * (1.0 - ROUNDING)).ceil() as u32;
    groups.saturating_add(config.spare)
}
