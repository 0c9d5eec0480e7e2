//! Fits the parameters of static shapes to measured programs, and says how far left-out ones are missed.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use rand_distr::{Distribution, StandardNormal};

use super::bootstrap::{self, Units};
use super::posterior::{self, LogPrior, Posterior, Residuals, Search};
use super::programs::{ProgramRow, RowKind};
use super::robust::median;
use crate::rng::{Purpose, stream};
use crate::steptime::fit_parts::{Correlation, FitData, FitError, FitRange, FittedParameter, SpeaksFor};
use crate::steptime::roofline::MissingFigure;
use crate::steptime::static_fit::{MeasuredProgram, STATIC_FIT_FORMAT, StaticFit, StaticForm};
use crate::steptime::static_parameters::{STATIC_PARAMS, STATIC_SPECS, StaticParam, StaticParameters};
use crate::steptime::{Program, StaticRoofline};

mod held_out;

use held_out::{left_out, misfit, thin};

/// Scatter of a clean measurement about any smooth law: two compilations of one program differ by about so much.
const SCATTER: f64 = 0.03;
/// Parameter vectors in a fit.
const DRAWS: usize = 32;
const SEED: u64 = 1;
/// A parameter is known from the data where they narrow its prior to this share.
const IDENTIFIED_BELOW: f64 = 0.7;
/// Correlations worth telling.
const NOTEWORTHY: f64 = 0.3;

const SEARCH: Search = Search {
    rounds: 60,
    first_step: 0.05,
    shrink: 0.95,
    tolerance: 1e-5,
    polish: 4000,
    least_scale: None,
};

/// What is known before the data.
#[derive(Debug, Clone, PartialEq)]
pub struct StaticPriors {
    /// Medians.
    pub values: StaticParameters,
    /// Standard deviations of the logarithms.
    pub log_sd: [f64; STATIC_PARAMS],
}

impl Default for StaticPriors {
    fn default() -> Self {
        Self {
            values: StaticParameters::default(),
            log_sd: STATIC_SPECS.map(|s| s.prior_log_sd),
        }
    }
}

impl StaticPriors {
    fn logs(&self) -> Vec<LogPrior> {
        let of = |i: usize| LogPrior {
            mean: self.values.0[i].ln(),
            sd: self.log_sd[i],
            bounds: (STATIC_SPECS[i].bounds.0.ln(), STATIC_SPECS[i].bounds.1.ln()),
        };
        (0..STATIC_PARAMS).map(of).collect()
    }
}

/// The head of a fit file.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramFitHead {
    /// Name in reports.
    pub name: String,
    /// The command that makes the file.
    pub command: String,
    /// The tables.
    pub data: Vec<FitData>,
    /// Engines, with versions, that ran the programs.
    pub engines: Vec<String>,
    /// What a reader must know beside what the fit itself can tell.
    pub notes: Vec<String>,
}

/// Rows under rooflines that were laid out once.
struct Rows<'a> {
    rows: Vec<&'a ProgramRow>,
    rooflines: Vec<StaticRoofline>,
}

impl<'a> Rows<'a> {
    fn new(rows: Vec<&'a ProgramRow>) -> Result<Self, MissingFigure> {
        let of = |r: &&ProgramRow| StaticRoofline::new(&r.deployment, StaticParameters::default());
        let rooflines = rows.iter().map(of).collect::<Result<_, _>>()?;
        Ok(Self { rows, rooflines })
    }

    /// Seconds of every row under these parameters.
    fn predict(&self, parameters: &StaticParameters) -> Vec<f64> {
        let front_end = parameters[StaticParam::FrontEndIn] + parameters[StaticParam::FrontEndOut];
        let host = parameters[StaticParam::HostStepTime];
        let one = |(row, roofline): (&&ProgramRow, &StaticRoofline)| {
            let program = roofline.under(*parameters).parts(row.program).total_s() + host;
            match row.kind {
                RowKind::Program => program,
                RowKind::LonePrompt => program + front_end,
            }
        };
        self.rows.iter().zip(&self.rooflines).map(one).collect()
    }
}

impl Residuals for Rows<'_> {
    type Error = Infallible;

    fn at(&self, x: &[f64]) -> Result<Vec<f64>, Infallible> {
        let predicted = self.predict(&of_logs(x));
        let one = |(row, p): (&&ProgramRow, f64)| (p / row.seconds).ln() / row.log_sd.unwrap_or(SCATTER);
        Ok(self.rows.iter().zip(predicted).map(one).collect())
    }
}

