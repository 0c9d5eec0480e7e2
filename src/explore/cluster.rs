//! A cluster's figures: how its run is summarised, what its groups carry, and what a search sees of it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::beyond_need::BusyWindows;
use super::group_capacity::{Lengths, decode_capacity, prefill_capacity};
use super::limits::pool_limits;
use super::study::{Study, StudyError, summary_options};
use crate::cluster::autoscale::ScalePolicy;
use crate::cluster::lifecycle::Phase;
use crate::input::InputError;
use crate::metric::cluster::{
    ClusterError, ClusterOptions, ClusterSummary, GroupCapacity, GroupNeeds, NeedRule, PriorityCost,
    busy_share, streamed_account,
};
use crate::metric::cost::ServedWork;
use crate::metric::{ArrivalSpan, Summary, Window};
use crate::record::{Busy, ClusterRecord, GroupRecord, ReplicaTotals, RunRecord};
use crate::scenario::cluster::ClusterPlan;
use crate::scenario::{Machine, Plan, Role};
use crate::sim::{self, Pace};
use crate::steptime::StepTime;
use crate::units::SimTime;

/// What a search and a sweep see of a cluster's run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ClusterOutcome {
    /// Each pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolOutcome>,
    /// USD a million output tokens of requests that met every target; null without prices, or without such requests.
    pub usd_per_m_good_output_tokens: Option<f64>,
    /// USD a request that met every target.
    pub usd_per_good_request: Option<f64>,
    /// Joules of accelerators a request that met every target, with the site's PUE if one is given.
    pub j_per_good_request: Option<f64>,
    /// Prefill groups that the offered load needs; null where prefill and decode are not disaggregated.
    pub prefill_groups_needed: Option<f64>,
    /// Decode groups that it needs.
    pub decode_groups_needed: Option<f64>,
}

/// How many groups a pool had.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolOutcome {
    /// Its name.
    pub pool: String,
    /// Ready groups, mean over the run; null for a run without length.
    pub ready_mean: Option<f64>,
    /// Ready groups: the most at an instant.
    pub ready_max: u64,
    /// Group-hours of ready groups beyond need, window by window; null when it was not counted, as in a run that lasts far
    /// longer than its load.
    pub overshoot_group_h: Option<f64>,
}

impl ClusterOutcome {
    /// Of a run of which all was kept.
    pub fn of(summary: &ClusterSummary) -> Self {
        let needs = summary.demand.needs.as_ref();
        let cost = summary.cost.as_ref();
        let pools = summary.scaling.iter().map(|pool| PoolOutcome {
            pool: pool.pool.clone(),
            ready_mean: pool.ready_mean,
            ready_max: pool.ready_max,
            overshoot_group_h: pool.overshoot_group_h,
        });
        Self {
            pools: pools.collect(),
            usd_per_m_good_output_tokens: cost.and_then(|c| c.usd_per_m_good_output_tokens),
            usd_per_good_request: cost.and_then(|c| c.usd_per_good_request),
            j_per_good_request: summary.energy.as_ref().and_then(|e| e.j_per_good_request),
            prefill_groups_needed: needs.map(|n| n.prefill_groups),
            decode_groups_needed: needs.map(|n| n.decode_groups),
        }
    }

