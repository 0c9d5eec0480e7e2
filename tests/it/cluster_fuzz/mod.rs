//! Random clusters through the binary: valid ones and spoilt ones. Each ends within a bounded time with a word that can
//! be understood; what it writes agrees with itself, and with what single steps give.
//!
//! `KNEEBOARD_FUZZ_CASES` runs more of them, `KNEEBOARD_FUZZ_FROM` others: a failure names the seed to begin from, and
//! `KNEEBOARD_FUZZ_KEEP` a folder in which its scenario is left.

mod books;
mod dice;
mod mutate;
mod scenarios;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Far above what any of these small scenarios takes, unoptimised and on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn number(variable: &str, usual: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(usual, |text| text.parse().unwrap())
}

/// How a run ended.
struct Ended {
    code: Option<i32>,
    stderr: String,
}

fn run(folder: &Path, out: &str, more: &[&str]) -> Ended {
    let stderr = folder.join(format!("{out}.stderr"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_kneeboard"))
        .args(["simulate", "case.yaml", "-o", out])
        .args(more)
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&stderr).unwrap())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Ended {
        code,
        stderr: std::fs::read_to_string(stderr).unwrap(),
    }
}

/// What came of a case.
enum Case {
    Ran,
    Refused(String),
    Wrong(String),
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let found = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| (path.file_name().unwrap().into(), std::fs::read(&path).unwrap());
    found.filter(|path| path.is_file()).map(read).collect()
}

/// Whether what an error blames is in the file, or would have to be: a key that is missing has a parent that is there.
fn names_a_key(error: &str, scenario: &Value) -> bool {
    // kneeboard: FILE, [line L, column C, ]PLACE: what is wrong
    let Some((place, _)) = error.trim_start_matches("kneeboard: ").split_once(": ") else {
        return false;
    };
    // A place may go on within what it names: PATH, request 7.
    let parts = place.split(", ").filter(|part| !part.starts_with("request "));
    let Some(place) = parts.last() else {
        return false;
    };
    let place = place.split(" (as it holds").next().unwrap();
    let keys: Vec<&str> = place
        .split(['.', '[', ']', '/'])
        .filter(|k| !k.is_empty())
        .collect();
    let Some(first) = keys.first() else {
        return false;
    };
    // Of the file as a whole, by the place in its text, or of the trace beside it.
    let known = [
        "kneeboard",
        "system",
        "cluster",
        "workload",
        "load",
        "slo",
        "faults",
        "fault_rates",
        "cost",
        "measure",
    ];
    let of_text =
        first.starts_with("line ") || first.starts_with("column ") || *first == "case" || *first == "trace";
    // A trace that is named, and is no file.
    let of_file = scenario["workload"]["trace"].as_str() == Some(place);
    let parent = keys[..keys.len() - 1].join("/");
    let is_there = scenario.pointer(&format!("/{parent}")).is_some() || parent.is_empty();
    of_text || of_file || scenario.get(*first).is_some() && is_there || known.contains(first)
}

fn case(folder: &Path, scenario: &Value, trace: Option<&str>) -> Case {
    std::fs::write(
        folder.join("case.yaml"),
        serde_json::to_string_pretty(scenario).unwrap(),
    )
    .unwrap();
    std::fs::write(
        folder.join("trace.csv"),
        trace.unwrap_or("input_tokens,output_tokens\n5,5\n"),
    )
    .unwrap();
    let leapt = run(folder, "leapt", &[]);
    match leapt.code {
        None => return Case::Wrong("it did not end".into()),
        Some(2) => {
            let error = leapt.stderr;
            let fine = error.lines().count() == 1 && names_a_key(&error, scenario);
            return if fine {
                Case::Refused(error)
            } else {
                Case::Wrong(format!("an error that blames nothing: {error}"))
            };
        }
        Some(0 | 1) if folder.join("leapt/run-0").is_dir() => {}
        code => return Case::Wrong(format!("exit code {code:?}: {}", leapt.stderr)),
    }
    let stepped = run(folder, "stepped", &["--step-by-step"]);
    if stepped.code != leapt.code {
        return Case::Wrong(format!(
            "single steps end with {:?} in place of {:?}",
            stepped.code, leapt.code
        ));
    }
    let (a, b) = (
        files(&folder.join("leapt/run-0")),
        files(&folder.join("stepped/run-0")),
    );
    if let Err(what) = again(folder, scenario, &a) {
        return Case::Wrong(what);
    }
    let other: Vec<_> = a
        .keys()
        .chain(b.keys())
        .filter(|name| a.get(*name) != b.get(*name))
        .collect();
    if !other.is_empty() {
        return Case::Wrong(format!("single steps give other {other:?}"));
    }
    if !a.contains_key(Path::new("cluster.json")) {
        // Equal replicas run apart.
        return Case::Ran;
    }
    match books::check(
        &folder.join("leapt/run-0"),
        !scenario["measure"]["deadline"].is_null(),
    ) {
        Ok(()) => Case::Ran,
        Err(wrong) => Case::Wrong(wrong),
    }
}

