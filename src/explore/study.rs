//! One configuration at any load: simulate, summarise, and search for its capacity.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use rayon::prelude::*;

use super::beyond_need::Windowed;
use super::capacity::{Capacity, Search, find_capacity};
use super::cluster::{ClusterOutcome, tell_busy};
use super::extrapolation::Extrapolation;
use super::limits::limits_of;
use super::load::{LoadPoint, RunOutcome};
use super::measured::measured_span;
pub use super::outcome::{outcome, requirement, summary_options};
use super::rollouts::{RolloutFigures, rollouts};
pub use super::stranded::is_stranded;
use super::stranded::tell_stranded;
use super::unreached::tell_unreached;
use super::watched::{Seen, Watched, share_outside, step_times};
use crate::input::InputError;
use crate::metric::cluster::{ClusterSummary, GroupCapacity};
use crate::metric::saturation::ArrivalSpan;
use crate::metric::streamed::StreamedSummary;
use crate::metric::summary::Boundary;
use crate::metric::{Diagnosis, Summary, SummaryOptions, Verdict};
use crate::record::{ClusterRecord, RunRecord};
use crate::scenario::{Machine, Plan};
use crate::sim::fleet::FleetRun;
use crate::sim::{self, FrontEnd, Pace, SimError, StreamError, WorldConfig};
use crate::steptime::hull::HullBounds;

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

/// Requests after which a streamed run says how far it has come.
const REQUESTS_A_TICK: u64 = 1 << 16;
/// What held a run back that came to a livelock, whatever its gauges say.
const LIVELOCK: &str = "the engine came to a livelock: the request let in needs KV blocks that only the running ones could \
                        free, and those are held back for it";
/// Loads of the ladder of a capacity search.
const LADDER: u32 = 10;
/// The boundary is narrowed to this share.
const PRECISION: f64 = 0.02;

/// Why a run that is summarised while it goes on gets no verdict.
const NOT_DIAGNOSED: &str =
    "no diagnosis: it needs the gauges of every step beside the requests that wait, which were not kept";

/// One simulated run and what belongs to it.
#[derive(Debug)]
pub struct StudyRun {
    /// Raw events.
    pub record: RunRecord,
    /// What happened in the cluster, if the plan is one.
    pub cluster: Option<ClusterRecord>,
    /// The figures of that.
    pub figures: Option<ClusterSummary>,
    /// What its rollouts did to requests.
    pub rollouts: Vec<RolloutFigures>,
    /// Its figures.
    pub summary: Summary,
    /// Share of the steps whose batch lies outside what the step times were fitted to; `None` without a fit.
    pub extrapolated_share: Option<f64>,
    /// The same of each pool, with what is left; one where replicas are run apart.
    pub extrapolation: Vec<Extrapolation>,
}

impl StudyRun {
    /// Steps of all replicas.
    pub fn steps(&self) -> u64 {
        self.record
            .replicas
            .iter()
            .map(|r| r.step_ends.len() as u64)
            .sum()
    }
}

/// The figures of a run whose requests and steps were not kept.
#[derive(Debug)]
pub struct SummaryRun {
    /// Its figures.
    pub summary: Summary,
    /// What happened in the cluster, if the plan is one.
    pub cluster: Option<ClusterRecord>,
    /// What a search sees of that.
    pub figures: Option<ClusterOutcome>,
    /// Replicas.
    pub replicas: usize,
    /// Steps of all replicas, those outside of the measured window too.
    pub steps: u64,
    /// As of [`StudyRun`].
    pub extrapolated_share: Option<f64>,
    /// As of [`StudyRun`].
    pub extrapolation: Vec<Extrapolation>,
}

impl From<StudyRun> for SummaryRun {
    fn from(run: StudyRun) -> Self {
        Self {
            replicas: run.record.replicas.len(),
            steps: run.steps(),
            summary: run.summary,
            figures: run.figures.as_ref().map(ClusterOutcome::of),
            cluster: run.cluster,
            extrapolated_share: run.extrapolated_share,
            extrapolation: run.extrapolation,
        }
    }
}

/// A configuration and its machine, ready to run.
#[derive(Debug)]
pub struct Study {
    pub(super) plan: Plan,
    /// One a pool; one where replicas are run apart.
    pub(super) machines: Vec<Machine>,
    bounds: Vec<Option<HullBounds>>,
    pace: Pace,
    /// Whether a cluster's requests run once more with equal priorities.
    pub(super) equal_priorities: bool,
    /// What the steps of all runs so far were like, by pool.
    pub(super) seen: Vec<Seen>,
    /// What a group of each pool carries, once it has been asked for.
    pub(super) carries: OnceLock<BTreeMap<String, GroupCapacity>>,
}

fn stream_failed(error: StreamError<InputError>) -> StudyError {
    match error {
        StreamError::Sim(e) => StudyError::Sim(e),
        StreamError::Requests(e) => StudyError::Input(e),
    }
}

