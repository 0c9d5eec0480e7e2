//! The manifest of a capture: how the run was made. Keys that are not needed here are ignored.

use std::path::Path;

use serde::Deserialize;

use super::assume::RawManifest;
use super::rows::CaptureRequest;
use crate::engine::vllm::{Behaviour, Policy, VllmConfig};
use crate::input::InputError;
use crate::kv::MAX_BLOCKS;

/// How requests were offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureMode {
    /// At their arrival times.
    #[default]
    Open,
    /// Group by group, each into an idle engine; `arrival_s` is the number of the group.
    Batch,
}

/// Where the times of requests and tokens were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockSide {
    /// In the engine's process: no HTTP, no tokenizer.
    #[default]
    Engine,
    /// At the client.
    Client,
}

/// What decides when a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OfferedModel {
    /// The arrival times alone.
    #[default]
    OpenLoop,
    /// A fixed number of clients, each sending its next request when it has seen the last answer's end.
    ClosedLoop,
}

/// How load was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferedLoad {
    /// What decides when a request is sent.
    #[serde(default)]
    pub model: OfferedModel,
    /// Clients of a closed loop.
    pub concurrency: Option<u32>,
}

/// `manifest.json` of a capture folder, with every knob known: given, or assumed and listed.
#[derive(Debug, Clone, PartialEq)]
pub struct CaptureManifest {
    /// Name of the run inside its set.
    pub name: Option<String>,
    /// How requests were offered.
    pub mode: CaptureMode,
    /// End of the last step, or of the last token, in seconds from the start of the run.
    pub duration_s: f64,
    /// The vLLM release, as it prints itself.
    pub vllm: String,
    /// The knobs that were in force.
    pub engine_effective: EffectiveKnobs,
    /// The machine, as far as it is told.
    pub machine: Machine,
    /// Fixed work timed before the run.
    pub speed_probe_before: Option<SpeedProbe>,
    /// Fixed work timed after the run.
    pub speed_probe_after: Option<SpeedProbe>,
    /// Steps of the run.
    pub steps: Option<u64>,
    /// Requests of the run.
    pub requests: Option<u64>,
    /// Output tokens of the run.
    pub tokens_out: Option<u64>,
    /// Preemptions of the run.
    pub preemptions: Option<u64>,
    /// The run was cut off before its end.
    pub truncated: bool,
    /// Where the times were taken.
    pub clock: ClockSide,
    /// Requests that arrive in the first so many seconds load the system and are in no statistic.
    pub warmup_s: f64,
    /// What decided when a request was sent.
    pub load: OfferedLoad,
    /// Device, model and how it was split.
    pub served: Served,
    /// Instant of the capture's time 0 as Unix time, where it is told.
    pub t0_unix_s: Option<f64>,
    /// The same instant on the machine's monotonic clock.
    pub t0_monotonic_s: Option<f64>,
    /// What the manifest does not say and was assumed, one sentence each.
    pub assumptions: Vec<String>,
}

/// What was served on what, as far as a manifest says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Served {
    /// Accelerator profile.
    pub accelerator: Option<String>,
    /// Instance type.
    pub instance: Option<String>,
    /// Model: a profile or a Hugging Face name.
    pub model: Option<String>,
    /// Number format of the weights.
    pub dtype: Option<String>,
    /// Number format of the KV cache.
    pub kv_dtype: Option<String>,
    /// Tensor-parallel ranks.
    pub tensor_parallel_size: Option<u32>,
    /// Pipeline stages.
    pub pipeline_parallel_size: Option<u32>,
    /// Data-parallel ranks.
    pub data_parallel_size: Option<u32>,
    /// Expert-parallel ranks.
    pub expert_parallel_size: Option<u32>,
}

