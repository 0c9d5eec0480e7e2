//! Clusters in the scenario file: what is filled, what is refused, and what reaches the run.

use std::path::Path;

use kneeboard::cluster::fault::FaultKind;
use kneeboard::cluster::push::PushFrom;
use kneeboard::cluster::router::RouterPolicy;
use kneeboard::explore::study::Study;
use kneeboard::scenario::{Override, Plan, Source};
use kneeboard::sim::fleet::{FleetConfig, TransferMode};
use kneeboard::units::SimDuration;

/// Prefill and decode on H100, with a model, so that block sizes and weights follow.
const SPLIT: &str = r#"kneeboard: 1
system:
  model: llama-3.1-8b
  accelerator: h100-sxm
  engine: {version: "0.28.0", max_model_len: 4096, max_num_seqs: 64}
  step_time: {step: 8ms, prefill_token: 45us}
cluster:
  pools:
    - {name: pre, role: prefill, groups: 2, instance: p5.48xlarge}
    - {name: dec, role: decode, groups: 3, nic: 50GB/s, placement: {zones: [a, b]}}
  transfer: {fabric: [spine]}
  links: [{name: spine, bandwidth: 400Gbit/s, latency: 10us}]
workload: {synthetic: {num_requests: 20, lengths: {fixed: {input: 100, output: 20}}}}
load: {model: open-loop, arrival: {process: poisson, rate: 4}}
"#;

/// One pool behind a gateway.
const UNIFIED: &str = r#"kneeboard: 1
system:
  engine: {version: "0.28.0", max_model_len: 4096, max_num_seqs: 64, num_gpu_blocks: 2000}
  step_time: {step: 8ms, prefill_token: 45us}
cluster:
  pools: [{name: main, role: unified, groups: 4, placement: {groups_per_node: 2, zones: [a, b]}}]
  router: {policy: least-outstanding}
workload:
  synthetic:
    num_requests: 20
    classes:
      - {name: chat, share: 0.5, lengths: {fixed: {input: 100, output: 20}}}
      - {name: batch, share: 0.5, lengths: {fixed: {input: 300, output: 20}}}
load: {model: open-loop, arrival: {process: poisson, rate: 4}}
"#;

fn plan(text: &str, set: &[&str]) -> Result<Plan, String> {
    let overrides: Result<Vec<_>, _> = set.iter().map(|s| Override::parse(s)).collect();
    let overrides = overrides.map_err(|e| e.to_string())?;
    Plan::from_text(text, "s.yaml", Path::new(""), &overrides).map_err(|e| e.to_string())
}

fn fleet(text: &str, set: &[&str]) -> FleetConfig {
    let plan = plan(text, set).unwrap();
    let machines = plan.machines().unwrap();
    plan.fleet(0, &machines).unwrap().expect("a cluster")
}

fn source(plan: &Plan, path: &str) -> Source {
    let resolved = plan.resolved().unwrap();
    let line = resolved.iter().find(|r| r.path == path);
    line.unwrap_or_else(|| panic!("no {path}")).source.clone()
}

#[test]
fn replicas_with_nothing_special_are_run_apart_as_ever() {
    let plain = UNIFIED.replace("least-outstanding", "round-robin");
    let plain = plain.replace(", placement: {groups_per_node: 2, zones: [a, b]}", "");
    assert!(!plan(&plain, &[]).unwrap().is_cluster());
    for set in [
        "cluster.router.policy=random",
        "cluster.gateway.max_in_flight=8",
        "cluster.recovery.restart=false",
        "cluster.pools.0.dp=2",
        "cluster.pools.main.system.engine.max_num_seqs=8",
        "fault_rates.node.repair=1h",
        "faults=[{at: 1s, kind: group-crash, group: main/0}]",
    ] {
        assert!(plan(&plain, &[set]).unwrap().is_cluster(), "{set}");
    }
}

