//! What a dashboard would have shown of a run: gauges and counters read at an interval.
//!
//! vLLM publishes its gauges after each step, when the requests that ended in it have left. Between two scrapes
//! nothing is known of gauges; counters forget nothing, but tell only by how much they rose.

use crate::record::{ReplicaRecord, RequestRecord, RunRecord, Scrape, Segment, TokenLog};
use crate::units::{SimDuration, SimTime};

/// With fewer readings than this while load was offered, a dashboard's gauges show nothing to rely on: the first
/// may lie in the ramp and the last in the drain, so that no reading is left for what lies between.
pub const FEW_SCRAPES: u64 = 3;
/// From this many readings on, the share of the readings that see a queue is within 0.16 (one standard deviation)
/// of the share of time in which there is one: enough to tell mostly from seldom.
pub const ENOUGH_SCRAPES: u64 = 10;

/// Reads the gauges and counters of a run, all replicas together, every `interval` from `phase` on to the first
/// reading at or after its end.
///
/// Counters: requests that ended, prompt tokens of requests whose first token is there, output tokens. KV use is
/// the mean over replicas; blocks that the last step's ended requests gave back count as used until the next step,
/// unless nothing is left to run.
///
/// # Errors
/// [`TooManyScrapes`] for an interval so short that there would be more than [`MOST_SCRAPES`].
pub fn scrape(
    run: &RunRecord,
    interval: SimDuration,
    phase: SimDuration,
) -> Result<Vec<Scrape>, TooManyScrapes> {
    check_number(run.end, interval)?;
    let (interval, end) = (interval.as_nanos(), run.end.as_nanos());
    let scraper = Scraper::of(run);
    let mut at = phase.as_nanos();
    let mut scrapes = Vec::new();
    loop {
        scrapes.push(scraper.read(SimTime(at)));
        match at.checked_add(interval) {
            Some(next) if at < end => at = next,
            _ => return Ok(scrapes),
        }
    }
}

/// Intervals between the readings of one run at most: a day of 100 ms each.
pub const MOST_SCRAPES: u64 = 1_000_000;

/// An interval between scrapes that is too short for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a scrape every {} ns over a run of {:.3} s is more than {MOST_SCRAPES} readings; the shortest interval is \
     {} ns",
    .interval.as_nanos(),
    .end.as_secs_f64(),
    .end.as_nanos().div_ceil(MOST_SCRAPES).max(1)
)]
pub struct TooManyScrapes {
    /// The interval.
    pub interval: SimDuration,
    /// When the run ends.
    pub end: SimTime,
}

/// Whether a run until `end` can be scraped at an interval.
///
/// # Errors
/// [`TooManyScrapes`] if there would be more readings than [`MOST_SCRAPES`]; of an interval of 0 there would be no end.
pub fn check_number(end: SimTime, interval: SimDuration) -> Result<(), TooManyScrapes> {
    match end.as_nanos().checked_div(interval.as_nanos()) {
        Some(readings) if readings <= MOST_SCRAPES => Ok(()),
        _ => Err(TooManyScrapes { interval, end }),
    }
}

/// Reads a run's gauges and counters at any instant.
#[derive(Debug)]
pub struct Scraper {
    states: Vec<Vec<Published>>,
    counters: Counters,
}

impl Scraper {
    /// Of a run.
    pub fn of(run: &RunRecord) -> Self {
        Self {
            states: (0..run.replicas.len()).map(|i| published(run, i)).collect(),
            counters: Counters::of(run),
        }
    }

    /// What a scrape at an instant shows; after the end of the run it shows an idle server.
    pub fn read(&self, at: SimTime) -> Scrape {
        reading(at, &self.states, &self.counters)
    }

    /// Waiting requests of all replicas, as a scrape at an instant shows them.
    pub fn waiting(&self, at: SimTime) -> u64 {
        let shown = self.states.iter().filter_map(|replica| shown_at(replica, at));
        shown.map(|state| u64::from(state.waiting)).sum()
    }
}

