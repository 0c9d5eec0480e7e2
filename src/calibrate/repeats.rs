//! The figures by which runs are compared, and how much they differ between real repeats of one trace.

use std::collections::BTreeMap;

use super::actual::record_of;
use super::observe::Capture;
use crate::input::InputError;
use crate::metric::percentile::Stats;
use crate::metric::summary::{Summary, SummaryOptions};
use crate::steptime::fit_file::RepeatSpread;

/// A figure of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Name with its unit.
    pub metric: &'static str,
    /// Which statistic.
    pub stat: &'static str,
    /// Its value.
    pub value: Option<f64>,
    /// Samples behind it.
    pub n: Option<u64>,
}

/// The compared figures of a run, in print order.
pub fn figures(summary: &Summary) -> Vec<Figure> {
    let stats = |metric, s: &Stats| {
        [("mean", s.mean), ("p50", s.p50), ("p90", s.p90), ("p99", s.p99)].map(|(stat, value)| Figure {
            metric,
            stat,
            value,
            n: Some(s.n),
        })
    };
    let single = |metric, value| Figure {
        metric,
        stat: "value",
        value,
        n: None,
    };
    let l = &summary.latency;
    let latencies = [
        stats("ttft_s", &l.ttft),
        stats("itl_s", &l.itl),
        stats("tpot_s", &l.tpot),
        stats("e2e_s", &l.e2e),
    ];
    let singles = [
        single("output_throughput_tok_s", summary.throughput.output_tok_s),
        single("request_throughput_rps", summary.throughput.request_rps),
        single("duration_s", Some(summary.duration_s)),
        single("preemptions", Some(summary.preemptions as f64)),
        single("cached_tokens", Some(summary.tokens.cached as f64)),
    ];
    latencies
        .into_iter()
        .flatten()
        .chain(singles)
        .chain(stats("step_duration_s", &l.step))
        .collect()
}

/// Spreads of the figures between plays of one trace (captures named `X.rep0`, `X.rep1`, ...), averaged over
/// the traces that were repeated.
///
/// # Errors
/// [`InputError`] when a capture's token times cannot be read.
pub fn spreads_of_repeats<'a>(
    captures: impl IntoIterator<Item = &'a Capture>,
) -> Result<Vec<RepeatSpread>, InputError> {
    let mut groups: BTreeMap<String, Vec<Vec<Figure>>> = BTreeMap::new();
    for capture in captures {
        let Some((trace, play)) = capture.name.rsplit_once(".rep") else {
            continue;
        };
        if !play.is_empty() && play.bytes().all(|b| b.is_ascii_digit()) {
            let summary = Summary::of(&record_of(capture)?, &SummaryOptions::default());
            groups
                .entry(trace.to_owned())
                .or_default()
                .push(figures(&summary));
        }
    }
    let mut sums: BTreeMap<(String, String), (f64, u32)> = BTreeMap::new();
    for plays in groups.values().filter(|plays| plays.len() > 1) {
        for (i, figure) in plays[0].iter().enumerate() {
            let values: Option<Vec<f64>> = plays.iter().map(|p| p[i].value).collect();
            let Some(spread) = values.as_deref().and_then(relative_spread) else {
                continue;
            };
            let sum = sums
                .entry((figure.metric.to_owned(), figure.stat.to_owned()))
                .or_default();
            *sum = (sum.0 + spread, sum.1 + 1);
        }
    }
    Ok(sums
        .into_iter()
        .map(|((metric, stat), (sum, n))| RepeatSpread {
            metric,
            stat,
            spread: sum / f64::from(n),
            traces: n,
        })
        .collect())
}

fn relative_spread(values: &[f64]) -> Option<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let (lo, hi) = values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), &v| {
            (l.min(v), h.max(v))
        });
    (mean.abs() > 0.0).then(|| (hi - lo) / mean)
}
