//! How far deployments and buckets that were left out are missed, and how thin the evidence is.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use super::{Rows, SCATTER, StaticPriors, errors, fit, of_logs};
use crate::calibrate::bootstrap;
use crate::calibrate::programs::ProgramRow;
use crate::steptime::Program;
use crate::steptime::fit_parts::{FitError, Misfit};
use crate::steptime::roofline::MissingFigure;

/// Scatter of a deployment's speed where fewer than this many were left out in turn, and what it is then.
const FEW_GROUPS: usize = 3;
const UNTESTED_SPEED: f64 = 0.15;
/// What another model adds where the data hold but one. A guess, as with the roofline.
const NEW_MODEL: f64 = 0.10;

/// What is left out, and the errors of its rows.
pub(super) type LeftOut = Vec<(Kind, FitError)>;

/// What was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Deployment,
    Bucket,
}

/// Rows that tell how good a fit is: clean measurements, and all where these are of too few deployments.
fn yardstick<'a>(rows: &[&'a ProgramRow]) -> Vec<&'a ProgramRow> {
    let clean: Vec<&ProgramRow> = rows.iter().filter(|r| r.log_sd.is_none()).copied().collect();
    let groups: BTreeSet<String> = clean.iter().map(|r| r.group()).collect();
    if groups.len() < FEW_GROUPS {
        rows.to_vec()
    } else {
        clean
    }
}

/// Fits again without every deployment in turn, and without every bucket beside others of its model and split.
///
/// # Errors
/// [`MissingFigure`] as of the fit itself.
pub(super) fn left_out(rows: &[&ProgramRow], priors: &StaticPriors) -> Result<LeftOut, MissingFigure> {
    let told = yardstick(rows);
    let groups: BTreeSet<String> = told.iter().map(|r| r.group()).collect();
    let mut cases: BTreeSet<(Kind, String)> = groups
        .iter()
        .filter(|_| groups.len() > 1)
        .map(|g| (Kind::Deployment, g.clone()))
        .collect();
    // A bucket beside others of the same model and split.
    let buckets: BTreeSet<(String, String)> = told.iter().filter_map(|r| bucket(r)).collect();
    cases.extend(
        buckets
            .iter()
            .filter(|(of, bucket)| buckets.iter().any(|(o, b)| o == of && b != bucket))
            .map(|(of, bucket)| (Kind::Bucket, format!("{of}, {bucket}"))),
    );
    let out: Vec<Vec<(Kind, FitError)>> = cases
        .into_par_iter()
        .map(|(kind, what)| {
            let goes = |r: &&&ProgramRow| match kind {
                Kind::Deployment => r.group() == what,
                Kind::Bucket => bucket(r).is_some_and(|(of, bucket)| format!("{of}, {bucket}") == what),
            };
            let kept: Vec<&ProgramRow> = rows.iter().filter(|r| !goes(r)).copied().collect();
            let gone: Vec<&ProgramRow> = rows.iter().filter(goes).copied().collect();
            let parameters = of_logs(&fit(&Rows::new(kept)?, priors).linear.x);
            let errors = errors(&Rows::new(gone)?, &parameters, &what);
            Ok(errors.into_iter().map(|e| (kind, e)).collect())
        })
        .collect::<Result<_, MissingFigure>>()?;
    Ok(out.into_iter().flatten().collect())
}

/// A model at one degree of tensor parallelism, and a bucket of its prompts.
fn bucket(row: &ProgramRow) -> Option<(String, String)> {
    let d = &row.deployment;
    match row.program {
        Program::ContextEncoding { tokens, .. } => Some((
            format!("{} {} {} tp {}", d.accelerator.name, d.model.name, d.dtype, d.tp),
            format!("prompts of bucket {tokens}"),
        )),
        Program::TokenGeneration { .. } => None,
    }
}

/// By how much a deployment that was left out was missed: as a whole, and in its single programs beside that.
pub(super) fn misfit(rows: &[&ProgramRow], held_out: &LeftOut) -> Vec<Misfit> {
    let mut by_group: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
    for (kind, e) in held_out {
        let error = (1.0 + e.rel_error).ln();
        if *kind == Kind::Deployment && error.is_finite() {
            by_group.entry(&e.of).or_default().push((&e.metric, error));
        }
    }
    let mean = |errors: &[(&str, f64)]| errors.iter().map(|e| e.1).sum::<f64>() / errors.len().max(1) as f64;
    let speeds: Vec<f64> = by_group.values().map(|errors| mean(errors)).collect();
    let of_groups = bootstrap::scatter_of(&speeds);
    let speed = if speeds.len() < FEW_GROUPS {
        of_groups.max(UNTESTED_SPEED)
    } else {
        of_groups
    };
    let models = models(&yardstick(rows));
    let new_model = if models.len() < 2 {
        speed.hypot(NEW_MODEL)
    } else {
        speed
    };
    let misfit = |metric: &str, stat: &str, log_sd: f64, n: usize| Misfit {
        metric: metric.to_owned(),
        stat: stat.to_owned(),
        log_sd,
        n: n as u32,
    };
    let mut out = vec![
        misfit("step", "measured", SCATTER, 0),
        misfit("step", "run", speed, speeds.len()),
        misfit("step", "new_model", new_model, speeds.len()),
    ];
    let beside: Vec<f64> = by_group
        .values()
        .flat_map(|errors| errors.iter().map(|e| e.1 - mean(errors)))
        .collect();
    if !beside.is_empty() {
        let scatter = bootstrap::scatter_of(&beside);
        out.push(misfit("ttft_s", "any", scatter, beside.len()));
        out.push(misfit("tpot_s", "any", scatter, beside.len()));
    }
    out
}

fn models<'a>(rows: &[&'a ProgramRow]) -> BTreeSet<&'a str> {
    rows.iter().map(|r| r.deployment.model.name.as_str()).collect()
}

/// How thin the evidence is.
pub(super) fn thin(rows: &[&ProgramRow], held_out: &LeftOut) -> Vec<String> {
    let groups: BTreeSet<String> = rows.iter().map(|r| r.group()).collect();
    let tested: BTreeSet<&str> = held_out
        .iter()
        .filter(|(kind, _)| *kind == Kind::Deployment)
        .map(|(_, e)| e.of.as_str())
        .collect();
    let models = models(&yardstick(rows));
    let splits: BTreeSet<u32> = rows.iter().map(|r| r.deployment.tp).collect();
    let mut out = vec![format!(
        "evidence: {} figures of {} deployment(s), {} degree(s) of tensor parallelism; {} of the figures are published or \
         of other software and have a scatter of their own",
        rows.len(),
        groups.len(),
        splits.len(),
        rows.iter().filter(|r| r.log_sd.is_some()).count()
    )];
    if tested.len() < FEW_GROUPS {
        out.push(format!(
            "{} deployment(s) could be left out to test the fit; another is taken to be missed by {:.0} % (one standard \
             deviation), which is a guess",
            tested.len(),
            100.0 * UNTESTED_SPEED
        ));
    }
    if models.len() < 2 {
        out.push(format!(
            "clean measurements of one model alone: another is expected to miss by a further {:.0} %, which is a guess",
            100.0 * NEW_MODEL
        ));
    }
    out
}
