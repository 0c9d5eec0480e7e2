//! `kneeboard schema [NAME]`: the JSON Schemas of the file formats. The files in `schema/` are its output.

use clap::Args;
use schemars::{Schema, schema_for};

use super::conform::ConformReport;
use super::sweep::SweepReport;
use super::{Outcome, print};
use crate::explore::published::StudyFile;
use crate::input::InputError;
use crate::metric::Summary;
use crate::metric::cluster::ClusterSummary;
use crate::profile::{Accelerator, EngineDefaults, Instance, Model};
use crate::scenario::Scenario;
use crate::steptime::{Fit, RooflineFit, StaticFit};
use crate::verify::compare::CompareReport;
use crate::verify::points::PointsReport;

/// Which schema.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Name of a schema; without it, they are listed.
    name: Option<String>,
}

/// One published schema.
#[derive(Debug, Clone, Copy)]
pub struct SchemaEntry {
    /// Name on the command line; the file is `schema/NAME.json`.
    pub name: &'static str,
    /// What it describes.
    pub about: &'static str,
    /// Builds it.
    pub schema: fn() -> Schema,
}

/// Every published schema. A new file format adds its line here.
pub fn schemas() -> Vec<SchemaEntry> {
    vec![
        SchemaEntry {
            name: "scenario",
            about: "scenario file",
            schema: || schema_for!(Scenario),
        },
        SchemaEntry {
            name: "study",
            about: "study of a published load test (explain)",
            schema: || schema_for!(StudyFile),
        },
        SchemaEntry {
            name: "accelerator",
            about: "accelerator profile (profiles/accelerators)",
            schema: || schema_for!(Accelerator),
        },
        SchemaEntry {
            name: "model",
            about: "model profile (profiles/models)",
            schema: || schema_for!(Model),
        },
        SchemaEntry {
            name: "instance",
            about: "instance profile (profiles/instances)",
            schema: || schema_for!(Instance),
        },
        SchemaEntry {
            name: "engine",
            about: "defaults of an engine (profiles/engines)",
            schema: || schema_for!(EngineDefaults),
        },
        SchemaEntry {
            name: "fit",
            about: "fit of step times (calibration/fits, calibrate steps)",
            schema: || schema_for!(Fit),
        },
        SchemaEntry {
            name: "roofline-fit",
            about: "fit of the roofline (calibrate kernels, events, points, steps --form roofline)",
            schema: || schema_for!(RooflineFit),
        },
        SchemaEntry {
            name: "static-fit",
            about: "fit of static shapes (calibrate programs)",
            schema: || schema_for!(StaticFit),
        },
        SchemaEntry {
            name: "summary",
            about: "summary.json of a run folder",
            schema: || schema_for!(Summary),
        },
        SchemaEntry {
            name: "cluster",
            about: "cluster.json of a run folder",
            schema: || schema_for!(ClusterSummary),
        },
        SchemaEntry {
            name: "conform",
            about: "what conform --json prints",
            schema: || schema_for!(ConformReport),
        },
        SchemaEntry {
            name: "compare",
            about: "what compare --json prints",
            schema: || schema_for!(CompareReport),
        },
        SchemaEntry {
            name: "points",
            about: "what compare --points --json prints",
            schema: || schema_for!(PointsReport),
        },
        SchemaEntry {
            name: "sweep",
            about: "sweep.json, and what sweep --json and capacity --json print",
            schema: || schema_for!(SweepReport),
        },
    ]
}

impl SchemaEntry {
    /// The schema as the text of its file.
    ///
    /// # Errors
    /// Those of the JSON writer.
    pub fn text(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&(self.schema)()).map(|text| text + "\n")
    }
}

/// Lists or prints.
pub fn run(args: &SchemaArgs) -> anyhow::Result<Outcome> {
    let all = schemas();
    let Some(name) = &args.name else {
        let list: String = all
            .iter()
            .map(|s| format!("{:<12} {}\n", s.name, s.about))
            .collect();
        print(&list)?;
        return Ok(Outcome::Done);
    };
    let found = all.iter().find(|s| s.name == name).ok_or_else(|| {
        let names = || all.iter().map(|s| s.name);
        InputError::new("schema", format!("unknown name '{name}'"))
            .allowed(format!("known: {}", names().collect::<Vec<_>>().join(", ")))
            .nearest_of(name, names())
    })?;
    print(&found.text()?)?;
    Ok(Outcome::Done)
}
