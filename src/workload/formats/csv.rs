//! The project's own trace format: CSV, one row a request, strict (docs/FORMATS.md).

use std::io::{self, Write};
use std::path::Path;

use ::csv::{ReaderBuilder, StringRecord, Trim};

use crate::input::{self, InputError, csv_line};
use crate::units::SimTime;
use crate::workload::lengths::MAX_TOKENS;
use crate::workload::trace::{Prefix, Trace, TraceRequest};

/// Every column a trace may have.
pub const COLUMNS: [&str; 11] = [
    "id",
    "arrival_s",
    "arrival_ns",
    "input_tokens",
    "output_tokens",
    "prefix_group",
    "prefix_tokens",
    "session",
    "priority",
    "eos_at",
    "seed",
];

/// Reads a trace file (`.csv` or `.csv.gz`).
///
/// # Errors
/// [`InputError`] with the line: an unknown or missing column, a value that is none, arrivals out of order,
/// or no row at all.
pub fn read_trace(path: &Path) -> Result<Trace, InputError> {
    parse_trace(&input::read_text(path)?, &path.display().to_string())
}

/// Reads the (input, output) token pairs of a file in the same format; arrivals are not needed.
///
/// # Errors
/// As [`read_trace`].
pub fn read_length_rows(path: &Path) -> Result<Vec<(u32, u32)>, InputError> {
    let origin = path.display().to_string();
    let text = input::read_text(path)?;
    let mut rows = Vec::new();
    each_row(&text, &origin, |row| {
        rows.push((row.tokens("input_tokens")?, row.tokens("output_tokens")?));
        Ok(())
    })?;
    Ok(rows)
}

/// [`read_trace`] on text already read.
///
/// # Errors
/// As [`read_trace`].
pub fn parse_trace(text: &str, origin: &str) -> Result<Trace, InputError> {
    let mut requests: Vec<TraceRequest> = Vec::new();
    each_row(text, origin, |row| {
        let arrival = row.arrival()?;
        if let Some(before) = requests.last()
            && arrival < before.arrival
        {
            return Err(row
                .error(format!(
                    "arrival {} s comes before the row above ({} s)",
                    arrival.as_secs_f64(),
                    before.arrival.as_secs_f64()
                ))
                .allowed("rows must be in order of arrival: sort the file"));
        }
        let (input, output) = (row.tokens("input_tokens")?, row.tokens("output_tokens")?);
        requests.push(TraceRequest {
            prefix: row.prefix()?,
            priority: row.optional("priority")?.unwrap_or(0),
            eos_at: row.optional::<u32>("eos_at")?.filter(|e| *e > 0),
            ..TraceRequest::plain(arrival, input, output)
        });
        Ok(())
    })?;
    Ok(Trace { requests })
}

/// Writes a trace in this format; reading it gives the same trace back (accepted drafts are not kept).
///
/// # Errors
/// Those of the writer.
pub fn write_trace(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "arrival_ns,input_tokens,output_tokens,prefix_group,prefix_tokens,session,priority,eos_at"
    )?;
    for r in &trace.requests {
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
        )?;
    }
    Ok(())
}

struct Row<'a> {
    origin: &'a str,
    line: u64,
    header: &'a StringRecord,
    record: &'a StringRecord,
}

