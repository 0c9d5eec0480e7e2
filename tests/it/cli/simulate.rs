//! `kneeboard simulate`.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::support::*;

/// 200 requests on two replicas, two repeats: small, with some queueing.
pub const SMALL: &str = r#"kneeboard: 1
question: {decision: "is <script>alert('x')</script> \"safe\" & sound", objective: ttft}
system:
  engine: {kind: vllm, version: "0.32.0", max_num_seqs: 4, max_num_batched_tokens: 512, max_model_len: 1024,
           block_size: 16, num_gpu_blocks: 400, enable_prefix_caching: false, async_scheduling: false}
  step_time: {step: 10ms, any_prefill: 2ms, prefill_token: 50us, decode_row: 300us, decode_context_token: 1us}
cluster: {pools: [{role: unified, groups: 2}]}
workload:
  synthetic:
    num_requests: 200
    lengths:
      independent: {input: {uniform: {min: 20, max: 300}}, output: {uniform: {min: 1, max: 40}}}
load: {model: open-loop, arrival: {process: poisson, rate: 16}}
slo: {ttft: 100ms, tpot: 15ms, attainment: 0.9}
measure: {warmup: 2s, seed: 11, repeats: 2}
"#;

fn small(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("small.yaml");
    std::fs::write(&path, SMALL).unwrap();
    path
}

#[test]
fn the_folder_holds_what_was_promised_and_its_checksums() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (small(dir.path()), dir.path().join("out"));
    run_line("simulate {} -o {}", &[&scenario, &out]).with_code(0);
    let found = files(&out);
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    let mut expected: Vec<String> = ["checksums.txt", "report.html", "reproduce.md", "resolved.yaml"]
        .map(String::from)
        .into();
    for plot in ["ttft", "itl"] {
        expected.extend(["csv", "svg"].map(|kind| format!("plots/{plot}.{kind}")));
    }
    for run in ["run-0", "run-1"] {
        let parts = [
            "raw-events.csv",
            "replicas.csv",
            "result.json",
            "run.csv",
            "summary.csv",
            "summary.json",
            "token-gaps.csv",
        ];
        expected.extend(parts.map(|part| format!("{run}/{part}")));
    }
    expected.sort();
    assert_eq!(names, expected);

    let sums = String::from_utf8(found["checksums.txt"].clone()).unwrap();
    assert_eq!(sums.lines().count(), names.len() - 1);
    for line in sums.lines() {
        let (sum, name) = line.split_once("  ").unwrap();
        let digest: String = Sha256::digest(&found[name])
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(digest, sum, "{name}");
    }
    assert_ne!(
        found["run-0/raw-events.csv"], found["run-1/raw-events.csv"],
        "repeats differ"
    );

    // The page is self-contained, and what the user wrote stays text.
    let page = String::from_utf8(found["report.html"].clone()).unwrap();
    assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &quot;safe&quot; &amp; sound"));
    assert!(!page.contains("<script"));

    // The resolved scenario is a scenario: it gives the same runs.
    let again = dir.path().join("again");
    run_line("simulate {} -o {}", &[&out.join("resolved.yaml"), &again]).with_code(0);
    let differing = differences(&out, &again);
    assert!(
        differing.iter().all(|name| !name.starts_with("run-")),
        "{differing:?}"
    );
}

/// The summary, recomputed from the raw events by the definitions in docs/METRICS.md.
#[test]
fn the_summary_follows_from_the_raw_events() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (small(dir.path()), dir.path().join("out"));
    let printed = run_line("simulate {} -o {} --json --save-detailed", &[&scenario, &out])
        .with_code(0)
        .json();
    for (index, folder) in ["run-0", "run-1"].into_iter().enumerate() {
        let folder = out.join(folder);
        let summary = json_file(&folder.join("summary.json"));
        assert_eq!(printed[index], summary);
        check_summary(&folder, &summary);
    }
}

