//! Bad input: each gives one paragraph that says where, what was found and what is allowed, and exit code 2.

use std::path::Path;

use kneeboard::scenario::{Override, Plan};
use kneeboard::workload::formats::csv::{parse_trace, read_trace};
use proptest::prelude::*;

const GOOD: &str = r#"kneeboard: 1
system:
  model: llama-3.1-8b
  accelerator: h100-sxm
  engine: {version: "0.32.0", max_model_len: 4096, max_num_seqs: 64}
  step_time: {step: 8ms, prefill_token: 45us}
workload:
  synthetic:
    num_requests: 50
    lengths: {fixed: {input: 100, output: 20}}
load: {model: open-loop, arrival: {process: poisson, rate: 4}}
slo: {ttft: 2s, itl: 80ms}
measure: {warmup: 1s, seed: 1}
"#;

/// Resolves and draws, as every command does.
fn attempt(text: &str, set: &[&str]) -> Result<(), String> {
    let overrides: Result<Vec<_>, _> = set.iter().map(|s| Override::parse(s)).collect();
    let overrides = overrides.map_err(|e| e.to_string())?;
    let plan = Plan::from_text(text, "s.yaml", Path::new(""), &overrides).map_err(|e| e.to_string())?;
    plan.trace(0).map_err(|e| e.to_string())?;
    Ok(())
}

/// What is wrong with an outcome that should be an error with these parts; `None` when nothing is.
fn complaint(outcome: Result<(), String>, case: &str, wanted: &[&str]) -> Option<String> {
    let Err(error) = outcome else {
        return Some(format!("{case}\n  was accepted"));
    };
    if error.contains('\n') {
        return Some(format!("{case}\n  more than one paragraph: {error}"));
    }
    let missing: Vec<_> = wanted.iter().filter(|part| !error.contains(**part)).collect();
    (!missing.is_empty()).then(|| format!("{case}\n  error: {error}\n  lacks: {missing:?}"))
}

#[track_caller]
fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn the_good_one_is_good() {
    attempt(GOOD, &[]).unwrap();
}

#[test]
fn gauges_are_not_read_oftener_than_any_scraper_does() {
    let error = attempt(GOOD, &["measure.scrape_interval=1ns"]).unwrap_err();
    assert!(
        error.contains("measure.scrape_interval") && error.contains("from 1ms"),
        "{error}"
    );
    attempt(GOOD, &["measure.scrape_interval=1ms"]).unwrap();
}

