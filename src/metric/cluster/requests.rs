//! What became of requests, what was done twice, how the gateway held them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::curve::gateway_queue;
use crate::metric::percentile::{Sample, Stats};
use crate::record::{ClusterRecord, RunRecord, Status};
use crate::units::SimTime;

/// Requests and attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcomes {
    /// Requests offered.
    pub offered: u64,
    /// All their output arrived.
    pub completed: u64,
    /// Completed and within all targets.
    pub good: u64,
    /// What served them broke off, and nothing took them over.
    pub failed: u64,
    /// Somebody waited no longer.
    pub timed_out: u64,
    /// Refused.
    pub rejected: u64,
    /// Still open at the end.
    pub unfinished: u64,
    /// Of the unfinished, open when nobody could ever serve them.
    pub stranded: u64,
    /// The run was cut off before their clients sent them.
    #[serde(default)]
    pub unsent: u64,
    /// Completed, and not counted by their load generator.
    pub surplus: u64,
    /// Requests that were tried again.
    pub retried: u64,
    /// Times that requests were tried again.
    pub retries: u64,
    /// Retries that a budget refused.
    pub retries_refused: u64,
    /// Requests that went on where a group had broken off; null when that was not kept.
    pub resumed: Option<u64>,
    /// Attempts to answer them, retries and hedges among them.
    pub attempts: u64,
    /// Attempts over requests of which there was one: retry amplification. Null without any.
    pub amplification: Option<f64>,
    /// Attempts of the request that had most.
    pub most_attempts: u64,
    /// Output tokens of attempts that did not become the answer.
    pub wasted_output_tokens: u64,
    /// Prompt tokens that those attempts were asked to compute.
    pub wasted_input_tokens: u64,
    /// Output tokens of attempts that were given up.
    pub cancelled_output_tokens: u64,
    /// An estimate of the share of all work that was for nothing: tokens wasted, cancelled and of requests that did not
    /// complete, over these and the tokens of those that did; an output token counts as many input tokens as in fairness.
    pub lost_work_share: Option<f64>,
}

impl Outcomes {
    /// Counts them. An output token is worth `output` input tokens.
    pub fn of(run: &RunRecord, cluster: &ClusterRecord, good: u64, (input, output): (f64, f64)) -> Self {
        let count = |status| run.requests.iter().filter(|r| r.status == status).count() as u64;
        let sum = |of: fn(&crate::record::JobRecord) -> u32| -> u64 {
            cluster.jobs.iter().map(|j| u64::from(of(j))).sum()
        };
        let attempts = sum(|j| j.attempts);
        let tried = cluster.jobs.iter().filter(|j| j.attempts > 0).count() as u64;
        let wasted = (sum(|j| j.wasted_input_tokens), sum(|j| j.wasted_output_tokens));
        let mut served_work = 0.0;
        let mut lost_work =
            input * wasted.0 as f64 + output * (wasted.1 + cluster.cancelled_output_tokens) as f64;
        for request in run.requests.iter().filter(|r| r.first_scheduled.is_some()) {
            let work = input * f64::from(request.input_tokens) + output * f64::from(request.output_tokens);
            *if request.status.is_served() {
                &mut served_work
            } else {
                &mut lost_work
            } += work;
        }
        let all_work = served_work + lost_work;
        let kept = cluster.jobs.iter().any(|j| j.resumes.is_some());
        Self {
            offered: run.requests.len() as u64,
            completed: count(Status::Completed),
            good,
            failed: count(Status::Failed),
            timed_out: count(Status::TimedOut),
            rejected: count(Status::Rejected),
            unfinished: count(Status::Unfinished),
            stranded: cluster.stranded.into(),
            unsent: count(Status::Unsent),
            surplus: count(Status::Surplus),
            retried: cluster.jobs.iter().filter(|j| j.retries > 0).count() as u64,
            retries: sum(|j| j.retries),
            retries_refused: cluster.retries_refused,
            resumed: kept.then(|| {
                cluster
                    .jobs
                    .iter()
                    .filter(|j| j.resumes.is_some_and(|n| n > 0))
                    .count() as u64
            }),
            attempts,
            amplification: (tried > 0).then(|| attempts as f64 / tried as f64),
            most_attempts: cluster.jobs.iter().map(|j| j.attempts).max().unwrap_or(0).into(),
            wasted_output_tokens: wasted.1,
            wasted_input_tokens: wasted.0,
            cancelled_output_tokens: cluster.cancelled_output_tokens,
            lost_work_share: (all_work > 0.0).then(|| lost_work / all_work),
        }
    }
}

/// The queue in front of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GatewayFigures {
    /// Requests waiting, mean over the whole run; null for a run without length.
    pub queue_mean: Option<f64>,
    /// The most at an instant.
    pub queue_max: u64,
    /// From sending to the first dispatch, of those that were dispatched.
    pub wait: Stats,
    /// Requests that never were.
    pub never_dispatched: u64,
}

impl GatewayFigures {
    /// Of a run.
    pub fn of(run: &RunRecord, cluster: &ClusterRecord) -> Self {
        let queue = gateway_queue(cluster);
        let jobs = || run.requests.iter().zip(&cluster.jobs);
        let waits = jobs().filter_map(|(r, j)| Some(j.dispatched?.since(r.sent).as_nanos()));
        let most = queue.points().iter().map(|p| p.1).max().unwrap_or(0);
        Self {
            queue_mean: queue.mean(SimTime::ZERO, run.end),
            queue_max: u64::try_from(most).unwrap_or(0),
            wait: Sample::from_values(waits).stats_s(),
            never_dispatched: jobs().filter(|(_, j)| j.dispatched.is_none()).count() as u64,
        }
    }
}
