//! The figures that a verdict rests on.

use super::Facts;
use super::gauges::{PoolQueues, Role};
use super::judge::{AWAY, FULL_LINK, SLOWED};
use crate::metric::cluster::ClusterSummary;
use crate::metric::diagnose::{Evidence, MOSTLY};

/// A share of a whole.
fn share(what: impl Into<String>, value: Option<f64>, threshold: Option<f64>) -> Evidence {
    Evidence {
        what: what.into(),
        value,
        unit: "1".to_owned(),
        threshold,
    }
}

fn groups(what: &str, value: f64, threshold: Option<f64>) -> Evidence {
    Evidence {
        what: what.to_owned(),
        value: Some(value),
        unit: "groups".to_owned(),
        threshold,
    }
}

impl Facts<'_> {
    /// The figures that the verdict rests on.
    pub fn evidence(&self, summary: &ClusterSummary) -> Vec<Evidence> {
        let gateway = "time in which requests wait at the gateway";
        let mut rows = vec![share(gateway, Some(self.gateway_queued), Some(MOSTLY))];
        rows.extend(self.pools.iter().flat_map(|pool| self.of_pool(pool)));
        if let Some(link) = self.transfers.as_ref().and_then(|t| t.busiest.as_ref()) {
            let carried = format!("{}: carried of what it could", link.link);
            rows.push(share(carried, Some(link.share), Some(FULL_LINK)));
            rows.push(Evidence {
                what: format!("{}: transfers over their time alone", link.link),
                value: link.slowdown,
                unit: "times".to_owned(),
                threshold: Some(SLOWED),
            });
        }
        if let Some(needs) = &summary.demand.needs {
            let ready = |role| self.pools.iter().find(|p| p.role == role).map(|p| p.ready);
            let (prefill, decode) = (ready(Role::Prefill), ready(Role::Decode));
            let what = "prefill groups needed, and ready";
            rows.push(groups(what, needs.prefill_groups, prefill));
            let what = "decode groups needed, and ready";
            rows.push(groups(what, needs.decode_groups, decode));
        }
        let asked = self.options.slo.attainment;
        let attained = self.flow.attained.iter();
        rows.extend(attained.map(|(t, met)| share(format!("{} attained", t.name()), Some(*met), asked)));
        rows
    }

    fn of_pool(&self, pool: &PoolQueues) -> Vec<Evidence> {
        let mostly = Some(MOSTLY);
        let row = |what: &str, value, threshold| share(format!("{}: {what}", pool.pool), value, threshold);
        let waits = (pool.role == Role::Decode).then(|| self.decode_queued(pool));
        let mut rows = vec![
            row(
                "time in which requests wait after a step's schedule",
                pool.queued,
                mostly,
            ),
            row("of it with every seat taken", pool.pinned, mostly),
            row(
                "of it with too few free KV blocks for the next",
                pool.short,
                mostly,
            ),
        ];
        if waits.is_some() {
            rows.push(row(
                "time in which requests wait for room or a seat",
                waits,
                mostly,
            ));
        }
        rows.push(row("devices compute", pool.busy, None));
        rows.push(row("groups not ready", pool.not_ready, Some(AWAY)));
        rows
    }
}