#[test]
fn what_is_left_out_follows_from_model_instance_and_release() {
    let config = fleet(SPLIT, &[]);
    let [pre, dec] = config.pools.as_slice() else {
        panic!()
    };
    // 32 layers, 8 KV heads of 128, K and V in two bytes, 16 tokens a block.
    assert_eq!(pre.block_bytes, 32 * 8 * 128 * 2 * 2 * 16);
    assert_eq!(pre.block_descriptors, 64);
    // One of eight devices that share 3200 Gbit/s.
    assert_eq!(pre.nic_bytes_per_s, 50_000_000_000);
    assert_eq!(dec.nic_bytes_per_s, 50_000_000_000);
    assert!(pre.start.weight_bytes > 15_000_000_000 && pre.start.weight_bytes < 17_000_000_000);
    assert_eq!(config.transfer.lease, SimDuration::from_millis(30_000));
    assert_eq!(config.transfer.heartbeat, SimDuration::from_millis(5_000));
    assert_eq!(config.transfer.renewal, SimDuration::from_millis(20_000));
    assert!(config.transfer.failure_ends_request);
    assert_eq!(config.transfer.fabric, [0]);
    // Eight groups of one device share a p5.48xlarge; the decode groups have a node each, in both zones in turn.
    let nodes: Vec<&str> = config.topology.nodes.iter().map(|n| n.name.as_str()).collect();
    assert_eq!(nodes, ["pre/node-0", "dec/node-0", "dec/node-1", "dec/node-2"]);
    assert_eq!(config.topology.zones, ["zone-0", "a", "b"]);
    let old = fleet(SPLIT, &["system.engine.version=0.15.1"]);
    assert_eq!(old.transfer.lease, SimDuration::from_millis(480_000));
    assert_eq!(old.transfer.heartbeat, SimDuration::ZERO);
    assert!(!old.transfer.failure_ends_request);
}

#[test]
fn push_takes_the_layers_of_the_model_or_asks_for_them() {
    assert_eq!(fleet(SPLIT, &[]).transfer.mode, TransferMode::Pull);
    for (mode, from) in [
        ("push", PushFrom::EveryChunk),
        ("push-last-chunk", PushFrom::LastChunk),
    ] {
        let mode = format!("cluster.transfer.mode={mode}");
        let push = |layers| TransferMode::Push { layers, from };
        assert_eq!(fleet(SPLIT, &[&mode]).transfer.mode, push(32));
        let fewer = fleet(SPLIT, &[&mode, "cluster.transfer.layers=8"]);
        assert_eq!(
            fewer.transfer.mode,
            push(8),
            "of a model with other layers between"
        );
    }
    let unnamed = SPLIT
        .replace("  model: llama-3.1-8b\n  accelerator: h100-sxm\n", "")
        .replace("max_num_seqs: 64", "max_num_seqs: 64, num_gpu_blocks: 2000")
        .replace(", instance: p5.48xlarge", ", nic: 50GB/s")
        .replace(
            "{fabric: [spine]}",
            "{mode: push, block: 2MiB, block_descriptors: 64}",
        )
        .replace("placement:", "start: {weights: 1GB}, placement:");
    let error = plan(&unnamed, &[]).unwrap_err().to_string();
    assert!(error.contains("cluster.transfer.layers"), "{error}");
    assert!(error.contains("layers: 80"), "{error}");
    let named = fleet(&unnamed, &["cluster.transfer.layers=24"]);
    let layers = TransferMode::Push {
        layers: 24,
        from: PushFrom::EveryChunk,
    };
    assert_eq!(named.transfer.mode, layers);
}

/// D12 is of the release, or as it is said, and of decode groups alone.
#[test]
fn the_reserve_for_transfers_can_be_switched() {
    let reserves = |settings: &[&str]| {
        let config = fleet(SPLIT, settings);
        let of = |pool: usize| config.pools[pool].engine.reserves_for_loads();
        (of(0), of(1))
    };
    assert_eq!(reserves(&[]), (false, false), "0.28");
    assert_eq!(
        reserves(&["cluster.transfer.reserve_for_loads=true"]),
        (false, true)
    );
    let newest = "system.engine.version=0.32.0";
    assert_eq!(reserves(&[newest]), (true, true));
    let off = "cluster.transfer.reserve_for_loads=false";
    assert_eq!(reserves(&[newest, off]), (true, false));
}

