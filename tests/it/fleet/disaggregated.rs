//! Prefill and decode apart, by hand: rules D1-D8, D10, D12-D15. A step takes 10 ms and 1 ms a prefill token; the step
//! that computes the last prompt token once more on the decode side (D2) has no prefill token.

use super::*;
use kneeboard::cluster::fault::{Fault, FaultKind};
use kneeboard::cluster::link::LinkConfig;
use kneeboard::cluster::push::PushFrom;
use kneeboard::cluster::router::PrefillDecider;
use kneeboard::record::Status;
use kneeboard::sim::fleet::{Fate, TransferMode};

const PRICE: Price = Price {
    step: 10 * MS,
    prefill_token: MS,
};

/// One group each. A block is 1000 bytes and takes 1 ms of the only link that is no adapter.
fn one_and_one(decode_seats: u32) -> FleetConfig {
    let mut config = prefill_decode(1, 1, roomy(8));
    config.pools[1].engine = roomy(decode_seats);
    for pool in &mut config.pools {
        pool.block_bytes = 1_000;
    }
    config.links = vec![LinkConfig {
        name: "fabric".to_owned(),
        bandwidth_bytes_per_s: 1_000_000,
        latency: SimDuration::ZERO,
    }];
    config.transfer.fabric = vec![0];
    config
}

fn crash(group: u32, at: u64) -> Vec<Fault> {
    vec![Fault {
        at: at_ms(at),
        duration: Some(ms(1_000)),
        kind: FaultKind::GroupCrash { group },
    }]
}

fn transfers_ms(cluster: &ClusterRecord) -> Vec<u64> {
    in_ms(cluster.jobs.iter().filter_map(|j| j.transfer))
}

/// D1-D6, D8, D17: every stage of the way takes its time.
#[test]
fn each_stage_of_the_way_takes_its_time() {
    let mut config = one_and_one(8);
    config.front_end.inbound = ms(2);
    config.transfer.response = ms(3);
    config.transfer.fixed = ms(1);
    config.transfer.per_descriptor = SimDuration(MS / 2);
    config.pools[1].block_descriptors = 4;
    config.links[0].latency = ms(1);
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 20, 3), (10, 40, 2)]));
    // First: sent 0, at P 2, prefilled 2 + 30 = 32, the proxy knows at 35, at D 37. Its 20 tokens are 2 blocks (D5): 1 + 8
    // descriptors * 0.5 = 5 ms to post, 42; 2 ms of bytes and 1 of latency, 45. D is idle and looks every ms: 45, 55, 65, 75.
    // Second: at P 12, in P's queue until 32 (D2), prefilled 32 + 50 = 82, proxy 85, D 87. 3 blocks: 1 + 6 = 7 ms to post,
    // 94, moved 97 + 1 = 98. D has nothing to do since 75: 98, 108, 118.
    assert_eq!(transfers_ms(&cluster), [45, 98]);
    assert_eq!(tokens_ms(&record, 0), [55, 65, 75]);
    assert_eq!(tokens_ms(&record, 1), [108, 118]);
    let started = record.requests.iter().map(|r| r.first_scheduled.unwrap());
    assert_eq!(in_ms(started), [2, 32], "of their prefills");
    assert_eq!(
        cluster
            .jobs
            .iter()
            .map(|j| j.transferred_bytes)
            .collect::<Vec<_>>(),
        [2_000, 3_000]
    );
    assert!(
        cluster
            .jobs
            .iter()
            .all(|j| (j.prefill_group, j.group) == (Some(0), Some(1)))
    );
}

