//! The one integration binary.

mod bad_input;
mod cli;
mod scenario;
