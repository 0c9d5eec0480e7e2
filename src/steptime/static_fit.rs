//! The fit file of the static-shape model: parameters, programs that were measured, and where all that holds. YAML,
//! unknown fields refused, sealed with a checksum.

use std::collections::BTreeSet;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::deployment::{Deployment, KvDtype};
use super::fit_parts::{
    Correlation, FitData, FitError, FitRange, FittedParameter, Misfit, SpeaksFor, beyond, check_format,
    check_parameters, misfit,
};
use super::seal::{require_seal, seal};
use super::static_check;
use super::static_parameters::{STATIC_SPECS, StaticParameters};
use super::static_shape::Program;
use crate::input::{InputError, read_text};
use crate::yaml;

/// The version of the file's format.
pub const STATIC_FIT_FORMAT: u32 = 1;

/// A fit of static shapes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StaticFit {
    /// Format of this file, [`STATIC_FIT_FORMAT`].
    pub kneeboard_fit: u32,
    /// `static-shape`.
    pub form: StaticForm,
    /// Name in reports.
    pub name: String,
    /// Program and version that fitted.
    pub fitted_with: String,
    /// The command that makes this file from its data.
    pub command: String,
    /// For which devices, formats and engines it speaks.
    pub speaks_for: SpeaksFor,
    /// The parameters, all of them, in the order of the model.
    pub parameters: Vec<FittedParameter>,
    /// Pairs of parameters whose errors go together: correlation of the logarithms, beyond 0.3.
    pub correlation: Vec<Correlation>,
    /// Parameter vectors that agree with the data about as well, each in the order of `parameters`.
    pub draws: Vec<Vec<f64>>,
    /// What predictions miss by beyond the draws.
    pub misfit: Vec<Misfit>,
    /// Ranges of what the data held; outside, a prediction is an extrapolation.
    pub hull: Vec<FitRange>,
    /// Programs that were measured; a deployment just like theirs takes these times in place of the model's.
    pub programs: Vec<MeasuredProgram>,
    /// Relative errors of what was fitted.
    pub residuals: Vec<FitError>,
    /// Relative errors of what was left out in turn.
    pub held_out: Vec<FitError>,
    /// The data.
    pub data: Vec<FitData>,
    /// What a reader must know before trusting it.
    pub notes: Vec<String>,
}

/// The words `static-shape`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StaticForm {
    /// The model of [`super::static_roofline`].
    StaticShape,
}

/// What one compiled program took, on what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasuredProgram {
    /// Accelerator profile.
    pub accelerator: String,
    /// Model profile.
    pub model: String,
    /// Format of the weights.
    pub dtype: String,
    /// Format of the KV cache; left out where it is bf16.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub kv_dtype: KvDtype,
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Physical cores of a rank (LNC).
    pub logical_core: u32,
    /// Rows of the largest token-generation program: the slots of the KV cache.
    pub max_num_seqs: u32,
    /// Positions of a slot.
    pub max_model_len: u32,
    /// The program.
    pub program: Program,
    /// Seconds of a step that runs it while the host waits: the host's part included, sampling on the host left out.
    pub seconds: f64,
    /// Measurements behind it.
    pub n: u32,
    /// Where it comes from.
    pub source: String,
}

/// The format of a KV cache of which nothing is said.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_usual(kv_dtype: &KvDtype) -> bool {
    *kv_dtype == KvDtype::default()
}

impl MeasuredProgram {
    /// What ran: two times of one key contradict each other.
    pub(super) fn key(&self) -> impl Ord + use<'_> {
        (
            (&self.accelerator, &self.model, &self.dtype, self.kv_dtype.name()),
            (self.tp, self.logical_core, self.max_num_seqs, self.max_model_len),
            self.program,
        )
    }

    /// It was measured on a deployment like this one.
    pub fn is_of(&self, deployment: &Deployment) -> bool {
        let shapes = deployment.static_shapes.as_ref();
        let slots = shapes.and_then(|s| s.decode_batches.last()).copied();
        let positions = shapes.and_then(|s| s.token_buckets.last()).copied();
        self.accelerator == deployment.accelerator.name
            && self.model == deployment.model.name
            && self.dtype == deployment.dtype.name()
            && self.kv_dtype == deployment.kv_dtype
            && (self.tp, 1, 1) == (deployment.tp, deployment.pp, deployment.ep)
            && deployment.logical_core.is_none_or(|c| c == self.logical_core)
            && slots == Some(self.max_num_seqs)
            && positions == Some(self.max_model_len)
    }
}

