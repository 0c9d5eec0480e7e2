//! KV that is written layer by layer while its prompt is computed, by hand and against closed forms: rules D5-D9, D12-D17,
//! D31. A step takes 10 ms and 1 ms a prefill token.

use super::*;
use kneeboard::cluster::fault::{Fault, FaultKind};
use kneeboard::cluster::link::LinkConfig;
use kneeboard::cluster::push::PushFrom;
use kneeboard::cluster::router::PrefillDecider;
use kneeboard::record::Status;
use kneeboard::sim::fleet::{Fate, TransferMode};
use kneeboard::workload::trace::Prefix;
use proptest::prelude::*;

const PRICE: Price = Price {
    step: 10 * MS,
    prefill_token: MS,
};

fn push(layers: u32) -> TransferMode {
    TransferMode::Push {
        layers,
        from: PushFrom::EveryChunk,
    }
}

/// Some prefill groups and a decode group, a model of two layers, blocks of 16 tokens and 2000 bytes, and a link of so many
/// bytes a ms.
fn pushing(prefill: u32, bytes_per_ms: u64) -> FleetConfig {
    let mut config = prefill_decode(prefill, 1, roomy(8));
    for pool in &mut config.pools {
        pool.block_bytes = 2_000;
    }
    config.links = vec![LinkConfig {
        name: "fabric".to_owned(),
        bandwidth_bytes_per_s: 1_000 * bytes_per_ms,
        latency: SimDuration::ZERO,
    }];
    config.transfer.fabric = vec![0];
    config.transfer.mode = push(2);
    config
}

/// A prompt of 90 tokens is computed as 40, 40 and 10 of them: 0 to 50, 100 and 120. Their blocks are 2, 3 and 1.
fn in_chunks(config: &mut FleetConfig) {
    config.pools[0].engine.max_num_batched_tokens = 40;
}

fn crash(group: u32, at: u64) -> Vec<Fault> {
    vec![Fault {
        at: at_ms(at),
        duration: Some(ms(1_000)),
        kind: FaultKind::GroupCrash { group },
    }]
}

/// Both paces, which must agree.
fn run_both(config: &FleetConfig, trace: &Trace) -> (RunRecord, ClusterRecord) {
    let leapt = run_fleet(config, &PRICE, trace);
    let stepped = run(Pace::Step, config, &[&PRICE], trace).unwrap();
    assert_eq!(leapt, stepped);
    leapt
}

fn transfers_ms(cluster: &ClusterRecord) -> Vec<u64> {
    in_ms(cluster.jobs.iter().filter_map(|j| j.transfer))
}

fn bytes(cluster: &ClusterRecord) -> Vec<u64> {
    cluster.jobs.iter().map(|j| j.transferred_bytes).collect()
}

/// D31, D6, D17, D8: every stage of the way takes its time.
#[test]
fn each_stage_of_the_way_takes_its_time() {
    let mut config = pushing(1, 1_000);
    config.transfer.mode = push(4);
    config.front_end.inbound = ms(2);
    let one = trace(&[(0, 22, 3)]);
    // At both groups at 2. P computes 22 tokens, 2 blocks, from 2 to 34: a layer every 8 ms. 3000 bytes follow evenly from
    // 10 to 34, the last layer's 1000 take 1 ms more. D looks every ms from 2 on: 35, 45, 55, 65. Nobody waits for the
    // proxy's hearing of the prefill.
    let (record, cluster) = run_both(&config, &one);
    assert_eq!((transfers_ms(&cluster), bytes(&cluster)), (vec![35], vec![4_000]));
    assert_eq!(tokens_ms(&record, 0), [45, 55, 65]);
    assert_eq!(cluster.jobs[0].prefill_group, Some(0));
    assert_eq!((cluster.jobs[0].group, cluster.jobs[0].attempts), (Some(1), 1));
    assert_eq!(
        record.requests[0].first_scheduled,
        Some(at_ms(2)),
        "of its prefill"
    );
    // The last layer's 2 descriptors are posted in 1 + 2 * 0.5 ms, its bytes take 1, the links another one. D's blocks are
    // known at 2 + 7 = 9, in time for the first layer.
    config.transfer.response = ms(7);
    config.transfer.fixed = ms(1);
    config.transfer.per_descriptor = SimDuration(MS / 2);
    config.pools[1].block_descriptors = 4;
    config.links[0].latency = ms(1);
    let (record, cluster) = run_both(&config, &one);
    assert_eq!(transfers_ms(&cluster), [38]);
    assert_eq!(tokens_ms(&record, 0), [48, 58, 68]);
    // A read of the same: 34 + 7, at D 43, posted 1 + 8 * 0.5 = 48, moved 52, there 53.
    config.transfer.mode = TransferMode::Pull;
    let (_, cluster) = run_both(&config, &one);
    assert_eq!((transfers_ms(&cluster), bytes(&cluster)), (vec![53], vec![4_000]));
}

