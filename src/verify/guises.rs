//! What a fit predicts with, for one run: the best model, and as many others as agree with the data about as well.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::interval::speed_factors;
use crate::calibrate::observed_capture::{ServedDefaults, deployment_of};
use crate::calibrate::step_shift_of;
use crate::calibrate::{Capture, ClockSide};
use crate::engine::vllm::Behaviour;
use crate::input::InputError;
use crate::scenario::machine::{fitted_front_end, front_end, host_times, static_front_end};
use crate::sim::{FrontEnd, HostTimes, Stall};
use crate::steptime::fit_parts::Misfit;
use crate::steptime::hull::axis_names;
use crate::steptime::roofline_fit::RooflineFit;
use crate::steptime::{
    AnyFit, Deployment, Fit, Parameters, Roofline, StaticFit, StaticParameters, StaticStepTime, StepTime,
};
use crate::units::SimDuration;

/// Guises of a fit, beside the best one.
pub const GUISES: usize = 16;
/// Speed error of a run where a linear fit held nothing out that would tell it.
const UNTESTED_SPEED: f64 = 0.05;
/// Relative scatter of a latency beside the speed of its run, where a linear fit tells none.
const UNTESTED_LATENCY: f64 = 0.05;
/// Range of three samples of a normal distribution, in standard deviations: repeats of a trace are three plays.
const RANGE_OF_THREE: f64 = 1.69;
/// Share of what repeats of one trace differ by that is not their speed, which the guises carry already. Of 0, 0.5, 0.7
/// and 1 the one with which intervals of fitted runs, each predicted without its set, hold nearest to 90 % of the
/// measured figures (83, 87, 89 and 91 %; 88 to 92 % for each latency; docs/CALIBRATION.md).
const BESIDE_SPEED: f64 = 0.7;
/// What a device, and a number format, that the fit does not speak for add to the error of the speed. A guess: the
/// spread of kernel efficiencies from device to device (docs/CALIBRATION.md).
const NEW_DEVICE: f64 = 0.15;
const NEW_FORMAT: f64 = 0.10;
/// A degree of tensor or expert parallelism that the fit has not seen, and one whose ranks share a bus: rings over two
/// PCIe hosts differ by a factor of five (docs/CALIBRATION.md, Kernels).
const NEW_SPLIT: f64 = 0.05;
const SHARED_BUS: f64 = 0.6;
/// What batches e times as large as any fitted add: fits that were equal on loads up to 37 % of the seats differed by
/// 10 points at 65 % (a trial with the same data, docs/CALIBRATION.md), which is 0.05 of standard deviation.
const REACH: f64 = 0.05;
/// An engine that schedules otherwise than the fit's: host time that was hidden there, about 1 ms a step, shows here.
const NEW_HOST: f64 = 0.06;
/// Scatter of a figure that no fit has held out, beside the speed of its run.
const UNTESTED_TAIL: f64 = 0.02;
/// The same for the front end and all that is no step time.
const NEW_DEVICE_LATENCY: f64 = 0.2;

/// The model of a machine, in one guise.
#[derive(Debug, Clone)]
pub struct MachineModel {
    /// Step times.
    pub step_time: Arc<dyn StepTime>,
    /// Factor on them.
    pub speed: f64,
    /// Host time around the steps.
    pub host: HostTimes,
    /// The way between clients and engine.
    pub front_end: FrontEnd,
    /// Stalls that the machine caused in this kind of run.
    pub stall: Option<Stall>,
}

/// What a fit of parameters knows, whatever its form.
struct Known<'a, P> {
    draws: Vec<P>,
    misfit: &'a [Misfit],
    hull: Vec<(String, f64, f64)>,
    beyond: BTreeSet<String>,
    /// Share of the deployment's compiled programs that were measured on one just like it.
    measured_share: f64,
}

