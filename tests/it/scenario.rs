//! Scenarios end to end: the shipped ones resolve, what is shown can be read again, sampling is fixed.

use std::path::{Path, PathBuf};

use kneeboard::cli::schemas;
use kneeboard::scenario::{Override, Plan, Source};
use kneeboard::sim::LoadModel;
use kneeboard::steptime::{BatchShape, GraphMode, KvDtype, WeightDtype};
use kneeboard::units::{SimDuration, SimTime};

use crate::shared::has_its_data;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn shipped() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["scenarios", "scenarios/bench"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "yaml") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn plan(name: &str, set: &[&str]) -> Plan {
    let overrides: Vec<_> = set.iter().map(|s| Override::parse(s).unwrap()).collect();
    Plan::load(&root().join("scenarios").join(name), &overrides).unwrap()
}

#[test]
fn every_shipped_scenario_resolves_and_gives_its_requests() {
    let all = shipped();
    assert!(all.len() >= 7, "{all:?}");
    for path in all {
        if !has_its_data("every_shipped_scenario_resolves_and_gives_its_requests", &path) {
            continue;
        }
        let plan = Plan::load(&path, &[]).unwrap();
        assert!(plan.requests(0).unwrap().take(1000).all(|r| r.is_ok()));
    }
}

#[test]
fn what_show_prints_is_the_same_scenario_again() {
    for path in shipped() {
        if !has_its_data("what_show_prints_is_the_same_scenario_again", &path) {
            continue;
        }
        let few = Override::parse("workload.synthetic.num_requests=1000").unwrap();
        let set = path.ends_with("week.yaml").then_some(few);
        let first = Plan::load(&path, set.as_slice()).unwrap();
        let output = assert_cmd::Command::cargo_bin("kneeboard")
            .unwrap()
            .arg("show")
            .arg(&path)
            .args(
                set.iter()
                    .flat_map(|s| ["--set", s.origin.trim_start_matches("--set ")]),
            )
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", path.display());
        let text = String::from_utf8(output.stdout).unwrap();
        let again = Plan::from_text(&text, "shown", path.parent().unwrap(), &[]).unwrap();
        assert_eq!(again.scenario, first.scenario, "{}", path.display());
    }
}

#[test]
fn json_schemas_in_the_repository_are_those_of_the_types() {
    for entry in schemas() {
        let path = root().join("schema").join(format!("{}.json", entry.name));
        let file = std::fs::read_to_string(&path).unwrap_or_default();
        let hint = format!("stale: run `kneeboard schema {0} > schema/{0}.json`", entry.name);
        assert!(file == entry.text().unwrap(), "{hint}");
    }
}

#[test]
fn each_value_says_where_it_came_from() {
    let plan = plan(
        "closed-loop.yaml",
        &["system.engine.max_num_seqs=128", "measure.seed=9"],
    );
    let resolved = plan.resolved().unwrap();
    let source = |path: &str| {
        resolved
            .iter()
            .find(|r| r.path == path)
            .map(|r| r.source.clone())
            .unwrap()
    };
    assert_eq!(source("system.engine.max_num_seqs"), Source::Set);
    assert_eq!(source("measure.seed"), Source::Set);
    assert_eq!(source("system.engine.max_model_len"), Source::File);
    assert_eq!(source("measure.repeats"), Source::Default);
    assert_eq!(source("cluster.pools.0.groups"), Source::Default);
    assert_eq!(
        source("system.engine.num_gpu_blocks"),
        Source::Derived("memory ledger".into())
    );
    let vllm = Source::Derived("vLLM 0.32.0 on h100-sxm".into());
    assert_eq!(source("system.engine.max_num_batched_tokens"), vllm);
    assert_eq!(
        plan.scenario.system.engine.max_num_batched_tokens,
        Some(8192),
        "rule S80"
    );
    let load = LoadModel::ClosedLoop {
        concurrency: 32,
        think: SimDuration::from_millis(500),
    };
    assert_eq!(plan.world(Default::default()).load, load);
}

