//! Captures of a real engine: the recorded steps drive the clock, the grants must match.

use std::path::Path;

use super::{CaseKind, CaseReport, Comparison, rules};
use crate::calibrate::observe::Capture;
use crate::engine::vllm::VllmEngine;
use crate::engine::{Engine, StepPlan, StepResult};
use crate::input::InputError;

pub(super) fn replay(folder: &Path) -> Result<CaseReport, InputError> {
    let capture = Capture::read(folder)?;
    let trace = capture.trace()?;
    // The driver adds requests in the order in which they are due, ties by row.
    let mut order: Vec<u32> = (0..trace.requests.len() as u32).collect();
    order.sort_by_key(|&id| (trace.requests[id as usize].arrival, id));
    let mut engine = VllmEngine::new(capture.engine_config()?);
    let mut comparison = Comparison::default();
    let (mut added, mut identical) = (0, 0);
    let (mut plan, mut result) = (StepPlan::default(), StepResult::default());
    for (number, step) in capture.steps.iter().enumerate() {
        if !comparison.begin(number as u64) {
            break;
        }
        while added < step.added_total as usize {
            let Some(&id) = order.get(added) else { break };
            if let Err(refusal) = engine.submit(id, &trace.requests[id as usize]) {
                let came = format!("request {id} refused: {refusal}");
                comparison.check("arrival", rules::ADMITTED, &format!("request {id} taken"), &came);
            }
            added += 1;
        }
        engine.plan(&mut plan);
        let expected: Vec<_> = step.work.iter().map(|w| (w.id, w.tokens, w.computed)).collect();
        let work: Vec<_> = plan.grants.iter().map(|g| (g.id, g.tokens, g.computed)).collect();
        comparison.check(
            "preempted",
            rules::PREEMPTED,
            &step.preempted,
            &(plan.preempted.len() as u32),
        );
        comparison.check("work", rules::SCHEDULED, &expected, &work);
        comparison.check("batch shape", rules::SHAPE, &step.batch, &plan.shape);
        comparison.check("running", rules::RUNNING, &step.running, &plan.running);
        comparison.check("waiting", rules::WAITING, &step.waiting, &plan.waiting);
        comparison.check("free_blocks", rules::FREE, &step.free_blocks, &plan.free_blocks);
        engine.commit(&plan, &mut result);
        identical += u64::from(comparison.divergence.is_none());
    }
    Ok(CaseReport {
        name: folder.display().to_string(),
        kind: CaseKind::Capture,
        version: capture.manifest.vllm.clone(),
        steps: capture.steps.len() as u64,
        identical,
        divergence: comparison.divergence,
    })
}
