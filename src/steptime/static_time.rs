//! Step time of static shapes: one number a compiled program, a step the sum of its programs and of the host's part
//! (rules N25, N28, N30, N60).

use std::collections::BTreeMap;

use super::deployment::Deployment;
use super::fitted::step_of;
use super::roofline::MissingFigure;
use super::static_fit::MeasuredProgram;
use super::static_parameters::{StaticParam, StaticParameters};
use super::static_roofline::StaticRoofline;
use super::static_shape::{Program, StaticShapes};
use super::{BatchShape, StepTime};
use crate::units::SimDuration;

/// Why there are no step times.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StaticError {
    /// The deployment has no static shapes.
    #[error("the fit knows compiled static shapes, and this engine has none: name an engine of kind neuron")]
    NoShapes,
    /// The profile lacks a figure.
    #[error(transparent)]
    Missing(#[from] MissingFigure),
}

/// Seconds of one program.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ProgramTime {
    /// On the device.
    device_s: f64,
    /// Sampling on the host.
    sampling_s: f64,
    measured: bool,
}

/// The step times of a deployment with static shapes.
#[derive(Debug, Clone)]
pub struct StaticStepTime {
    shapes: StaticShapes,
    roofline: StaticRoofline,
    programs: BTreeMap<Program, ProgramTime>,
    host_s: f64,
}

impl StaticStepTime {
    /// Times of all programs of a deployment: those of `measured` that were measured on just this deployment, the
    /// others from the roofline under `parameters`.
    ///
    /// # Errors
    /// [`StaticError`] when the deployment has no static shapes, or its accelerator's profile lacks a figure.
    pub fn new(
        deployment: &Deployment,
        parameters: StaticParameters,
        measured: &[MeasuredProgram],
    ) -> Result<Self, StaticError> {
        let shapes = deployment.static_shapes.clone().ok_or(StaticError::NoShapes)?;
        let roofline = StaticRoofline::new(deployment, parameters)?;
        let host_s = parameters[StaticParam::HostStepTime];
        let here: Vec<&MeasuredProgram> = measured.iter().filter(|m| m.is_of(deployment)).collect();
        let programs = shapes
            .all_programs()
            .into_iter()
            .map(|program| {
                let own = here.iter().find(|m| m.program == program);
                let time = ProgramTime {
                    // What was measured is a whole step of a host that waits.
                    device_s: own.map_or_else(
                        || roofline.parts(program).total_s(),
                        |m| (m.seconds - host_s).max(0.0),
                    ),
                    sampling_s: roofline.sampling_s(program),
                    measured: own.is_some(),
                };
                (program, time)
            })
            .collect();
        Ok(Self {
            shapes,
            roofline,
            programs,
            host_s,
        })
    }

    /// How many programs there are.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Programs whose time was not measured on this deployment, in order.
    pub fn derived_programs(&self) -> impl Iterator<Item = Program> + '_ {
        let derived = self.programs.iter().filter(|(_, time)| !time.measured);
        derived.map(|(&program, _)| program)
    }

    /// Seconds of a step that runs one program while the host waits.
    pub fn step_s(&self, program: Program) -> f64 {
        let time = self.time(program);
        time.device_s + time.sampling_s + self.host_s
    }

    fn time(&self, program: Program) -> ProgramTime {
        // Batches run compiled programs alone; others are asked for from outside.
        self.programs
            .get(&program)
            .copied()
            .unwrap_or_else(|| ProgramTime {
                device_s: self.roofline.parts(program).total_s(),
                sampling_s: self.roofline.sampling_s(program),
                measured: false,
            })
    }

    /// The longest row's context was in the same bucket one step before; else another program runs, for which the host
    /// does not work ahead (rule N30).
    fn is_in_bucket_of_step_before(&self, rows: u32, positions: u32) -> bool {
        let program = |positions| self.shapes.token_program(rows, positions);
        program(positions.saturating_sub(1)) == program(positions)
    }

    /// A step of these programs. A host that works ahead hides its part behind a batch that repeats itself; sampling
    /// on the host cannot be hidden, since the next step needs the token.
    fn step(&self, programs: impl Iterator<Item = Program>, repeated: bool) -> SimDuration {
        let (mut device_s, mut sampling_s) = (0.0, 0.0);
        for program in programs {
            let time = self.time(program);
            device_s += time.device_s;
            sampling_s += time.sampling_s;
        }
        let seconds = if repeated && self.shapes.asynchronous {
            device_s.max(self.host_s)
        } else {
            device_s + self.host_s
        };
        step_of(seconds + sampling_s)
    }
}

impl StepTime for StaticStepTime {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        let repeated = batch.repeated == Some(true)
            && self.is_in_bucket_of_step_before(batch.decode_seqs, StaticShapes::longest_decode(batch));
        self.step(self.shapes.programs(batch), repeated)
    }

    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        let one_token_each = batch.decode_tokens == batch.decode_seqs;
        if !batch.prefills.is_empty() || !one_token_each {
            let mut batch = batch.clone();
            for duration in out {
                *duration = self.duration(&batch);
                batch.advance(1);
            }
            return;
        }
        let longest = StaticShapes::longest_decode(batch);
        let (mut done, mut repeated) = (0_u32, batch.repeated == Some(true));
        let mut rest = out;
        while !rest.is_empty() {
            let positions = longest.saturating_add(done);
            let program = self.shapes.token_program(batch.decode_seqs, positions);
            let (first, later) = rest.split_first_mut().expect("not empty");
            let hidden = repeated && self.is_in_bucket_of_step_before(batch.decode_seqs, positions);
            *first = self.step(std::iter::once(program), hidden);
            // Engines that tell of repetition at all tell of it in every later step.
            repeated = batch.repeated.is_some();
            let same = later.len().min(self.shapes.steps_in_bucket(positions) as usize);
            let (same, beyond) = later.split_at_mut(same);
            same.fill(self.step(std::iter::once(program), repeated));
            done = done.saturating_add(1).saturating_add(same.len() as u32);
            rest = beyond;
        }
    }

    fn needs_decode_rows(&self) -> bool {
        true
    }
}

#[cfg(test)]
#[path = "static_time_tests.rs"]
pub(super) mod tests;