/// (what stands there, what is put in its place, what the error must say)
const FILE_CASES: &[(&str, &str, &[&str])] = &[
    (
        "kneeboard: 1",
        "kneeboard: 2",
        &["kneeboard", "version 2", "allowed: 1"],
    ),
    ("kneeboard: 1\n", "", &["'kneeboard' is missing"]),
    (
        "max_num_seqs",
        "max_num_seq",
        &["line 5", "'max_num_seq'", "did you mean 'max_num_seqs'"],
    ),
    (
        "max_num_seqs: 64",
        "max_num_seqs: -1",
        &["line 5", "max_num_seqs", "whole number"],
    ),
    (
        "max_num_seqs: 64",
        "max_num_seqs: many",
        &["line 5", "max_num_seqs", "whole number"],
    ),
    (
        "max_num_seqs: 64",
        "max_num_seqs: 1.5",
        &["line 5", "max_num_seqs"],
    ),
    (
        "max_num_seqs: 64",
        "max_num_seqs: 64, max_num_seqs: 65",
        &["line 5", "given twice"],
    ),
    (
        "model: llama-3.1-8b",
        "model: llama-3.1-8",
        &["system.model", "did you mean 'llama-3.1-8b'"],
    ),
    (
        "accelerator: h100-sxm",
        "accelerator: h100",
        &["system.accelerator", "known: "],
    ),
    (
        "\"0.32.0\"",
        "\"0.31.0\"",
        &["system.engine.version", "0.31.0", "known: "],
    ),
    ("rate: 4", "rate: .nan", &["line 11", "finite"]),
    ("rate: 4", "rate: .inf", &["line 11", "finite"]),
    ("ttft: 2s", "ttft: 2", &["line 12", "slo.ttft", "no unit"]),
    ("ttft: 2s", "ttft: -2s", &["line 12", "slo.ttft", "such as 80ms"]),
    ("ttft: 2s", "ttft: 2 sec", &["line 12", "slo.ttft", "units: "]),
    ("ttft: 2s", "ttft: 0s", &["slo.ttft", "target of 0"]),
    (
        "model: open-loop",
        "model: openloop",
        &["line 11", "'openloop'", "did you mean 'open-loop'"],
    ),
    (
        "{fixed: {input: 100, output: 20}}",
        "{rows: gone.csv}",
        &["gone.csv", "cannot be opened"],
    ),
    (
        "fixed: {input: 100",
        "fixd: {input: 100",
        &["line 10", "did you mean 'fixed'"],
    ),
    (
        "  synthetic:\n    num_requests: 50\n    lengths: {fixed: {input: 100, output: 20}}",
        "  {}",
        &["line 8"],
    ),
    (
        "step_time: {step: 8ms, prefill_token: 45us}",
        "parallel: {}",
        &["system.step_time", "no step-time model"],
    ),
    (
        "step: 8ms, prefill_token: 45us",
        "step: 0s",
        &["time would stand still"],
    ),
    ("measure:", "faults: [{kill: 1}]\nmeasure:", &["faults", "kill"]),
    (
        "measure:",
        "sweep: {axes: {system.engine.max_num_seq: [4]}}\nmeasure:",
        &["max_num_seqs'"],
    ),
    (
        "measure:",
        "sweep: {axes: {system.engine.max_num_seqs: [4, x]}}\nmeasure:",
        &["max_num_seqs", "sweep.axes"],
    ),
    (
        "measure:",
        "sweep: {axes: {system.engine.max_num_seqs: 4}}\nmeasure:",
        &["list of at least one"],
    ),
    (
        "measure:",
        "sweep: {axes: {'system.engine.max_num_seqs, load.arrival.rate': [[4, 1], 8]}}\nmeasure:",
        &["found 8 for 2 keys", "lists of 2 values"],
    ),
    (
        "measure:",
        "sweep: {axes: {'system.engine.max_num_seqs, system.engine.max_num_seqs': [[4, 1]]}}\nmeasure:",
        &["max_num_seqs", "vary one of the two"],
    ),
    (
        "measure:",
        "sweep: {axes: {'system.engine.max_num_seqs, load.arrival.rate': [[4, 1], [4, 1]]}}\nmeasure:",
        &["[4,1] stands twice"],
    ),
    (
        "measure:",
        "sweep: {search: {capacity: {rate: [9, 2]}}}\nmeasure:",
        &["capacity.rate", "the first above 0"],
    ),
    (
        "{process: poisson, rate: 4}",
        "{process: poisson, rate: 4, pattern: {weekends: 0.6}}",
        &["line 11", "did you mean 'weekend'"],
    ),
    (
        "{process: poisson, rate: 4}",
        "{process: poisson, rate: 4, pattern: {daily_peak_to_mean: 2.5}}",
        &["load.arrival.pattern.daily_peak_to_mean", "allowed: 1 to 2"],
    ),
    (
        "{process: poisson, rate: 4}",
        "{process: poisson, rate: 4, pattern: {daily_peak_to_mean: 1.5, peak_hour: 25}}",
        &["load.arrival.pattern.peak_hour", "allowed: 0 to 24"],
    ),
    (
        "{process: poisson, rate: 4}",
        "{process: poisson, rate: 4, pattern: {weekend: -1}}",
        &["load.arrival.pattern.weekend", "found -1"],
    ),
    (
        "{process: poisson, rate: 4}",
        "{process: poisson, rate: 4, pattern: {peak_hour: 3}}",
        &["load.arrival.pattern.peak_hour", "give daily_peak_to_mean too"],
    ),
    (
        "{process: poisson, rate: 4}",
        "{process: poisson, rate: 4, pattern: {starts: monday}}",
        &["load.arrival.pattern.starts", "give weekend too"],
    ),
    (
        "{process: poisson, rate: 4}",
        "{process: poisson, rate: 4, pattern: {weekend: 0.5, starts: mondy}}",
        &["line 11", "did you mean 'monday'"],
    ),
    (
        "{process: poisson, rate: 4}",
        "{process: poisson, rate: 4, rescale: true, pattern: {weekend: 0.5}}",
        &["load.arrival.rescale", "keep one of"],
    ),
    (
        "model: open-loop, arrival: {process: poisson, rate: 4}",
        "model: offline, arrival: {pattern: {weekend: 0.5}}",
        &["load.arrival.pattern", "open-loop"],
    ),
    (
        "lengths: {fixed: {input: 100, output: 20}}",
        "prefix: {groups: 1, tokens: 1, share: 1}",
        &["workload.synthetic.lengths", "classes"],
    ),
    (
        "lengths: {fixed: {input: 100, output: 20}}",
        "classes: []",
        &["workload.synthetic.classes", "found 0 classes"],
    ),
    (
        "lengths: {fixed: {input: 100, output: 20}}",
        "classes: [{name: a, share: 0.5, lengths: {fixed: {input: 1, output: 2}}}]",
        &["workload.synthetic.classes", "sum to 0.5"],
    ),
    (
        "lengths: {fixed: {input: 100, output: 20}}",
        "classes: [{name: a, share: 0.5, lengths: {fixed: {input: 1, output: 2}}}, {name: a, share: 0.5, lengths: {fixed: {input: 1, output: 2}}}]",
        &["workload.synthetic.classes.1.name", "a name of its own"],
    ),
    (
        "lengths: {fixed: {input: 100, output: 20}}",
        "classes: [{name: a, shar: 1, lengths: {fixed: {input: 1, output: 2}}}]",
        &["did you mean 'share'"],
    ),
    (
        "lengths: {fixed: {input: 100, output: 20}}",
        "classes: [{name: a, share: 1, lengths: {fixed: {input: 0, output: 2}}}]",
        &["workload.synthetic.classes.0.lengths.fixed.input", "found 0"],
    ),
    (
        "lengths: {fixed: {input: 100, output: 20}}",
        "lengths: {fixed: {input: 1, output: 2}}\n    classes: [{name: a, share: 1, lengths: {fixed: {input: 1, output: 2}}}]",
        &["workload.synthetic.lengths", "move it into each"],
    ),
    (
        "lengths: {fixed: {input: 100, output: 20}}",
        "classes: [{name: a, share: 1, lengths: {fixed: {input: 1, output: 2}}, priorities: [{priority: 1, share: 0.5}]}]",
        &["workload.synthetic.classes.0.priorities", "sum to 0.5"],
    ),
    ("kneeboard: 1", "{", &["line"]),
    ("kneeboard: 1", "\u{0}", &["line"]),
    ("kneeboard: 1", "--- {}\n--- {}\n", &["s.yaml"]),
];