impl StaticFit {
    /// Reads and checks a fit.
    ///
    /// # Errors
    /// [`InputError`] for a broken checksum, another format, a parameter that is missing, unknown or out of bounds, a
    /// program that cannot be or stands twice, a range upside down.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        Self::from_text(&read_text(path)?, path)
    }

    /// A fit out of a file's text; `path` is for errors.
    ///
    /// # Errors
    /// As [`StaticFit::read`].
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
    pub fn values(&self) -> StaticParameters {
        StaticParameters::of(&self.parameters)
    }

    /// The draws as vectors.
    pub fn parameter_draws(&self) -> Vec<StaticParameters> {
        StaticParameters::draws_of(&self.draws)
    }

    /// Misfit of a figure; `any` statistics of the metric where the figure itself is not listed.
    pub fn misfit(&self, metric: &str, stat: &str) -> Option<f64> {
        misfit(&self.misfit, metric, stat)
    }

    /// What of a deployment the fit does not speak for: what [`beyond`] tells, `tp` and `logical_core` where no data were
    /// of just so many, and `max_num_seqs`, `max_model_len` where no measured program had so many.
    pub fn beyond(&self, deployment: &Deployment) -> BTreeSet<String> {
        let mut out = beyond(&self.speaks_for, &self.hull, deployment);
        if !self.has_seen_ranks(deployment.tp) {
            out.insert("tp".to_owned());
        }
        if deployment
            .logical_core
            .is_some_and(|c| !self.has_seen_logical_core(c))
        {
            out.insert("logical_core".to_owned());
        }
        let shapes = deployment.static_shapes.as_ref();
        let slots = shapes.and_then(|s| s.decode_batches.last());
        let positions = shapes.and_then(|s| s.token_buckets.last());
        for (axis, value) in [("max_num_seqs", slots), ("max_model_len", positions)] {
            let seen = self.hull.iter().find(|r| r.axis == axis);
            if let (Some(seen), Some(&value)) = (seen, value)
                && !(seen.low..=seen.high).contains(&f64::from(value))
            {
                out.insert(axis.to_owned());
            }
        }
        out
    }

    /// Whether the data hold this number of ranks. Heads are split and exchanged otherwise for every number of them, so
    /// none lies between two others. The ends of the range are known to have been seen, and what was measured.
    fn has_seen_ranks(&self, tp: u32) -> bool {
        let seen = self.hull.iter().find(|r| r.axis == "tp");
        let at_an_end = seen.is_none_or(|r| [r.low, r.high].contains(&f64::from(tp)));
        at_an_end || self.programs.iter().any(|m| m.tp == tp)
    }

    /// Whether the data hold logical cores of so many cores. Fits without this axis tell by their programs.
    fn has_seen_logical_core(&self, cores: u32) -> bool {
        match self.hull.iter().find(|r| r.axis == "logical_core") {
            Some(seen) => (seen.low..=seen.high).contains(&f64::from(cores)),
            None => self.programs.is_empty() || self.programs.iter().any(|m| m.logical_core == cores),
        }
    }

    fn check(&self, path: &Path) -> Result<(), InputError> {
        check_format(self.kneeboard_fit, STATIC_FIT_FORMAT, path)?;
        check_parameters(&STATIC_SPECS, &self.parameters, &self.draws, &self.misfit, path)?;
        static_check::check(self, path)
    }
}

/// Longest time of a program that is believed: an hour.
pub const LONGEST_PROGRAM_S: f64 = 3600.0;

#[cfg(test)]
#[path = "static_fit_tests.rs"]
pub(super) mod tests;
