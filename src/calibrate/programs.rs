//! Tables of compiled programs and what they took: rows of CSV. Empty cells are unknown.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::table::{Row, Table};
use crate::input::{InputError, nearest, read_text};
use crate::profile::{Accelerator, Platform, catalog};
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
/// No program is launched, run and read back in less.
const LEAST_PROGRAM_S: f64 = 1e-6;
/// Most measurements behind one row.
const MOST_MEASUREMENTS: u32 = 1_000_000_000;
/// Clean measurements of one program differ by less than this factor: those of the shipped fits do by 1.05.
const AGREEMENT: f64 = 1.5;
/// Standard deviations within which figures that state their scatter are to agree.
const SCATTERS: f64 = 4.0;

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
    /// The table, and the row's line in it.
    pub place: (PathBuf, u64),
}

const KINDS: [&str; 3] = ["context_encoding", "token_generation", "lone_prompt"];

/// Reads a table of programs.
///
/// # Errors
/// [`InputError`] for a cell that cannot be used, with its line and column, rows that contradict each other, or a table
/// without rows.
pub fn read_programs(path: &Path) -> Result<Vec<ProgramRow>, InputError> {
    let text = read_text(path)?;
    let rows = Table::open(path, &text, COLUMNS, |_, name| REQUIRED.contains(&name))?
        .without_others()?
        .read_rows(|_, row| parse(path, row))?;
    if rows.is_empty() {
        return Err(InputError::in_file(path, "holds no rows").allowed("at least one program"));
    }
    refuse_contradictions(&rows)?;
    Ok(rows)
}

/// Refuses two figures of one program that cannot both be true: clean measurements more than a factor of 1.5 apart,
/// those with a scatter of their own further than four standard deviations, where that is more.
///
/// # Errors
/// [`InputError`] with both places.
pub fn refuse_contradictions(rows: &[ProgramRow]) -> Result<(), InputError> {
    let mut by_program: BTreeMap<(String, Program, RowKind), Vec<&ProgramRow>> = BTreeMap::new();
    for row in rows {
        let seen = by_program
            .entry((row.group(), row.program, row.kind))
            .or_default();
        if let Some((other, factor)) = seen.iter().find_map(|o| Some((*o, contradiction(o, row)?))) {
            return Err(told(other, row, factor));
        }
        seen.push(row);
    }
    Ok(())
}

/// The factor that two figures were to agree within, if they do not.
fn contradiction(a: &ProgramRow, b: &ProgramRow) -> Option<f64> {
    let scatter = a.log_sd.unwrap_or(0.0).hypot(b.log_sd.unwrap_or(0.0));
    let factor = AGREEMENT.max((SCATTERS * scatter).exp());
    ((a.seconds / b.seconds).ln().abs() > factor.ln()).then_some(factor)
}

fn told(first: &ProgramRow, second: &ProgramRow, factor: f64) -> InputError {
    let place = if first.place.0 == second.place.0 {
        format!("lines {} and {}", first.place.1, second.place.1)
    } else {
        format!(
            "line {}, and {}, line {}",
            second.place.1,
            first.place.0.display(),
            first.place.1
        )
    };
    InputError::in_file(
        &second.place.0,
        format!(
            "the same program took {} s and {} s ({}, {})",
            first.seconds,
            second.seconds,
            second.group(),
            second.program
        ),
    )
    .at(place)
    .allowed(format!(
        "rows of one program and kind agree within a factor of {factor:.1}; keep the right one, or give a figure of which \
         less is known its log_sd"
    ))
}

fn parse(path: &Path, row: &Row<'_>) -> Result<ProgramRow, InputError> {
    let slots = row.whole("max_num_seqs", 1..=MOST_ROWS)?;
    let max_model_len = row.whole("max_model_len", 1..=MOST_POSITIONS)?;
    let (kind, program) = program(row, slots, max_model_len)?;
    let seconds = row.seconds("seconds")?;
    if !(LEAST_PROGRAM_S..=LONGEST_PROGRAM_S).contains(&seconds) {
        return Err(row
            .cell_error("seconds", format!("{seconds:?} s"))
            .allowed(format!("seconds from {LEAST_PROGRAM_S} to {LONGEST_PROGRAM_S}")));
    }
    Ok(ProgramRow {
        deployment: deployment(row, slots, max_model_len, program)?,
        kind,
        program,
        seconds,
        n: or(row, "n", 1..=MOST_MEASUREMENTS, 1)?,
        log_sd: scatter(row)?,
        source: row.text("source").to_owned(),
        place: (path.to_owned(), row.line()),
    })
}

