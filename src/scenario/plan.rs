//! The plan: a scenario with everything resolved and checked, ready to run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::check::Blame;
use super::cluster::{self, ClusterPlan};
use super::engine::ResolvedEngine;
use super::load;
use super::machine::{self, Machine};
use super::overrides::Override;
use super::provenance::{Provenance, Source, leaves};
use super::quantity::Finite;
use super::requests::{self, PlanRequests};
use super::resolve::{self, Axis, Measurement, SloTargets};
use super::schema::Scenario;
use super::work::{self, Files, WorkSource};
use crate::input::{self, InputError};
use crate::kv::sizing::MemoryLedger;
use crate::sim::{FrontEnd, HostTimes, LoadModel, WorldConfig};
use crate::steptime::{Deployment, LinearStepTime};
use crate::workload::synth::ArrivalSpan;
use crate::workload::trace::Trace;
use crate::yaml;

mod fleet;
mod limitations;
mod served;
mod step_time;

use served::Served;
pub(super) use step_time::step_time_source;

/// Where step times come from.
#[derive(Debug, Clone, PartialEq)]
pub enum StepTimeSource {
    /// Coefficients stated in the scenario.
    Linear(LinearStepTime),
    /// A fit, by its file.
    Fit(PathBuf),
}

/// A resolved and checked scenario.
#[derive(Debug, Clone)]
pub struct Plan {
    origin: String,
    base: PathBuf,
    /// What the file says, and the same without the axes of its sweep.
    explicit: Arc<Value>,
    bare: Arc<Value>,
    overrides: Vec<Override>,
    provenance: Provenance,
    files: Files,
    work: WorkSource,
    engine: Arc<ResolvedEngine>,
    replicas: u32,
    cluster: Option<Arc<ClusterPlan>>,
    load: LoadModel,
    axes: Arc<[Axis]>,
    /// The scenario with every value filled in.
    pub scenario: Scenario,
    /// The objective.
    pub slo: SloTargets,
    /// Periods, seed, repeats.
    pub measure: Measurement,
    /// Where step times come from.
    pub step_time_source: StepTimeSource,
}

/// One line of the resolved scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// Dotted path.
    pub path: String,
    /// Its value.
    pub value: Value,
    /// Where it came from.
    pub source: Source,
}

impl Plan {
    /// Reads a scenario file and resolves it.
    ///
    /// # Errors
    /// [`InputError`] for whatever is wrong in the file, its overrides, or the files it names.
    pub fn load(path: &Path, overrides: &[Override]) -> Result<Self, InputError> {
        let base = path.parent().unwrap_or(Path::new(""));
        let text = input::read_text(path)?;
        Self::from_text(&text, &path.display().to_string(), base, overrides)
    }

    /// Resolves a scenario's text. `base` is the folder that its paths start from.
    ///
    /// # Errors
    /// As [`Plan::load`].
    pub fn from_text(
        text: &str,
        origin: &str,
        base: &Path,
        overrides: &[Override],
    ) -> Result<Self, InputError> {
        if yaml::has_key(text, "kneeboard_study") && !yaml::has_key(text, "kneeboard") {
            return Err(InputError::new(origin, "is a study, not a scenario")
                .allowed("play it through with kneeboard explain, or give the scenario that it names"));
        }
        let written: Scenario = yaml::parse(text, origin)?;
        let explicit = Arc::new(tree(&written, origin)?);
        let mut bare = (*explicit).clone();
        take_axes(&mut bare);
        let trees = (explicit, Arc::new(bare));
        Self::build(origin, base, trees, overrides.to_vec(), Files::default())
    }

    /// The same scenario with further overrides, later ones winning.
    ///
    /// # Errors
    /// As [`Plan::load`].
    pub fn with(&self, overrides: &[Override]) -> Result<Self, InputError> {
        let mut all = self.overrides.clone();
        all.extend_from_slice(overrides);
        let trees = (self.explicit.clone(), self.bare.clone());
        Self::build(&self.origin, &self.base, trees, all, self.files.clone())
    }

    /// A point of the plan's sweep: the scenario with the values of the point, and without the axes, so that its
    /// cost does not grow with them. Searches stay.
    ///
    /// # Errors
    /// As [`Plan::load`].
    pub fn point(&self, values: &[Override]) -> Result<Self, InputError> {
        let axes = |o: &Override| {
            o.path.first().is_some_and(|p| p == "sweep") && o.path.get(1).is_some_and(|p| p == "axes")
        };
        let mut all: Vec<Override> = self.overrides.iter().filter(|o| !axes(o)).cloned().collect();
        // A whole sweep that was set leaves its searches.
        for o in &mut all {
            if o.path == ["sweep"] {
                o.value.as_object_mut().map(|sweep| sweep.shift_remove("axes"));
            }
        }
        all.extend_from_slice(values);
        let trees = (self.bare.clone(), self.bare.clone());
        Self::build(&self.origin, &self.base, trees, all, self.files.clone())
    }