/// What a replica's gauges show at an instant; nothing before its first step.
fn shown_at(replica: &[Published], at: SimTime) -> Option<Published> {
    let upto = replica.partition_point(|p| p.at <= at);
    upto.checked_sub(1).map(|i| replica[i])
}

/// What a replica's gauges show from an instant on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Published {
    pub at: SimTime,
    pub running: u32,
    pub waiting: u32,
    /// Share of the usable blocks; `None` without any.
    pub kv_usage: Option<f64>,
}

/// The states of a replica's gauges in order, one a step.
pub(super) fn published(run: &RunRecord, replica: usize) -> Vec<Published> {
    let record = &run.replicas[replica];
    let ended = ended_in_steps(run, replica);
    let reading = |values: &[u32], i: usize| values.get(i).copied().unwrap_or(0);
    (0..record.step_ends.len())
        .map(|i| {
            let running = reading(&record.running, i).saturating_sub(ended[i]);
            let waiting = reading(&record.waiting, i);
            let used = if running == 0 && waiting == 0 {
                0
            } else {
                record
                    .usable_blocks
                    .saturating_sub(reading(&record.free_blocks, i))
            };
            Published {
                at: record.step_ends[i],
                running,
                waiting,
                kv_usage: (record.usable_blocks > 0)
                    .then(|| f64::from(used) / f64::from(record.usable_blocks)),
            }
        })
        .collect()
}

/// How many requests ended in each step of a replica.
pub(super) fn ended_in_steps(run: &RunRecord, replica: usize) -> Vec<u32> {
    let record = &run.replicas[replica];
    let mut ended = vec![0; record.step_ends.len()];
    let here = run.requests.iter().filter(|r| r.replica as usize == replica);
    for step in here.filter_map(|r| last_step(r, record)) {
        if let Some(count) = ended.get_mut(step) {
            *count += 1;
        }
    }
    ended
}

fn has_ended(request: &RequestRecord) -> bool {
    request.status.is_served()
}

/// The step in which a request ended.
fn last_step(request: &RequestRecord, replica: &ReplicaRecord) -> Option<usize> {
    if !has_ended(request) {
        return None;
    }
    match &request.tokens {
        TokenLog::Segments(segments) if !segments.is_empty() => {
            let last = segments.last()?;
            (last.first_step + last.steps).checked_sub(1).map(|s| s as usize)
        }
        _ => {
            let last = request.last_token?;
            Some(replica.step_ends.partition_point(|&end| end < last))
        }
    }
}

/// Counters that only rise, as (instant, value from then on).
#[derive(Debug)]
struct Counters {
    finished: Vec<(SimTime, u64)>,
    prompt: Vec<(SimTime, u64)>,
    output: Vec<(SimTime, u64)>,
}

impl Counters {
    fn of(run: &RunRecord) -> Self {
        let (mut finished, mut prompt, mut output) = (Vec::new(), Vec::new(), Vec::new());
        let mut per_step: Vec<Vec<i64>> = run
            .replicas
            .iter()
            .map(|r| vec![0; r.step_ends.len() + 1])
            .collect();
        for request in &run.requests {
            let replica = run.replicas.get(request.replica as usize);
            let end_of = |step: usize| replica.and_then(|r| r.step_ends.get(step)).copied();
            let ended = replica.and_then(|r| last_step(request, r)).and_then(end_of);
            let fallback = request.last_token.filter(|_| has_ended(request));
            finished.extend(ended.or(fallback).map(|at| (at, 1)));
            let mut first = request.first_token;
            match &request.tokens {
                TokenLog::Times(times) => output.extend(times.iter().map(|&at| (at, 1))),
                TokenLog::Segments(segments) => {
                    let step = segments.first().map(|s| s.first_step as usize);
                    first = step.and_then(end_of).or(first);
                    if let Some(tokens) = per_step.get_mut(request.replica as usize) {
                        add_segments(segments, tokens);
                    }
                }
            }
            prompt.extend(first.map(|at| (at, u64::from(request.input_tokens))));
        }
        for (replica, changes) in run.replicas.iter().zip(per_step) {
            let mut tokens = 0;
            for (&end, change) in replica.step_ends.iter().zip(changes) {
                tokens += change;
                output.push((end, tokens.unsigned_abs()));
            }
        }
        Self {
            finished: rising(finished),
            prompt: rising(prompt),
            output: rising(output),
        }
    }
}

