//! A fit file of any form.

use std::path::Path;

use super::{Fit, RooflineFit, StaticFit};
use crate::input::{InputError, read_text};

/// A fit file of any form.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyFit {
    /// A sum of terms fitted to measured steps of one machine.
    Linear(Box<Fit>),
    /// Parameters of the roofline.
    Roofline(Box<RooflineFit>),
    /// Parameters and measured programs of static shapes.
    StaticShape(Box<StaticFit>),
}

impl AnyFit {
    /// Reads and checks a fit of any form.
    ///
    /// # Errors
    /// [`InputError`] as the readers of the forms.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let text = read_text(path)?;
        let form = text.lines().find_map(|l| l.strip_prefix("form: "));
        match form.map(str::trim_end) {
            Some("roofline") => Ok(Self::Roofline(Box::new(RooflineFit::from_text(&text, path)?))),
            Some("static-shape") => Ok(Self::StaticShape(Box::new(StaticFit::from_text(&text, path)?))),
            _ => Ok(Self::Linear(Box::new(Fit::from_text(&text, path)?))),
        }
    }
}
