//! The parts of a cluster: pure, deterministic state machines that know no event queue, no engine and no file.

pub mod autoscale;
pub mod rollout;
