//! What load generators write about each request, read as one kind of run whatever the tool.
//!
//! Every importer keeps the instants that the tool measured; what the tool *calls* TTFT, ITL or TPOT differs
//! from tool to tool and is recomputed by [`crate::metric::lens`].

mod aiperf;
mod genai_perf;
mod guidellm;
mod inference_perf;
mod llmperf;
mod scrapes;
mod table;
mod vllm_bench;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::input::{InputError, read_text};

pub use scrapes::{ScrapeSeries, read_scrapes};
pub use table::{Columns, TableOptions};

/// Most tokens of one request; more is a broken file.
const MAX_TOKENS: u64 = 1 << 24;

/// A load generator whose files are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// `vllm bench serve --save-result --save-detailed`.
    VllmBench,
    /// guidellm `benchmarks.json`.
    Guidellm,
    /// aiperf `profile_export.jsonl`.
    Aiperf,
    /// genai-perf `profile_export.json`.
    GenaiPerf,
    /// inference-perf `per_request_lifecycle_metrics.json`.
    InferencePerf,
    /// llmperf `*_individual_responses.json`.
    Llmperf,
    /// Any table with a row a request.
    Csv,
}

impl Tool {
    /// Every tool.
    pub const ALL: [Self; 7] = [
        Self::VllmBench,
        Self::Guidellm,
        Self::Aiperf,
        Self::GenaiPerf,
        Self::InferencePerf,
        Self::Llmperf,
        Self::Csv,
    ];

    /// Its name on the command line and in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::VllmBench => "vllm-bench",
            Self::Guidellm => "guidellm",
            Self::Aiperf => "aiperf",
            Self::GenaiPerf => "genai-perf",
            Self::InferencePerf => "inference-perf",
            Self::Llmperf => "llmperf",
            Self::Csv => "csv",
        }
    }
}

impl Tool {
    /// The tool of this name.
    ///
    /// # Errors
    /// [`InputError`] with the nearest name.
    pub fn named(name: &str) -> Result<Self, InputError> {
        Self::ALL.into_iter().find(|t| t.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            InputError::new("--tool", format!("unknown tool '{name}'"))
                .allowed(format!("known: {}", names.join(", ")))
                .nearest_of(name, names)
        })
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The clock that a tool's instants stand on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// Seconds since 1970.
    Unix,
    /// The machine's monotonic clock.
    Monotonic,
    /// None that another file could be joined by.
    #[default]
    Own,
}

/// One request as its sender saw it. Instants are seconds from the first send of the run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClientRequest {
    /// The name under which the server knows it, or a part of it.
    pub id: Option<String>,
    /// When it was due, if the tool says so.
    pub due_s: Option<f64>,
    /// Sent: where the tool's latencies start.
    pub sent_s: f64,
    /// First token as the tool counts it.
    pub first_s: Option<f64>,
    /// Last token: where the tool's latency ends.
    pub last_s: Option<f64>,
    /// End of the answer (usage, `[DONE]`), where it is told apart.
    pub end_s: Option<f64>,
    /// Instants of the chunks that brought tokens; empty when they were not kept.
    pub chunks_s: Vec<f64>,
    /// The first of `chunks_s` brought a role and no token.
    pub leading_role_chunk: bool,
    /// Wait for a free slot of the tool before it was sent.
    pub queued_s: Option<f64>,
    /// Prompt tokens, the server's count where there is one.
    pub input_tokens: Option<u32>,
    /// Output tokens, the server's count where there is one.
    pub output_tokens: u32,
    /// Output tokens that the tool's own figures divide by; a client that tokenizes the answer again finds
    /// another number.
    pub counted_tokens: u32,
    /// The cap sent with it.
    pub requested_tokens: Option<u32>,
    /// Prompt tokens from the prefix cache, where they are told.
    pub cached_tokens: Option<u32>,
    /// Requests of one group share their first `prefix_tokens` tokens.
    pub prefix_group: Option<u32>,
    /// Length of what they share.
    pub prefix_tokens: u32,
    /// Scheduling priority.
    pub priority: i32,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl ClientRequest {
    /// It was served to its end.
    pub fn completed(&self) -> bool {
        self.error.is_none() && self.first_s.is_some() && self.last_s.is_some()
    }

    /// When its first token came: a leading chunk with a role alone is none.
    pub fn first_token_s(&self) -> Option<f64> {
        match self.chunks_s.get(1) {
            Some(&second) if self.leading_role_chunk => Some(second),
            _ => self.first_s,
        }
    }

    /// One instant a token, tokens of one chunk at one instant; empty when the tool kept too little. Where the
    /// server merged tokens into fewer chunks, the missing ones are counted at the last.
    pub fn token_times(&self) -> Vec<f64> {
        let chunks = &self.chunks_s[usize::from(self.leading_role_chunk && self.chunks_s.len() > 1)..];
        let n = self.output_tokens as usize;
        match chunks.last() {
            Some(&last) if chunks.len() <= n => {
                let mut times = chunks.to_vec();
                times.resize(n, last);
                times
            }
            _ => Vec::new(),
        }
    }
}

