//! Measured data beside the checkout, which users do not have.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Names the folder of measured data if it does not stand at `../shared/data`.
pub const VARIABLE: &str = "KNEEBOARD_SHARED_DATA";

/// The folder of a measured data set, or `None` with a visible word that `test` is skipped.
///
/// # Panics
/// When the variable `KNEEBOARD_REQUIRE_SHARED` is set (as `.ci/run` does) and the data are absent.
pub fn data_set(test: &str, name: &str) -> Option<PathBuf> {
    let root = std::env::var_os(VARIABLE).map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data"),
        PathBuf::from,
    );
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(
        std::env::var_os("KNEEBOARD_REQUIRE_SHARED").is_none(),
        "{test}: {} is absent, but required here",
        folder.display()
    );
    // Written past the test harness's capture, so that a skipped test is seen.
    let line = format!(
        "SKIPPED {test}: no {}; set {VARIABLE} to the folder of measured data\n",
        folder.display()
    );
    std::io::stderr().write_all(line.as_bytes()).ok();
    None
}

/// Whether the files beside the checkout that a shipped scenario names are there; if not, with a visible word.
///
/// # Panics
/// As [`data_set`].
pub fn has_its_data(test: &str, scenario: &Path) -> bool {
    let text = std::fs::read_to_string(scenario).unwrap();
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    if !text.contains("shared/data/") || beside.is_dir() {
        return true;
    }
    assert!(
        std::env::var_os("KNEEBOARD_REQUIRE_SHARED").is_none() || std::env::var_os(VARIABLE).is_some(),
        "{test}: {} is absent, but required here",
        beside.display()
    );
    let line = format!(
        "SKIPPED {test} for {}: no {}\n",
        scenario.display(),
        beside.display()
    );
    std::io::stderr().write_all(line.as_bytes()).ok();
    false
}

/// Data in the repository.
pub fn own_data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}
