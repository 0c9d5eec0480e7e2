//! Predicted beside actual: a capture's own arrivals and knobs, simulated.

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guises::{Guises, MachineModel};
use super::interval::interval;
use super::watch::{Scaled, Watch};
use crate::calibrate::actual::{record_of, summary_options};
use crate::calibrate::observed_capture::load_of;
use crate::calibrate::repeats::{Figure, figures};
use crate::calibrate::stalls::is_stalled;
use crate::calibrate::{Capture, CaptureMode};
use crate::input::InputError;
use crate::metric::summary::Summary;
use crate::record::{RunRecord, Status};
use crate::sim::{SimError, Stall, WorldConfig, run};
use crate::steptime::StepTime;
use crate::steptime::fit_file::RepeatSpread;
use crate::units::{SimDuration, SimTime};

/// Why a capture cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// The capture cannot be read or used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The simulated run cannot go on.
    #[error(transparent)]
    Sim(#[from] SimError),
}

/// One figure, predicted beside actual.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FigureComparison {
    /// Name with its unit, as `ttft_s`.
    pub metric: String,
    /// `mean`, `p50`, `p90`, `p99`, or `value` for single figures.
    pub stat: String,
    /// Measured; null where there is no sample.
    pub actual: Option<f64>,
    /// Simulated; null where there is no sample.
    pub predicted: Option<f64>,
    /// (predicted - actual) / actual; null where the actual figure is 0 or absent.
    pub rel_error: Option<f64>,
    /// Samples behind the actual figure; null for single figures.
    pub n: Option<u64>,
    /// Relative spread of this figure between real repeats of one trace, where the fit has seen repeats.
    pub repeat_spread: Option<f64>,
    /// Lower end of the 90 % interval of the prediction; null where it cannot be told.
    pub lo: Option<f64>,
    /// Upper end.
    pub hi: Option<f64>,
    /// Axes on which the run leaves what the fit has seen; empty inside.
    pub extrapolated: Vec<String>,
    /// Smallest and largest value of the figure with all step times 3 % shorter, as they are, and 3 % longer.
    pub step_time_band: Option<[f64; 2]>,
}

impl FigureComparison {
    /// The actual figure lies between those of a 3 % step-time error; `None` where one is missing.
    pub fn in_band(&self) -> Option<bool> {
        let ([lo, hi], actual) = (self.step_time_band?, self.actual?);
        Some((lo..=hi).contains(&actual))
    }

    /// The actual figure lies in the 90 % interval; `None` where one is missing.
    pub fn in_interval(&self) -> Option<bool> {
        let (lo, hi, actual) = (self.lo?, self.hi?, self.actual?);
        Some((lo..=hi).contains(&actual))
    }

    /// Error and spread, when the error exceeds 1.5 times what real repeats differ by.
    pub fn beyond_repeats(&self) -> Option<(f64, f64)> {
        self.rel_error
            .zip(self.repeat_spread)
            .filter(|(error, spread)| error.abs() > 1.5 * spread)
    }
}

/// One capture, predicted beside actual.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureComparison {
    /// Last two parts of the capture's path.
    pub name: String,
    /// Requests offered.
    pub requests: u64,
    /// The fit was made from this run: how well it is met says nothing of others.
    #[serde(default)]
    pub fitted: bool,
    /// Every compared figure.
    pub metrics: Vec<FigureComparison>,
    /// The measured backlog grew through the run: latencies depend on its length, and a small step-time error
    /// is multiplied. Judge throughput and run length, and whether the latencies lie in the band.
    pub saturated: Option<bool>,
    /// Measured over predicted time of the recorded batches, stalls left out: how fast the machine was.
    pub machine_speed: Option<f64>,
    /// Steps that the machine stalled.
    pub stalled_steps: u64,
    /// Time lost in them, in seconds.
    pub stalled_s: f64,
    /// What the capture does not say and was assumed.
    #[serde(default)]
    pub assumptions: Vec<String>,
    /// Figures beyond 1.5 times the repeats' spread.
    pub beyond_repeats: Vec<BeyondRepeats>,
}

/// A figure whose error exceeds 1.5 times what real repeats of one trace differ by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BeyondRepeats {
    /// Name with its unit.
    pub metric: String,
    /// Which statistic.
    pub stat: String,
    /// (predicted - actual) / actual.
    pub rel_error: f64,
    /// Relative spread of the repeats.
    pub repeat_spread: f64,
    /// The most likely of the causes that can be told from the run.
    pub likely_cause: String,
}

/// What `compare --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompareReport {
    /// Captures in the order given.
    pub captures: Vec<CaptureComparison>,
    /// Captures that were left out, with the reason.
    pub skipped: Vec<Skipped>,
}

/// A capture that was not compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Skipped {
    /// Which.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// Why a capture is skipped: without arrivals of its own it has nothing to be simulated.