/// The first layer's bytes move from 25 to 50, 75 to 100 and 110 to 120: 2000, 3000 and 1000.
#[test]
fn each_chunk_is_written_while_it_is_computed() {
    let one = trace(&[(0, 90, 1)]);
    let every = push(2);
    let last = TransferMode::Push {
        layers: 2,
        from: PushFrom::LastChunk,
    };
    for (mode, bytes_per_ms, done) in [
        // The last layer of the last chunk is left at 120.
        (every, 1_000, 121),
        // All 12000 bytes from 25 on: the link never rests.
        (every, 40, 325),
        // MoRIIO: all blocks layer by layer from 110 on, 6000 bytes at 120.
        (last, 1_000, 126),
        (last, 40, 410),
        (TransferMode::Pull, 1_000, 132),
        (TransferMode::Pull, 40, 420),
    ] {
        let mut config = pushing(1, bytes_per_ms);
        in_chunks(&mut config);
        config.transfer.mode = mode;
        let (record, cluster) = run_both(&config, &one);
        assert_eq!(transfers_ms(&cluster), [done], "{mode:?} {bytes_per_ms}");
        assert_eq!(tokens_ms(&record, 0), [done + 10]);
        assert_eq!((bytes(&cluster), cluster.links[0].1), (vec![12_000], 12_000));
    }
}

/// D7, D17: D's only seat is taken until 71, so that P learns of the blocks then, and writes all of them.
#[test]
fn what_is_computed_before_the_blocks_are_known_is_written_then() {
    let mut config = pushing(1, 1_000);
    config.pools[1].engine = roomy(1);
    let two = trace(&[(0, 10, 5), (30, 10, 2)]);
    // First: P 0 to 20, 21; tokens 31 to 71. Second: P 30 to 50, 2 ms at 71.
    let (record, cluster) = run_both(&config, &two);
    assert_eq!(transfers_ms(&cluster), [21, 73]);
    assert_eq!(tokens_ms(&record, 1), [83, 93]);
    // All layers of its block are posted: 1 + 4 * 1 ms; the last layer of the first 1 + 2.
    config.transfer.fixed = ms(1);
    config.transfer.per_descriptor = ms(1);
    config.pools[1].block_descriptors = 4;
    let (_, cluster) = run_both(&config, &two);
    assert_eq!(transfers_ms(&cluster), [24, 74 + 5 + 2]);
}

/// The blocks are known in mid-step, at 80: the first chunk and the second one's first layer are computed. 7000 bytes move
/// evenly until 100.
#[test]
fn blocks_that_are_known_in_mid_step_leave_no_gap() {
    let mut config = pushing(1, 1_000);
    in_chunks(&mut config);
    config.transfer.response = ms(80);
    let (_, cluster) = run_both(&config, &trace(&[(0, 90, 1)]));
    assert_eq!(transfers_ms(&cluster), [121]);
    // 250 a ms is behind from the start, and never rests: 12000 bytes from 80 on.
    config.links[0].bandwidth_bytes_per_s = 250_000;
    let (_, cluster) = run_both(&config, &trace(&[(0, 90, 1)]));
    assert_eq!(
        (transfers_ms(&cluster), bytes(&cluster)),
        (vec![128], vec![12_000])
    );
}

