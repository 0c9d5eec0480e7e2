//! Plots as plain data, drawn to SVG and written as CSV.
//!
//! A [`Plot`] holds everything that is drawn, so `csv()` is exactly what `svg()` shows. Text and axes are drawn
//! in `currentColor`: inside an HTML page a plot takes the page's ink, light or dark; as a file of its own it
//! brings a style for both.

mod axis;
mod draw;

use std::io;
use std::path::Path;

use super::table::csv_text;
use crate::input::write_atomic;

/// Everything that is drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Data.
    pub series: Vec<Series>,
    /// Lines and bands that are not data.
    pub guides: Vec<Guide>,
}

/// One axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// What it measures.
    pub label: String,
    /// In which unit; empty for a pure number.
    pub unit: String,
    /// How it is spaced.
    pub scale: Scale,
}

/// Spacing of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Even, from 0 when all values are at or above it.
    Linear,
    /// By factors of ten. Values at or below 0 are not drawn (they stay in the CSV).
    Log,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: impl Into<String>, unit: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            unit: unit.into(),
            scale: Scale::Linear,
        }
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>, unit: impl Into<String>) -> Self {
        Self {
            scale: Scale::Log,
            ..Self::linear(label, unit)
        }
    }

    /// The title printed at the axis.
    pub fn title(&self) -> String {
        if self.unit.is_empty() {
            self.label.clone()
        } else {
            format!("{} ({})", self.label, self.unit)
        }
    }
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Straight lines with a dot at each point, in the order given.
    LineAndDots,
    /// Horizontal, then vertical: a distribution function.
    Steps,
    /// Dots alone.
    Dots,
    /// Straight lines alone, for many points.
    Line,
    /// A value that holds until the next: a gauge or a counter over time.
    Stairs,
    /// Upright bars from 0, as wide as the closest two points are apart: a histogram.
    Bars,
}

/// Named data.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// How it is drawn.
    pub mark: Mark,
    /// The points; those that are not finite are not drawn.
    pub points: Vec<(f64, f64)>,
}

/// A line or band that is not data.
#[derive(Debug, Clone, PartialEq)]
pub enum Guide {
    /// A horizontal line.
    Horizontal {
        /// Where.
        y: f64,
        /// Name in the legend.
        label: String,
    },
    /// A vertical line.
    Vertical {
        /// Where.
        x: f64,
        /// Name in the legend.
        label: String,
    },
    /// A shaded range of x.
    Band {
        /// Its lower end.
        from: f64,
        /// Its upper end.
        to: f64,
        /// Name in the legend.
        label: String,
    },
    /// The line y = slope * x.
    Slope {
        /// The factor.
        slope: f64,
        /// Name in the legend.
        label: String,
    },
    /// The wedge between y = low * x and y = high * x.
    Wedge {
        /// The lower factor.
        low: f64,
        /// The upper factor.
        high: f64,
        /// Name in the legend.
        label: String,
    },
}

impl Guide {
    /// Name in the legend.
    pub fn label(&self) -> &str {
        match self {
            Self::Horizontal { label, .. }
            | Self::Vertical { label, .. }
            | Self::Band { label, .. }
            | Self::Slope { label, .. }
            | Self::Wedge { label, .. } => label,
        }
    }

    /// Name and the two numbers that define it.
    fn numbers(&self) -> (&'static str, f64, Option<f64>) {
        match *self {
            Self::Horizontal { y, .. } => ("horizontal", y, None),
            Self::Vertical { x, .. } => ("vertical", x, None),
            Self::Band { from, to, .. } => ("band", from, Some(to)),
            Self::Slope { slope, .. } => ("slope", slope, None),
            Self::Wedge { low, high, .. } => ("wedge", low, Some(high)),
        }
    }
}

impl Plot {
    /// The data as CSV: `kind,name,x,y`. For guides x and y hold their one or two numbers.
    pub fn csv(&self) -> String {
        let heading = vec!["kind".into(), "name".into(), self.x.title(), self.y.title()];
        let points = self.series.iter().flat_map(|s| {
            s.points
                .iter()
                .map(|(x, y)| vec!["point".into(), s.name.clone(), x.to_string(), y.to_string()])
        });
        let guides = self.guides.iter().map(|guide| {
            let (kind, a, b) = guide.numbers();
            let b = b.map_or_else(String::new, |b| b.to_string());
            let (x, y) = if kind == "horizontal" {
                (b, a.to_string())
            } else {
                (a.to_string(), b)
            };
            vec![kind.into(), guide.label().to_owned(), x, y]
        });
        csv_text(std::iter::once(heading).chain(points).chain(guides))
    }

    /// The plot as an SVG element for an HTML page, in the page's ink.
    pub fn svg(&self) -> String {
        draw::svg(self)
    }

    /// The plot as an SVG file of its own, legible on light and dark ground.
    pub fn svg_file(&self) -> String {
        let style = "<style>svg{color:#222}@media (prefers-color-scheme:dark){svg{color:#ddd}}</style>";
        let svg = self.svg();
        match svg.find('>') {
            Some(end) => format!("{}{style}{}", &svg[..=end], &svg[end + 1..]),
            None => svg,
        }
    }
}

/// Writes `<name>.svg` and its data `<name>.csv` into `folder`.
///
/// # Errors
/// Any I/O error.
pub fn write(folder: &Path, name: &str, plot: &Plot) -> io::Result<()> {
    write_atomic(&folder.join(format!("{name}.svg")), |w| {
        w.write_all(plot.svg_file().as_bytes())
    })?;
    write_atomic(&folder.join(format!("{name}.csv")), |w| {
        w.write_all(plot.csv().as_bytes())
    })
}

#[cfg(test)]
mod tests;
