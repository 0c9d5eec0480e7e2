//! From measurements to step-time models: captures in, fits out.

pub mod actual;
mod assume;
mod bootstrap;
pub mod check;
pub mod dataset;
mod errors;
pub mod fit_programs;
pub mod fit_roofline_steps;
pub mod fit_runs;
pub mod fit_steps;
pub mod front_end;
mod host;
pub mod import;
pub mod kernels;
pub mod manifest;
pub mod nnls;
pub mod observe;
pub mod observed;
pub mod observed_capture;
mod outside;
mod plausible;
pub mod points;
pub mod posterior;
pub mod programs;
pub mod repeats;
pub mod robust;
pub mod roofline_file;
mod rows;
mod scatter;
mod served;
pub mod stalls;
mod table;
#[cfg(test)]
mod test_data;

pub use assume::TimeUnit;
pub use check::{RunCheck, check_run};
pub use fit_steps::{FitError, FitOptions, fit_steps, step_shift_of};
pub use front_end::{FrontEndFit, front_end_of, front_end_over, front_end_times};
pub use manifest::{CaptureManifest, CaptureMode, ClockSide, OfferedLoad, OfferedModel, Served};
pub use observe::{Capture, find_captures, is_capture, read_captures};
pub use outside::OuterTimes;
pub use rows::{CaptureRequest, CaptureStep, WorkRow};
