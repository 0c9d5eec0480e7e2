//! Small scenarios of clusters with every feature, drawn by a seed. What stands in them is meant to be valid; a few
//! combinations are refused all the same, as no rule here repeats the program's own.

use serde_json::{Value, json};

use super::dice::{Dice, sometimes};

/// A scenario, and the trace that it names, if it does.
pub struct Drawn {
    pub scenario: Value,
    pub trace: Option<String>,
}

pub fn draw(seed: u64) -> Drawn {
    let d = &mut Dice::new(seed);
    let split = d.percent(45);
    let named = d.percent(25);
    let mut s = json!({"kneeboard": 1, "system": system(d, named)});
    s["cluster"] = cluster(d, split, named);
    let priorities = s["system"]["engine"]["scheduling_policy"] == "priority";
    let (workload, trace, classes) = workload(d, priorities);
    s["workload"] = workload;
    s["load"] = load(d, trace.is_some());
    if s["load"]["model"] != "offline" {
        sometimes(
            &mut s,
            d,
            60,
            "slo",
            |d| json!({"ttft": d.ms(20, 2000), "tpot": d.ms(5, 60), "attainment": 0.9}),
        );
    }
    let links = names(&s["cluster"]["links"]);
    sometimes(&mut s, d, 45, "faults", |d| faults(d, split, &links));
    sometimes(&mut s, d, 25, "fault_rates", |d| {
        fault_rates(d, !links.is_empty())
    });
    sometimes(&mut s, d, 20, "cost", |d| {
        json!({"pue": {"value": d.number(1.0, 2.0), "source": "the site"},
            "other": [{"name": "host", "usd_h": d.number(0.0, 9.0)}]})
    });
    gateway(d, &mut s, classes);
    recovery(d, &mut s);
    s["measure"] = json!({"seed": d.int(0, 9)});
    sometimes(&mut s["measure"], d, 25, "deadline", |d| d.ms(300, 4000));
    sometimes(&mut s["measure"], d, 15, "warmup", |d| d.ms(0, 250));
    sometimes(&mut s["measure"], d, 10, "window", |d| d.ms(200, 900));
    sometimes(&mut s["measure"], d, 10, "repeats", |d| json!(d.int(1, 2)));
    sometimes(&mut s["measure"], d, 10, "scrape_interval", |d| d.ms(10, 900));
    Drawn { scenario: s, trace }
}

fn names(links: &Value) -> Vec<String> {
    let links = links.as_array().into_iter().flatten();
    links.map(|l| l["name"].as_str().unwrap().to_owned()).collect()
}

fn system(d: &mut Dice, named: bool) -> Value {
    let version = d.pick(&["0.15.1", "0.22.1", "0.28.0", "0.32.0"]);
    let mut system = json!({
        "engine": {"version": version, "max_model_len": 1024, "num_gpu_blocks": d.int(70, 400),
            "max_num_seqs": d.int(1, 16), "max_num_batched_tokens": d.pick(&[64, 256, 1024])},
        "step_time": {"step": d.ms(1, 6), "prefill_token": "20us", "decode_row": "40us"},
    });
    if named {
        system["model"] = json!("llama-3.1-8b");
        system["accelerator"] = json!("h100-sxm");
    }
    let engine = &mut system["engine"];
    engine["enable_chunked_prefill"] = json!(true);
    sometimes(engine, d, 50, "enable_prefix_caching", |d| json!(d.percent(70)));
    sometimes(engine, d, 40, "async_scheduling", |d| json!(d.percent(50)));
    sometimes(engine, d, 20, "scheduling_policy", |d| {
        json!(d.pick(&["fcfs", "priority"]))
    });
    system
}