/// Rules S56, S80 to S83: (accelerator, version) to (token budget, seats, asynchronous, share of memory).
#[test]
fn engine_defaults_are_those_of_the_release_on_the_device() {
    for (device, version, tokens, seats, asynchronous, share) in [
        ("h100-sxm", "0.32.0", 8192, 1024, true, "0.92"),
        ("h200-sxm", "0.19.1", 8192, 1024, true, "0.9"),
        ("a100-sxm-80gb", "0.32.0", 2048, 256, true, "0.92"),
        ("l40s", "0.25.1", 2048, 256, true, "0.92"),
        ("h100-sxm", "0.13.0", 8192, 1024, false, "0.9"),
    ] {
        let set = [
            format!("system.accelerator={device}"),
            format!("system.engine.version={version}"),
        ];
        let p = plan("closed-loop.yaml", &[&set[0], &set[1]]);
        let e = p.world(Default::default()).engine;
        let got = (e.max_num_batched_tokens, e.max_num_seqs, e.async_scheduling);
        assert_eq!(got, (tokens, seats, asynchronous), "{device} {version}");
        let utilization = p.scenario.system.engine.gpu_memory_utilization.unwrap();
        assert_eq!(utilization.0.to_string(), share, "{device} {version}");
        assert!(e.enable_chunked_prefill && e.enable_prefix_caching);
        assert_eq!(e.scheduler_reserve_full_isl, e.behaviour.has_full_prompt_gate);
    }
    let cpu = plan(
        "preflight-cpu.yaml",
        &["system.engine.max_num_seqs=null", "system.engine.block_size=null"],
    );
    let e = cpu.world(Default::default()).engine;
    assert_eq!(
        (e.max_num_seqs, e.block_size, e.async_scheduling),
        (128, 128, false)
    );
    let unchunked = plan(
        "closed-loop.yaml",
        &["system.engine.enable_chunked_prefill=false"],
    );
    assert_eq!(
        unchunked.world(Default::default()).engine.max_num_batched_tokens,
        16384,
        "at least max_model_len"
    );
}

/// More ranks leave more room for KV, and each rank holds fewer heads of it.
#[test]
fn block_counts_follow_the_ranks() {
    let blocks = |tp: u32| {
        let set = [
            format!("system.parallel.tp={tp}"),
            "system.model=llama-3.1-70b".to_owned(),
        ];
        plan("closed-loop.yaml", &[&set[0], &set[1]])
            .memory()
            .unwrap()
            .num_gpu_blocks
    };
    // By hand, TP 4: 0.92 * 0.99 * 80 GiB, less a quarter of 2 bytes * 70,552,387,584 and the norms, less what the
    // ledger keeps, over 16 tokens of 80 layers * 2 heads * 2 (K, V) * 128 * 2 bytes = 81,920 each.
    let reserve = plan(
        "closed-loop.yaml",
        &["system.parallel.tp=4", "system.model=llama-3.1-70b"],
    )
    .memory()
    .unwrap()
    .reserve;
    let requested = 0.92 * 0.99 * (80u64 << 30) as f64;
    let kv = requested - 2.0 * (70_552_387_584.0 / 4.0 + 161.0 * 8192.0) - reserve as f64;
    let by_hand = kv / f64::from(16 * 81_920);
    let close = (f64::from(blocks(4)) - by_hand).abs();
    assert!(close <= 1.0, "{} against {by_hand}", blocks(4));
    assert!(blocks(8) > 2 * blocks(4));
}

#[test]
fn later_overrides_win_and_with_adds_to_them() {
    let set = ["load.arrival.rate=3", "load.arrival.rate=5"];
    let base = plan("prefix-caching.yaml", &set);
    assert_eq!(base.scenario.load.arrival.rate.unwrap().0.to_string(), "5");
    let more = base.with(&[Override::new("load.arrival.rate", 7.5)]).unwrap();
    assert_eq!(more.scenario.load.arrival.rate.unwrap().0.to_string(), "7.5");
    assert_eq!(base.axes().len(), 1);
    let last = |p: &Plan| p.trace(0).unwrap().requests.last().unwrap().arrival.as_secs_f64();
    approx::assert_relative_eq!(last(&base) * 5.0, last(&more) * 7.5, max_relative = 1e-6);
}

