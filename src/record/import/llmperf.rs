//! llmperf `*_individual_responses.json` (rules M32, M33): durations alone, no instants.
//!
//! llmperf keeps a fixed number of clients busy, so send times are laid out anew: each client sends its next
//! request when its last has ended. `inter_token_latency_s` is E2E / n with TTFT inside, unless the AWS patch
//! changed it to (E2E - TTFT) / (n - 1); which one a file has is told from its values.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{ClientRequest, ClientRun, ImportOptions, Tool, numbers, parse};
use crate::input::{InputError, read_text};

#[derive(Deserialize)]
struct Response {
    ttft_s: Option<f64>,
    end_to_end_latency_s: Option<f64>,
    inter_token_latency_s: Option<f64>,
    number_input_tokens: Option<u32>,
    number_output_tokens: Option<u32>,
    #[serde(default)]
    error_msg: Option<String>,
    #[serde(default)]
    error_code: Option<Value>,
}

pub(super) fn read(path: &Path, text: &str, options: &ImportOptions) -> Result<Vec<ClientRun>, InputError> {
    let responses: Vec<Response> = parse(path, text)?;
    let mut run = ClientRun::new(Tool::Llmperf);
    let mut clients = options.concurrency;
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let summary = name
        .contains("individual_responses")
        .then(|| path.with_file_name(name.replace("individual_responses", "summary")));
    if let Some(summary) = summary.filter(|p| p.is_file()) {
        let value: Value = parse(&summary, &read_text(&summary)?)?;
        let told = value.get("num_concurrent_requests").and_then(Value::as_u64);
        clients = clients.or_else(|| told.and_then(|n| u32::try_from(n).ok()));
        run.printed = numbers(&value, |n| n.starts_with("results_"));
        run.duration_s = duration_s(&run.printed);
    }
    let Some(clients) = clients.filter(|&n| n > 0) else {
        return Err(InputError::in_file(path, "holds durations without send times")
            .allowed("give --concurrency N, the number of clients llmperf was run with"));
    };
    run.concurrency = Some(clients);
    run.notes.push(format!(
        "send times are not in the file: {clients} clients are taken to have sent their requests back to back, in the \
         order of the file"
    ));
    let mut free = vec![0.0_f64; clients as usize];
    for (index, r) in responses.iter().enumerate() {
        // The client that is free first takes the next one.
        let (slot, sent_s) = free
            .iter()
            .copied()
            .enumerate()
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or((0, 0.0));
        let request = request(r, sent_s);
        if let Some(last) = request.last_s {
            if !last.is_finite() || last < sent_s {
                return Err(InputError::in_file(path, "a latency is no time").at(format!("request {index}")));
            }
            free[slot] = last;
        }
        run.requests.push(request);
    }
    run.notes.push(token_latency_note(&responses));
    Ok(vec![run.settle(path)?])
}

/// llmperf's wall clock, which its summary tells by the requests a minute alone: from before its clients start to the
/// end of the last one.
fn duration_s(printed: &[(String, f64)]) -> Option<f64> {
    let of = |name: &str| printed.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
    let per_minute = of("results_num_completed_requests_per_min").filter(|n| *n > 0.0)?;
    Some(of("results_num_completed_requests")? / per_minute * 60.0)
}

fn request(r: &Response, sent_s: f64) -> ClientRequest {
    let tokens = r.number_output_tokens.unwrap_or(0);
    let failed = r.error_code.as_ref().is_some_and(|c| !c.is_null()) || tokens == 0;
    let told = r.error_msg.clone().filter(|m| !m.is_empty());
    ClientRequest {
        sent_s,
        first_s: r.ttft_s.filter(|_| !failed).map(|t| sent_s + t),
        last_s: r.end_to_end_latency_s.filter(|_| !failed).map(|t| sent_s + t),
        input_tokens: r.number_input_tokens,
        output_tokens: tokens,
        counted_tokens: tokens,
        error: failed.then(|| told.unwrap_or_else(|| "error".to_owned())),
        ..ClientRequest::default()
    }
}

/// Which definition of its "inter-token latency" the file follows.
fn token_latency_note(responses: &[Response]) -> String {
    let (mut with, mut without) = (0.0, 0.0);
    for r in responses {
        if let (Some(itl), Some(e2e), Some(ttft), Some(n)) = (
            r.inter_token_latency_s,
            r.end_to_end_latency_s,
            r.ttft_s,
            r.number_output_tokens.filter(|&n| n > 1),
        ) {
            let n = f64::from(n);
            with += (itl * n - e2e).abs();
            without += (itl * (n - 1.0) - (e2e - ttft)).abs();
        }
    }
    if without < with {
        "its inter_token_latency is (E2E - TTFT)/(n - 1), as the AWS patch has it".into()
    } else {
        "its inter_token_latency is E2E/n, with TTFT inside: not a gap between tokens".into()
    }
}
