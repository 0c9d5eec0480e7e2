//! What a cluster's figures are reckoned with: prices, power, bandwidths, tenants' names and weights.

use std::collections::BTreeMap;

use super::super::check::Blame;
use super::super::schema::{OtherCostRule, Pool, PriceRule, Scenario, Workload};
use super::pools::{Pools, ServedBy};
use crate::cluster::gateway::FairPolicy;
use crate::cluster::link::LinkConfig;
use crate::input::InputError;
use crate::metric::cluster::{ClusterOptions, PoolFacts, TenantFacts};
use crate::metric::cost::{InstancePrice, OtherCost};
use crate::metric::energy::{PowerModel, Pue, Work};
use crate::metric::fairness::TokenWeights;
use crate::profile::Accelerator;
use crate::sim::fleet::{GatewayConfig, PoolConfig};
use crate::units::written;

/// Reads the prices and the power of all pools, `cost`, and who the tenants are.
///
/// # Errors
/// [`InputError`] for prices that are none, and power of accelerators of which too little is known.
pub(super) fn resolve(
    scenario: &Scenario,
    pools: &Pools,
    (configs, links): (&[PoolConfig], &[LinkConfig]),
    (gateway, blame): (&GatewayConfig, &Blame<'_>),
) -> Result<ClusterOptions, InputError> {
    let mut facts = BTreeMap::new();
    let stated = scenario.cluster.pools.iter().flatten();
    for (i, (pool, served)) in stated.zip(&pools.served_by).enumerate() {
        facts.insert(served.name.clone(), of_pool(pool, i, served, blame)?);
    }
    let cost = scenario.cost.as_ref();
    let other = cost.and_then(|c| c.other.as_deref()).unwrap_or_default();
    let others = other
        .iter()
        .enumerate()
        .map(|(i, rule)| other_cost(rule, i, blame));
    let pue = cost.and_then(|c| c.pue.as_ref()).map(|rule| {
        if !(1.0..=MOST_PUE).contains(&rule.value.0) {
            let found = format!("found {}", written(rule.value.0));
            let mend = format!("allowed: a number from 1 to {MOST_PUE}; sites have 1.04 to 1.6");
            return Err(blame.error("cost.pue.value", found, mend));
        }
        says_something("cost.pue.source", &rule.source, blame)?;
        Ok(Pue {
            value: rule.value.0,
            source: rule.source.clone(),
        })
    });
    Ok(ClusterOptions {
        pools: facts,
        link_bytes_per_s: bandwidths(configs, links),
        kv_is_pushed: scenario.cluster.transfer.as_ref().is_some_and(|t| {
            t.mode
                .is_some_and(|mode| mode != crate::scenario::schema::TransferWord::Pull)
        }),
        other_costs: others.collect::<Result<_, _>>()?,
        pue: pue.transpose()?,
        tenants: tenants(scenario, &gateway.fairness),
        token_weights: token_weights(&gateway.fairness),
        kv_bytes_per_token: super::transfer::kv_bytes_per_token(pools.answering()),
        ..ClusterOptions::default()
    })
}

/// What results must say about prices and power.
pub(super) fn limitations(scenario: &Scenario, configs: &[PoolConfig]) -> Vec<String> {
    let slowed = scenario
        .cluster
        .pools
        .iter()
        .flatten()
        .filter(|p| p.power.is_some());
    let slowed = slowed.map(|pool| {
        format!(
            "pool {}: at a lower clock prompts take longer by as much, as if all their work were bound by compute, and output \
             tokens take no longer, as if all theirs were bound by memory; watts above idle fall with the third power of \
             the clock",
            pool.name.as_deref().unwrap_or_default()
        )
    });
    let stages = configs.iter().filter(|p| p.engine.pipeline_parallel_size > 1);
    let stages = stages.map(|pool| {
        format!(
            "pool {}: its energy is an upper bound: while one stage of its pipeline computes, all its accelerators count at \
             that power",
            pool.name
        )
    });
    slowed.chain(stages).collect()
}

fn of_pool(pool: &Pool, i: usize, served: &ServedBy, blame: &Blame<'_>) -> Result<PoolFacts, InputError> {
    let path = format!("cluster.pools.{i}");
    let accelerator = served.engine.accelerator.as_ref();
    let instance = served.instance.as_ref();
    let mut facts = accelerator.map_or_else(
        || PoolFacts {
            accelerators_per_group: served.devices,
            instances_per_group: f64::from(served.devices),
            ..PoolFacts::default()
        },
        |a| PoolFacts::of(served.devices, a, instance),
    );
    if let Some(rule) = &pool.price {
        is_price(&format!("{path}.price.usd_h"), rule.usd_h.0, MOST_USD_H, blame)?;
        let name = instance.map(|i| i.name.clone());
        facts.price = Some(stated(rule, name.or_else(|| accelerator.map(|a| a.name.clone()))));
    }
    let Some(rule) = pool.power else {
        return Ok(facts);
    };
    let path = format!("{path}.power");
    let Some(power) = &mut facts.power else {
        let whose = accelerator.map_or("an accelerator that is not named", |a: &Accelerator| {
            a.name.as_str()
        });
        return Err(blame.error(
            &path,
            format!("idle power and power limit of {whose} are not known"),
            "leave it out, or name a system.accelerator whose profile has idle_w and tdp_w",
        ));
    };
    power.cap_w = rule.cap_w.map(|w| w.0);
    power.frequency_ratio = rule.frequency_ratio.map(|r| r.0);
    power.check().map_err(|e| {
        let mend = "allowed: cap_w above the idle power, frequency_ratio above 0 and at most 1";
        blame.error(&path, e.to_string(), mend)
    })?;
    is_clock(power, &path, blame)?;
    Ok(facts)
}

fn stated(rule: &PriceRule, whose: Option<String>) -> InstancePrice {
    InstancePrice {
        instance: whose.unwrap_or_else(|| "accelerator".to_owned()),
        usd_h: rule.usd_h.0,
        region: rule.region.clone(),
        price_date: rule.date.clone(),
        source: rule
            .source
            .clone()
            .or_else(|| Some("stated in the scenario".to_owned())),
    }
}

fn other_cost(rule: &OtherCostRule, i: usize, blame: &Blame<'_>) -> Result<OtherCost, InputError> {
    is_price(
        &format!("cost.other.{i}.usd_h"),
        rule.usd_h.0,
        MOST_OTHER_USD_H,
        blame,
    )?;
    says_something(&format!("cost.other.{i}.name"), &rule.name, blame)?;
    Ok(OtherCost {
        name: rule.name.clone(),
        usd_h: rule.usd_h.0,
        source: rule.source.clone(),
    })
}

/// A machine by the hour, at most: those that ship ask for 55 USD, a whole rack for some hundreds.
const MOST_USD_H: f64 = 10_000.0;
/// What else is paid by the hour, at most: beside the largest cluster here (4096 groups) still as much as its machines.
const MOST_OTHER_USD_H: f64 = 1_000_000.0;
/// Surveys have means of 1.55 to 1.58, operators state 1.04 to 1.18 (section 5 of the project's step-time study).
const MOST_PUE: f64 = 3.0;
/// The lowest clock over the full one: 210 of 1980 MHz on an H100. The power law says nothing below it.
const LOWEST_CLOCK: f64 = 0.1;

fn is_price(path: &str, value: f64, most: f64, blame: &Blame<'_>) -> Result<(), InputError> {
    if (0.0..=most).contains(&value) {
        return Ok(());
    }
    Err(blame.error(
        path,
        format!("found {}", written(value)),
        format!("allowed: 0 to {most} USD an hour"),
    ))
}

/// The clock that is set, or that a cap leaves for the work that draws most, is one that a device has.
fn is_clock(power: &PowerModel, path: &str, blame: &Blame<'_>) -> Result<(), InputError> {
    let all = Work::Prefill {
        compute: 1.0,
        memory: 1.0,
    };
    let clock = power.clock(&all);
    if clock >= LOWEST_CLOCK {
        return Ok(());
    }
    let found = format!("prompts would run at {clock:.3} of the full clock");
    let mend = format!(
        "allowed: from {LOWEST_CLOCK} on, about the lowest that devices have; raise cap_w or frequency_ratio"
    );
    Err(blame.error(path, found, mend))
}

fn says_something(path: &str, text: &str, blame: &Blame<'_>) -> Result<(), InputError> {
    if text.trim().is_empty() {
        return Err(blame.error(path, "found nothing", "allowed: words"));
    }
    Ok(())
}

/// By the names that the record has: those of the links, and POOL/NUMBER in and out for adapters.
fn bandwidths(pools: &[PoolConfig], links: &[LinkConfig]) -> BTreeMap<String, u64> {
    let named = links.iter().map(|l| (l.name.clone(), l.bandwidth_bytes_per_s));
    let adapters = pools.iter().flat_map(|pool| {
        let groups = 0..pool.max_groups;
        groups.flat_map(move |g| {
            ["out", "in"].map(|way| (format!("{}/{g} {way}", pool.name), pool.nic_bytes_per_s))
        })
    });
    named.chain(adapters).collect()
}

/// Tenants have the names of the workload's classes, and the weights that the gateway's policy gives them.
fn tenants(scenario: &Scenario, policy: &FairPolicy) -> BTreeMap<u32, TenantFacts> {
    let weights: &[f64] = match policy {
        FairPolicy::Vtc { weights, .. } | FairPolicy::DeficitRoundRobin { weights, .. } => weights,
        FairPolicy::Fcfs | FairPolicy::Priority => &[],
    };
    let classes = match &scenario.workload {
        Workload::Synthetic(s) => s.classes.as_deref().unwrap_or_default(),
        Workload::Trace(_) => &[],
    };
    let known = classes.len().max(weights.len());
    let facts = (0..).zip(0..known).map(|(number, at)| {
        let tenant = TenantFacts {
            name: classes.get(at).map(|c| c.name.clone()),
            weight: weights.get(at).copied().unwrap_or(1.0),
        };
        (number, tenant)
    });
    facts.collect()
}

fn token_weights(policy: &FairPolicy) -> TokenWeights {
    match policy {
        FairPolicy::Vtc {
            input_weight,
            output_weight,
            ..
        } => TokenWeights {
            input: *input_weight,
            output: *output_weight,
        },
        _ => TokenWeights::default(),
    }
}
