//! Predicted beside actual.

use super::figures::{Curve, PredictedActual};
use super::plot::Plot;
use super::table::{Cell, Column, Table};
use crate::verify::compare::{CaptureComparison, CompareReport, FigureComparison};
use crate::verify::points::PointsReport;
use crate::verify::predicted::PredictedFigure;

/// The whole comparison as text: a table a capture, then the medians over captures.
pub fn comparison_text(report: &CompareReport, width: Option<u16>) -> String {
    let mut parts: Vec<String> = report.captures.iter().map(|c| capture_text(c, width)).collect();
    if report.captures.len() > 1 {
        parts.push(runs_table(&report.captures).terminal(width));
        parts.push(medians_table(&report.captures).terminal(width));
    }
    parts.extend(
        report
            .skipped
            .iter()
            .map(|s| format!("{}: skipped, {}", s.name, s.reason)),
    );
    parts.join("\n\n")
}

fn capture_text(capture: &CaptureComparison, width: Option<u16>) -> String {
    let mut text = figures_table(capture).terminal(width);
    for line in remarks(capture) {
        text.push('\n');
        text.push_str(&line);
    }
    text
}

/// What must be known to read a capture's errors.
pub fn remarks(capture: &CaptureComparison) -> Vec<String> {
    let mut lines = Vec::new();
    if capture.fitted {
        lines.push("the fit was made from this run: how well it is met says nothing of others".into());
    }
    if let Some(speed) = capture.machine_speed {
        lines.push(format!(
            "the recorded batches took {:+.1} % against the fit; {} machine stalls, {:.2} s in all",
            100.0 * (speed - 1.0),
            capture.stalled_steps,
            capture.stalled_s
        ));
    }
    if capture.saturated == Some(true) {
        lines.push(
            "saturated: the backlog grew through the run; judge throughput and run length, and whether the \
             latencies lie in the band"
                .into(),
        );
    }
    let told: Vec<&FigureComparison> = capture
        .metrics
        .iter()
        .filter(|m| m.in_interval().is_some())
        .collect();
    let inside = told.iter().filter(|m| m.in_interval() == Some(true)).count();
    lines.push(format!(
        "{inside} of {} measured figures lie in their 90 % interval",
        told.len()
    ));
    if let Some(axes) = capture
        .metrics
        .first()
        .map(|m| &m.extrapolated)
        .filter(|a| !a.is_empty())
    {
        lines.push(format!(
            "extrapolated: the fit has not seen this range of {}",
            axes.join(", ")
        ));
    }
    if !capture.assumptions.is_empty() {
        lines.push("the capture does not say, and this was assumed:".into());
        lines.extend(capture.assumptions.iter().map(|a| format!("  {a}")));
    }
    if !capture.beyond_repeats.is_empty() {
        lines.push("beyond 1.5 times what real repeats differ by:".into());
        lines.extend(capture.beyond_repeats.iter().map(|b| {
            format!(
                "  {} {}: error {:+.1} %, repeats differ by {:.1} %; likely cause: {}",
                b.metric,
                b.stat,
                100.0 * b.rel_error,
                100.0 * b.repeat_spread,
                b.likely_cause
            )
        }));
    }
    lines
}

/// A run's figures with their 90 % intervals.
pub fn intervals_table(figures: &[PredictedFigure]) -> Table {
    let columns = ["metric", "stat", "predicted", "90 % from", "to"];
    let mut title = "Intervals of run 0: parameter draws and misfit of the fit".to_owned();
    if let Some(axes) = figures.first().map(|f| &f.extrapolated).filter(|a| !a.is_empty()) {
        title += &format!("; extrapolated in {}", axes.join(", "));
    }
    let mut table = Table::new(title, columns.map(Column::plain).to_vec());
    for f in figures.iter().filter(|f| f.lo.is_some()) {
        table.push(vec![
            f.metric.as_str().into(),
            f.stat.as_str().into(),
            f.predicted.into(),
            f.lo.into(),
            f.hi.into(),
        ]);
    }
    table
}

/// Summary rows, predicted beside actual, with what was assumed of each.
pub fn points_text(report: &PointsReport) -> String {
    let columns = [
        "row",
        "metric",
        "stat",
        "actual",
        "predicted",
        "error",
        "90 % from",
        "to",
        "extrapolated",
    ];
    let mut table = Table::new("Points", columns.map(Column::plain).to_vec());
    let mut assumptions: Vec<String> = Vec::new();
    for point in &report.points {
        for f in &point.metrics {
            table.push(vec![
                (point.row as u64).into(),
                f.metric.as_str().into(),
                f.stat.as_str().into(),
                f.actual.into(),
                f.predicted.into(),
                f.rel_error.map_or(Cell::Absent, Cell::Relative),
                f.lo.into(),
                f.hi.into(),
                f.extrapolated.join(", ").into(),
            ]);
        }
        for a in &point.assumptions {
            let line = format!("  row {}: {a}", point.row);
            assumptions.push(line);
        }
    }
    let mut text = table.terminal(None);
    for point in &report.points {
        if let Some(error) = &point.error {
            text.push_str(&format!("\nrow {} has no figures: {error}", point.row));
        }
    }
    if !assumptions.is_empty() {
        text.push_str("\nthe rows do not say, and this was assumed:\n");
        text.push_str(&assumptions.join("\n"));
    }
    text
}