#[test]
fn the_bench_step_time_is_that_of_its_formula() {
    let plan = plan("bench/b1-10k-1replica.yaml", &[]);
    let mut batch = BatchShape::default();
    batch.add_prefill(1024, 0);
    batch.add_decode(1, 1029);
    // 8 ms + 5 ms + 1024 * 45 us + 20 us + 1030 * 20 ns
    let want = 8_000_000 + 5_000_000 + 46_080_000 + 20_000 + 20_600;
    assert_eq!(
        plan.machine().unwrap().step_time.duration(&batch),
        SimDuration(want)
    );
    let world = plan.world(Default::default());
    assert_eq!(
        (
            world.engine.num_gpu_blocks,
            world.engine.block_size,
            world.replicas
        ),
        (16384, 16, 1)
    );
    assert!(!world.engine.enable_prefix_caching && !world.engine.async_scheduling);
    let trace = plan.trace(0).unwrap();
    assert_eq!(trace.requests.len(), 10_000);
    // 10,000 exponential gaps at 8 a second: 1250 s, standard error 12.5 s.
    let last = trace.requests[9_999].arrival.as_secs_f64();
    assert!((last - 1250.0).abs() < 50.0, "{last}");
}

/// The first draws of a shipped scenario: a change of any generator or of the order of draws shows here.
#[test]
fn sampled_requests_do_not_change_between_releases() {
    let trace = plan("priority.yaml", &[]).trace(1).unwrap();
    let rows: Vec<_> = trace.requests[..3]
        .iter()
        .map(|r| (r.arrival.0, r.input_tokens, r.max_output_tokens, r.priority))
        .collect();
    assert_eq!(rows, PINNED);
    assert_eq!(trace, plan("priority.yaml", &[]).trace(1).unwrap());
    assert_ne!(trace, plan("priority.yaml", &[]).trace(2).unwrap());
}

const PINNED: [(u64, u32, u32, i32); 3] = [
    (371_285_712, 366, 137, 5),
    (1_111_427_320, 1204, 269, 5),
    (3_039_931_310, 843, 305, 5),
];

#[test]
fn a_replayed_trace_is_stretched_to_the_rate_that_is_asked_for() {
    let replay = plan(
        "trace-replay.yaml",
        &["load.arrival.time_scale=null", "load.arrival.rate=6"],
    );
    let trace = replay.trace(0).unwrap();
    let last = trace.requests.last().unwrap().arrival.as_secs_f64();
    approx::assert_relative_eq!(trace.requests.len() as f64 / last, 6.0, max_relative = 1e-6);
    assert!(replay.is_replay());
}

#[test]
fn a_window_decides_the_number_of_requests_when_none_is_given() {
    let few = plan("preflight-cpu.yaml", &["load.arrival.rate=2"])
        .trace(0)
        .unwrap();
    let many = plan("preflight-cpu.yaml", &["load.arrival.rate=20"])
        .trace(0)
        .unwrap();
    // 250 s of warm-up and window; Poisson counts within four standard deviations.
    assert!((few.requests.len() as f64 - 500.0).abs() < 4.0 * 500f64.sqrt());
    assert!((many.requests.len() as f64 - 5000.0).abs() < 4.0 * 5000f64.sqrt());
    let lengths = |t: &kneeboard::workload::trace::Trace| {
        t.requests[..200]
            .iter()
            .map(|r| (r.input_tokens, r.max_output_tokens))
            .collect::<Vec<_>>()
    };
    assert_eq!(lengths(&few), lengths(&many), "the same requests at every rate");
}

