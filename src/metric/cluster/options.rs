//! What the record of a cluster's run does not say: targets, prices, power, capacities, names.

use std::collections::BTreeMap;

use super::demand::GroupCapacity;
use super::diagnosis::PoolLimits;
use crate::metric::cost::{InstancePrice, OtherCost};
use crate::metric::energy::{Dynamic, PowerModel, Pue};
use crate::metric::fairness::TokenWeights;
use crate::metric::goodput::Slo;
use crate::metric::window::Window;
use crate::profile::accelerator::Accelerator;
use crate::profile::instance::Instance;
use crate::units::SimDuration;

/// Of the power between idle and TDP, the part that steps of output tokens draw: 380 W of 75 to 700 W, measured on an
/// H100 (Splitwise, ISCA 2024); 250 W of 63 to 400 W on an A100 give 0.56.
pub const DECODE_POWER_SHARE: f64 = (380.0 - 75.0) / (700.0 - 75.0);

/// How to summarise a cluster's run.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterOptions {
    /// Targets of a good request; with none set, each that completes is good.
    pub slo: Slo,
    /// Length of the windows in which goodput is counted; none takes about a fiftieth of the time under load.
    pub window: Option<SimDuration>,
    /// How many windows before a fault tell what was usual.
    pub baseline_windows: u32,
    /// Goodput is back when it is no more than this share below what was usual.
    pub back_within: f64,
    /// For so many windows in a row.
    pub hold_windows: u32,
    /// How full a needed group may be, of the requests that it carries or of the time: what [`super::PoolScaling`] takes as need.
    pub target_utilisation: f64,
    /// Facts about pools, by name.
    pub pools: BTreeMap<String, PoolFacts>,
    /// Bandwidth of links by name, bytes a second.
    pub link_bytes_per_s: BTreeMap<String, u64>,
    /// KV is pushed while prompts are computed: how long it moves tells nothing of links.
    pub kv_is_pushed: bool,
    /// What stands beside the accelerators' machines.
    pub other_costs: Vec<OtherCost>,
    /// Power usage effectiveness, with its source.
    pub pue: Option<Pue>,
    /// Tenants by number; those that are not named have weight 1.
    pub tenants: BTreeMap<u32, TenantFacts>,
    /// What a token counts as work.
    pub token_weights: TokenWeights,
    /// KV of one token over all ranks of its group, bytes; none leaves KV byte-seconds out.
    pub kv_bytes_per_token: Option<f64>,
    /// What a replica of each pool has room for, by name; a pool without it leaves the diagnosis out.
    pub limits: BTreeMap<String, PoolLimits>,
    /// Clients of a closed loop.
    pub concurrency: Option<u32>,
    /// What the diagnosis judges.
    pub measured: Window,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            slo: Slo::default(),
            window: None,
            baseline_windows: 6,
            back_within: 0.1,
            hold_windows: 2,
            target_utilisation: 1.0,
            pools: BTreeMap::new(),
            link_bytes_per_s: BTreeMap::new(),
            kv_is_pushed: false,
            other_costs: Vec::new(),
            pue: None,
            tenants: BTreeMap::new(),
            token_weights: TokenWeights::default(),
            kv_bytes_per_token: None,
            limits: BTreeMap::new(),
            concurrency: None,
            measured: Window::WHOLE,
        }
    }
}

/// What a pool's groups stand on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PoolFacts {
    /// Accelerators of one group.
    pub accelerators_per_group: u32,
    /// What their machine costs.
    pub price: Option<InstancePrice>,
    /// Machines that a group takes, 0.5 for 4 of 8 accelerators.
    pub instances_per_group: f64,
    /// What one accelerator draws.
    pub power: Option<PowerModel>,
    /// What one group carries of this workload at its best; none leaves out how many are needed.
    pub capacity: Option<GroupCapacity>,
    /// Requests that one group carries at a time, all its ranks together; none takes its busy time for what it carries, as
    /// of groups that compute prompts.
    pub group_requests: Option<u32>,
    /// The fewest groups that its autoscaler leaves it.
    pub min_groups: u32,
}

impl PoolFacts {
    /// Of groups of some accelerators, as far as the profiles say: a price only where the instance has one, power only
    /// where the accelerator has both its idle power and its limit. Groups take their part of a machine.
    pub fn of(accelerators_per_group: u32, accelerator: &Accelerator, instance: Option<&Instance>) -> Self {
        let of_machine = instance.map_or(1, |i| i.count.value.max(1));
        Self {
            accelerators_per_group,
            price: instance.and_then(price_of),
            instances_per_group: f64::from(accelerators_per_group) / f64::from(of_machine),
            power: power_of(accelerator),
            capacity: None,
            group_requests: None,
            min_groups: 0,
        }
    }
}

/// An instance's price on demand.
pub fn price_of(instance: &Instance) -> Option<InstancePrice> {
    let price = instance.on_demand_usd_h.as_ref()?;
    Some(InstancePrice {
        instance: instance.name.clone(),
        usd_h: price.value,
        region: instance.region.clone(),
        price_date: instance.price_date.clone(),
        source: instance.sources.get(&price.source).cloned(),
    })
}

/// Idle power and limit of a profile as a power model: prompts draw the limit, output tokens [`DECODE_POWER_SHARE`] of
/// what is between both.
pub fn power_of(accelerator: &Accelerator) -> Option<PowerModel> {
    let idle_w = accelerator.idle_w.as_ref()?.value;
    let tdp_w = accelerator.tdp_w.as_ref()?.value;
    Some(PowerModel {
        idle_w,
        dynamic: Dynamic::Phases {
            prefill_w: tdp_w,
            decode_w: (tdp_w - idle_w).mul_add(DECODE_POWER_SHARE, idle_w),
        },
        cap_w: None,
        frequency_ratio: None,
    })
}

/// What is known of a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantFacts {
    /// Its name.
    pub name: Option<String>,
    /// Twice the weight is entitled to twice the service.
    pub weight: f64,
}
