//! Records for tests: one timeline worked out by hand, and random valid ones.

use proptest::prelude::*;

use crate::engine::FinishReason;
use crate::record::{ReplicaRecord, RequestRecord, RunRecord, Segment, Segments, Status, TokenLog};
use crate::units::SimTime;

/// A millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;

fn at(ms: u64) -> SimTime {
    SimTime(ms * MS)
}

fn segment(first_step: u32, steps: u32, tokens_per_step: u32) -> Segment {
    Segment {
        first_step,
        steps,
        tokens_per_step,
    }
}

/// A request that was offered and no more.
pub fn offered(scheduled: SimTime) -> RequestRecord {
    RequestRecord {
        scheduled,
        sent: scheduled,
        enqueued: None,
        first_scheduled: None,
        first_token: None,
        last_token: None,
        input_tokens: 100,
        cached_tokens: 0,
        output_tokens: 0,
        preemptions: 0,
        status: Status::Unfinished,
        finish_reason: None,
        replica: 0,
        priority: 0,
        tenant: 0,
        tokens: TokenLog::Segments(Segments::new()),
    }
}

/// One replica, five steps ending at 10, 18, 26, 40 and 60 ms (idle from 40 to 50), three requests served and
/// one rejected. Tokens: the first at 10, 18, 26; the second at 18, 26, 26, 40, 40; the third at 60.
pub fn three_requests() -> RunRecord {
    let served = |times: [u64; 6], output_tokens, segments: Vec<Segment>| RequestRecord {
        sent: at(times[1]),
        enqueued: Some(at(times[2])),
        first_scheduled: Some(at(times[3])),
        first_token: Some(at(times[4])),
        last_token: Some(at(times[5])),
        output_tokens,
        status: Status::Completed,
        finish_reason: Some(FinishReason::Length),
        tokens: TokenLog::Segments(segments.into()),
        ..offered(at(times[0]))
    };
    let mut second = served([2, 4, 4, 10, 18, 40], 5, vec![segment(1, 1, 1), segment(2, 2, 2)]);
    (second.cached_tokens, second.preemptions) = (32, 1);
    RunRecord {
        requests: vec![
            served([0, 0, 0, 0, 10, 26], 3, vec![segment(0, 3, 1)]),
            second,
            served([41, 41, 41, 50, 60, 60], 1, vec![segment(4, 1, 1)]),
            RequestRecord {
                status: Status::Rejected,
                ..offered(at(45))
            },
        ],
        replicas: vec![ReplicaRecord {
            step_starts: [0, 10, 18, 26, 50].map(at).to_vec(),
            step_ends: [10, 18, 26, 40, 60].map(at).to_vec(),
            running: vec![1, 2, 2, 1, 1],
            waiting: vec![0; 5],
            free_blocks: vec![90, 80, 80, 90, 95],
            usable_blocks: 100,
            free_blocks_at_end: 100,
            preemptions: 1,
            livelock: None,
            busy: Default::default(),
        }],
        end: at(60),
    }
}

/// The same run with one instant a token.
pub fn expand(run: &RunRecord) -> RunRecord {
    let mut expanded = run.clone();
    for (request, original) in expanded.requests.iter_mut().zip(&run.requests) {
        request.tokens = TokenLog::Times(run.token_times(original).collect());
    }
    expanded
}

/// A request before its times are known: arrival, lag, replica, first step, then (skipped steps, steps,
/// tokens a step) for each segment.
type Sketch = (u64, u64, usize, usize, Vec<(u32, u32, u32)>);

fn sketch() -> impl Strategy<Value = Sketch> {
    let segments = prop::collection::vec((0u32..3, 1u32..90, 1u32..4), 0..5);
    (0u64..100, 0u64..20, 0usize..2, 0usize..30, segments)
}

fn realise(sketch: Sketch, replicas: &[ReplicaRecord]) -> RequestRecord {
    let (scheduled, lag, replica, first_step, pieces) = sketch;
    let mut request = offered(SimTime(scheduled));
    request.replica = replica as u32;
    request.sent = SimTime(scheduled + lag);
    let record = &replicas[replica];
    // It is served from the first step that starts once it is there.
    let ready = record.step_starts.partition_point(|&s| s < request.sent);
    let mut next = ready + first_step;
    let mut segments = Vec::new();
    for (skip, steps, tokens_per_step) in pieces {
        let first = next + skip as usize;
        let last = (first + steps as usize).min(record.step_ends.len());
        if first < last {
            segments.push(segment(first as u32, (last - first) as u32, tokens_per_step));
        }
        next = last.max(first);
    }
    if let (Some(first), Some(last)) = (segments.first(), segments.last()) {
        request.enqueued = Some(request.sent);
        request.first_scheduled = Some(record.step_starts[first.first_step as usize]);
        request.first_token = Some(record.step_ends[first.first_step as usize]);
        request.last_token = Some(record.step_ends[(last.first_step + last.steps - 1) as usize]);
        request.status = Status::Completed;
        request.finish_reason = Some(FinishReason::Length);
        request.output_tokens = segments.iter().map(|s| s.steps * s.tokens_per_step).sum();
        request.tokens = TokenLog::Segments(segments.into());
    } else {
        request.status = Status::Rejected;
    }
    request
}

fn replica() -> impl Strategy<Value = ReplicaRecord> {
    prop::collection::vec((0u64..5, 1u64..40), 0..200).prop_map(|steps| {
        let mut record = ReplicaRecord {
            usable_blocks: 100,
            free_blocks_at_end: 100,
            ..ReplicaRecord::default()
        };
        let mut now = 0;
        for (idle, duration) in steps {
            record.step_starts.push(SimTime(now + idle));
            now += idle + duration;
            record.step_ends.push(SimTime(now));
            record.running.push(duration as u32 % 7);
            record.waiting.push(idle as u32);
            record.free_blocks.push(duration as u32);
        }
        record
    })
}

/// Random runs of two replicas that start and end empty, times in single nanoseconds.
pub fn random_run() -> impl Strategy<Value = RunRecord> {
    (
        prop::collection::vec(replica(), 2),
        prop::collection::vec(sketch(), 0..40),
    )
        .prop_map(|(replicas, sketches)| {
            let mut requests: Vec<_> = sketches.into_iter().map(|s| realise(s, &replicas)).collect();
            requests.sort_by_key(|r| r.scheduled);
            let ends = replicas.iter().filter_map(|r| r.step_ends.last().copied());
            let end = ends
                .chain(requests.iter().map(|r| r.sent))
                .max()
                .unwrap_or_default();
            RunRecord {
                requests,
                replicas,
                end,
            }
        })
}