fn of_logs(x: &[f64]) -> StaticParameters {
    let mut out = StaticParameters::default();
    for (value, x) in out.0.iter_mut().zip(x) {
        *value = x.exp();
    }
    out.clamped()
}

fn fit(rows: &Rows<'_>, priors: &StaticPriors) -> Posterior {
    let logs = priors.logs();
    let start: Vec<f64> = logs.iter().map(|p| p.mean).collect();
    match posterior::find(rows, &logs, &start, SEARCH) {
        Ok(found) => found,
        Err(never) => match never {},
    }
}

/// Fits all parameters to `rows`, and again with every deployment left out in turn, and every bucket of prompts within
/// a degree of tensor parallelism.
///
/// # Errors
/// [`MissingFigure`] when an accelerator's profile lacks a figure that programs need.
pub fn fit_programs(
    rows: &[ProgramRow],
    priors: &StaticPriors,
    head: ProgramFitHead,
    hold_out: bool,
) -> Result<StaticFit, MissingFigure> {
    // Rows of a deployment stand together, since they are resampled together.
    let mut sorted: Vec<&ProgramRow> = rows.iter().collect();
    sorted.sort_by_key(|r| r.group());
    let all = Rows::new(sorted.clone())?;
    let found = fit(&all, priors);
    let best = of_logs(&found.linear.x);
    let sizes = sorted.chunk_by(|a, b| a.group() == b.group()).map(<[_]>::len);
    let draws = draw(&found, &Units::of_sizes(sizes), priors);
    let residuals = errors(&all, &best, "fitted");
    let held_out = if hold_out {
        left_out(&sorted, priors)?
    } else {
        Vec::new()
    };
    let mut notes = head.notes;
    notes.extend(thin(&sorted, &held_out));
    let parameters = parameters(&found, &best, &draws, priors);
    notes.extend(unidentified(&parameters));
    let misfit = misfit(&sorted, &held_out);
    Ok(StaticFit {
        kneeboard_fit: STATIC_FIT_FORMAT,
        form: StaticForm::StaticShape,
        name: head.name,
        fitted_with: format!("kneeboard {}", env!("CARGO_PKG_VERSION")),
        command: head.command,
        speaks_for: speaks_for(&sorted, head.engines),
        parameters,
        correlation: correlation(&found),
        draws: draws.iter().map(|d| d.0.to_vec()).collect(),
        misfit,
        hull: hull(&sorted),
        programs: measured(&sorted, &best),
        residuals,
        held_out: held_out.into_iter().map(|(_, e)| e).collect(),
        data: head.data,
        notes,
    })
}

fn errors(rows: &Rows<'_>, parameters: &StaticParameters, of: &str) -> Vec<FitError> {
    let one = |(row, predicted): (&&ProgramRow, f64)| FitError {
        of: of.to_owned(),
        run: row.group(),
        metric: match row.kind {
            RowKind::Program => "program_s",
            RowKind::LonePrompt => "lone_prompt_s",
        }
        .to_owned(),
        stat: row.program.to_string(),
        actual: Some(row.seconds),
        predicted: Some(predicted),
        rel_error: predicted / row.seconds - 1.0,
        interval_90: None,
        n: row.n,
    };
    let predicted = rows.predict(parameters);
    rows.rows.iter().zip(predicted).map(one).collect()
}

fn draw(found: &Posterior, units: &Units, priors: &StaticPriors) -> Vec<StaticParameters> {
    let logs = priors.logs();
    (0..DRAWS as u64)
        .map(|index| {
            let mut rng = stream(SEED, Purpose::Bootstrap, index);
            let normals: Vec<f64> = (0..STATIC_PARAMS)
                .map(|_| StandardNormal.sample(&mut rng))
                .collect();
            of_logs(&bootstrap::resample(
                &found.linear,
                &logs,
                units,
                &normals,
                &mut rng,
            ))
        })
        .collect()
}

fn parameters(
    found: &Posterior,
    best: &StaticParameters,
    draws: &[StaticParameters],
    priors: &StaticPriors,
) -> Vec<FittedParameter> {
    STATIC_SPECS
        .iter()
        .enumerate()
        .map(|(i, spec)| {
            let prior_log_sd = priors.log_sd[i];
            let value = best.0[i];
            let slopes = found.covariance[[i, i]].max(0.0).sqrt();
            let drawn = draws.iter().map(|d| d.0[i].ln());
            let log_sd = bootstrap::log_sd(drawn, value.ln(), slopes, prior_log_sd);
            let (low, high) = bootstrap::interval_90(value.ln(), log_sd);
            let bounded = |v: f64| v.clamp(spec.bounds.0, spec.bounds.1);
            FittedParameter {
                name: spec.name.to_owned(),
                value,
                unit: spec.unit.to_owned(),
                log_sd,
                interval_90: (bounded(low), bounded(high)),
                prior: priors.values.0[i],
                prior_log_sd,
                identified: log_sd < IDENTIFIED_BELOW * prior_log_sd,
            }
        })
        .collect()
}

