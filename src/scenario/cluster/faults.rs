//! `faults` and `fault_rates`: from names to numbers.

use super::super::check::Blame;
use super::super::provenance::Source;
use super::super::quantity::Finite;
use super::super::schema::{FaultEvent, FaultRate, FaultWord, Scenario};
use super::Filling;
use super::control::RATIO;
use crate::cluster::fault::{
    DEVICE_MTBF_HOURS, Fallback, Fault, FaultError, FaultKind, HOST_MTBF_DEVICE_HOURS, MAX_FAULTS, Rate,
    Rates, SPOT_NOTICE, validate,
};
use crate::cluster::link::LinkConfig;
use crate::cluster::ratio::Ratio;
use crate::cluster::topology::Topology;
use crate::input::InputError;
use crate::sim::fleet::PoolConfig;
use crate::units::{SimDuration, SimTime, written};

/// A factor as a ratio of whole numbers, to a millionth; `None` for what is none.
pub(super) fn ratio(factor: f64) -> Option<Ratio> {
    const MILLION: u32 = 1_000_000;
    if !(1e-6..=4_000.0).contains(&factor) {
        return None;
    }
    let (mut a, mut b) = ((factor * f64::from(MILLION)).round() as u32, MILLION);
    let numerator = a;
    while b > 0 {
        (a, b) = (b, a % b);
    }
    Some(Ratio::new(numerator / a, MILLION / a))
}

/// What faults can name, by number.
#[derive(Debug)]
pub(super) struct Names<'a> {
    topology: &'a Topology,
    /// The links of the scenario, then the adapters of the groups as the run numbers them.
    links: Vec<LinkConfig>,
}

impl<'a> Names<'a> {
    pub fn new(topology: &'a Topology, links: &[LinkConfig], pools: &[PoolConfig]) -> Self {
        let adapters = pools.iter().flat_map(|pool| {
            let slots = 0..pool.max_groups;
            slots.flat_map(move |slot| ["out", "in"].map(|way| format!("{}/{slot} {way}", pool.name)))
        });
        let mut all = links.to_vec();
        // Adapters carry something only where KV is moved.
        if pools.len() > 1 {
            all.extend(adapters.map(|name| LinkConfig {
                name,
                bandwidth_bytes_per_s: u64::MAX,
                latency: SimDuration::ZERO,
            }));
        }
        Self { topology, links: all }
    }

    fn all(&self, what: &str) -> Vec<&str> {
        match what {
            "group" => self.topology.groups.iter().map(|g| g.name.as_str()).collect(),
            "node" => self.topology.nodes.iter().map(|n| n.name.as_str()).collect(),
            "zone" => self.topology.zones.iter().map(String::as_str).collect(),
            _ => self.links.iter().map(|l| l.name.as_str()).collect(),
        }
    }

    /// The number of what is called so.
    fn number(&self, what: &str, given: Option<&String>, at: &Where<'_>) -> Result<u32, InputError> {
        let path = format!("{}.{what}", at.path);
        let names = self.all(what);
        let listed = || {
            let some = names.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
            let more = if names.len() > LISTED { ", ..." } else { "" };
            match names.len() {
                0 => format!("there are no {what}s"),
                n => format!("{n} {what}s: {some}{more}"),
            }
        };
        let Some(given) = given else {
            return Err(at
                .blame
                .error(&path, "it is missing: this kind of fault needs it", listed()));
        };
        let found = names.iter().position(|name| name == given);
        found.and_then(|n| u32::try_from(n).ok()).ok_or_else(|| {
            let error = at
                .blame
                .error(&path, format!("there is no {what} '{given}'"), listed());
            error.nearest_of(given, names.iter().copied())
        })
    }
}

/// Names that a message lists.
const LISTED: usize = 12;

/// The fault that is looked at.
#[derive(Debug)]
struct Where<'a> {
    path: String,
    blame: &'a Blame<'a>,
}

/// The stated faults, checked, in the order of time.
pub(super) fn resolve(
    scenario: &Scenario,
    names: &Names<'_>,
    blame: &Blame<'_>,
) -> Result<Vec<Fault>, InputError> {
    if scenario.faults.len() > MAX_FAULTS {
        let found = format!("found {} faults", scenario.faults.len());
        return Err(blame.error("faults", found, format!("allowed: up to {MAX_FAULTS}")));
    }
    let mut faults = Vec::new();
    for (i, event) in scenario.faults.iter().enumerate() {
        let at = Where {
            path: format!("faults.{i}"),
            blame,
        };
        revision_comes(event, scenario, &at)?;
        faults.push(Fault {
            at: SimTime::ZERO + event.at.0,
            duration: event.lasts.map(|s| s.0),
            kind: kind(event, names, &at)?,
        });
    }
    validate(&faults, names.topology, &names.links).map_err(|e| refused(&e, names, blame))?;
    faults.sort_by_key(|f| f.at);
    Ok(faults)
}

