//! Tenants of a cluster's run: how each was served by the targets, and fairness between them (contract, section 11).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ClusterError;
use super::good::Good;
use super::options::ClusterOptions;
use crate::metric::fairness::{FairRow, Fairness};
use crate::metric::latency::ttft;
use crate::metric::percentile::{Sample, Stats};
use crate::record::{ClusterRecord, JobRecord, RequestRecord, RunRecord, Status};
use crate::units::SimTime;

/// How one tenant was served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantService {
    /// Its number.
    pub tenant: u32,
    /// Requests that arrived.
    pub offered: u64,
    /// All their output arrived.
    pub completed: u64,
    /// Completed and within all targets; without targets, completed.
    pub good: u64,
    /// `good` over `offered`; null without requests.
    pub attainment: Option<f64>,
    /// From the intended arrival to the first token, in seconds, of the requests that got one.
    pub ttft: Stats,
}

/// What is counted of one tenant.
#[derive(Debug, Default)]
struct Counts {
    offered: u64,
    completed: u64,
    good: u64,
    waits_ns: Vec<u64>,
}

/// How each tenant that offered anything was served, by number. Surplus requests are nobody's.
pub fn services(run: &RunRecord, cluster: &ClusterRecord, good: &Good) -> Vec<TenantService> {
    let mut by_tenant: BTreeMap<u32, Counts> = BTreeMap::new();
    let requests = run.requests.iter().zip(&good.met).zip(&cluster.jobs);
    for ((request, &met), job) in requests.filter(|((r, _), _)| r.status != Status::Surplus) {
        let counts = by_tenant.entry(job.tenant).or_default();
        counts.offered += 1;
        counts.completed += u64::from(request.status.is_served());
        counts.good += u64::from(met);
        counts.waits_ns.extend(ttft(request).map(|wait| wait.as_nanos()));
    }
    let service = |(tenant, counts): (u32, Counts)| TenantService {
        tenant,
        offered: counts.offered,
        completed: counts.completed,
        good: counts.good,
        attainment: (counts.offered > 0).then(|| counts.good as f64 / counts.offered as f64),
        ttft: Sample::from_values(counts.waits_ns).stats_s(),
    };
    by_tenant.into_iter().map(service).collect()
}

/// The figures of all tenants.
///
/// # Errors
/// [`ClusterError::Fairness`] for weights that are none.
pub fn fairness(
    run: &RunRecord,
    cluster: &ClusterRecord,
    options: &ClusterOptions,
) -> Result<Fairness, ClusterError> {
    let rows = run
        .requests
        .iter()
        .zip(&cluster.jobs)
        .filter(|(request, _)| request.status != Status::Surplus)
        .map(|(request, job)| row(request, job, run.end, options.kv_bytes_per_token));
    let weights: BTreeMap<u32, f64> = options
        .tenants
        .iter()
        .map(|(&n, facts)| (n, facts.weight))
        .collect();
    Ok(Fairness::of(rows, &weights, options.token_weights)?)
}

pub(super) fn row(
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

#[cfg(test)]
#[path = "tenants_tests.rs"]
mod tests;
