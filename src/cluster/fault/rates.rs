//! Faults drawn from rates: each part of the cluster fails after an exponentially distributed time, is repaired, and may
//! fail again.
//!
//! # Published rates
//!
//! The constants come from the 54-day run of Llama 3 405B on 16 384 H100 (419 unexpected interruptions; causes as
//! counted in DCD's and G. Lockwood's reports of it; section 4 of the project's step-time study): 16 384 x 54 x 24 =
//! 21.2 million device-hours. The 47 planned interruptions of the 466 in all are not among them. They are of one training
//! cluster of 2024. A synchronous training run stops for any of its
//! devices, so an interruption is a fault of one part; but what only slows is not in them. Neither repair times nor
//! rates of zones, of degraded links or of slow ranks were found, so none are given here.

use rand_distr::{Distribution, Exp1};

use super::super::link::LinkConfig;
use super::super::topology::Topology;
use super::{Fault, FaultKind};
use crate::rng::{Purpose, class_stream};
use crate::units::{SimDuration, SimTime};

/// Device-hours between unexpected interruptions of any cause: 21.2 million / 419. For one rate a device that stands for
/// all causes; a node of 8 then fails every 6 300 h. Do not add the other constants to it.
pub const INTERRUPTION_MTBF_DEVICE_HOURS: f64 = 50_700.0;

/// Hours between faults of one accelerator: faulty GPU 148, HBM3 72, SRAM 19, GSP 17, silent data corruption 6, thermal
/// 6, together 268 of 419. (The printed share of 58.7 % would make it 86 000 h; it holds 30.1 % for the 148 of 419,
/// which are 35.3 %.)
pub const DEVICE_MTBF_HOURS: f64 = 79_000.0;

/// Hours between interruptions by the network as one device has it, its NIC, cables and switch ports: switch or cable 35
/// and NIC 7 of 419. Divide by the devices behind a link.
pub const LINK_MTBF_HOURS: f64 = 505_000.0;

/// Device-hours between interruptions by the host and its software, all but device and network: 419 - 268 - 42 = 109.
/// Divide by the devices of a node: 8 give 24 400 h. Software is in it, whole nodes are not always lost.
pub const HOST_MTBF_DEVICE_HOURS: f64 = 195_000.0;

/// EC2's notice before a spot instance is taken away, best effort (AWS documentation). Google's and Azure's are said to
/// be 30 s (unverified).
pub const SPOT_NOTICE: SimDuration = SimDuration::from_millis(120_000);

/// More faults than this in one run are refused: such rates are a mistake. (A week of 32 768 devices at
/// [`DEVICE_MTBF_HOURS`] has 70.) Each is judged against all that comes after it, so that time grows with their square.
pub const MAX_FAULTS: usize = 10_000;

/// How often one part fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Mean hours from its repair to its next fault.
    pub mtbf_hours: f64,
    /// How long a fault lasts: the duration of [`Fault`]. Zero for a device is a crash that can be started again at once
    /// (no duration); zero for the others changes nothing.
    pub repair: SimDuration,
}

/// How often parts of each kind fail; none: never.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    /// One device, and so one rank of a group: [`FaultKind::RankCrash`].
    pub device: Option<Rate>,
    /// One node: [`FaultKind::NodeLoss`].
    pub node: Option<Rate>,
    /// One zone: [`FaultKind::ZoneLoss`].
    pub zone: Option<Rate>,
    /// One link: [`FaultKind::LinkDown`].
    pub link: Option<Rate>,
}

/// Why no faults can be drawn.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RateError {
    /// Not a time.
    #[error("the mean time between faults of a {what} is {hours} h; it must be a finite number above 0")]
    NotATime {
        /// device, node, zone or link.
        what: &'static str,
        /// What was given.
        hours: f64,
    },
    /// More than [`MAX_FAULTS`].
    #[error(
        "these rates give more than {MAX_FAULTS} faults before {:.0} s, with those of every {what}; is a mean time meant \
         in another unit than hours?", .before.as_secs_f64()
    )]
    TooMany {
        /// device, node, zone or link: the kind that went beyond it.
        what: &'static str,
        /// Until when faults were drawn.
        before: SimDuration,
    },
}

