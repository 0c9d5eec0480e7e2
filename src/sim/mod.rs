//! The world: clock, clients, router and replicas. Knows no file format.

mod client;
mod error;
pub mod fleet;
mod front;
mod host;
pub mod kernel;
mod leap;
mod live;
mod replica;
mod router;
mod run;
mod stall;
mod world;

pub use client::{ClientKind, ClientMachine, Clients};
pub use error::SimError;
pub use front::FrontEnd;
pub use host::HostTimes;
pub use run::{StreamError, Told, run, run_at, run_streamed};
pub use stall::Stall;
pub use world::{LoadModel, Pace, WorldConfig};
