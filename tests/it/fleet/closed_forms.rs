//! Clusters that are queues, links or runs with a known law.

use super::*;
use crate::queueing::{assert_law, erlang_c, mean_wait_s, poisson};
use kneeboard::cluster::fault::{Fallback, Fault, FaultKind};
use kneeboard::cluster::link::LinkConfig;
use kneeboard::cluster::ratio::Ratio;
use kneeboard::cluster::router::{PrefillDecider, RouterPolicy};
use proptest::prelude::*;
use rand_distr::{Distribution, Geometric};

/// Engines of one seat for long prompts: a request of one output token is one step.
fn server() -> VllmConfig {
    VllmConfig {
        max_num_batched_tokens: 100_000,
        ..roomy(1)
    }
}

/// One us a prompt token.
const SERVICE: Price = Price {
    step: 0,
    prefill_token: 1_000,
};

/// Poisson arrivals whose services are geometric with a mean of 1000 us: exponential to one part in a thousand.
fn exponential_services(seed: u64, n: usize, rate: f64) -> Trace {
    let services = Geometric::new(1e-3).unwrap();
    poisson(seed, n, rate, |draws| (services.sample(draws) as u32 + 1, 1))
}

#[test]
fn a_random_router_before_r_groups_makes_r_queues_m_m_1() {
    let (groups, per_group, mu) = (4, 700.0, 1_000.0);
    let mut config = unified(groups, server());
    config.routing.policy = RouterPolicy::Random;
    let samples: Vec<f64> = (0..16)
        .map(|seed| {
            config.seed = seed;
            let trace = exponential_services(seed, 60_000, f64::from(groups) * per_group);
            mean_wait_s(&run_fleet(&config, &SERVICE, &trace).0)
        })
        .collect();
    // rho / (mu - lambda).
    assert_law("R x M/M/1", &samples, 0.7 / (mu - per_group), 0.03);
}

#[test]
fn a_gateway_that_lets_in_c_before_c_groups_is_m_m_c() {
    let (servers, rate, mu) = (4, 3_200.0, 1_000.0);
    let mut config = unified(servers, server());
    config.gateway.limits.max_in_flight = Some(servers);
    config.routing.policy = RouterPolicy::LeastOutstanding;
    let samples: Vec<f64> = (0..16)
        .map(|seed| {
            let trace = exponential_services(seed, 60_000, rate);
            let (record, cluster) = run_fleet(&config, &SERVICE, &trace);
            for (r, job) in record.requests.iter().zip(&cluster.jobs) {
                assert_eq!(
                    job.dispatched, r.first_scheduled,
                    "all the wait is at the gateway"
                );
            }
            mean_wait_s(&record)
        })
        .collect();
    let law = erlang_c(servers, rate / mu) / (f64::from(servers) * mu - rate);
    assert_law("M/M/c", &samples, law, 0.03);
}

/// A trace of sessions, lengths and gaps.
fn any_sessions() -> impl Strategy<Value = Trace> {
    let row = (0u64..30, 1u32..150, 1u32..30, 0u32..6);
    prop::collection::vec(row, 1..40).prop_map(|rows| {
        let mut at = 0;
        let requests = rows.into_iter().map(|(gap, input, output, session)| {
            at += gap;
            TraceRequest {
                session: Some(session),
                ..TraceRequest::plain(at_ms(at), input, output)
            }
        });
        Trace {
            requests: requests.collect(),
        }
    })
}

const TENTH: Price = Price {
    step: 2 * MS,
    prefill_token: MS / 10,
};

fn small() -> VllmConfig {
    VllmConfig {
        num_gpu_blocks: 40,
        max_num_batched_tokens: 64,
        max_model_len: 400,
        ..roomy(3)
    }
}

fn any_router() -> impl Strategy<Value = RouterPolicy> {
    prop::sample::select(vec![
        RouterPolicy::RoundRobin,
        RouterPolicy::Random,
        RouterPolicy::LeastOutstanding,
        RouterPolicy::PowerOfTwo,
        RouterPolicy::SessionAffinity {
            load_bound: None,
            virtual_nodes: 16,
        },
    ])
}

