//! The world: clock, clients, router and replicas. Knows no file format.

mod front;
mod host;
pub mod kernel;
mod replica;
mod router;
mod stall;
mod world;

pub use front::FrontEnd;
pub use host::HostTimes;
pub use stall::Stall;
pub use world::{LoadModel, SimError, WorldConfig, run};
