//! vLLM on AWS Neuron: the plugins' schedulers around vLLM's own (rules N10 to N18, N40, N41).
//!
//! The device runs a prompt or a round of decodes, never both. So each call of the scheduler sees one waiting request
//! and nobody who runs, or the running requests and nobody who waits. Prompts go first: decodes stall while seats are
//! free and requests wait.

use super::vllm::{SchedulerClass, View, VllmEngine};
use super::{Engine, Gauges, Left, Livelock, Refusal, RequestId, StepPlan, StepResult};
use crate::workload::trace::TraceRequest;

#[cfg(test)]
mod tests;

/// One engine under a Neuron plugin, without clock and model.
#[derive(Debug)]
pub struct NeuronEngine {
    /// The base scheduler, which is shown some of the requests at a time.
    base: VllmEngine,
    /// What it saw in the last call.
    last: View,
    /// The last call let a request in and could not schedule it.
    blocked: bool,
    /// The batch of decodes is not that of the step before.
    changed: bool,
}

impl NeuronEngine {
    /// The plugin around a base scheduler whose configuration names it.
    pub fn around(base: VllmEngine) -> Self {
        debug_assert!(base.config().scheduler_cls.is_neuron());
        Self {
            base,
            last: View::Running,
            blocked: false,
            changed: true,
        }
    }

    /// The base scheduler.
    pub const fn base(&self) -> &VllmEngine {
        &self.base
    }

    /// What the next call sees (rules N10, N11, N41).
    fn view(&self) -> View {
        let config = self.base.config();
        let segments = config.scheduler_cls == SchedulerClass::NeuronSegmented;
        let running = self.base.running_count();
        if segments && self.base.first_is_mid_prompt() {
            View::FirstRunning
        } else if self.base.waiting_count() > 0 && (running == 0 || running < config.max_num_seqs as usize) {
            View::Head
        } else {
            View::Running
        }
    }
}

impl Engine for NeuronEngine {
    fn submit(&mut self, id: RequestId, request: &TraceRequest) -> Result<(), Refusal> {
        self.base.submit(id, request)
    }

    fn plan(&mut self, plan: &mut StepPlan) {
        self.last = self.view();
        self.base.plan_view(plan, self.last);
        self.blocked = self.last == View::Head && plan.is_empty();
        let decodes = self.last == View::Running && plan.preempted.is_empty();
        plan.shape.repeated = Some(decodes && !self.changed && !plan.is_empty());
        self.changed = !decodes;
    }

    fn commit(&mut self, plan: &StepPlan, result: &mut StepResult) {
        self.base.commit(plan, result);
        self.changed |= !result.finished.is_empty();
    }

    fn abort(&mut self, id: RequestId) -> bool {
        let held = self.base.abort(id);
        self.changed |= held;
        held
    }

    fn gauges(&self) -> Gauges {
        self.base.gauges()
    }

    fn flush_cache(&mut self) {
        self.base.flush_cache();
    }

    fn cached_blocks(&self) -> u32 {
        self.base.cached_blocks()
    }

    fn cached_tokens(&mut self, request: &TraceRequest, id: RequestId) -> u32 {
        self.base.cached_tokens(request, id)
    }

    fn has_unfinished(&self) -> bool {
        self.base.has_unfinished()
    }

    fn wants_schedule(&self) -> bool {
        self.base.wants_schedule()
    }

    /// The plugins drive vLLM's synchronous loop (rule N18).
    fn queue_depth(&self) -> usize {
        1
    }

    fn repeats(&self) -> u32 {
        if self.last == View::Running && self.view() == View::Running {
            self.base.repeats()
        } else {
            0
        }
    }

    fn foresee(&self, most: u32, free: &mut Vec<u32>) {
        self.base.foresee(most, free);
    }

    fn leap(&mut self, plans: u32) {
        self.base.leap(plans);
    }

    /// The request that was let in cannot be scheduled, and the running ones are hidden as long as it waits: they never
    /// end and never free what it needs (rule N14).
    fn livelock(&self) -> Option<Livelock> {
        let (head, needed_blocks) = self.base.head().filter(|_| self.blocked)?;
        Some(Livelock {
            head,
            needed_blocks,
            free_blocks: self.base.free_blocks(),
            hidden: self.base.running_count() as u32,
            waiting: self.base.waiting_count() as u32,
        })
    }

    fn list_all(&mut self, left: &mut Vec<Left>) {
        self.base.list_all(left);
    }
}
