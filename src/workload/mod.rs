//! What is asked of the system: traces, arrival processes, lengths, prefixes, and their file formats.

pub mod trace;
