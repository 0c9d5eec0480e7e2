//! The plots of this field, each from plain data.

use super::number::short;
use super::plot::{Axis, Guide, Mark, Plot, Series};

/// A named list of points.
pub type Curve = (String, Vec<(f64, f64)>);

/// Latency against output throughput, a curve for each configuration or percentile, points in order of load.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ThroughputLatency {
    /// Which latency: `TTFT p99`.
    pub latency: String,
    /// Points of (output tokens/s, seconds).
    pub curves: Vec<Curve>,
    /// The target in seconds.
    pub target_s: Option<f64>,
}

/// Distribution of one latency, a curve for each run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Distribution {
    /// Which latency: `TTFT`.
    pub latency: String,
    /// Points of (seconds, share at or below), as from [`crate::metric::Sample::distribution`] with the
    /// nanoseconds made seconds.
    pub curves: Vec<Curve>,
    /// The target in seconds.
    pub target_s: Option<f64>,
}

/// Goodput against offered load.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Goodput {
    /// Points of (offered requests/s, goodput requests/s).
    pub curves: Vec<Curve>,
    /// Share of offered requests that shall meet the targets: drawn as the line goodput = share * offered.
    pub attainment: Option<f64>,
    /// The knee region in offered requests/s.
    pub knee: Option<(f64, f64)>,
    /// The capacity at the SLO in offered requests/s.
    pub capacity_rps: Option<f64>,
}

/// Predicted against actual values of one quantity, a group for each metric or run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PredictedActual {
    /// What is compared: `latency`.
    pub quantity: String,
    /// Its unit.
    pub unit: String,
    /// Points of (actual, predicted).
    pub groups: Vec<Curve>,
}

/// What gauges or counters showed over time, each value holding until the next.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OverTime {
    /// What it shows.
    pub title: String,
    /// What the vertical axis counts: `requests`.
    pub quantity: String,
    /// Its unit; empty for a number of things that the quantity names.
    pub unit: String,
    /// Exact curves: points of (seconds, value), held until the next.
    pub curves: Vec<Curve>,
    /// Readings now and then, drawn as dots.
    pub readings: Vec<Curve>,
    /// When load was offered, in seconds.
    pub load: Option<(f64, f64)>,
}

/// The distribution of a simulated quantity with measured percentiles as dots on it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MeasuredDistribution {
    /// Which quantity: `TTFT`.
    pub quantity: String,
    /// Its unit.
    pub unit: String,
    /// Simulated: points of (value, share at or below).
    pub curves: Vec<Curve>,
    /// Measured: points of (value, share), such as (0.2417, 0.5) for a median.
    pub measured: Vec<(f64, f64)>,
}

/// A histogram with measured values as lines.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    /// Which quantity: `TTFT p50 over 200 seeds`.
    pub quantity: String,
    /// Its unit.
    pub unit: String,
    /// The values, in any order; those that are not finite are left out.
    pub values: Vec<f64>,
    /// Bars; 0 counts as 1.
    pub bins: u32,
    /// Measured values by name.
    pub measured: Vec<(String, f64)>,
}

/// Seconds or milliseconds, whichever gives numbers that people read: unit and factor.
fn time_unit(seconds: impl Iterator<Item = f64>) -> (&'static str, f64) {
    let largest = seconds.filter(|s| s.is_finite()).fold(0.0, f64::max);
    if largest < 10.0 { ("ms", 1e3) } else { ("s", 1.0) }
}

fn series(curves: &[Curve], mark: Mark, scale: (f64, f64)) -> Vec<Series> {
    let scaled = |points: &[(f64, f64)]| points.iter().map(|p| (p.0 * scale.0, p.1 * scale.1)).collect();
    curves
        .iter()
        .map(|(name, points)| Series {
            name: name.clone(),
            mark,
            points: scaled(points),
        })
        .collect()
}

impl ThroughputLatency {
    /// The plot, latency on a logarithmic axis.
    pub fn plot(&self) -> Plot {
        let seconds = self.curves.iter().flat_map(|c| &c.1).map(|p| p.1);
        let (unit, factor) = time_unit(seconds);
        let target = self.target_s.map(|t| t * factor);
        Plot {
            title: format!("{} against throughput", self.latency),
            x: Axis::linear("output throughput", "tokens/s"),
            y: Axis::log(self.latency.clone(), unit),
            series: series(&self.curves, Mark::LineAndDots, (1.0, factor)),
            guides: target
                .map(|y| Guide::Horizontal {
                    y,
                    label: format!("target {} {unit}", short(y)),
                })
                .into_iter()
                .collect(),
        }
    }
}

