//! Engines: the defaults of a serving engine, by device and release (rules S56, S80 to S86, K1).

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::{Problem, Severity};
use super::figure::FigureRow;
use super::{Accelerator, Facts, Kind, Platform};

/// What an engine takes when it is not told. Of each list the first row that holds is taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineDefaults {
    /// Format version; 1.
    pub kneeboard_profile: u32,
    /// `engine`.
    pub kind: EngineProfileKind,
    /// Its name; equals the file's name.
    pub name: String,
    /// One line about it.
    pub description: String,
    /// Other names under which it is found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Sources by key.
    pub sources: BTreeMap<String, String>,
    /// Batch limits by device (rule S80).
    pub batch: Vec<BatchRow>,
    /// Batch limits where no device is named (rule S81).
    pub without_device: Vec<Row<BatchLimits>>,
    /// What performance mode `throughput` multiplies both limits with (rule S81).
    pub throughput_mode_factor: Vec<Row<u32>>,
    /// Prompts may be computed in parts (rule S82).
    pub enable_chunked_prefill: Vec<Row<bool>>,
    /// Blocks of equal prefixes are shared (rule S82).
    pub enable_prefix_caching: Vec<Row<bool>>,
    /// Order of the waiting queue (rule S82).
    pub scheduling_policy: Vec<Row<String>>,
    /// A step is scheduled while the one before runs (rule S56).
    pub async_scheduling: Vec<Row<bool>>,
    /// Tokens of a KV block (rule K1).
    pub block_size: Vec<Row<u32>>,
    /// Share of the device memory that the engine may take.
    pub gpu_memory_utilization: Vec<Row<f64>>,
    /// Captured graphs (rules S84 to S86).
    pub cuda_graphs: GraphDefaults,
    /// Remarks that belong to no single figure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The word `engine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineProfileKind {
    /// A serving engine.
    Engine,
}

/// Where a row holds; all that is given must be fulfilled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// On devices of these families.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub platforms: Vec<Platform>,
    /// On these devices, by the names of their profiles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accelerators: Vec<String>,
    /// On devices with at least this memory in all, GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_memory_gib: Option<f64>,
    /// From this release on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Before this release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// One default and where it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Row<T> {
    /// The default.
    pub value: T,
    /// Where it holds; everywhere when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Condition>,
    /// Key of the profile's `sources`.
    pub source: String,
    /// Why it should not be trusted blindly; absent when it is sound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

/// The two limits of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchLimits {
    /// Tokens of one step.
    pub max_num_batched_tokens: u32,
    /// Requests that run at once.
    pub max_num_seqs: u32,
}

/// Batch limits and where they hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRow {
    /// Where they hold; everywhere when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Condition>,
    /// Behind the API server.
    pub server: BatchLimits,
    /// In a process of one's own, without a server.
    pub offline: BatchLimits,
    /// Both limits are multiplied by the number of ranks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub times_ranks: bool,
    /// Key of the profile's `sources`.
    pub source: String,
    /// Why they should not be trusted blindly; absent when they are sound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

/// Sizes `from`, `from + step`, … up to `to` (up to the ceiling when absent).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// The first size, in tokens.
    pub from: u32,
    /// The last size; up to the ceiling when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u32>,
    /// Distance of sizes.
    pub step: u32,
}

/// Which batch sizes are captured as graphs, and how batches run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GraphDefaults {
    /// Largest captured size in tokens; no row for the device = no graphs.
    pub ceiling: Vec<Row<u32>>,
    /// The ceiling is at most this times `max_num_seqs` times the tokens of a decode.
    pub per_sequence: Vec<Row<u32>>,
    /// The smallest sizes.
    pub first_sizes: Vec<Row<Vec<u32>>>,
    /// The sizes above them.
    pub grids: Vec<Row<Vec<Grid>>>,
    /// Sizes of full batches of decodes are captured besides.
    pub uniform_decode_sizes: Vec<Row<bool>>,
    /// `none`, `piecewise`, `full`, `full_decode_only` or `full_and_piecewise` (rule S86).
    pub mode: Vec<Row<String>>,
}

/// For which deployment a default is asked.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The engine's release, as `0.32.0`.
    pub version: &'a str,
    /// The device, if one is named.
    pub accelerator: Option<&'a Accelerator>,
}

/// How the engine is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Behind its API server.
    Server,
    /// In a process of one's own.
    Offline,
}

