//! The summary of a run: every metric with its unit and its number of values.

mod livelock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::diagnose::Diagnosis;
use super::funnel::Funnel;
use super::gauges::Gauges;
use super::goodput::{Measured, Slo, SloReport, Target};
use super::latency::{PerLatency, keeps_tokens, step_durations};
use super::percentile::{Sample, Stats, THIN_BELOW};
use super::saturation::Backlog;
use super::select::Figures;
use super::tally::{RunTally, Tally};
use super::tokens::TokenGaps;
use super::window::Window;
use crate::record::{RequestRecord, RunRecord, Status};
use crate::units::SimTime;

pub use livelock::LivelockReport;

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

    fn of(figures: PerLatency<Figures>) -> Self {
        let stats = figures.map(|_, figures| figures.stats);
        Self {
            ttft: stats.ttft,
            ttft_from_send: stats.ttft_from_send,
            itl: stats.itl,
            tpot: stats.tpot,
            e2e: stats.e2e,
            e2e_from_send: stats.e2e_from_send,
            stall: stats.stall,
            queue: stats.queue,
            prefill: stats.prefill,
            send_lag: stats.send_lag,
            step: stats.step,
        }
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
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
    /// Requests that the load generator sent and did not count: they load the system and are in no figure about
    /// requests or tokens, but in the gauges and in `in_system_mean`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub surplus: u64,
    /// Preemptions of the measured requests.
    pub preemptions: u64,
    /// Replicas whose engine came to a livelock: it goes on calling its scheduler, which schedules nothing any more.
    pub livelocks: Vec<LivelockReport>,
    /// Running, waiting, KV use.
    pub gauges: Gauges,
    /// Mean number of requests in the system over the whole run by Little's law, client's view: total time
    /// between send and last token over wall clock. Null when the run did not end empty, or when a request
    /// ended before it was sent (imported runs with several clocks).
    pub in_system_mean: Option<f64>,
    /// How the targets were met; null without targets.
    pub slo: Option<SloReport>,
    /// What held the run back; absent where what limits the server is not known or its steps were not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Diagnosis>,
    /// What a reader must know before using a figure.
    pub notes: Vec<String>,
}

/// What a summary is made of, from a whole record or gathered while a run went on.
#[derive(Debug)]
pub(super) struct Parts {
    pub tally: Tally,
    pub figures: PerLatency<Figures>,
    pub gaps_known: bool,
    /// Output tokens that became visible in the window, if that is known.
    pub visible_tokens: Option<u64>,
    pub backlog: Option<Backlog>,
    pub gauges: Gauges,
    pub livelocks: Vec<LivelockReport>,
    /// When the run's last event happened.
    pub end: SimTime,
}

impl Summary {
    /// Summarises a run.
    pub fn of(run: &RunRecord, options: &SummaryOptions) -> Self {
        let window = &options.window;
        let limit = options.slo.gap_limit_ns();
        let gaps = TokenGaps::new(run, limit);
        // What grows with the requests is gone again before the next such thing comes.
        let measured = window.select(run);
        let gaps_known = measured.clone().all(|r| r.output_tokens < 2 || keeps_tokens(r));
        let itl = if gaps_known {
            Figures::of_counts(gaps.pool(measured).counts())
        } else {
            let is_whole = *window == Window::WHOLE;
            let recorded = options.recorded_gaps.as_ref().filter(|_| is_whole);
            Figures::of_sample(recorded.unwrap_or(&Sample::default()))
        };
        let (tally, visible, mut values) = tallied(run, options, &gaps);
        values.stall.retain(|_| gaps_known);
        let mut figures = values.map(|_, values| Figures::of_values(values));
        figures.itl = itl;
        figures.step = Figures::of_each(step_durations(run, *window));
        let parts = Parts {
            tally,
            figures,
            gaps_known,
            visible_tokens: visible,
            backlog: Backlog::of(run, window),
            gauges: Gauges::of(run, window),
            livelocks: LivelockReport::of(run.replicas.iter().map(|r| r.livelock)),
            end: run.end,
        };
        Self::from_parts(parts, options)
    }

