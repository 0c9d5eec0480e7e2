//! Faults: what can go wrong, when, for how long, and which groups it hits.
//!
//! A fault is stated ([`Fault`], checked by [`validate`]) or drawn from rates ([`timeline`]). What follows from it, from
//! detection to recovery, is the event loop's business.

use std::fmt;

use super::ratio::Ratio;
use super::topology::Topology;
use crate::units::{SimDuration, SimTime};

mod rates;
mod validate;

pub use rates::{
    DEVICE_MTBF_HOURS, HOST_MTBF_DEVICE_HOURS, INTERRUPTION_MTBF_DEVICE_HOURS, LINK_MTBF_HOURS, MAX_FAULTS,
    Rate, RateError, Rates, SPOT_NOTICE, timeline,
};
pub(super) use validate::there_are;
pub use validate::{FaultError, validate};

/// What a slow kernel is slow on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fallback {
    /// One group, by number.
    Group(u32),
    /// All groups of a revision of the deployment, by number: a canary.
    Revision(u32),
}

/// What goes wrong. Groups, ranks, nodes, zones and links are numbers, as in [`Topology`] and
/// [`Network`](super::link::Network).
///
/// Factors are of time where things get slow (1/1 or more: 3/2 takes half as long again) and of bandwidth where a
/// link gets thin (1/1 or less).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// One rank ends, and its whole group with it.
    RankCrash {
        /// The group.
        group: u32,
        /// The rank in it.
        rank: u32,
    },
    /// A whole group ends; its nodes live.
    GroupCrash {
        /// The group.
        group: u32,
    },
    /// A node is gone, and all groups with a rank on it.
    NodeLoss {
        /// The node.
        node: u32,
    },
    /// A zone is gone, and all groups with a rank in it.
    ZoneLoss {
        /// The zone.
        zone: u32,
    },
    /// One rank is slow, and its whole group waits for it.
    SlowRank {
        /// The group.
        group: u32,
        /// Of the step time.
        factor: Ratio,
    },
    /// A link carries less.
    LinkDegradation {
        /// The link.
        link: u32,
        /// Of the bandwidth.
        factor: Ratio,
    },
    /// A link carries nothing; transfers on it stall.
    LinkDown {
        /// The link.
        link: u32,
    },
    /// A group's prefix cache is empty at once. It has no duration.
    PrefixCacheFlush {
        /// The group.
        group: u32,
    },
    /// Weights are read slowly by all groups that start.
    WeightStoreSlow {
        /// Of the time to load weights.
        factor: Ratio,
    },
    /// Routers and autoscalers see all metrics this much older than they would.
    StaleMetrics {
        /// The added age.
        age: SimDuration,
    },
    /// A slower kernel than the one meant is used.
    KernelFallback {
        /// Where.
        on: Fallback,
        /// Of the step time.
        factor: Ratio,
    },
    /// A node will be taken away.
    SpotNotice {
        /// The node.
        node: u32,
        /// How long before it goes this is told. See [`SPOT_NOTICE`].
        notice: SimDuration,
    },
}

impl FaultKind {
    /// How reports call it.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::RankCrash { .. } => "rank_crash",
            Self::GroupCrash { .. } => "group_crash",
            Self::NodeLoss { .. } => "node_loss",
            Self::ZoneLoss { .. } => "zone_loss",
            Self::SlowRank { .. } => "slow_rank",
            Self::LinkDegradation { .. } => "link_degradation",
            Self::LinkDown { .. } => "link_down",
            Self::PrefixCacheFlush { .. } => "prefix_cache_flush",
            Self::WeightStoreSlow { .. } => "weight_store_slow",
            Self::StaleMetrics { .. } => "stale_metrics",
            Self::KernelFallback { .. } => "kernel_fallback",
            Self::SpotNotice { .. } => "spot_notice",
        }
    }

    /// Whether the groups it hits lose all that they hold at its instant. A spot notice kills when it runs out, not when
    /// it is given.
    pub const fn kills(&self) -> bool {
        matches!(
            self,
            Self::RankCrash { .. } | Self::GroupCrash { .. } | Self::NodeLoss { .. } | Self::ZoneLoss { .. }
        )
    }

    /// What it befalls. Two faults of one kind on one target must not overlap.
    pub const fn target(&self) -> Target {
        match *self {
            Self::RankCrash { group, rank } => Target::Rank(group, rank),
            Self::GroupCrash { group }
            | Self::SlowRank { group, .. }
            | Self::PrefixCacheFlush { group }
            | Self::KernelFallback {
                on: Fallback::Group(group),
                ..
            } => Target::Group(group),
            Self::NodeLoss { node } | Self::SpotNotice { node, .. } => Target::Node(node),
            Self::ZoneLoss { zone } => Target::Zone(zone),
            Self::LinkDegradation { link, .. } | Self::LinkDown { link } => Target::Link(link),
            Self::KernelFallback {
                on: Fallback::Revision(revision),
                ..
            } => Target::Revision(revision),
            Self::WeightStoreSlow { .. } => Target::WeightStore,
            Self::StaleMetrics { .. } => Target::Metrics,
        }
    }
}

