//! Intervals of a cluster's figures: the run in every guise of each pool's fit.
//!
//! Guises of one fit go together: a pool that is slower than its fit says is so because fit and machine differ, and they
//! do so for every pool on that fit. Pools on different fits know nothing of each other, so each further fit has its
//! guises in an order of its own. Requests, routers and faults draw the same numbers in every guise.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rand::Rng;
use rayon::prelude::*;

use super::super::guises::{GUISES, Guises, MachineModel};
use super::super::interval::{interval_of_few, plain_interval};
use super::super::watch::Watch;
use super::figures::{ClusterFigure, Law, cluster_figures};
use super::{Draws, FEWEST_DRAWS, PredictedFigure, Prediction, STATED, guises_of, machine};
use crate::explore::study::{Study, StudyError, StudyRun, is_stranded};
use crate::rng::{Purpose, stream};
use crate::scenario::plan::StepTimeSource;
use crate::scenario::{Machine, Plan};

/// Steps that all guises of a run together may take where the number of guises is not asked for: some 20 s of one core.
const MOST_STEPS: u64 = 5_000_000;

/// What a pool runs on in all guises.
struct PoolGuises<'a> {
    name: &'a str,
    /// Of its fit; `None` where its step times are stated.
    guises: Option<Guises>,
    /// Where its fit stands among the cluster's.
    fit: usize,
    watch: Option<Arc<Watch>>,
}

/// What a draw showed.
struct Draw {
    figures: BTreeMap<(String, String), Option<f64>>,
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
    if pools.iter().all(|p| p.guises.is_none()) {
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
    let stated = plan.machines()?;
    watch(plan, &mut pools, &stated)?;
    let others: Vec<Option<Vec<MachineModel>>> = pools
        .iter()
        .map(|pool| Some(others(pool.guises.as_ref()?, pool, asked)))
        .collect();
    let drawn: Vec<Result<Draw, StudyError>> = (0..asked)
        .into_par_iter()
        .map(|draw| {
            let machines = (0..).zip(&others).map(|(number, others)| match others {
                Some(others) => plan.clocked(number, machine(&others[draw], None)),
                None => stated[number].clone(),
            });
            Study::on_all(machines.collect(), plan.clone())
                .run(0)
                .map(Draw::of)
        })
        .collect();
    Ok(told(run, &pools, &drawn))
}

fn pools_of(plan: &Plan) -> Result<Vec<PoolGuises<'_>>, StudyError> {
    let mut fits: Vec<&Path> = Vec::new();
    let served = plan.cluster().map_or(&[][..], |c| c.served_by());
    let pools = served.iter().map(|served| {
        let source = &served.step_time_source;
        let fit = match source {
            StepTimeSource::Fit(path) => fits.iter().position(|f| f == path).unwrap_or_else(|| {
                fits.push(path);
                fits.len() - 1
            }),
            StepTimeSource::Linear(_) => 0,
        };
        Ok(PoolGuises {
            name: &served.name,
            guises: guises_of(source, served.engine.deployment.as_ref(), plan.origin())?,
            fit,
            watch: None,
        })
    });
    pools.collect()
}

