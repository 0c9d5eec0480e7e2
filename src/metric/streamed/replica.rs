//! What has to be remembered of one replica's steps to answer for the requests that ran in them.

use std::collections::VecDeque;

use super::View;
use super::attempts::StepEnds;
use super::sample::StreamedSample;
use crate::metric::gauges::GaugeSums;
use crate::metric::moments::Moments;
use crate::record::StepRun;
use crate::units::SimTime;

/// Ends of steps that are kept where delays by token make each request see them at other instants.
const KEPT_ENDS: usize = 1 << 20;

/// One replica so far.
#[derive(Debug, Clone, Default)]
pub(super) struct ReplicaState {
    pub gauges: GaugeSums,
    /// Steps so far.
    steps: u64,
    last_end: SimTime,
    /// Steps whose tokens are seen before the window, and before its end; kept when the window has bounds.
    seen_before: [u64; 2],
    /// (step, gap) with rising steps and falling gaps: each gap that no later one reaches. The first at or after a
    /// step is the longest since. A request that decodes through a step has seen what is here since its last chunk.
    peaks: VecDeque<(u64, u64)>,
    /// Gaps over the SLO's limit so far, and up to the first step of the newest run.
    over: u64,
    first_of_run: u64,
    over_at_first: u64,
    /// Gaps of the newest run's first and last step that are not in the pool yet.
    held: [Held; 2],
    /// Chunks that a client would see as one with that before.
    pub joined: u64,
    /// Newest ends of steps.
    ends: VecDeque<SimTime>,
    /// Ends of steps of which attempts may be given up; empty where none is.
    pub log: StepEnds,
}

/// A gap that some requests saw, of which single ones may turn out to have seen another.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    step: u64,
    gap: u64,
    requests: u64,
}

/// Room for spans of a run of steps, to be used again.
#[derive(Debug, Clone, Default)]
pub(super) struct Scratch {
    durations: Vec<u64>,
    gaps: Vec<u64>,
    peaks: Vec<(u64, u64)>,
}

impl ReplicaState {
    /// Takes in steps; their durations go to `step`, their gaps to `itl`.
    pub fn steps(
        &mut self,
        run: &StepRun<'_>,
        view: &View,
        scratch: &mut Scratch,
        [step, itl]: [&mut StreamedSample; 2],
    ) {
        let n = run.ends.len().min(run.starts.len());
        if n == 0 {
            return;
        }
        let (starts, ends) = (&run.starts[..n], &run.ends[..n]);
        let (gaps, extra) = (&mut scratch.gaps, view.per_token_ns);
        gaps.clear();
        gaps.push(ends[0].since(self.last_end).as_nanos());
        gaps.extend(ends.windows(2).map(|pair| pair[1].since(pair[0]).as_nanos()));
        if view.front_end.delays_tokens() {
            self.note_joined(run, gaps);
            gaps.iter_mut().for_each(|gap| *gap = gap.saturating_add(extra));
        }
        let rising = gaps[1..].is_sorted();
        let later = if rising {
            Moments::of_rising(&gaps[1..])
        } else {
            Moments::of_slice(&gaps[1..])
        };

        let inside = |t: &SimTime| view.window.contains(*t);
        let alike =
            extra == 0 && starts[1..] == ends[..n - 1] && inside(&starts[0]) && inside(&starts[n - 1]);
        // Steps that are alike follow each other: the first alone may overlap with the one before it.
        let overlapping = if alike { &starts[..1] } else { starts };
        self.gauges
            .overlap(self.last_end, overlapping, ends, &view.window);
        if alike {
            // Each step begins where the one before ends, so its duration is the gap.
            let first = ends[0].since(starts[0]).as_nanos();
            step.add(first, 1);
            step.add_slice(&gaps[1..], &later, rising, 1);
            let durations = &mut scratch.durations;
            durations.clone_from(gaps);
            durations[0] = first;
            let mut moments = later;
            moments.add(first, 1);
            let free = run.free_blocks.get(..n).unwrap_or_default();
            self.gauges
                .add_run([run.running, run.waiting], free, durations, &moments);
        } else {
            self.durations(run, starts, ends, view, &mut scratch.durations, step);
        }
        if view.is_bounded() {
            self.note_seen(ends, view);
        }
        if view.keeps_attempts {
            self.log.add(ends);
        }
        self.gaps(run, (&later, rising), view, scratch, itl);
        self.steps += n as u64;
        self.last_end = ends[n - 1];
    }

