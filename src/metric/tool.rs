//! A recorded run as the load generator that made it would have printed it: its names, its definitions, its clock.
//!
//! Only what the load generator counted goes in, over the whole run; windows and warm-ups are ours, not theirs.

use super::latency::keeps_tokens;
use super::lens::{Spread, figures_named, statistic_of};
use super::vllm_bench::benchmark_duration;
use super::window::Window;
use crate::record::import::{ClientRequest, ClientRun, Clock, Tool};
use crate::record::{RunRecord, Status};
use crate::units::SimTime;

/// Whose eyes a run is seen with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum View {
    /// llmperf's `token_benchmark_ray.py`.
    Llmperf,
    /// A script with a pool of threads that counts words.
    ThreadPool {
        /// Words of an answer for each of its tokens.
        words_per_token: f64,
    },
    /// `vllm bench serve`.
    VllmBench,
}

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolFigure {
    /// As the load generator calls it.
    pub name: String,
    /// Its value; `None` where the run does not give it.
    pub value: Option<f64>,
}

/// The latencies and sizes that llmperf prints.
pub const LLMPERF_METRICS: [&str; 6] = [
    "ttft_s",
    "end_to_end_latency_s",
    "inter_token_latency_s",
    "request_output_throughput_token_per_s",
    "number_input_tokens",
    "number_output_tokens",
];
/// The statistics that llmperf prints of each, as its summary file names them.
pub const LLMPERF_STATISTICS: [&str; 10] = [
    "quantiles_p25",
    "quantiles_p50",
    "quantiles_p75",
    "quantiles_p90",
    "quantiles_p95",
    "quantiles_p99",
    "mean",
    "min",
    "max",
    "stddev",
];
const LLMPERF_TOTALS: [&str; 6] = [
    "num_requests_started",
    "error_rate",
    "number_errors",
    "mean_output_throughput_token_per_s",
    "num_completed_requests",
    "num_completed_requests_per_min",
];
const VLLM_TOTALS: [&str; 8] = [
    "completed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
];
const VLLM_METRICS: [&str; 6] = [
    "ttft",
    "tpot",
    "itl",
    "e2el",
    "client_queue_time",
    "e2el_including_client_queue",
];

impl View {
    /// The load generator's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llmperf => "llmperf",
            Self::ThreadPool { .. } => "thread-pool",
            Self::VllmBench => "vllm-bench",
        }
    }

    /// Everything that the load generator prints, in its order.
    pub fn figures(self, run: &RunRecord) -> Vec<ToolFigure> {
        match self {
            Self::Llmperf => {
                let metrics = LLMPERF_METRICS
                    .iter()
                    .flat_map(|m| LLMPERF_STATISTICS.map(|s| format!("results_{m}_{s}")));
                let totals = LLMPERF_TOTALS.iter().map(|t| format!("results_{t}"));
                named(&client_run(run, Tool::Llmperf), metrics.chain(totals).collect())
            }
            Self::VllmBench => {
                let totals = VLLM_TOTALS.iter().map(|t| (*t).to_owned());
                let metrics = VLLM_METRICS
                    .iter()
                    .flat_map(|m| ["mean", "median", "p99"].map(|s| format!("{s}_{m}_ms")));
                named(&client_run(run, Tool::VllmBench), totals.chain(metrics).collect())
            }
            Self::ThreadPool { words_per_token } => script_figures(run, words_per_token),
        }
    }
}

fn named(run: &ClientRun, names: Vec<String>) -> Vec<ToolFigure> {
    let values: Vec<Option<f64>> = figures_named(run, names.iter().map(String::as_str))
        .into_iter()
        .map(|(_, value)| value)
        .collect();
    let figures = names.into_iter().zip(values);
    figures.map(|(name, value)| ToolFigure { name, value }).collect()
}

