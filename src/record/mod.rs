//! Records of runs: raw events, gauges, and the run folder.

pub mod bundle;
pub mod cluster;
pub mod events;
pub mod full;
pub mod import;
pub mod recorder;
pub mod replay;
pub mod scrape;
pub mod segments;

pub use cluster::{ClusterRecord, DummySteps, GroupRecord, JobRecord, TimelineEvent};
pub use events::{LivelockSince, ReplicaRecord, RequestRecord, RunRecord, Status, TokenLog};
pub use full::{Busy, FullRecorder, ReplicaTotals};
pub use recorder::{Chunk, Recorder, StepRun};
pub use replay::{NotReplayable, Telling, replay};
pub use scrape::Scrape;
pub use segments::{Segment, Segments};
