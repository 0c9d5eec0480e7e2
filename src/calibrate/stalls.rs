//! Stalls that the machine caused: found, described, and kept out of the fit.
//!
//! A real-time thread may use its core for 950 ms of each second; then the kernel takes the core away until
//! the second is over. The seconds are fixed windows on the machine's clock: idle time neither moves nor
//! resets them, and a window with more than 50 ms of idle time has no stall.

use std::collections::BTreeMap;

use super::observe::Capture;
use super::robust::{median, quantile};
use super::rows::CaptureStep;
use crate::steptime::fit_file::{BandwidthLimit, ClassStalls};

/// Time off the core, inside an execution, from which on a step counts as stalled, in seconds.
pub const STALL_S: f64 = 5e-3;
/// A shorter pause between steps is the driver at work; a longer one is idleness. Adding one request takes
/// 0.2 to 0.4 ms.
const BUSY_GAP_S: f64 = 2.5e-3;
/// Phases of the windows that are tried: where the machine's seconds begin is not known.
const PHASES: u32 = 20;
/// Fewer stalls than this say nothing of a rule.
const MIN_STALLS: usize = 5;

/// Whether the machine stalled in a step.
pub fn is_stalled(step: &CaptureStep) -> bool {
    step.off_cpu_s() > STALL_S
}

/// Stall time of a step; 0 for one that did not stall.
pub(super) fn stall_s(step: &CaptureStep) -> f64 {
    if is_stalled(step) { step.off_cpu_s() } else { 0.0 }
}

/// Describes the stalls of some captures, by scheduling class.
pub fn describe(captures: &[Capture]) -> Vec<ClassStalls> {
    let mut classes: BTreeMap<String, Vec<&Capture>> = BTreeMap::new();
    for capture in captures {
        let class = capture.manifest.machine.scheduler_class.clone();
        classes
            .entry(class.unwrap_or_else(|| "unknown".into()))
            .or_default()
            .push(capture);
    }
    classes
        .into_iter()
        .map(|(class, runs)| describe_class(class, &runs))
        .collect()
}

fn describe_class(scheduler_class: String, runs: &[&Capture]) -> ClassStalls {
    let mut lengths = Vec::new();
    let mut busy_between = Vec::new();
    let mut gaps = Vec::new();
    for run in runs {
        let mut busy = 0.0;
        let mut last: Option<f64> = None;
        for step in &run.steps {
            busy += step.duration_s() - stall_s(step);
            if is_stalled(step) {
                lengths.push(step.off_cpu_s());
                if let Some(before) = last {
                    gaps.push(step.t_end_s - before);
                    busy_between.push(busy);
                }
                last = Some(step.t_end_s);
                busy = 0.0;
            }
        }
    }
    let total_s: f64 = lengths.iter().sum();
    let duration: f64 = runs.iter().map(|r| r.manifest.duration_s).sum();
    ClassStalls {
        scheduler_class,
        runs: runs.len() as u64,
        count: lengths.len() as u64,
        total_s,
        share: if duration > 0.0 { total_s / duration } else { 0.0 },
        median_s: median(&lengths).unwrap_or(0.0),
        p90_s: quantile(&lengths, 0.9).unwrap_or(0.0),
        busy_between_s: median(&busy_between),
        limit: find_limit(runs, &lengths, &gaps),
    }
}

/// The rule behind regular stalls: half of them agree on one length, and half of the gaps on one period.
fn find_limit(runs: &[&Capture], lengths: &[f64], gaps: &[f64]) -> Option<BandwidthLimit> {
    if gaps.len() < MIN_STALLS {
        return None;
    }
    let regular = |values: &[f64]| {
        let middle = median(values)?;
        let spread = quantile(values, 0.75)? - quantile(values, 0.25)?;
        (spread <= 0.2 * middle).then_some(middle)
    };
    let (length_s, period_s) = (regular(lengths)?, regular(gaps)?);
    // A gap is measured at ends of steps, so it is known to a step's length only: whole milliseconds suffice.
    let whole_ms = |s: f64| (s * 1e3).round() / 1e3;
    let (period_s, length_s) = (whole_ms(period_s), whole_ms(length_s));
    if length_s >= period_s {
        return None;
    }
    let mut limit = BandwidthLimit {
        period_s,
        busy_s: whole_ms(period_s - length_s),
        worst_error_share: 0.0,
    };
    limit.worst_error_share = runs
        .iter()
        .map(|run| {
            let recorded: f64 = run.steps.iter().map(stall_s).sum();
            ((predicted_stall_s(run, &limit) - recorded) / run.manifest.duration_s).abs()
        })
        .fold(0.0, f64::max);
    Some(limit)
}

