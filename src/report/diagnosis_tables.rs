//! Tables of a diagnosis: the verdict with its evidence, and Little's law from both sides.

use super::table::{Cell, Column, Table};
use crate::metric::diagnose::{Diagnosis, TwoSides, Verdict};

/// What a reader calls a verdict.
const fn named(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::None => "nothing",
        Verdict::Server => "the server's queue",
        Verdict::Kv => "KV memory",
        Verdict::Client => "the client",
        Verdict::Undecidable => "undecidable",
    }
}

/// The verdict, then Little's law.
pub fn diagnosis_tables(diagnosis: &Diagnosis) -> [Table; 2] {
    [verdict_table(diagnosis), little_table(&diagnosis.little)]
}

/// The figures that the verdict rests on, the reason under them.
pub fn verdict_table(diagnosis: &Diagnosis) -> Table {
    let title = format!("What held it back: {}", named(diagnosis.verdict));
    let columns = ["evidence", "value", "unit", "compared with"]
        .map(Column::plain)
        .to_vec();
    let mut table = Table::new(title, columns);
    for e in &diagnosis.evidence {
        // Shares are read as per cent.
        let is_share = e.unit == "1";
        let cell = |x: Option<f64>| match x {
            Some(x) if is_share => Cell::Share(x),
            other => other.into(),
        };
        let unit = if is_share { "" } else { &e.unit };
        table.push(vec![
            e.what.as_str().into(),
            cell(e.value),
            unit.into(),
            cell(e.threshold),
        ]);
    }
    table.note = Some(diagnosis.because.clone());
    table
}

/// L = lambda * W at the client beside the server's gauges.
pub fn little_table(little: &TwoSides) -> Table {
    let columns = ["Little's law", "value", "unit"].map(Column::plain).to_vec();
    let mut table = Table::new("In flight at the client, and on the server", columns);
    let judged = format!(
        "judged time, {:.3} to {:.3} s",
        little.judged_from_s, little.judged_to_s
    );
    let rows: [(&str, Cell, &str); 11] = [
        ("client's wall clock", little.wall_clock_s.into(), "s"),
        (
            "lambda: answered over the wall clock",
            little.rate_rps.into(),
            "requests/s",
        ),
        (
            "W: mean time from send to last token",
            little.e2e_mean_s.into(),
            "s",
        ),
        (
            "lambda * W: in flight over the wall clock",
            little.in_flight.into(),
            "requests",
        ),
        ("time in which any was in flight", little.active_s.into(), "s"),
        (
            "in flight over that time",
            little.in_flight_active.into(),
            "requests",
        ),
        (&judged, (little.judged_to_s - little.judged_from_s).into(), "s"),
        (
            "in flight at the client",
            little.in_flight_judged.into(),
            "requests",
        ),
        ("running on the server", little.running.into(), "requests"),
        ("waiting on the server", little.waiting.into(), "requests"),
        (
            "neither: on the way, or not yet seen by the scheduler",
            little.outside.into(),
            "requests",
        ),
    ];
    for (what, value, unit) in rows {
        table.push(vec![what.into(), value, unit.into()]);
    }
    table
}
