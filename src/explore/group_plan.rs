//! How many whole groups a load asks for (contract, section 12): for the traffic, for what may fail, and for a rollout; and
//! whether they hold, by simulating what is left after a failure, and the rollout.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::capacity::Capacity;
use super::outcome::requirement;
use super::rollouts::Period;
use super::study::{Study, StudyError};
use crate::scenario::{Override, Plan};

/// Groups are added so often, at most, when those of the division do not hold in the simulation.
const MOST_ROUNDS: u32 = 5;

/// What may fail at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Survive {
    /// Nothing.
    Nothing,
    /// One group.
    Group,
    /// The node with the most groups of a pool.
    Node,
    /// The zone with the most groups of a pool.
    Zone,
}

impl Survive {
    /// In print.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Group => "one group",
            Self::Node => "one node",
            Self::Zone => "one zone",
        }
    }
}

/// What is planned for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Load at the peak, requests a second.
    pub peak_rps: f64,
    /// How much more than that may come, as a share: the forecast's error.
    pub margin: f64,
    /// What may fail meanwhile.
    pub survive: Survive,
}

/// Groups of one pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolPlan {
    /// Its name.
    pub pool: String,
    /// As the scenario has it.
    pub as_written: u32,
    /// What one group carries, requests a second: the capacity over the groups as written.
    pub group_rps: f64,
    /// For the traffic: the load with its margin over what a group carries, rounded up, and more where the simulation asked
    /// for more.
    pub traffic: u32,
    /// Of these, groups that the simulation asked for beyond the division.
    pub added: u32,
    /// For what may fail: the most groups that are gone at a time.
    pub reserve: u32,
    /// For the rollout: its surge.
    pub rollout: u32,
    /// All of them.
    pub groups: u32,
}

/// A condition that was simulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    /// What.
    pub what: String,
    /// Groups of each pool.
    pub groups: Vec<(String, u32)>,
    /// Load, requests a second.
    pub rate_rps: f64,
    /// Share of offered requests within all targets.
    pub attainment: f64,
    /// Share of offered requests that did not complete.
    pub error_rate: f64,
    /// Both are as the SLO asks.
    pub holds: bool,
}

/// Whole groups for a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupPlan {
    /// Load at the peak, requests a second.
    pub peak_rps: f64,
    /// Its margin, as a share.
    pub margin: f64,
    /// What may fail.
    pub survive: Survive,
    /// Capacity at the SLO of the groups as written, without the scenario's faults and rollouts, requests a second.
    pub capacity_rps: f64,
    /// The capacity is at least that: no load of the range failed.
    pub at_least: bool,
    /// Each pool.
    pub pools: Vec<PoolPlan>,
    /// What was simulated.
    pub conditions: Vec<Condition>,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoGroupPlan(pub String);

/// The plan as written without what goes wrong in it and without rollouts; none when it has neither.
///
/// # Errors
/// [`StudyError`].
fn without_troubles(plan: &Plan, groups: &[u32], rollout_of: Option<usize>) -> Result<Plan, StudyError> {
    let mut values = vec![
        Override::new("faults", serde_json::Value::Array(Vec::new())),
        Override::new("fault_rates", serde_json::Value::Null),
    ];
    let rollouts = plan.cluster().map_or(&[][..], |c| &c.config().rollouts);
    for (pool, _) in rollouts.iter().filter(|(pool, _)| Some(*pool) != rollout_of) {
        values.push(Override::new(
            &format!("cluster.pools.{pool}.rollout"),
            serde_json::Value::Null,
        ));
    }
    for (pool, &count) in groups.iter().enumerate() {
        values.push(Override::new(&format!("cluster.pools.{pool}.groups"), count));
    }
    Ok(plan.point(&values)?)
}

fn has_troubles(plan: &Plan) -> bool {
    let scenario = &plan.scenario;
    let rollouts = plan.cluster().is_some_and(|c| !c.config().rollouts.is_empty());
    rollouts || !scenario.faults.is_empty() || scenario.fault_rates.is_some()
}

