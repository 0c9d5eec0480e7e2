//! The vLLM V1 engine, step for step. Rule numbers (S, K) are those of the project's vLLM specification.

mod admission;
mod budget;
mod config;
mod legs;
#[cfg(test)]
mod legs_tests;
mod output;
#[cfg(test)]
mod pipeline_tests;
mod queue;
mod repeat;
mod request;
mod running;
mod scheduler;
mod steady;
#[cfg(test)]
mod tests;
pub mod version;

pub use config::{DP_SYNC_INTERVAL, Policy, SchedulerClass, VllmConfig};
pub(in crate::engine) use scheduler::View;
pub use scheduler::{Pause, VllmEngine};
pub use version::Behaviour;
