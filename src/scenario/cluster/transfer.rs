//! `cluster.transfer` and `cluster.links`, the size of a block on its way, and the groups' adapters.

use std::sync::Arc;

use super::super::provenance::Source;
use super::super::quantity::{Bandwidth, Size};
use super::super::schema::{OnFailure, Pool, Role, Scenario, Transfer, TransferWord};
use super::pools::{Pools, ServedBy};
use super::{Filling, span};
use crate::cluster::link::{LinkConfig, Network};
use crate::cluster::push::PushFrom;
use crate::input::InputError;
use crate::kv::sizing::KvLayout;
use crate::sim::fleet::{PoolConfig, PoolRole, TransferConfig, TransferMode};
use crate::steptime::Deployment;
use crate::steptime::stages::stage_layers;
use crate::units::SimDuration;

const PATH: &str = "cluster.transfer";

const fn seconds(s: u64) -> SimDuration {
    SimDuration::from_millis(1_000 * s)
}

/// A KV block on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockLayout {
    pub bytes: u64,
    pub descriptors: u32,
}

/// Checks `cluster.links`.
pub(super) fn links(scenario: &mut Scenario, f: &mut Filling<'_>) -> Result<Vec<LinkConfig>, InputError> {
    let mut links = Vec::new();
    for (i, link) in scenario.cluster.links.iter_mut().flatten().enumerate() {
        let path = format!("cluster.links.{i}");
        let latency = f.span(&path, "latency", &mut link.latency, SimDuration::ZERO);
        links.push(LinkConfig {
            name: link.name.clone(),
            bandwidth_bytes_per_s: link.bandwidth.bytes_per_s,
            latency,
        });
    }
    Network::new(links.clone()).map_err(|e| {
        f.error(
            "cluster.links",
            e.to_string(),
            "each link needs a name and a bandwidth",
        )
    })?;
    Ok(links)
}

/// Fills and checks `cluster.transfer`.
pub(super) fn resolve(
    scenario: &mut Scenario,
    pools: &Pools,
    links: &[LinkConfig],
    f: &mut Filling<'_>,
) -> Result<TransferConfig, InputError> {
    let Some(prefill) = pools.prefill() else {
        for (path, given) in [
            (PATH, scenario.cluster.transfer.is_some()),
            ("cluster.links", !links.is_empty()),
        ] {
            if given {
                let mend = "KV is moved between prefill and decode pools: leave it out";
                return Err(f.error(path, "this key has no effect here", mend));
            }
        }
        return Ok(TransferConfig::default());
    };
    let prefill = prefill.clone();
    let t = scenario.cluster.transfer.get_or_insert_default();
    let mode = mode(t, &prefill, f)?;
    let (lease, heartbeat, renewal) = leases(t, &prefill, f)?;
    let version = prefill.engine.config.behaviour.version;
    let vllm = || Source::Derived(format!("vLLM {version}"));
    let usual = if pools.answering().is_vllm_since((0, 17, 0)) {
        OnFailure::Fail
    } else {
        OnFailure::Recompute
    };
    let on_failure = f.fill(PATH, "on_failure", &mut t.on_failure, vllm(), usual);
    let answering = &pools.answering().engine.config;
    let release = Source::Derived(format!("vLLM {}", answering.behaviour.version));
    let reserves = answering.reserves_for_loads();
    f.fill(
        PATH,
        "reserve_for_loads",
        &mut t.reserve_for_loads,
        release,
        reserves,
    );
    let all = (0..)
        .zip(links)
        .map(|(n, l)| (l.name.as_str(), n))
        .collect::<Vec<(&str, u32)>>();
    let crossed = match &t.fabric {
        None => links.iter().map(|l| l.name.clone()).collect(),
        Some(names) => names.clone(),
    };
    let source = Source::Derived("all of cluster.links".to_owned());
    f.fill(PATH, "fabric", &mut t.fabric, source, crossed.clone());
    let mut fabric = Vec::new();
    for (i, name) in crossed.iter().enumerate() {
        let path = format!("{PATH}.fabric.{i}");
        let Some((_, number)) = all.iter().find(|(known, _)| known == name) else {
            let known: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
            let mend = match known.as_slice() {
                [] => "there are none under cluster.links: add it there, or take transfer.fabric away"
                    .to_owned(),
                some => format!("links under cluster.links: {}", some.join(", ")),
            };
            return Err(f
                .error(&path, format!("there is no link '{name}'"), mend)
                .nearest_of(name, known));
        };
        if fabric.contains(number) {
            return Err(f.error(&path, format!("link '{name}' stands twice"), "name each once"));
        }
        fabric.push(*number);
    }
    Ok(TransferConfig {
        mode,
        per_descriptor: f.span(PATH, "per_descriptor", &mut t.per_descriptor, SimDuration::ZERO),
        fixed: f.span(PATH, "fixed", &mut t.fixed, SimDuration::ZERO),
        fabric,
        response: f.span(PATH, "response", &mut t.response, SimDuration::ZERO),
        lease,
        heartbeat,
        renewal,
        failure_ends_request: on_failure == OnFailure::Fail,
        local_fallback: f.fill(
            PATH,
            "local_fallback",
            &mut t.local_fallback,
            Source::Default,
            false,
        ),
    })
}

