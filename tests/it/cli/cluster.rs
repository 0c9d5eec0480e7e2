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
    // The token that a prefill group makes is thrown away (D2) and in no rate.
    for part in ["funnel", "latency", "throughput"] {
        assert_eq!(streamed[part], whole[part], "{part}");
    }
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
    let ended = run_line("simulate {} --summary-only --json -q -o {}", &[&scenario, &again]).with_code(1);
    let why = "kneeboard: run 0 failed: stranded: ";
    assert!(ended.stderr.starts_with(why), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
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

fn cluster_json(folder: &Path) -> serde_json::Value {
    json_file(&folder.join("run-0/cluster.json"))
}

#[test]
fn a_cluster_is_told_in_files_tables_and_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let text = SPLIT.replace(
        "measure: {seed: 3}",
        "faults: [{at: 5s, kind: group-crash, group: prefill/1}]\n\
         cost: {other: [{name: storage, usd_h: 3.6, source: an invoice}], pue: {value: 1.2, source: a meter}}\n\
         measure: {seed: 3}",
    );
    let text = text.replace(
        "nic: 50GB/s}",
        "nic: 50GB/s, price: {usd_h: 36, source: an offer}}",
    );
    let (scenario, out) = (written(dir.path(), "pd.yaml", &text), dir.path().join("out"));
    let ended = run_line("simulate {} -o {}", &[&scenario, &out]).with_code(0);
    for table in ["Pools", "Groups needed", "Faults", "Cost", "storage"] {
        assert!(ended.stdout.contains(table), "{table}: {}", ended.stdout);
    }
    let told = cluster_json(&out);
    assert_eq!(told["outcomes"]["offered"], 150);
    // A cent a second for each of three groups, and a tenth of a cent for the storage.
    let (usd, end_s) = (
        told["cost"]["usd"].as_f64().unwrap(),
        told["judged_by"]["end_s"].as_f64().unwrap(),
    );
    close(usd, 0.031 * end_s);
    let needs = &told["demand"]["needs"];
    // 510 tokens are 31.9 blocks on the average, and half a block is empty: 1999 hold 61 requests of 20 tokens.
    close(
        needs["decode"]["requests_per_s"].as_f64().unwrap(),
        61.0 / 0.00622 / 20.0,
    );
    assert_eq!(needs["decode"]["bound"], "kv");
    let groups = rows(&std::fs::read_to_string(out.join("run-0/groups.csv")).unwrap());
    assert_eq!(groups.len(), 3);
    assert!(rows(&std::fs::read_to_string(out.join("run-0/tenants.csv")).unwrap()).len() == 1);
    let timeline = std::fs::read_to_string(out.join("run-0/failure-timeline.jsonl")).unwrap();
    let first: serde_json::Value = serde_json::from_str(timeline.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["event"], first["at_s"].as_f64()),
        (&"fault".into(), Some(5.0))
    );
    let sums = std::fs::read_to_string(out.join("checksums.txt")).unwrap();
    for file in [
        "cluster.json",
        "groups.csv",
        "tenants.csv",
        "failure-timeline.jsonl",
    ] {
        assert!(sums.contains(&format!("run-0/{file}")), "{file}");
    }
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("Groups needed") && page.contains("prefill/1"));
    // The same cluster gives the same bytes.
    let again = dir.path().join("again");
    run_line("simulate {} -o {}", &[&scenario, &again]).with_code(0);
    assert_eq!(cluster_json(&again), told);
}