fn cluster(d: &mut Dice, split: bool, named: bool) -> Value {
    let mut pools = Vec::new();
    for role in if split {
        vec!["prefill", "decode"]
    } else {
        vec!["unified"]
    } {
        pools.push(pool(d, role, named));
    }
    let ranks = pools.iter().any(|p| p["dp"].as_u64() > Some(1));
    let mut cluster = json!({"pools": pools, "router": router_rule(d)});
    let router = &mut cluster["router"];
    sometimes(router, d, 50, "metrics_interval", |d| {
        d.pick(&[json!("0s"), json!("7ms"), json!("200ms")])
    });
    if ranks {
        sometimes(router, d, 50, "balancer", router_rule);
    }
    if !split {
        return cluster;
    }
    sometimes(router, d, 60, "prefill", router_rule);
    sometimes(router, d, 30, "decider", |d| match d.int(0, 2) {
        0 => json!({"kind": "always"}),
        1 => json!({"kind": "uncached", "threshold": d.int(0, 300)}),
        _ => json!({"kind": "long-and-free", "threshold": d.int(0, 300), "queue_limit": d.int(0, 4)}),
    });
    sometimes(&mut cluster, d, 50, "links", |d| {
        let link = |name: &str, d: &mut Dice| json!({"name": name, "bandwidth": d.pick(&["80MB/s", "2GB/s"]), "latency": d.ms(0, 3)});
        json!([link("spine", d), link("rail", d)])
    });
    let mut transfer = json!({"block": d.pick(&["64KiB", "1MiB"])});
    sometimes(&mut transfer, d, 30, "block_descriptors", |d| json!(d.int(1, 60)));
    for key in ["per_descriptor", "fixed", "response"] {
        sometimes(&mut transfer, d, 30, key, |d| {
            json!(format!("{}us", d.int(0, 900)))
        });
    }
    sometimes(&mut transfer, d, 40, "lease", |d| d.ms(20, 900));
    sometimes(&mut transfer, d, 30, "on_failure", |d| {
        json!(d.pick(&["fail", "recompute"]))
    });
    sometimes(&mut transfer, d, 30, "local_fallback", |d| json!(d.percent(60)));
    cluster["transfer"] = transfer;
    cluster
}

fn pool(d: &mut Dice, role: &str, named: bool) -> Value {
    let groups = d.int(1, 4);
    let mut pool = json!({"name": role, "role": role, "groups": groups, "start": {"provision": d.ms(0, 90),
        "weights": "8MB", "weight_bandwidth": "100MB/s", "compile": d.ms(0, 20), "capture": "0s", "warm": d.ms(0, 9)}});
    sometimes(&mut pool, d, 25, "dp", |d| json!(d.int(1, 3)));
    sometimes(&mut pool, d, 30, "lockstep", |d| json!(d.percent(50)));
    sometimes(&mut pool, d, 40, "nic", |d| json!(d.pick(&["50MB/s", "10GB/s"])));
    sometimes(&mut pool, d, 40, "placement", |d| {
        let mut p = json!({"groups_per_node": d.int(1, 2)});
        sometimes(&mut p, d, 60, "zones", |d| {
            d.pick(&[json!(["a", "b"]), json!(["a"])])
        });
        p
    });
    sometimes(&mut pool, d, 25, "autoscale", autoscale);
    sometimes(&mut pool, d, 25, "rollout", |d| rollout(d, groups));
    sometimes(
        &mut pool,
        d,
        20,
        "system",
        |d| json!({"engine": {"max_num_seqs": d.int(1, 9), "num_gpu_blocks": d.int(70, 200)}}),
    );
    if named {
        sometimes(&mut pool, d, 40, "instance", |_| json!("p5.48xlarge"));
        sometimes(
            &mut pool,
            d,
            40,
            "price",
            |d| json!({"usd_h": d.number(0.0, 90.0)}),
        );
        sometimes(&mut pool, d, 40, "power", |d| {
            d.pick(&[json!({"cap_w": 400}), json!({"frequency_ratio": 0.6})])
        });
    }
    pool
}

