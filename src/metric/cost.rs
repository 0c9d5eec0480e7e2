//! What serving costs, the whole of it: idle, warming and failed groups, and what stands beside the accelerators.
//!
//! Prices are those of instance profiles (`on_demand_usd_h`, with `region`, `price_date` and the figure's source); they are
//! multiplied by the hours that a pool's groups spent in each phase. All hours given are taken as paid for: the caller
//! leaves out those that its contract does not bill.

use crate::units::written;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something for each phase of a group's life.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ByPhase {
    /// The machine is got and booted.
    pub provisioning: f64,
    /// Weights are loaded, graphs compiled and captured, the first requests run.
    pub warming: f64,
    /// It could serve and has nothing to do.
    pub ready_idle: f64,
    /// It computes.
    pub ready_busy: f64,
    /// It gets nothing new and finishes what it has.
    pub draining: f64,
    /// It is broken and still held.
    pub failed: f64,
}

impl ByPhase {
    /// All phases together.
    pub fn total(&self) -> f64 {
        self.values().iter().map(|(_, value)| value).sum()
    }

    /// Each phase with its name.
    pub const fn values(&self) -> [(&'static str, f64); 6] {
        [
            ("provisioning", self.provisioning),
            ("warming", self.warming),
            ("ready_idle", self.ready_idle),
            ("ready_busy", self.ready_busy),
            ("draining", self.draining),
            ("failed", self.failed),
        ]
    }

    /// Every phase times `factor`.
    fn scaled(&self, factor: f64) -> Self {
        Self {
            provisioning: self.provisioning * factor,
            warming: self.warming * factor,
            ready_idle: self.ready_idle * factor,
            ready_busy: self.ready_busy * factor,
            draining: self.draining * factor,
            failed: self.failed * factor,
        }
    }

    fn add(&mut self, other: &Self) {
        self.provisioning += other.provisioning;
        self.warming += other.warming;
        self.ready_idle += other.ready_idle;
        self.ready_busy += other.ready_busy;
        self.draining += other.draining;
        self.failed += other.failed;
    }
}

/// The price of a machine, and where it is from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InstancePrice {
    /// Name of the instance's profile.
    pub instance: String,
    /// Price of the whole machine, USD an hour.
    pub usd_h: f64,
    /// Where that price holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// When it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_date: Option<String>,
    /// Who says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// One pool's groups.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolHours {
    /// Its name.
    pub pool: String,
    /// What its machines cost.
    pub price: InstancePrice,
    /// Machines that a group takes: 0.5 for 4 of 8 accelerators, 2 for 16. What the rest of a machine does is not
    /// asked; a group that keeps others from using it takes 1.
    pub instances_per_group: f64,
    /// Hours of its groups by phase, added up over groups.
    pub group_hours: ByPhase,
    /// Of the busy hours, the share spent on requests that were rejected, timed out or otherwise lost, 0 to 1.
    pub busy_share_lost: f64,
}

/// Something beside the accelerators' machines: a host, storage, network, a control plane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OtherCost {
    /// What it is.
    pub name: String,
    /// USD an hour of wall clock.
    pub usd_h: f64,
    /// Who says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// What was served for the money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServedWork {
    /// Requests that met every target.
    pub good_requests: u64,
    /// Prompt tokens of all requests that were computed or found cached.
    pub input_tokens: u64,
    /// Output tokens of all requests.
    pub output_tokens: u64,
    /// Output tokens of the requests that met every target.
    pub good_output_tokens: u64,
}

/// Why a cost cannot be told.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// A price, hours or a factor that is negative or no number.
    #[error("{what} is {}; it must be a number of 0 or more", written(*value))]
    Negative {
        /// What, with the name of its pool.
        what: String,
        /// What was given.
        value: f64,
    },
    /// A share above one.
    #[error("{what} is {}; a share is at most 1", written(*value))]
    Share {
        /// What, with the name of its pool.
        what: String,
        /// What was given.
        value: f64,
    },
}

/// One pool's part of the cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolCost {
    /// Its name.
    pub pool: String,
    /// At this price.
    pub price: InstancePrice,
    /// Machines that a group takes; see [`PoolHours::instances_per_group`].
    #[serde(default)]
    pub instances_per_group: f64,
    /// Price of a group, USD an hour: so many times the machine's.
    #[serde(default)]
    pub group_usd_h: f64,
    /// USD by phase.
    pub usd_by_phase: ByPhase,
    /// USD in all.
    pub usd: f64,
    /// Of that, USD for nothing; see [`Cost::wasted_share`].
    pub wasted_usd: f64,
}

/// One other cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OtherUsd {
    /// What it is, at what price.
    pub cost: OtherCost,
    /// USD over the whole time.
    pub usd: f64,
}