fn check_summary(folder: &Path, summary: &serde_json::Value) {
    let read = |name: &str| rows(&std::fs::read_to_string(folder.join(name)).unwrap());
    let seconds = |row: &BTreeMap<String, String>, column: &str| number(row, column) / 1e9;
    let all = read("raw-events.csv");
    assert_eq!(all.len(), 200);
    let measured: Vec<_> = all
        .iter()
        .filter(|r| seconds(r, "t_scheduled_ns") >= 2.0)
        .collect();
    assert!(measured.len() < all.len(), "some arrive in the warm-up");
    let ttft = |r: &BTreeMap<String, String>| seconds(r, "t_first_token_ns") - seconds(r, "t_scheduled_ns");
    let e2e = |r: &BTreeMap<String, String>| seconds(r, "t_last_token_ns") - seconds(r, "t_scheduled_ns");
    let tpot = |r: &BTreeMap<String, String>| {
        let gaps = number(r, "output_tokens") - 1.0;
        (gaps > 0.0).then(|| (seconds(r, "t_last_token_ns") - seconds(r, "t_first_token_ns")) / gaps)
    };
    let at = |pointer: &str| summary.pointer(pointer).unwrap().as_f64().unwrap();
    let count = |pointer: &str| summary.pointer(pointer).unwrap().as_u64().unwrap();
    let values = |f: &dyn Fn(&BTreeMap<String, String>) -> Option<f64>| -> Vec<f64> {
        measured.iter().filter_map(|r| f(r)).collect()
    };
    for (name, values) in [
        ("ttft", values(&|r| Some(ttft(r)))),
        ("e2e", values(&|r| Some(e2e(r)))),
        ("tpot", values(&tpot)),
    ] {
        assert_eq!(count(&format!("/latency/{name}/n")), values.len() as u64);
        // A request's TPOT is kept in whole nanoseconds, of some 10 ms.
        let near = |stat: &str, value: f64| {
            let figure = at(&format!("/latency/{name}/{stat}"));
            approx::assert_relative_eq!(figure, value, max_relative = 1e-7);
        };
        near("mean", mean(&values));
        for (stat, q) in [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)] {
            near(stat, percentile(&values, q));
        }
    }
    assert_eq!(count("/funnel/offered"), measured.len() as u64);
    assert_eq!(count("/funnel/completed"), measured.len() as u64);
    close(at("/error_rate"), 0.0);
    let good = measured
        .iter()
        .filter(|r| ttft(r) <= 0.1 && tpot(r).is_none_or(|t| t <= 0.015))
        .count();
    assert!(
        0 < good && good < measured.len(),
        "the objective separates: {good}"
    );
    assert_eq!(count("/funnel/within_slo"), good as u64);
    close(at("/slo/attainment"), good as f64 / measured.len() as f64);
    let end = seconds(&read("run.csv")[0], "t_end_ns");
    close(at("/duration_s"), end - 2.0);
    // Throughput and goodput count what ends in the window, whenever it came.
    let ended = || all.iter().filter(|r| seconds(r, "t_last_token_ns") >= 2.0);
    let good = ended().filter(|r| ttft(r) <= 0.1 && tpot(r).is_none_or(|t| t <= 0.015));
    close(at("/slo/goodput_rps"), good.count() as f64 / (end - 2.0));
    close(
        at("/throughput/request_rps"),
        ended().count() as f64 / (end - 2.0),
    );
    let sum = |column: &str| measured.iter().map(|r| number(r, column)).sum::<f64>();
    close(at("/tokens/input"), sum("input_tokens"));
    close(at("/tokens/output"), sum("output_tokens"));
    check_detail(folder, &all);
}

