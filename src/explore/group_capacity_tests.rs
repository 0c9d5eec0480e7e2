//! What groups carry, worked by hand.

use std::sync::Arc;

use approx::assert_relative_eq;

use super::*;
use crate::engine::vllm::Behaviour;
use crate::sim::{FrontEnd, HostTimes};
use crate::steptime::LinearStepTime;

const MS_PS: u64 = 1_000_000_000;

/// 10 ms a step, 0.1 ms a prompt token, 1 ms a running request.
fn machine() -> Machine {
    Machine {
        step_time: Arc::new(LinearStepTime {
            step_ps: 10 * MS_PS,
            prefill_token_ps: MS_PS / 10,
            decode_row_ps: MS_PS,
            ..LinearStepTime::default()
        }),
        host: HostTimes::default(),
        front_end: FrontEnd::default(),
        hull: None,
        limitations: Vec::new(),
        carried_over: Vec::new(),
        derived_programs: None,
    }
}

fn engine() -> VllmConfig {
    VllmConfig {
        max_num_seqs: 64,
        max_num_batched_tokens: 400,
        block_size: 16,
        num_gpu_blocks: 100_001,
        ..VllmConfig::new(Behaviour::of("0.28.0").unwrap())
    }
}

/// Ten requests of 200 tokens in and 20 out.
fn lengths() -> Lengths {
    Lengths(vec![(200, 20); 10])
}

#[test]
fn prompts_fill_steps() {
    // Two prompts a step: 10 ms and 400 tokens of 0.1 ms, five times.
    let found = prefill_capacity(&lengths(), &engine(), &machine()).unwrap();
    assert_relative_eq!(found.requests_per_s, 10.0 / (5.0 * 0.050), max_relative = 1e-12);
    // A prompt that does not fit goes on in the next step: 2000 tokens are 20 steps of 100.
    let small = VllmConfig {
        max_num_batched_tokens: 100,
        ..engine()
    };
    let found = prefill_capacity(&lengths(), &small, &machine()).unwrap();
    assert_relative_eq!(found.requests_per_s, 10.0 / (20.0 * 0.020), max_relative = 1e-12);
}

#[test]
fn the_slowest_stage_sets_a_pipelines_pace() {
    // As above, 50 ms a step; two equal stages take a batch every 25 ms.
    let two = VllmConfig {
        pipeline_parallel_size: 2,
        ..engine()
    };
    let found = prefill_capacity(&lengths(), &two, &machine()).unwrap();
    assert_relative_eq!(found.requests_per_s, 10.0 / (5.0 * 0.025), max_relative = 1e-12);
}

#[test]
fn a_batch_is_held_by_seats_memory_or_the_target() {
    let found = |engine: &VllmConfig, tpot_ms: Option<u64>| {
        let slo = Slo {
            tpot: tpot_ms.map(SimDuration::from_millis),
            ..Slo::default()
        };
        decode_capacity(&lengths(), engine, &machine(), &slo)
    };
    // 64 rows: 74 ms, 64 tokens a step, 20 tokens a request.
    let seats = found(&engine(), None).unwrap();
    assert_eq!((seats.batch, seats.bound), (Some(64), GroupBound::Seats));
    assert_relative_eq!(seats.requests_per_s, 64.0 / 0.074 / 20.0, max_relative = 1e-12);
    let target = found(&engine(), Some(30)).unwrap();
    assert_eq!((target.batch, target.bound), (Some(20), GroupBound::TokenTarget));
    assert_relative_eq!(target.requests_per_s, 20.0 / 0.030 / 20.0, max_relative = 1e-12);
    // 210 tokens on the average are 13.1 blocks, and half a block is empty: 13.6, of which 136 hold ten.
    let tight = VllmConfig {
        num_gpu_blocks: 138,
        ..engine()
    };
    let kv = found(&tight, None).unwrap();
    assert_eq!((kv.batch, kv.bound), (Some(10), GroupBound::Kv));
    assert_eq!(found(&engine(), Some(5)), None);
}

#[test]
fn long_answers_run_for_longer() {
    let mixed = Lengths(vec![(100, 10), (1000, 90)]);
    assert_relative_eq!(
        mixed.mean_running(|input, _| input),
        0.1f64.mul_add(100.0, 900.0),
        max_relative = 1e-12
    );
}
