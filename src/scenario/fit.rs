//! Where a fitted step-time model is looked for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::input::InputError;
use crate::sim::HostTimes;
use crate::steptime::{Fit, Hull, StepTime};
use crate::units::SimDuration;

/// The file of a fit: a path as it is, a name as `calibration/fits/NAME.yaml` in the scenario's folder, the
/// nearest folder above that has it, or the current one.
pub fn locate(name: &str, base: &Path) -> PathBuf {
    if name.contains(['/', '\\']) || name.ends_with(".yaml") {
        return base.join(name);
    }
    let relative = Path::new("calibration").join("fits").join(format!("{name}.yaml"));
    let absolute = std::path::absolute(base).unwrap_or_else(|_| base.to_owned());
    absolute
        .ancestors()
        .map(|folder| folder.join(&relative))
        .find(|path| path.is_file())
        .unwrap_or(relative)
}

/// What a fit says of its machine.
#[derive(Debug, Clone)]
pub struct FittedMachine {
    /// Step times.
    pub step_time: Arc<dyn StepTime>,
    /// Host time around the steps.
    pub host: HostTimes,
    /// Batches that the fit has seen.
    pub hull: Hull,
}

/// Reads a fit.
///
/// # Errors
/// [`InputError`] when it is not there or is no fit.
pub fn load(path: &Path) -> Result<FittedMachine, InputError> {
    let fit = Fit::read(path)?;
    Ok(FittedMachine {
        step_time: Arc::new(fit.model(path)?),
        host: host_times(&fit, path)?,
        hull: fit.hull,
    })
}

/// The host times of a fit that was read from `path`.
///
/// # Errors
/// [`InputError`] when one is not a time.
pub fn host_times(fit: &Fit, path: &Path) -> Result<HostTimes, InputError> {
    let duration = |field: &str, seconds: f64| {
        SimDuration::try_from_secs_f64(seconds)
            .map_err(|e| InputError::in_file(path, e.to_string()).at(field))
    };
    let add_request = duration("host.add_request_s", fit.host.add_request_s)?;
    Ok(HostTimes {
        add_request,
        add_request_idle: match fit.host.add_request_idle_s {
            Some(s) => duration("host.add_request_idle_s", s)?,
            None => add_request,
        },
        between_steps: duration("host.between_steps_s", fit.host.between_steps_s)?,
    })
}