/// Steps do not overlap on a replica, and every token is in a segment.
fn check_detail(folder: &Path, requests: &[BTreeMap<String, String>]) {
    let read = |name: &str| rows(&std::fs::read_to_string(folder.join(name)).unwrap());
    let mut busy_until = BTreeMap::new();
    for step in read("steps.csv") {
        let (start, end) = (number(&step, "t_start_ns"), number(&step, "t_end_ns"));
        let before = busy_until.insert(step["replica"].clone(), end).unwrap_or(0.0);
        assert!(before <= start && start < end, "{step:?}");
        assert!(number(&step, "running") <= 4.0, "above max_num_seqs: {step:?}");
    }
    assert_eq!(busy_until.len(), 2, "both replicas worked");
    let mut tokens: BTreeMap<String, f64> = BTreeMap::new();
    for segment in read("token-segments.csv") {
        let count = number(&segment, "steps") * number(&segment, "tokens_per_step");
        *tokens.entry(segment["request_id"].clone()).or_default() += count;
    }
    for request in requests {
        close(tokens[&request["request_id"]], number(request, "output_tokens"));
    }
}

#[test]
fn the_same_bytes_twice_and_on_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = small(dir.path());
    for (name, threads) in [("a", "1"), ("b", "4"), ("c", "4")] {
        let mut command = kneeboard();
        command
            .env("RAYON_NUM_THREADS", threads)
            .arg("simulate")
            .arg(&scenario);
        ended(command.arg("-o").arg(dir.path().join(name))).with_code(0);
    }
    assert_eq!(differences(&dir.path().join("a"), &dir.path().join("b")), [""; 0]);
    assert_eq!(differences(&dir.path().join("b"), &dir.path().join("c")), [""; 0]);
}

#[test]
fn results_are_replaced_only_when_asked_and_then_wholly() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (small(dir.path()), dir.path().join("out"));
    run_line("simulate {} -o {}", &[&scenario, &out]).with_code(0);
    let before = files(&out);
    run_line("simulate {} -o {}", &[&scenario, &out]).refused(&["out", "not empty", "--overwrite"]);
    assert_eq!(files(&out), before);

    std::fs::write(out.join("notes.txt"), "mine").unwrap();
    let once = "--set measure.repeats=1";
    run_line(
        &format!("simulate {{}} -o {{}} --overwrite {once}"),
        &[&scenario, &out],
    )
    .with_code(0);
    assert_eq!(std::fs::read_to_string(out.join("notes.txt")).unwrap(), "mine");
    assert!(
        !out.join("run-1").exists(),
        "a run of the earlier results is still there"
    );
    std::fs::remove_file(out.join("notes.txt")).unwrap();
    let fresh = dir.path().join("fresh");
    run_line(&format!("simulate {{}} -o {{}} {once}"), &[&scenario, &fresh]).with_code(0);
    // The checksums listed the notes, too.
    assert_eq!(differences(&out, &fresh), ["checksums.txt"]);

    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    run_line("simulate {} -o {}", &[&scenario, &file]).refused(&["is a file"]);
    run_line("simulate {} -o {}", &[&scenario, &file.join("below")]).refused(&["below", "cannot be made"]);
}

#[test]
fn overrides_take_effect_and_are_told_in_the_command_to_reproduce() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (small(dir.path()), dir.path().join("out"));
    let set = "workload.synthetic.lengths={fixed: {input: 33, output: 3}}";
    let args = ["--set", set, "--set", "measure.repeats=1", "--json"];
    let mut command = kneeboard();
    command
        .arg("simulate")
        .arg(&scenario)
        .arg("-o")
        .arg(&out)
        .args(args);
    let summaries = ended(&mut command).with_code(0).json();
    let offered = summaries[0]["funnel"]["offered"].as_u64().unwrap();
    assert_eq!(summaries[0]["tokens"]["input"], 33 * offered);
    assert_eq!(summaries[0]["tokens"]["output"], 3 * offered);
    let reproduce = std::fs::read_to_string(out.join("reproduce.md")).unwrap();
    let expected = format!(
        "kneeboard simulate {} --set '{set}' --set measure.repeats=1 -o DIR",
        scenario.display()
    );
    assert!(reproduce.contains(&expected), "{reproduce}");

    let bad = dir.path().join("bad");
    run_line(
        "simulate {} -o {} --set system.engine.max_num_seq=3",
        &[&scenario, &bad],
    )
    .refused(&["max_num_seq", "did you mean 'max_num_seqs'"]);
    assert!(!bad.exists(), "a refused command made its folder");
}

