//! `workload`: from what is written to what is drawn or replayed, and the files that it names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::check::Blame;
use super::machine::Fits;
use super::provenance::Provenance;
use super::schema::{Load, Scenario, Workload};
use super::synthetic;
use crate::input::InputError;
use crate::workload::arrival::{MAX_ARRIVALS, MAX_STREAMED};
use crate::workload::formats::csv;
use crate::workload::synth::{ArrivalSpan, SynthSpec};
use crate::workload::trace::Trace;

/// Files read for a plan, kept so that the plans of a sweep share them.
#[derive(Debug, Clone, Default)]
pub struct Files {
    traces: BTreeMap<PathBuf, Arc<TraceFile>>,
    rows: BTreeMap<PathBuf, RowsFile>,
    fits: Fits,
}

/// A trace file.
#[derive(Debug)]
pub struct TraceFile {
    /// Where it is.
    pub path: PathBuf,
    /// The rows; `None` when there are too many to be kept in memory.
    pub trace: Option<Arc<Trace>>,
    /// When they arrive.
    pub span: ArrivalSpan,
}

/// Lengths of a file, and how many of its rows are none.
#[derive(Debug, Clone)]
struct RowsFile {
    rows: Arc<[(u32, u32)]>,
    left_out: u32,
}

/// Where the requests come from.
#[derive(Debug, Clone)]
pub enum WorkSource {
    /// Rows of a file, arrivals times `time_scale`.
    Replay {
        /// The file.
        file: Arc<TraceFile>,
        /// Factor on arrival times.
        time_scale: f64,
    },
    /// Drawn by seed and replication.
    Draw(SynthSpec),
}

impl Files {
    fn trace(&mut self, path: &Path) -> Result<Arc<TraceFile>, InputError> {
        if let Some(found) = self.traces.get(path) {
            return Ok(found.clone());
        }
        let file = Arc::new(TraceFile::read(path)?);
        self.traces.insert(path.to_owned(), file.clone());
        Ok(file)
    }

    /// Pairs of lengths.
    ///
    /// # Errors
    /// [`InputError`] when the file cannot be used.
    pub fn rows(&mut self, path: &Path) -> Result<Arc<[(u32, u32)]>, InputError> {
        if let Some(found) = self.rows.get(path) {
            return Ok(found.rows.clone());
        }
        let read = csv::read_length_rows(path)?;
        let rows: Arc<[(u32, u32)]> = read.rows.into();
        let file = RowsFile {
            rows: rows.clone(),
            left_out: read.left_out,
        };
        self.rows.insert(path.to_owned(), file);
        Ok(rows)
    }

    /// Fits that have been read.
    pub const fn fits(&self) -> &Fits {
        &self.fits
    }

    /// Files of lengths of which rows were left out: the file, its rows that are used, and those left out.
    pub fn with_rows_left_out(&self) -> impl Iterator<Item = (&Path, usize, u32)> {
        let files = self.rows.iter().filter(|(_, f)| f.left_out > 0);
        files.map(|(path, f)| (path.as_path(), f.rows.len(), f.left_out))
    }
}

impl WorkSource {
    /// The same requests at another rate; `None` when they have no times that could be stretched.
    pub fn at_rate(&self, rate_rps: f64) -> Option<Self> {
        let mut other = self.clone();
        match &mut other {
            Self::Replay { file, time_scale } => *time_scale = scale_to(&file.span, rate_rps)?,
            Self::Draw(spec) => spec.arrivals.as_mut()?.rate = rate_rps,
        }
        Some(other)
    }
}

/// The factor on times at which the mean rate, n over the time of the last arrival, is this.
fn scale_to(span: &ArrivalSpan, rate_rps: f64) -> Option<f64> {
    let last = span.last.as_secs_f64();
    (last > 0.0).then(|| f64::from(span.count) / last / rate_rps)
}

impl TraceFile {
    /// One pass, which checks all rows and keeps them as long as memory may.
    fn read(path: &Path) -> Result<Self, InputError> {
        let (mut kept, mut span) = (Some(Vec::new()), None::<ArrivalSpan>);
        for request in csv::stream_trace(path)? {
            let request = request?;
            let (first, count) = span.map_or((request.arrival, 0), |s| (s.first, s.count));
            if count >= MAX_STREAMED {
                return Err(
                    InputError::in_file(path, format!("has more than {MAX_STREAMED} rows"))
                        .allowed("split it into several files"),
                );
            }
            span = Some(ArrivalSpan {
                first,
                last: request.arrival,
                count: count + 1,
            });
            kept = kept.filter(|_| count < MAX_ARRIVALS);
            if let Some(kept) = &mut kept {
                kept.push(request);
            }
        }
        let Some(span) = span else {
            return Err(InputError::in_file(path, "the trace is empty"));
        };
        Ok(Self {
            path: path.to_owned(),
            trace: kept.map(|requests| Arc::new(Trace { requests })),
            span,
        })
    }
}

/// Checks `workload` and reads its files.
///
/// # Errors
/// [`InputError`] for laws that are none, files that cannot be used, or no request at all.
pub fn resolve_workload(
    scenario: &Scenario,
    provenance: &Provenance,
    origin: &str,
    base: &Path,
    files: &mut Files,
) -> Result<WorkSource, InputError> {
    let blame = Blame { origin, provenance };
    match &scenario.workload {
        Workload::Trace(name) => {
            let path = base.join(name);
            let file = files.trace(&path)?;
            let time_scale = time_scale(&scenario.load, &file.span, &blame)?;
            Ok(WorkSource::Replay { file, time_scale })
        }
        Workload::Synthetic(s) => {
            synthetic::draw_spec(s, scenario, &blame, base, files).map(WorkSource::Draw)
        }
    }
}

fn time_scale(load: &Load, span: &ArrivalSpan, blame: &Blame<'_>) -> Result<f64, InputError> {
    let Some(rate) = load.arrival.rate else {
        return Ok(load.arrival.time_scale.map_or(1.0, |f| f.0));
    };
    scale_to(span, rate.0).ok_or_else(|| {
        blame.error(
            "load.arrival.rate",
            "all rows of the trace arrive at time 0",
            "such a trace has no time axis to stretch: leave the rate out",
        )
    })
}
