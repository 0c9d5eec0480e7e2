//! Figures of a cluster's run, out of its record alone: pools and groups, demands, faults, scaling, tenants, the gateway,
//! cost and energy. What each means is in `docs/METRICS.md`.

mod conserving;
mod curve;
mod demand;
mod diagnosis;
mod faults;
mod good;
mod groups;
mod money;
mod need;
mod options;
mod phases;
mod requests;
mod scaling;
mod series;
mod targets;
mod tenants;
mod victims;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cost::{Cost, CostError};
use super::energy::{Energy, EnergyError};
use super::fairness::{Fairness, FairnessError};
use crate::record::{ClusterRecord, RunRecord};
use crate::units::{SimDuration, SimTime, written};

pub use conserving::WorkConservation;
pub use demand::{Demand, DemandBy, GroupBound, GroupCapacity, GroupNeeds, LinkFigures};
pub use diagnosis::{
    BothWays, BusiestLink, ClusterDiagnosis, ClusterLimit, Place, PlaceFigures, PoolLimits, PoolQueues,
    Role as PoolRole, TransferFigures,
};
pub use faults::{FaultFigures, Recovery};
pub use groups::{DummyFigures, GroupFigures, PoolFigures, Served, names};
pub use money::{busy_share, streamed_account};
pub use need::{NeedRule, PoolWork, RankWork, StepWork};
pub use options::{ClusterOptions, DECODE_POWER_SHARE, PoolFacts, TenantFacts, power_of, price_of};
pub use phases::{BusyShares, PhaseSeconds};
pub use requests::{GatewayFigures, Outcomes};
pub use scaling::PoolScaling;
pub use series::{ClusterSeries, Points};
pub use targets::{TargetShare, TargetShares};
pub use tenants::TenantService;
pub use victims::{ClassCost, PriorityCost};

/// Version of the summary's shape; fields are only ever added within one.
pub const CLUSTER_SUMMARY_VERSION: u32 = 1;

/// All figures of a cluster's run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterSummary {
    /// Version of its shape.
    pub version: u32,
    /// How it was judged.
    pub judged_by: JudgedBy,
    /// What became of requests.
    pub outcomes: Outcomes,
    /// Rates of the whole run.
    #[serde(default)]
    pub rates: Rates,
    /// How the targets were met; null without targets.
    #[serde(default)]
    pub slo: Option<TargetShares>,
    /// The queue in front of the cluster.
    pub gateway: GatewayFigures,
    /// All groups together.
    pub total: PoolFigures,
    /// Each pool.
    pub pools: Vec<PoolFigures>,
    /// Each group that there ever was.
    pub groups: Vec<GroupFigures>,
    /// Prefill, decode and transfers apart.
    pub demand: Demand,
    /// Each fault of the timeline.
    pub faults: Vec<FaultFigures>,
    /// Scaling of each pool.
    pub scaling: Vec<PoolScaling>,
    /// Fairness between tenants.
    pub fairness: Fairness,
    /// How each tenant was served, in the order of `fairness.tenants`.
    #[serde(default)]
    pub tenants: Vec<TenantService>,
    /// What priorities cost those who have the lower ones; null when that was not asked for, or all are equal.
    #[serde(default)]
    pub priority_cost: Option<PriorityCost>,
    /// Time of each pool without work while requests waited.
    #[serde(default)]
    pub work_conservation: Vec<WorkConservation>,
    /// Names of tenants, by number, as far as they have any.
    pub tenant_names: BTreeMap<u32, String>,
    /// What it cost; null when a pool has no price.
    pub cost: Option<Cost>,
    /// What it burnt; null when a pool's accelerators have no power model.
    pub energy: Option<Energy>,
    /// What limits it; null where steps were not kept.
    #[serde(default)]
    pub diagnosis: Option<ClusterDiagnosis>,
    /// Events of the timeline by kind.
    pub events: BTreeMap<String, u64>,
    /// What these figures do not say.
    pub limitations: Vec<String>,
}

/// How a run was judged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JudgedBy {
    /// Windows of goodput, in seconds.
    pub window_s: f64,
    /// Windows before a fault that tell what was usual, at most.
    pub baseline_windows: u32,
    /// Goodput is back when it is no more than this share below.
    pub back_within: f64,
    /// For so many windows in a row.
    pub hold_windows: u32,
    /// How busy a needed group may be.
    pub target_utilisation: f64,
    /// First arrival, in seconds; null without any.
    pub load_from_s: Option<f64>,
    /// Last arrival.
    pub load_to_s: Option<f64>,
    /// End of the run.
    pub end_s: f64,
}

