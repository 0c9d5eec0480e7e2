//! What serves: number formats, ranks, captured graphs, and the block count that follows from memory.

use super::check::Blame;
use super::provenance::{Provenance, Source};
use super::schema::{DtypeChoice, Engine, EngineKind, KvDtypeChoice, Parallel, System};
use crate::engine::vllm::VllmConfig;
use crate::engine::vllm::version::VERSIONS;
use crate::input::InputError;
use crate::kv::MAX_BLOCKS;
use crate::kv::sizing::{self, KvLayout, MemoryLedger, SizingError, SizingKnobs};
use crate::profile::engine::{Case, EngineDefaults, pick};
use crate::profile::{Accelerator, Model};
use crate::steptime::{CaptureSizes, Deployment, GraphMode, KvDtype, WeightDtype};

/// How one replica is split.
#[derive(Debug, Clone, Copy)]
pub struct Ranks {
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Expert-parallel ranks.
    pub ep: u32,
}

/// Formats that the scenario states; `None` = the model profile's.
pub type Formats = (Option<WeightDtype>, Option<KvDtype>);

/// Fills `system.parallel` and checks that the model can be split so.
pub fn parallel(
    parallel: &mut Parallel,
    model: Option<&Model>,
    kind: EngineKind,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<Ranks, InputError> {
    for (path, slot) in [
        ("system.parallel.tp", &mut parallel.tp),
        ("system.parallel.pp", &mut parallel.pp),
        ("system.parallel.dp", &mut parallel.dp),
        ("system.parallel.ep", &mut parallel.ep),
    ] {
        let ranks = provenance.fill(path, slot, Source::Default, 1);
        let blame = Blame { origin, provenance };
        blame.at_least_one(path, Some(ranks))?;
        if ranks > 1 && path.ends_with("dp") {
            return Err(blame.error(
                path,
                format!("found {ranks}, which is not modelled yet"),
                "allowed: 1; replicas are given under cluster.pools, data-parallel ranks of a group as cluster.pools.*.dp",
            ));
        }
    }
    let one = |slot: Option<u32>| slot.unwrap_or(1);
    let ranks = Ranks {
        tp: one(parallel.tp),
        pp: one(parallel.pp),
        ep: one(parallel.ep),
    };
    let blame = Blame { origin, provenance };
    if kind == EngineKind::Neuron && ranks.pp > 1 {
        return Err(blame.error(
            "system.parallel.pp",
            format!("found {}, which is not modelled on Neuron", ranks.pp),
            "allowed: 1",
        ));
    }
    check_split(ranks, model, kind, &blame)?;
    Ok(ranks)
}

fn check_split(
    ranks: Ranks,
    model: Option<&Model>,
    kind: EngineKind,
    blame: &Blame<'_>,
) -> Result<(), InputError> {
    let Ranks { tp, pp, ep } = ranks;
    if ep > 1 && ep != tp {
        return Err(blame.error(
            "system.parallel.ep",
            format!("found {ep} beside tp {tp}"),
            "allowed: 1, or as many as tp: vLLM spreads experts over all tensor-parallel ranks",
        ));
    }
    let Some(model) = model else {
        // Without a model nothing tells in how many parts it could be cut.
        let bounded = blame.count("system.parallel.tp", Some(tp));
        return bounded.and_then(|()| blame.count("system.parallel.pp", Some(pp)));
    };
    let (name, heads, kv) = (&model.name, model.heads.value, model.kv_heads.value);
    // NxDI fills query heads up to a multiple of the ranks and copies KV heads.
    let pads = kind == EngineKind::Neuron;
    if !pads && !heads.is_multiple_of(tp) {
        return Err(blame.error(
            "system.parallel.tp",
            format!("{heads} heads of {name} cannot be split over {tp} ranks"),
            "the number of heads must be a multiple of tp",
        ));
    }
    if !pads && model.mla.is_none() && !kv.is_multiple_of(tp) && !tp.is_multiple_of(kv) {
        return Err(blame.error(
            "system.parallel.tp",
            format!("{kv} KV heads of {name} can be neither split over nor copied to {tp} ranks"),
            "one of the two numbers must be a multiple of the other",
        ));
    }
    if pp > model.layers.value {
        return Err(blame.error(
            "system.parallel.pp",
            format!("found {pp}, but {name} has {} layers", model.layers.value),
            "allowed: at most one stage a layer",
        ));
    }
    if ep > 1 && model.moe.is_none() {
        return Err(blame.error(
            "system.parallel.ep",
            format!("found {ep}, but {name} has no experts"),
            "allowed: 1",
        ));
    }
    Ok(())
}

/// Fills `system.dtype` and `system.kv_dtype`.
pub fn formats(
    system: &mut System,
    model: Option<&Model>,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<Formats, InputError> {
    if model.is_none() {
        let blame = Blame { origin, provenance };
        let mend = "name system.model";
        blame.absent("system.dtype", system.dtype.as_ref(), mend)?;
        blame.absent("system.kv_dtype", system.kv_dtype.as_ref(), mend)?;
        return Ok((None, None));
    }
    let (path, auto) = ("system.dtype", DtypeChoice::Auto);
    let dtype = provenance.fill(path, &mut system.dtype, Source::Default, auto);
    let (path, auto) = ("system.kv_dtype", KvDtypeChoice::Auto);
    let kv_dtype = provenance.fill(path, &mut system.kv_dtype, Source::Default, auto);
    Ok((dtype.dtype(), kv_dtype.dtype()))
}

/// Fills the keys of captured graphs (rules S84, S86) on devices that have them.
pub fn graphs(
    e: &mut Engine,
    defaults: &EngineDefaults,
    case: &Case<'_>,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<(CaptureSizes, GraphMode), InputError> {
    let graphs = &defaults.cuda_graphs;
    // No ceiling for the device means that vLLM captures nothing on it.
    let ceiling = pick(&graphs.ceiling, case).map(|row| row.value);
    check_graph_keys(e, ceiling.is_some(), &Blame { origin, provenance })?;
    let (Some(ceiling), Some(device)) = (ceiling, case.accelerator) else {
        return Ok((CaptureSizes::none(), GraphMode::None));
    };
    let version = case.version;
    let source = || Source::Derived(format!("vLLM {version} on {}", device.name));
    if provenance.fill(
        "system.engine.enforce_eager",
        &mut e.enforce_eager,
        source(),
        false,
    ) {
        return Ok((CaptureSizes::none(), GraphMode::None));
    }
    let mode = provenance.fill(
        "system.engine.cudagraph_mode",
        &mut e.cudagraph_mode,
        source(),
        default_mode(defaults, case),
    );
    if mode == GraphMode::None {
        return Ok((CaptureSizes::none(), mode));
    }
    let budget = e.max_num_batched_tokens.unwrap_or(1);
    let tokens_per_decode = 1 + e.num_speculative_tokens.unwrap_or(0);
    let sizes = match &e.cudagraph_capture_sizes {
        Some(list) => CaptureSizes::from_list(list, budget, tokens_per_decode),
        None => CaptureSizes::default_for(
            e.max_num_seqs.unwrap_or(1),
            budget,
            tokens_per_decode,
            pick(&graphs.uniform_decode_sizes, case).is_some_and(|row| row.value),
            ceiling,
        ),
    };
    provenance.fill(
        "system.engine.cudagraph_capture_sizes",
        &mut e.cudagraph_capture_sizes,
        source(),
        sizes.sizes().to_vec(),
    );
    Ok((sizes, mode))
}

/// The mode that the engine's profile names.
fn default_mode(defaults: &EngineDefaults, case: &Case<'_>) -> GraphMode {
    let word = pick(&defaults.cuda_graphs.mode, case).map(|row| row.value.clone());
    word.and_then(|w| serde_json::from_value(serde_json::Value::String(w)).ok())
        .unwrap_or_default()
}

fn check_graph_keys(e: &Engine, captures: bool, blame: &Blame<'_>) -> Result<(), InputError> {
    const SIZES: &str = "system.engine.cudagraph_capture_sizes";
    const MODE: &str = "system.engine.cudagraph_mode";
    if !captures {
        let mend = "captured graphs are those of GPUs: name one under system.accelerator";
        blame.absent(
            "system.engine.enforce_eager",
            e.enforce_eager.as_ref().filter(|&&on| !on),
            mend,
        )?;
        blame.absent(MODE, e.cudagraph_mode.as_ref(), mend)?;
        blame.absent(SIZES, e.cudagraph_capture_sizes.as_ref(), mend)?;
        return Ok(());
    }
    if e.enforce_eager == Some(true) {
        let mend = "enforce_eager is on: turn it off, or leave this key out";
        blame.absent(MODE, e.cudagraph_mode.as_ref(), mend)?;
        blame.absent(SIZES, e.cudagraph_capture_sizes.as_ref(), mend)?;
    }
    if e.cudagraph_mode == Some(GraphMode::None) {
        let mend = "cudagraph_mode is NONE: leave this key out";
        blame.absent(SIZES, e.cudagraph_capture_sizes.as_ref(), mend)?;
    }
    match &e.cudagraph_capture_sizes {
        Some(list) if list.is_empty() || list.contains(&0) => Err(blame.error(
            SIZES,
            if list.is_empty() {
                "found an empty list"
            } else {
                "found 0"
            },
            "allowed: whole numbers from 1; to have no graphs, set enforce_eager",
        )),
        _ => Ok(()),
    }
}

/// Whether `version` is the release `first` or a later one. VERSIONS is in order of release.
fn since(version: &str, first: &str) -> bool {
    let place = |version: &str| VERSIONS.iter().position(|b| b.version == version);
    place(version) >= place(first)
}

/// The deployment out of its parts.
pub fn assemble(
    model: &Model,
    accelerator: &Accelerator,
    (dtype, kv_dtype): Formats,
    ranks: Ranks,
    (graphs, graph_mode): (CaptureSizes, GraphMode),
    e: &Engine,
) -> Deployment {
    let of_profile = Deployment::new(model.clone(), accelerator.clone());
    Deployment {
        dtype: dtype.unwrap_or(of_profile.dtype),
        // A stated format is that of the whole checkpoint, experts included.
        expert_dtype: dtype.unwrap_or(of_profile.expert_dtype),
        kv_dtype: kv_dtype.unwrap_or(of_profile.kv_dtype),
        tp: ranks.tp,
        pp: ranks.pp,
        ep: ranks.ep,
        graphs,
        graph_mode,
        asynchronous: e.async_scheduling.unwrap_or(false),
        ..of_profile
    }
}

fn knobs(e: &Engine) -> SizingKnobs {
    SizingKnobs {
        gpu_memory_utilization: e.gpu_memory_utilization.map_or(0.9, |f| f.0),
        block_size: e.block_size.unwrap_or(16),
        max_num_seqs: e.max_num_seqs.unwrap_or(1),
        max_num_batched_tokens: e.max_num_batched_tokens.unwrap_or(1),
        max_model_len: e.max_model_len.unwrap_or(1),
        subtracts_graphs: since(e.version.as_deref().unwrap_or_default(), "0.22.1"),
        runtime_reserve_bytes: e.runtime_reserve.map(|s| s.bytes),
        kv_cache_memory_bytes: e.kv_cache_memory_bytes.map(|s| s.bytes),
    }
}

/// The memory ledger, and with it the block count.
///
/// # Errors
/// [`InputError`] when it cannot be derived, nothing fits, or one request of the greatest length does not.
pub fn derive_blocks(
    e: &Engine,
    deployment: Option<&Deployment>,
    blame: &Blame<'_>,
) -> Result<MemoryLedger, InputError> {
    const PATH: &str = "system.engine.num_gpu_blocks";
    const MEND: &str = "give num_gpu_blocks, as the server's log prints it, or name both system.model and \
                        system.accelerator";
    const UNKNOWN: &str = "give num_gpu_blocks, as the server's log prints it, or runtime_reserve where that alone is \
                           unknown";
    let Some(deployment) = deployment else {
        return Err(blame.error(PATH, "it is not given and cannot be derived", MEND));
    };
    let ledger = sizing::ledger(deployment, knobs(e)).map_err(|error| {
        let (path, mend) = match error {
            SizingError::Unknown(..) => (PATH, UNKNOWN),
            SizingError::CacheTooLarge(_) => ("system.engine.kv_cache_memory_bytes", "lower it"),
            _ => (
                PATH,
                "use more memory, a larger system.parallel.tp, a smaller system.dtype, or a smaller model",
            ),
        };
        blame.error(path, error.to_string(), mend)
    })?;
    if ledger.num_gpu_blocks > MAX_BLOCKS {
        return Err(blame.error(
            PATH,
            format!(
                "{} blocks are derived, more than are simulated: {ledger}",
                ledger.num_gpu_blocks
            ),
            format!("allowed: up to {MAX_BLOCKS}; give num_gpu_blocks or a larger block_size"),
        ));
    }
    check_start(&ledger, blame)?;
    Ok(ledger)
}

/// vLLM refuses to start when one request of the greatest length does not fit (rule K7).
fn check_start(ledger: &MemoryLedger, blame: &Blame<'_>) -> Result<(), InputError> {
    let (needed, usable) = (ledger.blocks_per_request, ledger.num_gpu_blocks - 1);
    if needed <= u64::from(usable) {
        return Ok(());
    }
    let length = ledger.max_model_len;
    Err(blame.error(
        "system.engine.max_model_len",
        format!("one request of {length} tokens needs {needed} KV blocks, but {usable} fit: {ledger}"),
        "lower max_model_len: vLLM would not start",
    ))
}

/// Blocks that the scheduler is given. Its pool knows full attention alone, so a model with windowed layers gets
/// the count that holds as many requests of the greatest length (K8).
pub fn scheduled_blocks(deployment: &Deployment, e: &Engine, config: &VllmConfig) -> u32 {
    let layers = 0..deployment.model.layers.value;
    let layout = KvLayout::of_stage(deployment, config.block_size, &layers);
    let in_flight = knobs(e).in_flight(deployment);
    layout
        .full_attention_equivalent(config.num_gpu_blocks, config.max_model_len, in_flight)
        .clamp(2, MAX_BLOCKS)
}
