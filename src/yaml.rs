//! The one door for YAML: text into a type, and a value back into a type, with one error shape.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::Error as YamlError;

use crate::input::InputError;

/// Reads a YAML document into `T`. Unknown keys are refused where the type says so.
///
/// # Errors
/// [`InputError`] naming `origin`, line and column, the field, what was found, and the nearest valid name.
pub fn parse<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T, InputError> {
    let mut field = String::new();
    let parsed = serde_saphyr::with_deserializer_from_str(text, |de| {
        serde_path_to_error::deserialize(de).map_err(|e| {
            field = e.path().to_string();
            e.into_inner()
        })
    });
    parsed.map_err(|e| from_yaml_error(&e, text, origin, &field))
}

/// Whether a document in block style has a key at its top, told without reading the rest of it.
pub fn has_key(text: &str, key: &str) -> bool {
    let of_line = |line: &str| {
        line.strip_prefix(key)
            .is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    text.lines().any(of_line)
}

/// One YAML value out of a command line argument: `0.5`, `[1, 2]`, `poisson`.
///
/// # Errors
/// [`InputError`] when the text is not YAML.
pub fn parse_value(text: &str, origin: &str) -> Result<Value, InputError> {
    if text.trim().is_empty() {
        return Err(InputError::new(origin, "the value is empty").allowed("write null for no value"));
    }
    parse(text, origin)
}

/// Turns a tree of values into `T`, as [`parse`] does for text.
///
/// # Errors
/// [`InputError`] with the path of the field at fault.
pub fn from_value<T: DeserializeOwned>(value: Value, origin: &str) -> Result<T, InputError> {
    serde_path_to_error::deserialize(value).map_err(|e| {
        let path = place_of(&e.path().to_string());
        let error = explain(&e.into_inner().to_string(), origin);
        if path.is_empty() { error } else { error.at(path) }
    })
}

/// What is wrong in a JSON document, in the words of [`from_value`]: the field that it is about, with its line, or the
/// parser's own words where it is about none.
pub fn json_error(error: &serde_path_to_error::Error<serde_json::Error>, path: &Path) -> InputError {
    let field = error.path().to_string();
    let inner = error.inner();
    if !inner.is_data() || matches!(field.as_str(), "." | "?") {
        return InputError::in_file(path, inner.to_string()).at_field(error.path());
    }
    let mut out = json_words(inner, path);
    out.place = Some(format!(
        "{field} (line {}, column {})",
        inner.line(),
        inner.column()
    ));
    out
}

/// The same without a field and a line, for a document that is one line of many.
pub fn json_words(error: &serde_json::Error, path: &Path) -> InputError {
    explain(&first_line(&error.to_string()), &path.display().to_string())
}

/// A path as users write it: `a.b.0.c`, without the marks for what has no name.
fn place_of(path: &str) -> String {
    let dotted = path.replace('[', ".").replace(']', "");
    dotted
        .split('.')
        .filter(|s| !s.is_empty() && *s != "?")
        .collect::<Vec<_>>()
        .join(".")
}

/// Serde's own messages, for readers who know no serde: what was found, what is allowed, the nearest name.
fn explain(message: &str, origin: &str) -> InputError {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let allowed = |names: &[&str]| format!("allowed here: {}", names.join(", "));
    for (start, what) in [
        ("unknown field", "unknown key"),
        ("unknown variant", "unknown name"),
    ] {
        if message.starts_with(start)
            && let Some(given) = quoted.next()
        {
            let names: Vec<&str> = quoted.collect();
            return InputError::new(origin, format!("{what} '{given}'"))
                .allowed(allowed(&names))
                .nearest_of(given, names.iter().copied());
        }
    }
    if message.starts_with("missing field")
        && let Some(field) = quoted.next()
    {
        return InputError::new(origin, format!("the key '{field}' is missing"));
    }
    let wrong = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "));
    match wrong.and_then(|rest| rest.rsplit_once(", expected ")) {
        // YAML of old takes a bare y or no for a truth value.
        Some((found, expected)) if found.starts_with("boolean") && kind(expected) == kind("a string") => {
            InputError::new(origin, format!("found {}", found.replace('`', ""))).allowed(format!(
                "allowed: {}; a name such as y, n, yes, no, on, off, true or false must be quoted: '\"y\"'",
                kind(expected)
            ))
        }
        Some((found, expected)) => InputError::new(origin, format!("found {}", found.replace('`', "")))
            .allowed(format!("allowed: {}", kind(expected))),
        None => InputError::new(origin, message),
    }
}

fn from_yaml_error(error: &YamlError, text: &str, origin: &str, field: &str) -> InputError {
    let location = error.location().map(|l| (l.line(), l.column()));
    let line = location.map(|(line, column)| format!("line {line}, column {column}"));
    let place: Vec<String> = line
        .into_iter()
        .chain(Some(place_of(field)).filter(|f| !f.is_empty()))
        .collect();
    let token = location.and_then(|(line, column)| token_at(text, line, column));
    let out = describe(error, token, origin);
    if place.is_empty() {
        out
    } else {
        out.at(place.join(", "))
    }
}

/// The plain scalar that starts at a place (counted from 1) of the text.
fn token_at(text: &str, line: u64, column: u64) -> Option<&str> {
    let line = text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?)?;
    let skip = usize::try_from(column).ok()?.checked_sub(1)?;
    let (start, _) = line.char_indices().nth(skip)?;
    let rest = &line[start..];
    let end = rest.find([',', '}', ']', '#']).unwrap_or(rest.len());
    Some(rest[..end].trim()).filter(|t| !t.is_empty())
}

