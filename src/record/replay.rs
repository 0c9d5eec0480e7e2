//! Tells a kept record again, as the simulator would have told it while it ran.
//!
//! So whatever can be recorded of a running simulation can also be had of a record on disk, and a recorder can be
//! tried on any record.

use std::collections::BTreeSet;

use super::events::{ReplicaRecord, RequestRecord, RunRecord, TokenLog};
use super::recorder::{Chunk, Recorder, StepRun};
use super::segments::Segments;
use crate::units::SimTime;

/// How much is told at a time. What is told is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Telling {
    /// Step by step, every chunk by itself.
    Singly,
    /// As much at a time as the contract of [`Recorder`] allows.
    Together,
    /// Now so, now so, by this seed.
    Mixed(u64),
}

/// The record cannot be told by steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReplayable {
    /// The record has instants of tokens but not the steps that made them (imported runs).
    #[error("request {request} has token times of its own, which no step of the record accounts for")]
    TokenTimes {
        /// Its place in the record.
        request: usize,
    },
    /// The record contradicts itself.
    #[error("request {request} has tokens of steps that its replica did not make, or not in order")]
    UnknownSteps {
        /// Its place in the record.
        request: usize,
    },
}

/// A small generator of decisions (splitmix64, Steele et al., OOPSLA 2014).
struct Dice(Option<u64>, bool);

impl Dice {
    fn new(telling: Telling) -> Self {
        match telling {
            Telling::Singly => Self(None, false),
            Telling::Together => Self(None, true),
            Telling::Mixed(seed) => Self(Some(seed), false),
        }
    }

    /// Whether to tell more at once.
    fn together(&mut self) -> bool {
        let Some(state) = &mut self.0 else { return self.1 };
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) & 3 != 0
    }
}

/// A request while it is told.
struct Teller<K> {
    told: RequestRecord,
    kept: K,
    /// Its segments as (first step, steps, tokens a step).
    segments: Vec<(usize, usize, u32)>,
    /// The segment it is in.
    at: usize,
    /// The last step of which it got tokens, and how many.
    last: Option<usize>,
    last_tokens: u32,
    /// Steps with one token each that have not been told yet.
    due: u32,
}

impl<K> Teller<K> {
    /// Tokens that it gets in a step.
    fn tokens_in(&mut self, step: usize) -> Option<u32> {
        while self.segments.get(self.at).is_some_and(|s| s.0 + s.1 <= step) {
            self.at += 1;
        }
        let (first, _, tokens) = *self.segments.get(self.at)?;
        (first <= step).then_some(tokens)
    }

    fn note(&mut self, end: SimTime, tokens: u32) {
        self.told.first_token.get_or_insert(end);
        self.told.last_token = Some(end);
        self.told.output_tokens += tokens;
    }

    /// Tells what has not been told, up to a step that ended at `end`.
    fn tell_due<R: Recorder<Request = K>>(&mut self, recorder: &mut R, end: SimTime) {
        let steps = std::mem::take(&mut self.due);
        if steps > 0 {
            recorder.further_chunks(&mut self.told, &mut self.kept, steps, end);
            self.note(end, steps);
        }
    }
}

/// Tells a record to a recorder: replica by replica, and then each request's end in the order of the record.
///
/// # Errors
/// [`NotReplayable`] for a record without steps; nothing has been told then.
pub fn replay<R: Recorder>(run: &RunRecord, telling: Telling, recorder: &mut R) -> Result<(), NotReplayable> {
    let mut tellers = Vec::with_capacity(run.requests.len());
    for (request, record) in run.requests.iter().enumerate() {
        tellers.push(teller::<R>(run, request, record)?);
    }
    let mut dice = Dice::new(telling);
    for (number, replica) in (0..).zip(&run.replicas) {
        let mine = tellers.iter_mut().filter(|t| t.told.replica == number);
        let mine: Vec<&mut Teller<R::Request>> = mine.filter(|t| !t.segments.is_empty()).collect();
        tell_replica(number, replica, mine, &mut dice, recorder);
    }
    for ((id, teller), record) in (0..).zip(tellers).zip(&run.requests) {
        let mut told = teller.told;
        // What the tokens did not say: it may have none that were kept.
        (told.first_token, told.last_token) = (record.first_token, record.last_token);
        told.output_tokens = record.output_tokens;
        recorder.ended(id, told, teller.kept);
    }
    Ok(())
}

