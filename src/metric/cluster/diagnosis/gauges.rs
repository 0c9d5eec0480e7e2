//! Queues and seats of pools, by the gauges of their engines' steps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::curve::{gateway_queue, spans};
use super::super::options::ClusterOptions;
use super::PoolLimits;
use crate::cluster::lifecycle::Phase;
use crate::record::{ClusterRecord, GroupRecord, ReplicaRecord, RunRecord};
use crate::units::SimTime;

/// What a pool's groups do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Prompts, which other groups go on from.
    Prefill,
    /// Output after prompts that other groups computed.
    Decode,
    /// Prompts and output.
    Both,
}

/// A pool's queues in the judged time. Shares are of the time of its replicas ready or draining.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolQueues {
    /// Its name.
    pub pool: String,
    /// What its groups do.
    pub role: Role,
    /// Ready groups, mean.
    pub ready: f64,
    /// Of the time of its groups, the part in which they started or had failed.
    pub not_ready: Option<f64>,
    /// Devices compute.
    pub busy: Option<f64>,
    /// Requests wait after a step's schedule; at a decode pool those whose KV moves are among them.
    pub queued: Option<f64>,
    /// Of the time queued, every seat is taken.
    pub pinned: Option<f64>,
    /// Of the time queued, a seat is free and the free KV blocks cannot hold the next request.
    pub short: Option<f64>,
    /// Of the time queued, seats and KV blocks are free: each step has room for so many tokens only.
    pub room: Option<f64>,
    /// Every seat is taken, with a queue or without.
    pub full: Option<f64>,
    /// The same as `queued` of the group that it is longest at, and shortest at, of those ready for half of the time or more.
    pub queued_by_group: Option<[f64; 2]>,
    /// Running requests of all its replicas together, mean.
    pub running: Option<f64>,
    /// Waiting ones.
    pub waiting: Option<f64>,
    /// Seats of one replica.
    pub seats: u32,
    /// Running requests of a replica that runs any, mean over its steps.
    pub batch: Option<f64>,
    /// A step, mean, in seconds.
    pub step_s: Option<f64>,
    /// Preemptions in the whole run.
    pub preemptions: u64,
    /// Of the time that its devices compute in the whole run, the part in steps with prompt tokens.
    #[serde(skip)]
    #[schemars(skip)]
    pub on_prompts: Option<f64>,
}

/// Nanoseconds, or requests times nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    serving: u128,
    away: u128,
    ready: u128,
    busy: u128,
    steps: u128,
    queued: u128,
    pinned: u128,
    short: u128,
    room: u128,
    full: u128,
    running: u128,
    running_busy: u128,
    waiting: u128,
}

/// Queues of each pool.
pub(super) fn pools(
    run: &RunRecord,
    cluster: &ClusterRecord,
    options: &ClusterOptions,
    judged: (SimTime, SimTime),
) -> Vec<PoolQueues> {
    let mut is_prefill = vec![false; cluster.pools.len()];
    for group in cluster.jobs.iter().filter_map(|j| j.prefill_group) {
        if let Some(group) = cluster.groups.get(group as usize)
            && let Some(slot) = is_prefill.get_mut(group.pool as usize)
        {
            *slot = true;
        }
    }
    let apart = is_prefill.iter().any(|&p| p);
    let served: u64 = run.requests.iter().map(|r| u64::from(r.input_tokens)).sum();
    let prompt = served as f64 / run.requests.len().max(1) as f64;
    let pools = (0_u32..).zip(&cluster.pools).zip(is_prefill);
    pools
        .map(|((number, name), is_prefill)| {
            let role = match (apart, is_prefill) {
                (false, _) => Role::Both,
                (true, true) => Role::Prefill,
                (true, false) => Role::Decode,
            };
            let limits = options.limits.get(name).copied().unwrap_or_default();
            let limits = PoolLimits {
                // A decode leg needs blocks for its whole prompt at once.
                first_chunk: limits.first_chunk.filter(|_| role != Role::Decode),
                ..limits
            };
            let groups = cluster.groups.iter().filter(|g| g.pool == number);
            let need = need_of(prompt, &limits);
            let sums: Vec<Sums> = groups
                .map(|g| of_group(g, run, (&limits, need), judged))
                .collect();
            let replicas = || {
                let groups = cluster.groups.iter().filter(|g| g.pool == number);
                let replicas = groups.flat_map(|g| &g.replicas);
                replicas.filter_map(|&r| run.replicas.get(r as usize))
            };
            let on_prompts: u128 = replicas().map(|r| u128::from(r.busy.prefill.0)).sum();
            let on_output: u128 = replicas().map(|r| u128::from(r.busy.decode.0)).sum();
            PoolQueues {
                preemptions: replicas().map(|r| r.preemptions).sum(),
                on_prompts: ratio(on_prompts, on_prompts + on_output),
                ..figures(name, role, limits.seats, &sums, judged)
            }
        })
        .collect()
}

/// Blocks that the mean prompt needs to be let in.
fn need_of(prompt: f64, limits: &PoolLimits) -> u64 {
    let tokens = limits.first_chunk.map_or(prompt, |c| prompt.min(f64::from(c)));
    let blocks = (tokens / f64::from(limits.block_size.max(1))).ceil() as u64;
    blocks + u64::from(limits.reserved_blocks)
}

