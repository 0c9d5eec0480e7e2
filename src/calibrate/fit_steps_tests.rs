use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::*;
use crate::calibrate::observe::hex;
use crate::calibrate::robust::median;
use crate::calibrate::{check_run, find_captures, test_data};

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("calibration")
}

fn captures(role: &str) -> Vec<Capture> {
    let folders = find_captures(&shipped().join("datasets/vllm-cpu").join(role)).unwrap();
    folders.iter().map(|f| Capture::read(f).unwrap()).collect()
}

fn shipped_fit() -> (Fit, FittedStepTime) {
    let path = shipped().join("fits/vllm-cpu.yaml");
    let fit = Fit::read(&path).unwrap();
    let model = fit.model(&path).unwrap();
    (fit, model)
}

#[derive(Deserialize)]
struct Listing {
    files: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    file: String,
    sha256: String,
    role: String,
}

#[test]
fn the_data_set_is_what_its_manifest_lists() {
    let root = shipped().join("datasets/vllm-cpu");
    let listing: Listing =
        serde_saphyr::from_str(&std::fs::read_to_string(root.join("manifest.yaml")).unwrap()).unwrap();
    for listed in &listing.files {
        let bytes = std::fs::read(root.join(&listed.file)).unwrap();
        assert_eq!(hex(&Sha256::digest(&bytes)), listed.sha256, "{}", listed.file);
        assert!(
            listed.file.starts_with(&format!("{}/", listed.role)),
            "{}",
            listed.file
        );
    }
    let listed: BTreeSet<PathBuf> = listing.files.iter().map(|l| root.join(&l.file)).collect();
    for role in ["fit", "holdout"] {
        for folder in find_captures(&root.join(role)).unwrap() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                assert!(listed.contains(&path), "{} is not listed", path.display());
            }
        }
    }
}

#[test]
fn no_trace_is_both_fitted_and_held_out() {
    let key = |c: &Capture| -> String {
        c.requests
            .iter()
            .map(|r| {
                format!(
                    "{},{},{};",
                    r.arrival_s, r.input_tokens, r.requested_output_tokens
                )
            })
            .collect()
    };
    let fitted: BTreeMap<String, String> = captures("fit").iter().map(|c| (key(c), c.name.clone())).collect();
    let held = captures("holdout");
    assert!(held.len() >= 10);
    for capture in held {
        assert_eq!(
            fitted.get(&key(&capture)),
            None,
            "{} repeats a fitted trace",
            capture.name
        );
    }
}

#[test]
fn the_shipped_fit_is_what_the_fit_runs_give() {
    let (shipped, _) = shipped_fit();
    let fresh = fit_steps(&captures("fit"), &FitOptions { hold_out: false }, &mut |_, _| {}).unwrap();
    for (a, b) in shipped.parameters.iter().zip(&fresh.parameters) {
        assert_eq!(a.name, b.name);
        approx::assert_relative_eq!(a.value, b.value, max_relative = 1e-5, epsilon = 1e-12);
    }
    assert_eq!((&shipped.hull, &shipped.host), (&fresh.hull, &fresh.host));
    let sums = |fit: &Fit| -> Vec<_> {
        fit.data
            .iter()
            .map(|d| (d.steps_sha256.clone(), d.steps, d.stalled))
            .collect()
    };
    assert_eq!(sums(&shipped), sums(&fresh));
    let limit = shipped
        .stalls
        .iter()
        .find(|s| s.scheduler_class == "RR")
        .and_then(|s| s.limit)
        .unwrap();
    approx::assert_relative_eq!(limit.period_s, 1.0);
    approx::assert_relative_eq!(limit.busy_s, 0.95);
    assert!(shipped.limit("OTHER").is_none(), "irregular stalls have no rule");
}

/// What docs/CALIBRATION.md claims of the runs that were not fitted.
#[test]
fn held_out_runs_take_as_long_as_predicted() {
    let (fit, model) = shipped_fit();
    let checks: Vec<_> = captures("holdout")
        .iter()
        .map(|c| check_run(&fit, &model, c))
        .collect();
    let best = |c: &super::super::RunCheck| c.sum_with_probe.unwrap_or(c.error.sum).abs();
    let sums: Vec<f64> = checks.iter().map(best).collect();
    assert!(
        median(&sums).unwrap() < 0.03,
        "median error of summed step time {:?}",
        median(&sums)
    );
    for check in &checks {
        assert_eq!(check.outside_hull, 0, "{}", check.run);
        // Runs at saturation on a machine as fast as the fit's: their length is their step time.
        let saturated = [
            "serve-s16-b2048/r12",
            "serve-s16-b2048/r20",
            "serve-s64-b256/r12",
            "prefix-off/r12",
        ];
        if saturated.contains(&check.run.as_str()) {
            assert!(
                check.error.sum.abs() < 0.02,
                "{} is off by {}",
                check.run,
                check.error.sum
            );
        }
        if let Some(predicted) = check.predicted_stall_s {
            let share = (predicted - check.stalled_s) / check.duration_s;
            assert!(
                share.abs() < 0.006,
                "{}: stalls off by {share} of the run",
                check.run
            );
        }
    }
}

#[test]
fn stalled_steps_are_set_aside_and_reported() {
    let dir = test_data::capture();
    let capture = Capture::read(&dir.path().join("set/run")).unwrap();
    // Step 0 executes for 99 ms of which 48 ms on the core.
    let run = usable_steps(&capture);
    assert_eq!(run.seconds.len(), 2);
    let classes = stalls::describe(&[capture]);
    assert_eq!((classes[0].scheduler_class.as_str(), classes[0].count), ("RR", 1));
    approx::assert_relative_eq!(classes[0].total_s, 0.051, max_relative = 1e-9);
    assert_eq!(classes[0].limit, None, "one stall is no rule");
}

#[test]
fn too_little_and_the_same_twice_are_refused() {
    let dir = test_data::capture();
    let capture = Capture::read(&dir.path().join("set/run")).unwrap();
    let fit = |c: &[Capture]| fit_steps(c, &FitOptions::default(), &mut |_, _| {}).unwrap_err();
    assert_eq!(
        fit(std::slice::from_ref(&capture)),
        FitError::TooFewSteps {
            steps: 2,
            captures: 1
        }
    );
    assert!(matches!(
        fit(&[capture.clone(), capture]),
        FitError::Duplicate { .. }
    ));
}