fn teller<R: Recorder>(
    run: &RunRecord,
    request: usize,
    record: &RequestRecord,
) -> Result<Teller<R::Request>, NotReplayable> {
    let segments = match &record.tokens {
        TokenLog::Times(times) if !times.is_empty() => return Err(NotReplayable::TokenTimes { request }),
        TokenLog::Times(_) => &[][..],
        TokenLog::Segments(segments) => &segments[..],
    };
    let replica = run.replicas.get(record.replica as usize);
    let steps = replica.map_or(0, |r| r.step_ends.len().min(r.step_starts.len()));
    let mut next = 0;
    let mut known = Vec::with_capacity(segments.len());
    for s in segments.iter().filter(|s| s.tokens_per_step > 0 && s.steps > 0) {
        let (first, length) = (s.first_step as usize, s.steps as usize);
        if first < next || first.saturating_add(length) > steps {
            return Err(NotReplayable::UnknownSteps { request });
        }
        next = first + length;
        known.push((first, length, s.tokens_per_step));
    }
    Ok(Teller {
        told: RequestRecord {
            first_token: None,
            last_token: None,
            output_tokens: 0,
            tokens: TokenLog::Segments(Segments::new()),
            ..record.clone()
        },
        kept: R::Request::default(),
        segments: known,
        at: 0,
        last: None,
        last_tokens: 0,
        due: 0,
    })
}

/// Steps at which some request begins, ends or changes its tokens a step, or a gauge of the batch changes: a run of
/// steps ends before each of them.
fn changes<K>(replica: &ReplicaRecord, tellers: &[&mut Teller<K>]) -> BTreeSet<usize> {
    let mut changes = BTreeSet::from([replica.step_ends.len().min(replica.step_starts.len())]);
    for teller in tellers {
        for &(first, steps, _) in &teller.segments {
            changes.extend([first, first + steps]);
        }
    }
    for gauge in [&replica.running, &replica.waiting] {
        changes.extend((1..gauge.len()).filter(|&i| gauge[i] != gauge[i - 1]));
    }
    changes
}

fn tell_replica<R: Recorder>(
    number: u32,
    replica: &ReplicaRecord,
    mut tellers: Vec<&mut Teller<R::Request>>,
    dice: &mut Dice,
    recorder: &mut R,
) {
    let mut from = 0;
    for upto in changes(replica, &tellers) {
        while from < upto {
            let length = if dice.together() { upto - from } else { 1 };
            // Several tokens in a step are told one step at a time.
            let plural = tellers
                .iter_mut()
                .any(|t| t.tokens_in(from).is_some_and(|n| n != 1));
            let to = if plural { from + 1 } else { from + length };
            tell_steps(number, replica, from..to, &mut tellers, dice, recorder);
            from = to;
        }
    }
    let end = replica.step_ends.last().copied().unwrap_or_default();
    tellers.iter_mut().for_each(|t| t.tell_due(recorder, end));
}

/// Tells steps in which the same requests get tokens: one each if there are several steps.
fn tell_steps<R: Recorder>(
    number: u32,
    replica: &ReplicaRecord,
    steps: std::ops::Range<usize>,
    tellers: &mut [&mut Teller<R::Request>],
    dice: &mut Dice,
    recorder: &mut R,
) {
    let from = steps.start;
    let (mut gaps_first, mut gaps_rest) = (0, 0);
    for teller in tellers.iter_mut() {
        let measured = recorder.measures(teller.told.scheduled);
        let tokens = teller.tokens_in(from);
        if tokens != Some(1) && from > 0 {
            // Steps of one token have to be told before the step that is none, while they are the newest.
            teller.tell_due(recorder, replica.step_ends[from - 1]);
        }
        if tokens.is_some() {
            gaps_rest += u32::from(measured);
            gaps_first += u32::from(measured && from > 0 && teller.last == Some(from - 1));
        }
    }
    let gauge = |values: &[u32]| values.get(from).copied().unwrap_or(0);
    let none = vec![0; steps.len()];
    recorder.steps(&StepRun {
        replica: number,
        starts: &replica.step_starts[steps.clone()],
        ends: &replica.step_ends[steps.clone()],
        free_blocks: replica.free_blocks.get(steps.clone()).unwrap_or(&none),
        running: gauge(&replica.running),
        waiting: gauge(&replica.waiting),
        gaps_first,
        gaps_rest,
    });
    for teller in tellers.iter_mut() {
        let Some(tokens) = teller.tokens_in(from) else {
            continue;
        };
        tell_request(teller, tokens, replica, steps.clone(), dice, recorder);
    }
}