    /// The plan at another rate: what [`Plan::with`] gives for `load.arrival.rate` in place of any `time_scale`,
    /// without resolving everything again.
    ///
    /// # Errors
    /// As [`Plan::load`].
    pub fn at_rate(&self, rate_rps: f64) -> Result<Self, InputError> {
        let changes = [
            // A replayed trace may have been stretched by a factor; the rate takes its place.
            Override::new("load.arrival.time_scale", Value::Null),
            Override::new("load.arrival.rate", rate_rps),
        ];
        let open = self.load == LoadModel::OpenLoop && rate_rps.is_finite() && rate_rps > 0.0;
        let Some(work) = self.work.at_rate(rate_rps).filter(|_| open) else {
            return self.with(&changes);
        };
        let mut plan = self.clone();
        plan.work = work;
        plan.scenario.load.arrival.rate = Some(Finite(rate_rps));
        plan.scenario.load.arrival.time_scale = None;
        plan.provenance.add(&changes);
        plan.overrides.extend(changes);
        Ok(plan)
    }

    fn build(
        origin: &str,
        base: &Path,
        (explicit, bare): (Arc<Value>, Arc<Value>),
        overrides: Vec<Override>,
        mut files: Files,
    ) -> Result<Self, InputError> {
        let mut set = (*explicit).clone();
        let mut placed = Vec::new();
        for o in &overrides {
            let o = o.numbered(&set)?;
            o.apply(&mut set)?;
            placed.push(o);
        }
        let mut provenance = Provenance::new(&placed);
        let mut scenario = typed(set.clone(), origin).map_err(|e| blame_override(e, &provenance))?;
        resolve::check_head(
            &scenario,
            &Blame {
                origin,
                provenance: &provenance,
            },
        )?;
        let served = if cluster::is_cluster(&scenario) {
            Served::cluster(&mut scenario, &mut provenance, (origin, base), files.fits())?
        } else {
            Served::replicas(&mut scenario, &mut provenance, (origin, base))?
        };
        let load = load::resolve_load(&mut scenario, &mut provenance, origin)?;
        let slo = resolve::slo(&mut scenario, &mut provenance, origin)?;
        let measure = resolve::measure(&mut scenario, &mut provenance, origin)?;
        let work = work::resolve_workload(&scenario, &provenance, origin, base, &mut files)?;
        let blame = Blame {
            origin,
            provenance: &provenance,
        };
        take_axes(&mut set);
        let axes = resolve::sweep(&scenario, &set, &blame)?.into();
        let fits = files.fits();
        let step_time_source = match &served.pools {
            Some(pools) => pools.answering().step_time_source.clone(),
            None => step_time_source(&scenario, served.engine.deployment.as_ref(), (base, fits), &blame)?,
        };
        let cluster = served.pools.map(|pools| {
            let filled = (&mut provenance, origin);
            cluster::resolve(&mut scenario, pools, (load, &measure), filled).map(Arc::new)
        });
        Ok(Self {
            origin: origin.to_owned(),
            base: base.to_owned(),
            explicit,
            bare,
            overrides,
            provenance,
            files,
            work,
            engine: Arc::new(served.engine),
            replicas: served.replicas,
            cluster: cluster.transpose()?,
            load,
            axes,
            scenario,
            slo,
            measure,
            step_time_source,
        })
    }

    /// Everything a run needs but the trace and the step-time model, on a host with these times.
    pub fn world(&self, host: HostTimes) -> WorldConfig {
        WorldConfig {
            engine: self.engine.config.clone(),
            replicas: self.replicas,
            load: self.load,
            host,
            front_end: FrontEnd::default(),
            stall: None,
            deadline: self.measure.deadline,
        }
    }

