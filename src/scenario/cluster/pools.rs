//! `cluster.pools`: what serves in each pool, with the keys of `system` that differ there.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::check::Blame;
use super::super::engine::{self, ResolvedEngine};
use super::super::machine::Fits;
use super::super::plan::{StepTimeSource, step_time_source, tree_of};
use super::super::provenance::{Provenance, Source, leaves};
use super::super::schema::{Engine, Pool, Role, Scenario, System};
use super::{Filling, lockstep, plain_pool, start, transfer};
use crate::input::InputError;
use crate::profile::{Instance, catalog};
use crate::sim::HostTimes;
use crate::sim::fleet::{PoolConfig, PoolRole};
use crate::steptime::Deployment;

/// What serves in a pool.
#[derive(Debug, Clone)]
pub struct ServedBy {
    /// The pool's name.
    pub name: String,
    /// What its groups do.
    pub role: Role,
    /// Its engine.
    pub engine: ResolvedEngine,
    /// Where its step times come from.
    pub step_time_source: StepTimeSource,
    /// Devices of a group, all data-parallel ranks together.
    pub devices: u32,
    /// What it runs on, where that is said.
    pub instance: Option<Instance>,
}

/// What serves in all pools.
#[derive(Debug, Clone)]
pub struct Pools {
    /// By the number of the pool.
    pub served_by: Vec<Arc<ServedBy>>,
    /// What results must say.
    pub limitations: Vec<String>,
}

impl ServedBy {
    /// Whether its engine is vLLM of this release or a later one.
    pub fn is_vllm_since(&self, first: (u32, u32, u32)) -> bool {
        let mut parts = self
            .engine
            .config
            .behaviour
            .version
            .split('.')
            .map(|p| p.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        (next(), next(), next()) >= first
    }
}

impl Pools {
    /// Of the pool that answers: the unified or the decode one.
    pub fn answering(&self) -> &Arc<ServedBy> {
        let answers = self.served_by.iter().find(|s| s.role != Role::Prefill);
        // There is one: checked when they were resolved.
        answers.unwrap_or(&self.served_by[0])
    }

