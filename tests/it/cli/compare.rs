//! `kneeboard compare`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::support::*;

const DISTRIBUTIONS: [&str; 5] = ["ttft_s", "itl_s", "tpot_s", "e2e_s", "step_duration_s"];
const SINGLES: [&str; 5] = [
    "output_throughput_tok_s",
    "request_throughput_rps",
    "duration_s",
    "preemptions",
    "cached_tokens",
];

/// Every (metric, stat) of one capture, with its row.
fn figures(capture: &Value) -> BTreeMap<(String, String), Value> {
    let rows = capture["metrics"].as_array().unwrap();
    let named = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let figures: BTreeMap<_, _> = rows
        .iter()
        .map(|r| ((named(r, "metric"), named(r, "stat")), r.clone()))
        .collect();
    assert_eq!(figures.len(), rows.len(), "a figure is given twice");
    figures
}

#[test]
fn json_has_every_figure_and_errors_that_follow_from_the_figures() {
    let (a, b) = (
        capture("holdout/serve-s4-b256"),
        capture("holdout/preempt-s16-b512-kv80"),
    );
    let (batch, fit) = (capture("fit/grid/grid"), fit_file());
    let report = run_line("compare {} {} {} --fit {} --json", &[&a, &batch, &b, &fit])
        .with_code(0)
        .json();
    let names: Vec<_> = report["captures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "serve-s4-b256/r4",
            "serve-s4-b256/r8",
            "preempt-s16-b512-kv80/chat-r9"
        ]
    );
    assert_eq!(report["skipped"][0]["name"], "grid/grid");
    assert!(
        report["skipped"][0]["reason"]
            .as_str()
            .unwrap()
            .contains("mode batch")
    );

    let mut expected: Vec<(String, String)> = Vec::new();
    for metric in DISTRIBUTIONS {
        expected.extend(["mean", "p50", "p90", "p99"].map(|stat| (metric.into(), stat.into())));
    }
    expected.extend(SINGLES.map(|metric| (metric.into(), "value".into())));
    expected.sort();
    for capture in report["captures"].as_array().unwrap() {
        let figures = figures(capture);
        assert_eq!(figures.keys().cloned().collect::<Vec<_>>(), expected);
        for (name, row) in &figures {
            let (actual, predicted) = (
                row["actual"].as_f64().unwrap(),
                row["predicted"].as_f64().unwrap(),
            );
            if actual.abs() > 0.0 {
                close(row["rel_error"].as_f64().unwrap(), (predicted - actual) / actual);
            } else {
                assert!(row["rel_error"].is_null(), "{name:?}: {row}");
            }
        }
    }
    let preemptions =
        |i: usize| figures(&report["captures"][i])[&("preemptions".into(), "value".into())].clone();
    // No engine of 2,048 blocks preempted anything; that of 80 blocks did.
    assert_eq!(preemptions(0)["actual"], 0.0);
    assert!(preemptions(0)["rel_error"].is_null());
    assert!(preemptions(2)["actual"].as_f64().unwrap() > 0.0);

    let text = run_line("compare {} --fit {}", &[&batch, &fit])
        .with_code(0)
        .stdout;
    assert!(text.contains("grid/grid: skipped, mode batch"), "{text}");
}