    /// Of a run that was summarised while it went on. Costs and joules are those of the whole run: where a warm-up or a
    /// window leaves requests out, they are not laid on the measured ones.
    ///
    /// # Errors
    /// [`ClusterError`] for prices and power that make no sense.
    pub(super) fn streamed(
        (cluster, replicas, end): (&ClusterRecord, &[ReplicaTotals], SimTime),
        summary: &Summary,
        options: &ClusterOptions,
        (offered_rps, busy): (Option<f64>, &BusyWindows),
    ) -> Result<Self, ClusterError> {
        let capacity = |name: &String| options.pools.get(name).and_then(|facts| facts.capacity);
        let pair = match cluster.pools.as_slice() {
            [a, b] => capacity(a).zip(capacity(b)),
            _ => None,
        };
        // The prefill pool is the one whose steps are of prompts.
        let needs = offered_rps.zip(pair).and_then(|(rps, (a, b))| {
            let (prefill, decode) = if a.batch.is_none() { (a, b) } else { (b, a) };
            GroupNeeds::of(rps, prefill, decode)
        });
        let mut outcome = Self {
            pools: pool_outcomes((cluster, replicas, end), busy, options),
            prefill_groups_needed: needs.as_ref().map(|n| n.prefill_groups),
            decode_groups_needed: needs.as_ref().map(|n| n.decode_groups),
            ..Self::default()
        };
        let period = &summary.period;
        if period.arrivals_before + period.arrivals_after > 0 {
            return Ok(outcome);
        }
        let (cost, energy) = streamed_account((cluster, replicas, end), options, &served(summary))?;
        outcome.usd_per_m_good_output_tokens = cost.as_ref().and_then(|c| c.usd_per_m_good_output_tokens);
        outcome.usd_per_good_request = cost.and_then(|c| c.usd_per_good_request);
        outcome.j_per_good_request = energy.and_then(|e| e.j_per_good_request);
        Ok(outcome)
    }
}

impl Study {
    /// How the plan's cluster is summarised; none for replicas apart.
    ///
    /// # Errors
    /// [`InputError`] for a workload that cannot be drawn.
    pub fn cluster_options(&self, plan: &Plan) -> Result<Option<ClusterOptions>, InputError> {
        let carries = match self.carries.get() {
            Some(known) => known,
            None => {
                // Lengths do not depend on the load, so one answer holds for all loads of a search.
                let found = group_capacities(plan, &self.machines)?;
                self.carries.get_or_init(|| found)
            }
        };
        Ok(cluster_options(plan, carries))
    }

    pub(super) fn cluster_figures(
        &self,
        plan: &Plan,
        record: &RunRecord,
        cluster: &ClusterRecord,
    ) -> Result<Option<ClusterSummary>, InputError> {
        let Some(options) = self.cluster_options(plan)? else {
            return Ok(None);
        };
        let mut figures = ClusterSummary::of(record, cluster, &options)
            .map_err(|e| InputError::new(plan.origin(), e.to_string()))?;
        figures.limitations.extend(whole_run_note(plan));
        Ok(Some(figures))
    }

    /// The figures of a run; what priorities cost, too, where that is asked for.
    pub(super) fn figures_of(
        &self,
        plan: &Plan,
        replication: u64,
        (record, cluster): (&RunRecord, &ClusterRecord),
    ) -> Result<Option<ClusterSummary>, StudyError> {
        let mut figures = self.cluster_figures(plan, record, cluster)?;
        if let (Some(figures), true) = (&mut figures, self.equal_priorities) {
            figures.priority_cost = self.priority_cost(plan, replication, (record, cluster))?;
        }
        Ok(figures)
    }

    /// What priorities cost: the same requests once more, all of one priority.
    fn priority_cost(
        &self,
        plan: &Plan,
        replication: u64,
        ran: (&RunRecord, &ClusterRecord),
    ) -> Result<Option<PriorityCost>, StudyError> {
        let fleet = plan.fleet(replication, &self.machines)?;
        let (Some(fleet), Some(options)) = (fleet, self.cluster_options(plan)?) else {
            return Ok(None);
        };
        let mut equal = plan.trace(replication)?.as_ref().clone();
        equal.requests.iter_mut().for_each(|request| request.priority = 0);
        let times: Vec<&dyn StepTime> = self.machines.iter().map(|m| m.step_time.as_ref()).collect();
        let (record, cluster) = sim::fleet::run(Pace::default(), &fleet, &times, &equal)?;
        PriorityCost::of(ran, (&record, &cluster), &options)
            .map_err(|e| InputError::new(plan.origin(), e.to_string()).into())
    }