/// A recorded run in the terms in which load generators' files are read. What was not counted is not in it.
pub fn client_run(run: &RunRecord, tool: Tool) -> ClientRun {
    let counted = || {
        // What was cut off, a load generator does not know of.
        Window::WHOLE
            .select(run)
            .filter(|r| !matches!(r.status, Status::Unfinished | Status::Unsent))
    };
    let first = counted().map(|r| r.sent).min().unwrap_or_default();
    let from_first = |at: SimTime| at.as_secs_f64() - first.as_secs_f64();
    let mut requests: Vec<ClientRequest> = counted()
        .map(|r| {
            let mut chunks: Vec<SimTime> = if r.first_token.is_some() && keeps_tokens(r) {
                run.token_times(r).collect()
            } else {
                Vec::new()
            };
            chunks.dedup();
            ClientRequest {
                due_s: Some(from_first(r.scheduled)),
                sent_s: from_first(r.sent),
                // An answer that comes whole begins when it ends.
                first_s: r.first_token.or(r.last_token).map(from_first),
                last_s: r.last_token.map(from_first),
                end_s: r.last_token.map(from_first),
                chunks_s: chunks.into_iter().map(from_first).collect(),
                queued_s: Some(r.sent.since(r.scheduled).as_secs_f64()),
                input_tokens: Some(r.input_tokens),
                output_tokens: r.output_tokens,
                counted_tokens: r.output_tokens,
                priority: r.priority,
                error: (r.status == Status::Rejected).then(|| "rejected".to_owned()),
                ..ClientRequest::default()
            }
        })
        .collect();
    requests.sort_by(|a, b| a.sent_s.total_cmp(&b.sent_s));
    ClientRun {
        tool,
        name: None,
        requests,
        clock: Clock::Own,
        t0_s: first.as_secs_f64(),
        duration_s: Some(match tool {
            Tool::VllmBench => benchmark_duration(run).as_secs_f64(),
            _ => run.end.as_secs_f64(),
        }),
        concurrency: None,
        printed: Vec::new(),
        notes: Vec::new(),
    }
}

/// The script's figures: percentiles by index `int(n * q)` of the sorted latencies, so that of fewer than 100 the p99 is
/// the maximum; the median between the middle two; and "tokens per second" as words over the sum of latencies, which is
/// the speed of one request and does not rise with the number of workers.
fn script_figures(run: &RunRecord, words_per_token: f64) -> Vec<ToolFigure> {
    let whole = client_run(run, Tool::Csv);
    let done: Vec<&ClientRequest> = whole.completed().collect();
    let mut latencies: Vec<f64> = done.iter().filter_map(|r| Some(r.last_s? - r.sent_s)).collect();
    let words: f64 = done
        .iter()
        .map(|r| words_per_token * f64::from(r.counted_tokens))
        .sum();
    let n = latencies.len() as f64;
    let total: f64 = latencies.iter().sum();
    let ratio = |a: f64, b: f64| (b > 0.0).then(|| a / b);
    let statistic = |values: &mut Vec<f64>, name: &str| statistic_of(values, name, Spread::Sample);
    let [mean, median, min, max] = ["mean", "median", "min", "max"].map(|s| statistic(&mut latencies, s));
    let wall_s = whole.duration_s.unwrap_or(0.0);
    [
        ("requests", Some(n)),
        ("mean_latency_s", mean),
        ("median_latency_s", median),
        ("p95_latency_s", by_index(&latencies, 0.95)),
        ("p99_latency_s", by_index(&latencies, 0.99)),
        ("min_latency_s", min),
        ("max_latency_s", max),
        ("words_per_response", ratio(words, n)),
        ("tokens_per_second", ratio(words, total)),
        ("wall_clock_s", Some(wall_s)),
        ("requests_per_second", ratio(n, wall_s)),
    ]
    .map(|(name, value)| ToolFigure {
        name: name.to_owned(),
        value,
    })
    .into()
}

