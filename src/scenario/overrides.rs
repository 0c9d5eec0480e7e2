//! `--set a.b=value`: one value of a scenario replaced. Paths are checked against the scenario's own JSON
//! Schema, so that every key that a file may hold can be set, and no other.

use std::sync::LazyLock;

use schemars::schema_for;
use serde_json::{Map, Value};

use super::schema::Scenario;
use crate::input::InputError;
use crate::yaml;

/// A scenario path and the value it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// Where it came from, for messages: `--set a.b=1`, `sweep.axes`.
    pub origin: String,
    /// Path segments; a list index is a number.
    pub path: Vec<String>,
    /// The new value; null takes the value away, so that the default applies.
    pub value: Value,
}

static SCHEMA: LazyLock<Value> = LazyLock::new(|| schema_for!(Scenario).to_value());

impl Override {
    /// Reads `a.b=value`, the value being YAML.
    ///
    /// # Errors
    /// [`InputError`] when there is no `=`, the path does not exist, or the value is not YAML.
    pub fn parse(text: &str) -> Result<Self, InputError> {
        let origin = format!("--set {text}");
        let (path, value) = text.split_once('=').ok_or_else(|| {
            InputError::new(&origin, "there is no '='")
                .allowed("write PATH=VALUE, such as load.arrival.rate=4")
        })?;
        let given = value.trim();
        let mut new = Self::new(path.trim(), yaml::parse_value(given, &origin)?);
        new.origin = origin;
        let node = new.check_path()?;
        // The schema knows that 0.9 under a string key is text.
        if wants_string(node) && (new.value.is_number() || new.value.is_boolean()) {
            new.value = Value::String(given.to_owned());
        }
        Ok(new)
    }

    /// An override made by the program, such as a point of a sweep.
    pub fn new(path: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        Self {
            origin: format!("{path}={value}"),
            path: split(path),
            value,
        }
    }

    /// The path as users write it.
    pub fn dotted(&self) -> String {
        self.path.join(".")
    }