impl Condition {
    /// It holds in this case. What depends on a device holds on no unnamed one.
    pub fn holds(&self, case: &Case<'_>) -> bool {
        const GIB: f64 = (1u64 << 30) as f64;
        let on_device = |ok: &dyn Fn(&Accelerator) -> bool| case.accelerator.is_some_and(ok);
        let memory = |a: &Accelerator| a.memory_bytes.as_ref().map_or(0.0, |f| f.value as f64 / GIB);
        (self.platforms.is_empty() || on_device(&|a| self.platforms.contains(&a.platform)))
            && (self.accelerators.is_empty() || on_device(&|a| self.accelerators.contains(&a.name)))
            && self
                .min_memory_gib
                .is_none_or(|least| on_device(&|a| memory(a) >= least))
            && self
                .since
                .as_ref()
                .is_none_or(|v| release(case.version) >= release(v))
            && self
                .before
                .as_ref()
                .is_none_or(|v| release(case.version) < release(v))
    }
}

/// A release as numbers, so that 0.9 comes before 0.11.
fn release(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// The first row that holds.
pub fn pick<'a, T>(rows: &'a [Row<T>], case: &Case<'_>) -> Option<&'a Row<T>> {
    rows.iter()
        .find(|row| row.when.as_ref().is_none_or(|when| when.holds(case)))
}

impl EngineDefaults {
    /// Batch limits of a deployment of `ranks` ranks (rules S80, S81); `None` when no row holds.
    pub fn batch_limits(&self, case: &Case<'_>, usage: Usage, ranks: u32) -> Option<BatchLimits> {
        if case.accelerator.is_none() {
            return pick(&self.without_device, case).map(|row| row.value);
        }
        let row = self
            .batch
            .iter()
            .find(|row| row.when.as_ref().is_none_or(|when| when.holds(case)))?;
        let limits = match usage {
            Usage::Server => row.server,
            Usage::Offline => row.offline,
        };
        let factor = if row.times_ranks { ranks.max(1) } else { 1 };
        Some(BatchLimits {
            max_num_batched_tokens: limits.max_num_batched_tokens.saturating_mul(factor),
            max_num_seqs: limits.max_num_seqs.saturating_mul(factor),
        })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.platforms.is_empty() {
            let words: Vec<_> = self.platforms.iter().map(|p| p.word()).collect();
            parts.push(format!("on {}", words.join(", ")));
        }
        if !self.accelerators.is_empty() {
            parts.push(format!("on {}", self.accelerators.join(", ")));
        }
        parts.extend(self.min_memory_gib.map(|m| format!("from {m} GiB")));
        parts.extend(self.since.as_ref().map(|v| format!("since {v}")));
        parts.extend(self.before.as_ref().map(|v| format!("before {v}")));
        f.write_str(&parts.join(", "))
    }
}

impl fmt::Display for BatchLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} tokens, {} seqs",
            self.max_num_batched_tokens, self.max_num_seqs
        )
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to {
            Some(to) => write!(f, "{} to {to} by {}", self.from, self.step),
            None => write!(f, "from {} by {}", self.from, self.step),
        }
    }
}

fn listed<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

/// Rows of a table: the value, and where it holds.
fn table<'a, T>(
    name: &'static str,
    rows: &'a [Row<T>],
    text: impl Fn(&T) -> String,
) -> impl Iterator<Item = FigureRow<'a>> {
    rows.iter().map(move |row| FigureRow {
        name,
        value: placed(text(&row.value), row.when.as_ref()),
        source: &row.source,
        doubt: row.doubt.as_deref(),
    })
}

fn placed(value: String, when: Option<&Condition>) -> String {
    match when {
        Some(when) => format!("{value} ({when})"),
        None => value,
    }
}

impl Facts for EngineDefaults {
    super::common_facts!(Kind::Engine);

    fn aliases(&self) -> Vec<&str> {
        self.aliases.iter().map(String::as_str).collect()
    }

