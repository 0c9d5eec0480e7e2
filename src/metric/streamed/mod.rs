//! The summary of a run without its record: memory flat in requests and in steps.
//!
//! [`StreamedSummary`] listens to a run and gives the [`Summary`] that [`Summary::of`] would give of the whole
//! record. Every figure is the same to the last bit, but for percentiles of a latency with more than 16,384 distinct
//! values (gaps and steps: 4,096): these come from bins and are off by at most 2^-11 of themselves (below 0.05 %), and a
//! note names them.
//!
//! What is kept: sums and samples; for each replica the falling sequence of its longest gaps, which is cut whenever no
//! measured request goes on decoding; and for each request in the system a few counts ([`RequestInFlight`]). Of a
//! cluster, whose attempts may be given up, beside it the stretches of steps that each request in the system has tokens of.

mod attempts;
mod distinct;
mod replica;
mod sample;
#[cfg(test)]
mod tests;

use self::attempts::{Gap, Stretch, Stretches};
use self::replica::{ReplicaState, Scratch};
use self::sample::{GAPS_EXACT_UP_TO, StreamedSample};
use super::bins::RELATIVE_ERROR;
use super::gauges::{GaugeSums, Gauges};
use super::latency::PerLatency;
use super::saturation::{ArrivalSpan, BacklogMeter};
use super::summary::{LivelockReport, Parts, Summary, SummaryOptions};
use super::tally::Tally;
use super::tokens::GapProfile;
use super::window::Window;
use crate::engine::RequestId;
use crate::record::{Chunk, Recorder, ReplicaTotals, RequestRecord, StepRun};
use crate::sim::FrontEnd;
use crate::units::{SimDuration, SimTime};

/// How the run is looked at.
#[derive(Debug, Clone, PartialEq)]
struct View {
    window: Window,
    gap_limit_ns: Option<u64>,
    front_end: FrontEnd,
    outbound: SimDuration,
    /// What each output token delays those after it by.
    per_token_ns: u64,
    /// Attempts may be given up.
    keeps_attempts: bool,
}

impl View {
    fn is_bounded(&self) -> bool {
        self.window != Window::WHOLE
    }

    /// When the client sees tokens made at `made`, with `before` tokens before them.
    fn seen(&self, made: SimTime, before: u32) -> SimTime {
        self.front_end.seen(made, before)
    }
}

/// What is kept of a request while it is in the system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestInFlight {
    profile: GapProfile,
    /// Gaps over the limit that its replica had seen by the request's last chunk.
    over_at_last: u64,
    /// Tokens of its last chunk.
    last_tokens: u32,
    /// Its chunks, where attempts may be given up.
    stretches: Stretches,
}

/// Listens to a run and summarises it.
#[derive(Debug, Clone)]
pub struct StreamedSummary {
    options: SummaryOptions,
    view: View,
    tally: Tally,
    samples: PerLatency<StreamedSample>,
    visible_tokens: u64,
    backlog: Option<BacklogMeter>,
    /// By number; those that others listen to are not there.
    replicas: Vec<Option<Box<ReplicaState>>>,
    /// When the last token reached a client.
    last_seen: SimTime,
    /// Chunks of which a gap or the window could not be told exactly.
    inexact: u64,
    scratch: Scratch,
}

impl StreamedSummary {
    /// A listener to a run, or to some of its replicas (see [`StreamedSummary::merge`]).
    ///
    /// * `options` as for [`Summary::of`]; `recorded_gaps` is not used.
    /// * `arrivals` of the whole run's measured requests that will not be rejected ([`ArrivalSpan::of`]): without
    ///   them the backlog is not judged.
    /// * `front_end` of the simulation: clients see tokens by so much later. The run tells when the engine made
    ///   them.
    ///
    /// The steps of a replica have to end one after the other, as those of the simulator do; two that end at one
    /// instant would be one chunk to a client behind a front end, and are two here. With `per_output_token`, the
    /// chunk after one of several tokens has to be told singly, while its step is the newest. Where either does not
    /// hold, a note says how many chunks are concerned.
    pub fn new(options: &SummaryOptions, arrivals: Option<ArrivalSpan>, front_end: &FrontEnd) -> Self {
        Self {
            options: options.clone(),
            view: View {
                window: options.window,
                gap_limit_ns: options.slo.gap_limit_ns(),
                front_end: *front_end,
                outbound: front_end.outbound,
                per_token_ns: front_end.per_output_token.as_nanos(),
                keeps_attempts: false,
            },
            tally: Tally::default(),
            samples: PerLatency {
                itl: StreamedSample::new(GAPS_EXACT_UP_TO),
                step: StreamedSample::new(GAPS_EXACT_UP_TO),
                ..PerLatency::default()
            },
            visible_tokens: 0,
            backlog: arrivals.and_then(BacklogMeter::new),
            replicas: Vec::new(),
            last_seen: SimTime::ZERO,
            inexact: 0,
            scratch: Scratch::default(),
        }
    }

