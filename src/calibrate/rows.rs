//! The rows of a capture: engine steps and requests.

use std::path::Path;

use super::assume::TimeUnit;
use super::outside::{OuterTimes, has_failed, outer_times};
use super::table::{Header, Row, Table};
use crate::input::InputError;
use crate::steptime::BatchShape;

/// Most tokens of one request or step; more is a broken file, and sums of contexts stay within 64 bits.
const MAX_TOKENS: u32 = 1 << 24;
/// Most rows of one batch.
const MAX_BATCH_ROWS: u32 = 1 << 14;
/// Clock readings are written with 6 decimals, so two that were equal may differ by one unit.
pub(super) const CLOCK_ROUNDING_S: f64 = 2e-6;

const STEP_COLUMNS: &[&str] = &[
    "step",
    "t_start_s",
    "t_end_s",
    "schedule_s",
    "execute_s",
    "execute_cpu_s",
    "update_s",
    "probe_s",
    "step_cpu_s",
    "running_before",
    "waiting_before",
    "running",
    "waiting",
    "num_seqs",
    "prefill_seqs",
    "decode_seqs",
    "prefill_tokens",
    "decode_tokens",
    "decode_context_tokens",
    "prefill_token_context",
    "free_blocks",
    "preempted",
    "added_total",
    "work",
];

/// Columns that a table of steps may lack: probes before these wrote none.
const OPTIONAL_STEP_COLUMNS: &[&str] = &["probe_s", "added_total"];

/// Columns of requests. A client's table has the first six; one of the engine's has more, under the names of
/// the in-process capture or of the live server's probe.
const REQUEST_COLUMNS: &[&str] = &[
    "id",
    "arrival_s",
    "request_id",
    "status",
    "error",
    "api_call_s",
    "engine_recv_s",
    "engine_add_s",
    "api_first_s",
    "api_last_s",
    "client_send_s",
    "client_first_token_s",
    "client_last_token_s",
    "max_tokens",
    "add_start_s",
    "add_end_s",
    "first_scheduled_s",
    "first_token_s",
    "last_token_s",
    "input_tokens",
    "cached_input_tokens",
    "computed_input_tokens",
    "requested_output_tokens",
    "output_tokens",
    "preemptions",
    "finish_reason",
    "prefix_group",
    "prefix_tokens",
    "priority",
    "seed",
];

/// What one request was granted in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkRow {
    /// The request: its row in the trace.
    pub id: u32,
    /// Tokens scheduled.
    pub tokens: u32,
    /// Tokens computed before.
    pub computed: u32,
}

/// One engine step as it was recorded. Times are seconds from the start of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct CaptureStep {
    /// Start of the engine's `step()`.
    pub t_start_s: f64,
    /// Its end, when the step's tokens are visible.
    pub t_end_s: f64,
    /// Inside the scheduler's `schedule`.
    pub schedule_s: f64,
    /// Inside the model: execution and sampling, by the wall clock.
    pub execute_s: f64,
    /// The same, in CPU seconds of the thread.
    pub execute_cpu_s: f64,
    /// Inside the scheduler's `update_from_output`.
    pub update_s: f64,
    /// Taken by the probe itself.
    pub probe_s: f64,
    /// CPU seconds of the thread in the whole step.
    pub step_cpu_s: f64,
    /// Running requests before `schedule`.
    pub running_before: u32,
    /// Waiting requests before `schedule`.
    pub waiting_before: u32,
    /// Running requests after `schedule`.
    pub running: u32,
    /// Waiting requests after `schedule`.
    pub waiting: u32,
    /// The batch.
    pub batch: BatchShape,
    /// Free KV blocks after `schedule`; evictable cached blocks count as free.
    pub free_blocks: u32,
    /// Preemptions in this `schedule` call.
    pub preempted: u32,
    /// Requests added since the run began, before this step.
    pub added_total: u32,
    /// Grants in schedule order.
    pub work: Vec<WorkRow>,
}

impl CaptureStep {
    /// Length of the step in seconds, by the wall clock.
    pub fn duration_s(&self) -> f64 {
        self.t_end_s - self.t_start_s
    }

    /// Seconds of the execution in which the thread did not have the core.
    pub fn off_cpu_s(&self) -> f64 {
        self.execute_s - self.execute_cpu_s
    }
}

/// The columns without which a table of requests says nothing. With steps there must also be the engine's.
fn is_required(header: &Header<'_>, name: &str, with_steps: bool) -> bool {
    let live = header.has("engine_recv_s");
    match name {
        "id" | "first_token_s" | "last_token_s" | "input_tokens" | "output_tokens" => true,
        "arrival_s" => !live,
        "engine_add_s" | "max_tokens" => live,
        "add_end_s" | "computed_input_tokens" | "requested_output_tokens" => with_steps && !live,
        "first_scheduled_s" | "cached_input_tokens" => with_steps,
        _ => false,
    }
}

