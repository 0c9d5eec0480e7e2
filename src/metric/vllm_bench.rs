//! A run in the shape that `vllm bench serve --save-result` writes, so that its users' plots and scripts work.
//!
//! Formulas are vLLM's (rules M12 to M19 of its client): latencies from the actual send, completed requests
//! only, milliseconds in the summary and seconds in the per-request arrays, gaps per chunk.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::goodput::Slo;
use super::latency::tpot_parts;
use super::percentile::Sample;
use super::tokens::TokenGaps;
use super::window::Window;
use crate::record::{RequestRecord, RunRecord, Status, TokenLog};
use crate::units::{SimDuration, SimTime};

const SECOND_NS: u64 = 1_000_000_000;

/// What only the caller knows about a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BenchInfo {
    /// When it was made, `YYYYmmdd-HHMMSS`; empty for reproducible output.
    pub date: String,
    /// The system under test.
    pub backend: String,
    /// Free label.
    pub label: Option<String>,
    /// The model.
    pub model_id: String,
    /// Requests a second; `None` = all at once, written as `"inf"`.
    pub request_rate: Option<f64>,
    /// Burstiness of the arrivals; 1 = Poisson.
    pub burstiness: Option<f64>,
    /// The client's limit.
    pub max_concurrency: Option<u32>,
    /// Targets for `request_goodput`: TTFT, TPOT and E2E count, as in `--goodput`.
    pub slo: Slo,
    /// Also write one value a request (`--save-detailed`).
    pub detailed: bool,
}

/// One `vllm bench serve` result. `None` fields are written as null.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BenchResult {
    /// When it was made.
    pub date: String,
    /// The system under test.
    pub backend: String,
    /// Free label.
    pub label: Option<String>,
    /// The model.
    pub model_id: String,
    /// Offered requests.
    pub num_prompts: u64,
    /// Requests a second, or `"inf"`.
    pub request_rate: serde_json::Value,
    /// Burstiness of the arrivals.
    pub burstiness: Option<f64>,
    /// The client's limit.
    pub max_concurrency: Option<u32>,
    /// Seconds from the start of the run to the last completion.
    pub duration: f64,
    /// Completed requests.
    pub completed: u64,
    /// The others.
    pub failed: u64,
    /// Prompt tokens of completed requests.
    pub total_input_tokens: u64,
    /// Output tokens of completed requests.
    pub total_output_tokens: u64,
    /// Completed requests a second.
    pub request_throughput: Option<f64>,
    /// Requests a second that met every target; null without targets.
    pub request_goodput: Option<f64>,
    /// Output tokens a second.
    pub output_throughput: Option<f64>,
    /// Prompt and output tokens a second.
    pub total_token_throughput: Option<f64>,
    /// Most chunks in a one-second bin (chunks, whatever the name says; rule M17).
    pub max_output_tokens_per_s: Option<f64>,
    /// Most requests that touch a one-second bin.
    pub max_concurrent_requests: Option<u64>,
    /// `mean_`, `median_`, `std_`, `p99_` of `ttft`, `tpot`, `itl`, `e2el`, in ms.
    #[serde(flatten)]
    pub latencies_ms: BTreeMap<String, Option<f64>>,
    /// One value a request.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub detailed: Option<BenchDetails>,
}

/// One value a request, completed or not, in trace order; seconds.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BenchDetails {
    /// Prompt tokens.
    pub input_lens: Vec<u32>,
    /// Output tokens; 0 for a failed request.
    pub output_lens: Vec<u32>,
    /// Time to first token; 0 for a failed request, as vLLM has it.
    pub ttfts: Vec<f64>,
    /// Gaps between chunks.
    pub itls: Vec<Vec<f64>>,
    /// Send time from the start of the run; 0 for a request that was never sent.
    pub start_times: Vec<f64>,
    /// End-to-end time from send; 0 for a failed request.
    pub latencies: Vec<f64>,
    /// Time in the engine's queue.
    pub queue_times: Vec<f64>,
    /// Why a request failed; empty if it did not.
    pub errors: Vec<String>,
}

/// How long `vllm bench serve` says that a run took (rule M17): from the start of the arrivals' clock, which is before the
/// first gap and so before the first send, to the last completion. What a cut-off run left undone is not waited for.
pub(super) fn benchmark_duration(run: &RunRecord) -> SimDuration {
    let done = Window::WHOLE
        .select(run)
        .filter(|r| r.status == Status::Completed);
    let last = done.filter_map(|r| r.last_token).max();
    last.unwrap_or_default().since(SimTime::ZERO)
}

