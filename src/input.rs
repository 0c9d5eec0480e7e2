//! Reading untrusted files and writing results: one error shape, bounded memory, no half-written file.
//!
//! Every importer and every config field reports through [`InputError`]: file, place in it, what was found,
//! what is allowed, and the nearest valid name where there is one.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

/// The largest text (after decompression) that any importer accepts, in bytes.
pub const MAX_TEXT_BYTES: u64 = 256 << 20;

/// Bad input from a user: one paragraph that says where, what was found, what is allowed and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputError {
    /// File, flag or scenario the value came from.
    pub origin: String,
    /// Where in it: `line 7`, `system.engine.max_num_seqs`, `steps[3].tok`.
    pub place: Option<String>,
    /// What was found and why it cannot be used.
    pub found: String,
    /// What is allowed, or how to mend it.
    pub allowed: Option<String>,
    /// The nearest valid name, when a name was unknown.
    pub nearest: Option<String>,
}

impl InputError {
    /// An error about `origin` (a path, a flag) with what was found there.
    pub fn new(origin: impl fmt::Display, found: impl Into<String>) -> Self {
        Self {
            origin: origin.to_string(),
            place: None,
            found: found.into(),
            allowed: None,
            nearest: None,
        }
    }

    /// An error about a file.
    pub fn in_file(path: &Path, found: impl Into<String>) -> Self {
        Self::new(path.display(), found)
    }

    /// Adds the place inside the origin: a line, a field path.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.place = Some(place.to_string());
        self
    }

    /// Adds the field that a JSON reader stumbled over; a place that is the whole document is none.
    #[must_use]
    pub fn at_field(self, path: &serde_path_to_error::Path) -> Self {
        let place = path.to_string();
        if matches!(place.as_str(), "." | "?") {
            self
        } else {
            self.at(place)
        }
    }

    /// Adds what is allowed or how to mend it.
    #[must_use]
    pub fn allowed(mut self, allowed: impl Into<String>) -> Self {
        self.allowed = Some(allowed.into());
        self
    }

    /// Adds the nearest of the valid names, if one is near enough to be meant.
    #[must_use]
    pub fn nearest_of<'a>(mut self, given: &str, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.nearest = nearest(given, names);
        self
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.origin)?;
        if let Some(place) = &self.place {
            write!(f, ", {place}")?;
        }
        write!(f, ": {}", self.found)?;
        if let Some(allowed) = &self.allowed {
            write!(f, "; {allowed}")?;
        }
        if let Some(nearest) = &self.nearest {
            write!(f, "; did you mean '{nearest}'?")?;
        }
        Ok(())
    }
}

impl std::error::Error for InputError {}

/// The name closest to `given`, if it is close enough to be a slip of the hand.
///
/// Of a name of several words the first ones may be meant alone, `waiting` for `waiting-per-group`, where no other name
/// begins so.
pub fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.into_iter().collect();
    let whole = names
        .iter()
        .map(|&name| (strsim::normalized_damerau_levenshtein(given, name), name))
        .filter(|(score, _)| *score >= 0.5)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((_, name)) = whole {
        return Some(name.to_owned());
    }
    let begins_so = |name: &&&str| {
        let ends = name.match_indices(['-', '_']).map(|(end, _)| end);
        let mut beginnings = ends.map(|end| &name[..end]).filter(|words| words.len() >= 4);
        beginnings.any(|words| strsim::normalized_damerau_levenshtein(given, words) >= BEGINNING)
    };
    let mut beginning = names.iter().filter(begins_so);
    match (beginning.next(), beginning.next()) {
        (Some(name), None) => Some((*name).to_owned()),
        _ => None,
    }
}

/// So near must the first words of a name be to what was given, to be meant.
const BEGINNING: f64 = 0.75;

/// Reads a text file, gunzipping when its name ends in `.gz`.
///
/// # Errors
/// [`InputError`] when the file cannot be opened, is a truncated or broken gzip, is not UTF-8, or is larger
/// than [`MAX_TEXT_BYTES`] once decompressed.
pub fn read_text(path: &Path) -> Result<String, InputError> {
    read_text_limited(path, MAX_TEXT_BYTES)
}

fn read_text_limited(path: &Path, limit: u64) -> Result<String, InputError> {
    let mut bytes = Vec::new();
    open_text(path)?
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| unreadable(path, &e))?;
    if bytes.len() as u64 > limit {
        return Err(
            InputError::in_file(path, format!("holds more than {limit} bytes of text"))
                .allowed("split it, or check that it is the file you mean"),
        );
    }
    // A byte order mark is what spreadsheet programs put in front; it is not content.
    let text = String::from_utf8(bytes).map_err(|e| {
        InputError::in_file(
            path,
            format!("is not UTF-8 text (byte {})", e.utf8_error().valid_up_to()),
        )
        .allowed("save it as UTF-8")
    })?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}

/// An open text file.
#[derive(Debug)]
pub enum TextFile {
    /// As it is.
    Plain(File),
    /// Gunzipped while it is read.
    Gzip(Box<MultiGzDecoder<BufReader<File>>>),
}