#[test]
fn a_pool_has_a_system_of_its_own() {
    let plan = plan(
        SPLIT,
        &[
            "cluster.pools.pre.system.parallel.tp=2",
            "cluster.pools.dec.system.engine.max_num_seqs=128",
            "cluster.pools.dec.system.step_time={step: 12ms}",
        ],
    )
    .unwrap();
    let config = plan.fleet(0, &plan.machines().unwrap()).unwrap().unwrap();
    assert_eq!(config.pools[0].engine.max_num_seqs, 64);
    assert_eq!(config.pools[1].engine.max_num_seqs, 128);
    assert!(config.pools[0].engine.num_gpu_blocks > 2 * config.pools[1].engine.num_gpu_blocks);
    assert_eq!(config.topology.groups[0].ranks.len(), 2);
    assert_eq!(source(&plan, "cluster.pools.0.system.parallel.tp"), Source::Set);
    assert_eq!(
        source(&plan, "cluster.pools.1.system.engine.max_num_seqs"),
        Source::Set
    );
    let from_system = Source::Derived("system.model".to_owned());
    assert_eq!(source(&plan, "cluster.pools.1.system.model"), from_system);
    let tree = serde_json::to_string(&plan.resolved_tree().unwrap()).unwrap();
    let again = Plan::from_text(&tree, "again", Path::new(""), &[]).unwrap();
    assert_eq!(
        again.fleet(0, &again.machines().unwrap()).unwrap().unwrap(),
        config
    );
    assert_eq!(again.resolved_tree().unwrap(), plan.resolved_tree().unwrap());
}

#[test]
fn faults_are_told_by_name() {
    let config = fleet(
        UNIFIED,
        &[
            "faults=[{at: 9s, kind: zone-loss, zone: b}, {at: 5s, for: 1s, kind: node-loss, node: main/node-1}, \
           {at: 6s, kind: slow-rank, group: main/3, factor: 1.5}]",
        ],
    );
    let kinds: Vec<FaultKind> = config.faults.iter().map(|f| f.kind).collect();
    assert!(matches!(kinds[0], FaultKind::NodeLoss { node: 1 }));
    assert!(matches!(kinds[1], FaultKind::SlowRank { group: 3, factor } if factor.numerator == 3));
    assert!(matches!(kinds[2], FaultKind::ZoneLoss { zone: 1 }));
    assert_eq!(config.topology.groups_on_node(1), [2, 3]);
}

#[test]
fn drawn_faults_differ_by_replication_and_not_by_run() {
    let rates = ["fault_rates={node: {mtbf_hours: 0.001, repair: 1s}, until: 60s}"];
    let plan = plan(UNIFIED, &rates).unwrap();
    let machines = plan.machines().unwrap();
    let drawn = |replication| plan.fleet(replication, &machines).unwrap().unwrap().faults;
    assert!(!drawn(0).is_empty());
    assert_eq!(drawn(0), drawn(0));
    assert_ne!(drawn(0), drawn(1));
}

#[test]
fn classes_are_tenants_in_their_order() {
    let plan = plan(
        UNIFIED,
        &["cluster.gateway.fairness={policy: vtc, weights: {batch: 0.5}}"],
    )
    .unwrap();
    let trace = plan.trace(0).unwrap();
    for request in &trace.requests {
        assert_eq!(request.tenant, u32::from(request.input_tokens == 300));
    }
    let config = plan.fleet(0, &plan.machines().unwrap()).unwrap().unwrap();
    let weights = format!("{:?}", config.gateway.fairness);
    assert!(weights.contains("[1.0, 0.5]"), "{weights}");
}

#[test]
fn routers_are_as_they_are_described() {
    let set = "cluster.router={policy: scorers, scorers: [{kind: queue}, {kind: prefix, weight: 2}]}";
    let config = fleet(UNIFIED, &[set]);
    assert!(matches!(&config.routing.policy, RouterPolicy::Scorers { scorers, .. } if scorers.len() == 2));
    assert_eq!(config.routing.metrics_interval, SimDuration::from_millis(50));
    let old = ["cluster.router.policy=vllm-dp", "system.engine.version=0.25.1"];
    assert!(matches!(
        fleet(UNIFIED, &old).routing.policy,
        RouterPolicy::VllmDp {
            before_0_28: true,
            ..
        }
    ));
}

/// Half of the answers break in mid-stream and begin anew. What is summarised while the run goes on, as sweeps and searches
/// do, has the tokens, gaps and end of the record.
#[test]
fn a_sweep_counts_no_token_of_an_attempt_that_broke() {
    let set = [
        "faults=[{at: 300ms, kind: node-loss, node: main/node-0}]",
        "cluster.recovery={detection: 50ms, in_flight: retry}",
        "cluster.gateway={retry: {attempts: 3}}",
        "load.arrival.rate=40",
    ];
    let study = Study::of(plan(UNIFIED, &set).unwrap()).unwrap();
    let whole = study.run(0).unwrap();
    let lost = &whole.figures.as_ref().unwrap().outcomes;
    assert!(lost.wasted_output_tokens > 0, "nothing broke");
    let streamed = study.summarise(0, |_| ()).unwrap().summary;
    assert_eq!(streamed.throughput, whole.summary.throughput);
    assert_eq!(streamed.latency.itl.n, whole.summary.latency.itl.n);
    assert!((streamed.duration_s - whole.summary.duration_s).abs() < 1e-12);
}

