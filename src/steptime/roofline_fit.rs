//! The fit file of the roofline: parameters with what is known of them, and where they hold. YAML, unknown fields
//! refused, sealed with a checksum.

use std::collections::BTreeSet;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::deployment::Deployment;
use super::fit_parts::{
    Correlation, FitData, FitError, FitRange, FittedParameter, Misfit, SpeaksFor, beyond, check_format,
    check_parameters, misfit,
};
use super::parameters::{Parameters, SPECS};
use super::seal::{require_seal, seal};
use crate::input::{InputError, read_text};
use crate::yaml;

/// The version of the file's format.
pub const ROOFLINE_FIT_FORMAT: u32 = 2;

/// A fit of the roofline's parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RooflineFit {
    /// Format of this file, [`ROOFLINE_FIT_FORMAT`].
    pub kneeboard_fit: u32,
    /// `roofline`.
    pub form: Form,
    /// Name in reports.
    pub name: String,
    /// Program and version that fitted.
    pub fitted_with: String,
    /// From what it was fitted.
    pub door: Door,
    /// The command that makes this file from its data.
    pub command: String,
    /// For which devices, formats and engines it speaks.
    pub speaks_for: SpeaksFor,
    /// The parameters, all of them, in the order of the model.
    pub parameters: Vec<FittedParameter>,
    /// Pairs of parameters whose errors go together: correlation of the logarithms, beyond 0.3.
    pub correlation: Vec<Correlation>,
    /// Parameter vectors that agree with the data about as well, from resampled runs and resampled priors; each in
    /// the order of `parameters`.
    pub draws: Vec<Vec<f64>>,
    /// What predictions miss by beyond the draws.
    pub misfit: Vec<Misfit>,
    /// Ranges of what the data held; outside, a prediction is an extrapolation.
    pub hull: Vec<FitRange>,
    /// Relative errors of what was fitted.
    pub residuals: Vec<FitError>,
    /// Relative errors of what was left out in turn.
    pub held_out: Vec<FitError>,
    /// The data.
    pub data: Vec<FitData>,
    /// What a reader must know before trusting it.
    pub notes: Vec<String>,
}

/// The word `roofline`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// The model of [`super::roofline`].
    Roofline,
}

/// From what parameters were fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Door {
    /// Measured kernels.
    Kernels,
    /// Measured steps.
    Steps,
    /// Request times of whole runs.
    Events,
    /// Summary figures of runs.
    Points,
}

impl RooflineFit {
    /// Reads and checks a fit.
    ///
    /// # Errors
    /// [`InputError`] for a broken checksum, another format, a parameter that is missing, unknown or out of bounds.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        Self::from_text(&read_text(path)?, path)
    }

    /// A fit out of a file's text; `path` is for errors.
    ///
    /// # Errors
    /// As [`RooflineFit::read`].
    pub fn from_text(text: &str, path: &Path) -> Result<Self, InputError> {
        let body = require_seal(text, path)?;
        let fit: Self = yaml::parse(body, &path.display().to_string())?;
        fit.check(path)?;
        Ok(fit)
    }

    /// The file's text, sealed.
    ///
    /// # Errors
    /// A message when a value cannot be written as YAML.
    pub fn to_yaml(&self) -> Result<String, String> {
        let body = serde_saphyr::to_string(self).map_err(|e| e.to_string())?;
        Ok(seal(&body))
    }

    /// The values as a vector.
    pub fn values(&self) -> Parameters {
        Parameters::of(&self.parameters)
    }

    /// The draws as vectors.
    pub fn parameter_draws(&self) -> Vec<Parameters> {
        Parameters::draws_of(&self.draws)
    }

    /// Misfit of a figure; `any` statistics of the metric where the figure itself is not listed.
    pub fn misfit(&self, metric: &str, stat: &str) -> Option<f64> {
        misfit(&self.misfit, metric, stat)
    }

    /// What of a deployment the fit does not speak for, as [`beyond`] tells.
    pub fn beyond(&self, deployment: &Deployment) -> BTreeSet<String> {
        beyond(&self.speaks_for, &self.hull, deployment)
    }

    fn check(&self, path: &Path) -> Result<(), InputError> {
        check_format(self.kneeboard_fit, ROOFLINE_FIT_FORMAT, path)?;
        check_parameters(&SPECS, &self.parameters, &self.draws, &self.misfit, path)
    }
}

#[cfg(test)]
#[path = "roofline_fit_tests.rs"]
mod tests;
