//! `kneeboard conform`.

use std::path::Path;

use super::support::*;

fn golden(name: &str) -> std::path::PathBuf {
    repository("tests/data/scheduler-golden").join(name)
}

#[test]
fn identical_logs_of_every_kind_in_one_folder_exit_with_0() {
    let dir = tempfile::tempdir().unwrap();
    copy_tree(&golden("t01-one-request"), &dir.path().join("a"));
    copy_tree(&golden("m01-s4-b512"), &dir.path().join("b/gzipped"));
    copy_tree(&capture("holdout/prefix-on/r12"), &dir.path().join("c"));
    let log = repository("tests/data/scheduler-versions/0.19.1/07_tight.json.gz");
    std::fs::copy(log, dir.path().join("07_tight.json.gz")).unwrap();
    let text = run_line("conform {}", &[dir.path()]).with_code(0).stdout;
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.contains("a (vLLM 0.32.0): identical 3/3"), "{text}");
    assert!(
        text.lines()
            .last()
            .unwrap()
            .starts_with("4 of 4 cases identical, ")
    );

    let report = run_line("conform {} --json", &[dir.path()]).with_code(0).json();
    let kinds: Vec<_> = report["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["kind"].clone())
        .collect();
    assert_eq!(kinds, ["call-log", "golden", "golden", "capture"]);
    assert_eq!(report["cases"][0]["version"], "0.19.1");
    assert_eq!(report["identical_cases"], 4);
    assert_eq!(report["steps"], report["identical_steps"]);
    assert_eq!(report["cases"][3]["steps"], 823);
}

#[test]
fn an_altered_log_exits_with_3_and_says_where_what_and_which_rules() {
    let dir = tempfile::tempdir().unwrap();
    copy_tree(&golden("t06-preempt-fcfs"), dir.path());
    let path = dir.path().join("steps.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let third = text.lines().nth(2).unwrap();
    let recorded = serde_json::from_str::<serde_json::Value>(third).unwrap()["free"].clone();
    let altered = third.replacen("\"free\":", "\"free\":7", 1);
    std::fs::write(&path, text.replacen(third, &altered, 1)).unwrap();

    let sound = golden("t01-one-request");
    let text = run_line("conform {} {}", &[dir.path(), &sound])
        .with_code(3)
        .stdout;
    let first = text.lines().next().unwrap();
    assert!(
        first.contains("identical 2/42, then step 2, free: expected 7"),
        "{first}"
    );
    assert!(
        first.contains(&format!("came {recorded}; see rules K")),
        "{first}"
    );
    assert!(text.contains("1 of 2 cases identical"), "{text}");

    let report = run_line("conform --json {}", &[dir.path()]).with_code(3).json();
    let case = &report["cases"][0];
    assert_eq!((&case["steps"], &case["identical"]), (&42.into(), &2.into()));
    let divergence = &case["divergence"];
    assert_eq!(divergence["step"], 2);
    assert_eq!(divergence["field"], "free");
    assert_eq!(divergence["actual"], recorded.to_string());
    assert!(divergence["rules"].as_str().unwrap().contains("K10"));
    assert_eq!(report["identical_cases"], 0);
}

#[test]
fn an_altered_capture_diverges_at_the_altered_step() {
    let dir = tempfile::tempdir().unwrap();
    copy_tree(&capture("holdout/serve-s4-b256/r4"), dir.path());
    let path = dir.path().join("steps.csv.gz");
    let text = gunzip(&path);
    let names: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let column = names.iter().position(|n| *n == "free_blocks").unwrap();
    let line = text.lines().nth(11).unwrap();
    let mut cells: Vec<&str> = line.split(',').collect();
    cells[column] = "1";
    std::fs::write(&path, gzip(&text.replacen(line, &cells.join(","), 1))).unwrap();
    let report = run_line("conform --json {}", &[dir.path()]).with_code(3).json();
    assert_eq!(report["cases"][0]["divergence"]["field"], "free_blocks");
    assert_eq!(report["cases"][0]["divergence"]["step"], 10);
    assert_eq!(report["cases"][0]["identical"], 10);
}

#[test]
fn what_is_no_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    run_line("conform {}", &[&at("gone")]).refused(&["gone: ", "No such file"]);
    std::fs::create_dir(at("empty")).unwrap();
    run_line("conform {}", &[&at("empty")]).refused(&["empty: ", "holds no recorded", "steps.jsonl"]);

    let log = at("cut/01_plain.json.gz");
    std::fs::create_dir(at("cut")).unwrap();
    let whole = std::fs::read(repository(
        "tests/data/scheduler-versions/0.32.0/01_plain.json.gz",
    ))
    .unwrap();
    std::fs::write(&log, &whole[..whole.len() / 2]).unwrap();
    run_line("conform {}", &[&at("cut")]).refused(&["01_plain.json.gz: ", "not a whole gzip"]);

    copy_tree(&golden("m01-s4-b512"), &at("golden"));
    let steps = at("golden/steps.jsonl.gz");
    let whole = std::fs::read(&steps).unwrap();
    std::fs::write(&steps, &whole[..whole.len() - 9]).unwrap();
    run_line("conform {}", &[&at("golden")]).refused(&["steps.jsonl.gz: ", "not a whole gzip"]);

    for (name, text, parts) in [
        (
            "02_other.json",
            "{\"a\": 1}",
            &["02_other.json: ", "vllm", "call log"][..],
        ),
        ("03_list.json", "[1, 2]", &["03_list.json", "[0]"]),
        (
            "04_cut.json",
            "{\"vllm\": \"0.32.0\", \"conf",
            &["04_cut.json", "EOF"],
        ),
        ("05_none.json", "", &["05_none.json", "EOF"]),
    ] {
        std::fs::write(at(name), text).unwrap();
        run_line("conform {}", &[&at(name)]).refused(parts);
    }
}

