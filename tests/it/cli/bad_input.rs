//! Bad input as the user meets it: through the binary.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::simulate::SMALL;
use super::support::*;

const MODEL: &str = r#"kneeboard: 1
system:
  model: llama-3.1-8b
  accelerator: h100-sxm
  engine: {version: "0.32.0", max_model_len: 4096, max_num_seqs: 64}
  step_time: {step: 8ms, prefill_token: 45us}
workload: {synthetic: {num_requests: 50, lengths: {fixed: {input: 100, output: 20}}}}
load: {model: open-loop, arrival: {process: poisson, rate: 4}}
"#;

/// (override, what the error must say)
const CASES: &[(&str, &[&str])] = &[
    (
        "system.model=llama-3.1-70b",
        &["larger than the memory", "weights"],
    ),
    ("system.engine.runtime_reserve=70GiB", &["no KV block is left"]),
    ("system.engine.num_gpu_blocks=1", &["no KV block is left"]),
    (
        "system.engine.num_gpu_blocks=1000000000",
        &["num_gpu_blocks", "up to 16777216"],
    ),
    (
        "workload.synthetic.lengths.fixed.input=4096",
        &["request 0", "max_model_len"],
    ),
    (
        "system.engine.num_gpu_blocks=5",
        &["request 0", "needs 8 KV blocks"],
    ),
    ("load.arrival.rate=0", &["load.arrival.rate", "above 0"]),
    ("load.arrival.rate=-1", &["load.arrival.rate", "above 0"]),
    ("load.arrival.rate=.nan", &["load.arrival.rate", "finite"]),
    ("system.step_time.step=-8ms", &["system.step_time.step"]),
    ("measure.repeats=4000000000", &["measure.repeats", "1 to 1000"]),
    (
        "cluster.pools=[{role: unified, groups: 100000}]",
        &["cluster.pools.0.groups", "KV blocks"],
    ),
    ("workload.synthetic.num_requests=50000000", &["arrivals"]),
    ("sweep.axes={system.engine.max_num_seq: [1]}", &["did you mean"]),
    (
        "sweep.axes={measure.seed: [1, 2, 1]}",
        &["sweep.axes.measure.seed", "stands twice"],
    ),
    ("sweep.axes={question.decision: [a, b]}", &["changes no run"]),
    (
        "sweep={axes: {load.arrival.rate: [1, 2]}, search: {capacity: {rate: [1, 20]}}}",
        &["sweep.axes.load.arrival.rate", "sets the rate itself"],
    ),
    (
        "sweep.axes={system.engine.max_num_seqs: [1, 2], system.engine: [{version: \"0.32.0\", max_model_len: 4096}]}",
        &["contains the axis"],
    ),
    (
        "system.engine={version: \"0.32.0\", max_model_len: 4096, max_num_batched_tokens: 512, \
         enable_chunked_prefill: false}",
        &["max_num_batched_tokens", "chunked prefill is off"],
    ),
];

#[test]
fn every_command_that_runs_a_scenario_refuses_it_alike() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.yaml");
    std::fs::write(&path, MODEL).unwrap();
    let out = dir.path().join("out");
    for (set, parts) in CASES {
        let mut command = kneeboard();
        ended(
            command
                .arg("simulate")
                .arg(&path)
                .arg("-o")
                .arg(&out)
                .args(["--set", set]),
        )
        .refused(parts);
    }
    let fit = "system.fit=/nowhere/fit.yaml";
    let mut command = kneeboard();
    command.arg("simulate").arg(&path).arg("-o").arg(&out);
    ended(command.args(["--set", fit, "--set", "system.step_time=null"])).refused(&["/nowhere/fit.yaml"]);
}