    /// Of the prefill pool.
    pub fn prefill(&self) -> Option<&Arc<ServedBy>> {
        self.served_by.iter().find(|s| s.role == Role::Prefill)
    }
}

/// Fills the pools' names and what serves in each.
///
/// # Errors
/// [`InputError`] for pools that do not go together, and for a pool whose system cannot be run, by its path.
pub fn resolve(
    scenario: &mut Scenario,
    provenance: &mut Provenance,
    (origin, base): (&str, &Path),
    fits: &Fits,
) -> Result<Pools, InputError> {
    let one = vec![plain_pool(1)];
    provenance.fill("cluster.pools", &mut scenario.cluster.pools, Source::Default, one);
    let mut pools = scenario.cluster.pools.take().unwrap_or_default();
    let resolved = fill(&mut pools, scenario, provenance, (origin, base), fits);
    scenario.cluster.pools = Some(pools);
    resolved
}

fn fill(
    pools: &mut [Pool],
    scenario: &mut Scenario,
    provenance: &mut Provenance,
    (origin, base): (&str, &Path),
    fits: &Fits,
) -> Result<Pools, InputError> {
    let mut f = Filling { provenance, origin };
    names(pools, &mut f)?;
    roles(pools, &f.blame())?;
    for (i, pool) in pools.iter_mut().enumerate() {
        counts(pool, i, &mut f)?;
    }
    let apart = pools.iter().any(|p| p.system.is_some());
    let mut served_by = Vec::new();
    if apart {
        for (i, pool) in pools.iter_mut().enumerate() {
            let (engine, source) = own_system(pool, i, scenario, f.provenance, (origin, base), fits)?;
            served_by.push(Arc::new(served(pool, i, (engine, source), &f.blame(), base)?));
        }
    } else {
        let engine = engine::resolve(scenario, f.provenance, origin, base)?;
        let source = step_time_source(scenario, engine.deployment.as_ref(), (base, fits), &f.blame())?;
        for (i, pool) in pools.iter().enumerate() {
            let same = (engine.clone(), source.clone());
            served_by.push(Arc::new(served(pool, i, same, &f.blame(), base)?));
        }
    }
    go_together(&served_by, &f.blame())?;
    for (i, (pool, served)) in pools.iter_mut().zip(&served_by).enumerate() {
        fill_lockstep(pool, i, served, &mut f);
        if pool.lockstep == Some(true) {
            fill_intervals(pool, i, (served, &mut scenario.system.engine), &mut f);
        }
    }
    let limitations = lockstep::limitations(pools, &served_by, fits);
    Ok(Pools {
        served_by,
        limitations,
    })
}

/// Several ranks step together or not. With one, nothing is filled: there is nobody to wait for.
fn fill_lockstep(pool: &mut Pool, i: usize, served: &ServedBy, f: &mut Filling<'_>) {
    if pool.dp.is_none_or(|dp| dp < 2) {
        return;
    }
    let shares_experts = |d: &Deployment| d.model.moe.is_some() && d.ep > 1;
    let together = served.engine.deployment.as_ref().is_some_and(shares_experts);
    let from = Source::Derived("experts of a mixture are spread over its ranks".to_owned());
    let from = if together { from } else { Source::Default };
    let path = format!("cluster.pools.{i}");
    f.fill(&path, "lockstep", &mut pool.lockstep, from, together);
}

/// How often ranks that step together ask each other, and when they take prompts, where their release lets that be set.
fn fill_intervals(
    pool: &mut Pool,
    i: usize,
    (served, shared): (&ServedBy, &mut Engine),
    f: &mut Filling<'_>,
) {
    let config = &served.engine.config;
    let (engine, path) = match &mut pool.system {
        Some(own) => (&mut own.engine, format!("cluster.pools.{i}.system.engine")),
        None => (shared, "system.engine".to_owned()),
    };
    let from = || Source::Derived(format!("vLLM {}", config.behaviour.version));
    if config.behaviour.has_dp_sync_interval {
        let value = config.dp_sync_interval;
        f.fill(
            &path,
            "dp_sync_interval",
            &mut engine.dp_sync_interval,
            from(),
            value,
        );
    }
    if config.behaviour.has_prefill_schedule_interval {
        let (slot, value) = (
            &mut engine.prefill_schedule_interval,
            config.prefill_schedule_interval,
        );
        f.fill(&path, "prefill_schedule_interval", slot, from(), value);
    }
}

fn names(pools: &mut [Pool], f: &mut Filling<'_>) -> Result<(), InputError> {
    for i in 0..pools.len() {
        let path = format!("cluster.pools.{i}");
        let role = role_word(pools[i].role).to_owned();
        let name = f.fill(
            &path,
            "name",
            &mut pools[i].name,
            Source::Derived("its role".to_owned()),
            role,
        );
        let odd = |c: char| c.is_whitespace() || c.is_control() || "/.[],\"".contains(c);
        let is_number = name.chars().all(|c| c.is_ascii_digit());
        if is_number || name.contains(odd) {
            return Err(f.error(
                &format!("{path}.name"),
                format!("found '{name}'"),
                "allowed: a name that is no number, without spaces and without / . , [ ] and quotes",
            ));
        }
        if pools[..i].iter().any(|p| p.name.as_ref() == Some(&name)) {
            return Err(f.error(
                &format!("{path}.name"),
                format!("there are two pools called '{name}'"),
                "give each pool a name of its own",
            ));
        }
    }
    Ok(())
}

const fn role_word(role: Role) -> &'static str {
    match role {
        Role::Unified => "unified",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    }
}

/// One unified pool, or one each of the two others.
fn roles(pools: &[Pool], blame: &Blame<'_>) -> Result<(), InputError> {
    const PATH: &str = "cluster.pools";
    const MEND: &str = "allowed: one pool of role unified, or one of role prefill and one of role decode";
    let count = |role| pools.iter().filter(|p| p.role == role).count();
    match (count(Role::Unified), count(Role::Prefill), count(Role::Decode)) {
        (1, 0, 0) | (0, 1, 1) => Ok(()),
        (0, 0, 0) => Err(blame.error(PATH, "there is no pool", MEND)),
        (0, _, 0) => Err(blame.error(
            PATH,
            "there is a prefill pool, but no decode pool: nobody would answer",
            "add a pool of role decode, or make it one of role unified",
        )),
        (0, 0, _) => Err(blame.error(
            PATH,
            "there is a decode pool, but no prefill pool: nobody would compute its prompts",
            "add a pool of role prefill, or make it one of role unified",
        )),
        (0, _, _) => Err(blame.error(PATH, "there are several pools of one role", MEND)),
        (_, 0, 0) => Err(blame.error(PATH, "there are several unified pools", MEND)),
        _ => Err(blame.error(
            PATH,
            "there is a unified pool beside prefill or decode pools",
            MEND,
        )),
    }
}

