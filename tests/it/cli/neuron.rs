//! Engines of kind neuron: their knobs, and the livelock that they can come to.

use std::path::{Path, PathBuf};

use super::support::*;

const SCENARIO: &str = r#"kneeboard: 1
system:
  engine: {kind: neuron, version: "0.2.0", max_num_seqs: 4, seq_len: 1024}
  step_time: {step: 8ms, any_prefill: 40ms}
workload: {synthetic: {num_requests: 20, lengths: {fixed: {input: 100, output: 20}}}}
load: {model: open-loop, arrival: {process: constant, rate: 20}}
slo: {ttft: 1s, attainment: 0.9}
measure: {seed: 1}
"#;

fn scenario(dir: &Path) -> PathBuf {
    let path = dir.join("neuron.yaml");
    std::fs::write(&path, SCENARIO).unwrap();
    path
}

#[test]
fn a_livelock_is_an_outcome_that_keeps_what_was_served() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (scenario(dir.path()), dir.path().join("out"));
    for mode in ["", "--summary-only", "--step-by-step"] {
        let line = format!("simulate {{}} -o {{}} --overwrite --set system.engine.pa_num_blocks=2 {mode}");
        let ended = run_line(&line, &[&path, &out]).with_code(1);
        assert!(ended.stdout.contains("livelock"), "{}", ended.stdout);
        let summary = json_file(&out.join("run-0/summary.json"));
        let livelock = &summary["livelocks"][0];
        // Requests 0 and 1 hold both blocks; 2 is let in before either ends, and nothing moves after that.
        assert_eq!(livelock["request"], 2);
        assert_eq!(
            (&livelock["needed_blocks"], &livelock["free_blocks"]),
            (&1.into(), &0.into())
        );
        assert_eq!(
            (&livelock["running"], &livelock["waiting"]),
            (&2.into(), &18.into())
        );
        assert_eq!(summary["funnel"]["completed"], 0);
        assert_eq!(summary["slo"]["attainment"], 0.0);
    }
    let enough = "simulate {} -o {} --overwrite --set system.engine.pa_num_blocks=4";
    run_line(enough, &[&path, &out]).with_code(0);
}

/// A sweep and a capacity search say so, too: a load that happens to be carried is not a capacity.
#[test]
fn a_livelock_is_told_of_in_sweeps_and_searches() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (scenario(dir.path()), dir.path().join("out"));
    let sweep = [
        "sweep",
        path.to_str().unwrap(),
        "-o",
        out.to_str().unwrap(),
        "--set",
        "sweep.axes={system.engine.pa_num_blocks: [2, 4]}",
    ];
    let swept = run(sweep).with_code(0).stdout;
    assert_eq!(swept.matches("livelock").count(), 1, "{swept}");
    let search = [
        "capacity",
        path.to_str().unwrap(),
        "--set",
        "system.engine.pa_num_blocks=2",
        "--set",
        "sweep.search.capacity={rate: [0.5, 40]}",
    ];
    let found = run(search).stdout;
    assert!(
        found.contains("ended in a livelock") && found.contains("at any load"),
        "{found}"
    );
}

/// With room for one block less than seats, whoever comes while all blocks are held stops everything; at a load that
/// never fills them nothing happens.
#[test]
fn a_livelock_needs_all_blocks_to_be_held() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (scenario(dir.path()), dir.path().join("out"));
    let slow = "simulate {} -o {} --set system.engine.pa_num_blocks=2 --set load.arrival.rate=1";
    run_line(slow, &[&path, &out]).with_code(0);
}

