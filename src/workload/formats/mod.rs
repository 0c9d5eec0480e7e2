//! Trace files.

pub mod csv;