/// Formats, ranks and graphs as the step-time models see them.
#[test]
fn the_deployment_of_a_plan() {
    let none = plan("closed-loop.yaml", &[]);
    let of = |set: &[&str]| plan("closed-loop.yaml", set).deployment().cloned().unwrap();
    let usual = none.deployment().unwrap();
    assert_eq!((usual.dtype, usual.kv_dtype), (WeightDtype::Bf16, KvDtype::Bf16));
    assert_eq!(usual.graph_mode, GraphMode::FullAndPiecewise);
    assert_eq!(usual.graphs.largest(), Some(512), "1024 seats");

    let small = of(&[
        "system.dtype=nvfp4",
        "system.kv_dtype=fp8",
        "system.parallel.pp=2",
    ]);
    assert_eq!((small.dtype, small.kv_dtype), (WeightDtype::Nvfp4, KvDtype::Fp8));
    assert_eq!(small.devices(), 2);

    let eager = of(&["system.engine.enforce_eager=true"]);
    assert_eq!(
        (eager.graphs.largest(), eager.graph_mode),
        (None, GraphMode::None)
    );
    let listed = of(&["system.engine.cudagraph_capture_sizes=[8, 4, 100000]"]);
    assert_eq!(listed.graphs.sizes(), [4, 8], "none above the budget");
}

#[test]
fn halved_formats_leave_more_blocks() {
    let blocks = |set: &[&str]| plan("closed-loop.yaml", set).memory().unwrap().num_gpu_blocks;
    let base = blocks(&[]);
    assert!(blocks(&["system.dtype=fp8"]) > base);
    let halved = blocks(&["system.kv_dtype=fp8"]);
    assert!(halved.abs_diff(2 * base) <= 1, "{halved} against twice {base}");
    let stated = blocks(&["system.engine.kv_cache_memory_bytes=10GiB"]);
    assert_eq!(u64::from(stated), (10u64 << 30) / (16 * 131_072));
    let told = plan("closed-loop.yaml", &["system.parallel.pp=2"]).limitations();
    assert!(told.iter().any(|l| l.contains("pipeline stages")), "{told:?}");
}

/// Defaults come from the engine's profile (rules S80, S81, S84).
#[test]
fn defaults_follow_device_and_release() {
    let of = |set: &[&str]| {
        let p = plan("closed-loop.yaml", set);
        let e = p.world(Default::default()).engine;
        let largest = p.deployment().and_then(|d| d.graphs.largest());
        (e.max_num_batched_tokens, e.max_num_seqs, largest)
    };
    assert_eq!(of(&[]), (8192, 1024, Some(512)));
    assert_eq!(
        of(&["system.accelerator=b200-sxm"]),
        (16_384, 1024, Some(1024)),
        "the top tier, and Blackwell's ceiling"
    );
    let before = "system.engine.version='0.25.1'";
    assert_eq!(
        of(&["system.accelerator=b200-sxm", before]),
        (8192, 1024, Some(1024))
    );
    assert_eq!(of(&["system.accelerator=a100-sxm-80gb"]), (2048, 256, Some(512)));
    assert_eq!(
        of(&["system.engine.max_num_seqs=2", "system.engine.max_model_len=3000"]).0,
        6000,
        "no more than all seats at full length"
    );
}

/// Experts in 4 bits beside 16-bit attention, half of the layers with a window of 128.
#[test]
fn a_model_with_windows_and_experts_has_a_ledger() {
    let p = plan("closed-loop.yaml", &["system.model=gpt-oss-20b"]);
    let d = p.deployment().unwrap();
    assert_eq!((d.dtype, d.expert_dtype), (WeightDtype::Bf16, WeightDtype::Mxfp4));
    let ledger = p.memory().unwrap();
    let layout = ledger.layout;
    assert_eq!(
        (
            layout.full_groups,
            layout.window_groups,
            layout.group_layers,
            layout.window
        ),
        (1, 1, 12, 128)
    );
    // 16384 / 16 blocks, and ceil((127 + 2 * 8192) / 16) + 1 bounded by the length.
    assert_eq!(ledger.blocks_per_request, 1024 + 1025);
    let scheduled = p.world(Default::default()).engine.num_gpu_blocks;
    let expected = u64::from(ledger.num_gpu_blocks) * 1024 / 2049;
    assert_eq!(u64::from(scheduled), expected);
    assert!(p.limitations().iter().any(|l| l.contains("sliding window")));
    assert!((11.0..16.0).contains(&(ledger.weights as f64 / 1e9)), "{ledger}");
}