/// The engine's knobs as the engine resolved them.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectiveKnobs {
    /// Most running requests.
    pub max_num_seqs: u32,
    /// Tokens of a step.
    pub max_num_batched_tokens: u32,
    /// Longest prompt plus output.
    pub max_model_len: u32,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// KV blocks, the null block included.
    pub num_gpu_blocks: u32,
    /// KV blocks that requests can use.
    pub usable_blocks: Option<u32>,
    /// Reuse of full blocks with equal content.
    pub enable_prefix_caching: bool,
    /// Prompts may be computed in pieces.
    pub enable_chunked_prefill: bool,
    /// Cap on the tokens of a request in one step; 0 = off.
    pub long_prefill_token_threshold: u32,
    /// Queue order.
    pub policy: Policy,
    /// One step is scheduled ahead of the device.
    pub async_scheduling: Option<bool>,
    /// The whole prompt must fit at admission.
    pub scheduler_reserve_full_isl: Option<bool>,
    /// Share of the blocks kept free at admission.
    pub watermark: Option<f64>,
    /// No captured graphs.
    pub enforce_eager: Option<bool>,
}

/// What a manifest tells of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Machine {
    /// Scheduling class of the engine's thread: `RR`, `FIFO` or `OTHER`.
    #[serde(default)]
    pub scheduler_class: Option<String>,
}

/// Fixed work that tells how fast the machine is just now.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct SpeedProbe {
    /// A decode step of 4 rows.
    pub decode4: ProbeTime,
    /// A prefill of 256 tokens.
    pub prefill256: ProbeTime,
}

/// Median execution times of a probe in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct ProbeTime {
    /// By the wall clock.
    pub wall_ms: Option<f64>,
    /// In CPU time of the thread.
    pub cpu_ms: Option<f64>,
}

/// What the speed probes around a run tell, in CPU milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProbeTimes {
    /// A decode step of 4 rows.
    pub decode4_cpu_ms: f64,
    /// A prefill of 256 tokens.
    pub prefill256_cpu_ms: f64,
}

impl CaptureManifest {
    /// A manifest as it was read from `path`, with everything known. Knobs that it lacks are assumed as vLLM
    /// would have set them and listed in `assumptions`; sizes that must hold the run are taken from its
    /// `requests`.
    ///
    /// # Errors
    /// [`InputError`] with the path of the field that is wrong.
    pub(super) fn of(raw: RawManifest, path: &Path, requests: &[CaptureRequest]) -> Result<Self, InputError> {
        let manifest = raw.resolve(path, requests)?;
        manifest.check(path)?;
        Ok(manifest)
    }

    fn check(&self, path: &Path) -> Result<(), InputError> {
        let wrong = |place: &str, found: String, allowed: &str| {
            Err(InputError::in_file(path, found).at(place).allowed(allowed))
        };
        if !(self.duration_s.is_finite() && self.duration_s > 0.0) {
            return wrong(
                "duration_s",
                format!("{} s is not a run length", self.duration_s),
                "more than 0 seconds",
            );
        }
        if !(self.warmup_s.is_finite() && self.warmup_s >= 0.0) {
            return wrong(
                "warmup_s",
                format!("{} s is not a span", self.warmup_s),
                "seconds from 0",
            );
        }
        match (self.load.model, self.load.concurrency) {
            (OfferedModel::ClosedLoop, None | Some(0)) => {
                return wrong(
                    "load.concurrency",
                    "a closed loop without clients".into(),
                    "the number of clients, at least 1",
                );
            }
            (OfferedModel::OpenLoop, Some(_)) => {
                return wrong(
                    "load.concurrency",
                    "an open loop has no fixed number of clients".into(),
                    "model: closed-loop, or no concurrency",
                );
            }
            _ => {}
        }
        self.engine_effective.check(path)?;
        for (name, probe) in [
            ("speed_probe_before", self.speed_probe_before),
            ("speed_probe_after", self.speed_probe_after),
        ] {
            let times = probe.map(|p| {
                [
                    p.decode4.wall_ms,
                    p.decode4.cpu_ms,
                    p.prefill256.wall_ms,
                    p.prefill256.cpu_ms,
                ]
            });
            if times
                .into_iter()
                .flatten()
                .flatten()
                .any(|ms| !(ms.is_finite() && ms > 0.0))
            {
                return wrong(name, "a probe time is not above 0".into(), "milliseconds above 0");
            }
        }
        Ok(())
    }