/// D3: an ended prefill gives up its seat at once, and its blocks when they have been read.
#[test]
fn a_prefill_keeps_its_blocks_until_they_are_read_but_not_its_seat() {
    let mut config = one_and_one(8);
    config.pools[0].engine = VllmConfig {
        // 5 usable ones.
        num_gpu_blocks: 6,
        max_model_len: 64,
        ..roomy(1)
    };
    config.links[0].bandwidth_bytes_per_s = 100_000;
    // Blocks of 32, 32 and 48 tokens: 2, 2, 3, and 10 ms each to move.
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 32, 1), (0, 32, 1), (0, 48, 1)]));
    // P: 0 to 42 and, behind its one seat, 42 to 84. The third needs 3 blocks of 5 while the second holds 2: it waits for
    // the first's, which were read from 42 to 62. So it runs from 84 to 142.
    assert_eq!(
        in_ms(record.requests.iter().map(|r| r.first_scheduled.unwrap())),
        [0, 42, 84]
    );
    assert_eq!(transfers_ms(&cluster), [62, 104, 172]);
    // With a reading three times as slow, the first's blocks are free at 102 only.
    config.links[0].bandwidth_bytes_per_s = 100_000 / 3 + 1;
    let (record, _) = run_fleet(&config, &PRICE, &trace(&[(0, 32, 1), (0, 32, 1), (0, 48, 1)]));
    let third = record.requests[2].first_scheduled.unwrap();
    assert!(at_ms(101) < third && third < at_ms(130), "{third:?}");
}

/// D7: with all seats of D taken no transfer starts; D8: it takes part in the schedule call after its transfer.
#[test]
fn a_full_decode_group_starts_no_transfer() {
    let (record, cluster) = run_fleet(&one_and_one(1), &PRICE, &trace(&[(0, 16, 5), (1, 16, 2)]));
    // First: prefilled 26, 1 block moved 27, tokens 37 to 77. Second: prefilled 26 + 26 = 52, at D with the seat taken until
    // 77; moved 78; tokens 88 and 98.
    assert_eq!(transfers_ms(&cluster), [27, 78]);
    assert_eq!(tokens_ms(&record, 0), [37, 47, 57, 67, 77]);
    assert_eq!(tokens_ms(&record, 1), [88, 98]);
}

/// D6, D8: a transfer to a busy group goes on beside its steps, and its request joins the first step after it.
#[test]
fn a_transfer_to_a_busy_group_ends_between_its_steps() {
    let (record, cluster) = run_fleet(&one_and_one(8), &PRICE, &trace(&[(0, 16, 6), (1, 16, 2)]));
    // As above, but D has seats: the second reaches D at 52, in the step from 47 to 57. The schedule call at 57 starts its
    // transfer; it ends at 58, is reported with the step that ends at 67, and the next step ends at 77.
    assert_eq!(transfers_ms(&cluster), [27, 58]);
    assert_eq!(tokens_ms(&record, 0), [37, 47, 57, 67, 77, 87]);
    assert_eq!(tokens_ms(&record, 1), [77, 87]);
}

/// D10: an idle group looks once a ms from the call that started the load on.
#[test]
fn an_idle_decode_group_looks_every_millisecond() {
    let mut config = one_and_one(8);
    config.transfer.fixed = SimDuration(MS / 4);
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 16, 1)]));
    // Prefilled 26, posted 26.25, moved 27.25: seen at 28.
    assert_eq!(cluster.jobs[0].transfer, Some(SimTime(27 * MS + MS / 4)));
    assert_eq!(tokens_ms(&record, 0), [38]);
}

/// D12: a load begins when its whole prompt fits beside what is there.
#[test]
fn a_load_waits_for_room_for_its_whole_prompt() {
    let mut config = one_and_one(8);
    config.pools[1].engine = VllmConfig {
        // 5 usable ones.
        num_gpu_blocks: 6,
        max_model_len: 64,
        ..roomy(8)
    };
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 40, 3), (1, 40, 2)]));
    // First: prefilled 50, 3 blocks moved 53, tokens 63, 73, 83. Second: prefilled 100, no: D is empty by then.
    assert_eq!(transfers_ms(&cluster), [53, 103]);
    assert_eq!(tokens_ms(&record, 1), [113, 123]);
    // With 9 tokens the first stays until 143, and the second's 3 blocks do not fit beside its 4.
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 40, 9), (1, 40, 2)]));
    assert_eq!(tokens_ms(&record, 0).last(), Some(&143));
    assert_eq!(transfers_ms(&cluster), [53, 146]);
    assert_eq!(tokens_ms(&record, 1), [156, 166]);
}