/// Groups to plan with for a cluster whose capacity has been searched. `told` is called with each load that is run.
///
/// # Errors
/// [`StudyError`] for runs that cannot go on; [`NoGroupPlan`] inside for plans of which it cannot be said.
pub fn group_plan(
    plan: &Plan,
    demand: &Demand,
    capacity: &Capacity,
    told: &(impl Fn() + Sync),
) -> Result<Result<GroupPlan, NoGroupPlan>, StudyError> {
    let Some(cluster) = plan.cluster() else {
        return Ok(Err(NoGroupPlan("the scenario is no cluster".into())));
    };
    let config = cluster.config();
    if let Some((pool, _)) = config.scaling.first() {
        let name = &config.pools[*pool].name;
        return Ok(Err(NoGroupPlan(format!(
            "no groups to plan with: the groups of {name} come and go with the load; sweep cluster.pools.{name}.autoscale"
        ))));
    }
    let written: Vec<u32> = config.pools.iter().map(|p| p.groups).collect();
    let undisturbed;
    let capacity = if has_troubles(plan) {
        undisturbed = Study::of(without_troubles(plan, &written, None)?)?.capacity_told(told)?;
        &undisturbed
    } else {
        capacity
    };
    let Some(capacity_rps) = capacity.capacity_rps else {
        return Ok(Err(NoGroupPlan(
            "no groups to plan with: the groups as written carry no load of the range at the SLO".into(),
        )));
    };
    let mut planned = GroupPlan {
        peak_rps: demand.peak_rps,
        margin: demand.margin,
        survive: demand.survive,
        capacity_rps,
        at_least: capacity.fails_at_rps.is_none(),
        pools: Vec::new(),
        conditions: Vec::new(),
    };
    for (number, pool) in config.pools.iter().enumerate() {
        let surge = config.rollouts.iter().find(|(p, _)| *p == number);
        let group_rps = capacity_rps / f64::from(pool.groups.max(1));
        let traffic = (planned.load_rps() / group_rps - 1e-9).ceil().max(1.0) as u32;
        planned.pools.push(PoolPlan {
            pool: pool.name.clone(),
            as_written: pool.groups,
            group_rps,
            traffic,
            added: 0,
            reserve: 0,
            rollout: surge.map_or(0, |(_, rollout)| rollout.config.surge),
            groups: 0,
        });
    }
    // Before anything is added to these: a peak in the wrong unit must not cost the capacity that was found.
    let traffic: Vec<u32> = planned.pools.iter().map(|p| p.traffic).collect();
    if let Err(why) = without_troubles(plan, &traffic, None) {
        return Ok(Err(NoGroupPlan(format!(
            "no groups to plan with: --peak {} is too large, as its groups cannot be simulated ({why}); \
             give the peak in requests a second, or plan for a part of it",
            demand.peak_rps
        ))));
    }
    if let Err(no) = planned.settle(plan, demand.survive) {
        return Ok(Err(no));
    }
    planned.simulate(plan, demand.survive, told)?;
    Ok(Ok(planned))
}

impl GroupPlan {
    /// The load with its margin.
    pub fn load_rps(&self) -> f64 {
        self.peak_rps * (1.0 + self.margin)
    }

    /// All conditions that were simulated hold.
    pub fn holds(&self) -> bool {
        self.conditions.iter().all(|c| c.holds)
    }

    /// Reserves and sums, from the groups for traffic.
    fn settle(&mut self, plan: &Plan, survive: Survive) -> Result<(), NoGroupPlan> {
        for (number, pool) in self.pools.iter_mut().enumerate() {
            pool.reserve = reserve(plan, number, pool.traffic, survive).ok_or_else(|| {
                NoGroupPlan(format!(
                    "no groups to plan with: {} stands in one zone, and nothing of it would be left without that",
                    pool.pool
                ))
            })?;
            pool.groups = pool.traffic + pool.reserve + pool.rollout;
        }
        Ok(())
    }

    /// Simulates what is left after a failure in each pool, adding groups until that holds; then the rollouts.
    fn simulate(
        &mut self,
        plan: &Plan,
        survive: Survive,
        told: &(impl Fn() + Sync),
    ) -> Result<(), StudyError> {
        for number in 0..self.pools.len() {
            for round in 0..MOST_ROUNDS {
                let condition = self.after_failure(plan, number, survive)?;
                told();
                if condition.holds || round + 1 == MOST_ROUNDS {
                    self.conditions.push(condition);
                    break;
                }
                let pool = &mut self.pools[number];
                (pool.traffic, pool.added) = (pool.traffic + 1, pool.added + 1);
                // That it has zones to survive in is known by now.
                let _ = self.settle(plan, survive);
            }
        }
        for number in 0..self.pools.len() {
            if self.pools[number].rollout > 0 || plan_has_rollout(plan, number) {
                let condition = self.during_rollout(plan, number)?;
                told();
                self.conditions.push(condition);
            }
        }
        Ok(())
    }

