//! Faults begin and end.

use super::world::{Event, Fleet};
use crate::cluster::fault::{Fallback, FaultKind, groups_hit};
use crate::cluster::lifecycle::Phase;
use crate::cluster::ratio::Ratio;
use crate::record::Recorder;
use crate::sim::kernel::Class;
use crate::units::{SimDuration, SimTime};

impl<R: Recorder> Fleet<'_, R> {
    /// Puts the faults of the configuration among the events. One that lasts no time changes nothing.
    pub(super) fn schedule_faults(&mut self) {
        for (number, fault) in (0..).zip(&self.config.faults) {
            if fault.duration != Some(SimDuration::ZERO) {
                self.kernel.schedule(fault.at, Class::Fault, Event::Fault(number));
            }
        }
    }

    pub(super) fn fault_begins(&mut self, number: usize) {
        let fault = self.config.faults[number];
        let what = self.describe(&fault.kind);
        self.tell("fault", None, what);
        let lasts = fault.duration;
        let groups: Vec<u32> = groups_hit(&fault.kind, &self.config.topology);
        match fault.kind {
            FaultKind::RankCrash { .. } | FaultKind::GroupCrash { .. } => {
                self.lose(&groups, lasts, false, fault.kind.label());
            }
            FaultKind::NodeLoss { .. } | FaultKind::ZoneLoss { .. } => {
                self.lose(&groups, lasts, true, fault.kind.label());
            }
            FaultKind::SpotNotice { notice, .. } => {
                groups.iter().for_each(|&group| self.drain_group(group, None));
                self.end_after(number, notice);
            }
            FaultKind::SlowRank { factor, .. } => self.slow(&groups, number, factor, lasts),
            FaultKind::KernelFallback { on, factor } => {
                let groups = match on {
                    Fallback::Group(group) => vec![group],
                    Fallback::Revision(revision) => {
                        self.control.slow_revisions.push((number, revision, factor));
                        self.of_revision(revision)
                    }
                };
                self.slow(&groups, number, factor, lasts);
            }
            FaultKind::LinkDegradation { link, factor } => {
                self.set_link(link, factor);
                self.end_after_some(number, lasts);
            }
            FaultKind::LinkDown { link } => {
                self.set_link(link, Ratio::new(0, 1));
                self.end_after_some(number, lasts);
            }
            FaultKind::PrefixCacheFlush { .. } => groups.iter().for_each(|&group| self.flush(group)),
            FaultKind::WeightStoreSlow { factor } => {
                self.control.weight_slowdowns.push((number, factor));
                self.end_after_some(number, lasts);
            }
            FaultKind::StaleMetrics { age } => {
                self.control.stale.push((number, age));
                self.end_after_some(number, lasts);
            }
        }
    }

    /// A fault that lasts is over, or a spot node's notice is.
    pub(super) fn fault_ends(&mut self, number: usize) {
        let fault = self.config.faults[number];
        match fault.kind {
            FaultKind::SpotNotice { .. } => {
                let groups = groups_hit(&fault.kind, &self.config.topology);
                self.take_spot_node(&groups, fault.duration);
                return;
            }
            FaultKind::LinkDegradation { link, .. } | FaultKind::LinkDown { link } => {
                self.set_link(link, Ratio::ONE);
            }
            FaultKind::WeightStoreSlow { .. } => self.control.weight_slowdowns.retain(|(n, _)| *n != number),
            FaultKind::StaleMetrics { .. } => self.control.stale.retain(|(n, _)| *n != number),
            FaultKind::SlowRank { .. } | FaultKind::KernelFallback { .. } => {
                self.control.slow_revisions.retain(|(n, ..)| *n != number);
                for group in 0..self.groups.len() as u32 {
                    let slowdowns = &mut self.groups[group as usize].slowdowns;
                    let before = slowdowns.len();
                    slowdowns.retain(|(n, _)| *n != Some(number));
                    if slowdowns.len() < before {
                        self.apply_slowdowns(group);
                    }
                }
            }
            _ => {}
        }
        let what = self.describe(&fault.kind);
        self.tell("mended", None, what);
    }

    fn end_after(&mut self, number: usize, lasts: SimDuration) {
        let at = self.now() + lasts;
        self.kernel
            .schedule(at, Class::Fault, Event::Mended(number as u32));
    }

    fn end_after_some(&mut self, number: usize, lasts: Option<SimDuration>) {
        if let Some(lasts) = lasts {
            self.end_after(number, lasts);
        }
    }

    /// Groups are gone. They may start again after `away`, on new nodes if the old ones are lost.
    fn lose(&mut self, groups: &[u32], away: Option<SimDuration>, is_replaced: bool, why: &str) {
        let usable_from = self.now() + away.unwrap_or(SimDuration::ZERO);
        for &number in groups {
            let group = &mut self.groups[number as usize];
            group.usable_from = group.usable_from.max(usable_from);
            group.is_replaced |= is_replaced;
            self.crash_group(number, why);
        }
    }

    /// The provider takes a spot node: what is still there is lost, and what it held comes back elsewhere.
    fn take_spot_node(&mut self, groups: &[u32], away: Option<SimDuration>) {
        let restart = self.config.recovery.restart;
        for &number in groups {
            let (pool, revision) = (
                self.groups[number as usize].pool,
                self.groups[number as usize].revision,
            );
            match self.groups[number as usize].phase() {
                Phase::Failed => self.give_up_group(number),
                phase if phase.exists() => {
                    self.crash_group(number, "spot node taken");
                    // Nobody waits for this node to come back.
                    if self.groups[number as usize].phase() == Phase::Failed {
                        self.give_up_group(number);
                    }
                }
                _ => {}
            }
            if restart && away.is_none() {
                let group = self.add_group(pool, revision);
                self.start_group(group);
            }
        }
        if let (true, Some(away)) = (restart, away) {
            let at = self.now() + away;
            for &number in groups {
                let pool = self.groups[number as usize].pool;
                let revision = self.groups[number as usize].revision;
                let group = self.add_group(pool, revision);
                self.groups[group as usize].usable_from = at;
                self.kernel.schedule(
                    at,
                    Class::Fault,
                    Event::Stage {
                        group,
                        incarnation: 0,
                    },
                );
            }
        }
    }

    fn slow(&mut self, groups: &[u32], number: usize, factor: Ratio, lasts: Option<SimDuration>) {
        for &group in groups {
            self.groups[group as usize].slowdowns.push((Some(number), factor));
            self.apply_slowdowns(group);
        }
        self.end_after_some(number, lasts);
    }

    fn of_revision(&self, revision: u32) -> Vec<u32> {
        let numbered = (0..).zip(&self.groups);
        numbered
            .filter(|(_, g)| g.revision == revision)
            .map(|(n, _)| n)
            .collect()
    }

    fn flush(&mut self, number: u32) {
        for replica in self.groups[number as usize].replicas.clone() {
            self.touch(replica);
            self.replicas[replica as usize].replica.engine.flush_cache();
        }
        self.router.left(number);
        self.prefill_router.left(number);
    }

    /// A fault in the words of the scenario: names, not numbers.
    fn describe(&self, kind: &FaultKind) -> String {
        let node = |n: u32| {
            self.config
                .topology
                .nodes
                .get(n as usize)
                .map_or_else(|| n.to_string(), |n| n.name.clone())
        };
        let zone = |z: u32| {
            self.config
                .topology
                .zones
                .get(z as usize)
                .cloned()
                .unwrap_or_else(|| z.to_string())
        };
        let link = |l: u32| {
            self.network
                .link(l)
                .map_or_else(|| l.to_string(), |l| l.name.clone())
        };
        let times = |f: Ratio| format!("{:.3}", f64::from(f.numerator) / f64::from(f.denominator.max(1)));
        let label = kind.label();
        match *kind {
            FaultKind::RankCrash { group, rank } => format!("{label} {} rank {rank}", self.group_name(group)),
            FaultKind::GroupCrash { group } | FaultKind::PrefixCacheFlush { group } => {
                format!("{label} {}", self.group_name(group))
            }
            FaultKind::NodeLoss { node: n } | FaultKind::SpotNotice { node: n, .. } => {
                format!("{label} {}", node(n))
            }
            FaultKind::ZoneLoss { zone: z } => format!("{label} {}", zone(z)),
            FaultKind::SlowRank { group, factor } => {
                format!(
                    "{label} {}: steps take {} of their time",
                    self.group_name(group),
                    times(factor)
                )
            }
            FaultKind::LinkDegradation { link: l, factor } => {
                format!("{label} {}: {} of its bandwidth", link(l), times(factor))
            }
            FaultKind::LinkDown { link: l } => format!("{label} {}", link(l)),
            FaultKind::WeightStoreSlow { factor } => {
                format!("{label}: loading takes {} of its time", times(factor))
            }
            FaultKind::StaleMetrics { age } => format!("{label}: older by {:.3} s", age.as_secs_f64()),
            FaultKind::KernelFallback { on, factor } => {
                let on = match on {
                    Fallback::Group(group) => self.group_name(group),
                    Fallback::Revision(revision) => format!("revision {revision}"),
                };
                format!("{label} {on}: steps take {} of their time", times(factor))
            }
        }
    }

    /// When metrics read at `at` are seen: later, while they are stale.
    pub(super) fn seen_at(&self, at: SimTime) -> SimTime {
        self.control.stale.iter().fold(at, |at, (_, age)| at + *age)
    }
}
