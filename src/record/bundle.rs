//! The raw part of a run folder: one row a request, one row a step, and the tokens by runs of steps.
//!
//! | file | one row | columns |
//! | --- | --- | --- |
//! | `raw-events.csv` | an offered request | ids, instants in ns, tokens, how it ended |
//! | `steps.csv` | an engine step | replica, start and end in ns, gauges |
//! | `replicas.csv` | a replica | usable KV blocks, preemptions, busy time |
//! | `token-segments.csv` | a run of steps that gave a request tokens | request, first step, steps, tokens a step |
//! | `token-times.csv` | a token of an imported request | request, instant in ns |
//! | `run.csv` | the run | its end in ns |
//!
//! Together they are the whole [`RunRecord`]: [`read()`] gives back what [`write()`] was given, so every figure
//! can be rebuilt with another SLO or window. Steps and tokens can be left out to save space; then gaps and
//! gauges are gone, and nothing else.

mod read;

use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::engine::FinishReason;
use crate::input::write_atomic;
use crate::record::{RequestRecord, RunRecord, Status, TokenLog};
use crate::units::SimTime;

pub use read::read;

/// One row a request.
pub const RAW_EVENTS_FILE: &str = "raw-events.csv";
/// One row a step.
pub const STEPS_FILE: &str = "steps.csv";
/// One row a replica.
pub const REPLICAS_FILE: &str = "replicas.csv";
/// One row a run of steps with tokens for a request.
pub const SEGMENTS_FILE: &str = "token-segments.csv";
/// One row a token.
pub const TIMES_FILE: &str = "token-times.csv";
/// One row for the run.
pub const RUN_FILE: &str = "run.csv";

/// Which of the larger files to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BundleParts {
    /// `steps.csv`.
    pub steps: bool,
    /// `token-segments.csv` and `token-times.csv`. Segments count steps, so they are written only with steps.
    pub tokens: bool,
}

impl Default for BundleParts {
    fn default() -> Self {
        Self {
            steps: true,
            tokens: true,
        }
    }
}

/// A row of `raw-events.csv`. Empty instants did not happen.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestRow {
    request_id: u32,
    t_scheduled_ns: SimTime,
    /// Empty exactly for a request that was never sent.
    t_send_ns: Option<SimTime>,
    t_enqueued_ns: Option<SimTime>,
    t_prefill_start_ns: Option<SimTime>,
    t_first_token_ns: Option<SimTime>,
    t_last_token_ns: Option<SimTime>,
    input_tokens: u32,
    cached_input_tokens: u32,
    computed_input_tokens: u32,
    output_tokens: u32,
    preemptions: u32,
    status: Status,
    finish_reason: Option<FinishReason>,
    replica: u32,
    priority: i32,
    /// Absent in older folders.
    #[serde(default)]
    tenant: u32,
}

impl RequestRow {
    fn of(request_id: u32, r: &RequestRecord) -> Self {
        Self {
            request_id,
            t_scheduled_ns: r.scheduled,
            t_send_ns: r.sent_at(),
            t_enqueued_ns: r.enqueued,
            t_prefill_start_ns: r.first_scheduled,
            t_first_token_ns: r.first_token,
            t_last_token_ns: r.last_token,
            input_tokens: r.input_tokens,
            cached_input_tokens: r.cached_tokens,
            // Of a request that was never scheduled nothing is.
            computed_input_tokens: match r.first_scheduled {
                Some(_) => r.input_tokens.saturating_sub(r.cached_tokens),
                None => 0,
            },
            output_tokens: r.output_tokens,
            preemptions: r.preemptions,
            status: r.status,
            finish_reason: r.finish_reason,
            replica: r.replica,
            priority: r.priority,
            tenant: r.tenant,
        }
    }
}

/// A row of `steps.csv`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepRow {
    replica: u32,
    t_start_ns: SimTime,
    t_end_ns: SimTime,
    running: u32,
    waiting: u32,
    free_blocks: u32,
}

