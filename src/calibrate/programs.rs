//! Tables of compiled programs and what they took: rows of CSV. Empty cells are unknown.

use std::path::Path;

use super::table::{Row, Table};
use crate::input::{InputError, nearest, read_text};
use crate::profile::catalog;
use crate::steptime::deployment::default_logical_core;
use crate::steptime::static_fit::{LONGEST_PROGRAM_S, MeasuredProgram};
use crate::steptime::{Deployment, KvDtype, Program, StaticShapes};

const COLUMNS: &[&str] = &[
    "accelerator",
    "model",
    "dtype",
    "kv_dtype",
    "tp",
    "logical_core",
    "max_num_seqs",
    "max_model_len",
    "kind",
    "bucket",
    "prefix",
    "rows",
    "seconds",
    "n",
    "log_sd",
    "source",
];
const REQUIRED: &[&str] = &[
    "accelerator",
    "model",
    "tp",
    "max_num_seqs",
    "max_model_len",
    "kind",
    "bucket",
    "seconds",
];

/// Most ranks, rows, positions: beyond lie mistakes.
const MOST_RANKS: u32 = 4096;
const MOST_ROWS: u32 = 1 << 16;
const MOST_POSITIONS: u32 = 1 << 24;

/// What a row measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKind {
    /// A step of one program while the host waits.
    Program,
    /// The TTFT of a prompt that meets an idle engine: its program and the front end.
    LonePrompt,
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramRow {
    /// What ran the program.
    pub deployment: Deployment,
    /// What was measured.
    pub kind: RowKind,
    /// The program.
    pub program: Program,
    /// What it took, in seconds.
    pub seconds: f64,
    /// Measurements behind it.
    pub n: u32,
    /// Scatter of a figure that is not a clean measurement of the program (a published mean, another software): standard
    /// deviation of its logarithm. Such a row helps to fit and does not serve as a time of its program.
    pub log_sd: Option<f64>,
    /// Where it comes from.
    pub source: String,
}

const KINDS: [&str; 3] = ["context_encoding", "token_generation", "lone_prompt"];

/// Reads a table of programs.
///
/// # Errors
/// [`InputError`] for a cell that cannot be used, with its line and column, or a table without rows.
pub fn read_programs(path: &Path) -> Result<Vec<ProgramRow>, InputError> {
    let text = read_text(path)?;
    let rows = Table::open(path, &text, COLUMNS, |_, name| REQUIRED.contains(&name))?
        .read_rows(|_, row| parse(row))?;
    if rows.is_empty() {
        return Err(InputError::in_file(path, "holds no rows").allowed("at least one program"));
    }
    Ok(rows)
}

fn parse(row: &Row<'_>) -> Result<ProgramRow, InputError> {
    let positive = |column: &'static str, most: u32| match row.count(column, most)? {
        0 => Err(row.cell_error(column, "0").allowed(format!("1 to {most}"))),
        value => Ok(value),
    };
    let slots = positive("max_num_seqs", MOST_ROWS)?;
    let max_model_len = positive("max_model_len", MOST_POSITIONS)?;
    let bucket = positive("bucket", max_model_len)?;
    let kind = row.text("kind");
    let (kind, program) = match kind {
        "context_encoding" | "lone_prompt" => {
            let kind = if kind == "lone_prompt" {
                RowKind::LonePrompt
            } else {
                RowKind::Program
            };
            let prefix = if row.text("prefix").is_empty() {
                0
            } else {
                row.count("prefix", max_model_len)?
            };
            let tokens = bucket;
            (kind, Program::ContextEncoding { tokens, prefix })
        }
        "token_generation" => {
            let batch = if row.text("rows").is_empty() {
                slots
            } else {
                positive("rows", slots)?
            };
            let positions = bucket;
            (RowKind::Program, Program::TokenGeneration { positions, batch })
        }
        other => {
            let error = row.cell_error("kind", format!("'{other}' is unknown"));
            let mut error = error.allowed(KINDS.join(", "));
            error.nearest = nearest(other, KINDS);
            return Err(error);
        }
    };
    let seconds = row.seconds("seconds")?;
    if !(seconds > 0.0 && seconds <= LONGEST_PROGRAM_S) {
        return Err(row
            .cell_error("seconds", format!("{seconds} s"))
            .allowed(format!("more than 0, at most {LONGEST_PROGRAM_S} s")));
    }
    Ok(ProgramRow {
        deployment: deployment(row, slots, max_model_len, program)?,
        kind,
        program,
        seconds,
        n: if row.text("n").is_empty() {
            1
        } else {
            row.count("n", u32::MAX)?
        },
        log_sd: scatter(row)?,
        source: row.text("source").to_owned(),
    })
}

