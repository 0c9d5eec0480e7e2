//! `system`: profiles and vLLM's defaults (rules S80 to S83).

use std::path::Path;

use super::check::Blame;
use super::deployment::{self, Formats, Ranks};
use super::neuron;
use super::provenance::{Provenance, Source};
use super::quantity::Finite;
use super::schema::{Engine, EngineKind, Scenario, System};
use crate::engine::vllm::version::VERSIONS;
use crate::engine::vllm::{Behaviour, DP_SYNC_INTERVAL, Policy, VllmConfig};
use crate::input::InputError;
use crate::kv::MAX_BLOCKS;
use crate::kv::sizing::MemoryLedger;
use crate::profile::engine::{Case, EngineDefaults, Usage, pick};
use crate::profile::{Accelerator, Model, Platform, catalog};
use crate::steptime::{CaptureSizes, Deployment, GraphMode};

/// The resolved engine.
#[derive(Debug, Clone)]
pub struct ResolvedEngine {
    /// Its configuration.
    pub config: VllmConfig,
    /// Where the memory goes, when the block count was derived.
    pub ledger: Option<MemoryLedger>,
    /// The model, if one is named.
    pub model: Option<Model>,
    /// The accelerator, if one is named.
    pub accelerator: Option<Accelerator>,
    /// What serves, if both are named.
    pub deployment: Option<Deployment>,
}

/// Fills `system` and derives the engine's configuration.
///
/// # Errors
/// [`InputError`] for an unknown profile or version, a knob outside its range or unknown to the version, a
/// model that does not fit.
pub fn resolve(
    scenario: &mut Scenario,
    provenance: &mut Provenance,
    origin: &str,
    base: &Path,
) -> Result<ResolvedEngine, InputError> {
    let system = &mut scenario.system;
    let (model, accelerator) = profiles(system, &Blame { origin, provenance }, base)?;
    let (m, a) = (model.as_ref(), accelerator.as_ref());
    let kind = neuron::resolve_kind(&mut system.engine, a, provenance, origin)?;
    let ranks = deployment::parallel(&mut system.parallel, m, kind, provenance, origin)?;
    let formats = deployment::formats(system, m, provenance, origin)?;
    if kind == EngineKind::Neuron {
        return resolve_neuron(system, (m, a), (ranks, formats), provenance, origin);
    }
    check_vllm(&system.engine, &Blame { origin, provenance })?;
    let behaviour = version(&mut system.engine, provenance, origin)?;
    check_ranges(&system.engine, behaviour, &Blame { origin, provenance })?;
    let defaults = catalog::engine("vllm", Path::new(""))?;
    let case = Case {
        version: behaviour.version,
        accelerator: a,
    };
    let devices = ranks.tp.saturating_mul(ranks.pp);
    fill_defaults(
        &mut system.engine,
        (&defaults, &case),
        behaviour,
        provenance,
        m,
        devices,
    );
    let graphs = deployment::graphs(&mut system.engine, &defaults, &case, provenance, origin)?;
    let deployment = match (m, a) {
        (Some(m), Some(a)) => Some(deployment::assemble(m, a, formats, ranks, graphs, &system.engine)),
        _ => None,
    };
    let ledger = {
        let blame = Blame { origin, provenance };
        check_relations(&system.engine, &blame)?;
        check_platform(&system.engine, a, &blame)?;
        match system.engine.num_gpu_blocks {
            Some(_) => None,
            None => Some(deployment::derive_blocks(
                &system.engine,
                deployment.as_ref(),
                &blame,
            )?),
        }
    };
    if let Some(ledger) = &ledger {
        let derived = Source::Derived("memory ledger".to_owned());
        let slot = &mut system.engine.num_gpu_blocks;
        provenance.fill(
            "system.engine.num_gpu_blocks",
            slot,
            derived,
            ledger.num_gpu_blocks,
        );
    }
    let mut config = config(&system.engine, behaviour);
    config.pipeline_parallel_size = system.parallel.pp.unwrap_or(1).max(1);
    if let Some(deployment) = &deployment {
        config.num_gpu_blocks = deployment::scheduled_blocks(deployment, &system.engine, &config);
    }
    Ok(ResolvedEngine {
        config,
        ledger,
        model,
        accelerator,
        deployment,
    })
}

