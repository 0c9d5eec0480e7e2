//! Where profiles are found: those that ship inside the binary, the user's own folder, and single files by path.
//!
//! A [`Catalog`] is a value. The command line sets the one of the process once, from `--profiles`, before anything
//! is read; the free functions here ask that one. Names are looked up as they are, then without regard to case,
//! then among other names (the repositories of models, names that drivers print), and only then as a path.

#[cfg(test)]
mod tests;

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::Deserialize;

use super::check::refuse_errors;
use super::{Accelerator, EngineDefaults, Facts, Instance, Kind, Model, Profile};
use crate::input::{self, InputError};
use crate::yaml;

/// Every file of `profiles/`: kind, name, text. The list is made by `build.rs`.
static SHIPPED: &[(Kind, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/profiles.rs"));

static CURRENT: OnceLock<Catalog> = OnceLock::new();

/// Where a profile comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// It ships with the program.
    Shipped,
    /// A file of the user's folder.
    File(PathBuf),
}

/// A profile before it is read.
#[derive(Debug, Clone)]
pub struct Entry {
    /// What it describes.
    pub kind: Kind,
    /// Its name: that of its file.
    pub name: String,
    /// Where it comes from.
    pub origin: Origin,
    /// It stands before a shipped profile of the same name.
    pub overrides: bool,
    text: Cow<'static, str>,
    /// What was read from the text, so that the plans of a sweep do not read it again.
    known: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Entry {
    /// The profile as it stands in its file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The file, or `profile NAME` for one that ships with the program; what errors name.
    pub fn place(&self) -> String {
        match &self.origin {
            Origin::Shipped => format!("profile {}", self.name),
            Origin::File(path) => path.display().to_string(),
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`InputError`] with what is wrong in the file.
    pub fn load(&self) -> Result<Profile, InputError> {
        read(self.kind, &self.text, &self.place())
    }

    fn load_as<T: Facts>(&self) -> Result<T, InputError> {
        if let Some(known) = self.known.get().and_then(|k| k.downcast_ref::<T>()) {
            return Ok(known.clone());
        }
        let found: T = parse(&self.text, &self.place())?;
        if found.name() == self.name {
            self.known.get_or_init(|| Arc::new(found.clone()));
            return Ok(found);
        }
        Err(InputError::new(self.place(), format!("found '{}'", found.name()))
            .at("name")
            .allowed(format!("a profile bears the name of its file, '{}'", self.name)))
    }
}

/// The profiles that names are looked up in.
#[derive(Debug, Clone)]
pub struct Catalog {
    entries: BTreeMap<(Kind, String), Entry>,
    aliases: OnceLock<BTreeMap<(Kind, String), String>>,
}

/// The other names of a profile, whatever its kind and whatever else is in it.
#[derive(Debug, Default, Deserialize)]
struct OtherNames {
    #[serde(default)]
    hf_repo: Option<String>,
    #[serde(default)]
    aliases: Vec<String>,
}

impl Catalog {
    /// The profiles that ship with the program.
    pub fn shipped() -> Self {
        let entries = SHIPPED.iter().map(|(kind, name, text)| {
            let entry = Entry {
                kind: *kind,
                name: (*name).to_owned(),
                origin: Origin::Shipped,
                overrides: false,
                text: Cow::Borrowed(text),
                known: OnceLock::new(),
            };
            ((*kind, entry.name.clone()), entry)
        });
        Self {
            entries: entries.collect(),
            aliases: OnceLock::new(),
        }
    }

    /// Adds a user's folder, whose profiles win over those of the same name: `accelerators/`, `models/`,
    /// `instances/` and `engines/` as in the shipped one, or files side by side, whose `kind` decides.
    ///
    /// # Errors
    /// [`InputError`] when the folder or a file cannot be read, a subfolder has another name, or a file does
    /// not say its kind.
    pub fn with_folder(mut self, folder: &Path) -> Result<Self, InputError> {
        for path in listed(folder)? {
            if path.is_dir() {
                let kind = kind_of_folder(&path)?;
                for file in listed(&path)?.iter().filter(|p| is_yaml(p)) {
                    self.add(kind, file, input::read_text(file)?);
                }
            } else if is_yaml(&path) {
                let text = input::read_text(&path)?;
                let kind = kind_of_text(&text, &path.display().to_string())?;
                self.add(kind, &path, text);
            }
        }
        self.aliases = OnceLock::new();
        Ok(self)
    }

    fn add(&mut self, kind: Kind, path: &Path, text: String) {
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let key = (kind, name.clone());
        let entry = Entry {
            kind,
            name,
            origin: Origin::File(path.to_owned()),
            overrides: self.entries.contains_key(&key),
            text: Cow::Owned(text),
            known: OnceLock::new(),
        };
        self.entries.insert(key, entry);
    }

    /// Every profile, by kind and name; of one kind if it is given.
    pub fn entries(&self, kind: Option<Kind>) -> impl Iterator<Item = &Entry> + Clone {
        self.entries
            .values()
            .filter(move |e| kind.is_none_or(|k| k == e.kind))
    }

    /// The profile of that name: exactly, without regard to case, or by another name of its.
    pub fn find(&self, kind: Kind, name: &str) -> Option<&Entry> {
        if let Some(entry) = self.entries.get(&(kind, name.to_owned())) {
            return Some(entry);
        }
        let same = |e: &&Entry| e.name.eq_ignore_ascii_case(name);
        self.entries(Some(kind)).find(same).or_else(|| {
            let key = (kind, name.to_ascii_lowercase());
            let target = self.aliases().get(&key)?;
            self.entries.get(&(kind, target.clone()))
        })
    }

    /// Other names, in lower case, and the profile of each. The user's own profiles win here too.
    fn aliases(&self) -> &BTreeMap<(Kind, String), String> {
        self.aliases.get_or_init(|| {
            let mut map = BTreeMap::new();
            let (own, shipped): (Vec<_>, Vec<_>) =
                self.entries.values().partition(|e| e.origin != Origin::Shipped);
            for entry in own.into_iter().chain(shipped) {
                // A file that cannot be read says so when it is asked for by its own name.
                let names: OtherNames = yaml::parse(&entry.text, "").unwrap_or_default();
                for name in names.hf_repo.into_iter().chain(names.aliases) {
                    map.entry((entry.kind, name.to_ascii_lowercase()))
                        .or_insert_with(|| entry.name.clone());
                }
            }
            map
        })
    }

    /// An accelerator by name, or from a file when `name` is a path.
    ///
    /// # Errors
    /// [`InputError`] with the nearest valid name, or with what is wrong in the file.
    pub fn accelerator(&self, name: &str, base: &Path) -> Result<Accelerator, InputError> {
        self.get(name, base)
    }

    /// A model by name, by its repository on Hugging Face, or from a file when `name` is a path.
    ///
    /// # Errors
    /// [`InputError`] with the nearest valid name, or with what is wrong in the file.
    pub fn model(&self, name: &str, base: &Path) -> Result<Model, InputError> {
        self.get(name, base)
    }

    /// An instance by name, or from a file when `name` is a path.
    ///
    /// # Errors
    /// [`InputError`] with the nearest valid name, or with what is wrong in the file.
    pub fn instance(&self, name: &str, base: &Path) -> Result<Instance, InputError> {
        self.get(name, base)
    }

    /// The defaults of an engine by name, or from a file when `name` is a path.
    ///
    /// # Errors
    /// [`InputError`] with the nearest valid name, or with what is wrong in the file.
    pub fn engine(&self, name: &str, base: &Path) -> Result<EngineDefaults, InputError> {
        self.get(name, base)
    }

    fn get<T: Facts>(&self, name: &str, base: &Path) -> Result<T, InputError> {
        if let Some(entry) = self.find(T::KIND, name) {
            return entry.load_as();
        }
        let path = base.join(name);
        let named_file = name.ends_with(".yaml") || name.ends_with(".yml");
        if named_file || (name.contains(['/', '\\']) && path.exists()) {
            return parse(&input::read_text(&path)?, &path.display().to_string());
        }
        Err(self.unknown(Some(T::KIND), name))
    }

    /// A profile of any kind by its name.
    ///
    /// # Errors
    /// [`InputError`] with the nearest valid name.
    pub fn entry(&self, name: &str) -> Result<&Entry, InputError> {
        Kind::ALL
            .iter()
            .find_map(|kind| self.find(*kind, name))
            .ok_or_else(|| self.unknown(None, name))
    }

    /// The names nearest to one that is unknown; all of them would fill a page.
    fn unknown(&self, kind: Option<Kind>, name: &str) -> InputError {
        const SHOWN: usize = 6;
        let lower = name.to_ascii_lowercase();
        let names = self.entries(kind).map(|e| e.name.as_str());
        let mut near: Vec<(f64, &str)> = names
            .clone()
            .map(|n| (strsim::normalized_damerau_levenshtein(&lower, n), n))
            .collect();
        near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        let total = near.len();
        let shown: Vec<_> = near.iter().take(SHOWN).map(|(_, n)| *n).collect();
        let (what, list) = match kind {
            Some(kind) => (
                format!("{} profile", kind.word()),
                format!("profile list --kind {}", kind.word()),
            ),
            None => ("profile".to_owned(), "profile list".to_owned()),
        };
        let more = if total > SHOWN { ", …" } else { "" };
        InputError::new(what, format!("unknown name '{name}'"))
            .allowed(format!(
                "known: {}{more} ({total} in all: kneeboard {list}); or a path to a .yaml file",
                shown.join(", "),
            ))
            .nearest_of(&lower, names)
    }
}

/// The process's catalog: the shipped profiles, and the folder given to [`use_folder`].
pub fn current() -> &'static Catalog {
    CURRENT.get_or_init(Catalog::shipped)
}

/// Adds a user's folder to the process's catalog. Only the command line does so, once, before it reads anything;
/// a catalog that was looked into already is left as it is.
///
/// # Errors
/// As [`Catalog::with_folder`].
pub fn use_folder(folder: &Path) -> Result<(), InputError> {
    let catalog = Catalog::shipped().with_folder(folder)?;
    CURRENT.get_or_init(|| catalog);
    Ok(())
}

/// [`Catalog::accelerator`] of the process's catalog.
///
/// # Errors
/// As there.
pub fn accelerator(name: &str, base: &Path) -> Result<Accelerator, InputError> {
    current().accelerator(name, base)
}

/// [`Catalog::model`] of the process's catalog.
///
/// # Errors
/// As there.
pub fn model(name: &str, base: &Path) -> Result<Model, InputError> {
    current().model(name, base)
}

/// [`Catalog::instance`] of the process's catalog.
///
/// # Errors
/// As there.
pub fn instance(name: &str, base: &Path) -> Result<Instance, InputError> {
    current().instance(name, base)
}

/// [`Catalog::engine`] of the process's catalog.
///
/// # Errors
/// As there.
pub fn engine(name: &str, base: &Path) -> Result<EngineDefaults, InputError> {
    current().engine(name, base)
}

/// A profile of any kind out of the process's catalog.
///
/// # Errors
/// [`InputError`] with the nearest valid name.
pub fn any(name: &str) -> Result<Profile, InputError> {
    current().entry(name)?.load()
}

/// The text of a profile, as it stands in its file.
pub fn text(name: &str) -> Option<&'static str> {
    current().entry(name).ok().map(Entry::text)
}

/// A profile from its text, by the kind that it states.
///
/// # Errors
/// [`InputError`] with what is wrong in it.
pub fn from_text(text: &str, origin: &str) -> Result<Profile, InputError> {
    read(kind_of_text(text, origin)?, text, origin)
}

fn read(kind: Kind, text: &str, origin: &str) -> Result<Profile, InputError> {
    Ok(match kind {
        Kind::Accelerator => Profile::Accelerator(Box::new(parse(text, origin)?)),
        Kind::Model => Profile::Model(Box::new(parse(text, origin)?)),
        Kind::Instance => Profile::Instance(Box::new(parse(text, origin)?)),
        Kind::Engine => Profile::Engine(Box::new(parse(text, origin)?)),
    })
}

fn parse<T: Facts>(text: &str, origin: &str) -> Result<T, InputError> {
    let found: T = yaml::parse(text, origin)?;
    refuse_errors(&found, origin)?;
    Ok(found)
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "yaml" || e == "yml")
}