/// Two prompts of 40 tokens, the second 200 ms later, that begin with the same 32.
fn two_of_a_prefix() -> Trace {
    let mut two = trace(&[(0, 40, 1), (200, 40, 1)]);
    for request in &mut two.requests {
        request.prefix = Some(Prefix {
            group: 0,
            shared_tokens: 32,
            greedy_outputs: false,
        });
    }
    two
}

/// D5: blocks that D has are not written; P computes them all the same.
#[test]
fn what_the_decode_group_has_cached_is_not_written() {
    let mut config = pushing(1, 1_000);
    config.pools[1].engine.enable_prefix_caching = true;
    let (record, cluster) = run_both(&config, &two_of_a_prefix());
    assert_eq!(bytes(&cluster), [6_000, 2_000]);
    // 50 ms at P; half of 6000 and of 2000 bytes are left then.
    assert_eq!(transfers_ms(&cluster), [53, 251]);
    assert_eq!(record.requests[1].cached_tokens, 32);
}

/// What P finds in its own cache may be written with the first layer of its first step.
#[test]
fn what_the_prefill_group_has_cached_is_written_first() {
    let mut config = pushing(1, 100);
    config.pools[0].engine.enable_prefix_caching = true;
    let (_, cluster) = run_both(&config, &two_of_a_prefix());
    // First: 25 to 85. Second: 8 tokens in 18 ms, 6000 bytes from 209 on.
    assert_eq!(transfers_ms(&cluster), [85, 269]);
}

/// D13, D15: P dies at 80, when the first chunk has come and a part of the second one's first layer; that is noticed at 86.
#[test]
fn a_prefill_death_in_mid_push_ends_the_request_or_leaves_whole_chunks() {
    let mut config = pushing(1, 1_000);
    in_chunks(&mut config);
    config.recovery.detection = ms(6);
    config.faults = crash(0, 80);
    let one = trace(&[(0, 90, 2)]);
    let (record, cluster) = run_both(&config, &one);
    assert_eq!(record.requests[0].status, Status::Failed);
    assert_eq!(
        (in_ms(cluster.jobs[0].ended), cluster.failed_transfers),
        (vec![86], 1)
    );
    // 4000 of the first chunk, then 3000 evenly over 25 ms, of which 5 have passed.
    assert_eq!(cluster.links[0].1, 4_600);
    for (fails, falls_back) in [(false, false), (true, true)] {
        config.transfer.failure_ends_request = fails;
        config.transfer.local_fallback = falls_back;
        let (record, cluster) = run_both(&config, &one);
        // 58 of 90 tokens are left: 86 + 68.
        assert_eq!(tokens_ms(&record, 0), [154, 164], "{fails} {falls_back}");
        assert_eq!((cluster.failed_transfers, bytes(&cluster)), (1, vec![0]));
        assert_eq!(cluster.links[0].1, 4_600);
    }
}

/// P dies as its prefill ends, at one instant: it was over, and its last layer is not written.
#[test]
fn a_prefill_group_that_dies_as_its_prefill_ends_is_heard_of() {
    for detection in [0, 5] {
        let mut config = pushing(1, 1_000);
        config.recovery.detection = ms(detection);
        config.transfer.failure_ends_request = false;
        config.faults = crash(0, 20);
        let (record, cluster) = run_both(&config, &trace(&[(0, 10, 2)]));
        assert_eq!(tokens_ms(&record, 0), [40 + detection, 50 + detection]);
        assert_eq!((cluster.failed_transfers, cluster.links[0].1), (1, 1_000));
    }
}

