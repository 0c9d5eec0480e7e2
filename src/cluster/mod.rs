//! The parts of a cluster as deterministic state machines: they know no event queue, no engine and no file.

pub mod router;