#[test]
fn traces_that_cannot_be_replayed_are_refused_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("s.yaml");
    let text = MODEL
        .replace(
            "{synthetic: {num_requests: 50, lengths: {fixed: {input: 100, output: 20}}}}",
            "{trace: t.csv}",
        )
        .replace("process: poisson, rate: 4", "process: trace");
    std::fs::write(&scenario, &text).unwrap();
    let header = "arrival_s,input_tokens,output_tokens\n";
    let windows = "1,5,5\r\n2,5,5\r\n0.5,5,5\r\n";
    for (rows, parts) in [
        ("", &["t.csv", "empty"][..]),
        ("1,5,5\n0.5,5,5\n", &["t.csv", "line 3", "in order of arrival"]),
        (windows, &["t.csv", "line 4", "in order of arrival"]),
        ("nan,5,5\n", &["t.csv", "line 2", "arrival_s"]),
        ("-1,5,5\n", &["t.csv", "line 2", "negative"]),
        ("0,0,5\n", &["t.csv", "line 2", "input_tokens is 0"]),
        ("0,4294967295,5\n", &["t.csv", "line 2", "input_tokens"]),
        ("0,5,5\n1,9000,5\n", &["t.csv", "request 1", "max_model_len"]),
    ] {
        let header = if rows == windows {
            header.replace('\n', "\r\n")
        } else {
            header.to_owned()
        };
        std::fs::write(dir.path().join("t.csv"), header + rows).unwrap();
        let out = dir.path().join("out");
        run_line("simulate {} -o {}", &[&scenario, &out]).refused(parts);
    }
    std::fs::write(&scenario, text.replace("t.csv", "t.csv.gz")).unwrap();
    let whole = gzip(&format!("{header}{}", "0,17,5\n".repeat(1000)));
    std::fs::write(dir.path().join("t.csv.gz"), &whole[..whole.len() - 5]).unwrap();
    run_line("show {}", &[&scenario]).refused(&["t.csv.gz", "not a whole gzip"]);
    run_line("trace inspect {}", &[&dir.path().join("t.csv.gz")]).refused(&["t.csv.gz", "not a whole gzip"]);
}

/// Starts a command, kills it after `after`, and gives the folder it was writing.
fn killed(scenario: &Path, command: &str, out: PathBuf, after: Duration) -> PathBuf {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_kneeboard"))
        .arg(command)
        .arg(scenario)
        .args(["--save-detailed"].iter().filter(|_| command == "simulate"))
        .arg("-o")
        .arg(&out)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while begun.elapsed() < after && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // SIGKILL on Unix; an error means that it had ended.
    let _ = child.kill();
    child.wait().unwrap();
    out
}

/// Every file that stands under a final name can be read whole.
fn assert_whole(folder: &Path) -> usize {
    let mut whole = 0;
    for (name, bytes) in if folder.is_dir() {
        files(folder)
    } else {
        Default::default()
    } {
        let base = name.rsplit('/').next().unwrap();
        if base.starts_with(".kneeboard-") {
            continue;
        }
        whole += 1;
        let text = String::from_utf8(bytes).unwrap();
        assert!(!text.is_empty(), "{name} is empty");
        match base.rsplit('.').next().unwrap() {
            "json" => drop(serde_json::from_str::<serde_json::Value>(&text).expect(&name)),
            "csv" => {
                assert!(text.ends_with('\n'), "{name} ends in the middle of a row");
                rows(&text);
            }
            "html" => assert!(text.trim_end().ends_with("</html>"), "{name}"),
            "svg" => assert!(text.trim_end().ends_with("</svg>"), "{name}"),
            _ => assert!(text.ends_with('\n'), "{name}"),
        }
    }
    whole
}

