//! Where step times come from.

use std::path::Path;

use super::StepTimeSource;
use crate::input::InputError;
use crate::scenario::check::Blame;
use crate::scenario::machine::{self, Fits};
use crate::scenario::quantity::Cost;
use crate::scenario::schema::{Scenario, StepTimeCosts};
use crate::steptime::{Deployment, LinearStepTime};

/// The one of `system.fit` and `system.step_time` that is given.
///
/// # Errors
/// [`InputError`] when both or none is, and when all costs are 0.
pub(in crate::scenario) fn step_time_source(
    scenario: &Scenario,
    deployment: Option<&Deployment>,
    (base, fits): (&Path, &Fits),
    blame: &Blame<'_>,
) -> Result<StepTimeSource, InputError> {
    const PATH: &str = "system.step_time";
    match (&scenario.system.fit, &scenario.system.step_time) {
        (Some(_), Some(_)) => Err(blame.error(
            PATH,
            "both system.fit and system.step_time are given",
            "keep one of the two",
        )),
        (None, None) => Err(blame.error(
            PATH,
            "there is no step-time model",
            "name a fit under system.fit (auto: the nearest shipped one), or state costs under system.step_time",
        )),
        (Some(fit), None) if fit == machine::AUTO => match deployment {
            Some(deployment) => Ok(StepTimeSource::Fit(machine::nearest_of(fits, deployment, base)?)),
            None => Err(blame.error(
                "system.fit",
                "auto looks for the fit of a model on an accelerator, but one of them is not named",
                "name both under system",
            )),
        },
        (Some(fit), None) => Ok(StepTimeSource::Fit(machine::locate(fit, base))),
        (None, Some(costs)) => {
            let model = linear(costs);
            if model == LinearStepTime::default() {
                return Err(blame.error(
                    PATH,
                    "all costs are 0: time would stand still",
                    "give a cost above 0",
                ));
            }
            Ok(StepTimeSource::Linear(model))
        }
    }
}

fn linear(costs: &StepTimeCosts) -> LinearStepTime {
    let ps = |cost: Option<Cost>| cost.map_or(0, |c| c.picos);
    LinearStepTime {
        step_ps: costs.step.picos,
        any_prefill_ps: ps(costs.any_prefill),
        prefill_row_ps: ps(costs.prefill_row),
        prefill_token_ps: ps(costs.prefill_token),
        prefill_context_token_ps: ps(costs.prefill_context_token),
        decode_row_ps: ps(costs.decode_row),
        decode_context_token_ps: ps(costs.decode_context_token),
    }
}
