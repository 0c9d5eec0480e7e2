//! What the runs at one load showed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cluster::ClusterOutcome;
use crate::metric::goodput::Target;

/// What one run at one load showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunOutcome {
    /// Share of offered requests that met every one of their targets.
    pub attainment: f64,
    /// Share of offered requests that met each target by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetOutcome>,
    /// Share of offered requests that did not complete.
    pub error_rate: f64,
    /// Requests a second that met every target.
    pub goodput_rps: f64,
    /// Requests completed a second of wall clock.
    pub throughput_rps: f64,
    /// Output tokens a second of wall clock.
    pub output_tok_s: f64,
    /// 50th percentile of time to first token; null when no request got one.
    pub ttft_p50_s: Option<f64>,
    /// 99th percentile of time to first token.
    pub ttft_p99_s: Option<f64>,
    /// Mean end-to-end time.
    pub e2e_mean_s: Option<f64>,
    /// 99th percentile of the gaps between tokens.
    pub itl_p99_s: Option<f64>,
    /// The backlog grew through the run.
    pub saturated: bool,
    /// The engine of some replica came to a livelock (rule N14), or requests of a cluster wait for groups that never
    /// come; another run may meet either at a lower load too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub livelocked: bool,
    /// What more there is to say of a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterOutcome>,
    /// Steps whose batch lay outside the hull of the fitted ones, as a share; null without a fit.
    pub extrapolated_share: Option<f64>,
}

/// How one target was met.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetOutcome {
    /// Which metric.
    pub metric: Target,
    /// Share of offered requests that met it.
    pub attainment: f64,
}

/// All runs at one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadPoint {
    /// Offered requests a second.
    pub rate_rps: f64,
    /// One a seed, in seed order.
    pub runs: Vec<RunOutcome>,
}

impl LoadPoint {
    /// Mean of a figure over the seeds; `None` when a run has none.
    pub fn mean(&self, figure: impl Fn(&RunOutcome) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.runs.iter().map(figure).collect();
        let values = values.filter(|v| !v.is_empty())?;
        Some(values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Smallest and largest attainment over the seeds.
    pub fn attainment_range(&self) -> (f64, f64) {
        self.runs.iter().fold((1.0, 0.0), |(lo, hi): (f64, f64), r| {
            (lo.min(r.attainment), hi.max(r.attainment))
        })
    }

    /// Some seed came to a livelock or left requests stranded.
    pub fn livelocked(&self) -> bool {
        self.runs.iter().any(|r| r.livelocked)
    }

    /// Most seeds are saturated.
    pub fn saturated(&self) -> bool {
        2 * self.runs.iter().filter(|r| r.saturated).count() > self.runs.len()
    }
}