/// Refuses a run of which nothing was measured.
fn measures_something(plan: &Plan, summary: &Summary) -> Result<(), InputError> {
    if summary.funnel.offered > 0 {
        return Ok(());
    }
    Err(
        InputError::new(plan.origin(), "no request arrives in the measured window")
            .at("measure")
            .allowed("shorten the warm-up, widen the window, or offer more requests"),
    )
}

impl Study {
    /// Reads the machine that the plan names.
    ///
    /// # Errors
    /// [`InputError`] when its fit cannot be read.
    pub fn of(plan: Plan) -> Result<Self, InputError> {
        let machines = plan.machines()?;
        Ok(Self::on_all(machines, plan))
    }

    /// The plan on a machine that is already known, whatever the plan names; in a cluster it is that of every pool.
    pub fn on(machine: Machine, plan: Plan) -> Self {
        let pools = plan.cluster().map_or(1, |c| c.served_by().len());
        Self::on_all(vec![machine; pools], plan)
    }

    /// The plan on machines that are already known, one a pool; one where replicas are run apart.
    pub fn on_all(machines: Vec<Machine>, plan: Plan) -> Self {
        let bounds = machines.iter().map(|m| m.hull.as_ref().map(|h| h.bounds()));
        Self {
            bounds: bounds.collect(),
            seen: machines.iter().map(|_| Seen::default()).collect(),
            machines,
            plan,
            pace: Pace::default(),
            equal_priorities: false,
            carries: OnceLock::new(),
        }
    }

    /// The same study at another pace; results are the same.
    #[must_use]
    pub fn at_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// The same study, whose runs of clusters tell what priorities cost those who have the lower ones: each is run once
    /// more, with the same seed and equal priorities.
    #[must_use]
    pub fn with_equal_priorities(mut self) -> Self {
        self.equal_priorities = true;
        self
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
        let watched = self.watched();
        let (record, cluster) = match plan.fleet(replication, &self.machines)? {
            None => {
                let trace = plan.trace(replication)?;
                (
                    sim::run_at(self.pace, &self.world(plan), &watched[0], &trace)?,
                    None,
                )
            }
            Some(fleet) => {
                let requests = plan.checked_requests(replication)?;
                let times = step_times(&watched);
                let (record, cluster) =
                    sim::fleet::run_recorded(self.pace, &fleet, &times, requests).map_err(stream_failed)?;
                (record, Some(cluster))
            }
        };
        let options = self.summary_options(plan);
        let mut summary = Summary::of(&record, &options);
        if let Some(cluster) = &cluster {
            tell_stranded(cluster, &mut summary);
            tell_unreached(plan, record.end, &mut summary);
            tell_busy(&mut summary, cluster, record.replicas.iter().map(|r| r.busy));
        } else {
            summary.diagnosis = Some(Diagnosis::of_run(
                &record,
                &options.window,
                &limits_of(plan, &record),
            ));
        }
        if let (Some(diagnosis), false) = (&mut summary.diagnosis, summary.livelocks.is_empty()) {
            diagnosis.verdict = Verdict::Kv;
            diagnosis.because = LIVELOCK.into();
        }
        measures_something(plan, &summary)?;
        let mut figures = match &cluster {
            Some(cluster) => self.figures_of(plan, replication, (&record, cluster))?,
            None => None,
        };
        let extrapolation = self.note_seen(&watched);
        if let Some(figures) = &mut figures {
            let said = extrapolation.iter().filter_map(Extrapolation::sentence);
            figures.limitations.extend(said);
        }
        let rollouts = cluster
            .as_ref()
            .map_or_else(Vec::new, |cluster| rollouts(plan, &record, cluster));
        Ok(StudyRun {
            rollouts,
            record,
            cluster,
            figures,
            summary,
            extrapolated_share: share_outside(&watched),
            extrapolation,
        })
    }

    /// The figures alone of one replication at the plan's own load: the run is summarised while it goes on, so memory
    /// grows neither with requests nor with steps. `read` is called with the number of requests read so far. A closed
    /// loop, whose arrivals nobody knows beforehand, is recorded whole.
    ///
    /// # Errors
    /// As [`Study::run`].
    pub fn summarise(&self, replication: u64, read: impl Fn(u64)) -> Result<SummaryRun, StudyError> {
        self.summarise_plan(&self.plan, replication, read)
    }

