//! Rows read one by one, and their values.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csv::{ErrorKind, Position, Reader, ReaderBuilder, StringRecord, Trim};

use super::columns::{Places, places};
use crate::input::{self, InputError, TextFile};
use crate::units::SimTime;
use crate::workload::lengths::MAX_TOKENS;
use crate::workload::trace::Prefix;

/// Bytes that are looked at to see how lines end.
const FIRST_LOOK: usize = 64 << 10;
/// A row longer than this is none; bounds the memory of a file that is no table.
const MAX_ROW_BYTES: usize = 1 << 20;

/// The rows of a table.
#[derive(Debug)]
pub(super) struct Rows<R> {
    origin: String,
    /// The file, if it is one.
    path: Option<PathBuf>,
    reader: Reader<Guarded<R>>,
    header: StringRecord,
    record: StringRecord,
    places: Places,
    /// Where lines end in two characters, the reader takes a row to begin between the two, one line too early.
    late: u64,
    unread: Arc<AtomicUsize>,
    any: bool,
    ended: bool,
}

impl Rows<TextFile> {
    pub fn open(path: &Path) -> Result<Self, InputError> {
        let file = input::open_text(path)?;
        Self::new(file, path.display().to_string(), Some(path.to_owned()))
    }
}

impl<'t> Rows<&'t [u8]> {
    pub fn of_text(text: &'t str, origin: &str) -> Result<Self, InputError> {
        Self::new(text.as_bytes(), origin.to_owned(), None)
    }
}

impl<R: Read> Rows<R> {
    fn new(source: R, origin: String, path: Option<PathBuf>) -> Result<Self, InputError> {
        let unread = Arc::new(AtomicUsize::new(0));
        let mut source = Guarded {
            inner: BufReader::with_capacity(FIRST_LOOK, source),
            unread: unread.clone(),
        };
        let unreadable = |e: &io::Error| input::unreadable(path.as_deref().unwrap_or(Path::new(&origin)), e);
        let first = source.inner.fill_buf().map_err(|e| unreadable(&e))?;
        let end = first.iter().position(|b| *b == b'\n').unwrap_or(0);
        let late = u64::from(first[..end].ends_with(b"\r"));
        let mut rows = Self {
            origin,
            path,
            reader: ReaderBuilder::new().trim(Trim::All).from_reader(source),
            header: StringRecord::new(),
            record: StringRecord::new(),
            places: Places::default(),
            late,
            unread,
            any: false,
            ended: false,
        };
        rows.header = match rows.reader.headers() {
            Ok(header) => header.clone(),
            Err(e) => return Err(rows.broken(&e)),
        };
        rows.places = places(&rows.header, &rows.origin)?;
        Ok(rows)
    }

    /// What `take` makes of the next row; `None` after the last one, and after an error.
    pub fn next<T>(
        &mut self,
        take: impl FnOnce(&Row<'_>) -> Result<T, InputError>,
    ) -> Option<Result<T, InputError>> {
        if self.ended {
            return None;
        }
        self.unread.store(0, Ordering::Relaxed);
        let outcome = match self.reader.read_record(&mut self.record) {
            Ok(true) => {
                self.any = true;
                take(&Row {
                    origin: &self.origin,
                    line: self.line(self.record.position()),
                    header: &self.header,
                    record: &self.record,
                    places: &self.places,
                })
            }
            Ok(false) if self.any => {
                self.ended = true;
                return None;
            }
            Ok(false) => Err(InputError::new(&self.origin, "the trace is empty")
                .allowed("at least one row below the header is needed")),
            Err(e) => Err(self.broken(&e)),
        };
        self.ended = outcome.is_err();
        Some(outcome)
    }

    fn line(&self, position: Option<&Position>) -> u64 {
        position.map_or(0, Position::line) + self.late
    }

    fn broken(&self, error: &csv::Error) -> InputError {
        let found = match error.kind() {
            ErrorKind::Io(e) if e.kind() == io::ErrorKind::FileTooLarge => {
                return InputError::new(&self.origin, "there is a row of more than 1 MiB")
                    .allowed("check that it is the file you mean");
            }
            ErrorKind::Io(e) => {
                let path = self.path.as_deref().unwrap_or(Path::new(&self.origin));
                return input::unreadable(path, e);
            }
            ErrorKind::Utf8 { .. } => "the row is not UTF-8 text".to_owned(),
            ErrorKind::UnequalLengths {
                expected_len, len, ..
            } => {
                format!("the row has {len} fields, the header {expected_len}")
            }
            _ => "not a CSV row".to_owned(),
        };
        let line = self.line(error.position()).max(1);
        InputError::new(&self.origin, found).at(format!("line {line}"))
    }
}

/// Refuses to read on and on without a row coming to its end.
#[derive(Debug)]
struct Guarded<R> {
    inner: BufReader<R>,
    unread: Arc<AtomicUsize>,
}

impl<R: Read> Read for Guarded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if self.unread.fetch_add(read, Ordering::Relaxed) > MAX_ROW_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(read)
    }
}

