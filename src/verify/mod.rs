//! Does the simulator do what the real engine did?

pub mod compare;
pub mod conform;
pub mod guises;
pub mod interval;
pub mod points;
pub mod predicted;
mod watch;