/// (scenario, override, what the error must say)
const REFUSED: &[(&str, &str, &[&str])] = &[
    (
        SPLIT,
        "cluster.gateway.hedge={after: 1s}",
        &["cluster.gateway.hedge", "change nothing", "decider"],
    ),
    (
        UNIFIED,
        "cost={pue: {value: 0.9, source: a meter}}",
        &["cost.pue.value", "found 0.9", "from 1"],
    ),
    (
        UNIFIED,
        "cost={pue: {value: 1.2, source: ' '}}",
        &["cost.pue.source", "words"],
    ),
    (
        UNIFIED,
        "cost={other: [{name: storage, usd_h: -1}]}",
        &["cost.other.0.usd_h", "found -1"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.price={usd_h: -2}",
        &["cluster.pools.0.price.usd_h", "found -2"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.power={cap_w: 300}",
        &["cluster.pools.0.power", "not known", "system.accelerator"],
    ),
    (
        SPLIT,
        "cluster.pools.pre.power={frequency_ratio: 1.5}",
        &["cluster.pools.0.power", "frequency_ratio is 1.5"],
    ),
    (
        SPLIT,
        "cluster.pools.pre.power={cap_w: 20}",
        &["cluster.pools.0.power", "cap"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.role=prefill",
        &["cluster.pools", "no decode pool"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.role=decode",
        &["cluster.pools", "no prefill pool"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.role=unified",
        &["cluster.pools", "unified pool beside"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.role=prefill",
        &["cluster.pools", "no decode pool"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.name=pre",
        &["cluster.pools.1.name", "two pools called 'pre'"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.name=7",
        &["cluster.pools.1.name", "no number"],
    ),
    (
        SPLIT,
        "cluster.pools.decc.groups=2",
        &["no entry 'decc'", "did you mean 'dec'"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.groups=0",
        &["cluster.pools.1.groups", "found 0"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.groups=5000",
        &["cluster.pools.1.groups", "4096"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.dp=0",
        &["cluster.pools.1.dp", "found 0"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.max_groups=2",
        &["cluster.pools.1.max_groups", "3 groups"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.nic=0B/s",
        &["cluster.pools.1.nic", "found 0"],
    ),
    (SPLIT, "cluster.pools.dec.nic=50", &["no unit"]),
    (
        SPLIT,
        "cluster.pools.dec.instance=p5.48xlarg",
        &["cluster.pools.1.instance", "did you mean"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.instance=p4d.24xlarge",
        &["cluster.pools.1.instance", "runs on h100-sxm"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.system.accelerator=t4",
        &["cluster.pools.1", "num_gpu_blocks"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.system.model=llama-3.1-70b",
        &["cluster.pools.1", "num_gpu_blocks"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.system.model=llama-3-8b",
        &["cluster.pools.1.system.model", "different models"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.system.engine.block_size=32",
        &["cluster.pools.1.system.engine.block_size", "32 tokens"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.system.parallel.tp=3",
        &["cluster.pools.1.system.parallel.tp", "32 heads"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.placement.nodes_per_group=2",
        &["cluster.pools.1.placement.nodes_per_group", "1 devices"],
    ),
    (
        SPLIT,
        "cluster.pools.dec.placement.zones=[a, a]",
        &["placement.zones", "name of its own"],
    ),
    (
        SPLIT,
        "cluster.transfer.fabric=[spin]",
        &["cluster.transfer.fabric.0", "did you mean 'spine'"],
    ),
    (
        SPLIT,
        "cluster.transfer.layers=4",
        &["cluster.transfer.layers", "mode: pull"],
    ),
    (
        SPLIT,
        "cluster.transfer={mode: push, layers: 0}",
        &["cluster.transfer.layers", "found 0"],
    ),
    (
        SPLIT,
        "cluster.transfer.mode=shove",
        &["cluster.transfer.mode", "push-last-chunk"],
    ),
    (
        SPLIT,
        "cluster.transfer.lease=0s",
        &["cluster.transfer.lease", "found 0"],
    ),
    (
        SPLIT,
        "cluster.links=[{name: spine, bandwidth: 0B/s}]",
        &["cluster.links", "bandwidth of 0"],
    ),
    (
        UNIFIED,
        "cluster.transfer.fixed=1us",
        &["cluster.transfer", "no effect"],
    ),
    (
        UNIFIED,
        "cluster.router.decider={kind: always}",
        &["cluster.router.decider", "no effect"],
    ),
    (
        SPLIT,
        "cluster.router.decider={kind: uncached}",
        &["decider.threshold", "missing"],
    ),
    (
        UNIFIED,
        "cluster.router.policy=scorers",
        &["cluster.router.scorers", "no scorers"],
    ),
    (
        UNIFIED,
        "cluster.router.load_bound=1.2",
        &["cluster.router.load_bound", "session-affinity"],
    ),
    (
        UNIFIED,
        "cluster.router.policy=fastest",
        &["cluster.router.policy", "least-outstanding"],
    ),
    (
        UNIFIED,
        "cluster.router={policy: session-affinity, load_bound: 0.5}",
        &["cluster.router.load_bound", "from 1"],
    ),
    (
        UNIFIED,
        "cluster.gateway.timeouts.ttft=0s",
        &["cluster.gateway.timeouts.ttft", "timeout of 0"],
    ),
    (
        UNIFIED,
        "cluster.gateway.timeouts.e2e=0s",
        &["cluster.gateway.timeouts.e2e", "timeout of 0"],
    ),
    (
        UNIFIED,
        "cluster.gateway.max_in_flight=0",
        &["cluster.gateway.max_in_flight", "found 0"],
    ),
    (
        UNIFIED,
        "cluster.gateway.retry.jitter=2",
        &["cluster.gateway.retry.jitter", "0 to 1"],
    ),
    (
        UNIFIED,
        "cluster.gateway.retry.attempts=0",
        &["cluster.gateway.retry.attempts", "found 0"],
    ),
    (
        UNIFIED,
        "cluster.gateway.fairness={policy: vtc, weights: {chatt: 2}}",
        &["fairness.weights.chatt", "did you mean 'chat'"],
    ),
    (
        UNIFIED,
        "cluster.gateway.fairness={policy: vtc, weights: {'01': 2}}",
        &["fairness.weights.01", "there is no tenant '01'"],
    ),
    (
        UNIFIED,
        "cluster.gateway.tenant_rates={'7': {rate: 1}}",
        &["cluster.gateway.tenant_rates.7", "there is no tenant '7'"],
    ),
    (
        UNIFIED,
        "cluster.gateway.retry={budget_max: 4}",
        &["cluster.gateway.retry.budget_max", "budget_ratio"],
    ),
    (
        UNIFIED,
        "cluster.gateway.retry={min_retries_per_s: 4}",
        &["cluster.gateway.retry.min_retries_per_s", "budget_ratio"],
    ),
    (
        UNIFIED,
        "cluster.gateway.fairness={policy: vtc, weights: {chat: 1e300}}",
        &["is 1e300;", "1000000"],
    ),
    (
        SPLIT,
        "cluster.transfer={fabric: [spine], lease: 1s, heartbeat: 10s}",
        &["cluster.transfer.heartbeat", "before its first heartbeat"],
    ),
    (
        SPLIT,
        "cluster.transfer={fabric: [spine], mode: push, layers: 33}",
        &["cluster.transfer.layers", "found 33", "32 layers"],
    ),
    (
        UNIFIED,
        "cluster.gateway.tenant_rates={chat: {rate: 0}}",
        &["cluster.gateway.tenant_rates.chat.rate", "above 0"],
    ),
    (
        UNIFIED,
        "cluster.recovery.in_flight=retry",
        &["cluster.recovery.in_flight", "retry.attempts"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.autoscale={metric: kv-usage, target: 0.8, max_groups: 8}",
        &["cluster.pools.0.autoscale.min_groups", "floor"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.autoscale={metric: kv-usage, target: 0.8, min_groups: 0, max_groups: 8}",
        &["cluster.pools.0.autoscale.min_groups", "found 0"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.autoscale={metric: kv-usage, target: 0.8, min_groups: 9, max_groups: 8}",
        &["cluster.pools.0.autoscale", "min_groups (9)"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.autoscale={metric: kv-usage, target: 5, min_groups: 1, max_groups: 8}",
        &["cluster.pools.0.autoscale.target", "share"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.autoscale={metric: kv-usage, target: 0.8, min_groups: 1, max_groups: 5000}",
        &["autoscale.max_groups", "4096"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.autoscale={metric: kv-usage, target: 0.8, min_groups: 1, max_groups: 8, spare: 4097}",
        &["autoscale.spare", "0 to 4096"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.autoscale={metric: kv-usage, target: 0.8, min_groups: 1, max_groups: 8, metric_age: 2h}",
        &["autoscale.metric_age", "up to"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.autoscale={metric: kv-usage, target: 0.8, min_groups: 1, max_groups: 8, up: {limits: [{groups: 0, per: 15s}]}}",
        &["autoscale.up.limits", "all are 0"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.autoscale={schedule: []}",
        &["autoscale.schedule", "no steps"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.rollout={at: 1s, max_unavailable: 9}",
        &["rollout.max_unavailable", "allowed: 0 to 4"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.rollout={at: 1s, canary: {groups: 1, share: 0, hold: 60s, analysis: {tpot_ratio: 1.1, interval: 10s}}}",
        &["canary.share", "found 0"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.rollout={at: 1s, canary: {groups: 1, share: 0.2, hold: 60s, analysis: {tpot_ratio: 1.1, interval: 10s, progress_deadline: 0s}}}",
        &["analysis.progress_deadline", "found 0"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.rollout={at: 1s, canary: {groups: 1, share: 0.2, hold: 60s, analysis: {tpot_ratio: 1.1, interval: 10s, percentile: 0.99}}}",
        &["analysis.percentile", "did you mean 99?"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.rollout={at: 1s, canary: {groups: 1, share: 0.2, hold: 60s, analysis: {tpot_ratio: 1.1, interval: 10s, percentile: 0.1}}}",
        &["analysis.percentile", "1 to 100"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.rollout={at: 1s, surge: 0, max_unavailable: 0}",
        &["cluster.pools.0.rollout", "both 0"],
    ),
    (
        UNIFIED,
        "cluster.pools.main.start.weight_bandwidth=0B/s",
        &["cluster.pools.0.start.weight_bandwidth", "found 0"],
    ),
    (
        UNIFIED,
        "faults=[{at: 1s, kind: node-loss, node: main/node-9}]",
        &["faults.0.node", "no node 'main/node-9'", "did you mean"],
    ),
    (
        UNIFIED,
        "faults=[{at: 1s, kind: group-crash, group: main/4}]",
        &["faults.0.group", "4 groups"],
    ),
    (
        UNIFIED,
        "faults=[{at: 1s, kind: zone-loss}]",
        &["faults.0.zone", "missing", "a, b"],
    ),
    (
        UNIFIED,
        "faults=[{at: 1s, kind: link-down, link: x}]",
        &["faults.0.link", "no link"],
    ),
    (
        UNIFIED,
        "faults=[{at: 1s, kind: zone-loss, zone: a, node: main/node-0}]",
        &["faults.0.node", "leave it out"],
    ),
    (
        UNIFIED,
        "faults=[{at: 1s, for: 9s, kind: zone-loss, zone: a}, {at: 5s, kind: zone-loss, zone: a}]",
        &["faults.1", "overlap", "zone a"],
    ),
    (
        UNIFIED,
        "faults=[{at: 1s, kind: slow-rank, group: main/0, factor: 0.5}]",
        &["faults.0", "faster"],
    ),
    (
        UNIFIED,
        "faults=[{at: 1s, kind: slow-rank, group: main/0}]",
        &["faults.0.factor", "missing"],
    ),
    (
        UNIFIED,
        "faults=[{at: 1s, for: 1s, kind: prefix-cache-flush, group: main/0}]",
        &["faults.0", "leave `for` out"],
    ),
    (
        UNIFIED,
        "fault_rates={zone: {repair: 1h}}",
        &["fault_rates.zone.mtbf_hours", "no figure is published"],
    ),
    (
        UNIFIED,
        "fault_rates={node: {mtbf_hours: 0, repair: 1h}}",
        &["fault_rates.node.mtbf_hours", "above 0"],
    ),
];

#[test]
fn what_cannot_be_is_refused_with_place_and_remedy() {
    let mut complaints = Vec::new();
    for (text, set, wanted) in REFUSED {
        match plan(text, &[set]) {
            Ok(_) => complaints.push(format!("{set}\n  was accepted")),
            Err(error) => {
                let missing: Vec<_> = wanted.iter().filter(|part| !error.contains(**part)).collect();
                if !missing.is_empty() || error.contains('\n') {
                    complaints.push(format!("{set}\n  error: {error}\n  lacks: {missing:?}"));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn modelled_clients_and_neuron_groups_are_refused() {
    let clients = plan(
        UNIFIED,
        &["load={model: closed-loop, concurrency: 2, client: {kind: thread-pool}}"],
    );
    let error = clients.unwrap_err();
    assert!(
        error.contains("load.client") && error.contains("cluster"),
        "{error}"
    );
    let neuron = SPLIT
        .replace("accelerator: h100-sxm", "accelerator: trn2")
        .replace(
            "engine: {version: \"0.28.0\", max_model_len: 4096, max_num_seqs: 64}",
            "engine: {max_num_seqs: 4, seq_len: 2048}",
        )
        .replace(", instance: p5.48xlarge", "");
    let error = plan(&neuron, &[]).unwrap_err();
    assert!(
        error.contains("cluster.pools.0.role") && error.contains("neuron"),
        "{error}"
    );
}

#[test]
fn a_block_of_an_unknown_model_must_be_stated() {
    let bare = SPLIT
        .replace("  model: llama-3.1-8b\n  accelerator: h100-sxm\n", "")
        .replace("max_num_seqs: 64", "max_num_seqs: 64, num_gpu_blocks: 1000")
        .replace(", instance: p5.48xlarge", "");
    let error = plan(&bare, &[]).unwrap_err();
    assert!(error.contains("cluster.transfer.block"), "{error}");
    let config = fleet(
        &bare,
        &[
            "cluster.transfer.block=2MiB",
            "cluster.transfer.block_descriptors=64",
        ],
    );
    assert_eq!(config.pools[1].block_bytes, 2 << 20);
    assert_eq!(config.pools[1].block_descriptors, 64);
}

/// Four ranks of a mixture of experts, which step together.
const EXPERTS: &str = r#"kneeboard: 1
system:
  model: mixtral-8x7b
  accelerator: h100-sxm
  engine: {version: "0.32.0", max_model_len: 4096, max_num_seqs: 64, async_scheduling: false}
  parallel: {tp: 2, ep: 2}
  fit: h100-bf16-vllm
cluster: {pools: [{name: main, role: unified, groups: 1, dp: 4}]}
workload: {synthetic: {num_requests: 20, lengths: {fixed: {input: 100, output: 20}}}}
load: {model: open-loop, arrival: {process: poisson, rate: 4}}
"#;

#[test]
fn ranks_that_step_together_have_their_intervals_and_sizes() {
    let resolved = plan(EXPERTS, &[]).unwrap();
    let value = |path: &str| {
        let all = resolved.resolved().unwrap();
        all.iter().find(|r| r.path == path).map(|r| r.value.to_string())
    };
    assert_eq!(value("cluster.pools.0.lockstep").as_deref(), Some("true"));
    assert_eq!(value("system.engine.dp_sync_interval").as_deref(), Some("32"));
    assert_eq!(
        value("system.engine.prefill_schedule_interval").as_deref(),
        Some("1")
    );
    let config = fleet(
        EXPERTS,
        &[
            "system.engine.dp_sync_interval=8",
            "system.engine.prefill_schedule_interval=4",
        ],
    );
    let engine = &config.pools[0].engine;
    assert_eq!(
        (engine.dp_sync_interval, engine.prefill_schedule_interval),
        (8, 4)
    );
    let (sizes, _) = config.pools[0].graphs.as_ref().unwrap();
    assert_eq!(sizes.largest(), Some(128));
    // The roofline knows them, so that nothing is left out.
    let said = |text: &str, set: &[&str]| plan(text, set).unwrap().limitations().join("\n");
    let clean = said(EXPERTS, &[]);
    assert!(!clean.contains("ranks"), "{clean}");
    let linear = EXPERTS.replace("fit: h100-bf16-vllm", "step_time: {step: 8ms, decode_row: 1us}");
    assert!(said(&linear, &[]).contains("only a roofline fit knows captured sizes"));
    let ahead = ["system.engine.async_scheduling=true", "system.parallel.pp=2"];
    for word in ["asynchronous scheduling is on", "one batch at a time"] {
        assert!(said(EXPERTS, &ahead).contains(word), "{word}");
    }
    // Alone, a rank does not wait for steps meant for prompts.
    let alone = [
        "cluster.pools.main.lockstep=false",
        "system.engine.prefill_schedule_interval=4",
    ];
    assert!(said(EXPERTS, &alone).contains("prefill_schedule_interval has no effect"));
    let alone = [alone[0], "system.engine.dp_sync_interval=8"];
    assert!(said(EXPERTS, &alone).contains("dp_sync_interval has no effect"));
    let one = ["cluster.pools.main.lockstep=true", "cluster.pools.main.dp=1"];
    assert!(said(UNIFIED, &one).contains("pool main: lockstep has no effect"));
}

#[test]
fn intervals_belong_to_releases() {
    for (version, key, refused) in [
        ("0.32.0", "dp_sync_interval=8", None),
        (
            "0.28.0",
            "dp_sync_interval=8",
            Some("no other interval than 32 steps"),
        ),
        ("0.25.1", "prefill_schedule_interval=4", None),
        (
            "0.22.1",
            "prefill_schedule_interval=4",
            Some("vLLM 0.22.1 does not have it"),
        ),
        ("0.32.0", "dp_sync_interval=0", Some("a whole number from 1")),
        (
            "0.32.0",
            "prefill_schedule_interval=0",
            Some("a whole number from 1"),
        ),
    ] {
        let set = [
            format!("system.engine.version=\"{version}\""),
            format!("system.engine.{key}"),
        ];
        let got = plan(EXPERTS, &[&set[0], &set[1]]);
        match refused {
            None => assert!(got.is_ok(), "{version} {key}: {got:?}"),
            Some(why) => {
                let error = got.map(|_| ()).unwrap_err();
                assert!(
                    error.contains(why) && error.contains(key.split('=').next().unwrap()),
                    "{error}"
                );
            }
        }
    }
}

/// S68: with a roofline stages have the layers that vLLM gives them; without one they are equal, which is said.
#[test]
fn pipeline_stages_are_equal_only_where_layers_are_not_known() {
    let set = ["system.parallel.pp=3"];
    let known = plan(EXPERTS, &set).unwrap().limitations().join("\n");
    assert!(!known.contains("same time each"), "{known}");
    let linear = EXPERTS.replace("fit: h100-bf16-vllm", "step_time: {step: 8ms}");
    let equal = plan(&linear, &set).unwrap().limitations().join("\n");
    assert!(
        equal.contains("3 pipeline stages take the same time each"),
        "{equal}"
    );
}

/// Under an autoscaler that may leave no group of the old revision, a canary would take all traffic, and its checks have
/// nothing to compare it with.
#[test]
fn an_autoscaler_leaves_canaries_something_to_be_compared_with() {
    let rollout = "cluster.pools.main.rollout={at: 60s, canary: {groups: 2, share: 0.2, hold: 60s, analysis: \
                   {tpot_ratio: 1.1, interval: 10s}}}";
    let metric = |least: u32| {
        format!(
            "cluster.pools.main.autoscale={{metric: kv-usage, target: 0.8, min_groups: {least}, max_groups: 8}}"
        )
    };
    let schedule = |from: u32, to: u32| {
        format!(
            "cluster.pools.main.autoscale={{schedule: [{{at: 0s, groups: {from}}}, {{at: 30s, groups: {to}}}]}}"
        )
    };
    for set in [metric(3), schedule(1, 3)] {
        assert!(plan(UNIFIED, &[rollout, &set]).is_ok(), "{set}");
    }
    for set in [metric(1), metric(2), schedule(3, 2)] {
        let refused = plan(UNIFIED, &[rollout, &set]).unwrap_err();
        assert!(refused.contains("the autoscaler may leave"), "{set}: {refused}");
    }
}

/// A weight of a tenant that never asks for anything is told, not refused: a shorter piece of a trace may lack it.
#[test]
fn weights_of_tenants_that_a_trace_does_not_have_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let rows = "arrival_s,input_tokens,output_tokens,tenant\n0.0,10,2,0\n0.1,10,2,3\n";
    std::fs::write(dir.path().join("t.csv"), rows).unwrap();
    let (head, _) = UNIFIED.split_once("workload:").unwrap();
    let said = |weights: &str| {
        let text = format!(
            "{head}  gateway: {{fairness: {{policy: vtc, weights: {weights}}}}}\nworkload: {{trace: t.csv}}\n\
             load: {{model: open-loop, arrival: {{process: trace}}}}\n"
        );
        let plan = Plan::from_text(&text, "s.yaml", dir.path(), &[]).unwrap();
        plan.limitations().join("\n")
    };
    let lacking = "tenants that the trace does not have: 7";
    let both = said("{'3': 2, '7': 2}");
    assert!(both.contains(lacking), "{both}");
    assert!(!said("{'3': 2}").contains("does not have"));
}
