//! Whether stated faults can happen in this cluster.

use std::collections::BTreeMap;

use super::super::link::LinkConfig;
use super::super::ratio::Ratio;
use super::super::topology::Topology;
use super::{Fault, FaultKind, Target};
use crate::units::SimTime;

/// Why a fault cannot happen. Every variant has the place of the fault in the list, from 0, and its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// It befalls something that is not there.
    #[error("fault {index} ({kind}): there is no {what} {number}; {}", there_are(*.exist, what))]
    NoSuch {
        /// The fault.
        index: usize,
        /// Its kind.
        kind: &'static str,
        /// group, rank, node, zone or link.
        what: &'static str,
        /// The number that was asked for.
        number: u32,
        /// How many there are, numbered from 0.
        exist: usize,
    },
    /// A group has no such rank.
    #[error("fault {index} (rank_crash): group {group} has no rank {rank}; {}", there_are(*.ranks, "rank"))]
    NoSuchRank {
        /// The fault.
        index: usize,
        /// The group.
        group: u32,
        /// The rank that was asked for.
        rank: u32,
        /// How many ranks the group has.
        ranks: usize,
    },
    /// A factor of nothing, or of no number.
    #[error("fault {index} ({kind}): a factor of {factor} is not above zero; {mend}")]
    ZeroFactor {
        /// The fault.
        index: usize,
        /// Its kind.
        kind: &'static str,
        /// The factor.
        factor: Ratio,
        /// What to write.
        mend: &'static str,
    },
    /// A factor that would make things better.
    #[error("fault {index} ({kind}): a factor of {factor} would make it faster; {mend}")]
    NoFault {
        /// The fault.
        index: usize,
        /// Its kind.
        kind: &'static str,
        /// The factor.
        factor: Ratio,
        /// What to write.
        mend: &'static str,
    },
    /// A duration for what is over at once.
    #[error("fault {index} ({kind}) is over at once; leave its duration out")]
    Instant {
        /// The fault.
        index: usize,
        /// Its kind.
        kind: &'static str,
    },
    /// It happens while the same already lasts.
    #[error(
        "faults {first} and {second} ({kind} on {target}) overlap: the second starts at {}, the first {}; end the \
         first before, or leave one out",
        .starts.since(SimTime::ZERO),
        end_of(*.ends)
    )]
    Overlap {
        /// The one that starts first.
        first: usize,
        /// The other.
        second: usize,
        /// The kind of both.
        kind: &'static str,
        /// The target of both.
        target: Target,
        /// When the second starts.
        starts: SimTime,
        /// When the first ends; none: never.
        ends: Option<SimTime>,
    },
}

/// "there are 3 nodes (0 to 2)".
pub(in super::super) fn there_are(count: usize, what: &str) -> String {
    match count {
        0 => format!("there are no {what}s"),
        1 => format!("there is 1 {what} (0)"),
        _ => format!("there are {count} {what}s (0 to {})", count - 1),
    }
}

fn end_of(at: Option<SimTime>) -> String {
    at.map_or_else(
        || "never ends".to_owned(),
        |at| format!("ends at {}", at.since(SimTime::ZERO)),
    )
}

/// Whether all of these faults can happen in this cluster: what they befall is there, factors are of the right side of
/// 1, and no two of one kind overlap on one target. A fault that starts when another ends does not overlap it.
/// Revisions are not checked.
///
/// # Errors
/// The first fault, by place, that cannot happen by itself; else the first overlap by kind, target and time.
pub fn validate(faults: &[Fault], topology: &Topology, links: &[LinkConfig]) -> Result<(), FaultError> {
    for (index, fault) in faults.iter().enumerate() {
        target_exists(index, &fault.kind, topology, links.len())?;
        factor_is_one(index, &fault.kind)?;
        if matches!(fault.kind, FaultKind::PrefixCacheFlush { .. }) && fault.duration.is_some() {
            let kind = fault.kind.label();
            return Err(FaultError::Instant { index, kind });
        }
    }
    no_overlap(faults)
}

fn target_exists(
    index: usize,
    fault: &FaultKind,
    topology: &Topology,
    links: usize,
) -> Result<(), FaultError> {
    let groups = topology.groups.len();
    let (what, number, exist) = match fault.target() {
        Target::Rank(group, _) | Target::Group(group) => ("group", group, groups),
        Target::Node(node) => ("node", node, topology.nodes.len()),
        Target::Zone(zone) => ("zone", zone, topology.zones.len()),
        Target::Link(link) => ("link", link, links),
        Target::Revision(_) | Target::WeightStore | Target::Metrics => return Ok(()),
    };
    if number as usize >= exist {
        let kind = fault.label();
        return Err(FaultError::NoSuch {
            index,
            kind,
            what,
            number,
            exist,
        });
    }
    if let Target::Rank(group, rank) = fault.target() {
        let ranks = topology.groups[group as usize].ranks.len();
        if rank as usize >= ranks {
            return Err(FaultError::NoSuchRank {
                index,
                group,
                rank,
                ranks,
            });
        }
    }
    Ok(())
}

fn factor_is_one(index: usize, fault: &FaultKind) -> Result<(), FaultError> {
    let kind = fault.label();
    let (factor, faster, mend) = match *fault {
        FaultKind::SlowRank { factor, .. }
        | FaultKind::WeightStoreSlow { factor }
        | FaultKind::KernelFallback { factor, .. } => (
            factor,
            factor < Ratio::ONE,
            "it multiplies times: give 1/1 or more",
        ),
        FaultKind::LinkDegradation { factor, .. } => (
            factor,
            factor > Ratio::ONE,
            "it multiplies the bandwidth: give at most 1/1, or link_down for nothing at all",
        ),
        _ => return Ok(()),
    };
    if !factor.is_positive() {
        return Err(FaultError::ZeroFactor {
            index,
            kind,
            factor,
            mend,
        });
    }
    if faster {
        return Err(FaultError::NoFault {
            index,
            kind,
            factor,
            mend,
        });
    }
    Ok(())
}

fn no_overlap(faults: &[Fault]) -> Result<(), FaultError> {
    let mut by_target: BTreeMap<(&'static str, Target), Vec<usize>> = BTreeMap::new();
    for (index, fault) in faults.iter().enumerate() {
        by_target
            .entry((fault.kind.label(), fault.kind.target()))
            .or_default()
            .push(index);
    }
    for ((kind, target), mut indices) in by_target {
        indices.sort_by_key(|&index| (faults[index].at, index));
        // Those before the latest have ended when it starts, so it alone can overlap the next.
        for pair in indices.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            let (starts, ends) = (faults[second].at, faults[first].ends());
            if faults[first].at == starts || ends.is_none_or(|end| starts < end) {
                return Err(FaultError::Overlap {
                    first,
                    second,
                    kind,
                    target,
                    starts,
                    ends,
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