fn autoscale(d: &mut Dice) -> Value {
    if d.percent(30) {
        return json!({"schedule": [{"at": "0s", "groups": d.int(1, 4)}, {"at": d.ms(100, 900), "groups": d.int(1, 5)},
            {"at": d.ms(1000, 2000), "groups": d.int(1, 4)}]});
    }
    let metric = d.pick(&[
        "waiting-per-group",
        "running-per-group",
        "in-flight-per-group",
        "request-rate",
        "kv-usage",
        "queue-age",
    ]);
    let least = d.int(1, 2);
    let mut a = json!({"metric": metric, "target": d.number(0.1, 8.0), "min_groups": least, "max_groups": least + d.int(0, 4),
        "interval": d.ms(100, 400)});
    sometimes(&mut a, d, 30, "metric_age", |d| d.ms(0, 300));
    sometimes(&mut a, d, 30, "cooldown", |d| d.ms(0, 300));
    sometimes(&mut a, d, 30, "spare", |d| json!(d.int(0, 2)));
    sometimes(
        &mut a,
        d,
        40,
        "down",
        |d| json!({"stabilization": d.ms(0, 400), "limits": [{"groups": d.int(0, 2), "per": d.ms(50, 500)}]}),
    );
    a
}

fn rollout(d: &mut Dice, groups: u64) -> Value {
    let mut r = json!({"at": d.ms(0, 1200), "surge": d.int(0, 2), "max_unavailable": 1, "drain_timeout": d.ms(0, 400),
        "step_factor": d.number(0.5, 2.0)});
    sometimes(
        &mut r,
        d,
        40,
        "canary",
        |d| json!({"groups": d.int(1, groups), "share": d.number(0.0, 0.9), "hold": d.ms(0, 500)}),
    );
    r
}

fn index(d: &mut Dice) -> Value {
    if d.percent(50) {
        return json!({"kind": "precise"});
    }
    let mut i = json!({"kind": "approximate", "capacity_blocks": d.int(1, 90)});
    sometimes(&mut i, d, 40, "ttl", |d| d.ms(1, 900));
    i
}

fn router_rule(d: &mut Dice) -> Value {
    match d.int(0, 8) {
        0 => json!({"policy": "round-robin"}),
        1 => json!({"policy": "random"}),
        2 => json!({"policy": "least-outstanding"}),
        3 => json!({"policy": "power-of-two"}),
        4 => json!({"policy": "vllm-dp", "clients": d.int(1, 3)}),
        5 => {
            json!({"policy": "kv-cost", "overlap_weight": d.number(0.0, 2.0), "temperature": d.pick(&[0.0, 0.7]), "index": index(d)})
        }
        6 => {
            json!({"policy": "session-affinity", "load_bound": d.number(1.0, 2.0), "virtual_nodes": d.int(1, 50)})
        }
        7 => json!({"policy": "session-affinity"}),
        _ => {
            let kinds = [
                "queue",
                "running",
                "kv-usage",
                "load-aware",
                "prefix",
                "active-request",
                "token-load",
                "session-affinity",
                "no-hit-lru",
            ];
            let mut scorers = Vec::new();
            for _ in 0..d.int(1, 3) {
                let kind = d.pick(&kinds);
                let mut s = json!({"kind": kind, "weight": d.number(0.0, 3.0)});
                if kind == "prefix" {
                    s["index"] = index(d);
                }
                if kind == "active-request" {
                    s["factor"] = json!(d.number(0.0, 1.0));
                    s["idle"] = json!(d.int(0, 2));
                }
                scorers.push(s);
            }
            json!({"policy": "scorers", "scorers": scorers, "picker": d.pick(&["max", "weighted-random"])})
        }
    }
}

/// The workload, its trace, and whether its tenants have names.
fn workload(d: &mut Dice, priorities: bool) -> (Value, Option<String>, bool) {
    let n = d.int(1, 60);
    if d.percent(30) {
        return (json!({"trace": "trace.csv"}), Some(trace(d, n)), false);
    }
    let lengths = json!({"independent": {"input": {"uniform": {"min": 1, "max": d.int(2, 500)}},
        "output": {"uniform": {"min": 1, "max": d.int(2, 60)}}}});
    let prefix =
        |d: &mut Dice| json!({"groups": d.int(1, 4), "tokens": d.int(1, 200), "share": d.number(0.0, 1.0)});
    let mut synthetic = json!({"num_requests": n});
    let classes = d.percent(40);
    if classes {
        let mut second = json!({"name": "batch", "share": 0.25, "lengths": lengths});
        if priorities {
            second["priorities"] = json!([{"priority": 3, "share": 1.0}]);
        }
        synthetic["classes"] =
            json!([{"name": "chat", "share": 0.75, "lengths": lengths, "prefix": prefix(d)}, second]);
    } else {
        synthetic["lengths"] = lengths;
        sometimes(&mut synthetic, d, 60, "prefix", prefix);
    }
    (json!({"synthetic": synthetic}), None, classes)
}

