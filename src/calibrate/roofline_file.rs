//! The fit file out of a fit to runs: what is known of each parameter, what predictions miss by, where it holds.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::bootstrap::student;
use super::bootstrap::{self, scatter_of};
use super::fit_runs::{Priors, RunFigure, RunFit};
use super::observed::{Figure, Metric, ObservedError, ObservedRun, Stat};
use super::robust::median;
use crate::steptime::fit_parts::{
    Correlation, FitData, FitError, FitRange, FittedParameter, Misfit, SpeaksFor,
};
use crate::steptime::hull::Hull;
use crate::steptime::parameters::{Param, Parameters, SPECS};
use crate::steptime::roofline_fit::{Door, Form, ROOFLINE_FIT_FORMAT, RooflineFit};
use crate::steptime::{BatchShape, Deployment, Roofline, StepTime};
use crate::units::SimDuration;
use crate::workload::trace::TraceRequest;

/// A parameter whose spread the data shrink to less than this share of the prior's is identified.
const IDENTIFIED_BELOW: f64 = 0.7;
/// Correlations below this are left out of the file.
const NOTEWORTHY: f64 = 0.3;
/// Relative error of the speed of a run's steps where nothing was held out that would tell it.
pub(super) const UNTESTED_SPEED: f64 = 0.06;
/// Least scatter that is claimed for the speed of a run, and for a latency beside it.
pub(super) const LEAST_SPEED: f64 = 0.008;
const LEAST_LATENCY: f64 = 0.01;
/// Spread of a parameter from device to device, as kernels of five of them show it (docs/CALIBRATION.md).
const OTHER_DEVICE: f64 = 0.15;
/// A prior is never surer than this.
const LEAST_PRIOR_SD: f64 = 0.02;
/// What a model, and a device, that the fit has not seen add to the error of the speed, where nothing tells it.
pub(super) const NEW_MODEL: f64 = 0.06;

/// What a fit is named and made by.
#[derive(Debug, Clone, PartialEq)]
pub struct FitHead {
    /// Its name.
    pub name: String,
    /// From what it was fitted.
    pub door: Door,
    /// The command that makes it.
    pub command: String,
    /// The runs' files.
    pub data: Vec<FitData>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// Engines as `vllm 0.15.1`.
    pub engines: Vec<String>,
}

/// The file of a fit.
///
/// # Errors
/// [`ObservedError`] when a run cannot be simulated under the fitted parameters.
pub fn roofline_file(
    head: FitHead,
    runs: &[ObservedRun],
    priors: &Priors,
    fit: &RunFit,
) -> Result<RooflineFit, ObservedError> {
    let mut notes = head.notes;
    notes.extend(thin(runs, fit));
    Ok(RooflineFit {
        kneeboard_fit: ROOFLINE_FIT_FORMAT,
        form: Form::Roofline,
        name: head.name,
        fitted_with: format!("kneeboard {}", env!("CARGO_PKG_VERSION")),
        door: head.door,
        command: head.command,
        speaks_for: speaks_for(runs.iter().map(|r| &r.deployment), head.engines),
        parameters: parameters(priors, fit),
        correlation: correlation(fit),
        draws: fit.draws.iter().map(|d| d.0.to_vec()).collect(),
        misfit: misfit(runs, fit),
        hull: hull(runs, &fit.parameters)?,
        residuals: residuals(runs, &fit.fitted),
        held_out: fit
            .left_out
            .iter()
            .flat_map(|l| errors(&l.what, runs, &l.figures))
            .collect(),
        data: head.data,
        notes,
    })
}