#[test]
fn files_are_refused_with_place_and_remedy() {
    let complaints = FILE_CASES.iter().filter_map(|(from, to, wanted)| {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "the case changes nothing: {from}");
        complaint(attempt(&text, &[]), &format!("{from} -> {to}"), wanted)
    });
    none(complaints.collect());
    none(
        complaint(attempt("", &[]), "empty file", &["s.yaml"])
            .into_iter()
            .collect(),
    );
}

/// (override, what the error must say)
const SET_CASES: &[(&str, &[&str])] = &[
    (
        "load.arrival.rate=0",
        &["--set load.arrival.rate=0", "found 0", "above 0"],
    ),
    ("load.arrival.rate=-3", &["load.arrival.rate", "-3", "above 0"]),
    ("load.arrival.rate=.nan", &["load.arrival.rate"]),
    (
        "load.arrival.rate=fast",
        &["--set load.arrival.rate=fast", "load.arrival.rate"],
    ),
    ("load.arrival.rate=null", &["load.arrival.rate", "missing"]),
    (
        "load.arrival.rate=1e12",
        &["measure.warmup", "longer than the run"],
    ),
    ("load.arrival.rate=1e-15", &["584 years"]),
    (
        "load.arrival.burstiness=1",
        &["load.arrival.burstiness", "process: gamma"],
    ),
    (
        "load.arrival.process=gamma",
        &["load.arrival.burstiness", "missing"],
    ),
    (
        "load.arrival.process=trace",
        &["load.arrival.process", "workload.trace"],
    ),
    ("load.arrival.time_scale=2", &["load.arrival.time_scale"]),
    ("load.concurrency=4", &["load.concurrency", "closed-loop"]),
    ("load.model=closed-loop", &["load.arrival", "open-loop"]),
    ("workload.synthetic.num_requests=0", &["num_requests", "found 0"]),
    (
        "workload.synthetic.num_requests=null",
        &["num_requests", "measure.window"],
    ),
    ("workload.synthetic.num_requests=4000000000", &["arrivals"]),
    (
        "workload.synthetic.lengths.fixed.input=0",
        &["lengths.fixed.input", "found 0"],
    ),
    (
        "workload.synthetic.lengths.fixed.input=4096",
        &["request 0", "4096", "max_model_len"],
    ),
    (
        "workload.synthetic.lengths.fixed.output=0",
        &["lengths.fixed.output", "found 0"],
    ),
    (
        "workload.synthetic.prefix={groups: 0, tokens: 5, share: 0.5}",
        &["prefix.groups", "found 0"],
    ),
    (
        "workload.synthetic.prefix={groups: 2, tokens: 5, share: 1.5}",
        &["prefix.share", "0 to 1"],
    ),
    (
        "workload.synthetic.priorities=[{priority: 0, share: 0.4}]",
        &["priorities", "sum to 1"],
    ),
    (
        "workload.synthetic.priorities=[{priority: 0, share: 1}]",
        &["priorities", "fcfs"],
    ),
    (
        "workload.synthetic.draft_acceptance=0.5",
        &["draft_acceptance", "num_speculative_tokens"],
    ),
    (
        "system.engine.num_speculative_tokens=3",
        &["draft_acceptance", "missing"],
    ),
    (
        "workload.trace=nowhere.csv",
        &["load.arrival.process", "process: trace"],
    ),
    ("measure.warmup=1h", &["measure.warmup", "longer than the run"]),
    ("measure.deadline=1s", &["measure.warmup", "measure.deadline"]),
    ("measure.window=0s", &["measure.window", "empty"]),
    ("measure.repeats=0", &["measure.repeats", "found 0"]),
    (
        "measure.seed=-1",
        &["--set measure.seed=-1", "measure.seed", "a whole number from 0"],
    ),
    ("slo.attainment=1.5", &["slo.attainment", "0 to 1"]),
    ("slo.attainment=0", &["slo.attainment", "above 0"]),
    ("slo.itl_quantile=2", &["slo.itl_quantile", "0 to 1"]),
    (
        "system.model=llama-3.1-70b",
        &["larger than the memory", "weights 131.4", "GiB"],
    ),
    (
        "system.engine.runtime_reserve=70GiB",
        &["no KV block is left", "reserve 70.00"],
    ),
    (
        "system.engine.num_gpu_blocks=1",
        &["no KV block is left", "from 2"],
    ),
    (
        "system.engine.num_gpu_blocks=5",
        &["request 0", "needs 8 KV blocks", "has 4"],
    ),
    (
        "system.engine.max_model_len=131073000",
        &["max_model_len", "KV blocks", "would not start"],
    ),
    ("system.engine.max_model_len=0", &["max_model_len", "found 0"]),
    (
        "system.engine.num_lookahead_tokens=4294967295",
        &["num_lookahead_tokens", "up to 1073741824"],
    ),
    (
        "workload.synthetic.lengths.fixed.output=4294967295",
        &["fixed.output", "up to 1073741824"],
    ),
    ("system.engine.block_size=0", &["block_size", "found 0"]),
    (
        "system.engine.max_num_batched_tokens=32",
        &["max_num_seqs", "above max_num_batched_tokens 32"],
    ),
    (
        "system.engine.max_num_active_seqs=65",
        &["max_num_active_seqs", "1 to 64"],
    ),
    (
        "system.engine.gpu_memory_utilization=1.2",
        &["gpu_memory_utilization", "0 to 1"],
    ),
    ("system.engine.watermark=-0.1", &["watermark", "0 to 1"]),
    ("system.parallel.tp=0", &["system.parallel.tp", "found 0"]),
    ("system.parallel.tp=3", &["system.parallel.tp", "32 heads"]),
    (
        "system.parallel.dp=2",
        &["system.parallel.dp", "not modelled yet"],
    ),
    ("system.parallel.pp=64", &["system.parallel.pp", "32 layers"]),
    ("system.parallel.ep=2", &["system.parallel.ep", "beside tp 1"]),
    ("system.parallel.pp=0", &["system.parallel.pp", "found 0"]),
    ("system.dtype=fp9", &["system.dtype", "fp8"]),
    ("system.kv_dtype=int8", &["system.kv_dtype", "fp8"]),
    (
        "system.engine.kv_cache_memory_bytes=75GiB",
        &["kv_cache_memory_bytes", "does not fit", "weights 14.96"],
    ),
    (
        "system.engine.cudagraph_mode=FULLY",
        &["system.engine.cudagraph_mode", "FULL"],
    ),
    (
        "system.engine.cudagraph_capture_sizes=[0]",
        &["cudagraph_capture_sizes", "from 1"],
    ),
    ("system.fit=some-fit", &["both system.fit and system.step_time"]),
    ("cluster.pools=[]", &["cluster.pools", "one pool"]),
    (
        "cluster.pools=[{role: unified, groups: 0}]",
        &["groups", "found 0"],
    ),
    (
        "cluster.pools=[{role: prefill, groups: 1}]",
        &["cluster.pools", "unified"],
    ),
    (
        "cluster.router.policy=randm",
        &["cluster.router.policy", "round-robin"],
    ),
    ("sytem.model=x", &["'sytem'", "did you mean 'system'"]),
    ("system.engine.max_num_seq=4", &["did you mean 'max_num_seqs'"]),
    ("no-equals-sign", &["no '='", "PATH=VALUE"]),
];

