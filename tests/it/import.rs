//! Files of real load generators, imported: each figure that the tool printed comes out again.

use std::path::{Path, PathBuf};

use kneeboard::calibrate::import::{ServerFacts, write_capture, write_joined};
use kneeboard::calibrate::observed_capture::ServedDefaults;
use kneeboard::calibrate::{Capture, ClockSide, OfferedModel, front_end_of, front_end_over};
use kneeboard::metric::lens;
use kneeboard::record::import::{ClientRun, ImportOptions, Tool, read};
use kneeboard::steptime::{AnyFit, Fit};
use kneeboard::verify::compare::compare;
use kneeboard::verify::guises::Guises;

use crate::shared::data_set;

/// File and tool of every live run that has a per-request file, under the folder of the data set.
const FILES: &[(&str, &str, Tool)] = &[
    ("vllm-bench-r5", "result.json", Tool::VllmBench),
    ("vllm-bench-r9", "result.json", Tool::VllmBench),
    ("vllm-bench-r12", "result.json", Tool::VllmBench),
    ("vllm-bench-r18", "result.json", Tool::VllmBench),
    ("vllm-bench-chat-r8", "result.json", Tool::VllmBench),
    ("vllm-bench-goodput-r10", "result.json", Tool::VllmBench),
    ("vllm-bench-mc8", "result.json", Tool::VllmBench),
    ("vllm-bench-prefix-on-r8", "result.json", Tool::VllmBench),
    ("vllm-bench-rampup", "result.json", Tool::VllmBench),
    ("guidellm-poisson", "benchmarks.json.gz", Tool::Guidellm),
    ("aiperf-poisson", "artifacts/profile_export.jsonl", Tool::Aiperf),
    (
        "inference-perf-poisson",
        "reports/per_request_lifecycle_metrics.json.gz",
        Tool::InferencePerf,
    ),
    (
        "genai-perf-r6",
        "artifacts/tiny-openai-completions-request_rate6.0/profile_export.json.gz",
        Tool::GenaiPerf,
    ),
];

/// Figures that must be among the recomputed, by tool.
fn required(tool: Tool) -> &'static [&'static str] {
    match tool {
        Tool::VllmBench => &[
            "completed",
            "total_input_tokens",
            "total_output_tokens",
            "request_throughput",
            "output_throughput",
            "total_token_throughput",
            "max_output_tokens_per_s",
            "max_concurrent_requests",
            "mean_ttft_ms",
            "median_ttft_ms",
            "std_ttft_ms",
            "p99_ttft_ms",
            "mean_tpot_ms",
            "median_tpot_ms",
            "p99_tpot_ms",
            "mean_itl_ms",
            "median_itl_ms",
            "p99_itl_ms",
            "mean_e2el_ms",
            "p99_e2el_ms",
        ],
        Tool::Guidellm => &[
            "requests_per_second.successful.mean",
            "output_tokens_per_second.successful.mean",
            "request_latency.successful.mean",
            "time_to_first_token_ms.successful.mean",
            "time_to_first_token_ms.successful.percentiles.p95",
            "inter_token_latency_ms.successful.mean",
            "inter_token_latency_ms.successful.percentiles.p95",
            "time_per_output_token_ms.successful.median",
            "time_per_output_token_ms.successful.percentiles.p99",
        ],
        Tool::Aiperf => &[
            "request_throughput.avg",
            "output_token_throughput.avg",
            "benchmark_duration.avg",
            "time_to_first_token.p99",
            "inter_token_latency.avg",
            "inter_token_latency.p50",
            "inter_chunk_latency.p99",
            "request_latency.std",
            "output_sequence_length.avg",
        ],
        Tool::InferencePerf => &[
            "successes.latency.request_latency.mean",
            "successes.latency.time_to_first_token.p99",
            "successes.latency.inter_token_latency.median",
            "successes.latency.time_per_output_token.mean",
            "successes.latency.normalized_time_per_output_token.p90",
            "successes.throughput.requests_per_sec",
            "successes.throughput.output_tokens_per_sec",
        ],
        Tool::GenaiPerf => &[
            "request_throughput.avg",
            "time_to_first_token.p50",
            "time_to_second_token.avg",
            "request_latency.p99",
        ],
        Tool::Llmperf | Tool::Csv => &[],
    }
}