pub(super) fn parameters(priors: &Priors, fit: &RunFit) -> Vec<FittedParameter> {
    SPECS
        .iter()
        .map(|spec| {
            let prior_log_sd = priors.log_sd[spec.param as usize];
            let column = fit.responsive.iter().position(|p| *p == spec.param);
            let linear = column.map_or(prior_log_sd, |j| fit.posterior.covariance[[j, j]].max(0.0).sqrt());
            let value = fit.parameters[spec.param];
            let drawn = fit.draws.iter().map(|d| d[spec.param].ln());
            let spread = bootstrap::log_sd(drawn, value.ln(), linear, prior_log_sd);
            let (low, high) = bootstrap::interval_90(value.ln(), spread);
            let bounded = |v: f64| v.clamp(spec.bounds.0, spec.bounds.1);
            FittedParameter {
                name: spec.name.to_owned(),
                value,
                unit: spec.unit.to_owned(),
                log_sd: spread,
                interval_90: (bounded(low), bounded(high)),
                prior: priors.values[spec.param],
                prior_log_sd,
                identified: column.is_some() && spread < IDENTIFIED_BELOW * prior_log_sd,
            }
        })
        .collect()
}

pub(super) fn correlation(fit: &RunFit) -> Vec<Correlation> {
    let c = &fit.posterior.covariance;
    let mut out = Vec::new();
    for (i, a) in fit.responsive.iter().enumerate() {
        for (j, b) in fit.responsive.iter().enumerate().skip(i + 1) {
            let r = c[[i, j]] / (c[[i, i]] * c[[j, j]]).sqrt();
            if r.is_finite() && r.abs() >= NOTEWORTHY {
                out.push(Correlation {
                    a: a.spec().name.to_owned(),
                    b: b.spec().name.to_owned(),
                    r: (r * 1e3).round() / 1e3,
                });
            }
        }
    }
    out
}

/// Name and statistic of a figure in files.
pub fn figure_names(figure: Figure) -> (&'static str, String) {
    let metric = match figure.metric {
        Metric::Ttft => "ttft_s",
        Metric::Tpot => "tpot_s",
        Metric::E2e => "e2e_s",
        Metric::OutputThroughput => "output_throughput_tok_s",
    };
    let stat = match figure.stat {
        Stat::Mean => "mean".to_owned(),
        Stat::Value => "value".to_owned(),
        Stat::Quantile(q) => format!("p{}", (q * 100.0).round()),
    };
    (metric, stat)
}

fn errors(of: &str, runs: &[ObservedRun], figures: &[RunFigure]) -> Vec<FitError> {
    figures
        .iter()
        .map(|f| {
            let run = &runs[f.run];
            let o = run.observations[f.observation];
            let (metric, stat) = figure_names(o.figure);
            FitError {
                of: of.to_owned(),
                run: run.name.clone(),
                metric: metric.to_owned(),
                stat,
                actual: Some(o.value),
                predicted: Some(f.predicted),
                rel_error: f.predicted / o.value - 1.0,
                interval_90: None,
                n: run.counted.iter().filter(|c| **c).count() as u32,
            }
        })
        .collect()
}

/// Errors of the fitted figures, one by one, and their median by figure.
fn residuals(runs: &[ObservedRun], figures: &[RunFigure]) -> Vec<FitError> {
    let single = errors("fitted", runs, figures);
    let kinds: BTreeSet<(String, String)> = single
        .iter()
        .map(|e| (e.metric.clone(), e.stat.clone()))
        .collect();
    let mut out: Vec<FitError> = kinds
        .into_iter()
        .map(|(metric, stat)| {
            let e: Vec<f64> = single
                .iter()
                .filter(|e| e.metric == metric && e.stat == stat)
                .map(|e| e.rel_error)
                .collect();
            FitError {
                of: "fitted".into(),
                run: "all".into(),
                rel_error: median(&e).unwrap_or(0.0),
                n: e.len() as u32,
                metric,
                stat,
                actual: None,
                predicted: None,
                interval_90: None,
            }
        })
        .collect();
    out.extend(single);
    out
}