/// A whole number, or `absent` where the cell is empty.
fn or(
    row: &Row<'_>,
    column: &'static str,
    allowed: RangeInclusive<u32>,
    absent: u32,
) -> Result<u32, InputError> {
    if row.text(column).is_empty() {
        return Ok(absent);
    }
    row.whole(column, allowed)
}

fn program(row: &Row<'_>, slots: u32, max_model_len: u32) -> Result<(RowKind, Program), InputError> {
    let kind = row.text("kind");
    let bucket = || row.whole("bucket", 1..=max_model_len);
    // What says nothing of this kind of program is a slip, not a figure to be passed over.
    let empty = |column: &'static str| match row.text(column) {
        "" => Ok(()),
        text => Err(row
            .cell_error(column, format!("'{text}' says nothing of {kind}"))
            .allowed("leave the cell empty")),
    };
    match kind {
        "context_encoding" | "lone_prompt" => {
            empty("rows")?;
            let kind = if kind == "lone_prompt" {
                RowKind::LonePrompt
            } else {
                RowKind::Program
            };
            let (tokens, prefix) = (bucket()?, or(row, "prefix", 0..=max_model_len, 0)?);
            Ok((kind, Program::ContextEncoding { tokens, prefix }))
        }
        "token_generation" => {
            empty("prefix")?;
            let (positions, batch) = (bucket()?, or(row, "rows", 1..=slots, slots)?);
            Ok((RowKind::Program, Program::TokenGeneration { positions, batch }))
        }
        other => {
            let error = row.cell_error("kind", format!("'{other}' is unknown"));
            let mut error = error.allowed(KINDS.join(", "));
            error.nearest = nearest(other, KINDS);
            Err(error)
        }
    }
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

/// A profile that a cell names; what is wrong with the name is wrong with the cell.
fn profile<T>(
    row: &Row<'_>,
    column: &'static str,
    find: fn(&str, &Path) -> Result<T, InputError>,
) -> Result<T, InputError> {
    find(row.text(column), Path::new(".")).map_err(|e| InputError {
        allowed: e.allowed,
        nearest: e.nearest,
        ..row.cell_error(column, format!("{}: {}", e.origin, e.found))
    })
}

/// An accelerator whose programs are compiled for static shapes.
fn accelerator(row: &Row<'_>) -> Result<Accelerator, InputError> {
    let found = profile(row, "accelerator", catalog::accelerator)?;
    if found.platform == Platform::Neuron {
        return Ok(found);
    }
    Err(row
        .cell_error(
            "accelerator",
            format!(
                "{} is no AWS Neuron device: nothing is compiled for static shapes on it",
                found.name
            ),
        )
        .allowed("kneeboard calibrate steps, runs or points fit its steps"))
}

fn deployment(
    row: &Row<'_>,
    slots: u32,
    max_model_len: u32,
    program: Program,
) -> Result<Deployment, InputError> {
    let accelerator = accelerator(row)?;
    let model = profile(row, "model", catalog::model)?;
    // As for engines: chips of two cores know no logical ones, those of more join two at most.
    let usual = default_logical_core(&accelerator);
    let logical_core = if row.text("logical_core").is_empty() {
        usual
    } else {
        Some(row.whole("logical_core", 1..=usual.unwrap_or(1))?)
    };
    let mut deployment = Deployment::new(model, accelerator);
    if !row.text("dtype").is_empty() {
        let stated = row.text("dtype").parse();
        deployment.dtype = stated.map_err(|e: InputError| InputError {
            allowed: e.allowed,
            nearest: e.nearest,
            ..row.cell_error("dtype", e.found)
        })?;
        deployment.expert_dtype = deployment.dtype;
    }
    if !row.text("kv_dtype").is_empty() {
        let stated = row.text("kv_dtype").parse();
        deployment.kv_dtype = stated.map_err(|e: InputError| InputError {
            allowed: e.allowed,
            nearest: e.nearest,
            ..row.cell_error("kv_dtype", e.found)
        })?;
    }
    deployment.tp = row.whole("tp", 1..=MOST_RANKS)?;
    deployment.logical_core = logical_core;
    deployment.static_shapes = Some(shapes(slots, max_model_len, program));
    Ok(deployment)
}

/// Buckets other than the row's own do not change what its program takes; the longest decides what a slot is.
fn shapes(slots: u32, max_model_len: u32, program: Program) -> StaticShapes {
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
    StaticShapes {
        context_buckets,
        prefix_buckets: Vec::new(),
        strict: true,
        token_buckets: vec![max_model_len],
        decode_batches,
        on_device_sampling: true,
        asynchronous: false,
    }
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