fn runs_of(root: &Path, folder: &str, file: &str, tool: Tool) -> Vec<ClientRun> {
    let options = ImportOptions {
        // genai-perf writes no prompt lengths.
        input_tokens: (tool == Tool::GenaiPerf).then_some(155),
        ..ImportOptions::default()
    };
    let runs = read(&root.join(folder).join(file), &options).unwrap();
    assert!(
        runs.iter().all(|run| run.tool == tool),
        "{folder} is told from its keys"
    );
    runs
}

#[test]
fn what_each_tool_printed_comes_out_again() {
    let Some(root) = data_set("what_each_tool_printed_comes_out_again", "live-clients") else {
        return;
    };
    for &(folder, file, tool) in FILES {
        for run in runs_of(&root, folder, file, tool) {
            let figures = lens::figures(&run);
            for name in required(tool) {
                assert!(
                    figures.iter().any(|f| f.name == *name),
                    "{folder}: {name} is not recomputed"
                );
            }
            for figure in &figures {
                let error = figure.relative_error().unwrap();
                assert!(error < 1e-5, "{folder}: {figure:?}");
            }
        }
    }
}

/// The sweep's results are those of vllm bench, one file a run.
#[test]
fn every_result_of_a_sweep_is_read() {
    let Some(root) = data_set("every_result_of_a_sweep_is_read", "live-clients") else {
        return;
    };
    let mut seen = 0;
    for entry in std::fs::read_dir(root.join("vllm-bench-sweep/experiment")).unwrap() {
        let path = entry.unwrap().path().join("run=0.json");
        if path.is_file() {
            let run = read(&path, &ImportOptions::default()).unwrap().remove(0);
            assert!(
                lens::figures(&run)
                    .iter()
                    .all(|f| f.relative_error().unwrap() < 1e-5)
            );
            seen += 1;
        }
    }
    assert_eq!(seen, 4);
}

fn facts(root: &Path, folder: &str) -> ServerFacts {
    let mut facts = ServerFacts::default();
    facts.read(&root.join(folder).join("manifest.json")).unwrap();
    facts
}

#[test]
fn imports_are_captures_that_the_engine_s_own_record_agrees_with() {
    let Some(root) = data_set("imports_are_captures", "live-clients") else {
        return;
    };
    let out = tempfile::tempdir().unwrap();
    for &(folder, file, tool) in FILES {
        for (index, run) in runs_of(&root, folder, file, tool).into_iter().enumerate() {
            let target: PathBuf = out.path().join(format!("{folder}-{index}"));
            write_capture(&run, folder, &facts(&root, folder), 0.0, &target).unwrap();
            let capture = Capture::read(&target).unwrap();
            assert_eq!(capture.manifest.clock, ClockSide::Client);
            assert_eq!(capture.engine_config().unwrap().max_num_seqs, 16);
            assert_eq!(capture.requests.len(), run.completed().count());
            // guidellm keeps only the first and the last token's time.
            assert_eq!(capture.has_token_times(), tool != Tool::Guidellm, "{folder}");
            if capture.has_token_times() {
                for (request, t) in capture.requests.iter().zip(&capture.token_times().unwrap()) {
                    assert_eq!(t.len(), request.output_tokens as usize, "{folder}");
                }
            }
            // Server counts, whatever the client made of the text: the engine's own record has warm-ups too.
            let engine = Capture::read(&root.join(folder)).unwrap();
            let total = |c: &Capture| c.requests.iter().map(|r| u64::from(r.output_tokens)).sum::<u64>();
            if tool != Tool::Guidellm {
                let warmups = engine.requests.len() - capture.requests.len();
                let extra: u64 = engine.requests[..warmups]
                    .iter()
                    .map(|r| u64::from(r.output_tokens))
                    .sum();
                assert_eq!(total(&engine) - extra, total(&capture), "{folder}");
            }
            let closed = capture.manifest.load.model == OfferedModel::ClosedLoop;
            assert_eq!(closed, folder == "vllm-bench-mc8", "{folder}");
        }
    }
}