impl Distribution {
    /// The plot, latency on a logarithmic axis.
    pub fn plot(&self) -> Plot {
        let seconds = self.curves.iter().flat_map(|c| &c.1).map(|p| p.0);
        let (unit, factor) = time_unit(seconds);
        let target = self.target_s.map(|t| t * factor);
        Plot {
            title: format!("Distribution of {}", self.latency),
            x: Axis::log(self.latency.clone(), unit),
            y: Axis::linear("share at or below", ""),
            series: series(&self.curves, Mark::Steps, (factor, 1.0)),
            guides: target
                .map(|x| Guide::Vertical {
                    x,
                    label: format!("target {} {unit}", short(x)),
                })
                .into_iter()
                .collect(),
        }
    }
}

impl Goodput {
    /// The plot.
    pub fn plot(&self) -> Plot {
        let knee = self.knee.map(|(from, to)| Guide::Band {
            from,
            to,
            label: "knee region".into(),
        });
        let line = self.attainment.map(|slope| Guide::Slope {
            slope,
            label: format!("{} % of offered", short(slope * 100.0)),
        });
        let capacity = self.capacity_rps.map(|x| Guide::Vertical {
            x,
            label: format!("capacity {} requests/s", short(x)),
        });
        Plot {
            title: "Goodput against offered load".into(),
            x: Axis::linear("offered load", "requests/s"),
            y: Axis::linear("goodput", "requests/s"),
            series: series(&self.curves, Mark::LineAndDots, (1.0, 1.0)),
            guides: [knee, line, capacity].into_iter().flatten().collect(),
        }
    }
}

impl OverTime {
    /// The plot.
    pub fn plot(&self) -> Plot {
        let load = self.load.map(|(from, to)| Guide::Band {
            from,
            to,
            label: "load offered".into(),
        });
        let mut all = series(&self.curves, Mark::Stairs, (1.0, 1.0));
        all.extend(series(&self.readings, Mark::Dots, (1.0, 1.0)));
        Plot {
            title: self.title.clone(),
            x: Axis::linear("time", "s"),
            y: Axis::linear(self.quantity.clone(), self.unit.clone()),
            series: all,
            guides: load.into_iter().collect(),
        }
    }
}

impl MeasuredDistribution {
    /// The plot, on linear axes.
    pub fn plot(&self) -> Plot {
        let mut all = series(&self.curves, Mark::Steps, (1.0, 1.0));
        let measured = [("measured".to_owned(), self.measured.clone())];
        all.extend(series(&measured, Mark::Dots, (1.0, 1.0)));
        Plot {
            title: format!("{}, simulated and measured", self.quantity),
            x: Axis::linear(self.quantity.clone(), self.unit.clone()),
            y: Axis::linear("share at or below", ""),
            series: all,
            guides: Vec::new(),
        }
    }
}

impl Histogram {
    /// The plot: each bar at the middle of its bin.
    pub fn plot(&self) -> Plot {
        let finite = || self.values.iter().copied().filter(|v| v.is_finite());
        let low = finite().fold(f64::INFINITY, f64::min);
        let high = finite().fold(f64::NEG_INFINITY, f64::max);
        let bins = self.bins.max(1) as usize;
        // Values that are all the same still make a bar.
        let width = if high > low {
            (high - low) / bins as f64
        } else {
            1.0
        };
        let mut counts = vec![0u64; if high >= low { bins } else { 0 }];
        for value in finite() {
            counts[(((value - low) / width) as usize).min(bins - 1)] += 1;
        }
        let bars = counts.iter().enumerate();
        let points = bars
            .map(|(i, &n)| ((i as f64 + 0.5).mul_add(width, low), n as f64))
            .collect();
        let lines = self.measured.iter().map(|(name, x)| Guide::Vertical {
            x: *x,
            label: format!("{name} {} {}", short(*x), self.unit),
        });
        Plot {
            title: self.quantity.clone(),
            x: Axis::linear(self.quantity.clone(), self.unit.clone()),
            y: Axis::linear("values", ""),
            series: series(&[("simulated".to_owned(), points)], Mark::Bars, (1.0, 1.0)),
            guides: lines.collect(),
        }
    }
}

impl PredictedActual {
    /// The plot, both axes logarithmic, with the identity and bands of 10 and 20 %.
    pub fn plot(&self) -> Plot {
        let wedge = |share: f64, label: &str| Guide::Wedge {
            low: 1.0 - share,
            high: 1.0 + share,
            label: label.into(),
        };
        Plot {
            title: format!("Predicted against actual {}", self.quantity),
            x: Axis::log(format!("actual {}", self.quantity), self.unit.clone()),
            y: Axis::log(format!("predicted {}", self.quantity), self.unit.clone()),
            series: series(&self.groups, Mark::Dots, (1.0, 1.0)),
            guides: vec![
                wedge(0.2, "within 20 %"),
                wedge(0.1, "within 10 %"),
                Guide::Slope {
                    slope: 1.0,
                    label: "equal".into(),
                },
            ],
        }
    }
}
