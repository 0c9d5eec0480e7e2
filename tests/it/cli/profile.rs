//! `kneeboard profile`, and `--profiles` in front of other commands.

use std::fs;
use std::path::Path;

use super::support::{kneeboard, repository, run, run_line};

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A shipped profile with one text replaced.
fn changed(name: &str, from: &str, to: &str) -> String {
    let good = run(["profile", "show", name, "--yaml"]).with_code(0).stdout;
    let bad = good.replace(from, to);
    assert_ne!(bad, good, "{from}");
    bad
}

const SCENARIO: &str = "kneeboard: 1
question: {decision: whether my own profiles count, objective: blocks}
system:
  model: meta-llama/Llama-3.1-8B-Instruct
  accelerator: h100-sxm
  step_time: {step: 6ms}
workload: {synthetic: {num_requests: 10, lengths: {fixed: {input: 100, output: 10}}}}
load: {model: closed-loop, concurrency: 2}
slo: {e2e: 10s}
measure: {seed: 7}
";

#[test]
fn the_list_can_be_narrowed_and_read_by_machines() {
    let all = run_line("profile list --json", &[]).with_code(0).json();
    let all = all.as_array().unwrap();
    for kind in ["accelerator", "model", "instance", "engine"] {
        let some = run(["profile", "list", "--json", "--kind", kind])
            .with_code(0)
            .json();
        let some = some.as_array().unwrap();
        assert_eq!(some.len(), all.iter().filter(|p| p["kind"] == kind).count());
        assert!(!some.is_empty(), "{kind}");
    }
    let device = all.iter().find(|p| p["name"] == "rtx-pro-6000").unwrap();
    assert_eq!(device["origin"], "shipped");
    assert!(device["doubtful_figures"].as_u64().unwrap() >= 2, "{device}");
    let text = run_line("profile list --kind model", &[]).with_code(0).stdout;
    assert!(
        text.contains("llama-3.1-8b") && !text.contains("h100-sxm"),
        "{text}"
    );
    assert_eq!(run_line("profile list --kind modell", &[]).code, Some(2));
}

#[test]
fn one_profile_is_shown_by_any_of_its_names() {
    let shown = run_line("profile show meta-llama/Llama-2-70b-hf --json", &[])
        .with_code(0)
        .json();
    assert_eq!(shown["profile"]["name"], "llama-2-70b");
    assert_eq!(shown["profile"]["layers"]["value"], 80);
    assert_eq!(shown["derived"]["kv_bytes_per_token_tp1"], 327_680);
    let shown = run_line("profile show p5.48xlarge", &[]).with_code(0).stdout;
    assert!(shown.contains("h100-sxm") && shown.contains("6.88"), "{shown}");
    let shown = run_line("profile show vllm", &[]).with_code(0).stdout;
    assert!(shown.contains("since 0.28.0"), "{shown}");
    let path = repository("profiles/models/qwen3-8b.yaml");
    let shown = run_line("profile show {}", &[&path]).with_code(0).stdout;
    assert!(shown.starts_with("qwen3-8b: "), "{shown}");
    run_line("profile show h100-smx", &[]).refused(&["did you mean 'h100-sxm'", "known: "]);
}

#[test]
fn shipped_profiles_pass_the_check_and_broken_ones_fail_it_each_with_its_place() {
    let out = run_line("profile check", &[]).with_code(0).stdout;
    assert!(out.ends_with(" 0 errors, 0 warnings\n"), "{out}");
    let dir = tempfile::tempdir().unwrap();
    let bandwidth = dir.path().join("h100-sxm.yaml");
    write(
        &bandwidth,
        &changed("h100-sxm", "value: 3350,", "value: 3350000000000,"),
    );
    let machine = dir.path().join("p5.48xlarge.yaml");
    write(
        &machine,
        &changed("p5.48xlarge", "value: h100-sxm", "value: h100-smx"),
    );
    let key = dir.path().join("l4.yaml");
    write(&key, &changed("l4", "tdp_w:", "tdp_watt:"));
    let out = run_line("profile check {} {} {}", &[&bandwidth, &machine, &key]).with_code(3);
    for part in [
        "memory_bandwidth_gb_s: found 3350000000000, which looks like bytes/s: it would be 3350 GB/s",
        "p5.48xlarge.yaml, accelerator: unknown name 'h100-smx'",
        "did you mean 'h100-sxm'",
        "tdp_watt",
        "3 profiles checked: 3 errors, 0 warnings",
    ] {
        assert!(out.stdout.contains(part), "no '{part}' in {}", out.stdout);
    }
    let json = run_line("profile check {} --json", &[&bandwidth])
        .with_code(3)
        .json();
    assert_eq!(json[0]["problems"][0]["place"], "memory_bandwidth_gb_s");
    run_line("profile check gone.yaml", &[]).refused(&["gone.yaml", "cannot be opened"]);
}

