//! The project's own trace format: CSV, one row a request, strict (docs/FORMATS.md); other tools' names of its columns
//! are known.

use std::io::{self, Read, Write};
use std::path::Path;

use crate::input::{InputError, TextFile};
use crate::units::SimTime;
use crate::workload::arrival::MAX_ARRIVALS;
use crate::workload::trace::{Trace, TraceRequest};

mod columns;
mod rows;

pub use columns::{ALIASES, COLUMNS};
use rows::Rows;

/// Reads a trace file (`.csv` or `.csv.gz`) into memory.
///
/// # Errors
/// [`InputError`] with the line: an unknown or missing column, a value that is none, arrivals out of order,
/// no row at all, or more than [`MAX_ARRIVALS`].
pub fn read_trace(path: &Path) -> Result<Trace, InputError> {
    let mut requests = Vec::new();
    for request in stream_trace(path)? {
        if requests.len() >= MAX_ARRIVALS as usize {
            return Err(too_long(path));
        }
        requests.push(request?);
    }
    Ok(Trace { requests })
}

/// What to say of a trace that memory is not to hold.
pub fn too_long(path: &Path) -> InputError {
    InputError::in_file(
        path,
        format!("has more than {MAX_ARRIVALS} rows, which are not kept in memory"),
    )
    .allowed("`kneeboard simulate --summary-only` takes them one by one")
}

/// The requests of a trace file, read as they are asked for: memory does not grow with their number.
///
/// # Errors
/// As [`read_trace`], for the header; what is wrong with a row is told when it is reached, and ends the requests.
pub fn stream_trace(path: &Path) -> Result<TraceRows<TextFile>, InputError> {
    Ok(TraceRows {
        rows: Rows::open(path)?,
        before: SimTime::ZERO,
    })
}

/// [`read_trace`] on text already read.
///
/// # Errors
/// As [`read_trace`].
pub fn parse_trace(text: &str, origin: &str) -> Result<Trace, InputError> {
    let rows = TraceRows {
        rows: Rows::of_text(text, origin)?,
        before: SimTime::ZERO,
    };
    Ok(Trace {
        requests: rows.collect::<Result<_, _>>()?,
    })
}

/// Requests read one by one, in order of arrival.
#[derive(Debug)]
pub struct TraceRows<R> {
    rows: Rows<R>,
    before: SimTime,
}

impl<R: Read> Iterator for TraceRows<R> {
    type Item = Result<TraceRequest, InputError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { rows, before } = self;
        rows.next(|row| {
            let arrival = row.arrival()?;
            if arrival < *before {
                return Err(row
                    .error(format!(
                        "arrival {} s comes before the row above ({} s)",
                        arrival.as_secs_f64(),
                        before.as_secs_f64()
                    ))
                    .allowed("rows must be in order of arrival: sort the file"));
            }
            *before = arrival;
            let prefix = row.prefix()?;
            Ok(TraceRequest {
                prefix,
                tenant: row.optional(row.places.tenant)?.unwrap_or(0),
                // Who shares a beginning and names no conversation of its own belongs to that of its group.
                session: row.optional(row.places.session_id)?.or(prefix.map(|p| p.group)),
                priority: row.optional(row.places.priority)?.unwrap_or(0),
                eos_at: row.optional::<u32>(row.places.eos_at)?.filter(|e| *e > 0),
                ..TraceRequest::plain(arrival, row.input_tokens()?, row.output_tokens()?)
            })
        })
    }
}

/// Lengths of requests, to be drawn from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LengthRows {
    /// (input, output) tokens of each row.
    pub rows: Vec<(u32, u32)>,
    /// Rows without an input or an output, which are no requests and are left out.
    pub left_out: u32,
}

/// Reads the (input, output) token pairs of a file in the same format; arrivals are not needed.
///
/// # Errors
/// As [`read_trace`].
pub fn read_length_rows(path: &Path) -> Result<LengthRows, InputError> {
    let mut found = LengthRows {
        rows: Vec::new(),
        left_out: 0,
    };
    let mut rows = Rows::open(path)?;
    while let Some(lengths) = rows.next(|row| row.lengths()) {
        match lengths? {
            (0, _) | (_, 0) => found.left_out += 1,
            lengths if found.rows.len() < MAX_ARRIVALS as usize => found.rows.push(lengths),
            _ => {
                return Err(InputError::in_file(
                    path,
                    format!("has more than {MAX_ARRIVALS} rows of lengths"),
                )
                .allowed("draw from fewer rows"));
            }
        }
    }
    if found.rows.is_empty() {
        return Err(
            InputError::in_file(path, "each row has 0 input or 0 output tokens")
                .allowed("at least one row with tokens is needed"),
        );
    }
    Ok(found)
}

/// Writes a trace in this format; reading it gives the same trace back (accepted drafts are not kept).
///
/// # Errors
/// Those of the writer.
pub fn write_trace(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    write_header(out)?;
    trace.requests.iter().try_for_each(|r| write_row(r, out))
}

