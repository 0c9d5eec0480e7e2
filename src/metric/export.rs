//! Files of figures: `summary.json`, `summary.csv`, `result.json`, `token-gaps.csv`.

use std::io;
use std::path::Path;

use serde::Serialize;

use super::percentile::Sample;
use super::summary::Summary;
use super::tokens::TokenGaps;
use super::vllm_bench::BenchResult;
use crate::input::{InputError, read_text, write_atomic};
use crate::record::RunRecord;

/// Name of the multiset of gaps in a run folder.
pub const TOKEN_GAPS_FILE: &str = "token-gaps.csv";

/// Writes everything derived from a run into its folder: `summary.json`, `summary.csv`, `result.json` (the shape
/// of `vllm bench serve`) and `token-gaps.csv`. The raw files beside them are [`crate::record::bundle`]'s.
///
/// # Errors
/// Any I/O error.
pub fn write_figures(
    folder: &Path,
    run: &RunRecord,
    summary: &Summary,
    result: &BenchResult,
) -> io::Result<()> {
    write_json(&folder.join("summary.json"), summary)?;
    write_summary_csv(&folder.join("summary.csv"), summary)?;
    write_json(&folder.join("result.json"), result)?;
    write_token_gaps(&folder.join(TOKEN_GAPS_FILE), run)
}

/// Writes any result as indented JSON with a final newline.
///
/// # Errors
/// Any I/O error.
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    write_atomic(path, |w| {
        serde_json::to_writer_pretty(&mut *w, value)?;
        writeln!(w)
    })
}

/// Writes a summary as rows of `metric,unit,stat,value`; an empty value is one that does not exist.
///
/// # Errors
/// Any I/O error.
pub fn write_summary_csv(path: &Path, summary: &Summary) -> io::Result<()> {
    write_atomic(path, |w| {
        writeln!(w, "metric,unit,stat,value")?;
        for (metric, unit, stat, value) in summary_rows(summary) {
            let value = value.map_or_else(String::new, |v| v.to_string());
            writeln!(w, "{metric},{unit},{stat},{value}")?;
        }
        Ok(())
    })
}

/// A summary as rows: metric, unit, stat, value.
pub fn summary_rows(summary: &Summary) -> Vec<(&'static str, &'static str, &'static str, Option<f64>)> {
    let f = &summary.funnel;
    let count = |name, n: u64| (name, "requests", "value", Some(n as f64));
    let mut rows = vec![
        count("offered", f.offered),
        count("admitted", f.admitted),
        count("started", f.started),
        count("first_token", f.first_token),
        count("completed", f.completed),
        ("within_slo", "requests", "value", f.within_slo.map(|n| n as f64)),
        count("rejected", f.rejected),
        count("unfinished_waiting", f.unfinished_waiting),
        count("unfinished_started", f.unfinished_started),
        ("error_rate", "1", "value", summary.error_rate),
        ("duration", "s", "value", Some(summary.duration_s)),
        (
            "request_throughput",
            "requests/s",
            "value",
            summary.throughput.request_rps,
        ),
        (
            "output_throughput",
            "tokens/s",
            "value",
            summary.throughput.output_tok_s,
        ),
        (
            "total_throughput_logical",
            "tokens/s",
            "value",
            summary.throughput.total_logical_tok_s,
        ),
        (
            "total_throughput_computed",
            "tokens/s",
            "value",
            summary.throughput.total_computed_tok_s,
        ),
        (
            "input_tokens",
            "tokens",
            "value",
            Some(summary.tokens.input as f64),
        ),
        (
            "cached_tokens",
            "tokens",
            "value",
            Some(summary.tokens.cached as f64),
        ),
        (
            "output_tokens",
            "tokens",
            "value",
            Some(summary.tokens.output as f64),
        ),
        ("preemptions", "1", "value", Some(summary.preemptions as f64)),
        ("in_system", "requests", "mean", summary.in_system_mean),
        ("utilisation", "1", "value", summary.gauges.utilisation),
        (
            "goodput",
            "requests/s",
            "value",
            summary.slo.as_ref().and_then(|s| s.goodput_rps),
        ),
        (
            "slo_attainment",
            "1",
            "value",
            summary.slo.as_ref().and_then(|s| s.attainment),
        ),
    ];
    let gauges = &summary.gauges;
    for (name, unit, gauge) in [
        ("running", "requests", gauges.running),
        ("waiting", "requests", gauges.waiting),
        ("kv_usage", "1", gauges.kv_usage),
    ] {
        rows.push((name, unit, "mean", gauge.map(|g| g.mean)));
        rows.push((name, unit, "max", gauge.map(|g| g.max)));
    }
    for (name, stats) in summary.latency.named() {
        rows.push((name, "values", "n", Some(stats.n as f64)));
        rows.extend(
            stats
                .figures()
                .map(|(stat, value)| (name, stats.unit.symbol(), stat, value)),
        );
    }
    rows
}

