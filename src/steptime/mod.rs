//! How long one engine step takes.

pub mod any_fit;
pub mod batch;
pub mod collective;
pub mod deployment;
pub mod fit_file;
pub mod fitted;
pub mod graphs;
pub mod hull;
pub mod linear;
pub mod parameters;
pub mod roofline;
pub mod roofline_fit;
pub mod seal;

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

use crate::units::SimDuration;

/// A step-time model.
pub trait StepTime: Send + Sync + std::fmt::Debug {
    /// Duration of a step that computes `batch`. Called for non-empty batches only.
    fn duration(&self, batch: &BatchShape) -> SimDuration;

    /// Durations of steps that repeat `batch`.
    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        let mut shape = batch.clone();
        for d in out {
            *d = self.duration(&shape);
            shape.advance(1);
        }
    }

    /// Wants rows.
    fn needs_decode_rows(&self) -> bool {
        true
    }

    /// Told of each step.
    fn observe(&self, batch: &BatchShape, steps: u32) {
        let _ = (batch, steps);
    }
}