    /// A listener to a run whose attempts may be given up ([`Recorder::given_up`]): it remembers the chunks of all that are
    /// in the system, and the steps since the oldest of them began.
    #[must_use]
    pub fn with_attempts(mut self) -> Self {
        self.view.keeps_attempts = true;
        self
    }

    /// Keeps what has been counted of a chunk or of more.
    fn remember(&mut self, kept: &mut RequestInFlight, stretch: Stretch) {
        let (number, step) = (stretch.replica, stretch.first_step);
        if kept.stretches.extend(stretch)
            && let Some(Some(replica)) = self.replicas.get_mut(number as usize)
        {
            replica.log.need(step);
        }
    }

    /// The steps of a request that has left the system are needed no more.
    fn release_steps(&mut self, kept: &RequestInFlight) {
        for (number, step) in kept.stretches.roots() {
            if let Some(Some(replica)) = self.replicas.get_mut(number as usize) {
                replica.log.release(step);
            }
        }
    }

    /// Takes out what was counted of a stretch.
    fn take_out(&mut self, stretch: &Stretch, is_measured: bool) {
        let view = &self.view;
        let Some(Some(replica)) = self.replicas.get_mut(stretch.replica as usize) else {
            return;
        };
        let mut last_end = None;
        let (mut before, tokens) = (stretch.before, stretch.tokens);
        for step in stretch.first_step..stretch.first_step + stretch.steps {
            let Some(end) = replica.log.end(step) else {
                self.inexact += 1;
                return;
            };
            if view.window.contains(view.seen(end, before)) {
                self.visible_tokens = self.visible_tokens.saturating_sub(tokens.into());
            }
            before = before.saturating_add(tokens);
            let within = last_end.map(|last| Gap {
                nanoseconds: end
                    .since(last)
                    .as_nanos()
                    .saturating_add(view.per_token_ns.saturating_mul(tokens.into())),
                is_pooled: view.per_token_ns == 0 || tokens == 1,
            });
            last_end = Some(end);
            if let Some(gap) = within.or(stretch.first_gap).filter(|_| is_measured)
                && !(gap.is_pooled && replica.take_back(step))
            {
                self.samples.itl.remove(gap.nanoseconds, 1);
            }
        }
    }

    /// The same with another number of distinct values up to which samples are exact.
    #[cfg(test)]
    fn exact_up_to(mut self, distinct_values: usize) -> Self {
        self.samples = self.samples.map(|_, _| StreamedSample::new(distinct_values));
        self
    }

    fn measured(&self, request: &RequestRecord) -> bool {
        self.view.window.contains(request.scheduled)
    }

    /// Adds what another listener, made with the same arguments, heard of other requests. The order in which
    /// listeners are merged does not matter. A replica's steps should be told to one of them alone.
    pub fn merge(&mut self, mut other: Self) {
        self.release();
        other.release();
        self.tally.merge(&other.tally);
        let theirs = other.samples;
        for (mine, theirs) in [
            (&mut self.samples.ttft, theirs.ttft),
            (&mut self.samples.ttft_from_send, theirs.ttft_from_send),
            (&mut self.samples.itl, theirs.itl),
            (&mut self.samples.tpot, theirs.tpot),
            (&mut self.samples.e2e, theirs.e2e),
            (&mut self.samples.e2e_from_send, theirs.e2e_from_send),
            (&mut self.samples.stall, theirs.stall),
            (&mut self.samples.queue, theirs.queue),
            (&mut self.samples.prefill, theirs.prefill),
            (&mut self.samples.send_lag, theirs.send_lag),
            (&mut self.samples.step, theirs.step),
        ] {
            mine.merge(theirs);
        }
        self.visible_tokens += other.visible_tokens;
        if let (Some(mine), Some(theirs)) = (&mut self.backlog, &other.backlog) {
            mine.merge(theirs);
        }
        let more = other.replicas.len().saturating_sub(self.replicas.len());
        self.replicas.extend(std::iter::repeat_with(|| None).take(more));
        for (mine, theirs) in self.replicas.iter_mut().zip(other.replicas) {
            match (mine, theirs) {
                (Some(mine), Some(theirs)) => {
                    mine.gauges.merge(&theirs.gauges);
                    mine.joined += theirs.joined;
                }
                (mine @ None, theirs) => *mine = theirs,
                (Some(_), None) => {}
            }
        }
        self.last_seen = self.last_seen.max(other.last_seen);
        self.inexact += other.inexact;
    }