#[test]
fn a_record_that_cannot_be_read_does_not_lose_the_others() {
    let dir = tempfile::tempdir().unwrap();
    copy_tree(&golden("t01-one-request"), &dir.path().join("good"));
    std::fs::write(dir.path().join("01_broken.json"), "{").unwrap();
    let ended = run_line("conform {}", &[dir.path()]).with_code(2);
    assert!(ended.stdout.contains("identical 3/3"), "{}", ended.stdout);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("01_broken.json: EOF"), "{}", ended.stderr);
}

/// Replays a call log with one value changed.
fn with_changed_log(change: impl FnOnce(&mut serde_json::Value)) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    let text = gunzip(&repository(
        "tests/data/scheduler-versions/0.32.0/02_async.json.gz",
    ));
    let mut log: serde_json::Value = serde_json::from_str(&text).unwrap();
    change(&mut log);
    let path = dir.path().join("02_async.json");
    std::fs::write(&path, log.to_string()).unwrap();
    run_line("conform {}", &[&path])
}

#[test]
fn absurd_numbers_in_a_call_log_are_refused_with_their_place() {
    with_changed_log(|_| ()).with_code(0);
    for (pointer, value) in [
        ("/config/mml", 4_294_967_295u64),
        ("/config/look", 4_294_967_295),
        ("/config/N", 4_294_967_295),
        ("/config/N", 1 << 25),
        ("/config/bs", 0),
        ("/config/budget", 4_294_967_295),
        ("/config/spec", 256),
        ("/requests/0/prompt_len", 4_294_967_295),
        ("/requests/0/prompt_len", 0),
        ("/requests/1/max_tokens", 4_294_967_295),
        ("/requests/1/max_tokens", 0),
    ] {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let place = pointer[1..]
            .replace("/0/", "[0].")
            .replace("/1/", "[1].")
            .replace('/', ".");
        with_changed_log(|log| log.pointer_mut(parent).unwrap()[key] = value.into()).refused(&[
            &place,
            &format!("found {value}"),
            "allowed: a whole number from",
        ]);
    }
    with_changed_log(|log| log["vllm"] = "0.31.0".into()).refused(&["vllm", "0.31.0", "did you mean"]);
    with_changed_log(|log| log["calls"] = serde_json::json!([]))
        .refused(&["02_async.json", "records no step"]);
}

