//! Gaps between the chunks of tokens that requests received, without expanding a token.
//!
//! A chunk is what arrives at one instant: one token, or several with speculative decoding. A gap lies between
//! two consecutive chunks of one request, as vLLM counts inter-token latency (rules M4, M13 and M14): k tokens
//! in one chunk make one gap, not k. In a simulated run a request that decodes through steps 10..1000 of its
//! replica sees the gaps of those steps; a difference array over the steps counts, for each step, how many
//! requests saw its gap. Cost: O(steps + segments).

use std::ops::Range;

use super::percentile::Sample;
use crate::record::{ReplicaRecord, RequestRecord, RunRecord, Segment, TokenLog};
use crate::units::SimTime;

/// Steps per entry of the coarse maxima: about the root of the steps in which a request decodes.
const BLOCK: usize = 16;

/// The step gaps of a run, ready for questions about single requests and about all of them.
#[derive(Debug)]
pub struct TokenGaps<'a> {
    replicas: Vec<StepGaps<'a>>,
}

#[derive(Debug)]
struct StepGaps<'a> {
    ends: &'a [SimTime],
    /// The largest gap of each block of steps.
    block_max: Vec<u64>,
    /// How many of the gaps of the first `i` steps exceed the limit; empty without a limit.
    over_limit: Vec<u32>,
}

/// Something for each step of each replica, with how many requests saw it, and what single requests saw besides.
#[derive(Debug)]
struct Seen<'a, T> {
    /// Ends of a replica's steps, and how many requests each concerns.
    steps: Vec<(&'a [SimTime], Vec<u32>)>,
    single: Vec<T>,
}

/// The gaps that requests saw, pooled.
#[derive(Debug)]
pub struct PooledGaps<'a>(Seen<'a, u64>);

/// The instants at which requests received chunks.
#[derive(Debug)]
pub struct ChunkInstants<'a>(Seen<'a, SimTime>);

/// What one request saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GapProfile {
    /// Chunks received.
    pub chunks: u64,
    /// The longest gap between two of them, in nanoseconds; `None` with fewer than two chunks.
    pub longest_ns: Option<u64>,
    /// Gaps longer than the limit given to [`TokenGaps::new`]; 0 without one.
    pub over_limit: u64,
}

impl GapProfile {
    pub(super) fn see(&mut self, gap: u64, limit: Option<u64>) {
        self.longest_ns = self.longest_ns.max(Some(gap));
        self.over_limit += u64::from(limit.is_some_and(|l| gap > l));
    }

    /// Gaps seen.
    pub fn gaps(&self) -> u64 {
        self.chunks.saturating_sub(1)
    }
}

/// Consecutive steps in which a request received a chunk each.
fn chunk_steps(segments: &[Segment], steps: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    segments
        .iter()
        .filter(|s| s.tokens_per_step > 0)
        .map(move |s| {
            let first = (s.first_step as usize).min(steps);
            first..first.saturating_add(s.steps as usize).min(steps)
        })
        .filter(|range| !range.is_empty())
}

/// Instants of a token log with equal neighbours made one: tokens at one instant are one chunk.
fn chunk_instants(times: &[SimTime]) -> impl Iterator<Item = SimTime> + '_ {
    let mut last = None;
    times.iter().copied().filter(move |&t| last.replace(t) != Some(t))
}

/// The gaps before the steps of a range, each from the end of the step before; step 0 has none.
fn gaps_before(ends: &[SimTime], range: Range<usize>) -> impl Iterator<Item = u64> + Clone + '_ {
    let from = range.start.saturating_sub(1).min(range.end);
    ends[from..range.end]
        .windows(2)
        .map(|pair| pair[1].since(pair[0]).as_nanos())
}

impl<'a> StepGaps<'a> {
    fn new(replica: &'a ReplicaRecord, limit: Option<u64>) -> Self {
        let ends = &replica.step_ends[..];
        let blocks = (0..ends.len()).step_by(BLOCK);
        let block_max = blocks.map(|from| {
            let to = ends.len().min(from + BLOCK);
            gaps_before(ends, from..to).max().unwrap_or(0)
        });
        let over_limit = limit.map_or_else(Vec::new, |limit| {
            // Nothing comes before the first step, as it has no gap.
            let first = std::iter::once(0).take(ends.len());
            let gaps = first.chain(gaps_before(ends, 0..ends.len()));
            let counts = gaps.scan(0, |n, gap| {
                *n += u32::from(gap > limit);
                Some(*n)
            });
            std::iter::once(0).chain(counts).collect()
        });
        Self {
            ends,
            block_max: block_max.collect(),
            over_limit,
        }
    }