/// A part of the cluster that can fail.
struct Member {
    what: &'static str,
    /// Names its stream of draws, so that other parts do not shift it.
    name: String,
    rate: Rate,
    kind: FaultKind,
}

/// The faults of one run from its start until before `horizon`, in the order of time; at one instant devices before
/// nodes, zones and links, each by number.
///
/// Each part has a stream of its own, named by its kind and name: adding, removing or reordering others does not shift
/// its faults, nor does another horizon those before it. Faults of one part never overlap: the next time to a fault
/// counts from the end of the repair, and is at least a nanosecond. Faults of different parts may overlap (a node in a
/// zone that is lost): they are independent.
///
/// # Errors
/// A mean time that is not above 0; more than [`MAX_FAULTS`] faults.
pub fn timeline(
    rates: &Rates,
    topology: &Topology,
    links: &[LinkConfig],
    horizon: SimDuration,
    seed: u64,
    replication: u64,
) -> Result<Vec<Fault>, RateError> {
    check(rates)?;
    let mut faults = Vec::new();
    for member in members(rates, topology, links) {
        draw(&member, horizon, seed, replication, &mut faults)?;
    }
    faults.sort_by_key(|fault| fault.at);
    Ok(faults)
}

fn check(rates: &Rates) -> Result<(), RateError> {
    let all = [
        ("device", rates.device),
        ("node", rates.node),
        ("zone", rates.zone),
        ("link", rates.link),
    ];
    for (what, rate) in all {
        if let Some(hours) = rate.map(|rate| rate.mtbf_hours)
            && !(hours.is_finite() && hours > 0.0)
        {
            return Err(RateError::NotATime { what, hours });
        }
    }
    Ok(())
}

fn members(rates: &Rates, topology: &Topology, links: &[LinkConfig]) -> Vec<Member> {
    let mut members = Vec::new();
    let mut add = |what, rate: Option<Rate>, name: String, kind| {
        let name = format!("{what} {name}");
        members.extend(rate.map(|rate| Member {
            what,
            name,
            rate,
            kind,
        }));
    };
    for (group, placement) in (0..).zip(&topology.groups) {
        for rank in 0..placement.ranks.len() as u32 {
            let name = format!("{rank} of group {}", placement.name);
            add("device", rates.device, name, FaultKind::RankCrash { group, rank });
        }
    }
    for (node, state) in (0..).zip(&topology.nodes) {
        add(
            "node",
            rates.node,
            state.name.clone(),
            FaultKind::NodeLoss { node },
        );
    }
    for (zone, name) in (0..).zip(&topology.zones) {
        add("zone", rates.zone, name.clone(), FaultKind::ZoneLoss { zone });
    }
    for (link, config) in (0..).zip(links) {
        add(
            "link",
            rates.link,
            config.name.clone(),
            FaultKind::LinkDown { link },
        );
    }
    members
}

/// Adds the faults of one part.
fn draw(
    member: &Member,
    horizon: SimDuration,
    seed: u64,
    replication: u64,
    faults: &mut Vec<Fault>,
) -> Result<(), RateError> {
    let mut rng = class_stream(seed, Purpose::Faults, replication, &member.name);
    let mean_s = member.rate.mtbf_hours * 3_600.0;
    let at_once =
        member.rate.repair == SimDuration::ZERO && matches!(member.kind, FaultKind::RankCrash { .. });
    let duration = (!at_once).then_some(member.rate.repair);
    let mut at = SimTime::ZERO;
    loop {
        let mean_times: f64 = Exp1.sample(&mut rng);
        // What no duration can hold is after any horizon.
        let Ok(gap) = SimDuration::try_from_secs_f64(mean_s * mean_times) else {
            return Ok(());
        };
        at += gap.max(SimDuration(1));
        if at.0 >= horizon.0 {
            return Ok(());
        }
        if faults.len() == MAX_FAULTS {
            return Err(RateError::TooMany {
                what: member.what,
                before: horizon,
            });
        }
        faults.push(Fault {
            at,
            duration,
            kind: member.kind,
        });
        at += member.rate.repair;
    }
}

#[cfg(test)]
#[path = "rates_tests.rs"]
mod tests;
