//! A cluster's run: pools of replica groups behind a gateway and routers, with what befalls them.
//!
//! Replicas are those of `sim::replica`. They are advanced when something reaches them or looks at them, not at
//! every step: between two such instants a replica's steps that only repeat are taken at once (`lazy.rs`), so that a
//! cluster costs what happens in it, too. The parts that decide (routers, queues, links, faults, scaling) are those of
//! [`crate::cluster`].

mod config;
mod control;
mod disaggregated;
mod dispatch;
mod ending;
mod faults;
mod gateway;
mod groups;
mod jobs;
mod lazy;
mod push;
mod rollouts;
mod run;
mod waves;
mod world;

pub use config::{
    Fate, FleetConfig, GatewayConfig, PoolConfig, PoolRole, PoolRollout, Recovery, Routing, TransferConfig,
    TransferMode,
};
pub use run::{FleetRun, run, run_recorded, run_streamed};
