//! Fairness between the tenants of a cluster's run (contract, section 11).

use std::collections::BTreeMap;

use super::ClusterError;
use super::options::ClusterOptions;
use crate::metric::fairness::{FairRow, Fairness};
use crate::record::{ClusterRecord, JobRecord, RequestRecord, RunRecord, Status};
use crate::units::SimTime;

/// The figures of all tenants.
///
/// # Errors
/// [`ClusterError::Fairness`] for weights that are none.
pub fn fairness(
    run: &RunRecord,
    cluster: &ClusterRecord,
    options: &ClusterOptions,
) -> Result<Fairness, ClusterError> {
    let rows: Vec<FairRow> = run
        .requests
        .iter()
        .zip(&cluster.jobs)
        .filter(|(request, _)| request.status != Status::Surplus)
        .map(|(request, job)| row(request, job, run.end, options.kv_bytes_per_token))
        .collect();
    let weights: BTreeMap<u32, f64> = options
        .tenants
        .iter()
        .map(|(&n, facts)| (n, facts.weight))
        .collect();
    Ok(Fairness::of(&rows, &weights, options.token_weights)?)
}

fn row(
    request: &RequestRecord,
    job: &JobRecord,
    run_end: SimTime,
    kv_bytes_per_token: Option<f64>,
) -> FairRow {
    let end = ended(request, job, run_end).max(request.scheduled);
    let first_scheduled = request
        .first_scheduled
        .map(|at| at.max(request.scheduled).min(end));
    // It holds its prompt from the start and half of its output on the average.
    let tokens = f64::from(request.output_tokens).mul_add(0.5, f64::from(request.input_tokens));
    let held_s = first_scheduled.map_or(0.0, |from| end.since(from).as_secs_f64());
    FairRow {
        tenant: job.tenant,
        arrival: request.scheduled,
        first_scheduled,
        end,
        input_tokens: request.input_tokens,
        output_tokens: request.output_tokens,
        cached_tokens: request.cached_tokens,
        kv_byte_seconds: kv_bytes_per_token.map_or(0.0, |bytes| bytes * tokens * held_s),
        completed: request.status.is_served(),
    }
}

/// When a request ended. Of one that got no answer and of which the end was not kept, the last that is known of it: a
/// lower bound.
fn ended(request: &RequestRecord, job: &JobRecord, run_end: SimTime) -> SimTime {
    let known = || {
        [
            request.last_token,
            request.first_scheduled,
            request.enqueued,
            job.dispatched,
        ]
    };
    match request.status {
        Status::Unfinished | Status::Unsent => run_end,
        Status::Completed | Status::Surplus => request.last_token.or(job.ended).unwrap_or(run_end),
        Status::Rejected | Status::Failed | Status::TimedOut => {
            let last = known().into_iter().flatten().max().unwrap_or(request.sent);
            job.ended.unwrap_or(last)
        }
    }
}
