//! Filling values by their paths.

use super::super::check::Blame;
use super::super::provenance::{Provenance, Source};
use super::super::quantity::{Finite, Span};
use crate::input::InputError;
use crate::units::SimDuration;

/// What it takes to fill a value and to say where it came from.
#[derive(Debug)]
pub(super) struct Filling<'a> {
    pub provenance: &'a mut Provenance,
    pub origin: &'a str,
}

impl Filling<'_> {
    pub fn blame(&self) -> Blame<'_> {
        Blame {
            origin: self.origin,
            provenance: self.provenance,
        }
    }

    pub fn fill<T: Clone>(
        &mut self,
        path: &str,
        key: &str,
        slot: &mut Option<T>,
        source: Source,
        value: T,
    ) -> T {
        self.provenance
            .fill(&format!("{path}.{key}"), slot, source, value)
    }

    /// A duration with a default of Kneeboard's own.
    pub fn span(
        &mut self,
        path: &str,
        key: &str,
        slot: &mut Option<Span>,
        default: SimDuration,
    ) -> SimDuration {
        self.fill(path, key, slot, Source::Default, Span(default)).0
    }

    /// A number with a default of Kneeboard's own.
    pub fn number(&mut self, path: &str, key: &str, slot: &mut Option<Finite>, default: f64) -> f64 {
        self.fill(path, key, slot, Source::Default, Finite(default)).0
    }

    pub fn error(&self, path: &str, found: impl Into<String>, allowed: impl Into<String>) -> InputError {
        self.blame().error(path, found, allowed)
    }

    /// A duration that must not be 0.
    pub fn above_zero(&self, path: &str, value: Option<Span>) -> Result<Option<SimDuration>, InputError> {
        match value {
            Some(Span(SimDuration::ZERO)) => Err(self.error(
                path,
                "found 0",
                "allowed: a duration above 0; leave it out for none",
            )),
            other => Ok(other.map(|s| s.0)),
        }
    }

    /// How often something happens: not so often that a run would be nothing else.
    ///
    /// # Errors
    /// [`InputError`] below `least`; 0 is left to the caller.
    pub fn not_below(&self, path: &str, value: SimDuration, least: SimDuration) -> Result<(), InputError> {
        if value >= least || value == SimDuration::ZERO {
            return Ok(());
        }
        let found = format!("found {}", Span(value));
        Err(self.error(path, found, format!("allowed: from {}", Span(least))))
    }

    /// A count from 1 to `most`.
    ///
    /// # Errors
    /// [`InputError`] outside of it.
    pub fn at_most(&self, path: &str, value: u32, most: u32) -> Result<(), InputError> {
        if (1..=most).contains(&value) {
            return Ok(());
        }
        Err(self.error(path, format!("found {value}"), format!("allowed: 1 to {most}")))
    }

    /// A share from 0 to 1.
    pub fn share(&self, path: &str, value: Option<Finite>) -> Result<(), InputError> {
        self.blame().share(path, value)
    }
}