/// Rates over the whole run, as costs and joules are: from its start to its end, with what drains after the last arrival.
/// The summary's are over the measured window.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// Seconds that they are over.
    pub over_s: f64,
    /// Completed requests a second; null for a run without length, as all of these.
    pub request_rps: Option<f64>,
    /// Completed requests within all targets.
    pub goodput_rps: Option<f64>,
    /// Output tokens of completed requests.
    pub output_tok_s: Option<f64>,
    /// Output tokens of completed requests within all targets.
    pub good_output_tok_s: Option<f64>,
}

impl Rates {
    fn of(run: &RunRecord, good: &good::Good) -> Self {
        let over_s = run.end.as_secs_f64();
        let rate = |n: u64| (over_s > 0.0).then(|| n as f64 / over_s);
        let completed = || {
            run.requests
                .iter()
                .filter(|r| r.status == crate::record::Status::Completed)
        };
        Self {
            over_s,
            request_rps: rate(completed().count() as u64),
            goodput_rps: rate(good.requests()),
            output_tok_s: rate(completed().map(|r| u64::from(r.output_tokens)).sum()),
            good_output_tok_s: rate(good.output_tokens),
        }
    }
}

/// Why a cluster's run cannot be summarised.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Both records are not of one run.
    #[error("the run has {requests} requests and the cluster's record {jobs}: they are not of the same run")]
    Mismatch {
        /// In the one.
        requests: usize,
        /// In the other.
        jobs: usize,
    },
    /// Windows that are none or too many.
    #[error(
        "windows of {} s for a run of {} s; take one above 0 and at least a millionth of the run",
        window.as_secs_f64(),
        end.as_secs_f64()
    )]
    Window {
        /// Their length.
        window: SimDuration,
        /// End of the run.
        end: SimTime,
    },
    /// A share that is none.
    #[error("{name} is {}; it must be {range}", written(*value))]
    Share {
        /// Which option.
        name: &'static str,
        /// What was given.
        value: f64,
        /// What is allowed.
        range: &'static str,
    },
    /// Weights that are none.
    #[error(transparent)]
    Fairness(#[from] FairnessError),
    /// Prices that are none.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// Power that is none.
    #[error(transparent)]
    Energy(#[from] EnergyError),
}

impl ClusterSummary {
    /// The figures of a run.
    ///
    /// # Errors
    /// [`ClusterError`] for records that do not belong together and options that make no sense.
    pub fn of(
        run: &RunRecord,
        cluster: &ClusterRecord,
        options: &ClusterOptions,
    ) -> Result<Self, ClusterError> {
        check(run, cluster, options)?;
        let good = good::Good::of(run, options)?;
        let sums = groups::sums(run, cluster);
        let pools = groups::pool_figures(cluster, &sums, run.end);
        let weights = (options.token_weights.input, options.token_weights.output);
        let outcomes = Outcomes::of(run, cluster, good.requests(), weights);
        let served = money::served(run, &good);
        let lost_share = outcomes.lost_work_share.unwrap_or(0.0);
        let mut events = BTreeMap::new();
        for event in &cluster.timeline {
            *events.entry(event.event.to_owned()).or_default() += 1;
        }
        let mut summary = Self {
            version: CLUSTER_SUMMARY_VERSION,
            judged_by: JudgedBy::of(run, options, &good),
            gateway: GatewayFigures::of(run, cluster),
            total: groups::total(cluster, &sums, run.end),
            groups: groups::group_figures(run, cluster, &sums),
            demand: Demand::of(run, cluster, options, &pools, &good),
            faults: faults::Judge::new(run, cluster, options, &good, &curve::queue(run, cluster)).faults(),
            scaling: scaling::scaling(run, cluster, good.window, options),
            fairness: tenants::fairness(run, cluster, options)?,
            tenants: tenants::services(run, cluster, &good),
            priority_cost: None,
            work_conservation: conserving::conservation(run, cluster, &pools),
            rates: Rates::of(run, &good),
            slo: TargetShares::of(run, options, &good),
            tenant_names: tenant_names(options),
            cost: money::cost(run, &pools, options, &served, lost_share)?,
            energy: money::energy(run, cluster, options, &served)?,
            outcomes,
            pools,
            diagnosis: None,
            events,
            limitations: Vec::new(),
        };
        summary.diagnosis = ClusterDiagnosis::of(run, cluster, options, &summary);
        summary.limitations = limitations(&summary, run, cluster, options);
        Ok(summary)
    }
}

impl JudgedBy {
    fn of(run: &RunRecord, options: &ClusterOptions, good: &good::Good) -> Self {
        Self {
            window_s: good.window.as_secs_f64(),
            baseline_windows: options.baseline_windows,
            back_within: options.back_within,
            hold_windows: options.hold_windows,
            target_utilisation: options.target_utilisation,
            load_from_s: good.load.map(|(first, _)| first.as_secs_f64()),
            load_to_s: good.load.map(|(_, last)| last.as_secs_f64()),
            end_s: run.end.as_secs_f64(),
        }
    }
}

fn tenant_names(options: &ClusterOptions) -> BTreeMap<u32, String> {
    let named = options
        .tenants
        .iter()
        .filter_map(|(&n, facts)| Some((n, facts.name.clone()?)));
    named.collect()
}

fn check(run: &RunRecord, cluster: &ClusterRecord, options: &ClusterOptions) -> Result<(), ClusterError> {
    if run.requests.len() != cluster.jobs.len() {
        return Err(ClusterError::Mismatch {
            requests: run.requests.len(),
            jobs: cluster.jobs.len(),
        });
    }
    let share = |name, value: f64, fits: bool, range| {
        if fits {
            Ok(())
        } else {
            Err(ClusterError::Share { name, value, range })
        }
    };
    let (within, target) = (options.back_within, options.target_utilisation);
    share(
        "back_within",
        within,
        (0.0..1.0).contains(&within),
        "0 or more and below 1",
    )?;
    share(
        "target_utilisation",
        target,
        target > 0.0 && target <= 1.0,
        "above 0 and at most 1",
    )?;
    let kv = options.kv_bytes_per_token.unwrap_or(0.0);
    share(
        "kv_bytes_per_token",
        kv,
        kv.is_finite() && kv >= 0.0,
        "a number of 0 or more",
    )
}

/// Names of the pools that lack something.
fn pools_without(cluster: &ClusterRecord, options: &ClusterOptions, has: fn(&PoolFacts) -> bool) -> String {
    let lacks = |pool: &&String| !options.pools.get(*pool).is_some_and(has);
    let names: Vec<&str> = cluster.pools.iter().filter(lacks).map(String::as_str).collect();
    names.join(", ")
}

/// What the figures of this run do not say.
fn limitations(
    summary: &ClusterSummary,
    run: &RunRecord,
    cluster: &ClusterRecord,
    options: &ClusterOptions,
) -> Vec<String> {
    let without = |has| pools_without(cluster, options, has);
    let lost = |job: &crate::record::JobRecord, request: &crate::record::RequestRecord| {
        !request.status.is_served()
            && request.status != crate::record::Status::Unfinished
            && job.ended.is_none()
    };
    let ends_unknown = run.requests.iter().zip(&cluster.jobs).any(|(r, j)| lost(j, r));
    let without_steps = !money::steps_were_kept(run);
    let said = [
        summary.cost.is_none().then(|| {
            let pools = without(|f| f.price.is_some());
            format!("no cost: no price is known for the machines of {pools}")
        }),
        summary.energy.is_none().then(|| {
            let pools = without(|f| f.power.is_some());
            format!("no energy: idle power and power limit are not known for the accelerators of {pools}")
        }),
        summary.energy.as_ref().map(|_| {
            "energy is of accelerators alone: not of hosts, network and cooling; a failed group draws nothing in it".into()
        }),
        summary.energy.as_ref().filter(|e| e.peak_w.is_some() && summary.demand.by == DemandBy::Step).map(|_| {
            "the peak power takes a computing group at its mean power over prompts and output tokens".into()
        }),
        (summary.demand.decode_groups.is_some()).then(|| {
            "a decoding group is busy whatever the size of its batch: demands and the P:D of busy time hold for the batches of this \
             load, and understate what is left of a group with small ones"
                .into()
        }),
        (summary.demand.needs.is_some()).then(|| {
            "groups needed are of groups that are never idle and never short of requests: queues, chance and TTFT targets \
             take more, and prompts found in a prefix cache less"
                .into()
        }),
        (!summary.faults.is_empty()).then(|| {
            format!(
                "goodput is counted in windows of {} s, and a window of few requests varies by chance alone",
                summary.judged_by.window_s
            )
        }),
        ends_unknown.then(|| {
            "of requests that failed, timed out or were rejected the end was not kept: their waits are lower bounds".into()
        }),
        options.kv_bytes_per_token.is_none().then(|| "no KV byte-seconds: the KV bytes of a token are not known".into()),
        without_steps.then(|| {
            "steps were not kept: queues are those of the gateway alone, and there is no peak power".into()
        }),
        (cluster.events_beyond_end > 0).then(|| {
            format!(
                "{} events of control loops after the last step and the last request are not in the timeline",
                cluster.events_beyond_end
            )
        }),
    ];
    said.into_iter().flatten().collect()
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod simulated_tests;
#[cfg(test)]
mod tests;
