//! What a cluster's run cost and burnt.

use std::collections::BTreeMap;

use super::ClusterError;
use super::curve::spans;
use super::good::Good;
use super::groups::{self, PoolFigures};
use super::options::{ClusterOptions, PoolFacts};
use super::phases::steps_of;
use crate::cluster::lifecycle::{Phase, Stage};
use crate::metric::cost::{Cost, PoolHours, ServedWork};
use crate::metric::energy::{Devices, Energy, Interval, PowerModel, Work};
use crate::record::{Busy, ClusterRecord, DummySteps, GroupRecord, ReplicaRecord, ReplicaTotals, RunRecord};
use crate::units::{SimDuration, SimTime};

/// What was served for it.
pub fn served(run: &RunRecord, good: &Good) -> ServedWork {
    let started = || run.requests.iter().filter(|r| r.first_scheduled.is_some());
    ServedWork {
        good_requests: good.requests(),
        input_tokens: started().map(|r| u64::from(r.input_tokens)).sum(),
        output_tokens: run.requests.iter().map(|r| u64::from(r.output_tokens)).sum(),
        good_output_tokens: good.output_tokens,
    }
}

/// The cost, if every pool has a price; all time of groups is paid for, also of those that failed. `lost_share` of busy time
/// was for nothing.
///
/// # Errors
/// [`ClusterError::Cost`] for prices that are none.
pub fn cost(
    run: &RunRecord,
    pools: &[PoolFigures],
    options: &ClusterOptions,
    served: &ServedWork,
    lost_share: f64,
) -> Result<Option<Cost>, ClusterError> {
    let priced = pools.iter().map(|pool| {
        let facts = options.pools.get(&pool.pool)?;
        Some(PoolHours {
            pool: pool.pool.clone(),
            price: facts.price.clone()?,
            instances_per_group: facts.instances_per_group,
            group_hours: pool.phases.hours(),
            busy_share_lost: lost_share.clamp(0.0, 1.0),
        })
    });
    let Some(priced) = priced
        .collect::<Option<Vec<PoolHours>>>()
        .filter(|p| !p.is_empty())
    else {
        return Ok(None);
    };
    let wall_hours = run.end.as_secs_f64() / 3_600.0;
    Ok(Some(Cost::of(&priced, &options.other_costs, wall_hours, served)?))
}

/// A run of which nothing is known but how long its replicas were busy.
fn busy_alone(busy: impl Iterator<Item = Busy>, end: SimTime) -> RunRecord {
    let of = |busy| ReplicaRecord {
        busy,
        ..ReplicaRecord::default()
    };
    RunRecord {
        replicas: busy.map(of).collect(),
        end,
        ..RunRecord::default()
    }
}

/// How busy all groups were of the time in which they were ready or draining: of groups that come and go, a share of the
/// wall clock says nothing. Null when there was no such time.
pub fn busy_share(cluster: &ClusterRecord, busy: impl Iterator<Item = Busy>, end: SimTime) -> Option<f64> {
    let run = busy_alone(busy, end);
    groups::together("all", groups::sums(&run, cluster).iter())
        .busy
        .utilisation
}

/// Cost and energy of a run whose requests and steps were not kept: groups' phases and busy times tell both.
///
/// # Errors
/// [`ClusterError`] for prices and power that make no sense.
pub fn streamed_account(
    (cluster, replicas, end): (&ClusterRecord, &[ReplicaTotals], SimTime),
    options: &ClusterOptions,
    served: &ServedWork,
) -> Result<(Option<Cost>, Option<Energy>), ClusterError> {
    let run = busy_alone(replicas.iter().map(|totals| totals.busy), end);
    let pools = groups::pool_figures(cluster, &groups::sums(&run, cluster), end);
    let cost = cost(&run, &pools, options, served, 0.0)?;
    Ok((cost, energy(&run, cluster, options, served)?))
}

/// Whether the record has the steps of a run that computed something. A replica alone may be busy without any: its first
/// one broke off.
pub fn steps_were_kept(run: &RunRecord) -> bool {
    let idle = run.replicas.iter().all(|r| r.busy == Busy::default());
    idle || run.replicas.iter().any(|r| !r.step_ends.is_empty())
}