/// Fills `system.engine` of kind neuron.
fn resolve_neuron(
    system: &mut System,
    (model, accelerator): (Option<&Model>, Option<&Accelerator>),
    (ranks, formats): (Ranks, Formats),
    provenance: &mut Provenance,
    origin: &str,
) -> Result<ResolvedEngine, InputError> {
    let around = neuron::Around {
        accelerator,
        has_model: model.is_some(),
        states_step_time: system.step_time.is_some() && system.fit.is_none(),
    };
    let engine = &mut system.engine;
    let mut neuron = neuron::resolve(engine, around, provenance, origin)?;
    let deployment = match (model, accelerator) {
        (Some(m), Some(a)) => {
            let graphs = (CaptureSizes::none(), GraphMode::None);
            let assembled = deployment::assemble(m, a, formats, ranks, graphs, engine);
            Some(Deployment {
                logical_core: neuron.lnc,
                static_shapes: Some(neuron.shapes.clone()),
                ..assembled
            })
        }
        _ => None,
    };
    neuron.fit_in_memory(engine, deployment.as_ref(), provenance, origin)?;
    Ok(ResolvedEngine {
        config: neuron.config,
        ledger: None,
        model: model.cloned(),
        accelerator: accelerator.cloned(),
        deployment,
    })
}

/// Knobs of the Neuron plugins that vLLM itself does not have.
fn check_vllm(e: &Engine, blame: &Blame<'_>) -> Result<(), InputError> {
    macro_rules! absent {
        ($($key:ident),+) => { $(blame.absent(
            concat!("system.engine.", stringify!($key)),
            e.$key.as_ref(),
            "it belongs to kind neuron: leave it out",
        )?;)+ };
    }
    absent!(
        seq_len,
        lnc,
        pa_num_blocks,
        enable_bucketing,
        context_encoding_buckets,
        token_generation_buckets,
        token_generation_batches,
        num_seqs_buckets,
        decode_context_length_buckets,
        disable_neuron_custom_scheduler,
        on_device_sampling,
        async_mode
    );
    Ok(())
}

fn profiles(
    system: &System,
    blame: &Blame<'_>,
    base: &Path,
) -> Result<(Option<Model>, Option<Accelerator>), InputError> {
    let placed = |path: &str, e: InputError| {
        let place = match &e.place {
            Some(inner) => format!("{path}: {}, {inner}", e.origin),
            None => path.to_owned(),
        };
        let origin = blame.provenance.set_by(path).unwrap_or(blame.origin).to_owned();
        InputError {
            origin,
            place: Some(place),
            ..e
        }
    };
    let model = system.model.as_ref().map(|name| catalog::model(name, base));
    let accelerator = system
        .accelerator
        .as_ref()
        .map(|name| catalog::accelerator(name, base));
    Ok((
        model.transpose().map_err(|e| placed("system.model", e))?,
        accelerator
            .transpose()
            .map_err(|e| placed("system.accelerator", e))?,
    ))
}

fn version(
    engine: &mut Engine,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<&'static Behaviour, InputError> {
    const PATH: &str = "system.engine.version";
    let newest = VERSIONS[VERSIONS.len() - 1].version.to_owned();
    let version = provenance.fill(PATH, &mut engine.version, Source::Default, newest);
    Behaviour::of(&version).map_err(|_| {
        let known = || VERSIONS.iter().map(|b| b.version);
        let list = known().collect::<Vec<_>>().join(", ");
        Blame { origin, provenance }
            .error(
                PATH,
                format!("vLLM '{version}' has no behaviour set"),
                format!("known: {list}"),
            )
            .nearest_of(&version, known())
    })
}

