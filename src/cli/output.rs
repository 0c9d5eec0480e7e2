//! Result folders: what every one of them holds beside its figures.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

use crate::input::{InputError, TEMPORARY_PREFIX, prepare_output_folder, write_atomic};
use crate::report::plot::{self, Plot};
use crate::report::{Page, Table};
use crate::scenario::Plan;

/// What commands put into a result folder, beside `run-N`, `configurations`, `plots`.
const RESULT_FILES: [&str; 10] = [
    "checksums.txt",
    "compare.json",
    "compare.txt",
    "fit.yaml",
    "loads.csv",
    "report.html",
    "reproduce.md",
    "resolved.yaml",
    "sweep.csv",
    "sweep.json",
];

/// Makes the folder ready for new results: with `overwrite` those of an earlier run go first, so that what is
/// there afterwards is of one run. Anything else in the folder stays.
///
/// # Errors
/// [`InputError`] when it is a file, is not empty without `overwrite`, or cannot be changed.
pub(super) fn prepare(folder: &Path, overwrite: bool) -> Result<(), InputError> {
    prepare_output_folder(folder, overwrite)?;
    remove_results(folder).map_err(|e| {
        InputError::in_file(folder, format!("earlier results cannot be removed ({e})"))
            .allowed("name another folder with -o")
    })
}

fn remove_results(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let name = name.to_string_lossy();
        if kind.is_dir() && is_result_folder(&name) {
            fs::remove_dir_all(entry.path())?;
        } else if kind.is_file() && (RESULT_FILES.contains(&&*name) || name.starts_with(TEMPORARY_PREFIX)) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn is_result_folder(name: &str) -> bool {
    let is_run = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    name == "configurations" || name == "plots" || name.strip_prefix("run-").is_some_and(is_run)
}

/// The command line that makes a result folder, quoted for a shell.
pub(super) fn command_line(subcommand: &str, scenario: &Path, set: &[String]) -> String {
    let mut line = format!(
        "kneeboard {subcommand} {}",
        quoted(&scenario.display().to_string())
    );
    for value in set {
        line += &format!(" --set {}", quoted(value));
    }
    line + " -o DIR"
}

/// As it is when a shell would take it as it is, in single quotes otherwise.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Writes text under its final name only when whole.
pub(super) fn text(path: &Path, content: &str) -> anyhow::Result<()> {
    write_atomic(path, |w| w.write_all(content.as_bytes()))
        .with_context(|| format!("{}: cannot be written", path.display()))
}

/// The page, the plots with their data, and the resolved scenario.
pub(super) fn report(
    folder: &Path,
    plan: &Plan,
    page: &Page,
    plots: &[(&'static str, Plot)],
) -> anyhow::Result<()> {
    for (name, plot) in plots {
        plot::write(&folder.join("plots"), name, plot)
            .with_context(|| format!("{}: plots cannot be written", folder.display()))?;
    }
    text(&folder.join("report.html"), &page.html())?;
    resolved(folder, plan)
}

/// The resolved scenario.
pub(super) fn resolved(folder: &Path, plan: &Plan) -> anyhow::Result<()> {
    let resolved = serde_json::to_string_pretty(&plan.resolved_tree()?)?;
    // JSON is YAML, so this is a scenario again, whatever quoting its values need.
    text(&folder.join("resolved.yaml"), &(resolved + "\n"))
}

/// A table as CSV.
pub(super) fn csv(folder: &Path, name: &str, table: &Table) -> anyhow::Result<()> {
    text(&folder.join(name), &table.csv())
}

/// How to make the folder again, and the checksums of what is in it.
pub(super) fn seal(folder: &Path, command: &str, plan: &Plan) -> anyhow::Result<()> {
    let reproduce = format!(
        "# Reproduce\n\nMade by kneeboard {} from {}.\n\n```\n{command}\n```\n\n`resolved.yaml` holds every value \
         that was used, defaults included; it is a scenario itself, whose relative paths start from the folder of \
         the scenario above. The same scenario, seed and version give the same bytes, on any number of \
         threads.\n",
        env!("CARGO_PKG_VERSION"),
        plan.origin()
    );
    text(&folder.join("reproduce.md"), &reproduce)?;
    let mut sums = String::new();
    for file in files_below(folder)? {
        let relative = file.strip_prefix(folder).unwrap_or(&file);
        if relative == Path::new("checksums.txt") {
            continue;
        }
        for byte in digest(&file)? {
            write!(sums, "{byte:02x}")?;
        }
        writeln!(sums, "  {}", relative.display())?;
    }
    text(&folder.join("checksums.txt"), &sums)
}

/// The SHA-256 of a file, which may be larger than memory.
fn digest(file: &Path) -> io::Result<impl IntoIterator<Item = u8> + use<>> {
    let (mut file, mut digest) = (fs::File::open(file)?, Sha256::new());
    let mut piece = vec![0; 1 << 16];
    loop {
        let n = match file.read(&mut piece) {
            Ok(0) => return Ok(digest.finalize()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        digest.update(&piece[..n]);
    }
}

/// Every file below a folder, sorted; links are not followed.
fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}
