//! What a cluster cannot be: refused by its key, with what to write in its place.

use super::support::*;

const ONE_POOL: &str = r#"kneeboard: 1
system:
  engine: {version: "0.28.0", max_model_len: 4096, num_gpu_blocks: 2000, max_num_seqs: 64}
  step_time: {step: 5ms, prefill_token: 20us, decode_row: 20us}
cluster:
  pools:
    - {role: unified, groups: 2}
  recovery: {restart: true}
workload: {synthetic: {num_requests: 20, lengths: {fixed: {input: 50, output: 5}}}}
load: {model: open-loop, arrival: {process: poisson, rate: 10}}
"#;

/// The scenario with these values set.
fn shown(set: &[&str]) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("case.yaml");
    std::fs::write(&path, ONE_POOL).unwrap();
    let mut args = vec!["simulate".to_owned(), path.display().to_string(), "-q".to_owned()];
    args.extend(["-o".to_owned(), dir.path().join("out").display().to_string()]);
    args.extend(
        set.iter()
            .flat_map(|value| ["--set".to_owned(), (*value).to_owned()]),
    );
    let ended = run(args);
    Ended {
        // Of a run that is done nothing but its end is asked.
        stdout: if ended.code == Some(2) {
            ended.stdout
        } else {
            String::new()
        },
        ..ended
    }
}

/// What is set, and what the error says of it.
type Refusal = (&'static [&'static str], &'static [&'static str]);

#[test]
fn what_befalls_nobody_is_refused() {
    let refusals: [Refusal; 6] = [
        (
            &["faults=[{at: 1s, kind: kernel-fallback, revision: 1, factor: 2}]"],
            &[
                "faults.0.revision",
                "no pool has a rollout",
                "give a pool a rollout",
            ],
        ),
        (
            &["faults=[{at: 1s, kind: kernel-fallback, revision: 3, factor: 2}]"],
            &["faults.0.revision", "found revision 3", "0, or 1"],
        ),
        (
            &["fault_rates={link: {mtbf_hours: 1, repair: 1s}}"],
            &["fault_rates.link", "there are no links", "leave this out"],
        ),
        (
            &["cluster.gateway={retry: {attempts: 2, on: [timed-out]}}"],
            &["cluster.gateway.retry.on", "nothing times out", "timeouts.ttft"],
        ),
        (
            &["cluster.gateway={retry: {attempts: 2, on: [timed-out]}, timeouts: {e2e: 1s}}"],
            &[
                "cluster.gateway.retry.on",
                "e2e spans all attempts",
                "timeouts.ttft",
            ],
        ),
        (
            &["cluster.pools.0.autoscale={min_groups: 1, max_groups: 3, schedule: [{at: 1s, groups: 3}]}"],
            &[
                "cluster.pools.0.autoscale",
                "a schedule stands alone",
                "min_groups",
            ],
        ),
    ];
    for (set, parts) in refusals {
        shown(set).refused(parts);
    }
}

#[test]
fn a_revision_that_comes_and_a_timeout_that_is_tried_again_are_taken() {
    shown(&[
        "faults=[{at: 1s, kind: kernel-fallback, revision: 1, factor: 2}, {at: 1s, kind: kernel-fallback, revision: 0, \
         factor: 2}]",
        "cluster.pools.0.rollout={at: 1s}",
        "cluster.gateway={retry: {attempts: 2, on: [timed-out]}, timeouts: {queue: 9s}}",
    ])
    .with_code(0);
}

