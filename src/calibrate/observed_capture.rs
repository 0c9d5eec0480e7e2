//! A capture as an observed run: its figures, and what is simulated to predict them.

use std::path::Path;

use super::manifest::{ClockSide, OfferedModel};
use super::observe::Capture;
use super::observed::{Figure, Metric, Observation, ObservedRun, Samples, Stat};
use super::scatter::scatter;
use crate::calibrate::actual::record_of;
use crate::input::InputError;
use crate::scenario::quantity::Finite;
use crate::scenario::resolve_system;
use crate::scenario::schema::{Engine, Parallel, System};
use crate::sim::LoadModel;
use crate::steptime::{Deployment, RooflineFit};
use crate::units::SimDuration;

/// What the user adds to what manifests say, for all captures alike.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServedDefaults {
    /// Accelerator profile.
    pub accelerator: Option<String>,
    /// Model profile.
    pub model: Option<String>,
    /// vLLM release.
    pub engine_version: Option<String>,
}

impl ServedDefaults {
    /// The same, with the one accelerator that a fit speaks for where none is named.
    #[must_use]
    pub fn or(&self, fit: &RooflineFit) -> Self {
        let only = match fit.speaks_for.accelerators.as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        };
        Self {
            accelerator: self.accelerator.clone().or(only),
            ..self.clone()
        }
    }
}

/// Figures that a capture's fit looks at. The mean of end-to-end times adds nothing to TTFT and TPOT but guards their
/// sum.
const FIGURES: [Figure; 7] = [
    figure(Metric::Tpot, Stat::Mean),
    figure(Metric::Ttft, Stat::Mean),
    figure(Metric::Ttft, Stat::Quantile(0.1)),
    figure(Metric::Ttft, Stat::Quantile(0.5)),
    figure(Metric::Ttft, Stat::Quantile(0.9)),
    figure(Metric::Ttft, Stat::Quantile(0.99)),
    figure(Metric::E2e, Stat::Mean),
];

const fn figure(metric: Metric, stat: Stat) -> Figure {
    Figure { metric, stat }
}

/// The deployment that a capture ran on.
///
/// # Errors
/// [`InputError`] when neither manifest nor defaults name device and model, or a profile or split is unknown.
pub fn deployment_of(capture: &Capture, defaults: &ServedDefaults) -> Result<Deployment, InputError> {
    let served = &capture.manifest.served;
    let knobs = &capture.manifest.engine_effective;
    let path = capture.folder.join("manifest.json");
    let needed = |given: Option<String>, key: &str| {
        given.ok_or_else(|| {
            InputError::in_file(&path, format!("does not name the {key}"))
                .at(key)
                .allowed(format!("a profile's name in the manifest, or --{key} NAME"))
        })
    };
    let choice = |given: &Option<String>, key: &str| -> Result<serde_json::Value, InputError> {
        let text = given.as_deref().unwrap_or("auto");
        let short = match text {
            "bfloat16" => "bf16",
            "float16" | "half" => "fp16",
            "fp8_e4m3" | "fp8_e5m2" => "fp8",
            other => other,
        };
        let _ = key;
        Ok(serde_json::Value::String(short.to_owned()))
    };
    let origin = path.display().to_string();
    let system = System {
        model: Some(needed(served.model.clone().or(defaults.model.clone()), "model")?),
        accelerator: Some(needed(
            served.accelerator.clone().or(defaults.accelerator.clone()),
            "accelerator",
        )?),
        dtype: Some(crate::yaml::from_value(choice(&served.dtype, "dtype")?, &origin)?),
        kv_dtype: Some(crate::yaml::from_value(
            choice(&served.kv_dtype, "kv_dtype")?,
            &origin,
        )?),
        engine: Engine {
            version: Some(
                capture
                    .manifest
                    .vllm
                    .split('+')
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            ),
            max_num_seqs: Some(knobs.max_num_seqs),
            max_num_batched_tokens: Some(knobs.max_num_batched_tokens),
            max_model_len: Some(knobs.max_model_len),
            block_size: Some(knobs.block_size),
            num_gpu_blocks: Some(knobs.num_gpu_blocks),
            enable_prefix_caching: Some(knobs.enable_prefix_caching),
            enable_chunked_prefill: Some(knobs.enable_chunked_prefill),
            enforce_eager: knobs.enforce_eager,
            async_scheduling: knobs.async_scheduling,
            watermark: knobs.watermark.filter(|w| *w > 0.0).map(Finite),
            ..Engine::default()
        },
        parallel: Parallel {
            tp: served.tensor_parallel_size,
            pp: served.pipeline_parallel_size,
            ep: served.expert_parallel_size,
            dp: None,
        },
        ..System::default()
    };
    let base = path.parent().unwrap_or(Path::new(""));
    let resolved = resolve_system(system, &origin, base)?;
    resolved.engine.deployment.ok_or_else(|| {
        InputError::in_file(&path, "does not tell device and model").allowed("profiles of both")
    })
}

/// The run to be simulated, with the figures that were measured. Of more than `most` requests only the first that
/// many count.
///
/// # Errors
/// [`InputError`] when the capture is inconsistent, or its device and model are unknown.
pub fn observed(
    capture: &Capture,
    defaults: &ServedDefaults,
    most: usize,
) -> Result<ObservedRun, InputError> {
    let deployment = deployment_of(capture, defaults)?;
    let engine = capture.engine_config()?;
    let trace = capture.trace()?;
    let warmup = capture.manifest.warmup_s;
    let counted: Vec<bool> = trace
        .requests
        .iter()
        .map(|r| r.arrival.as_secs_f64() >= warmup)
        .collect();
    let mut run = ObservedRun {
        name: capture.name.clone(),
        deployment: Deployment {
            asynchronous: engine.async_scheduling,
            ..deployment
        },
        load: load_of(capture),
        client_side: capture.manifest.clock == ClockSide::Client,
        engine,
        trace,
        counted,
        observations: Vec::new(),
    };
    run.limit(most);
    let samples = Samples::of(&record_of(capture)?, &run.counted);
    run.observations = FIGURES
        .iter()
        .map(|&figure| Observation {
            figure,
            value: samples.figure(figure),
            log_sd: scatter(figure, samples.count()),
        })
        .filter(|o| o.value.is_finite() && o.value > 0.0)
        .collect();
    Ok(run)
}

/// How the capture's requests were offered.
pub fn load_of(capture: &Capture) -> LoadModel {
    let load = capture.manifest.load;
    match (load.model, load.concurrency) {
        (OfferedModel::ClosedLoop, Some(concurrency)) => LoadModel::ClosedLoop {
            concurrency,
            think: SimDuration::ZERO,
        },
        _ => LoadModel::OpenLoop,
    }
}
