//! 90 % intervals of a scenario's figures: the plan run in every guise of its fit.

use std::sync::Arc;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guises::{Guises, MachineModel};
use super::interval::interval;
use super::watch::{Scaled, Watch};
use crate::calibrate::repeats::figures;
use crate::explore::study::{Study, StudyError, StudyRun};
use crate::input::InputError;
use crate::scenario::Plan;
use crate::scenario::machine::Machine;
use crate::scenario::plan::StepTimeSource;
use crate::steptime::{AnyFit, BatchShape, StepTime};
use crate::units::SimDuration;

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

/// Intervals of the figures of `run`, the plan's first replication. `None` where the plan states its costs: they are
/// taken at their word.
///
/// # Errors
/// [`StudyError`] when the fit cannot be read or a guise cannot be run.
pub fn predicted(plan: &Plan, run: &StudyRun) -> Result<Option<Vec<PredictedFigure>>, StudyError> {
    let StepTimeSource::Fit(path) = &plan.step_time_source else {
        return Ok(None);
    };
    if plan.is_cluster() {
        // A guise is one machine's; pools may have several.
        return Ok(None);
    }
    let guises = match (AnyFit::read(path)?, plan.deployment()) {
        (AnyFit::Linear(fit), _) => Guises::of_linear(&fit, path)?,
        (AnyFit::Roofline(fit), Some(deployment)) => Guises::roofline(&fit, path, deployment, true)?,
        (AnyFit::StaticShape(fit), Some(deployment)) => Guises::static_shape(&fit, path, deployment, true)?,
        (AnyFit::Roofline(_) | AnyFit::StaticShape(_), None) => {
            return Err(InputError::new(plan.origin(), "names no model and accelerator")
                .at("system")
                .into());
        }
    };
    let watch = Arc::new(Watch::of(&guises));
    Study::on(machine(&guises.best, Some(watch.clone())), plan.clone()).run(0)?;
    let others = guises
        .others_at(watch.reach())
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
    Ok(Some(predicted))
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
