//! One Parquet table in memory, with errors that say row, column and file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};

use crate::calibrate::robust::median;
use crate::input::InputError;

/// No kernel takes this long; a table in other units than milliseconds does.
const MAX_SECONDS: f64 = 60.0;

/// A key (texts, then numbers) and the median of its seconds.
pub type Grouped<const N: usize> = (Vec<String>, [f64; N], f64);

/// A file that is no Parquet file, or not a whole one.
pub fn broken(path: &Path, why: impl std::fmt::Display) -> InputError {
    InputError::in_file(path, format!("is not a whole Parquet file ({why})"))
        .allowed("the file may have been cut off while it was copied, or be a pointer to it: fetch it again")
}

/// A table in memory.
pub struct Table {
    path: PathBuf,
    columns: Vec<String>,
    rows: Vec<Row>,
}

impl Table {
    /// Reads all of it.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let file =
            File::open(path).map_err(|e| InputError::in_file(path, format!("cannot be opened ({e})")))?;
        let reader = SerializedFileReader::new(file).map_err(|e| broken(path, e))?;
        let columns = reader
            .metadata()
            .file_metadata()
            .schema()
            .get_fields()
            .iter()
            .map(|f| f.name().to_owned())
            .collect();
        let rows = reader
            .get_row_iter(None)
            .map_err(|e| broken(path, e))?
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| broken(path, e))?;
        if rows.is_empty() {
            return Err(InputError::in_file(path, "holds no rows").allowed("fetch the table again"));
        }
        Ok(Self {
            path: path.to_owned(),
            columns,
            rows,
        })
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Place of a column that has to be there.
    pub fn column(&self, name: &str) -> Result<usize, InputError> {
        self.optional(name).ok_or_else(|| {
            InputError::in_file(&self.path, format!("has no column '{name}'"))
                .allowed(format!("its columns are {}", self.columns.join(", ")))
                .nearest_of(name, self.columns.iter().map(String::as_str))
        })
    }

    /// Place of a column.
    pub fn optional(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c == name)
    }

    /// A field.
    pub fn field(&self, row: usize, column: usize) -> Option<&Field> {
        self.rows[row].get_column_iter().nth(column).map(|(_, f)| f)
    }

    fn error(&self, row: usize, column: usize, found: &str, allowed: &str) -> InputError {
        InputError::in_file(&self.path, format!("'{}' is {found}", self.columns[column]))
            .at(format!("row {}", row + 1))
            .allowed(allowed)
    }

    /// A number above zero.
    pub fn positive(&self, row: usize, column: usize) -> Result<f64, InputError> {
        let value = match self.field(row, column) {
            Some(Field::Long(v)) => *v as f64,
            Some(Field::Int(v)) => f64::from(*v),
            Some(Field::Double(v)) => *v,
            Some(Field::Float(v)) => f64::from(*v),
            None | Some(Field::Null) => f64::NAN,
            Some(other) => return Err(self.error(row, column, &format!("'{other}'"), "a number above 0")),
        };
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(self.error(row, column, &value.to_string(), "a finite number above 0"))
        }
    }

    /// A text.
    pub fn text(&self, row: usize, column: usize) -> Result<&str, InputError> {
        match self.field(row, column) {
            Some(Field::Str(text)) => Ok(text),
            _ => Err(self.error(row, column, "not text", "a text")),
        }
    }

    /// Latency in seconds; the tables give milliseconds.
    fn seconds(&self, row: usize, column: usize) -> Result<f64, InputError> {
        let seconds = self.positive(row, column)? * 1e-3;
        if seconds > MAX_SECONDS {
            let found = format!("{} ms", seconds * 1e3);
            return Err(self.error(
                row,
                column,
                &found,
                "milliseconds of one kernel, at most a minute",
            ));
        }
        Ok(seconds)
    }

    /// Names of the devices, where the table has any.
    pub fn devices(&self) -> Result<BTreeSet<String>, InputError> {
        let Some(column) = self.optional("device") else {
            return Ok(BTreeSet::new());
        };
        (0..self.rows.len())
            .map(|r| self.text(r, column).map(str::to_owned))
            .collect()
    }

    /// One row a key, with the median of the seconds of all rows of that key, in the order of the keys.
    pub fn grouped<const N: usize>(
        &self,
        texts: &[&str],
        numbers: [&str; N],
        wanted: impl Fn(&Self, usize) -> Result<bool, InputError>,
    ) -> Result<Vec<Grouped<N>>, InputError> {
        let latency = self.column("latency")?;
        let text_columns = texts
            .iter()
            .map(|t| self.column(t))
            .collect::<Result<Vec<_>, _>>()?;
        let mut columns = [0; N];
        for (place, name) in columns.iter_mut().zip(numbers) {
            *place = self.column(name)?;
        }
        let mut groups: BTreeMap<(Vec<String>, [u64; N]), Vec<f64>> = BTreeMap::new();
        for row in 0..self.rows.len() {
            if !wanted(self, row)? {
                continue;
            }
            let mut key = Vec::with_capacity(texts.len());
            for &column in &text_columns {
                key.push(self.text(row, column)?.to_owned());
            }
            let mut sizes = [0; N];
            for (size, &column) in sizes.iter_mut().zip(&columns) {
                // Sizes are whole numbers: their bits order and compare as they do.
                *size = self.positive(row, column)?.to_bits();
            }
            groups
                .entry((key, sizes))
                .or_default()
                .push(self.seconds(row, latency)?);
        }
        Ok(groups
            .into_iter()
            .filter_map(|((key, sizes), times)| Some((key, sizes.map(f64::from_bits), median(&times)?)))
            .collect())
    }
}
