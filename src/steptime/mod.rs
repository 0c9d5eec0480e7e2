//! How long one engine step takes.

pub mod any_fit;
pub(crate) mod attention;
pub mod batch;
pub mod collective;
pub mod deployment;
pub mod fit_file;
pub mod fit_parts;
pub mod fitted;
pub mod graphs;
pub mod hull;
pub mod linear;
pub mod neuron_link;
pub mod param_table;
pub mod parameters;
pub mod roofline;
pub mod roofline_fit;
pub mod seal;
pub mod stages;
mod static_check;
pub mod static_fit;
pub mod static_parameters;
pub mod static_roofline;
pub mod static_shape;
pub mod static_time;

pub use any_fit::AnyFit;
pub use batch::{BatchShape, RowShape};
pub use deployment::{ComputeClass, Deployment, KvDtype, WeightDtype};
pub use fit_file::Fit;
pub use fitted::FittedStepTime;
pub use graphs::{CaptureSizes, GraphMode, StepMode};
pub use hull::Hull;
pub use linear::LinearStepTime;
pub use parameters::{Param, Parameters};
pub use roofline::Roofline;
pub use roofline_fit::RooflineFit;
pub use static_fit::{MeasuredProgram, StaticFit};
pub use static_parameters::{StaticParam, StaticParameters};
pub use static_roofline::StaticRoofline;
pub use static_shape::{Program, StaticShapes};
pub use static_time::StaticStepTime;

use crate::units::SimDuration;

/// A step-time model.
pub trait StepTime: Send + Sync + std::fmt::Debug {
    /// Duration of a step that computes `batch`. Called for non-empty batches only, and perhaps for steps that are
    /// not taken in the end: what is taken is told to [`Self::observe`].
    fn duration(&self, batch: &BatchShape) -> SimDuration;

    /// Durations of a run of steps: `out[k]` of the batch advanced by `k` ([`BatchShape::advance`]), to the same
    /// nanosecond as [`Self::duration`] of it.
    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        let mut batch = batch.clone();
        for duration in out {
            *duration = self.duration(&batch);
            batch.advance(1);
        }
    }

    /// The model that this one wraps, if it wraps one: what a wrapper does not say itself, that one does.
    fn wrapped(&self) -> Option<&dyn StepTime> {
        None
    }

    /// Costs of decodes of one token each do not follow from their sums: they must be listed in the batch.
    fn needs_decode_rows(&self) -> bool {
        self.wrapped().is_some_and(|inner| inner.needs_decode_rows())
    }

    /// How a step's duration is shared by the stages of its pipeline, in their order, written into `shares` (cleared first)
    /// as weights of any unit (rule S68). None is written by models that do not know layers: their stages are equal.
    fn stage_shares(&self, batch: &BatchShape, shares: &mut Vec<u64>) {
        match self.wrapped() {
            Some(inner) => inner.stage_shares(batch, shares),
            None => shares.clear(),
        }
    }

    /// Told once for every step that is really taken, in their order on each replica: `steps` of them, the first of
    /// `batch`, each later one of the batch advanced by one more.
    fn observe(&self, batch: &BatchShape, steps: u32) {
        if let Some(inner) = self.wrapped() {
            inner.observe(batch, steps);
        }
    }
}

#[cfg(test)]
#[path = "runs_tests.rs"]
mod runs_tests;
