//! Predicted beside actual: summary rows of benchmarks.

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guises::{Guises, MachineModel};
use super::interval::interval;
use super::watch::{Scaled, Watch};
use crate::calibrate::observed::{Figure, Metric, ObservedError, Samples, Stat};
use crate::calibrate::points::Point;
use crate::calibrate::roofline_file::figure_names;

/// What `compare --points --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PointsReport {
    /// One entry a row, in the order of the file.
    pub points: Vec<PointComparison>,
}

/// One row, predicted beside actual.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PointComparison {
    /// Number of the row, from 0.
    pub row: usize,
    /// Figures at the row's statistic.
    pub metrics: Vec<PointFigure>,
    /// What the row does not say and was assumed.
    pub assumptions: Vec<String>,
    /// Why the row has no figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One figure of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PointFigure {
    /// Name with its unit.
    pub metric: String,
    /// The row's statistic; `value` for throughput.
    pub stat: String,
    /// Measured; null where the row has none.
    pub actual: Option<f64>,
    /// Simulated.
    pub predicted: Option<f64>,
    /// (predicted - actual) / actual.
    pub rel_error: Option<f64>,
    /// Lower end of the 90 % interval of the prediction.
    pub lo: Option<f64>,
    /// Upper end.
    pub hi: Option<f64>,
    /// Axes on which the row leaves what the fit has seen; empty inside.
    pub extrapolated: Vec<String>,
}

/// Simulates a row in every guise and lays its figures beside the measured ones.
///
/// # Errors
/// [`ObservedError`] when the row cannot be simulated.
pub fn compare_point(point: &Point, guises: &Guises) -> Result<PointComparison, ObservedError> {
    let wanted = figures(point.stat);
    let watch = Watch::of(guises);
    let best = predict(point, &guises.best, &wanted, Some(&watch))?;
    let others = guises
        .others_at(watch.reach())
        .par_iter()
        .map(|other| predict(point, other, &wanted, None))
        .collect::<Result<Vec<_>, _>>()?;
    let mut extrapolated = watch.left();
    extrapolated.extend(guises.beyond.iter().cloned());
    let metrics = wanted
        .iter()
        .enumerate()
        .map(|(i, figure)| {
            let (metric, stat) = figure_names(*figure);
            let predicted = Some(best[i]).filter(|p| p.is_finite());
            let actual = point
                .run
                .observations
                .iter()
                .find(|o| o.figure == *figure)
                .map(|o| o.value);
            let drawn: Vec<f64> = others.iter().map(|o| o[i]).collect();
            let within = interval(best[i], &drawn, guises.misfit(metric, &stat));
            PointFigure {
                metric: metric.to_owned(),
                stat,
                actual,
                predicted,
                rel_error: predicted.zip(actual).map(|(p, a)| p / a - 1.0),
                lo: within.map(|w| w.0),
                hi: within.map(|w| w.1),
                extrapolated: extrapolated.clone(),
            }
        })
        .collect();
    Ok(PointComparison {
        row: point.row,
        metrics,
        assumptions: point.assumptions.clone(),
        error: None,
    })
}

fn figures(stat: Stat) -> [Figure; 4] {
    let figure = |metric, stat| Figure { metric, stat };
    [
        figure(Metric::Ttft, stat),
        figure(Metric::Tpot, stat),
        figure(Metric::E2e, stat),
        figure(Metric::OutputThroughput, Stat::Value),
    ]
}

fn predict(
    point: &Point,
    model: &MachineModel,
    figures: &[Figure],
    watch: Option<&Watch>,
) -> Result<Vec<f64>, ObservedError> {
    let scaled = Scaled {
        inner: model.step_time.as_ref(),
        factor: model.speed,
        watch,
    };
    let record = point.run.simulate_with(&scaled, model.front_end)?;
    let samples = Samples::of(&record, &point.run.counted);
    Ok(figures.iter().map(|f| samples.figure(*f)).collect())
}