impl<P> Known<'_, P> {
    fn step_misfit(&self, stat: &str) -> Option<f64> {
        let of = |m: &&Misfit| m.metric == "step" && m.stat == stat;
        self.misfit.iter().find(of).map(|m| m.log_sd)
    }

    /// Standard deviation of the logarithm of the speed of a run on `deployment` as a whole.
    fn speed_log_sd(&self, deployment: &Deployment) -> f64 {
        let beyond = &self.beyond;
        let kind = if beyond.contains("model") {
            "new_model"
        } else {
            "run"
        };
        let mut speed = self
            .step_misfit(kind)
            .or_else(|| self.step_misfit("any"))
            .unwrap_or(NEW_DEVICE);
        if let Some(measured) = self.step_misfit("measured") {
            speed = self.measured_share * measured + (1.0 - self.measured_share) * speed;
        }
        if beyond.contains("accelerator") {
            speed = speed.hypot(NEW_DEVICE);
        }
        if beyond.contains("dtype") || beyond.contains("kv_dtype") {
            speed = speed.hypot(NEW_FORMAT);
        }
        if ["tp", "ep", "logical_core"]
            .iter()
            .any(|&axis| beyond.contains(axis))
        {
            let shared_bus = deployment.tp > 2 && deployment.accelerator.scaleup_gb_s.is_none();
            speed = speed.hypot(if shared_bus { SHARED_BUS } else { NEW_SPLIT });
        }
        if beyond.contains("pp") {
            speed = speed.hypot(f64::from(deployment.pp).ln());
        }
        if beyond.contains("engine") {
            speed = speed.hypot(NEW_HOST);
        }
        speed
    }
}

/// All guises for one run, and what figures miss by beside.
#[derive(Debug, Clone)]
pub struct Guises {
    /// The best model.
    pub best: MachineModel,
    /// Others.
    pub others: Vec<MachineModel>,
    /// The ranges that the fit has seen, by axis.
    pub hull: Vec<(String, f64, f64)>,
    /// The run is one that the fit was made from: how well it is met says nothing of others.
    pub fitted: bool,
    /// Matters of the deployment that the fit does not speak for: `accelerator`, `dtype`, `tp`, ...
    pub beyond: BTreeSet<String>,
    misfit: Vec<(String, String, f64)>,
    otherwise: f64,
    /// Standard deviation of the logarithm of the speed of the others.
    speed_sd: f64,
    /// What batches e times as large as any seen add to it.
    reach_sd: f64,
}

impl Guises {
    /// For a capture. Accelerator and model of a manifest that names none come from `defaults`.
    ///
    /// # Errors
    /// [`InputError`] when the fit's parameters are unusable, or it needs a device and a model that nothing names.
    pub fn of_capture(
        fit: &AnyFit,
        fit_path: &Path,
        capture: &Capture,
        defaults: &ServedDefaults,
    ) -> Result<Self, InputError> {
        let fitted = match fit {
            AnyFit::Linear(fit) => fit.data.iter().any(|d| d.steps_sha256 == capture.steps_sha256),
            AnyFit::Roofline(fit) => fit.data.iter().any(|d| d.sha256 == capture.steps_sha256),
            AnyFit::StaticShape(_) => false,
        };
        let guises = match fit {
            AnyFit::Linear(fit) => {
                let shift_s = step_shift_of(fit, capture).unwrap_or(0.0);
                let class = capture.manifest.machine.scheduler_class.as_deref();
                let mut guises = Self::linear(fit, fit_path, shift_s, Some(class.unwrap_or("unknown")))?;
                if capture.manifest.clock == ClockSide::Engine {
                    for model in std::iter::once(&mut guises.best).chain(&mut guises.others) {
                        model.front_end = FrontEnd::default();
                    }
                }
                guises
            }
            AnyFit::Roofline(fit) => {
                let engine = capture.engine_config()?;
                let deployment = Deployment {
                    asynchronous: engine.async_scheduling,
                    ..deployment_of(capture, &defaults.or(fit))?
                };
                let client = capture.manifest.clock == ClockSide::Client;
                Self::roofline(fit, fit_path, &deployment, client)?
            }
            AnyFit::StaticShape(_) => {
                return Err(InputError::in_file(
                    fit_path,
                    "knows compiled static shapes, which a capture does not tell",
                )
                .allowed("a fit of steps or of the roofline"));
            }
        };
        Ok(Self { fitted, ..guises })
    }

    /// For no run in particular: no stalls, the speed of the fit.
    ///
    /// # Errors
    /// [`InputError`] when the fit's parameters are unusable.
    pub fn of_linear(fit: &Fit, path: &Path) -> Result<Self, InputError> {
        Self::linear(fit, path, 0.0, None)
    }

