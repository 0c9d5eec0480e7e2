//! `system.engine` of kind neuron: the knobs of the AWS Neuron plugins (rules N1, N15 to N26, N41 to N44).
//!
//! Everything that a plugin forces is refused when it is given otherwise, and everything that it does not read is
//! refused at all: a knob without effect would make a plan look like what it is not.

mod memory;
mod shapes;
mod unread;

use super::check::Blame;
use super::provenance::{Provenance, Source};
use super::schema::{Engine, EngineKind};
use crate::engine::vllm::{Behaviour, Policy, SchedulerClass, VllmConfig};
use crate::input::InputError;
use crate::kv::MAX_BLOCKS;
use crate::profile::{Accelerator, Platform};
use crate::steptime::StaticShapes;

/// Token budget that plugin 0.2.0 forces, so that no prompt is ever cut (rule N15).
const FORCED_BUDGET: u32 = 131_072;
/// Block size of the native plugin (rule N43), taken for block layouts of 0.2.0 too.
const BLOCK_SIZE: u32 = 32;
/// Token budget of the native plugin unless given: vLLM's where a platform names none (rule S80).
const NATIVE_BUDGET: u32 = 2048;

/// One release of a plugin.
#[derive(Debug)]
struct Plugin {
    version: &'static str,
    scheduler_cls: SchedulerClass,
    /// Nearest vLLM release with a behaviour set, at or below the one that the plugin is for.
    base: &'static str,
}

const PLUGINS: [Plugin; 2] = [
    Plugin {
        version: "0.2.0",
        scheduler_cls: SchedulerClass::NeuronContinuousBatching,
        base: "0.11.0",
    },
    Plugin {
        version: "0.24.0.1.1.0",
        scheduler_cls: SchedulerClass::NeuronSegmented,
        base: "0.22.1",
    },
];

/// What of the rest of the system decides which knobs are read.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// The device, if one is named.
    pub accelerator: Option<&'a Accelerator>,
    /// A model is named.
    pub has_model: bool,
    /// Step times are stated in the scenario: what programs are compiled has no effect.
    pub states_step_time: bool,
}

/// An engine of kind neuron, resolved, but for blocks that are derived from memory.
#[derive(Debug)]
pub struct NeuronEngine {
    /// The scheduler's configuration.
    pub config: VllmConfig,
    /// What is compiled.
    pub shapes: StaticShapes,
    /// Physical cores that serve as one (rule N1); `None` where the device is not named.
    pub lnc: Option<u32>,
    /// The block count is still to be derived from memory (rule N43).
    pub blocks_from_memory: bool,
}

