//! `cluster` and `faults`: from what is written to a cluster that can be run.
//!
//! One unified pool behind a round-robin router, with nothing else said, is no cluster: its replicas are run apart from
//! each other (`Plan::world`). Everything else is run by `sim::fleet` (`Plan::fleet`).

mod accounts;
mod clock;
mod control;
mod faults;
mod filling;
mod gateway;
mod lockstep;
mod placement;
mod pools;
mod rollout;
mod routing;
mod start;
mod transfer;

use std::sync::Arc;

pub(super) use clock::clocked;
use filling::Filling;
pub(super) use pools::resolve as resolve_pools;
pub use pools::{Pools, ServedBy};

use super::check::Blame;
use super::provenance::Source;
use super::resolve::{MAX_CACHED_BLOCKS, Measurement};
use super::schema::{FateWord, Pool, RecoveryRules, Role, Router, RouterPolicy as Word, Scenario, Workload};
use super::{provenance::Provenance, quantity::Span};
use crate::cluster::fault::{Fault, RateError, Rates, timeline};
use crate::cluster::router::{PrefillDecider, RouterPolicy};
use crate::input::InputError;
use crate::metric::cluster::ClusterOptions;
use crate::sim::fleet::{Fate, FleetConfig, PoolConfig, Recovery, Routing};
use crate::sim::{FrontEnd, HostTimes, LoadModel};
use crate::units::SimDuration;

/// Groups of all pools together, at most.
const MAX_GROUPS: u32 = 4096;

/// A cluster that can be run.
#[derive(Debug, Clone)]
pub struct ClusterPlan {
    /// Everything but the load, the machines, and faults drawn by rates.
    config: FleetConfig,
    /// What serves in each pool.
    pools: Arc<Pools>,
    /// Rates of faults, and until when they happen; `None`: as long as the run is known to last.
    rates: Option<(Rates, Option<SimDuration>)>,
    /// What its figures are reckoned with.
    accounts: ClusterOptions,
    /// What results must say.
    limitations: Vec<String>,
}

/// Whether the scenario asks for more than equal replicas that requests are dealt out to in turn.
pub fn is_cluster(scenario: &Scenario) -> bool {
    let c = &scenario.cluster;
    let pools = c.pools.as_deref().unwrap_or_default();
    let router = Router {
        policy: c.router.policy,
        ..Router::default()
    };
    let plain_router = c.router == router && matches!(router.policy, None | Some(Word::RoundRobin));
    let nothing_else = c.gateway.is_none()
        && c.transfer.is_none()
        && c.links.is_none()
        && c.recovery.is_none()
        && scenario.cost.is_none()
        && scenario.faults.is_empty()
        && scenario.fault_rates.is_none();
    !(pools.len() <= 1 && pools.iter().all(is_plain) && plain_router && nothing_else)
}

fn is_plain(pool: &Pool) -> bool {
    let plain = Pool {
        name: pool.name.clone(),
        ..plain_pool(pool.groups)
    };
    *pool == plain
}

/// A unified pool of which nothing else is said.
pub fn plain_pool(groups: u32) -> Pool {
    Pool {
        name: None,
        role: Role::Unified,
        groups,
        max_groups: None,
        dp: None,
        lockstep: None,
        system: None,
        start: None,
        nic: None,
        instance: None,
        price: None,
        power: None,
        placement: None,
        autoscale: None,
        rollout: None,
    }
}