#[test]
fn overrides_are_refused_with_place_and_remedy() {
    let complaints = SET_CASES
        .iter()
        .filter_map(|(set, wanted)| complaint(attempt(GOOD, &[set]), set, wanted));
    none(complaints.collect());
}

#[test]
fn knobs_that_a_version_lacks_are_refused() {
    for (version, knob) in [
        ("0.19.1", "system.engine.watermark=0.1"),
        ("0.15.1", "system.engine.scheduler_reserve_full_isl=true"),
        ("0.28.0", "system.engine.max_num_active_seqs=4"),
    ] {
        let version = format!("system.engine.version={version}");
        none(
            complaint(attempt(GOOD, &[&version, knob]), knob, &["does not have it"])
                .into_iter()
                .collect(),
        );
    }
}

#[test]
fn laws_are_checked() {
    for (law, wanted) in [
        ("{uniform: {min: 9, max: 3}}", "min 9 is above max 3"),
        ("{uniform: {min: 0, max: 3}}", "start at 1 token"),
        ("{constant: 0}", "start at 1 token"),
        ("{constant: 4000000000}", "more than 1073741824"),
        ("{normal: {mean: 50, std: 0, min: 1, max: 90}}", "std = 0"),
        ("{normal: {mean: 5e9, std: 1, min: 1, max: 90}}", "fell outside"),
        (
            "{lognormal: {median: -2, sigma: 1, min: 1, max: 90}}",
            "median = -2",
        ),
        ("{lognormal: {median: 2, sigma: 1, min: 1}}", "max"),
        ("{pareto: {}}", "pareto"),
    ] {
        let set = format!("workload.synthetic.lengths.independent={{input: {law}, output: {{constant: 5}}}}");
        none(
            complaint(attempt(GOOD, &[&set]), law, &[wanted])
                .into_iter()
                .collect(),
        );
    }
}