fn counts(pool: &mut Pool, i: usize, f: &mut Filling<'_>) -> Result<(), InputError> {
    let path = format!("cluster.pools.{i}");
    f.blame()
        .at_least_one(&format!("{path}.groups"), Some(pool.groups))?;
    if pool.groups > super::MAX_GROUPS {
        let found = format!("found {} groups", pool.groups);
        let mend = format!("allowed in a cluster: 1 to {}", super::MAX_GROUPS);
        return Err(f.error(&format!("{path}.groups"), found, mend));
    }
    let dp = f.fill(&path, "dp", &mut pool.dp, Source::Default, 1);
    f.blame().at_least_one(&format!("{path}.dp"), Some(dp))?;
    if dp > MAX_RANKS {
        let mend = format!("allowed: 1 to {MAX_RANKS}");
        return Err(f.error(&format!("{path}.dp"), format!("found {dp}"), mend));
    }
    Ok(())
}

/// Data-parallel ranks of a group, at most.
const MAX_RANKS: u32 = 1024;

/// The system of a pool: the scenario's, with the keys that differ.
fn own_system(
    pool: &mut Pool,
    i: usize,
    scenario: &Scenario,
    provenance: &mut Provenance,
    (origin, base): (&str, &Path),
    fits: &Fits,
) -> Result<(ResolvedEngine, StepTimeSource), InputError> {
    let shared = tree_of(&scenario.system, origin)?;
    let own = tree_of(&pool.system, origin)?;
    let prefix = format!("cluster.pools.{i}");
    let blamed = |e: InputError| placed(e, &prefix, &own);
    let merged = merge(shared.clone(), &own);
    let mut inner = Scenario {
        system: crate::yaml::from_value::<System>(merged, origin)?,
        ..scenario.clone()
    };
    let mut sources = provenance.of_pool(&prefix);
    let engine = engine::resolve(&mut inner, &mut sources, origin, base).map_err(blamed)?;
    let blame = Blame {
        origin,
        provenance: &sources,
    };
    let source =
        step_time_source(&inner, engine.deployment.as_ref(), (base, fits), &blame).map_err(blamed)?;
    provenance.adopt(sources, &prefix);
    for (path, _) in leaves(&shared) {
        let pointer = format!("/{}", path.replace('.', "/"));
        if own.pointer(&pointer).is_none() {
            let from = Source::Derived(format!("system.{path}"));
            provenance.note(&format!("{prefix}.system.{path}"), from);
        }
    }
    pool.system = Some(inner.system);
    Ok((engine, source))
}

/// An error in a pool's system stands where the user wrote what is wrong.
fn placed(mut error: InputError, prefix: &str, own: &Value) -> InputError {
    let place = error.place.take().unwrap_or_default();
    let inner = place.strip_prefix("system.").unwrap_or_default();
    let path = inner.split(':').next().unwrap_or_default();
    let pointer = format!("/{}", path.replace('.', "/"));
    let is_own = !path.is_empty() && own.pointer(&pointer).is_some();
    error.place = Some(match (is_own, place.as_str()) {
        (true, _) => format!("{prefix}.{place}"),
        (false, "") => prefix.to_owned(),
        (false, place) => format!("{place} (as it holds in {prefix})"),
    });
    error
}

/// `over` laid on `under`. A fit and stated costs exclude each other, and so do graphs and eager mode.
fn merge(mut under: Value, over: &Value) -> Value {
    if let Some(base) = under.as_object_mut() {
        for (key, other) in [("fit", "step_time"), ("step_time", "fit")] {
            if over.get(key).is_some() {
                base.shift_remove(other);
            }
        }
        let is_eager = over.pointer("/engine/enforce_eager") == Some(&Value::Bool(true));
        if let (true, Some(engine)) = (is_eager, base.get_mut("engine").and_then(Value::as_object_mut)) {
            engine.shift_remove("cudagraph_mode");
            engine.shift_remove("cudagraph_capture_sizes");
        }
    }
    lay_over(&mut under, over);
    under
}

fn lay_over(under: &mut Value, over: &Value) {
    match (under, over) {
        (Value::Object(base), Value::Object(own)) => {
            for (key, value) in own {
                lay_over(
                    base.entry(key.clone())
                        .or_insert_with(|| Value::Object(Map::new())),
                    value,
                );
            }
        }
        (_, Value::Null) => {}
        (slot, value) => *slot = value.clone(),
    }
}

