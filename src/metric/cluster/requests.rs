//! What became of requests, what was done twice, how the gateway held them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::curve::gateway_queue;
use crate::metric::percentile::{Sample, Stats};
use crate::record::{ClusterRecord, JobRecord, RunRecord, Status};
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
    /// Times that requests were sent to a group to be answered: first tries, retries that came so far, and hedges. Prefills
    /// for another group are none of these.
    pub attempts: u64,
    /// First tries: requests that their clients sent.
    #[serde(default)]
    pub first_tries: u64,
    /// Copies of requests that were sent to a second group while the first one was still at it; no retries.
    #[serde(default)]
    pub hedges: u64,
    /// Retry amplification: first tries and retries, over first tries. Null without any.
    pub amplification: Option<f64>,
    /// Attempts of the request that had most.
    pub most_attempts: u64,
    /// Output tokens of attempts that did not become the answer.
    pub wasted_output_tokens: u64,
    /// Prompt tokens that those attempts were asked to compute, and of prefills whose result did not reach its reader.
    pub wasted_input_tokens: u64,
    /// Output tokens of attempts that were given up.
    pub cancelled_output_tokens: u64,
    /// Prompt tokens that those attempts had begun to compute.
    #[serde(default)]
    pub cancelled_input_tokens: u64,
    /// Prompt tokens that engines were asked to compute for nothing: those of all attempts that they began (prefills for
    /// others among them, and what was computed again after a transfer broke off), less the prompts of served requests.
    #[serde(default)]
    pub lost_input_tokens: u64,
    /// Output tokens for nothing: those of all attempts, less those of served requests.
    #[serde(default)]
    pub lost_output_tokens: u64,
    /// Share of all work that was for nothing: lost tokens over these and the tokens of served requests; an output token
    /// counts as many input tokens as in fairness. An estimate, as a prompt that was begun counts whole.
    pub lost_work_share: Option<f64>,
}

impl Outcomes {
    /// Counts them. An output token is worth `output` input tokens.
    pub fn of(run: &RunRecord, cluster: &ClusterRecord, good: u64, (input, output): (f64, f64)) -> Self {
        let count = |status| run.requests.iter().filter(|r| r.status == status).count() as u64;
        let sum = |of: fn(&JobRecord) -> u32| -> u64 { cluster.jobs.iter().map(|j| u64::from(of(j))).sum() };
        let (retries, unsent) = (sum(|j| j.retries), count(Status::Unsent));
        let first_tries = run.requests.len() as u64 - unsent;
        let served = || run.requests.iter().filter(|r| r.status.is_served());
        let useful_input: u64 = served().map(|r| u64::from(r.input_tokens)).sum();
        let useful_output: u64 = served().map(|r| u64::from(r.output_tokens)).sum();
        let lost_input = cluster.attempted_input_tokens.saturating_sub(useful_input);
        let lost_output = cluster.attempted_output_tokens.saturating_sub(useful_output);
        let work = |inputs: u64, outputs: u64| input * inputs as f64 + output * outputs as f64;
        let lost_work = work(lost_input, lost_output);
        let all_work = lost_work + work(useful_input, useful_output);
        let resumed = |j: &&JobRecord| j.resumes.is_some_and(|n| n > 0);
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
            unsent,
            surplus: count(Status::Surplus),
            retried: cluster.jobs.iter().filter(|j| j.retries > 0).count() as u64,
            retries,
            retries_refused: cluster.retries_refused,
            resumed: kept.then(|| cluster.jobs.iter().filter(resumed).count() as u64),
            attempts: sum(|j| j.attempts),
            first_tries,
            hedges: sum(|j| j.hedges),
            amplification: (first_tries > 0).then(|| (first_tries + retries) as f64 / first_tries as f64),
            most_attempts: cluster.jobs.iter().map(|j| j.attempts).max().unwrap_or(0).into(),
            wasted_output_tokens: sum(|j| j.wasted_output_tokens),
            wasted_input_tokens: sum(|j| j.wasted_input_tokens),
            cancelled_output_tokens: cluster.cancelled_output_tokens,
            cancelled_input_tokens: cluster.cancelled_input_tokens,
            lost_input_tokens: lost_input,
            lost_output_tokens: lost_output,
            lost_work_share: (all_work > 0.0).then(|| lost_work / all_work),
        }
    }

    /// Requests by their terminal state, each offered one in exactly one of these.
    pub const fn by_state(&self) -> [(&'static str, u64); 7] {
        [
            ("completed", self.completed),
            ("failed", self.failed),
            ("timed out", self.timed_out),
            ("rejected", self.rejected),
            ("unfinished", self.unfinished),
            ("unsent", self.unsent),
            ("surplus", self.surplus),
        ]
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
