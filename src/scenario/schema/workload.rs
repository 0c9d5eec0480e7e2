//! `workload` and `load`: what is asked, and how it is offered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::quantity::{Finite, Span};

/// Either a trace file or a synthetic workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// A trace file (CSV, see docs/FORMATS.md), relative to the scenario's folder.
    Trace(String),
    /// Requests drawn from laws.
    Synthetic(Synthetic),
}

/// Requests drawn from laws, once, before the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Synthetic {
    /// How many requests. Left out, an open-loop load offers requests until measure.warmup + measure.window.
    pub num_requests: Option<u32>,
    /// Prompt and output lengths, unless there are classes.
    pub lengths: Option<Lengths>,
    /// Shared prompt beginnings.
    pub prefix: Option<PrefixGroups>,
    /// Classes of priority; left out, all are 0.
    pub priorities: Option<Vec<PriorityClass>>,
    /// Chance that a speculative draft is accepted, given that all before it were.
    pub draft_acceptance: Option<Finite>,
    /// Kinds of requests, each with laws of its own in place of those above.
    pub classes: Option<Vec<RequestClass>>,
}

/// One kind of requests: an arrival process of its share of load.arrival.rate, and laws of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestClass {
    /// Its name, which names its random draws too: other classes and their order do not change them.
    pub name: String,
    /// Share of the requests; shares must sum to 1.
    pub share: Finite,
    /// Prompt and output lengths.
    pub lengths: Lengths,
    /// Shared prompt beginnings, shared within the class.
    pub prefix: Option<PrefixGroups>,
    /// Classes of priority; left out, all are 0.
    pub priorities: Option<Vec<PriorityClass>>,
    /// Chance that a speculative draft is accepted, given that all before it were.
    pub draft_acceptance: Option<Finite>,
}

/// Where lengths come from. Only one of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Lengths {
    /// All requests alike.
    Fixed(FixedLengths),
    /// Prompt and output drawn independently of each other, which real requests are not: reports say so.
    Independent(IndependentLengths),
    /// A CSV file with columns input_tokens and output_tokens (or another tool's names of them, see docs/FORMATS.md):
    /// whole rows are drawn with replacement.
    Rows(String),
}

/// All requests alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FixedLengths {
    /// Prompt tokens.
    pub input: u32,
    /// Output tokens.
    pub output: u32,
}

/// Two laws.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IndependentLengths {
    /// Prompt tokens.
    pub input: Law,
    /// Output tokens.
    pub output: Law,
}

/// A law of one length in tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Law {
    /// Always this many.
    Constant(u32),
    /// Whole numbers from min to max, both included.
    Uniform(UniformLaw),
    /// Normal, truncated to min..max.
    Normal(NormalLaw),
    /// Lognormal, truncated to min..max.
    Lognormal(LognormalLaw),
}

/// Bounds of a uniform law.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UniformLaw {
    /// Smallest.
    pub min: u32,
    /// Largest.
    pub max: u32,
}

/// A truncated normal law.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NormalLaw {
    /// Mean before truncation.
    pub mean: Finite,
    /// Standard deviation before truncation.
    pub std: Finite,
    /// Smallest.
    pub min: u32,
    /// Largest.
    pub max: u32,
    /// How a draw becomes a whole number; left out, the nearest one.
    pub rounding: Option<Rounding>,
}

/// How a draw becomes a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// To the nearest.
    Nearest,
    /// Down, as llmperf does: with min 1 its law is drawn again until it is positive.
    Down,
}

/// A truncated lognormal law.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LognormalLaw {
    /// Median before truncation.
    pub median: Finite,
    /// Standard deviation of the natural logarithms.
    pub sigma: Finite,
    /// Smallest.
    pub min: u32,
    /// Largest.
    pub max: u32,
}

/// Shared prompt beginnings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrefixGroups {
    /// Number of groups, equally likely.
    pub groups: u32,
    /// Leading tokens that the requests of a group share; part of the prompt's length.
    pub tokens: u32,
    /// Share of the requests that belong to a group, 0 to 1.
    pub share: Finite,
}

