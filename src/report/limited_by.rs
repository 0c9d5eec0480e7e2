//! What keeps a configuration from carrying more, in words.

use super::number::significant;
use crate::explore::capacity::Limit;
use crate::scenario::Plan;

/// For a cell.
pub(super) const fn name(limit: Limit) -> &'static str {
    match limit {
        Limit::Target { metric, .. } => metric.name(),
        Limit::Errors { .. } => "errors",
    }
}

/// For a sentence.
pub(super) fn text(limit: Limit, plan: &Plan) -> String {
    let per_cent = |x: f64| significant(100.0 * x, 4);
    match limit {
        Limit::Target { metric, attainment } => format!(
            "{} is within its target for {} % of offered requests, the fewest of all targets; {} % must meet all",
            metric.name(),
            per_cent(attainment),
            per_cent(plan.slo.attainment)
        ),
        Limit::Errors { error_rate } => format!(
            "{} % of offered requests do not complete; {} % may",
            per_cent(error_rate),
            per_cent(plan.slo.errors)
        ),
    }
}
