//! The summary of a run: every metric with its unit and its number of values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::funnel::Funnel;
use super::gauges::Gauges;
use super::goodput::{Measured, Slo, SloReport};
use super::latency::{Latencies, keeps_tokens};
use super::little;
use super::percentile::{Sample, Stats, THIN_BELOW};
use super::saturation::Backlog;
use super::tokens::{GapProfile, TokenGaps};
use super::window::Window;
use crate::record::{RequestRecord, RunRecord, Status};

/// Version of the summary's shape; fields are only ever added within one.
pub const SUMMARY_VERSION: u32 = 1;

/// Where latencies start and end (contract, section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Boundary {
    /// Engine enqueue to the token out of the engine; no HTTP, no tokenizer.
    #[default]
    Engine,
    /// Client send to the token at the client.
    Serving,
    /// Root request arrival to root response end.
    EndToEnd,
}

/// How to summarise.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SummaryOptions {
    /// Targets; none gives no attainment and no goodput.
    pub slo: Slo,
    /// What is measured.
    pub window: Window,
    /// Where latencies start and end.
    pub boundary: Boundary,
    /// Gaps of the whole run kept apart (`token-gaps.csv`), used when the record has no token times and the
    /// window is the whole run.
    pub recorded_gaps: Option<Sample>,
}

/// Tokens of the measured part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct TokenCounts {
    /// Prompt tokens of the measured requests that completed.
    pub input: u64,
    /// Of those, tokens that the prefix cache gave at the first admission.
    pub cached: u64,
    /// Output tokens of the measured requests that completed.
    pub output: u64,
}

/// Rates: what happened inside the window, a second of wall clock. Null when the window has no length.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Throughput {
    /// Requests that completed in the window.
    pub request_rps: Option<f64>,
    /// Output tokens that became visible in the window, whoever's; null when token times were not kept and the
    /// window is not the whole run.
    pub output_tok_s: Option<f64>,
    /// Output tokens plus prompt tokens of requests whose first token came in the window.
    pub total_logical_tok_s: Option<f64>,
    /// The same with prompt tokens from the prefix cache left out. Recomputation after preemption is not
    /// counted.
    pub total_computed_tok_s: Option<f64>,
}

/// What was cut off before and after the window.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Period {
    /// Start of the window.
    pub from_s: f64,
    /// End of the window, or of the run.
    pub to_s: f64,
    /// Requests that arrived before the window.
    pub arrivals_before: u64,
    /// Requests that arrived after it.
    pub arrivals_after: u64,
}

/// All latencies; boundary and populations as in `docs/METRICS.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyStats {
    /// Time to first token from the intended arrival.
    pub ttft: Stats,
    /// Time to first token from the actual send.
    pub ttft_from_send: Stats,
    /// Gaps between consecutive chunks of tokens, all requests pooled.
    pub itl: Stats,
    /// Time per output token after the first, one value a request.
    pub tpot: Stats,
    /// End-to-end time from the intended arrival.
    pub e2e: Stats,
    /// End-to-end time from the actual send.
    pub e2e_from_send: Stats,
    /// Longest gap of a request.
    pub stall: Stats,
    /// From the engine's queue to the first scheduled step.
    pub queue: Stats,
    /// From the first scheduled step to the first token.
    pub prefill: Stats,
    /// Actual send minus intended arrival.
    pub send_lag: Stats,
    /// Durations of engine steps.
    pub step: Stats,
}