/// Tenants by number: the classes of the workload, in their order; tenants of a trace are numbers already.
fn tenant_number(name: &str, scenario: &Scenario, path: &str, blame: &Blame<'_>) -> Result<u32, InputError> {
    let classes = match &scenario.workload {
        Workload::Synthetic(s) => s.classes.as_deref().unwrap_or_default(),
        Workload::Trace(_) => &[],
    };
    let by_name = classes.iter().position(|c| c.name == name);
    let number = by_name
        .and_then(|n| u32::try_from(n).ok())
        .or_else(|| name.parse().ok().filter(|n: &u32| n.to_string() == name));
    // Tenants of a workload that is drawn are its classes, or one; those of a trace are looked up in it later.
    let known = match &scenario.workload {
        Workload::Synthetic(_) => u32::try_from(classes.len().max(1)).unwrap_or(MAX_TENANTS),
        Workload::Trace(_) => MAX_TENANTS,
    };
    let names = || classes.iter().map(|c| c.name.as_str());
    number.filter(|&n| n < known.min(MAX_TENANTS)).ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        let mend = match known.as_str() {
            "" => "tenants are numbers, counted from 0, as the tenant column of a trace has them".to_owned(),
            known => format!("classes of the workload: {known}"),
        };
        blame
            .error(
                &format!("{path}.{name}"),
                format!("there is no tenant '{name}'"),
                mend,
            )
            .nearest_of(name, names())
    })
}

/// Bounds the memory of a mistyped number.
const MAX_TENANTS: u32 = 1 << 16;

fn no_modelled_clients(load: LoadModel, f: &Filling<'_>) -> Result<(), InputError> {
    if !matches!(load, LoadModel::Clients(_)) {
        return Ok(());
    }
    Err(f.error(
        "load.client",
        "load generators as clients are not modelled in front of a cluster",
        "leave load.client out, or the keys that make a cluster (see `kneeboard schema scenario`)",
    ))
}

/// Fills and checks the rest of `cluster` and `faults`, once the pools are known.
///
/// # Errors
/// [`InputError`] for a part that cannot be run, by its path.
pub fn resolve(
    scenario: &mut Scenario,
    pools: Arc<Pools>,
    (load, measure): (LoadModel, &Measurement),
    (provenance, origin): (&mut Provenance, &str),
) -> Result<ClusterPlan, InputError> {
    let mut filling = Filling { provenance, origin };
    no_modelled_clients(load, &filling)?;
    let mut limitations = Vec::new();
    let gateway = gateway::resolve(scenario, &mut filling)?;
    let recovery = recovery(scenario, gateway.retry.attempts, &mut filling)?;
    let links = transfer::links(scenario, &mut filling)?;
    let transfer = transfer::resolve(scenario, &pools, &links, &mut filling)?;
    let routing = routing::resolve(scenario, &pools, &mut filling)?;
    if gateway.hedge.is_some() && pools.prefill().is_some() && routing.decider == PrefillDecider::Always {
        return Err(filling.error(
            "cluster.gateway.hedge",
            "requests whose prompts are computed by a pool of its own are not copied, so it would change nothing",
            "leave hedge out, or let short prompts stay with decode groups by cluster.router.decider",
        ));
    }
    let mut configs = Vec::new();
    let (mut scaling, mut rollouts) = (Vec::new(), Vec::new());
    for number in 0..pools.served_by.len() {
        let mut pool = pools::config(scenario, number, &pools, (&mut filling, &mut limitations))?;
        let controlled = control::resolve(scenario, number, &mut filling)?;
        pool.max_groups = controlled.max_groups;
        pool.engine.reserve_for_loads =
            transfer::reserve(scenario, pool.role).or(pool.engine.reserve_for_loads);
        scaling.extend(controlled.scaling.map(|policy| (number, policy)));
        rollouts.extend(controlled.rollout.map(|rollout| (number, rollout)));
        configs.push(pool);
    }
    check_size(&configs, &filling.blame())?;
    check_rings(&routing, &configs, &filling.blame())?;
    let accounts = accounts::resolve(scenario, &pools, (&configs, &links), (&gateway, &filling.blame()))?;
    limitations.extend(accounts::limitations(scenario, &configs));
    let topology = placement::resolve(scenario, &pools, &mut filling)?;
    let named = faults::Names::new(&topology, &links, &configs);
    let stated = faults::resolve(scenario, &named, &filling.blame())?;
    let rates = faults::rates(scenario, &topology, &links, &mut filling)?;
    limitations.extend(pools.limitations.iter().cloned());
    limitations.extend(transfer::limitations(&transfer, &configs));
    let config = FleetConfig {
        load,
        gateway,
        routing,
        transfer,
        topology,
        links,
        faults: stated,
        recovery,
        scaling,
        rollouts,
        deadline: measure.deadline,
        seed: measure.seed,
        ..FleetConfig::plain(configs, load)
    };
    Ok(ClusterPlan {
        config,
        pools,
        rates,
        accounts,
        limitations,
    })
}