#[test]
fn profiles_of_ones_own_win_and_the_list_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("own");
    write(
        &own.join("accelerators/h100-sxm.yaml"),
        &changed("h100-sxm", "value: 85899345920", "value: 60129542144"),
    );
    write(
        &own.join("my-model.yaml"),
        &changed("llama-3.1-8b", "name: llama-3.1-8b", "name: my-model")
            .replace("meta-llama/Meta-Llama-3.1-8B", "me/My-Model"),
    );
    let scenario = dir.path().join("s.yaml");
    write(&scenario, SCENARIO);
    let list = run_line("--profiles {} profile list", &[&own])
        .with_code(0)
        .stdout;
    assert!(
        list.contains("in place of the shipped one") && list.contains("my-model"),
        "{list}"
    );
    let blocks = |args: &[&str]| {
        let out = kneeboard()
            .args(["show", "--json"])
            .arg(&scenario)
            .args(args)
            .output()
            .unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["scenario"]["system"]["engine"]["num_gpu_blocks"]
            .as_u64()
            .unwrap()
    };
    let own = own.to_str().unwrap();
    let (shipped, mine) = (blocks(&[]), blocks(&["--profiles", own]));
    assert!(mine < shipped, "{mine} of less memory, {shipped} of more");
    assert!(blocks(&["--profiles", own, "--set", "system.model=me/My-Model"]) > 0);
    // The variable does the same; the option comes before it.
    let by_variable = kneeboard()
        .env("KNEEBOARD_PROFILES", own)
        .args(["profile", "show", "my-model"])
        .output()
        .unwrap();
    assert!(by_variable.status.success());
    run_line("--profiles nowhere profile list", &[]).refused(&["nowhere", "cannot be read"]);
    write(&dir.path().join("own/model/m.yaml"), "kind: model\n");
    run(["--profiles", own, "profile", "list"]).refused(&["did you mean 'models'"]);
}

#[test]
fn a_configuration_becomes_a_profile_that_scenarios_can_name() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    write(
        &config,
        r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
            "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
            "tie_word_embeddings": false, "use_sliding_window": false}"#,
    );
    run_line("profile import-model {}", &[&config]).refused(&["--name"]);
    let out = dir.path().join("own/models/mine.yaml");
    write(&dir.path().join("own/models/.keep"), "");
    let ended = run_line("profile import-model {} -o {}", &[&config, &out]).with_code(0);
    assert!(ended.stdout.is_empty(), "{ended:?}");
    assert!(
        ended.stderr.contains("weight_bytes = 2: the file does not say"),
        "{ended:?}"
    );
    run_line("profile import-model {} -o {}", &[&config, &out]).refused(&["is there already"]);
    run_line("profile import-model {} --name other -o {}", &[&config, &out]).refused(&["--name", "'mine'"]);
    run_line("profile check {}", &[&out]).with_code(0);
    let own = dir.path().join("own");
    let shown = run_line("--profiles {} profile show mine --json", &[&own])
        .with_code(0)
        .json();
    assert_eq!(shown["profile"]["parameters"]["value"], 8_190_427_136_u64);
    let printed = run_line("profile import-model {} --name mine", &[&config])
        .with_code(0)
        .stdout;
    assert_eq!(printed, fs::read_to_string(&out).unwrap());
    write(&config, r#"{"model_type": "jamba", "hidden_size": 4096}"#);
    run_line("profile import-model {} --name j", &[&config]).refused(&["jamba", "recurrent"]);
}
