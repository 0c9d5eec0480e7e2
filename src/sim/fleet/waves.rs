//! Ranks that step together: waves of steps, and the idle steps at a wave's end (rules S70 to S73).
//!
//! A step begins when all ranks have ended the last one. A rank with nothing to compute runs a dummy batch: one decode of
//! a request without context, as vLLM's does. When nobody has anything left, the ranks go on with dummy batches until they
//! next ask each other; a request that comes meanwhile waits for the end of the step under way. Such idle steps all take
//! the same time, so they cost no events: where they stand is computed when somebody looks.

use super::config::PoolConfig;
use super::lazy::at_replica;
use super::world::Fleet;
use crate::record::{DummySteps, Recorder};
use crate::steptime::{BatchShape, StepMode};
use crate::units::{SimDuration, SimTime};

/// The wave of a group whose ranks step together.
#[derive(Debug)]
pub(super) struct Wave {
    /// Steps that have ended since it began (vLLM's `step_counter`).
    steps: u64,
    /// A step is under way, or has just ended.
    is_stepping: bool,
    idle: Option<Idle>,
    /// What a rank without work computes.
    dummy: BatchShape,
}

/// Steps of dummy batches alone, one after another.
#[derive(Debug, Clone, Copy)]
struct Idle {
    /// When the first of them began.
    since: SimTime,
    /// What that one takes, and what each further one takes.
    first: SimDuration,
    each: SimDuration,
    /// How many there are until the wave ends; none while requests are left that cannot be scheduled.
    left: Option<u64>,
    /// What the engines showed.
    shown: Shown,
}

/// Sums over the engines of a group, any of which changes when something happens to one of them.
type Shown = (u64, u64, u64);

impl Wave {
    pub fn new(config: &PoolConfig) -> Self {
        let mut dummy = BatchShape::default();
        dummy.add_decode(1 + config.engine.num_speculative_tokens, 0);
        Self {
            steps: 0,
            is_stepping: false,
            idle: None,
            dummy,
        }
    }

    /// Everything is lost, and the next step begins a new wave.
    fn reset(&mut self) -> Option<Idle> {
        (self.steps, self.is_stepping) = (0, false);
        self.idle.take()
    }
}

impl Idle {
    /// How many of them have ended by `now`.
    fn ended_by(&self, now: SimTime) -> u64 {
        let spent = now.since(self.since);
        let ended = if spent < self.first {
            0
        } else {
            1 + (spent.0 - self.first.0) / self.each.0
        };
        self.left.map_or(ended, |left| ended.min(left))
    }

    /// When so many of them have ended.
    fn end_of(&self, steps: u64) -> SimTime {
        match steps {
            0 => self.since,
            _ => self.since + self.first + self.each * (steps - 1),
        }
    }

    /// All of them have ended by `now`.
    fn is_over(&self, now: SimTime) -> bool {
        self.left.is_some_and(|left| self.ended_by(now) == left)
    }
}

