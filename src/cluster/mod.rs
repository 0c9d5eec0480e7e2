//! The parts of a cluster as deterministic state machines: they know no event queue, no engine and no file.

pub mod fault;
pub mod lifecycle;
pub mod link;
pub mod ratio;
pub mod topology;