impl BenchResult {
    /// Views a whole run as vLLM's client would have reported it.
    pub fn of(run: &RunRecord, info: &BenchInfo) -> Self {
        let counted: Vec<&RequestRecord> = Window::WHOLE.select(run).collect();
        let done: Vec<&RequestRecord> = counted
            .iter()
            .copied()
            .filter(|r| r.status == Status::Completed)
            .collect();
        let gaps = TokenGaps::new(run, None);
        let total =
            |tokens: fn(&RequestRecord) -> u32| done.iter().map(|r| u64::from(tokens(r))).sum::<u64>();
        let (input, output) = (total(|r| r.input_tokens), total(|r| r.output_tokens));
        let duration = benchmark_duration(run).as_secs_f64();
        let rate = |n: u64| (duration > 0.0).then(|| n as f64 / duration);
        let goodput = info
            .slo
            .targets()
            .next()
            .and_then(|_| rate(good(&done, &info.slo)));
        Self {
            date: info.date.clone(),
            backend: info.backend.clone(),
            label: info.label.clone(),
            model_id: info.model_id.clone(),
            num_prompts: counted.len() as u64,
            request_rate: info.request_rate.map_or_else(|| "inf".into(), Into::into),
            burstiness: info.burstiness,
            max_concurrency: info.max_concurrency,
            duration,
            completed: done.len() as u64,
            failed: (counted.len() - done.len()) as u64,
            total_input_tokens: input,
            total_output_tokens: output,
            request_throughput: rate(done.len() as u64),
            request_goodput: goodput,
            output_throughput: rate(output),
            total_token_throughput: rate(input + output),
            max_output_tokens_per_s: most_chunks(&done, &gaps).map(|n| n as f64),
            max_concurrent_requests: most_concurrent(&done),
            latencies_ms: latencies_ms(&done, &gaps),
            detailed: info.detailed.then(|| BenchDetails::of(run, &counted)),
        }
    }
}

/// Requests within every target of `--goodput`. Unlike [`super::goodput`], from the actual send.
fn good(done: &[&RequestRecord], slo: &Slo) -> u64 {
    let within = |r: &RequestRecord| {
        let ttft = r.first_token.map(|t| t.since(r.sent));
        let e2e = r.last_token.map(|t| t.since(r.sent));
        let tpot = tpot_parts(r).map_or(0.0, |(span, n)| span.as_nanos() as f64 / n as f64);
        slo.ttft.is_none_or(|bound| ttft.is_some_and(|t| t <= bound))
            && slo.e2e.is_none_or(|bound| e2e.is_some_and(|t| t <= bound))
            && slo.tpot.is_none_or(|bound| tpot <= bound.as_nanos() as f64)
    };
    done.iter().filter(|r| within(r)).count() as u64
}

fn latencies_ms(done: &[&RequestRecord], gaps: &TokenGaps<'_>) -> BTreeMap<String, Option<f64>> {
    let spans = |to: fn(&RequestRecord) -> Option<SimTime>| {
        Sample::from_values(done.iter().filter_map(|r| Some(to(r)?.since(r.sent).as_nanos())))
    };
    let tpot = done
        .iter()
        .filter_map(|r| tpot_parts(r))
        .map(|(span, n)| (span.as_nanos() + n / 2) / n);
    let samples = [
        ("ttft", spans(|r| r.first_token)),
        ("tpot", Sample::from_values(tpot)),
        ("itl", gaps.pooled(done.iter().copied())),
        ("e2el", spans(|r| r.last_token)),
    ];
    let mut figures = BTreeMap::new();
    for (name, sample) in samples {
        for (stat, ns) in [
            ("mean", sample.mean()),
            ("median", sample.quantile(0.5)),
            ("std", sample.std()),
            ("p99", sample.quantile(0.99)),
        ] {
            figures.insert(format!("{stat}_{name}_ms"), ns.map(|ns| ns / 1e6));
        }
    }
    figures
}

/// The second, from the first send, in which an instant lies.
fn bin(instant: SimTime, start: SimTime) -> u64 {
    instant.since(start).as_nanos() / SECOND_NS
}

fn most_chunks(done: &[&RequestRecord], gaps: &TokenGaps<'_>) -> Option<u64> {
    let start = done.iter().map(|r| r.sent).min()?;
    let mut bins: BTreeMap<u64, u64> = BTreeMap::new();
    // Many steps of a replica lie in one bin.
    let mut present = (0, 0);
    gaps.chunks(done.iter().copied())
        .counts()
        .for_each(|(instant, chunks)| {
            let bin = bin(instant, start);
            if bin != present.0 {
                *bins.entry(present.0).or_default() += present.1;
                present = (bin, 0);
            }
            present.1 += chunks;
        });
    *bins.entry(present.0).or_default() += present.1;
    bins.into_values().max().filter(|&most| most > 0)
}

