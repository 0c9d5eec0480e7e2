use proptest::prelude::*;

use super::*;

fn read_as(name: &str, text: &str, options: &ImportOptions) -> Result<Vec<ClientRun>, InputError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    read(&path, options)
}

const VLLM: &str = r#"{"endpoint_type": "openai-chat", "duration": 3.0, "request_rate": "inf", "max_concurrency": 2,
"input_lens": [10, 20], "output_lens": [2, 1], "ttfts": [0.1, 0.2], "itls": [[0.001, 0.05], [0.002]],
"latencies": [0.151, 0.202], "start_times": [101.0, 100.0], "queue_times": [0.0, 0.0], "errors": ["", ""],
"mean_ttft_ms": 150.0}"#;

const LLMPERF: &str = r#"[{"ttft_s": 0.5, "end_to_end_latency_s": 1.5, "inter_token_latency_s": 0.15,
"number_input_tokens": 100, "number_output_tokens": 10, "error_msg": "", "error_code": null},
{"ttft_s": 0.4, "end_to_end_latency_s": 1.0, "inter_token_latency_s": 0.2, "number_input_tokens": 100,
"number_output_tokens": 5, "error_msg": "", "error_code": null},
{"ttft_s": 0, "end_to_end_latency_s": 0, "inter_token_latency_s": 0, "number_input_tokens": 100,
"number_output_tokens": 0, "error_msg": "too many", "error_code": 429}]"#;

#[test]
fn the_role_chunk_of_a_chat_is_no_token() {
    let run = read_as("result.json", VLLM, &ImportOptions::default())
        .unwrap()
        .remove(0);
    // Time 0 is the first send, requests in its order.
    assert_eq!(
        (run.tool, run.t0_s, run.concurrency),
        (Tool::VllmBench, 100.0, Some(2))
    );
    let (early, late) = (&run.requests[0], &run.requests[1]);
    assert_eq!((early.sent_s, late.sent_s), (0.0, 1.0));
    let times = late.token_times();
    assert_eq!(times.len(), 2);
    assert!((times[0] - 1.101).abs() < 1e-9 && (late.first_token_s().unwrap() - 1.101).abs() < 1e-9);
    assert!((late.first_s.unwrap() - 1.1).abs() < 1e-9);
}

#[test]
fn llmperf_has_no_send_times_and_says_so() {
    let error = read_as("a_individual_responses.json", LLMPERF, &ImportOptions::default()).unwrap_err();
    assert!(error.to_string().contains("--concurrency"), "{error}");
    let options = ImportOptions {
        concurrency: Some(1),
        ..ImportOptions::default()
    };
    let run = read_as("a_individual_responses.json", LLMPERF, &options)
        .unwrap()
        .remove(0);
    assert_eq!(run.completed().count(), 2);
    // One client: the second was sent when the first had ended.
    assert!((run.requests[1].sent_s - 1.5).abs() < 1e-12);
    assert_eq!(run.requests[2].error.as_deref(), Some("too many"));
    assert!(
        run.notes.iter().any(|n| n.contains("TTFT inside")),
        "{:?}",
        run.notes
    );
    let patched = LLMPERF
        .replace("0.15,", "0.11111111,")
        .replace("0.2, \"number_input", "0.15, \"number_input");
    let run = read_as("a_individual_responses.json", &patched, &options)
        .unwrap()
        .remove(0);
    assert!(
        run.notes.iter().any(|n| n.contains("AWS patch")),
        "{:?}",
        run.notes
    );
}

