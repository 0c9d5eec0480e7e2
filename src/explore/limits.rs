//! What limits the server and the client of a plan, for the diagnosis of its runs.

use crate::metric::diagnose::Limits;
use crate::scenario::Plan;
use crate::scenario::schema::LoadKind;

/// The limits that a resolved plan states.
pub fn limits_of(plan: &Plan) -> Limits {
    let engine = &plan.scenario.system.engine;
    let load = &plan.scenario.load;
    let seats = engine.max_num_seqs;
    let budget = engine.max_num_scheduled_tokens.or(engine.max_num_batched_tokens);
    let threshold = engine.long_prefill_token_threshold.filter(|&t| t > 0);
    let chunk = budget.map(|b| threshold.map_or(b, |t| t.min(b)));
    let in_chunks =
        engine.enable_chunked_prefill == Some(true) && engine.scheduler_reserve_full_isl != Some(true);
    let blocks = f64::from(engine.num_gpu_blocks.unwrap_or(0));
    let watermark = engine.watermark.map_or(0.0, |w| w.0);
    Limits {
        max_num_seqs: seats.map(|s| engine.max_num_active_seqs.map_or(s, |active| active.min(s))),
        replicas: 0,
        usable_blocks: None,
        block_size: engine.block_size,
        first_chunk: chunk.filter(|_| in_chunks),
        reserved_blocks: (blocks * watermark) as u32,
        concurrency: load.concurrency.filter(|_| load.model == LoadKind::ClosedLoop),
        paced: false,
        client_busy: None,
    }
}
