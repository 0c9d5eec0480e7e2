//! The machine that a plan runs on, and where a fit of it is looked for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::input::InputError;
use crate::profile::{Accelerator, catalog};
use crate::sim::{FrontEnd, HostTimes};
use crate::steptime::fit_parts::SpeaksFor;
use crate::steptime::hull::{AxisRange, axis_names};
use crate::steptime::roofline_fit::Door;
use crate::steptime::{
    AnyFit, Deployment, Fit, Hull, Param, Parameters, Roofline, RooflineFit, StaticFit, StaticParam,
    StaticParameters, StaticStepTime, StepTime,
};
use crate::units::SimDuration;

/// The machine that a plan runs on.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Step times.
    pub step_time: Arc<dyn StepTime>,
    /// Host time around the steps; none with stated costs.
    pub host: HostTimes,
    /// The way between clients and engine, where the fit knows it.
    pub front_end: FrontEnd,
    /// Batches that the step times were fitted to; `None` with stated costs.
    pub hull: Option<Hull>,
    /// What results on this machine must say about their limits.
    pub limitations: Vec<String>,
    /// What of the deployment the fit does not speak for (`tp`, `dtype`, …): its step times are carried over.
    pub carried_over: Vec<String>,
    /// Of static shapes: compiled programs that were not measured on such a deployment, and all.
    pub derived_programs: Option<[u64; 2]>,
}

/// The folder of fits in the current one.
fn fits_here() -> PathBuf {
    Path::new("calibration").join("fits")
}

/// The folders that hold fits, from the one beside the scenario upward; then that of the current folder.
fn fit_folders(base: &Path) -> impl Iterator<Item = PathBuf> {
    let relative = Path::new("calibration").join("fits");
    let absolute = std::path::absolute(base).unwrap_or_else(|_| base.to_owned());
    let above: Vec<PathBuf> = absolute
        .ancestors()
        .map(|folder| folder.join(&relative))
        .collect();
    above
        .into_iter()
        .chain([relative])
        .filter(|folder| folder.is_dir())
}

/// The fits of a folder by their files' names, in order.
fn names_in(folder: &Path) -> BTreeSet<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect()
}

fn is_path(name: &str) -> bool {
    name.contains(['/', '\\']) || name.ends_with(".yaml")
}

/// The file of a fit: a path as it is, a name as `calibration/fits/NAME.yaml` in the scenario's folder, the
/// nearest folder above that has it, or the current one.
pub fn locate(name: &str, base: &Path) -> PathBuf {
    if is_path(name) {
        return base.join(name);
    }
    let file = format!("{name}.yaml");
    fit_folders(base)
        .map(|folder| folder.join(&file))
        .find(|path| path.is_file())
        .unwrap_or_else(|| fits_here().join(file))
}

/// Refuses a fit that is not there, as [`locate`] has looked for it, with those that are and the one that was meant.
/// `origin` is who named it.
///
/// # Errors
/// [`InputError`].
pub fn require(name: &str, base: &Path, origin: &str) -> Result<(), InputError> {
    let path = locate(name, base);
    if path.is_file() || is_path(name) {
        // What is wrong with a path is told when it is read.
        return Ok(());
    }
    let known: BTreeSet<String> = fit_folders(base).flat_map(|folder| names_in(&folder)).collect();
    let list: Vec<&str> = known.iter().map(String::as_str).collect();
    let allowed = if list.is_empty() {
        "no folder calibration/fits with one is in the scenario's folder, above it, or here: give a path to a .yaml file"
            .to_owned()
    } else {
        format!(
            "known: {}; auto: the nearest one; or a path to a .yaml file",
            list.join(", ")
        )
    };
    Err(InputError::new(origin, format!("unknown fit '{name}'"))
        .allowed(allowed)
        .nearest_of(&name.to_ascii_lowercase(), list))
}

/// Fits that have been read, kept so that the plans of a sweep do not read them again.
#[derive(Debug, Clone, Default)]
pub struct Fits {
    read: Arc<Mutex<BTreeMap<PathBuf, Arc<AnyFit>>>>,
}

impl Fits {
    pub(super) fn read(&self, path: &Path) -> Result<Arc<AnyFit>, InputError> {
        // Nothing is left half done under the lock, so one that was poisoned holds whole fits.
        let lock = || self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fit) = lock().get(path) {
            return Ok(fit.clone());
        }
        let fit = Arc::new(AnyFit::read(path)?);
        lock().insert(path.to_owned(), fit.clone());
        Ok(fit)
    }
}

/// The word that asks for the nearest shipped fit.
pub const AUTO: &str = "auto";

