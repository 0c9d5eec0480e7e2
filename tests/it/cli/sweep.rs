//! `kneeboard sweep` and `kneeboard capacity`.

use std::path::{Path, PathBuf};

use super::support::*;

/// One seat, every answer five steps of 100 ms, regular arrivals: a D/D/1 queue of 2 requests a second.
const ONE_SEAT: &str = r#"kneeboard: 1
question: {decision: where does one seat saturate, objective: ttft}
system:
  engine: {kind: vllm, version: "0.32.0", max_num_seqs: 1, max_num_batched_tokens: 512, max_model_len: 512,
           block_size: 16, num_gpu_blocks: 100, enable_prefix_caching: false, async_scheduling: false}
  step_time: {step: 100ms}
workload:
  synthetic: {lengths: {fixed: {input: 10, output: 5}}}
load: {model: open-loop, arrival: {process: constant, rate: 1}}
slo: {ttft: 150ms, attainment: 0.99}
measure: {warmup: 20s, window: 200s, seed: 1}
sweep:
  search: {capacity: {rate: [0.5, 8]}}
"#;

fn one_seat(dir: &Path) -> PathBuf {
    let path = dir.join("one-seat.yaml");
    std::fs::write(&path, ONE_SEAT).unwrap();
    path
}

/// An axis with one value that leaves no KV block.
const AXES: &str =
    "sweep.axes={system.engine.num_gpu_blocks: [100, 1, 200], system.engine.max_num_seqs: [1, 2]}";

#[test]
fn the_capacity_of_a_regular_queue_is_one_over_its_service_time() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = one_seat(dir.path());
    for (step, per_second) in [("100ms", 2.0), ("40ms", 5.0)] {
        let set = format!("system.step_time.step={step}");
        let report = run_line(&format!("capacity {{}} --json --set {set}"), &[&scenario])
            .with_code(0)
            .json();
        let capacity = &report["configurations"][0]["outcome"]["capacity"];
        let (passes, fails) = (
            capacity["capacity_rps"].as_f64().unwrap(),
            capacity["fails_at_rps"].as_f64().unwrap(),
        );
        // The search narrows the boundary to 2 %. A queue that grows by a hair a second is seen only after the
        // window, so the boundary may lie above the closed form by what 200 s can hide: TTFT 150 ms against
        // 50 ms of backlog over 200 s, below one in a thousand.
        assert!(
            passes <= per_second * 1.001 && fails >= per_second,
            "{step}: {passes} to {fails}"
        );
        assert!(fails / passes <= 1.0201, "{step}: {passes} to {fails}");
    }
    let text = run_line("capacity {}", &[&scenario]).with_code(0).stdout;
    assert!(
        text.contains("As written it carries") && text.contains("it fails: TTFT"),
        "{text}"
    );
}

#[test]
fn a_sweep_keeps_the_order_of_its_axes_and_its_files_agree() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (one_seat(dir.path()), dir.path().join("out"));
    let mut command = kneeboard();
    command
        .arg("sweep")
        .arg(&scenario)
        .arg("-o")
        .arg(&out)
        .args(["--json", "--set", AXES]);
    let printed = ended(&mut command).with_code(0).json();
    let sweep = json_file(&out.join("sweep.json"));
    assert_eq!(printed, sweep);
    let configurations = sweep["configurations"].as_array().unwrap();
    let settings: Vec<(u64, u64)> = configurations
        .iter()
        .map(|c| {
            (
                c["setting"][0][1].as_u64().unwrap(),
                c["setting"][1][1].as_u64().unwrap(),
            )
        })
        .collect();
    // The last axis changes fastest.
    assert_eq!(settings, [(100, 1), (100, 2), (1, 1), (1, 2), (200, 1), (200, 2)]);

    let table = rows(&std::fs::read_to_string(out.join("sweep.csv")).unwrap());
    let loads = rows(&std::fs::read_to_string(out.join("loads.csv")).unwrap());
    assert_eq!(table.len(), configurations.len());
    let mut next_load = loads.iter();
    for (index, (configuration, row)) in configurations.iter().zip(&table).enumerate() {
        let single = json_file(&out.join(format!("configurations/{index:06}.json")));
        assert_eq!(&single, configuration);
        assert_eq!(row["num_gpu_blocks"], settings[index].0.to_string());
        assert_eq!(row["max_num_seqs"], settings[index].1.to_string());
        let outcome = &configuration["outcome"];
        if settings[index].0 == 1 {
            let reason = outcome["infeasible"].as_str().unwrap();
            assert!(reason.contains("no KV block is left"), "{reason}");
            assert!(row["remarks"].contains(reason), "{row:?}");
            assert!(row["capacity at SLO (req/s)"].is_empty());
            continue;
        }
        let capacity = &outcome["capacity"];
        close(
            number(row, "capacity at SLO (req/s)"),
            capacity["capacity_rps"].as_f64().unwrap(),
        );
        for point in capacity["points"].as_array().unwrap() {
            let load = next_load.next().unwrap();
            assert_eq!(configuration["label"], load["configuration"].as_str());
            close(
                number(load, "offered (requests/s)"),
                point["rate_rps"].as_f64().unwrap(),
            );
            close(
                number(load, "attainment"),
                point["runs"][0]["attainment"].as_f64().unwrap(),
            );
        }
    }
    assert!(
        next_load.next().is_none(),
        "loads.csv has more rows than sweep.json"
    );
}