#[test]
fn a_table_is_read_through_a_map() {
    let text =
        "run,when,TTFT,total,prompt,cap,has_error\na,0,100,300,5,4,0\nb,10,50,90,7,2,0\nb,5,50,,7,2,1\n";
    let mut table = TableOptions {
        per_second: 1e3,
        group_by: vec!["run".into()],
        ..TableOptions::default()
    };
    for (ours, theirs) in [
        ("arrival_s", "when"),
        ("ttft_s", "TTFT"),
        ("e2e_s", "total"),
        ("input_tokens", "prompt"),
        ("output_tokens", "cap"),
        ("prefix_tokens", "prompt"),
        ("error", "has_error"),
    ] {
        table.columns.map(ours, theirs).unwrap();
    }
    let options = ImportOptions {
        table: table.clone(),
        ..ImportOptions::default()
    };
    let runs = read_as("x.csv", text, &options).unwrap();
    assert_eq!(
        runs.iter().map(|r| r.name.as_deref()).collect::<Vec<_>>(),
        [Some("a"), Some("b")]
    );
    let last = &runs[1].requests[1];
    assert!((last.sent_s - 0.005).abs() < 1e-12 && (last.last_s.unwrap() - 0.095).abs() < 1e-12);
    assert_eq!(
        (last.input_tokens, last.output_tokens, last.prefix_tokens),
        (Some(7), 2, 7)
    );
    assert_eq!(runs[1].completed().count(), 1);

    let fails = |text: &str, table: &TableOptions, parts: &[&str]| {
        let options = ImportOptions {
            table: table.clone(),
            ..ImportOptions::default()
        };
        let error = read_as("x.csv", text, &options).unwrap_err().to_string();
        assert!(parts.iter().all(|p| error.contains(p)), "{error}");
    };
    fails(
        text,
        &TableOptions::default(),
        &["no column 'arrival_s'", "--columns"],
    );
    fails(
        &text.replace("a,0", "a,NaN"),
        &table,
        &["line 2, column when", "not a number"],
    );
    fails(
        &text.replace(",5,4,0", ",5,0.5,0"),
        &table,
        &["line 2, column cap", "number of tokens"],
    );
    fails(
        &text.replace("TTFT", "TTFD"),
        &table,
        &["no column 'TTFT'", "did you mean 'TTFD'"],
    );
    let nothing = TableOptions {
        keep: vec![("run".into(), "c".into())],
        ..table.clone()
    };
    fails(text, &nothing, &["no row is left"]);
    let error = Columns::default().map("tttf_s", "x").unwrap_err().to_string();
    assert!(error.contains("did you mean 'ttft_s'"), "{error}");
}

#[test]
fn files_that_are_none_are_refused_with_a_word() {
    for (name, text, parts) in [
        (
            "a.json",
            "{\"foo\": 1}",
            ["no file of a known tool", "vllm-bench"],
        ),
        ("a.json", "{\"ttfts\": [1", ["no whole JSON", "--tool"]),
        (
            "a.json",
            "{\"request_throughput\": 1, \"mean_ttft_ms\": 2}",
            ["summary", "--save-detailed"],
        ),
        ("a.json", "{\"ttfts\": []}", ["missing field", "input_lens"]),
        ("a.json", "[{\"start_time\": NaN}]", ["no whole JSON", "--tool"]),
        ("a.jsonl", "{\"metadata\": {}}", ["line 1", "request_start_ns"]),
        ("a.jsonl", "\n", ["holds no request", "at least one"]),
        ("a.json", "{\"benchmarks\": []}", ["no benchmark", "benchmarks"]),
        (
            "a.json",
            "{\"experiments\": [{\"requests\": []}]}",
            ["holds no request", "at least one"],
        ),
    ] {
        let error = read_as(name, text, &ImportOptions::default())
            .unwrap_err()
            .to_string();
        assert!(parts.iter().all(|p| error.contains(p)), "{error}");
    }
    let short = VLLM.replace("[10, 20]", "[10, 20, 30]");
    let error = read_as("a.json", &short, &ImportOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("2 entries for 3 requests"), "{error}");
    let back = VLLM.replace("0.05]", "-0.05]");
    let error = read_as("a.json", &back, &ImportOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("a gap is negative"), "{error}");
    let named = Tool::named("guidelm").unwrap_err().to_string();
    assert!(named.contains("did you mean 'guidellm'"), "{named}");
}

proptest! {
    /// Bytes changed, cut off or put in anywhere give runs or an error, never a panic.
    #[test]
    fn mangled_files_never_panic(
        which in 0usize..3,
        edits in proptest::collection::vec((0usize..2000, any::<u8>(), 0u8..3), 1..6),
    ) {
        let csv = "arrival_s,ttft_s,e2e_s,input_tokens,output_tokens\n0,1,2,3,4\n5,1,2,3,4\n";
        let (name, text) = [("a.json", VLLM), ("b.json", LLMPERF), ("c.csv", csv)][which];
        let mut bytes = text.as_bytes().to_vec();
        for (place, byte, kind) in edits {
            let place = place % bytes.len().max(1);
            match kind {
                0 if place < bytes.len() => bytes[place] = byte,
                1 => bytes.insert(place, b"0123456789,:.-\n\"e []{}"[usize::from(byte) % 22]),
                _ => bytes.truncate(bytes.len().saturating_sub(usize::from(byte) % 40)),
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let options = ImportOptions { concurrency: Some(2), input_tokens: Some(5), ..ImportOptions::default() };
        if let Ok(runs) = read(&path, &options) {
            for run in runs {
                let _ = crate::metric::lens::figures(&run);
                run.requests.iter().for_each(|r| drop(r.token_times()));
            }
        }
    }
}
