//! Strict reading of CSV tables: every wrong cell is an error with its line and column.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use csv::StringRecord;

use crate::input::{InputError, csv_line};

/// The columns of a table, found by name in its header. Further columns are ignored unless
/// [`without_others`](Table::without_others) refuses them.
pub(super) struct Table<'a> {
    path: &'a Path,
    text: &'a str,
    reader: csv::Reader<&'a [u8]>,
    names: &'static [&'static str],
    places: Vec<Option<usize>>,
    width: usize,
    /// Units of time in a second.
    per_second: f64,
}

impl<'a> Table<'a> {
    /// Reads the header of `text` and finds the columns `names`; those that `required` names must be there.
    pub(super) fn open(
        path: &'a Path,
        text: &'a str,
        names: &'static [&'static str],
        required: impl Fn(&Header<'_>, &str) -> bool,
    ) -> Result<Self, InputError> {
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .from_reader(text.as_bytes());
        let header = reader
            .headers()
            .map_err(|e| InputError::in_file(path, format!("has no readable header ({e})")).at("line 1"))?
            .clone();
        if header.is_empty() {
            return Err(InputError::in_file(path, "is empty").allowed("a header line is required"));
        }
        let places = names
            .iter()
            .map(|name| match find_column(path, &header, name)? {
                None if required(&Header(&header), name) => Err(missing(path, &header, name)),
                place => Ok(place),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            path,
            text,
            reader,
            names,
            places,
            width: header.len(),
            per_second: 1.0,
        })
    }

    /// Refuses columns of other names: a slip in an optional one would silently be no column at all.
    pub(super) fn without_others(mut self) -> Result<Self, InputError> {
        let header = self.reader.headers().cloned().unwrap_or_default();
        let names = self.names;
        match header.iter().find(|h| !names.contains(h)) {
            None => Ok(self),
            Some(other) => Err(
                InputError::in_file(self.path, format!("has an unknown column '{other}'"))
                    .at("line 1")
                    .allowed(format!("columns: {}", names.join(", ")))
                    .nearest_of(other, names.iter().copied()),
            ),
        }
    }

    /// The same table with its times in another unit than seconds.
    pub(super) fn in_units(self, per_second: f64) -> Self {
        Self { per_second, ..self }
    }

    /// Reads every row with `parse`.
    pub(super) fn read_rows<T>(
        mut self,
        mut parse: impl FnMut(usize, &Row<'_>) -> Result<T, InputError>,
    ) -> Result<Vec<T>, InputError> {
        let mut rows = Vec::new();
        let mut record = StringRecord::new();
        loop {
            let more = self.reader.read_record(&mut record).map_err(|e| {
                let line = csv_line(self.text, e.position());
                InputError::in_file(self.path, format!("is not a readable CSV row ({e})"))
                    .at(format!("line {line}"))
            })?;
            if !more {
                return Ok(rows);
            }
            let row = Row {
                path: self.path,
                line: csv_line(self.text, record.position()),
                record: &record,
                names: self.names,
                places: &self.places,
                per_second: self.per_second,
            };
            if record.len() != self.width {
                let found = format!("has {} cells where the header has {}", record.len(), self.width);
                return Err(row
                    .error(found)
                    .allowed("the file may have been cut off: fetch it again"));
            }
            rows.push(parse(rows.len(), &row)?);
        }
    }
}

/// The names of a table's columns.
pub(super) struct Header<'a>(&'a StringRecord);

impl Header<'_> {
    /// Whether there is a column of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|h| h == name)
    }
}

fn find_column(path: &Path, header: &StringRecord, name: &str) -> Result<Option<usize>, InputError> {
    let mut found = header
        .iter()
        .enumerate()
        .filter(|(_, h)| *h == name)
        .map(|(i, _)| i);
    let place = found.next();
    if found.next().is_some() {
        return Err(InputError::in_file(path, format!("has the column '{name}' twice")).at("line 1"));
    }
    Ok(place)
}

fn missing(path: &Path, header: &StringRecord, name: &str) -> InputError {
    let columns = header.iter().collect::<Vec<_>>().join(", ");
    InputError::in_file(path, format!("has no column '{name}'"))
        .at("line 1")
        .allowed(format!("the column is required; the header has: {columns}"))
        .nearest_of(name, header.iter())
}

/// A kind of whole number, with its bounds for readers who know no types.
pub(super) trait Whole: FromStr + PartialOrd + Display {
    /// The least that it can hold.
    const LEAST: Self;
    /// The most.
    const MOST: Self;
}

