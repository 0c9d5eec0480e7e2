//! End-to-end tests; one binary, one module a subject.

mod bad_input;
mod beyond_need;
mod captures;
mod cli;
mod clients;
mod cluster;
mod cluster_fuzz;
mod conform;
mod diagnosis;
mod fleet;
mod import;
mod leaping;
mod legs;
mod neuron_fits;
mod neuron_programs;
mod pd_ratio;
mod profiles;
mod queueing;
mod scenario;
mod shared;
mod shipped_fits;
mod world;