/// One rank's devices.
struct RankPower<'a> {
    power: &'a PowerModel,
    devices: u32,
    powered: Vec<(SimTime, SimTime)>,
    /// Prompts first, output tokens then, in every stretch of computing.
    apart: Vec<Interval>,
    /// Both at once: what is at an instant, as far as the record tells.
    mixed: Vec<Interval>,
}

/// The energy, if every pool's accelerators have a power model. A group draws power from the end of its provisioning until
/// it fails or stops.
///
/// Dummy batches draw what a decode does, and are told apart from both.
///
/// The record tells how long a replica computed prompts and output tokens in all, and when it computed, but not which it
/// was when: joules are exact, the peak takes every stretch of computing at the replica's mean power. Where pools are
/// disaggregated that is next to exact.
///
/// # Errors
/// [`ClusterError::Energy`] for power models and a PUE that make no sense.
pub fn energy(
    run: &RunRecord,
    cluster: &ClusterRecord,
    options: &ClusterOptions,
    served: &ServedWork,
) -> Result<Option<Energy>, ClusterError> {
    let mut ranks = Vec::new();
    let mut dummies: BTreeMap<u32, Vec<DummySteps>> = BTreeMap::new();
    for dummy in &cluster.dummy_steps {
        dummies.entry(dummy.replica).or_default().push(*dummy);
    }
    for group in &cluster.groups {
        let facts = cluster
            .pools
            .get(group.pool as usize)
            .and_then(|name| options.pools.get(name));
        let Some((facts, power)) = facts.and_then(|f| Some((f, f.power.as_ref()?))) else {
            return Ok(None);
        };
        ranks.extend(ranks_of(group, run, &dummies, (facts, power)));
    }
    if ranks.is_empty() {
        return Ok(None);
    }
    let of = |mixed: bool, pue| {
        let devices: Vec<Devices<'_>> = ranks
            .iter()
            .map(|rank| Devices {
                power: rank.power,
                count: rank.devices,
                powered: &rank.powered,
                intervals: if mixed { &rank.mixed } else { &rank.apart },
            })
            .collect();
        Energy::of(&devices, served, pue)
    };
    let mut energy = of(false, options.pue.clone())?;
    energy.peak_w = if steps_were_kept(run) {
        of(true, None)?.peak_w
    } else {
        None
    };
    Ok(Some(energy))
}

fn ranks_of<'a>(
    group: &'a GroupRecord,
    run: &'a RunRecord,
    dummies: &'a BTreeMap<u32, Vec<DummySteps>>,
    (facts, power): (&'a PoolFacts, &'a PowerModel),
) -> impl Iterator<Item = RankPower<'a>> {
    let powered = powered(group, run.end);
    let ranks = group.replicas.len().max(1) as u32;
    (0..).zip(&group.replicas).filter_map(move |(place, &number)| {
        let replica = run.replicas.get(number as usize)?;
        let stretches = stretches(replica, &powered);
        let dummies = dummies.get(&number).map_or(&[] as &[DummySteps], Vec::as_slice);
        let dummies = dummy_spans(replica, dummies, &powered);
        let with_dummies = |mut intervals: Vec<Interval>| {
            intervals.extend(dummies.iter().map(|&span| interval(span, DUMMY)));
            intervals.sort_by_key(|i| i.start);
            intervals
        };
        let prefill = replica.busy.prefill.as_nanos() as f64;
        let share = prefill / (prefill + replica.busy.decode.as_nanos() as f64).max(1.0);
        Some(RankPower {
            power,
            // Devices that do not divide by the ranks are dealt out, the first ranks getting one more.
            devices: facts.accelerators_per_group / ranks
                + u32::from(place < facts.accelerators_per_group % ranks),
            apart: with_dummies(apart(&stretches, share)),
            mixed: with_dummies(
                stretches
                    .iter()
                    .map(|&span| interval(span, mixed(share)))
                    .collect(),
            ),
            powered: powered.clone(),
        })
    })
}

