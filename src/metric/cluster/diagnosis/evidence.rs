//! The figures that a verdict rests on.

use super::Facts;
use super::gauges::Role;
use super::judge::{AWAY, FULL_LINK, SLOWED};
use crate::metric::cluster::ClusterSummary;
use crate::metric::diagnose::{Evidence, MOSTLY};

impl Facts<'_> {
    /// The figures that the verdict rests on.
    pub fn evidence(&self, summary: &ClusterSummary) -> Vec<Evidence> {
        let mut rows = Vec::new();
        let mut row = |what: String, value: Option<f64>, unit: &str, threshold: Option<f64>| {
            rows.push(Evidence {
                what,
                value,
                unit: unit.to_owned(),
                threshold,
            });
        };
        let mostly = Some(MOSTLY);
        row(
            "time in which requests wait at the gateway".into(),
            Some(self.gateway_queued),
            "1",
            mostly,
        );
        for pool in &self.pools {
            let name = &pool.pool;
            row(
                format!("{name}: time in which requests wait after a step's schedule"),
                pool.queued,
                "1",
                mostly,
            );
            row(
                format!("{name}: of it with every seat taken"),
                pool.pinned,
                "1",
                mostly,
            );
            row(
                format!("{name}: of it with too few free KV blocks for the next"),
                pool.short,
                "1",
                mostly,
            );
            if pool.role == Role::Decode {
                let waits = Some(self.decode_queued(pool));
                row(
                    format!("{name}: time in which requests wait for room or a seat"),
                    waits,
                    "1",
                    mostly,
                );
            }
            row(format!("{name}: devices compute"), pool.busy, "1", None);
            row(
                format!("{name}: groups not ready"),
                pool.not_ready,
                "1",
                Some(AWAY),
            );
        }
        if let Some(link) = self.transfers.as_ref().and_then(|t| t.busiest.as_ref()) {
            row(
                format!("{}: carried of what it could", link.link),
                Some(link.share),
                "1",
                Some(FULL_LINK),
            );
            row(
                format!("{}: transfers over their time alone", link.link),
                link.slowdown,
                "times",
                Some(SLOWED),
            );
        }
        if let Some(needs) = &summary.demand.needs {
            let ready = |role| self.pools.iter().find(|p| p.role == role).map(|p| p.ready);
            row(
                "prefill groups needed, of those ready".into(),
                Some(needs.prefill_groups),
                "groups",
                ready(Role::Prefill),
            );
            row(
                "decode groups needed, of those ready".into(),
                Some(needs.decode_groups),
                "groups",
                ready(Role::Decode),
            );
        }
        for (target, met) in &self.flow.attained {
            row(
                format!("{} attained", target.name()),
                Some(*met),
                "1",
                self.options.slo.attainment,
            );
        }
        rows
    }
}
