//! A measured run without steps: what was offered to which system, and figures of what its clients saw.

use crate::engine::vllm::VllmConfig;
use crate::record::{RequestRecord, RunRecord, Status};
use crate::scenario::machine::front_end;
use crate::sim::{FrontEnd, HostTimes, LoadModel, SimError, WorldConfig, run};
use crate::steptime::roofline::MissingFigure;
use crate::steptime::{Deployment, Parameters, Roofline, StepTime};
use crate::units::SimTime;
use crate::workload::trace::Trace;

/// What is measured of a request or a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Time to first token.
    Ttft,
    /// Time per output token after the first.
    Tpot,
    /// End-to-end time.
    E2e,
    /// Output tokens a second of wall clock, over the whole run.
    OutputThroughput,
}

/// Which figure of a distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stat {
    /// Arithmetic mean.
    Mean,
    /// A quantile, 0 to 1.
    Quantile(f64),
    /// A single figure.
    Value,
}

/// A figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Of what.
    pub metric: Metric,
    /// Which.
    pub stat: Stat,
}

/// A measured figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Which.
    pub figure: Figure,
    /// Seconds, or tokens a second.
    pub value: f64,
    /// Scatter that a figure of this kind has around a good model, relative.
    pub log_sd: f64,
}

/// A measured run.
#[derive(Debug, Clone)]
pub struct ObservedRun {
    /// Name in reports.
    pub name: String,
    /// What served.
    pub deployment: Deployment,
    /// The engine's knobs.
    pub engine: VllmConfig,
    /// How requests were offered.
    pub load: LoadModel,
    /// Times were taken by a client, with the front end between it and the engine; else at the engine.
    pub client_side: bool,
    /// The requests.
    pub trace: Trace,
    /// Which requests count, by their number in the trace.
    pub counted: Vec<bool>,
    /// What was measured.
    pub observations: Vec<Observation>,
}

/// Why a run cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ObservedError {
    /// The device's profile lacks a figure.
    #[error(transparent)]
    Missing(#[from] MissingFigure),
    /// The simulation cannot go on.
    #[error(transparent)]
    Sim(#[from] SimError),
}

impl ObservedRun {
    /// The run under these parameters.
    ///
    /// # Errors
    /// [`ObservedError`] when it cannot be simulated.
    pub fn simulate(&self, parameters: &Parameters) -> Result<RunRecord, ObservedError> {
        let roofline = Roofline::new(self.deployment.clone(), *parameters)?;
        self.simulate_with(&roofline, self.front_end(parameters))
    }

    /// What stands between the clock and the engine.
    pub fn front_end(&self, parameters: &Parameters) -> FrontEnd {
        if self.client_side {
            front_end(parameters)
        } else {
            FrontEnd::default()
        }
    }

    /// The run cut off after the first `most` requests that count and a tenth more, which only load the system.
    /// Returns whether anything was cut.
    pub fn limit(&mut self, most: usize) -> bool {
        let mut seen = 0;
        for counts in &mut self.counted {
            seen += usize::from(*counts);
            *counts &= seen <= most;
        }
        let keep = self
            .counted
            .iter()
            .rposition(|c| *c)
            .map_or(0, |last| last + 1 + most / 10);
        let cut = keep < self.counted.len();
        self.counted.truncate(keep);
        self.trace.requests.truncate(keep);
        cut
    }

    /// The run with these step times.
    ///
    /// # Errors
    /// As [`ObservedRun::simulate`].
    pub fn simulate_with(
        &self,
        step_time: &dyn StepTime,
        front_end: FrontEnd,
    ) -> Result<RunRecord, ObservedError> {
        let config = WorldConfig {
            engine: self.engine.clone(),
            replicas: 1,
            load: self.load,
            host: HostTimes::default(),
            front_end,
            stall: None,
            deadline: None,
        };
        Ok(run(&config, step_time, &self.trace)?)
    }

    /// The observed figures as these parameters predict them.
    ///
    /// # Errors
    /// As [`ObservedRun::simulate`].
    pub fn predict(&self, parameters: &Parameters) -> Result<Vec<f64>, ObservedError> {
        let record = self.simulate(parameters)?;
        let samples = Samples::of(&record, &self.counted);
        Ok(self
            .observations
            .iter()
            .map(|o| samples.figure(o.figure))
            .collect())
    }
}

/// Sorted samples of a run's counted requests, in seconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Samples {
    ttft: Vec<f64>,
    tpot: Vec<f64>,
    e2e: Vec<f64>,
    output_throughput: f64,
}

impl Samples {
    /// Latencies of the completed requests that count; throughput of all.
    pub fn of(record: &RunRecord, counted: &[bool]) -> Self {
        let mut samples = Self::default();
        let (mut tokens, mut last) = (0u64, SimTime::ZERO);
        for (request, counts) in record.requests.iter().zip(counted) {
            if request.status != Status::Completed {
                continue;
            }
            let Some((ttft, span, n)) = times(request) else {
                continue;
            };
            // Throughput is of the whole run: requests that count in no latency took their share of its time.
            tokens += u64::from(n);
            last = last.max(request.last_token.unwrap_or_default());
            if !counts {
                continue;
            }
            let gaps = f64::from(n.saturating_sub(1));
            samples.ttft.push(ttft);
            samples.e2e.push(ttft + span);
            if n > 1 {
                samples.tpot.push(span / gaps);
            }
        }
        for list in [&mut samples.ttft, &mut samples.tpot, &mut samples.e2e] {
            list.sort_unstable_by(f64::total_cmp);
        }
        if last > SimTime::ZERO {
            samples.output_throughput = tokens as f64 / last.as_secs_f64();
        }
        samples
    }

    /// Requests.
    pub fn count(&self) -> usize {
        self.ttft.len()
    }

    /// One figure; NaN without samples.
    pub fn figure(&self, figure: Figure) -> f64 {
        let list = match figure.metric {
            Metric::Ttft => &self.ttft,
            Metric::Tpot => &self.tpot,
            Metric::E2e => &self.e2e,
            Metric::OutputThroughput => return self.output_throughput,
        };
        match figure.stat {
            _ if list.is_empty() => f64::NAN,
            Stat::Mean | Stat::Value => list.iter().sum::<f64>() / list.len() as f64,
            Stat::Quantile(q) => quantile_of_sorted(list, q),
        }
    }
}

/// Quantile of a sorted list by linear interpolation between order statistics (numpy's default).
fn quantile_of_sorted(sorted: &[f64], q: f64) -> f64 {
    let rank = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (below, above) = (rank.floor() as usize, rank.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * rank.fract()
}

/// TTFT, time from the first to the last token, tokens.
fn times(request: &RequestRecord) -> Option<(f64, f64, u32)> {
    let (first, last) = (request.first_token?, request.last_token?);
    let ttft = first.as_secs_f64() - request.sent.as_secs_f64();
    Some((
        ttft,
        last.as_secs_f64() - first.as_secs_f64(),
        request.output_tokens,
    ))
}
