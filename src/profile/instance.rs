//! Instances: which accelerators a machine holds, how it is networked, what it costs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::Problem;
use super::figure::{Figure, FigureRow};
use super::{Facts, Kind};

/// A machine that can be rented. Absent figures are unknown, never guessed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// Format version; 1.
    pub kneeboard_profile: u32,
    /// `instance`.
    pub kind: InstanceKind,
    /// Its name; equals the file's name.
    pub name: String,
    /// One line about it.
    pub description: String,
    /// Other names under which it is found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Sources by key.
    pub sources: BTreeMap<String, String>,
    /// Name of its accelerators' profile.
    pub accelerator: Figure<String>,
    /// How many it has.
    pub count: Figure<u32>,
    /// Network of the whole machine in Gbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic_gbps: Option<Figure<f64>>,
    /// Price on demand of the whole machine, USD an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_demand_usd_h: Option<Figure<f64>>,
    /// Where that price holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// When that price was read: a date, or a year if no more is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_date: Option<String>,
    /// Remarks that belong to no single figure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The word `instance`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InstanceKind {
    /// A machine that can be rented.
    Instance,
}

impl Instance {
    /// Price of one accelerator, USD an hour.
    pub fn usd_per_accelerator_h(&self) -> Option<f64> {
        let price = self.on_demand_usd_h.as_ref()?.value;
        Some(price / f64::from(self.count.value.max(1)))
    }
}

impl Facts for Instance {
    super::common_facts!(Kind::Instance);

    fn aliases(&self) -> Vec<&str> {
        self.aliases.iter().map(String::as_str).collect()
    }

    fn figures(&self) -> Vec<FigureRow<'_>> {
        let mut rows = vec![self.accelerator.row("accelerator"), self.count.row("count")];
        rows.extend(self.nic_gbps.as_ref().map(|f| f.row("nic_gbps")));
        rows.extend(self.on_demand_usd_h.as_ref().map(|f| f.row("on_demand_usd_h")));
        rows
    }

    fn contradictions(&self) -> Vec<Problem> {
        Vec::new()
    }
}
