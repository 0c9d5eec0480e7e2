//! Files of figures: `summary.json`, `summary.csv`, `result.json`, `token-gaps.csv`.

use std::io;
use std::path::Path;

use serde::Serialize;

use super::percentile::Sample;
use super::summary::Summary;
use super::tokens::TokenGaps;
use super::tool::View;
use super::vllm_bench::BenchResult;
use super::window::Window;
use crate::input::{InputError, read_text, write_atomic};
use crate::record::{RunRecord, Scrape};

/// What the load generator would have printed, in a run folder.
pub const LENS_FILE: &str = "lens.csv";
/// What a dashboard would have read, in the folder of a run whose scenario asks for it.
pub const SCRAPES_FILE: &str = "scrapes.csv";
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

/// Metric, unit, stat, value.
pub type SummaryRow = (&'static str, &'static str, &'static str, Option<f64>);

/// A summary as rows, counts first.
pub fn summary_rows(summary: &Summary) -> Vec<SummaryRow> {
    let mut rows = count_rows(summary);
    rows.extend(rate_rows(summary));
    rows.extend(gauge_rows(summary));
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

fn count_rows(summary: &Summary) -> Vec<SummaryRow> {
    let f = &summary.funnel;
    let counts = [
        ("offered", Some(f.offered)),
        ("admitted", Some(f.admitted)),
        ("started", Some(f.started)),
        ("first_token", Some(f.first_token)),
        ("completed", Some(f.completed)),
        ("within_slo", f.within_slo),
        ("rejected", Some(f.rejected)),
        ("unfinished_waiting", Some(f.unfinished_waiting)),
        ("unfinished_started", Some(f.unfinished_started)),
        ("unsent", Some(f.unsent)),
    ];
    let mut rows: Vec<SummaryRow> = counts
        .map(|(name, n)| (name, "requests", "value", n.map(|n| n as f64)))
        .to_vec();
    let (t, slo) = (&summary.tokens, summary.slo.as_ref());
    rows.extend([
        ("error_rate", "1", "value", summary.error_rate),
        ("slo_attainment", "1", "value", slo.and_then(|s| s.attainment)),
        ("input_tokens", "tokens", "value", Some(t.input as f64)),
        ("cached_tokens", "tokens", "value", Some(t.cached as f64)),
        ("output_tokens", "tokens", "value", Some(t.output as f64)),
        ("preemptions", "1", "value", Some(summary.preemptions as f64)),
    ]);
    if summary.surplus > 0 {
        rows.push(("surplus", "requests", "value", Some(summary.surplus as f64)));
    }
    rows
}

fn rate_rows(summary: &Summary) -> [SummaryRow; 6] {
    let (t, slo) = (&summary.throughput, summary.slo.as_ref());
    [
        ("duration", "s", "value", Some(summary.duration_s)),
        ("request_throughput", "requests/s", "value", t.request_rps),
        ("goodput", "requests/s", "value", slo.and_then(|s| s.goodput_rps)),
        ("output_throughput", "tokens/s", "value", t.output_tok_s),
        (
            "total_throughput_logical",
            "tokens/s",
            "value",
            t.total_logical_tok_s,
        ),
        (
            "total_throughput_computed",
            "tokens/s",
            "value",
            t.total_computed_tok_s,
        ),
    ]
}

fn gauge_rows(summary: &Summary) -> Vec<SummaryRow> {
    let g = &summary.gauges;
    let mut rows = vec![
        ("in_system", "requests", "mean", summary.in_system_mean),
        ("utilisation", "1", "value", g.utilisation),
    ];
    let gauges = [
        ("running", "requests", g.running),
        ("waiting", "requests", g.waiting),
        ("kv_usage", "1", g.kv_usage),
    ];
    for (name, unit, gauge) in gauges {
        rows.push((name, unit, "mean", gauge.map(|g| g.mean)));
        rows.push((name, unit, "max", gauge.map(|g| g.max)));
    }
    rows
}

/// Writes what a load generator would have printed of a run as rows of `tool,figure,value`.
///
/// # Errors
/// Any I/O error.
pub fn write_lens(path: &Path, view: View, run: &RunRecord) -> io::Result<()> {
    write_atomic(path, |w| {
        writeln!(w, "tool,figure,value")?;
        view.figures(run).into_iter().try_for_each(|figure| {
            let value = figure.value.map_or_else(String::new, |v| v.to_string());
            writeln!(w, "{},{},{value}", view.name(), figure.name)
        })
    })
}

/// Writes what a dashboard would have read, as a table that `import --gauges` takes.
///
/// # Errors
/// Any I/O error.
pub fn write_scrapes(path: &Path, scrapes: &[Scrape]) -> io::Result<()> {
    let known = |value: Option<f64>| value.map_or_else(String::new, |v| v.to_string());
    write_atomic(path, |w| {
        let has_blocks = scrapes.iter().any(|s| s.kv_usage.is_some());
        let kv = if has_blocks { ",kv_usage" } else { "" };
        writeln!(w, "t_s,running,waiting{kv},finished,prompt_tokens,output_tokens")?;
        scrapes.iter().try_for_each(|s| {
            write!(w, "{},{},{}", s.at_s, s.running, s.waiting)?;
            if has_blocks {
                write!(w, ",{}", known(s.kv_usage))?;
            }
            let counters = [s.finished, s.prompt_tokens, s.output_tokens].map(known);
            writeln!(w, ",{}", counters.join(","))
        })
    })
}

/// Writes all gaps of a run as (gap_ns, count), a mergeable multiset.
///
/// # Errors
/// Any I/O error.
pub fn write_token_gaps(path: &Path, run: &RunRecord) -> io::Result<()> {
    let gaps = TokenGaps::new(run, None).pooled(Window::WHOLE.select(run));
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
