//! The figures that a verdict rests on.

use super::Facts;
use super::gauges::{PoolQueues, Role};
use super::judge::{AWAY, FULL_LINK, SLOWED};
use super::room::ROOM;
use crate::metric::cluster::ClusterSummary;
use crate::metric::diagnose::{Evidence, MOSTLY, ONE_CAUSE};

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
        if self.gateway_queued >= MOSTLY {
            let asked = |pool: &PoolQueues| {
                let what = format!("{}: what is offered over what full batches carry", pool.pool);
                share(what, self.asked_of(pool), Some(ROOM))
            };
            rows.extend(self.pools.iter().map(asked));
        }
        rows.extend(self.pools.iter().flat_map(|pool| self.of_pool(pool)));
        if let Some(link) = self.transfers.as_ref().and_then(|t| t.busiest.as_ref()) {
            let carried = format!("{}: carried of what it could", link.link);
            rows.push(share(carried, Some(link.share), Some(FULL_LINK)));
            rows.extend(link.slowdown.map(|slowdown| Evidence {
                what: format!("{}: transfers over their time alone", link.link),
                value: Some(slowdown),
                unit: "times".to_owned(),
                threshold: Some(SLOWED),
            }));
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
        let is_decode = pool.role == Role::Decode;
        // What each verdict compares with: at a decode pool KV on its way is no queue, and the waits below are judged too.
        let (queue, pinned, short) = if is_decode {
            let queue = "time in which requests wait, or their KV is on its way";
            (queue, Some(MOSTLY), None)
        } else {
            let queue = "time in which requests wait after a step's schedule";
            (queue, Some(ONE_CAUSE), Some(ONE_CAUSE))
        };
        let row = |what: &str, value, threshold| share(format!("{}: {what}", pool.pool), value, threshold);
        let mut rows = vec![
            row(queue, pool.queued, (!is_decode).then_some(MOSTLY)),
            row("of it with every seat taken", pool.pinned, pinned),
            row(
                "of it with too few free KV blocks for the next",
                pool.short,
                short,
            ),
        ];
        if is_decode {
            let waits = Some(self.decode_queued(pool));
            let what = "time in which requests wait for room or a seat";
            rows.push(row(what, waits, Some(MOSTLY)));
        }
        rows.push(row("devices compute", pool.busy, None));
        rows.push(row("groups not ready", pool.not_ready, Some(AWAY)));
        rows
    }
}