/// Fills the kind of engine: the one that runs on the accelerator.
///
/// # Errors
/// [`InputError`] when the accelerator does not run it.
pub fn resolve_kind(
    e: &mut Engine,
    accelerator: Option<&Accelerator>,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<EngineKind, InputError> {
    const PATH: &str = "system.engine.kind";
    let on_neuron = accelerator.map(|a| a.platform == Platform::Neuron);
    let (usual, source) = match (on_neuron, accelerator) {
        (Some(true), Some(a)) => (EngineKind::Neuron, Source::Derived(format!("profile {}", a.name))),
        _ => (EngineKind::Vllm, Source::Default),
    };
    let kind = provenance.fill(PATH, &mut e.kind, source, usual);
    let name = accelerator.map_or("", |a| a.name.as_str());
    let blame = Blame { origin, provenance };
    match (kind, on_neuron) {
        (EngineKind::Vllm, Some(true)) => Err(blame.error(
            PATH,
            format!("{name} runs compiled static shapes alone, which vLLM's own scheduler knows nothing of"),
            "kind: neuron",
        )),
        (EngineKind::Neuron, Some(false)) => Err(blame.error(
            PATH,
            format!("{name} is no AWS Neuron device"),
            "name one (kneeboard profile list) under system.accelerator, or use kind: vllm",
        )),
        _ => Ok(kind),
    }
}

/// Fills and checks the knobs.
///
/// # Errors
/// [`InputError`] for a knob outside its range, forced otherwise by the plugin, or unknown to it.
pub fn resolve(
    e: &mut Engine,
    around: Around<'_>,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<NeuronEngine, InputError> {
    let plugin = plugin(e, provenance, origin)?;
    let native = plugin.scheduler_cls == SchedulerClass::NeuronSegmented;
    {
        let blame = Blame { origin, provenance };
        unread::check(e, native, &blame)?;
        unread::check_beside(e, native, around, &blame)?;
        check_ranges(e, &blame)?;
    }
    let longest = sequence_length(e, provenance, origin)?;
    let seqs = seats(e, &Blame { origin, provenance })?;
    let own = !native && e.disable_neuron_custom_scheduler == Some(true);
    if own {
        fill_own_scheduler(e, longest, provenance);
        check_own_scheduler(e, longest, seqs, &Blame { origin, provenance })?;
    }
    fill_scheduling(e, native, longest, provenance);
    if !own {
        check_forced(e, native, longest, &Blame { origin, provenance })?;
    }
    if native {
        check_budget(e, seqs, &Blame { origin, provenance })?;
    }
    let lnc = logical_core(e, around.accelerator, provenance, origin)?;
    let shapes = shapes::compiled(e, native, (longest, seqs), provenance, origin)?;
    let blocks = block_count(e, native, (longest, seqs), provenance, origin)?;
    // What nobody reads is not shown as if it had been chosen.
    unread::blank(e, native, around);
    let behaviour = Behaviour::of(plugin.base).map_err(|error| InputError::new(origin, error.to_string()))?;
    let config = VllmConfig {
        scheduler_cls: if own {
            SchedulerClass::Vllm
        } else {
            plugin.scheduler_cls
        },
        max_num_seqs: seqs,
        max_num_batched_tokens: e.max_num_batched_tokens.unwrap_or(FORCED_BUDGET),
        max_model_len: longest,
        block_size: e.block_size.unwrap_or(longest),
        num_gpu_blocks: blocks.unwrap_or(2),
        enable_prefix_caching: e.enable_prefix_caching.unwrap_or(false),
        enable_chunked_prefill: e.enable_chunked_prefill.unwrap_or(native),
        policy: Policy::Fcfs,
        // Overlap of host and device is a matter of step time here: the loop stays synchronous (rules N18, N44).
        async_scheduling: false,
        ..VllmConfig::new(behaviour)
    };
    Ok(NeuronEngine {
        config,
        shapes,
        lnc,
        blocks_from_memory: blocks.is_none(),
    })
}

fn plugin(e: &mut Engine, provenance: &mut Provenance, origin: &str) -> Result<&'static Plugin, InputError> {
    const PATH: &str = "system.engine.version";
    let usual = PLUGINS[0].version.to_owned();
    let version = provenance.fill(PATH, &mut e.version, Source::Default, usual);
    let found = PLUGINS.iter().find(|p| p.version == version);
    found.ok_or_else(|| {
        let known = PLUGINS.each_ref().map(|p| p.version);
        Blame { origin, provenance }
            .error(
                PATH,
                format!("no rules are known of Neuron plugin '{version}'"),
                format!("known: {}", known.join(", ")),
            )
            .nearest_of(&version, known)
    })
}

fn check_ranges(e: &Engine, blame: &Blame<'_>) -> Result<(), InputError> {
    for (name, value) in [
        ("max_num_seqs", e.max_num_seqs),
        ("max_num_batched_tokens", e.max_num_batched_tokens),
        ("max_model_len", e.max_model_len),
        ("seq_len", e.seq_len),
        ("block_size", e.block_size),
        ("pa_num_blocks", e.pa_num_blocks),
        ("num_gpu_blocks", e.num_gpu_blocks),
    ] {
        let path = format!("system.engine.{name}");
        blame.at_least_one(&path, value)?;
        blame.count(&path, value)?;
    }
    if let Some(n) = e.pa_num_blocks.or(e.num_gpu_blocks).filter(|&n| n >= MAX_BLOCKS) {
        return Err(blame.error(
            "system.engine.pa_num_blocks",
            format!("found {n}"),
            format!("allowed: below {MAX_BLOCKS}"),
        ));
    }
    if e.num_gpu_blocks == Some(1) {
        return Err(blame.error(
            "system.engine.num_gpu_blocks",
            "found 1, of which one is the null block",
            "allowed: a whole number from 2",
        ));
    }
    blame.share("system.engine.gpu_memory_utilization", e.gpu_memory_utilization)?;
    blame.positive("system.engine.gpu_memory_utilization", e.gpu_memory_utilization)?;
    blame
        .absent(
            "system.engine.num_gpu_blocks",
            e.num_gpu_blocks.as_ref().filter(|&&n| {
                e.pa_num_blocks
                    .is_some_and(|usable| usable.checked_add(1) != Some(n))
            }),
            "it contradicts pa_num_blocks, which counts all but the null block: keep one of the two",
        )
        .and_then(|()| {
            blame.absent(
                "system.engine.scheduling_policy",
                e.scheduling_policy.as_ref().filter(|p| **p != Policy::Fcfs),
                "the plugin's queue is first come, first served (rule N14b)",
            )
        })
}