/// When a group's devices had power: neighbouring phases are one span.
fn powered(group: &GroupRecord, end: SimTime) -> Vec<(SimTime, SimTime)> {
    let has_power = |phase| phase != Phase::Starting(Stage::Provision) && Phase::exists(phase);
    let mut powered: Vec<(SimTime, SimTime)> = Vec::new();
    for (from, to, _) in spans(group, end).filter(|&(_, _, phase)| has_power(phase)) {
        match powered.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => powered.push((from, to)),
        }
    }
    powered
}

/// When a replica computed, within the time with power; steps without a gap are one stretch. Without steps its busy time is
/// laid to the beginning.
fn stretches(replica: &ReplicaRecord, powered: &[(SimTime, SimTime)]) -> Vec<(SimTime, SimTime)> {
    if replica.step_ends.is_empty() {
        return laid(
            powered,
            SimDuration::ZERO,
            replica.busy.prefill + replica.busy.decode,
        );
    }
    let mut stretches: Vec<(SimTime, SimTime)> = Vec::new();
    let mut spans = powered.iter().copied().peekable();
    for (start, end) in steps_of(replica, 0) {
        while spans.next_if(|&(_, to)| to <= start).is_some() {}
        let Some(&(from, to)) = spans.peek() else { break };
        let (start, end) = (start.max(from), end.min(to));
        match stretches.last_mut() {
            _ if start >= end => {}
            Some(last) if last.1 == start && last.0 >= from => last.1 = end,
            _ => stretches.push((start, end)),
        }
    }
    stretches
}

/// So much of the time with power, after so much of it.
fn laid(
    powered: &[(SimTime, SimTime)],
    mut after: SimDuration,
    mut left: SimDuration,
) -> Vec<(SimTime, SimTime)> {
    let laid = powered.iter().map(|&(from, to)| {
        let skipped = after.min(to.since(from));
        after = SimDuration(after.0 - skipped.0);
        let from = from + skipped;
        let takes = left.min(to.since(from));
        left = SimDuration(left.0 - takes.0);
        (from, from + takes)
    });
    laid.filter(|(from, to)| from < to).collect()
}

/// When a replica computed dummy batches, within the time with power; without steps their time is laid behind its busy
/// time.
fn dummy_spans(
    replica: &ReplicaRecord,
    dummies: &[DummySteps],
    powered: &[(SimTime, SimTime)],
) -> Vec<(SimTime, SimTime)> {
    if replica.step_ends.is_empty() {
        let all = dummies
            .iter()
            .fold(SimDuration::ZERO, |sum, d| sum + d.to.since(d.from));
        return laid(powered, replica.busy.prefill + replica.busy.decode, all);
    }
    let within = |d: &DummySteps| {
        let &(from, to) = powered.iter().find(|&&(_, to)| d.from < to)?;
        Some((d.from.max(from), d.to.min(to)))
    };
    let spans = dummies.iter().filter_map(within);
    spans.filter(|(from, to)| from < to).collect()
}

/// A dummy batch, as far as its power is known: that of a decode.
const DUMMY: Work = Work::Dummy {
    compute: 0.0,
    memory: 0.0,
};

/// Utilisations are not known; models of power by phase need none.
const fn mixed(prefill_share: f64) -> Work {
    Work::Mixed {
        compute: 0.0,
        memory: 0.0,
        prefill_share,
    }
}

const fn interval((start, end): (SimTime, SimTime), work: Work) -> Interval {
    Interval { start, end, work }
}

/// Each stretch cut in two, such that the cuts add up to the share without rounding errors adding up.
fn apart(stretches: &[(SimTime, SimTime)], share: f64) -> Vec<Interval> {
    let (compute, memory) = (0.0, 0.0);
    let (mut busy_ns, mut prompts_ns) = (0_u64, 0_u64);
    let cut = |&(start, end): &(SimTime, SimTime)| {
        busy_ns += end.since(start).as_nanos();
        let prompts = ((busy_ns as f64 * share).round() as u64).saturating_sub(prompts_ns);
        let middle = (start + SimDuration(prompts)).min(end);
        prompts_ns += middle.since(start).as_nanos();
        [
            interval((start, middle), Work::Prefill { compute, memory }),
            interval((middle, end), Work::Decode { compute, memory }),
        ]
    };
    let halves = stretches.iter().flat_map(cut);
    halves.filter(|i| i.start < i.end).collect()
}