impl LatencyStats {
    /// Name and figures of each, in print order.
    pub fn named(&self) -> [(&'static str, &Stats); 11] {
        [
            ("ttft", &self.ttft),
            ("ttft_from_send", &self.ttft_from_send),
            ("itl", &self.itl),
            ("tpot", &self.tpot),
            ("e2e", &self.e2e),
            ("e2e_from_send", &self.e2e_from_send),
            ("stall", &self.stall),
            ("queue", &self.queue),
            ("prefill", &self.prefill),
            ("send_lag", &self.send_lag),
            ("step", &self.step),
        ]
    }

    fn of(latencies: &Latencies) -> Self {
        Self {
            ttft: latencies.ttft.stats_s(),
            ttft_from_send: latencies.ttft_from_send.stats_s(),
            itl: latencies.itl.stats_s(),
            tpot: latencies.tpot.stats_s(),
            e2e: latencies.e2e.stats_s(),
            e2e_from_send: latencies.e2e_from_send.stats_s(),
            stall: latencies.stall.stats_s(),
            queue: latencies.queue.stats_s(),
            prefill: latencies.prefill.stats_s(),
            send_lag: latencies.send_lag.stats_s(),
            step: latencies.step.stats_s(),
        }
    }
}

/// A run in figures. Counts come first: latencies of the few that completed can look fine while most fail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Version of this shape.
    pub version: u32,
    /// Where latencies start and end.
    pub boundary: Boundary,
    /// How far the offered requests came.
    pub funnel: Funnel,
    /// Share of offered requests that did not complete.
    pub error_rate: Option<f64>,
    /// The backlog grew through the run, so its latencies depend on how long it lasted; null when not judged.
    pub saturated: Option<bool>,
    /// The figures behind `saturated`.
    pub backlog: Option<Backlog>,
    /// What the window cut off.
    pub period: Period,
    /// Wall clock of the window: the divisor of every rate.
    pub duration_s: f64,
    /// Tokens of completed requests.
    pub tokens: TokenCounts,
    /// Rates.
    pub throughput: Throughput,
    /// All latencies.
    pub latency: LatencyStats,
    /// Completed requests with fewer than two output tokens, which are in no TPOT.
    pub tpot_undefined: u64,
    /// Measured requests whose instants are out of order (imported runs with several clocks).
    pub out_of_order: u64,
    /// Preemptions of the measured requests.
    pub preemptions: u64,
    /// Running, waiting, KV use.
    pub gauges: Gauges,
    /// Mean number of requests in the system over the whole run by Little's law, client's view: total time
    /// between send and last token over wall clock. Null when the run did not end empty.
    pub in_system_mean: Option<f64>,
    /// How the targets were met; null without targets.
    pub slo: Option<SloReport>,
    /// What a reader must know before using a figure.
    pub notes: Vec<String>,
}

impl Summary {
    /// Summarises a run.
    pub fn of(run: &RunRecord, options: &SummaryOptions) -> Self {
        let window = options.window;
        let limit = options.slo.gap_limit_ns();
        let gaps = TokenGaps::new(run, limit);
        let requests: Vec<&RequestRecord> = window.select(run).collect();
        let profiles: Vec<GapProfile> = requests.iter().map(|r| gaps.profile(r, limit)).collect();
        let mut latencies = Latencies::of(run, &window, &gaps, &profiles);
        let gaps_known = requests.iter().all(|r| r.output_tokens < 2 || keeps_tokens(r));
        if !gaps_known {
            let recorded = options.recorded_gaps.clone().filter(|_| window == Window::WHOLE);
            latencies.itl = recorded.unwrap_or_default();
            latencies.stall = Sample::default();
        }
        let mut funnel = Funnel::of(requests.iter().copied());
        let duration = window.duration(run);
        let measured = Measured {
            requests: &requests,
            profiles: &profiles,
            gaps_known,
            latencies: &latencies,
            funnel: &funnel,
            duration,
        };
        let slo = SloReport::of(&options.slo, &measured);
        funnel.within_slo = slo.as_ref().and_then(|s| s.met);
        let backlog = Backlog::of(run, &window);
        let mut summary = Self {
            version: SUMMARY_VERSION,
            boundary: options.boundary,
            error_rate: funnel.error_rate(),
            funnel,
            saturated: backlog.map(|b| b.saturated),
            backlog,
            period: period(run, &window),
            duration_s: duration.as_secs_f64(),
            tokens: token_counts(&requests),
            throughput: throughput(run, &window, &gaps),
            latency: LatencyStats::of(&latencies),
            tpot_undefined: latencies.tpot_undefined,
            out_of_order: requests.iter().filter(|r| is_out_of_order(r)).count() as u64,
            preemptions: requests.iter().map(|r| u64::from(r.preemptions)).sum(),
            gauges: Gauges::of(run, &window),
            in_system_mean: in_system_mean(run),
            slo,
            notes: Vec::new(),
        };
        summary.notes = notes(&summary, options, gaps_known);
        summary
    }
}

/// Some instant lies before one that it must follow.
fn is_out_of_order(r: &RequestRecord) -> bool {
    let instants = [
        Some(r.scheduled),
        Some(r.sent),
        r.enqueued,
        r.first_scheduled,
        r.first_token,
        r.last_token,
    ];
    !instants.into_iter().flatten().is_sorted()
}

fn period(run: &RunRecord, window: &Window) -> Period {
    let before = run.requests.iter().filter(|r| r.scheduled < window.from).count() as u64;
    let after = run
        .requests
        .iter()
        .filter(|r| window.to.is_some_and(|to| r.scheduled >= to))
        .count() as u64;
    Period {
        from_s: window.from.as_secs_f64(),
        to_s: window.end(run).as_secs_f64(),
        arrivals_before: before,
        arrivals_after: after,
    }
}

