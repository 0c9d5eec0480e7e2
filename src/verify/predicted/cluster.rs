//! Intervals of a cluster's figures: the run in every guise of each pool's fit. Requests, routers and faults draw the same
//! numbers in every guise.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::super::guises::GUISES;
use super::super::interval::{interval_of_few, plain_interval};
use super::figures::{ClusterFigure, Law, cluster_figures};
use super::pools::{PoolGuises, any_fit, drawn_machines, pools_of};
use super::{Draws, FEWEST_DRAWS, PredictedFigure, Prediction, STATED};
use crate::explore::study::{Study, StudyError, StudyRun, is_stranded};
use crate::scenario::Plan;

/// Steps that all guises of a run together may take where the number of guises is not asked for: some 20 s of one core.
const MOST_STEPS: u64 = 5_000_000;

/// What a draw showed.
struct Draw {
    figures: BTreeMap<(String, String), Option<f64>>,
    scaled: Vec<String>,
    holds: Option<bool>,
    saturated: bool,
    stranded: bool,
}

/// How many draws a run of so many steps gets; none where even the fewest are too many.
fn affordable(steps: u64) -> Option<usize> {
    [GUISES, usize::from(FEWEST_DRAWS)]
        .into_iter()
        .find(|&n| steps.saturating_mul(n as u64) <= MOST_STEPS)
}

/// Intervals of the figures of `run`, the plan's first replication.
///
/// # Errors
/// [`StudyError`] when a fit cannot be read or the best guise cannot be run.
pub(super) fn predicted(plan: &Plan, run: &StudyRun, draws: Draws) -> Result<Prediction, StudyError> {
    let mut pools = pools_of(plan)?;
    if !any_fit(&pools) {
        return Ok(Prediction::none(STATED));
    }
    let asked = match draws {
        Draws::Of(n) => Some(usize::from(n)),
        Draws::Auto | Draws::Off => affordable(run.steps()),
    };
    let Some(asked) = asked else {
        return Ok(Prediction::none(format!(
            "the run has {} steps, too many to be repeated unasked; --intervals {FEWEST_DRAWS} repeats it",
            run.steps()
        )));
    };
    let drawn: Vec<Result<Draw, StudyError>> = drawn_machines(plan, &mut pools, asked)?
        .into_par_iter()
        .map(|machines| Study::on_all(machines, plan.clone()).run(0).map(Draw::of))
        .collect();
    Ok(told(run, &pools, &drawn))
}

impl Draw {
    fn of(run: StudyRun) -> Self {
        let figures = cluster_figures(&run).into_iter();
        Self {
            figures: figures.map(|f| ((f.metric, f.stat), f.value)).collect(),
            scaled: scaled_pools(&run),
            holds: run.summary.slo.as_ref().and_then(|s| s.holds),
            saturated: run.summary.saturated == Some(true),
            stranded: is_stranded(run.cluster.as_ref()) || !run.summary.livelocks.is_empty(),
        }
    }
}