/// One run of a load generator.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientRun {
    /// Who wrote it.
    pub tool: Tool,
    /// Name of the run inside its file, where the file has several.
    pub name: Option<String>,
    /// Requests by the time they were sent.
    pub requests: Vec<ClientRequest>,
    /// The clock of the instants.
    pub clock: Clock,
    /// The first send on that clock.
    pub t0_s: f64,
    /// Length of the run as the tool reports it, in seconds, where it cannot be told from the requests.
    pub duration_s: Option<f64>,
    /// Clients of a closed loop.
    pub concurrency: Option<u32>,
    /// The tool's own figures by their names in its files.
    pub printed: Vec<(String, f64)>,
    /// What was missing and assumed, or must be known to read the file.
    pub notes: Vec<String>,
}

impl ClientRun {
    fn new(tool: Tool) -> Self {
        Self {
            tool,
            name: None,
            requests: Vec::new(),
            clock: Clock::Own,
            t0_s: 0.0,
            duration_s: None,
            concurrency: None,
            printed: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Requests that were served.
    pub fn completed(&self) -> impl Iterator<Item = &ClientRequest> {
        self.requests.iter().filter(|r| r.completed())
    }

    /// Puts time 0 at the first send and the requests in its order, and checks every instant.
    fn settle(mut self, path: &Path) -> Result<Self, InputError> {
        if self.requests.is_empty() {
            return Err(InputError::in_file(path, "holds no request").allowed("at least one request"));
        }
        let sane = |t: f64| t.is_finite() && t.abs() < 1e12;
        for (index, r) in self.requests.iter().enumerate() {
            let wrong = |found: String| InputError::in_file(path, found).at(format!("request {index}"));
            let instants = [Some(r.sent_s), r.due_s, r.first_s, r.last_s, r.end_s, r.queued_s];
            if !instants
                .into_iter()
                .flatten()
                .chain(r.chunks_s.iter().copied())
                .all(sane)
            {
                return Err(wrong("a time is not a number of seconds".into()).allowed("finite times"));
            }
            if r.chunks_s.windows(2).any(|w| w[1] < w[0]) {
                return Err(wrong("its chunks go back in time".into()));
            }
            // A last digit may have been rounded away.
            let before = |a: f64, b: Option<f64>| b.is_some_and(|b| b < a - 1e-5);
            if before(r.sent_s, r.first_s) || r.first_s.is_some_and(|f| before(f, r.last_s)) {
                return Err(wrong(
                    "its tokens come before it was sent, or the last before the first".into(),
                ));
            }
            if u64::from(r.output_tokens.max(r.input_tokens.unwrap_or(0))) > MAX_TOKENS {
                return Err(
                    wrong("its lengths cannot be".into()).allowed(format!("up to {MAX_TOKENS} tokens"))
                );
            }
        }
        let first = self
            .requests
            .iter()
            .map(|r| r.sent_s)
            .fold(f64::INFINITY, f64::min);
        for r in &mut self.requests {
            for t in [
                Some(&mut r.sent_s),
                r.due_s.as_mut(),
                r.first_s.as_mut(),
                r.last_s.as_mut(),
                r.end_s.as_mut(),
            ]
            .into_iter()
            .flatten()
            .chain(&mut r.chunks_s)
            {
                *t -= first;
            }
        }
        self.t0_s += first;
        self.requests.sort_by(|a, b| a.sent_s.total_cmp(&b.sent_s));
        Ok(self)
    }
}

/// What only the user knows of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImportOptions {
    /// Which tool wrote it; told from the file when it is not given.
    pub tool: Option<Tool>,
    /// Clients of a closed loop, where the file does not tell.
    pub concurrency: Option<u32>,
    /// Prompt tokens, where the file does not tell.
    pub input_tokens: Option<u32>,
    /// How to read a table.
    pub table: TableOptions,
}

/// Reads every run of a file, plain or gzipped.
///
/// # Errors
/// [`InputError`] for a file that is no tool's, broken, or without what a capture needs.
pub fn read(path: &Path, options: &ImportOptions) -> Result<Vec<ClientRun>, InputError> {
    let text = read_text(path)?;
    let tool = match options.tool {
        Some(tool) => tool,
        None => detect(path, &text)?,
    };
    let mut runs = match tool {
        Tool::VllmBench => vllm_bench::read(path, &text)?,
        Tool::Guidellm => guidellm::read(path, &text)?,
        Tool::Aiperf => aiperf::read(path, &text)?,
        Tool::GenaiPerf => genai_perf::read(path, &text)?,
        Tool::InferencePerf => inference_perf::read(path, &text)?,
        Tool::Llmperf => llmperf::read(path, &text, options)?,
        Tool::Csv => table::read(path, &text, &options.table)?,
    };
    for run in &mut runs {
        if options.concurrency.is_some() {
            run.concurrency = options.concurrency;
        }
        fill_input_tokens(path, run, options.input_tokens)?;
    }
    Ok(runs)
}

/// Prompts of unknown length cannot be simulated: the user's word is taken for them.
fn fill_input_tokens(path: &Path, run: &mut ClientRun, given: Option<u32>) -> Result<(), InputError> {
    let missing = run
        .requests
        .iter()
        .filter(|r| r.input_tokens.is_none() && r.completed())
        .count();
    if missing == 0 {
        return Ok(());
    }
    let Some(tokens) = given else {
        return Err(InputError::in_file(
            path,
            format!("{missing} requests have no prompt length: {} does not write it", run.tool),
        )
        .allowed(
            "give --engine with the server's own record of the same requests, or --input-tokens N for all of them",
        ));
    };
    run.notes.push(format!(
        "input_tokens = {tokens} for {missing} requests (given; the file has none)"
    ));
    for r in &mut run.requests {
        r.input_tokens = r.input_tokens.or(Some(tokens));
    }
    Ok(())
}

/// Which tool a file is of, by its keys.
fn detect(path: &Path, text: &str) -> Result<Tool, InputError> {
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let name = name.trim_end_matches(".gz");
    if name.ends_with(".jsonl") {
        return Ok(Tool::Aiperf);
    }
    if name.ends_with(".csv") {
        return Ok(Tool::Csv);
    }
    let unknown = |found: String| {
        let tools = Tool::ALL.map(Tool::name).join(", ");
        InputError::in_file(path, found).allowed(format!(
            "the per-request file of one of: {tools}; --tool says which it is"
        ))
    };
    let value: Value =
        serde_json::from_str(text).map_err(|e| unknown(format!("is no whole JSON document ({e})")))?;
    let first = value.as_array().and_then(|rows| rows.first()).unwrap_or(&value);
    let has = |key: &str| first.get(key).is_some();
    let known = [
        ("benchmarks", Tool::Guidellm),
        ("experiments", Tool::GenaiPerf),
        ("start_times", Tool::VllmBench),
        ("ttfts", Tool::VllmBench),
        ("input_lens", Tool::VllmBench),
        ("ttft_s", Tool::Llmperf),
        ("end_to_end_latency_s", Tool::Llmperf),
        ("start_time", Tool::InferencePerf),
        ("metadata", Tool::Aiperf),
    ];
    if let Some((_, tool)) = known.iter().find(|(key, _)| has(key)) {
        return Ok(*tool);
    }
    if has("request_throughput") && has("mean_ttft_ms") {
        return Err(
            unknown("is a summary of vllm bench serve without the requests".into())
                .allowed("run it with --save-result --save-detailed"),
        );
    }
    Err(unknown("is no file of a known tool".into()))
}

/// Parses a JSON document; errors name the field.
fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, InputError> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|e| {
        InputError::in_file(path, format!("cannot be used ({})", e.inner()))
            .at_field(e.path())
            .allowed("a whole file as the tool wrote it; it may have been cut off")
    })?;
    json.end().map_err(|e| InputError::in_file(path, e.to_string()))?;
    Ok(value)
}

/// A file beside `path`, which tools write along with it.
fn sibling(path: &Path, name: &str) -> Option<PathBuf> {
    let folder = path.parent()?;
    [name.to_owned(), format!("{name}.gz")]
        .iter()
        .map(|n| folder.join(n))
        .find(|p| p.is_file())
}

/// The numbers of a JSON tree by their dotted paths, those that `wanted` names.
fn numbers(value: &Value, wanted: impl Fn(&str) -> bool) -> Vec<(String, f64)> {
    fn walk(value: &Value, at: &str, out: &mut Vec<(String, f64)>) {
        match value {
            Value::Object(map) => {
                for (key, inner) in map {
                    let path = if at.is_empty() {
                        key.clone()
                    } else {
                        format!("{at}.{key}")
                    };
                    walk(inner, &path, out);
                }
            }
            Value::Number(n) => out.extend(n.as_f64().map(|x| (at.to_owned(), x))),
            _ => {}
        }
    }
    let mut all = Vec::new();
    walk(value, "", &mut all);
    all.retain(|(name, _)| wanted(name));
    all
}

#[cfg(test)]
mod tests;