/// The step counts were 85,564 and 1,328,067 when the engine was compared with vLLM's recorded logs; a change
/// means that it schedules otherwise.
#[test]
fn the_bench_scenarios_take_the_known_number_of_steps() {
    let dir = tempfile::tempdir().unwrap();
    for (name, replicas, steps) in [
        ("b1-10k-1replica", "1 replica", 85_564),
        ("b2-100k-4replicas", "4 replicas", 1_328_067),
    ] {
        let scenario = repository("scenarios/bench").join(format!("{name}.yaml"));
        let out = dir.path().join(name);
        let text = run_line("simulate {} -o {}", &[&scenario, &out])
            .with_code(0)
            .stdout;
        assert!(
            text.contains(&format!("{steps} steps on {replicas}\n")),
            "{name}: {text}"
        );
    }
}

#[test]
fn every_shipped_scenario_runs_and_completes_what_it_offers() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(repository("scenarios")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        if !crate::shared::has_its_data("every_shipped_scenario_runs_and_completes_what_it_offers", &path) {
            continue;
        }
        seen += 1;
        let out = dir.path().join(path.file_stem().unwrap());
        // The first requests of the week stand for all of it.
        let line = if path.ends_with("week.yaml") {
            "simulate {} -o {} --json --intervals off --set workload.synthetic.num_requests=5000"
        } else {
            "simulate {} -o {} --json --intervals off"
        };
        let summaries = run_line(line, &[&path, &out]).with_code(0).json();
        for summary in summaries.as_array().unwrap() {
            let funnel = &summary["funnel"];
            assert!(funnel["offered"].as_u64().unwrap() > 0);
            // The questions of these are what a loss, and a scale-out that comes late, cost: some requests.
            let costs = [("cluster-node-loss.yaml", 98), ("autoscale-burst.yaml", 75)];
            if let Some((_, least)) = costs.iter().find(|(name, _)| path.ends_with(name)) {
                let [offered, completed] =
                    ["offered", "completed"].map(|stage| funnel[stage].as_u64().unwrap());
                assert!(
                    completed < offered && completed * 100 > offered * least,
                    "{funnel}"
                );
                continue;
            }
            assert_eq!(funnel["offered"], funnel["completed"], "{}", path.display());
        }
    }
    assert!(seen >= 5);
}

/// llmperf on one replica of four seats.
const LLMPERF: &str = r#"kneeboard: 1
system:
  engine: {kind: vllm, version: "0.32.0", max_num_seqs: 4, max_num_batched_tokens: 1024, max_model_len: 1024,
           block_size: 16, num_gpu_blocks: 400, enable_prefix_caching: false, async_scheduling: false}
  step_time: {step: 8ms, any_prefill: 40ms}
workload:
  synthetic:
    num_requests: 30
    lengths:
      independent:
        input: {normal: {mean: 256, std: 50, min: 1, max: 900, rounding: down}}
        output: {normal: {mean: 40, std: 10, min: 1, max: 100, rounding: down}}
load:
  model: closed-loop
  concurrency: 5
  think: 6ms
  client: {kind: llmperf, start_up: 1200ms, stagger: 240ms, think_per_token: 10us}
measure: {seed: 3}
"#;

fn lens_of(folder: &Path) -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(folder.join("lens.csv")).unwrap();
    let row = |r: &BTreeMap<String, String>| (r["figure"].clone(), r["value"].parse().unwrap_or(f64::NAN));
    rows(&text).iter().map(row).collect()
}