    /// Groups of each pool between rollouts.
    fn usual(&self) -> Vec<u32> {
        self.pools.iter().map(|p| p.traffic + p.reserve).collect()
    }

    fn named(&self, groups: &[u32]) -> Vec<(String, u32)> {
        let names = self.pools.iter().map(|p| p.pool.clone());
        names.zip(groups.iter().copied()).collect()
    }

    fn after_failure(&self, plan: &Plan, number: usize, survive: Survive) -> Result<Condition, StudyError> {
        let mut groups = self.usual();
        groups[number] -= self.pools[number].reserve;
        let left = without_troubles(plan, &groups, None)?;
        let point = Study::of(left)?.at_rate(self.load_rps())?;
        let pool = &self.pools[number].pool;
        Ok(Condition {
            what: match survive {
                Survive::Nothing => format!("{pool}: all groups"),
                lost => format!("{pool}: without {}", lost.name()),
            },
            groups: self.named(&groups),
            rate_rps: self.load_rps(),
            attainment: point.mean(|r| Some(r.attainment)).unwrap_or(0.0),
            error_rate: point.mean(|r| Some(r.error_rate)).unwrap_or(1.0),
            holds: requirement(&plan.slo).passes(&point),
        })
    }

    /// The scenario's own rollout at the peak: requests that are due while it lasts.
    fn during_rollout(&self, plan: &Plan, number: usize) -> Result<Condition, StudyError> {
        let groups = self.usual();
        let rolled = without_troubles(plan, &groups, Some(number))?.at_rate(self.load_rps())?;
        let run = Study::of(rolled)?.run(0)?;
        let during = run.rollouts.iter().flat_map(|r| &r.served);
        let during: Vec<_> = during.filter(|s| s.period == Period::During).collect();
        let offered: u64 = during.iter().map(|s| s.offered).sum();
        let over = |n: f64| if offered > 0 { n / offered as f64 } else { 0.0 };
        let attainment = over(during.iter().map(|s| s.attainment * s.offered as f64).sum());
        let error_rate = over(during.iter().map(|s| s.errors as f64).sum());
        let asked = requirement(&plan.slo);
        let pool = &self.pools[number].pool;
        let never = if run.rollouts.is_empty() {
            ", which the run never came to"
        } else {
            ""
        };
        Ok(Condition {
            what: format!("{pool}: while its rollout lasts{never}"),
            groups: self.named(&groups),
            rate_rps: self.load_rps(),
            attainment,
            error_rate,
            // The tolerance is for sums that make a share of exactly what is asked.
            holds: offered > 0
                && attainment + 1e-12 >= asked.attainment
                && error_rate <= asked.error_rate + 1e-12,
        })
    }
}

fn plan_has_rollout(plan: &Plan, pool: usize) -> bool {
    plan.cluster()
        .is_some_and(|c| c.config().rollouts.iter().any(|(p, _)| *p == pool))
}

/// Groups beside those for traffic, so that these are left when something fails; none where all would be gone.
fn reserve(plan: &Plan, number: usize, traffic: u32, survive: Survive) -> Option<u32> {
    let config = plan.cluster()?.config();
    let before: u32 = config.pools.iter().take(number).map(|p| p.groups).sum();
    let of_pool = before..before + config.pools[number].groups;
    let most = |groups: Vec<u32>| groups.iter().filter(|g| of_pool.contains(g)).count() as u32;
    match survive {
        Survive::Nothing => Some(0),
        Survive::Group => Some(1),
        Survive::Node => {
            let nodes = 0..config.topology.nodes.len() as u32;
            let on_node = nodes.map(|node| most(config.topology.groups_on_node(node)));
            Some(on_node.max().unwrap_or(1).max(1))
        }
        Survive::Zone => {
            let zones = 0..config.topology.zones.len() as u32;
            let zones = zones.filter(|&z| most(config.topology.groups_in_zone(z)) > 0);
            let zones = zones.count() as u32;
            // Groups are dealt out to zones in turn: of `all`, the fullest has a zone's part, rounded up.
            let left = |all: u32| all - all.div_ceil(zones);
            (zones > 1).then(|| (traffic..).find(|&all| left(all) >= traffic).unwrap_or(traffic) - traffic)
        }
    }
}

#[cfg(test)]
#[path = "group_plan_tests.rs"]
mod tests;