#[test]
fn knobs_that_a_plugin_forces_or_does_not_read_are_refused_with_their_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = scenario(dir.path());
    for (set, parts) in [
        (
            "system.engine.max_num_batched_tokens=2048",
            ["131072", "leave it out"],
        ),
        (
            "system.engine.enable_chunked_prefill=true",
            ["does not honour", "leave it out"],
        ),
        ("system.engine.async_scheduling=true", ["N18", "async_mode"]),
        ("system.engine.block_size=16", ["1024", "does not honour"]),
        ("system.engine.max_num_seqs=null", ["compiled batch", "N17"]),
        ("system.engine.seq_len=null", ["not given", "max_model_len"]),
        (
            "system.engine.max_model_len=512",
            ["beside max_model_len 512", "one number"],
        ),
        ("system.engine.scheduling_policy=priority", ["first come", "N14b"]),
        (
            "system.engine.gpu_memory_utilization=0.8",
            ["whole sequence", "pa_num_blocks"],
        ),
        ("system.engine.cudagraph_mode=NONE", ["GPUs", "leave it out"]),
        (
            "system.engine.num_seqs_buckets=[1,4]",
            ["native plugin", "leave it out"],
        ),
        ("system.engine.version=0.3.0", ["0.2.0", "0.24.0.1.1.0"]),
        ("system.engine.num_gpu_blocks=1", ["null block", "from 2"]),
        ("system.engine.lnc=2", ["system.accelerator", "no effect"]),
        (
            "system.accelerator=h100-sxm",
            ["no AWS Neuron device", "kind: vllm"],
        ),
        (
            "system.engine={\"kind\":\"vllm\",\"max_model_len\":1024,\"num_gpu_blocks\":9,\"lnc\":1}",
            ["kind neuron", "lnc"],
        ),
    ] {
        run(["show", path.to_str().unwrap(), "--set", set]).refused(&parts);
    }
    let own = "system.engine={\"kind\":\"neuron\",\"max_num_seqs\":4,\"seq_len\":1024,\
               \"disable_neuron_custom_scheduler\":true";
    for (more, parts) in [
        ("}", ["block_size", "not given"]),
        (
            ",\"block_size\":1024,\"max_num_batched_tokens\":512}",
            ["512 is below 1024", "longest prompt"],
        ),
        (
            ",\"block_size\":1024,\"async_mode\":true}",
            ["async_mode", "no effect"],
        ),
    ] {
        run(["show", path.to_str().unwrap(), "--set", &format!("{own}{more}")]).refused(&parts);
    }
    let both = [
        "--set",
        "system.engine.pa_num_blocks=4",
        "--set",
        "system.engine.num_gpu_blocks=9",
    ];
    run(["show", path.to_str().unwrap()].into_iter().chain(both)).refused(&["pa_num_blocks"]);
    let caching = [
        "--set",
        "system.engine.enable_prefix_caching=true",
        "--set",
        "system.engine.pa_num_blocks=100",
    ];
    run(["show", path.to_str().unwrap()].into_iter().chain(caching)).refused(&["N16", "128"]);
}

#[test]
fn vllm_s_own_scheduler_is_refused_on_neuron_devices() {
    let dir = tempfile::tempdir().unwrap();
    let path = scenario(dir.path());
    let set = [
        "--set",
        "system.accelerator=trn1",
        "--set",
        "system.engine={\"kind\":\"vllm\",\"max_model_len\":1024}",
    ];
    run(["show", path.to_str().unwrap()].into_iter().chain(set)).refused(&["trn1", "kind: neuron"]);
}

/// With the plugin's scheduler switched off prompts run beside decodes, within the budget.
#[test]
fn vllm_s_own_scheduler_can_be_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (scenario(dir.path()), dir.path().join("out"));
    let line = "simulate {} -o {} --save-detailed --set workload.synthetic.num_requests=2 --set \
                workload.synthetic.lengths.fixed.output=3 --set \
                system.engine.disable_neuron_custom_scheduler=true --set system.engine.block_size=1024";
    run_line(line, &[&path, &out]).with_code(0);
    let steps = std::fs::read_to_string(out.join("run-0/steps.csv")).unwrap();
    let ends: Vec<f64> = rows(&steps).iter().map(|r| number(r, "t_end_ns") / 1e6).collect();
    let gaps: Vec<f64> = ends.windows(2).map(|w| w[1] - w[0]).collect();
    // The second prompt shares its step with the first request's third token.
    assert_eq!(gaps.len(), 4, "{ends:?}");
    for (gap, by_hand) in gaps.iter().zip([8.0, 48.0, 8.0, 8.0]) {
        close(*gap, by_hand);
    }
    let raw = rows(&std::fs::read_to_string(out.join("run-0/raw-events.csv")).unwrap());
    let last = number(&raw[0], "t_last_token_ns") / 1e6;
    close(last, ends[2]);
}