fn most_concurrent(done: &[&RequestRecord]) -> Option<u64> {
    let start = done.iter().map(|r| r.sent).min()?;
    // A map of changes, not an array of bins: a run may last for years.
    let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
    for request in done {
        *changes.entry(bin(request.sent, start)).or_default() += 1;
        *changes.entry(bin(request.last_token?, start) + 1).or_default() -= 1;
    }
    let running = changes.into_values().scan(0i64, |n, change| {
        *n += change;
        Some(*n)
    });
    running.max().map(i64::unsigned_abs)
}

impl BenchDetails {
    fn of(run: &RunRecord, all: &[&RequestRecord]) -> Self {
        let done = |r: &RequestRecord| r.status == Status::Completed;
        let span = |r: &RequestRecord, to: Option<SimTime>| {
            to.filter(|_| done(r))
                .map_or(0.0, |t| t.since(r.sent).as_secs_f64())
        };
        let queue = |r: &RequestRecord| Some(r.first_scheduled?.since(r.enqueued?).as_secs_f64());
        Self {
            input_lens: all.iter().map(|r| r.input_tokens).collect(),
            output_lens: all
                .iter()
                .map(|r| if done(r) { r.output_tokens } else { 0 })
                .collect(),
            ttfts: all.iter().map(|r| span(r, r.first_token)).collect(),
            itls: all
                .iter()
                .map(|r| if done(r) { gaps_s(run, r) } else { Vec::new() })
                .collect(),
            start_times: all
                .iter()
                .map(|r| r.sent_at().map_or(0.0, SimTime::as_secs_f64))
                .collect(),
            latencies: all.iter().map(|r| span(r, r.last_token)).collect(),
            queue_times: all.iter().map(|r| queue(r).unwrap_or(0.0)).collect(),
            errors: all
                .iter()
                .map(|r| match r.status {
                    Status::Completed | Status::Surplus => String::new(),
                    Status::Rejected => "rejected".into(),
                    Status::Failed => "its server broke off".into(),
                    Status::TimedOut => "timed out".into(),
                    Status::Unfinished => "unfinished at the end of the run".into(),
                    Status::Unsent => "not sent when the run ended".into(),
                })
                .collect(),
        }
    }
}

fn gaps_s(run: &RunRecord, request: &RequestRecord) -> Vec<f64> {
    if matches!(request.tokens, TokenLog::Segments(_)) && run.replicas.len() <= request.replica as usize {
        return Vec::new();
    }
    let mut times: Vec<SimTime> = run.token_times(request).collect();
    times.dedup();
    times.windows(2).map(|w| w[1].since(w[0]).as_secs_f64()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::{MS, three_requests};
    use crate::units::SimDuration;
    use approx::assert_relative_eq;

    #[test]
    fn the_timeline_by_hand() {
        let slo = Slo {
            tpot: Some(SimDuration(6 * MS)),
            ..Slo::default()
        };
        let result = BenchResult::of(
            &three_requests(),
            &BenchInfo {
                slo,
                detailed: true,
                ..BenchInfo::default()
            },
        );
        assert_eq!((result.completed, result.failed, result.num_prompts), (3, 1, 4));
        // From send: TTFT 10, 14, 19; E2E 26, 36, 19.
        let ms = |name: &str| result.latencies_ms[name].unwrap();
        assert_relative_eq!(ms("mean_ttft_ms"), 43.0 / 3.0, max_relative = 1e-12);
        assert_relative_eq!(ms("median_e2el_ms"), 26.0);
        assert_relative_eq!(ms("mean_itl_ms"), 9.5);
        assert_relative_eq!(ms("mean_tpot_ms"), 6.75);
        // Within 6 ms a token: the second, and the third, whose single token counts as 0.
        assert_relative_eq!(result.request_goodput.unwrap(), 2.0 / 0.060);
        // Chunks: 3 + 3 + 1 in the first second.
        assert_relative_eq!(result.max_output_tokens_per_s.unwrap(), 7.0);
        assert_eq!(result.max_concurrent_requests, Some(3));
        let json = serde_json::to_value(&result).unwrap();
        assert_eq!(json["request_rate"], "inf");
        assert_eq!(json["itls"][1], serde_json::json!([0.008, 0.014]));
        assert_eq!(json["errors"][3], "rejected");
    }

    #[test]
    fn an_empty_run_has_nulls() {
        let result = BenchResult::of(&RunRecord::default(), &BenchInfo::default());
        let json = serde_json::to_value(&result).unwrap();
        assert!(json["p99_ttft_ms"].is_null() && json["request_throughput"].is_null());
        assert!(json.get("itls").is_none());
    }
}
