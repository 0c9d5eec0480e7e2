//! What a fit file of static shapes may not say, whatever its checksum: programs that no device can run, the same one
//! twice, ranges upside down, numbers that are none.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use super::deployment::WeightDtype;
use super::fit_parts::{FitError, FitRange, FittedParameter};
use super::static_fit::{LONGEST_PROGRAM_S, MeasuredProgram, StaticFit};
use super::static_shape::Program;
use crate::input::InputError;

/// Refuses at places of one file.
struct Checker<'a>(&'a Path);

impl Checker<'_> {
    fn refuse(&self, place: String, found: String, allowed: impl Into<String>) -> Result<(), InputError> {
        Err(InputError::in_file(self.0, found).at(place).allowed(allowed))
    }

    fn count(&self, place: String, value: u32, allowed: RangeInclusive<u32>) -> Result<(), InputError> {
        if allowed.contains(&value) {
            return Ok(());
        }
        let (low, high) = allowed.into_inner();
        let bounds = if high == u32::MAX {
            format!("a whole number from {low}")
        } else {
            format!("{low} to {high}")
        };
        self.refuse(place, value.to_string(), bounds)
    }

    fn number(&self, place: String, value: f64, allowed: RangeInclusive<f64>) -> Result<(), InputError> {
        if allowed.contains(&value) {
            return Ok(());
        }
        let bounds = format!("{} to {}", allowed.start(), allowed.end());
        self.refuse(place, value.to_string(), bounds)
    }

    fn finite(&self, place: String, value: f64) -> Result<(), InputError> {
        if value.is_finite() {
            return Ok(());
        }
        self.refuse(place, value.to_string(), "a finite number")
    }

    fn interval(&self, place: String, (low, high): (f64, f64)) -> Result<(), InputError> {
        if low.is_finite() && high.is_finite() && low <= high {
            return Ok(());
        }
        self.refuse(
            place,
            format!("{low} to {high}"),
            "two finite numbers, the smaller one first",
        )
    }

    fn parameter(&self, place: &str, p: &FittedParameter) -> Result<(), InputError> {
        self.interval(format!("{place}.interval_90"), p.interval_90)?;
        self.finite(format!("{place}.prior"), p.prior)?;
        self.number(format!("{place}.prior_log_sd"), p.prior_log_sd, 0.0..=20.0)
    }

    fn hull(&self, hull: &[FitRange]) -> Result<(), InputError> {
        for (index, range) in hull.iter().enumerate() {
            let place = format!("hull[{index}]");
            self.interval(format!("{place} ({})", range.axis), (range.low, range.high))?;
            if let Some(first) = hull[..index].iter().position(|r| r.axis == range.axis) {
                let found = format!("the axis {} again, as in hull[{first}]", range.axis);
                return self.refuse(place, found, "each axis once");
            }
        }
        Ok(())
    }

    fn errors(&self, list: &str, errors: &[FitError]) -> Result<(), InputError> {
        for (index, e) in errors.iter().enumerate() {
            let place = |field: &str| format!("{list}[{index}].{field}");
            self.finite(place("rel_error"), e.rel_error)?;
            for (field, value) in [("actual", e.actual), ("predicted", e.predicted)] {
                value.map_or(Ok(()), |v| self.finite(place(field), v))?;
            }
            e.interval_90
                .map_or(Ok(()), |i| self.interval(place("interval_90"), i))?;
        }
        Ok(())
    }

    fn program(&self, index: usize, m: &MeasuredProgram) -> Result<(), InputError> {
        // The program's name beside its number: the list is long.
        let place = |field: &str| format!("programs[{index}].{field} ({})", m.program);
        for (field, value) in [
            ("tp", m.tp),
            ("logical_core", m.logical_core),
            ("max_num_seqs", m.max_num_seqs),
            ("max_model_len", m.max_model_len),
        ] {
            self.count(place(field), value, 1..=u32::MAX)?;
        }
        m.dtype.parse::<WeightDtype>().map_err(|e| InputError {
            origin: self.0.display().to_string(),
            place: Some(place("dtype")),
            ..e
        })?;
        match m.program {
            Program::ContextEncoding { tokens, prefix } => {
                self.count(place("program.tokens"), tokens, 1..=m.max_model_len)?;
                self.count(place("program.prefix"), prefix, 0..=m.max_model_len)?;
            }
            Program::TokenGeneration { positions, batch } => {
                self.count(place("program.positions"), positions, 1..=m.max_model_len)?;
                self.count(place("program.batch"), batch, 1..=m.max_num_seqs)?;
            }
        }
        if m.seconds > 0.0 && m.seconds <= LONGEST_PROGRAM_S {
            return Ok(());
        }
        let allowed = format!("more than 0, at most {LONGEST_PROGRAM_S} s");
        self.refuse(place("seconds"), format!("{} s", m.seconds), allowed)
    }

    fn programs(&self, programs: &[MeasuredProgram]) -> Result<(), InputError> {
        let mut seen = BTreeMap::new();
        for (index, m) in programs.iter().enumerate() {
            self.program(index, m)?;
            if let Some(first) = seen.insert(m.key(), index) {
                return self.refuse(
                    format!("programs[{index}] ({})", m.program),
                    format!("the program of programs[{first}] again"),
                    "one time for each program of a deployment",
                );
            }
        }
        Ok(())
    }
}

/// Checks what the format alone does not: see the module.
///
/// # Errors
/// [`InputError`] with the place in the file.
pub(super) fn check(fit: &StaticFit, path: &Path) -> Result<(), InputError> {
    let checker = Checker(path);
    for (index, p) in fit.parameters.iter().enumerate() {
        checker.parameter(&format!("parameters[{index}]"), p)?;
    }
    for (index, c) in fit.correlation.iter().enumerate() {
        checker.number(format!("correlation[{index}].r"), c.r, -1.0..=1.0)?;
    }
    checker.hull(&fit.hull)?;
    checker.programs(&fit.programs)?;
    checker.errors("residuals", &fit.residuals)?;
    checker.errors("held_out", &fit.held_out)
}