    fn linear(fit: &Fit, path: &Path, shift_s: f64, class: Option<&str>) -> Result<Self, InputError> {
        let duration = |field: &str, seconds: f64| {
            SimDuration::try_from_secs_f64(seconds)
                .map_err(|e| InputError::in_file(path, e.to_string()).at(field))
        };
        let stall = match class.and_then(|c| fit.limit(c)) {
            Some(l) => Some(Stall {
                period: duration("stalls.limit.period_s", l.period_s)?,
                busy: duration("stalls.limit.busy_s", l.busy_s)?,
                phase: SimDuration::ZERO,
            }),
            None => None,
        };
        let best = MachineModel {
            step_time: Arc::new(fit.model(path)?.shifted(shift_s)),
            speed: 1.0,
            host: host_times(fit, path)?,
            front_end: fitted_front_end(fit, path)?,
            stall,
        };
        let drawn = fit.drawn_models(path)?;
        let others = speed_factors(GUISES, fit.speed_log_sd().unwrap_or(UNTESTED_SPEED))
            .into_iter()
            .enumerate()
            .map(|(i, speed)| MachineModel {
                step_time: match drawn.get(i % drawn.len().max(1)) {
                    Some(model) => Arc::new(model.shifted(shift_s)),
                    None => best.step_time.clone(),
                },
                speed,
                ..best.clone()
            })
            .collect();
        Ok(Self {
            best,
            others,
            hull: fit
                .hull
                .ranges
                .iter()
                .map(|r| (r.axis.clone(), r.low, r.high))
                .collect(),
            fitted: false,
            beyond: BTreeSet::new(),
            misfit: fit
                .repeats
                .iter()
                .map(|r| {
                    let sd = BESIDE_SPEED * r.spread / RANGE_OF_THREE;
                    (r.metric.clone(), r.stat.clone(), sd)
                })
                .collect(),
            otherwise: UNTESTED_LATENCY,
            speed_sd: 0.0,
            reach_sd: 0.0,
        })
    }

    /// For a deployment, as a client sees it or at the engine.
    ///
    /// # Errors
    /// [`InputError`] when the device's profile lacks a figure that step times need.
    pub fn roofline(
        fit: &RooflineFit,
        path: &Path,
        deployment: &Deployment,
        client: bool,
    ) -> Result<Self, InputError> {
        let model = |parameters: Parameters, speed: f64| -> Result<MachineModel, InputError> {
            let roofline = Roofline::new(deployment.clone(), parameters)
                .map_err(|e| InputError::in_file(path, e.to_string()).at("accelerator"))?;
            Ok(MachineModel {
                step_time: Arc::new(roofline),
                speed,
                host: HostTimes::default(),
                front_end: if client {
                    front_end(&parameters)
                } else {
                    FrontEnd::default()
                },
                stall: None,
            })
        };
        let mut beyond = fit.beyond(deployment);
        if other_host(fit, deployment) {
            beyond.insert("engine".to_owned());
        }
        let known = Known {
            draws: fit.parameter_draws(),
            misfit: &fit.misfit,
            hull: fit.hull.iter().map(|r| (r.axis.clone(), r.low, r.high)).collect(),
            beyond,
            measured_share: 0.0,
        };
        Self::drawn(known, fit.values(), deployment, model)
    }

    /// For a deployment with static shapes, as a client sees it or at the engine.
    ///
    /// # Errors
    /// [`InputError`] when the deployment has none, or the device's profile lacks a figure that step times need.
    pub fn static_shape(
        fit: &StaticFit,
        path: &Path,
        deployment: &Deployment,
        client: bool,
    ) -> Result<Self, InputError> {
        let model = |parameters: StaticParameters, speed: f64| -> Result<MachineModel, InputError> {
            let times = StaticStepTime::new(deployment, parameters, &fit.programs)
                .map_err(|e| InputError::in_file(path, e.to_string()).at("system"))?;
            Ok(MachineModel {
                step_time: Arc::new(times),
                speed,
                host: HostTimes::default(),
                front_end: if client {
                    static_front_end(&parameters)
                } else {
                    FrontEnd::default()
                },
                stall: None,
            })
        };
        let times = StaticStepTime::new(deployment, fit.values(), &fit.programs)
            .map_err(|e| InputError::in_file(path, e.to_string()).at("system"))?;
        let derived = times.derived_programs().count() as f64 / times.programs().max(1) as f64;
        let known = Known {
            measured_share: 1.0 - derived,
            draws: fit.parameter_draws(),
            misfit: &fit.misfit,
            // A batch is padded to a compiled shape, so it leaves what was seen only as its deployment does.
            hull: axis_names().map(|axis| (axis.to_owned(), 0.0, f64::MAX)).to_vec(),
            beyond: fit.beyond(deployment),
        };
        Self::drawn(known, fit.values(), deployment, model)
    }

