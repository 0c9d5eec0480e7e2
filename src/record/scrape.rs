//! Gauges and counters of a server as a scraper reads them: now and then, not at every step.

/// One reading of a server's `/metrics`, all of its engines together.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Scrape {
    /// When, in seconds from the start of the run; negative before it.
    pub at_s: f64,
    /// Gauge: running requests (`vllm:num_requests_running`).
    pub running: f64,
    /// Gauge: waiting requests (`vllm:num_requests_waiting`).
    pub waiting: f64,
    /// Gauge: share of the KV blocks in use, 0 to 1 (`vllm:kv_cache_usage_perc`).
    pub kv_usage: Option<f64>,
    /// Counter: requests that ended (`vllm:request_success_total`).
    pub finished: Option<f64>,
    /// Counter: prompt tokens (`vllm:prompt_tokens_total`).
    pub prompt_tokens: Option<f64>,
    /// Counter: output tokens (`vllm:generation_tokens_total`).
    pub output_tokens: Option<f64>,
    /// Counter: preemptions (`vllm:num_preemptions_total`).
    pub preemptions: Option<f64>,
}
