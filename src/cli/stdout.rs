//! Standard output, without the panic of `println!` when its reader has gone.

use std::io::{self, Write};

/// Writes text to stdout.
///
/// # Errors
/// The writer's; a broken pipe ends the program quietly.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Columns that a table takes in a file, whatever the terminal.
pub(super) const FILE_WIDTH: Option<u16> = Some(160);
/// Characters of a line where nobody says otherwise.
const USUAL_WIDTH: u16 = 120;
/// No table can be read in less.
const LEAST_WIDTH: u16 = 40;

/// Characters that a table may take: what the variable `COLUMNS` says, or 120; the cells of a wider one wrap, and one that
/// would be unreadable so is cut in parts.
pub(super) fn width() -> Option<u16> {
    let asked = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.trim().parse::<u16>().ok());
    Some(asked.filter(|&n| n >= LEAST_WIDTH).unwrap_or(USUAL_WIDTH))
}

/// Writes a line to stderr; nothing is to be done where that cannot be written either.
pub(super) fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