/// (trace file, what the error must say)
const TRACE_CASES: &[(&str, &[&str])] = &[
    ("", &["t.csv"]),
    ("arrival_s,input_tokens,output_tokens\n", &["empty"]),
    (
        "arrival_s,input_tokens,output_token\n0,1,1\n",
        &["line 1", "did you mean 'output_tokens'"],
    ),
    (
        "arrival_s,input_tokens\n0,1\n",
        &["line 1", "'output_tokens' is missing"],
    ),
    ("input_tokens,output_tokens\n1,1\n", &["line 2", "arrival_s"]),
    (
        "arrival_s,arrival_ns,input_tokens,output_tokens\n0,0,1,1\n",
        &["line 2", "keep one"],
    ),
    (
        "arrival_s,input_tokens,input_tokens,output_tokens\n0,1,1,1\n",
        &["line 1", "twice"],
    ),
    (
        "arrival_s,input_tokens,output_tokens\n1,5,5\n0.5,5,5\n",
        &["line 3", "in order of arrival"],
    ),
    (
        "arrival_s,input_tokens,output_tokens\nnan,5,5\n",
        &["line 2", "arrival_s"],
    ),
    (
        "arrival_s,input_tokens,output_tokens\n-1,5,5\n",
        &["line 2", "negative"],
    ),
    (
        "arrival_s,input_tokens,output_tokens\n1e300,5,5\n",
        &["line 2", "584 years"],
    ),
    (
        "arrival_s,input_tokens,output_tokens\n0,0,5\n",
        &["line 2", "input_tokens is 0"],
    ),
    (
        "arrival_s,input_tokens,output_tokens\n0,5,\n",
        &["line 2", "output_tokens is empty"],
    ),
    (
        "arrival_s,input_tokens,output_tokens\n0,5,5.5\n",
        &["line 2", "output_tokens is '5.5'"],
    ),
    (
        "arrival_s,input_tokens,output_tokens\n0,5,99999999999\n",
        &["line 2", "output_tokens"],
    ),
    (
        "arrival_s,input_tokens,output_tokens\n0,5\n",
        &["line 2", "2 fields"],
    ),
    (
        "arrival_s,input_tokens,output_tokens,prefix_tokens\n0,5,5,3\n",
        &["line 2", "prefix_group"],
    ),
    (
        "arrival_s,input_tokens,output_tokens,prefix_group,session\n0,5,5,1,2\n",
        &["line 2", "session is 2"],
    ),
];

