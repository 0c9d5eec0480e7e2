//! What a favoured class costs the others: the same requests once more, all of one priority (contract, section 11).

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ClusterError;
use super::good::Good;
use super::options::ClusterOptions;
use super::tenants::row;
use crate::metric::fairness::{FairRow, Fairness, VictimCost, cost_to_victims};
use crate::metric::latency::ttft;
use crate::metric::percentile::{Sample, Stats};
use crate::record::{ClusterRecord, RunRecord, Status};

/// What priorities cost each class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PriorityCost {
    /// The priority that is served first: the smallest number.
    pub favoured_priority: i32,
    /// Each class, by tenant and priority. Differences are of the run less the same requests with equal priorities, of the
    /// same seed; of victims positive is worse.
    pub classes: Vec<ClassCost>,
}

/// What priorities cost the requests of one tenant and one priority.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassCost {
    /// Number of its tenant.
    pub tenant: u32,
    /// Their priority.
    pub priority: i32,
    /// It is the favoured one; all others are its victims.
    pub is_favoured: bool,
    /// Requests offered.
    pub offered: u64,
    /// Requests that complete with equal priorities, less those that complete with these.
    pub completed_lost: i64,
    /// The same in weighted tokens.
    pub completed_work_lost: f64,
    /// What the share of offered requests within all targets lost; null without requests.
    pub attainment_lost: Option<f64>,
    /// Seconds added to the mean TTFT of the requests that got a first token; null when none did in one of the runs.
    pub ttft_mean_added_s: Option<f64>,
    /// Seconds added to the 99th percentile of their TTFT.
    pub ttft_p99_added_s: Option<f64>,
    /// Seconds added to the mean wait for the first service.
    pub queue_age_mean_added_s: Option<f64>,
    /// Seconds added to the longest such wait.
    pub queue_age_max_added_s: Option<f64>,
    /// Seconds added to the longest time without service while something waited.
    pub starvation_added_s: f64,
    /// What its deviation from its share, all classes weighing the same, lost.
    pub share_deviation_lost: Option<f64>,
}

/// A class as one run served it.
struct Served {
    offered: u64,
    attainment: Option<f64>,
    ttft: Stats,
}

impl PriorityCost {
    /// Of a run and of the same requests with equal priorities; none when the first run's are equal.
    ///
    /// # Errors
    /// [`ClusterError`] for records that do not belong together.
    pub fn of(
        (run, cluster): (&RunRecord, &ClusterRecord),
        (equal_run, equal_cluster): (&RunRecord, &ClusterRecord),
        options: &ClusterOptions,
    ) -> Result<Option<Self>, ClusterError> {
        super::check(run, cluster, options)?;
        super::check(equal_run, cluster, options)?;
        super::check(equal_run, equal_cluster, options)?;
        let class_of =
            |(r, j): (&crate::record::RequestRecord, &crate::record::JobRecord)| (j.tenant, r.priority);
        let of_requests: Vec<(u32, i32)> = run.requests.iter().zip(&cluster.jobs).map(class_of).collect();
        let classes: BTreeSet<(u32, i32)> = of_requests.iter().copied().collect();
        let priorities: BTreeSet<i32> = classes.iter().map(|c| c.1).collect();
        let Some(&favoured_priority) = priorities.first().filter(|_| priorities.len() > 1) else {
            return Ok(None);
        };
        let numbers: BTreeMap<(u32, i32), u32> = classes.iter().copied().zip(0..).collect();
        let numbered: Vec<u32> = of_requests.iter().map(|class| numbers[class]).collect();
        let (with, served) = figures(run, cluster, options, &numbered)?;
        let (without, served_equally) = figures(equal_run, equal_cluster, options, &numbered)?;
        let costs = cost_to_victims(&without, &with, &BTreeSet::new());
        let found = costs.into_iter().filter_map(|cost| {
            let &(tenant, priority) = classes.iter().nth(cost.tenant as usize)?;
            let runs = (served_equally.get(&cost.tenant)?, served.get(&cost.tenant)?);
            let is_favoured = priority == favoured_priority;
            Some(ClassCost::of(tenant, priority, is_favoured, &cost, runs))
        });
        Ok(Some(Self {
            favoured_priority,
            classes: found.collect(),
        }))
    }
}

impl ClassCost {
    fn of(
        tenant: u32,
        priority: i32,
        is_favoured: bool,
        cost: &VictimCost,
        (without, with): (&Served, &Served),
    ) -> Self {
        let less = |a: Option<f64>, b: Option<f64>| Some(a? - b?);
        Self {
            tenant,
            priority,
            is_favoured,
            offered: with.offered,
            completed_lost: cost.completed_lost,
            completed_work_lost: cost.completed_work_lost,
            attainment_lost: less(without.attainment, with.attainment),
            ttft_mean_added_s: less(with.ttft.mean, without.ttft.mean),
            ttft_p99_added_s: less(with.ttft.p99, without.ttft.p99),
            queue_age_mean_added_s: cost.queue_age_mean_added_s,
            queue_age_max_added_s: cost.queue_age_max_added_s,
            starvation_added_s: cost.starvation_added_s,
            share_deviation_lost: cost.share_deviation_lost,
        }
    }
}

/// Fairness between classes, and how each was served. Surplus requests are nobody's.
fn figures(
    run: &RunRecord,
    cluster: &ClusterRecord,
    options: &ClusterOptions,
    class_of: &[u32],
) -> Result<(Fairness, BTreeMap<u32, Served>), ClusterError> {
    let good = Good::of(run, options)?;
    let (mut rows, mut waits) = (Vec::new(), BTreeMap::<u32, (u64, u64, Vec<u64>)>::new());
    let requests = run
        .requests
        .iter()
        .zip(&cluster.jobs)
        .zip(class_of)
        .zip(&good.met);
    for (((request, job), &class), &met) in requests.filter(|(((r, _), _), _)| r.status != Status::Surplus) {
        rows.push(FairRow {
            tenant: class,
            ..row(request, job, run.end, options.kv_bytes_per_token)
        });
        let (offered, good, ttfts) = waits.entry(class).or_default();
        *offered += 1;
        *good += u64::from(met);
        ttfts.extend(ttft(request).map(|t| t.as_nanos()));
    }
    let served = waits.into_iter().map(|(class, (offered, good, ttfts))| {
        let served = Served {
            offered,
            attainment: (offered > 0).then(|| good as f64 / offered as f64),
            ttft: Sample::from_values(ttfts).stats_s(),
        };
        (class, served)
    });
    let fairness = Fairness::of(rows.iter().copied(), &BTreeMap::new(), options.token_weights)?;
    Ok((fairness, served.collect()))
}

#[cfg(test)]
#[path = "victims_tests.rs"]
mod tests;
