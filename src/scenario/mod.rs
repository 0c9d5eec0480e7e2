//! What the user wrote, resolved into a plan: every value known, checked, and with its source.
//!
//! `schema` is the file as written; `overrides` puts `--set` values into it; `engine`, `work` and `resolve`
//! fill and check its sections; `plan` holds the outcome.

mod check;
mod deployment;
mod engine;
pub mod machine;
pub mod overrides;
pub mod plan;
pub mod provenance;
pub mod quantity;
pub mod resolve;
pub mod schema;
mod system;
mod trace_check;
mod work;

pub use machine::Machine;
pub use overrides::Override;
pub use plan::{Plan, Resolved, StepTimeSource};
pub use provenance::Source;
pub use resolve::{Axis, Measurement, SloTargets};
pub use schema::Scenario;
pub use system::{ResolvedSystem, resolve_system};