/// D12 switched off (vllm#57104): the prompts of 4 and 3 blocks fill the cache of 7, and each needs another block for its
/// first step with a draft. That is told as a livelock, and nobody is answered.
#[test]
fn without_the_reserve_transfers_block_each_other_for_ever() {
    let push = TransferMode::Push {
        layers: 2,
        from: PushFrom::EveryChunk,
    };
    for mode in [TransferMode::Pull, push] {
        let mut config = one_and_one(8);
        config.transfer.mode = mode;
        config.pools[1].engine = VllmConfig {
            num_gpu_blocks: 8,
            max_model_len: 100,
            num_speculative_tokens: 1,
            num_lookahead_tokens: 1,
            reserve_for_loads: Some(false),
            ..roomy(8)
        };
        let two = trace(&[(0, 64, 4), (0, 48, 4)]);
        let (record, cluster) = run_fleet(&config, &PRICE, &two);
        assert!(
            record.requests.iter().all(|r| r.status == Status::Unfinished),
            "{mode:?}"
        );
        assert_eq!(cluster.jobs.iter().filter(|j| j.transfer.is_some()).count(), 2);
        assert_eq!(
            record.replicas[1].livelock.map(|l| l.state.waiting),
            Some(2),
            "{mode:?}"
        );
        config.pools[1].engine.reserve_for_loads = Some(true);
        let (record, _) = run_fleet(&config, &PRICE, &two);
        assert!(
            record.requests.iter().all(|r| r.status == Status::Completed),
            "{mode:?}"
        );
    }
}

/// A queue before D that is longer than a lease: the second request waits at D from 52 until 227.
fn outlived_lease() -> (FleetConfig, Trace) {
    let mut config = one_and_one(1);
    config.transfer.lease = ms(100);
    config.transfer.heartbeat = SimDuration::ZERO;
    (config, trace(&[(0, 16, 20), (1, 16, 2)]))
}

/// D14: a decode group that knows of a request keeps its blocks alive.
#[test]
fn heartbeats_keep_a_lease_alive() {
    let (mut config, trace) = outlived_lease();
    config.transfer.heartbeat = ms(16);
    config.transfer.renewal = ms(66);
    let (record, cluster) = run_fleet(&config, &PRICE, &trace);
    // The first's tokens are at 37 to 227; then 1 ms to move, 228, and two steps.
    assert_eq!(tokens_ms(&record, 1), [238, 248]);
    assert_eq!((cluster.leases_expired, cluster.failed_transfers), (0, 0));
}

/// A read of 31 years is one event, not a heartbeat's every few seconds for all that time.
#[test]
fn a_read_of_years_ends_in_its_own_time() {
    let mut config = one_and_one(8);
    config.links[0].bandwidth_bytes_per_s = 1;
    config.pools[1].block_bytes = 1_000_000_000;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 16, 2)]));
    assert_eq!((cluster.stranded, cluster.leases_expired), (0, 0));
    assert_eq!(cluster.jobs[0].transfer, Some(at_ms(26 + 1_000_000_000_000)));
    assert_eq!(record.requests[0].status, Status::Completed);
}

/// D14: heartbeats that stop while a lease was being kept alive leave it to the last one's.
#[test]
fn a_lease_that_was_kept_alive_ends_after_the_last_heartbeat() {
    let (mut config, _) = outlived_lease();
    config.pools[0].engine = VllmConfig {
        // 2 usable ones: the third prompt waits for the block of the second.
        num_gpu_blocks: 3,
        max_model_len: 64,
        ..roomy(8)
    };
    config.transfer.heartbeat = ms(16);
    config.transfer.renewal = ms(66);
    // The second's client gives up at 181; its prefill ended at 52 and was known since. The last heartbeat was at
    // 52 + 8 * 16 = 180.
    config.gateway.timeouts.ttft = Some(ms(180));
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 16, 20), (1, 16, 2), (160, 32, 1)]));
    assert_eq!(record.requests[1].status, Status::TimedOut);
    assert_eq!(cluster.leases_expired, 1);
    // P: 26, 52, then nothing until the block is free at 180 + 66.
    assert_eq!(in_ms(record.replicas[0].step_ends.iter().copied()), [26, 52, 288]);
}

