//! Looking things up in a configuration.

use serde_json::{Map, Value};

use super::family::Family;
use crate::input::InputError;
use crate::profile::Figure;

/// The fields of a configuration, those of the language part before those around it.
pub(super) struct Config<'a> {
    /// The file.
    pub origin: &'a str,
    /// The language part; the whole file when it has no such part.
    pub inner: &'a Map<String, Value>,
    /// The whole file.
    pub outer: &'a Map<String, Value>,
}

impl Config<'_> {
    /// A value that is not null.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        let known = |map: &'_ Map<String, Value>| map.get(key).is_some_and(|v| !v.is_null());
        if known(self.inner) {
            self.inner.get(key)
        } else {
            self.outer.get(key).filter(|v| !v.is_null())
        }
    }

    /// The key is there, if only as null.
    pub(super) fn mentions(&self, key: &str) -> bool {
        self.inner.contains_key(key) || self.outer.contains_key(key)
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// A whole number of any size.
    pub(super) fn whole(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(Value::as_u64)
    }

    /// The error for a key that is needed.
    pub(super) fn missing(&self, key: &str) -> InputError {
        InputError::new(self.origin, "the key is missing")
            .at(key)
            .allowed("it is needed for the model's size; is this the config.json of the whole model?")
    }

    /// A whole number, if the key is there.
    pub(super) fn optional(&self, key: &str) -> Result<Option<u32>, InputError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let whole = value.as_u64().and_then(|v| u32::try_from(v).ok());
        whole.map(Some).ok_or_else(|| {
            InputError::new(self.origin, format!("found {value}"))
                .at(key)
                .allowed("allowed: a whole number from 0 to 4294967295")
        })
    }

    /// A whole number that must be there.
    pub(super) fn count(&self, key: &str) -> Result<Figure<u32>, InputError> {
        let value = self.optional(key)?.ok_or_else(|| self.missing(key))?;
        Ok(stated(value))
    }

    /// A whole number, or the default of the family where it has one.
    pub(super) fn count_or(
        &self,
        key: &str,
        default: Option<u32>,
        family: &Family,
    ) -> Result<Figure<u32>, InputError> {
        match (self.optional(key)?, default) {
            (Some(value), _) => Ok(stated(value)),
            (None, Some(value)) => Ok(doubtful(
                value,
                "default",
                &format!("the file does not say; this is the default of {}", family.name),
            )),
            (None, None) => Err(self.missing(key)),
        }
    }

    /// The first of these keys that is there.
    pub(super) fn first_of(&self, keys: &[&str]) -> Result<Option<u32>, InputError> {
        for key in keys {
            if let Some(value) = self.optional(key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

/// A figure without doubt.
pub(super) fn figure<T>(value: T, source: &str) -> Figure<T> {
    Figure {
        value,
        source: source.to_owned(),
        doubt: None,
    }
}

/// A figure that the file states.
pub(super) fn stated(value: u32) -> Figure<u32> {
    figure(value, "config")
}

/// A figure that should not be trusted blindly.
pub(super) fn doubtful<T>(value: T, source: &str, doubt: &str) -> Figure<T> {
    Figure {
        value,
        source: source.to_owned(),
        doubt: Some(doubt.to_owned()),
    }
}
