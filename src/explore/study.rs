//! One configuration at any load: simulate, summarise, and search for its capacity.

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::capacity::{Capacity, Requirement, Search, find_capacity};
use super::load::{LoadPoint, RunOutcome};
use crate::input::InputError;
use crate::metric::summary::Boundary;
use crate::metric::{Slo, Summary, SummaryOptions, Window};
use crate::record::RunRecord;
use crate::scenario::{Machine, Plan, SloTargets};
use crate::sim::{self, FrontEnd, SimError, WorldConfig};
use crate::steptime::hull::HullBounds;
use crate::steptime::{BatchShape, StepTime};
use crate::units::SimDuration;

/// Why a configuration cannot be studied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StudyError {
    /// The configuration is not one that can be run.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A simulation cannot go on.
    #[error(transparent)]
    Sim(#[from] SimError),
}

/// Loads of the ladder of a capacity search.
const LADDER: u32 = 10;
/// The boundary is narrowed to this share.
const PRECISION: f64 = 0.02;

/// One simulated run and what belongs to it.
#[derive(Debug)]
pub struct StudyRun {
    /// Raw events.
    pub record: RunRecord,
    /// Its figures.
    pub summary: Summary,
    /// Share of the steps whose batch lies outside what the step times were fitted to; `None` without a fit.
    pub extrapolated_share: Option<f64>,
}

/// A configuration and its machine, ready to run.
#[derive(Debug)]
pub struct Study {
    plan: Plan,
    machine: Machine,
    bounds: Option<HullBounds>,
}

/// Passes durations on and counts the steps that are taken outside the hull.
#[derive(Debug)]
struct Watched<'a> {
    inner: &'a dyn StepTime,
    bounds: Option<HullBounds>,
    steps: AtomicU64,
    outside: AtomicU64,
}

impl StepTime for Watched<'_> {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        self.inner.duration(batch)
    }

    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        self.inner.durations(batch, out);
    }

    fn needs_decode_rows(&self) -> bool {
        self.inner.needs_decode_rows()
    }

    fn observe(&self, batch: &BatchShape, steps: u32) {
        if let Some(bounds) = &self.bounds {
            self.steps.fetch_add(u64::from(steps), Ordering::Relaxed);
            let outside = bounds.outside(batch, steps);
            self.outside.fetch_add(u64::from(outside), Ordering::Relaxed);
        }
        self.inner.observe(batch, steps);
    }
}

impl Study {
    /// Reads the machine that the plan names.
    ///
    /// # Errors
    /// [`InputError`] when its fit cannot be read.
    pub fn of(plan: Plan) -> Result<Self, InputError> {
        let machine = plan.machine()?;
        Ok(Self::on(machine, plan))
    }

