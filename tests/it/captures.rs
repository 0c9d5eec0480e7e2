//! Captures as other tools and probes leave them.

use std::path::PathBuf;

use kneeboard::calibrate::Capture;

use crate::shared::data_set;

/// The folders of the live runs whose engine was watched.
fn live_runs(test: &str) -> Vec<PathBuf> {
    let Some(root) = data_set(test, "live-clients") else {
        return Vec::new();
    };
    let mut runs: Vec<PathBuf> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|p| p.join("requests.csv").is_file())
        .collect();
    runs.sort();
    assert!(runs.len() >= 12, "{runs:?}");
    runs
}

#[test]
fn live_servers_are_captures_too() {
    for folder in live_runs("live_servers_are_captures_too") {
        let capture = Capture::read(&folder).unwrap();
        let text = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
        let counted = |key: &str| manifest[key].as_u64().unwrap();
        assert_eq!(
            capture.steps.len() as u64,
            counted("engine_steps"),
            "{}",
            capture.name
        );
        assert_eq!(
            capture.requests.len() as u64,
            counted("engine_requests"),
            "{}",
            capture.name
        );
        let tokens: u64 = capture.requests.iter().map(|r| u64::from(r.output_tokens)).sum();
        assert_eq!(tokens, counted("engine_output_tokens"), "{}", capture.name);
        assert_eq!(capture.engine_config().unwrap().usable_blocks(), 2047);
        // Every request had been added before the step that first scheduled it.
        for step in &capture.steps {
            assert!(
                step.work.iter().all(|w| w.id < step.added_total),
                "{} {step:?}",
                capture.name
            );
        }
        let record = kneeboard::calibrate::actual::record_of(&capture).unwrap();
        for (row, request) in capture.requests.iter().zip(&record.requests) {
            let last = record.token_times(request).last().map(|t| t.as_secs_f64());
            assert_eq!(last, row.last_token_s, "{}", capture.name);
        }
        assert!(
            capture.assumptions.iter().any(|a| a.starts_with("vllm = ")),
            "{:?}",
            capture.assumptions
        );
    }
}

/// What the recorder of tools/capture writes, read back.
#[test]
fn the_capture_tool_writes_captures() {
    let out = tempfile::tempdir().unwrap();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tools/capture/test_kneeboard_capture.py");
    let run = std::process::Command::new("python3")
        .arg(script)
        .arg(out.path())
        .output();
    let Ok(run) = run else {
        assert!(
            std::env::var_os("KNEEBOARD_REQUIRE_SHARED").is_none(),
            "python3 is required here"
        );
        eprintln!("SKIPPED the_capture_tool_writes_captures: no python3");
        return;
    };
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let capture = Capture::read(out.path()).unwrap();
    assert_eq!(capture.requests.len(), 12);
    assert!(capture.has_steps() && capture.has_token_times() && capture.assumptions.is_empty());
    let record = kneeboard::calibrate::actual::record_of(&capture).unwrap();
    assert!(record.requests.iter().all(|r| r.finish_reason.is_some()));
    assert_eq!(capture.engine_config().unwrap().max_num_batched_tokens, 64);
    let times = capture.token_times().unwrap();
    assert!(
        times
            .iter()
            .zip(&capture.requests)
            .all(|(t, r)| t.len() == r.output_tokens as usize)
    );
}