/// Decodes of both are stalled by every prompt: by hand, in whole steps of 8 and 48 ms.
#[test]
fn a_run_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (scenario(dir.path()), dir.path().join("out"));
    let line = "simulate {} -o {} --save-detailed --set workload.synthetic.num_requests=2 --set \
                workload.synthetic.lengths.fixed.output=3";
    run_line(line, &[&path, &out]).with_code(0);
    let steps = std::fs::read_to_string(out.join("run-0/steps.csv"))
        .unwrap_or_else(|_| gunzip(&out.join("run-0/steps.csv.gz")));
    let ends: Vec<f64> = rows(&steps).iter().map(|r| number(r, "t_end_ns") / 1e6).collect();
    // The second request comes 50 ms after the first, in the middle of the first one's first decode. Its prompt stalls
    // the first, which gets its third token 56 ms after its second.
    let gaps: Vec<f64> = ends.windows(2).map(|w| w[1] - w[0]).collect();
    assert_eq!(gaps.len(), 4, "{ends:?}");
    for (gap, by_hand) in gaps.iter().zip([8.0, 48.0, 8.0, 8.0]) {
        close(*gap, by_hand);
    }
}

/// The scenario with a fit in place of stated step times, and what else is set.
fn fitted(path: &Path, more: &[&str]) -> Ended {
    let sets = ["system.step_time=null", "system.fit=trn1-neuron"];
    let sets = sets.iter().chain(more).flat_map(|set| ["--set", set]);
    run(["show", path.to_str().unwrap()].into_iter().chain(sets))
}

#[test]
fn lists_of_buckets_rise_to_the_longest() {
    let dir = tempfile::tempdir().unwrap();
    let path = scenario(dir.path());
    for (set, last) in [
        ("system.engine.token_generation_buckets=[128,512]", "1024"),
        ("system.engine.context_encoding_buckets=[512,128,1024]", "1024"),
        ("system.engine.token_generation_batches=[]", "4"),
    ] {
        fitted(&path, &[set]).refused(&["rising", last]);
    }
}

/// Stated step times know no programs: what is compiled is refused, and not shown as if it had been chosen.
#[test]
fn knobs_of_programs_are_refused_beside_stated_step_times() {
    let dir = tempfile::tempdir().unwrap();
    let path = scenario(dir.path());
    let show = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        run(["show", path.to_str().unwrap()].into_iter().chain(sets))
    };
    for (knob, value) in [
        ("enable_bucketing", "false"),
        ("context_encoding_buckets", "[1024]"),
        ("token_generation_buckets", "[1024]"),
        ("token_generation_batches", "[4]"),
        ("on_device_sampling", "false"),
        ("async_mode", "true"),
    ] {
        let set = format!("system.engine.{knob}={value}");
        show(&[&set]).refused(&[knob, "no effect", "system.step_time", "system.fit"]);
    }
    let native = "system.engine.version=0.24.0.1.1.0";
    let blocks = "system.engine.pa_num_blocks=256";
    for (knob, value) in [
        ("num_seqs_buckets", "[4]"),
        ("decode_context_length_buckets", "[1024]"),
        ("async_scheduling", "false"),
        ("on_device_sampling", "true"),
    ] {
        let set = format!("system.engine.{knob}={value}");
        show(&[native, blocks, &set]).refused(&[knob, "no effect", "system.step_time"]);
    }
    // Logical cores decide what memory there is as soon as a model is named, and nothing before.
    let (device, model) = ("system.accelerator=trn2", "system.model=qwen3-8b");
    let lnc = "system.engine.lnc=2";
    show(&[device, lnc]).refused(&["lnc", "no effect", "system.step_time"]);
    show(&[device, model, lnc]).with_code(0);
    for sets in [&[][..], &[native, blocks][..], &[device][..]] {
        let shown = show(sets).with_code(0).stdout;
        assert!(
            !shown.contains("sampling") && !shown.contains("buckets"),
            "{shown}"
        );
        let again = dir.path().join("again.yaml");
        std::fs::write(&again, &shown).unwrap();
        run_line("show {}", &[&again]).with_code(0);
    }
}