/// Measured figures from the capture's files alone, by the definitions of the command's help.
fn measured(folder: &Path) -> BTreeMap<(&'static str, &'static str), f64> {
    let requests = rows(&gunzip(&folder.join("requests.csv.gz")));
    let manifest = json_file(&folder.join("manifest.json"));
    let tokens: Vec<Vec<f64>> = gunzip(&folder.join("tokens.jsonl.gz"))
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|row| {
            row["t"]
                .as_array()
                .unwrap()
                .iter()
                .map(|t| t.as_f64().unwrap())
                .collect()
        })
        .collect();
    assert_eq!(requests.len(), tokens.len());
    let (mut ttft, mut itl, mut tpot, mut e2e) = (vec![], vec![], vec![], vec![]);
    for (request, times) in requests.iter().zip(&tokens) {
        let (arrival, last) = (number(request, "arrival_s"), times[times.len() - 1]);
        ttft.push(times[0] - arrival);
        e2e.push(last - arrival);
        itl.extend(times.windows(2).map(|pair| pair[1] - pair[0]));
        if times.len() > 1 {
            tpot.push((last - times[0]) / (times.len() - 1) as f64);
        }
    }
    let steps: Vec<f64> = rows(&gunzip(&folder.join("steps.csv.gz")))
        .iter()
        .map(|s| number(s, "t_end_s") - number(s, "t_start_s"))
        .collect();
    let duration = manifest["duration_s"].as_f64().unwrap();
    let sum = |column: &str| requests.iter().map(|r| number(r, column)).sum::<f64>();
    let mut figures = BTreeMap::from([
        (("duration_s", "value"), duration),
        (
            ("output_throughput_tok_s", "value"),
            sum("output_tokens") / duration,
        ),
        (
            ("request_throughput_rps", "value"),
            requests.len() as f64 / duration,
        ),
        (("preemptions", "value"), sum("preemptions")),
        (("cached_tokens", "value"), sum("cached_input_tokens")),
    ]);
    for (metric, values) in [
        ("ttft_s", &ttft),
        ("itl_s", &itl),
        ("tpot_s", &tpot),
        ("e2e_s", &e2e),
        ("step_duration_s", &steps),
    ] {
        figures.insert((metric, "mean"), mean(values));
        figures.insert((metric, "p50"), percentile(values, 0.5));
        figures.insert((metric, "p90"), percentile(values, 0.9));
        figures.insert((metric, "p99"), percentile(values, 0.99));
    }
    figures
}

#[test]
fn actual_figures_are_those_of_the_captures_own_files() {
    for name in ["holdout/prefix-on/r12", "holdout/preempt-s16-b512-kv80/chat-r9"] {
        let folder = capture(name);
        let report = run_line("compare {} --fit {} --json", &[&folder, &fit_file()])
            .with_code(0)
            .json();
        let figures = figures(&report["captures"][0]);
        let measured = measured(&folder);
        assert_eq!(measured.len(), figures.len());
        for ((metric, stat), value) in measured {
            let actual = figures[&(metric.to_owned(), stat.to_owned())]["actual"]
                .as_f64()
                .unwrap();
            // The engine's clock is kept in whole nanoseconds, the capture's in microseconds.
            approx::assert_relative_eq!(actual, value, max_relative = 1e-6);
        }
    }
}

#[test]
fn the_same_bytes_on_one_thread_and_on_four() {
    let set = capture("holdout/serve-s4-b256");
    let with = |threads: &str| {
        let mut command = kneeboard();
        command
            .env("RAYON_NUM_THREADS", threads)
            .args(["compare", "--json", "--fit"]);
        ended(command.arg(fit_file()).arg(&set)).with_code(0).stdout
    };
    assert_eq!(with("1"), with("4"));
}

#[test]
fn captures_and_fits_that_cannot_be_used_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (good, fit) = (capture("holdout/serve-s4-b256/r4"), fit_file());
    let gone = dir.path().join("gone.yaml");
    run_line("compare {} --fit {}", &[&good, &gone]).refused(&["gone.yaml", "No such file"]);
    let scenario = repository("scenarios/priority.yaml");
    run_line("compare {} --fit {}", &[&good, &scenario]).refused(&["priority.yaml", "not a fit file"]);
    run_line("compare {} --fit {}", &[&gone, &fit]).refused(&["gone.yaml"]);
    run_line("compare {} --fit {}", &[dir.path(), &fit]).refused(&["holds no capture"]);
    let cut = dir.path().join("cut");
    copy_tree(&good, &cut);
    let steps = cut.join("steps.csv.gz");
    let whole = std::fs::read(&steps).unwrap();
    std::fs::write(&steps, &whole[..whole.len() / 2]).unwrap();
    run_line("compare {} --fit {}", &[&cut, &fit]).refused(&["steps.csv.gz", "not a whole gzip"]);
}