    /// The plan on a machine that is already known, whatever the plan names.
    pub fn on(machine: Machine, plan: Plan) -> Self {
        let bounds = machine.hull.as_ref().map(|h| h.bounds());
        Self {
            plan,
            machine,
            bounds,
        }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Runs one replication of the plan at its own load.
    ///
    /// # Errors
    /// [`StudyError`] when the requests cannot be served or the run cannot go on.
    pub fn run(&self, replication: u64) -> Result<StudyRun, StudyError> {
        self.run_plan(&self.plan, replication)
    }

    fn run_plan(&self, plan: &Plan, replication: u64) -> Result<StudyRun, StudyError> {
        let trace = plan.trace(replication)?;
        let watched = Watched {
            inner: self.machine.step_time.as_ref(),
            bounds: self.bounds,
            steps: AtomicU64::new(0),
            outside: AtomicU64::new(0),
        };
        let world = WorldConfig {
            front_end: self.machine.front_end,
            ..plan.world(self.machine.host)
        };
        let record = sim::run(&world, &watched, &trace)?;
        let (steps, outside) = (watched.steps.into_inner(), watched.outside.into_inner());
        let mut options = summary_options(plan);
        if self.machine.front_end != FrontEnd::default() {
            // Times are then those that clients see.
            options.boundary = Boundary::Serving;
        }
        let summary = Summary::of(&record, &options);
        if summary.funnel.offered == 0 {
            return Err(
                InputError::new(plan.origin(), "no request arrives in the measured window")
                    .at("measure")
                    .allowed("shorten the warm-up, widen the window, or offer more requests")
                    .into(),
            );
        }
        let extrapolated_share = (steps > 0).then(|| outside as f64 / steps as f64);
        Ok(StudyRun {
            record,
            summary,
            extrapolated_share,
        })
    }

    /// All replications at the plan's own load, in order.
    ///
    /// # Errors
    /// As [`Study::run`].
    pub fn runs(&self) -> Result<Vec<StudyRun>, StudyError> {
        (0..self.replications())
            .into_par_iter()
            .map(|r| self.run(r))
            .collect()
    }

    /// A replay draws nothing, so repeating it shows nothing new.
    fn replications(&self) -> u64 {
        if self.plan.is_replay() {
            1
        } else {
            u64::from(self.plan.measure.repeats)
        }
    }

    /// All replications at another rate: the same requests on a stretched time axis.
    ///
    /// # Errors
    /// As [`Study::run`].
    pub fn at_rate(&self, rate_rps: f64) -> Result<LoadPoint, StudyError> {
        let plan = self.plan.at_rate(rate_rps)?;
        let runs: Result<Vec<RunOutcome>, StudyError> = (0..self.replications())
            .into_par_iter()
            .map(|replication| self.run_plan(&plan, replication).map(|run| outcome(&run)))
            .collect();
        Ok(LoadPoint {
            rate_rps,
            runs: runs?,
        })
    }

    /// Searches the range of the scenario for the capacity at its SLO.
    ///
    /// # Errors
    /// [`StudyError`], also when the scenario asks for no search.
    pub fn capacity(&self) -> Result<Capacity, StudyError> {
        let Some((lowest_rps, highest_rps)) = self.plan.capacity_rates() else {
            return Err(InputError::new(self.plan.origin(), "asks for no capacity search")
                .at("sweep.search.capacity")
                .allowed("give it a range of rates, as `capacity: {rate: [0.5, 30]}`")
                .into());
        };
        let search = Search {
            lowest_rps,
            highest_rps,
            ladder: LADDER,
            precision: PRECISION,
        };
        let (mut ran, mut refused) = (false, None);
        let mut capacity = find_capacity(&search, &requirement(&self.plan.slo), |rate| {
            match self.at_rate(rate) {
                Ok(point) => {
                    ran = true;
                    Ok(Some(point))
                }
                // The first load tells whether the configuration can be run at all.
                Err(StudyError::Input(reason)) if ran => {
                    refused.get_or_insert((rate, reason));
                    Ok(None)
                }
                Err(other) => Err(other),
            }
        })?;
        if let Some((rate, reason)) = refused {
            capacity
                .notes
                .push(format!("{rate:.3} req/s cannot be run ({reason})"));
        }
        Ok(capacity)
    }
}

/// What a load must satisfy to count as carried.
pub fn requirement(slo: &SloTargets) -> Requirement {
    Requirement {
        attainment: slo.attainment,
        error_rate: slo.errors,
    }
}

/// How the plan's runs are summarised.
pub fn summary_options(plan: &Plan) -> SummaryOptions {
    let s = &plan.slo;
    SummaryOptions {
        slo: Slo {
            ttft: s.ttft,
            itl: s.itl,
            itl_quantile: s.itl_quantile,
            tpot: s.tpot,
            e2e: s.e2e,
            attainment: Some(s.attainment),
            errors: Some(s.errors),
        },
        window: Window::after(plan.measure.warmup, plan.measure.window),
        ..SummaryOptions::default()
    }
}

/// The figures of a run that a search looks at.
pub fn outcome(run: &StudyRun) -> RunOutcome {
    let s = &run.summary;
    // Without a target every completed request is good.
    let completed = s.error_rate.map_or(0.0, |e| 1.0 - e);
    let slo = s.slo.as_ref();
    RunOutcome {
        attainment: slo.and_then(|r| r.attainment).unwrap_or(completed),
        error_rate: s.error_rate.unwrap_or(0.0),
        goodput_rps: slo
            .and_then(|r| r.goodput_rps)
            .or(s.throughput.request_rps)
            .unwrap_or(0.0),
        throughput_rps: s.throughput.request_rps.unwrap_or(0.0),
        output_tok_s: s.throughput.output_tok_s.unwrap_or(0.0),
        ttft_p50_s: s.latency.ttft.p50,
        ttft_p99_s: s.latency.ttft.p99,
        e2e_mean_s: s.latency.e2e.mean,
        itl_p99_s: s.latency.itl.p99,
        saturated: s.saturated.unwrap_or(false),
        extrapolated_share: run.extrapolated_share,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steptime::{Hull, LinearStepTime};

    #[test]
    fn steps_are_counted_when_they_are_taken() {
        let inner = LinearStepTime {
            step_ps: 1_000_000,
            ..LinearStepTime::default()
        };
        let mut seen = [BatchShape::default(), BatchShape::default()];
        seen[0].add_decodes(2, 20);
        seen[1].add_decodes(2, 100);
        let watched = Watched {
            inner: &inner,
            bounds: Some(Hull::of(&seen).bounds()),
            steps: AtomicU64::new(0),
            outside: AtomicU64::new(0),
        };
        let mut batch = BatchShape::default();
        batch.add_decodes(2, 90);
        watched.durations(&batch, &mut [SimDuration::ZERO; 40]);
        watched.duration(&batch);
        watched.observe(&batch, 10);
        // 90, 92, ..., 108 positions: the last four exceed 100.
        assert_eq!(watched.steps.into_inner(), 10);
        assert_eq!(watched.outside.into_inner(), 4);
    }
}
