//! What people read: tables for the terminal, SVG plots with their data, one self-contained HTML page.

pub mod compare;
pub mod figures;
pub mod html;
pub mod number;
pub mod plot;
pub mod run_tables;
pub mod table;

pub use html::{Block, Page, Section};
pub use plot::Plot;
pub use table::{Cell, Column, Table};