/// Ranges of single knobs, and knobs that the version does not have.
fn check_ranges(e: &Engine, behaviour: &Behaviour, blame: &Blame<'_>) -> Result<(), InputError> {
    for (name, value) in [
        ("max_num_seqs", e.max_num_seqs),
        ("max_num_batched_tokens", e.max_num_batched_tokens),
        ("max_num_scheduled_tokens", e.max_num_scheduled_tokens),
        ("max_num_active_seqs", e.max_num_active_seqs),
        ("max_model_len", e.max_model_len),
        ("block_size", e.block_size),
        ("dp_sync_interval", e.dp_sync_interval),
        ("prefill_schedule_interval", e.prefill_schedule_interval),
    ] {
        blame.at_least_one(&format!("system.engine.{name}"), value)?;
        blame.count(&format!("system.engine.{name}"), value)?;
    }
    for (name, value) in [
        ("long_prefill_token_threshold", e.long_prefill_token_threshold),
        ("num_lookahead_tokens", e.num_lookahead_tokens),
    ] {
        blame.count(&format!("system.engine.{name}"), value)?;
    }
    blame.share("system.engine.watermark", e.watermark)?;
    blame.share("system.engine.gpu_memory_utilization", e.gpu_memory_utilization)?;
    blame.positive("system.engine.gpu_memory_utilization", e.gpu_memory_utilization)?;
    if e.num_gpu_blocks.is_some_and(|n| n < 2) {
        return Err(blame.error(
            "system.engine.num_gpu_blocks",
            format!(
                "no KV block is left: {} blocks, of which one is the null block",
                e.num_gpu_blocks.unwrap_or(0)
            ),
            "allowed: a whole number from 2",
        ));
    }
    if let Some(n) = e.num_gpu_blocks.filter(|&n| n > MAX_BLOCKS) {
        return Err(blame.error(
            "system.engine.num_gpu_blocks",
            format!("found {n}"),
            format!("allowed: up to {MAX_BLOCKS}"),
        ));
    }
    if e.num_speculative_tokens.is_some_and(|k| k > u32::from(u8::MAX)) {
        return Err(blame.error(
            "system.engine.num_speculative_tokens",
            "more than 255 drafts",
            "allowed: 0 to 255",
        ));
    }
    let lacks = format!("vLLM {} does not have it: leave it out", behaviour.version);
    if !behaviour.has_max_num_active_seqs {
        blame.absent(
            "system.engine.max_num_active_seqs",
            e.max_num_active_seqs.as_ref(),
            &lacks,
        )?;
    }
    if !behaviour.has_dp_sync_interval {
        let lacks = format!(
            "vLLM {} has no other interval than {DP_SYNC_INTERVAL} steps: leave it out",
            behaviour.version
        );
        blame.absent(
            "system.engine.dp_sync_interval",
            e.dp_sync_interval.as_ref(),
            &lacks,
        )?;
    }
    if !behaviour.has_prefill_schedule_interval {
        blame.absent(
            "system.engine.prefill_schedule_interval",
            e.prefill_schedule_interval.as_ref(),
            &lacks,
        )?;
    }
    if !behaviour.has_watermark {
        blame.absent("system.engine.watermark", e.watermark.as_ref(), &lacks)?;
    }
    if !behaviour.has_full_prompt_gate {
        blame.absent(
            "system.engine.scheduler_reserve_full_isl",
            e.scheduler_reserve_full_isl.as_ref(),
            &lacks,
        )?;
    }
    Ok(())
}

