//! `kneeboard preflight`.

use std::path::Path;

use super::support::*;

/// A checkout as far as the command needs it.
fn checkout(root: &Path) {
    for folder in ["scenarios", "calibration"] {
        copy_tree(&repository(folder), &root.join(folder));
    }
}

fn preflight(root: &Path, args: &[&str]) -> Ended {
    ended(kneeboard().current_dir(root).arg("preflight").args(args))
}

/// One short repeat of a small part of the default sweep, so that the test is quick.
const SMALL: [&str; 6] = [
    "--set",
    "sweep.axes={system.engine.max_num_seqs: [4, 16]}",
    "--set",
    "measure.repeats=1",
    "--set",
    "measure.window=30s",
];

#[test]
fn the_default_calibrates_compares_sweeps_and_reports() {
    let dir = tempfile::tempdir().unwrap();
    checkout(dir.path());
    let first = preflight(dir.path(), &SMALL).with_code(0);
    for part in [
        "carries the most",
        "Verify live",
        "report: preflight-out/report.html",
    ] {
        assert!(first.stdout.contains(part), "no '{part}' in {}", first.stdout);
    }
    let out = dir.path().join("preflight-out");
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(!page.contains("<script"));
    for attribute in [
        "src=\"http",
        "href=\"http",
        "src='http",
        "href='http",
        "url(http",
        "@import",
        "<link",
    ] {
        assert!(
            !page.contains(attribute),
            "the page refers to something outside: {attribute}"
        );
    }
    for part in ["max_num_seqs=16", "serve-s4-b256/r8", "<svg"] {
        assert!(page.contains(part), "no '{part}' on the page");
    }

    // The split is that of the data set, and the fit is one that other commands read.
    let compared = json_file(&out.join("compare.json"));
    let names: Vec<_> = compared["captures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(names.len() >= 10, "{names:?}");
    let again = run_line(
        "compare {} --fit {} --json",
        &[&capture("holdout"), &out.join("fit.yaml")],
    )
    .with_code(0)
    .json();
    assert_eq!(again, compared);
    let fit = std::fs::read_to_string(out.join("fit.yaml")).unwrap();
    for name in &names {
        assert!(
            !fit.contains(&format!("run: {name}")),
            "{name} is held out, but fitted"
        );
    }

    // What is told to reproduce it does.
    let reproduce = std::fs::read_to_string(out.join("reproduce.md")).unwrap();
    assert!(reproduce.contains("--set measure.repeats=1"), "{reproduce}");
    let before = files(&out);
    preflight(dir.path(), &SMALL).with_code(0);
    assert_eq!(files(&out), before, "a second run gives the same bytes");
}

#[test]
fn a_corrupted_data_set_is_refused_by_the_files_name() {
    let dir = tempfile::tempdir().unwrap();
    checkout(dir.path());
    let set = dir.path().join("calibration/datasets/vllm-cpu");
    let steps = set.join("holdout/serve-s4-b256/r8/steps.csv.gz");
    let whole = std::fs::read(&steps).unwrap();
    let mut bytes = whole.clone();
    bytes[whole.len() / 2] ^= 1;
    std::fs::write(&steps, bytes).unwrap();
    let ended = preflight(dir.path(), &["-q"]);
    ended.refused(&["holdout/serve-s4-b256/r8/steps.csv.gz", "SHA-256"]);
    std::fs::remove_file(&steps).unwrap();
    preflight(dir.path(), &["-q"]).refused(&["serve-s4-b256/r8/steps.csv.gz"]);
    std::fs::write(&steps, whole).unwrap();
    std::fs::write(set.join("manifest.yaml"), "name: [").unwrap();
    preflight(dir.path(), &["-q"]).refused(&["manifest.yaml", "line 1"]);
}

#[test]
fn without_a_data_set_the_scenario_is_swept_as_it_stands() {
    let dir = tempfile::tempdir().unwrap();
    let (scenario, out) = (
        repository("scenarios/prefix-caching.yaml"),
        dir.path().join("out"),
    );
    let ended = run_line("preflight {} -o {}", &[&scenario, &out]).with_code(0);
    assert!(
        ended.stderr.contains("names no calibration.dataset"),
        "{}",
        ended.stderr
    );
    assert!(out.join("report.html").is_file() && !out.join("fit.yaml").exists());
    run_line("preflight {} -o {}", &[&scenario, &out]).refused(&["not empty", "--overwrite"]);
}

#[test]
fn outside_of_a_checkout_the_default_is_missed_with_a_word() {
    let dir = tempfile::tempdir().unwrap();
    preflight(dir.path(), &[]).refused(&["scenarios/preflight-cpu.yaml", "name a scenario"]);
    assert!(files(dir.path()).is_empty());
}