    fn between(&self, from: usize, to: usize) -> u64 {
        self.ends[to].since(self.ends[from]).as_nanos()
    }

    /// The largest gap before the steps of a range, whole blocks at a time.
    fn longest(&self, range: Range<usize>) -> Option<u64> {
        let blocks = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        let largest = |range| gaps_before(self.ends, range).max();
        if blocks.start >= blocks.end {
            return largest(range);
        }
        let head = largest(range.start..blocks.start * BLOCK);
        let tail = largest(blocks.end * BLOCK..range.end);
        let whole = self.block_max[blocks].iter().copied().max();
        head.max(tail).max(whole)
    }
}

/// A step more or less is seen by so many requests.
type Changes = Vec<i32>;

impl<'a, T> Seen<'a, T> {
    /// Nothing yet of these replicas.
    fn changes(replicas: &[StepGaps<'a>]) -> Vec<Changes> {
        replicas.iter().map(|r| vec![0; r.ends.len() + 1]).collect()
    }

    /// Adds the changes up.
    fn of(replicas: &[StepGaps<'a>], changes: Vec<Changes>, single: Vec<T>) -> Self {
        let counted = |(steps, changes): (&StepGaps<'a>, Changes)| {
            let sums = changes.into_iter().scan(0_i32, |requests, change| {
                *requests += change;
                Some(u32::try_from(*requests).unwrap_or(0))
            });
            (steps.ends, sums.collect())
        };
        Self {
            steps: replicas.iter().zip(changes).map(counted).collect(),
            single,
        }
    }
}

impl PooledGaps<'_> {
    /// (gap, count) in no particular order and possibly repeated; no count is 0.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> + Clone + '_ {
        let of_steps = self.0.steps.iter().flat_map(|(ends, counts)| {
            let counts = counts.iter().skip(1);
            let seen = gaps_before(ends, 0..ends.len()).zip(counts);
            seen.filter(|(_, n)| **n > 0).map(|(gap, &n)| (gap, n.into()))
        });
        self.0.single.iter().map(|&gap| (gap, 1)).chain(of_steps)
    }
}

impl ChunkInstants<'_> {
    /// (instant, chunks) in no particular order and possibly repeated; those of one replica rise.
    pub fn counts(&self) -> impl Iterator<Item = (SimTime, u64)> + '_ {
        let of_steps = self.0.steps.iter().flat_map(|(ends, counts)| {
            let seen = ends.iter().zip(counts).filter(|(_, n)| **n > 0);
            seen.map(|(&end, &n)| (end, n.into()))
        });
        self.0.single.iter().map(|&at| (at, 1)).chain(of_steps)
    }
}

impl<'a> TokenGaps<'a> {
    /// Prepares a run's steps. `limit_ns` is the gap above which [`GapProfile::over_limit`] counts.
    pub fn new(run: &'a RunRecord, limit_ns: Option<u64>) -> Self {
        Self {
            replicas: run.replicas.iter().map(|r| StepGaps::new(r, limit_ns)).collect(),
        }
    }