fn scatter(row: &Row<'_>) -> Result<Option<f64>, InputError> {
    let text = row.text("log_sd");
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(value) if (1e-4..=2.0).contains(&value) => Ok(Some(value)),
        _ => Err(row
            .cell_error("log_sd", format!("'{text}' cannot be used"))
            .allowed("a standard deviation of the logarithm, 0.0001 to 2")),
    }
}

fn deployment(
    row: &Row<'_>,
    slots: u32,
    max_model_len: u32,
    program: Program,
) -> Result<Deployment, InputError> {
    let here = Path::new(".");
    let accelerator = catalog::accelerator(row.text("accelerator"), here)?;
    let model = catalog::model(row.text("model"), here)?;
    let cores = accelerator.cores.as_ref().map_or(1, |f| f.value);
    let logical_core = if row.text("logical_core").is_empty() {
        default_logical_core(&accelerator)
    } else {
        match row.count("logical_core", cores)? {
            0 => {
                return Err(row
                    .cell_error("logical_core", "0")
                    .allowed(format!("1 to {cores} cores of a chip")));
            }
            value => Some(value),
        }
    };
    let mut deployment = Deployment::new(model, accelerator);
    if !row.text("dtype").is_empty() {
        let stated = row.text("dtype").parse();
        deployment.dtype = stated.map_err(|e: InputError| row.cell_error("dtype", e.found.clone()))?;
        deployment.expert_dtype = deployment.dtype;
    }
    if !row.text("kv_dtype").is_empty() {
        let stated = row.text("kv_dtype").parse();
        deployment.kv_dtype = stated.map_err(|e: InputError| row.cell_error("kv_dtype", e.found.clone()))?;
    }
    deployment.tp = match row.count("tp", MOST_RANKS)? {
        0 => return Err(row.cell_error("tp", "0").allowed(format!("1 to {MOST_RANKS}"))),
        tp => tp,
    };
    deployment.logical_core = logical_core;
    // Buckets other than the row's own do not change what its program takes; the longest decides what a slot is.
    let tokens = match program {
        Program::ContextEncoding { tokens, .. } => tokens,
        Program::TokenGeneration { .. } => max_model_len,
    };
    let mut context_buckets = vec![tokens, max_model_len];
    context_buckets.dedup();
    let mut decode_batches = match program {
        Program::TokenGeneration { batch, .. } => vec![batch, slots],
        Program::ContextEncoding { .. } => vec![slots],
    };
    decode_batches.dedup();
    deployment.static_shapes = Some(StaticShapes {
        context_buckets,
        prefix_buckets: Vec::new(),
        strict: true,
        token_buckets: vec![max_model_len],
        decode_batches,
        on_device_sampling: true,
        asynchronous: false,
    });
    Ok(deployment)
}

impl ProgramRow {
    /// The deployment in a few words: rows of one are left out together.
    pub fn group(&self) -> String {
        let d = &self.deployment;
        let kv = match d.kv_dtype {
            KvDtype::Bf16 => String::new(),
            other => format!(" {other} KV"),
        };
        format!(
            "{} {} {}{kv} tp {} of {} core(s), {} rows of {}",
            d.accelerator.name,
            d.model.name,
            d.dtype,
            d.tp,
            d.logical_core.unwrap_or(1),
            self.slots(),
            self.positions()
        )
    }

    pub(super) fn slots(&self) -> u32 {
        let shapes = self.deployment.static_shapes.as_ref();
        shapes.and_then(|s| s.decode_batches.last()).copied().unwrap_or(1)
    }

    pub(super) fn positions(&self) -> u32 {
        let shapes = self.deployment.static_shapes.as_ref();
        shapes.and_then(|s| s.token_buckets.last()).copied().unwrap_or(1)
    }

    /// The row as a time of its program, the front end that it holds taken off; `None` for a figure that is not a clean
    /// measurement.
    pub fn measured(&self, front_end_s: f64) -> Option<MeasuredProgram> {
        let seconds = match self.kind {
            RowKind::Program => self.seconds,
            RowKind::LonePrompt => self.seconds - front_end_s,
        };
        let d = &self.deployment;
        (self.log_sd.is_none() && seconds > 0.0).then(|| MeasuredProgram {
            accelerator: d.accelerator.name.clone(),
            model: d.model.name.clone(),
            dtype: d.dtype.name().to_owned(),
            kv_dtype: d.kv_dtype,
            tp: d.tp,
            logical_core: d.logical_core.unwrap_or(1),
            max_num_seqs: self.slots(),
            max_model_len: self.positions(),
            program: self.program,
            seconds,
            n: self.n,
            source: self.source.clone(),
        })
    }
}
