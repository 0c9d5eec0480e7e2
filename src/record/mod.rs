//! Records of runs: raw events, gauges, and the run folder.

pub mod bundle;
pub mod events;
pub mod full;
pub mod import;
pub mod recorder;

pub use events::{ReplicaRecord, RequestRecord, RunRecord, Segment, Status, TokenLog};
pub use recorder::{Chunk, Recorder, ReplicaTotals, StepRun};