/// The README of the data set has these overheads from a script of its own: client to engine and back, mean ms.
const OVERHEADS: &[(&str, f64, f64)] = &[
    ("aiperf-poisson", 4.70 + 0.91, 2.27 + 0.42),
    ("inference-perf-poisson", 3.90 + 0.71, 2.28 + 0.43),
    ("vllm-bench-chat-r8", 4.56 + 0.67, 2.23 + 0.47),
    ("vllm-bench-mc8", 4.43 + 0.85, 2.26 + 0.41),
    ("vllm-bench-r12", 4.19 + 0.75, 2.94 + 0.58),
    ("vllm-bench-r5", 4.05 + 0.71, 1.85 + 0.31),
    ("vllm-bench-rampup", 4.17 + 0.70, 2.26 + 0.45),
];

#[test]
fn both_clocks_give_the_front_end() {
    let Some(root) = data_set("both_clocks_give_the_front_end", "live-clients") else {
        return;
    };
    let out = tempfile::tempdir().unwrap();
    let mut captures = Vec::new();
    for &(folder, inbound, outbound) in OVERHEADS {
        let &(_, file, tool) = FILES.iter().find(|f| f.0 == folder).unwrap();
        let mut run = runs_of(&root, folder, file, tool).remove(0);
        let target = out.path().join(folder);
        let found = write_joined(&mut run, &root.join(folder), &target).unwrap();
        assert_eq!(found, run.completed().count(), "{folder}");
        let capture = Capture::read(&target).unwrap();
        let fit = front_end_of(&capture).unwrap();
        assert!(fit.client && fit.n == found as u64, "{folder}: {fit:?}");
        assert!((fit.inbound_s * 1e3 - inbound).abs() < 0.02, "{folder}: {fit:?}");
        // A chat's client counts from the role chunk in the README, from the token's here.
        assert!(
            (fit.outbound_s * 1e3 - outbound).abs() < 0.05,
            "{folder}: {fit:?}"
        );
        assert!(fit.per_output_token_s.abs() < 5e-5, "{folder}: {fit:?}");
        captures.push(capture);
    }
    let all = front_end_over(&captures).unwrap();
    assert!(
        (0.004..0.006).contains(&all.inbound_s) && (0.002..0.0035).contains(&all.outbound_s),
        "{all:?}"
    );
    // Without the client's file the API server's own times remain, and say so.
    let server = front_end_of(&Capture::read(&root.join("vllm-bench-r5")).unwrap()).unwrap();
    assert!(
        !server.client && (server.inbound_s * 1e3 - 0.71).abs() < 0.05,
        "{server:?}"
    );
    let other = write_joined(
        &mut runs_of(&root, "vllm-bench-r5", "result.json", Tool::VllmBench).remove(0),
        &root.join("vllm-bench-r12"),
        &out.path().join("wrong"),
    );
    assert!(other.unwrap_err().to_string().contains("of the 120 requests"));
}

#[test]
fn a_gpu_table_becomes_one_capture_a_run() {
    let Some(root) = data_set("a_gpu_table_becomes_one_capture_a_run", "gpu-requests-h100") else {
        return;
    };
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("h100");
    let mut command = assert_cmd::Command::cargo_bin("kneeboard").unwrap();
    command
        .arg("import")
        .arg(root.join("requests.csv.gz"))
        .args(["--group-by", "experiment,stage", "--warmup", "60"])
        .args([
            "--columns",
            "output_tokens=max_tokens,prefix_group=prompt_id,prefix_tokens=input_tokens,error=has_error",
        ])
        .args([
            "--set",
            "vllm=0.15.1",
            "--set",
            "max_num_seqs=128",
            "--set",
            "accelerator=h100-sxm",
            "-o",
        ])
        .arg(&target);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let captures = kneeboard::calibrate::read_captures(&[target]).unwrap();
    assert_eq!(captures.len(), 8);
    assert_eq!(captures.iter().map(|c| c.requests.len()).sum::<usize>(), 39_000);
    let first = &captures[0];
    assert_eq!(
        (first.manifest.vllm.as_str(), first.manifest.warmup_s),
        ("0.15.1", 60.0)
    );
    assert!(
        first
            .requests
            .iter()
            .all(|r| r.prefix_group.is_some() && r.output_tokens > 0)
    );
    assert!(
        first
            .assumptions
            .iter()
            .any(|a| a.starts_with("max_num_batched_tokens = ")),
        "{:?}",
        first.assumptions
    );
}

