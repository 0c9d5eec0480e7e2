//! How good a fit is on captures it has not seen, batch for batch: no simulation, the recorded batches decide.

use serde::Serialize;

use super::observe::Capture;
use super::{errors, fit_steps, stalls};
use crate::steptime::FittedStepTime;
use crate::steptime::fit_file::{Fit, StepError};

/// A fit against one capture.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct RunCheck {
    /// The run.
    pub run: String,
    /// Relative errors of the steps in which the machine did not stall.
    #[serde(flatten)]
    pub error: StepError,
    /// Error of the summed step time when the prediction is shifted by the run's speed probe.
    pub sum_with_probe: Option<f64>,
    /// Steps whose batch lies outside of what the fit has seen.
    pub outside_hull: u64,
    /// Recorded stalls in all, in seconds.
    pub stalled_s: f64,
    /// Stalls that the fit's rule for the run's scheduling class predicts, in seconds.
    pub predicted_stall_s: Option<f64>,
    /// Length of the run in seconds.
    pub duration_s: f64,
}

/// Checks a fit, whose model is `model`, against a capture.
pub fn check_run(fit: &Fit, model: &FittedStepTime, capture: &Capture) -> RunCheck {
    let run = fit_steps::usable_steps(capture);
    let scaled = fit_steps::step_shift_of(fit, capture).map(|s| model.shifted(s));
    let class = capture
        .manifest
        .machine
        .scheduler_class
        .as_deref()
        .unwrap_or("unknown");
    RunCheck {
        run: capture.name.clone(),
        error: errors::of_run(model, &run),
        sum_with_probe: scaled.map(|m| errors::of_run(&m, &run).sum),
        outside_hull: run.batches.iter().filter(|b| !fit.hull.contains(b)).count() as u64,
        stalled_s: capture.steps.iter().map(stalls::stall_s).sum(),
        predicted_stall_s: fit.limit(class).map(|l| stalls::predicted_stall_s(capture, &l)),
        duration_s: capture.manifest.duration_s,
    }
}
