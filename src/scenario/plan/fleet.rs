//! A plan that is run as a cluster.

use std::sync::Arc;

use super::Plan;
use crate::engine::vllm::VllmConfig;
use crate::input::InputError;
use crate::scenario::cluster::{ClusterPlan, ServedBy, clocked};
use crate::scenario::machine::Machine;
use crate::scenario::schema::Role;
use crate::sim::fleet::FleetConfig;
use crate::sim::{FrontEnd, HostTimes, LoadModel};
use crate::units::SimDuration;

impl Plan {
    /// Whether the plan is run as a cluster ([`Plan::fleet`]) and not as replicas apart ([`Plan::world`]).
    pub fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// The cluster, if the plan is run as one.
    pub fn cluster(&self) -> Option<&ClusterPlan> {
        self.cluster.as_deref()
    }

    /// The cluster of one replication on these machines, one a pool; `None` for replicas apart.
    ///
    /// # Errors
    /// [`InputError`] when rates of faults give too many, or until when they happen is not known.
    pub fn fleet(&self, replication: u64, machines: &[Machine]) -> Result<Option<FleetConfig>, InputError> {
        let Some(cluster) = &self.cluster else {
            return Ok(None);
        };
        let mut horizon = SimDuration::ZERO;
        if cluster.wants_horizon() {
            if self.load != LoadModel::OpenLoop {
                let mend =
                    "give it, or measure.deadline: this load has no arrivals that would tell when it ends";
                return Err(self.blame().error("fault_rates.until", "it is missing", mend));
            }
            horizon = SimDuration(self.arrival_span(replication)?.last.0);
        }
        let front_end = machines.first().map_or(FrontEnd::default(), |m| m.front_end);
        let host: Vec<HostTimes> = machines.iter().map(|m| m.host).collect();
        let load = (self.load, front_end);
        cluster
            .fleet(load, &host, (replication, horizon), &self.origin)
            .map(Some)
    }

    /// A machine as that of a pool by its number: at the clock and the power cap that the pool has.
    pub fn clocked(&self, pool: usize, machine: Machine) -> Machine {
        let cluster = self.cluster.as_ref();
        match cluster.and_then(|c| Some((c, c.served_by().get(pool)?))) {
            Some((cluster, served)) => clocked(machine, &served.name, cluster.accounts()),
            None => machine,
        }
    }

    /// The engines that a request goes through, and whether each computes the prompt alone.
    pub(in crate::scenario) fn engines(&self) -> impl Iterator<Item = (&VllmConfig, bool)> {
        let pools = self
            .cluster
            .as_ref()
            .map_or(&[] as &[Arc<ServedBy>], |c| c.served_by());
        let apart = pools.is_empty().then_some((&self.engine.config, false));
        let of_pools = pools.iter().map(|p| (&p.engine.config, p.role == Role::Prefill));
        apart.into_iter().chain(of_pools)
    }

    /// Step times and host times of each pool, in order; one where replicas are run apart.
    ///
    /// # Errors
    /// As [`Plan::machine`].
    pub fn machines(&self) -> Result<Vec<Machine>, InputError> {
        match &self.cluster {
            None => Ok(vec![self.machine()?]),
            Some(cluster) => {
                let pools = cluster.served_by().iter();
                let machine = |p: &Arc<ServedBy>| {
                    let machine = self.machine_of(&p.step_time_source, p.engine.deployment.as_ref())?;
                    Ok(clocked(machine, &p.name, cluster.accounts()))
                };
                pools.map(machine).collect()
            }
        }
    }
}