/// D14, D13: without heartbeats the lease ends at 52 + 100 = 152, and the read at 227 fails.
#[test]
fn a_lease_that_ends_fails_the_read_after_it() {
    let (config, trace) = outlived_lease();
    let (record, cluster) = run_fleet(&config, &PRICE, &trace);
    assert_eq!((cluster.leases_expired, cluster.failed_transfers), (1, 1));
    assert_eq!(record.requests[1].status, Status::Failed);
    assert_eq!(in_ms(cluster.jobs[1].ended), [227]);
    assert_eq!(record.requests[1].output_tokens, 0);
    // The first did not suffer.
    assert_eq!(tokens_ms(&record, 0).last(), Some(&227));
}

#[test]
fn a_read_that_fails_may_be_computed_anew() {
    let (mut config, trace) = outlived_lease();
    config.transfer.failure_ends_request = false;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace);
    // D finds out at 227 and computes all 16 tokens: 227 + 26, then 10.
    assert_eq!(tokens_ms(&record, 1), [253, 263]);
    assert_eq!((cluster.leases_expired, cluster.failed_transfers), (1, 1));
    assert_eq!(cluster.jobs[1].transferred_bytes, 0);
}

/// D14: a lease that ends while it is read breaks the read off, whole blocks are kept.
#[test]
fn a_lease_that_ends_in_mid_read_breaks_it_off() {
    let mut config = one_and_one(8);
    config.links[0].bandwidth_bytes_per_s = 100_000;
    config.transfer.lease = ms(25);
    config.transfer.heartbeat = SimDuration::ZERO;
    config.transfer.failure_ends_request = false;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 64, 2)]));
    // Prefilled 74; 4 blocks of 10 ms each; the lease ends at 99, after two whole blocks. 32 tokens are left: 99 + 42.
    assert_eq!(tokens_ms(&record, 0), [141, 151]);
    assert_eq!((cluster.leases_expired, cluster.failed_transfers), (1, 1));
    assert_eq!(cluster.links[0].1, 2_500, "what had crossed had crossed");
}

/// D15, D13: the prefill group dies in mid-read.
#[test]
fn a_prefill_death_during_a_read_ends_the_request_or_leaves_whole_blocks() {
    let mut config = one_and_one(8);
    config.links[0].bandwidth_bytes_per_s = 100_000;
    config.recovery.detection = ms(6);
    // Prefilled 74, read at 10 ms a block; at 111 there are 3 whole blocks and a part of the fourth.
    config.faults = crash(0, 111);
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 64, 2)]));
    assert_eq!(record.requests[0].status, Status::Failed);
    assert_eq!(
        in_ms(cluster.jobs[0].ended),
        [111],
        "the read breaks before anybody has noticed the death"
    );
    assert_eq!(cluster.failed_transfers, 1);

    config.transfer.failure_ends_request = false;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 64, 2)]));
    // 16 tokens are left: 111 + 26, then 10.
    assert_eq!(tokens_ms(&record, 0), [137, 147]);
    assert_eq!(
        (cluster.failed_transfers, cluster.jobs[0].transferred_bytes),
        (1, 0)
    );
}

