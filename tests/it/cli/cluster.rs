//! Clusters through the binary.

use std::path::{Path, PathBuf};

use super::support::*;

/// Two pools, small, with stated step times.
const SPLIT: &str = r#"kneeboard: 1
system:
  engine: {version: "0.28.0", max_model_len: 4096, num_gpu_blocks: 2000, max_num_seqs: 64}
  step_time: {step: 5ms, prefill_token: 20us, decode_row: 20us}
cluster:
  pools:
    - {role: prefill, groups: 2, nic: 50GB/s}
    - {role: decode, groups: 1, nic: 50GB/s}
  transfer: {block: 5MiB, block_descriptors: 160, per_descriptor: 1us}
workload: {synthetic: {num_requests: 150, lengths: {fixed: {input: 500, output: 20}}}}
load: {model: open-loop, arrival: {process: poisson, rate: 10}}
slo: {ttft: 1s}
measure: {seed: 3}
"#;

fn written(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn summary(folder: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(folder.join("run-0/summary.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn prefill_and_decode_pools_serve_all_requests() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (written(dir.path(), "pd.yaml", SPLIT), dir.path().join("out"));
    run_line("simulate {} -o {}", &[&scenario, &out]).with_code(0);
    let whole = summary(&out);
    assert_eq!(whole["funnel"]["completed"], 150, "{whole}");
    // A prompt of 500 tokens takes 15 ms; then 32 blocks of 160 descriptors are posted and 160 MiB moved.
    let ttft = whole["latency"]["ttft"]["min"].as_f64();
    let ttft = ttft.or(whole["latency"]["ttft"]["p50"].as_f64()).unwrap();
    assert!(ttft > 0.015 + 0.005 + 0.003, "{ttft}");
    let again = dir.path().join("again");
    run_line("simulate {} --summary-only -o {}", &[&scenario, &again]).with_code(0);
    let streamed = summary(&again);
    for part in ["funnel", "latency"] {
        assert_eq!(streamed[part], whole[part], "{part}");
    }
    // The token that a prefill group makes is thrown away (D2); a stream of events cannot know, and says so.
    let rates = |s: &serde_json::Value| s["throughput"]["output_tok_s"].as_f64().unwrap();
    assert!((rates(&streamed) / rates(&whole) - 21.0 / 20.0).abs() < 1e-9);
    assert!(
        streamed["notes"].to_string().contains("which no client saw"),
        "{}",
        streamed["notes"]
    );
    let stepped = dir.path().join("stepped");
    run_line("simulate {} --step-by-step -o {}", &[&scenario, &stepped]).with_code(0);
    assert_eq!(summary(&stepped)["latency"], whole["latency"]);
}

/// A key that changes nothing makes a cluster of replicas that were run apart: the requests' fates stay as they are.
#[test]
fn a_cluster_with_nothing_special_is_replicas_apart() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["closed-loop", "prefix-caching", "priority"] {
        let scenario = repository(&format!("scenarios/{name}.yaml"));
        let [apart, together] = ["apart", "together"].map(|out| dir.path().join(format!("{name}-{out}")));
        run_line("simulate {} -o {}", &[&scenario, &apart]).with_code(0);
        let line = "simulate {} --set cluster.recovery.restart=true -o {}";
        run_line(line, &[&scenario, &together]).with_code(0);
        let events = |out: &Path| std::fs::read(out.join("run-0/raw-events.csv")).unwrap();
        assert!(events(&apart) == events(&together), "{name}");
    }
}

#[test]
fn a_resolved_cluster_is_a_scenario_again() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["pd-llama-70b", "cluster-node-loss"] {
        let shown = run_line("show {}", &[&repository(&format!("scenarios/{name}.yaml"))]).with_code(0);
        assert!(shown.stdout.contains("cluster:"), "{}", shown.stdout);
        let fit = repository("calibration/fits/h100-bf16-vllm.yaml");
        let text = shown
            .stdout
            .replace("fit: h100-bf16-vllm", &format!("fit: {}", fit.display()));
        let again = written(dir.path(), "again.yaml", &text);
        run_line("show {}", &[&again]).with_code(0);
    }
}

#[test]
fn ratios_and_unequal_splits_are_swept_by_the_names_of_pools() {
    let dir = tempfile::tempdir().unwrap();
    let axes = "sweep: {axes: {cluster.pools.prefill.groups: [1, 2], \
                cluster.pools.decode.system.engine.max_num_seqs: [4, 64]}}\n";
    let scenario = written(dir.path(), "pd.yaml", &format!("{SPLIT}{axes}"));
    let out = dir.path().join("out");
    let swept = run_line("sweep {} -o {} --json", &[&scenario, &out])
        .with_code(0)
        .json();
    let configurations = swept["configurations"].as_array().unwrap();
    assert_eq!(configurations.len(), 4);
    let text = swept.to_string();
    assert!(!text.to_lowercase().contains("infeasible"), "{text}");
}

#[test]
fn requests_that_nobody_will_ever_serve_end_the_run_and_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let text = SPLIT
        .replace(
            "    - {role: prefill, groups: 2, nic: 50GB/s}\n    - {role: decode, groups: 1, nic: 50GB/s}\n",
            "    - {name: main, role: unified, groups: 1}\n",
        )
        .replace(
            "  transfer: {block: 5MiB, block_descriptors: 160, per_descriptor: 1us}\n",
            "  recovery: {restart: false}\nfaults: [{at: 5s, kind: group-crash, group: main/0}]\n",
        );
    let (scenario, out) = (written(dir.path(), "lost.yaml", &text), dir.path().join("out"));
    let ended = run_line("simulate {} -o {}", &[&scenario, &out]).with_code(1);
    assert!(ended.stdout.contains("stranded"), "{}", ended.stdout);
    assert!(out.join("run-0/summary.json").is_file());
    let again = dir.path().join("again");
    run_line("simulate {} --summary-only -o {}", &[&scenario, &again]).with_code(1);
}

#[test]
fn bad_clusters_are_refused_in_one_paragraph() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = written(dir.path(), "pd.yaml", SPLIT);
    let out = dir.path().join("out");
    run_line(
        "simulate {} --set cluster.pools.decod.groups=2 -o {}",
        &[&scenario, &out],
    )
    .refused(&["no entry 'decod'", "did you mean 'decode'"]);
}