    /// Puts the parts together.
    pub(super) fn from_parts(parts: Parts, options: &SummaryOptions) -> Self {
        let window = &options.window;
        let measured = &parts.tally.measured;
        let mut funnel = measured.funnel;
        let end = window.cut(parts.end);
        let duration = end.since(window.from);
        let slo = SloReport::of(
            &options.slo,
            &Measured {
                judged: &measured.judged,
                gaps_known: parts.gaps_known,
                p99_ns: p99_by_target(&parts.figures),
                funnel: &funnel,
                good_in_window: (parts.tally.run.not_judged == 0).then_some(parts.tally.run.good),
                duration,
            },
        );
        funnel.within_slo = slo.as_ref().and_then(|s| s.met);
        let mut summary = Self {
            version: SUMMARY_VERSION,
            boundary: options.boundary,
            error_rate: funnel.error_rate(),
            funnel,
            saturated: parts.backlog.map(|b| b.saturated),
            backlog: parts.backlog,
            period: Period {
                from_s: window.from.as_secs_f64(),
                to_s: end.as_secs_f64(),
                arrivals_before: parts.tally.run.arrivals_before,
                arrivals_after: parts.tally.run.arrivals_after,
            },
            duration_s: duration.as_secs_f64(),
            tokens: measured.tokens,
            throughput: throughput(&parts.tally.run, parts.visible_tokens, duration.as_secs_f64()),
            tpot_undefined: measured.tpot_undefined,
            out_of_order: measured.out_of_order,
            surplus: parts.tally.run.surplus,
            preemptions: measured.preemptions,
            gauges: parts.gauges,
            livelocks: parts.livelocks,
            in_system_mean: in_system_mean(&parts.tally.run, parts.end),
            latency: LatencyStats::of(parts.figures),
            slo,
            diagnosis: None,
            notes: Vec::new(),
        };
        summary.notes = notes(&summary, options, parts.gaps_known);
        summary
    }
}

/// Counts, output tokens that became visible in the window if that is known, and the latencies of single requests.
fn tallied(
    run: &RunRecord,
    options: &SummaryOptions,
    gaps: &TokenGaps<'_>,
) -> (Tally, Option<u64>, PerLatency<Vec<u64>>) {
    let (window, limit) = (&options.window, options.slo.gap_limit_ns());
    let mut values = PerLatency::<Vec<u64>>::default().map(|_, _| Vec::with_capacity(run.requests.len()));
    let (mut tally, mut visible) = (Tally::default(), Some(0));
    for r in &run.requests {
        let is_measured = r.status != Status::Surplus && window.contains(r.scheduled);
        let is_judged = is_measured || RunTally::completes_inside(r, window);
        let profile = is_judged.then(|| gaps.profile(r, limit));
        let known = r.output_tokens < 2 || keeps_tokens(r) || options.slo.itl.is_none();
        let good = profile.as_ref().filter(|_| known);
        tally
            .run
            .count(r, window, good.map(|p| options.slo.meets_all(r, p)));
        if r.status == Status::Surplus {
            continue;
        }
        visible = visible.and_then(|sum: u64| Some(sum + visible_tokens(r, window, gaps)?));
        if let Some(profile) = profile.filter(|_| is_measured) {
            values.note(r, profile.longest_ns);
            tally.measured.count(r, &profile, &options.slo);
        }
    }
    (tally, visible, values)
}

/// In the order of [`Target`].
fn p99_by_target(figures: &PerLatency<Figures>) -> [Option<f64>; 4] {
    let mut p99 = [None; 4];
    for (target, figures) in [
        (Target::Ttft, &figures.ttft),
        (Target::Itl, &figures.itl),
        (Target::Tpot, &figures.tpot),
        (Target::E2e, &figures.e2e),
    ] {
        p99[target as usize] = figures.p99_ns;
    }
    p99
}

fn throughput(run: &RunTally, visible_tokens: Option<u64>, seconds: f64) -> Throughput {
    if seconds <= 0.0 {
        return Throughput::default();
    }
    let rate = |n: u64| n as f64 / seconds;
    Throughput {
        request_rps: Some(rate(run.completed)),
        output_tok_s: visible_tokens.map(rate),
        total_logical_tok_s: visible_tokens.map(|o| rate(o + run.input)),
        total_computed_tok_s: visible_tokens.map(|o| rate(o + run.input.saturating_sub(run.cached))),
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
        .or(request.last_token)
        .zip(request.last_token)
        .is_none_or(|(first, last)| window.contains(first) && window.contains(last));
    match (whole, request.output_tokens) {
        (true, _) => Some(all),
        (false, 0..=1) => Some(0),
        (false, _) => None,
    }
}

fn in_system_mean(run: &RunTally, end: SimTime) -> Option<f64> {
    let known = run.in_system_unknown == 0 && end.as_nanos() > 0;
    known.then(|| run.in_system_ns as f64 / end.as_nanos() as f64)
}

/// Everything that makes a figure weaker than it looks.
fn notes(summary: &Summary, options: &SummaryOptions, gaps_known: bool) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(summary.livelocks.iter().map(LivelockReport::note));
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
    if summary.surplus > 0 {
        notes.push(format!(
            "{} further requests were under way when the load generator had counted enough: they are in no figure \
             about requests",
            summary.surplus
        ));
    }
    let whole = summary.funnel.first_token - summary.latency.ttft.n.min(summary.funnel.first_token);
    if whole > 0 {
        notes.push(format!(
            "{whole} requests were received whole, not as a stream: they have no TTFT, TPOT or ITL"
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
