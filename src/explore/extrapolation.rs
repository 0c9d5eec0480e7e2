//! Where step times are carried beyond what they were fitted to, pool by pool.

use std::sync::atomic::Ordering;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::study::Study;
use super::watched::{Seen, Watched};
use crate::scenario::{Machine, Plan, StepTimeSource};
use crate::steptime::hull::axis_names;

/// An axis counts as left when more than this share of the steps lies outside on it.
const LEFT_ABOVE: f64 = 0.01;

/// How far the step times of a pool, or of the replicas apart, are carried.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Extrapolation {
    /// The pool; null of replicas apart.
    pub pool: Option<String>,
    /// Step times are stated, not fitted: nothing is carried, and nothing is known of how far they are off.
    pub stated: bool,
    /// Share of its steps whose batch lies outside of what the step times were fitted to; null where batches say nothing
    /// (step times that are stated, static shapes) or no step was taken.
    pub share: Option<f64>,
    /// On which axes of the batch more than 1 % of the steps lie outside.
    pub axes: Vec<String>,
    /// What of its deployment the fit does not speak for: `tp`, `dtype`, `accelerator`, ...
    pub carried_over: Vec<String>,
    /// Compiled programs of static shapes that were not measured on such a deployment, and all.
    pub derived_programs: Option<[u64; 2]>,
}

impl Extrapolation {
    /// Of each pool of a plan.
    pub(super) fn of(plan: &Plan, machines: &[Machine], seen: &[&Seen]) -> Vec<Self> {
        let served = plan.cluster().map_or(&[][..], |c| c.served_by());
        let pools = machines.iter().zip(seen).enumerate();
        pools
            .map(|(number, (machine, seen))| {
                let pool = served.get(number);
                let source = pool.map_or(&plan.step_time_source, |p| &p.step_time_source);
                let (steps, outside) = (&seen.steps, &seen.outside);
                let steps = steps.load(Ordering::Relaxed) as f64;
                let of = |n: u64| n as f64 / steps;
                let left = axis_names().into_iter().zip(&seen.by_axis);
                let left = left.filter(|(_, n)| of(n.load(Ordering::Relaxed)) > LEFT_ABOVE);
                Self {
                    pool: pool.map(|p| p.name.clone()),
                    stated: matches!(source, StepTimeSource::Linear(_)),
                    share: (steps > 0.0).then(|| of(outside.load(Ordering::Relaxed))),
                    axes: left.map(|(axis, _)| axis.to_owned()).collect(),
                    carried_over: machine.carried_over.clone(),
                    derived_programs: machine.derived_programs,
                }
            })
            .collect()
    }

    /// What is extrapolated, in short; none inside of what was seen.
    pub fn marks(&self) -> Vec<String> {
        let programs = self.derived_programs.filter(|[derived, _]| *derived > 0);
        let programs = programs.map(|[derived, all]| format!("{derived} of {all} programs"));
        let all = self
            .axes
            .iter()
            .chain(&self.carried_over)
            .cloned()
            .chain(programs);
        let named = |mark: String| match &self.pool {
            Some(pool) => format!("{pool}: {mark}"),
            None => mark,
        };
        all.map(named).collect()
    }

    /// The same in a sentence.
    pub fn sentence(&self) -> Option<String> {
        let pool = self
            .pool
            .as_ref()
            .map_or_else(String::new, |p| format!("pool {p}: "));
        let outside = self.share.filter(|s| *s > LEFT_ABOVE).map(|share| {
            format!(
                "{:.1} % of the steps lie outside of the fitted batches ({})",
                100.0 * share,
                self.axes.join(", ")
            )
        });
        let beyond = (!self.carried_over.is_empty())
            .then(|| format!("the fit does not speak for its {}", self.carried_over.join(", ")));
        let programs = self.derived_programs.filter(|[derived, _]| *derived > 0);
        let programs = programs.map(|[derived, all]| {
            format!("{derived} of {all} compiled programs were not measured on such a deployment")
        });
        let all: Vec<String> = [outside, beyond, programs].into_iter().flatten().collect();
        (!all.is_empty()).then(|| format!("extrapolated: {pool}{}", all.join("; ")))
    }
}

impl Study {
    /// What of the deployment the step times were not fitted to.
    ///
    /// Of pools that differ in it, pool by pool.
    pub fn carried_over(&self) -> Vec<String> {
        let first = &self.machine().carried_over;
        if self.machines.iter().all(|m| m.carried_over == *first) {
            return first.clone();
        }
        let pools = self.plan.cluster().map_or(&[][..], |c| c.served_by());
        let of_pool = pools.iter().zip(&self.machines).flat_map(|(pool, machine)| {
            machine
                .carried_over
                .iter()
                .map(|matter| format!("{}: {matter}", pool.name))
        });
        of_pool.collect()
    }

    /// How far a run's step times were carried; what it has seen is added to what all runs have.
    pub(super) fn note_seen(&self, watched: &[Watched<'_>]) -> Vec<Extrapolation> {
        let of_run: Vec<&Seen> = watched.iter().map(|w| &w.seen).collect();
        for (all, run) in self.seen.iter().zip(&of_run) {
            all.add(run);
        }
        Extrapolation::of(&self.plan, &self.machines, &of_run)
    }

    /// How far step times were carried in all runs so far together, pool by pool.
    pub fn extrapolation(&self) -> Vec<Extrapolation> {
        let all: Vec<&Seen> = self.seen.iter().collect();
        Extrapolation::of(&self.plan, &self.machines, &all)
    }
}