/// Adds a request's tokens to the changes, from step to step, of the tokens a step gives.
fn add_segments(segments: &[Segment], changes: &mut [i64]) {
    for s in segments {
        for (step, sign) in [(s.first_step, 1), (s.first_step + s.steps, -1)] {
            if let Some(change) = changes.get_mut(step as usize) {
                *change += sign * i64::from(s.tokens_per_step);
            }
        }
    }
}

/// The running sum of events in the order of time.
fn rising(mut events: Vec<(SimTime, u64)>) -> Vec<(SimTime, u64)> {
    events.sort_unstable();
    let mut sum = 0;
    for (_, amount) in &mut events {
        sum += *amount;
        *amount = sum;
    }
    events
}

fn value_at(counter: &[(SimTime, u64)], at: SimTime) -> f64 {
    let upto = counter.partition_point(|&(t, _)| t <= at);
    upto.checked_sub(1).map_or(0.0, |i| counter[i].1 as f64)
}

fn reading(at: SimTime, states: &[Vec<Published>], counters: &Counters) -> Scrape {
    let shown = states.iter().map(|replica| shown_at(replica, at));
    let (mut running, mut waiting, mut used, mut known) = (0, 0, 0.0, 0u32);
    for (state, replica) in shown.zip(states) {
        running += state.map_or(0, |s| u64::from(s.running));
        waiting += state.map_or(0, |s| u64::from(s.waiting));
        // Before its first step a replica uses nothing.
        let has_blocks = replica.first().is_some_and(|p| p.kv_usage.is_some());
        known += u32::from(has_blocks);
        used += state.and_then(|s| s.kv_usage).unwrap_or(0.0);
    }
    Scrape {
        at_s: at.as_secs_f64(),
        running: running as f64,
        waiting: waiting as f64,
        kv_usage: (known > 0).then(|| used / f64::from(known)),
        finished: Some(value_at(&counters.finished, at)),
        prompt_tokens: Some(value_at(&counters.prompt, at)),
        output_tokens: Some(value_at(&counters.output, at)),
        preemptions: None,
    }
}

/// The rate of a counter over the readings from `from_s` to `to_s`: its rise between the first and the last of them
/// over the time between them, without the extrapolation to the window's edges that Prometheus' `rate()` adds.
/// `None` with fewer than two readings that have it.
pub fn rate(
    scrapes: &[Scrape],
    counter: impl Fn(&Scrape) -> Option<f64>,
    (from_s, to_s): (f64, f64),
) -> Option<f64> {
    let within = scrapes.iter().filter(|s| (from_s..=to_s).contains(&s.at_s));
    let mut known = within.filter_map(|s| Some((s.at_s, counter(s)?)));
    let first = known.next()?;
    let last = known.last()?;
    (last.0 > first.0).then(|| (last.1 - first.1) / (last.0 - first.0))
}

/// What scrapes at an interval could see of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Visibility {
    /// Seconds during which load was offered.
    pub load_s: f64,
    /// Seconds between two readings.
    pub interval_s: f64,
    /// Readings that fall into the load, whatever the phase: at least so many.
    pub readings: u64,
    /// The load is shorter than a few readings: its gauges cannot be relied on.
    pub invisible: bool,
    /// The longest interval that gives [`ENOUGH_SCRAPES`] readings in the load, in seconds.
    pub longest_interval_s: f64,
}

