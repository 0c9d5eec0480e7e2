//! What people read: tables for the terminal, SVG plots with their data, one self-contained HTML page.

pub mod cluster;
mod cluster_columns;
pub mod compare;
pub mod context;
pub mod diagnosis_tables;
pub mod escape;
pub mod figures;
pub mod fit_tables;
pub mod group_plan;
pub mod html;
pub mod import;
mod limited_by;
pub mod notebook;
pub mod number;
pub mod plot;
pub mod preflight_page;
pub mod published;
pub mod roofline_fit;
pub mod run_page;
pub mod run_tables;
pub mod sweep_page;
pub mod table;
pub mod tool_tables;

pub use html::{Block, Page, Section};
pub use plot::Plot;
pub use table::{Cell, Column, Table};