impl Read for TextFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(buffer),
            Self::Gzip(file) => file.read(buffer),
        }
    }
}

/// Opens a text file to read it piece by piece, gunzipping when its name ends in `.gz`.
///
/// # Errors
/// [`InputError`] when the file cannot be opened.
pub fn open_text(path: &Path) -> Result<TextFile, InputError> {
    let file = File::open(path).map_err(|e| {
        InputError::in_file(path, format!("cannot be opened ({e})")).allowed("give a readable file")
    })?;
    if file.metadata().is_ok_and(|m| m.is_dir()) {
        return Err(InputError::in_file(path, "is a folder where a file is expected"));
    }
    Ok(if is_gzip(path) {
        TextFile::Gzip(Box::new(MultiGzDecoder::new(BufReader::new(file))))
    } else {
        TextFile::Plain(file)
    })
}

fn is_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "gz")
}

/// What to say of an open file that cannot be read to its end.
pub fn unreadable(path: &Path, error: &io::Error) -> InputError {
    let what = if is_gzip(path) {
        "is not a whole gzip file"
    } else {
        "cannot be read"
    };
    InputError::in_file(path, format!("{what} ({error})"))
        .allowed("the file may have been cut off while it was copied: fetch it again")
}

/// The line, from 1, of a row of the CSV table `text`. Where lines end in two characters, the reader takes a row
/// to begin between the two, one line too early.
pub fn csv_line(text: &str, position: Option<&csv::Position>) -> u64 {
    let two = text.find('\n').is_some_and(|end| text[..end].ends_with('\r'));
    position.map_or(0, csv::Position::line) + u64::from(two)
}

/// The first of `names` that exists in `folder`, as a path.
pub fn first_existing(folder: &Path, names: &[&str]) -> Option<PathBuf> {
    names.iter().map(|n| folder.join(n)).find(|p| p.is_file())
}

/// How the names of files begin that are not whole yet; a killed run leaves them behind.
pub const TEMPORARY_PREFIX: &str = ".kneeboard-";

/// Writes a file so that its final name only ever holds the whole content: written beside, then renamed.
///
/// # Errors
/// Any I/O error, with the temporary file removed.
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut temporary = tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .tempfile_in(folder)?;
    {
        let mut buffered = io::BufWriter::new(temporary.as_file_mut());
        write(&mut buffered)?;
        buffered.flush()?;
    }
    set_usual_mode(&temporary)?;
    temporary.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// Temporary files are made for their owner only; a result should be as readable as any other file.
#[cfg(unix)]
fn set_usual_mode(file: &tempfile::NamedTempFile) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.as_file()
        .set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn set_usual_mode(_: &tempfile::NamedTempFile) -> io::Result<()> {
    Ok(())
}

/// Checks that `folder` can take new results: absent, empty, or `overwrite` was asked for.
///
/// # Errors
/// [`InputError`] when it is a file, or is not empty and `overwrite` is false.
pub fn prepare_output_folder(folder: &Path, overwrite: bool) -> Result<(), InputError> {
    if folder.is_file() {
        return Err(InputError::in_file(
            folder,
            "is a file where an output folder is expected",
        ));
    }
    let occupied = std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if occupied && !overwrite {
        return Err(InputError::in_file(folder, "the output folder is not empty")
            .allowed("name another with -o, or give --overwrite to replace the files this command writes"));
    }
    std::fs::create_dir_all(folder)
        .map_err(|e| InputError::in_file(folder, format!("the output folder cannot be made ({e})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_slips_and_ignores_strangers() {
        assert_eq!(
            nearest("max_num_seq", ["max_num_seqs", "block_size"]),
            Some("max_num_seqs".into())
        );
        assert_eq!(nearest("zebra", ["max_num_seqs", "block_size"]), None);
        // The first words of one name; of two, nobody knows which.
        let metrics = ["waiting-per-group", "running-per-group", "kv-usage"];
        assert_eq!(nearest("waitng", metrics).as_deref(), Some("waiting-per-group"));
        assert_eq!(nearest("runing", metrics).as_deref(), Some("running-per-group"));
        assert_eq!(nearest("kv", metrics), None);
        assert_eq!(
            nearest("waiting", ["waiting-per-group", "waiting-per-pool"]),
            None
        );
    }

    #[test]
    fn a_truncated_gzip_is_an_error_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("steps.csv.gz");
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&[b'x'; 4096]).unwrap();
        let bytes = encoder.finish().unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 6]).unwrap();
        let error = read_text(&path).unwrap_err();
        assert!(error.to_string().contains("steps.csv.gz"), "{error}");
        assert!(error.to_string().contains("not a whole gzip"), "{error}");
    }

    #[test]
    fn text_beyond_the_limit_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big.csv");
        std::fs::write(&path, "0123456789").unwrap();
        assert!(read_text_limited(&path, 9).is_err());
        assert_eq!(read_text_limited(&path, 10).unwrap(), "0123456789");
    }

    #[test]
    fn a_failed_write_leaves_nothing_under_the_final_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        let failed = write_atomic(&path, |w| {
            w.write_all(b"half")?;
            Err(io::Error::other("disk full"))
        });
        assert!(failed.is_err());
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    }
}