/// The stall time that a limit predicts for a run's recorded busy and idle times, in seconds: the mean over
/// the phases that the windows may have.
pub fn predicted_stall_s(capture: &Capture, limit: &BandwidthLimit) -> f64 {
    let spans = busy_spans(capture);
    let total: f64 = (0..PHASES)
        .map(|k| stall_of(&spans, limit, f64::from(k) / f64::from(PHASES) * limit.period_s))
        .sum();
    total / f64::from(PHASES)
}

/// Idle time before, then busy time, alternately; without the recorded stalls.
fn busy_spans(capture: &Capture) -> Vec<(f64, f64)> {
    let mut clock = 0.0;
    capture
        .steps
        .iter()
        .map(|step| {
            let gap = (step.t_start_s - clock).max(0.0);
            let busy = step.duration_s() - stall_s(step);
            clock = step.t_end_s;
            if gap < BUSY_GAP_S {
                (0.0, gap + busy)
            } else {
                (gap, busy)
            }
        })
        .collect()
}

/// Walks the spans through windows that begin `phase` after the start.
fn stall_of(spans: &[(f64, f64)], limit: &BandwidthLimit, phase: f64) -> f64 {
    // Below a nanosecond there is only rounding.
    const TINY: f64 = 1e-9;
    let (mut clock, mut window_end, mut used, mut stalled) = (0.0, phase, 0.0, 0.0);
    for &(idle, mut busy) in spans {
        clock += idle;
        while busy > TINY {
            if clock >= window_end - TINY {
                let windows = ((clock - window_end) / limit.period_s + TINY).floor() + 1.0;
                window_end += windows.max(1.0) * limit.period_s;
                used = 0.0;
            }
            let run = busy.min(window_end - clock).min(limit.busy_s - used);
            clock += run;
            used += run;
            busy -= run;
            if used >= limit.busy_s - TINY && busy > TINY && clock < window_end - TINY {
                stalled += window_end - clock;
                clock = window_end;
            }
        }
    }
    stalled
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_abs_diff_eq;

    const LIMIT: BandwidthLimit = BandwidthLimit {
        period_s: 1.0,
        busy_s: 0.95,
        worst_error_share: 0.0,
    };

    #[test]
    fn continuous_work_stalls_once_a_window() {
        // 9.5 s of work: windows 0 to 9 each hold 0.95 s; the last ends the work, so 9 stalls.
        assert_abs_diff_eq!(stall_of(&[(0.0, 9.5)], &LIMIT, 0.0), 9.0 * 0.05, epsilon = 1e-6);
        let steps = vec![(0.0, 0.1); 95];
        assert_abs_diff_eq!(stall_of(&steps, &LIMIT, 0.0), 9.0 * 0.05, epsilon = 1e-6);
    }

    #[test]
    fn idle_time_in_a_window_shortens_its_stall_and_does_not_move_the_windows() {
        // 20 ms idle in the first window: its stall is 30 ms; the second window is full.
        assert_abs_diff_eq!(
            stall_of(&[(0.0, 0.5), (0.02, 2.0)], &LIMIT, 0.0),
            0.03 + 0.05,
            epsilon = 1e-6
        );
        // 60 ms idle: no stall in the first window.
        assert_abs_diff_eq!(
            stall_of(&[(0.0, 0.5), (0.06, 1.3)], &LIMIT, 0.0),
            0.0,
            epsilon = 1e-6
        );
        // A phase of 0.3 s: a stall at its end is not possible before 0.95 s of work in one window.
        assert_abs_diff_eq!(stall_of(&[(0.0, 1.3)], &LIMIT, 0.3), 0.05, epsilon = 1e-6);
        assert_abs_diff_eq!(stall_of(&[(0.0, 1.2)], &LIMIT, 0.3), 0.0, epsilon = 1e-6);
    }
}