/// A row of `replicas.csv`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicaRow {
    replica: u32,
    usable_blocks: u32,
    free_blocks_at_end: u32,
    preemptions: u64,
    /// Device time in steps with prompt tokens, and in steps of decodes alone; absent in older folders.
    #[serde(default)]
    busy_prefill_ns: u64,
    #[serde(default)]
    busy_decode_ns: u64,
}

/// A row of `token-segments.csv`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SegmentRow {
    request_id: u32,
    first_step: u32,
    steps: u32,
    tokens_per_step: u32,
}

/// A row of `token-times.csv`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TimeRow {
    request_id: u32,
    t_ns: SimTime,
}

/// The row of `run.csv`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunRow {
    t_end_ns: SimTime,
}

/// Writes a run's raw files into `folder`, each under its final name only when whole.
///
/// # Errors
/// Any I/O error.
pub fn write(folder: &Path, run: &RunRecord, parts: BundleParts) -> io::Result<()> {
    let requests = || (0..).zip(&run.requests);
    write_rows(
        &folder.join(RAW_EVENTS_FILE),
        requests().map(|(id, r)| RequestRow::of(id, r)),
    )?;
    let replicas = (0..).zip(&run.replicas).map(|(replica, r)| ReplicaRow {
        replica,
        usable_blocks: r.usable_blocks,
        free_blocks_at_end: r.free_blocks_at_end,
        preemptions: r.preemptions,
        busy_prefill_ns: r.busy.prefill.as_nanos(),
        busy_decode_ns: r.busy.decode.as_nanos(),
    });
    write_rows(&folder.join(REPLICAS_FILE), replicas)?;
    write_rows(&folder.join(RUN_FILE), [RunRow { t_end_ns: run.end }])?;
    if parts.steps {
        write_rows(&folder.join(STEPS_FILE), step_rows(run))?;
    }
    if !parts.tokens {
        return Ok(());
    }
    let segments = requests().flat_map(|(request_id, r)| {
        let segments = match &r.tokens {
            TokenLog::Segments(segments) => &segments[..],
            TokenLog::Times(_) => &[],
        };
        segments.iter().map(move |s| SegmentRow {
            request_id,
            first_step: s.first_step,
            steps: s.steps,
            tokens_per_step: s.tokens_per_step,
        })
    });
    let times = requests().flat_map(|(request_id, r)| {
        let times = match &r.tokens {
            TokenLog::Segments(_) => &[],
            TokenLog::Times(times) => &times[..],
        };
        times.iter().map(move |&t_ns| TimeRow { request_id, t_ns })
    });
    if parts.steps {
        write_unless_empty(&folder.join(SEGMENTS_FILE), segments)?;
    }
    write_unless_empty(&folder.join(TIMES_FILE), times)
}

fn step_rows(run: &RunRecord) -> impl Iterator<Item = StepRow> + '_ {
    (0..).zip(&run.replicas).flat_map(|(replica, r)| {
        r.step_starts
            .iter()
            .zip(&r.step_ends)
            .enumerate()
            .map(move |(i, (&t_start_ns, &t_end_ns))| {
                let gauge = |values: &[u32]| values.get(i).copied().unwrap_or(0);
                let (running, waiting) = (gauge(&r.running), gauge(&r.waiting));
                StepRow {
                    replica,
                    t_start_ns,
                    t_end_ns,
                    running,
                    waiting,
                    free_blocks: gauge(&r.free_blocks),
                }
            })
    })
}

fn write_unless_empty<R: Serialize>(path: &Path, rows: impl Iterator<Item = R>) -> io::Result<()> {
    let mut rows = rows.peekable();
    if rows.peek().is_some() {
        write_rows(path, rows)
    } else {
        Ok(())
    }
}

fn write_rows<R: Serialize>(path: &Path, rows: impl IntoIterator<Item = R>) -> io::Result<()> {
    write_atomic(path, |w| {
        let mut csv = csv::Writer::from_writer(w as &mut dyn Write);
        for row in rows {
            csv.serialize(row)?;
        }
        csv.flush()
    })
}
