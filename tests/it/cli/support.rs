//! Running the binary, and looking at what it leaves behind.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    #[track_caller]
    pub fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {}", self.stdout))
    }

    /// Bad input: exit code 2, one paragraph on stderr that has all `parts`, nothing on stdout.
    #[track_caller]
    pub fn refused(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert!(self.stdout.is_empty(), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no '{part}' in: {}", self.stderr);
        }
    }
}

pub fn kneeboard() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kneeboard"))
}

pub fn ended(command: &mut Command) -> Ended {
    let out = command.output().unwrap();
    Ended {
        code: out.status.code(),
        stdout: String::from_utf8(out.stdout).unwrap(),
        stderr: String::from_utf8(out.stderr).unwrap(),
    }
}

pub fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Ended {
    ended(kneeboard().args(args))
}

/// Runs a line of words; `{}` is replaced by the paths in turn.
pub fn run_line(line: &str, paths: &[&Path]) -> Ended {
    let mut paths = paths.iter();
    let words = line.split_whitespace().map(|word| match word {
        "{}" => paths.next().unwrap().as_os_str().to_owned(),
        word => word.into(),
    });
    run(words.collect::<Vec<_>>())
}

/// A path in the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub fn fit_file() -> PathBuf {
    repository("calibration/fits/vllm-cpu.yaml")
}

/// A shipped capture, as `holdout/serve-s4-b256/r4`.
pub fn capture(name: &str) -> PathBuf {
    repository("calibration/datasets/vllm-cpu").join(name)
}

/// Copies a folder with everything below it.
pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Every file below a folder by its relative path.
pub fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// The names that differ between two result folders; empty when they hold the same bytes.
pub fn differences(a: &Path, b: &Path) -> Vec<String> {
    let (a, b) = (files(a), files(b));
    let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    names
        .into_iter()
        .filter(|name| a.get(*name) != b.get(*name))
        .cloned()
        .collect()
}

pub fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub fn gunzip(path: &Path) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    text
}

pub fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// The rows of a CSV table, each by column name.
pub fn rows(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    reader.deserialize().map(Result::unwrap).collect()
}

pub fn number(row: &BTreeMap<String, String>, column: &str) -> f64 {
    row[column]
        .parse()
        .unwrap_or_else(|_| panic!("{column}: {:?}", row[column]))
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// By linear interpolation between the two nearest ranks, as numpy does by default.
pub fn percentile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = q * (sorted.len() - 1) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + place.fract() * (sorted[high] - sorted[low])
}

#[track_caller]
pub fn close(a: f64, b: f64) {
    approx::assert_relative_eq!(a, b, max_relative = 1e-9, epsilon = 1e-12);
}
