//! Host time around the steps, as captures show it.

use super::manifest::CaptureMode;
use super::observe::Capture;
use super::robust::median;
use crate::steptime::fit_file::HostFit;

/// A request that was due this much after the end of a step found the engine idle.
const IDLE_S: f64 = 1e-3;

/// Median times of the driver between steps. A request that is due while a step runs is added when the step
/// ends; one that finds the engine idle also pays for waking the driver up.
pub fn fit_host(captures: &[Capture]) -> HostFit {
    let (mut plain, mut busy_adds, mut idle_adds) = (Vec::new(), Vec::new(), Vec::new());
    for capture in captures {
        for pair in capture.steps.windows(2) {
            if pair[1].added_total == pair[0].added_total && pair[0].running + pair[0].waiting > 0 {
                plain.push((pair[1].t_start_s - pair[0].t_end_s).max(0.0));
            }
        }
        collect_adds(capture, &mut busy_adds, &mut idle_adds);
    }
    HostFit {
        between_steps_s: median(&plain).unwrap_or(0.0),
        between_steps_n: plain.len() as u64,
        add_request_s: median(&busy_adds).unwrap_or(0.0),
        add_request_n: busy_adds.len() as u64,
        add_request_idle_s: median(&idle_adds),
        add_request_idle_n: idle_adds.len() as u64,
    }
}

/// What each added request costs: from the end of the step, or of the request added before it, to its own end.
fn collect_adds(capture: &Capture, busy: &mut Vec<f64>, idle: &mut Vec<f64>) {
    let mut before = 0;
    let mut clock: Option<f64> = None;
    for step in &capture.steps {
        let added = capture
            .requests
            .iter()
            .take(step.added_total as usize)
            .skip(before);
        for request in added {
            let Some(end) = request.add_end_s else { continue };
            match clock {
                Some(free) if request.arrival_s <= free || capture.manifest.mode == CaptureMode::Batch => {
                    busy.push((end - free).max(0.0));
                }
                Some(free) if request.arrival_s <= free + IDLE_S => {}
                _ => idle.push((end - request.arrival_s).max(0.0)),
            }
            clock = Some(end);
        }
        before = step.added_total as usize;
        clock = Some(step.t_end_s);
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