/// Figures beyond 1.5 times what real repeats differ by, a row each.
pub fn beyond_table(captures: &[CaptureComparison]) -> Table {
    let columns = ["run", "figure", "error", "repeats differ", "likely cause"];
    let mut table = Table::new(
        "Figures that are off by more than 1.5 times what real repeats differ by",
        columns.map(Column::plain).to_vec(),
    );
    for capture in captures {
        for beyond in &capture.beyond_repeats {
            table.push(vec![
                capture.name.as_str().into(),
                format!("{} {}", beyond.metric, beyond.stat).into(),
                Cell::Relative(beyond.rel_error),
                Cell::Share(beyond.repeat_spread),
                beyond.likely_cause.as_str().into(),
            ]);
        }
    }
    table
}

/// Every figure of a capture.
pub fn figures_table(capture: &CaptureComparison) -> Table {
    let columns = [
        "metric",
        "stat",
        "n",
        "actual",
        "predicted",
        "error",
        "90 % from",
        "to",
        "repeats differ",
        "least at ±3 % step time",
        "most",
    ];
    let title = format!("{} ({} requests)", capture.name, capture.requests);
    let mut table = Table::new(title, columns.map(Column::plain).to_vec());
    for f in &capture.metrics {
        table.push(vec![
            f.metric.as_str().into(),
            f.stat.as_str().into(),
            f.n.into(),
            f.actual.into(),
            f.predicted.into(),
            f.rel_error.map_or(Cell::Absent, Cell::Relative),
            f.lo.into(),
            f.hi.into(),
            f.repeat_spread.map_or(Cell::Absent, Cell::Share),
            f.step_time_band.map(|b| b[0]).into(),
            f.step_time_band.map(|b| b[1]).into(),
        ]);
    }
    table
}

fn find<'a>(capture: &'a CaptureComparison, metric: &str, stat: &str) -> Option<&'a FigureComparison> {
    capture
        .metrics
        .iter()
        .find(|f| f.metric == metric && f.stat == stat)
}

/// A row a capture: the errors that are judged run by run.
pub fn runs_table(captures: &[CaptureComparison]) -> Table {
    let names = [
        "run",
        "requests",
        "run length",
        "throughput",
        "TTFT p50",
        "TPOT p50",
        "E2E p50",
        "E2E p99",
        "machine",
        "saturated",
    ];
    let mut table = Table::new(
        "Error by run, (predicted - actual) / actual",
        names.map(Column::plain).to_vec(),
    );
    for capture in captures {
        let error = |metric: &str, stat: &str| {
            find(capture, metric, stat)
                .and_then(|f| f.rel_error)
                .map_or(Cell::Absent, Cell::Relative)
        };
        table.push(vec![
            capture.name.as_str().into(),
            capture.requests.into(),
            error("duration_s", "value"),
            error("output_throughput_tok_s", "value"),
            error("ttft_s", "p50"),
            error("tpot_s", "p50"),
            error("e2e_s", "p50"),
            error("e2e_s", "p99"),
            capture
                .machine_speed
                .map_or(Cell::Absent, |s| Cell::Relative(s - 1.0)),
            if capture.saturated == Some(true) {
                "yes".into()
            } else {
                "no".into()
            },
        ]);
    }
    table.note = Some("machine: time that the recorded batches took over what the fit says (with the speed probe where the run has \
         one), stalls left out; above 0 the machine was slower".into());
    table
}

/// Median over the captures of the absolute relative error, metric by statistic.
pub fn medians_table(captures: &[CaptureComparison]) -> Table {
    let names = [
        "metric",
        "stat",
        "runs",
        "median error",
        "largest error",
        "repeats differ",
    ];
    let mut table = Table::new("Absolute error over the runs", names.map(Column::plain).to_vec());
    for figure in captures.first().map_or(&[][..], |c| &c.metrics) {
        let mut errors: Vec<f64> = captures
            .iter()
            .filter_map(|c| find(c, &figure.metric, &figure.stat)?.rel_error)
            .map(f64::abs)
            .collect();
        errors.sort_by(f64::total_cmp);
        let Some(median) = median(&errors) else { continue };
        table.push(vec![
            figure.metric.as_str().into(),
            figure.stat.as_str().into(),
            (errors.len() as u64).into(),
            Cell::Share(median),
            errors.last().copied().map_or(Cell::Absent, Cell::Share),
            figure.repeat_spread.map_or(Cell::Absent, Cell::Share),
        ]);
    }
    table
}

/// Predicted against actual latencies at mean, p50, p90 and p99, a group a metric, a point a run and statistic.
pub fn scatter(captures: &[CaptureComparison]) -> Plot {
    let groups = [
        ("TTFT", "ttft_s"),
        ("ITL", "itl_s"),
        ("TPOT", "tpot_s"),
        ("E2E", "e2e_s"),
    ];
    let groups: Vec<Curve> = groups
        .iter()
        .map(|(name, metric)| {
            let points = captures
                .iter()
                .flat_map(|c| c.metrics.iter().filter(|f| f.metric == *metric))
                .filter_map(|f| f.actual.zip(f.predicted))
                .collect();
            ((*name).to_owned(), points)
        })
        .collect();
    PredictedActual {
        quantity: "latency".into(),
        unit: "s".into(),
        groups,
    }
    .plot()
}

/// Median of sorted values.
fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_and_odd() {
        assert_eq!(median(&[1.0, 3.0]), Some(2.0));
        assert_eq!(median(&[1.0, 3.0, 9.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }
}
