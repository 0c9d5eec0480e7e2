//! `cluster.pools.*.rollout`.

use super::super::provenance::Source;
use super::super::quantity::Finite;
use super::super::schema::{AnalysisRule, CanaryRule, RolloutRule, UndecidedWord};
use super::control::{OLDEST_METRIC, RATIO, Sizes};
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
    sizes: &Sizes,
    path: &str,
    f: &mut Filling<'_>,
) -> Result<PoolRollout, InputError> {
    let kubernetes = || Source::Derived("Kubernetes".to_owned());
    let groups = sizes.groups;
    let canary = match &mut rule.canary {
        None => None,
        Some(rule) => Some(canary(rule, sizes, &format!("{path}.canary"), f)?),
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
    if config.max_unavailable > sizes.most {
        let mend = format!("allowed: 0 to {}, the most groups of the pool", sizes.most);
        let found = format!("found {}", config.max_unavailable);
        return Err(f.error(&format!("{path}.max_unavailable"), found, mend));
    }
    Rollout::new(config, groups).map_err(|e| f.error(path, e.to_string(), "see its keys"))?;
    let factor = f.number(path, "step_factor", &mut rule.step_factor, 1.0);
    let place = format!("{path}.step_factor");
    let slowdown =
        ratio(factor).ok_or_else(|| f.error(&place, format!("found {}", written(factor)), RATIO))?;
    Ok(PoolRollout { config, slowdown })
}

fn canary(
    rule: &mut CanaryRule,
    sizes: &Sizes,
    path: &str,
    f: &mut Filling<'_>,
) -> Result<Canary, InputError> {
    let analysis = match &mut rule.analysis {
        None => None,
        Some(rule) => Some(analysis(rule, &format!("{path}.analysis"), f)?),
    };
    if let Some(analysis) = analysis {
        let wrong = analysis.check(rule.hold.0).err();
        if let Some(e) = wrong {
            return Err(f.error(&format!("{path}.analysis"), e.to_string(), "see its keys"));
        }
        if rule.share.0 <= 0.0 {
            return Err(f.error(
                &format!("{path}.share"),
                "found 0, so the canary serves nothing that could be judged",
                "give the canary a share above 0",
            ));
        }
        if analysis.limits.is_relative() && rule.share.0 >= 1.0 {
            return Err(f.error(
                &format!("{path}.share"),
                "found 1, so the old revision serves nothing to compare the canary with",
                "give the canary less, or limit its errors only",
            ));
        }
        if analysis.limits.is_relative() && rule.groups >= sizes.groups {
            return Err(f.error(
                &format!("{path}.groups"),
                format!(
                    "found {}, all groups of the pool, so none is left to compare the canary with",
                    rule.groups
                ),
                "give the canary fewer groups, or limit its errors only",
            ));
        }
        if let Some(fewest) = sizes.fewest.filter(|&fewest| rule.groups >= fewest)
            && analysis.limits.is_relative()
        {
            return Err(f.error(
                &format!("{path}.groups"),
                format!(
                    "found {}, but the autoscaler may leave {fewest}, so none is left to compare the canary with",
                    rule.groups
                ),
                "give the canary fewer groups, let the autoscaler leave more, or limit the canary's errors only",
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
    if !(1.0..=100.0).contains(&percentile.0) {
        let hundredfold = Finite(percentile.0 * 100.0);
        let mend = if hundredfold.0 >= 50.0 && hundredfold.0 <= 100.0 {
            format!(
                "a percentile is 1 to 100: did you mean {}?",
                written(hundredfold.0)
            )
        } else {
            "allowed: 1 to 100".to_owned()
        };
        let found = format!("found {}", written(percentile.0));
        return Err(f.error(&format!("{path}.percentile"), found, mend));
    }
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
    if deadline.0 == SimDuration::ZERO {
        return Err(f.error(
            &format!("{path}.progress_deadline"),
            "found 0, so every canary is given up as it begins",
            "give the time that its groups may take to become ready",
        ));
    }
    let metric_age = f.span(path, "metric_age", &mut rule.metric_age, SimDuration::ZERO);
    f.blame().at_most(
        &format!("{path}.metric_age"),
        Some(span(metric_age)),
        span(OLDEST_METRIC),
    )?;
    Ok(Analysis {
        interval: interval.0,
        metric_age,
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
