//! Tables of one run's summary.

use super::diagnosis_tables::diagnosis_tables;
use super::table::{Cell, Column, Table};
use crate::metric::Summary;
use crate::metric::summary::Boundary;

/// All tables of a summary, counts first.
pub fn summary_tables(summary: &Summary) -> Vec<Table> {
    let tables = [
        Some(counts(summary)),
        Some(rates(summary)),
        targets(summary),
        Some(latencies(summary)),
    ];
    let diagnosis = summary.diagnosis.iter().flat_map(diagnosis_tables);
    tables.into_iter().flatten().chain(diagnosis).collect()
}

/// How far the offered requests came.
pub fn counts(summary: &Summary) -> Table {
    let f = &summary.funnel;
    let mut table = Table::new(
        "Requests",
        vec![
            Column::plain("stage"),
            Column::plain("requests"),
            Column::plain("share of offered"),
        ],
    );
    let stages = [
        ("offered", Some(f.offered)),
        ("admitted", Some(f.admitted)),
        ("started", Some(f.started)),
        ("first token", Some(f.first_token)),
        ("completed", Some(f.completed)),
        ("within SLO", f.within_slo),
        ("rejected", Some(f.rejected)),
        ("unfinished, waiting", Some(f.unfinished_waiting)),
        ("unfinished, started", Some(f.unfinished_started)),
        ("not sent", Some(f.unsent)),
    ];
    for (stage, count) in stages {
        let share = count
            .filter(|_| f.offered > 0)
            .map(|n| n as f64 / f.offered as f64);
        table.push(vec![
            stage.into(),
            count.into(),
            share.map_or(Cell::Absent, Cell::Share),
        ]);
    }
    if summary.surplus > 0 {
        table.push(vec![
            "beside them, surplus".into(),
            summary.surplus.into(),
            Cell::Absent,
        ]);
    }
    table
}

/// Figure, value, unit.
type Row = (&'static str, Cell, &'static str);

/// Rates and gauges.
pub fn rates(summary: &Summary) -> Table {
    let columns = ["figure", "value", "unit"].map(Column::plain).to_vec();
    let mut table = Table::new("Rates and gauges", columns);
    for (figure, value, unit) in rate_rows(summary).into_iter().chain(gauge_rows(summary)) {
        table.push(vec![figure.into(), value, unit.into()]);
    }
    table
}

fn rate_rows(summary: &Summary) -> [Row; 10] {
    let (t, tokens) = (&summary.throughput, &summary.tokens);
    [
        ("duration", summary.duration_s.into(), "s"),
        ("request throughput", t.request_rps.into(), "requests/s"),
        (
            "goodput",
            summary.slo.as_ref().and_then(|s| s.goodput_rps).into(),
            "requests/s",
        ),
        ("output throughput", t.output_tok_s.into(), "tokens/s"),
        (
            "total throughput, logical input",
            t.total_logical_tok_s.into(),
            "tokens/s",
        ),
        (
            "total throughput, computed input",
            t.total_computed_tok_s.into(),
            "tokens/s",
        ),
        ("input tokens", tokens.input.into(), "tokens"),
        ("of which cached", tokens.cached.into(), "tokens"),
        ("output tokens", tokens.output.into(), "tokens"),
        ("preemptions", summary.preemptions.into(), "times"),
    ]
}

fn gauge_rows(summary: &Summary) -> [Row; 8] {
    let g = &summary.gauges;
    let share = |x: Option<f64>| x.map_or(Cell::Absent, Cell::Share);
    [
        ("in the system, mean", summary.in_system_mean.into(), "requests"),
        (
            "running, mean over busy time",
            g.running.map(|g| g.mean).into(),
            "requests a replica",
        ),
        (
            "running, max",
            g.running.map(|g| g.max as u64).into(),
            "requests a replica",
        ),
        (
            "waiting, mean over busy time",
            g.waiting.map(|g| g.mean).into(),
            "requests a replica",
        ),
        (
            "waiting, max",
            g.waiting.map(|g| g.max as u64).into(),
            "requests a replica",
        ),
        (
            "KV use, mean over busy time",
            share(g.kv_usage.map(|g| g.mean)),
            "of usable blocks",
        ),
        (
            "KV use, max",
            share(g.kv_usage.map(|g| g.max)),
            "of usable blocks",
        ),
        ("busy", share(g.utilisation), "of the time up"),
    ]
}

/// How each target was met; `None` without targets.
pub fn targets(summary: &Summary) -> Option<Table> {
    let slo = summary.slo.as_ref()?;
    let columns = [
        "target",
        "within",
        "met",
        "attainment over offered",
        "p99 within",
        "how a request is judged",
    ];
    let mut table = Table::new("Service-level objectives", columns.map(Column::plain).to_vec());
    table.columns[1].unit = Some("ms".into());
    let share = |x: Option<f64>| x.map_or(Cell::Absent, Cell::Share);
    for t in &slo.targets {
        let p99 = t.p99_within.map(|within| if within { "yes" } else { "no" });
        table.push(vec![
            t.metric.name().into(),
            (t.target_s * 1e3).into(),
            t.met.into(),
            share(t.attainment),
            p99.into(),
            t.rule.clone().into(),
        ]);
    }
    table.push(vec![
        "all of them".into(),
        Cell::Absent,
        slo.met.into(),
        share(slo.attainment),
        Cell::Absent,
        "a request meets every target".into(),
    ]);
    table.note = verdict(summary);
    Some(table)
}