pub fn reason_to_skip(capture: &Capture) -> Option<&'static str> {
    (capture.manifest.mode == CaptureMode::Batch)
        .then_some("mode batch: groups are added to an idle engine, there are no arrivals to simulate")
}

/// Where in its accounting period the machine stood when the run began is not known: the run is simulated at this
/// many evenly spread phases.
const PHASES: u64 = 8;

/// Half width of the step-time band.
const BAND: f64 = 0.03;

/// Simulates the capture's own arrivals and knobs and lays the figures side by side.
///
/// # Errors
/// [`CompareError`] when the capture is inconsistent or the simulation cannot go on.
pub fn compare(
    capture: &Capture,
    guises: &Guises,
    repeats: &[RepeatSpread],
) -> Result<CaptureComparison, CompareError> {
    let model = &guises.best;
    let actual_run = record_of(capture)?;
    let actual = Summary::of(&actual_run, &summary_options(capture)?);
    let predicted = predict(capture, model, 1.0)?;
    let (fast, slow) = (
        predict(capture, model, 1.0 - BAND)?,
        predict(capture, model, 1.0 + BAND)?,
    );
    let (extrapolated, reach) = extrapolated(capture, guises)?;
    let others = guises
        .others_at(reach)
        .par_iter()
        .enumerate()
        .map(|(index, other)| play(capture, other, index as u64 % PHASES, 1.0, None))
        .collect::<Result<Vec<_>, _>>()?;
    let metrics: Vec<FigureComparison> = figures(&actual)
        .into_iter()
        .zip(predicted)
        .enumerate()
        .map(|(i, (a, p))| {
            // Without the engine's steps nobody counted what happened inside.
            let inside = matches!(a.metric, "preemptions" | "cached_tokens");
            let a = Figure {
                value: a.value.filter(|_| !inside || capture.has_steps()),
                ..a
            };
            let drawn: Vec<f64> = others.iter().filter_map(|o| o[i].value).collect();
            let within = p
                .value
                .and_then(|v| interval(v, &drawn, guises.misfit(a.metric, a.stat)));
            FigureComparison {
                rel_error: relative_error(p.value, a.value),
                repeat_spread: repeats
                    .iter()
                    .find(|r| r.metric == a.metric && r.stat == a.stat)
                    .map(|r| r.spread),
                lo: within.map(|w| w.0),
                hi: within.map(|w| w.1),
                extrapolated: extrapolated.clone(),
                step_time_band: band([fast[i].value, p.value, slow[i].value]),
                metric: a.metric.to_owned(),
                stat: a.stat.to_owned(),
                actual: a.value,
                predicted: p.value,
                n: a.n,
            }
        })
        .collect();
    let mut comparison = CaptureComparison {
        name: capture.name.clone(),
        requests: actual.funnel.offered,
        fitted: guises.fitted,
        metrics,
        saturated: actual.saturated,
        machine_speed: machine_speed(capture, model.step_time.as_ref()),
        stalled_steps: capture.steps.iter().filter(|s| is_stalled(s)).count() as u64,
        stalled_s: capture
            .steps
            .iter()
            .filter(|s| is_stalled(s))
            .map(|s| s.off_cpu_s())
            .sum(),
        assumptions: capture.assumptions.clone(),
        beyond_repeats: Vec::new(),
    };
    comparison.beyond_repeats = comparison
        .metrics
        .iter()
        .filter_map(|m| describe_beyond(m, &comparison))
        .collect();
    Ok(comparison)
}

/// The figures of the simulated run. Where the machine stalls, the run is played at several phases of its
/// accounting period, and each figure is the mean of what the plays show: the value to be expected of one run.
/// Pooling the plays would lay a p99 of eight times as many requests beside the measured one, which is another
/// statistic: with few requests the p99 of one run lies lower.
fn predict(capture: &Capture, model: &MachineModel, factor: f64) -> Result<Vec<Figure>, CompareError> {
    let phases = if model.stall.is_some() { PHASES } else { 1 };
    let plays = (0..phases)
        .map(|k| play(capture, model, k, factor, None))
        .collect::<Result<Vec<_>, _>>()?;
    let mean = |i: usize| {
        let values: Option<Vec<f64>> = plays.iter().map(|figures| figures[i].value).collect();
        values.map(|v| v.iter().sum::<f64>() / v.len() as f64)
    };
    Ok(plays[0]
        .iter()
        .enumerate()
        .map(|(i, figure)| Figure {
            value: mean(i),
            ..*figure
        })
        .collect())
}

/// The figures of one play, at one of the phases where the machine stalls.
fn play(
    capture: &Capture,
    model: &MachineModel,
    phase: u64,
    factor: f64,
    watch: Option<&Watch>,
) -> Result<Vec<Figure>, CompareError> {
    let stall = model.stall.map(|s| Stall {
        phase: SimDuration(s.period.0 / PHASES * phase),
        ..s
    });
    let record = simulate(capture, model, stall, factor, watch)?;
    Ok(figures(&Summary::of(&record, &summary_options(capture)?)))
}