/// One request as it was recorded. Times are seconds from the start of the run; a run that was cut off leaves
/// some of them empty.
#[derive(Debug, Clone, PartialEq)]
pub struct CaptureRequest {
    /// Its row in the table.
    pub id: u32,
    /// When it was due; in mode `batch` the number of its group.
    pub arrival_s: f64,
    /// Start of its `add_request`.
    pub add_start_s: Option<f64>,
    /// End of its `add_request`.
    pub add_end_s: Option<f64>,
    /// Start of the first `schedule` that took it.
    pub first_scheduled_s: Option<f64>,
    /// First output token.
    pub first_token_s: Option<f64>,
    /// Last output token.
    pub last_token_s: Option<f64>,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Prompt tokens found in the prefix cache when it was first scheduled.
    pub cached_input_tokens: u32,
    /// The others.
    pub computed_input_tokens: u32,
    /// The cap sent with it (`max_tokens`).
    pub requested_output_tokens: u32,
    /// Output tokens produced.
    pub output_tokens: u32,
    /// Times it was preempted.
    pub preemptions: u32,
    /// `length`, `stop`, or empty when it was cut off.
    pub finish_reason: String,
    /// Requests of one group share their first `prefix_tokens` tokens.
    pub prefix_group: Option<u32>,
    /// Length of the shared beginning.
    pub prefix_tokens: u32,
    /// Scheduling priority; smaller first.
    pub priority: i32,
    /// Seed of its own tokens.
    pub seed: u64,
    /// The name that client and server know it by.
    pub request_id: Option<String>,
    /// It came back with an error. Such a request is counted and left out.
    pub failed: bool,
    /// Its times outside of the engine, where the capture has both.
    pub outer: Option<OuterTimes>,
}

/// Parses the table of requests; ids count up from 0 and arrivals never go back. `unit` is that of its times.
pub(super) fn read_requests(
    path: &Path,
    text: &str,
    unit: TimeUnit,
    with_steps: bool,
) -> Result<Vec<CaptureRequest>, InputError> {
    let mut last_arrival = 0.0;
    let table = Table::open(path, text, REQUEST_COLUMNS, |header, name| {
        is_required(header, name, with_steps)
    })?;
    let rows = table.in_units(unit.per_second()).read_rows(|index, row| {
        expect_index(row, "id", index)?;
        let request = parse_request(row)?;
        if request.arrival_s < last_arrival {
            return Err(row
                .cell_error(
                    arrival_column(row),
                    format!("{} s is before the row above", request.arrival_s),
                )
                .allowed("arrivals in ascending order"));
        }
        last_arrival = request.arrival_s;
        Ok(request)
    })?;
    if rows.is_empty() {
        return Err(InputError::in_file(path, "has no request").allowed("at least one row"));
    }
    Ok(rows)
}

/// When a request came to the engine's process: a live server's probe calls it `engine_recv_s`.
fn arrival_column(row: &Row<'_>) -> &'static str {
    row.first_of(&["arrival_s", "engine_recv_s"])
        .unwrap_or("arrival_s")
}

fn parse_request(row: &Row<'_>) -> Result<CaptureRequest, InputError> {
    let optional_time = |columns: &[&'static str]| match row.first_of(columns) {
        Some(column) => row.optional_seconds(column),
        None => Ok(None),
    };
    let failed = has_failed(row)?;
    // Of a request that failed the lengths may be unknown.
    let tokens = |column: &'static str| match row.text(column) {
        "" if failed => Ok(0),
        _ => row.count(column, MAX_TOKENS),
    };
    let (input_tokens, output_tokens) = (tokens("input_tokens")?, tokens("output_tokens")?);
    let cap = row.first_of(&["requested_output_tokens", "max_tokens"]);
    let cached = row.count_or("cached_input_tokens", MAX_TOKENS, 0)?;
    let group: i64 = row.integer_or("prefix_group", -1)?;
    let request = CaptureRequest {
        id: row.integer("id")?,
        arrival_s: row.seconds(arrival_column(row))?,
        add_start_s: optional_time(&["add_start_s"])?,
        add_end_s: optional_time(&["add_end_s", "engine_add_s"])?,
        first_scheduled_s: optional_time(&["first_scheduled_s"])?,
        first_token_s: optional_time(&["first_token_s"])?,
        last_token_s: optional_time(&["last_token_s"])?,
        input_tokens,
        cached_input_tokens: cached,
        computed_input_tokens: row.count_or(
            "computed_input_tokens",
            MAX_TOKENS,
            input_tokens.saturating_sub(cached),
        )?,
        requested_output_tokens: match cap {
            Some(column) => tokens(column)?,
            None => output_tokens,
        },
        output_tokens,
        preemptions: row.integer_or("preemptions", 0)?,
        finish_reason: row.text("finish_reason").to_owned(),
        prefix_group: u32::try_from(group).ok(),
        prefix_tokens: row.count_or("prefix_tokens", MAX_TOKENS, 0)?,
        priority: row.integer_or("priority", 0)?,
        seed: row.integer_or("seed", 0)?,
        request_id: Some(row.text("request_id"))
            .filter(|id| !id.is_empty())
            .map(str::to_owned),
        failed,
        outer: outer_times(row)?,
    };
    if group > i64::from(u32::MAX) {
        return Err(row.cell_error("prefix_group", format!("{group} is too large")));
    }
    if !failed {
        check_counts(row, &request, cap)?;
        check_order(row, &request)?;
    }
    Ok(request)
}

