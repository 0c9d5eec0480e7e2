//! What a favoured class costs the others: the same requests with and without the favour.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Fairness, TenantFairness};

/// What one tenant that is not favoured pays; positive is worse for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VictimCost {
    /// Its number.
    pub tenant: u32,
    /// Requests that completed without the favour, less those that complete with it.
    pub completed_lost: i64,
    /// The same in weighted tokens.
    pub completed_work_lost: f64,
    /// Seconds added to its mean wait; null when either run has none.
    pub queue_age_mean_added_s: Option<f64>,
    /// Seconds added to its longest wait.
    pub queue_age_max_added_s: Option<f64>,
    /// Seconds added to its longest starvation.
    pub starvation_added_s: f64,
    /// What its deviation from its share lost.
    pub share_deviation_lost: Option<f64>,
}

impl VictimCost {
    fn between(without: &TenantFairness, with: &TenantFairness) -> Self {
        let added = |with: Option<f64>, without: Option<f64>| Some(with? - without?);
        Self {
            tenant: with.tenant,
            completed_lost: without.completed.cast_signed() - with.completed.cast_signed(),
            completed_work_lost: without.completed_work - with.completed_work,
            queue_age_mean_added_s: added(with.queue_age_mean_s, without.queue_age_mean_s),
            queue_age_max_added_s: added(with.queue_age_max_s, without.queue_age_max_s),
            starvation_added_s: with.longest_starvation_s - without.longest_starvation_s,
            share_deviation_lost: added(without.share_deviation, with.share_deviation),
        }
    }
}

/// What a favour costs each tenant that does not have it, from two runs of the same requests: `without` the favour (all
/// of one priority, or without the favoured tenants' requests) and `with` it. Tenants that are in one run only are left
/// out.
pub fn cost_to_victims(without: &Fairness, with: &Fairness, favoured: &BTreeSet<u32>) -> Vec<VictimCost> {
    let before = |tenant: u32| {
        let found = without.tenants.binary_search_by_key(&tenant, |t| t.tenant);
        found.ok().map(|at| &without.tenants[at])
    };
    with.tenants
        .iter()
        .filter(|after| !favoured.contains(&after.tenant))
        .filter_map(|after| Some(VictimCost::between(before(after.tenant)?, after)))
        .collect()
}