/// What predictions of runs that were left out miss by: the speed of the steps as TPOT tells it, for seen and for
/// unseen models, and each latency beside it.
fn misfit(runs: &[ObservedRun], fit: &RunFit) -> Vec<Misfit> {
    let mut out = Vec::new();
    let left_out = |kind: &str| -> Vec<&RunFigure> {
        fit.left_out
            .iter()
            .filter(|l| l.what.starts_with(kind))
            .flat_map(|l| &l.figures)
            .collect()
    };
    let single = left_out("run ");
    let speed: Vec<f64> = single.iter().filter_map(|f| speed_error(runs, f)).collect();
    // What the fit misses of its own data it will miss of others'; and repeats of one condition tell nothing of others.
    let own: Vec<f64> = fit.fitted.iter().filter_map(|f| speed_error(runs, f)).collect();
    let known = scatter_of(&speed)
        .max(if own.is_empty() { 0.0 } else { scatter_of(&own) })
        .max(LEAST_SPEED);
    let known = if speed.is_empty() || conditions(runs) < FEW_CONDITIONS {
        known.max(UNTESTED_SPEED)
    } else {
        known
    };
    push(&mut out, "step", "run", known, speed.len());
    let deployments: Vec<&Deployment> = runs.iter().map(|r| &r.deployment).collect();
    let unseen: Vec<f64> = fit
        .left_out
        .iter()
        .flat_map(|l| l.figures.iter().map(|f| (l.what.as_str(), f)))
        .filter(|(what, f)| leaves_model_out(what, f.run, &deployments))
        .filter_map(|(_, f)| speed_error(runs, f))
        .collect();
    let new_model = if unseen.is_empty() {
        known.hypot(NEW_MODEL)
    } else {
        // The errors of one model go together: models, not runs, are what there are so many of.
        let models: BTreeSet<&str> = runs.iter().map(|r| r.deployment.model.name.as_str()).collect();
        (scatter_of(&unseen) * student(models.len()) / student(unseen.len())).max(known)
    };
    push(&mut out, "step", "new_model", new_model, unseen.len());
    let mut kinds: Vec<Figure> = Vec::new();
    for o in runs.iter().flat_map(|r| &r.observations) {
        if !kinds.contains(&o.figure) && o.figure.metric != Metric::Tpot {
            kinds.push(o.figure);
        }
    }
    for kind in kinds {
        // The error beside that of the run's speed, which the simulation carries into every latency by itself.
        let beside: Vec<f64> = single
            .iter()
            .filter(|f| runs[f.run].observations[f.observation].figure == kind)
            .map(|f| {
                let own = log_error(runs, f);
                let speed = single
                    .iter()
                    .filter(|s| s.run == f.run)
                    .find_map(|s| speed_error(runs, s));
                own - speed.unwrap_or(0.0)
            })
            .collect();
        let (metric, stat) = figure_names(kind);
        let sd = if beside.is_empty() {
            if kind.metric == Metric::Ttft { 0.15 } else { 0.05 }
        } else {
            scatter_of(&beside).max(LEAST_LATENCY)
        };
        push(&mut out, metric, &stat, sd, beside.len());
    }
    out
}

/// Whether a fit without `what`, which includes run `index`, had not seen that run's model: all runs of the model
/// were left out, or its only one was.
pub(super) fn leaves_model_out(what: &str, index: usize, deployments: &[&Deployment]) -> bool {
    let model = &deployments[index].model.name;
    let same = deployments.iter().filter(|d| d.model.name == *model).count();
    what.starts_with("model ") || (what.starts_with("run ") && same == 1 && deployments.len() > 1)
}

pub(super) fn push(out: &mut Vec<Misfit>, metric: &str, stat: &str, log_sd: f64, n: usize) {
    out.push(Misfit {
        metric: metric.to_owned(),
        stat: stat.to_owned(),
        log_sd,
        n: n as u32,
    });
}

fn log_error(runs: &[ObservedRun], f: &RunFigure) -> f64 {
    (f.predicted / runs[f.run].observations[f.observation].value).ln()
}

fn speed_error(runs: &[ObservedRun], f: &RunFigure) -> Option<f64> {
    let figure = runs[f.run].observations[f.observation].figure;
    (figure.metric == Metric::Tpot)
        .then(|| log_error(runs, f))
        .filter(|e| e.is_finite())
}

