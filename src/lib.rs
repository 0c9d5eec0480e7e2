//! Kneeboard: the pre-flight for LLM serving.
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod cli;
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
