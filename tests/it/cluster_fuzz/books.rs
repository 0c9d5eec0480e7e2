//! Whether the files of a run agree with each other: what was offered is what ended, by whatever table one counts.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

fn table(path: &Path) -> Vec<BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    reader.deserialize().map(Result::unwrap).collect()
}

fn total(rows: &[BTreeMap<String, String>], column: &str) -> u64 {
    let cells = rows.iter().map(|row| row[column].as_str());
    cells
        .map(|cell| if cell.is_empty() { 0 } else { cell.parse().unwrap() })
        .sum()
}

/// Checks the books of one run; what does not agree, in words.
pub fn check(run: &Path, deadline: bool) -> Result<(), String> {
    let cluster: Value = serde_json::from_slice(&std::fs::read(run.join("cluster.json")).unwrap()).unwrap();
    let requests = table(&run.join("raw-events.csv"));
    let outcomes = &cluster["outcomes"];
    let told = |key: &str| outcomes[key].as_u64().unwrap_or(0);
    let of = |status: &str| requests.iter().filter(|r| r["status"] == status).count() as u64;
    let mut wrong = Vec::new();
    let mut same = |what: &str, a: u64, b: u64| {
        if a != b {
            wrong.push(format!("{what}: {a} and {b}"));
        }
    };
    let whole = [
        "completed",
        "failed",
        "timed_out",
        "rejected",
        "unfinished",
        "unsent",
        "surplus",
    ];
    same(
        "outcomes sum",
        told("offered"),
        whole.iter().map(|key| told(key)).sum(),
    );
    for status in whole {
        same(status, of(&status.replace('_', "-")), told(status));
    }
    let groups = table(&run.join("groups.csv"));
    same(
        "answered",
        total(&groups, "answered (requests)"),
        told("completed"),
    );
    for (key, column) in [
        ("answered", "answered (requests)"),
        ("prefilled", "prefilled (requests)"),
    ] {
        same(
            key,
            cluster["total"]["served"][key].as_u64().unwrap(),
            total(&groups, column),
        );
    }
    if told("attempts") < told("completed") {
        same("attempts below completions", told("attempts"), told("completed"));
    }
    if !deadline && told("stranded") == 0 {
        same("unfinished without a deadline", told("unfinished"), 0);
    }
    if !deadline && told("stranded") == 0 {
        let replicas = table(&run.join("replicas.csv"));
        same(
            "blocks",
            total(&replicas, "usable_blocks"),
            total(&replicas, "free_blocks_at_end"),
        );
    }
    for row in &requests {
        ordered(row, &mut wrong);
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}

/// The times of a request follow each other.
fn ordered(row: &BTreeMap<String, String>, wrong: &mut Vec<String>) {
    let times = [
        "t_scheduled_ns",
        "t_send_ns",
        "t_enqueued_ns",
        "t_prefill_start_ns",
        "t_first_token_ns",
        "t_last_token_ns",
    ];
    let told: Vec<u64> = times
        .iter()
        .filter_map(|column| row[*column].parse().ok())
        .collect();
    if !told.is_sorted() {
        wrong.push(format!(
            "times of request {} run back: {told:?}",
            row["request_id"]
        ));
    }
    let (input, cached, output) = (
        &row["input_tokens"],
        &row["cached_input_tokens"],
        &row["output_tokens"],
    );
    if cached.parse::<u64>().unwrap_or(0) > input.parse().unwrap() {
        wrong.push(format!(
            "request {}: {cached} of {input} tokens cached",
            row["request_id"]
        ));
    }
    if row["status"] == "completed" && output == "0" {
        wrong.push(format!(
            "request {} is completed without a token",
            row["request_id"]
        ));
    }
}
