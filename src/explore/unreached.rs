//! What a scenario plans for instants that a run does not reach.

use crate::cluster::autoscale::ScalePolicy;
use crate::metric::Summary;
use crate::scenario::Plan;
use crate::sim::fleet::FleetConfig;
use crate::units::SimTime;

/// Such notes, at most; one more says how many were left out.
const MOST: usize = 8;

/// Notes for the faults, rollouts and steps of schedules that the scenario states and that come after the run's end.
pub(super) fn tell_unreached(plan: &Plan, end: SimTime, summary: &mut Summary) {
    let Some(cluster) = plan.cluster() else { return };
    let planned = planned(cluster.config(), end);
    let left_out = planned.len().saturating_sub(MOST);
    let notes = planned.into_iter().take(MOST).map(|(at, what)| {
        format!(
            "{what} at {} s: the run ended at {:.3} s, so that never happened",
            at.as_secs_f64(),
            end.as_secs_f64()
        )
    });
    summary.notes.extend(notes);
    if left_out > 0 {
        summary.notes.push(format!(
            "{left_out} more faults, rollouts and steps of schedules lie after the run's end"
        ));
    }
}

/// What is stated for after `end`, by time.
fn planned(config: &FleetConfig, end: SimTime) -> Vec<(SimTime, String)> {
    let pool = |number: usize| config.pools.get(number).map_or("?", |p| p.name.as_str());
    let faults = config.faults.iter().filter(|f| !f.is_nothing());
    let faults = faults.map(|f| (f.at, format!("fault {}", f.kind.label())));
    let rollouts = config.rollouts.iter();
    let rollouts = rollouts.map(|(n, roll)| (roll.config.at, format!("rollout of {}", pool(*n))));
    let mut all: Vec<(SimTime, String)> = faults.chain(rollouts).filter(|(at, _)| *at > end).collect();
    for (number, policy) in &config.scaling {
        if let ScalePolicy::Schedule(schedule) = policy {
            let steps = std::iter::successors(schedule.next_after(end), |&at| schedule.next_after(at));
            all.extend(steps.map(|at| (at, format!("step of the schedule of {}", pool(*number)))));
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

#[cfg(test)]
#[path = "unreached_tests.rs"]
mod tests;
