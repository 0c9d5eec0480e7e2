//! A system on its own, outside of a scenario: for runs whose workload was measured, not stated.

use std::path::Path;

use super::engine::{self, ResolvedEngine};
use super::provenance::{Provenance, Source};
use super::schema::{
    Arrival, Calibration, Cluster, FixedLengths, Lengths, Load, LoadKind, Measure, Question, Scenario, Slo,
    Sweep, Synthetic, System, Workload,
};
use crate::input::InputError;

/// A system whose every knob is known.
#[derive(Debug, Clone)]
pub struct ResolvedSystem {
    /// The knobs, all filled.
    pub system: System,
    /// The engine's configuration, its profiles and its memory.
    pub engine: ResolvedEngine,
    /// Where each value came from.
    provenance: Provenance,
}

impl ResolvedSystem {
    /// Where the knob of this name under `system.engine` came from; `None` when it was given.
    pub fn assumed(&self, knob: &str) -> Option<Source> {
        match self.provenance.of(&format!("system.engine.{knob}")) {
            Source::File | Source::Set => None,
            source => Some(source),
        }
    }
}

/// Fills a system's knobs as a scenario's: by the defaults of the vLLM release on the accelerator, and the
/// block count from memory.
///
/// # Errors
/// As for a scenario; `origin` stands for its file.
pub fn resolve_system(system: System, origin: &str, base: &Path) -> Result<ResolvedSystem, InputError> {
    let mut provenance = Provenance::default();
    // Only `system` is looked at; the rest is there because a scenario has it.
    let mut scenario = Scenario {
        cost: None,
        kneeboard: 1,
        question: Question::default(),
        system,
        cluster: Cluster::default(),
        workload: Workload::Synthetic(Synthetic {
            num_requests: None,
            lengths: Some(Lengths::Fixed(FixedLengths { input: 1, output: 1 })),
            classes: None,
            prefix: None,
            priorities: None,
            draft_acceptance: None,
        }),
        load: Load {
            model: LoadKind::Offline,
            arrival: Arrival::default(),
            concurrency: None,
            think: None,
            client: None,
        },
        slo: Slo::default(),
        faults: Vec::new(),
        fault_rates: None,
        measure: Measure::default(),
        sweep: Sweep::default(),
        calibration: Calibration::default(),
    };
    let engine = engine::resolve(&mut scenario, &mut provenance, origin, base)?;
    Ok(ResolvedSystem {
        system: scenario.system,
        engine,
        provenance,
    })
}
