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

/// Columns that a table may take on the terminal; the cells of a wider one wrap.
pub(super) const WIDTH: Option<u16> = Some(160);

/// Writes a line to stderr; nothing is to be done where that cannot be written either.
pub(super) fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