    /// Durations and gauges of the steps that start in the window.
    fn durations(
        &mut self,
        run: &StepRun<'_>,
        starts: &[SimTime],
        ends: &[SimTime],
        view: &View,
        spans: &mut Vec<u64>,
        step: &mut StreamedSample,
    ) {
        let from = starts.partition_point(|&t| t < view.window.from);
        let to = view.window.to;
        let to = to.map_or(starts.len(), |to| starts.partition_point(|&t| t < to));
        if from >= to {
            return;
        }
        spans.clear();
        let steps = starts[from..to].iter().zip(&ends[from..to]);
        spans.extend(steps.map(|(start, end)| end.since(*start).as_nanos()));
        let moments = Moments::of_slice(spans);
        step.add_slice(spans, &moments, false, 1);
        let free = run.free_blocks.get(from..to).unwrap_or_default();
        self.gauges
            .add_run([run.running, run.waiting], free, spans, &moments);
    }

    /// Counts gaps of no length: a client would see their chunks as one, and they are taken for two.
    fn note_joined(&mut self, run: &StepRun<'_>, gaps: &[u64]) {
        let first = if self.steps == 0 { 0 } else { run.gaps_first };
        let none = |gaps: &[u64]| gaps.iter().filter(|&&gap| gap == 0).count() as u64;
        self.joined += none(&gaps[..1]) * u64::from(first) + none(&gaps[1..]) * u64::from(run.gaps_rest);
    }

    /// Counts the steps that clients see before the bounds of the window.
    fn note_seen(&mut self, ends: &[SimTime], view: &View) {
        let (from, to) = view.window.event_bounds();
        for (before, bound) in self.seen_before.iter_mut().zip([from, to]) {
            if *before == self.steps {
                *before += ends.partition_point(|&t| t + view.outbound < bound) as u64;
            }
        }
        if view.per_token_ns > 0 {
            self.ends.extend(ends);
            let surplus = self.ends.len().saturating_sub(KEPT_ENDS);
            self.ends.drain(..surplus);
        }
    }

    /// `later` are the moments of all gaps but the first, and whether these never fall.
    fn gaps(
        &mut self,
        run: &StepRun<'_>,
        later: (&Moments, bool),
        view: &View,
        scratch: &mut Scratch,
        itl: &mut StreamedSample,
    ) {
        self.release(itl);
        // Before a replica's first step there is none that a gap could begin with.
        let first = u64::from(if self.steps == 0 { 0 } else { run.gaps_first });
        let rest = u64::from(run.gaps_rest);
        let gaps = &scratch.gaps;
        self.pool(gaps, later, [first, rest], view, itl);

        self.first_of_run = self.steps;
        if let Some(limit) = view.gap_limit_ns {
            self.over += u64::from(gaps[0] > limit);
            self.over_at_first = self.over;
            self.over += gaps[1..].iter().map(|&gap| u64::from(gap > limit)).sum::<u64>();
        }
        // Where no measured request goes on, none will ask for what lies behind.
        if first == 0 {
            self.peaks.clear();
        }
        if first > 0 && rest > 0 {
            self.note_peaks(&gaps[..1], self.steps, true, &mut scratch.peaks);
            self.note_peaks(&gaps[1..], self.steps + 1, later.1, &mut scratch.peaks);
        } else if first > 0 {
            self.note_peaks(&gaps[..1], self.steps, true, &mut scratch.peaks);
        } else if rest > 0 {
            self.note_peaks(&gaps[1..], self.steps + 1, later.1, &mut scratch.peaks);
        }
        if rest == 0 && gaps.len() > 1 {
            self.peaks.clear();
        }
    }