/// Runs the best guise of every pool, to see how far each leaves what its fit has seen.
fn watch(plan: &Plan, pools: &mut [PoolGuises<'_>], stated: &[Machine]) -> Result<(), StudyError> {
    let mut machines = Vec::new();
    for (number, pool) in pools.iter_mut().enumerate() {
        pool.watch = pool.guises.as_ref().map(|g| Arc::new(Watch::of(g)));
        machines.push(match (&pool.guises, &pool.watch) {
            (Some(guises), Some(watch)) => plan.clocked(number, machine(&guises.best, Some(watch.clone()))),
            _ => stated[number].clone(),
        });
    }
    Study::on_all(machines, plan.clone()).run(0)?;
    Ok(())
}

/// The guises of a pool in the order of the draws.
fn others(guises: &Guises, pool: &PoolGuises<'_>, n: usize) -> Vec<MachineModel> {
    let reach = pool.watch.as_ref().map_or(0.0, |w| w.reach());
    let models = guises.fewer_at(reach, n);
    let order = order(models.len(), pool.fit);
    order.into_iter().map(|i| models[i].clone()).collect()
}

/// The first fit has its guises as they come, each further one in an order of its own.
fn order(n: usize, fit: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    if fit > 0 {
        let mut rng = stream(1, Purpose::Noise, fit as u64);
        for last in (1..n).rev() {
            order.swap(last, (rng.next_u64() % (last as u64 + 1)) as usize);
        }
    }
    order
}

impl Draw {
    fn of(run: StudyRun) -> Self {
        let figures = cluster_figures(&run).into_iter();
        Self {
            figures: figures.map(|f| ((f.metric, f.stat), f.value)).collect(),
            holds: run.summary.slo.as_ref().and_then(|s| s.holds),
            saturated: run.summary.saturated == Some(true),
            stranded: is_stranded(run.cluster.as_ref()) || !run.summary.livelocks.is_empty(),
        }
    }
}

/// The figures with their intervals, and what there is to say of them.
fn told(run: &StudyRun, pools: &[PoolGuises<'_>], drawn: &[Result<Draw, StudyError>]) -> Prediction {
    let known: Vec<&Draw> = drawn.iter().filter_map(|d| d.as_ref().ok()).collect();
    let extrapolated = extrapolated(pools);
    let mut without = Vec::new();
    let mut figures = Vec::new();
    for figure in cluster_figures(run) {
        let within = within(&figure, &known, drawn.len(), pools);
        if is_fixed(&figure, within) {
            continue;
        }
        if figure.value.is_some() && within.is_none() {
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

/// A figure of a pool that nothing scales, or of a fault that nobody notices, whatever the draw.
fn is_fixed(figure: &ClusterFigure, within: Option<(f64, f64)>) -> bool {
    let is_one_value = |(lo, hi): (f64, f64)| (hi - lo).abs() <= 0.0;
    figure.metric.contains('[') && (figure.value.is_none() || within.is_some_and(is_one_value))
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
            interval_of_few(value, &drawn, misfit.fold(0.0, f64::max))
        }
        Law::Plain | Law::OpenAbove => Some(plain_interval(value, &drawn)),
    }
}

/// `POOL: matter`, for what a pool's batches or its deployment leave of what its fit has seen.
fn extrapolated(pools: &[PoolGuises<'_>]) -> Vec<String> {
    let of_pool = |pool: &PoolGuises<'_>| {
        let axes = pool.watch.as_ref().map_or_else(Vec::new, |w| w.left());
        let beyond = pool.guises.iter().flat_map(|g| g.beyond.iter().cloned());
        let all: Vec<String> = axes.into_iter().chain(beyond).collect();
        let name = pool.name.to_owned();
        all.into_iter().map(move |matter| format!("{name}: {matter}"))
    };
    pools.iter().flat_map(of_pool).collect()
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
    fn each_further_fit_has_its_guises_in_another_order() {
        let of = |fit| order(GUISES, fit);
        assert_eq!(of(0), (0..GUISES).collect::<Vec<_>>());
        for fit in 1..4 {
            let mut sorted = of(fit);
            assert_ne!(sorted, of(0));
            assert_ne!(sorted, of(fit + 1));
            sorted.sort_unstable();
            assert_eq!(sorted, of(0), "each guise is there once");
        }
    }

    #[test]
    fn large_runs_are_repeated_less() {
        assert_eq!(affordable(1), Some(GUISES));
        assert_eq!(affordable(MOST_STEPS / 16), Some(GUISES));
        assert_eq!(affordable(MOST_STEPS / 16 + 1), Some(8));
        assert_eq!(affordable(MOST_STEPS / 8 + 1), None);
    }
}