#[test]
fn sweeps_of_clusters_tell_groups_cost_and_needs() {
    let dir = tempfile::tempdir().unwrap();
    let text = SPLIT.replace("nic: 50GB/s}", "nic: 50GB/s, price: {usd_h: 36}}");
    let text = format!("{text}sweep: {{axes: {{cluster.pools.prefill.groups: [1, 2]}}}}\n");
    let (scenario, out) = (written(dir.path(), "pd.yaml", &text), dir.path().join("out"));
    let swept = run_line("sweep {} -o {} --json", &[&scenario, &out])
        .with_code(0)
        .json();
    let configurations = swept["configurations"].as_array().unwrap();
    let cost = |i: usize| {
        let run = &configurations[i]["outcome"]["load"]["runs"][0]["cluster"];
        assert!(run["prefill_groups_needed"].as_f64().unwrap() > 0.0, "{run}");
        run["usd_per_m_good_output_tokens"].as_f64().unwrap()
    };
    assert_eq!(
        configurations[1]["groups"],
        serde_json::json!([["prefill", 2], ["decode", 1]])
    );
    // Half as much money again for the same tokens.
    assert!((cost(1) / cost(0) - 1.5).abs() < 0.02, "{} {}", cost(0), cost(1));
    let table = std::fs::read_to_string(out.join("sweep.csv")).unwrap();
    assert!(table.lines().next().unwrap().contains("cost"), "{table}");
    let loads = rows(&std::fs::read_to_string(out.join("loads.csv")).unwrap());
    assert!(
        loads
            .iter()
            .all(|row| row.keys().any(|k| k.starts_with("usd_per_good_request")))
    );
}

#[test]
fn a_lower_clock_saves_watts_and_takes_longer_for_prompts() {
    let dir = tempfile::tempdir().unwrap();
    let text = SPLIT.replace(
        "  engine:",
        "  model: llama-3.1-8b\n  accelerator: h100-sxm\n  engine:",
    );
    let scenario = written(dir.path(), "pd.yaml", &text);
    let (full, half) = (dir.path().join("full"), dir.path().join("half"));
    run_line("simulate {} -o {}", &[&scenario, &full]).with_code(0);
    run_line(
        "simulate {} --set cluster.pools.prefill.power.frequency_ratio=0.5 -o {}",
        &[&scenario, &half],
    )
    .with_code(0);
    let busy = |folder: &Path| {
        let told = cluster_json(folder);
        let of = |pool: usize| told["pools"][pool]["busy"]["prefill_s"].as_f64().unwrap();
        let prompts_j = told["energy"]["by_phase"]["prefill"].as_f64().unwrap();
        (of(0), prompts_j)
    };
    let ((full_s, full_j), (half_s, half_j)) = (busy(&full), busy(&half));
    assert!((half_s / full_s - 2.0).abs() < 0.15, "{full_s} {half_s}");
    // An eighth of the watts above idle for twice the time.
    assert!(half_j < 0.5 * full_j, "{full_j} {half_j}");
}

fn shipped(name: &str, set: &str) -> serde_json::Value {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let scenario = repository(&format!("scenarios/{name}"));
    let line = format!("simulate {{}} {set} --intervals off -o {{}}");
    run_line(&line, &[&scenario, &out]).with_code(0);
    cluster_json(&out)
}

#[test]
fn a_warm_spare_serves_the_burst_that_comes_before_new_groups() {
    let good = |set: &str| {
        shipped("autoscale-burst.yaml", set)["outcomes"]["good"]
            .as_u64()
            .unwrap()
    };
    let (late, warm) = (good(""), good("--set cluster.pools.chat.autoscale.spare=3"));
    assert!(4 * late < 3 * warm, "{late} {warm}");
}

#[test]
fn virtual_token_counters_keep_a_modest_tenant_from_waiting() {
    let wait = |policy: &str| {
        let set = format!("--set cluster.gateway.fairness.policy={policy}");
        let told = shipped("tenants-vtc.yaml", &set);
        assert_eq!(told["tenant_names"]["0"], "chat");
        told["fairness"]["tenants"][0]["queue_age_mean_s"]
            .as_f64()
            .unwrap()
    };
    let (fcfs, vtc) = (wait("fcfs"), wait("vtc"));
    assert!(20.0 * vtc < fcfs, "{fcfs} {vtc}");
}

#[test]
fn a_canary_goes_before_the_rest_of_a_rollout() {
    let told = shipped("canary-rollout.yaml", "");
    let groups = told["groups"].as_array().unwrap();
    let new = groups.iter().filter(|g| g["revision"] == 1).count();
    assert_eq!((groups.len(), new), (16, 8));
    assert_eq!(told["outcomes"]["failed"], 0);
}
