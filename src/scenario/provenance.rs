//! Where each resolved value came from.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::overrides::Override;

/// Origin of a resolved value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The scenario file.
    File,
    /// An override: `--set`, or a point of a sweep.
    Set,
    /// Kneeboard's default.
    Default,
    /// Follows from a profile, a vLLM release, or other values; the text says which.
    Derived(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("file"),
            Self::Set => f.write_str("--set"),
            Self::Default => f.write_str("default"),
            Self::Derived(from) => f.write_str(from),
        }
    }
}

/// The sources of a plan's values.
#[derive(Debug, Clone, Default)]
pub struct Provenance {
    filled: BTreeMap<String, Source>,
    set: Vec<(String, String)>,
}

impl Provenance {
    /// Starts from the overrides that were applied.
    pub fn new(overrides: &[Override]) -> Self {
        Self {
            filled: BTreeMap::new(),
            set: overrides.iter().map(|o| (o.dotted(), o.origin.clone())).collect(),
        }
    }

    /// Further overrides, of values that were not filled.
    pub fn add(&mut self, overrides: &[Override]) {
        self.set
            .extend(overrides.iter().map(|o| (o.dotted(), o.origin.clone())));
    }

    /// The value of `slot`, which is filled with `value` and noted when the user gave none.
    pub fn fill<T: Clone>(&mut self, path: &str, slot: &mut Option<T>, source: Source, value: T) -> T {
        slot.get_or_insert_with(|| {
            self.filled.insert(path.to_owned(), source);
            value
        })
        .clone()
    }

    /// Notes where the value at `path` came from.
    pub fn note(&mut self, path: &str, source: Source) {
        self.filled.insert(path.to_owned(), source);
    }

    /// The overrides that a pool's own system knows of: those of `system`, then those of the pool, by the paths that
    /// they have in a system of its own.
    #[must_use]
    pub fn of_pool(&self, prefix: &str) -> Self {
        let own = format!("{prefix}.system");
        let shared = self.set.iter().filter(|(path, _)| path.starts_with("system"));
        let of_pool = self.set.iter().filter_map(|(path, origin)| {
            let inner = path.strip_prefix(&own)?;
            Some((format!("system{inner}"), origin.clone()))
        });
        Self {
            filled: BTreeMap::new(),
            set: shared.cloned().chain(of_pool).collect(),
        }
    }

    /// Takes over what was filled in a pool's own system.
    pub fn adopt(&mut self, inner: Self, prefix: &str) {
        let filled = inner.filled.into_iter();
        self.filled
            .extend(filled.map(|(path, source)| (format!("{prefix}.{path}"), source)));
    }

    /// Where the value at `path` came from.
    pub fn of(&self, path: &str) -> Source {
        // A filled value may be a tree; its leaves share its source.
        let mut upward = Some(path);
        while let Some(at) = upward {
            if let Some(source) = self.filled.get(at) {
                return source.clone();
            }
            upward = at.rsplit_once('.').map(|(parent, _)| parent);
        }
        if self.set_by(path).is_some() {
            Source::Set
        } else {
            Source::File
        }
    }

    /// The override that decides the value at `path`, as the user wrote it: the last that covers it.
    pub fn set_by(&self, path: &str) -> Option<&str> {
        let covers = |set: &str| {
            path.strip_prefix(set)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let mut found = self.set.iter().rev().filter(|(set, _)| covers(set));
        found.next().map(|(_, origin)| origin.as_str())
    }

    /// The last override of something below `path`.
    pub fn any_under(&self, path: &str) -> Option<&str> {
        let below =
            |set: &str| !path.is_empty() && set.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        let mut found = self.set.iter().rev().filter(|(set, _)| below(set));
        found.next().map(|(_, origin)| origin.as_str())
    }
}

/// The leaves of a tree as (dotted path, value), in order. Lists of plain values are leaves.
pub fn leaves(root: &Value) -> Vec<(String, &Value)> {
    let mut out = Vec::new();
    collect(root, String::new(), &mut out);
    out
}

fn collect<'v>(node: &'v Value, path: String, out: &mut Vec<(String, &'v Value)>) {
    let join = |key: &str| {
        if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        }
    };
    match node {
        Value::Object(map) if path == "sweep.axes" => {
            out.extend(map.iter().map(|(k, v)| (join(k), v)));
        }
        Value::Object(map) => map.iter().for_each(|(k, v)| collect(v, join(k), out)),
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (i, v) in items.iter().enumerate() {
                collect(v, join(&i.to_string()), out);
            }
        }
        leaf => out.push((path, leaf)),
    }
}
