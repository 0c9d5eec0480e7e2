//! The engine does, step for step, what vLLM did.

use std::path::Path;

use kneeboard::verify::conform::{find_cases, replay};

use crate::shared::{data_set, own_data};

fn assert_all_identical(path: &Path, at_least: usize) {
    let cases = find_cases(path).unwrap();
    assert!(
        cases.len() >= at_least,
        "{} cases under {}",
        cases.len(),
        path.display()
    );
    for case in &cases {
        let report = replay(case).unwrap();
        assert!(report.is_identical(), "{}: {:?}", report.name, report.divergence);
        assert!(report.steps > 0, "{} holds no step", report.name);
    }
}

#[test]
fn shipped_logs_are_identical() {
    assert_all_identical(&own_data("scheduler-golden"), 15);
    assert_all_identical(&own_data("scheduler-versions"), 52);
    // AWS Neuron plugin 0.2.0, livelocks among them, and vLLM 0.11.0 below it.
    assert_all_identical(&own_data("scheduler-neuron"), 19);
    // Random knobs of five releases: speculation with prefix caching, tight memory, both policies.
    assert_all_identical(&own_data("scheduler-random"), 80);
}

#[test]
fn every_golden_case_is_identical() {
    if let Some(folder) = data_set("every_golden_case_is_identical", "scheduler-golden") {
        assert_all_identical(&folder, 37);
    }
}

#[test]
fn every_call_log_is_identical() {
    if let Some(folder) = data_set("every_call_log_is_identical", "scheduler-versions") {
        assert_all_identical(&folder, 52);
    }
}

#[test]
fn every_neuron_log_is_identical() {
    if let Some(folder) = data_set("every_neuron_log_is_identical", "scheduler-neuron") {
        assert_all_identical(&folder, 19);
    }
}

#[test]
fn every_capture_is_identical() {
    if let Some(folder) = data_set("every_capture_is_identical", "vllm-cpu") {
        assert_all_identical(&folder, 37);
    }
}

/// A comparison that cannot fail proves nothing: each altered figure must be found where it was altered.
#[test]
fn an_altered_log_is_found_at_the_altered_step() {
    let source = own_data("scheduler-golden/t06-preempt-fcfs");
    let text = std::fs::read_to_string(source.join("steps.jsonl")).unwrap();
    for (field, from, to) in [
        ("free", "\"free\":", "\"free\":1"),
        ("run", "\"run\":", "\"run\":1"),
        ("wait", "\"wait\":", "\"wait\":7"),
        ("sched", "\"sched\":[[", "\"sched\":[[9"),
        ("tok", "\"tok\":[", "\"tok\":[77,"),
        ("free_end", "\"free_end\":", "\"free_end\":3"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for file in ["trace.csv", "config.json"] {
            std::fs::copy(source.join(file), folder.path().join(file)).unwrap();
        }
        let altered: Vec<String> = text
            .lines()
            .enumerate()
            .map(|(i, line)| {
                if i == 2 {
                    line.replacen(from, to, 1)
                } else {
                    line.to_owned()
                }
            })
            .collect();
        std::fs::write(folder.path().join("steps.jsonl"), altered.join("\n")).unwrap();
        let report = replay(&find_cases(folder.path()).unwrap()[0]).unwrap();
        let divergence = report.divergence.expect("the altered figure was not noticed");
        assert_eq!((divergence.step, divergence.field.as_str()), (2, field));
        assert_eq!(report.identical, 2);
    }
}

#[test]
fn a_log_that_ends_early_or_late_is_not_identical() {
    let source = own_data("scheduler-golden/t01-one-request");
    let text = std::fs::read_to_string(source.join("steps.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let folder = tempfile::tempdir().unwrap();
    for file in ["trace.csv", "config.json"] {
        std::fs::copy(source.join(file), folder.path().join(file)).unwrap();
    }
    let shorter = lines[..lines.len() - 1].join("\n");
    let (last, next) = (lines.len() - 1, lines.len());
    let further = lines[last].replacen(&format!("\"step\":{last}"), &format!("\"step\":{next}"), 1);
    let longer = format!("{text}\n{further}");
    for steps in [shorter, longer] {
        std::fs::write(folder.path().join("steps.jsonl"), steps).unwrap();
        let report = replay(&find_cases(folder.path()).unwrap()[0]).unwrap();
        assert!(!report.is_identical());
        assert_eq!(report.divergence.unwrap().field, "steps");
    }
}
