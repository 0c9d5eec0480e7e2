//! What serves in a plan.

use std::path::Path;
use std::sync::Arc;

use crate::input::InputError;
use crate::scenario::cluster;
use crate::scenario::engine::{self, ResolvedEngine};
use crate::scenario::machine::Fits;
use crate::scenario::provenance::Provenance;
use crate::scenario::resolve;
use crate::scenario::schema::Scenario;

/// What serves: the engine that answers, and either how many replicas of it there are, or pools.
pub(super) struct Served {
    pub engine: ResolvedEngine,
    pub replicas: u32,
    pub pools: Option<Arc<cluster::Pools>>,
}

impl Served {
    pub fn replicas(
        scenario: &mut Scenario,
        provenance: &mut Provenance,
        (origin, base): (&str, &Path),
    ) -> Result<Self, InputError> {
        Ok(Self {
            engine: engine::resolve(scenario, provenance, origin, base)?,
            replicas: resolve::cluster(scenario, provenance, origin)?,
            pools: None,
        })
    }

    pub fn cluster(
        scenario: &mut Scenario,
        provenance: &mut Provenance,
        (origin, base): (&str, &Path),
        fits: &Fits,
    ) -> Result<Self, InputError> {
        let pools = cluster::resolve_pools(scenario, provenance, (origin, base), fits)?;
        let sizes = scenario.cluster.pools.iter().flatten();
        Ok(Self {
            engine: pools.answering().engine.clone(),
            replicas: sizes.map(|p| p.groups.saturating_mul(p.dp.unwrap_or(1))).sum(),
            pools: Some(Arc::new(pools)),
        })
    }
}
