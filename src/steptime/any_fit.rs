//! A fit file of either form.

use std::path::Path;

use super::{Fit, RooflineFit};
use crate::input::{InputError, read_text};

/// A fit file of either form.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyFit {
    /// A sum of terms fitted to measured steps of one machine.
    Linear(Box<Fit>),
    /// Parameters of the roofline.
    Roofline(Box<RooflineFit>),
}

impl AnyFit {
    /// Reads and checks a fit of either form.
    ///
    /// # Errors
    /// [`InputError`] as the readers of the two forms.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let text = read_text(path)?;
        if text.lines().any(|l| l.trim_end() == "form: roofline") {
            return Ok(Self::Roofline(Box::new(RooflineFit::from_text(&text, path)?)));
        }
        Ok(Self::Linear(Box::new(Fit::from_text(&text, path)?)))
    }
}
