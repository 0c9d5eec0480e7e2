//! `cost`, and what a pool's machines cost and draw.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::quantity::Finite;

/// What a cluster costs beside its pools' machines.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CostRules {
    /// Hosts, storage, network, a control plane: what is paid by the hour, however many groups there are.
    pub other: Option<Vec<OtherCostRule>>,
    /// Power usage effectiveness of the site. Left out, energy is that of accelerators alone.
    pub pue: Option<PueRule>,
}

/// Something that is paid by the hour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OtherCostRule {
    /// What it is.
    pub name: String,
    /// USD an hour of wall clock.
    pub usd_h: Finite,
    /// Who says so.
    pub source: Option<String>,
}

/// What a whole site draws over what its machines draw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PueRule {
    /// From 1.
    pub value: Finite,
    /// Who says so.
    pub source: String,
}

/// A price in place of the profile's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriceRule {
    /// USD an hour: of a whole machine of the pool's `instance`, or of one accelerator where none is named.
    pub usd_h: Finite,
    /// Where it holds.
    pub region: Option<String>,
    /// When it was read.
    pub date: Option<String>,
    /// Who says so.
    pub source: Option<String>,
}

/// Clock and power of a pool's accelerators.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PowerRule {
    /// A cap on each accelerator, in watts: the clock falls as far as the work needs to keep it.
    pub cap_w: Option<Finite>,
    /// Core clock over the full one, above 0 and at most 1; left out, 1.
    pub frequency_ratio: Option<Finite>,
}