    fn summarise_plan(
        &self,
        plan: &Plan,
        replication: u64,
        read: impl Fn(u64),
    ) -> Result<SummaryRun, StudyError> {
        let world = self.world(plan);
        if world.load.is_closed() {
            return Ok(self.run_plan(plan, replication)?.into());
        }
        let options = self.summary_options(plan);
        let whole = plan.arrival_span(replication)?;
        let span = measured_span(plan, replication, world.load, &options.window, &whole)?;
        let watched = self.watched();
        let mut count = 0;
        let requests = plan.requests(replication)?.inspect(|_| {
            count += 1;
            if count % REQUESTS_A_TICK == 0 {
                read(count);
            }
        });
        let listener = || StreamedSummary::new(&options, span, &world.front_end);
        if let Some(fleet) = plan.fleet(replication, &self.machines)? {
            let under_load = whole.last.since(whole.first);
            let listener = Windowed::new(listener().with_attempts(), Some(under_load));
            let told = sim::fleet::run_streamed(&fleet, &step_times(&watched), requests, listener)
                .map_err(stream_failed)?;
            return self.summary_of(plan, told, span, &watched);
        }
        let told = sim::run_streamed(&world, &watched[0], requests, listener).map_err(stream_failed)?;
        let mut listeners = told.recorders.into_iter();
        let mut all = listeners.next().unwrap_or_else(listener);
        listeners.for_each(|other| all.merge(other));
        let mut summary = all.finish(told.end, &told.replicas);
        summary.notes.push(NOT_DIAGNOSED.into());
        measures_something(plan, &summary)?;
        Ok(SummaryRun {
            summary,
            cluster: None,
            figures: None,
            replicas: told.replicas.len(),
            steps: told.steps,
            extrapolated_share: share_outside(&watched),
            extrapolation: self.note_seen(&watched),
        })
    }

    /// What a cluster's run comes to whose requests and steps were not kept.
    fn summary_of(
        &self,
        plan: &Plan,
        told: FleetRun<Windowed<StreamedSummary>>,
        span: Option<ArrivalSpan>,
        watched: &[Watched<'_>],
    ) -> Result<SummaryRun, StudyError> {
        let Windowed { inner, busy } = told.recorder;
        let end = inner.seen_end(told.end);
        let mut summary = inner.finish(told.end, &told.replicas);
        let cluster = told.cluster;
        tell_stranded(&cluster, &mut summary);
        tell_unreached(plan, end, &mut summary);
        tell_busy(&mut summary, &cluster, told.replicas.iter().map(|r| r.busy));
        measures_something(plan, &summary)?;
        let ended = (&cluster, told.replicas.as_slice(), end);
        let figures = self.streamed_figures(plan, ended, &summary, (span, &busy))?;
        Ok(SummaryRun {
            summary,
            figures,
            cluster: Some(cluster),
            replicas: told.replicas.len(),
            steps: told.steps,
            extrapolated_share: share_outside(watched),
            extrapolation: self.note_seen(watched),
        })
    }

    /// As [`Study::summarise`], of every replication in order, one after another: a run keeps all cores busy if it can.
    ///
    /// # Errors
    /// As [`Study::run`].
    pub fn summaries(&self, read: impl Fn(u64)) -> Result<Vec<SummaryRun>, StudyError> {
        (0..self.replications())
            .map(|r| self.summarise(r, &read))
            .collect()
    }

    /// The step times of each pool.
    fn watched(&self) -> Vec<Watched<'_>> {
        let pools = self.machines.iter().zip(&self.bounds);
        pools
            .map(|(machine, bounds)| Watched {
                inner: machine.step_time.as_ref(),
                bounds: *bounds,
                seen: Seen::default(),
            })
            .collect()
    }

    /// The machine that answers where replicas are run apart; of a cluster's, the first pool's.
    pub(super) fn machine(&self) -> &Machine {
        &self.machines[0]
    }

    fn world(&self, plan: &Plan) -> WorldConfig {
        WorldConfig {
            front_end: self.machine().front_end,
            ..plan.world(self.machine().host)
        }
    }

    fn summary_options(&self, plan: &Plan) -> SummaryOptions {
        let mut options = summary_options(plan);
        let load = plan.world(self.machine().host).load;
        if self.machine().front_end != FrontEnd::default() || load.clients_see_for_themselves() {
            // Times are then those that clients see.
            options.boundary = Boundary::Serving;
        }
        options
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

    /// What every replication at the plan's own load comes to, in order.
    ///
    /// # Errors
    /// As [`Study::run`].
    pub fn outcomes(&self) -> Result<Vec<RunOutcome>, StudyError> {
        (0..self.replications())
            .into_par_iter()
            .map(|r| self.summarise(r, |_| ()).map(|run| outcome(&run)))
            .collect()
    }

    /// All replications at another rate: the same requests on a stretched time axis.
    ///
    /// # Errors
    /// As [`Study::run`].
    pub fn at_rate(&self, rate_rps: f64) -> Result<LoadPoint, StudyError> {
        let plan = self.plan.at_rate(rate_rps)?;
        let runs: Result<Vec<RunOutcome>, StudyError> = (0..self.replications())
            .into_par_iter()
            .map(|replication| {
                self.summarise_plan(&plan, replication, |_| ())
                    .map(|run| outcome(&run))
            })
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
        self.capacity_told(&|| ())
    }

    /// As [`Study::capacity`]; `told` is called after each load.
    ///
    /// # Errors
    /// As [`Study::capacity`].
    pub fn capacity_told(&self, told: &(impl Fn() + Sync)) -> Result<Capacity, StudyError> {
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
            let point = self.at_rate(rate);
            told();
            match point {
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
