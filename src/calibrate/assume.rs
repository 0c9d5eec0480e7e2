//! A manifest as it was written, and what is assumed where it is silent.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::manifest::{
    CaptureManifest, CaptureMode, ClockSide, EffectiveKnobs, Machine, OfferedLoad, Served, SpeedProbe,
};
use super::rows::CaptureRequest;
use super::served::{dtype_of, kv_dtype_of};
use crate::engine::vllm::Policy;
use crate::engine::vllm::version::VERSIONS;
use crate::input::{InputError, read_text};
use crate::kv::MAX_BLOCKS;
use crate::profile::catalog;
use crate::scenario::quantity::Finite;
use crate::scenario::schema::{Engine, Parallel, System};
use crate::scenario::{ResolvedSystem, resolve_system};

/// Keys of `engine_effective` that are understood.
pub(super) const KNOBS: &[&str] = &[
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
    "num_gpu_blocks",
    "usable_blocks",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "policy",
    "async_scheduling",
    "scheduler_reserve_full_isl",
    "watermark",
    "enforce_eager",
    "gpu_memory_utilization",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "dtype",
    "kv_cache_dtype",
];

/// Keys at the top that are understood and long enough for a slip to be told from another word.
const KEYS: &[&str] = &[
    "duration_s",
    "engine_effective",
    "truncated",
    "preemptions",
    "accelerator",
    "instance",
    "kv_dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "expert_parallel_size",
    "time_unit",
    "warmup_s",
    "speed_probe_before",
    "speed_probe_after",
];

/// Unit of every time in `requests.csv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum TimeUnit {
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanos,
}

impl TimeUnit {
    /// Units in a second.
    pub fn per_second(self) -> f64 {
        match self {
            Self::Seconds => 1.0,
            Self::Millis => 1e3,
            Self::Micros => 1e6,
            Self::Nanos => 1e9,
        }
    }
}

/// `manifest.json` as it was written. Keys that are not needed here are ignored.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct RawManifest {
    name: Option<String>,
    mode: Option<CaptureMode>,
    duration_s: Option<f64>,
    vllm: Option<String>,
    engine_effective: Option<RawKnobs>,
    /// Where the live clients' probe writes the knobs.
    server: Option<RawServer>,
    #[serde(default)]
    machine: Machine,
    speed_probe_before: Option<SpeedProbe>,
    speed_probe_after: Option<SpeedProbe>,
    steps: Option<u64>,
    requests: Option<u64>,
    tokens_out: Option<u64>,
    preemptions: Option<u64>,
    #[serde(default)]
    truncated: bool,
    #[serde(default)]
    clock: ClockSide,
    /// Unit of the times in `requests.csv`; seconds when it is not given.
    pub(super) time_unit: Option<TimeUnit>,
    #[serde(default)]
    warmup_s: f64,
    #[serde(default)]
    load: OfferedLoad,
    accelerator: Option<String>,
    instance: Option<String>,
    /// A name; what else other tools keep under this key is ignored.
    model: Option<Value>,
    dtype: Option<String>,
    kv_dtype: Option<String>,
    tensor_parallel_size: Option<u32>,
    pipeline_parallel_size: Option<u32>,
    data_parallel_size: Option<u32>,
    expert_parallel_size: Option<u32>,
    t0_unix_s: Option<f64>,
    t0_perf_counter_s: Option<f64>,
    /// What the tool that made the capture had to assume.
    #[serde(default)]
    assumptions: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(super) struct RawKnobs {
    pub(super) max_num_seqs: Option<u32>,
    pub(super) max_num_batched_tokens: Option<u32>,
    pub(super) max_model_len: Option<u32>,
    pub(super) block_size: Option<u32>,
    pub(super) num_gpu_blocks: Option<u32>,
    pub(super) usable_blocks: Option<u32>,
    pub(super) enable_prefix_caching: Option<bool>,
    pub(super) enable_chunked_prefill: Option<bool>,
    pub(super) long_prefill_token_threshold: Option<u32>,
    pub(super) policy: Option<Policy>,
    pub(super) async_scheduling: Option<bool>,
    pub(super) scheduler_reserve_full_isl: Option<bool>,
    pub(super) watermark: Option<f64>,
    pub(super) enforce_eager: Option<bool>,
    pub(super) gpu_memory_utilization: Option<f64>,
    pub(super) tensor_parallel_size: Option<u32>,
    pub(super) pipeline_parallel_size: Option<u32>,
    pub(super) data_parallel_size: Option<u32>,
    pub(super) dtype: Option<String>,
    pub(super) kv_cache_dtype: Option<String>,
}

