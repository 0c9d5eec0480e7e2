//! Kneeboard: the pre-flight for LLM serving.
//!
//! A discrete-event simulator of a serving engine, calibrated by real traces. It schedules step for step as
//! vLLM does, takes step times from a model fitted to measured steps, sweeps configurations, finds the load that
//! each carries at its service-level objective, and names the loads that must be verified on the real machine.
//!
//! # The floors
//!
//! Read the modules from the ground up; each may use those before it, never one after it.
//!
//! [`units`], [`rng`], [`input`], [`yaml`] · [`profile`] · [`workload`] · [`steptime`] · [`kv`] · [`engine`] ·
//! [`cluster`] · [`record`] (plain data) · [`sim`] · [`metric`] · [`scenario`] · [`calibrate`] · [`explore`] · [`verify`] ·
//! [`report`] · [`cli`]
//!
//! # Time and order
//!
//! 1. Simulated time is an integer count of nanoseconds. Floating point enters through checked constructors that
//!    refuse NaN, infinities, negative values and overflow.
//! 2. Events are ordered by (time, class, replica for step ends and else order of scheduling), all integers. At one instant step ends come
//!    first, then faults, transfers, arrivals, control ticks.
//! 3. All events of an instant are handled before any replica acts: an arrival at exactly the moment a step ends
//!    is seen by the next schedule call.
//! 4. Replicas act in the order of their numbers. A step is one event, whatever its number of tokens; where the clients run
//!    on a modelled machine, each chunk that reaches it is one more. What happens at clients is of the class of arrivals.
//! 5. A batch is closed when its step starts. Its outcome becomes visible when the step ends.
//! 6. A replica with work has a future event of its own, or its engine has said that nothing fits and nothing
//!    runs; anything else is reported as a lost wake-up. More events at one instant than the run can need are
//!    reported as a spin.
//!
//! # Chance
//!
//! Every draw comes from a stream named by its purpose and derived from (seed, purpose, replication). The
//! workload is drawn into integers before the run; the run itself draws nothing. The same scenario, seed and
//! version give the same bytes, on any number of threads.
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod cli;
pub mod cluster;
pub mod engine;
pub mod explore;
pub mod input;
pub mod kv;
pub mod metric;
pub mod profile;
pub mod record;
pub mod report;
pub mod rng;
pub mod scenario;
pub mod sim;
pub mod steptime;
pub mod units;
pub mod verify;
pub mod workload;
pub mod yaml;