/// Everything that llmperf prints follows from the raw events of the requests that it counts.
#[test]
fn a_run_of_llmperf_is_printed_as_llmperf_would() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (dir.path().join("llmperf.yaml"), dir.path().join("out"));
    std::fs::write(&scenario, LLMPERF).unwrap();
    let printed = run_line("simulate {} -o {}", &[&scenario, &out])
        .with_code(0)
        .stdout;
    assert!(printed.contains("As llmperf prints it"), "{printed}");
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("As llmperf prints it") && page.contains("5 clients of llmperf"));

    let raw = rows(&std::fs::read_to_string(out.join("run-0/raw-events.csv")).unwrap());
    let counted: Vec<_> = raw.iter().filter(|r| r["status"] == "completed").collect();
    let surplus = raw.iter().filter(|r| r["status"] == "surplus").count();
    assert_eq!(counted.len(), 30);
    assert!((1..5).contains(&surplus) && counted.len() + surplus == raw.len());
    let sent = [&raw[0]["t_send_ns"], &raw[1]["t_send_ns"]];
    assert_eq!(sent, ["1200000000", "1440000000"]);
    let end_ns = rows(&std::fs::read_to_string(out.join("run-0/run.csv")).unwrap());
    let end_s = number(&end_ns[0], "t_end_ns") / 1e9;
    let of = |from: &str, to: &str| -> Vec<f64> {
        let span = |r: &&BTreeMap<String, String>| (number(r, to) - number(r, from)) / 1e9;
        counted.iter().map(span).collect()
    };
    let (ttft, e2e) = (
        of("t_send_ns", "t_first_token_ns"),
        of("t_send_ns", "t_last_token_ns"),
    );
    let tokens: Vec<f64> = counted.iter().map(|r| number(r, "output_tokens")).collect();
    let each: Vec<f64> = e2e.iter().zip(&tokens).map(|(e, n)| e / n).collect();
    let lens = lens_of(&out.join("run-0"));
    let is = |name: &str, expected: f64| close(lens[&format!("results_{name}")], expected);
    is("ttft_s_mean", mean(&ttft));
    is("ttft_s_quantiles_p95", percentile(&ttft, 0.95));
    is("end_to_end_latency_s_quantiles_p99", percentile(&e2e, 0.99));
    is("inter_token_latency_s_mean", mean(&each));
    is(
        "mean_output_throughput_token_per_s",
        tokens.iter().sum::<f64>() / end_s,
    );
    is("num_completed_requests_per_min", 30.0 / end_s * 60.0);
    is("num_requests_started", 30.0);

    // The summary is of the same requests and the same clock.
    let summary = json_file(&out.join("run-0/summary.json"));
    assert_eq!(summary["funnel"]["completed"], 30);
    assert_eq!(summary["surplus"], surplus);
    close(summary["duration_s"].as_f64().unwrap(), end_s);
    close(summary["latency"]["ttft"]["mean"].as_f64().unwrap(), mean(&ttft));

    // Figures alone are the same, and so is a run step by step.
    let (alone, steps) = (dir.path().join("alone"), dir.path().join("steps"));
    run_line("simulate {} -o {} --summary-only", &[&scenario, &alone]).with_code(0);
    assert_eq!(json_file(&alone.join("run-0/summary.json")), summary);
    run_line("simulate {} -o {} --step-by-step", &[&scenario, &steps]).with_code(0);
    let differing = differences(&out, &steps);
    assert!(
        differing.iter().all(|name| !name.starts_with("run-")),
        "{differing:?}"
    );
}

#[test]
fn a_thread_pool_counts_words_and_has_no_ttft() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (dir.path().join("pool.yaml"), dir.path().join("out"));
    let (before, _) = LLMPERF.split_once("  client:").unwrap();
    let client = "  client: {kind: thread-pool, words_per_token: 0.5}\nmeasure: {seed: 3}\n";
    std::fs::write(&scenario, before.to_owned() + client).unwrap();
    let printed = run_line("simulate {} -o {}", &[&scenario, &out])
        .with_code(0)
        .stdout;
    assert!(
        printed.contains("As the thread-pool script prints it"),
        "{printed}"
    );
    let raw = rows(&std::fs::read_to_string(out.join("run-0/raw-events.csv")).unwrap());
    assert!(
        raw.iter()
            .all(|r| r["status"] == "completed" && r["t_first_token_ns"].is_empty())
    );
    let mut latencies: Vec<f64> = raw
        .iter()
        .map(|r| (number(r, "t_last_token_ns") - number(r, "t_send_ns")) / 1e9)
        .collect();
    latencies.sort_by(f64::total_cmp);
    let words: f64 = raw.iter().map(|r| 0.5 * number(r, "output_tokens")).sum();
    let lens = lens_of(&out.join("run-0"));
    close(lens["p95_latency_s"], latencies[28]);
    close(lens["p99_latency_s"], latencies[29]);
    close(lens["tokens_per_second"], words / latencies.iter().sum::<f64>());
    close(lens["words_per_response"], words / 30.0);
}