/// D15: the prefill group dies before it answers.
#[test]
fn a_prefill_death_before_the_answer() {
    let mut config = one_and_one(8);
    config.recovery.detection = ms(6);
    config.faults = crash(0, 20);
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 64, 2)]));
    assert_eq!(record.requests[0].status, Status::Failed);
    assert_eq!(in_ms(cluster.jobs[0].ended), [26], "crash and detection");
    assert_eq!(cluster.jobs[0].attempts, 0, "nobody was asked to answer it");

    // llm-d: D computes it, 26 + 74.
    config.transfer.local_fallback = true;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 64, 2)]));
    assert_eq!(record.requests[0].status, Status::Completed);
    assert_eq!(tokens_ms(&record, 0), [100, 110]);
    assert_eq!(
        (cluster.jobs[0].group, cluster.jobs[0].transferred_bytes),
        (Some(1), 0)
    );
}

/// D15: a decode group dies in mid-stream; a retry begins with a prefill, and what was computed before is lost.
#[test]
fn a_decode_death_begins_anew_with_a_prefill() {
    let mut config = one_and_one(8);
    config.pools[1].groups = 2;
    config.pools[1].max_groups = 2;
    config.topology = FleetConfig::plain(config.pools.clone(), LoadModel::OpenLoop).topology;
    config.recovery.detection = ms(6);
    config.recovery.route_removal = ms(1);
    config.faults = crash(1, 52);
    config.gateway.retry = retries(2);
    for (fate, tokens, resumes) in [
        // Broken at 58, again at 62: P until 62 + 26 = 88, moved 89. Decode group 2 is next.
        (Fate::Retry, vec![99, 109, 119, 129], 0),
        // Tokens at 37 and 47 stay. Its prompt is now 18 tokens: 62 + 28 = 90, 2 blocks moved 92; two more tokens.
        (Fate::Resume, vec![37, 47, 102, 112], 1),
    ] {
        config.recovery.in_flight = fate;
        let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 16, 4)]));
        assert_eq!(record.requests[0].status, Status::Completed, "{fate:?}");
        assert_eq!(tokens_ms(&record, 0), tokens, "{fate:?}");
        let job = cluster.jobs[0];
        assert_eq!(
            (job.retries, job.resumes, job.group),
            (1, Some(resumes), Some(2)),
            "{fate:?}"
        );
    }
    config.recovery.in_flight = Fate::Fail;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 16, 4)]));
    assert_eq!(
        (record.requests[0].status, in_ms(cluster.jobs[0].ended)),
        (Status::Failed, vec![58])
    );
    assert_eq!(tokens_ms(&record, 0), [37, 47]);
}

/// D23: only long prompts are prefilled elsewhere; the decode group was chosen first.
#[test]
fn short_prompts_are_prefilled_where_they_are_decoded() {
    let mut config = one_and_one(8);
    config.routing.decider = PrefillDecider::Uncached { threshold: 17 };
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 17, 1), (100, 16, 1)]));
    // 27 at P, 2 blocks, one step; 26 at D.
    assert_eq!(
        (tokens_ms(&record, 0), tokens_ms(&record, 1)),
        (vec![39], vec![126])
    );
    assert_eq!(
        cluster.jobs.iter().map(|j| j.prefill_group).collect::<Vec<_>>(),
        [Some(0), None]
    );
}

/// D15: a decode group dies while it waits for its turn to read. Its heartbeats end, and the blocks are kept until the last
/// one's lease is over.
#[test]
fn a_decode_death_leaves_the_blocks_until_the_last_heartbeat_has_run_out() {
    let mut config = one_and_one(1);
    config.pools[0].engine = VllmConfig {
        // 2 usable ones: the third prompt waits for the blocks of the second.
        num_gpu_blocks: 3,
        max_model_len: 64,
        ..roomy(8)
    };
    config.transfer.lease = ms(100);
    config.transfer.heartbeat = ms(16);
    config.transfer.renewal = ms(66);
    // The second: prefilled at 52, known to D since. Heartbeats at 52, 68, ... 132, 148: D dies at 150, so the lease of 152
    // was renewed to 148 + 66 = 214.
    config.faults = crash(1, 150);
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 16, 20), (1, 16, 2), (60, 32, 1)]));
    assert_eq!(
        in_ms(record.requests[2].first_scheduled),
        [0; 0],
        "its answer is lost with D"
    );
    assert_eq!(record.requests[1].status, Status::Failed);
    assert_eq!(cluster.leases_expired, 2);
    // P: 26, 52, then nothing until the blocks are free at 214.
    assert_eq!(in_ms(record.replicas[0].step_ends.iter().copied()), [26, 52, 256]);
}

