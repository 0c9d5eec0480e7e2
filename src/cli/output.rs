//! Result folders: what every one of them holds beside its figures.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

use crate::input::write_atomic;
use crate::report::plot::{self, Plot};
use crate::report::{Page, Table};
use crate::scenario::Plan;

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
         that was used, defaults included; it is a scenario itself. The same scenario, seed and version give the \
         same bytes, on any number of threads.\n",
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
        let digest = Sha256::digest(fs::read(&file)?);
        for byte in digest {
            write!(sums, "{byte:02x}")?;
        }
        writeln!(sums, "  {}", relative.display())?;
    }
    text(&folder.join("checksums.txt"), &sums)
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