/// The header of what [`write_row`] writes.
///
/// # Errors
/// Those of the writer.
pub fn write_header(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "arrival_ns,input_tokens,output_tokens,prefix_group,prefix_tokens,session,priority,eos_at"
    )
}

/// One request as a row.
///
/// # Errors
/// Those of the writer.
pub fn write_row(r: &TraceRequest, out: &mut dyn Write) -> io::Result<()> {
    let (group, shared, session) = match r.prefix {
        None => (-1, 0, 0),
        Some(p) if p.shared_tokens == u32::MAX => (i64::from(p.group), r.input_tokens, 1),
        Some(p) => (i64::from(p.group), p.shared_tokens, 0),
    };
    writeln!(
        out,
        "{},{},{},{group},{shared},{session},{},{}",
        r.arrival.0,
        r.input_tokens,
        r.max_output_tokens,
        r.priority,
        r.eos_at.map_or(String::new(), |e| e.to_string())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::trace::Prefix;

    fn file(name: &str, text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn columns_may_have_the_names_of_other_tools() {
        let text = "request_id,arrival_s,prefill,decode\n7,0.5,10,3\n";
        let plain = TraceRequest::plain(SimTime(500_000_000), 10, 3);
        assert_eq!(parse_trace(text, "t.csv").unwrap().requests, [plain]);
        let twice = "arrival_s,prefill,decode,input_tokens\n0.5,10,3,10\n";
        let error = parse_trace(twice, "t.csv").unwrap_err().to_string();
        assert!(error.contains("input_tokens' is given twice"), "{error}");
        let zero = "arrival_s,prefill,decode\n0.5,0,3\n";
        let error = parse_trace(zero, "t.csv").unwrap_err().to_string();
        assert!(error.contains("line 2: prefill is 0"), "{error}");
        for header in [
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "id,input_length,output_length",
            "pd_ratio,num_prefill_tokens,num_decode_tokens",
        ] {
            let (_folder, path) = file("rows.csv", &format!("{header}\n1,4,5\n2,0,5\n3,6,7\n"));
            let got = read_length_rows(&path).unwrap();
            assert_eq!((got.rows, got.left_out), (vec![(4, 5), (6, 7)], 1));
        }
        let (_folder, path) = file("rows.csv", "input_length,output_length\n0,5\n");
        assert!(read_length_rows(&path).is_err(), "no row is left");
    }

    /// Rows are told in order until the bad one, which ends them.
    #[test]
    fn a_streamed_trace_tells_what_is_wrong_when_it_comes_to_it() {
        let (_folder, path) = file(
            "t.csv",
            "arrival_s,input_tokens,output_tokens\r\n1,1,1\r\n0.5,1,1\r\n2,1,1\r\n",
        );
        let mut rows = stream_trace(&path).unwrap();
        assert!(rows.next().unwrap().is_ok());
        let error = rows.next().unwrap().unwrap_err().to_string();
        assert!(
            error.contains("line 3") && error.contains("sort the file"),
            "{error}"
        );
        assert!(rows.next().is_none());
        assert_eq!(read_trace(&path).unwrap_err().to_string(), error);
    }

    #[test]
    fn a_row_without_end_is_refused_before_memory_is() {
        let (_folder, path) = file(
            "t.csv",
            &format!(
                "arrival_s,input_tokens,output_tokens\n\"{}",
                "1\n".repeat(2 << 20)
            ),
        );
        let error = read_trace(&path).unwrap_err().to_string();
        assert!(error.contains("more than 1 MiB"), "{error}");
    }

    #[test]
    fn seconds_nanoseconds_prefixes_and_sessions_are_read() {
        let text = "id,arrival_ns,input_tokens,output_tokens,prefix_group,prefix_tokens,session,priority\n\
                    0,5,10,3,-1,0,0,0\n1,5,20,4,7,16,0,-2\n2,9,30,5,7,0,1,0\n";
        let t = parse_trace(text, "t.csv").unwrap();
        assert_eq!(t.requests[0], TraceRequest::plain(SimTime(5), 10, 3));
        assert_eq!(
            t.requests[1].prefix,
            Some(Prefix {
                group: 7,
                shared_tokens: 16,
                greedy_outputs: false,
            })
        );
        assert_eq!(t.requests[1].priority, -2);
        assert_eq!(t.requests[2].prefix.unwrap().shared_tokens, u32::MAX);
        let s = parse_trace("arrival_s,input_tokens,output_tokens\n0.1,1,1\n", "t.csv").unwrap();
        assert_eq!(s.requests[0].arrival, SimTime(100_000_000));
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        let text = "arrival_s,input_tokens,output_tokens,prefix_group,prefix_tokens,session,priority,eos_at\n\
                    0.000000001,10,3,,,,,2\n1.5,20,4,0,16,0,3,\n1.5,20,4,1,0,1,3,\n";
        let trace = parse_trace(text, "t.csv").unwrap();
        let mut out = Vec::new();
        write_trace(&trace, &mut out).unwrap();
        assert_eq!(
            parse_trace(std::str::from_utf8(&out).unwrap(), "w.csv").unwrap(),
            trace
        );
    }
}