/// What was resolved is a scenario again, of the same run; and what is told without a record is the same.
fn again(folder: &Path, scenario: &Value, whole: &BTreeMap<PathBuf, Vec<u8>>) -> Result<(), String> {
    std::fs::copy(folder.join("leapt/resolved.yaml"), folder.join("case.yaml")).unwrap();
    let resolved = run(folder, "resolved", &[]);
    if !matches!(resolved.code, Some(0 | 1)) || !folder.join("resolved/run-0").is_dir() {
        return Err(format!("what was resolved is refused: {}", resolved.stderr));
    }
    if files(&folder.join("resolved/run-0")) != *whole {
        return Err("what was resolved gives another run".into());
    }
    if !scenario["measure"]["scrape_interval"].is_null() {
        return Ok(());
    }
    run(folder, "summary", &["--summary-only"]);
    let parts = |text: &[u8]| {
        let summary: Value = serde_json::from_slice(text).unwrap();
        ["funnel", "tokens", "duration_s"].map(|part| summary[part].clone())
    };
    let streamed =
        std::fs::read(folder.join("summary/run-0/summary.json")).map_err(|e| format!("no summary: {e}"))?;
    let (a, b) = (parts(&whole[Path::new("summary.json")]), parts(&streamed));
    if a == b {
        Ok(())
    } else {
        Err(format!("--summary-only tells {b:?} in place of {a:?}"))
    }
}

/// Runs cases from the seed on; how many ran, how many were refused with which words.
fn all(usual: u64, draw: impl Fn(u64) -> scenarios::Drawn) -> (u64, Vec<String>) {
    let (from, cases) = (
        number("KNEEBOARD_FUZZ_FROM", 0),
        number("KNEEBOARD_FUZZ_CASES", usual),
    );
    let (mut ran, mut refused, mut wrong) = (0, Vec::new(), Vec::new());
    for seed in from..from + cases {
        let drawn = draw(seed);
        let folder = tempfile::tempdir().unwrap();
        match case(folder.path(), &drawn.scenario, drawn.trace.as_deref()) {
            Case::Ran => ran += 1,
            Case::Refused(error) => refused.push(error),
            Case::Wrong(what) => {
                wrong.push(format!("seed {seed}: {what}"));
                if let Some(keep) = std::env::var_os("KNEEBOARD_FUZZ_KEEP") {
                    let kept = Path::new(&keep).join(seed.to_string());
                    std::fs::create_dir_all(&kept).unwrap();
                    for name in ["case.yaml", "trace.csv"] {
                        std::fs::copy(folder.path().join(name), kept.join(name)).unwrap();
                    }
                }
            }
        }
    }
    if std::env::var_os("KNEEBOARD_FUZZ_CASES").is_some() {
        println!("{ran} ran\n{}", refused.concat());
    }
    assert!(
        wrong.is_empty(),
        "{} of {cases} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    (ran, refused)
}

#[test]
fn random_clusters_agree_with_themselves() {
    let (ran, refused) = all(100, scenarios::draw);
    let share = ran as f64 / (ran as f64 + refused.len() as f64);
    assert!(share > 0.8, "only {ran} ran:\n{}", refused.concat());
}

#[test]
fn spoilt_clusters_are_refused_by_name_or_run() {
    let (ran, refused) = all(200, |seed| {
        let mut drawn = scenarios::draw(seed);
        mutate::spoil(&mut drawn.scenario, &scenarios::draw(seed + 1).scenario, seed);
        drawn
    });
    // Neither must be all.
    assert!(ran > 0 && !refused.is_empty() || ran + (refused.len() as u64) < 20);
}
