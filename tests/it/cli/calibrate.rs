//! `kneeboard calibrate`.

use super::support::*;

#[test]
fn steps_are_fitted_checked_and_never_overwritten_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let fit = dir.path().join("fit.yaml");
    let (a, b) = (capture("fit/prefix-on"), capture("fit/serve-s4-b256"));
    let text = run_line("calibrate steps {} {} -o {}", &[&a, &b, &fit])
        .with_code(0)
        .stdout;
    for part in [
        "Parameters",
        "Residuals",
        "left out of the fit",
        "serve-s4-b256/r6",
    ] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    let first = std::fs::read(&fit).unwrap();

    run_line("calibrate steps {} -o {}", &[&a, &fit]).refused(&["fit.yaml", "exists", "--overwrite"]);
    assert_eq!(
        std::fs::read(&fit).unwrap(),
        first,
        "a refused command changed the file"
    );

    let again = run_line("calibrate steps {} {} -o {} --overwrite --json", &[&a, &b, &fit]).with_code(0);
    assert_eq!(
        std::fs::read(&fit).unwrap(),
        first,
        "the same captures give the same bytes"
    );
    let json = again.json();
    let runs: Vec<_> = json["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["run"].as_str().unwrap())
        .collect();
    assert_eq!(runs, ["prefix-on/r6", "serve-s4-b256/r2", "serve-s4-b256/r6"]);
    for parameter in json["parameters"].as_array().unwrap() {
        assert!(parameter["value"].as_f64().unwrap() >= 0.0, "{parameter}");
    }
    assert_eq!(json["held_out"]["runs"].as_array().unwrap().len(), 3);

    // What was written is what other commands read.
    let held_out = capture("holdout/serve-s4-b256/r4");
    let check = run_line("calibrate check {} --fit {} --json", &[&held_out, &fit])
        .with_code(0)
        .json();
    assert_eq!(check[0]["run"], "serve-s4-b256/r4");
    assert!(check[0]["median_abs"].as_f64().unwrap() < 0.3);
}

#[test]
fn captures_that_cannot_be_fitted_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fit = dir.path().join("fit.yaml");
    let (set, run_) = (capture("fit/prefix-on"), capture("fit/prefix-on/r6"));
    run_line("calibrate steps {} {} -o {}", &[&set, &run_, &fit])
        .refused(&["prefix-on/r6", "give each run once"]);
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    run_line("calibrate steps {} -o {}", &[&empty, &fit]).refused(&["empty", "holds no capture"]);
    let gone = dir.path().join("gone");
    run_line("calibrate steps {} -o {}", &[&gone, &fit]).refused(&["gone", "No such file"]);
    run_line("calibrate steps {} -o {}", &[&run_, dir.path()]).refused(&["is a folder"]);
    assert!(!fit.exists());
}

#[test]
fn a_fit_that_cannot_be_written_is_an_error_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("fit.yaml");
    let ended = run_line(
        "calibrate steps {} -o {}",
        &[&capture("fit/prefix-on/r6"), &below],
    )
    .with_code(1);
    assert!(ended.stdout.is_empty());
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("file/fit.yaml: cannot be written"),
        "{}",
        ended.stderr
    );
}
