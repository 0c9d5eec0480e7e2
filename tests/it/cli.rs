//! The command line itself.

use std::process::{Command, Stdio};

fn kneeboard() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kneeboard"))
}

/// `kneeboard … | head` must not fail because `head` has seen enough.
#[test]
fn a_reader_that_has_gone_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = kneeboard()
        .args(["schema", "scenario"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn help_and_version_go_to_stdout_and_bad_usage_to_stderr() {
    for flag in ["--help", "--version"] {
        let out = kneeboard().arg(flag).output().unwrap();
        assert_eq!(out.status.code(), Some(0));
        assert!(!out.stdout.is_empty() && out.stderr.is_empty());
    }
    let out = kneeboard().arg("shwo").output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(out.stdout.is_empty() && String::from_utf8_lossy(&out.stderr).contains("show"));
}

#[test]
fn completions_exist_for_every_shell_and_name_the_subcommands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let out = kneeboard().args(["completions", shell]).output().unwrap();
        assert!(out.status.success());
        assert!(
            String::from_utf8_lossy(&out.stdout).contains("profile"),
            "{shell}"
        );
    }
}

#[test]
fn a_synthesised_trace_reads_back_as_the_scenario_draws_it() {
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/priority.yaml");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.csv");
    let out = kneeboard()
        .args(["trace", "synth", scenario, "--replication", "2", "-o"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(out.status.success() && out.stdout.is_empty());
    let plan = kneeboard::scenario::Plan::load(scenario.as_ref(), &[]).unwrap();
    assert_eq!(
        kneeboard::workload::formats::csv::read_trace(&path).unwrap(),
        plan.trace(2).unwrap()
    );
    let out = kneeboard()
        .args(["trace", "inspect", "--json"])
        .arg(&path)
        .output()
        .unwrap();
    let facts: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(facts["requests"], 600);
    assert_eq!(facts["priorities"], serde_json::json!([0, 5]));
}