#[test]
fn traces_are_refused_with_their_line() {
    let complaints = TRACE_CASES.iter().filter_map(|(text, wanted)| {
        let outcome = parse_trace(text, "t.csv").map(|_| ()).map_err(|e| e.to_string());
        complaint(outcome, text, wanted)
    });
    none(complaints.collect());
}

#[test]
fn a_row_that_can_never_be_served_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("t.csv"),
        "arrival_s,input_tokens,output_tokens\n0,100,20\n2,5000,20\n",
    )
    .unwrap();
    let text = GOOD
        .replace(
            "  synthetic:\n    num_requests: 50\n    lengths: {fixed: {input: 100, output: 20}}",
            "  trace: t.csv",
        )
        .replace("{process: poisson, rate: 4}", "{process: trace}");
    let plan = Plan::from_text(&text, "s.yaml", dir.path(), &[]).unwrap();
    let error = plan.trace(0).unwrap_err().to_string();
    assert!(
        error.contains("t.csv, request 1: prompt of 5000 tokens"),
        "{error}"
    );
}

#[test]
fn a_cut_off_gzip_trace_is_refused() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    writeln!(gz, "arrival_s,input_tokens,output_tokens").unwrap();
    for i in 0..500 {
        writeln!(gz, "{i},{},7", i * 7919 % 911 + 1).unwrap();
    }
    let bytes = gz.finish().unwrap();
    let path = dir.path().join("t.csv.gz");
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(read_trace(&path).unwrap().requests.len(), 500);
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = read_trace(&path).unwrap_err().to_string();
    assert!(error.contains("not a whole gzip"), "{error}");
}

#[test]
fn the_program_says_it_once_on_stderr_and_exits_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.yaml");
    std::fs::write(&path, GOOD.replace("rate: 4", "rate: 0")).unwrap();
    let run = |args: &[&str]| {
        let mut command = assert_cmd::Command::cargo_bin("kneeboard").unwrap();
        command.current_dir(dir.path()).args(args).output().unwrap()
    };
    for args in [
        &["show", "s.yaml"][..],
        &["show", "gone.yaml"],
        &["show", "s.yaml", "--set", "load.arival.rate=3"],
        &["profile", "show", "h100"],
        &["schema", "scenari"],
        &["trace", "inspect", "s.yaml"],
    ] {
        let out = run(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(out.stdout.is_empty(), "{args:?}");
        let stderr = String::from_utf8(out.stderr).unwrap();
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
        assert!(stderr.starts_with("kneeboard: "), "{stderr}");
    }
    assert_eq!(run(&["sho"]).status.code(), Some(2), "usage");
    assert_eq!(
        run(&["show", "s.yaml", "--set", "load.arrival.rate=3"])
            .status
            .code(),
        Some(0)
    );
}

proptest! {
    #[test]
    fn no_bytes_make_the_readers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = attempt(&text, &[]);
        let _ = Override::parse(&text);
        let _ = parse_trace(&text, "t.csv");
        let _ = parse_trace(&format!("arrival_s,input_tokens,output_tokens\n{text}"), "t.csv");
    }

    /// A good scenario with one stretch replaced: deeper into the reader than noise gets.
    #[test]
    fn no_edit_of_a_good_scenario_panics(at in 0..GOOD.len(), len in 0usize..20, put in "[ -~\n]{0,12}") {
        let end = (at + len).min(GOOD.len());
        let text = format!("{}{put}{}", &GOOD[..at], &GOOD[end..]);
        let _ = attempt(&text, &[]);
    }

    #[test]
    fn no_override_of_a_known_path_panics(value in "[ -~]{0,16}", which in 0usize..8) {
        let path = [
            "load.arrival.rate", "system.engine.max_num_seqs", "workload.synthetic.num_requests", "slo.ttft",
            "sweep.axes", "cluster.pools", "system.model", "measure",
        ][which];
        let _ = attempt(GOOD, &[&format!("{path}={value}")]);
    }
}
