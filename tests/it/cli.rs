//! The command line, through the binary; one module a subcommand, and here what they have in common.

mod bad_input;
mod calibrate;
mod calibrate_kernels;
mod cluster;
mod cluster_refusals;
mod cluster_trust;
mod compare;
mod conform;
mod explain;
mod import;
mod neuron;
mod preflight;
mod profile;
mod simulate;
mod support;
mod sweep;

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
        *plan.trace(2).unwrap()
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

/// The subcommands in the order of the help.
const SUBCOMMANDS: [&str; 12] = [
    "preflight",
    "simulate",
    "sweep",
    "capacity",
    "conform",
    "calibrate",
    "compare",
    "show",
    "schema",
    "profile",
    "trace",
    "completions",
];

#[test]
fn every_subcommand_has_help_and_refuses_bad_usage() {
    let help = support::run(["--help"]).with_code(0).stdout;
    for name in SUBCOMMANDS {
        assert!(
            help.contains(&format!("\n  {name} ")),
            "{name} is not in the help"
        );
        let own = support::run([name, "--help"]).with_code(0);
        assert!(own.stdout.contains("Usage: kneeboard ") && own.stderr.is_empty());
        let bad = support::run([name, "--no-such-option"]).with_code(2);
        assert!(
            bad.stdout.is_empty() && bad.stderr.contains("--no-such-option"),
            "{bad:?}"
        );
    }
    for nested in [["calibrate", "steps"], ["trace", "synth"], ["profile", "show"]] {
        support::run([nested[0], nested[1], "--help"]).with_code(0);
        let bare = support::run(nested).with_code(2);
        assert!(
            bare.stdout.is_empty() && bare.stderr.contains("required"),
            "{bare:?}"
        );
    }
    let conflict = support::run(["show", "-q", "-v", "s.yaml"]).with_code(2);
    assert!(conflict.stderr.contains("cannot be used with"));
}

#[test]
fn what_is_shown_is_a_scenario_that_resolves_to_itself() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = support::repository("scenarios/priority.yaml");
    let shown = support::run_line("show {} --set measure.seed=9", &[&scenario])
        .with_code(0)
        .stdout;
    let seed = shown.lines().find(|l| l.contains("seed: 9")).unwrap();
    assert!(seed.ends_with("# --set"), "the source of a value is told: {seed}");
    let path = dir.path().join("shown.yaml");
    std::fs::write(&path, &shown).unwrap();
    let resolved = |line: &str, path: &std::path::Path| {
        support::run_line(line, &[path]).with_code(0).json()["scenario"].clone()
    };
    assert_eq!(
        resolved("show {} --json", &path),
        resolved("show {} --json --set measure.seed=9", &scenario)
    );
}

#[test]
fn schemas_are_listed_printed_and_shipped() {
    let list = support::run(["schema"]).with_code(0).stdout;
    assert!(list.lines().count() >= 8, "{list}");
    for line in list.lines() {
        let name = line.split_whitespace().next().unwrap();
        let printed = support::run(["schema", name]).with_code(0).stdout;
        let shipped = std::fs::read_to_string(support::repository("schema").join(format!("{name}.json")));
        assert_eq!(printed, shipped.unwrap(), "{name}");
    }
    support::run(["schema", "scenari"]).refused(&["did you mean 'scenario'"]);
}

#[test]
fn profiles_are_listed_and_shown_with_their_sources() {
    let list = support::run(["profile", "list"]).with_code(0).stdout;
    for name in ["h100-sxm", "cpu-1core", "llama-3.1-8b", "kneeboard-small"] {
        assert!(list.contains(name), "{list}");
        let shown = support::run(["profile", "show", name]).with_code(0).stdout;
        assert!(
            shown.starts_with(name) && shown.contains("\nSources\n"),
            "{shown}"
        );
    }
    let yaml = support::run(["profile", "show", "h100-sxm", "--yaml"])
        .with_code(0)
        .stdout;
    assert!(yaml.contains("sources:"), "{yaml}");
    support::run(["profile", "show", "h100"]).refused(&["h100", "known"]);
}

#[test]
fn a_trace_that_cannot_be_written_is_an_error_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let scenario = support::repository("scenarios/priority.yaml");
    let ended = support::run_line("trace synth {} -o {}", &[&scenario, &file.join("t.csv")]).with_code(1);
    assert!(
        ended.stderr.contains("file/t.csv: cannot be written"),
        "{}",
        ended.stderr
    );
}

/// The commands that print much, through a pipe that closes after one line.
#[test]
fn a_pipe_that_closes_early_is_no_error() {
    use std::io::{BufRead, BufReader};
    let scenario = support::repository("scenarios/priority.yaml");
    let scenario = scenario.to_str().unwrap();
    let log = support::repository("tests/data/scheduler-versions");
    for args in [
        &["show", scenario][..],
        &["show", scenario, "--json"],
        &["trace", "synth", scenario],
        &["conform", log.to_str().unwrap(), "--json"],
    ] {
        let mut child = kneeboard()
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(!line.is_empty());
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{args:?}");
        assert!(
            out.stderr.is_empty(),
            "{args:?}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}

#[test]
fn the_ledger_is_shown_line_by_line() {
    let shown = support::run_line(
        "show {} --set system.parallel.tp=2",
        &[&support::repository("scenarios/closed-loop.yaml")],
    )
    .with_code(0)
    .stdout;
    for line in [
        "memory of one device",
        "embeddings and LM head",
        "activations",
        "at once",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
}