/// Who moves KV, and with push how many layers take turns.
fn mode(t: &mut Transfer, prefill: &ServedBy, f: &mut Filling<'_>) -> Result<TransferMode, InputError> {
    let path = format!("{PATH}.layers");
    let from = match f.fill(PATH, "mode", &mut t.mode, Source::Default, TransferWord::Pull) {
        TransferWord::Pull if t.layers.is_some() => {
            let mend = "with mode: pull all layers are read at once: leave it out, or set mode: push";
            return Err(f.error(&path, "this key has no effect here", mend));
        }
        TransferWord::Pull => return Ok(TransferMode::Pull),
        TransferWord::Push => PushFrom::EveryChunk,
        TransferWord::PushLastChunk => PushFrom::LastChunk,
    };
    f.blame().at_least_one(&path, t.layers)?;
    let of_model = prefill.engine.deployment.as_ref();
    let of_model = of_model.map(|d| (d.model.layers.value, Source::Derived("system.model".to_owned())));
    if let (Some(given), Some((known, _))) = (t.layers, &of_model)
        && given > *known
    {
        let mend = format!("allowed: up to {known}, or leave it out");
        return Err(f.error(
            &path,
            format!("found {given}, but the model has {known} layers"),
            mend,
        ));
    }
    let layers = match (t.layers, of_model) {
        (Some(layers), _) => layers,
        (None, Some((layers, source))) => f.fill(PATH, "layers", &mut t.layers, source, layers),
        (None, None) => {
            return Err(f.error(
                &path,
                "KV is to be pushed layer by layer, and the model's layers are not given and cannot be derived",
                "give them, as layers: 80, or name both system.model and system.accelerator",
            ));
        }
    };
    Ok(TransferMode::Push { layers, from })
}

/// Whether a pool's groups keep a reserve for what is under way (rule D12); none where the release says it.
pub(super) fn reserve(scenario: &Scenario, role: PoolRole) -> Option<bool> {
    let transfer = scenario.cluster.transfer.as_ref()?;
    transfer.reserve_for_loads.filter(|_| role == PoolRole::Decode)
}

/// Life of a prefill's blocks by release (rule D14).
fn leases(
    t: &mut Transfer,
    prefill: &Arc<ServedBy>,
    f: &mut Filling<'_>,
) -> Result<(SimDuration, SimDuration, SimDuration), InputError> {
    let version = prefill.engine.config.behaviour.version;
    let vllm = || Source::Derived(format!("vLLM {version}"));
    let usual = if prefill.is_vllm_since((0, 22, 1)) {
        seconds(30)
    } else if prefill.is_vllm_since((0, 13, 0)) {
        seconds(480)
    } else {
        seconds(120)
    };
    let lease = f.fill(PATH, "lease", &mut t.lease, vllm(), span(usual)).0;
    f.above_zero(&format!("{PATH}.lease"), Some(span(lease)))?;
    // A sixth of the lease, which each renewal puts two thirds of it away.
    let (beat, renewed) = if prefill.is_vllm_since((0, 22, 1)) {
        (SimDuration(lease.0 / 6), SimDuration(lease.0 / 3 * 2))
    } else {
        (SimDuration::ZERO, SimDuration::ZERO)
    };
    let heartbeat = f.fill(PATH, "heartbeat", &mut t.heartbeat, vllm(), span(beat)).0;
    let renewal = f.fill(PATH, "renewal", &mut t.renewal, vllm(), span(renewed)).0;
    if heartbeat > SimDuration::ZERO && renewal == SimDuration::ZERO {
        return Err(f.error(
            &format!("{PATH}.renewal"),
            "a heartbeat that renews for no time ends the lease",
            "allowed: a duration above 0, or heartbeat: 0s",
        ));
    }
    if heartbeat >= lease && heartbeat > SimDuration::ZERO {
        return Err(f.error(
            &format!("{PATH}.heartbeat"),
            format!(
                "every lease of {} ends before its first heartbeat, after {}",
                span(lease),
                span(heartbeat)
            ),
            "allowed: less than lease, or 0s for none",
        ));
    }
    Ok((lease, heartbeat, renewal))
}

/// Bytes of a block over all ranks, and descriptors of each rank, which post theirs at the same time (rules D5, D17).
fn of_deployment(deployment: &Deployment, block_size: u32) -> BlockLayout {
    let stages = stage_layers(deployment.model.layers.value, deployment.pp);
    let layouts = stages
        .iter()
        .map(|layers| KvLayout::of_stage(deployment, block_size, layers));
    let (mut bytes, mut layers) = (0u64, 0u32);
    for layout in layouts {
        bytes += layout.block_bytes() * u64::from(deployment.tp.max(1));
        layers = layers.max(layout.group_layers);
    }
    // K and V lie apart, but for a compressed cache, which has one part.
    let parts = if deployment.model.mla.is_some() { 1 } else { 2 };
    BlockLayout {
        bytes,
        descriptors: layers * parts,
    }
}

