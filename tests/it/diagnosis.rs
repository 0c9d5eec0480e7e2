//! What held real runs back, by what was recorded of them.

use kneeboard::calibrate::Capture;
use kneeboard::calibrate::actual::diagnose;
use kneeboard::calibrate::import::{ServerFacts, write_capture, write_joined};
use kneeboard::metric::Window;
use kneeboard::metric::diagnose::{ClientSpan, ClientView, Diagnosis, Limits, ServerView, Verdict};
use kneeboard::record::import::{ClientRun, ImportOptions, read, read_scrapes};
use kneeboard::units::SimTime;

use crate::shared::data_set;

fn run_of(folder: &std::path::Path, file: &str) -> ClientRun {
    read(&folder.join(file), &ImportOptions::default())
        .unwrap()
        .remove(0)
}

/// The server of the live runs.
fn facts() -> ServerFacts {
    let mut facts = ServerFacts::default();
    for fact in [
        "max_num_seqs=16",
        "block_size=32",
        "num_gpu_blocks=2048",
        "max_num_batched_tokens=2048",
    ] {
        facts.set(fact).unwrap();
    }
    facts
}

fn number(folder: &std::path::Path, key: &str) -> f64 {
    let text = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    manifest[key].as_f64().unwrap()
}

/// A run with the engine's own steps beside it.
fn with_engine(folder: &std::path::Path, file: &str) -> Diagnosis {
    let out = tempfile::tempdir().unwrap();
    let mut run = run_of(folder, file);
    write_joined(&mut run, folder, out.path()).unwrap();
    let capture = Capture::read(out.path()).unwrap();
    diagnose(&run, &capture, None, &facts().limits()).unwrap()
}

/// The same run by its client alone, and by its client with the scrapes of the server.
fn without_engine(folder: &std::path::Path) -> [Diagnosis; 2] {
    let out = tempfile::tempdir().unwrap();
    let run = run_of(folder, "result.json");
    write_capture(&run, "alone", &facts(), 0.0, out.path()).unwrap();
    let capture = Capture::read(out.path()).unwrap();
    let scrapes = read_scrapes(&folder.join("metrics.jsonl.gz")).unwrap();
    assert_eq!(
        scrapes.on_clock_of(&run, None),
        None,
        "unix and monotonic seconds are not one clock"
    );
    // The first scrape was taken when both clocks of the manifest were read.
    let monotonic = number(folder, "t0_perf_counter_s") - number(folder, "t0_unix_s");
    let scrapes = scrapes.on_clock_of(&run, Some(run.t0_s - monotonic)).unwrap();
    [None, Some(&scrapes[..])].map(|s| diagnose(&run, &capture, s, &facts().limits()).unwrap())
}

#[test]
fn gauges_decide_what_a_client_alone_cannot_tell() {
    let Some(data) = data_set("gauges_decide", "live-clients") else {
        return;
    };
    // 18 requests a second on a server that can serve fewer: its 16 seats are taken and a queue stands.
    let loaded = data.join("vllm-bench-r18");
    let [alone, scraped] = without_engine(&loaded);
    assert_eq!(alone.verdict, Verdict::Undecidable, "{alone:?}");
    assert!(alone.because.contains("num_requests_waiting"));
    assert_eq!(scraped.verdict, Verdict::Server, "{scraped:?}");
    let steps = with_engine(&loaded, "result.json");
    assert_eq!(steps.verdict, Verdict::Server, "{steps:?}");
    // Scrapes once a second come near the means that every step gives: of 16 one falls into the ramp, and published
    // gauges lack the one or two requests that ended in the step.
    for (a, b) in [
        (scraped.little.running, steps.little.running),
        (scraped.little.waiting, steps.little.waiting),
    ] {
        let (a, b) = (a.unwrap(), b.unwrap());
        assert!((a - b).abs() < 0.2 * b, "{a} by scrapes, {b} by steps");
    }
    // Little's law: what the client has in flight and the server has not is on its way, a few milliseconds each.
    let outside = steps.little.outside.unwrap();
    assert!(
        (0.0..0.1 * steps.little.in_flight_judged.unwrap()).contains(&outside),
        "{outside}"
    );

    // 5 requests a second hardly ever wait.
    let light = data.join("vllm-bench-r5");
    let [alone, scraped] = without_engine(&light);
    assert_eq!(
        (alone.verdict, scraped.verdict),
        (Verdict::Undecidable, Verdict::None),
        "{scraped:?}"
    );
    assert_eq!(with_engine(&light, "result.json").verdict, Verdict::None);
}

#[test]
fn eight_clients_on_sixteen_seats_are_the_limit() {
    let Some(data) = data_set("eight_clients", "live-clients") else {
        return;
    };
    let found = with_engine(&data.join("vllm-bench-mc8"), "result.json");
    assert_eq!(found.verdict, Verdict::Client, "{found:?}");
    let running = found.little.running.unwrap();
    assert!((4.0..=8.0).contains(&running), "{running} of 8 in flight run");
}

/// A burst of 300 requests on 128 seats; its KV use was not measured.
#[test]
fn a_full_gpu_is_the_server() {
    let Some(data) = data_set("a_full_gpu", "gpu-requests-rtxpro6000") else {
        return;
    };
    let text = std::fs::read_to_string(data.join("requests.jsonl")).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let first = rows
        .iter()
        .map(|r| r["queued_ts"].as_f64().unwrap())
        .fold(f64::INFINITY, f64::min);
    let at = |row: &serde_json::Value, key: &str| {
        SimTime::try_from_secs_f64(row[key].as_f64().unwrap() - first).unwrap()
    };
    let spans = rows.iter().map(|r| ClientSpan {
        due: at(r, "queued_ts"),
        sent: Some(at(r, "queued_ts")),
        ended: Some(at(r, "last_token_ts")),
        counted: true,
    });
    let client = ClientView::new(spans.collect(), None);
    let limits = Limits {
        max_num_seqs: Some(128),
        ..Limits::default()
    };
    let series = read_scrapes(&data.join("timeseries.csv")).unwrap();
    assert!(
        series.scrapes.iter().all(|s| s.kv_usage.is_none()),
        "0 % under load is no measurement"
    );
    // A reading a second, the first a second after the start.
    let server = ServerView::of_scrapes(&series.shifted(1.0), None, &limits);
    let found = Diagnosis::of(&client, Some(&server), &Window::WHOLE, &limits);
    assert_eq!(found.verdict, Verdict::Server, "{found:?}");
    let outside = found.little.outside.unwrap();
    assert!(
        outside.abs() < 0.05 * found.little.in_flight_judged.unwrap(),
        "{found:?}"
    );
}