fn correlation(found: &Posterior) -> Vec<Correlation> {
    let c = &found.covariance;
    let mut out = Vec::new();
    for i in 0..STATIC_PARAMS {
        for j in i + 1..STATIC_PARAMS {
            let r = c[[i, j]] / (c[[i, i]] * c[[j, j]]).sqrt();
            if r.is_finite() && r.abs() >= NOTEWORTHY {
                out.push(Correlation {
                    a: STATIC_SPECS[i].name.to_owned(),
                    b: STATIC_SPECS[j].name.to_owned(),
                    r: (r * 1e3).round() / 1e3,
                });
            }
        }
    }
    out
}

/// Times of programs that were measured cleanly: the median of the rows of each; the TTFT of lone prompts, less the
/// front end, where nothing better is there.
fn measured(rows: &[&ProgramRow], best: &StaticParameters) -> Vec<MeasuredProgram> {
    let front_end = best[StaticParam::FrontEndIn] + best[StaticParam::FrontEndOut];
    let mut by_program: BTreeMap<(String, Program), BTreeMap<RowKind, Vec<MeasuredProgram>>> =
        BTreeMap::new();
    for row in rows {
        if let Some(m) = row.measured(front_end) {
            let kinds = by_program.entry((row.group(), row.program)).or_default();
            kinds.entry(row.kind).or_default().push(m);
        }
    }
    by_program
        .into_values()
        .filter_map(|kinds| {
            let best = kinds.into_values().next()?;
            let seconds: Vec<f64> = best.iter().map(|m| m.seconds).collect();
            let n = best.iter().map(|m| m.n).sum();
            let first = best.into_iter().next()?;
            Some(MeasuredProgram {
                seconds: median(&seconds)?,
                n,
                ..first
            })
        })
        .collect()
}

fn speaks_for(rows: &[&ProgramRow], engines: Vec<String>) -> SpeaksFor {
    let unique = |key: fn(&ProgramRow) -> String| -> Vec<String> {
        let set: BTreeSet<String> = rows.iter().map(|r| key(r)).collect();
        set.into_iter().collect()
    };
    SpeaksFor {
        accelerators: unique(|r| r.deployment.accelerator.name.clone()),
        dtypes: unique(|r| r.deployment.dtype.name().to_owned()),
        kv_dtypes: unique(|r| r.deployment.kv_dtype.name().to_owned()),
        engines,
        models: unique(|r| r.deployment.model.name.clone()),
    }
}

fn hull(rows: &[&ProgramRow]) -> Vec<FitRange> {
    type Axis = fn(&ProgramRow) -> Option<u32>;
    let axes: [(&str, Axis); 8] = [
        ("tp", |r| Some(r.deployment.tp)),
        ("logical_core", |r| r.deployment.logical_core),
        ("pp", |r| Some(r.deployment.pp)),
        ("ep", |r| Some(r.deployment.ep)),
        ("max_num_seqs", |r| Some(r.slots())),
        ("max_model_len", |r| Some(r.positions())),
        ("context_bucket", |r| match r.program {
            Program::ContextEncoding { tokens, .. } => Some(tokens),
            Program::TokenGeneration { .. } => None,
        }),
        ("token_bucket", |r| match r.program {
            Program::TokenGeneration { positions, .. } => Some(positions),
            Program::ContextEncoding { .. } => None,
        }),
    ];
    axes.into_iter()
        .filter_map(|(axis, value)| {
            let values = || rows.iter().filter_map(|r| value(r));
            Some(FitRange {
                axis: axis.to_owned(),
                low: f64::from(values().min()?),
                high: f64::from(values().max()?),
            })
        })
        .collect()
}

fn unidentified(parameters: &[FittedParameter]) -> Option<String> {
    let names: Vec<&str> = parameters
        .iter()
        .filter(|p| !p.identified)
        .map(|p| p.name.as_str())
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "the data hardly tell these apart from their priors, whose width they keep: {}",
            names.join(", ")
        )
    })
}

#[cfg(test)]
#[path = "fit_programs_tests.rs"]
mod tests;
