//! Many runs: sweeps over configurations, the search for capacity, and the knee.

pub mod capacity;
pub mod grid;
pub mod knee;
mod limits;
pub mod load;
pub mod published;
mod stranded;
pub mod study;
pub mod sweep;
mod watched;

pub use limits::limits_of;