fn each_row(
    text: &str,
    origin: &str,
    mut take: impl FnMut(&Row<'_>) -> Result<(), InputError>,
) -> Result<(), InputError> {
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(text.as_bytes());
    let broken = |e: &::csv::Error| {
        let line = csv_line(text, e.position()).max(1);
        let found = match e.kind() {
            ::csv::ErrorKind::UnequalLengths {
                expected_len, len, ..
            } => {
                format!("the row has {len} fields, the header {expected_len}")
            }
            _ => "not a CSV row".to_owned(),
        };
        InputError::new(origin, found).at(format!("line {line}"))
    };
    let header = reader.headers().map_err(|e| broken(&e))?.clone();
    check_header(&header, origin)?;
    let mut any = false;
    for record in reader.records() {
        let record = record.map_err(|e| broken(&e))?;
        any = true;
        take(&Row {
            origin,
            line: csv_line(text, record.position()),
            header: &header,
            record: &record,
        })?;
    }
    if any {
        return Ok(());
    }
    Err(InputError::new(origin, "the trace is empty").allowed("at least one row below the header is needed"))
}

fn check_header(header: &StringRecord, origin: &str) -> Result<(), InputError> {
    let error = |found: String| {
        InputError::new(origin, found)
            .at("line 1")
            .allowed(format!("columns: {}", COLUMNS.join(", ")))
    };
    for (i, name) in header.iter().enumerate() {
        if !COLUMNS.contains(&name) {
            return Err(error(format!("unknown column '{name}'")).nearest_of(name, COLUMNS));
        }
        if header.iter().take(i).any(|n| n == name) {
            return Err(error(format!("the column '{name}' is given twice")));
        }
    }
    for needed in ["input_tokens", "output_tokens"] {
        if !header.iter().any(|n| n == needed) {
            return Err(error(format!("the column '{needed}' is missing")));
        }
    }
    Ok(())
}

impl Row<'_> {
    fn error(&self, found: String) -> InputError {
        InputError::new(self.origin, found).at(format!("line {}", self.line))
    }

    fn text(&self, column: &str) -> Option<&str> {
        let i = self.header.iter().position(|n| n == column)?;
        self.record.get(i).filter(|t| !t.is_empty())
    }

    fn optional<T: std::str::FromStr>(&self, column: &str) -> Result<Option<T>, InputError> {
        self.text(column)
            .map(|t| {
                t.parse().map_err(|_| {
                    self.error(format!("{column} is '{t}'")).allowed(format!(
                        "allowed: a number that fits {}",
                        std::any::type_name::<T>()
                    ))
                })
            })
            .transpose()
    }

    fn tokens(&self, column: &str) -> Result<u32, InputError> {
        let allowed = format!("allowed: 1 to {MAX_TOKENS} tokens");
        match self.optional::<u32>(column)? {
            Some(n) if (1..=MAX_TOKENS).contains(&n) => Ok(n),
            Some(n) => Err(self.error(format!("{column} is {n}")).allowed(allowed)),
            None => Err(self.error(format!("{column} is empty")).allowed(allowed)),
        }
    }

    fn arrival(&self) -> Result<SimTime, InputError> {
        match (
            self.optional::<u64>("arrival_ns")?,
            self.optional::<f64>("arrival_s")?,
        ) {
            (Some(ns), None) => Ok(SimTime(ns)),
            (None, Some(s)) => SimTime::try_from_secs_f64(s).map_err(|e| {
                self.error(format!("arrival_s: {e}"))
                    .allowed("allowed: seconds from 0 on")
            }),
            (Some(_), Some(_)) => Err(self
                .error("both arrival_s and arrival_ns are given".to_owned())
                .allowed("keep one of the two columns")),
            (None, None) => Err(self
                .error("no arrival".to_owned())
                .allowed("a column arrival_s (seconds) or arrival_ns (nanoseconds) is needed")),
        }
    }

    fn prefix(&self) -> Result<Option<Prefix>, InputError> {
        let session = match self.optional::<u8>("session")? {
            None | Some(0) => false,
            Some(1) => true,
            Some(n) => return Err(self.error(format!("session is {n}")).allowed("allowed: 0 or 1")),
        };
        let tokens = self.optional::<u32>("prefix_tokens")?.unwrap_or(0);
        match self.optional::<i64>("prefix_group")? {
            None | Some(i64::MIN..=-1) if session || tokens > 0 => Err(self
                .error("prefix_tokens or session without a prefix_group".to_owned())
                .allowed("give a prefix_group from 0 on, or leave both at 0")),
            None | Some(i64::MIN..=-1) => Ok(None),
            Some(group) => Ok(Some(Prefix {
                group: u32::try_from(group).map_err(|_| {
                    self.error(format!("prefix_group is {group}"))
                        .allowed("allowed: up to 4294967295")
                })?,
                shared_tokens: if session { u32::MAX } else { tokens },
                greedy_outputs: false,
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