fn tell_request<R: Recorder>(
    teller: &mut Teller<R::Request>,
    tokens: u32,
    replica: &ReplicaRecord,
    steps: std::ops::Range<usize>,
    dice: &mut Dice,
    recorder: &mut R,
) {
    let continues = steps.start > 0 && teller.last == Some(steps.start - 1);
    let mut further = steps.len() as u32;
    // Singly: the first step of the run, which is the newest one if the run has no other.
    let alike = continues && tokens == 1 && teller.last_tokens == 1;
    if !alike || (further == 1 && teller.due == 0 && !dice.together()) {
        let end = replica.step_ends[steps.start];
        let chunk = Chunk {
            step: steps.start as u64,
            end,
            tokens,
            continues,
        };
        recorder.chunk(&mut teller.told, &mut teller.kept, chunk);
        teller.note(end, tokens);
        further -= 1;
    }
    teller.due += further;
    (teller.last, teller.last_tokens) = (Some(steps.end - 1), tokens);
    if !dice.together() {
        teller.tell_due(recorder, replica.step_ends[steps.end - 1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::{expand, random_run, three_requests};
    use crate::record::{FullRecorder, ReplicaTotals};
    use proptest::prelude::*;

    /// The record with segments that follow each other made one.
    fn joined(run: &RunRecord) -> RunRecord {
        let mut run = run.clone();
        for request in &mut run.requests {
            let TokenLog::Segments(segments) = &mut request.tokens else {
                continue;
            };
            let mut whole = Segments::new();
            for &s in segments.iter() {
                match whole.last_mut() {
                    Some(l)
                        if l.first_step + l.steps == s.first_step
                            && l.tokens_per_step == s.tokens_per_step =>
                    {
                        l.steps += s.steps;
                    }
                    _ => whole.push(s),
                }
            }
            *segments = whole;
        }
        run
    }

    fn recorded(run: &RunRecord, telling: Telling) -> RunRecord {
        let mut recorder = FullRecorder::new(run.replicas.len() as u32);
        replay(run, telling, &mut recorder).unwrap();
        for (number, r) in (0..).zip(&run.replicas) {
            let totals = ReplicaTotals {
                usable_blocks: r.usable_blocks,
                free_blocks_at_end: r.free_blocks_at_end,
                preemptions: r.preemptions,
                livelock: r.livelock,
                busy: r.busy,
            };
            recorder.set_totals(number, totals);
        }
        recorder.into_run(run.end)
    }

    #[test]
    fn tokens_without_steps_cannot_be_told() {
        let run = expand(&three_requests());
        let mut recorder = FullRecorder::new(1);
        assert_eq!(
            replay(&run, Telling::Singly, &mut recorder),
            Err(NotReplayable::TokenTimes { request: 0 })
        );
        let mut run = three_requests();
        run.replicas[0].step_ends.pop();
        assert_eq!(
            replay(&run, Telling::Singly, &mut recorder),
            Err(NotReplayable::UnknownSteps { request: 2 })
        );
    }

    #[test]
    fn recorders_of_groups_are_joined_by_id() {
        let run = joined(&three_requests());
        let mut parts = [FullRecorder::new(1), FullRecorder::new(1)];
        for (id, request) in (0..).zip(&run.requests) {
            parts[id as usize % 2].ended(id, request.clone(), ());
        }
        let steps_alone = RunRecord {
            requests: Vec::new(),
            ..run.clone()
        };
        replay(&steps_alone, Telling::Together, &mut parts[1]).unwrap();
        let [first, mut second] = parts;
        second.merge(first);
        let back = second.into_run(run.end);
        assert_eq!(back.requests, run.requests);
        assert_eq!(back.replicas[0].step_ends, run.replicas[0].step_ends);
    }

    proptest! {
        #[test]
        fn what_was_told_is_the_record(run in random_run(), seed: u64) {
            let run = joined(&run);
            for telling in [Telling::Singly, Telling::Together, Telling::Mixed(seed)] {
                prop_assert_eq!(&recorded(&run, telling), &run);
            }
        }
    }
}
