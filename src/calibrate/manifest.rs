//! The manifest of a capture: how the run was made. Keys that are not needed here are ignored.

use std::path::Path;

use serde::Deserialize;

use crate::engine::vllm::{Behaviour, Policy, VllmConfig};
use crate::input::{InputError, read_text};
use crate::kv::MAX_BLOCKS;

/// How requests were offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureMode {
    /// At their arrival times.
    Open,
    /// Group by group, each into an idle engine; `arrival_s` is the number of the group.
    Batch,
}

/// `manifest.json` of a capture folder.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct CaptureManifest {
    /// Name of the run inside its set.
    #[serde(default)]
    pub name: Option<String>,
    /// How requests were offered.
    pub mode: CaptureMode,
    /// End of the last step, in seconds from the start of the run.
    pub duration_s: f64,
    /// The vLLM release, as it prints itself.
    pub vllm: String,
    /// The knobs that were in force.
    pub engine_effective: EffectiveKnobs,
    /// The machine, as far as it is told.
    #[serde(default)]
    pub machine: Machine,
    /// Fixed work timed before the run.
    #[serde(default)]
    pub speed_probe_before: Option<SpeedProbe>,
    /// Fixed work timed after the run.
    #[serde(default)]
    pub speed_probe_after: Option<SpeedProbe>,
    /// Steps of the run.
    #[serde(default)]
    pub steps: Option<u64>,
    /// Requests of the run.
    #[serde(default)]
    pub requests: Option<u64>,
    /// Output tokens of the run.
    #[serde(default)]
    pub tokens_out: Option<u64>,
    /// Preemptions of the run.
    #[serde(default)]
    pub preemptions: Option<u64>,
    /// The run was cut off before its end.
    #[serde(default)]
    pub truncated: bool,
}

/// The engine's knobs as the engine resolved them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
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
    #[serde(default)]
    pub usable_blocks: Option<u32>,
    /// Reuse of full blocks with equal content.
    pub enable_prefix_caching: bool,
    /// Prompts may be computed in pieces.
    pub enable_chunked_prefill: bool,
    /// Cap on the tokens of a request in one step; 0 = off.
    #[serde(default)]
    pub long_prefill_token_threshold: u32,
    /// Queue order.
    #[serde(default)]
    pub policy: Policy,
    /// One step is scheduled ahead of the device.
    #[serde(default)]
    pub async_scheduling: Option<bool>,
    /// The whole prompt must fit at admission.
    #[serde(default)]
    pub scheduler_reserve_full_isl: Option<bool>,
    /// Share of the blocks kept free at admission.
    #[serde(default)]
    pub watermark: Option<f64>,
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
    /// Reads `manifest.json`.
    ///
    /// # Errors
    /// [`InputError`] with the path of the field that is missing or wrong.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let text = read_text(path)?;
        let mut json = serde_json::Deserializer::from_str(&text);
        let manifest: Self = serde_path_to_error::deserialize(&mut json).map_err(|e| {
            InputError::in_file(path, format!("cannot be used ({})", e.inner()))
                .at_field(e.path())
                .allowed("a manifest as the capture tool writes it")
        })?;
        json.end().map_err(|e| InputError::in_file(path, e.to_string()))?;
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
