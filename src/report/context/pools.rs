//! Of a cluster: each pool, and what stands around them.

use super::{deployment_text, engine_row, memory_text};
use crate::cluster::gateway::FairPolicy;
use crate::report::number::counted;
use crate::scenario::Plan;
use crate::scenario::cluster::{ClusterPlan, ServedBy};
use crate::scenario::schema::PlacementRule;
use crate::sim::fleet::{Fate, FleetConfig, GatewayConfig, PoolRole, Recovery, TransferMode};

/// Rows of the shared system that several pools need not have in common.
const OF_ONE_SYSTEM: [&str; 5] = [
    "model",
    "accelerator",
    "deployment",
    "memory of a device",
    "engine",
];

/// Puts each pool in the place of the one system, if there are several, and adds gateway, transfer, recovery and placement.
pub(super) fn describe(cluster: &ClusterPlan, plan: &Plan, rows: &mut Vec<(String, String)>) {
    let (config, served) = (cluster.config(), cluster.served_by());
    if served.len() > 1 {
        rows.retain(|(name, _)| !OF_ONE_SYSTEM.contains(&name.as_str()));
        let pools = config.pools.iter().zip(served);
        let pools = pools.flat_map(|(pool, served)| of_pool(served, pool.groups));
        rows.splice(0..0, pools.collect::<Vec<_>>());
    }
    let after = rows.iter().position(|(name, _)| name == "replicas");
    let after = after.map_or(rows.len(), |i| i + 1);
    let transfer = is_apart(config).then(|| ("transfer of KV", transfer_text(config)));
    let gateway = gateway_text(&config.gateway);
    let around = [
        ("gateway", gateway),
        ("recovery", recovery_text(&config.recovery)),
    ];
    let stated = plan.scenario.cluster.pools.iter().flatten().zip(served);
    let placed = stated.filter_map(|(pool, served)| {
        let rule = pool.placement.as_ref()?;
        Some((format!("placement of {}", served.name), placement_text(rule)))
    });
    let around = transfer.into_iter().chain(around);
    let around = around.map(|(name, text)| (name.to_owned(), text)).chain(placed);
    rows.splice(after..after, around.collect::<Vec<_>>());
}

fn is_apart(config: &FleetConfig) -> bool {
    config.pools.iter().any(|p| p.role == PoolRole::Prefill)
}

fn of_pool(served: &ServedBy, groups: u32) -> Vec<(String, String)> {
    let engine = &served.engine;
    let instance = served
        .instance
        .as_ref()
        .map_or_else(String::new, |i| format!(" on {}", i.name));
    let size = format!(
        "{}, {} of {}{instance}",
        format!("{:?}", served.role).to_lowercase(),
        counted(u64::from(groups), "group"),
        counted(u64::from(served.devices), "device")
    );
    let version = engine.config.behaviour.version;
    let name = if engine.config.scheduler_cls.is_neuron() {
        format!("AWS Neuron plugin on vLLM (rules of {version})")
    } else {
        format!("vLLM {version}")
    };
    let model = engine.deployment.as_ref();
    let rows = [
        ("", Some(size)),
        (": model", model.map(|d| d.model.name.clone())),
        (": accelerator", model.map(|d| d.accelerator.name.clone())),
        (": deployment", model.map(deployment_text)),
        (": memory of a device", engine.ledger.as_ref().map(memory_text)),
        (": engine", Some(engine_row(&name, &engine.config))),
    ];
    let named = rows
        .into_iter()
        .filter_map(|(what, text)| Some((format!("pool {}{what}", served.name), text?)));
    named.collect()
}

fn transfer_text(config: &FleetConfig) -> String {
    use crate::cluster::push::PushFrom;
    let mode = match config.transfer.mode {
        TransferMode::Pull => "pull: read by the decode group when the prompt is computed",
        TransferMode::Push {
            from: PushFrom::EveryChunk,
            ..
        } => "push: written by the prefill group layer by layer, each chunk as it is computed",
        TransferMode::Push {
            from: PushFrom::LastChunk,
            ..
        } => "push-last-chunk: written by the prefill group layer by layer with the last chunk",
    };
    let names: Vec<&str> = config.links.iter().map(|l| l.name.as_str()).collect();
    if names.is_empty() {
        return mode.to_owned();
    }
    format!("{mode}; links {}", names.join(", "))
}