/// D15, D7: P dies while its request waits for a seat of D. D finds nobody to write, and computes the prompt itself.
#[test]
fn a_prefill_death_before_there_is_room_is_found_out_later() {
    let mut config = pushing(1, 1_000);
    config.pools[1].engine = roomy(1);
    config.transfer.failure_ends_request = false;
    config.transfer.response = ms(2);
    let two = trace(&[(0, 10, 5), (30, 10, 2)]);
    // The second is prefilled 30 to 50; P dies at 40 or, with all computed, at 60. D tells its blocks at 71 and hears at 73.
    for at in [40, 60] {
        config.faults = crash(0, at);
        let (record, cluster) = run_both(&config, &two);
        assert_eq!(tokens_ms(&record, 1), [93, 103], "{at}");
        assert_eq!(cluster.failed_transfers, 1);
    }
    config.transfer.failure_ends_request = true;
    let (record, cluster) = run_both(&config, &two);
    assert_eq!(record.requests[1].status, Status::Failed);
    assert_eq!(in_ms(cluster.jobs[1].ended), [60], "when the death is noticed");
}

/// D15: D dies in mid-push. P's writes stop at once, its prefill is given up when that is noticed.
#[test]
fn a_decode_death_in_mid_push_stops_the_writes() {
    let mut config = pushing(1, 1_000);
    in_chunks(&mut config);
    config.recovery.detection = ms(6);
    config.faults = crash(1, 80);
    let (record, cluster) = run_both(&config, &trace(&[(0, 90, 2)]));
    assert_eq!(record.requests[0].status, Status::Failed);
    assert_eq!(in_ms(cluster.jobs[0].ended), [86]);
    assert_eq!((cluster.links[0].1, cluster.leases_expired), (4_600, 0));
    let p = &record.replicas[0];
    assert_eq!(p.free_blocks_at_end, p.usable_blocks);
    // It does not compute the third chunk.
    assert_eq!(in_ms(p.step_ends.iter().copied()), [50, 100]);
}

/// D15, D14: D dies when all is computed and not all is written: the blocks stay for what is left of the lease.
#[test]
fn a_decode_death_after_the_prefill_leaves_the_blocks_for_a_lease() {
    let mut config = pushing(1, 40);
    config.pools[0].engine = VllmConfig {
        // 5 usable ones: the second prompt waits for those of the first.
        num_gpu_blocks: 6,
        max_model_len: 100,
        ..roomy(8)
    };
    config.transfer.lease = ms(100);
    config.transfer.heartbeat = ms(16);
    config.transfer.renewal = ms(66);
    config.recovery.in_flight = Fate::Fail;
    config.faults = vec![Fault {
        duration: Some(ms(10)),
        ..crash(1, 100).remove(0)
    }];
    let (record, cluster) = run_both(&config, &trace(&[(0, 70, 2), (120, 70, 1)]));
    // Prefilled 80, lease until 180; the last heartbeat's is over at 96 + 66.
    assert_eq!(record.requests[0].status, Status::Failed);
    assert_eq!(cluster.leases_expired, 1);
    assert_eq!(in_ms(record.replicas[0].step_ends.iter().copied()), [80, 260]);
    assert_eq!(record.requests[1].status, Status::Completed);
}

/// Another try begins with a prefill of its own.
#[test]
fn a_retry_after_a_decode_death_is_pushed_anew() {
    let mut config = pushing(1, 1_000);
    config.pools[1].groups = 2;
    config.pools[1].max_groups = 2;
    config.topology = FleetConfig::plain(config.pools.clone(), LoadModel::OpenLoop).topology;
    config.recovery.in_flight = Fate::Retry;
    config.recovery.detection = ms(6);
    config.gateway.retry = retries(2);
    config.faults = crash(1, 15);
    let (record, cluster) = run_both(&config, &trace(&[(0, 10, 2)]));
    // Broken at 21, after its first prefill; again at 25: P until 45, the last layer's 1000 bytes 46.
    assert_eq!(tokens_ms(&record, 0), [56, 66]);
    assert_eq!((cluster.jobs[0].retries, cluster.jobs[0].group), (1, Some(2)));
}

/// Both clients give up: nothing moves any more, and nobody holds anything.
#[test]
fn a_request_that_is_given_up_is_written_no_more() {
    let mut config = pushing(1, 40);
    config.gateway.timeouts.ttft = Some(ms(63));
    let (record, cluster) = run_both(&config, &trace(&[(0, 40, 2)]));
    // Written from 25 on.
    assert_eq!(record.requests[0].status, Status::TimedOut);
    assert_eq!(
        (cluster.links[0].1, cluster.failed_transfers),
        (40 * (63 - 25), 0)
    );
    // It was prefilled at 50.
    assert_eq!(cluster.leases_expired, 1);
}

