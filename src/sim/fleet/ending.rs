//! How attempts and jobs end: each offered request has exactly one terminal state.

use super::config::Fate;
use super::dispatch::no_tokens;
use super::jobs::{Attempt, JobNumber, JobState, Place};
use super::world::{Event, Fleet, Wait};
use crate::cluster::gateway::Cause;
use crate::engine::Leg;
use crate::record::{Recorder, RequestRecord, Status};
use crate::sim::kernel::Class;
use crate::sim::live::Live;
use crate::units::SimDuration;

/// A client notices a failure and sends again: a retry never comes sooner, so that a storm of them takes time.
const SOONEST_RETRY: SimDuration = SimDuration::from_millis(1);

impl<R: Recorder> Fleet<'_, R> {
    /// Acts on what replicas told, until nobody tells more.
    pub(super) fn hear(&mut self) {
        self.hear_tokens();
        while !self.heard.is_empty() {
            let mut heard = std::mem::take(&mut self.heard);
            self.hear_prompts(&heard.prompts);
            self.hear_loads(&heard.loads);
            self.hear_started(&heard.started);
            for &place in &heard.ended {
                self.attempt_ended(place);
            }
            heard.clear();
            if self.heard.is_empty() {
                self.heard = heard;
                break;
            }
        }
    }

    /// An engine is done with an attempt.
    fn attempt_ended(&mut self, place: Place) {
        let attempt = self.attempts.get(place);
        if attempt.is_over {
            // It was given up, and ended before its cancellation came.
            self.record.cancelled_output_tokens += self.own_output(place);
            let is_prefill = self.attempts.get(place).leg == Leg::Prefill;
            if is_prefill && self.attempts.live(place).record.status == Status::Completed {
                // Nobody comes for its blocks: they stay until its lease ends.
                self.prefill_ended(place);
            }
            return;
        }
        let (job, leg) = (attempt.job, attempt.leg);
        self.leave_group(place);
        let rejected = self.attempts.live(place).record.status == Status::Rejected;
        if !rejected {
            self.tell_canaries(place, false);
        }
        match leg {
            _ if rejected => {
                self.give_up_partner(place);
                self.attempt_failed(place, Cause::Rejected);
            }
            Leg::Prefill => self.prefill_ended(place),
            Leg::Whole | Leg::Decode => self.answer(job, place),
        }
    }

    /// An attempt counts no more, and its group is free of it.
    pub(super) fn leave_group(&mut self, place: Place) {
        let asked = &self.attempts.live(place).asked;
        let size = (asked.input_tokens, asked.max_output_tokens);
        let has_started = self.attempts.live(place).record.first_token.is_some();
        let attempt = self.attempts.get(place);
        attempt.is_over = true;
        let (group, replica) = (attempt.group, attempt.replica);
        self.groups[group as usize].gave_back(replica, size, has_started);
    }

    /// The record of a job that this attempt answers, or answered in part.
    fn record_of(&mut self, job: JobNumber, place: Place) -> RequestRecord {
        let live = self.attempts.live(place);
        let tokens = std::mem::replace(&mut live.record.tokens, no_tokens());
        let mut record = RequestRecord {
            tokens,
            ..live.record.clone()
        };
        let job = self.jobs.get(job);
        (record.scheduled, record.sent) = (job.record.scheduled, job.record.sent);
        record.input_tokens = job.asked.input_tokens;
        if job.resumed_tokens > 0 {
            // It began where it first began.
            record.enqueued = job.record.enqueued;
            record.first_scheduled = job.record.first_scheduled;
            record.cached_tokens = job.record.cached_tokens;
        } else if let Some(prefill) = &job.prefilled {
            record.enqueued = prefill.enqueued;
            record.first_scheduled = prefill.first_scheduled;
            record.cached_tokens = record.cached_tokens.max(prefill.cached_tokens);
        }
        record
    }

    /// An attempt has all its output: that is the job's.
    fn answer(&mut self, job: JobNumber, place: Place) {
        let record = self.record_of(job, place);
        let kept = std::mem::take(&mut self.attempts.live(place).kept);
        let group = self.attempts.get(place).group;
        let seen = self
            .config
            .front_end
            .seen(self.now(), self.attempts.live(place).tokens_before_last());
        self.set_record(job, record, kept);
        let j = self.jobs.get(job);
        j.told.group = Some(group);
        j.places.retain(|&p| p != place);
        self.gateway.answered.push(seen);
        self.end_job(job, None);
    }

    /// A job has its terminal state: that of its record, or another one. Attempts that are left are given up.
    fn end_job(&mut self, job: JobNumber, status: Option<Status>) {
        let now = self.now();
        self.last_progress = now;
        let j = self.jobs.get(job);
        j.told.ended = Some(now);
        let was_active = j.state == JobState::Active;
        j.state = JobState::Ended;
        if let Some(status) = status {
            j.record.status = status;
        }
        self.jobs.open -= 1;
        self.gateway.in_flight -= u32::from(was_active);
        for place in std::mem::take(&mut self.jobs.get(job).places) {
            self.cancel(place);
        }
        if let Some(status) = status {
            let by_engine = status == Status::Rejected && self.jobs.get(job).told.dispatched.is_some();
            let seen = if by_engine {
                self.config.front_end.seen(now, 0)
            } else {
                now
            };
            self.gateway.answered.push(seen);
        }
    }

    /// Gives up an attempt; its engine hears of it later.
    pub(super) fn cancel(&mut self, place: Place) {
        let attempt = self.attempts.get(place);
        let (job, is_over) = (attempt.job, attempt.is_over);
        if !self.jobs.has_ended(job) {
            self.jobs.get(job).places.retain(|&p| p != place);
        }
        if is_over {
            // A prefill whose answer is on its way: nobody waits for it.
            return;
        }
        self.leave_group(place);
        self.close_push(place);
        self.attempts.get(place).is_given_up = true;
        self.stop_reading(place);
        let at = self.now() + self.config.gateway.cancel_latency;
        self.gateway.obligations += 1;
        self.kernel.schedule(at, Class::Control, Event::Cancel(place));
    }

    /// Output tokens that an attempt made itself: those that it goes on from are another one's.
    pub(super) fn own_output(&mut self, place: Place) -> u64 {
        let carried = self.attempts.get(place).resumed_tokens;
        let output = self.attempts.live(place).record.output_tokens;
        u64::from(output.saturating_sub(carried))
    }

    /// An attempt broke off or was turned away.
    pub(super) fn attempt_failed(&mut self, place: Place, cause: Cause) {
        let job = self.attempts.get(place).job;
        let live = self.attempts.live(place);
        live.has_ended = true;
        let output = live.record.output_tokens;
        // A decode reads its prompt, and a connection that is refused computes nothing.
        let computes = live.leg != Leg::Decode && live.record.first_scheduled.is_some();
        let input = live.asked.input_tokens * u32::from(computes);
        if self.jobs.has_ended(job) {
            self.record.cancelled_output_tokens += self.own_output(place);
            return;
        }
        self.jobs.get(job).places.retain(|&p| p != place);
        if !self.jobs.get(job).places.is_empty() {
            // Another copy of it goes on.
            self.waste(job, output, input);
            return;
        }
        let is_prefill = self.attempts.get(place).leg == Leg::Prefill;
        let resumes = self.config.recovery.in_flight == Fate::Resume && cause == Cause::Failed && !is_prefill;
        if !is_prefill {
            let mut record = self.record_of(job, place);
            self.recorder.broke(&mut record);
            let kept = std::mem::take(&mut self.attempts.live(place).kept);
            let j = self.jobs.get(job);
            if resumes && record.output_tokens > 0 {
                j.resumed_tokens = record.output_tokens;
                j.told.resumes = j.told.resumes.map(|n| n + 1);
            }
            self.set_record(job, record, kept);
        }
        let before = if resumes { 0 } else { output };
        self.waste(job, before, input);
        self.turned_down(job, cause);
    }

    /// Forgets attempts that are over and hold nothing, the oldest first.
    pub(super) fn forget_attempts(&mut self) {
        while let Some((attempt, live)) = self.attempts.take_over() {
            self.account(&attempt, &live);
            // What no job has taken over.
            self.recorder.given_up(&live.record, live.kept);
        }
    }

    /// At the end of the run: all attempts that are left, over or not.
    pub(super) fn forget_all_attempts(&mut self) {
        while let Some((attempt, live)) = self.attempts.take_oldest() {
            self.account(&attempt, &live);
            // What no job has taken over.
            self.recorder.given_up(&live.record, live.kept);
        }
    }

    /// What an attempt has computed, whatever became of it.
    fn account(&mut self, attempt: &Attempt, live: &Live<R::Request>) {
        let has_begun = live.record.first_scheduled.is_some();
        let input = match attempt.leg {
            // It reads its prompt.
            Leg::Decode => attempt.recomputed_tokens,
            Leg::Whole | Leg::Prefill => live.asked.input_tokens,
        };
        let input = u64::from(input) * u64::from(has_begun);
        let output = live.record.output_tokens.saturating_sub(attempt.resumed_tokens);
        self.record.attempted_input_tokens += input;
        // What a prefill samples is thrown away (rule D2).
        self.record.attempted_output_tokens += u64::from(output) * u64::from(attempt.leg != Leg::Prefill);
        self.record.cancelled_input_tokens += input * u64::from(attempt.is_given_up);
    }

    pub(super) fn waste(&mut self, job: JobNumber, output: u32, input: u32) {
        let told = &mut self.jobs.get(job).told;
        told.wasted_output_tokens = told.wasted_output_tokens.saturating_add(output);
        told.wasted_input_tokens = told.wasted_input_tokens.saturating_add(input);
    }

    /// Nobody serves a job now: it is tried again, or that is its end.
    pub(super) fn turned_down(&mut self, job: JobNumber, cause: Cause) {
        let now = self.now();
        let asked = self.jobs.get(job).asked.input_tokens;
        if self.jobs.get(job).prefilled.take().is_some() {
            // Its prompt was computed for nothing.
            self.waste(job, 0, asked);
        }
        let dies = self.config.recovery.in_flight == Fate::Fail && cause == Cause::Failed;
        let attempts = self.jobs.get(job).told.retries + 1;
        let retry = &self.config.gateway.retry;
        if !dies && retry.wants(attempts, cause) && self.gateway.retry_budget.may_retry(now) {
            let wait = retry.backoff(attempts + 1, &mut self.backoffs).max(SOONEST_RETRY);
            let tries_after_timeouts = retry.retry_on.timed_out;
            let j = self.jobs.get(job);
            if tries_after_timeouts {
                // Each try has its own patience.
                j.first_token_due = None;
            }
            let was_active = j.state == JobState::Active;
            j.state = JobState::BacksOff;
            j.prefill_locally = false;
            self.gateway.in_flight -= u32::from(was_active);
            if self.jobs.get(job).resumed_tokens == 0 {
                self.start_anew(job);
            }
            self.kernel
                .schedule(now + wait, Class::Control, Event::Retry(job));
            return;
        }
        let status = match cause {
            Cause::Failed => Status::Failed,
            Cause::TimedOut => Status::TimedOut,
            Cause::Rejected => Status::Rejected,
        };
        self.end_job(job, Some(status));
    }

    /// What a client saw of an attempt that is repeated from its start counts no more.
    fn start_anew(&mut self, job: JobNumber) {
        let j = self.jobs.get(job);
        j.prefilled = None;
        let record = RequestRecord {
            scheduled: j.record.scheduled,
            sent: j.record.sent,
            status: Status::Unfinished,
            ..crate::sim::live::offered(&j.asked)
        };
        self.set_record(job, record, Default::default());
    }

    /// What a client saw of a job is this from now on, and nothing of what it was before.
    fn set_record(&mut self, job: JobNumber, record: RequestRecord, kept: R::Request) {
        let j = self.jobs.get(job);
        j.record = record;
        let before = std::mem::replace(&mut j.kept, kept);
        self.recorder.given_up(&j.record, before);
    }

    /// The wait before another try is over.
    pub(super) fn retry(&mut self, job: JobNumber) {
        if !self.jobs.has_ended(job) && self.jobs.get(job).state == JobState::BacksOff {
            self.jobs.get(job).told.retries += 1;
            self.retries += 1;
            if self.config.gateway.retry.retry_on.timed_out {
                self.wait_for_first_token(job);
            }
            self.enter_gateway(job);
        }
    }

    /// A stream breaks, or a connection is refused.
    pub(super) fn broken(&mut self, place: Place) {
        let Some(attempt) = self.attempts.find(place) else {
            return;
        };
        if attempt.is_over {
            return;
        }
        let (job, leg) = (attempt.job, attempt.leg);
        self.leave_group(place);
        if self.pushes.contains_key(&place) {
            return self.pushing_prefill_broken(place);
        }
        self.give_up_partner(place);
        self.stop_reading(place);
        self.tell_canaries(place, true);
        if leg == Leg::Prefill && self.config.transfer.local_fallback {
            self.attempts.live(place).has_ended = true;
            let j = self.jobs.get(job);
            j.places.retain(|&p| p != place);
            j.prefill_locally = true;
            self.dispatch(job);
        } else {
            self.attempt_failed(place, Cause::Failed);
        }
    }

    /// A client has waited long enough.
    pub(super) fn time_out(&mut self, job: JobNumber, wait: Wait) {
        if self.jobs.has_ended(job) {
            return;
        }
        let (now, j) = (self.now(), self.jobs.get(job));
        let (state, gives_up, first_due) = (j.state, j.gives_up, j.first_token_due);
        match wait {
            Wait::Gateway if state != JobState::Queued || gives_up != Some(now) => return,
            Wait::FirstToken if self.has_first_token(job) => return,
            Wait::FirstToken if first_due != Some(now) => return,
            _ => {}
        }
        if state == JobState::Queued {
            self.gateway.queue.remove(job);
            self.note_queue();
        }
        let places = self.jobs.get(job).places.clone();
        for place in places {
            if self.attempts.get(place).leg != Leg::Prefill {
                self.see_partial(job, place);
            }
            if !self.attempts.get(place).is_over {
                self.tell_canaries(place, true);
            }
            self.cancel(place);
        }
        if wait == Wait::End {
            self.end_job(job, Some(Status::TimedOut));
        } else {
            self.turned_down(job, Cause::TimedOut);
        }
    }

    fn has_first_token(&mut self, job: JobNumber) -> bool {
        let mut places = self.jobs.get(job).places.clone();
        // What a prefill samples is thrown away (rule D2).
        places.retain(|&p| self.attempts.get(p).leg != Leg::Prefill);
        let mut of = places.iter().map(|&p| self.attempts.live(p).record.first_token);
        of.any(|t| t.is_some()) || self.jobs.get(job).record.first_token.is_some()
    }

    /// What a client that gives up has seen of an attempt.
    fn see_partial(&mut self, job: JobNumber, place: Place) {
        self.tell_tokens(place);
        // Its row may go on until the cancellation comes; what that gives is told to nobody.
        let mut record = self.record_of(job, place);
        let kept = std::mem::take(&mut self.attempts.live(place).kept);
        self.recorder.broke(&mut record);
        self.set_record(job, record, kept);
    }

    /// An attempt that goes on from a broken stream is given up before it has its KV: what the client saw of the stream
    /// stays the job's.
    pub(super) fn keep_stream(&mut self, job: JobNumber, place: Place) {
        let carries = self.attempts.get(place).resumed_tokens > 0;
        if carries && !self.jobs.has_ended(job) && self.jobs.get(job).places.contains(&place) {
            self.see_partial(job, place);
        }
    }

    /// The run ends before this job does.
    pub(super) fn leave_unfinished(&mut self, job: JobNumber) {
        let place = self.jobs.get(job).places.last().copied();
        if let Some(place) = place.filter(|&p| self.attempts.get(p).leg != Leg::Prefill) {
            let record = self.record_of(job, place);
            let kept = std::mem::take(&mut self.attempts.live(place).kept);
            self.set_record(job, record, kept);
        }
        let j = self.jobs.get(job);
        if j.state != JobState::Due {
            j.record.status = Status::Unfinished;
        }
        j.state = JobState::Ended;
    }
}
