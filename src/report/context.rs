//! What every figure of a report depends on.

mod pools;

use super::number::counted;
use crate::engine::vllm::VllmConfig;
use crate::kv::sizing::MemoryLedger;
use crate::scenario::schema::EngineKind;
use crate::scenario::{Plan, StepTimeSource};
use crate::sim::{FrontEnd, HostTimes};
use crate::steptime::Deployment;
use crate::units::SimDuration;

/// Name and value of what a reader must know: system, load, SLO, boundary, cache, seeds.
pub fn context(plan: &Plan) -> Vec<(String, String)> {
    let s = &plan.scenario;
    let world = plan.world(crate::sim::HostTimes::default());
    let e = &world.engine;
    let on = |b: bool| if b { "on" } else { "off" };
    let step_time = match &plan.step_time_source {
        StepTimeSource::Linear(_) => "stated in the scenario".to_owned(),
        // The name that was written, not the path where it was found: the page is the same on every machine.
        StepTimeSource::Fit(path) => {
            format!(
                "fit {}",
                s.system.fit.clone().unwrap_or_else(|| path.display().to_string())
            )
        }
    };
    let rows = [
        (
            "model",
            s.system.model.clone().unwrap_or_else(|| "unknown".into()),
        ),
        (
            "accelerator",
            s.system.accelerator.clone().unwrap_or_else(|| "unknown".into()),
        ),
        ("engine", engine_row(&engine_text(plan), e)),
        ("replicas", replicas_text(plan, world.replicas)),
        ("step time", step_time),
        ("load", load_text(plan)),
        ("SLO", slo_text(plan)),
        ("boundary", boundary_text(plan).into()),
        (
            "cache",
            format!(
                "warm model, cold KV; prefix caching {}",
                on(e.enable_prefix_caching)
            ),
        ),
        (
            "scheduling",
            format!(
                "{}, asynchronous scheduling {}",
                policy(e.policy),
                on(e.async_scheduling)
            ),
        ),
        (
            "measured",
            format!(
                "warm-up {}, window {}, seed {}, {}",
                plan.measure.warmup,
                plan.measure
                    .window
                    .map_or_else(|| "to the end".into(), |w: SimDuration| w.to_string()),
                plan.measure.seed,
                counted(u64::from(plan.measure.repeats), "repeat")
            ),
        ),
    ];
    let mut rows: Vec<_> = rows
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    // After model, accelerator and engine comes how these three fit together.
    let fit = [
        ("deployment", plan.deployment().map(deployment_text)),
        ("memory of a device", plan.memory().map(memory_text)),
    ];
    let known = fit
        .into_iter()
        .filter_map(|(name, text)| Some((name.to_owned(), text?)));
    rows.splice(3..3, known);
    if let Some(cluster) = plan.cluster() {
        pools::describe(cluster, plan, &mut rows);
    }
    rows
}

/// An engine and what it has room for.
fn engine_row(name: &str, e: &VllmConfig) -> String {
    format!(
        "{name}, max_num_seqs {}, max_num_batched_tokens {}, {} KV blocks (and vLLM's null block) of {} tokens",
        e.max_num_seqs,
        e.max_num_batched_tokens,
        e.usable_blocks(),
        e.block_size
    )
}

/// How many replicas, or which pools, behind which router.
fn replicas_text(plan: &Plan, replicas: u32) -> String {
    let Some(cluster) = plan.cluster() else {
        return format!("{replicas} behind a round-robin router");
    };
    let pools = cluster.config().pools.iter().zip(cluster.served_by());
    let pools: Vec<String> = pools
        .map(|(pool, served)| {
            let groups = counted(u64::from(pool.groups), "group");
            let devices = counted(u64::from(served.devices), "device");
            format!(
                "pool {} ({}): {groups} of {devices}",
                pool.name,
                format!("{:?}", pool.role).to_lowercase()
            )
        })
        .collect();
    let policy = serde_json::to_value(plan.scenario.cluster.router.policy).unwrap_or_default();
    format!(
        "{}; {} router",
        pools.join(", "),
        policy.as_str().unwrap_or("round-robin")
    )
}

fn deployment_text(d: &Deployment) -> String {
    let experts = if d.model.moe.is_some() && d.expert_dtype != d.dtype {
        format!(" (experts {})", d.expert_dtype)
    } else {
        String::new()
    };
    let graphs = match d.graphs.largest() {
        Some(largest) => format!("captured graphs up to {}", counted(u64::from(largest), "token")),
        None => "no captured graphs".to_owned(),
    };
    format!(
        "weights {}{experts}, KV cache {}, TP {}, PP {}, EP {}; {graphs}",
        d.dtype, d.kv_dtype, d.tp, d.pp, d.ep
    )
}