    pub(super) fn streamed_figures(
        &self,
        plan: &Plan,
        ended: (&ClusterRecord, &[ReplicaTotals], SimTime),
        summary: &Summary,
        (span, busy): (Option<ArrivalSpan>, &BusyWindows),
    ) -> Result<Option<ClusterOutcome>, InputError> {
        let Some(options) = self.cluster_options(plan)? else {
            return Ok(None);
        };
        ClusterOutcome::streamed(ended, summary, &options, (offered_rps(span), busy))
            .map(Some)
            .map_err(|e| InputError::new(plan.origin(), e.to_string()))
    }
}

/// How many groups each pool had.
fn pool_outcomes(
    ended: (&ClusterRecord, &[ReplicaTotals], SimTime),
    busy: &BusyWindows,
    options: &ClusterOptions,
) -> Vec<PoolOutcome> {
    let (cluster, _, end) = ended;
    let of_pool = |(number, name): (u32, &String)| {
        let spans: Vec<(SimTime, SimTime)> = cluster
            .groups
            .iter()
            .filter(|g| g.pool == number)
            .flat_map(|g| ready_spans(g, end))
            .collect();
        let ready_ns: u128 = spans
            .iter()
            .map(|(from, to)| u128::from(to.since(*from).as_nanos()))
            .sum();
        PoolOutcome {
            pool: name.clone(),
            ready_mean: (end > SimTime::ZERO).then(|| ready_ns as f64 / end.as_nanos() as f64),
            ready_max: most_at_once(&spans, end),
            overshoot_group_h: busy.beyond_need(ended, number, &NeedRule::of(options, name)),
        }
    };
    (0..).zip(&cluster.pools).map(of_pool).collect()
}

/// When a group was ready.
fn ready_spans(group: &GroupRecord, end: SimTime) -> impl Iterator<Item = (SimTime, SimTime)> + '_ {
    let until = move |i: usize| group.phases.get(i + 1).map_or(end, |next| next.0).min(end);
    let spans = group.phases.iter().enumerate();
    spans
        .filter(|(_, (_, phase))| *phase == Phase::Ready)
        .map(move |(i, &(from, _))| (from.min(end), until(i)))
}

/// The most spans that cover an instant; one that lasts to the end covers it.
fn most_at_once(spans: &[(SimTime, SimTime)], end: SimTime) -> u64 {
    let ends = spans.iter().filter(|(_, to)| *to < end);
    // Of what ends and what begins at an instant, the end comes first.
    let mut changes: Vec<(SimTime, i64)> = ends.map(|&(_, to)| (to, -1)).collect();
    changes.extend(spans.iter().map(|&(from, _)| (from, 1)));
    changes.sort_unstable();
    let levels = changes.iter().scan(0_i64, |level, (_, change)| {
        *level += change;
        Some(*level)
    });
    levels.max().map_or(0, |most| u64::try_from(most).unwrap_or(0))
}

/// Offered requests a second between the first and the last arrival.
fn offered_rps(span: Option<ArrivalSpan>) -> Option<f64> {
    let span = span?;
    let seconds = span.last.since(span.first).as_secs_f64();
    (seconds > 0.0).then(|| span.n as f64 / seconds)
}

/// Without a target every completed request is good.
fn served(summary: &Summary) -> ServedWork {
    let slo = summary.slo.as_ref();
    ServedWork {
        good_requests: slo.map_or(Some(summary.funnel.completed), |s| s.met).unwrap_or(0),
        input_tokens: summary.tokens.input,
        output_tokens: summary.tokens.output,
        good_output_tokens: slo
            .map_or(Some(summary.tokens.output), |s| s.good_output_tokens)
            .unwrap_or(0),
    }
}

