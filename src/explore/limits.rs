//! What limits the server and the client of a plan, for the diagnosis of its runs.

use std::collections::BTreeMap;

use crate::metric::cluster::PoolLimits;
use crate::metric::diagnose::Limits;
use crate::record::RunRecord;
use crate::scenario::Plan;
use crate::scenario::cluster::ClusterPlan;
use crate::scenario::schema::LoadKind;
use crate::sim::{ClientKind, Clients, HostTimes, LoadModel};
use crate::units::SimDuration;

/// The limits that a resolved plan states, and how busy its client machine was in a run.
pub fn limits_of(plan: &Plan, run: &RunRecord) -> Limits {
    let load_model = plan.world(HostTimes::default()).load;
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
        paced: matches!(
            load_model,
            LoadModel::Clients(Clients {
                kind: ClientKind::VllmBench { arrivals: true },
                ..
            })
        ),
        client_busy: match load_model {
            LoadModel::Clients(clients) => client_busy(&clients, run),
            _ => None,
        },
    }
}

/// What a replica of each pool of a cluster has room for.
pub(super) fn pool_limits(cluster: &ClusterPlan) -> BTreeMap<String, PoolLimits> {
    let limits = cluster.served_by().iter().map(|served| {
        let c = &served.engine.config;
        let seats = c
            .max_num_active_seqs
            .map_or(c.max_num_seqs, |a| a.min(c.max_num_seqs));
        let budget = c.max_num_scheduled_tokens.unwrap_or(c.max_num_batched_tokens);
        let threshold = Some(c.long_prefill_token_threshold).filter(|&t| t > 0);
        let chunk = threshold.map_or(budget, |t| t.min(budget));
        let in_chunks = c.enable_chunked_prefill && !c.scheduler_reserve_full_isl;
        let limits = PoolLimits {
            seats,
            block_size: c.block_size,
            first_chunk: in_chunks.then_some(chunk),
            reserved_blocks: (f64::from(c.num_gpu_blocks) * c.watermark) as u32,
        };
        (served.name.clone(), limits)
    });
    limits.collect()
}

/// Share of its cores' time that the client machine worked, from the first send to the end of the run; `None` where no
/// machine is modelled.
fn client_busy(clients: &Clients, run: &RunRecord) -> Option<f64> {
    let machine = clients.machine?;
    let answers = || run.requests.iter().filter(|r| r.status.is_served());
    let first = answers().map(|r| r.sent).min()?;
    let span = run.end.since(first).as_secs_f64();
    let seconds = |cost: SimDuration, times: f64| cost.as_secs_f64() * times;
    let work: f64 = answers()
        .map(|r| {
            let tokens = f64::from(r.output_tokens);
            let chunks = if clients.kind == ClientKind::ThreadPool {
                1.0
            } else {
                tokens
            };
            seconds(machine.send_cost, 1.0)
                + seconds(machine.chunk_cost, chunks)
                + seconds(clients.think, 1.0)
                + seconds(clients.think_per_token, tokens)
        })
        .sum();
    (span > 0.0).then(|| work / span / f64::from(machine.cores.max(1)))
}
