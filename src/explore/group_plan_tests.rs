use super::*;

/// One seat a group, every answer a second: a group carries at most one request a second.
fn plan(more: &str) -> Plan {
    let text = format!(
        r#"kneeboard: 1
system:
  engine: {{version: "0.28.0", max_model_len: 512, num_gpu_blocks: 100, max_num_seqs: 1, max_num_batched_tokens: 512, async_scheduling: false}}
  step_time: {{step: 100ms}}
cluster:
  pools:
    - {{name: chat, role: unified, groups: 4, placement: {{zones: [a, b], groups_per_node: 2}}{more}}}
  router: {{policy: least-outstanding}}
workload: {{synthetic: {{num_requests: 400, lengths: {{fixed: {{input: 10, output: 10}}}}}}}}
load: {{model: open-loop, arrival: {{process: constant, rate: 7.5}}}}
slo: {{ttft: 1s, attainment: 0.95}}
measure: {{seed: 1}}
sweep: {{search: {{capacity: {{rate: [1, 16]}}}}}}
"#
    );
    Plan::from_text(&text, "plan.yaml", std::path::Path::new("."), &[]).unwrap()
}

fn planned(plan: &Plan, survive: Survive) -> Result<GroupPlan, NoGroupPlan> {
    let demand = Demand {
        peak_rps: 7.5,
        margin: 0.2,
        survive,
    };
    let capacity = Study::of(plan.clone()).unwrap().capacity().unwrap();
    group_plan(plan, &demand, &capacity, &|| ()).unwrap()
}

#[test]
fn groups_are_whole_and_what_is_left_carries_the_peak() {
    let planned = planned(&plan(""), Survive::Node).unwrap();
    let pool = &planned.pools[0];
    assert!((planned.load_rps() - 9.0).abs() < 1e-12);
    let division = (9.0 / pool.group_rps - 1e-9).ceil() as u32;
    assert_eq!(pool.traffic, division + pool.added);
    // Two groups a node.
    assert_eq!((pool.reserve, pool.rollout), (2, 0));
    assert_eq!(pool.groups, pool.traffic + 2);
    assert!(
        pool.traffic >= 9,
        "{pool:?}: a group carries no more than a request a second"
    );
    let [condition] = planned.conditions.as_slice() else {
        panic!("{:?}", planned.conditions)
    };
    assert_eq!(condition.groups, [("chat".to_owned(), pool.traffic)]);
    assert!(planned.holds() && condition.attainment >= 0.95);
}

#[test]
fn a_zone_takes_its_part_of_all_groups() {
    let plan = plan("");
    // Of 18 in two zones 9 are left.
    assert_eq!(reserve(&plan, 0, 9, Survive::Zone), Some(9));
    assert_eq!(reserve(&plan, 0, 9, Survive::Group), Some(1));
    assert_eq!(reserve(&plan, 0, 9, Survive::Nothing), Some(0));
}

#[test]
fn a_rollout_is_simulated_at_the_peak_and_does_not_count_against_the_capacity() {
    let rolled = ", rollout: {at: 5s, surge: 2, max_unavailable: 0, step_factor: 1.5}, start: {provision: 1s, weights: 1GB, \
                  weight_bandwidth: 1GB/s, compile: 0s, capture: 0s, warm: 0s}";
    let rolled = planned(&plan(rolled), Survive::Node).unwrap();
    let still = planned(&plan(""), Survive::Node).unwrap();
    assert!((rolled.capacity_rps - still.capacity_rps).abs() < 1e-9);
    assert_eq!(rolled.pools[0].rollout, 2);
    assert_eq!(rolled.pools[0].groups, still.pools[0].groups + 2);
    let condition = &rolled.conditions[1];
    assert!(
        condition.what.contains("while its rollout lasts"),
        "{condition:?}"
    );
    assert_eq!(condition.groups[0].1, rolled.pools[0].groups - 2);
}

#[test]
fn pools_that_scale_have_no_number_of_groups() {
    let scaled =
        ", autoscale: {metric: waiting-per-group, target: 4, min_groups: 1, max_groups: 6, interval: 15s}";
    let no = planned(&plan(scaled), Survive::Node).unwrap_err();
    assert!(no.0.contains("come and go with the load"), "{no:?}");
}