    /// Puts gaps that were held back into the pool.
    fn release(&mut self) {
        for replica in self.replicas.iter_mut().flatten() {
            replica.release(&mut self.samples.itl);
        }
    }

    /// When the run is over for clients whose engines' last event was at `end`: the last token may reach its client later.
    pub fn seen_end(&self, end: SimTime) -> SimTime {
        end.max(self.last_seen)
    }

    /// The summary. `end` is when the engines' last event happened, and `replicas` are all of the run.
    pub fn finish(mut self, end: SimTime, replicas: &[ReplicaTotals]) -> Summary {
        self.release();
        let end = self.seen_end(end);
        let mut binned = Vec::new();
        let figures = self.samples.map(|name, sample| {
            if sample.is_binned() {
                binned.push(name);
            }
            sample.figures()
        });
        let gauges: Vec<(GaugeSums, u32)> = replicas
            .iter()
            .enumerate()
            .map(|(i, totals)| {
                let state = self.replicas.get(i).and_then(Option::as_deref);
                (
                    state.map_or_else(GaugeSums::default, |s| s.gauges),
                    totals.usable_blocks,
                )
            })
            .collect();
        let window = &self.view.window;
        let duration = window.cut(end).since(window.from);
        let parts = Parts {
            tally: self.tally,
            figures,
            gaps_known: true,
            visible_tokens: Some(self.visible_tokens),
            backlog: self.backlog.map(|meter| meter.judge()),
            gauges: Gauges::of_sums(&gauges, duration),
            livelocks: LivelockReport::of(replicas.iter().map(|r| r.livelock)),
            end,
        };
        let mut summary = Summary::from_parts(parts, &self.options);
        let joined: u64 = self.replicas.iter().flatten().map(|r| r.joined).sum();
        summary.notes.extend(notes(&binned, self.inexact + joined));
        summary
    }
}

/// What is weaker than it would be with the whole record.
fn notes(binned: &[&str], inexact: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if !binned.is_empty() {
        notes.push(format!(
            "percentiles of {} (more than {} distinct values each, itl and step more than {GAPS_EXACT_UP_TO}) are from \
             bins and off by at most {:.2} % of themselves; all else is exact",
            binned.join(", "),
            sample::EXACT_UP_TO,
            100.0 * RELATIVE_ERROR
        ));
    }
    if inexact > 0 {
        notes.push(format!(
            "{inexact} chunks of tokens could not be placed exactly behind the front end: gaps, stalls and tokens in the \
             window are off by them"
        ));
    }
    notes
}

impl Recorder for StreamedSummary {
    type Request = RequestInFlight;

    fn measures(&self, scheduled: SimTime) -> bool {
        self.view.window.contains(scheduled)
    }

    fn steps(&mut self, run: &StepRun<'_>) {
        let index = run.replica as usize;
        if index >= self.replicas.len() {
            self.replicas.resize_with(index + 1, || None);
        }
        let replica = self.replicas[index].get_or_insert_default();
        let pools = [&mut self.samples.step, &mut self.samples.itl];
        replica.steps(run, &self.view, &mut self.scratch, pools);
    }

