//! Clusters that are something simpler.

use super::*;
use crate::world::{any_step_time_world, any_trace};
use kneeboard::record::Status;
use kneeboard::sim::fleet::{PoolConfig, PoolRole};
use kneeboard::sim::{LoadModel, run_at};
use proptest::prelude::*;

/// The cluster of a world of replicas behind a round-robin router.
fn cluster_of(world: &kneeboard::sim::WorldConfig) -> FleetConfig {
    let mut pool = PoolConfig::plain("all", PoolRole::Unified, world.replicas, world.engine.clone());
    pool.host = world.host;
    pool.stall = world.stall;
    let mut config = FleetConfig::plain(vec![pool], world.load);
    config.front_end = world.front_end;
    config.deadline = world.deadline;
    config
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// One pool behind a round-robin router is a world of replicas, to the last bit, at either pace.
    #[test]
    fn one_pool_equals_a_world(world in any_step_time_world(), trace in any_trace()) {
        let (world, step_time) = world;
        let expected = run_at(Pace::Leap, &world, &step_time, &trace).unwrap();
        let config = cluster_of(&world);
        for pace in [Pace::Leap, Pace::Step] {
            let (record, cluster) = kneeboard::sim::fleet::run(pace, &config, &[&step_time], &trace).unwrap();
            prop_assert_eq!(&record.requests, &expected.requests);
            for (ours, theirs) in record.replicas.iter().zip(&expected.replicas) {
                prop_assert_eq!(&ours.step_ends, &theirs.step_ends);
                prop_assert_eq!(&ours.running, &theirs.running);
                prop_assert_eq!(&ours.free_blocks, &theirs.free_blocks);
                prop_assert_eq!(ours.preemptions, theirs.preemptions);
                prop_assert_eq!(ours.busy, theirs.busy);
            }
            prop_assert!(cluster.timeline.is_empty());
        }
    }
}

/// All offered at once to c groups of one seat behind a gateway that keeps the queue: c servers with one queue.
#[test]
fn a_gateway_that_keeps_the_queue_is_one_queue_before_all_groups() {
    let mut config = FleetConfig::plain(
        vec![PoolConfig::plain("all", PoolRole::Unified, 2, roomy(1))],
        LoadModel::OpenLoop,
    );
    config.gateway.limits.max_in_flight = Some(2);
    config.routing.policy = kneeboard::cluster::router::RouterPolicy::LeastOutstanding;
    let step = Price {
        step: MS,
        prefill_token: MS,
    };
    // 9, 2 and 3 ms: the third follows the second, on the other group than the first.
    let (record, _) = run_fleet(&config, &step, &trace(&[(0, 8, 1), (0, 1, 1), (0, 2, 1)]));
    let ends: Vec<_> = record.requests.iter().map(|r| r.last_token.unwrap()).collect();
    assert_eq!(ends, [at_ms(9), at_ms(2), at_ms(5)]);
    assert_eq!(record.requests[2].replica, record.requests[1].replica);
    assert!(record.requests.iter().all(|r| r.status == Status::Completed));
}

/// What an engine refuses is refused as in a world of replicas, and a client of a closed loop hears of it as late.
#[test]
fn a_refusal_is_that_of_a_world() {
    let mut world = kneeboard::sim::WorldConfig {
        engine: VllmConfig {
            max_model_len: 100,
            ..roomy(4)
        },
        replicas: 1,
        load: LoadModel::ClosedLoop {
            concurrency: 1,
            think: ms(1),
        },
        host: kneeboard::sim::HostTimes::default(),
        front_end: kneeboard::sim::FrontEnd::default(),
        stall: None,
        deadline: None,
    };
    let step = Price {
        step: 10 * MS,
        prefill_token: MS,
    };
    let rows = trace(&[(0, 200, 5), (0, 10, 2)]);
    for (inbound, outbound) in [(0, 0), (2, 3)] {
        (world.front_end.inbound, world.front_end.outbound) = (ms(inbound), ms(outbound));
        let expected = run_at(Pace::Leap, &world, &step, &rows).unwrap();
        let (record, _) = run_fleet(&cluster_of(&world), &step, &rows);
        assert_eq!(record.requests, expected.requests);
        assert_eq!(record.requests[0].status, Status::Rejected);
        assert_eq!(record.requests[1].sent, at_ms(inbound + outbound + 1));
    }
}

/// Clients beyond the requests do nothing, however many there are.
#[test]
fn four_billion_clients_of_three_requests_are_three() {
    let step = Price {
        step: MS,
        prefill_token: MS,
    };
    let served = |concurrency| {
        let load = LoadModel::ClosedLoop {
            concurrency,
            think: SimDuration::ZERO,
        };
        let pools = vec![PoolConfig::plain("all", PoolRole::Unified, 2, roomy(1))];
        let requests = trace(&[(0, 8, 1), (0, 1, 1), (0, 2, 1)]);
        run_fleet(&FleetConfig::plain(pools, load), &step, &requests)
    };
    let begun = std::time::Instant::now();
    assert_eq!(served(u32::MAX).0.requests, served(3).0.requests);
    // One by one: 20 s and more.
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
}
