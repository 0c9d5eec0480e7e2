//! 90 % intervals of a scenario's figures: the plan run in every guise of its fit.

use std::sync::Arc;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guises::{GUISES, Guises, MachineModel};
use super::interval::interval;
use super::watch::{Scaled, Watch};
use crate::calibrate::repeats::figures;
use crate::explore::study::{Study, StudyError, StudyRun};
use crate::input::InputError;
use crate::scenario::Plan;
use crate::scenario::machine::Machine;
use crate::scenario::plan::StepTimeSource;
use crate::steptime::{AnyFit, BatchShape, Deployment, StepTime};
use crate::units::SimDuration;

mod capacity;
mod cluster;
mod figures;
mod pools;

pub use capacity::capacity_interval;

/// A predicted figure with what is not known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PredictedFigure {
    /// Name with its unit.
    pub metric: String,
    /// `mean`, `p50`, `p90`, `p99`, or `value`.
    pub stat: String,
    /// Simulated; null without a sample.
    pub predicted: Option<f64>,
    /// Lower end of the 90 % interval.
    pub lo: Option<f64>,
    /// Upper end.
    pub hi: Option<f64>,
    /// Matters on which the run leaves what the fit has seen; empty inside.
    pub extrapolated: Vec<String>,
}

/// In how many guises a run is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Draws {
    /// As many as there are; of a cluster's run fewer or none where it is large.
    #[default]
    Auto,
    /// In none: no intervals.
    Off,
    /// In so many, from [`FEWEST_DRAWS`] to [`GUISES`].
    Of(u8),
}

/// Fewer draws say nothing of the ends of an interval.
pub const FEWEST_DRAWS: u8 = 8;

/// What a scenario's figures come to in the guises of its fits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prediction {
    /// The figures; none where there are no intervals.
    pub figures: Vec<PredictedFigure>,
    /// Guises beside the best one that they come from.
    pub draws: usize,
    /// What there is to say of them, or why there are none.
    pub notes: Vec<String>,
}

impl Prediction {
    /// No intervals.
    fn none(why: impl Into<String>) -> Self {
        Self {
            notes: vec![format!("no intervals: {}", why.into())],
            ..Self::default()
        }
    }
}

/// Why stated step times have no interval.
const STATED: &str = "step times are stated, not fitted, and are taken at their word";

/// Intervals of the figures of `run`, the plan's first replication; none where the plan states its costs: they are
/// taken at their word.
///
/// # Errors
/// [`StudyError`] when a fit cannot be read or the best guise cannot be run.
pub fn predicted(plan: &Plan, run: &StudyRun, draws: Draws) -> Result<Prediction, StudyError> {
    if draws == Draws::Off {
        return Ok(Prediction::none("they were not asked for"));
    }
    if plan.is_cluster() {
        return cluster::predicted(plan, run, draws);
    }
    let Some(guises) = guises_of(&plan.step_time_source, plan.deployment(), plan.origin())? else {
        return Ok(Prediction::none(STATED));
    };
    let watch = Arc::new(Watch::of(&guises));
    Study::on(machine(&guises.best, Some(watch.clone())), plan.clone()).run(0)?;
    let drawn = match draws {
        Draws::Of(n) => usize::from(n),
        Draws::Auto | Draws::Off => GUISES,
    };
    let others = guises
        .fewer_at(watch.reach(), drawn)
        .par_iter()
        .map(|other| {
            let study = Study::on(machine(other, None), plan.clone());
            study.run(0).map(|r| figures(&r.summary))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut extrapolated = watch.left();
    extrapolated.extend(guises.beyond.iter().cloned());
    let predicted = figures(&run.summary)
        .into_iter()
        .enumerate()
        .map(|(i, f)| {
            let drawn: Vec<f64> = others.iter().filter_map(|o| o[i].value).collect();
            let within = f
                .value
                .and_then(|v| interval(v, &drawn, guises.misfit(f.metric, f.stat)));
            PredictedFigure {
                metric: f.metric.to_owned(),
                stat: f.stat.to_owned(),
                predicted: f.value,
                lo: within.map(|w| w.0),
                hi: within.map(|w| w.1),
                extrapolated: extrapolated.clone(),
            }
        })
        .collect();
    Ok(Prediction {
        figures: predicted,
        draws: others.len(),
        notes: Vec::new(),
    })
}

/// The guises of the fit that step times come from; `None` where they are stated.
fn guises_of(
    source: &StepTimeSource,
    deployment: Option<&Deployment>,
    origin: &str,
) -> Result<Option<Guises>, InputError> {
    let StepTimeSource::Fit(path) = source else {
        return Ok(None);
    };
    let guises = match (AnyFit::read(path)?, deployment) {
        (AnyFit::Linear(fit), _) => Guises::of_linear(&fit, path)?,
        (AnyFit::Roofline(fit), Some(deployment)) => Guises::roofline(&fit, path, deployment, true)?,
        (AnyFit::StaticShape(fit), Some(deployment)) => Guises::static_shape(&fit, path, deployment, true)?,
        (AnyFit::Roofline(_) | AnyFit::StaticShape(_), None) => {
            return Err(InputError::new(origin, "names no model and accelerator").at("system"));
        }
    };
    Ok(Some(guises))
}

/// A guise as the machine of a plan.
fn machine(model: &MachineModel, watch: Option<Arc<Watch>>) -> Machine {
    Machine {
        step_time: Arc::new(Guise {
            model: model.clone(),
            watch,
        }),
        host: model.host,
        front_end: model.front_end,
        hull: None,
        limitations: Vec::new(),
        carried_over: Vec::new(),
        derived_programs: None,
    }
}

/// The step times of a guise at its speed, watched or not.
#[derive(Debug)]
struct Guise {
    model: MachineModel,
    watch: Option<Arc<Watch>>,
}

impl Guise {
    fn scaled(&self) -> Scaled<'_> {
        Scaled {
            inner: self.model.step_time.as_ref(),
            factor: self.model.speed,
            watch: self.watch.as_deref(),
        }
    }
}

impl StepTime for Guise {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        self.scaled().duration(batch)
    }

    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        self.scaled().durations(batch, out);
    }

    fn wrapped(&self) -> Option<&dyn StepTime> {
        Some(self.model.step_time.as_ref())
    }

    fn observe(&self, batch: &BatchShape, steps: u32) {
        self.scaled().observe(batch, steps);
    }
}