fn fill_defaults(
    e: &mut Engine,
    (defaults, case): (&EngineDefaults, &Case<'_>),
    behaviour: &Behaviour,
    provenance: &mut Provenance,
    model: Option<&Model>,
    devices: u32,
) {
    let vllm = || {
        let device = case
            .accelerator
            .map_or(String::new(), |a| format!(" on {}", a.name));
        Source::Derived(format!("vLLM {}{device}", behaviour.version))
    };
    let p = |name: &str| (format!("system.engine.{name}"), vllm());
    macro_rules! fill {
        ($field:ident, $value:expr) => {{
            let (path, source) = p(stringify!($field));
            provenance.fill(&path, &mut e.$field, source, $value)
        }};
    }
    if let Some(model) = model {
        let source = Source::Derived(format!("profile {}", model.name));
        let value = model.max_positions.value;
        provenance.fill("system.engine.max_model_len", &mut e.max_model_len, source, value);
    }
    // The profile has a row for every case; the last resort is its row without a device (rule S81).
    let limits = defaults.batch_limits(case, Usage::Server, devices);
    let (tokens, seqs) = limits.map_or((2048, 128), |l| (l.max_num_batched_tokens, l.max_num_seqs));
    let chunked = fill!(enable_chunked_prefill, true);
    // Without chunking the budget must hold a longest prompt (rule S81).
    let longest = if chunked { 0 } else { e.max_model_len.unwrap_or(0) };
    // No step holds more than all seats at their full length (rule S81).
    let all = e.max_model_len.unwrap_or(u32::MAX);
    let most = e.max_num_seqs.unwrap_or(seqs).saturating_mul(all);
    let budget = fill!(max_num_batched_tokens, tokens.max(longest).min(most));
    fill!(max_num_seqs, seqs.min(budget));
    fill!(
        block_size,
        pick(&defaults.block_size, case).map_or(16, |row| row.value)
    );
    fill!(enable_prefix_caching, true);
    fill!(long_prefill_token_threshold, 0);
    fill!(scheduling_policy, Policy::Fcfs);
    let asynchronous = pick(&defaults.async_scheduling, case).is_some_and(|row| row.value);
    fill!(async_scheduling, asynchronous);
    fill!(num_speculative_tokens, 0);
    fill!(num_lookahead_tokens, 0);
    if behaviour.has_full_prompt_gate {
        fill!(scheduler_reserve_full_isl, true);
    }
    if behaviour.has_watermark {
        fill!(watermark, Finite(0.0));
    }
    if e.num_gpu_blocks.is_none() && e.kv_cache_memory_bytes.is_none() {
        fill!(gpu_memory_utilization, Finite(behaviour.gpu_memory_utilization));
    }
}

/// Knobs that must be there, and knobs that bound each other.
fn check_relations(e: &Engine, blame: &Blame<'_>) -> Result<(), InputError> {
    if e.max_model_len.is_none() {
        return Err(blame.error(
            "system.engine.max_model_len",
            "it is not given and no model is named",
            "give it, or name system.model",
        ));
    }
    let (seqs, budget) = (e.max_num_seqs.unwrap_or(1), e.max_num_batched_tokens.unwrap_or(1));
    if seqs > budget {
        return Err(blame.error(
            "system.engine.max_num_seqs",
            format!("{seqs} is above max_num_batched_tokens {budget}, which vLLM refuses"),
            "every running request needs at least one token of the budget",
        ));
    }
    let longest = e.max_model_len.unwrap_or(0);
    if e.enable_chunked_prefill == Some(false) && budget < longest {
        return Err(blame.error(
            "system.engine.max_num_batched_tokens",
            format!(
                "{budget} is below max_model_len {longest} while chunked prefill is off, which vLLM refuses"
            ),
            "a prompt must fit in one step: raise it, lower max_model_len, or turn enable_chunked_prefill on",
        ));
    }
    if e.max_num_active_seqs.is_some_and(|n| n > seqs) {
        return Err(blame.error(
            "system.engine.max_num_active_seqs",
            format!("found more than max_num_seqs {seqs}"),
            format!("allowed: 1 to {seqs}"),
        ));
    }
    if e.max_num_scheduled_tokens.is_some_and(|n| n > budget) {
        return Err(blame.error(
            "system.engine.max_num_scheduled_tokens",
            format!("found more than max_num_batched_tokens {budget}"),
            format!("allowed: 1 to {budget}"),
        ));
    }
    Ok(())
}

/// vLLM's CPU backend computes attention in pieces of 32 positions.
fn check_platform(e: &Engine, device: Option<&Accelerator>, blame: &Blame<'_>) -> Result<(), InputError> {
    let block = e.block_size.unwrap_or(32);
    if device.is_some_and(|a| a.platform == Platform::Cpu) && !block.is_multiple_of(32) {
        return Err(blame.error(
            "system.engine.block_size",
            format!("found {block}, which vLLM's CPU backend refuses"),
            "allowed: a multiple of 32",
        ));
    }
    Ok(())
}

fn config(e: &Engine, behaviour: &'static Behaviour) -> VllmConfig {
    let base = VllmConfig::new(behaviour);
    VllmConfig {
        behaviour,
        max_num_seqs: e.max_num_seqs.unwrap_or(base.max_num_seqs),
        max_num_batched_tokens: e.max_num_batched_tokens.unwrap_or(base.max_num_batched_tokens),
        max_num_scheduled_tokens: e.max_num_scheduled_tokens,
        max_num_active_seqs: e.max_num_active_seqs,
        max_model_len: e.max_model_len.unwrap_or(base.max_model_len),
        block_size: e.block_size.unwrap_or(base.block_size),
        num_gpu_blocks: e.num_gpu_blocks.unwrap_or(base.num_gpu_blocks),
        enable_prefix_caching: e.enable_prefix_caching.unwrap_or(base.enable_prefix_caching),
        enable_chunked_prefill: e.enable_chunked_prefill.unwrap_or(base.enable_chunked_prefill),
        long_prefill_token_threshold: e.long_prefill_token_threshold.unwrap_or(0),
        policy: e.scheduling_policy.unwrap_or_default(),
        async_scheduling: e.async_scheduling.unwrap_or(base.async_scheduling),
        scheduler_reserve_full_isl: e
            .scheduler_reserve_full_isl
            .unwrap_or(behaviour.has_full_prompt_gate),
        watermark: e.watermark.map_or(0.0, |f| f.0),
        num_speculative_tokens: e.num_speculative_tokens.unwrap_or(0),
        num_lookahead_tokens: e.num_lookahead_tokens.unwrap_or(0),
        dp_sync_interval: e.dp_sync_interval.unwrap_or(base.dp_sync_interval),
        prefill_schedule_interval: e
            .prefill_schedule_interval
            .unwrap_or(base.prefill_schedule_interval),
        ..base
    }
}
