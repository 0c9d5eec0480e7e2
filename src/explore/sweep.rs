//! A sweep: every configuration of the axes, in parallel, in the same order whatever the number of threads.

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::capacity::Capacity;
use super::extrapolation::Extrapolation;
use super::grid::{Setting, label, overrides};
use super::load::LoadPoint;
use super::study::{Study, StudyError};
use crate::scenario::{Machine, Plan};
use crate::sim::SimError;

/// What became of one configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConfigurationOutcome {
    /// Its capacity was searched.
    Capacity(Capacity),
    /// It was run at the scenario's load.
    Load(LoadPoint),
    /// It cannot be run, with the reason.
    Infeasible(String),
}

/// One configuration of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Configuration {
    /// Scenario paths and their values, in axis order.
    pub setting: Vec<(String, Value)>,
    /// The setting as a short name.
    pub label: String,
    /// Groups of each pool at the start, where it is a cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<(String, u32)>,
    /// What became of it.
    pub outcome: ConfigurationOutcome,
    /// What of its deployment the fit does not speak for (`tp`, `dtype`, …): its step times are an extrapolation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carried_over: Vec<String>,
    /// Of clusters and static shapes, where the runs of all loads together, overload included, leave what the fits have
    /// seen: axes of the batch, pool by pool, and compiled programs that were not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extrapolated: Vec<String>,
}

impl Configuration {
    /// The searched capacity, if there is one.
    pub fn capacity(&self) -> Option<&Capacity> {
        match &self.outcome {
            ConfigurationOutcome::Capacity(c) => Some(c),
            _ => None,
        }
    }

    /// Every load that was run, by rate.
    pub fn points(&self) -> &[LoadPoint] {
        match &self.outcome {
            ConfigurationOutcome::Capacity(c) => &c.points,
            ConfigurationOutcome::Load(p) => std::slice::from_ref(p),
            ConfigurationOutcome::Infeasible(_) => &[],
        }
    }

    /// It could be run.
    pub fn is_feasible(&self) -> bool {
        !matches!(self.outcome, ConfigurationOutcome::Infeasible(_))
    }
}

/// Runs every setting of `plan` on the machine that it names, or on `machine` if one is given. `done` is called
/// after each, from any thread.
///
/// # Errors
/// A simulation that cannot go on. A setting that cannot be run is an outcome, not an error.
pub fn run_sweep(
    plan: &Plan,
    machine: Option<&Machine>,
    settings: &[Setting],
    done: impl Fn(usize, &Configuration) -> Result<(), StudyError> + Sync,
) -> Result<Vec<Configuration>, StudyError> {
    run_sweep_told(plan, machine, settings, done, &|| ())
}

/// As [`run_sweep`]; `told` is called after each load of a capacity search, too.
///
/// # Errors
/// As [`run_sweep`].
pub fn run_sweep_told(
    plan: &Plan,
    machine: Option<&Machine>,
    settings: &[Setting],
    done: impl Fn(usize, &Configuration) -> Result<(), StudyError> + Sync,
    told: &(impl Fn() + Sync),
) -> Result<Vec<Configuration>, StudyError> {
    settings
        .par_iter()
        .enumerate()
        .map(|(index, setting)| {
            let configuration = run_one(plan, machine, setting, told)?;
            done(index, &configuration)?;
            Ok(configuration)
        })
        .collect()
}

fn run_one(
    plan: &Plan,
    machine: Option<&Machine>,
    setting: &Setting,
    told: &(impl Fn() + Sync),
) -> Result<Configuration, StudyError> {
    let plan = plan.point(&overrides(setting));
    let study = plan.and_then(|plan| match machine {
        Some(machine) => Ok(Study::on(machine.clone(), plan)),
        None => Study::of(plan),
    });
    let carried_over = study.as_ref().map_or_else(|_| Vec::new(), Study::carried_over);
    let groups = study
        .as_ref()
        .map_or_else(|_| Vec::new(), |s| groups_of(s.plan()));
    let outcome = study
        .as_ref()
        .map_err(|e| StudyError::Input(e.clone()))
        .and_then(|study| outcome_of(study, told));
    let extrapolated = study.as_ref().map_or_else(|_| Vec::new(), extrapolated_in);
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(StudyError::Input(reason)) => ConfigurationOutcome::Infeasible(reason.to_string()),
        Err(StudyError::Sim(
            reason @ (SimError::Stuck { .. } | SimError::OnlyControl { .. } | SimError::TooManyGroups { .. }),
        )) => ConfigurationOutcome::Infeasible(reason.to_string()),
        Err(other) => return Err(other),
    };
    Ok(Configuration {
        setting: setting.clone(),
        label: label(setting),
        groups,
        outcome,
        carried_over,
        extrapolated,
    })
}

/// Batches of replicas apart are told by the share of their steps.
fn extrapolated_in(study: &Study) -> Vec<String> {
    let is_cluster = study.plan().is_cluster();
    let told = study.extrapolation().into_iter();
    let told = told.filter(|e| is_cluster || e.derived_programs.is_some());
    told.map(|e| Extrapolation {
        carried_over: Vec::new(),
        ..e
    })
    .flat_map(|e| e.marks())
    .collect()
}

fn groups_of(plan: &Plan) -> Vec<(String, u32)> {
    let pools = plan.cluster().map_or(&[][..], |c| &c.config().pools);
    pools.iter().map(|p| (p.name.clone(), p.groups)).collect()
}

fn outcome_of(study: &Study, told: &(impl Fn() + Sync)) -> Result<ConfigurationOutcome, StudyError> {
    if study.plan().capacity_rates().is_some() {
        return Ok(ConfigurationOutcome::Capacity(study.capacity_told(told)?));
    }
    let runs = study.outcomes()?;
    let mut point = LoadPoint { rate_rps: 0.0, runs };
    // A closed or offline load offers no rate of its own: what came through stands in for it.
    let offered = study.plan().scenario.load.arrival.rate.map(|r| r.0);
    point.rate_rps = offered
        .or_else(|| point.mean(|r| Some(r.throughput_rps)))
        .unwrap_or(0.0);
    Ok(ConfigurationOutcome::Load(point))
}
