//! What one group of a pool carries of a workload at its best.
//!
//! A prefill group takes the prompts in their order, each step as many of their tokens as fit. A decode group runs as many
//! requests at a time as it has seats and KV blocks for, and as its step may take within the target for the time between
//! tokens; a running request has read its prompt and, on the average, half of its output, and long answers run for longer.

use crate::engine::vllm::VllmConfig;
use crate::input::InputError;
use crate::metric::Slo;
use crate::metric::cluster::{GroupBound, GroupCapacity};
use crate::scenario::{Machine, Plan};
use crate::steptime::BatchShape;
use crate::units::SimDuration;

/// Requests that stand for the workload: the first ones.
const MOST_REQUESTS: usize = 4096;

/// Prompts and outputs of a workload, in tokens, in the order of arrival.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lengths(Vec<(u32, u32)>);

impl Lengths {
    /// Of a plan's first replication.
    ///
    /// # Errors
    /// [`InputError`] for a workload that cannot be drawn.
    pub fn of(plan: &Plan) -> Result<Self, InputError> {
        let requests = plan.requests(0)?.take(MOST_REQUESTS);
        let lengths = requests.map(|r| r.map(|r| (r.input_tokens, r.output_tokens())));
        Ok(Self(lengths.collect::<Result<_, _>>()?))
    }

    fn mean_output(&self) -> f64 {
        let sum: u64 = self.0.iter().map(|&(_, output)| u64::from(output)).sum();
        sum as f64 / self.0.len().max(1) as f64
    }

    /// The mean of a figure of requests over those that run at an instant: each counts as often as it has output tokens.
    fn mean_running(&self, figure: impl Fn(f64, f64) -> f64) -> f64 {
        let (mut sum, mut tokens) = (0.0, 0.0);
        for &(input, output) in &self.0 {
            let (input, output) = (f64::from(input), f64::from(output));
            sum += output * figure(input, output);
            tokens += output;
        }
        if tokens > 0.0 { sum / tokens } else { 0.0 }
    }
}

/// Of a prefill engine.
pub fn prefill_capacity(lengths: &Lengths, engine: &VllmConfig, machine: &Machine) -> Option<GroupCapacity> {
    let mut seconds = 0.0;
    let mut batch = BatchShape::default();
    let mut step = |batch: &mut BatchShape| {
        if !batch.is_empty() {
            seconds += pace_seconds(machine, batch, engine.pipeline_parallel_size);
            batch.clear();
        }
    };
    let budget = engine.max_num_batched_tokens.max(1);
    for &(input, _) in &lengths.0 {
        let mut computed = 0;
        while computed < input {
            if batch.tokens() >= budget || batch.num_seqs() >= engine.max_num_seqs {
                step(&mut batch);
            }
            let chunk = (input - computed).min(budget - batch.tokens());
            batch.add_prefill(chunk, computed);
            computed += chunk;
        }
    }
    step(&mut batch);
    (seconds > 0.0).then(|| GroupCapacity {
        requests_per_s: lengths.0.len() as f64 / seconds,
        batch: None,
        step_s: None,
        bound: GroupBound::StepTokens,
    })
}

/// Of a decode engine; none when not even one request runs within the target.
pub fn decode_capacity(
    lengths: &Lengths,
    engine: &VllmConfig,
    machine: &Machine,
    slo: &Slo,
) -> Option<GroupCapacity> {
    let context = lengths
        .mean_running(|input, output| output.mul_add(0.5, input))
        .round() as u32;
    let block = f64::from(engine.block_size.max(1));
    let blocks = lengths.mean_running(|input, output| output.mul_add(0.5, input) / block + 0.5);
    let in_kv = (f64::from(engine.usable_blocks()) / blocks.max(1.0)).floor();
    let in_kv = in_kv.clamp(1.0, f64::from(u32::MAX)) as u32;
    let most = engine
        .max_num_seqs
        .min(engine.max_num_batched_tokens)
        .min(in_kv)
        .max(1);
    let step_s = |rows: u32| {
        let mut batch = BatchShape::default();
        for _ in 0..rows {
            batch.add_decode(1, context);
        }
        step_seconds(machine, &batch)
    };
    let targets = [slo.tpot, slo.itl].into_iter().flatten();
    let target_s = targets.min().map_or(f64::INFINITY, SimDuration::as_secs_f64);
    let rows = most_within(most, |rows| step_s(rows) <= target_s)?;
    let bound = match rows {
        rows if rows < most => GroupBound::TokenTarget,
        rows if rows == in_kv && rows < engine.max_num_seqs => GroupBound::Kv,
        _ => GroupBound::Seats,
    };
    let (lasts, output) = (step_s(rows), lengths.mean_output());
    (lasts > 0.0 && output > 0.0).then(|| GroupCapacity {
        requests_per_s: f64::from(rows) / lasts / output,
        batch: Some(rows),
        step_s: Some(lasts),
        bound,
    })
}

/// Time from one batch to the next: in a pipeline the next may start when the first stage and the host are done with this
/// one, and no stage does more than one batch at a time, so the slowest sets the pace (rule S68).
fn pace_seconds(machine: &Machine, batch: &BatchShape, stages: u32) -> f64 {
    if stages <= 1 {
        return step_seconds(machine, batch);
    }
    let mut shares = Vec::new();
    machine.step_time.stage_shares(batch, &mut shares);
    let total: f64 = shares.iter().map(|&share| share as f64).sum();
    let (first, slowest) = match shares.iter().max() {
        Some(&most) if total > 0.0 && shares.len() == stages as usize => {
            (shares[0] as f64 / total, most as f64 / total)
        }
        // Stages that nothing is known of are equal.
        _ => (1.0 / f64::from(stages), 1.0 / f64::from(stages)),
    };
    let lasts = machine.step_time.duration(batch).as_secs_f64();
    let host = machine.host.between_steps.as_secs_f64();
    lasts.mul_add(first, host).max(lasts * slowest)
}

/// A step with the host's time until the next.
fn step_seconds(machine: &Machine, batch: &BatchShape) -> f64 {
    (machine.step_time.duration(batch) + machine.host.between_steps).as_secs_f64()
}

/// The largest number from 1 to `most` for which something holds that holds for all smaller ones.
fn most_within(most: u32, holds: impl Fn(u32) -> bool) -> Option<u32> {
    if !holds(1) {
        return None;
    }
    let (mut low, mut high) = (1, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Some(low)
}

#[cfg(test)]
#[path = "group_capacity_tests.rs"]
mod tests;