    /// Puts gaps into the pool. Where each token delays those after it, the first and the last are held back, as
    /// requests may turn out to have had several tokens in the step before.
    fn pool(
        &mut self,
        gaps: &[u64],
        (later, rising): (&Moments, bool),
        [first, rest]: [u64; 2],
        view: &View,
        itl: &mut StreamedSample,
    ) {
        if view.per_token_ns == 0 {
            itl.add(gaps[0], first);
            itl.add_slice(&gaps[1..], later, rising, rest);
            return;
        }
        let newest = gaps.len() - 1;
        self.held[0] = Held {
            step: self.steps,
            gap: gaps[0],
            requests: first,
        };
        if newest > 0 {
            gaps[1..newest].iter().for_each(|&gap| itl.add(gap, rest));
            self.held[1] = Held {
                step: self.steps + newest as u64,
                gap: gaps[newest],
                requests: rest,
            };
        }
    }

    /// Puts what was held back into the pool.
    pub fn release(&mut self, itl: &mut StreamedSample) {
        for held in std::mem::take(&mut self.held) {
            itl.add(held.gap, held.requests);
        }
    }

    /// Takes one request out of those that saw the gap of a step; false when the step has left the house.
    pub fn take_back(&mut self, step: u64) -> bool {
        let held = self.held.iter_mut().find(|h| h.step == step && h.requests > 0);
        held.is_some_and(|held| {
            held.requests -= 1;
            true
        })
    }

    fn note_peaks(&mut self, gaps: &[u64], first_step: u64, rising: bool, new: &mut Vec<(u64, u64)>) {
        let Some(&last) = gaps.last() else { return };
        new.clear();
        let last_step = first_step + gaps.len() as u64 - 1;
        new.push((last_step, last));
        let mut longest = last;
        if !rising {
            for (i, &gap) in gaps.iter().enumerate().rev() {
                if gap > longest {
                    longest = gap;
                    new.push((first_step + i as u64, gap));
                }
            }
        }
        while self.peaks.back().is_some_and(|&(_, gap)| gap <= longest) {
            self.peaks.pop_back();
        }
        self.peaks.extend(new.iter().rev());
    }

    /// Gaps over the limit up to a step: the newest, or the first of the newest run.
    pub fn over_upto(&self, step: u64) -> u64 {
        if step == self.first_of_run {
            self.over_at_first
        } else {
            self.over
        }
    }

    /// Gaps over the limit so far.
    pub fn over(&self) -> u64 {
        self.over
    }

    /// Steps so far.
    pub fn steps_so_far(&self) -> u64 {
        self.steps
    }

    #[cfg(test)]
    pub fn peaks_kept(&self) -> usize {
        self.peaks.len()
    }

    /// The longest gap of the newest `steps` steps.
    pub fn longest_of_newest(&self, steps: u32) -> Option<u64> {
        let from = self.steps.saturating_sub(u64::from(steps));
        let first = self.peaks.partition_point(|&(step, _)| step < from);
        self.peaks.get(first).map(|&(_, gap)| gap)
    }

    /// How many of the newest `steps` steps' tokens a client sees in the window, who had `before` tokens before
    /// them. `None` when it is not known any more.
    pub fn seen_of_newest(&self, steps: u32, before: u32, view: &View) -> Option<u64> {
        let n = u64::from(steps);
        if !view.is_bounded() {
            return Some(n);
        }
        if view.per_token_ns == 0 {
            let first = self.steps.saturating_sub(n);
            let [from, to] = self.seen_before.map(|b| b.clamp(first, self.steps));
            return Some(to - from);
        }
        let first = self.ends.len().checked_sub(steps as usize)?;
        let (from, to) = view.window.event_bounds();
        let seen_before = |bound| {
            let (mut low, mut high) = (0u32, steps);
            while low < high {
                let middle = low + (high - low) / 2;
                let end = self.ends[first + middle as usize];
                if view.seen(end, before.saturating_add(middle)) < bound {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            u64::from(low)
        };
        Some(seen_before(to).saturating_sub(seen_before(from)))
    }
}