/// What a run cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Hours of wall clock that all of this is of, money, requests and tokens alike. Of a cluster the whole run, from its
    /// start to its end: what drains after the last arrival is paid for and counts.
    #[serde(default)]
    pub wall_hours: f64,
    /// By pool, in the order given.
    pub pools: Vec<PoolCost>,
    /// USD of all pools by phase.
    pub usd_by_phase: ByPhase,
    /// The other costs, in the order given.
    pub other: Vec<OtherUsd>,
    /// USD in all: pools and other costs.
    pub usd: f64,
    /// USD a request that met every target; null when none did.
    pub usd_per_good_request: Option<f64>,
    /// USD a million output tokens of such requests; null when there are none.
    pub usd_per_m_good_output_tokens: Option<f64>,
    /// USD a million output tokens of any request; null when there are none.
    pub usd_per_m_output_tokens: Option<f64>,
    /// Of what the pools cost, the share for machines that were provisioned, warmed, idle or failed, and for busy time
    /// spent on lost requests. Draining is no waste: its streams are finished. Null when the pools cost nothing.
    pub wasted_share: Option<f64>,
}

impl Cost {
    /// The cost of some pools, and of what stands beside them for `wall_hours`.
    ///
    /// # Errors
    /// [`CostError`] for prices, hours and shares that are none.
    pub fn of(
        pools: &[PoolHours],
        other: &[OtherCost],
        wall_hours: f64,
        served: &ServedWork,
    ) -> Result<Self, CostError> {
        at_least_0(|| "the wall clock in hours".into(), wall_hours)?;
        let pools: Vec<PoolCost> = pools.iter().map(pool_cost).collect::<Result<_, _>>()?;
        let other: Vec<OtherUsd> = other
            .iter()
            .map(|cost| {
                at_least_0(|| format!("the price of {:?}", cost.name), cost.usd_h)?;
                Ok(OtherUsd {
                    usd: cost.usd_h * wall_hours,
                    cost: cost.clone(),
                })
            })
            .collect::<Result<_, _>>()?;
        let mut usd_by_phase = ByPhase::default();
        pools.iter().for_each(|pool| usd_by_phase.add(&pool.usd_by_phase));
        let of_pools: f64 = pools.iter().map(|pool| pool.usd).sum();
        let wasted: f64 = pools.iter().map(|pool| pool.wasted_usd).sum();
        let usd = of_pools + other.iter().map(|other| other.usd).sum::<f64>();
        let a_million = |tokens: u64| (tokens > 0).then(|| usd * 1e6 / tokens as f64);
        Ok(Self {
            wall_hours,
            pools,
            usd_by_phase,
            other,
            usd,
            usd_per_good_request: (served.good_requests > 0).then(|| usd / served.good_requests as f64),
            usd_per_m_good_output_tokens: a_million(served.good_output_tokens),
            usd_per_m_output_tokens: a_million(served.output_tokens),
            wasted_share: (of_pools > 0.0).then(|| wasted / of_pools),
        })
    }
}

fn pool_cost(pool: &PoolHours) -> Result<PoolCost, CostError> {
    let name = &pool.pool;
    at_least_0(
        || format!("the price of {:?}, pool {name:?}", pool.price.instance),
        pool.price.usd_h,
    )?;
    let per_group = pool.instances_per_group;
    at_least_0(|| format!("instances per group of pool {name:?}"), per_group)?;
    for (phase, hours) in pool.group_hours.values() {
        at_least_0(|| format!("{phase} hours of pool {name:?}"), hours)?;
    }
    let lost = || format!("the lost share of busy time of pool {name:?}");
    at_least_0(lost, pool.busy_share_lost)?;
    if pool.busy_share_lost > 1.0 {
        return Err(CostError::Share {
            what: lost(),
            value: pool.busy_share_lost,
        });
    }
    let usd_by_phase = pool.group_hours.scaled(pool.price.usd_h * per_group);
    let wasted_usd = usd_by_phase.provisioning
        + usd_by_phase.warming
        + usd_by_phase.ready_idle
        + usd_by_phase.failed
        + usd_by_phase.ready_busy * pool.busy_share_lost;
    Ok(PoolCost {
        pool: name.clone(),
        price: pool.price.clone(),
        instances_per_group: per_group,
        group_usd_h: pool.price.usd_h * per_group,
        usd_by_phase,
        usd: usd_by_phase.total(),
        wasted_usd,
    })
}

