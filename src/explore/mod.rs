//! Many runs: sweeps over configurations, the search for capacity, and the knee.

pub mod capacity;
pub mod knee;
