//! From measurements to step-time models: captures in, fits out.

pub mod actual;
pub mod manifest;
pub mod observe;
mod rows;
mod table;

pub use manifest::{CaptureManifest, CaptureMode};
pub use observe::{Capture, find_captures, is_capture};
pub use rows::{CaptureRequest, CaptureStep, WorkRow};
