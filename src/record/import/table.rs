//! Any CSV table with a row a request, by a map from our columns to its own.

use std::collections::BTreeMap;
use std::path::Path;

use csv::StringRecord;

use super::{ClientRequest, ClientRun, MAX_TOKENS, Tool};
use crate::input::{InputError, csv_line};

/// Columns that can be mapped: name and meaning.
const FIELDS: &[(&str, &str)] = &[
    ("arrival_s", "when the request was sent, on any clock"),
    ("ttft_s", "time to first token"),
    ("first_token_s", "instant of the first token"),
    ("e2e_s", "time to the last token"),
    ("last_token_s", "instant of the last token"),
    ("input_tokens", "prompt tokens"),
    ("output_tokens", "output tokens"),
    ("max_tokens", "cap on output tokens"),
    ("cached_input_tokens", "prompt tokens from the prefix cache"),
    ("prefix_group", "requests of one group share their beginning"),
    ("prefix_tokens", "how many tokens they share"),
    ("priority", "scheduling priority"),
    ("request_id", "the server's name for it"),
    ("error", "empty, 0 or false when it was served"),
];

/// Our column names to the table's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns(BTreeMap<&'static str, String>);

impl Columns {
    /// Maps `ours` to `theirs`.
    ///
    /// # Errors
    /// [`InputError`] with the nearest name when there is no such column of ours.
    pub fn map(&mut self, ours: &str, theirs: &str) -> Result<(), InputError> {
        let Some((name, _)) = FIELDS.iter().find(|(name, _)| *name == ours) else {
            let list = FIELDS
                .iter()
                .map(|(n, what)| format!("{n} ({what})"))
                .collect::<Vec<_>>();
            return Err(InputError::new("--columns", format!("unknown column '{ours}'"))
                .allowed(format!("known: {}", list.join(", ")))
                .nearest_of(ours, FIELDS.iter().map(|(n, _)| *n)));
        };
        self.0.insert(name, theirs.to_owned());
        Ok(())
    }

    fn theirs<'a>(&'a self, ours: &'static str) -> &'a str {
        self.0.get(ours).map_or(ours, String::as_str)
    }
}

/// How to read a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableOptions {
    /// Which column is which; one of our own names needs no entry.
    pub columns: Columns,
    /// Units of every time in a second.
    pub per_second: f64,
    /// Rows whose column has this value; all conditions must hold.
    pub keep: Vec<(String, String)>,
    /// One run for each combination of values in these columns.
    pub group_by: Vec<String>,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            columns: Columns::default(),
            per_second: 1.0,
            keep: Vec::new(),
            group_by: Vec::new(),
        }
    }
}

/// The table's header, by which cells are found.
struct Header<'a> {
    path: &'a Path,
    names: StringRecord,
    options: &'a TableOptions,
}

impl Header<'_> {
    fn named(&self, name: &str) -> Result<usize, InputError> {
        self.names.iter().position(|n| n.trim() == name).ok_or_else(|| {
            let header = self.names.iter().collect::<Vec<_>>().join(", ");
            InputError::in_file(self.path, format!("has no column '{name}'"))
                .at("line 1")
                .allowed(format!(
                    "the header has: {header}; map columns with --columns ours=theirs"
                ))
                .nearest_of(name, self.names.iter())
        })
    }

    /// The place of one of our columns; `None` when it is neither mapped nor there.
    fn place(&self, ours: &'static str) -> Result<Option<usize>, InputError> {
        let mapped = self.options.columns.0.contains_key(ours);
        let theirs = self.options.columns.theirs(ours);
        match self.named(theirs) {
            Err(e) if mapped => Err(e),
            found => Ok(found.ok()),
        }
    }

    fn either(&self, a: &'static str, b: &'static str) -> Result<(Option<usize>, bool), InputError> {
        match (self.place(a)?, self.place(b)?) {
            (Some(place), _) => Ok((Some(place), true)),
            (None, Some(place)) => Ok((Some(place), false)),
            (None, None) => self
                .named(self.options.columns.theirs(a))
                .map(|p| (Some(p), true)),
        }
    }
}

/// The places of our columns in the table.
struct Places {
    arrival: usize,
    first: (Option<usize>, bool),
    last: (Option<usize>, bool),
    input: usize,
    output: usize,
    optional: BTreeMap<&'static str, usize>,
}

impl Places {
    fn of(header: &Header<'_>) -> Result<Self, InputError> {
        let needed = |ours: &'static str| header.named(header.options.columns.theirs(ours));
        let mut optional = BTreeMap::new();
        for name in [
            "max_tokens",
            "cached_input_tokens",
            "prefix_group",
            "prefix_tokens",
            "priority",
            "request_id",
            "error",
        ] {
            if let Some(place) = header.place(name)? {
                optional.insert(name, place);
            }
        }
        Ok(Self {
            arrival: needed("arrival_s")?,
            first: header.either("ttft_s", "first_token_s")?,
            last: header.either("e2e_s", "last_token_s")?,
            input: needed("input_tokens")?,
            output: needed("output_tokens")?,
            optional,
        })
    }
}