/// A prompt that the prefill engine refuses ends, though the decode engine would take it; and the other way round.
#[test]
fn a_prompt_that_one_engine_refuses_ends() {
    for pool in [0, 1] {
        let mut config = pushing(1, 1_000);
        config.pools[pool].engine.max_model_len = 40;
        let (record, cluster) = run_both(&config, &trace(&[(0, 60, 2), (1, 20, 1)]));
        assert_eq!(record.requests[0].status, Status::Rejected, "{pool}");
        assert_eq!(in_ms(cluster.jobs[0].ended), [0]);
        assert_eq!(record.requests[1].status, Status::Completed);
    }
}

/// Two flows share a link: both from 10 on.
#[test]
fn two_writes_share_a_link() {
    let config = pushing(2, 40);
    let (_, cluster) = run_both(&config, &trace(&[(0, 10, 1), (0, 10, 1)]));
    assert_eq!(transfers_ms(&cluster), [110, 110]);
}

/// What a write leaves because it keeps pace with its computation, another one takes.
#[test]
fn a_write_that_waits_for_its_computation_leaves_the_link_to_others() {
    let config = pushing(2, 325);
    let (_, cluster) = run_both(&config, &trace(&[(0, 30, 1), (0, 70, 1)]));
    // First: 2 blocks, 40 ms; 2000 bytes are left at 40. The second's first layer, 5000 bytes evenly from 40 to 80, takes
    // 125 a ms of 325, and leaves 200.
    assert_eq!(cluster.jobs[0].transfer, Some(at_ms(50)));
    // The second's last layer at 325 bytes a ms.
    let last = SimTime(80 * MS + (5_000 * MS).div_ceil(325));
    assert_eq!(cluster.jobs[1].transfer, Some(last));
}

/// D23: only long prompts are prefilled elsewhere, and D was chosen first.
#[test]
fn short_prompts_are_prefilled_where_they_are_decoded() {
    let mut config = pushing(1, 1_000);
    config.routing.decider = PrefillDecider::Uncached { threshold: 17 };
    let (record, cluster) = run_both(&config, &trace(&[(0, 30, 1), (100, 16, 1)]));
    assert_eq!(
        (tokens_ms(&record, 0), tokens_ms(&record, 1)),
        (vec![52], vec![126])
    );
    let groups = cluster.jobs.iter().map(|j| j.prefill_group);
    assert_eq!(groups.collect::<Vec<_>>(), [Some(0), None]);
}

/// A preempted prefill computes what it lost anew, and writes only what was not written. First: 4 blocks, computed by 100
/// and written slowly. Second: 30 of 70 tokens by 100. Its next chunk does not fit beside what the first holds of 8
/// blocks, nor does the one after its first 40 tokens, which it computes over and over until the first is written.
#[test]
fn a_preempted_prefill_writes_nothing_twice() {
    let mut config = pushing(1, 40);
    config.pools[0].engine = VllmConfig {
        num_gpu_blocks: 9,
        max_model_len: 100,
        max_num_batched_tokens: 40,
        scheduler_reserve_full_isl: false,
        ..roomy(8)
    };
    let (record, cluster) = run_both(&config, &trace(&[(0, 50, 1), (0, 70, 1)]));
    assert!(record.replicas[0].preemptions > 1);
    assert_eq!(
        (bytes(&cluster), cluster.links[0].1),
        (vec![8_000, 10_000], 18_000)
    );
}

