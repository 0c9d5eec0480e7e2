//! The one door for YAML: text into a type, and a value back into a type, with one error shape.

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
    parsed.map_err(|e| from_yaml_error(&e, origin, &field))
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
        let path = e.path().to_string();
        let found = e.into_inner().to_string();
        let error = InputError::new(origin, found);
        if is_named(&path) { error.at(path) } else { error }
    })
}

fn is_named(path: &str) -> bool {
    !path.is_empty() && path != "." && path != "?"
}

fn from_yaml_error(error: &YamlError, origin: &str, field: &str) -> InputError {
    let mut place = error
        .location()
        .map(|l| format!("line {}, column {}", l.line(), l.column()))
        .unwrap_or_default();
    if is_named(field) {
        let sep = if place.is_empty() { "" } else { ", " };
        place = format!("{place}{sep}{field}");
    }
    let mut out = describe(error, origin);
    if !place.is_empty() {
        out = out.at(place);
    }
    out
}

fn describe(error: &YamlError, origin: &str) -> InputError {
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
            say("a value of the wrong kind".to_owned()).allowed(format!("allowed: {}", kind(ty)))
        }
        YamlError::NonFiniteFloat { value, .. } => {
            say(format!("found {value}")).allowed("allowed: a finite number")
        }
        YamlError::Message { msg, .. } => say(msg.clone()),
        YamlError::Eof { .. } => say("the document ends too early".to_owned()),
        other => say(first_line(&other.to_string())),
    }
}

/// The parser names Rust's types; users think in ranges.
fn kind(ty: &str) -> String {
    match ty {
        "u8" => "a whole number from 0 to 255".to_owned(),
        "u32" => "a whole number from 0 to 4294967295".to_owned(),
        "u64" => "a whole number from 0".to_owned(),
        "i32" | "i64" => "a whole number".to_owned(),
        "f64" => "a number".to_owned(),
        other => other.to_owned(),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("not valid YAML").to_owned()
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
        assert!(text.contains("whole number"), "{text}");
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
    }
}