fn fabric(bytes_per_s: u64, latency: SimDuration) -> LinkConfig {
    LinkConfig {
        name: "fabric".to_owned(),
        bandwidth_bytes_per_s: bytes_per_s,
        latency,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// D23: threshold 0 turns disaggregation off, and decode groups are unified ones.
    #[test]
    fn prefill_and_decode_with_the_decider_off_equal_one_pool(
        policy in any_router(), groups in 1u32..4, trace in any_sessions(), in_flight in prop::option::of(1u32..8),
    ) {
        let mut alone = unified(groups, small());
        alone.routing.policy = policy.clone();
        alone.gateway.limits.max_in_flight = in_flight;
        let pools = vec![
            PoolConfig::plain("all", PoolRole::Decode, groups, small()),
            PoolConfig::plain("prefill", PoolRole::Prefill, 2, small()),
        ];
        let mut apart = FleetConfig::plain(pools, LoadModel::OpenLoop);
        apart.routing.policy = policy;
        apart.routing.decider = PrefillDecider::Uncached { threshold: 0 };
        apart.gateway.limits.max_in_flight = in_flight;
        let (expected, expected_cluster) = run_fleet(&alone, &TENTH, &trace);
        let (mut record, mut cluster) = run_fleet(&apart, &TENTH, &trace);
        for idle in record.replicas.split_off(groups as usize) {
            prop_assert!(idle.step_ends.is_empty());
        }
        prop_assert_eq!(record, expected);
        cluster.groups.truncate(groups as usize);
        cluster.links.truncate(2 * groups as usize);
        cluster.pools.truncate(1);
        prop_assert_eq!(cluster, expected_cluster);
    }

    /// Without failures all that crossed a link is what was moved for requests, to the byte.
    #[test]
    fn links_carry_what_was_moved_for_requests(
        trace in any_sessions(), (prefill, decode) in (1u32..4, 1u32..4),
        (nic, bandwidth) in (100_000u64..5_000_000, 100_000u64..5_000_000), latency in 0u64..5, block_bytes in 1u64..5_000,
    ) {
        let mut config = prefill_decode(prefill, decode, small());
        for pool in &mut config.pools {
            (pool.block_bytes, pool.nic_bytes_per_s) = (block_bytes, nic);
        }
        config.links = vec![fabric(bandwidth, ms(latency))];
        config.transfer.fabric = vec![0];
        let (record, cluster) = run_fleet(&config, &TENTH, &trace);
        prop_assert!(record.requests.iter().all(|r| r.status == kneeboard::record::Status::Completed));
        let bytes: u64 = cluster.jobs.iter().map(|j| j.transferred_bytes).sum();
        let blocks: u64 = trace.requests.iter().map(|r| u64::from(r.input_tokens.div_ceil(16))).sum();
        prop_assert_eq!(bytes, blocks * block_bytes);
        let crossed = |is: &dyn Fn(&str) -> bool| cluster.links.iter().filter(|(n, _)| is(n)).map(|(_, b)| b).sum::<u64>();
        prop_assert_eq!(crossed(&|n| n == "fabric"), bytes);
        prop_assert_eq!(crossed(&|n| n.starts_with("prefill/") && n.ends_with(" out")), bytes);
        prop_assert_eq!(crossed(&|n| n.starts_with("decode/") && n.ends_with(" in")), bytes);
        prop_assert_eq!(crossed(&|n| n.starts_with("decode/") && n.ends_with(" out")), 0);
    }

    /// Two groups in turn, or with sessions of their own, are two runs of one group.
    #[test]
    fn groups_with_traffic_of_their_own_are_runs_of_their_own(trace in any_sessions(), by_session in any::<bool>()) {
        let mut config = unified(2, small());
        if by_session {
            config.routing.policy = RouterPolicy::SessionAffinity { load_bound: None, virtual_nodes: 16 };
        }
        let (both, _) = run_fleet(&config, &TENTH, &trace);
        for group in 0..2 {
            let here: Vec<usize> = (0..trace.requests.len()).filter(|&r| both.requests[r].replica == group).collect();
            if !by_session {
                prop_assert!(here.iter().all(|r| *r as u32 % 2 == group));
            }
            let requests = here.iter().map(|&r| trace.requests[r].clone()).collect();
            let (alone, _) = run_fleet(&unified(1, small()), &TENTH, &Trace { requests });
            for (&r, mine) in here.iter().zip(&alone.requests) {
                let mut there = both.requests[r].clone();
                there.replica = 0;
                prop_assert_eq!(&there, mine);
            }
            prop_assert_eq!(&both.replicas[group as usize], &alone.replicas[0]);
        }
    }

    /// A fault of no length changes nothing, whatever it is.
    #[test]
    fn faults_of_no_length_change_nothing(trace in any_sessions(), at in 0u64..300, apart in any::<bool>()) {
        let mut config = if apart { prefill_decode(1, 2, small()) } else { unified(3, small()) };
        config.links = vec![fabric(1_000_000, ms(1))];
        config.transfer.fabric = vec![0];
        let calm = run_fleet(&config, &TENTH, &trace);
        let twice = Ratio::new(2, 1);
        let kinds = [
            FaultKind::RankCrash { group: 0, rank: 0 },
            FaultKind::GroupCrash { group: 1 },
            FaultKind::NodeLoss { node: 2 },
            FaultKind::ZoneLoss { zone: 0 },
            FaultKind::SlowRank { group: 0, factor: twice },
            FaultKind::LinkDegradation { link: 0, factor: Ratio::new(1, 2) },
            FaultKind::LinkDown { link: 0 },
            FaultKind::WeightStoreSlow { factor: twice },
            FaultKind::StaleMetrics { age: ms(50) },
            FaultKind::KernelFallback { on: Fallback::Group(0), factor: twice },
            FaultKind::SpotNotice { node: 0, notice: ms(20) },
        ];
        config.faults = kinds
            .map(|kind| Fault { at: at_ms(at), duration: Some(SimDuration::ZERO), kind })
            .to_vec();
        prop_assert_eq!(run_fleet(&config, &TENTH, &trace), calm);
    }
}

/// A transfer that costs nothing: the first token comes one decode step after the prefill's end (D2).
#[test]
fn transfers_that_cost_nothing_are_no_time() {
    let price = Price {
        step: 10 * MS,
        prefill_token: MS,
    };
    let (record, cluster) = run_fleet(&prefill_decode(1, 1, roomy(8)), &price, &trace(&[(5, 40, 3)]));
    // 5 + 10 + 40 = 55: prefilled and moved. Three decode steps: the first computes the last prompt token once more.
    assert_eq!(in_ms(cluster.jobs[0].transfer), [55]);
    assert_eq!(tokens_ms(&record, 0), [65, 75, 85]);
}

/// Transfers that begin together on one link end together, each after n times the time that it takes alone.
#[test]
fn equal_transfers_share_a_link_equally() {
    let price = Price {
        step: 10 * MS,
        prefill_token: 0,
    };
    for n in [1, 2, 5] {
        let mut config = prefill_decode(1, 1, roomy(8));
        config.pools[0].block_bytes = 1_000;
        config.pools[1].block_bytes = 1_000;
        config.links = vec![fabric(1_000_000, ms(2))];
        config.transfer.fabric = vec![0];
        let (record, cluster) = run_fleet(&config, &price, &trace(&vec![(0, 160, 1); n]));
        for job in &cluster.jobs {
            // All prefilled at 10; ten blocks of 1000 bytes are 10 ms alone; 2 ms of latency.
            assert_eq!(in_ms(job.transfer), [10 + 10 * n as u64 + 2]);
            assert_eq!(job.transferred_bytes, 10_000);
        }
        assert_eq!(in_ms([record.end]), [10 + 10 * n as u64 + 2 + 10]);
        assert_eq!(cluster.links[0], ("fabric".to_owned(), 10_000 * n as u64));
    }
}
