use super::*;

/// 70 GB at 7 GB/s are 10 s: 300 + 10 + 85 + 60 + 105 s.
#[test]
fn a_replacement_takes_all_stages_and_a_restart_no_provisioning() {
    let plan = RestartPlan::vllm_70b(70_000_000_000, PAGE_CACHE_BYTES_PER_S);
    let expected = [
        (Stage::Provision, seconds(300)),
        (Stage::LoadWeights, seconds(10)),
        (Stage::Compile, seconds(85)),
        (Stage::Capture, seconds(60)),
        (Stage::Warm, seconds(105)),
    ];
    assert_eq!(plan.stages(Ratio::ONE), expected);
    assert_eq!(plan.total(Ratio::ONE), seconds(560));
    assert_eq!(plan.on_live_node().stages(Ratio::ONE), expected[1..]);
    assert_eq!(plan.on_live_node().total(Ratio::ONE), seconds(260));
}

#[test]
fn a_slow_store_lengthens_the_loading_alone() {
    let plan = RestartPlan::vllm_70b(70_000_000_000, PAGE_CACHE_BYTES_PER_S);
    assert_eq!(plan.total(Ratio::new(5, 2)), seconds(560 + 15));
}

#[test]
fn loading_is_rounded_up_and_stages_without_time_are_left_out() {
    let load = |weight_bytes, weight_bandwidth| {
        let plan = RestartPlan {
            weight_bytes,
            weight_bandwidth,
            ..RestartPlan::NOTHING
        };
        plan.stages(Ratio::ONE)
    };
    assert_eq!(load(10, 3_000_000_000), [(Stage::LoadWeights, SimDuration(4))]);
    assert_eq!(load(0, 0), []);
    assert_eq!(load(u64::MAX, u64::MAX), []);
    assert_eq!(load(1, 0), [(Stage::LoadWeights, SimDuration(u64::MAX))]);
    assert_eq!(RestartPlan::NOTHING.total(Ratio::ONE), SimDuration::ZERO);
}

/// The constants say what their sources do: 16 GB in 48.0, 14.3 and 7.5 s; 64 x 21.4 GB in 7.8 min.
#[test]
fn bandwidths_are_those_of_the_cited_times() {
    let near = |bytes: f64, s: f64, figure: u64| (bytes / s / figure as f64 - 1.0).abs() < 0.12;
    assert!(near(16e9, 48.0, GP3_BYTES_PER_S));
    assert!(near(16e9, 14.3, GP3_STREAMER_BYTES_PER_S));
    assert!(near(16e9, 7.5, IO2_STREAMER_BYTES_PER_S));
    assert!(near(64.0 * 21.4e9, 7.8 * 60.0, NEURON_LOAD_BYTES_PER_S));
}

fn phases() -> Vec<Phase> {
    let mut phases = vec![
        Phase::Absent,
        Phase::Ready,
        Phase::Draining,
        Phase::Failed,
        Phase::Stopped,
    ];
    phases.extend(Stage::ALL.map(Phase::Starting));
    phases
}

#[test]
fn stages_go_forward_only() {
    let starting = Phase::Starting;
    assert!(starting(Stage::Provision).can_become(starting(Stage::Compile)));
    assert!(!starting(Stage::Compile).can_become(starting(Stage::LoadWeights)));
    assert!(!starting(Stage::Warm).can_become(starting(Stage::Warm)));
}

#[test]
fn nothing_follows_itself_and_nothing_becomes_absent_again() {
    for phase in phases() {
        assert!(!phase.can_become(phase));
        assert!(!phase.can_become(Phase::Absent));
    }
}

#[test]
fn faults_hit_what_exists_and_requests_go_to_what_is_ready() {
    for phase in phases() {
        assert_eq!(phase.can_become(Phase::Failed), phase.exists(), "{phase:?}");
        assert_eq!(
            phase.can_become(Phase::Draining),
            phase.takes_requests(),
            "{phase:?}"
        );
    }
}

#[test]
fn a_group_drains_before_it_stops_unless_it_never_served() {
    assert!(!Phase::Ready.can_become(Phase::Stopped));
    assert!(!Phase::Draining.can_become(Phase::Ready));
    assert!(Phase::Draining.can_become(Phase::Stopped));
    assert!(Phase::Starting(Stage::Warm).can_become(Phase::Stopped));
    assert!(Phase::Failed.can_become(Phase::Starting(Stage::LoadWeights)));
}