impl Visibility {
    /// Of a load that lasts `load_s`, read every `interval_s` (above 0).
    pub fn of(load_s: f64, interval_s: f64) -> Self {
        let readings = (load_s / interval_s).floor().max(0.0) as u64;
        Self {
            load_s,
            interval_s,
            readings,
            invisible: readings < FEW_SCRAPES,
            longest_interval_s: load_s / ENOUGH_SCRAPES as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::{MS, expand, random_run, three_requests};
    use crate::record::Status;
    use proptest::prelude::*;

    #[test]
    fn the_timeline_by_hand() {
        // Steps end at 10, 18, 26, 40, 60 ms; the requests end at 26, 40 and 60.
        let scrapes = scrape(&three_requests(), SimDuration(10 * MS), SimDuration(5 * MS)).unwrap();
        let seen: Vec<_> = scrapes
            .iter()
            .map(|s| {
                (
                    s.running,
                    s.kv_usage.unwrap(),
                    s.finished.unwrap(),
                    s.output_tokens.unwrap(),
                )
            })
            .collect();
        let want = [
            (0.0, 0.0, 0.0, 0.0),
            (1.0, 0.1, 0.0, 1.0),
            (2.0, 0.2, 0.0, 3.0),
            (1.0, 0.2, 1.0, 6.0),
            (0.0, 0.0, 2.0, 8.0),
            (0.0, 0.0, 2.0, 8.0),
            (0.0, 0.0, 3.0, 9.0),
        ];
        assert_eq!(seen, want);
        assert_eq!(scrapes[6].prompt_tokens, Some(300.0));
        // 9 tokens less 1 from 15 to 65 ms.
        let output = rate(&scrapes, |s| s.output_tokens, (0.010, 0.100)).unwrap();
        approx::assert_relative_eq!(output, 8.0 / 0.050, max_relative = 1e-12);
        assert_eq!(rate(&scrapes, |s| s.output_tokens, (0.010, 0.020)), None);
    }

    #[test]
    fn a_load_of_14_s_is_invisible_every_10_s() {
        let seen = Visibility::of(14.0, 10.0);
        assert!(seen.invisible && seen.readings == 1 && (seen.longest_interval_s - 1.4).abs() < 1e-12);
        assert!(!Visibility::of(14.0, 1.0).invisible);
    }

    #[test]
    fn an_interval_that_would_take_all_memory_is_refused() {
        let mut run = three_requests();
        run.end = SimTime(3_600_000_000_000);
        let every = |ns| scrape(&run, SimDuration(ns), SimDuration(0)).map(|s| s.len());
        assert_eq!(every(3_600_000), Ok(1_000_001));
        let error = every(1).unwrap_err().to_string();
        assert!(
            error.contains("every 1 ns") && error.contains("shortest interval is 3600000 ns"),
            "{error}"
        );
        assert!(every(0).is_err());
    }

    #[test]
    fn one_reading_of_the_queue_is_that_of_all() {
        let run = three_requests();
        let scraper = Scraper::of(&run);
        for at in (0..70).map(|ms| SimTime(ms * MS)) {
            approx::assert_relative_eq!(scraper.waiting(at) as f64, scraper.read(at).waiting);
        }
    }

    proptest! {
        #[test]
        fn counters_rise_and_end_at_the_totals(run in random_run(), interval in 1u64..60) {
            for run in [expand(&run), run] {
                let scrapes = scrape(&run, SimDuration(interval), SimDuration(0)).unwrap();
                for w in scrapes.windows(2) {
                    prop_assert!(w[0].output_tokens <= w[1].output_tokens && w[0].finished <= w[1].finished);
                }
                let last = scrapes.last().unwrap();
                let tokens: u64 = run.requests.iter().map(|r| u64::from(r.output_tokens)).sum();
                let done = run.requests.iter().filter(|r| r.status == Status::Completed).count();
                prop_assert_eq!(last.output_tokens, Some(tokens as f64));
                prop_assert_eq!(last.finished, Some(done as f64));
            }
        }
    }
}