    /// The schema node of the path.
    fn check_path(&self) -> Result<&'static Value, InputError> {
        let mut node = resolve_ref(&SCHEMA);
        for (depth, segment) in self.path.iter().enumerate() {
            node = child(node, segment).ok_or_else(|| {
                let names = child_names(node);
                let parent = self.path[..depth].join(".");
                let place = if parent.is_empty() {
                    "the scenario".to_owned()
                } else {
                    format!("'{parent}'")
                };
                let error = InputError::new(&self.origin, format!("{place} has no key '{segment}'"));
                if names.is_empty() {
                    return error.allowed(format!("{place} is a single value"));
                }
                error
                    .allowed(format!("keys there: {}", names.join(", ")))
                    .nearest_of(segment, names.iter().copied())
            })?;
        }
        Ok(node)
    }

    /// The same with numbers in place of names of list entries (`cluster.pools.prefill.groups`), as `root` has them.
    ///
    /// # Errors
    /// [`InputError`] when no entry is called so.
    pub fn numbered(&self, root: &Value) -> Result<Self, InputError> {
        let mut numbered = self.clone();
        let mut node = Some(root);
        for segment in &mut numbered.path {
            if let Some(items) = node.and_then(Value::as_array)
                && segment.parse::<usize>().is_err()
            {
                *segment = self.place_of(segment, items)?.to_string();
            }
            node = node.and_then(|n| match n {
                Value::Array(items) => items.get(segment.parse::<usize>().ok()?),
                other => other.get(segment.as_str()),
            });
        }
        Ok(numbered)
    }

    /// The place of the entry called so; a pool without a name is called as its role.
    fn place_of(&self, name: &str, items: &[Value]) -> Result<usize, InputError> {
        let called = |item: &Value| {
            let key = if item.get("name").is_some() {
                "name"
            } else {
                "role"
            };
            item.get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let names: Vec<String> = items.iter().map(called).collect();
        names.iter().position(|n| n == name).ok_or_else(|| {
            let known = names.iter().map(String::as_str).filter(|n| !n.is_empty());
            InputError::new(&self.origin, format!("there is no entry '{name}' in the list"))
                .allowed(format!(
                    "the list has {} entries, counted from 0{}",
                    items.len(),
                    known.clone().fold(String::new(), |all, n| all + ", " + n)
                ))
                .nearest_of(name, known)
        })
    }

    /// Puts the value into `root`.
    ///
    /// # Errors
    /// [`InputError`] when the path does not exist in the schema, or an index is beyond the list.
    pub fn apply(&self, root: &mut Value) -> Result<(), InputError> {
        self.check_path()?;
        let numbered = self.numbered(root)?;
        let Some((last, parents)) = numbered.path.split_last() else {
            return Err(InputError::new(&self.origin, "the path is empty"));
        };
        let mut schema = resolve_ref(&SCHEMA);
        let mut node = root;
        for segment in parents {
            choose_variant(schema, node, segment);
            schema = child(schema, segment).unwrap_or(&Value::Null);
            node = self.step(node, segment)?;
        }
        choose_variant(schema, node, last);
        if self.value.is_null() {
            if let Some(map) = node.as_object_mut() {
                map.shift_remove(last);
            }
            return Ok(());
        }
        *self.step(node, last)? = self.value.clone();
        Ok(())
    }

    fn step<'v>(&self, node: &'v mut Value, segment: &str) -> Result<&'v mut Value, InputError> {
        if let Value::Array(items) = node {
            let len = items.len();
            return segment
                .parse::<usize>()
                .ok()
                .and_then(|i| items.get_mut(i))
                .ok_or_else(|| {
                    InputError::new(&self.origin, format!("there is no entry '{segment}' in the list"))
                        .allowed(format!("the list has {len} entries, counted from 0"))
                });
        }
        if !node.is_object() {
            *node = Value::Object(Map::new());
        }
        match node {
            Value::Object(map) => Ok(map.entry(segment.to_owned()).or_insert(Value::Null)),
            _ => Err(InputError::new(
                &self.origin,
                "the path leads through a single value",
            )),
        }
    }
}

/// `a.b[0].c` and `a.b.0.c` are the same path.
fn split(path: &str) -> Vec<String> {
    path.replace('[', ".")
        .replace(']', "")
        .split('.')
        .map(|s| s.trim().to_owned())
        .collect()
}

