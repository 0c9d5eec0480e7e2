//! Whether groups have room for what waits at the gateway.

use super::gauges::Role;
use super::judge::{Found, percent};
use super::{ClusterLimit, Facts, PoolQueues};
use crate::metric::diagnose::{MOSTLY, SELDOM};
use crate::metric::goodput::Target;

/// Groups of which what is offered asks for so much of what full batches carry have no room for more.
pub(super) const ROOM: f64 = 0.9;
/// Requests refused at the gateway or by engines beyond this share.
const REFUSED: f64 = 0.01;

impl Facts<'_> {
    /// The gateway holds back, or refuses, what the groups behind it have room for.
    pub fn full_gateway(&self) -> Option<Found> {
        if self.gateway_queued >= MOSTLY {
            let because = format!(
                "requests wait there in {} of the time",
                percent(self.gateway_queued)
            );
            let none_ready = self.pools.iter().find(|p| p.ready < 0.5);
            if let Some(found) = none_ready.and_then(|p| self.away(p)) {
                return Some(found);
            }
            return Some(self.full_behind_gateway(&because).unwrap_or_else(|| {
                Found::of(
                    ClusterLimit::Gateway,
                    "gateway",
                    format!("{because}, while the groups behind it have room"),
                    "raise its limits as far as the targets allow, then add groups",
                )
            }));
        }
        (self.rejected_share > REFUSED && self.gateway_queued <= SELDOM).then(|| {
            let because = format!(
                "{} of the requests are refused, while no requests wait behind it",
                percent(self.rejected_share)
            );
            self.full_behind_gateway(&because)
                .unwrap_or_else(|| Found::of(ClusterLimit::Gateway, "gateway", because, "raise its limits"))
        })
    }

    /// What a pool's groups would carry of all that is offered, over what they can with full batches: prompts take the time
    /// that they take, while a step of decodes has room for as many requests as seats are free.
    pub fn asked_of(&self, pool: &PoolQueues) -> Option<f64> {
        let on_prompts = match pool.role {
            Role::Prefill => 1.0,
            Role::Decode => 0.0,
            Role::Both => pool.on_prompts?,
        };
        let batch = pool.batch? / f64::from(pool.seats.max(1));
        let work = on_prompts + (1.0 - on_prompts) * batch.min(1.0);
        Some(pool.busy? * work * self.offered_over_let_in)
    }

    /// Requests wait at the gateway for groups that have no room for more: what it lets in is all that they carry.
    fn full_behind_gateway(&self, because: &str) -> Option<Found> {
        let of = |pool: &PoolQueues, why: String, prefill: &str, decode: &str| {
            let (limit, what) = match pool.role {
                Role::Prefill => (ClusterLimit::Prefill, prefill),
                Role::Decode => (ClusterLimit::Decode, decode),
                Role::Both => (ClusterLimit::Serving, "add groups"),
            };
            let advice = format!("{what}; the gateway's queue keeps these from overload");
            Found::of(limit, &pool.pool, format!("{because}, and {why}"), &advice)
        };
        let (prefill, decode) = ("add prefill groups", "add decode groups");
        if let Some((pool, full)) = self
            .pools
            .iter()
            .find_map(|p| Some((p, p.full.filter(|&f| f >= MOSTLY)?)))
        {
            let seats = format!("every seat of its groups is taken in {} of it", percent(full));
            return Some(of(pool, seats, prefill, decode));
        }
        let asked = self.pools.iter().filter_map(|p| Some((p, self.asked_of(p)?)));
        let (pool, most) = asked.max_by(|a, b| a.1.total_cmp(&b.1))?;
        if most >= ROOM {
            let work = format!(
                "its groups compute in {} of it: what is offered is {} of what full batches would carry",
                percent(pool.busy.unwrap_or(0.0)),
                percent(most)
            );
            return Some(of(pool, work, prefill, decode));
        }
        // Larger batches would make steps still longer.
        let asked = self.options.slo.attainment?;
        let is_pace = |t: &Target| matches!(t, Target::Tpot | Target::Itl);
        let mut paces = self.flow.attained.iter().filter(|(t, _)| is_pace(t));
        let (target, met) = paces.find(|(_, met)| *met < asked)?;
        let steps = format!(
            "{} holds for {} of the requests only, {} asked: no larger batches fit the target",
            target.name(),
            percent(*met),
            percent(asked)
        );
        Some(of(self.answering()?, steps, prefill, decode))
    }
}
