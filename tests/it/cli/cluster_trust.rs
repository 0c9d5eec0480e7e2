//! How far a cluster's figures can be trusted: intervals, extrapolation, and what limits it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::support::*;

/// The shipped P/D scenario, short.
const SHORT: &str = "--set workload.synthetic.num_requests=120";

fn shipped() -> PathBuf {
    repository("scenarios/pd-llama-70b.yaml")
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn figure<'a>(intervals: &'a Value, metric: &str, stat: &str) -> &'a Value {
    let of = |f: &&Value| f["metric"] == metric && f["stat"] == stat;
    intervals
        .as_array()
        .unwrap()
        .iter()
        .find(of)
        .unwrap_or_else(|| panic!("no {metric} {stat}"))
}

#[test]
fn a_clusters_figures_have_intervals_that_do_not_depend_on_threads() {
    let dir = tempfile::tempdir().unwrap();
    let simulate = |out: &str, threads: &str, more: &str| {
        let folder = dir.path().join(out);
        let mut command = kneeboard();
        command.env("RAYON_NUM_THREADS", threads);
        let line = format!(
            "simulate {} {SHORT} {more} -o {}",
            shipped().display(),
            folder.display()
        );
        command.args(line.split_whitespace());
        (ended(&mut command).with_code(0).stdout, folder)
    };
    let (text, one) = simulate("one", "1", "");
    let (_, four) = simulate("four", "4", "");
    let bytes = |folder: &Path| std::fs::read(folder.join("intervals.json")).unwrap();
    assert!(
        bytes(&one) == bytes(&four),
        "the same bytes on any number of threads"
    );
    let intervals = json(&one.join("intervals.json"));
    let summary = json(&one.join("run-0/summary.json"));
    let cluster = json(&one.join("run-0/cluster.json"));
    for (metric, stat, value) in [
        ("ttft_s", "p99", &summary["latency"]["ttft"]["p99"]),
        ("itl_s", "p50", &summary["latency"]["itl"]["p50"]),
        ("attainment", "value", &summary["slo"]["attainment"]),
        ("goodput_rps", "value", &summary["slo"]["goodput_rps"]),
        (
            "usd_per_good_request",
            "value",
            &cluster["cost"]["usd_per_good_request"],
        ),
        (
            "prefill_groups_needed",
            "value",
            &cluster["demand"]["needs"]["prefill_groups"],
        ),
    ] {
        let found = figure(&intervals, metric, stat);
        let at = |key: &str| found[key].as_f64().unwrap_or_else(|| panic!("{key} of {found}"));
        close(at("predicted"), value.as_f64().unwrap());
        assert!(
            at("lo") <= at("predicted") && at("predicted") <= at("hi"),
            "{found}"
        );
        // The fit has seen no such split, batch or release: it cannot be sure.
        assert!(metric == "attainment" || at("hi") > 1.01 * at("lo"), "{found}");
    }
    // By pool, what lies outside of what was seen.
    let marks = figure(&intervals, "ttft_s", "p99")["extrapolated"].to_string();
    assert!(
        marks.contains("prefill: ") && marks.contains("decode: "),
        "{marks}"
    );
    let said = cluster["limitations"].to_string();
    assert!(said.contains("extrapolated: pool prefill: "), "{said}");
    assert!(
        text.contains("16 draws") && text.contains("the SLO holds as predicted, and holds in"),
        "{text}"
    );
    let page = std::fs::read_to_string(one.join("report.html")).unwrap();
    assert!(page.contains("How sure this is") && page.contains("What limits it"));
    let (few, eight) = simulate("eight", "2", "--intervals 8");
    assert!(few.contains("8 draws") && eight.join("intervals.json").is_file());
    let (none, off) = simulate("off", "2", "--intervals off");
    assert!(none.contains("no intervals") && !off.join("intervals.json").exists());
    let line = format!(
        "simulate {} --intervals 3 -o {}",
        shipped().display(),
        dir.path().display()
    );
    let refused = run(line.split_whitespace()).with_code(2);
    assert!(refused.stderr.contains("from 8 to 16"), "{}", refused.stderr);
}

#[test]
fn stated_step_times_have_no_interval_and_a_verdict_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let scenario = repository("scenarios/closed-loop.yaml");
    let line = "simulate {} --set cluster.recovery.restart=true -o {}";
    let text = run_line(line, &[&scenario, &out]).with_code(0).stdout;
    assert!(text.contains("no intervals: step times are stated"), "{text}");
    assert!(!out.join("intervals.json").exists());
    let diagnosis = &json(&out.join("run-0/cluster.json"))["diagnosis"];
    assert!(diagnosis["limit"].is_string() && diagnosis["evidence"].as_array().unwrap().len() > 3);
    for both in diagnosis["little"].as_array().unwrap() {
        assert_ne!(both["agrees"], false, "{both}");
    }
}

#[test]
fn the_best_capacity_of_a_sweep_has_an_interval_if_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let sweep = "sweep={axes: {cluster.pools.prefill.groups: [1, 2]}, search: {capacity: {rate: [4, 16]}}}";
    let (scenario, folder) = (shipped().display().to_string(), out.display().to_string());
    let mut words = vec![
        "sweep",
        &scenario,
        "-o",
        &folder,
        "--intervals",
        "8",
        "--set",
        sweep,
    ];
    words.extend(SHORT.split_whitespace());
    let text = run(words).with_code(0).stdout;
    let configurations = json(&out.join("sweep.json"))["configurations"].clone();
    let capacity = |i: usize| configurations[i]["outcome"]["capacity"].clone();
    let best = usize::from(capacity(1)["capacity_rps"].as_f64() > capacity(0)["capacity_rps"].as_f64());
    let interval = &capacity(best)["interval"];
    assert_eq!(interval["draws"], 8, "{interval}");
    let found = capacity(best)["capacity_rps"].as_f64().unwrap();
    assert!(interval["lo_rps"].as_f64().unwrap() <= found, "{interval}");
    assert!(
        interval["hi_rps"].as_f64().is_none_or(|hi| hi >= found),
        "{interval}"
    );
    assert!(capacity(1 - best)["interval"].is_null(), "of the best alone");
    assert!(text.contains("90 % interval of that capacity"), "{text}");
    let marks = configurations[0]["extrapolated"].to_string();
    assert!(
        marks.contains("decode: decode_seqs") || marks.contains("prefill: "),
        "{marks}"
    );
}