/// A fault of a revision that no group will ever have would befall nobody.
fn revision_comes(event: &FaultEvent, scenario: &Scenario, at: &Where<'_>) -> Result<(), InputError> {
    let mut pools = scenario.cluster.pools.iter().flatten();
    let (found, mend) = match event.revision {
        None | Some(0) => return Ok(()),
        Some(1) if pools.any(|pool| pool.rollout.is_some()) => return Ok(()),
        Some(1) => (
            "no pool has a rollout, so revision 1 never comes".to_owned(),
            "give a pool a rollout, or take revision 0, which all groups are of, or name a group",
        ),
        Some(n) => (format!("found revision {n}"), "allowed: 0, or 1 after a rollout"),
    };
    Err(at.blame.error(&format!("{}.revision", at.path), found, mend))
}

fn refused(error: &FaultError, names: &Names<'_>, blame: &Blame<'_>) -> InputError {
    let (index, mend) = match error {
        FaultError::NoSuch { index, .. }
        | FaultError::ZeroFactor { index, .. }
        | FaultError::NoFault { index, .. } => (*index, "mend that fault"),
        FaultError::NoSuchRank { index, .. } => (*index, "ranks of a group are its devices, counted from 0"),
        FaultError::Instant { index, .. } => (*index, "leave `for` out"),
        FaultError::Overlap { second, .. } => (*second, "each may happen again when it is over"),
    };
    let mut text = error.to_string();
    // Numbers mean nothing to who wrote names.
    if let FaultError::Overlap { target, .. } = error {
        let (what, number) = match target {
            crate::cluster::fault::Target::Group(n) => ("group", *n),
            crate::cluster::fault::Target::Node(n) => ("node", *n),
            crate::cluster::fault::Target::Zone(n) => ("zone", *n),
            crate::cluster::fault::Target::Link(n) => ("link", *n),
            _ => ("", 0),
        };
        if let Some(name) = names.all(what).get(number as usize).filter(|_| !what.is_empty()) {
            text = text.replace(&format!("on {target}"), &format!("on {what} {name}"));
        }
    }
    blame.error(&format!("faults.{index}"), text, mend)
}

fn kind(e: &FaultEvent, names: &Names<'_>, at: &Where<'_>) -> Result<FaultKind, InputError> {
    check_keys(e, at)?;
    let factor = || {
        let path = format!("{}.factor", at.path);
        let Some(Finite(factor)) = e.factor else {
            return Err(at
                .blame
                .error(&path, "it is missing: this kind of fault needs it", RATIO));
        };
        ratio(factor).ok_or_else(|| at.blame.error(&path, format!("found {}", written(factor)), RATIO))
    };
    let group = || names.number("group", e.group.as_ref(), at);
    let node = || names.number("node", e.node.as_ref(), at);
    let link = || names.number("link", e.link.as_ref(), at);
    Ok(match e.kind {
        FaultWord::RankCrash => FaultKind::RankCrash {
            group: group()?,
            rank: e.rank.unwrap_or(0),
        },
        FaultWord::GroupCrash => FaultKind::GroupCrash { group: group()? },
        FaultWord::NodeLoss => FaultKind::NodeLoss { node: node()? },
        FaultWord::ZoneLoss => FaultKind::ZoneLoss {
            zone: names.number("zone", e.zone.as_ref(), at)?,
        },
        FaultWord::SlowRank => FaultKind::SlowRank {
            group: group()?,
            factor: factor()?,
        },
        FaultWord::LinkDegradation => FaultKind::LinkDegradation {
            link: link()?,
            factor: factor()?,
        },
        FaultWord::LinkDown => FaultKind::LinkDown { link: link()? },
        FaultWord::PrefixCacheFlush => FaultKind::PrefixCacheFlush { group: group()? },
        FaultWord::WeightStoreSlow => FaultKind::WeightStoreSlow { factor: factor()? },
        FaultWord::StaleMetrics => FaultKind::StaleMetrics {
            age: e.age.map(|s| s.0).ok_or_else(|| {
                let path = format!("{}.age", at.path);
                at.blame.error(
                    &path,
                    "it is missing: this kind of fault needs it",
                    "give a duration",
                )
            })?,
        },
        FaultWord::KernelFallback => FaultKind::KernelFallback {
            on: match e.revision {
                Some(revision) => Fallback::Revision(revision),
                None => Fallback::Group(group()?),
            },
            factor: factor()?,
        },
        FaultWord::SpotNotice => FaultKind::SpotNotice {
            node: node()?,
            notice: e.notice.map_or(SPOT_NOTICE, |s| s.0),
        },
    })
}

