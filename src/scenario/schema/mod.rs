//! The scenario file: what a user may write, as types. Every optional value that is left out is `None` here;
//! `resolve` fills it.

mod cluster;
mod system;
mod workload;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::{Finite, Span};
pub use cluster::*;
pub use system::*;
pub use workload::*;

/// A scenario: one system, one workload, one load, and what is asked about them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Format version; 1.
    pub kneeboard: u32,
    /// Why the run is made; printed at the head of every report.
    #[serde(default)]
    pub question: Question,
    /// What serves.
    pub system: System,
    /// How many of it, behind which router.
    #[serde(default)]
    pub cluster: Cluster,
    /// What is asked of it.
    pub workload: Workload,
    /// How requests are offered.
    pub load: Load,
    /// What counts as good.
    #[serde(default)]
    pub slo: Slo,
    /// What goes wrong during the run, and when.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultEvent>,
    /// How often parts of the cluster fail: faults drawn by the seed, beside the stated ones.
    pub fault_rates: Option<FaultRates>,
    /// What the cluster costs beside its machines.
    pub cost: Option<CostRules>,
    /// Seeds, warm-up, window, repeats.
    #[serde(default)]
    pub measure: Measure,
    /// What `sweep` and `preflight` vary.
    #[serde(default)]
    pub sweep: Sweep,
    /// Measured runs of the machine, for `preflight`.
    #[serde(default)]
    pub calibration: Calibration,
}

/// Measured runs that `preflight` fits step times to and compares with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Folder of a data set (`manifest.yaml` with roles and checksums), relative to the scenario.
    pub dataset: Option<String>,
}

/// The decision that the run serves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The decision to be taken, in words.
    pub decision: Option<String>,
    /// What is to be made large or small, such as goodput.
    pub objective: Option<String>,
}

/// Service-level objective. A target that is left out is not asked for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slo {
    /// Time to first token.
    pub ttft: Option<Span>,
    /// Gap between tokens; a request is judged by its mean gap, unless itl_quantile says otherwise.
    pub itl: Option<Span>,
    /// Share of a request's gaps that must be within itl; 1 = its longest gap.
    pub itl_quantile: Option<Finite>,
    /// Mean time per output token after the first.
    pub tpot: Option<Span>,
    /// From arrival to the last token.
    pub e2e: Option<Span>,
    /// Share of the offered requests that must meet the targets.
    pub attainment: Option<Finite>,
    /// Share of the offered requests that may fail.
    pub errors: Option<Finite>,
}

/// Seeds and periods.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Requests that arrive before this are served but not counted.
    pub warmup: Option<Span>,
    /// Length of the counted period; left out, everything after the warm-up counts.
    pub window: Option<Span>,
    /// The run is cut off here; what is not finished by then stays unfinished, and what is not sent stays unsent.
    pub deadline: Option<Span>,
    /// How often a dashboard reads the server's gauges: `simulate` writes what it would have seen to `scrapes.csv`. From
    /// 1ms; left out, nothing is read.
    pub scrape_interval: Option<Span>,
    /// Master seed of every random stream.
    pub seed: Option<u64>,
    /// Runs with different draws.
    pub repeats: Option<u32>,
}

/// What is varied.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Dotted path of a scenario key to the values it takes; all combinations are run. Paths apart by commas change
    /// together: their values are lists of one value each.
    #[serde(default)]
    pub axes: serde_json::Map<String, serde_json::Value>,
    /// Searches in every combination.
    #[serde(default)]
    pub search: Search,
}

/// Searches.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// The highest load that meets the SLO.
    pub capacity: Option<CapacitySearch>,
}

/// Where a capacity is searched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapacitySearch {
    /// Lowest and highest rate, requests a second.
    pub rate: [Finite; 2],
}
