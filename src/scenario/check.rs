//! Errors about a scenario's values, placed by their path.

use super::provenance::Provenance;
use super::quantity::{Finite, Span};
use crate::input::InputError;
use crate::units::written;
use crate::workload::lengths::MAX_TOKENS;

/// What is needed to say where a value came from.
#[derive(Debug)]
pub struct Blame<'a> {
    /// The scenario's file.
    pub origin: &'a str,
    /// Which values were set over it.
    pub provenance: &'a Provenance,
}

impl Blame<'_> {
    /// An error about the value at `path`.
    pub fn error(&self, path: &str, found: impl Into<String>, allowed: impl Into<String>) -> InputError {
        let origin = self.provenance.set_by(path).unwrap_or(self.origin);
        InputError::new(origin, found).at(path).allowed(allowed)
    }

    /// A whole number of at least 1.
    pub fn at_least_one(&self, path: &str, value: Option<u32>) -> Result<(), InputError> {
        match value {
            Some(0) => Err(self.error(path, "found 0", "allowed: a whole number from 1")),
            _ => Ok(()),
        }
    }

    /// A number of tokens, blocks or requests: at most what sums of a few still hold in 32 bits.
    pub fn count(&self, path: &str, value: Option<u32>) -> Result<(), InputError> {
        match value {
            Some(n) if n > MAX_TOKENS => {
                Err(self.error(path, format!("found {n}"), format!("allowed: up to {MAX_TOKENS}")))
            }
            _ => Ok(()),
        }
    }

    /// A time that is no longer than `most`.
    pub fn at_most(&self, path: &str, value: Option<Span>, most: Span) -> Result<(), InputError> {
        match value {
            Some(value) if value > most => {
                Err(self.error(path, format!("found {value}"), format!("allowed: up to {most}")))
            }
            _ => Ok(()),
        }
    }

    /// A number above 0.
    pub fn positive(&self, path: &str, value: Option<Finite>) -> Result<(), InputError> {
        match value {
            Some(Finite(v)) if v <= 0.0 => {
                Err(self.error(path, format!("found {}", written(v)), "allowed: a number above 0"))
            }
            _ => Ok(()),
        }
    }

    /// A share between 0 and 1, the bounds included.
    pub fn share(&self, path: &str, value: Option<Finite>) -> Result<(), InputError> {
        match value {
            Some(Finite(v)) if !(0.0..=1.0).contains(&v) => Err(self.error(
                path,
                format!("found {}", written(v)),
                "allowed: a share from 0 to 1",
            )),
            _ => Ok(()),
        }
    }

    /// Nothing here, because `why`.
    pub fn absent<T>(&self, path: &str, value: Option<&T>, why: &str) -> Result<(), InputError> {
        match value {
            Some(_) => Err(self.error(path, "this key has no effect here", why)),
            None => Ok(()),
        }
    }
}