#[test]
fn bad_imports_are_refused_with_exit_code_2() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("x.json");
    std::fs::write(&file, "{\"benchmarks\": 3}").unwrap();
    for (extra, part) in [
        (vec![], "benchmarks"),
        (vec!["--tool", "guidelm"], "did you mean 'guidellm'"),
        (vec!["--set", "max_num_seq"], "there is no '='"),
        (vec!["--time-unit", "h"], "unknown unit 'h'"),
        (vec!["--columns", "ttft=x"], "did you mean 'ttft_s'"),
    ] {
        let mut command = assert_cmd::Command::cargo_bin("kneeboard").unwrap();
        let output = command
            .arg("import")
            .arg(&file)
            .arg("-o")
            .arg(out.path().join("capture"))
            .args(&extra)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{extra:?}: {stderr}");
        assert!(stderr.contains(part), "{extra:?}: {stderr}");
        assert!(!out.path().join("capture").exists(), "{extra:?}");
    }
}

/// Step time fitted to some live runs, the front end read off their two clocks: client times of another run of the
/// same kind are predicted from its sends alone.
#[test]
fn client_times_are_predicted_through_the_front_end() {
    let Some(root) = data_set("client_times_are_predicted", "live-clients") else {
        return;
    };
    let out = tempfile::tempdir().unwrap();
    let joined = |folder: &str| {
        let mut run = runs_of(&root, folder, "result.json", Tool::VllmBench).remove(0);
        let target = out.path().join("joined").join(folder);
        write_joined(&mut run, &root.join(folder), &target).unwrap();
        Capture::read(&target).unwrap()
    };
    let fitted: Vec<Capture> = [
        "vllm-bench-r5",
        "vllm-bench-r12",
        "vllm-bench-r18",
        "vllm-bench-rampup",
    ]
    .map(joined)
    .into();
    let options = kneeboard::calibrate::FitOptions { hold_out: false };
    let fit = kneeboard::calibrate::fit_steps(&fitted, &options, &mut |_, _| {}).unwrap();
    for folder in ["vllm-bench-r9", "vllm-bench-goodput-r10", "vllm-bench-mc8"] {
        let run = runs_of(&root, folder, "result.json", Tool::VllmBench).remove(0);
        let target = out.path().join("client").join(folder);
        write_capture(&run, folder, &facts(&root, folder), 0.0, &target).unwrap();
        let capture = Capture::read(&target).unwrap();
        let error = |fit: &Fit, metric: &str, stat: &str| {
            let fit = AnyFit::Linear(Box::new(fit.clone()));
            let guises =
                Guises::of_capture(&fit, Path::new("fit"), &capture, &ServedDefaults::default()).unwrap();
            let comparison = compare(&capture, &guises, &[]).unwrap();
            let figure = comparison
                .metrics
                .iter()
                .find(|m| m.metric == metric && m.stat == stat);
            figure.unwrap().rel_error.unwrap()
        };
        let engine_only = Fit {
            front_end: None,
            ..fit.clone()
        };
        let ttft = error(&fit, "ttft_s", "p50");
        assert!(ttft.abs() < 0.05, "{folder}: TTFT p50 {ttft:+.3}");
        let without = error(&engine_only, "ttft_s", "p50");
        assert!(
            without < -0.06,
            "{folder}: without a front end TTFT p50 {without:+.3}"
        );
        // The machine's own speed differs from run to run by several per cent.
        for (metric, stat, limit) in [
            ("tpot_s", "p50", 0.06),
            ("itl_s", "mean", 0.08),
            ("e2e_s", "p50", 0.08),
        ] {
            let e = error(&fit, metric, stat);
            assert!(e.abs() < limit, "{folder}: {metric} {stat} {e:+.3}");
        }
    }
}