/// Axes on which the run leaves what the fit has seen, and how far.
fn extrapolated(capture: &Capture, guises: &Guises) -> Result<(Vec<String>, f64), CompareError> {
    let watch = Watch::of(guises);
    let run = simulate(capture, &guises.best, guises.best.stall, 1.0, Some(&watch))?;
    if run.requests.iter().all(|r| r.status == Status::Rejected) {
        return Err(InputError::in_file(
            &capture.folder,
            "no request can be served under the knobs of the manifest",
        )
        .at("engine_effective")
        .allowed("max_model_len, num_gpu_blocks and max_num_batched_tokens that hold the requests")
        .into());
    }
    let mut axes = watch.left();
    axes.extend(guises.beyond.iter().cloned());
    Ok((axes, watch.reach()))
}

/// The capture's arrivals on the capture's engine, with `stall` and with all step times multiplied by `factor`.
///
/// # Errors
/// [`CompareError`] as [`compare`].
fn simulate(
    capture: &Capture,
    model: &MachineModel,
    stall: Option<Stall>,
    factor: f64,
    watch: Option<&Watch>,
) -> Result<RunRecord, CompareError> {
    let deadline = if capture.manifest.truncated {
        let end = SimTime::try_from_secs_f64(capture.manifest.duration_s)
            .map_err(|e| InputError::in_file(&capture.folder, e.to_string()).at("duration_s"))?;
        Some(end)
    } else {
        None
    };
    let config = WorldConfig {
        engine: capture.engine_config()?,
        replicas: 1,
        load: load_of(capture),
        host: model.host,
        front_end: model.front_end,
        stall,
        deadline,
    };
    let scaled = Scaled {
        inner: model.step_time.as_ref(),
        factor: factor * model.speed,
        watch,
    };
    Ok(run(&config, &scaled, &capture.trace()?)?)
}

/// Smallest and largest of the values; `None` where one is missing.
fn band(values: [Option<f64>; 3]) -> Option<[f64; 2]> {
    let [a, b, c] = values;
    let all = [a?, b?, c?];
    Some(
        all.iter()
            .fold([f64::INFINITY, f64::NEG_INFINITY], |[lo, hi], &v| {
                [lo.min(v), hi.max(v)]
            }),
    )
}

fn relative_error(predicted: Option<f64>, actual: Option<f64>) -> Option<f64> {
    let (p, a) = (predicted?, actual?);
    (a.abs() > 0.0).then(|| (p - a) / a)
}

/// Measured over predicted time of the batches that the engine really ran, stalled steps left out.
fn machine_speed(capture: &Capture, step_time: &dyn StepTime) -> Option<f64> {
    let (mut measured, mut predicted) = (0.0, 0.0);
    for step in capture
        .steps
        .iter()
        .filter(|s| !s.batch.is_empty() && !is_stalled(s))
    {
        measured += step.duration_s();
        predicted += step_time.duration(&step.batch).as_secs_f64();
    }
    (predicted > 0.0).then(|| measured / predicted)
}

/// A figure beyond the repeats' spread, with the most likely of the causes that can be told from the run.
fn describe_beyond(figure: &FigureComparison, run: &CaptureComparison) -> Option<BeyondRepeats> {
    let (rel_error, repeat_spread) = figure.beyond_repeats()?;
    let slower = run.machine_speed.map_or(0.0, |s| s - 1.0);
    let tail = matches!(figure.stat.as_str(), "p90" | "p99");
    let latency = figure.n.is_some() && figure.metric != "step_duration_s";
    let likely_cause = if latency && run.saturated == Some(true) && figure.in_band() == Some(true) {
        "the run is saturated, and the figure lies in the band of a 3 % step-time error".to_owned()
    } else if slower.abs() > 0.02 {
        format!(
            "the machine's steps took {:.1} % {} than the fit says in this run",
            100.0 * slower.abs(),
            if slower > 0.0 { "longer" } else { "less" }
        )
    } else if latency && figure.in_band() == Some(true) {
        "the figure lies in the band of a 3 % step-time error".to_owned()
    } else if tail && figure.n.is_some_and(|n| n < 100) {
        format!(
            "a tail of {} samples rests on one or two requests",
            figure.n.unwrap_or_default()
        )
    } else if run.stalled_s > 0.0 && tail {
        format!(
            "{} machine stalls ({:.2} s in all) hit single steps at random",
            run.stalled_steps, run.stalled_s
        )
    } else {
        "not explained by speed, saturation, sample size or stalls".to_owned()
    };
    Some(BeyondRepeats {
        metric: figure.metric.clone(),
        stat: figure.stat.clone(),
        rel_error,
        repeat_spread,
        likely_cause,
    })
}
