//! What keeps a configuration from carrying more.

use super::number::significant;
use crate::explore::load::{LoadPoint, RunOutcome};
use crate::explore::sweep::Configuration;
use crate::metric::goodput::Target;
use crate::scenario::Plan;

/// What fails at the lowest load that fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Limit {
    /// The target that the fewest requests met: such a share of them.
    Target(Target, f64),
    /// Requests that did not complete: such a share.
    Errors(f64),
}

impl Limit {
    /// Of a configuration whose capacity was searched, where a load failed.
    pub fn of(configuration: &Configuration) -> Option<Self> {
        let capacity = configuration.capacity()?;
        let fails_at = capacity.fails_at_rps?;
        let point = capacity.points.iter().find(|p| p.rate_rps >= fails_at)?;
        let errors = point.mean(|r| Some(r.error_rate))?;
        // A request that does not complete meets no target either: where that is all there is, errors are the reason.
        let unmet = |share: f64| 1.0 - share > errors + 1e-9;
        match lowest(point) {
            Some((target, share)) if unmet(share) => Some(Self::Target(target, share)),
            _ => Some(Self::Errors(errors)),
        }
    }

    /// For a cell.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Target(target, _) => target.name(),
            Self::Errors(_) => "errors",
        }
    }

    /// For a sentence.
    pub fn text(self, plan: &Plan) -> String {
        let per_cent = |x: f64| significant(100.0 * x, 4);
        match self {
            Self::Target(target, share) => format!(
                "{} is within its target for {} % of offered requests, the fewest of all targets; {} % must meet all",
                target.name(),
                per_cent(share),
                per_cent(plan.slo.attainment)
            ),
            Self::Errors(share) => format!(
                "{} % of offered requests do not complete; {} % may, and {} % must meet all targets",
                per_cent(share),
                per_cent(plan.slo.errors),
                per_cent(plan.slo.attainment)
            ),
        }
    }
}

/// The target that the fewest met, over the seeds; the first of equals.
fn lowest(point: &LoadPoint) -> Option<(Target, f64)> {
    let targets = point.runs.first()?.targets.iter().map(|t| t.metric);
    let mean = |target: Target| {
        let of_run = |r: &RunOutcome| Some(r.targets.iter().find(|t| t.metric == target)?.attainment);
        Some((target, point.mean(of_run)?))
    };
    targets
        .filter_map(mean)
        .reduce(|a, b| if b.1 < a.1 { b } else { a })
}