/// What too few runs leave open, and what no run responds to.
fn thin(runs: &[ObservedRun], fit: &RunFit) -> Vec<String> {
    let mut out = thin_runs(conditions(runs), runs.iter().map(|r| &r.deployment));
    out.extend(missed(runs, fit));
    let stuck: Vec<&str> = fit
        .responsive
        .iter()
        .filter(|p| at_bound(**p, fit.parameters[**p]))
        .map(|p| p.spec().name)
        .collect();
    if !stuck.is_empty() {
        out.push(format!(
            "{} ended at the bound of what is believed: the data may be in another unit, or the machine is not what \
             the profiles say",
            stuck.join(", ")
        ));
    }
    let open: Vec<&str> = SPECS
        .iter()
        .filter(|s| !fit.responsive.contains(&s.param))
        .map(|s| s.name)
        .collect();
    if !open.is_empty() {
        out.push(format!(
            "no run responds to {}: they stand at their priors",
            open.join(", ")
        ));
    }
    out
}

/// A parameter stands at one of its bounds.
fn at_bound(param: Param, value: f64) -> bool {
    let (low, high) = param.spec().bounds;
    value <= low * 1.001 || value >= high * 0.999
}

/// Figures of the fitted data that are missed by more than half, if there are any.
fn missed(runs: &[ObservedRun], fit: &RunFit) -> Vec<String> {
    fit.fitted
        .iter()
        .filter(|f| log_error(runs, f).abs() > 0.5)
        .map(|f| {
            let o = runs[f.run].observations[f.observation];
            let (metric, stat) = figure_names(o.figure);
            format!(
                "{}: {metric} {stat} is {:.4} and the fit makes it {:.4}: check its unit and knobs, and do not trust \
                 this fit before",
                runs[f.run].name, o.value, f.predicted
            )
        })
        .collect()
}

/// Fewer conditions than this tell hardly anything of how runs differ.
const FEW_CONDITIONS: usize = 3;

/// Conditions among the runs: deployments, loads and lengths that differ by more than a few percent.
fn conditions(runs: &[ObservedRun]) -> usize {
    let near = |x: f64| (20.0 * x.max(1e-9).ln()).round() as i64;
    let set: BTreeSet<String> = runs
        .iter()
        .map(|r| {
            let n = r.trace.requests.len().max(1) as f64;
            let mean = |f: fn(&TraceRequest) -> u32| {
                r.trace.requests.iter().map(|q| f64::from(f(q))).sum::<f64>() / n
            };
            let last = r
                .trace
                .requests
                .iter()
                .map(|q| q.arrival)
                .max()
                .unwrap_or_default();
            let d = &r.deployment;
            format!(
                "{} {} {} {} {} {} {:?} {} {} {}",
                d.model.name,
                d.accelerator.name,
                d.dtype,
                d.tp,
                d.pp,
                d.ep,
                r.load,
                near(n / last.as_secs_f64().max(1e-6)),
                near(mean(|q| q.input_tokens)),
                near(mean(|q| q.max_output_tokens)),
            )
        })
        .collect();
    set.len()
}

/// What too few runs, of these deployments, leave open.
pub(super) fn thin_runs<'a>(conditions: usize, runs: impl Iterator<Item = &'a Deployment>) -> Vec<String> {
    let models: Vec<&str> = runs.map(|d| d.model.name.as_str()).collect();
    let mut out = Vec::new();
    if conditions < FEW_CONDITIONS {
        out.push(format!(
            "only {} run(s) that differ: hardly anything tells how runs differ; the speed of steps is \
             taken to be wrong by at least {:.0} % (one standard deviation)",
            conditions,
            100.0 * UNTESTED_SPEED
        ));
    }
    if models.iter().collect::<BTreeSet<_>>().len() < 2 {
        out.push(format!(
            "only one model: another is expected to miss by a further {:.0} %, which is a guess",
            100.0 * NEW_MODEL
        ));
    }
    out
}

/// For whom runs of these deployments speak.
pub(super) fn speaks_for<'a>(
    runs: impl Iterator<Item = &'a Deployment> + Clone,
    engines: Vec<String>,
) -> SpeaksFor {
    let unique = |key: fn(&Deployment) -> String| -> Vec<String> {
        let set: BTreeSet<String> = runs.clone().map(key).collect();
        set.into_iter().collect()
    };
    SpeaksFor {
        accelerators: unique(|d| d.accelerator.name.clone()),
        dtypes: unique(|d| d.dtype.name().to_owned()),
        kv_dtypes: unique(|d| d.kv_dtype.name().to_owned()),
        engines,
        models: unique(|d| d.model.name.clone()),
    }
}