#[test]
fn a_sweep_gives_the_same_bytes_on_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = one_seat(dir.path());
    for threads in ["1", "4"] {
        let mut command = kneeboard();
        command
            .env("RAYON_NUM_THREADS", threads)
            .arg("sweep")
            .arg(&scenario);
        command.args(["--set", AXES, "-o"]).arg(dir.path().join(threads));
        ended(&mut command).with_code(0);
    }
    assert_eq!(differences(&dir.path().join("1"), &dir.path().join("4")), [""; 0]);
}

#[test]
fn nothing_feasible_exits_with_4() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = one_seat(dir.path());
    let sweep = |set: &str, name: &str| {
        let mut command = kneeboard();
        command.arg("sweep").arg(&scenario).args(["--set", set, "-o"]);
        ended(command.arg(dir.path().join(name)))
    };
    let none = sweep("sweep.axes={system.engine.num_gpu_blocks: [1]}", "a").with_code(4);
    assert!(
        none.stdout.contains("No configuration can be run."),
        "{}",
        none.stdout
    );
    assert!(
        dir.path().join("a/report.html").is_file(),
        "the reasons are reported all the same"
    );
    let slow = sweep("system.step_time.step=10s", "b").with_code(4);
    assert!(slow.stdout.contains("carries any load"), "{}", slow.stdout);
}

/// Without a search the axes are run at the scenario's own load, and there is no capacity to speak of.
#[test]
fn a_sweep_without_a_search_runs_each_at_the_scenarios_load() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (
        repository("scenarios/prefix-caching.yaml"),
        dir.path().join("out"),
    );
    let ended = run_line("sweep {} -o {}", &[&scenario, &out]).with_code(0);
    assert!(!ended.stdout.contains("No configuration"), "{}", ended.stdout);
    let sweep = json_file(&out.join("sweep.json"));
    for configuration in sweep["configurations"].as_array().unwrap() {
        close(
            configuration["outcome"]["load"]["rate_rps"].as_f64().unwrap(),
            20.0,
        );
    }
    run_line("capacity {}", &[&scenario]).refused(&["prefix-caching.yaml", "sweep.search.capacity", "--set"]);
}

#[test]
fn an_earlier_sweep_is_replaced_wholly() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (one_seat(dir.path()), dir.path().join("out"));
    let sweep = |axes: &str, more: &[&str], out: &Path| {
        let mut command = kneeboard();
        command
            .arg("sweep")
            .arg(&scenario)
            .args(["--set", axes])
            .args(more);
        ended(command.arg("-o").arg(out))
    };
    sweep(AXES, &[], &out).with_code(0);
    let one = "sweep.axes={system.engine.max_num_seqs: [2]}";
    sweep(one, &[], &out).refused(&["not empty", "--overwrite"]);
    sweep(one, &["--overwrite"], &out).with_code(0);
    let fresh = dir.path().join("fresh");
    sweep(one, &[], &fresh).with_code(0);
    assert_eq!(differences(&out, &fresh), [""; 0]);
}

#[test]
fn a_capacity_search_says_that_it_leaves_the_axes_aside() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = one_seat(dir.path());
    assert_eq!(run_line("capacity {}", &[&scenario]).with_code(0).stderr, "");
    let axes = "sweep.axes={system.engine.max_num_seqs: [1, 2]}";
    let path = scenario.to_str().unwrap();
    let ended = run(["capacity", path, "--set", axes]).with_code(0);
    for words in ["note", "kneeboard sweep", "base configuration only"] {
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
}