    fn chunk(&mut self, request: &mut RequestRecord, kept: &mut RequestInFlight, chunk: Chunk) {
        let view = &self.view;
        if view.window.contains(view.seen(chunk.end, request.output_tokens)) {
            self.visible_tokens += u64::from(chunk.tokens);
        }
        let (mut counted, is_measured) = (None, self.measured(request));
        let replica = self.replicas.get_mut(request.replica as usize);
        let mut replica = replica.and_then(Option::as_deref_mut);
        if let Some(last) = request.last_token {
            let delay = view.per_token_ns.saturating_mul(u64::from(kept.last_tokens));
            let gap = chunk.end.since(last).as_nanos().saturating_add(delay);
            kept.profile.see(gap, view.gap_limit_ns);
            if is_measured {
                // Gaps of requests that go on are pooled by step, as after one token.
                let pooled = chunk.continues && delay == view.per_token_ns;
                counted = Some(Gap {
                    nanoseconds: gap,
                    is_pooled: pooled,
                });
                if !chunk.continues {
                    self.samples.itl.add(gap, 1);
                } else if !pooled {
                    if replica.as_mut().is_some_and(|r| r.take_back(chunk.step)) {
                        self.samples.itl.add(gap, 1);
                    } else {
                        self.inexact += 1;
                    }
                }
            }
        }
        kept.profile.chunks += 1;
        kept.over_at_last = replica.map_or(0, |r| r.over_upto(chunk.step));
        kept.last_tokens = chunk.tokens;
        if self.view.keeps_attempts {
            let stretch = Stretch {
                replica: request.replica,
                first_step: chunk.step,
                steps: 1,
                tokens: chunk.tokens,
                before: request.output_tokens,
                first_gap: counted,
            };
            self.remember(kept, stretch);
        }
    }

    fn further_chunks(
        &mut self,
        request: &mut RequestRecord,
        kept: &mut RequestInFlight,
        steps: u32,
        _end: SimTime,
    ) {
        let replica = self.replicas.get(request.replica as usize);
        let Some(replica) = replica.and_then(Option::as_deref).filter(|_| steps > 0) else {
            return;
        };
        match replica.seen_of_newest(steps, request.output_tokens, &self.view) {
            Some(seen) => self.visible_tokens += seen,
            None => self.inexact += 1,
        }
        if self.measured(request) {
            if self.view.per_token_ns > 0 && kept.last_tokens != 1 {
                self.inexact += 1;
            }
            let longest = replica.longest_of_newest(steps);
            kept.profile.longest_ns = kept.profile.longest_ns.max(longest);
        }
        // Those that are not measured count in goodput where they end in the window.
        kept.profile.over_limit += replica.over().saturating_sub(kept.over_at_last);
        kept.profile.chunks += u64::from(steps);
        kept.over_at_last = replica.over();
        if self.view.keeps_attempts {
            let first_step = replica.steps_so_far().saturating_sub(steps.into());
            // It follows its last chunk directly, so the gap before it is that of its step.
            let before_it = first_step.checked_sub(1).and_then(|step| replica.log.end(step));
            let ends = before_it.zip(replica.log.end(first_step));
            let first_gap = ends.filter(|_| self.measured(request)).map(|(last, end)| Gap {
                nanoseconds: end.since(last).as_nanos().saturating_add(self.view.per_token_ns),
                is_pooled: true,
            });
            let stretch = Stretch {
                replica: request.replica,
                first_step,
                steps: steps.into(),
                tokens: 1,
                before: request.output_tokens,
                first_gap,
            };
            self.remember(kept, stretch);
        }
        kept.last_tokens = 1;
    }

    fn given_up(&mut self, request: &RequestRecord, kept: RequestInFlight) {
        let is_measured = self.measured(request);
        for stretch in kept.stretches.all() {
            self.take_out(stretch, is_measured);
        }
        self.release_steps(&kept);
    }

    fn ended(&mut self, _id: RequestId, mut request: RequestRecord, kept: RequestInFlight) {
        self.release_steps(&kept);
        if self.view.front_end.delays_tokens() {
            let before_last = request.output_tokens.saturating_sub(kept.last_tokens);
            request.first_token = request.first_token.map(|t| self.view.seen(t, 0));
            request.last_token = request.last_token.map(|t| self.view.seen(t, before_last));
            self.last_seen = self.last_seen.max(request.last_token.unwrap_or_default());
        }
        let good = self.options.slo.meets_all(&request, &kept.profile);
        self.tally.run.count(&request, &self.view.window, Some(good));
        if let Some(backlog) = &mut self.backlog {
            backlog.count(&request);
        }
        if self.measured(&request) {
            self.samples.note(&request, kept.profile.longest_ns);
            self.tally
                .measured
                .count(&request, &kept.profile, &self.options.slo);
        }
    }
}