/// Ranges of how the deployments were split.
pub(super) fn deployment_ranges<'a>(runs: impl Iterator<Item = &'a Deployment> + Clone) -> [FitRange; 3] {
    type Ranks = fn(&Deployment) -> u32;
    let axes: [(&str, Ranks); 3] = [("tp", |d| d.tp), ("pp", |d| d.pp), ("ep", |d| d.ep)];
    axes.map(|(axis, value)| {
        let values = runs.clone().map(|d| f64::from(value(d)));
        FitRange {
            axis: axis.to_owned(),
            low: values.clone().fold(f64::INFINITY, f64::min),
            high: values.fold(0.0, f64::max),
        }
    })
}

/// Passes durations on and keeps the batches of steps from number `from` on.
struct Watching {
    inner: Roofline,
    from: usize,
    seen: Mutex<(usize, Vec<BatchShape>)>,
}

/// One in so many steps shows the ranges as well as all do.
const WATCHED_EVERY: usize = 7;

impl std::fmt::Debug for Watching {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watching")
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

impl StepTime for Watching {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        self.inner.duration(batch)
    }

    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        self.inner.durations(batch, out);
    }

    fn wrapped(&self) -> Option<&dyn StepTime> {
        Some(&self.inner)
    }

    fn observe(&self, batch: &BatchShape, steps: u32) {
        if let Ok(mut seen) = self.seen.lock() {
            for step in 0..steps {
                seen.0 += 1;
                if seen.0 > self.from && seen.0 % WATCHED_EVERY == 0 {
                    let mut batch = batch.clone();
                    batch.advance(step);
                    seen.1.push(batch);
                }
            }
        }
        self.inner.observe(batch, steps);
    }
}

/// Ranges of batches while requests counted, and of the deployments.
fn hull(runs: &[ObservedRun], parameters: &Parameters) -> Result<Vec<FitRange>, ObservedError> {
    let mut batches = Vec::new();
    for run in runs {
        let record = run.simulate(parameters)?;
        let first = run
            .trace
            .requests
            .iter()
            .zip(&run.counted)
            .find(|(_, counts)| **counts)
            .map(|(r, _)| r.arrival);
        let starts = &record.replicas[0].step_starts;
        let from = starts.partition_point(|s| Some(*s) < first);
        let watching = Watching {
            inner: Roofline::new(run.deployment.clone(), *parameters)?,
            from,
            seen: Mutex::new((0, Vec::new())),
        };
        run.simulate_with(&watching, run.front_end(parameters))?;
        batches.extend(watching.seen.into_inner().map(|s| s.1).unwrap_or_default());
    }
    let mut out: Vec<FitRange> = Hull::of(&batches)
        .ranges
        .into_iter()
        .map(|r| FitRange {
            axis: r.axis,
            low: r.low,
            high: r.high,
        })
        .collect();
    out.extend(deployment_ranges(runs.iter().map(|r| &r.deployment)));
    Ok(out)
}

/// What fits tell of parameters before runs on `accelerators` are looked at: of each parameter the first fit that identified it, with
/// its spread, wider where the fit speaks for other accelerators; the general prior where none did.
pub fn priors_of(fits: &[RooflineFit], accelerators: &BTreeSet<String>) -> Priors {
    let mut priors = Priors::default();
    for spec in &SPECS {
        let known = fits.iter().find_map(|fit| {
            let p = fit.parameters.iter().find(|p| p.name == spec.name)?;
            p.identified.then_some((fit, p))
        });
        let Some((fit, p)) = known else { continue };
        let own = accelerators
            .iter()
            .all(|name| fit.speaks_for.accelerators.contains(name));
        let wider = if own { 0.0 } else { OTHER_DEVICE };
        priors.values[spec.param] = p.value;
        priors.log_sd[spec.param as usize] = p.log_sd.hypot(wider).max(LEAST_PRIOR_SD);
    }
    priors
}