    fn figures(&self) -> Vec<FigureRow<'_>> {
        let mut rows: Vec<FigureRow<'_>> = self
            .batch
            .iter()
            .map(|row| FigureRow {
                name: "batch",
                value: placed(
                    format!(
                        "server {}; offline {}{}",
                        row.server,
                        row.offline,
                        if row.times_ranks { "; times ranks" } else { "" }
                    ),
                    row.when.as_ref(),
                ),
                source: &row.source,
                doubt: row.doubt.as_deref(),
            })
            .collect();
        macro_rules! plain {
            ($($field:ident),+) => { $(rows.extend(table(stringify!($field), &self.$field, |v| v.to_string()));)+ };
        }
        plain!(
            without_device,
            throughput_mode_factor,
            enable_chunked_prefill,
            enable_prefix_caching,
            scheduling_policy,
            async_scheduling,
            block_size,
            gpu_memory_utilization
        );
        let g = &self.cuda_graphs;
        rows.extend(table("cuda_graphs.ceiling", &g.ceiling, u32::to_string));
        rows.extend(table("cuda_graphs.per_sequence", &g.per_sequence, u32::to_string));
        rows.extend(table("cuda_graphs.first_sizes", &g.first_sizes, |v| listed(v)));
        rows.extend(table("cuda_graphs.grids", &g.grids, |v| listed(v)));
        rows.extend(table(
            "cuda_graphs.uniform_decode_sizes",
            &g.uniform_decode_sizes,
            bool::to_string,
        ));
        rows.extend(table("cuda_graphs.mode", &g.mode, String::clone));
        rows
    }

    fn contradictions(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut say = |place: &str, found: &str, allowed: &str| {
            problems.push(Problem::new(Severity::Error, place, found, allowed));
        };
        let zero = |l: &BatchLimits| l.max_num_batched_tokens == 0 || l.max_num_seqs == 0;
        if self.batch.iter().any(|r| zero(&r.server) || zero(&r.offline)) {
            say("batch", "a limit of 0", "allowed: at least 1");
        }
        if self
            .cuda_graphs
            .grids
            .iter()
            .flat_map(|r| &r.value)
            .any(|g| g.step == 0)
        {
            say("cuda_graphs.grids", "a step of 0", "allowed: at least 1");
        }
        if self.block_size.iter().any(|r| r.value == 0) {
            say("block_size", "found 0", "allowed: at least 1");
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::profile::catalog;

    fn limits(device: &str, version: &str, usage: Usage, ranks: u32) -> (u32, u32) {
        let engine = catalog::engine("vllm", Path::new("")).unwrap();
        let device = catalog::accelerator(device, Path::new("")).unwrap();
        let case = Case {
            version,
            accelerator: Some(&device),
        };
        let got = engine.batch_limits(&case, usage, ranks).unwrap();
        (got.max_num_batched_tokens, got.max_num_seqs)
    }

    /// The table of rule S80, row by row.
    #[test]
    fn batch_limits_follow_the_device_and_the_release() {
        use Usage::{Offline, Server};
        for (device, version, usage, ranks, expected) in [
            ("b200-sxm", "0.32.0", Server, 1, (16_384, 1024)),
            ("b200-sxm", "0.25.1", Server, 1, (8192, 1024)),
            ("mi300x", "0.28.0", Offline, 1, (16_384, 1024)),
            ("h100-sxm", "0.32.0", Server, 1, (8192, 1024)),
            ("h100-sxm", "0.11.0", Offline, 1, (16_384, 1024)),
            ("h200-sxm", "0.32.0", Server, 8, (8192, 1024)),
            ("rtx-pro-6000", "0.19.1", Server, 1, (8192, 1024)),
            ("a100-sxm-80gb", "0.32.0", Server, 1, (2048, 256)),
            ("a100-sxm-80gb", "0.32.0", Offline, 1, (8192, 256)),
            ("l40s", "0.32.0", Server, 1, (2048, 256)),
            ("cpu-1core", "0.32.0", Server, 2, (4096, 256)),
            ("cpu-1core", "0.32.0", Offline, 1, (4096, 256)),
            ("tpu-v6e", "0.32.0", Server, 1, (1024, 256)),
            ("tpu-v5e", "0.32.0", Offline, 1, (1024, 256)),
            ("tpu-v5p", "0.32.0", Server, 1, (256, 256)),
        ] {
            assert_eq!(
                limits(device, version, usage, ranks),
                expected,
                "{device} {version} {usage:?}"
            );
        }
    }

    #[test]
    fn releases_compare_as_numbers() {
        assert!(release("0.9.2") < release("0.11.0"));
        let engine = catalog::engine("vllm", Path::new("")).unwrap();
        let at = |version| Case {
            version,
            accelerator: None,
        };
        let asynchronous = |v| pick(&engine.async_scheduling, &at(v)).unwrap().value;
        assert_eq!(
            ["0.9.2", "0.13.0", "0.15.1", "0.32.0"].map(asynchronous),
            [false, false, true, true]
        );
        let bare = engine.batch_limits(&at("0.32.0"), Usage::Server, 1).unwrap();
        assert_eq!((bare.max_num_batched_tokens, bare.max_num_seqs), (2048, 128));
    }

    #[test]
    fn graphs_are_larger_on_data_centre_blackwell_and_absent_on_a_cpu() {
        let engine = catalog::engine("vllm", Path::new("")).unwrap();
        let ceiling = |name: &str| {
            let device = catalog::accelerator(name, Path::new("")).unwrap();
            let case = Case {
                version: "0.32.0",
                accelerator: Some(&device),
            };
            pick(&engine.cuda_graphs.ceiling, &case).map(|r| r.value)
        };
        assert_eq!(
            ["gb200", "rtx-pro-6000", "a100-sxm-40gb", "cpu-1core", "trn2"].map(ceiling),
            [Some(1024), Some(512), Some(512), None, None]
        );
    }
}