/// The knobs of a live server as its probe writes them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct RawServer {
    /// Usable KV blocks.
    free: Option<u32>,
    block_size: Option<u32>,
    async_sched: Option<bool>,
    max_num_seqs: Option<u32>,
    max_num_batched_tokens: Option<u32>,
    prefix_caching: Option<bool>,
    max_model_len: Option<u32>,
}

impl RawManifest {
    /// Reads `manifest.json`.
    ///
    /// # Errors
    /// [`InputError`] with the path of the field that is wrong, or the nearest name of one that was misspelt.
    pub(super) fn read(path: &Path) -> Result<Self, InputError> {
        let text = read_text(path)?;
        let mut json = serde_json::Deserializer::from_str(&text);
        let manifest: Self = serde_path_to_error::deserialize(&mut json).map_err(|e| {
            InputError::in_file(path, format!("cannot be used ({})", e.inner()))
                .at_field(e.path())
                .allowed("a manifest as the capture tool writes it")
        })?;
        json.end().map_err(|e| InputError::in_file(path, e.to_string()))?;
        if let Ok(Value::Object(keys)) = serde_json::from_str(&text) {
            refuse_slips(path, "", keys.keys(), KEYS)?;
            if let Some(Value::Object(knobs)) = keys.get("engine_effective") {
                refuse_slips(path, "engine_effective.", knobs.keys(), KNOBS)?;
            }
        }
        Ok(manifest)
    }

    /// Whether the knobs were written by the probe of a live server.
    pub(super) fn is_live(&self) -> bool {
        self.server.is_some()
    }

    /// Requests of the run, where the manifest counts them.
    pub(super) fn says_how_many(&self) -> Option<u64> {
        self.requests
    }

    /// Fills every knob.
    pub(super) fn resolve(
        self,
        path: &Path,
        requests: &[CaptureRequest],
    ) -> Result<CaptureManifest, InputError> {
        let mut assumptions = self.assumptions.clone();
        let knobs = self.given_knobs();
        let served = self.served(&knobs);
        let vllm = self.vllm.clone().unwrap_or_else(|| {
            let newest = VERSIONS[VERSIONS.len() - 1].version;
            assumptions.push(format!("vllm = {newest} (the newest release that is modelled)"));
            newest.to_owned()
        });
        let engine_effective = if knobs.is_complete() {
            knobs.complete()
        } else {
            fill(path, knobs, &served, &vllm, requests, &mut assumptions)?
        };
        let last = requests.iter().filter_map(|r| r.last_token_s).fold(0.0, f64::max);
        Ok(CaptureManifest {
            name: self.name,
            mode: self.mode.unwrap_or_default(),
            duration_s: self.duration_s.unwrap_or(last),
            vllm,
            engine_effective,
            machine: self.machine,
            speed_probe_before: self.speed_probe_before,
            speed_probe_after: self.speed_probe_after,
            steps: self.steps,
            requests: self.requests,
            tokens_out: self.tokens_out,
            preemptions: self.preemptions,
            truncated: self.truncated,
            clock: self.clock,
            warmup_s: self.warmup_s,
            load: self.load,
            served,
            t0_unix_s: self.t0_unix_s,
            t0_monotonic_s: self.t0_perf_counter_s,
            assumptions,
        })
    }

    fn given_knobs(&self) -> RawKnobs {
        let mut knobs = self.engine_effective.clone().unwrap_or_default();
        if let Some(server) = &self.server {
            let blocks = server.free.map(|free| free.saturating_add(1));
            knobs.num_gpu_blocks = knobs.num_gpu_blocks.or(blocks);
            knobs.block_size = knobs.block_size.or(server.block_size);
            knobs.async_scheduling = knobs.async_scheduling.or(server.async_sched);
            knobs.max_num_seqs = knobs.max_num_seqs.or(server.max_num_seqs);
            knobs.max_num_batched_tokens = knobs.max_num_batched_tokens.or(server.max_num_batched_tokens);
            knobs.enable_prefix_caching = knobs.enable_prefix_caching.or(server.prefix_caching);
            knobs.max_model_len = knobs.max_model_len.or(server.max_model_len);
        }
        let usable = knobs.usable_blocks.map(|n| n.saturating_add(1));
        knobs.num_gpu_blocks = knobs.num_gpu_blocks.or(usable);
        knobs
    }

    fn served(&self, knobs: &RawKnobs) -> Served {
        let model = self.model.as_ref().and_then(Value::as_str).map(str::to_owned);
        Served {
            accelerator: self.accelerator.clone(),
            instance: self.instance.clone(),
            model,
            dtype: self.dtype.clone().or(knobs.dtype.clone()),
            kv_dtype: self.kv_dtype.clone().or(knobs.kv_cache_dtype.clone()),
            tensor_parallel_size: self.tensor_parallel_size.or(knobs.tensor_parallel_size),
            pipeline_parallel_size: self.pipeline_parallel_size.or(knobs.pipeline_parallel_size),
            data_parallel_size: self.data_parallel_size.or(knobs.data_parallel_size),
            expert_parallel_size: self.expert_parallel_size,
        }
    }
}

