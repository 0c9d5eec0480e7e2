//! What the user wrote, resolved into a plan: every value known, checked, and with its source.
//!
//! `schema` is the file as written; `overrides` puts `--set` values into it; `engine`, `load`, `work`, `synthetic`
//! `cluster` and `resolve` fill and check its sections; `plan` holds the outcome, `requests` draws from it.

mod check;
mod client;
pub mod cluster;
mod deployment;
mod engine;
mod load;
pub mod machine;
pub mod neuron;
mod overrides;
pub mod plan;
pub mod provenance;
pub mod quantity;
mod requests;
pub mod resolve;
pub mod schema;
mod synthetic;
mod system;
mod work;

pub use machine::Machine;
pub use overrides::Override;
pub use plan::{Plan, Resolved, StepTimeSource};
pub use provenance::Source;
pub use requests::PlanRequests;
pub use resolve::{Axis, Measurement, SHORTEST_SCRAPE, SloTargets};
pub use schema::{Role, Scenario};
pub use system::{ResolvedSystem, resolve_system};
