//! Many runs: sweeps over configurations, the search for capacity, and the knee.

mod beyond_need;
pub mod capacity;
pub mod cluster;
pub mod extrapolation;
pub mod grid;
mod group_capacity;
pub mod group_plan;
pub mod knee;
mod limits;
pub mod load;
mod measured;
mod outcome;
pub mod published;
pub mod rollouts;
mod stranded;
pub mod study;
pub mod sweep;
mod unreached;
mod watched;

pub use limits::limits_of;