#[test]
fn the_diagnosis_follows_the_scenario() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = small(dir.path());
    let run = |name: &str, set: &str| {
        let line = format!("simulate {{}} -o {{}} --json --set measure.repeats=1 {set}");
        let summaries = run_line(&line, &[&scenario, &dir.path().join(name)])
            .with_code(0)
            .json();
        summaries[0]["diagnosis"].clone()
    };
    let roomy = run("roomy", "--set system.engine.max_num_seqs=64");
    assert_eq!(roomy["verdict"], "none", "{roomy}");
    let seats = run("seats", "--set system.engine.max_num_seqs=1");
    assert_eq!(seats["verdict"], "server", "{seats}");
    let blocks = run(
        "blocks",
        "--set system.engine.max_num_seqs=64 --set system.engine.num_gpu_blocks=30",
    );
    assert_eq!(blocks["verdict"], "kv", "{blocks}");
    let closed =
        "--set load={\"model\":\"closed-loop\",\"concurrency\":2} --set system.engine.max_num_seqs=64";
    assert_eq!(run("closed", closed)["verdict"], "client");
    // Steps are not kept: a word instead of a verdict.
    let line = "simulate {} -o {} --json --summary-only";
    let summaries = run_line(line, &[&scenario, &dir.path().join("few")])
        .with_code(0)
        .json();
    assert!(summaries[0].get("diagnosis").is_none());
    let notes = summaries[0]["notes"].to_string();
    assert!(notes.contains("no diagnosis"), "{notes}");
}

#[test]
fn a_dashboard_is_written_when_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (small(dir.path()), dir.path().join("out"));
    let line = "simulate {} -o {} --overwrite --set measure.scrape_interval=";
    let every = |interval: &str| run_line(&format!("{line}{interval}"), &[&scenario, &out]);
    let text = every("1s").with_code(0).stdout;
    assert!(!text.contains("invisible"), "{text}");
    let file = out.join("run-1").join("scrapes.csv");
    let read = rows(&std::fs::read_to_string(&file).unwrap());
    assert!(read.len() > 10);
    assert_eq!(read[0]["finished"], "0");
    assert_eq!(read.last().unwrap()["finished"], "200");
    assert_eq!(read[3]["t_s"], "3");
    // Some 12 s of load.
    let text = every("10s").with_code(0).stdout;
    assert!(text.contains("invisible to gauges"), "{text}");
    every("1ns").refused(&["measure.scrape_interval", "from 1ms"]);
    run_line(&format!("{line}1s --summary-only"), &[&scenario, &out])
        .refused(&["--summary-only", "scrape_interval"]);
}

#[test]
fn a_run_that_is_cut_off_says_what_was_not_sent_and_can_be_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (small(dir.path()), dir.path().join("out"));
    run_line(
        "simulate {} -o {} --save-detailed --set measure.deadline=6s",
        &[&scenario, &out],
    )
    .with_code(0);
    let folder = out.join("run-0");
    let requests = rows(&std::fs::read_to_string(folder.join("raw-events.csv")).unwrap());
    let unsent: Vec<_> = requests.iter().filter(|r| r["status"] == "unsent").collect();
    assert!(unsent.len() > 50 && unsent.iter().all(|r| r["t_send_ns"].is_empty()));
    let record = kneeboard::record::bundle::read(&folder).unwrap();
    assert_eq!(record.requests.len(), 200);
    let summary = json_file(&folder.join("summary.json"));
    assert_eq!(summary["funnel"]["unsent"], unsent.len());
}