/// Bounds what a run keeps.
fn check_size(pools: &[PoolConfig], blame: &Blame<'_>) -> Result<(), InputError> {
    let groups: u64 = pools.iter().map(|p| u64::from(p.max_groups)).sum();
    if groups > u64::from(MAX_GROUPS) {
        return Err(blame.error(
            "cluster.pools",
            format!("there may be {groups} groups at a time"),
            format!("allowed: up to {MAX_GROUPS} in all pools together"),
        ));
    }
    let replicas: u64 = pools
        .iter()
        .map(|p| u64::from(p.max_groups) * u64::from(p.dp_ranks))
        .sum();
    if replicas > 4 * u64::from(MAX_GROUPS) {
        return Err(blame.error(
            "cluster.pools",
            format!("there may be {replicas} data-parallel ranks at a time"),
            format!("allowed: up to {} in all pools together", 4 * MAX_GROUPS),
        ));
    }
    let cached = pools.iter().filter(|p| p.engine.enable_prefix_caching);
    let blocks: u64 = cached
        .map(|p| u64::from(p.max_groups) * u64::from(p.dp_ranks) * u64::from(p.engine.num_gpu_blocks))
        .sum();
    if blocks > MAX_CACHED_BLOCKS {
        return Err(blame.error(
            "cluster.pools",
            format!("the groups have {blocks} KV blocks"),
            format!("allowed with prefix caching: up to {MAX_CACHED_BLOCKS} in all"),
        ));
    }
    Ok(())
}

/// Points on all rings of one router, at most: a ring is sorted anew whenever a group comes or goes.
const MAX_RING: u64 = 1_000_000;

/// Bounds the rings of session affinity, which have points for each group.
fn check_rings(routing: &Routing, pools: &[PoolConfig], blame: &Blame<'_>) -> Result<(), InputError> {
    let count = |of: fn(&PoolConfig) -> u32| -> u64 { pools.iter().map(|p| u64::from(of(p))).sum() };
    let groups = count(|p| p.max_groups);
    let ranks = count(|p| p.max_groups * p.dp_ranks);
    let rings = [
        ("cluster.router", &routing.policy, groups, "groups"),
        ("cluster.router.prefill", &routing.prefill, groups, "groups"),
        ("cluster.router.balancer", &routing.balancer, ranks, "ranks"),
    ];
    for (path, policy, members, what) in rings {
        if let RouterPolicy::SessionAffinity { virtual_nodes, .. } = policy
            && u64::from(*virtual_nodes) * members > MAX_RING
        {
            let found = format!("found {virtual_nodes} for each of {members} {what}");
            let mend = format!("allowed for so many: 1 to {}", MAX_RING / members);
            return Err(blame.error(&format!("{path}.virtual_nodes"), found, mend));
        }
    }
    Ok(())
}