/// The shipped fit that is nearest to a deployment: one of static shapes where the deployment has them, else one of the
/// roofline; of its accelerator before others, of whole runs
/// before kernels alone, of its number format before others; of other accelerators the one whose bandwidth and bf16
/// rate are nearest. Looked for as in [`locate`].
///
/// # Errors
/// [`InputError`] when there is no folder of fits, or none in it is of the form asked for.
pub fn nearest_fit(deployment: &Deployment, base: &Path) -> Result<PathBuf, InputError> {
    nearest_of(&Fits::default(), deployment, base)
}

pub(super) fn nearest_of(fits: &Fits, deployment: &Deployment, base: &Path) -> Result<PathBuf, InputError> {
    let found = fit_folders(base).next().unwrap_or_else(fits_here);
    let entries = std::fs::read_dir(&found).map_err(|e| {
        InputError::in_file(&found, format!("cannot be listed ({e})"))
            .at("system.fit")
            .allowed("name a fit file, or run from a folder with calibration/fits")
    })?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "yaml"))
        .collect();
    paths.sort();
    let mut best: Option<((u64, bool, bool), PathBuf)> = None;
    for path in paths {
        let fit = fits.read(&path)?;
        let shapes = deployment.static_shapes.is_some();
        let rank = match fit.as_ref() {
            AnyFit::Roofline(fit) if !shapes => {
                let of_kernels = fit.door == Door::Kernels;
                distance(
                    &fit.speaks_for,
                    &fit.beyond(deployment),
                    of_kernels,
                    deployment,
                    base,
                )
            }
            AnyFit::StaticShape(fit) if shapes => {
                distance(&fit.speaks_for, &fit.beyond(deployment), false, deployment, base)
            }
            _ => continue,
        };
        if best.as_ref().is_none_or(|(least, _)| rank < *least) {
            best = Some((rank, path));
        }
    }
    best.map(|(_, path)| path).ok_or_else(|| {
        let form = if deployment.static_shapes.is_some() {
            "static shapes"
        } else {
            "the roofline"
        };
        InputError::in_file(&found, format!("holds no fit of {form}"))
            .at("system.fit")
            .allowed("name a fit file")
    })
}

/// How far a fit is from a deployment; less is nearer.
fn distance(
    speaks: &SpeaksFor,
    beyond: &BTreeSet<String>,
    of_kernels: bool,
    deployment: &Deployment,
    base: &Path,
) -> (u64, bool, bool) {
    let figures = |a: &Accelerator| {
        let bandwidth = a.memory_bandwidth_gb_s.as_ref().map_or(1.0, |f| f.value);
        (bandwidth, a.bf16_tflops.as_ref().map_or(1.0, |f| f.value))
    };
    let (bandwidth, rate) = figures(&deployment.accelerator);
    let apart = speaks
        .accelerators
        .iter()
        .filter_map(|name| catalog::accelerator(name, base).ok())
        .map(|a| {
            let (b, r) = figures(&a);
            // Thousandths, so that the order is one of integers.
            (1e3 * ((b / bandwidth).ln().abs() + (r / rate).ln().abs())) as u64
        })
        .min()
        .unwrap_or(u64::MAX);
    // Of another accelerator the distance counts before all else.
    let other = beyond.contains("accelerator");
    (
        if other { apart.max(1) } else { 0 },
        of_kernels,
        beyond.contains("dtype"),
    )
}

/// Reads a fit of any form and says what it knows of the machine under `deployment`.
///
/// # Errors
/// [`InputError`] when it is not there or is no fit, or when a fit that needs a deployment meets none.
pub(super) fn load(fits: &Fits, path: &Path, deployment: Option<&Deployment>) -> Result<Machine, InputError> {
    match fits.read(path)?.as_ref() {
        AnyFit::Linear(fit) => of_fit(fit, path),
        AnyFit::Roofline(fit) => of_roofline(fit, fit.values(), path, needed(deployment, path)?),
        AnyFit::StaticShape(fit) => of_static_shapes(fit, fit.values(), path, needed(deployment, path)?),
    }
}

fn needed<'a>(deployment: Option<&'a Deployment>, path: &Path) -> Result<&'a Deployment, InputError> {
    deployment.ok_or_else(|| {
        InputError::in_file(
            path,
            "derives step times from physics, which needs a model and an accelerator",
        )
        .at("system")
        .allowed("name profiles under system.model and system.accelerator")
    })
}