impl<R: Recorder> Fleet<'_, R> {
    /// Ranks that step together begin their next step when all of them have ended the last one. All ranks of such groups
    /// are among the touched ones then.
    pub(super) fn start_waves(&mut self, touched: &mut Vec<u32>) {
        let mut groups: Vec<u32> = touched
            .iter()
            .filter_map(|&r| self.replicas[r as usize].wave)
            .collect();
        groups.dedup();
        for group in groups {
            let ranks = self.groups[group as usize].replicas.clone();
            if ranks.iter().any(|&r| self.replicas[r as usize].wake.is_some()) {
                continue;
            }
            self.end_wave_step(group, &ranks);
            if !self.stop_idling(group, &ranks) || self.begin_wave_step(group, &ranks) {
                for &rank in &ranks {
                    self.replicas[rank as usize].is_touched = true;
                }
                touched.extend(ranks);
            }
        }
        touched.sort_unstable();
        touched.dedup();
    }

    /// The step under way has ended, if there was one; so does the wave, if it is time to ask and nobody has work left
    /// (rule S71).
    fn end_wave_step(&mut self, group: u32, ranks: &[u32]) {
        let wave = &mut self.groups[group as usize].wave;
        if !std::mem::take(&mut wave.is_stepping) {
            return;
        }
        wave.steps += 1;
        let steps = wave.steps;
        self.tell_dummies(ranks, 1);
        if self.engine_of(group).syncs_after(steps) && !self.has_unfinished(ranks) {
            self.groups[group as usize].wave.steps = 0;
        }
    }

    fn engine_of(&self, group: u32) -> &crate::engine::vllm::VllmConfig {
        &self.config.pools[self.groups[group as usize].pool].engine
    }

    fn has_unfinished(&self, ranks: &[u32]) -> bool {
        let mut slots = ranks.iter().map(|&rank| &self.replicas[rank as usize]);
        slots.any(|slot| slot.replica.engine.has_unfinished())
    }

    fn shown(&self, ranks: &[u32]) -> Shown {
        ranks.iter().fold((0, 0, 0), |sum, &rank| {
            let gauges = self.replicas[rank as usize].replica.gauges();
            (
                sum.0 + u64::from(gauges.free_blocks),
                sum.1 + u64::from(gauges.waiting),
                sum.2 + u64::from(gauges.running),
            )
        })
    }

    /// Leaves the idle steps, if there are any: at the end of one of them, or with the wave. In the middle of one its ranks
    /// wait for its end if there is something to do, and otherwise go on; false then.
    fn stop_idling(&mut self, group: u32, ranks: &[u32]) -> bool {
        let now = self.now();
        let Some(idle) = self.groups[group as usize].wave.idle else {
            return true;
        };
        let ended = idle.ended_by(now);
        let (at, is_over) = (idle.end_of(ended), idle.is_over(now));
        let has_news = || {
            let mut slots = ranks.iter().map(|&rank| &self.replicas[rank as usize]);
            slots.any(|slot| slot.replica.has_news()) || self.shown(ranks) != idle.shown
        };
        let is_between = is_over || at == now;
        if !is_between && !has_news() {
            return false;
        }
        self.tell_idle(ranks, (idle.since, at), ended);
        let wave = &mut self.groups[group as usize].wave;
        wave.idle = None;
        wave.steps = if is_over { 0 } else { wave.steps + ended };
        if is_between {
            return true;
        }
        wave.is_stepping = true;
        for &rank in ranks {
            let slot = &mut self.replicas[rank as usize];
            slot.replica.hold();
            (slot.dummy_since, slot.wake) = (Some(at), Some(idle.end_of(ended + 1)));
            slot.acted = now;
        }
        false
    }

    /// The next step of a group, in which every rank takes part. Says whether there is one; steps of dummy batches alone
    /// are not taken but counted later.
    fn begin_wave_step(&mut self, group: u32, ranks: &[u32]) -> bool {
        let now = self.now();
        let steps = self.groups[group as usize].wave.steps;
        let throttled = self.engine_of(group).throttles_prefills_after(steps);
        let mut computes = false;
        for &rank in ranks {
            computes |= at_replica!(self, rank, |slot, around| slot.replica.prepare(
                now,
                throttled,
                &mut around
            ));
        }
        let unfinished = self.has_unfinished(ranks);
        if !computes && steps == 0 && !unfinished {
            // The group is at rest.
            return false;
        }
        let duration = self.slowest(group, ranks);
        let wave = &mut self.groups[group as usize].wave;
        if computes {
            wave.is_stepping = true;
            for &rank in ranks {
                at_replica!(self, rank, |slot, around| {
                    let (is_dummy, end) = slot.replica.launch(now, duration, &mut around);
                    (slot.wake, slot.acted) = (Some(end), now);
                    slot.dummy_since = is_dummy.then_some(now);
                });
            }
            return true;
        }
        let interval = u64::from(self.engine_of(group).dp_sync_interval.max(1));
        let each = duration.max(SimDuration(1));
        let idle = Idle {
            since: now,
            first: each,
            each,
            left: (!unfinished).then(|| interval - steps % interval),
            shown: self.shown(ranks),
        };
        self.groups[group as usize].wave.idle = Some(idle);
        false
    }

    /// What a step of a group takes: the slowest rank's time (rule S72), each at what they agree to launch.
    fn slowest(&mut self, group: u32, ranks: &[u32]) -> SimDuration {
        let pool = &self.config.pools[self.groups[group as usize].pool];
        let mut dummy = std::mem::take(&mut self.groups[group as usize].wave.dummy);
        let mut modes: Vec<StepMode> = Vec::new();
        if let Some((sizes, mode)) = &pool.graphs {
            for &rank in ranks {
                let slot = &mut self.replicas[rank as usize];
                let shape = slot.replica.prepared().unwrap_or(&mut dummy);
                modes.push(sizes.run_mode(*mode, shape));
            }
            StepMode::agree(&mut modes);
        }
        let mut slowest = SimDuration::ZERO;
        for (index, &rank) in ranks.iter().enumerate() {
            let slot = &mut self.replicas[rank as usize];
            let step_time = self.step_times[slot.step_time];
            let takes = match slot.replica.prepared() {
                Some(shape) => {
                    shape.launch = modes.get(index).copied();
                    step_time.observe(shape, 1);
                    step_time.duration(shape)
                }
                None => {
                    dummy.launch = modes.get(index).copied();
                    step_time.duration(&dummy)
                }
            };
            slowest = slowest.max(slot.replica.slowed(takes));
        }
        self.groups[group as usize].wave.dummy = dummy;
        slowest
    }

    /// The ranks' speed has changed: idle steps from the next one on take another time.
    pub(super) fn idle_at_new_speed(&mut self, group: u32) {
        let now = self.now();
        let Some(idle) = self.groups[group as usize].wave.idle else {
            return;
        };
        if idle.is_over(now) {
            return;
        }
        let ranks = self.groups[group as usize].replicas.clone();
        let ended = idle.ended_by(now);
        let at = idle.end_of(ended);
        self.tell_idle(&ranks, (idle.since, at), ended);
        let each = self.slowest(group, &ranks).max(SimDuration(1));
        let wave = &mut self.groups[group as usize].wave;
        wave.steps += ended;
        wave.idle = Some(Idle {
            since: at,
            first: if at == now {
                each
            } else {
                idle.end_of(ended + 1).since(at)
            },
            each,
            left: idle.left.map(|left| left - ended),
            ..idle
        });
    }

    /// A group's ranks stop where they are.
    pub(super) fn break_wave(&mut self, group: u32) {
        let ranks = self.groups[group as usize].replicas.clone();
        self.tell_dummies(&ranks, 0);
        self.tell_idle_until(group, self.now());
        self.groups[group as usize].wave.reset();
    }

    /// Tells of a group's idle steps up to an instant, one that has only begun with the time that it has taken.
    pub(super) fn tell_idle_until(&mut self, group: u32, until: SimTime) {
        let Some(idle) = self.groups[group as usize].wave.idle.take() else {
            return;
        };
        let ranks = self.groups[group as usize].replicas.clone();
        let ended = idle.ended_by(until);
        let to = if idle.is_over(until) {
            idle.end_of(ended)
        } else {
            until
        };
        self.tell_idle(&ranks, (idle.since, to), ended);
    }

    /// Tells of the dummy batches of the step under way, which counts `steps` times.
    fn tell_dummies(&mut self, ranks: &[u32], steps: u64) {
        let now = self.now();
        let all = ranks
            .iter()
            .all(|&rank| self.replicas[rank as usize].dummy_since.is_some());
        for &rank in ranks {
            if let Some(since) = self.replicas[rank as usize].dummy_since.take() {
                self.tell_dummy(rank, (since, now), steps, all);
            }
        }
    }

    fn tell_idle(&mut self, ranks: &[u32], span: (SimTime, SimTime), steps: u64) {
        for &rank in ranks {
            self.tell_dummy(rank, span, steps, true);
        }
    }

    fn tell_dummy(&mut self, replica: u32, (from, to): (SimTime, SimTime), steps: u64, is_idle: bool) {
        if from >= to {
            return;
        }
        let slot = &mut self.replicas[replica as usize];
        let told = &mut self.record.dummy_steps;
        let last = slot.last_dummy.and_then(|place| told.get_mut(place));
        match last.filter(|last| last.to == from && last.is_idle == is_idle) {
            Some(last) => (last.to, last.steps) = (to, last.steps + steps),
            None => {
                slot.last_dummy = Some(told.len());
                told.push(DummySteps {
                    replica,
                    from,
                    to,
                    steps,
                    is_idle,
                });
            }
        }
    }
}