/// How a cluster's run is summarised; none for replicas apart.
pub fn cluster_options(plan: &Plan, capacities: &BTreeMap<String, GroupCapacity>) -> Option<ClusterOptions> {
    let cluster = plan.cluster()?;
    let of_summary = summary_options(plan);
    let mut options = ClusterOptions {
        slo: of_summary.slo,
        measured: of_summary.window,
        limits: pool_limits(cluster),
        concurrency: cluster.config().load.concurrency(),
        ..cluster.accounts().clone()
    };
    let is_split = cluster.served_by().iter().any(|s| s.role == Role::Prefill);
    for (number, (served, pool)) in cluster
        .served_by()
        .iter()
        .zip(&cluster.config().pools)
        .enumerate()
    {
        let Some(facts) = options.pools.get_mut(&served.name) else {
            continue;
        };
        let capacity = capacities.get(&served.name).copied();
        // Groups that do both have no capacity for one of them alone.
        facts.capacity = capacity.filter(|_| is_split);
        facts.min_groups = min_groups(cluster, number);
        if served.role != Role::Prefill {
            let seats = options.limits.get(&served.name).map(|l| l.seats);
            let within_target = capacity.and_then(|c| c.batch);
            let of_a_rank = seats.into_iter().chain(within_target).min();
            facts.group_requests = of_a_rank.map(|n| n.saturating_mul(pool.dp_ranks));
        }
    }
    Some(options)
}

/// The fewest groups that a pool's autoscaler leaves it; none without one.
fn min_groups(cluster: &ClusterPlan, pool: usize) -> u32 {
    let scalers = cluster.config().scaling.iter().filter(|(of, _)| *of == pool);
    let floors = scalers.map(|(_, policy)| match policy {
        ScalePolicy::Metric(scaler) => scaler.config().min_groups,
        ScalePolicy::Fixed | ScalePolicy::Schedule(_) => 0,
    });
    floors.max().unwrap_or(0)
}

/// What the figures of the whole run say about a plan that measures a part of it.
pub fn whole_run_note(plan: &Plan) -> Option<String> {
    let measured = Window::after(plan.measure.warmup, plan.measure.window);
    (measured.from > SimTime::ZERO).then(|| {
        "figures of the cluster are of the whole run, its warm-up included: cost, energy and faults have no part of it"
            .to_owned()
    })
}

/// Groups come and go: busy is a share of the time that they were up, and of the whole run alone. Of a part of it, it is not
/// known.
pub(super) fn tell_busy(summary: &mut Summary, cluster: &ClusterRecord, busy: impl Iterator<Item = Busy>) {
    let is_whole = summary.period.arrivals_before + summary.period.arrivals_after == 0;
    summary.gauges.utilisation = is_whole.then(|| busy_share(cluster, busy, cluster.end)).flatten();
}

/// What one group of each pool carries of the plan's workload; of groups that do both, their output tokens alone.
///
/// # Errors
/// [`InputError`] for a workload that cannot be drawn.
pub fn group_capacities(
    plan: &Plan,
    machines: &[Machine],
) -> Result<BTreeMap<String, GroupCapacity>, InputError> {
    let mut found = BTreeMap::new();
    let Some(cluster) = plan.cluster() else {
        return Ok(found);
    };
    let lengths = Lengths::of(plan)?;
    let pools = cluster.served_by().iter().zip(&cluster.config().pools);
    for ((served, pool), machine) in pools.zip(machines) {
        let capacity = match served.role {
            Role::Prefill => prefill_capacity(&lengths, &served.engine.config, machine),
            Role::Decode | Role::Unified => decode_capacity(
                &lengths,
                &served.engine.config,
                machine,
                &summary_options(plan).slo,
            ),
        };
        let of_group = capacity.map(|c| GroupCapacity {
            requests_per_s: c.requests_per_s * f64::from(pool.dp_ranks),
            ..c
        });
        found.extend(of_group.map(|c| (served.name.clone(), c)));
    }
    Ok(found)
}

#[cfg(test)]
#[path = "busy_tests.rs"]
mod tests;