fn describe(error: &YamlError, token: Option<&str>, origin: &str) -> InputError {
    let say = |found: String| InputError::new(origin, found);
    match error.without_snippet() {
        YamlError::SerdeUnknownField { field, expected, .. } => say(format!("unknown key '{field}'"))
            .allowed(format!("allowed here: {}", expected.join(", ")))
            .nearest_of(field, expected.iter().copied()),
        YamlError::SerdeUnknownVariant {
            variant, expected, ..
        } => say(format!("unknown name '{variant}'"))
            .allowed(format!("allowed here: {}", expected.join(", ")))
            .nearest_of(variant, expected.iter().copied()),
        YamlError::SerdeMissingField { field, .. } => say(format!("the key '{field}' is missing")),
        YamlError::DuplicateMappingKey { key, .. } => say(format!(
            "the key '{}' is given twice",
            key.as_deref().unwrap_or("?")
        )),
        YamlError::SerdeInvalidType {
            unexpected, expected, ..
        }
        | YamlError::SerdeInvalidValue {
            unexpected, expected, ..
        } => say(format!("found {unexpected}")).allowed(format!("allowed: {expected}")),
        YamlError::InvalidScalar { ty, .. } => {
            say(format!("found '{}'", token.unwrap_or("a value of another kind")))
                .allowed(format!("allowed: {}", kind(ty)))
        }
        YamlError::ExpectedStringKeyForExternallyTaggedEnum { .. }
        | YamlError::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
        | YamlError::ExpectedMappingEndAfterEnumVariantValue { .. } => {
            say("one form must be chosen here".to_owned()).allowed("allowed: exactly one key with its value")
        }
        YamlError::NonFiniteFloat { value, .. } => {
            say(format!("found {value}")).allowed("allowed: a finite number")
        }
        YamlError::Message { msg, .. } => say(msg.clone()),
        YamlError::MultipleDocuments { .. } => say("holds two documents or more; one is wanted".to_owned())
            .allowed("take out the line '---' between them and all after it"),
        YamlError::Eof { .. } => say("the document ends too early".to_owned()),
        other => match first_line(&other.to_string()) {
            null if null.starts_with("cannot deserialize null") => say("found null".to_owned())
                .allowed("allowed: a string; one that reads null or ~ must be quoted"),
            line => say(line),
        },
    }
}

/// The parser names Rust's types; users think in ranges.
fn kind(ty: &str) -> String {
    match ty {
        "u8" => "a whole number from 0 to 255".to_owned(),
        "u32" => "a whole number from 0 to 4294967295".to_owned(),
        "u64" => "a whole number from 0".to_owned(),
        "i32" | "i64" => "a whole number".to_owned(),
        "a boolean" | "bool" => "true or false".to_owned(),
        "f64" => "a number".to_owned(),
        // Of a whole part of a scenario.
        other if other.starts_with("struct ") => "keys with their values".to_owned(),
        other => other.to_owned(),
    }
}

/// The parser's own words, without the place that we say ourselves.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or("not valid YAML");
    line.split(" at line ").next().unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Knobs {
        #[allow(dead_code)]
        max_num_seqs: Option<u32>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Top {
        #[allow(dead_code)]
        engine: Knobs,
    }

    #[test]
    fn an_unknown_key_is_placed_and_the_nearest_name_given() {
        let e = parse::<Top>("engine:\n  max_num_seq: 4\n", "s.yaml").unwrap_err();
        let text = e.to_string();
        assert!(text.starts_with("s.yaml, line 2, column 3"), "{text}");
        assert!(text.contains("unknown key 'max_num_seq'"), "{text}");
        assert_eq!(e.nearest.as_deref(), Some("max_num_seqs"));
    }

    #[test]
    fn a_negative_count_says_what_is_allowed() {
        let e = parse::<Top>("engine: {max_num_seqs: -4}\n", "s.yaml").unwrap_err();
        let text = e.to_string();
        assert!(text.contains("line 1"), "{text}");
        assert!(text.contains("engine.max_num_seqs"), "{text}");
        assert!(
            text.contains("found '-4'") && text.contains("whole number"),
            "{text}"
        );
    }

    #[test]
    fn values_are_explained_as_text_is() {
        let e = from_value::<Top>(serde_json::json!({"engine": {"max_num_seq": 4}}), "--set x").unwrap_err();
        assert_eq!(e.nearest.as_deref(), Some("max_num_seqs"));
        assert_eq!(e.place.as_deref(), Some("engine.max_num_seq"));
        let e = from_value::<Top>(serde_json::json!({"engine": {"max_num_seqs": "many"}}), "--set x")
            .unwrap_err();
        assert_eq!(
            e.to_string(),
            "--set x, engine.max_num_seqs: found string \"many\"; allowed: a whole number from 0 to 4294967295"
        );
    }

    #[test]
    fn broken_yaml_and_two_documents_are_one_line_errors() {
        for bad in [
            "engine: [1,",
            "a: b: c",
            "---\nengine: {}\n---\nengine: {}\n",
            "",
            "\t",
        ] {
            let e = parse::<Top>(bad, "s.yaml").unwrap_err();
            assert!(!e.to_string().contains('\n'), "{bad:?}: {e}");
        }
        let e = parse::<Top>("---\nengine: {}\n---\nengine: {}\n", "s.yaml").unwrap_err();
        assert!(
            e.to_string()
                .contains("holds two documents or more; one is wanted"),
            "{e}"
        );
    }

    #[test]
    fn a_part_that_is_a_word_asks_for_keys() {
        let e = from_value::<Top>(serde_json::json!({"engine": "x"}), "--set engine=x").unwrap_err();
        let words = "found string \"x\"; allowed: keys with their values";
        assert!(e.to_string().ends_with(words), "{e}");
    }
}