/// `max_model_len`, which NxDI calls `seq_len`.
fn sequence_length(e: &mut Engine, provenance: &mut Provenance, origin: &str) -> Result<u32, InputError> {
    const PATH: &str = "system.engine.seq_len";
    let longest = match (e.seq_len, e.max_model_len) {
        (Some(a), Some(b)) if a != b => {
            return Err(Blame { origin, provenance }.error(
                PATH,
                format!("found {a} beside max_model_len {b}"),
                "the two are one number: give one of them",
            ));
        }
        (Some(n), _) | (None, Some(n)) => n,
        (None, None) => {
            return Err(Blame { origin, provenance }.error(
                PATH,
                "it is not given",
                "programs are compiled for a length: give it (max_model_len is the same)",
            ));
        }
    };
    provenance.fill(
        PATH,
        &mut e.seq_len,
        Source::Derived("max_model_len".into()),
        longest,
    );
    provenance.fill(
        "system.engine.max_model_len",
        &mut e.max_model_len,
        Source::Derived("seq_len".into()),
        longest,
    );
    Ok(longest)
}

fn seats(e: &Engine, blame: &Blame<'_>) -> Result<u32, InputError> {
    e.max_num_seqs.ok_or_else(|| {
        blame.error(
            "system.engine.max_num_seqs",
            "it is not given",
            "give it: it is the compiled batch, and vLLM's default of 256 would be compiled as one of 256 (rule N17)",
        )
    })
}

fn fill_scheduling(e: &mut Engine, native: bool, longest: u32, provenance: &mut Provenance) {
    let version = e.version.clone().unwrap_or_default();
    macro_rules! fill {
        ($field:ident, $value:expr) => {{
            let source = Source::Derived(format!("Neuron plugin {version}"));
            let path = concat!("system.engine.", stringify!($field));
            provenance.fill(path, &mut e.$field, source, $value)
        }};
    }
    fill!(enable_chunked_prefill, native);
    fill!(
        max_num_batched_tokens,
        if native { NATIVE_BUDGET } else { FORCED_BUDGET }
    );
    fill!(scheduling_policy, Policy::Fcfs);
    let caches = fill!(enable_prefix_caching, false);
    fill!(block_size, if native || caches { BLOCK_SIZE } else { longest });
    fill!(async_scheduling, native);
    fill!(on_device_sampling, true);
    if !native {
        fill!(async_mode, false);
        fill!(enable_bucketing, true);
    }
}

/// vLLM's own scheduler under plugin 0.2.0 (rule N15): the user's budget and choice of chunked prefill stand.
fn fill_own_scheduler(e: &mut Engine, longest: u32, provenance: &mut Provenance) {
    let source = || Source::Derived("vLLM 0.11 under the plugin".into());
    let path = "system.engine.enable_chunked_prefill";
    let chunked = provenance.fill(path, &mut e.enable_chunked_prefill, source(), false);
    let budget = if chunked { NATIVE_BUDGET } else { longest };
    let path = "system.engine.max_num_batched_tokens";
    provenance.fill(path, &mut e.max_num_batched_tokens, source(), budget);
}

fn check_own_scheduler(e: &Engine, longest: u32, seqs: u32, blame: &Blame<'_>) -> Result<(), InputError> {
    if e.block_size.is_none() {
        return Err(blame.error(
            "system.engine.block_size",
            "it is not given",
            "with disable_neuron_custom_scheduler the plugin takes no default: give it (seq_len: one block a sequence)",
        ));
    }
    let least = if e.enable_chunked_prefill == Some(true) {
        seqs
    } else {
        seqs.max(longest)
    };
    check_budget(e, least, blame)?;
    blame.absent(
        "system.engine.async_mode",
        e.async_mode.as_ref().filter(|&&on| on),
        "working ahead is modelled under the plugin's scheduler alone: leave it out",
    )?;
    blame.absent(
        "system.engine.async_scheduling",
        e.async_scheduling.as_ref().filter(|&&on| on),
        "the plugin does not support it (rule N18): leave it out",
    )
}

/// The token budget holds what a step must be able to, where the plugin leaves it to the user (rule S81).
fn check_budget(e: &Engine, least: u32, blame: &Blame<'_>) -> Result<(), InputError> {
    match e.max_num_batched_tokens {
        Some(budget) if budget < least => Err(blame.error(
            "system.engine.max_num_batched_tokens",
            format!("{budget} is below {least}, which vLLM refuses"),
            "it must hold a token of every seat and, without chunked prefill, a longest prompt",
        )),
        _ => Ok(()),
    }
}

