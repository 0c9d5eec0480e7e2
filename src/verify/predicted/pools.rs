//! What each pool runs on in the guises of its fit. Replicas apart are a pool of their own.
//!
//! Guises of one fit go together: a pool that is slower than its fit says is so because fit and machine differ, and they
//! do so for every pool on that fit. Pools on different fits know nothing of each other, so each further fit has its
//! guises in an order of its own.

use std::path::Path;
use std::sync::Arc;

use rand::Rng;

use super::super::guises::{Guises, MachineModel};
use super::super::watch::Watch;
use super::{guises_of, machine};
use crate::explore::study::{Study, StudyError};
use crate::rng::{Purpose, stream};
use crate::scenario::plan::StepTimeSource;
use crate::scenario::{Machine, Plan};
use crate::steptime::Deployment;

/// What a pool runs on in all guises.
pub(super) struct PoolGuises<'a> {
    pub name: &'a str,
    /// Of its fit; `None` where its step times are stated.
    pub guises: Option<Guises>,
    /// Where its fit stands among those of the plan.
    pub fit: usize,
    watch: Option<Arc<Watch>>,
}

/// All pools of a plan.
///
/// # Errors
/// [`StudyError`] when a fit cannot be read.
pub(super) fn pools_of(plan: &Plan) -> Result<Vec<PoolGuises<'_>>, StudyError> {
    let served: Vec<(&str, &StepTimeSource, Option<&Deployment>)> = match plan.cluster() {
        Some(cluster) => {
            let pools = cluster.served_by().iter();
            let of_pool = pools.map(|p| {
                let deployment = p.engine.deployment.as_ref();
                (p.name.as_str(), &p.step_time_source, deployment)
            });
            of_pool.collect()
        }
        None => vec![("replicas", &plan.step_time_source, plan.deployment())],
    };
    let mut fits: Vec<&Path> = Vec::new();
    let pools = served.into_iter().map(|(name, source, deployment)| {
        let fit = match source {
            StepTimeSource::Fit(path) => fits.iter().position(|f| f == path).unwrap_or_else(|| {
                fits.push(path);
                fits.len() - 1
            }),
            StepTimeSource::Linear(_) => 0,
        };
        Ok(PoolGuises {
            name,
            guises: guises_of(source, deployment, plan.origin())?,
            fit,
            watch: None,
        })
    });
    pools.collect()
}

/// Whether any pool's step times come from a fit.
pub(super) fn any_fit(pools: &[PoolGuises<'_>]) -> bool {
    pools.iter().any(|p| p.guises.is_some())
}

/// The machines of all pools in so many draws. The best guise of every pool is run once, to see how far each leaves what
/// its fit has seen.
///
/// # Errors
/// [`StudyError`] when the best guise cannot be run.
pub(super) fn drawn_machines(
    plan: &Plan,
    pools: &mut [PoolGuises<'_>],
    draws: usize,
) -> Result<Vec<Vec<Machine>>, StudyError> {
    let stated = plan.machines()?;
    let mut best = Vec::new();
    for (number, pool) in pools.iter_mut().enumerate() {
        pool.watch = pool.guises.as_ref().map(|g| Arc::new(Watch::of(g)));
        best.push(match (&pool.guises, &pool.watch) {
            (Some(guises), Some(watch)) => plan.clocked(number, machine(&guises.best, Some(watch.clone()))),
            _ => stated[number].clone(),
        });
    }
    Study::on_all(best, plan.clone()).run(0)?;
    let others: Vec<Option<Vec<MachineModel>>> = pools
        .iter()
        .map(|pool| Some(pool.others(pool.guises.as_ref()?, draws)))
        .collect();
    let of_draw = |draw: usize| {
        let pools = others.iter().enumerate();
        let machines = pools.map(|(number, others)| match others {
            Some(others) => plan.clocked(number, machine(&others[draw], None)),
            None => stated[number].clone(),
        });
        machines.collect()
    };
    Ok((0..draws).map(of_draw).collect())
}

impl PoolGuises<'_> {
    /// The guises in the order of the draws.
    fn others(&self, guises: &Guises, n: usize) -> Vec<MachineModel> {
        let reach = self.watch.as_ref().map_or(0.0, |w| w.reach());
        let models = guises.fewer_at(reach, n);
        let order = order(models.len(), self.fit);
        order.into_iter().map(|i| models[i].clone()).collect()
    }

    /// `POOL: matter`, for what its batches or its deployment leave of what its fit has seen.
    pub fn extrapolated(&self) -> impl Iterator<Item = String> + '_ {
        let axes = self.watch.as_ref().map_or_else(Vec::new, |w| w.left());
        let beyond = self.guises.iter().flat_map(|g| g.beyond.iter().cloned());
        let all = axes.into_iter().chain(beyond);
        all.map(|matter| format!("{}: {matter}", self.name))
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::guises::GUISES;

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
}