#[test]
fn figures_that_no_site_has_are_refused() {
    let refusals: [Refusal; 6] = [
        (
            &["cost={pue: {value: 1000, source: x}}"],
            &["cost.pue.value", "found 1000", "1 to 3"],
        ),
        (
            &["cost={pue: {value: 0.5, source: x}}"],
            &["cost.pue.value", "1 to 3"],
        ),
        (
            &["cost={other: [{name: x, usd_h: 1e300}]}"],
            &["cost.other.0.usd_h", "found 1e300"],
        ),
        (
            &["cluster.pools.0.price={usd_h: 1e9}"],
            &["cluster.pools.0.price.usd_h", "0 to 10000 USD"],
        ),
        (
            &["cluster.pools.0.price={usd_h: -1}"],
            &["cluster.pools.0.price.usd_h", "found -1"],
        ),
        (
            &[
                "system.model=llama-3.1-8b",
                "system.accelerator=h100-sxm",
                "cluster.pools.0.power={frequency_ratio: 1e-9}",
            ],
            &["cluster.pools.0.power", "0.000 of the full clock", "from 0.1"],
        ),
    ];
    for (set, parts) in refusals {
        shown(set).refused(parts);
    }
}

#[test]
fn what_would_take_for_ever_is_refused() {
    let refusals: [Refusal; 4] = [
        (
            &["fault_rates={device: {mtbf_hours: 3e-6, repair: 0s}, until: 1h}"],
            &[
                "fault_rates.device.mtbf_hours",
                "more than 10000 faults",
                "another unit than hours",
            ],
        ),
        (
            &[
                "cluster.router={policy: session-affinity, virtual_nodes: 10000}",
                "cluster.pools.0.groups=1000",
            ],
            &[
                "cluster.router.virtual_nodes",
                "10000 for each of 1000 groups",
                "1 to 1000",
            ],
        ),
        (
            &[
                "cluster.pools.0.autoscale={metric: kv-usage, target: 0.5, min_groups: 1, max_groups: 3, down: {stabilization: 9h}}",
            ],
            &[
                "cluster.pools.0.autoscale.down.stabilization",
                "found 9h",
                "up to 1h",
            ],
        ),
        (
            &[
                "cluster.pools.0.autoscale={metric: kv-usage, target: 0.5, min_groups: 1, max_groups: 3, interval: 100ms, \
               up: {stabilization: 7min}}",
            ],
            &["cluster.pools.0.autoscale.up.stabilization", "up to 6min"],
        ),
    ];
    for (set, parts) in refusals {
        shown(set).refused(parts);
    }
}

/// Ten requests over a thousand hours, and a router that looks every millisecond.
#[test]
fn a_run_of_nothing_but_control_loops_is_cut_off_with_a_word() {
    let ended = shown(&[
        "workload.synthetic.num_requests=10",
        "load.arrival.rate=0.0001",
        "cluster.router={policy: least-outstanding, metrics_interval: 1ms}",
        "cluster.pools.0.groups=64",
    ])
    .with_code(1);
    for part in ["read the metrics of groups", "metrics_interval"] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
}

/// 100 steps to 4096 groups and back.
#[test]
fn groups_that_come_and_go_without_end_are_cut_off_with_a_word() {
    let steps: Vec<_> = (0..100)
        .map(|i| format!("{{at: {i}ms, groups: {}}}", if i % 2 == 0 { 2048 } else { 1 }))
        .collect();
    let schedule = format!("cluster.pools.0.autoscale={{schedule: [{}]}}", steps.join(", "));
    let ended = shown(&[&schedule]).with_code(1);
    assert!(
        ended.stderr.contains("groups have been started"),
        "{}",
        ended.stderr
    );
}

/// The end of a request is awaited over all its attempts, as a gRPC deadline: what has passed it is not tried again.
#[test]
fn a_request_that_passed_its_end_is_not_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let (path, out) = (dir.path().join("case.yaml"), dir.path().join("out"));
    let gateway = "  gateway: {timeouts: {ttft: 9s, e2e: 10ms}, retry: {attempts: 3, on: [failed, timed-out]}}\nworkload:";
    std::fs::write(&path, ONE_POOL.replace("workload:", gateway)).unwrap();
    run_line("simulate {} -q -o {}", &[&path, &out]).with_code(0);
    let outcomes = &json_file(&out.join("run-0/cluster.json"))["outcomes"];
    assert_eq!(
        (&outcomes["timed_out"], &outcomes["retries"]),
        (&20.into(), &0.into()),
        "{outcomes}"
    );
}