/// A key that is no known one but within two slips of one would be ignored in silence: it is refused.
fn refuse_slips<'a>(
    path: &Path,
    place: &str,
    given: impl Iterator<Item = &'a String>,
    known: &[&str],
) -> Result<(), InputError> {
    for key in given.filter(|k| !known.contains(&k.as_str())) {
        let meant = known
            .iter()
            .map(|name| (strsim::damerau_levenshtein(key, name), *name))
            .min()
            .filter(|(slips, name)| *slips <= 2 && 2 * slips < name.len());
        if let Some((_, name)) = meant {
            return Err(InputError::in_file(path, format!("has an unknown key '{key}'"))
                .at(format!("{place}{key}"))
                .allowed("a key that is misspelt would be left out of account")
                .nearest_of(key, [name]));
        }
    }
    Ok(())
}

impl RawKnobs {
    /// Nothing is left to assume that a plan would notice.
    fn is_complete(&self) -> bool {
        let counts = [
            self.max_num_seqs,
            self.max_num_batched_tokens,
            self.max_model_len,
            self.block_size,
            self.num_gpu_blocks,
        ];
        let switches = [self.enable_prefix_caching, self.enable_chunked_prefill];
        counts.iter().all(Option::is_some) && switches.iter().all(Option::is_some)
    }

    fn complete(self) -> EffectiveKnobs {
        EffectiveKnobs {
            max_num_seqs: self.max_num_seqs.unwrap_or_default(),
            max_num_batched_tokens: self.max_num_batched_tokens.unwrap_or_default(),
            max_model_len: self.max_model_len.unwrap_or_default(),
            block_size: self.block_size.unwrap_or_default(),
            num_gpu_blocks: self.num_gpu_blocks.unwrap_or_default(),
            usable_blocks: self.usable_blocks,
            enable_prefix_caching: self.enable_prefix_caching.unwrap_or(true),
            enable_chunked_prefill: self.enable_chunked_prefill.unwrap_or(true),
            long_prefill_token_threshold: self.long_prefill_token_threshold.unwrap_or(0),
            policy: self.policy.unwrap_or_default(),
            async_scheduling: self.async_scheduling,
            scheduler_reserve_full_isl: self.scheduler_reserve_full_isl,
            watermark: self.watermark,
            enforce_eager: self.enforce_eager,
        }
    }

    pub(super) fn engine(&self, vllm: &str) -> Engine {
        Engine {
            version: Some(vllm.split('+').next().unwrap_or_default().to_owned()),
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            block_size: self.block_size,
            num_gpu_blocks: self.num_gpu_blocks,
            gpu_memory_utilization: self.gpu_memory_utilization.map(Finite),
            enable_prefix_caching: self.enable_prefix_caching,
            enable_chunked_prefill: self.enable_chunked_prefill,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            scheduling_policy: self.policy,
            async_scheduling: self.async_scheduling,
            ..Engine::default()
        }
    }
}

/// Fills the knobs that are not given as vLLM of this release would have set them on this device, and says so.
fn fill(
    path: &Path,
    mut knobs: RawKnobs,
    served: &Served,
    vllm: &str,
    requests: &[CaptureRequest],
    assumptions: &mut Vec<String>,
) -> Result<EffectiveKnobs, InputError> {
    let base = path.parent().unwrap_or(Path::new(""));
    let (accelerator, model) = profiles(served, base, assumptions);
    if knobs.max_model_len.is_none() && model.is_none() {
        let longest = requests
            .iter()
            .map(|r| r.input_tokens.saturating_add(r.requested_output_tokens))
            .max();
        let length = longest.unwrap_or(0).max(4096).next_power_of_two();
        assumptions.push(format!(
            "max_model_len = {length} (no model profile; it holds the longest request)"
        ));
        knobs.max_model_len = Some(length);
    }
    let system = System {
        model,
        accelerator,
        engine: knobs.engine(vllm),
        dtype: dtype_of(path, served)?,
        kv_dtype: kv_dtype_of(path, served)?,
        parallel: Parallel {
            tp: served.tensor_parallel_size,
            pp: served.pipeline_parallel_size,
            dp: None,
            ep: served.expert_parallel_size,
        },
        ..System::default()
    };
    let resolved = resolve_blocks(path, system, base, assumptions)?;
    note_filled(&resolved, vllm, assumptions);
    let e = &resolved.system.engine;
    Ok(RawKnobs {
        max_num_seqs: e.max_num_seqs,
        max_num_batched_tokens: e.max_num_batched_tokens,
        max_model_len: e.max_model_len,
        block_size: e.block_size,
        num_gpu_blocks: e.num_gpu_blocks,
        enable_prefix_caching: e.enable_prefix_caching,
        enable_chunked_prefill: e.enable_chunked_prefill,
        long_prefill_token_threshold: e.long_prefill_token_threshold,
        policy: e.scheduling_policy,
        async_scheduling: e.async_scheduling,
        ..knobs
    }
    .complete())
}