/// What a fault befalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A group and a rank in it.
    Rank(u32, u32),
    /// A group.
    Group(u32),
    /// A node.
    Node(u32),
    /// A zone.
    Zone(u32),
    /// A link.
    Link(u32),
    /// All groups of a revision.
    Revision(u32),
    /// Where weights are read from.
    WeightStore,
    /// The metrics that routers and autoscalers see.
    Metrics,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(group, rank) => write!(f, "rank {rank} of group {group}"),
            Self::Group(group) => write!(f, "group {group}"),
            Self::Node(node) => write!(f, "node {node}"),
            Self::Zone(zone) => write!(f, "zone {zone}"),
            Self::Link(link) => write!(f, "link {link}"),
            Self::Revision(revision) => write!(f, "revision {revision}"),
            Self::WeightStore => f.write_str("the weight store"),
            Self::Metrics => f.write_str("the metrics"),
        }
    }
}

/// Something that goes wrong at some instant.
///
/// | kind | `duration` |
/// | --- | --- |
/// | rank and group crash | how long the process cannot be started again; none: it can at once |
/// | prefix cache flush | must be none: it is over at once |
/// | spot notice | how long the node is away, from the end of the notice; none: for good |
/// | all others | how long it lasts; none: until the end of the run |
///
/// A duration of zero changes nothing, whatever the kind: see [`Fault::is_nothing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When it happens.
    pub at: SimTime,
    /// How long it lasts: see above.
    pub duration: Option<SimDuration>,
    /// What happens.
    pub kind: FaultKind,
}

impl Fault {
    /// Whether it is of zero length, and so must not change a run. A crash without a duration is not: it kills, and the
    /// restart can begin at once.
    pub fn is_nothing(&self) -> bool {
        self.duration == Some(SimDuration::ZERO)
    }

    /// When it is over; none: never.
    pub fn ends(&self) -> Option<SimTime> {
        match self.kind {
            FaultKind::PrefixCacheFlush { .. } => Some(self.at),
            FaultKind::RankCrash { .. } | FaultKind::GroupCrash { .. } => {
                Some(self.at + self.duration.unwrap_or(SimDuration::ZERO))
            }
            FaultKind::SpotNotice { notice, .. } => self.duration.map(|away| self.at + notice + away),
            _ => self.duration.map(|duration| self.at + duration),
        }
    }
}

/// The groups that a fault hits, in the order of their numbers: all of a group with one of its ranks, all with a rank
/// on the node or in the zone. [`FaultKind::kills`] says whether they lose what they hold. None for what is not about
/// groups by number: links, the weight store, metrics, revisions.
pub fn groups_hit(kind: &FaultKind, topology: &Topology) -> Vec<u32> {
    match kind.target() {
        Target::Rank(group, _) | Target::Group(group) if (group as usize) < topology.groups.len() => {
            vec![group]
        }
        Target::Node(node) => topology.groups_on_node(node),
        Target::Zone(zone) => topology.groups_in_zone(zone),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::topology::tests::example;
    use super::*;

    #[test]
    fn one_rank_takes_its_group_and_a_node_all_that_have_a_rank_there() {
        let hit = |kind: FaultKind| groups_hit(&kind, &example());
        assert_eq!(hit(FaultKind::RankCrash { group: 0, rank: 3 }), [0]);
        assert_eq!(hit(FaultKind::NodeLoss { node: 1 }), [0, 1]);
        assert_eq!(hit(FaultKind::ZoneLoss { zone: 1 }), [2]);
        let notice = SimDuration(5);
        assert_eq!(hit(FaultKind::SpotNotice { node: 2, notice }), [2]);
        assert_eq!(hit(FaultKind::LinkDown { link: 0 }), [0; 0]);
        assert_eq!(hit(FaultKind::GroupCrash { group: 3 }), [0; 0], "no such group");
    }

    #[test]
    fn only_losses_kill_at_their_instant() {
        assert!(FaultKind::RankCrash { group: 0, rank: 0 }.kills());
        assert!(FaultKind::ZoneLoss { zone: 0 }.kills());
        assert!(
            !FaultKind::SpotNotice {
                node: 0,
                notice: SimDuration(5)
            }
            .kills()
        );
        assert!(
            !FaultKind::SlowRank {
                group: 0,
                factor: Ratio::ONE
            }
            .kills()
        );
    }

    #[test]
    fn a_fault_ends_as_its_kind_says() {
        let ends = |duration: Option<u64>, kind| {
            let fault = Fault {
                at: SimTime(10),
                duration: duration.map(SimDuration),
                kind,
            };
            fault.ends().map(SimTime::as_nanos)
        };
        assert_eq!(ends(None, FaultKind::GroupCrash { group: 0 }), Some(10));
        assert_eq!(ends(Some(7), FaultKind::GroupCrash { group: 0 }), Some(17));
        let crash = |duration| Fault {
            at: SimTime(10),
            duration,
            kind: FaultKind::GroupCrash { group: 0 },
        };
        assert!(crash(Some(SimDuration::ZERO)).is_nothing() && !crash(None).is_nothing());
        assert_eq!(ends(None, FaultKind::NodeLoss { node: 0 }), None);
        let notice = SimDuration(100);
        assert_eq!(
            ends(Some(7), FaultKind::SpotNotice { node: 0, notice }),
            Some(117)
        );
        assert_eq!(ends(None, FaultKind::PrefixCacheFlush { group: 0 }), Some(10));
    }
}