/// Replays a golden case with prefix caching, changed by `change`.
fn with_changed_golden(change: impl FnOnce(&Path)) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    copy_tree(&golden("t08-prefix-full-blocks"), dir.path());
    change(dir.path());
    run_line("conform {}", &[dir.path()])
}

#[test]
fn absurd_numbers_in_a_golden_case_are_refused_with_their_place() {
    with_changed_golden(|_| ()).with_code(0);
    for (knob, value) in [
        ("num_gpu_blocks", 4_294_967_295u64),
        ("num_gpu_blocks", 0),
        ("block_size", 0),
        ("max_model_len", 4_294_967_295),
        ("max_num_batched_tokens", 0),
    ] {
        with_changed_golden(|folder| {
            let path = folder.join("config.json");
            let mut config = json_file(&path);
            config["scheduler"][knob] = value.into();
            std::fs::write(&path, config.to_string()).unwrap();
        })
        .refused(&[
            "config.json",
            &format!("scheduler.{knob}"),
            &format!("found {value}"),
        ]);
    }
    for (column, value) in [
        (2, "4294967295"),
        (2, "0"),
        (3, "4294967295"),
        (3, "0"),
        (2, "-1"),
        (1, "nan"),
    ] {
        with_changed_golden(|folder| {
            let path = folder.join("trace.csv");
            let text = std::fs::read_to_string(&path).unwrap();
            let row = text.lines().nth(1).unwrap();
            let mut cells: Vec<&str> = row.split(',').collect();
            cells[column] = value;
            std::fs::write(&path, text.replacen(row, &cells.join(","), 1)).unwrap();
        })
        .refused(&["trace.csv", "line 2"]);
    }
}

#[test]
fn a_case_without_requests_and_steps_proves_nothing() {
    with_changed_golden(|folder| {
        let text = std::fs::read_to_string(folder.join("trace.csv")).unwrap();
        std::fs::write(folder.join("trace.csv"), text.lines().next().unwrap()).unwrap();
        std::fs::write(folder.join("steps.jsonl"), "").unwrap();
    })
    .refused(&["records no step"]);
}