/// The figures with their intervals, and what there is to say of them.
fn told(run: &StudyRun, pools: &[PoolGuises<'_>], drawn: &[Result<Draw, StudyError>]) -> Prediction {
    let known: Vec<&Draw> = drawn.iter().filter_map(|d| d.as_ref().ok()).collect();
    let extrapolated: Vec<String> = pools.iter().flat_map(PoolGuises::extrapolated).collect();
    let mut without = Vec::new();
    let mut figures = Vec::new();
    for figure in cluster_figures(run) {
        let within = within(&figure, &known, drawn.len(), pools);
        if figure.value.is_none() || is_of_still_pool(&figure, run, &known) {
            continue;
        }
        if within.is_none() {
            without.push(format!("{} {}", figure.metric, figure.stat));
        }
        figures.push(PredictedFigure {
            metric: figure.metric,
            stat: figure.stat,
            predicted: figure.value,
            lo: within.map(|w| w.0),
            hi: within.map(|w| w.1).filter(|hi| hi.is_finite()),
            extrapolated: extrapolated.clone(),
        });
    }
    let mut notes = vec![of_fits(pools, drawn.len())];
    notes.extend(
        pools
            .iter()
            .filter(|p| p.guises.is_none())
            .map(|p| format!("pool {}: {STATED}: no part of the intervals is due to it", p.name)),
    );
    notes.extend(in_draws(run, &known, drawn.len()));
    if let Some(error) = drawn.iter().find_map(|d| d.as_ref().err()) {
        let failed = drawn.len() - known.len();
        notes.push(format!(
            "{failed} of {} draws cannot be run ({error})",
            drawn.len()
        ));
    }
    if !without.is_empty() {
        notes.push(format!(
            "not every draw has a value, so there is no interval: {}",
            without.join(", ")
        ));
    }
    Prediction {
        figures,
        draws: drawn.len(),
        notes,
    }
}

/// A figure of a pool that nothing scales, neither as predicted nor in any draw.
fn is_of_still_pool(figure: &ClusterFigure, run: &StudyRun, known: &[&Draw]) -> bool {
    let Some(pool) = &figure.scales else { return false };
    let decides = |scaled: &[String]| scaled.contains(pool);
    !decides(&scaled_pools(run)) && !known.iter().any(|d| decides(&d.scaled))
}

/// Pools that something scaled.
fn scaled_pools(run: &StudyRun) -> Vec<String> {
    let scaling = run.figures.iter().flat_map(|f| &f.scaling);
    let scaled = scaling.filter(|s| s.scale_ups + s.scale_downs > 0);
    scaled.map(|s| s.pool.clone()).collect()
}

fn within(
    figure: &ClusterFigure,
    known: &[&Draw],
    draws: usize,
    pools: &[PoolGuises<'_>],
) -> Option<(f64, f64)> {
    let value = figure.value?;
    let key = (figure.metric.clone(), figure.stat.clone());
    let found = known.iter().map(|d| d.figures.get(&key).copied().flatten());
    let mut drawn: Vec<f64> = Vec::new();
    for value in found {
        match (value, figure.law) {
            (Some(value), _) => drawn.push(value),
            (None, Law::OpenAbove) => drawn.push(f64::INFINITY),
            // A draw without the figure would be left out of the interval's ends without anybody's noticing.
            (None, _) => return None,
        }
    }
    if drawn.len() < draws {
        return None;
    }
    match figure.law {
        Law::Scatters => {
            let guises = pools.iter().filter_map(|p| p.guises.as_ref());
            let misfit = guises.map(|g| g.misfit(&figure.metric, &figure.stat));
            let misfit = misfit.fold(0.0, f64::max);
            // A count of 0 has no logarithm.
            Some(interval_of_few(value, &drawn, misfit).unwrap_or_else(|| plain_interval(value, &drawn)))
        }
        Law::Plain | Law::OpenAbove => Some(plain_interval(value, &drawn)),
    }
}

fn of_fits(pools: &[PoolGuises<'_>], draws: usize) -> String {
    let mut fits: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for pool in pools.iter().filter(|p| p.guises.is_some()) {
        fits.entry(pool.fit).or_default().push(pool.name);
    }
    let whose: Vec<String> = fits.values().map(|names| names.join(" and ")).collect();
    let how = if fits.len() > 1 {
        "pools of one fit err together, those of different fits independently"
    } else {
        "all pools of one fit err together"
    };
    format!(
        "intervals come from {draws} draws of the fits of {}: {how}",
        whose.join("; ")
    )
}

/// What is not a figure and differs between draws.
fn in_draws(run: &StudyRun, known: &[&Draw], draws: usize) -> Vec<String> {
    let count = |is: fn(&Draw) -> bool| known.iter().filter(|d| is(d)).count();
    let mut notes = Vec::new();
    if let Some(holds) = run.summary.slo.as_ref().and_then(|s| s.holds) {
        let so = if holds { "holds" } else { "does not hold" };
        let n = count(|d| d.holds == Some(true));
        notes.push(format!(
            "the SLO {so} as predicted, and holds in {n} of {draws} draws"
        ));
    }
    let saturated = count(|d| d.saturated);
    if saturated > 0 || run.summary.saturated == Some(true) {
        notes.push(format!(
            "the backlog grows through the run in {saturated} of {draws} draws"
        ));
    }
    let stranded = count(|d| d.stranded);
    if stranded > 0 {
        notes.push(format!(
            "requests are stranded or an engine comes to a livelock in {stranded} of {draws} draws"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_runs_are_repeated_less() {
        assert_eq!(affordable(1), Some(GUISES));
        assert_eq!(affordable(MOST_STEPS / 16), Some(GUISES));
        assert_eq!(affordable(MOST_STEPS / 16 + 1), Some(8));
        assert_eq!(affordable(MOST_STEPS / 8 + 1), None);
    }
}