fn recovery(scenario: &mut Scenario, attempts: u32, f: &mut Filling<'_>) -> Result<Recovery, InputError> {
    const PATH: &str = "cluster.recovery";
    let default = Recovery::default();
    let rules = scenario
        .cluster
        .recovery
        .get_or_insert_with(RecoveryRules::default);
    let detection = f.span(PATH, "detection", &mut rules.detection, default.detection);
    let route_removal = f.span(
        PATH,
        "route_removal",
        &mut rules.route_removal,
        default.route_removal,
    );
    let in_flight = f.fill(
        PATH,
        "in_flight",
        &mut rules.in_flight,
        Source::Default,
        FateWord::Fail,
    );
    let restart = f.fill(
        PATH,
        "restart",
        &mut rules.restart,
        Source::Default,
        default.restart,
    );
    if in_flight != FateWord::Fail && attempts < 2 {
        return Err(f.blame().error(
            "cluster.recovery.in_flight",
            format!(
                "requests under way are to be sent again, but cluster.gateway.retry.attempts is {attempts}: no request may be \
                 tried twice"
            ),
            "set cluster.gateway.retry.attempts to 2 or more; to have no retries at all, cluster.recovery.in_flight to fail",
        ));
    }
    Ok(Recovery {
        detection,
        route_removal,
        in_flight: match in_flight {
            FateWord::Fail => Fate::Fail,
            FateWord::Retry => Fate::Retry,
            FateWord::Resume => Fate::Resume,
        },
        restart,
    })
}

impl ClusterPlan {
    /// What serves in each pool.
    pub fn served_by(&self) -> &[Arc<ServedBy>] {
        &self.pools.served_by
    }

    /// The cluster without its load and without drawn faults.
    pub const fn config(&self) -> &FleetConfig {
        &self.config
    }

    /// What its figures are reckoned with: prices, power, bandwidths, tenants. Targets are not in it.
    pub const fn accounts(&self) -> &ClusterOptions {
        &self.accounts
    }

    /// What results must say about their own limits.
    pub fn limitations(&self) -> &[String] {
        &self.limitations
    }

    /// Whether the ranks of a pool step together, by its number.
    pub fn steps_together(&self, pool: usize) -> bool {
        let config = self.config.pools.get(pool);
        config.is_some_and(|p| p.lockstep && p.dp_ranks > 1)
    }

    /// Whether faults are drawn until an instant that only the requests tell.
    pub fn wants_horizon(&self) -> bool {
        matches!(self.rates, Some((_, None))) && self.config.deadline.is_none()
    }

    /// The cluster of one replication. `horizon` is the last arrival, where [`Self::wants_horizon`].
    ///
    /// # Errors
    /// [`InputError`] when the rates give too many faults.
    pub fn fleet(
        &self,
        (load, front_end): (LoadModel, FrontEnd),
        host: &[HostTimes],
        (replication, horizon): (u64, SimDuration),
        origin: &str,
    ) -> Result<FleetConfig, InputError> {
        let mut config = FleetConfig {
            load,
            front_end,
            replication,
            ..self.config.clone()
        };
        for (pool, host) in config.pools.iter_mut().zip(host) {
            pool.host = *host;
        }
        if let Some((rates, until)) = &self.rates {
            let deadline = config.deadline.map(|d| SimDuration(d.0));
            let horizon = until.or(deadline).unwrap_or(horizon);
            let drawn = timeline(
                rates,
                &config.topology,
                &config.links,
                horizon,
                config.seed,
                replication,
            )
            .map_err(|e| {
                let (RateError::TooMany { what, .. } | RateError::NotATime { what, .. }) = e;
                InputError::new(origin, e.to_string())
                    .at(format!("fault_rates.{what}.mtbf_hours"))
                    .allowed("raise it, or lower fault_rates.until")
            })?;
            let stated = config.faults.clone();
            config.faults.extend(
                drawn
                    .into_iter()
                    .filter(|d| !stated.iter().any(|s| overlap(s, d))),
            );
            config.faults.sort_by_key(|f| f.at);
        }
        Ok(config)
    }
}

/// The same lasts already: a drawn fault that overlaps a stated one is left out.
fn overlap(a: &Fault, b: &Fault) -> bool {
    let before = |x: &Fault, y: &Fault| x.ends().is_some_and(|end| end <= y.at) && x.at != y.at;
    a.kind.label() == b.kind.label() && a.kind.target() == b.kind.target() && !before(a, b) && !before(b, a)
}

/// A duration as users write it.
const fn span(duration: SimDuration) -> Span {
    Span(duration)
}