/// What is derived can be read again and gives the same engine.
#[test]
fn a_resolved_scenario_with_derived_memory_resolves_to_itself() {
    for set in [
        &["system.model=gpt-oss-20b"][..],
        &["system.engine.kv_cache_memory_bytes=10GiB"],
        &["system.engine.enforce_eager=true", "system.dtype=int4"],
        &["system.engine.cudagraph_mode=PIECEWISE", "system.parallel.pp=2"],
    ] {
        let first = plan("closed-loop.yaml", set);
        let text = first.resolved_tree().unwrap().to_string();
        let again = Plan::from_text(&text, "again", root(), &[]).unwrap();
        let engine = |p: &Plan| p.world(Default::default()).engine;
        assert_eq!(engine(&again), engine(&first), "{set:?}");
        assert_eq!(again.deployment(), first.deployment(), "{set:?}");
    }
}

/// The whole week, by its arrivals alone: 44 million requests in 7 days, both within 1 %, and more of them by day.
#[test]
fn the_week_has_its_requests() {
    let path = root().join("scenarios/week.yaml");
    if !has_its_data("the_week_has_its_requests", &path) {
        return;
    }
    let week = 7.0 * 86_400.0;
    let plan = plan("week.yaml", &[]);
    let refused = plan.trace(0).unwrap_err().to_string();
    assert!(refused.contains("--summary-only"), "{refused}");
    let notes = plan.limitations().join("; ");
    assert!(notes.contains("sharegpt-vicuna.csv.gz; 819 more"), "{notes}");
    // A hundredth of the rate for the whole week is a hundredth of the work.
    let thin = &[
        "workload.synthetic.num_requests=440000",
        "load.arrival.rate=0.7275",
    ];
    let thin = self::plan("week.yaml", thin);
    let span = thin.arrival_span(0).unwrap();
    assert_eq!(span.count, 440_000);
    assert!((span.last.as_secs_f64() / week - 1.0).abs() < 0.01, "{span:?}");
    let noon = |day: u64| SimTime((day * 24 + 14) * 3_600_000_000_000);
    let hour = |from: SimTime| {
        let until = from + SimDuration::from_millis(3_600_000);
        let requests = thin.requests(0).unwrap().map(Result::unwrap);
        requests.filter(|r| (from..until).contains(&r.arrival)).count() as f64
    };
    // 14 to 15 o'clock: about 1.59 times the mean of the day; index of dispersion 2, four standard deviations.
    for (day, factor) in [(0, 1.59 * 7.0 / 6.2), (5, 0.6 * 1.59 * 7.0 / 6.2)] {
        let mean = 0.7275 * 3600.0 * factor;
        let got = hour(noon(day));
        assert!(
            (got - mean).abs() < 4.0 * (2.0 * mean).sqrt() + 0.01 * mean,
            "day {day}: {got}, {mean}"
        );
    }
    let chat = thin.requests(0).unwrap().map(Result::unwrap).take(100_000);
    // Prompts of the two files: chats have 614 tokens at most, code has more in three of four rows.
    let long = chat.filter(|r| r.input_tokens > 614).count() as f64 / 100_000.0;
    assert!((0.2..0.38).contains(&long), "{long}");
}

