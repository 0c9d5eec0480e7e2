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
    /// `gaps[i]` is the time from the end of step `i - 1` to the end of step `i`; `gaps[0]` is never used.
    gaps: Vec<u64>,
    /// The largest gap of each block of steps.
    block_max: Vec<u64>,
    /// How many of `gaps[..i]` exceed the limit; empty without a limit.
    over_limit: Vec<u32>,
}

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

impl<'a> StepGaps<'a> {
    fn new(replica: &'a ReplicaRecord, limit: Option<u64>) -> Self {
        let ends = &replica.step_ends[..];
        let mut gaps = vec![0; ends.len()];
        for (i, pair) in ends.windows(2).enumerate() {
            gaps[i + 1] = pair[1].since(pair[0]).as_nanos();
        }
        let block_max = gaps
            .chunks(BLOCK)
            .map(|b| b.iter().copied().max().unwrap_or(0))
            .collect();
        let over_limit = limit.map_or_else(Vec::new, |limit| {
            let counts = gaps.iter().scan(0, |n, &gap| {
                *n += u32::from(gap > limit);
                Some(*n)
            });
            std::iter::once(0).chain(counts).collect()
        });
        Self {
            ends,
            gaps,
            block_max,
            over_limit,
        }
    }

    fn between(&self, from: usize, to: usize) -> u64 {
        self.ends[to].since(self.ends[from]).as_nanos()
    }

    /// The largest of `gaps[range]`, whole blocks at a time.
    fn longest(&self, range: Range<usize>) -> Option<u64> {
        let blocks = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        let largest = |values: &[u64]| values.iter().copied().max();
        if blocks.start >= blocks.end {
            return largest(&self.gaps[range]);
        }
        let head = largest(&self.gaps[range.start..blocks.start * BLOCK]);
        let tail = largest(&self.gaps[blocks.end * BLOCK..range.end]);
        head.max(tail).max(largest(&self.block_max[blocks]))
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

    /// All gaps of the given requests, pooled, in nanoseconds.
    pub fn pooled<'r>(&self, requests: impl IntoIterator<Item = &'r RequestRecord>) -> Sample {
        Sample::from_counts(self.pooled_counts(requests))
    }

    /// The same as (gap, count) in no particular order and possibly repeated.
    pub fn pooled_counts<'r>(
        &self,
        requests: impl IntoIterator<Item = &'r RequestRecord>,
    ) -> Vec<(u64, u64)> {
        let mut seen: Vec<Vec<i64>> = self.replicas.iter().map(|r| vec![0; r.ends.len() + 1]).collect();
        let steps: usize = self.replicas.iter().map(|r| r.ends.len()).sum();
        let mut single: Vec<(u64, u64)> = Vec::with_capacity(steps);
        for request in requests {
            match (&request.tokens, self.steps_of(request)) {
                (TokenLog::Segments(segments), Some(steps)) => {
                    let seen = &mut seen[request.replica as usize];
                    let mut last: Option<usize> = None;
                    for range in chunk_steps(segments, steps.ends.len()) {
                        match last {
                            // The gap into the range's first step, if the request also had the step before.
                            Some(last) if last + 1 == range.start => seen[range.start] += 1,
                            Some(last) => {
                                single.push((steps.between(last, range.start), 1));
                                seen[range.start + 1] += 1;
                            }
                            None => seen[range.start + 1] += 1,
                        }
                        seen[range.end] -= 1;
                        last = Some(range.end - 1);
                    }
                }
                (TokenLog::Times(times), _) => {
                    let instants = chunk_instants(times);
                    single.extend(
                        chunk_instants(times)
                            .skip(1)
                            .zip(instants)
                            .map(|(b, a)| (b.since(a).as_nanos(), 1)),
                    );
                }
                (TokenLog::Segments(_), None) => {}
            }
        }
        for (steps, seen) in self.replicas.iter().zip(&seen) {
            let mut requests = 0;
            single.extend(steps.gaps.iter().zip(seen).filter_map(|(&gap, change)| {
                requests += change;
                (requests > 0).then_some((gap, requests.unsigned_abs()))
            }));
        }
        single
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

    /// Every instant at which chunks arrived, with how many arrived then; instants in no particular order and
    /// possibly repeated.
    pub fn chunks<'r>(&self, requests: impl IntoIterator<Item = &'r RequestRecord>) -> Vec<(SimTime, u64)> {
        let mut change: Vec<Vec<i64>> = self.replicas.iter().map(|r| vec![0; r.ends.len() + 1]).collect();
        let mut chunks = Vec::new();
        for request in requests {
            match (&request.tokens, self.steps_of(request)) {
                (TokenLog::Segments(segments), Some(steps)) => {
                    let change = &mut change[request.replica as usize];
                    for range in chunk_steps(segments, steps.ends.len()) {
                        change[range.start] += 1;
                        change[range.end] -= 1;
                    }
                }
                (TokenLog::Times(times), _) => chunks.extend(chunk_instants(times).map(|t| (t, 1))),
                (TokenLog::Segments(_), None) => {}
            }
        }
        for (steps, change) in self.replicas.iter().zip(&change) {
            let mut requests = 0;
            chunks.extend(steps.ends.iter().zip(change).filter_map(|(&end, change)| {
                requests += change;
                (requests > 0).then_some((end, requests.unsigned_abs()))
            }));
        }
        chunks
    }
}