macro_rules! whole {
    ($($number:ty),*) => {$(
        impl Whole for $number {
            const LEAST: Self = Self::MIN;
            const MOST: Self = Self::MAX;
        }
    )*};
}

whole!(u32, u64, i32, i64, usize);

/// One row while it is parsed.
pub(super) struct Row<'a> {
    path: &'a Path,
    line: u64,
    record: &'a StringRecord,
    names: &'static [&'static str],
    places: &'a [Option<usize>],
    /// Units of time in a second.
    per_second: f64,
}

impl Row<'_> {
    /// The row's line in its file, from 1.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// The row's place in its file.
    pub(super) fn line_text(&self) -> String {
        format!("line {}", self.line)
    }

    /// An error about the whole row.
    pub(super) fn error(&self, found: impl Into<String>) -> InputError {
        InputError::in_file(self.path, found).at(format!("line {}", self.line))
    }

    /// An error about one cell.
    pub(super) fn cell_error(&self, column: &str, found: impl Into<String>) -> InputError {
        InputError::in_file(self.path, found).at(format!("line {}, column {column}", self.line))
    }

    fn place(&self, column: &str) -> Option<usize> {
        let index = self.names.iter().position(|n| *n == column)?;
        self.places[index]
    }

    /// Whether the table has the column.
    pub(super) fn has(&self, column: &'static str) -> bool {
        self.place(column).is_some()
    }

    /// The text of a cell, empty where there is no such column. `column` is one of the names that the table
    /// was opened with.
    pub(super) fn text(&self, column: &'static str) -> &str {
        self.place(column)
            .and_then(|i| self.record.get(i))
            .unwrap_or_default()
            .trim()
    }

    /// The first of the columns that the table has.
    pub(super) fn first_of(&self, columns: &[&'static str]) -> Option<&'static str> {
        columns.iter().copied().find(|c| self.has(c))
    }

    /// A whole number that `T` can hold.
    pub(super) fn integer<T: Whole>(&self, column: &'static str) -> Result<T, InputError> {
        self.whole(column, T::LEAST..=T::MOST)
    }

    /// A whole number of a range.
    pub(super) fn whole<T: Whole>(
        &self,
        column: &'static str,
        allowed: RangeInclusive<T>,
    ) -> Result<T, InputError> {
        let text = self.text(column);
        match text.parse() {
            Ok(value) if allowed.contains(&value) => Ok(value),
            _ => Err(self
                .cell_error(column, format!("'{text}' cannot be used"))
                .allowed(format!(
                    "a whole number from {} to {}",
                    allowed.start(),
                    allowed.end()
                ))),
        }
    }

    /// A whole number from 0 to `limit`.
    pub(super) fn count(&self, column: &'static str, limit: u32) -> Result<u32, InputError> {
        self.whole(column, 0..=limit)
    }

    /// A whole number, or `absent` where the table has no such column.
    pub(super) fn integer_or<T: Whole>(&self, column: &'static str, absent: T) -> Result<T, InputError> {
        if self.has(column) {
            self.integer(column)
        } else {
            Ok(absent)
        }
    }

    /// A whole number from 0 to `limit`, or `absent` where the table has no such column.
    pub(super) fn count_or(&self, column: &'static str, limit: u32, absent: u32) -> Result<u32, InputError> {
        if self.has(column) {
            self.count(column, limit)
        } else {
            Ok(absent)
        }
    }

    /// Seconds: finite and not negative.
    pub(super) fn seconds(&self, column: &'static str) -> Result<f64, InputError> {
        let text = self.text(column);
        match text.parse::<f64>().map(|value| value / self.per_second) {
            Ok(value) if (0.0..=MAX_SECONDS).contains(&value) => Ok(value),
            _ => Err(self
                .cell_error(column, format!("'{text}' is not a time"))
                .allowed(format!("seconds from 0 to {MAX_SECONDS:e}"))),
        }
    }

    /// Seconds, or nothing in the cell.
    pub(super) fn optional_seconds(&self, column: &'static str) -> Result<Option<f64>, InputError> {
        if self.text(column).is_empty() {
            return Ok(None);
        }
        self.seconds(column).map(Some)
    }
}

/// The longest time in a capture: 30 years. Anything longer is a unit mistake.
const MAX_SECONDS: f64 = 1e9;