/// The machine of a fit of static shapes with these parameters.
///
/// # Errors
/// [`InputError`] when the deployment has no static shapes, or the device's profile lacks a figure that step times
/// need.
pub fn of_static_shapes(
    fit: &StaticFit,
    parameters: StaticParameters,
    path: &Path,
    deployment: &Deployment,
) -> Result<Machine, InputError> {
    let times = StaticStepTime::new(deployment, parameters, &fit.programs)
        .map_err(|e| InputError::in_file(path, e.to_string()).at("system"))?;
    let beyond: Vec<String> = fit.beyond(deployment).into_iter().collect();
    let mut limitations = carried_over(&fit.name, &beyond);
    let derived = times.derived_programs().count();
    let derived_programs = Some([derived as u64, times.programs() as u64]);
    if derived > 0 && !fit.programs.is_empty() {
        limitations.push(format!(
            "{derived} of {} compiled programs were not measured on a deployment like this one; their times are \
             those of the fitted model",
            times.programs()
        ));
    }
    Ok(Machine {
        step_time: Arc::new(times),
        host: HostTimes::default(),
        front_end: static_front_end(&parameters),
        // Batches are padded to compiled shapes: they leave what was seen only as the deployment does.
        hull: None,
        limitations,
        carried_over: beyond,
        derived_programs,
    })
}

/// The front end that the parameters of static shapes describe.
pub fn static_front_end(parameters: &StaticParameters) -> FrontEnd {
    let time = |p: StaticParam| SimDuration::try_from_secs_f64(parameters[p]).unwrap_or_default();
    FrontEnd {
        inbound: time(StaticParam::FrontEndIn),
        outbound: time(StaticParam::FrontEndOut),
        per_output_token: time(StaticParam::ClientTokenTime),
    }
}

/// What results must say where a fit does not speak for a deployment.
fn carried_over(name: &str, beyond: &[String]) -> Vec<String> {
    if beyond.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "step times are carried over (extrapolation): the fit {name} does not speak for this {}; expect errors \
         several times those that it states",
        beyond.join(", ")
    )]
}

/// The machine of a fit of the roofline with these parameters.
///
/// # Errors
/// [`InputError`] when the device's profile lacks a figure that step times need.
pub fn of_roofline(
    fit: &RooflineFit,
    parameters: Parameters,
    path: &Path,
    deployment: &Deployment,
) -> Result<Machine, InputError> {
    let roofline = Roofline::new(deployment.clone(), parameters)
        .map_err(|e| InputError::in_file(path, e.to_string()).at("accelerator"))?;
    let known = axis_names();
    let ranges = fit
        .hull
        .iter()
        .filter(|r| known.contains(&r.axis.as_str()))
        .map(|r| AxisRange {
            axis: r.axis.clone(),
            low: r.low,
            high: r.high,
        })
        .collect();
    let beyond: Vec<String> = fit.beyond(deployment).into_iter().collect();
    let mut limitations = carried_over(&fit.name, &beyond);
    if deployment.static_shapes.is_some() {
        limitations.push(format!(
            "the fit {} is one of devices that compute batches as they are: padding to compiled shapes is not counted",
            fit.name
        ));
    }
    Ok(Machine {
        step_time: Arc::new(roofline),
        host: HostTimes::default(),
        front_end: front_end(&parameters),
        hull: Some(Hull { ranges }),
        limitations,
        carried_over: beyond,
        derived_programs: None,
    })
}

/// The front end that the parameters describe.
pub fn front_end(parameters: &Parameters) -> FrontEnd {
    let time = |p: Param| SimDuration::try_from_secs_f64(parameters[p]).unwrap_or_default();
    FrontEnd {
        inbound: time(Param::FrontEndIn),
        outbound: time(Param::FrontEndOut),
        per_output_token: time(Param::ClientTokenTime),
    }
}

/// The machine of a fit; `path` is where it was read from, for errors.
///
/// # Errors
/// [`InputError`] when a parameter is out of range.
pub fn of_fit(fit: &Fit, path: &Path) -> Result<Machine, InputError> {
    Ok(Machine {
        step_time: Arc::new(fit.model(path)?),
        host: host_times(fit, path)?,
        front_end: fitted_front_end(fit, path)?,
        hull: Some(fit.hull.clone()),
        limitations: Vec::new(),
        carried_over: Vec::new(),
        derived_programs: None,
    })
}

/// The front end of a fit that was read from `path`; none where it has seen no client.
///
/// # Errors
/// [`InputError`] when one is not a time.
pub fn fitted_front_end(fit: &Fit, path: &Path) -> Result<FrontEnd, InputError> {
    let Some(times) = &fit.front_end else {
        return Ok(FrontEnd::default());
    };
    let duration = |field: &str, seconds: f64| {
        SimDuration::try_from_secs_f64(seconds)
            .map_err(|e| InputError::in_file(path, e.to_string()).at(field))
    };
    Ok(FrontEnd {
        inbound: duration("front_end.inbound_s", times.inbound_s)?,
        outbound: duration("front_end.outbound_s", times.outbound_s)?,
        per_output_token: duration("front_end.per_output_token_s", times.per_output_token_s)?,
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