    /// Guises from parameter draws and from speeds that scatter as left-out runs did.
    fn drawn<P: Copy>(
        known: Known<'_, P>,
        best: P,
        deployment: &Deployment,
        model: impl Fn(P, f64) -> Result<MachineModel, InputError>,
    ) -> Result<Self, InputError> {
        let speed = known.speed_log_sd(deployment);
        let beyond = known.beyond;
        let others = speed_factors(GUISES, speed)
            .into_iter()
            .enumerate()
            .map(|(i, factor)| {
                let parameters = known.draws.get(i % known.draws.len().max(1)).copied();
                model(parameters.unwrap_or(best), factor)
            })
            .collect::<Result<_, _>>()?;
        let wider = if beyond.contains("accelerator") {
            NEW_DEVICE_LATENCY
        } else {
            0.0
        };
        let misfit = known.misfit.iter().filter(|m| m.metric != "step").map(|m| {
            let sd = if m.metric == "ttft_s" {
                m.log_sd.hypot(wider)
            } else {
                m.log_sd
            };
            (m.metric.clone(), m.stat.clone(), sd)
        });
        Ok(Self {
            best: model(best, 1.0)?,
            others,
            hull: known.hull,
            fitted: false,
            beyond,
            misfit: misfit.collect(),
            otherwise: UNTESTED_TAIL,
            speed_sd: speed,
            reach_sd: REACH,
        })
    }

    /// The others for a run whose steps reach beyond what the fit has seen by the logarithm `reach`: fits that are almost
    /// equal on fitted loads differ by several percent at twice the load.
    pub fn others_at(&self, reach: f64) -> Vec<MachineModel> {
        let further = self.reach_sd * reach.max(0.0);
        let wider = if self.speed_sd > 0.0 {
            self.speed_sd.hypot(further) / self.speed_sd
        } else {
            1.0
        };
        self.others
            .iter()
            .map(|other| MachineModel {
                speed: other.speed.powf(wider),
                ..other.clone()
            })
            .collect()
    }

    /// As [`Guises::others_at`], only the first `n`, their speeds spread out to as much as those of all.
    pub fn fewer_at(&self, reach: f64, n: usize) -> Vec<MachineModel> {
        let mut others = self.others_at(reach);
        let spread = |models: &[MachineModel]| {
            let squares: f64 = models.iter().map(|m| m.speed.ln().powi(2)).sum();
            (squares / models.len().max(1) as f64).sqrt()
        };
        let whole = spread(&others);
        if n < others.len() {
            others.truncate(n);
            let part = spread(&others);
            if part > 0.0 {
                others
                    .iter_mut()
                    .for_each(|m| m.speed = m.speed.powf(whole / part));
            }
        }
        others
    }

    /// Relative scatter of a figure beside that of the speed of its run.
    pub fn misfit(&self, metric: &str, stat: &str) -> f64 {
        let of = |stat: &str| {
            self.misfit
                .iter()
                .find(|(m, s, _)| m == metric && s == stat)
                .map(|(_, _, sd)| *sd)
        };
        // A figure that was not held out is taken to scatter like the widest of its metric's that were.
        let widest = || {
            self.misfit
                .iter()
                .filter(|(m, ..)| m == metric)
                .map(|(_, _, sd)| *sd)
                .reduce(f64::max)
        };
        of(stat)
            .or_else(|| of("any"))
            .or_else(widest)
            .unwrap_or(self.otherwise)
    }
}

/// The fit's engines hide host time behind the device where this deployment does not, or the other way round.
fn other_host(fit: &RooflineFit, deployment: &Deployment) -> bool {
    let mut known = fit
        .speaks_for
        .engines
        .iter()
        .filter_map(|e| Behaviour::of(e.strip_prefix("vllm ")?).ok())
        .peekable();
    known.peek().is_some() && known.all(|b| b.async_by_default != deployment.asynchronous)
}

#[cfg(test)]
#[path = "guises_tests.rs"]
mod tests;
