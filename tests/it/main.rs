//! End-to-end tests; one binary, one module a subject.

mod conform;
mod queueing;
mod shared;
mod world;
