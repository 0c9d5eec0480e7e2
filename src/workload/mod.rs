//! What is asked of the system: traces, arrival processes, lengths, prefixes, and their file formats.

pub mod arrival;
pub mod formats;
pub mod lengths;
pub mod pattern;
pub mod synth;
pub mod trace;