/// Follows `$ref` and takes the non-null side of an optional value.
fn resolve_ref(node: &'static Value) -> &'static Value {
    if let Some(target) = node.get("$ref").and_then(Value::as_str) {
        let pointer = target.trim_start_matches('#');
        return SCHEMA.pointer(pointer).map_or(node, resolve_ref);
    }
    match node.get("anyOf").and_then(Value::as_array) {
        Some(sides) => sides
            .iter()
            .find(|s| s.get("type").and_then(Value::as_str) != Some("null"))
            .map_or(node, resolve_ref),
        None => node,
    }
}

/// Variants of an enum that is written as a map with one key.
fn variants(node: &'static Value) -> impl Iterator<Item = (&'static str, &'static Value)> {
    node.get("oneOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|side| side.get("properties").and_then(Value::as_object))
        .flat_map(|p| p.iter().map(|(k, v)| (k.as_str(), v)))
}

fn child(node: &'static Value, segment: &str) -> Option<&'static Value> {
    if let Some(found) = node.get("properties").and_then(|p| p.get(segment)) {
        return Some(resolve_ref(found));
    }
    if let Some((_, found)) = variants(node).find(|(name, _)| *name == segment) {
        return Some(resolve_ref(found));
    }
    // Keys of a map are the user's own.
    if let Some(values) = node.get("additionalProperties").filter(|v| v.is_object())
        && !segment.is_empty()
    {
        return Some(resolve_ref(values));
    }
    let items = resolve_ref(node.get("items")?);
    let named = items.get("properties").is_some_and(|p| p.get("name").is_some());
    let is_place = segment.parse::<usize>().is_ok() || (named && !segment.is_empty());
    is_place.then_some(items)
}

fn child_names(node: &'static Value) -> Vec<&'static str> {
    let properties = node.get("properties").and_then(Value::as_object);
    let own = properties.into_iter().flat_map(|p| p.keys().map(String::as_str));
    own.chain(variants(node).map(|(name, _)| name)).collect()
}

fn wants_string(node: &Value) -> bool {
    match node.get("type") {
        Some(Value::String(t)) => t == "string",
        Some(Value::Array(types)) => types.iter().any(|t| t == "string"),
        _ => false,
    }
}

/// Setting a key of another variant replaces the variant that was there.
fn choose_variant(schema: &'static Value, node: &mut Value, segment: &str) {
    if variants(schema).any(|(name, _)| name == segment)
        && let Some(map) = node.as_object_mut()
        && !map.contains_key(segment)
    {
        map.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(root: &Value, text: &str) -> Value {
        let mut root = root.clone();
        Override::parse(text).unwrap().apply(&mut root).unwrap();
        root
    }

    #[test]
    fn values_are_replaced_added_and_taken_away() {
        let root = json!({"system": {"engine": {"max_num_seqs": 4}}, "cluster": {"pools": [{"role": "unified", "groups": 1}]}});
        assert_eq!(
            set(&root, "system.engine.max_num_seqs=16")["system"]["engine"]["max_num_seqs"],
            16
        );
        assert_eq!(
            set(&root, "load.arrival.rate=2.5")["load"]["arrival"]["rate"],
            2.5
        );
        assert_eq!(
            set(&root, "system.engine.max_num_seqs=null")["system"]["engine"],
            json!({})
        );
        assert_eq!(
            set(&root, "cluster.pools[0].groups=3")["cluster"]["pools"][0]["groups"],
            3
        );
        assert_eq!(
            set(&root, "cluster.pools.0.groups=3")["cluster"]["pools"][0]["groups"],
            3
        );
    }

    #[test]
    fn another_variant_replaces_the_one_that_was_there() {
        let root = json!({"workload": {"synthetic": {"lengths": {"fixed": {"input": 1, "output": 2}}}}});
        assert_eq!(
            set(&root, "workload.trace=t.csv")["workload"],
            json!({"trace": "t.csv"})
        );
        assert_eq!(
            set(&root, "workload.synthetic.lengths.rows=r.csv")["workload"]["synthetic"]["lengths"],
            json!({"rows": "r.csv"})
        );
    }

    #[test]
    fn text_that_looks_like_a_number_stays_text_where_text_is_wanted() {
        assert_eq!(
            Override::parse("system.engine.version=0.9").unwrap().value,
            json!("0.9")
        );
        assert_eq!(Override::parse("slo.ttft=2s").unwrap().value, json!("2s"));
        assert_eq!(
            Override::parse("load.arrival.rate=0.9").unwrap().value,
            json!(0.9)
        );
    }

    #[test]
    fn unknown_paths_are_refused_with_the_nearest_name() {
        for (text, nearest) in [
            ("system.engine.max_num_seq=4", Some("max_num_seqs")),
            ("sytem.engine.max_num_seqs=4", Some("system")),
            ("system.engine.max_num_seqs.x=4", None),
            ("workload.synthetic.lengths.fixd.input=4", Some("fixed")),
            ("cluster.pools.first.group=4", Some("groups")),
            ("", None),
            ("=4", None),
            ("load.arrival.rate=", None),
            ("load.arrival.rate=[1", None),
        ] {
            let e = Override::parse(text).unwrap_err();
            assert_eq!(e.nearest.as_deref(), nearest, "{text}: {e}");
        }
    }

    #[test]
    fn an_index_beyond_the_list_is_refused() {
        let mut root = json!({"cluster": {"pools": []}});
        assert!(
            Override::parse("cluster.pools.0.groups=1")
                .unwrap()
                .apply(&mut root)
                .is_err()
        );
    }
}