    /// The requests of one replication, drawn or replayed one by one, each checked to be one that the engine can
    /// serve.
    ///
    /// # Errors
    /// [`InputError`] naming the row that can never be served, or what is wrong with the whole; when that is known
    /// at the end only, the last item.
    pub fn requests(&self, replication: u64) -> Result<PlanRequests<'_>, InputError> {
        PlanRequests::new(self, replication)
    }

    /// The requests of one replication, kept in memory. A replay that is not stretched is shared, not copied.
    ///
    /// # Errors
    /// As [`Plan::requests`], also when there are too many for memory.
    pub fn trace(&self, replication: u64) -> Result<Arc<Trace>, InputError> {
        requests::whole(self, replication)
    }

    /// The requests of one replication in order of arrival: none that cannot be served is among them, and none is kept.
    ///
    /// # Errors
    /// As [`Plan::trace`].
    pub fn checked_requests(&self, replication: u64) -> Result<PlanRequests<'_>, InputError> {
        requests::checked(self, replication)
    }

    /// When the requests of one replication arrive: their first and last instants and their number.
    ///
    /// # Errors
    /// [`InputError`] when there is none, or the arrivals cannot be drawn.
    pub fn arrival_span(&self, replication: u64) -> Result<ArrivalSpan, InputError> {
        requests::span(self, replication)
    }

    pub(super) fn blame(&self) -> Blame<'_> {
        Blame {
            origin: &self.origin,
            provenance: &self.provenance,
        }
    }

    pub(super) fn work(&self) -> &WorkSource {
        &self.work
    }

    pub(super) fn load_model(&self) -> LoadModel {
        self.load
    }

    /// Step times, host times, and the batches that both were fitted to.
    ///
    /// # Errors
    /// [`InputError`] when the fit cannot be read.
    pub fn machine(&self) -> Result<Machine, InputError> {
        self.machine_of(&self.step_time_source, self.deployment())
    }

    fn machine_of(
        &self,
        source: &StepTimeSource,
        deployment: Option<&Deployment>,
    ) -> Result<Machine, InputError> {
        match source {
            StepTimeSource::Linear(model) => Ok(Machine {
                step_time: Arc::new(*model),
                host: HostTimes::default(),
                front_end: FrontEnd::default(),
                hull: None,
                limitations: Vec::new(),
                carried_over: Vec::new(),
                derived_programs: None,
            }),
            StepTimeSource::Fit(path) => {
                self.require_fit()?;
                machine::load(self.files.fits(), path, deployment)
            }
        }
    }

    /// The fit that the scenario names is there.
    fn require_fit(&self) -> Result<(), InputError> {
        const PATH: &str = "system.fit";
        let Some(name) = self.scenario.system.fit.as_ref().filter(|n| *n != machine::AUTO) else {
            return Ok(());
        };
        let origin = self.provenance.set_by(PATH).unwrap_or(&self.origin);
        machine::require(name, &self.base, origin).map_err(|e| e.at(PATH))
    }

    /// The axes of the sweep, in the order of the file.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Lowest and highest rate of the capacity search, if one is asked for.
    pub fn capacity_rates(&self) -> Option<(f64, f64)> {
        let search = self.scenario.sweep.search.capacity.as_ref()?;
        Some((search.rate[0].0, search.rate[1].0))
    }

    /// Where the memory of a device goes, when the block count was derived from it.
    pub fn memory(&self) -> Option<&MemoryLedger> {
        self.engine.ledger.as_ref()
    }

    /// What serves: model, device, formats, ranks, graphs; `None` unless both profiles are named.
    pub fn deployment(&self) -> Option<&Deployment> {
        self.engine.deployment.as_ref()
    }

    /// Folder of the measured runs that `preflight` fits and compares with.
    pub fn dataset(&self) -> Option<PathBuf> {
        self.scenario
            .calibration
            .dataset
            .as_ref()
            .map(|d| self.base.join(d))
    }

    /// Every replication is the same, because nothing is drawn.
    pub fn is_replay(&self) -> bool {
        matches!(self.work, WorkSource::Replay { .. })
    }

    /// The file or name the scenario came from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Every resolved value with its source, in the order of the schema.
    ///
    /// # Errors
    /// [`InputError`] if a value cannot be written, which the checks before exclude.
    pub fn resolved(&self) -> Result<Vec<Resolved>, InputError> {
        let root = tree(&self.scenario, &self.origin)?;
        Ok(leaves(&root)
            .into_iter()
            .map(|(path, value)| Resolved {
                source: self.provenance.of(&path),
                value: value.clone(),
                path,
            })
            .collect())
    }

    /// The resolved scenario as a tree; as YAML or JSON it is a scenario again.
    ///
    /// # Errors
    /// As [`Plan::resolved`].
    pub fn resolved_tree(&self) -> Result<Value, InputError> {
        tree(&self.scenario, &self.origin)
    }
}

/// A tree as a scenario; unknown keys are refused.
pub(super) fn typed(tree: Value, origin: &str) -> Result<Scenario, InputError> {
    yaml::from_value(tree, origin)
}

/// The tree of what is given, without the absent values.
fn tree(scenario: &Scenario, origin: &str) -> Result<Value, InputError> {
    tree_of(scenario, origin)
}

/// A part of a scenario as a tree, without the absent values.
pub(super) fn tree_of(part: &impl Serialize, origin: &str) -> Result<Value, InputError> {
    let mut value = serde_json::to_value(part).map_err(|e| InputError::new(origin, e.to_string()))?;
    prune(&mut value);
    Ok(value)
}

/// Takes the axes of the sweep out of a scenario's tree.
fn take_axes(tree: &mut Value) {
    let sweep = tree.get_mut("sweep").and_then(Value::as_object_mut);
    sweep.map(|sweep| sweep.shift_remove("axes"));
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(prune);
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

/// An error in a tree after overrides is the fault of the override that covers its place.
fn blame_override(mut error: InputError, provenance: &Provenance) -> InputError {
    let place = error.place.clone().unwrap_or_default();
    if let Some(origin) = provenance.set_by(&place).or_else(|| provenance.any_under(&place)) {
        error.origin = origin.to_owned();
    }
    error
}