    /// CPU milliseconds of the speed probes around the run, where all four are there.
    ///
    /// The decode probe is a median of 15 steps, so both readings are averaged; the prefill probe reads the
    /// slower of two steps, so the lower reading is the cleaner one.
    pub fn probe_times(&self) -> Option<ProbeTimes> {
        let (before, after) = (self.speed_probe_before?, self.speed_probe_after?);
        Some(ProbeTimes {
            decode4_cpu_ms: (before.decode4.cpu_ms? + after.decode4.cpu_ms?) / 2.0,
            prefill256_cpu_ms: before.prefill256.cpu_ms?.min(after.prefill256.cpu_ms?),
        })
    }

    /// The engine's configuration.
    ///
    /// # Errors
    /// [`InputError`] when the vLLM version has no behaviour set; it lists those that have.
    pub fn engine_config(&self, path: &Path) -> Result<VllmConfig, InputError> {
        // A local build suffix (0.32.0+cpu) does not change the scheduler.
        let release = self.vllm.split('+').next().unwrap_or_default();
        let behaviour =
            Behaviour::of(release).map_err(|e| InputError::in_file(path, e.to_string()).at("vllm"))?;
        let knobs = &self.engine_effective;
        Ok(VllmConfig {
            max_num_seqs: knobs.max_num_seqs,
            max_num_batched_tokens: knobs.max_num_batched_tokens,
            max_model_len: knobs.max_model_len,
            block_size: knobs.block_size,
            num_gpu_blocks: knobs.num_gpu_blocks,
            enable_prefix_caching: knobs.enable_prefix_caching,
            enable_chunked_prefill: knobs.enable_chunked_prefill,
            long_prefill_token_threshold: knobs.long_prefill_token_threshold,
            policy: knobs.policy,
            async_scheduling: knobs.async_scheduling.unwrap_or(behaviour.async_by_default),
            scheduler_reserve_full_isl: knobs
                .scheduler_reserve_full_isl
                .unwrap_or(behaviour.has_full_prompt_gate),
            watermark: knobs.watermark.unwrap_or(0.0),
            ..VllmConfig::new(behaviour)
        })
    }
}

impl EffectiveKnobs {
    fn check(&self, path: &Path) -> Result<(), InputError> {
        let wrong = |place: &str, found: String, allowed: &str| {
            Err(InputError::in_file(path, found)
                .at(format!("engine_effective.{place}"))
                .allowed(allowed))
        };
        for (name, value) in [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
            ("block_size", self.block_size),
        ] {
            if value == 0 {
                return wrong(name, "0 cannot be used".into(), "at least 1");
            }
        }
        if self.num_gpu_blocks < 2 {
            return wrong(
                "num_gpu_blocks",
                format!("{} blocks leave none for requests", self.num_gpu_blocks),
                "at least 2: one is the null block",
            );
        }
        if self.num_gpu_blocks > MAX_BLOCKS {
            return wrong(
                "num_gpu_blocks",
                format!("{} blocks are too many", self.num_gpu_blocks),
                &format!("at most {MAX_BLOCKS}"),
            );
        }
        if self
            .usable_blocks
            .is_some_and(|usable| usable + 1 != self.num_gpu_blocks)
        {
            return wrong(
                "usable_blocks",
                format!(
                    "{:?} usable of {} blocks",
                    self.usable_blocks, self.num_gpu_blocks
                ),
                "num_gpu_blocks - 1",
            );
        }
        if self.watermark.is_some_and(|w| !(0.0..1.0).contains(&w)) {
            return wrong(
                "watermark",
                format!("{:?} is not a share", self.watermark),
                "from 0 to below 1",
            );
        }
        Ok(())
    }
}