/// What is in a folder, by name; hidden files left out.
fn listed(folder: &Path) -> Result<Vec<PathBuf>, InputError> {
    let unreadable =
        |e| InputError::in_file(folder, format!("cannot be read ({e})")).allowed("give a folder of profiles");
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

fn kind_of_folder(path: &Path) -> Result<Kind, InputError> {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    Kind::ALL
        .into_iter()
        .find(|kind| kind.folder() == name)
        .ok_or_else(|| {
            let folders = Kind::ALL.map(Kind::folder);
            InputError::in_file(path, "is no folder of profiles")
                .allowed(format!("allowed: {}", folders.join(", ")))
                .nearest_of(&name, folders)
        })
}

pub(super) fn kind_of_text(text: &str, origin: &str) -> Result<Kind, InputError> {
    #[derive(Deserialize)]
    struct Stated {
        #[serde(default)]
        kind: Option<String>,
    }
    let words = Kind::ALL.map(Kind::word);
    let allowed = format!("allowed: {}", words.join(", "));
    let stated: Stated = yaml::parse(text, origin)?;
    let Some(word) = stated.kind else {
        return Err(InputError::new(origin, "the key is missing")
            .at("kind")
            .allowed(allowed));
    };
    Kind::ALL
        .into_iter()
        .find(|kind| kind.word() == word)
        .ok_or_else(|| {
            InputError::new(origin, format!("found '{word}'"))
                .at("kind")
                .allowed(allowed)
                .nearest_of(&word, words)
        })
}