    fn steps_of(&self, request: &RequestRecord) -> Option<&StepGaps<'a>> {
        self.replicas.get(request.replica as usize)
    }

    /// All gaps of the given requests as a sample, in nanoseconds.
    pub fn pooled<'r>(&self, requests: impl IntoIterator<Item = &'r RequestRecord>) -> Sample {
        Sample::from_many(self.pool(requests).counts())
    }

    /// All gaps of the given requests, pooled, in nanoseconds.
    pub fn pool<'r>(&self, requests: impl IntoIterator<Item = &'r RequestRecord>) -> PooledGaps<'a> {
        let mut changes = Seen::<u64>::changes(&self.replicas);
        let mut single = Vec::new();
        for request in requests {
            match (&request.tokens, self.steps_of(request)) {
                (TokenLog::Segments(segments), Some(steps)) => {
                    let changes = &mut changes[request.replica as usize];
                    let mut last: Option<usize> = None;
                    for range in chunk_steps(segments, steps.ends.len()) {
                        match last {
                            // The gap into the range's first step, if the request also had the step before.
                            Some(last) if last + 1 == range.start => changes[range.start] += 1,
                            Some(last) => {
                                single.push(steps.between(last, range.start));
                                changes[range.start + 1] += 1;
                            }
                            None => changes[range.start + 1] += 1,
                        }
                        changes[range.end] -= 1;
                        last = Some(range.end - 1);
                    }
                }
                (TokenLog::Times(times), _) => {
                    let gaps = chunk_instants(times).skip(1).zip(chunk_instants(times));
                    single.extend(gaps.map(|(b, a)| b.since(a).as_nanos()));
                }
                (TokenLog::Segments(_), None) => {}
            }
        }
        PooledGaps(Seen::of(&self.replicas, changes, single))
    }

    /// What one request saw. `limit_ns` as given to [`TokenGaps::new`].
    pub fn profile(&self, request: &RequestRecord, limit_ns: Option<u64>) -> GapProfile {
        let mut profile = GapProfile::default();
        match (&request.tokens, self.steps_of(request)) {
            (TokenLog::Segments(segments), Some(steps)) => {
                let mut last: Option<usize> = None;
                for range in chunk_steps(segments, steps.ends.len()) {
                    if let Some(last) = last {
                        profile.see(steps.between(last, range.start), limit_ns);
                    }
                    let inner = range.start + 1..range.end;
                    if let (Some(before), Some(upto)) =
                        (steps.over_limit.get(inner.start), steps.over_limit.get(inner.end))
                    {
                        profile.over_limit += u64::from(upto - before);
                    }
                    profile.longest_ns = profile.longest_ns.max(steps.longest(inner));
                    profile.chunks += range.len() as u64;
                    last = Some(range.end - 1);
                }
            }
            (TokenLog::Times(times), _) => {
                let mut last = None;
                for instant in chunk_instants(times) {
                    if let Some(last) = last.replace(instant) {
                        profile.see(instant.since(last).as_nanos(), limit_ns);
                    }
                    profile.chunks += 1;
                }
            }
            (TokenLog::Segments(_), None) => {}
        }
        profile
    }

    /// Output tokens of a request that became visible in `[from, to)`.
    pub fn tokens_within(&self, request: &RequestRecord, from: SimTime, to: SimTime) -> u64 {
        let always = (from, to) == (SimTime::ZERO, SimTime(u64::MAX));
        let within = |instants: &[SimTime]| {
            if always {
                return instants.len() as u64;
            }
            instants
                .partition_point(|&t| t < to)
                .saturating_sub(instants.partition_point(|&t| t < from)) as u64
        };
        match (&request.tokens, self.steps_of(request)) {
            (TokenLog::Segments(segments), Some(steps)) => segments
                .iter()
                .map(|s| {
                    let range = chunk_steps(std::slice::from_ref(s), steps.ends.len()).next();
                    range.map_or(0, |r| within(&steps.ends[r]) * u64::from(s.tokens_per_step))
                })
                .sum(),
            (TokenLog::Times(times), _) => within(times),
            (TokenLog::Segments(_), None) => 0,
        }
    }

    /// Every instant at which the given requests received chunks.
    pub fn chunks<'r>(&self, requests: impl IntoIterator<Item = &'r RequestRecord>) -> ChunkInstants<'a> {
        let mut changes = Seen::<SimTime>::changes(&self.replicas);
        let mut single = Vec::new();
        for request in requests {
            match (&request.tokens, self.steps_of(request)) {
                (TokenLog::Segments(segments), Some(steps)) => {
                    let changes = &mut changes[request.replica as usize];
                    for range in chunk_steps(segments, steps.ends.len()) {
                        changes[range.start] += 1;
                        changes[range.end] -= 1;
                    }
                }
                (TokenLog::Times(times), _) => single.extend(chunk_instants(times)),
                (TokenLog::Segments(_), None) => {}
            }
        }
        ChunkInstants(Seen::of(&self.replicas, changes, single))
    }
}
