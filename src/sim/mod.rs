//! The world: clock, clients, router and replicas. Knows no file format.

pub mod world;

pub use world::{HostTimes, LoadModel, SimError, Stall, WorldConfig, run};
