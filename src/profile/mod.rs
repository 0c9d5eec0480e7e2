//! Facts about accelerators and models, each figure with its source.

pub mod accelerator;
pub mod catalog;
pub mod figure;
pub mod model;

pub use accelerator::{Accelerator, Platform};
pub use catalog::Profile;
pub use figure::{Figure, FigureRow};
pub use model::{Mla, Model, Moe, Window};