#[test]
fn memory_knobs_of_the_native_plugin_are_refused_beside_a_stated_number_of_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = scenario(dir.path());
    let native = [
        "system.engine.version=0.24.0.1.1.0",
        "system.engine.pa_num_blocks=256",
    ];
    for (knob, value) in [
        ("gpu_memory_utilization", "0.8"),
        ("kv_cache_memory_bytes", "1GiB"),
        ("runtime_reserve", "1GiB"),
    ] {
        let set = format!("system.engine.{knob}={value}");
        fitted(&path, &[native[0], native[1], &set]).refused(&[knob, "no effect", "pa_num_blocks"]);
    }
}

/// vLLM does not start with a budget below one token a seat; rows would starve.
#[test]
fn the_native_plugin_s_budget_holds_a_token_of_every_seat() {
    let dir = tempfile::tempdir().unwrap();
    let path = scenario(dir.path());
    let sets = |budget: &str| {
        let budget = format!("system.engine.max_num_batched_tokens={budget}");
        let set = ["version=0.24.0.1.1.0", "pa_num_blocks=256"].map(|s| format!("system.engine.{s}"));
        let all = set
            .into_iter()
            .chain([budget])
            .flat_map(|s| ["--set".to_owned(), s]);
        run(["show".to_owned(), path.to_str().unwrap().to_owned()]
            .into_iter()
            .chain(all))
    };
    sets("3").refused(&["max_num_batched_tokens", "3 is below 4", "every seat"]);
    sets("4").with_code(0);
}

#[test]
fn a_misspelt_fit_is_refused_with_the_one_that_was_meant() {
    let dir = tempfile::tempdir().unwrap();
    let fits = dir.path().join("calibration/fits");
    std::fs::create_dir_all(&fits).unwrap();
    for name in ["trn1-neuron", "inf2-neuron"] {
        let file = format!("{name}.yaml");
        std::fs::copy(repository("calibration/fits").join(&file), fits.join(&file)).unwrap();
    }
    let path = scenario(dir.path());
    for word in ["simulate {} -o {}", "sweep {} -o {}", "capacity {}"] {
        let line = format!("{word} --set system.step_time=null --set system.fit=trn1-nueron");
        run_line(&line, &[&path, &dir.path().join("out")]).refused(&[
            "system.fit",
            "unknown fit 'trn1-nueron'",
            "inf2-neuron",
            "did you mean 'trn1-neuron'?",
        ]);
    }
    let held = capture("holdout/serve-s4-b256/r4");
    let mut compare = kneeboard();
    compare
        .current_dir(dir.path())
        .args(["compare", "--fit", "trn1-neuro"])
        .arg(&held);
    ended(&mut compare).refused(&["--fit", "unknown fit", "did you mean 'trn1-neuron'?"]);
}

/// Each configuration says what of it the fit does not speak for.
#[test]
fn configurations_of_a_sweep_say_what_is_carried_over() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let small = "workload={\"synthetic\":{\"num_requests\":20,\"lengths\":{\"fixed\":{\"input\":100,\"output\":20}}}}";
    let scenario = repository("scenarios/trn1-tinyllama-script.yaml");
    let swept = run([
        "sweep",
        scenario.to_str().unwrap(),
        "-o",
        out.to_str().unwrap(),
        "--set",
        small,
        "--set",
        "sweep.axes={system.parallel.tp: [2, 3, 4]}",
    ])
    .with_code(0)
    .stdout;
    assert!(swept.contains("carried over"), "{swept}");
    let report = json_file(&out.join("sweep.json"));
    let carried = |i: usize| report["configurations"][i]["carried_over"].clone();
    assert_eq!(carried(0), serde_json::Value::Null);
    assert_eq!(
        (carried(1), carried(2)),
        (serde_json::json!(["tp"]), serde_json::json!(["tp"]))
    );
    let table = rows(&std::fs::read_to_string(out.join("sweep.csv")).unwrap());
    let column: Vec<&str> = table.iter().map(|r| r["carried over"].as_str()).collect();
    assert_eq!(column, ["", "tp", "tp"]);
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("2 of 3 configurations are carried over"));
}
