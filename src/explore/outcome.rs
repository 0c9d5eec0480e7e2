//! What a plan asks of its runs, and what a search looks at of each.

use super::capacity::Requirement;
use super::load::{RunOutcome, TargetOutcome};
use super::stranded::is_stranded;
use super::study::SummaryRun;
use crate::metric::{Slo, SummaryOptions, Window};
use crate::scenario::{Plan, SloTargets};

/// What a load must satisfy to count as carried.
pub fn requirement(slo: &SloTargets) -> Requirement {
    Requirement {
        attainment: slo.attainment,
        error_rate: slo.errors,
    }
}

/// How the plan's runs are summarised.
pub fn summary_options(plan: &Plan) -> SummaryOptions {
    let s = &plan.slo;
    SummaryOptions {
        slo: Slo {
            ttft: s.ttft,
            itl: s.itl,
            itl_quantile: s.itl_quantile,
            tpot: s.tpot,
            e2e: s.e2e,
            attainment: Some(s.attainment),
            errors: Some(s.errors),
        },
        window: Window::after(plan.measure.warmup, plan.measure.window),
        ..SummaryOptions::default()
    }
}

/// The figures of a run that a search looks at.
pub fn outcome(run: &SummaryRun) -> RunOutcome {
    let s = &run.summary;
    // Without a target every completed request is good.
    let completed = s.error_rate.map_or(0.0, |e| 1.0 - e);
    let slo = s.slo.as_ref();
    let targets = slo.iter().flat_map(|report| &report.targets);
    let targets = targets.filter_map(|t| {
        Some(TargetOutcome {
            metric: t.metric,
            attainment: t.attainment?,
        })
    });
    RunOutcome {
        targets: targets.collect(),
        attainment: slo.and_then(|r| r.attainment).unwrap_or(completed),
        error_rate: s.error_rate.unwrap_or(0.0),
        goodput_rps: slo
            .and_then(|r| r.goodput_rps)
            .or(s.throughput.request_rps)
            .unwrap_or(0.0),
        throughput_rps: s.throughput.request_rps.unwrap_or(0.0),
        output_tok_s: s.throughput.output_tok_s.unwrap_or(0.0),
        ttft_p50_s: s.latency.ttft.p50,
        ttft_p99_s: s.latency.ttft.p99,
        e2e_mean_s: s.latency.e2e.mean,
        itl_p99_s: s.latency.itl.p99,
        saturated: s.saturated.unwrap_or(false),
        livelocked: !s.livelocks.is_empty() || is_stranded(run.cluster.as_ref()),
        extrapolated_share: run.extrapolated_share,
        cluster: run.figures.clone(),
    }
}