#[test]
fn a_killed_run_leaves_only_whole_files_and_can_be_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let simulated = dir.path().join("simulated.yaml");
    // Some tens of megabytes of results.
    let large = SMALL.replace("num_requests: 200", "num_requests: 60000");
    std::fs::write(&simulated, large).unwrap();
    let swept = dir.path().join("swept.yaml");
    let axes = "sweep: {axes: {system.engine.max_num_seqs: [1, 2, 3, 4, 5, 6, 7, 8], system.engine.num_gpu_blocks: \
                [100, 200, 300, 400]}}\n";
    let middle = SMALL.replace("num_requests: 200", "num_requests: 2000");
    std::fs::write(&swept, format!("{middle}{axes}")).unwrap();
    let mut whole = 0;
    for milliseconds in [50, 100, 200, 300, 400, 600, 800] {
        let after = Duration::from_millis(milliseconds);
        for (command, scenario) in [("simulate", &simulated), ("sweep", &swept)] {
            let out = dir.path().join(format!("{command}-{milliseconds}"));
            whole += assert_whole(&killed(scenario, command, out, after));
        }
    }
    assert!(whole > 0, "no run was killed while it was writing");

    // What a killed run leaves is replaced as any earlier result is.
    let small = dir.path().join("small.yaml");
    std::fs::write(&small, SMALL).unwrap();
    let (out, fresh) = (dir.path().join("simulate-400"), dir.path().join("fresh"));
    std::fs::create_dir_all(&out).unwrap();
    std::fs::write(out.join(".kneeboard-x1"), "half").unwrap();
    run_line("simulate {} -o {} --overwrite", &[&small, &out]).with_code(0);
    run_line("simulate {} -o {}", &[&small, &fresh]).with_code(0);
    assert_eq!(differences(&out, &fresh), [""; 0]);
}

/// A model of steps that take no time, or more than time holds, gives no results that look good.
#[test]
fn step_times_that_are_none_end_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.yaml");
    std::fs::write(&path, MODEL).unwrap();
    let out = dir.path().join("out");
    for set in [
        "system.step_time={step: 0.4ns}",
        "system.step_time={step: 1ms, prefill_token: 5000h}",
    ] {
        let ended = ended(
            kneeboard()
                .args(["simulate"])
                .arg(&path)
                .arg("-o")
                .arg(&out)
                .args(["--set", set]),
        );
        assert_ne!(ended.code, Some(0), "{set}");
        assert!(ended.stderr.contains("step"), "{set}: {}", ended.stderr);
    }
}

/// A run that fails takes nothing away that an earlier one left.
#[test]
fn earlier_results_outlive_a_failed_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.yaml");
    std::fs::write(&path, MODEL).unwrap();
    let out = dir.path().join("out");
    let simulate = |more: &[&str]| {
        ended(
            kneeboard()
                .arg("simulate")
                .arg(&path)
                .arg("-o")
                .arg(&out)
                .args(more),
        )
    };
    simulate(&[]).with_code(0);
    let before = files(&out);
    simulate(&[
        "--overwrite",
        "--set",
        "workload.synthetic.lengths.fixed.input=5000",
    ])
    .with_code(2);
    assert_eq!(files(&out), before);
}

/// The fit that preflight makes is the one it runs on; a scenario with other step times is not run on it unsaid.
#[test]
fn preflight_refuses_step_times_beside_a_data_set() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.yaml");
    let dataset = repository("calibration/datasets/vllm-cpu");
    std::fs::write(
        &path,
        format!("{MODEL}calibration: {{dataset: {}}}\n", dataset.display()),
    )
    .unwrap();
    let out = dir.path().join("out");
    ended(kneeboard().arg("preflight").arg(&path).arg("-o").arg(&out))
        .with_code(2)
        .refused(&["system.step_time", "calibration.dataset"]);
}

/// A damaged file of a capture is bad input for `compare` too.
#[test]
fn compare_refuses_damaged_token_times() {
    let dir = tempfile::tempdir().unwrap();
    copy_tree(&capture("holdout/prefix-on/r12"), dir.path());
    let tokens = dir.path().join("tokens.jsonl.gz");
    let bytes = std::fs::read(&tokens).unwrap();
    std::fs::write(&tokens, &bytes[..bytes.len() / 2]).unwrap();
    run_line("compare {} --fit {}", &[dir.path(), &fit_file()])
        .with_code(2)
        .refused(&["tokens.jsonl.gz", "gzip"]);
}
