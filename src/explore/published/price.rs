//! What the machine of a test costs while it serves.

use std::path::Path;

use super::StudyFile;
use crate::input::InputError;
use crate::profile::catalog;
use crate::scenario::Plan;
use crate::sim::HostTimes;

/// The price of what a test uses of an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Price {
    /// The instance.
    pub instance: String,
    /// USD an hour of the whole instance.
    pub instance_usd_h: f64,
    /// Accelerators of the instance.
    pub accelerators: u32,
    /// Accelerators that the test uses.
    pub used: u32,
}

impl Price {
    /// USD an hour of the accelerators that the test uses: their share of the instance's price.
    pub fn usd_h(&self) -> f64 {
        self.instance_usd_h * f64::from(self.used) / f64::from(self.accelerators)
    }
}

/// The price of a study's test; `None` where it names no instance, or one whose price is not known.
///
/// # Errors
/// [`InputError`] for an instance that is unknown or holds other accelerators, or a scenario that does not say how many
/// it uses.
pub(super) fn price(file: &StudyFile, study: &Path, plan: &Plan) -> Result<Option<Price>, InputError> {
    let Some(name) = &file.instance else {
        return Ok(None);
    };
    let wrong = |found: String| InputError::in_file(study, found).at("instance");
    let base = study.parent().unwrap_or(Path::new(""));
    let instance = catalog::instance(name, base).map_err(|e| InputError {
        allowed: e.allowed,
        nearest: e.nearest,
        ..wrong(format!("{}: {}", e.origin, e.found))
    })?;
    let Some(deployment) = plan.deployment() else {
        return Err(wrong(format!(
            "{} does not say how much of a {} it uses",
            plan.origin(),
            instance.name
        ))
        .allowed("name system.model and system.accelerator there, or leave the instance out"));
    };
    let (has, uses) = (&instance.accelerator.value, &deployment.accelerator.name);
    if has != uses {
        return Err(wrong(format!(
            "{} holds {has}, and {} runs on {uses}",
            instance.name,
            plan.origin()
        ))
        .allowed(format!("an instance with {uses} (kneeboard profile list)")));
    }
    Ok(instance.on_demand_usd_h.as_ref().map(|usd_h| Price {
        instance: instance.name.clone(),
        instance_usd_h: usd_h.value,
        accelerators: instance.count.value.max(1),
        used: deployment.devices() * plan.world(HostTimes::default()).replicas,
    }))
}
