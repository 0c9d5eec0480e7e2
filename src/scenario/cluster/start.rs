//! `cluster.pools.*.start`: how long a group takes to start, from cited figures.

use super::super::provenance::Source;
use super::super::quantity::{Bandwidth, Size};
use super::super::schema::Pool;
use super::pools::ServedBy;
use super::{Filling, span};
use crate::cluster::lifecycle::{
    GP3_BYTES_PER_S, NEURON_7B_COMPILE, NEURON_LOAD_BYTES_PER_S, NODE_READY, RestartPlan, VLLM_70B_CAPTURE,
    VLLM_70B_COMPILE, VLLM_70B_WARM, VLLM_SMALL_CAPTURE, VLLM_SMALL_COMPILE_CACHED,
};
use crate::input::InputError;
use crate::kv::sizing::stage_weights;
use crate::steptime::Deployment;
use crate::steptime::stages::stage_layers;
use crate::units::SimDuration;

/// Weights above which the published figures of the 70B class are nearer than those of a model of 3.4 GiB.
const LARGE_BYTES: u64 = 20_000_000_000;

/// Bytes of weights on all ranks of one data-parallel rank.
fn weights_of(deployment: &Deployment) -> u64 {
    let stages = stage_layers(deployment.model.layers.value, deployment.pp);
    let of_stages: u64 = stages
        .iter()
        .map(|layers| stage_weights(deployment, layers).total())
        .sum();
    of_stages.saturating_mul(u64::from(deployment.tp.max(1)))
}

/// Stages as published for the nearest case: compile, capture, warm, and where from.
fn published(served: &ServedBy, bytes: u64, is_eager: bool) -> ([SimDuration; 3], &'static str) {
    if served.engine.config.scheduler_cls.is_neuron() {
        let nothing = SimDuration::ZERO;
        return (
            [NEURON_7B_COMPILE, nothing, nothing],
            "Neuron compilation of a 7B model",
        );
    }
    let (mut stages, about) = if bytes > LARGE_BYTES {
        (
            [VLLM_70B_COMPILE, VLLM_70B_CAPTURE, VLLM_70B_WARM],
            "vLLM issue 19824: Llama 70B on 8 GPUs, no compile cache",
        )
    } else {
        (
            [VLLM_SMALL_COMPILE_CACHED, VLLM_SMALL_CAPTURE, SimDuration::ZERO],
            "vLLM issue 20264: a model of 3.4 GiB, compile cache kept",
        )
    };
    if is_eager {
        stages[0] = SimDuration::ZERO;
        stages[1] = SimDuration::ZERO;
    }
    (stages, about)
}

/// Fills and checks it.
pub(super) fn resolve(
    pool: &mut Pool,
    i: usize,
    served: &ServedBy,
    (is_eager, limitations): (bool, &mut Vec<String>),
    f: &mut Filling<'_>,
) -> Result<RestartPlan, InputError> {
    let path = format!("cluster.pools.{i}.start");
    let is_eager = pool
        .system
        .as_ref()
        .map_or(is_eager, |s| s.engine.enforce_eager == Some(true));
    let start = pool.start.get_or_insert_default();
    let derived = served.engine.deployment.as_ref().map(weights_of);
    let ranks = u64::from(pool.dp.unwrap_or(1));
    let (bytes, from) = match derived {
        Some(bytes) => (bytes.saturating_mul(ranks), "the model's weights on all ranks"),
        None => (0, "no model and accelerator are named"),
    };
    if derived.is_none() && start.weights.is_none() {
        limitations.push(format!(
            "pool {}: the size of the weights is not known, so a group that starts reads none (start.weights)",
            served.name
        ));
    }
    let from = Source::Derived(from.to_owned());
    let weights = f.fill(&path, "weights", &mut start.weights, from, Size { bytes });
    let (speed, from) = if served.engine.config.scheduler_cls.is_neuron() {
        (NEURON_LOAD_BYTES_PER_S, "DeepSeek-V3 on Trainium, as published")
    } else {
        (GP3_BYTES_PER_S, "gp3 SSD with plain safetensors, as published")
    };
    let speed = Bandwidth { bytes_per_s: speed };
    let from = Source::Derived(from.to_owned());
    let bandwidth = f.fill(
        &path,
        "weight_bandwidth",
        &mut start.weight_bandwidth,
        from,
        speed,
    );
    if bandwidth.bytes_per_s == 0 {
        return Err(f.error(
            &format!("{path}.weight_bandwidth"),
            "found 0: no group would ever start",
            "allowed: a bandwidth above 0",
        ));
    }
    let ([compile, capture, warm], about) = published(served, weights.bytes, is_eager);
    let about = || Source::Derived(about.to_owned());
    let node = Source::Derived("a Kubernetes node with GPUs, as reported".to_owned());
    Ok(RestartPlan {
        provision: f
            .fill(&path, "provision", &mut start.provision, node, span(NODE_READY))
            .0,
        weight_bytes: weights.bytes,
        weight_bandwidth: bandwidth.bytes_per_s,
        compile: f
            .fill(&path, "compile", &mut start.compile, about(), span(compile))
            .0,
        capture: f
            .fill(&path, "capture", &mut start.capture, about(), span(capture))
            .0,
        warm: f.fill(&path, "warm", &mut start.warm, about(), span(warm)).0,
    })
}