fn token_counts(requests: &[&RequestRecord]) -> TokenCounts {
    let mut counts = TokenCounts::default();
    for request in requests.iter().filter(|r| r.status == Status::Completed) {
        counts.input += u64::from(request.input_tokens);
        counts.cached += u64::from(request.cached_tokens);
        counts.output += u64::from(request.output_tokens);
    }
    counts
}

fn throughput(run: &RunRecord, window: &Window, gaps: &TokenGaps<'_>) -> Throughput {
    let seconds = window.duration(run).as_secs_f64();
    if seconds <= 0.0 {
        return Throughput::default();
    }
    let inside = |t| window.contains(t);
    let (mut completed, mut output, mut input, mut cached) = (0u64, Some(0u64), 0u64, 0u64);
    for request in &run.requests {
        completed += u64::from(request.status == Status::Completed && request.last_token.is_some_and(inside));
        let visible = visible_tokens(request, window, gaps);
        output = output.zip(visible).map(|(sum, n)| sum + n);
        if request.first_token.is_some_and(inside) {
            input += u64::from(request.input_tokens);
            cached += u64::from(request.cached_tokens);
        }
    }
    let rate = |n: u64| n as f64 / seconds;
    Throughput {
        request_rps: Some(rate(completed)),
        output_tok_s: output.map(rate),
        total_logical_tok_s: output.map(|o| rate(o + input)),
        total_computed_tok_s: output.map(|o| rate(o + input.saturating_sub(cached))),
    }
}

/// Output tokens of a request that became visible in the window; `None` when that is not known.
fn visible_tokens(request: &RequestRecord, window: &Window, gaps: &TokenGaps<'_>) -> Option<u64> {
    let (from, to) = window.event_bounds();
    if keeps_tokens(request) {
        return Some(gaps.tokens_within(request, from, to));
    }
    let all = u64::from(request.output_tokens);
    let whole = request
        .first_token
        .zip(request.last_token)
        .is_none_or(|(first, last)| window.contains(first) && window.contains(last));
    match (whole, request.output_tokens) {
        (true, _) => Some(all),
        (false, 0..=1) => Some(0),
        (false, _) => None,
    }
}

fn in_system_mean(run: &RunRecord) -> Option<f64> {
    let sum = little::in_system(run)?.sum;
    (run.end.as_nanos() > 0).then(|| sum as f64 / run.end.as_nanos() as f64)
}

/// Everything that makes a figure weaker than it looks.
fn notes(summary: &Summary, options: &SummaryOptions, gaps_known: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if let (Some(true), Some(b)) = (summary.saturated, summary.backlog) {
        notes.push(format!(
            "saturated: requests without a first token grew from {:.1} to {:.1} on average while load was \
             offered, so latencies depend on how long the run lasted",
            b.early, b.late
        ));
    }
    if summary.funnel.completed < summary.funnel.offered {
        notes.push(format!(
            "{} of {} offered requests did not complete; E2E and TPOT are of the completed ones alone",
            summary.funnel.failed(),
            summary.funnel.offered
        ));
    }
    let thin: Vec<&str> = summary
        .latency
        .named()
        .iter()
        .filter(|(_, s)| s.n > 0 && s.thin)
        .map(|(name, _)| *name)
        .collect();
    if !thin.is_empty() {
        notes.push(format!(
            "p99 of fewer than {THIN_BELOW} values is thin: {}",
            thin.join(", ")
        ));
    }
    if summary.tpot_undefined > 0 {
        notes.push(format!(
            "{} completed requests with fewer than two output tokens have no TPOT",
            summary.tpot_undefined
        ));
    }
    if !gaps_known {
        notes.push("token times were not kept: stalls and an ITL target cannot be judged".into());
    }
    if summary.out_of_order > 0 {
        notes.push(format!(
            "{} requests have instants out of order, as from two clocks; spans that would be negative count as 0",
            summary.out_of_order
        ));
    }
    let lag = summary.latency.send_lag.p99.zip(options.slo.ttft);
    if let Some((lag, target)) = lag.filter(|(lag, target)| *lag > 0.01 * target.as_secs_f64()) {
        notes.push(format!(
            "the client sent its requests late: p99 lag {lag:.6} s is over 1 % of the TTFT target of {:.6} s",
            target.as_secs_f64()
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