fn at_least_0(what: impl FnOnce() -> String, value: f64) -> Result<(), CostError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(CostError::Negative { what: what(), value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    fn pool(usd_h: f64, instances_per_group: f64, group_hours: ByPhase, busy_share_lost: f64) -> PoolHours {
        PoolHours {
            pool: "decode".into(),
            price: InstancePrice {
                instance: "p5.48xlarge".into(),
                usd_h,
                region: Some("us-east-1".into()),
                price_date: Some("2026-07-20".into()),
                source: None,
            },
            instances_per_group,
            group_hours,
            busy_share_lost,
        }
    }

    fn hours() -> ByPhase {
        ByPhase {
            provisioning: 1.0,
            warming: 0.5,
            ready_idle: 2.0,
            ready_busy: 8.0,
            draining: 0.25,
            failed: 0.75,
        }
    }

    #[test]
    fn every_hour_is_paid_by_its_phase() {
        let other = OtherCost {
            name: "storage".into(),
            usd_h: 3.0,
            source: None,
        };
        let served = ServedWork {
            good_requests: 1_000,
            input_tokens: 1,
            output_tokens: 4_000_000,
            good_output_tokens: 2_000_000,
        };
        let pools = [pool(40.0, 0.5, hours(), 0.25), pool(8.0, 2.0, hours(), 0.0)];
        let cost = Cost::of(&pools, &[other], 4.0, &served).unwrap();
        // 12.5 hours at 20 USD and at 16 USD, 4 hours at 3 USD.
        assert_relative_eq!(cost.pools[0].usd, 250.0);
        assert_relative_eq!(cost.pools[1].usd, 200.0);
        assert_relative_eq!(cost.other[0].usd, 12.0);
        assert_relative_eq!(cost.usd, 462.0);
        assert_relative_eq!(cost.usd_by_phase.ready_busy, 8.0 * 36.0);
        assert_relative_eq!(cost.usd_by_phase.failed, 0.75 * 36.0);
        assert_relative_eq!(cost.usd_by_phase.total() + 12.0, cost.usd);
        assert_relative_eq!(cost.usd_per_good_request.unwrap(), 0.462);
        assert_relative_eq!(cost.usd_per_m_good_output_tokens.unwrap(), 231.0);
        assert_relative_eq!(cost.usd_per_m_output_tokens.unwrap(), 115.5);
        // 4.25 hours of waste in each, and a quarter of 8 busy ones in the first.
        assert_relative_eq!(cost.pools[0].wasted_usd, 6.25 * 20.0);
        assert_relative_eq!(cost.wasted_share.unwrap(), (6.25 * 20.0 + 4.25 * 16.0) / 450.0);
    }

    #[test]
    fn a_published_rate_gives_the_published_price() {
        // 4 of 8 H100 of a p5.48xlarge at 55.04 USD an hour, 3280 tokens a second: 2.33 USD a million.
        let busy = ByPhase {
            ready_busy: 1.0,
            ..ByPhase::default()
        };
        let served = ServedWork {
            output_tokens: 3_280 * 3_600,
            ..ServedWork::default()
        };
        let cost = Cost::of(&[pool(55.04, 0.5, busy, 0.0)], &[], 1.0, &served).unwrap();
        assert_relative_eq!(cost.usd_per_m_output_tokens.unwrap(), 2.33, max_relative = 1e-3);
        assert_eq!(cost.wasted_share, Some(0.0));
    }

    #[test]
    fn nothing_served_is_null_not_infinite() {
        let cost = Cost::of(&[pool(1.0, 1.0, hours(), 1.0)], &[], 1.0, &ServedWork::default()).unwrap();
        assert_eq!(
            (
                cost.usd_per_good_request,
                cost.usd_per_m_good_output_tokens,
                cost.usd_per_m_output_tokens
            ),
            (None, None, None)
        );
        assert_relative_eq!(cost.wasted_share.unwrap(), 12.25 / 12.5);
        let free = Cost::of(&[], &[], 0.0, &ServedWork::default()).unwrap();
        assert_eq!((free.usd, free.wasted_share), (0.0, None));
    }

    #[test]
    fn prices_and_hours_that_are_none_are_refused() {
        let of = |pool| Cost::of(&[pool], &[], 1.0, &ServedWork::default()).unwrap_err();
        let price = of(pool(-1.0, 1.0, hours(), 0.0));
        assert_eq!(
            price.to_string(),
            "the price of \"p5.48xlarge\", pool \"decode\" is -1; it must be a number of 0 or more"
        );
        let mut broken = hours();
        broken.draining = f64::NAN;
        assert!(
            of(pool(1.0, 1.0, broken, 0.0))
                .to_string()
                .starts_with("draining hours")
        );
        assert!(matches!(
            of(pool(1.0, 1.0, hours(), 1.1)),
            CostError::Share { .. }
        ));
        assert!(Cost::of(&[], &[], -1.0, &ServedWork::default()).is_err());
    }
}
