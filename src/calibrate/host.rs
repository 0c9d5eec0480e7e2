//! Host time around the steps, as captures show it.

use super::manifest::CaptureMode;
use super::observe::Capture;
use super::robust::median;
use crate::steptime::fit_file::HostFit;

/// A request that was due this much after the end of a step found the engine idle.
const IDLE_S: f64 = 1e-3;

/// What taking requests into the engine costs, in seconds.
#[derive(Default)]
struct Adds {
    first: Vec<f64>,
    further: Vec<f64>,
    idle: Vec<f64>,
}

/// Median times of the driver between steps. Requests that are due while a step runs are added when it ends:
/// the first of them finds cold caches, those right behind it are cheaper. One that finds the engine idle also
/// pays for waking the driver up. Runs in mode `batch` add whole groups to an idle engine and tell nothing of
/// adding.
pub fn fit_host(captures: &[Capture]) -> HostFit {
    let mut plain = Vec::new();
    let mut adds = Adds::default();
    for capture in captures {
        for pair in capture.steps.windows(2) {
            if pair[1].added_total == pair[0].added_total && pair[0].running + pair[0].waiting > 0 {
                plain.push((pair[1].t_start_s - pair[0].t_end_s).max(0.0));
            }
        }
        if capture.manifest.mode == CaptureMode::Open {
            collect_adds(capture, &mut adds);
        }
    }
    HostFit {
        between_steps_s: median(&plain).unwrap_or(0.0),
        between_steps_n: plain.len() as u64,
        add_request_s: median(&adds.first).unwrap_or(0.0),
        add_request_n: adds.first.len() as u64,
        add_further_request_s: median(&adds.further),
        add_further_request_n: adds.further.len() as u64,
        add_request_idle_s: median(&adds.idle),
        add_request_idle_n: adds.idle.len() as u64,
    }
}

/// Each add lasts from the end of the step, or of the add before it, to its own end; into an idle engine, from
/// the moment at which the request was due.
fn collect_adds(capture: &Capture, adds: &mut Adds) {
    let mut before = 0;
    let mut step_end = 0.0;
    for step in &capture.steps {
        let mut clock: Option<f64> = None;
        for request in capture
            .requests
            .iter()
            .take(step.added_total as usize)
            .skip(before)
        {
            let Some(end) = request.add_end_s else { continue };
            match clock {
                Some(free) => adds.further.push((end - free).max(0.0)),
                None if request.arrival_s <= step_end => adds.first.push((end - step_end).max(0.0)),
                // Due just after the step: the driver may still have been awake.
                None if request.arrival_s <= step_end + IDLE_S => {}
                None => adds.idle.push((end - request.arrival_s).max(0.0)),
            }
            clock = Some(end);
        }
        before = step.added_total as usize;
        step_end = step.t_end_s;
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
