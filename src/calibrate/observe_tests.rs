use std::io::Write as _;

use proptest::prelude::*;

use super::*;
use crate::calibrate::test_data::{
    self, MANIFEST as MANIFEST_TEXT, REQUESTS as REQUESTS_TEXT, STEPS as STEPS_TEXT, TOKENS as TOKENS_TEXT,
};

/// The text of `file` with `from` replaced by `to` where it first occurs; the error of reading that.
fn error_with(file: &str, from: &str, to: &str) -> String {
    let dir = test_data::capture();
    let path = dir.path().join("set/run").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from} is not in {file}");
    std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
    Capture::read(&dir.path().join("set/run"))
        .unwrap_err()
        .to_string()
}

fn assert_says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "'{part}' is not in: {error}");
    }
}

#[test]
fn a_capture_is_read_whole() {
    let dir = test_data::capture();
    let capture = Capture::read(&dir.path().join("set/run")).unwrap();
    assert_eq!(capture.name, "set/run");
    assert_eq!(capture.steps.len(), 3);
    assert_eq!(
        capture.steps[1].work[1],
        crate::calibrate::WorkRow {
            id: 1,
            tokens: 2,
            computed: 0
        }
    );
    assert_eq!(capture.steps[1].batch.decode_context_tokens, 4);
    assert_eq!(capture.requests[1].prefix_group, Some(7));
    assert_eq!(capture.manifest.machine.scheduler_class.as_deref(), Some("RR"));
    assert_eq!(capture.token_times().unwrap()[0], [0.11, 0.16, 0.2]);
    let config = capture.engine_config().unwrap();
    assert_eq!(
        (
            config.behaviour.version,
            config.max_num_seqs,
            config.usable_blocks()
        ),
        ("0.32.0", 16, 63)
    );
    // SHA-256 of the plain text, as `sha256sum` prints it.
    assert_eq!(capture.steps_sha256, hex(&Sha256::digest(STEPS_TEXT.as_bytes())));
}

#[test]
fn the_trace_shares_what_the_prompts_share() {
    let dir = test_data::capture();
    let mut capture = Capture::read(&dir.path().join("set/run")).unwrap();
    let trace = capture.trace().unwrap();
    assert_eq!(trace.requests[0].prefix, None);
    // A prefix of 9 tokens on a prompt of 2: only the prompt is shared, outputs never are.
    assert_eq!(
        trace.requests[1].prefix,
        Some(Prefix {
            group: 7,
            shared_tokens: 2,
            greedy_outputs: false,
        })
    );
    assert_eq!(trace.requests[1].arrival, SimTime(50_000_000));
    assert_eq!(trace.requests[1].priority, -3);
    capture.manifest.mode = CaptureMode::Batch;
    assert_eq!(capture.trace().unwrap().requests[1].arrival, SimTime(110_100_000));
}

#[test]
fn gzipped_files_and_trees_are_found() {
    let dir = test_data::capture();
    let run = dir.path().join("set/run");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(STEPS_TEXT.as_bytes()).unwrap();
    std::fs::write(run.join("steps.csv.gz"), encoder.finish().unwrap()).unwrap();
    std::fs::remove_file(run.join("steps.csv")).unwrap();
    assert_eq!(find_captures(dir.path()).unwrap(), std::slice::from_ref(&run));
    assert_eq!(Capture::read(&run).unwrap().steps.len(), 3);
    let bytes = std::fs::read(run.join("steps.csv.gz")).unwrap();
    std::fs::write(run.join("steps.csv.gz"), &bytes[..bytes.len() - 9]).unwrap();
    assert_says(
        &Capture::read(&run).unwrap_err().to_string(),
        &["steps.csv.gz", "not a whole gzip file"],
    );
    std::fs::remove_file(run.join("manifest.json")).unwrap();
    assert!(!is_capture(&run));
    assert_says(
        &find_captures(dir.path()).unwrap_err().to_string(),
        &["holds no capture"],
    );
    assert_says(
        &Capture::read(&run).unwrap_err().to_string(),
        &["has no manifest.json"],
    );
}

#[test]
fn wrong_columns_name_the_nearest() {
    let e = error_with("steps.csv", "t_start_s", "t_strat_s");
    assert_says(
        &e,
        &[
            "steps.csv",
            "line 1",
            "no column 't_start_s'",
            "did you mean 't_strat_s'",
        ],
    );
    let e = error_with("requests.csv", "arrival_s", "id");
    assert_says(&e, &["requests.csv", "the column 'id' twice"]);
}