/// D2: what the prefill group samples is no first token; its client gives up while the answer is on its way to the proxy.
#[test]
fn a_prefills_token_is_no_first_token() {
    let mut config = one_and_one(8);
    config.transfer.response = ms(50);
    config.gateway.timeouts.ttft = Some(ms(40));
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 16, 2)]));
    // Prefilled 26, at the proxy at 76.
    assert_eq!(record.requests[0].status, Status::TimedOut);
    assert_eq!(in_ms(cluster.jobs[0].ended), [40]);
    assert_eq!((cluster.jobs[0].attempts, cluster.leases_expired), (0, 1));
}

/// An answer that comes after its request was given up and sent anew is nobody's.
#[test]
fn a_late_answer_to_a_prefill_that_was_given_up_is_ignored() {
    let mut config = one_and_one(8);
    config.transfer.response = ms(50);
    config.gateway.timeouts.ttft = Some(ms(40));
    config.gateway.retry = retries(2);
    config.recovery.in_flight = Fate::Retry;
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 16, 2)]));
    // Given up at 40, prefilled anew from 44 to 70; the first answer comes at 76 to nobody. Given up again at 84, which is 40
    // after the second try began; the second answer comes at 120 to nobody.
    assert_eq!(record.requests[0].status, Status::TimedOut);
    assert_eq!(transfers_ms(&cluster), [0_u64; 0]);
    assert_eq!(in_ms(cluster.jobs[0].ended), [84]);
    assert_eq!((cluster.jobs[0].attempts, cluster.jobs[0].retries), (0, 1));
}

/// At one instant steps end before anything breaks: the prefill is over, its group's death takes its blocks.
#[test]
fn a_prefill_group_that_dies_as_its_prefill_ends_leaves_nothing_to_read() {
    for (detection, response) in [(0, 0), (0, 3), (5, 0), (5, 8)] {
        let mut config = one_and_one(8);
        config.recovery.detection = ms(detection);
        config.transfer.response = ms(response);
        config.transfer.failure_ends_request = false;
        config.faults = crash(0, 26);
        let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 16, 2)]));
        // D hears of it when it wants to read, and computes the prompt.
        assert_eq!(tokens_ms(&record, 0), [26 + response + 26, 26 + response + 36]);
        assert_eq!((cluster.failed_transfers, cluster.links[0].1), (1, 0));
    }
}

/// A request that has all its tokens when its group dies in the same instant is answered, and not resumed for one more.
#[test]
fn a_request_that_ends_as_its_group_dies_has_ended() {
    let mut config = unified(2, roomy(8));
    config.faults = crash(0, 46);
    config.recovery.in_flight = Fate::Resume;
    config.gateway.retry = retries(3);
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 16, 3)]));
    assert_eq!(tokens_ms(&record, 0), [26, 36, 46]);
    assert_eq!((cluster.jobs[0].retries, cluster.jobs[0].attempts), (0, 1));
}

/// D17: a prefill group that dies while descriptors are posted leaves nothing to read.
#[test]
fn a_prefill_death_before_the_first_byte() {
    let mut config = one_and_one(8);
    config.transfer.fixed = ms(20);
    config.transfer.failure_ends_request = false;
    config.faults = crash(0, 30);
    let (record, cluster) = run_fleet(&config, &PRICE, &trace(&[(0, 16, 2)]));
    // Prefilled 26, posted 46: computed at D, 46 + 26.
    assert_eq!(tokens_ms(&record, 0), [72, 82]);
    assert_eq!((cluster.failed_transfers, cluster.links[0].1), (1, 0));
}