fn check_counts(
    row: &Row<'_>,
    request: &CaptureRequest,
    cap: Option<&'static str>,
) -> Result<(), InputError> {
    for column in ["input_tokens", cap.unwrap_or("output_tokens")] {
        if row.text(column).bytes().all(|b| b == b'0') {
            return Err(row.cell_error(column, "0 tokens").allowed("at least 1"));
        }
    }
    if request.cached_input_tokens + request.computed_input_tokens != request.input_tokens {
        return Err(row.error(format!(
            "cached_input_tokens {} and computed_input_tokens {} do not add up to input_tokens {}",
            request.cached_input_tokens, request.computed_input_tokens, request.input_tokens
        )));
    }
    if request.output_tokens > request.requested_output_tokens {
        return Err(row
            .cell_error("output_tokens", format!("{} tokens", request.output_tokens))
            .allowed(format!(
                "at most the {} requested",
                request.requested_output_tokens
            )));
    }
    Ok(())
}

fn check_order(row: &Row<'_>, request: &CaptureRequest) -> Result<(), InputError> {
    let marks = [
        ("add_start_s", request.add_start_s),
        ("add_end_s", request.add_end_s),
        ("first_scheduled_s", request.first_scheduled_s),
        ("first_token_s", request.first_token_s),
        ("last_token_s", request.last_token_s),
    ];
    // The start of the scheduler is kept on a clock that was joined to the run's afterwards.
    let tolerance = 1e-3;
    let mut before: Option<(&str, f64)> = None;
    for (name, time) in marks {
        let Some(time) = time else { continue };
        if let Some((earlier, t)) = before
            && time < t - tolerance
        {
            return Err(row.cell_error(name, format!("{time} s is before {earlier} at {t} s")));
        }
        before = Some((name, time));
    }
    if request.first_token_s.is_some() != (request.output_tokens > 0)
        || request.last_token_s.is_some() != (request.output_tokens > 0)
    {
        return Err(row.error(format!(
            "{} output tokens do not agree with first_token_s and last_token_s",
            request.output_tokens
        )));
    }
    Ok(())
}

/// Parses the table of steps and checks each against the requests.
pub(super) fn read_steps(
    path: &Path,
    text: &str,
    requests: &[CaptureRequest],
) -> Result<Vec<CaptureStep>, InputError> {
    let (mut clock, mut added) = (0.0, 0);
    let mut adds: Vec<f64> = requests.iter().filter_map(|r| r.add_end_s).collect();
    adds.sort_by(f64::total_cmp);
    let table = Table::open(path, text, STEP_COLUMNS, |_, name| {
        !OPTIONAL_STEP_COLUMNS.contains(&name)
    })?;
    let steps = table.read_rows(|index, row| {
        expect_index(row, "step", index)?;
        let mut step = parse_step(row, requests)?;
        if !row.has("added_total") {
            step.added_total = adds.partition_point(|&at| at <= step.t_start_s) as u32;
        }
        if step.t_start_s < clock - CLOCK_ROUNDING_S {
            return Err(row
                .cell_error(
                    "t_start_s",
                    format!("{} s is before the end of the step above", step.t_start_s),
                )
                .allowed("steps in the order in which they ran"));
        }
        if step.added_total < added || step.added_total as usize > requests.len() {
            return Err(row
                .cell_error("added_total", format!("{} requests", step.added_total))
                .allowed(format!(
                    "from {added} (the row above) to {} (all requests)",
                    requests.len()
                )));
        }
        (clock, added) = (step.t_end_s, step.added_total);
        Ok(step)
    })?;
    if steps.is_empty() {
        return Err(InputError::in_file(path, "has no step").allowed("at least one row"));
    }
    Ok(steps)
}