fn served(
    pool: &Pool,
    i: usize,
    (engine, step_time_source): (ResolvedEngine, StepTimeSource),
    blame: &Blame<'_>,
    base: &Path,
) -> Result<ServedBy, InputError> {
    let path = format!("cluster.pools.{i}.instance");
    let instance = pool
        .instance
        .as_ref()
        .map(|name| catalog::instance(name, base))
        .transpose();
    let instance = instance.map_err(|e| InputError {
        origin: blame.provenance.set_by(&path).unwrap_or(blame.origin).to_owned(),
        place: Some(path.clone()),
        ..e
    })?;
    if let (Some(instance), Some(device)) = (&instance, &engine.accelerator)
        && instance.accelerator.value != device.name
    {
        return Err(blame.error(
            &path,
            format!(
                "{} has {}, but the pool runs on {}",
                instance.name, instance.accelerator.value, device.name
            ),
            "name an instance with the pool's accelerator, or another system.accelerator",
        ));
    }
    let ranks = engine.deployment.as_ref().map_or(1, |d| d.tp * d.pp);
    Ok(ServedBy {
        name: pool.name.clone().unwrap_or_default(),
        role: pool.role,
        devices: ranks.saturating_mul(pool.dp.unwrap_or(1)),
        engine,
        step_time_source,
        instance,
    })
}

/// KV has to mean the same on both sides.
fn go_together(pools: &[Arc<ServedBy>], blame: &Blame<'_>) -> Result<(), InputError> {
    let split = pools.iter().any(|p| p.role != Role::Unified);
    for (i, pool) in pools.iter().enumerate().filter(|_| split) {
        if pool.engine.config.scheduler_cls.is_neuron() {
            return Err(blame.error(
                &format!("cluster.pools.{i}.role"),
                "prefill and decode groups of kind neuron are not modelled",
                "use vLLM on GPUs, or one unified pool",
            ));
        }
        let first = &pools[0];
        let name = |p: &ServedBy| p.engine.model.as_ref().map(|m| m.name.clone());
        let kv = |p: &ServedBy| p.engine.deployment.as_ref().map(|d| d.kv_dtype);
        let path = |key: &str| format!("cluster.pools.{i}.system.{key}");
        if name(pool) != name(first) {
            return Err(blame.error(
                &path("model"),
                format!("pools {} and {} serve different models", first.name, pool.name),
                "both must serve the same: name it under system.model alone",
            ));
        }
        if kv(pool).is_some() && kv(first).is_some() && kv(pool) != kv(first) {
            return Err(blame.error(
                &path("kv_dtype"),
                format!(
                    "pools {} and {} keep their KV in different formats",
                    first.name, pool.name
                ),
                "both must use the same: give it under system.kv_dtype alone",
            ));
        }
        let block = |p: &ServedBy| p.engine.config.block_size;
        if block(pool) != block(first) {
            return Err(blame.error(
                &path("engine.block_size"),
                format!(
                    "{} tokens a block, but {} has {}",
                    block(pool),
                    first.name,
                    block(first)
                ),
                "blocks are moved whole: both pools must have the same system.engine.block_size",
            ));
        }
    }
    Ok(())
}

/// The configuration of a pool; how many groups there may be is filled elsewhere.
pub(super) fn config(
    scenario: &mut Scenario,
    i: usize,
    pools: &Pools,
    (f, limitations): (&mut Filling<'_>, &mut Vec<String>),
) -> Result<PoolConfig, InputError> {
    let served = &pools.served_by[i];
    let layout = transfer::block_layout(scenario, served, pools.prefill().is_some(), f)?;
    let weights = scenario.system.engine.enforce_eager == Some(true);
    let Some(pool) = scenario.cluster.pools.as_mut().and_then(|pools| pools.get_mut(i)) else {
        return Err(f.error("cluster.pools", "a pool is missing", "this is a bug"));
    };
    let start = start::resolve(pool, i, served, (weights, limitations), f)?;
    let nic = transfer::nic(pool, i, served, (pools.prefill().is_some(), limitations), f)?;
    Ok(PoolConfig {
        name: served.name.clone(),
        role: match served.role {
            Role::Unified => PoolRole::Unified,
            Role::Prefill => PoolRole::Prefill,
            Role::Decode => PoolRole::Decode,
        },
        groups: pool.groups,
        max_groups: pool.groups,
        dp_ranks: pool.dp.unwrap_or(1),
        lockstep: pool.lockstep == Some(true),
        graphs: served
            .engine
            .deployment
            .as_ref()
            .map(|d| (d.graphs.clone(), d.graph_mode)),
        engine: served.engine.config.clone(),
        step_time: i,
        host: HostTimes::default(),
        stall: None,
        start,
        block_bytes: layout.bytes,
        block_descriptors: layout.descriptors,
        nic_bytes_per_s: nic,
    })
}