fn trace(d: &mut Dice, n: u64) -> String {
    let mut text =
        "arrival_ns,input_tokens,output_tokens,prefix_group,prefix_tokens,priority,tenant,session_id\n"
            .to_owned();
    let mut at = 0;
    for _ in 0..n {
        at += d.int(0, 40_000_000);
        let (input, output) = (d.int(1, 500), d.int(1, 50));
        let (group, shared) = if d.percent(50) {
            (d.int(0, 2).to_string(), input.min(96))
        } else {
            ("-1".into(), 0)
        };
        text += &format!(
            "{at},{input},{output},{group},{shared},{},{},{}\n",
            d.int(0, 2),
            d.int(0, 3),
            d.int(0, 4)
        );
    }
    text
}

fn load(d: &mut Dice, is_trace: bool) -> Value {
    match d.int(0, 9) {
        0 | 1 => json!({"model": "closed-loop", "concurrency": d.int(1, 9), "think": d.ms(0, 20)}),
        2 => json!({"model": "offline"}),
        _ if is_trace => json!({"model": "open-loop", "arrival": {"process": "trace"}}),
        _ => {
            json!({"model": "open-loop", "arrival": {"process": d.pick(&["poisson", "constant"]), "rate": d.number(5.0, 120.0)}})
        }
    }
}

fn faults(d: &mut Dice, split: bool, links: &[String]) -> Value {
    let role = if split { "decode" } else { "unified" };
    let mut faults = Vec::new();
    for _ in 0..d.int(1, 4) {
        let mut kinds = vec![
            "group-crash",
            "rank-crash",
            "node-loss",
            "slow-rank",
            "prefix-cache-flush",
            "weight-store-slow",
            "stale-metrics",
            "kernel-fallback",
            "spot-notice",
        ];
        if !links.is_empty() {
            kinds.extend(["link-down", "link-degradation"]);
        }
        if split {
            kinds.push("adapter-down");
        }
        let mut fault = json!({"at": d.ms(0, 1500), "kind": d.pick(&kinds)});
        let kind = fault["kind"].as_str().unwrap().to_owned();
        match kind.as_str() {
            "node-loss" | "spot-notice" => fault["node"] = json!(format!("{role}/node-0")),
            "link-down" | "link-degradation" => fault["link"] = json!(d.pick(links)),
            "adapter-down" => {
                fault["kind"] = json!("link-down");
                fault["link"] = json!("decode/0 in");
            }
            "weight-store-slow" => {}
            "stale-metrics" => fault["age"] = d.ms(0, 900),
            _ => fault["group"] = json!(format!("{role}/0")),
        }
        match kind.as_str() {
            "slow-rank" | "weight-store-slow" | "kernel-fallback" => {
                fault["factor"] = json!(d.number(1.0, 4.0))
            }
            "link-degradation" => fault["factor"] = json!(d.number(0.01, 1.0)),
            "spot-notice" => fault["notice"] = d.ms(0, 300),
            _ => {}
        }
        if kind != "prefix-cache-flush" {
            sometimes(&mut fault, d, 80, "for", |d| d.ms(0, 500));
        }
        faults.push(fault);
    }
    json!(faults)
}

