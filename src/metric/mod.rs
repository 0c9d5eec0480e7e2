//! Metrics out of raw events: what each means is in `docs/METRICS.md`.
//!
//! Everything here works on a [`crate::record::RunRecord`] alone, so simulated runs and imported live runs
//! go through the same code.

mod bins;
pub mod cost;
pub mod diagnose;
pub mod energy;
pub mod export;
pub mod fairness;
pub mod funnel;
pub mod gauges;
pub mod goodput;
pub mod latency;
pub mod lens;
pub mod little;
mod moments;
pub mod percentile;
pub mod saturation;
pub mod scrape;
mod select;
pub mod streamed;
pub mod summary;
mod tally;
pub mod tokens;
pub mod tool;
pub mod vllm_bench;
pub mod window;

pub use diagnose::{Diagnosis, Verdict};
pub use funnel::Funnel;
pub use goodput::{Slo, SloReport};
pub use percentile::{Sample, Stats, Unit};
pub use saturation::ArrivalSpan;
pub use streamed::StreamedSummary;
pub use summary::{Summary, SummaryOptions};
pub use window::Window;

#[cfg(test)]
pub(crate) mod fixture;