#[test]
fn wrong_cells_are_told_with_line_and_column() {
    for (file, from, to, parts) in [
        (
            "steps.csv",
            "0.010000",
            "NaN",
            ["line 2", "t_start_s", "not a time"],
        ),
        (
            "steps.csv",
            "0.010000",
            "-1",
            ["line 2", "t_start_s", "not a time"],
        ),
        (
            "steps.csv",
            "1,0.110500",
            "1,0.050000",
            ["line 3", "t_start_s", "before the end of the step above"],
        ),
        (
            "steps.csv",
            "0.160000",
            "0.100000",
            ["line 3", "t_end_s", "is before t_start_s"],
        ),
        ("steps.csv", "\n2,", "\n3,", ["line 4", "step", "out of order"]),
        ("steps.csv", "0:3:0", "0:3", ["line 2", "work", "not a grant"]),
        ("steps.csv", "0:3:0", "9:3:0", ["line 2", "work", "not a grant"]),
        (
            "steps.csv",
            "0:3:0",
            "0:4:0",
            ["line 2", "do not agree with work", "prefill_tokens: 4"],
        ),
        (
            "steps.csv",
            ",0:1:4 1:1:2",
            "",
            ["line 4", "has 23 cells", "header has 24"],
        ),
        (
            "requests.csv",
            "\n1,0.050000",
            "\n1,0.000001",
            ["line 3", "arrival_s", "ascending"],
        ),
        (
            "requests.csv",
            "3,0,3,3,3",
            "3,1,3,3,3",
            ["line 2", "do not add up", "input_tokens 3"],
        ),
        (
            "requests.csv",
            "3,0,3,3,3",
            "0,0,0,3,3",
            ["line 2", "input_tokens", "at least 1"],
        ),
        (
            "requests.csv",
            "3,0,3,3,3",
            "3,0,3,1,3",
            ["line 2", "output_tokens", "at most the 1 requested"],
        ),
        (
            "requests.csv",
            "3,0,3,3,3",
            "3,0,3,3,x",
            ["line 2", "output_tokens", "whole number"],
        ),
    ] {
        assert_says(&error_with(file, from, to), &parts);
    }
}

#[test]
fn totals_and_knobs_must_agree() {
    for (from, to, parts) in [
        (
            "\"steps\": 3",
            "\"steps\": 4",
            ["manifest.json", "steps", "says 4"],
        ),
        (
            "\"tokens_out\": 5",
            "\"tokens_out\": 6",
            ["tokens_out", "says 6", "hold 5"],
        ),
        (
            "\"duration_s\": 0.2",
            "\"duration_s\": 0.3",
            ["duration_s", "0.3", "0.2"],
        ),
        (
            "\"duration_s\": 0.2",
            "\"duration_s\": \"x\"",
            ["duration_s", "cannot be used", "manifest"],
        ),
        (
            "\"block_size\": 32",
            "\"block_size\": 0",
            ["engine_effective.block_size", "0", "at least 1"],
        ),
        ("\"open\"", "\"opened\"", ["mode", "opened", "batch"]),
        (
            "\"max_num_seqs\": 16,",
            "",
            ["engine_effective", "missing field", "max_num_seqs"],
        ),
    ] {
        assert_says(&error_with("manifest.json", from, to), &parts);
    }
    let dir = test_data::capture();
    let run = dir.path().join("set/run");
    std::fs::write(
        run.join("manifest.json"),
        MANIFEST_TEXT.replace("0.32.0", "0.32.1"),
    )
    .unwrap();
    let error = Capture::read(&run)
        .unwrap()
        .engine_config()
        .unwrap_err()
        .to_string();
    assert_says(&error, &["0.32.1", "0.19.1, 0.22.1", "did you mean '0.32.0'"]);
}

#[test]
fn token_times_must_agree_with_the_requests() {
    let dir = test_data::capture();
    let run = dir.path().join("set/run");
    let capture = Capture::read(&run).unwrap();
    for (from, to, part) in [
        ("0.11,0.16,0.2", "0.11", "1 times for 3"),
        ("0.11,0.16", "0.16,0.11", "go back"),
        ("0.11,0.16", "-1,0.16", "negative"),
        ("\"id\":1", "\"id\":2", "out of order"),
        ("}\n{", "}{", "trailing"),
    ] {
        std::fs::write(run.join("tokens.jsonl"), TOKENS_TEXT.replacen(from, to, 1)).unwrap();
        assert_says(
            &capture.token_times().unwrap_err().to_string(),
            &["tokens.jsonl", part],
        );
    }
    std::fs::write(run.join("tokens.jsonl"), TOKENS_TEXT.lines().next().unwrap()).unwrap();
    assert_says(
        &capture.token_times().unwrap_err().to_string(),
        &["1 lines for 2 requests"],
    );
}

proptest! {
    /// Bytes changed, cut off or put in anywhere give a capture or an error, never a panic.
    #[test]
    fn mangled_files_never_panic(
        which in 0usize..4,
        edits in proptest::collection::vec((0usize..4000, any::<u8>(), 0u8..3), 1..8),
    ) {
        let (name, text) = [
            ("steps.csv", STEPS_TEXT),
            ("requests.csv", REQUESTS_TEXT),
            ("manifest.json", MANIFEST_TEXT),
            ("tokens.jsonl", TOKENS_TEXT),
        ][which];
        let mut bytes = text.as_bytes().to_vec();
        for (place, byte, kind) in edits {
            let place = place % bytes.len().max(1);
            match kind {
                0 if place < bytes.len() => bytes[place] = byte,
                // Digits and separators reach further into the parsers than random bytes do.
                1 => bytes.insert(place, b"0123456789,:.-\n\"e "[usize::from(byte) % 18]),
                _ => bytes.truncate(bytes.len().saturating_sub(usize::from(byte) % 40)),
            }
        }
        let dir = test_data::capture();
        let run = dir.path().join("set/run");
        std::fs::write(run.join(name), bytes).unwrap();
        if let Ok(capture) = Capture::read(&run) {
            let _ = capture.token_times();
            let _ = capture.trace();
            let _ = capture.engine_config();
        }
    }
}
