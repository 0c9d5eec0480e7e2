//! Lists the files of `profiles/`, so that a new profile is shipped by being there. The list holds names and
//! `include_str!` of each file; reading them is the library's business.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("profiles");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut list = String::from("&[\n");
    for (folder, kind) in [
        ("accelerators", "Accelerator"),
        ("models", "Model"),
        ("instances", "Instance"),
        ("engines", "Engine"),
    ] {
        for path in profiles(&root.join(folder))? {
            println!("cargo::rerun-if-changed={}", path.display());
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let file = path.display().to_string();
            writeln!(list, "    (Kind::{kind}, {name:?}, include_str!({file:?})),")
                .map_err(io::Error::other)?;
        }
    }
    list.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("profiles.rs");
    fs::write(out, list)
}

/// The folder's profiles by name, so that the list is the same on every machine.
fn profiles(folder: &Path) -> io::Result<Vec<PathBuf>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "yaml") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