fn parse_step(row: &Row<'_>, requests: &[CaptureRequest]) -> Result<CaptureStep, InputError> {
    let mut step = CaptureStep {
        t_start_s: row.seconds("t_start_s")?,
        t_end_s: row.seconds("t_end_s")?,
        schedule_s: row.seconds("schedule_s")?,
        execute_s: row.seconds("execute_s")?,
        execute_cpu_s: row.seconds("execute_cpu_s")?,
        update_s: row.seconds("update_s")?,
        probe_s: row.optional_seconds("probe_s")?.unwrap_or(0.0),
        step_cpu_s: row.seconds("step_cpu_s")?,
        running_before: row.integer("running_before")?,
        waiting_before: row.integer("waiting_before")?,
        running: row.integer("running")?,
        waiting: row.integer("waiting")?,
        batch: BatchShape {
            prefill_seqs: row.count("prefill_seqs", MAX_BATCH_ROWS)?,
            prefill_tokens: row.count("prefill_tokens", MAX_TOKENS)?,
            prefill_token_context: row.integer("prefill_token_context")?,
            decode_seqs: row.count("decode_seqs", MAX_BATCH_ROWS)?,
            decode_tokens: row.count("decode_tokens", MAX_TOKENS)?,
            decode_context_tokens: row.integer("decode_context_tokens")?,
            ..BatchShape::default()
        },
        free_blocks: row.integer("free_blocks")?,
        preempted: row.integer("preempted")?,
        added_total: row.integer_or("added_total", 0)?,
        work: parse_work(row, requests.len())?,
    };
    if step.t_end_s < step.t_start_s {
        return Err(row.cell_error(
            "t_end_s",
            format!("{} s is before t_start_s {} s", step.t_end_s, step.t_start_s),
        ));
    }
    let rows: u32 = row.integer("num_seqs")?;
    if rows != step.batch.num_seqs() || rows as usize != step.work.len() {
        return Err(row
            .cell_error("num_seqs", format!("{rows} rows"))
            .allowed(format!(
                "prefill_seqs + decode_seqs = {} = rows of work = {}",
                step.batch.num_seqs(),
                step.work.len()
            )));
    }
    let expected = shape_of(&step.work, requests);
    if expected.sums() != step.batch.sums() {
        return Err(row.error(format!(
            "the batch columns ({:?}) do not agree with work, which makes {:?}",
            step.batch.sums(),
            expected.sums()
        )));
    }
    step.batch = expected;
    Ok(step)
}

fn parse_work(row: &Row<'_>, requests: usize) -> Result<Vec<WorkRow>, InputError> {
    let text = row.text("work");
    let mut work = Vec::new();
    for cell in text.split_whitespace() {
        let mut parts = cell.split(':').map(str::parse::<u32>);
        let parsed = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(Ok(id)), Some(Ok(tokens)), Some(Ok(computed)), None) => {
                Some(WorkRow { id, tokens, computed })
            }
            _ => None,
        };
        let usable = parsed.filter(|w| {
            (w.id as usize) < requests && (1..=MAX_TOKENS).contains(&w.tokens) && w.computed <= MAX_TOKENS
        });
        let Some(grant) = usable else {
            return Err(row
                .cell_error("work", format!("'{cell}' is not a grant"))
                .allowed(format!(
                    "id:tokens:computed, with an id below the {requests} requests and at least 1 token"
                )));
        };
        work.push(grant);
    }
    if work.len() > MAX_BATCH_ROWS as usize {
        return Err(row
            .cell_error("work", format!("{} rows", work.len()))
            .allowed(format!("at most {MAX_BATCH_ROWS}")));
    }
    Ok(work)
}

/// The shape of a batch of grants: a decode feeds exactly one token at or past the prompt's end.
fn shape_of(work: &[WorkRow], requests: &[CaptureRequest]) -> BatchShape {
    let mut shape = BatchShape::default();
    for row in work {
        let input_tokens = requests[row.id as usize].input_tokens;
        if row.tokens == 1 && row.computed >= input_tokens {
            shape.add_decode(row.tokens, row.computed);
        } else {
            shape.add_prefill(row.tokens, row.computed);
        }
    }
    shape
}

fn expect_index(row: &Row<'_>, column: &'static str, index: usize) -> Result<(), InputError> {
    let found: usize = row.integer(column)?;
    if found != index {
        return Err(row
            .cell_error(column, format!("{found} is out of order"))
            .allowed(format!("{index}: rows count up from 0 without a gap")));
    }
    Ok(())
}