/// One row.
#[derive(Debug)]
pub(super) struct Row<'a> {
    origin: &'a str,
    line: u64,
    header: &'a StringRecord,
    record: &'a StringRecord,
    pub places: &'a Places,
}

impl Row<'_> {
    pub fn error(&self, found: String) -> InputError {
        InputError::new(self.origin, found).at(format!("line {}", self.line))
    }

    /// What the file calls the column.
    fn name(&self, place: Option<usize>) -> &str {
        place.and_then(|i| self.header.get(i)).unwrap_or_default()
    }

    pub fn optional<T: std::str::FromStr>(&self, place: Option<usize>) -> Result<Option<T>, InputError> {
        let text = place.and_then(|i| self.record.get(i)).filter(|t| !t.is_empty());
        text.map(|t| {
            t.parse().map_err(|_| {
                self.error(format!("{} is '{t}'", self.name(place)))
                    .allowed(format!(
                        "allowed: a number that fits {}",
                        std::any::type_name::<T>()
                    ))
            })
        })
        .transpose()
    }

    fn tokens(&self, place: Option<usize>, least: u32) -> Result<u32, InputError> {
        let refused = |what: String| {
            self.error(format!("{} is {what}", self.name(place)))
                .allowed(format!("allowed: {least} to {MAX_TOKENS} tokens"))
        };
        match self.optional::<u32>(place)? {
            Some(n) if (least..=MAX_TOKENS).contains(&n) => Ok(n),
            Some(n) => Err(refused(n.to_string())),
            None => Err(refused("empty".to_owned())),
        }
    }

    pub fn input_tokens(&self) -> Result<u32, InputError> {
        self.tokens(self.places.input_tokens, 1)
    }

    pub fn output_tokens(&self) -> Result<u32, InputError> {
        self.tokens(self.places.output_tokens, 1)
    }

    /// Input and output tokens, 0 allowed.
    pub fn lengths(&self) -> Result<(u32, u32), InputError> {
        Ok((
            self.tokens(self.places.input_tokens, 0)?,
            self.tokens(self.places.output_tokens, 0)?,
        ))
    }

    pub fn arrival(&self) -> Result<SimTime, InputError> {
        match (
            self.optional::<u64>(self.places.arrival_ns)?,
            self.optional::<f64>(self.places.arrival_s)?,
        ) {
            (Some(ns), None) => Ok(SimTime(ns)),
            (None, Some(s)) => SimTime::try_from_secs_f64(s).map_err(|e| {
                self.error(format!("{}: {e}", self.name(self.places.arrival_s)))
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

    pub fn prefix(&self) -> Result<Option<Prefix>, InputError> {
        let session = match self.optional::<u8>(self.places.session)? {
            None | Some(0) => false,
            Some(1) => true,
            Some(n) => return Err(self.error(format!("session is {n}")).allowed("allowed: 0 or 1")),
        };
        let tokens = self.optional::<u32>(self.places.prefix_tokens)?.unwrap_or(0);
        match self.optional::<i64>(self.places.prefix_group)? {
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
