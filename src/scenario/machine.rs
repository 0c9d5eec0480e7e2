//! The machine that a plan runs on, and where a fit of it is looked for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::input::InputError;
use crate::sim::HostTimes;
use crate::steptime::{Fit, Hull, StepTime};
use crate::units::SimDuration;

/// The machine that a plan runs on.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Step times.
    pub step_time: Arc<dyn StepTime>,
    /// Host time around the steps; none with stated costs.
    pub host: HostTimes,
    /// Batches that the step times were fitted to; `None` with stated costs.
    pub hull: Option<Hull>,
}

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

/// Reads a fit and says what it knows of its machine.
///
/// # Errors
/// [`InputError`] when it is not there or is no fit.
pub fn load(path: &Path) -> Result<Machine, InputError> {
    of_fit(&Fit::read(path)?, path)
}

/// The machine of a fit; `path` is where it was read from, for errors.
///
/// # Errors
/// [`InputError`] when a parameter is out of range.
pub fn of_fit(fit: &Fit, path: &Path) -> Result<Machine, InputError> {
    Ok(Machine {
        step_time: Arc::new(fit.model(path)?),
        host: host_times(fit, path)?,
        hull: Some(fit.hull.clone()),
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
    let or_like_the_first = |field: &str, seconds: Option<f64>| match seconds {
        Some(s) => duration(field, s),
        None => Ok(add_request),
    };
    Ok(HostTimes {
        add_request,
        add_further_request: or_like_the_first("host.add_further_request_s", fit.host.add_further_request_s)?,
        add_request_idle: or_like_the_first("host.add_request_idle_s", fit.host.add_request_idle_s)?,
        between_steps: duration("host.between_steps_s", fit.host.between_steps_s)?,
    })
}