/// Whether what was asked for holds, and by what; `None` where nothing was asked.
fn verdict(summary: &Summary) -> Option<String> {
    let slo = summary.slo.as_ref()?;
    let asked = slo.attainment_asked.map(|asked| {
        let of = match slo.targets.len() {
            0 | 1 => "",
            _ => " of all targets together",
        };
        let met = percent(slo.attainment);
        format!("attainment{of} {met} of {} asked", percent(Some(asked)))
    });
    let allowed = slo.errors_allowed.map(|allowed| {
        let errors = percent(summary.error_rate);
        format!("errors {errors} of {} allowed", percent(Some(allowed)))
    });
    let by: Vec<String> = asked.into_iter().chain(allowed).collect();
    let found = match slo.holds {
        Some(true) => "holds",
        Some(false) => "does not hold",
        None => "cannot be judged",
    };
    let each = match (slo.holds, slo.holds_each) {
        (Some(false), Some(true)) => "; each target by itself holds",
        _ => "",
    };
    (!by.is_empty()).then(|| format!("SLO: {found}: {}{each}", by.join(", ")))
}

/// To a millionth of the whole, so that 99.99 % asked and 99.98 % met do not look alike.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".into(), |s| format!("{} %", (1e6 * s).round() / 1e4))
}

/// All latencies in milliseconds.
pub fn latencies(summary: &Summary) -> Table {
    let boundary = match summary.boundary {
        Boundary::Engine => "engine",
        Boundary::Serving => "serving",
        Boundary::EndToEnd => "end-to-end",
    };
    let mut columns = vec![Column::plain("metric"), Column::plain("n")];
    let figures = ["mean", "std", "min", "p50", "p90", "p95", "p99", "max"];
    columns.extend(figures.map(|figure| Column::with_unit(figure, "ms")));
    let mut table = Table::new(format!("Latencies, {boundary} boundary"), columns);
    for (name, stats) in summary.latency.named() {
        let label = match name {
            "ttft" => "TTFT",
            "ttft_from_send" => "TTFT from send",
            "itl" => "ITL (gap between chunks)",
            "tpot" => "TPOT",
            "e2e" => "E2E",
            "e2e_from_send" => "E2E from send",
            "stall" => "longest gap of a request",
            "queue" => "queue time",
            "prefill" => "prefill time",
            "send_lag" => "client lag",
            _ => "engine step",
        };
        let mut row: Vec<Cell> = vec![label.into(), stats.n.into()];
        row.extend(stats.figures().map(|(_, s)| s.map(|s| s * 1e3).into()));
        table.push(row);
    }
    if !summary.notes.is_empty() {
        table.note = Some(summary.notes.join("; "));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::three_requests;
    use crate::metric::{Slo, SummaryOptions};
    use crate::record::RunRecord;
    use crate::units::SimDuration;

    #[test]
    fn the_verdict_is_of_all_targets_together_and_says_nothing_where_nothing_was_asked() {
        let verdict = |asked, e2e_ms: Option<u64>| {
            let slo = Slo {
                ttft: Some(SimDuration(16_000_000)),
                e2e: e2e_ms.map(SimDuration::from_millis),
                attainment: asked,
                errors: asked.map(|_| 0.5),
                ..Slo::default()
            };
            let options = SummaryOptions {
                slo,
                ..SummaryOptions::default()
            };
            targets(&Summary::of(&three_requests(), &options)).unwrap().note
        };
        assert_eq!(verdict(None, None), None);
        let holds = "SLO: holds: attainment 50 % of 50 % asked, errors 25 % of 50 % allowed";
        assert_eq!(verdict(Some(0.5), None).as_deref(), Some(holds));
        let fails = "SLO: does not hold: attainment of all targets together 0 % of 10 % asked, errors 25 % of 50 % allowed";
        assert_eq!(verdict(Some(0.1), Some(1)).as_deref(), Some(fails));
        // Two of four meet each, one of four both.
        let apart = "SLO: does not hold: attainment of all targets together 25 % of 50 % asked, errors 25 % of 50 % allowed; \
                     each target by itself holds";
        assert_eq!(verdict(Some(0.5), Some(30)).as_deref(), Some(apart));
    }

    #[test]
    fn tables_show_the_timeline() {
        let slo = Slo {
            ttft: Some(SimDuration(16_000_000)),
            ..Slo::default()
        };
        let options = SummaryOptions {
            slo,
            ..SummaryOptions::default()
        };
        let tables = summary_tables(&Summary::of(&three_requests(), &options));
        let titles: Vec<&str> = tables.iter().map(|t| t.title.as_str()).collect();
        let want = [
            "Requests",
            "Rates and gauges",
            "Service-level objectives",
            "Latencies, engine boundary",
        ];
        assert_eq!(titles, want);
        assert_eq!(
            tables[0].rows[5],
            ["within SLO".into(), Cell::Count(2), Cell::Share(0.5)]
        );
        let itl = &tables[3].rows[2];
        assert_eq!((itl[1].display(), itl[2].display()), ("4".into(), "9.500".into()));
        assert!(
            tables[3]
                .note
                .as_ref()
                .is_some_and(|n| n.contains("p99 of fewer than 100"))
        );
    }

    #[test]
    fn an_empty_run_shows_dashes_not_zeros() {
        let tables = summary_tables(&Summary::of(&RunRecord::default(), &SummaryOptions::default()));
        let latencies = tables.last().map(|t| t.rows.clone()).unwrap_or_default();
        assert!(
            latencies
                .iter()
                .all(|row| row[2..].iter().all(|cell| *cell == Cell::Absent))
        );
    }
}