/// A point of a sweep and a load of a search are what overrides give, without resolving all again.
#[test]
fn points_and_rates_are_those_of_overrides() {
    for (name, set) in [
        ("preflight-cpu.yaml", &[][..]),
        ("trace-replay.yaml", &[][..]),
        (
            "trace-replay.yaml",
            &["load.arrival.time_scale=null", "load.arrival.rate=3"][..],
        ),
        (
            "priority.yaml",
            &["load.arrival.pattern.weekend=0.5", "measure.seed=4"][..],
        ),
    ] {
        let base = plan(name, set);
        let seats = Override::new("system.engine.max_num_seqs", 8);
        let (point, with) = (
            base.point(std::slice::from_ref(&seats)).unwrap(),
            base.with(&[seats]).unwrap(),
        );
        assert!(point.axes().is_empty());
        assert_eq!(*point.trace(0).unwrap(), *with.trace(0).unwrap());
        let mut expected = with.scenario.clone();
        expected.sweep.axes.clear();
        assert_eq!(point.scenario, expected);

        let rate = 7.3;
        let fast = point.at_rate(rate).unwrap();
        let slow = point
            .with(&[
                Override::new("load.arrival.time_scale", serde_json::Value::Null),
                Override::new("load.arrival.rate", rate),
            ])
            .unwrap();
        assert_eq!(fast.scenario, slow.scenario);
        assert_eq!(fast.resolved().unwrap(), slow.resolved().unwrap());
        assert_eq!(*fast.trace(1).unwrap(), *slow.trace(1).unwrap());
        assert_eq!(fast.arrival_span(0).unwrap(), slow.arrival_span(0).unwrap());
        let again = (fast.at_rate(1.5).unwrap(), slow.at_rate(1.5).unwrap());
        assert_eq!(again.0.resolved().unwrap(), again.1.resolved().unwrap());
    }
    let closed = plan("closed-loop.yaml", &[]);
    assert!(closed.at_rate(2.0).unwrap_err().to_string().contains("open-loop"));
    assert!(plan("preflight-cpu.yaml", &[]).at_rate(-1.0).is_err());
}

#[test]
fn a_replay_as_it_is_is_shared_and_not_copied() {
    let plan = plan("trace-replay.yaml", &["load.arrival.time_scale=1"]);
    let (one, other) = (
        plan.trace(0).unwrap(),
        plan.at_rate(9.0).unwrap().trace(0).unwrap(),
    );
    assert!(std::sync::Arc::ptr_eq(&one, &plan.trace(0).unwrap()));
    assert!(!std::sync::Arc::ptr_eq(&one, &other));
}

#[test]
fn a_ratio_is_one_axis_of_two_keys() {
    let set = "sweep.axes={'cluster.pools.prefill.groups, cluster.pools.decode.groups': [[1, 2], [2, 1]]}";
    let base = plan("pd-llama-70b.yaml", &[set]);
    let settings = kneeboard::explore::grid::combinations(base.axes()).unwrap();
    let groups = settings.iter().map(|setting| {
        let point = base.point(&kneeboard::explore::grid::overrides(setting)).unwrap();
        let pools = &point.cluster().unwrap().config().pools;
        pools.iter().map(|p| p.groups).collect::<Vec<_>>()
    });
    assert_eq!(groups.collect::<Vec<_>>(), [[1, 2], [2, 1]]);
}

/// Values of an axis are checked once; the time of each does not grow with the others.
#[test]
fn a_long_axis_is_set_up_in_linear_time() {
    let values: Vec<String> = (1..=20_000).map(|n| format!("{n}")).collect();
    let axis = format!(
        "sweep.axes={{system.engine.max_num_seqs: [{}]}}",
        values.join(", ")
    );
    let began = std::time::Instant::now();
    let base = plan("bench/b1-10k-1replica.yaml", &[&axis]);
    for value in &base.axes()[0].points[..2000] {
        let point = base
            .point(&[Override::new("system.engine.max_num_seqs", value[0].clone())])
            .unwrap();
        assert!(point.at_rate(3.0).is_ok());
    }
    // A second and a half when this was written, in a build for tests on a busy machine; squared it was hours.
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}