fn of_group(
    group: &GroupRecord,
    run: &RunRecord,
    (limits, need): (&PoolLimits, u64),
    judged: (SimTime, SimTime),
) -> Sums {
    let mut sums = Sums::default();
    let ranks = group.replicas.len().max(1) as u128;
    for (from, to, phase) in spans(group, run.end) {
        let (from, to) = (from.max(judged.0), to.min(judged.1));
        let lasts = u128::from(to.since(from).as_nanos());
        match phase {
            Phase::Absent | Phase::Stopped => {}
            Phase::Starting(_) | Phase::Failed => sums.away += lasts,
            Phase::Ready | Phase::Draining => {
                sums.serving += lasts * ranks;
                sums.ready += if phase == Phase::Ready { lasts } else { 0 };
                let replicas = group.replicas.iter();
                for replica in replicas.filter_map(|&r| run.replicas.get(r as usize)) {
                    sums.read(replica, (limits, need), (from, to));
                }
            }
        }
    }
    sums
}

impl Sums {
    /// The gauges of a replica's steps in an interval. A step's stand until the next one starts, if requests wait or that
    /// is soon; a replica that has run dry has none.
    fn read(
        &mut self,
        replica: &ReplicaRecord,
        (limits, need): (&PoolLimits, u64),
        (from, to): (SimTime, SimTime),
    ) {
        let ends = &replica.step_ends;
        let steps = replica.step_starts.len().min(ends.len());
        let steps = steps.min(replica.running.len()).min(replica.waiting.len());
        let first = ends.partition_point(|&end| end <= from).saturating_sub(1);
        for (i, &end) in ends.iter().enumerate().take(steps).skip(first) {
            let start = replica.step_starts[i];
            if start >= to {
                break;
            }
            let (running, waiting) = (u128::from(replica.running[i]), u128::from(replica.waiting[i]));
            let next = replica.step_starts.get(i + 1).copied();
            let soon = next.filter(|n| waiting > 0 || n.since(end) <= end.since(start));
            let upto = soon.unwrap_or(if waiting > 0 { to } else { end }).max(start);
            let within = |a: SimTime, b: SimTime| u128::from(b.min(to).since(a.max(from)).as_nanos());
            let lasts = within(start, upto);
            // A device does one thing at a time; a step that is scheduled ahead waits for the one before.
            let before = i.checked_sub(1).map_or(start, |i| ends[i]);
            let computes = within(start.max(before).min(end), end);
            self.busy += computes;
            self.running_busy += computes * running;
            self.steps += u128::from(start >= from && computes > 0);
            self.running += lasts * running;
            self.waiting += lasts * waiting;
            let is_full = running >= u128::from(limits.seats);
            self.full += if is_full { lasts } else { 0 };
            if waiting == 0 {
                continue;
            }
            self.queued += lasts;
            let free = replica.free_blocks.get(i).map(|&f| u64::from(f));
            let cause = match free {
                _ if is_full => &mut self.pinned,
                Some(free) if free < need => &mut self.short,
                _ => &mut self.room,
            };
            *cause += lasts;
        }
    }

    fn add(&mut self, o: &Self) {
        self.serving += o.serving;
        self.away += o.away;
        self.ready += o.ready;
        self.busy += o.busy;
        self.steps += o.steps;
        self.queued += o.queued;
        self.pinned += o.pinned;
        self.short += o.short;
        self.room += o.room;
        self.full += o.full;
        self.running += o.running;
        self.running_busy += o.running_busy;
        self.waiting += o.waiting;
    }
}

fn ratio(part: u128, whole: u128) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn figures(name: &str, role: Role, seats: u32, groups: &[Sums], judged: (SimTime, SimTime)) -> PoolQueues {
    let mut all = Sums::default();
    groups.iter().for_each(|g| all.add(g));
    let judged_ns = u128::from(judged.1.since(judged.0).as_nanos());
    // Of a group that was there for a short while, a queue says little.
    let stayed = groups.iter().filter(|g| 2 * g.ready >= judged_ns);
    let by_group: Vec<f64> = stayed.filter_map(|g| ratio(g.queued, g.serving)).collect();
    let most = by_group.iter().copied().reduce(f64::max);
    let least = by_group.iter().copied().reduce(f64::min);
    let of_group = |part| ratio(part, all.away + all.ready);
    PoolQueues {
        pool: name.to_owned(),
        role,
        ready: ratio(all.ready, judged_ns).unwrap_or(0.0),
        not_ready: of_group(all.away),
        busy: ratio(all.busy.min(all.serving), all.serving),
        queued: ratio(all.queued, all.serving),
        pinned: ratio(all.pinned, all.queued),
        short: ratio(all.short, all.queued),
        room: ratio(all.room, all.queued),
        full: ratio(all.full, all.serving),
        queued_by_group: most.zip(least).map(|(most, least)| [most, least]),
        running: ratio(all.running, judged_ns),
        waiting: ratio(all.waiting, judged_ns),
        seats,
        batch: ratio(all.running_busy, all.busy),
        step_s: ratio(all.busy, all.steps).map(|ns| ns / 1e9),
        preemptions: 0,
        on_prompts: None,
    }
}

/// Share of the judged time in which requests wait at the gateway.
pub(super) fn gateway_queued(cluster: &ClusterRecord, (from, to): (SimTime, SimTime)) -> f64 {
    let queue = gateway_queue(cluster);
    let seconds = to.since(from).as_secs_f64();
    if seconds <= 0.0 {
        return 0.0;
    }
    queue.integral(from, to, |n| if n > 0 { 1.0 } else { 0.0 }) / seconds
}
