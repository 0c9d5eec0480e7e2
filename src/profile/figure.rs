//! A figure with its source: every number of a profile says where it comes from and whether it is doubtful.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One figure of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Figure<T> {
    /// The value, in the unit that the field's name states.
    pub value: T,
    /// Key of the profile's `sources`.
    pub source: String,
    /// Why the figure should not be trusted blindly; absent when it is sound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

/// A figure stripped of its type, for listings and checks.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureRow<'a> {
    /// Field name, unit included.
    pub name: &'static str,
    /// The value as text.
    pub value: String,
    /// Key of its source.
    pub source: &'a str,
    /// Why it is doubtful, if it is.
    pub doubt: Option<&'a str>,
}

impl<T: std::fmt::Display> Figure<T> {
    /// The figure as a row of a table.
    pub fn row(&self, name: &'static str) -> FigureRow<'_> {
        FigureRow {
            name,
            value: self.value.to_string(),
            source: &self.source,
            doubt: self.doubt.as_deref(),
        }
    }
}