pub(super) fn read(path: &Path, text: &str, options: &TableOptions) -> Result<Vec<ClientRun>, InputError> {
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .from_reader(text.as_bytes());
    let names = reader
        .headers()
        .map_err(|e| InputError::in_file(path, format!("has no readable header ({e})")).at("line 1"))?
        .clone();
    let header = Header { path, names, options };
    let places = Places::of(&header)?;
    let keep: Vec<(usize, &str)> = options
        .keep
        .iter()
        .map(|(column, value)| Ok((header.named(column)?, value.as_str())))
        .collect::<Result<_, InputError>>()?;
    let groups: Vec<usize> = options
        .group_by
        .iter()
        .map(|c| header.named(c))
        .collect::<Result<_, InputError>>()?;
    let mut runs: BTreeMap<Vec<String>, Vec<ClientRequest>> = BTreeMap::new();
    let mut record = StringRecord::new();
    loop {
        let complain = |found: String, position: Option<&csv::Position>| {
            InputError::in_file(path, found).at(format!("line {}", csv_line(text, position)))
        };
        match reader.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) => return Err(complain(format!("is not a readable CSV row ({e})"), e.position())),
        }
        if record.len() != header.names.len() {
            let found = format!(
                "has {} cells where the header has {}",
                record.len(),
                header.names.len()
            );
            return Err(
                complain(found, record.position()).allowed("the file may have been cut off: fetch it again")
            );
        }
        let cell = |place: usize| record.get(place).unwrap_or_default().trim();
        if keep.iter().all(|(place, value)| cell(*place) == *value) {
            let key: Vec<String> = groups.iter().map(|&place| cell(place).to_owned()).collect();
            let request = row(&record, &places, options.per_second).map_err(|(place, found)| {
                let column = header.names.get(place).unwrap_or_default();
                let line = csv_line(text, record.position());
                InputError::in_file(path, found).at(format!("line {line}, column {column}"))
            })?;
            runs.entry(key).or_default().push(request);
        }
    }
    if runs.is_empty() {
        return Err(InputError::in_file(path, "no row is left")
            .allowed("conditions under --where that some row meets"));
    }
    runs.into_iter()
        .map(|(key, requests)| {
            let name = (!key.is_empty()).then(|| key.join("."));
            let run = ClientRun {
                requests,
                name,
                ..ClientRun::new(Tool::Csv)
            };
            run.settle(path)
        })
        .collect()
}

/// One row; an error names the place of its cell.
fn row(record: &StringRecord, places: &Places, per_second: f64) -> Result<ClientRequest, (usize, String)> {
    let cell = |place: usize| record.get(place).unwrap_or_default().trim();
    let number = |place: usize| match cell(place).parse::<f64>() {
        Ok(x) if x.is_finite() => Ok(x),
        _ => Err((place, format!("'{}' is not a number", cell(place)))),
    };
    let count = |place: usize| match cell(place).parse::<f64>() {
        Ok(x) if x >= 0.0 && x <= MAX_TOKENS as f64 && x.fract() == 0.0 => Ok(x as u32),
        _ => Err((place, format!("'{}' is not a number of tokens", cell(place)))),
    };
    let optional = |name: &str| {
        places
            .optional
            .get(name)
            .copied()
            .filter(|&p| !cell(p).is_empty())
    };
    let error = optional("error")
        .map(cell)
        .filter(|e| !matches!(*e, "0" | "0.0" | "false" | "False" | "none" | "None"));
    let sent_s = number(places.arrival)? / per_second;
    let failed = error.is_some();
    let instant = |(place, is_span): (Option<usize>, bool)| match place {
        Some(p) if !(failed && cell(p).is_empty()) => {
            let t = number(p)? / per_second;
            Ok(Some(if is_span { sent_s + t } else { t }))
        }
        _ => Ok(None),
    };
    let tokens = |place: usize| {
        if failed && cell(place).is_empty() {
            Ok(0)
        } else {
            count(place)
        }
    };
    let output_tokens = tokens(places.output)?;
    let whole = |name: &str| {
        optional(name)
            .map(|p| {
                cell(p)
                    .parse::<i64>()
                    .map_err(|_| (p, format!("'{}' is not a whole number", cell(p))))
            })
            .transpose()
    };
    Ok(ClientRequest {
        id: optional("request_id").map(|p| cell(p).to_owned()),
        sent_s,
        first_s: instant(places.first)?,
        last_s: instant(places.last)?,
        input_tokens: Some(tokens(places.input)?),
        output_tokens,
        counted_tokens: output_tokens,
        requested_tokens: optional("max_tokens").map(count).transpose()?,
        cached_tokens: optional("cached_input_tokens").map(count).transpose()?,
        prefix_group: whole("prefix_group")?.and_then(|g| u32::try_from(g).ok()),
        prefix_tokens: optional("prefix_tokens").map(count).transpose()?.unwrap_or(0),
        priority: whole("priority")?
            .and_then(|p| i32::try_from(p).ok())
            .unwrap_or(0),
        error: error.map(str::to_owned),
        ..ClientRequest::default()
    })
}
