//! The world: clock, clients, router and replicas. Knows no file format.

pub mod kernel;
mod replica;
mod router;
mod stall;
mod world;

pub use stall::Stall;
pub use world::{HostTimes, LoadModel, SimError, WorldConfig, run};
