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
            ["line 2", "do not agree with work", "makes (1, 4, 10"],
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
            "\"max_num_seq\": 16,",
            [
                "engine_effective",
                "unknown key 'max_num_seq'",
                "did you mean 'max_num_seqs'",
            ],
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

/// What a client sees, and a manifest that says little.
const CLIENT_REQUESTS: &str = "\
id,arrival_s,first_token_s,last_token_s,input_tokens,output_tokens,max_tokens,status
0,0.000,0.110,0.200,300,3,3,ok
1,0.050,,,,,,error
2,0.100,0.160,0.200,200,2,9,ok
";

fn client_capture(manifest: &str, requests: &str) -> Result<Capture, InputError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("manifest.json"), manifest).unwrap();
    std::fs::write(dir.path().join("requests.csv"), requests).unwrap();
    assert!(is_capture(dir.path()) && !is_capture_with_steps(dir.path()));
    Capture::read(dir.path())
}

#[test]
fn requests_alone_are_a_capture_that_says_what_it_assumes() {
    let capture = client_capture(
        "{\"clock\": \"client\", \"accelerator\": \"h100-sxm\"}",
        CLIENT_REQUESTS,
    )
    .unwrap();
    assert!(!capture.has_steps());
    let config = capture.engine_config().unwrap();
    assert_eq!((config.max_num_seqs, config.max_num_batched_tokens), (1024, 8192));
    let told = capture.assumptions.join("\n");
    for part in [
        "vllm = 0.32.0",
        "max_num_seqs = 1024 (vLLM 0.32.0 on h100-sxm)",
        "max_model_len = 4096 (no model profile",
        "num_gpu_blocks = 262145 (not told",
        "1 of 3 requests failed",
    ] {
        assert!(told.contains(part), "'{part}' is not in: {told}");
    }
    // The one that ended before its cap is played to its real end.
    let trace = capture.trace().unwrap();
    assert_eq!(
        trace
            .requests
            .iter()
            .map(TraceRequest::output_tokens)
            .collect::<Vec<_>>(),
        [3, 2]
    );
    let record = crate::calibrate::actual::record_of(&capture).unwrap();
    assert_eq!(record.requests[1].first_token, Some(SimTime(160_000_000)));
    assert!(
        record
            .requests
            .iter()
            .all(|r| r.status == crate::record::Status::Completed)
    );
}

#[test]
fn the_memory_of_a_named_device_and_model_gives_the_blocks() {
    let capture = client_capture(
        "{\"accelerator\": \"h100-sxm\", \"model\": \"llama-3.1-8b\", \"vllm\": \"0.15.1\"}",
        CLIENT_REQUESTS,
    )
    .unwrap();
    let told = capture.assumptions.join("\n");
    assert!(
        told.contains("num_gpu_blocks") && told.contains("memory ledger"),
        "{told}"
    );
    let unknown = client_capture(
        "{\"accelerator\": \"h100-sxm\", \"model\": \"somebody/else-9b\"}",
        CLIENT_REQUESTS,
    )
    .unwrap();
    assert!(
        unknown
            .assumptions
            .join("\n")
            .contains("no profile of the model 'somebody/else-9b'")
    );
}

#[test]
fn other_units_and_durations_are_noticed() {
    let in_ms = "id,arrival_s,first_token_s,last_token_s,input_tokens,output_tokens\n0,0,110,200,3,3\n1,50,160,200,2,2\n";
    let error = client_capture("{}", in_ms).unwrap_err().to_string();
    assert_says(
        &error,
        &["requests.csv", "per output token", "\"time_unit\": \"ms\""],
    );
    let read = client_capture("{\"time_unit\": \"ms\"}", in_ms).unwrap();
    assert_eq!(read.requests[1].first_token_s, Some(0.16));
    let durations = CLIENT_REQUESTS.replace("0.100,0.160,0.200", "0.900,0.060,0.100");
    let error = client_capture("{}", &durations).unwrap_err().to_string();
    assert_says(&error, &["before their arrival", "points in time", "--columns"]);
}

#[test]
fn misspelt_keys_and_odd_loads_are_refused() {
    for (manifest, parts) in [
        (
            "{\"acelerator\": \"h100-sxm\"}",
            ["acelerator", "did you mean 'accelerator'"],
        ),
        (
            "{\"load\": {\"model\": \"closed-loop\"}}",
            ["load.concurrency", "without clients"],
        ),
        (
            "{\"load\": {\"model\": \"closed\"}}",
            ["load.model", "closed-loop"],
        ),
        ("{\"warmup_s\": -1}", ["warmup_s", "seconds from 0"]),
        ("{\"clock\": \"server\"}", ["clock", "client"]),
        ("{\"vllm\": \"0.32.9\"}", ["0.32.9", "did you mean '0.32.0'"]),
    ] {
        assert_says(
            &client_capture(manifest, CLIENT_REQUESTS).unwrap_err().to_string(),
            &parts,
        );
    }
    assert_says(
        &client_capture("{}", &CLIENT_REQUESTS.replace("input_tokens", "input_token"))
            .unwrap_err()
            .to_string(),
        &["no column 'input_tokens'", "did you mean 'input_token'"],
    );
    assert_says(
        &client_capture(
            "{}",
            "id,arrival_s,first_token_s,last_token_s,input_tokens,output_tokens,status\n0,0,,,,,error\n",
        )
        .unwrap_err()
        .to_string(),
        &["all 1 requests failed"],
    );
}

proptest! {
    /// Bytes changed, cut off or put in anywhere give a capture or an error, never a panic.
    #[test]
    fn mangled_files_never_panic(
        which in 0usize..5,
        edits in proptest::collection::vec((0usize..4000, any::<u8>(), 0u8..3), 1..8),
    ) {
        let (name, text) = [
            ("steps.csv", STEPS_TEXT),
            ("requests.csv", REQUESTS_TEXT),
            ("manifest.json", MANIFEST_TEXT),
            ("tokens.jsonl", TOKENS_TEXT),
            ("requests.csv", CLIENT_REQUESTS),
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
        if which == 4 {
            std::fs::remove_file(run.join("steps.csv")).unwrap();
            std::fs::write(run.join("manifest.json"), "{}").unwrap();
        }
        if let Ok(capture) = Capture::read(&run) {
            let _ = capture.token_times();
            let _ = capture.trace();
            let _ = capture.engine_config();
        }
    }
}
