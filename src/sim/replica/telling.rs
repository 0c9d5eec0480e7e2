//! What a replica tells of its steps and of the tokens that requests got in them.

use super::{InFlight, Replica, Surroundings};
use crate::engine::{Left, Leg, StepResult};
use crate::record::{Chunk, Recorder, StepRun};
use crate::units::SimTime;

impl Replica {
    /// Tells of one step and of the tokens that are told singly.
    pub(super) fn tell_step<R: Recorder>(
        &mut self,
        batch: &InFlight,
        now: SimTime,
        result: &StepResult,
        around: &mut Surroundings<'_, R>,
    ) {
        let step = self.steps;
        let mut gaps = self.steady_measured;
        for &(id, _) in &result.emitted {
            let live = around.live.get(id);
            gaps += u32::from(live.is_measured && live.had_tokens_before(step));
        }
        around.recorder.steps(&StepRun {
            replica: self.number,
            starts: &[batch.start],
            ends: &[now],
            free_blocks: &[batch.plan.free_blocks],
            running: batch.plan.running,
            waiting: batch.plan.waiting,
            gaps_first: gaps,
            gaps_rest: gaps,
        });
        self.steps += 1;
        // In a pipeline batches overlap: the device computes once at a time.
        let from = batch.start.max(self.last_end);
        self.last_end = now;
        self.totals.busy.add(&batch.plan.shape, now.since(from));
        for &(id, tokens) in &result.emitted {
            let live = around.live.get(id);
            let chunk = Chunk {
                step,
                end: now,
                tokens,
                continues: live.had_tokens_before(step),
            };
            if live.leg != Leg::Prefill {
                // What a prefill for others samples is thrown away (rule D2).
                around.recorder.chunk(&mut live.record, &mut live.kept, chunk);
            }
            if live.record.first_token.is_none() {
                live.record.first_token = Some(now);
                around.heard.started.push(id);
            }
            live.record.last_token = Some(now);
            live.record.output_tokens += tokens;
            live.last_chunk = Some((step, tokens));
            around.live.note_emitted(id, tokens);
        }
    }

    /// A request is steady no more: tells of the tokens that it got as such.
    pub(super) fn close<R: Recorder>(&mut self, left: Left, around: &mut Surroundings<'_, R>) {
        let live = around.live.get(left.id);
        if std::mem::take(&mut live.is_steady) {
            self.steady_measured -= u32::from(live.is_measured);
        } else {
            // It entered with a batch that is still under way.
            for batch in &mut self.in_flight {
                batch.plan.entered.retain(|&id| id != left.id);
            }
        }
        if left.steps > 0 {
            around
                .recorder
                .further_chunks(&mut live.record, &mut live.kept, left.steps, self.last_end);
            live.record.last_token = Some(self.last_end);
            live.record.output_tokens += left.steps;
            live.last_chunk = Some((self.steps - 1, 1));
        }
    }

    /// The run is cut off: tells of the tokens that are not told yet.
    pub fn cut_off<R: Recorder>(&mut self, around: &mut Surroundings<'_, R>) {
        let mut left = Vec::new();
        self.engine.list_all(&mut left);
        for left in left {
            self.close(left, around);
        }
    }
}