/// Changes one cell of the first row of a table of a capture and replays it.
#[test]
fn absurd_numbers_in_a_capture_are_refused_with_their_place() {
    for (table, column, value) in [
        ("requests.csv.gz", "input_tokens", "4294967295"),
        ("requests.csv.gz", "output_tokens", "99999999999"),
        ("requests.csv.gz", "arrival_s", "nan"),
        ("requests.csv.gz", "arrival_s", "-1"),
        ("steps.csv.gz", "added_total", "-1"),
        ("steps.csv.gz", "t_end_s", "1e300"),
        ("steps.csv.gz", "work", "0:4294967295:4294967295"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        copy_tree(&capture("holdout/serve-s4-b256/r4"), dir.path());
        let path = dir.path().join(table);
        let text = gunzip(&path);
        let names: Vec<&str> = text.lines().next().unwrap().split(',').collect();
        let row = text.lines().nth(1).unwrap();
        let mut cells: Vec<&str> = row.split(',').collect();
        cells[names.iter().position(|n| *n == column).unwrap()] = value;
        std::fs::write(&path, gzip(&text.replacen(row, &cells.join(","), 1))).unwrap();
        for command in [
            "conform {}".to_owned(),
            format!("compare {{}} --fit {}", fit_file().display()),
        ] {
            run_line(&command, &[dir.path()]).refused(&[table, "line 2", column]);
        }
    }
    for (knob, value) in [
        ("num_gpu_blocks", 1u64 << 30),
        ("num_gpu_blocks", 1),
        ("block_size", 0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        copy_tree(&capture("holdout/prefix-on/r12"), dir.path());
        let path = dir.path().join("manifest.json");
        let mut manifest = json_file(&path);
        manifest["engine_effective"][knob] = value.into();
        manifest["engine_effective"]["usable_blocks"] = value.saturating_sub(1).into();
        std::fs::write(&path, manifest.to_string()).unwrap();
        run_line("conform {}", &[dir.path()]).refused(&["manifest.json", knob, &value.to_string()]);
    }
}

/// Replays a log of the Neuron plugin with something changed, one call a line.
fn with_changed_neuron_log(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    let text = gunzip(&repository("tests/data/scheduler-neuron").join(format!("{name}.json.gz")));
    let mut log: serde_json::Value = serde_json::from_str(&text).unwrap();
    change(&mut log);
    let path = dir.path().join(format!("{name}.json"));
    std::fs::write(&path, log.to_string().replace("{\"call\":", "\n{\"call\":")).unwrap();
    run_line("conform {}", &[&path])
}

#[test]
fn a_call_log_that_lost_calls_is_refused_with_its_line() {
    with_changed_neuron_log("01_t18", |_| ()).with_code(0);
    let calls = |log: &mut serde_json::Value, change: fn(&mut Vec<serde_json::Value>)| {
        change(log["calls"].as_array_mut().unwrap());
    };
    with_changed_neuron_log("01_t18", |log| calls(log, |c| drop(c.remove(4)))).refused(&[
        "01_t18.json",
        "line 6, calls[4]",
        "call 6 where call 5 is due",
    ]);
    with_changed_neuron_log("01_t18", |log| calls(log, |c| c.swap(2, 3))).refused(&["line 4, calls[2]"]);
    with_changed_neuron_log("01_t18", |log| calls(log, |c| c.truncate(10))).refused(&[
        "line 11, calls[9]",
        "call 10 is the last, and request",
        "cut short",
    ]);
    with_changed_neuron_log("01_t18", |log| {
        calls(log, |c| {
            c.last_mut().unwrap()["processed"] = serde_json::Value::Null
        });
    })
    .refused(&["line 21, calls[19]", "no result"]);
    // A livelock has no other end than that the recorder stops.
    with_changed_neuron_log("12_t26", |_| ()).with_code(0);
}

#[test]
fn a_call_log_that_contradicts_itself_is_refused() {
    with_changed_neuron_log("12_t26", |log| log["livelock"] = false.into())
        .refused(&["12_t26.json, livelock:", "livelock_from is 3"]);
    with_changed_neuron_log("01_t18", |log| log["livelock"] = true.into())
        .refused(&["01_t18.json, livelock:", "livelock_from is 0"]);
    with_changed_neuron_log("12_t26", |log| log["livelock_from"] = 99.into())
        .refused(&["livelock_from", "the last call is 22"]);
    for plugin in ["vllm-neuron 0.3.0", "vllm-ascend 0.2.0", ""] {
        with_changed_neuron_log("01_t18", |log| log["plugin"] = plugin.into()).refused(&[
            "plugin",
            plugin,
            "known: vllm-neuron 0.2.0",
        ]);
    }
    with_changed_neuron_log("01_t18", |log| log["plugin"] = serde_json::Value::Null)
        .refused(&["plugin", "ContinuousBatchingNeuronScheduler"]);
    with_changed_neuron_log("01_t18", |log| log["requests"][0]["prompt_len"] = "many".into()).refused(&[
        "requests[0].prompt_len",
        "line 1",
        "a whole number from 0",
    ]);
}

#[test]
fn a_golden_case_whose_steps_skip_a_number_is_refused_with_its_line() {
    with_changed_golden(|folder| {
        let path = folder.join("steps.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        let kept: Vec<&str> = text
            .lines()
            .enumerate()
            .filter(|(i, _)| *i != 3)
            .map(|l| l.1)
            .collect();
        std::fs::write(&path, kept.join("\n")).unwrap();
    })
    .refused(&["steps.jsonl, line 4", "step 4 where step 3 is due"]);
}
