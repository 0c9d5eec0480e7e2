//! What results of ranks that step together do not say.

use std::sync::Arc;

use super::super::machine::Fits;
use super::super::plan::StepTimeSource;
use super::super::schema::Pool;
use super::ServedBy;
use crate::engine::vllm::DP_SYNC_INTERVAL;
use crate::steptime::AnyFit;

/// The limits of pools whose ranks step together, and knobs of such ranks in pools where they do not.
pub(super) fn limitations(pools: &[Pool], served: &[Arc<ServedBy>], fits: &Fits) -> Vec<String> {
    let mut out = Vec::new();
    for (pool, served) in pools.iter().zip(served) {
        let (config, name) = (&served.engine.config, &served.name);
        let several = pool.dp.is_some_and(|dp| dp > 1);
        if pool.lockstep == Some(true) && !several {
            out.push(format!(
                "pool {name}: lockstep has no effect: its groups have one rank each, which waits for nobody"
            ));
        }
        if pool.lockstep == Some(true) && several {
            out.extend(of_lockstep(served, fits));
            continue;
        }
        for (knob, is_set) in [
            ("prefill_schedule_interval", config.prefill_schedule_interval > 1),
            ("dp_sync_interval", config.dp_sync_interval != DP_SYNC_INTERVAL),
        ] {
            if is_set {
                out.push(format!(
                    "pool {name}: {knob} has no effect, here as in vLLM: no ranks step together"
                ));
            }
        }
    }
    out
}

fn of_lockstep(served: &ServedBy, fits: &Fits) -> Vec<String> {
    let (name, config) = (&served.name, &served.engine.config);
    let mut out = Vec::new();
    let knows_sizes = match &served.step_time_source {
        StepTimeSource::Fit(path) => fits
            .read(path)
            .is_ok_and(|fit| matches!(fit.as_ref(), AnyFit::Roofline(_))),
        StepTimeSource::Linear(_) => false,
    };
    if !knows_sizes {
        out.push(format!(
            "pool {name}: ranks step together, each step as long as the slowest one's; that graphs pad all of them to the \
             largest token count (rule S72) is left out: only a roofline fit knows captured sizes"
        ));
    }
    if config.schedules_ahead() {
        out.push(format!(
            "pool {name}: ranks that step together are scheduled when the step before has ended, though asynchronous \
             scheduling is on: that requests wait a step longer for it (rule S51) is left out"
        ));
    }
    if config.pipeline_parallel_size > 1 {
        out.push(format!(
            "pool {name}: ranks that step together have one batch at a time in their {} pipeline stages",
            config.pipeline_parallel_size
        ));
    }
    out
}