/// The profiles that the manifest names and the catalog has.
pub(super) fn profiles(
    served: &Served,
    base: &Path,
    assumptions: &mut Vec<String>,
) -> (Option<String>, Option<String>) {
    let mut known = |kind: &str, name: &Option<String>, error: Option<InputError>| match error {
        None => name.clone(),
        Some(_) => {
            assumptions.push(format!(
                "no profile of the {kind} '{}': nothing is derived from it",
                name.as_deref().unwrap_or_default()
            ));
            None
        }
    };
    let lookup =
        |name: &Option<String>, find: &dyn Fn(&str) -> Option<InputError>| name.as_deref().and_then(find);
    let device = lookup(&served.accelerator, &|n| catalog::accelerator(n, base).err());
    let model = lookup(&served.model, &|n| catalog::model(n, base).err());
    (
        known("accelerator", &served.accelerator, device),
        known("model", &served.model, model),
    )
}

/// Resolves the system; where the block count can neither be read nor derived, blocks are taken to be ample.
fn resolve_blocks(
    path: &Path,
    mut system: System,
    base: &Path,
    assumptions: &mut Vec<String>,
) -> Result<ResolvedSystem, InputError> {
    let origin = path.display().to_string();
    let given = system.engine.num_gpu_blocks.is_some();
    let derivable = system.model.is_some() && system.accelerator.is_some();
    if given || derivable {
        match resolve_system(system.clone(), &origin, base) {
            // Only where the profile lacks a figure: a model that does not fit did not run there.
            Err(e)
                if !given
                    && e.place.as_deref() == Some("system.engine.num_gpu_blocks")
                    && e.found.contains("states no") =>
            {
                assumptions.push(format!("KV blocks cannot be derived: {}", e.found));
            }
            other => return other,
        }
    }
    let mut ample = system.clone();
    ample.engine.num_gpu_blocks = Some(MAX_BLOCKS);
    let first = resolve_system(ample, &origin, base)?;
    let engine = &first.system.engine;
    let length = u64::from(engine.max_model_len.unwrap_or(0));
    let a_request = length.div_ceil(u64::from(engine.block_size.unwrap_or(16)).max(1));
    let blocks = a_request * u64::from(engine.max_num_seqs.unwrap_or(1)) + 1;
    let blocks = blocks.min(u64::from(MAX_BLOCKS)).max(2) as u32;
    assumptions.push(format!(
        "num_gpu_blocks = {blocks} (not told: enough for max_num_seqs requests of max_model_len, so memory never runs \
         short; the server's log has the real figure)"
    ));
    system.engine.num_gpu_blocks = Some(blocks);
    resolve_system(system, &origin, base)
}

/// One sentence for every knob that was filled.
fn note_filled(resolved: &ResolvedSystem, vllm: &str, assumptions: &mut Vec<String>) {
    let e = &resolved.system.engine;
    let number = |v: Option<u32>| v.map(|n| n.to_string());
    let switch = |v: Option<bool>| v.map(|b| b.to_string());
    let policy = e.scheduling_policy.map(|p| format!("{p:?}").to_lowercase());
    for (knob, value) in [
        ("max_num_seqs", number(e.max_num_seqs)),
        ("max_num_batched_tokens", number(e.max_num_batched_tokens)),
        ("max_model_len", number(e.max_model_len)),
        ("block_size", number(e.block_size)),
        ("num_gpu_blocks", number(e.num_gpu_blocks)),
        ("enable_prefix_caching", switch(e.enable_prefix_caching)),
        ("enable_chunked_prefill", switch(e.enable_chunked_prefill)),
        (
            "long_prefill_token_threshold",
            number(e.long_prefill_token_threshold),
        ),
        ("scheduling_policy", policy),
        ("async_scheduling", switch(e.async_scheduling)),
    ] {
        if let (Some(source), Some(value)) = (resolved.assumed(knob), value) {
            let source = match source.to_string() {
                text if text == "default" => format!("default of vLLM {vllm}"),
                text => text,
            };
            assumptions.push(format!("{knob} = {value} ({source})"));
        }
    }
}