fn gateway_text(gateway: &GatewayConfig) -> String {
    let order = match gateway.fairness {
        FairPolicy::Fcfs => "first come, first served",
        FairPolicy::Priority => "by priority",
        FairPolicy::Vtc { .. } => "virtual token counters",
        FairPolicy::DeficitRoundRobin { .. } => "deficit round-robin",
    };
    let limits = &gateway.limits;
    let mut parts = vec![
        limits
            .max_in_flight
            .map_or_else(|| "lets in all".to_owned(), |n| format!("lets in {n} at a time")),
        order.to_owned(),
    ];
    if let Some(n) = limits.max_queued_requests {
        parts.push(format!("at most {n} wait"));
    }
    let timeouts = [
        ("TTFT", gateway.timeouts.ttft),
        ("E2E", gateway.timeouts.e2e),
        ("queue", gateway.timeouts.queue),
    ];
    let given = timeouts.iter().filter_map(|(what, t)| Some((what, (*t)?)));
    parts.extend(given.map(|(what, t)| format!("{what} timeout {t}")));
    parts.push(match gateway.retry.attempts {
        0 | 1 => "no retries".to_owned(),
        n => format!("{n} attempts"),
    });
    if let Some(hedge) = &gateway.hedge {
        parts.push(format!("hedged after {}", hedge.after));
    }
    parts.join(", ")
}

fn recovery_text(recovery: &Recovery) -> String {
    let fate = match recovery.in_flight {
        Fate::Fail => "requests under way fail",
        Fate::Retry => "requests under way are tried again",
        Fate::Resume => "requests under way are resumed",
    };
    let restart = if recovery.restart {
        "groups restart"
    } else {
        "groups do not restart"
    };
    format!(
        "a crash is detected after {}, its routes are out {} later; {fate}, {restart}",
        recovery.detection, recovery.route_removal
    )
}

fn placement_text(rule: &PlacementRule) -> String {
    let mut parts = Vec::new();
    if let Some(n) = rule.groups_per_node {
        parts.push(format!("{} a node", counted(u64::from(n), "group")));
    }
    if let Some(n) = rule.nodes_per_group {
        parts.push(format!("{} a group", counted(u64::from(n), "node")));
    }
    if let Some(zones) = &rule.zones {
        parts.push(format!("zones {} in turn", zones.join(", ")));
    }
    if parts.is_empty() {
        "as by default".to_owned()
    } else {
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::context::context;

    fn rows(name: &str, set: &[(&str, &str)]) -> Vec<(String, String)> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let mut text = std::fs::read_to_string(folder.join(name)).unwrap();
        for (from, to) in set {
            assert!(text.contains(from), "{from}");
            text = text.replacen(from, to, 1);
        }
        let plan = Plan::from_text(&text, name, &folder, &[]).unwrap();
        context(&plan)
    }

    fn row<'a>(rows: &'a [(String, String)], name: &str) -> &'a str {
        let mut found = rows.iter().filter(|(n, _)| n == name);
        let text = &found.next().unwrap_or_else(|| panic!("{name}: {rows:?}")).1;
        assert_eq!(found.next(), None, "{name} is there twice");
        text
    }

    #[test]
    fn each_pool_of_unequal_ones_is_described() {
        let rows = rows("pd-llama-70b.yaml", &[]);
        let (prefill, decode) = (row(&rows, "pool prefill"), row(&rows, "pool decode"));
        assert_eq!(prefill, "prefill, 2 groups of 4 devices on p5.48xlarge");
        assert_eq!(decode, "decode, 1 group of 8 devices on p5.48xlarge");
        assert!(row(&rows, "pool prefill: deployment").contains("TP 4"));
        assert!(row(&rows, "pool decode: deployment").contains("TP 8"));
        assert!(row(&rows, "pool prefill: engine") != row(&rows, "pool decode: engine"));
        assert!(row(&rows, "pool decode: engine").contains("KV blocks"));
        assert!(row(&rows, "transfer of KV").starts_with("pull"));
        // Nothing is said of one pool as if it were of all.
        assert!(
            !rows.iter().any(|(n, _)| n == "engine" || n == "deployment"),
            "{rows:?}"
        );
    }

    #[test]
    fn gateway_recovery_and_placement_are_told() {
        let of = rows("cluster-node-loss.yaml", &[]);
        assert!(
            row(&of, "recovery").starts_with("a crash is detected after 5"),
            "{of:?}"
        );
        assert!(row(&of, "gateway").contains("3 attempts"), "{of:?}");
        assert!(row(&of, "placement of chat").contains("zones"), "{of:?}");
        // One pool is what the shared rows describe.
        assert!(row(&of, "engine").contains("KV blocks"));
        let of = rows("tenants-vtc.yaml", &[("max_in_flight: 48", "max_in_flight: 40")]);
        assert!(
            row(&of, "gateway").contains("lets in 40 at a time, virtual token counters"),
            "{of:?}"
        );
    }
}
