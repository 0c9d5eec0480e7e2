//! Does the simulator do what the real engine did?

pub mod compare;
pub mod conform;
