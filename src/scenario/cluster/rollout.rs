//! `cluster.pools.*.rollout`.

use super::super::provenance::Source;
use super::super::quantity::Finite;
use super::super::schema::{AnalysisRule, CanaryRule, RolloutRule, UndecidedWord};
use super::control::RATIO;
use super::faults::ratio;
use super::{Filling, span};
use crate::cluster::rollout::{Analysis, Canary, CanaryLimits, Rollout, RolloutConfig, Undecided};
use crate::input::InputError;
use crate::sim::fleet::PoolRollout;
use crate::units::{SimDuration, SimTime, written};

/// Grace period of a pod in Kubernetes.
const DRAIN: SimDuration = SimDuration::from_millis(30_000);

/// The shortest time between two checks of a canary: Flagger's own is 10 s.
const SHORTEST_INTERVAL: SimDuration = SimDuration::from_millis(100);

/// Fills and checks it.
pub(super) fn resolve(
    rule: &mut RolloutRule,
    groups: u32,
    path: &str,
    f: &mut Filling<'_>,
) -> Result<PoolRollout, InputError> {
    let kubernetes = || Source::Derived("Kubernetes".to_owned());
    let canary = match &mut rule.canary {
        None => None,
        Some(rule) => Some(canary(rule, groups, &format!("{path}.canary"), f)?),
    };
    let config = RolloutConfig {
        at: SimTime::ZERO + rule.at.0,
        surge: f.fill(path, "surge", &mut rule.surge, kubernetes(), groups.div_ceil(4)),
        max_unavailable: f.fill(
            path,
            "max_unavailable",
            &mut rule.max_unavailable,
            kubernetes(),
            groups / 4,
        ),
        canary,
        drain_timeout: f
            .fill(
                path,
                "drain_timeout",
                &mut rule.drain_timeout,
                kubernetes(),
                span(DRAIN),
            )
            .0,
    };
    if config.surge > super::MAX_GROUPS {
        let mend = format!("allowed: 0 to {}", super::MAX_GROUPS);
        return Err(f.error(&format!("{path}.surge"), format!("found {}", config.surge), mend));
    }
    Rollout::new(config, groups).map_err(|e| f.error(path, e.to_string(), "see its keys"))?;
    let factor = f.number(path, "step_factor", &mut rule.step_factor, 1.0);
    let place = format!("{path}.step_factor");
    let slowdown =
        ratio(factor).ok_or_else(|| f.error(&place, format!("found {}", written(factor)), RATIO))?;
    Ok(PoolRollout { config, slowdown })
}

fn canary(rule: &mut CanaryRule, total: u32, path: &str, f: &mut Filling<'_>) -> Result<Canary, InputError> {
    let analysis = match &mut rule.analysis {
        None => None,
        Some(rule) => Some(analysis(rule, &format!("{path}.analysis"), f)?),
    };
    if let Some(analysis) = analysis {
        let wrong = analysis.check(rule.hold.0).err();
        if let Some(e) = wrong {
            return Err(f.error(&format!("{path}.analysis"), e.to_string(), "see its keys"));
        }
        if analysis.limits.is_relative() && rule.share.0 >= 1.0 {
            return Err(f.error(
                &format!("{path}.share"),
                "found 1, so the old revision serves nothing to compare the canary with",
                "give the canary less, or limit its errors only",
            ));
        }
        if analysis.limits.is_relative() && rule.groups >= total {
            return Err(f.error(
                &format!("{path}.groups"),
                format!(
                    "found {}, all groups of the pool, so none is left to compare the canary with",
                    rule.groups
                ),
                "give the canary fewer groups, or limit its errors only",
            ));
        }
    }
    Ok(Canary {
        groups: rule.groups,
        share: rule.share.0,
        hold: rule.hold.0,
        analysis,
    })
}

fn analysis(rule: &mut AnalysisRule, path: &str, f: &mut Filling<'_>) -> Result<Analysis, InputError> {
    let from = |whose: &str| Source::Derived(whose.to_owned());
    let number = |finite: Option<Finite>| finite.map(|n| n.0);
    let usual = Analysis::usual(CanaryLimits {
        errors: number(rule.errors),
        ttft_ratio: number(rule.ttft_ratio),
        tpot_ratio: number(rule.tpot_ratio),
        e2e_ratio: number(rule.e2e_ratio),
    });
    let interval = span(usual.interval);
    let interval = f.fill(path, "interval", &mut rule.interval, from("Flagger"), interval);
    f.not_below(&format!("{path}.interval"), interval.0, SHORTEST_INTERVAL)?;
    let percentile = Finite(usual.percentile * 100.0);
    let percentile = f.fill(
        path,
        "percentile",
        &mut rule.percentile,
        from("Flagger"),
        percentile,
    );
    let min_requests = usual.min_requests;
    let min_requests = f.fill(
        path,
        "min_requests",
        &mut rule.min_requests,
        from("Spinnaker"),
        min_requests,
    );
    let limit = usual.failure_limit;
    let failure_limit = f.fill(
        path,
        "failure_limit",
        &mut rule.failure_limit,
        from("Argo Rollouts"),
        limit,
    );
    let wait = UndecidedWord::Wait;
    let undecided = f.fill(
        path,
        "undecided",
        &mut rule.undecided,
        from("Argo Rollouts"),
        wait,
    );
    let deadline = span(usual.progress_deadline);
    let deadline = f.fill(
        path,
        "progress_deadline",
        &mut rule.progress_deadline,
        from("Flagger"),
        deadline,
    );
    Ok(Analysis {
        interval: interval.0,
        metric_age: f.span(path, "metric_age", &mut rule.metric_age, SimDuration::ZERO),
        percentile: percentile.0 / 100.0,
        min_requests,
        failure_limit,
        undecided: match undecided {
            UndecidedWord::Wait => Undecided::Wait,
            UndecidedWord::Promote => Undecided::Promote,
            UndecidedWord::RollBack => Undecided::RollBack,
        },
        progress_deadline: deadline.0,
        ..usual
    })
}