fn memory_text(ledger: &MemoryLedger) -> String {
    format!(
        "{ledger}; {:.2} requests of {} tokens at once",
        ledger.max_concurrency(),
        ledger.max_model_len
    )
}

/// Which engine, of which release.
fn engine_text(plan: &Plan) -> String {
    let e = &plan.scenario.system.engine;
    let base = plan.world(HostTimes::default()).engine.behaviour.version;
    // Pools with systems of their own leave the shared one as it was written.
    let version = e.version.as_deref().unwrap_or(base);
    match e.kind {
        Some(EngineKind::Neuron) => {
            format!("AWS Neuron plugin {version} on vLLM (rules of {base})")
        }
        Some(EngineKind::Vllm) | None => format!("vLLM {version}"),
    }
}

/// Where latencies start and end.
fn boundary_text(plan: &Plan) -> &'static str {
    let through_front_end = plan.machine().is_ok_and(|m| m.front_end != FrontEnd::default());
    let sees_for_itself = plan.world(HostTimes::default()).load.clients_see_for_themselves();
    if through_front_end {
        "serving: from the client's due time to the token at the client, HTTP and tokenizer included"
    } else if sees_for_itself {
        "serving: from the due time to the token at the client, its machine included; no network"
    } else {
        "engine: from the due time to the token out of the engine; no HTTP, no tokenizer"
    }
}

fn policy(policy: crate::engine::vllm::Policy) -> &'static str {
    match policy {
        crate::engine::vllm::Policy::Fcfs => "first come, first served",
        crate::engine::vllm::Policy::Priority => "by priority",
    }
}

fn load_text(plan: &Plan) -> String {
    use crate::scenario::schema::{ClientKind, LoadKind};
    let load = &plan.scenario.load;
    match load.model {
        LoadKind::OpenLoop => {
            let process = load.arrival.process.map_or_else(
                || "arrivals of the trace".to_owned(),
                |p| format!("{p:?} arrivals").to_lowercase(),
            );
            let rate = load
                .arrival
                .rate
                .map_or_else(String::new, |r| format!(" at {} requests/s", r.0));
            format!("open loop, {process}{rate}")
        }
        LoadKind::ClosedLoop => {
            let clients = load.concurrency.unwrap_or(1);
            match load.client.as_ref().map(|c| c.kind) {
                None | Some(ClientKind::Plain) => format!("closed loop, {clients} clients"),
                Some(ClientKind::Llmperf) => format!("closed loop, {clients} clients of llmperf"),
                Some(ClientKind::ThreadPool) => {
                    format!("closed loop, a pool of {clients} threads that receive their answers whole")
                }
                Some(ClientKind::VllmBench) => {
                    format!("closed loop, vllm bench serve with up to {clients} requests at a time")
                }
            }
        }
        LoadKind::Offline => "offline, everything ready at time 0".into(),
    }
}

/// The objective in words.
pub fn slo_text(plan: &Plan) -> String {
    let slo = &plan.slo;
    let targets: Vec<String> = [
        ("TTFT", slo.ttft),
        ("ITL", slo.itl),
        ("TPOT", slo.tpot),
        ("E2E", slo.e2e),
    ]
    .iter()
    .filter_map(|(name, target)| target.map(|t| format!("{name} within {t}")))
    .collect();
    if targets.is_empty() {
        return "none: every completed request is good".into();
    }
    format!(
        "{} for {} % of offered requests, at most {} % errors",
        targets.join(", "),
        100.0 * slo.attainment,
        100.0 * slo.errors
    )
}

/// The question that the scenario asks, in one line.
pub fn question(plan: &Plan) -> String {
    let q = &plan.scenario.question;
    let decision = q.decision.clone().unwrap_or_default();
    match &q.objective {
        Some(objective) if decision.is_empty() => format!("Objective: {objective}"),
        Some(objective) => format!("{decision} (objective: {objective})"),
        None => decision,
    }
}

/// The last line of every page.
pub fn footer() -> String {
    concat!("Made by kneeboard ", env!("CARGO_PKG_VERSION"), ". A simulation narrows the choice; it does not replace the live run at the SLO boundary and the knee.").to_owned()
}