fn any_prompts() -> impl Strategy<Value = Trace> {
    let row = (1u32..300, 1u32..5);
    // So far apart that nothing meets.
    prop::collection::vec(row, 1..4).prop_map(|rows| {
        let rows: Vec<_> = (0..)
            .zip(rows)
            .map(|(i, (input, output))| (i * 10_000, input, output))
            .collect();
        trace(&rows)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// With nothing in the way push is a pull that costs nothing: KV is there when the prefill ends.
    #[test]
    fn without_limits_push_is_a_read_without_cost(
        trace in any_prompts(), layers in 1u32..100, budget in 16u32..200, last in any::<bool>(),
    ) {
        let mut config = pushing(1, 1);
        config.pools[0].engine.max_num_batched_tokens = budget;
        config.links[0].bandwidth_bytes_per_s = u64::MAX;
        config.transfer.mode = TransferMode::Pull;
        let pull = run_both(&config, &trace);
        let from = if last { PushFrom::LastChunk } else { PushFrom::EveryChunk };
        config.transfer.mode = TransferMode::Push { layers, from };
        let push = run_both(&config, &trace);
        prop_assert_eq!(transfers_ms(&pull.1), transfers_ms(&push.1));
        prop_assert_eq!(bytes(&pull.1), bytes(&push.1));
        prop_assert_eq!(&pull.1.links[0], &push.1.links[0]);
        for request in 0..trace.requests.len() {
            prop_assert_eq!(tokens_ms(&pull.0, request), tokens_ms(&push.0, request));
        }
    }

    /// One step's prompt over one link. Faster than the computation: the end is within one layer's time of the prefill's.
    /// Slower: the link is never idle from the first layer on.
    #[test]
    fn one_prompt_over_one_link_has_a_closed_form(
        tokens in 1u32..2_000, layers in 2u32..100, bytes_per_ms in 1u64..20_000,
    ) {
        let mut config = pushing(1, bytes_per_ms);
        config.transfer.mode = push(layers);
        let (_, cluster) = run_both(&config, &trace(&[(0, tokens, 1)]));
        let step = (10 + u64::from(tokens)) * MS;
        let all = 2_000 * u64::from(tokens.div_ceil(16));
        let took = |bytes: u64| (bytes * MS).div_ceil(bytes_per_ms);
        let layer = step.div_ceil(u64::from(layers));
        let done = cluster.jobs[0].transfer.unwrap().0;
        prop_assert_eq!(bytes(&cluster), [all]);
        // Rates are whole bytes a second, so that less than a byte of the first layers may be left at the step's end.
        let exact = if took(all) >= step {
            layer + took(all)
        } else {
            step + took(all.div_ceil(u64::from(layers)))
        };
        let left = took(1 + step / 1_000 / MS);
        prop_assert!((exact..=exact + left).contains(&done), "{} {}", done, exact);
        if took(all) < step {
            prop_assert!(done <= step + layer + left, "{} {} {}", done, step, layer);
        }
    }

    /// Whatever is in the way, the bytes are those of a pull.
    #[test]
    fn push_moves_the_bytes_of_a_pull(
        rows in prop::collection::vec((0u64..80, 1u32..200, 1u32..20), 1..20),
        (layers, last, budget) in (1u32..9, any::<bool>(), 16u32..100),
        (bytes_per_ms, response, seats) in (20u64..2_000, 0u64..50, 1u32..5),
    ) {
        let mut config = pushing(2, bytes_per_ms);
        config.pools[0].engine.max_num_batched_tokens = budget;
        config.pools[1].engine = roomy(seats);
        config.transfer.response = ms(response);
        config.transfer.mode = TransferMode::Pull;
        let mut at = 0;
        let rows: Vec<_> = rows.iter().map(|&(gap, i, o)| { at += gap; (at, i, o) }).collect();
        let pull = run_both(&config, &trace(&rows));
        let from = if last { PushFrom::LastChunk } else { PushFrom::EveryChunk };
        config.transfer.mode = TransferMode::Push { layers, from };
        let push = run_both(&config, &trace(&rows));
        prop_assert_eq!(bytes(&pull.1), bytes(&push.1));
        prop_assert_eq!(push.1.links[0].1, bytes(&push.1).iter().sum::<u64>());
        // Nothing is ready before it is computed.
        for (r, job) in push.0.requests.iter().zip(&push.1.jobs) {
            prop_assert_eq!(r.status, Status::Completed);
            let prefill = ms(10 + u64::from(r.input_tokens));
            prop_assert!(job.transfer.unwrap() >= r.first_scheduled.unwrap() + prefill);
        }
    }
}
