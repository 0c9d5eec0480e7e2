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

/// An accelerator profile with the figures that a roofline needs; what one core does is guessed.
const CORE: &str = "kneeboard_profile: 1\nkind: accelerator\nname: core\ndescription: one core\nplatform: cpu\n\
                    sources: {guess: a guess for a test}\nmemory_bandwidth_gb_s: {value: 20, source: guess}\n\
                    bf16_tflops: {value: 0.4, source: guess}\n";

#[test]
fn steps_fit_the_roofline_too() {
    let dir = tempfile::tempdir().unwrap();
    let (core, fit) = (dir.path().join("core.yaml"), dir.path().join("fit.yaml"));
    std::fs::write(&core, CORE).unwrap();
    let (a, b) = (capture("fit/prefix-on"), capture("fit/serve-s4-b256"));
    let line = "calibrate steps {} {} --form roofline --model kneeboard-small --accelerator {} -o {} --json";
    let json = run_line(line, &[&a, &b, &core, &fit]).with_code(0).json();
    assert_eq!(
        (&json["form"], &json["door"]),
        (&"roofline".into(), &"steps".into())
    );
    assert_eq!(json["speaks_for"]["models"][0], "kneeboard-small");
    assert_eq!(json["data"].as_array().unwrap().len(), 3);
    let of = |what: &str| -> Vec<&serde_json::Value> {
        let rows = json["held_out"].as_array().unwrap().iter();
        rows.filter(|e| e["of"] == what && e["stat"] == "sum").collect()
    };
    let left = of("run serve-s4-b256/r6");
    assert_eq!(left.len(), 1, "{json}");
    assert!(left[0]["rel_error"].as_f64().unwrap().abs() < 0.3, "{}", left[0]);
    let first = std::fs::read(&fit).unwrap();
    run_line(&format!("{line} --overwrite"), &[&a, &b, &core, &fit]).with_code(0);
    assert_eq!(
        std::fs::read(&fit).unwrap(),
        first,
        "the same captures give the same bytes"
    );
    // What was written is what other commands read.
    let held_out = capture("holdout/serve-s4-b256/r4");
    let report = run_line(
        "compare {} --fit {} --model kneeboard-small --accelerator {} --json",
        &[&held_out, &fit, &core],
    )
    .with_code(0)
    .json();
    let figures = report["captures"][0]["metrics"].as_array().unwrap();
    let ttft = figures
        .iter()
        .find(|m| m["metric"] == "ttft_s" && m["stat"] == "p50")
        .unwrap();
    assert!(ttft["lo"].as_f64() < ttft["predicted"].as_f64(), "{ttft}");

    let fresh = dir.path().join("other.yaml");
    let unnamed = run_line("calibrate steps {} --form roofline -o {}", &[&a, &fresh]);
    unnamed.refused(&["manifest.json", "does not name the model", "--model"]);
    run_line("calibrate steps {} --model kneeboard-small -o {}", &[&a, &fresh])
        .refused(&["--model", "--form roofline"]);
    run_line("calibrate steps {} --form rooflin -o {}", &[&a, &fresh]).with_code(2);
    assert!(!fresh.exists());
}

#[test]
fn a_fit_that_was_changed_is_refused_and_one_without_a_checksum_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fit.yaml");
    let text = std::fs::read_to_string(fit_file()).unwrap();
    let held_out = capture("holdout/serve-s4-b256/r4");
    let check = || run_line("calibrate check {} --fit {}", &[&held_out, &path]);
    std::fs::write(&path, text.replace("decode_rows_knee", "decode_rows_knee ")).unwrap();
    check().refused(&["fit.yaml", "checksum", "was changed"]);
    let (body, _) = text.split_once("checksum: ").unwrap();
    std::fs::write(&path, body).unwrap();
    check().with_code(0);
    std::fs::write(&path, body.replace("draws:\n", "draws:\n- [1, 2]\n")).unwrap();
    check().refused(&["fit.yaml", "draws[0]", "2 numbers"]);
}

/// Two tables of one program, and options that say nothing.
#[test]
fn tables_of_programs_that_contradict_each_other_and_idle_options_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let table = |name: &str, seconds: &str| {
        let path = dir.path().join(name);
        let head = "accelerator,model,tp,max_num_seqs,max_model_len,kind,bucket,seconds";
        let row = format!("trn2,qwen3-8b,1,4,1024,token_generation,1024,{seconds}");
        std::fs::write(&path, format!("{head}\n{row}\n")).unwrap();
        path
    };
    let (a, b, out) = (
        table("a.csv", "0.036"),
        table("b.csv", "3.6"),
        dir.path().join("fit.yaml"),
    );
    run_line("calibrate programs {} {} -o {}", &[&a, &b, &out]).refused(&[
        "b.csv, line 2",
        "a.csv, line 2",
        "factor of 1.5",
    ]);
    run_line("calibrate programs {} -o {} --widen 3", &[&a, &out]).refused(&["--widen", "--priors"]);
    let prior = repository("calibration/fits/trn1-neuron.yaml");
    for factor in ["0.5", "wide", "nan", "-1"] {
        let line = format!("calibrate programs {{}} -o {{}} --priors {{}} --widen {factor}");
        run_line(&line, &[&a, &out, &prior]).refused(&["--widen", factor, "a number from 1 to 100"]);
    }
    assert!(!out.exists());
}