/// Keys that a kind of fault knows nothing of.
fn check_keys(e: &FaultEvent, at: &Where<'_>) -> Result<(), InputError> {
    use FaultWord as W;
    let of_group = matches!(
        e.kind,
        W::RankCrash | W::GroupCrash | W::SlowRank | W::PrefixCacheFlush | W::KernelFallback
    );
    let of_factor = matches!(
        e.kind,
        W::SlowRank | W::LinkDegradation | W::WeightStoreSlow | W::KernelFallback
    );
    let fallback = e.kind == W::KernelFallback;
    let keys = [
        (
            "group",
            e.group.is_some(),
            of_group && !(fallback && e.revision.is_some()),
        ),
        ("rank", e.rank.is_some(), e.kind == W::RankCrash),
        (
            "node",
            e.node.is_some(),
            matches!(e.kind, W::NodeLoss | W::SpotNotice),
        ),
        ("zone", e.zone.is_some(), e.kind == W::ZoneLoss),
        (
            "link",
            e.link.is_some(),
            matches!(e.kind, W::LinkDegradation | W::LinkDown),
        ),
        ("revision", e.revision.is_some(), fallback),
        ("factor", e.factor.is_some(), of_factor),
        ("age", e.age.is_some(), e.kind == W::StaleMetrics),
        ("notice", e.notice.is_some(), e.kind == W::SpotNotice),
    ];
    for (key, given, known) in keys {
        if given && !known {
            let mend = "this kind of fault does not know it: leave it out";
            at.blame.absent(&format!("{}.{key}", at.path), Some(&()), mend)?;
        }
    }
    Ok(())
}

/// The rates of `fault_rates`, and until when faults are drawn, if that is said.
pub(super) fn rates(
    scenario: &mut Scenario,
    topology: &Topology,
    links: &[LinkConfig],
    f: &mut Filling<'_>,
) -> Result<Option<(Rates, Option<SimDuration>)>, InputError> {
    let Some(r) = &mut scenario.fault_rates else {
        return Ok(None);
    };
    if r.link.is_some() && links.is_empty() {
        let mend = "name some there, or leave this out: adapters of groups fail by stated faults alone";
        return Err(f.error("fault_rates.link", "there are no links under cluster.links", mend));
    }
    let devices: usize = topology.groups.iter().map(|g| g.ranks.len()).sum();
    let a_node = devices as f64 / topology.nodes.len().max(1) as f64;
    let host = HOST_MTBF_DEVICE_HOURS / a_node.max(1.0);
    let rates = Rates {
        device: rate("device", r.device.as_mut(), Some(DEVICE_MTBF_HOURS), f)?,
        node: rate("node", r.node.as_mut(), Some(host), f)?,
        zone: rate("zone", r.zone.as_mut(), None, f)?,
        link: rate("link", r.link.as_mut(), None, f)?,
    };
    Ok(Some((rates, r.until.map(|s| s.0))))
}

fn rate(
    what: &str,
    given: Option<&mut FaultRate>,
    published: Option<f64>,
    f: &mut Filling<'_>,
) -> Result<Option<Rate>, InputError> {
    let Some(given) = given else {
        return Ok(None);
    };
    let parent = format!("fault_rates.{what}");
    let path = format!("{parent}.mtbf_hours");
    f.blame().positive(&path, given.mtbf_hours)?;
    if let Some(hours) = published {
        let from = Source::Derived("54 days of Llama 3 405B on 16,384 H100, as published".to_owned());
        f.fill(&parent, "mtbf_hours", &mut given.mtbf_hours, from, Finite(hours));
    }
    let Some(Finite(mtbf_hours)) = given.mtbf_hours else {
        let mend = format!("no figure is published for a {what}: give the mean hours between its faults");
        return Err(f.error(&path, "it is missing", mend));
    };
    Ok(Some(Rate {
        mtbf_hours,
        repair: given.repair.0,
    }))
}