fn fault_rates(d: &mut Dice, links: bool) -> Value {
    // Every second to every few minutes.
    let rate = |d: &mut Dice| json!({"mtbf_hours": d.number(0.001, 0.05), "repair": d.ms(0, 400)});
    let mut rates = json!({"device": rate(d)});
    sometimes(&mut rates, d, 30, "node", rate);
    sometimes(&mut rates, d, 20, "zone", rate);
    if links {
        sometimes(&mut rates, d, 50, "link", rate);
    }
    sometimes(&mut rates, d, 50, "until", |d| d.ms(100, 9000));
    rates
}

fn gateway(d: &mut Dice, s: &mut Value, classes: bool) {
    let mut g = json!({});
    // What is drawn without classes is all of one tenant.
    let is_trace = s["workload"]["trace"].is_string();
    let named = |d: &mut Dice, value: Value| {
        let name = match (classes, is_trace) {
            (true, _) => d.pick(&["chat", "batch"]),
            (false, true) => d.pick(&["0", "1", "3"]),
            (false, false) => "0",
        };
        json!({name: value})
    };
    sometimes(&mut g, d, 40, "fairness", |d| match d.int(0, 3) {
        0 => json!({"policy": "fcfs"}),
        1 => json!({"policy": "priority"}),
        2 => json!({"policy": "vtc", "weights": named(d, json!(2.5)), "input_weight": 0.5}),
        _ => json!({"policy": "drr", "quantum_tokens": d.int(1, 4000), "weights": named(d, json!(3))}),
    });
    sometimes(&mut g, d, 40, "max_in_flight", |d| json!(d.int(1, 20)));
    sometimes(&mut g, d, 20, "max_queued_requests", |d| json!(d.int(0, 20)));
    sometimes(&mut g, d, 15, "max_queued_tokens", |d| json!(d.int(0, 9000)));
    sometimes(&mut g, d, 15, "tenant_rates", |d| {
        let limit = json!({"rate": d.number(1.0, 50.0), "burst": d.int(1, 5)});
        named(d, limit)
    });
    sometimes(&mut g, d, 40, "timeouts", |d| {
        let mut t = json!({"ttft": d.ms(20, 1500)});
        sometimes(&mut t, d, 50, "e2e", |d| d.ms(20, 3000));
        sometimes(&mut t, d, 30, "queue", |d| d.ms(1, 500));
        t
    });
    let times_out = g.get("timeouts").is_some();
    sometimes(&mut g, d, 50, "retry", |d| {
        let causes = if times_out {
            vec!["failed", "timed-out", "rejected"]
        } else {
            vec!["failed", "rejected"]
        };
        let on: Vec<_> = causes.into_iter().filter(|_| d.percent(70)).collect();
        let on = if on.is_empty() { vec!["failed"] } else { on };
        let mut r =
            json!({"attempts": d.int(2, 5), "backoff": d.ms(0, 50), "jitter": d.number(0.0, 1.0), "on": on});
        sometimes(&mut r, d, 30, "budget_ratio", |d| json!(d.number(0.0, 1.0)));
        if r.get("budget_ratio").is_some() {
            sometimes(&mut r, d, 50, "min_retries_per_s", |d| json!(d.number(0.0, 9.0)));
            sometimes(&mut r, d, 50, "budget_max", |d| json!(d.int(0, 9)));
        }
        r
    });
    sometimes(
        &mut g,
        d,
        20,
        "hedge",
        |d| json!({"after": d.ms(1, 300), "max_extra": d.int(1, 3)}),
    );
    sometimes(&mut g, d, 30, "cancel_latency", |d| d.ms(0, 60));
    if g != json!({}) {
        s["cluster"]["gateway"] = g;
    }
}

fn recovery(d: &mut Dice, s: &mut Value) {
    let retries = s["cluster"]["gateway"]["retry"].is_object();
    if s["cluster"]["gateway"].is_null() {
        s["cluster"].as_object_mut().unwrap().remove("gateway");
    }
    sometimes(&mut s["cluster"], d, 60, "recovery", |d| {
        let fate = if retries {
            d.pick(&["fail", "retry", "resume"])
        } else {
            "fail"
        };
        json!({"detection": d.ms(0, 300), "route_removal": d.ms(0, 100), "in_flight": fate, "restart": d.percent(80)})
    });
}
