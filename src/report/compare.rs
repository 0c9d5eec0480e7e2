//! Predicted beside actual, for the terminal.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use crate::verify::compare::{CaptureComparison, CompareReport, FigureComparison};

/// The whole comparison as text: a table a capture, then the medians over captures.
pub fn comparison_text(report: &CompareReport) -> String {
    let mut text = String::new();
    for capture in &report.captures {
        capture_text(&mut text, capture);
    }
    for skipped in &report.skipped {
        let _ = writeln!(text, "{}: skipped, {}", skipped.name, skipped.reason);
    }
    if report.captures.len() > 1 {
        let _ = write!(text, "\n{}", medians_text(&report.captures));
    }
    text.trim_end().to_owned()
}

fn capture_text(text: &mut String, capture: &CaptureComparison) {
    let _ = writeln!(text, "{} ({} requests)", capture.name, capture.requests);
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "metric",
        "stat",
        "n",
        "actual",
        "predicted",
        "error",
        "repeats differ",
        "at -3 % .. +3 % step time",
    ]);
    for column in 2..8 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for figure in &capture.metrics {
        table.add_row(row(figure));
    }
    let _ = writeln!(text, "{}", table.trim_fmt());
    if let Some(speed) = capture.machine_speed {
        let _ = writeln!(
            text,
            "the recorded batches took {:+.1} % against the fit; {} machine stalls, {:.2} s in all",
            100.0 * (speed - 1.0),
            capture.stalled_steps,
            capture.stalled_s
        );
    }
    if capture.saturated == Some(true) {
        let _ = writeln!(
            text,
            "saturated: the backlog grew through the run; judge throughput and run length, and whether the \
             latencies lie in the band"
        );
    }
    if !capture.beyond_repeats.is_empty() {
        let _ = writeln!(text, "beyond 1.5 times what real repeats differ by:");
        for line in &capture.beyond_repeats {
            let _ = writeln!(text, "  {line}");
        }
    }
    text.push('\n');
}

fn row(f: &FigureComparison) -> [String; 8] {
    let number = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), significant);
    [
        f.metric.clone(),
        f.stat.clone(),
        f.n.map_or_else(String::new, |n| n.to_string()),
        number(f.actual),
        number(f.predicted),
        f.rel_error
            .map_or_else(|| "-".to_owned(), |e| format!("{:+.1} %", 100.0 * e)),
        f.repeat_spread
            .map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", 100.0 * s)),
        f.step_time_band.map_or_else(String::new, |[lo, hi]| {
            format!("{} .. {}", significant(lo), significant(hi))
        }),
    ]
}

/// Four significant digits, without exponents in the range people read.
fn significant(x: f64) -> String {
    if x.abs() < f64::MIN_POSITIVE {
        return "0".to_owned();
    }
    let digits = (3 - x.abs().log10().floor() as i32).clamp(0, 9) as usize;
    format!("{x:.digits$}")
}

/// Median over the captures of the absolute relative error, metric by statistic.
fn medians_text(captures: &[CaptureComparison]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "metric",
        "stat",
        "captures",
        "median |error|",
        "largest",
    ]);
    for (i, figure) in captures[0].metrics.iter().enumerate() {
        let mut errors: Vec<f64> = captures
            .iter()
            .filter_map(|c| c.metrics.get(i)?.rel_error)
            .map(f64::abs)
            .collect();
        errors.sort_by(f64::total_cmp);
        let (Some(median), Some(largest)) = (median(&errors), errors.last()) else {
            continue;
        };
        table.add_row([
            figure.metric.clone(),
            figure.stat.clone(),
            errors.len().to_string(),
            format!("{:.1} %", 100.0 * median),
            format!("{:.1} %", 100.0 * largest),
        ]);
    }
    format!(
        "median over {} captures of the absolute error\n{}\n",
        captures.len(),
        table.trim_fmt()
    )
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
    fn four_significant_digits() {
        assert_eq!(significant(0.012_345_6), "0.01235");
        assert_eq!(significant(123.456), "123.5");
        assert_eq!(significant(98_765.4), "98765");
        assert_eq!(significant(0.0), "0");
    }

    #[test]
    fn median_of_even_and_odd() {
        assert_eq!(median(&[1.0, 3.0]), Some(2.0));
        assert_eq!(median(&[1.0, 3.0, 9.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }
}