/// One class of priority.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriorityClass {
    /// Smaller is served first.
    pub priority: i32,
    /// Share of the requests; shares must sum to 1.
    pub share: Finite,
}

/// How requests are offered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Which of the three load models.
    pub model: LoadKind,
    /// Arrivals of an open-loop load, and of the requests that load.client.kind vllm-bench holds back.
    #[serde(default)]
    pub arrival: Arrival,
    /// Clients of a closed-loop load.
    pub concurrency: Option<u32>,
    /// Pause of a closed-loop client between an answer and its next request.
    pub think: Option<Span>,
    /// Which load generator the clients of a closed loop are, and what they run on.
    pub client: Option<Client>,
}

/// A load generator. See docs/METRICS.md for what each kind does and counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Which one.
    pub kind: ClientKind,
    /// llmperf: from the start of its clock to the first request, while its actors start; nothing is sent.
    pub start_up: Option<Span>,
    /// llmperf: from the first request of one client to that of the next.
    pub stagger: Option<Span>,
    /// llmperf: no request is sent after this time of its clock.
    pub timeout: Option<Span>,
    /// Added to load.think for each output token of the answer, which is tokenised again.
    pub think_per_token: Option<Span>,
    /// thread-pool: words of an answer for each of its tokens; an assumption about the text, which is not simulated.
    pub words_per_token: Option<Finite>,
    /// Cores of the client machine, which take its work (sends, chunks, think) first come, first served. Left out, the
    /// machine is never the limit and think is a pause.
    pub cores: Option<u32>,
    /// CPU time of a send; the request leaves when it is spent.
    pub send_cost: Option<Span>,
    /// CPU time of a received chunk; its tokens are seen when it is spent.
    pub chunk_cost: Option<Span>,
}

/// Load generators whose clients are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// Clients that send, wait, think and send the next request of a common queue.
    Plain,
    /// llmperf's token_benchmark_ray.py.
    Llmperf,
    /// A script with a pool of threads that receive each answer whole.
    ThreadPool,
    /// `vllm bench serve --max-concurrency`; load.arrival says when its requests become due, at once if left out.
    VllmBench,
}

/// The load models; their results never share a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LoadKind {
    /// Requests arrive on a schedule fixed beforehand.
    OpenLoop,
    /// A fixed number of clients: send, wait, think, send the next.
    ClosedLoop,
    /// Everything is ready at time 0.
    Offline,
}

/// Arrivals of an open-loop load.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// Which process; `trace` replays the times of a trace file.
    pub process: Option<Process>,
    /// Requests a second; with a pattern, the mean over a week. With `trace` it stretches the time axis to this mean
    /// rate.
    pub rate: Option<Finite>,
    /// Shape of gamma gaps, as in vLLM's benchmark: 1 is Poisson, below 1 burstier.
    pub burstiness: Option<Finite>,
    /// Stretch the times so that the last of n arrivals is at n / rate, as vLLM's benchmark does.
    pub rescale: Option<bool>,
    /// Factor on the times of a trace: 0.5 doubles the load.
    pub time_scale: Option<Finite>,
    /// How the rate goes with the time of the day and of the week; left out, it stands still.
    pub pattern: Option<RatePattern>,
}

/// A rate that goes with the time. Time 0 is a midnight, load.arrival.rate the mean over a week, and the gaps keep
/// the law and the burstiness of the process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RatePattern {
    /// Highest rate of a day over the mean of that day, on a sine wave; 1 to 2, 1 = no wave.
    pub daily_peak_to_mean: Option<Finite>,
    /// Hour of the highest rate, 0 to 24.
    pub peak_hour: Option<Finite>,
    /// Mean rate of Saturdays and Sundays over that of the other days; from 0 on, 1 = all days alike.
    pub weekend: Option<Finite>,
    /// The day that begins at time 0.
    pub starts: Option<Day>,
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Day {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// Arrival processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    /// Exponential gaps.
    Poisson,
    /// Gamma gaps.
    Gamma,
    /// Equal gaps.
    Constant,
    /// The times of the trace file.
    Trace,
}