/// Writes all gaps of a run as (gap_ns, count), a mergeable multiset.
///
/// # Errors
/// Any I/O error.
pub fn write_token_gaps(path: &Path, run: &RunRecord) -> io::Result<()> {
    let gaps = TokenGaps::new(run, None).pooled(&run.requests);
    write_atomic(path, |w| {
        writeln!(w, "gap_ns,count")?;
        gaps.counts()
            .try_for_each(|(gap, count)| writeln!(w, "{gap},{count}"))
    })
}

/// Reads a multiset of gaps back.
///
/// # Errors
/// [`InputError`] when the file cannot be read or is not `gap_ns,count` in whole numbers.
pub fn read_token_gaps(path: &Path) -> Result<Sample, InputError> {
    let text = read_text(path)?;
    let mut lines = text.lines();
    if lines.next().map(str::trim_end) != Some("gap_ns,count") {
        return Err(InputError::in_file(path, "does not start with the heading 'gap_ns,count'").at("line 1"));
    }
    let pair = |line: &str| {
        let (gap, count) = line.split_once(',')?;
        Some((gap.trim().parse().ok()?, count.trim().parse().ok()?))
    };
    let rows = lines
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(i, line)| {
            pair(line).ok_or_else(|| {
                InputError::in_file(path, format!("'{line}' is not a gap and its count"))
                    .at(format!("line {}", i + 2))
                    .allowed("two whole numbers, nanoseconds and how often")
            })
        });
    Ok(Sample::from_counts(rows.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::three_requests;
    use crate::metric::summary::SummaryOptions;
    use crate::metric::vllm_bench::BenchInfo;

    #[test]
    fn gaps_come_back_as_they_went() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TOKEN_GAPS_FILE);
        let run = three_requests();
        write_token_gaps(&path, &run).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "gap_ns,count\n8000000,3\n14000000,1\n"
        );
        assert_eq!(
            read_token_gaps(&path).unwrap(),
            TokenGaps::new(&run, None).pooled(&run.requests)
        );
        std::fs::write(&path, "gap_ns,count\n8,x\n").unwrap();
        let error = read_token_gaps(&path).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("8,x"), "{error}");
    }

    #[test]
    fn a_figure_that_does_not_exist_is_empty_in_csv() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("summary.csv");
        let summary = Summary::of(&three_requests(), &SummaryOptions::default());
        write_summary_csv(&path, &summary).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("\nttft,s,mean,0.015\n"), "{text}");
        assert!(text.contains("\ngoodput,requests/s,value,\n"), "{text}");
        let json = dir.path().join("summary.json");
        write_figures(
            dir.path(),
            &three_requests(),
            &summary,
            &BenchResult::of(&three_requests(), &BenchInfo::default()),
        )
        .unwrap();
        let names = ["summary.json", "summary.csv", "result.json", TOKEN_GAPS_FILE];
        assert!(names.iter().all(|name| dir.path().join(name).is_file()));
        let back: Summary = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        assert_eq!(back, summary);
    }
}