/// Bytes of a token's KV over all ranks of an engine, where model and accelerator are named.
pub(super) fn kv_bytes_per_token(served: &ServedBy) -> Option<f64> {
    let block_size = served.engine.config.block_size;
    let deployment = served.engine.deployment.as_ref()?;
    let block = of_deployment(deployment, block_size).bytes;
    (block_size > 0).then(|| block as f64 / f64::from(block_size))
}

/// A block of a pool on its way; it matters in decode pools alone.
pub(super) fn block_layout(
    scenario: &mut Scenario,
    served: &ServedBy,
    split: bool,
    f: &mut Filling<'_>,
) -> Result<BlockLayout, InputError> {
    let unmoved = BlockLayout {
        bytes: 1,
        descriptors: 1,
    };
    if !split || served.role == Role::Unified {
        return Ok(unmoved);
    }
    let derived = served
        .engine
        .deployment
        .as_ref()
        .map(|d| of_deployment(d, served.engine.config.block_size));
    let t = scenario.cluster.transfer.get_or_insert_default();
    match (t.block, t.block_descriptors, derived) {
        (Some(block), _, _) if block.bytes == 0 => {
            Err(f.error(&format!("{PATH}.block"), "found 0", "allowed: a size above 0"))
        }
        (block, descriptors, Some(derived)) => Ok(BlockLayout {
            bytes: block.map_or(derived.bytes, |b| b.bytes),
            descriptors: descriptors.unwrap_or(derived.descriptors),
        }),
        (Some(Size { bytes }), descriptors, None) => {
            let path = "cluster.transfer.block_descriptors";
            f.blame().at_least_one(path, descriptors)?;
            Ok(BlockLayout {
                bytes,
                descriptors: descriptors.unwrap_or(1),
            })
        }
        (None, _, None) => Err(f.error(
            &format!("{PATH}.block"),
            "the bytes of a KV block are not given and cannot be derived",
            "give them, as block: 5MiB, or name both system.model and system.accelerator",
        )),
    }
}

/// Bandwidth of a group's adapters together: as stated, else its share of the instance's.
pub(super) fn nic(
    pool: &mut Pool,
    i: usize,
    served: &ServedBy,
    (split, limitations): (bool, &mut Vec<String>),
    f: &mut Filling<'_>,
) -> Result<u64, InputError> {
    let path = format!("cluster.pools.{i}");
    if pool.nic.is_some_and(|b| b.bytes_per_s == 0) {
        let mend = "allowed: a bandwidth above 0; to take it down, use a fault";
        return Err(f.error(&format!("{path}.nic"), "found 0", mend));
    }
    let of_instance = served.instance.as_ref().and_then(|instance| {
        let share = f64::from(served.devices) / f64::from(instance.count.value.max(1));
        let bytes = instance.nic_gbps.as_ref()?.value * 1e9 / 8.0 * share;
        let from = format!(
            "{} of {} devices of {}",
            served.devices, instance.count.value, instance.name
        );
        Some((bytes as u64, from))
    });
    match (pool.nic, of_instance) {
        (Some(given), _) => Ok(given.bytes_per_s),
        (None, Some((bytes_per_s, from))) if bytes_per_s > 0 => {
            let bandwidth = Bandwidth { bytes_per_s };
            f.fill(&path, "nic", &mut pool.nic, Source::Derived(from), bandwidth);
            Ok(bytes_per_s)
        }
        (None, _) => {
            if split {
                limitations.push(format!(
                    "pool {}: the bandwidth of its groups' network adapters is not known, so it holds no transfer back; \
                     give nic, or name an instance",
                    served.name
                ));
            }
            Ok(u64::MAX)
        }
    }
}

/// What results must say about transfers.
pub(super) fn limitations(transfer: &TransferConfig, pools: &[PoolConfig]) -> Vec<String> {
    let split = pools.len() > 1;
    let free = transfer.per_descriptor == SimDuration::ZERO && transfer.fixed == SimDuration::ZERO;
    let costless = (split && free).then(|| {
        "posting a transfer takes no time: no published cost of a descriptor is known, and with small blocks it may \
         exceed that of the bytes (rule D17); give cluster.transfer.per_descriptor and fixed where you have measured them"
            .to_owned()
    });
    let pushes = split && transfer.mode != TransferMode::Pull;
    let layers = pushes.then(|| {
        "KV is pushed as if all layers of a step took the same time and its tokens' KV were written evenly; embeddings, LM \
         head and sampling are part of the layers' time, and writes do not slow the computation"
            .to_owned()
    });
    costless.into_iter().chain(layers).collect()
}
