//! What a capture's manifest says was served: number formats, profiles, deployment.

use std::path::Path;

use serde_json::Value;

use super::assume::{RawKnobs, profiles};
use super::manifest::{CaptureManifest, Served};
use crate::input::InputError;
use crate::scenario::schema::{DtypeChoice, KvDtypeChoice, Parallel, System};
use crate::scenario::{ResolvedSystem, resolve_system};

/// vLLM's names of number formats to ours.
pub(super) fn dtype_of(path: &Path, served: &Served) -> Result<Option<DtypeChoice>, InputError> {
    let name = match served.dtype.as_deref() {
        Some("bfloat16") => "bf16",
        Some("float16" | "half") => "fp16",
        Some("fp8_e4m3" | "fp8_e5m2") => "fp8",
        Some(name) => name,
        None => return Ok(None),
    };
    choice(
        path,
        "dtype",
        name,
        "auto, bf16, fp16, fp8, int8, int4, mxfp4, nvfp4",
    )
}

pub(super) fn kv_dtype_of(path: &Path, served: &Served) -> Result<Option<KvDtypeChoice>, InputError> {
    let name = match served.kv_dtype.as_deref() {
        Some("bfloat16" | "float16" | "fp16" | "half") => "bf16",
        Some("fp8_e4m3" | "fp8_e5m2" | "fp8_inc") => "fp8",
        Some(name) => name,
        None => return Ok(None),
    };
    choice(path, "kv_dtype", name, "auto, bf16, fp8")
}

fn choice<T: serde::de::DeserializeOwned>(
    path: &Path,
    key: &str,
    name: &str,
    known: &str,
) -> Result<Option<T>, InputError> {
    serde_json::from_value(Value::String(name.to_ascii_lowercase()))
        .map(Some)
        .map_err(|_| {
            InputError::in_file(path, format!("unknown number format '{name}'"))
                .at(key)
                .allowed(known)
                .nearest_of(name, known.split(", "))
        })
}

/// Everything about the system of a capture whose knobs are known: its profiles, its memory and, where both
/// device and model have a profile, its deployment.
pub(super) fn system_of(manifest: &CaptureManifest, path: &Path) -> Result<ResolvedSystem, InputError> {
    let served = &manifest.served;
    let base = path.parent().unwrap_or(Path::new(""));
    let (accelerator, model) = profiles(served, base, &mut Vec::new());
    let k = &manifest.engine_effective;
    let knobs = RawKnobs {
        max_num_seqs: Some(k.max_num_seqs),
        max_num_batched_tokens: Some(k.max_num_batched_tokens),
        max_model_len: Some(k.max_model_len),
        block_size: Some(k.block_size),
        num_gpu_blocks: Some(k.num_gpu_blocks),
        enable_prefix_caching: Some(k.enable_prefix_caching),
        enable_chunked_prefill: Some(k.enable_chunked_prefill),
        long_prefill_token_threshold: Some(k.long_prefill_token_threshold),
        policy: Some(k.policy),
        async_scheduling: k.async_scheduling,
        ..RawKnobs::default()
    };
    let mut engine = knobs.engine(&manifest.vllm);
    engine.enforce_eager = k.enforce_eager;
    let system = System {
        model,
        accelerator,
        engine,
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
    resolve_system(system, &path.display().to_string(), base)
}