/// What the plugin sets, whatever is asked for (rules N15, N18).
fn check_forced(e: &Engine, native: bool, longest: u32, blame: &Blame<'_>) -> Result<(), InputError> {
    let forced = |key: &str, found: &dyn std::fmt::Display, value: &dyn std::fmt::Display| {
        Err(blame.error(
            &format!("system.engine.{key}"),
            format!("found {found}, which this plugin does not honour"),
            format!("it sets {value}: leave it out"),
        ))
    };
    let chunked = e.enable_chunked_prefill.unwrap_or(native);
    if chunked != native {
        return forced("enable_chunked_prefill", &chunked, &native);
    }
    if native {
        return Ok(());
    }
    let budget = e.max_num_batched_tokens.unwrap_or(FORCED_BUDGET);
    if budget != FORCED_BUDGET {
        return forced("max_num_batched_tokens", &budget, &FORCED_BUDGET);
    }
    if longest > FORCED_BUDGET {
        return Err(blame.error(
            "system.engine.seq_len",
            format!("{longest} is above the plugin's budget of {FORCED_BUDGET} tokens a step, in which a prompt must fit"),
            "lower it",
        ));
    }
    if e.async_scheduling == Some(true) {
        return forced(
            "async_scheduling",
            &true,
            &"it off (rule N18; async_mode is the overlap inside NxDI)",
        );
    }
    let block = e.block_size.unwrap_or(longest);
    if e.enable_prefix_caching != Some(true) && block != longest {
        return forced(
            "block_size",
            &block,
            &format!("one block of {longest} tokens a sequence"),
        );
    }
    Ok(())
}

/// Physical cores that serve as one (rule N1).
fn logical_core(
    e: &mut Engine,
    accelerator: Option<&Accelerator>,
    provenance: &mut Provenance,
    origin: &str,
) -> Result<Option<u32>, InputError> {
    const PATH: &str = "system.engine.lnc";
    let Some(device) = accelerator else {
        Blame { origin, provenance }.absent(PATH, e.lnc.as_ref(), "name system.accelerator too")?;
        return Ok(None);
    };
    // Chips of two cores know no logical ones; those of eight join two.
    let joins = device.cores.as_ref().is_none_or(|cores| cores.value > 2);
    let usual = if joins { 2 } else { 1 };
    let source = Source::Derived(format!("profile {}", device.name));
    let lnc = provenance.fill(PATH, &mut e.lnc, source, usual);
    let allowed = if joins {
        "1 or 2"
    } else {
        "1: its cores are never joined"
    };
    if lnc == 0 || lnc > usual {
        let blame = Blame { origin, provenance };
        return Err(blame.error(
            PATH,
            format!("found {lnc} on {}", device.name),
            format!("allowed: {allowed}"),
        ));
    }
    Ok(Some(lnc))
}

/// KV blocks, the null block included (rule N16); `None` when memory decides (rule N43).
fn block_count(
    e: &mut Engine,
    native: bool,
    (longest, seqs): (u32, u32),
    provenance: &mut Provenance,
    origin: &str,
) -> Result<Option<u32>, InputError> {
    const PATH: &str = "system.engine.pa_num_blocks";
    let block = e.block_size.unwrap_or(longest);
    let all_seats = longest.div_ceil(block).saturating_mul(seqs);
    if native && e.pa_num_blocks.is_none() {
        return Ok(e.num_gpu_blocks);
    }
    if e.num_gpu_blocks.is_none() {
        let source = Source::Derived("a whole sequence for every seat".into());
        let blocks = provenance.fill(PATH, &mut e.pa_num_blocks, source, all_seats);
        if blocks >= MAX_BLOCKS {
            return Err(Blame { origin, provenance }.error(
                PATH,
                format!("{blocks} blocks are more than are simulated"),
                "use a larger block_size, a smaller seq_len, or fewer seats",
            ));
        }
        let source = Source::Derived("pa_num_blocks and the null block".into());
        provenance.fill(
            "system.engine.num_gpu_blocks",
            &mut e.num_gpu_blocks,
            source,
            blocks + 1,
        );
    }
    let total = e.num_gpu_blocks.unwrap_or(0);
    if !native && e.enable_prefix_caching == Some(true) && total - 1 < all_seats {
        return Err(Blame { origin, provenance }.error(
            PATH,
            format!(
                "{} blocks of {block} tokens do not hold {seqs} sequences of {longest}",
                total - 1
            ),
            format!("the plugin refuses to start (rule N16): give at least {all_seats}"),
        ));
    }
    Ok(Some(total))
}