/// The value at index `int(n * q)` of sorted values, the last at most.
fn by_index(sorted: &[f64], q: f64) -> Option<f64> {
    let index = (sorted.len() as f64 * q) as usize;
    sorted.get(index).or(sorted.last()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::three_requests;
    use crate::record::TokenLog;

    fn value(view: View, run: &RunRecord, name: &str) -> f64 {
        let figures = view.figures(run);
        let found = figures.iter().find(|f| f.name == name);
        found.and_then(|f| f.value).unwrap_or(f64::NAN)
    }

    fn near(view: View, run: &RunRecord, name: &str, expected: f64) {
        let found = value(view, run, name);
        assert!(
            (found - expected).abs() < 1e-12,
            "{name}: {found} instead of {expected}"
        );
    }

    #[test]
    fn llmperf_divides_the_whole_latency_by_the_tokens() {
        // From send: E2E 26, 36, 19 ms for 3, 5 and 1 tokens; TTFT 10, 14, 19 ms; the run lasts 60 ms.
        let run = three_requests();
        let tokens: Vec<u32> = run.requests.iter().take(3).map(|r| r.output_tokens).collect();
        assert_eq!(tokens, [3, 5, 1]);
        let is = |name: &str, expected| near(View::Llmperf, &run, &format!("results_{name}"), expected);
        is(
            "inter_token_latency_s_mean",
            (0.026 / 3.0 + 0.036 / 5.0 + 0.019) / 3.0,
        );
        is("ttft_s_quantiles_p50", 0.014);
        // Rank 2 * 0.99 = 1.98 between 14 and 19 ms.
        is("ttft_s_quantiles_p99", 0.0189);
        is("end_to_end_latency_s_max", 0.036);
        is(
            "request_output_throughput_token_per_s_mean",
            (3.0 / 0.026 + 5.0 / 0.036 + 1.0 / 0.019) / 3.0,
        );
        is("mean_output_throughput_token_per_s", 9.0 / 0.060);
        is("num_completed_requests_per_min", 3.0 / 0.060 * 60.0);
        is("num_requests_started", 4.0);
        is("number_errors", 1.0);
        is("error_rate", 0.25);
    }

    /// T20: TTFT 0.25 s, E2E 1.18 s, 99 tokens.
    #[test]
    fn an_inter_token_latency_with_the_ttft_inside() {
        let mut run = three_requests();
        run.requests.truncate(1);
        let r = &mut run.requests[0];
        (r.scheduled, r.sent) = (SimTime(0), SimTime(0));
        (r.first_token, r.last_token) = (Some(SimTime(250_000_000)), Some(SimTime(1_180_000_000)));
        r.output_tokens = 99;
        r.tokens = TokenLog::Times(Vec::new());
        near(
            View::Llmperf,
            &run,
            "results_inter_token_latency_s_mean",
            1.18 / 99.0,
        );
        let printed = value(View::Llmperf, &run, "results_inter_token_latency_s_mean");
        assert_eq!(format!("{printed:.4}"), "0.0119");
    }

    #[test]
    fn what_was_not_counted_is_in_no_figure() {
        let mut run = three_requests();
        run.requests[1].status = Status::Surplus;
        near(View::Llmperf, &run, "results_num_completed_requests", 2.0);
        near(View::Llmperf, &run, "results_end_to_end_latency_s_max", 0.026);
    }

    #[test]
    fn the_script_takes_percentiles_by_index() {
        // Latencies of 1 to 30 s with 10 tokens each.
        let mut run = three_requests();
        let template = run.requests[0].clone();
        run.requests = (1..=30)
            .map(|s| {
                let mut r = template.clone();
                (r.scheduled, r.sent) = (SimTime(0), SimTime(0));
                (r.first_token, r.last_token) = (None, Some(SimTime(s * 1_000_000_000)));
                r.output_tokens = 10;
                r.tokens = TokenLog::Times(Vec::new());
                r
            })
            .collect();
        run.end = SimTime(93_000_000_000);
        let view = View::ThreadPool { words_per_token: 0.5 };
        // int(28.5) = 28: the 29th; int(29.7) = 29: the last.
        near(view, &run, "p95_latency_s", 29.0);
        near(view, &run, "p99_latency_s", 30.0);
        near(view, &run, "median_latency_s", 15.5);
        near(view, &run, "words_per_response", 5.0);
        // 150 words over 465 s of latency, though five workers needed 93 s.
        near(view, &run, "tokens_per_second", 150.0 / 465.0);
        near(view, &run, "requests_per_second", 30.0 / 93.0);
    }

    #[test]
    fn vllm_starts_its_clock_at_the_send_and_tells_the_wait_apart() {
        let run = three_requests();
        near(View::VllmBench, &run, "mean_client_queue_time_ms", 2.0 / 3.0);
        near(View::VllmBench, &run, "mean_ttft_ms", 43.0 / 3.0);
        near(
            View::VllmBench,
            &run,
            "mean_e2el_including_client_queue_ms",
            83.0 / 3.0,
        );
    }
}
