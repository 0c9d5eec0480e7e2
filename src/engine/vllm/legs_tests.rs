//! Prefill and decode apart, by hand (vllm-semantics.md, section 4.1; T17 of section 7). Blocks of 16 tokens.

use super::tests::{Bench, config, shared};
use super::*;
use crate::engine::neuron::NeuronEngine;
use crate::engine::{Engine, FinishReason, Gauges, Leg, Load, Refusal};
use crate::units::SimTime;
use crate::workload::trace::TraceRequest;

fn bench(blocks: u32) -> Bench {
    Bench::new(config("0.32.0", 2048, blocks))
}

fn with_caching(blocks: u32) -> Bench {
    Bench::new(VllmConfig {
        enable_prefix_caching: true,
        ..config("0.32.0", 2048, blocks)
    })
}

/// Steps until nobody is unfinished; at most `most` of them.
fn run_out(b: &mut Bench, most: usize) {
    for _ in 0..most {
        if !b.engine.has_unfinished() {
            return;
        }
        b.step();
        for id in b.loads() {
            b.engine.load_done(id);
        }
    }
    panic!("unfinished after {most} steps");
}

#[test]
fn d6_a_load_takes_all_blocks_but_no_seat_and_no_tokens_and_blocks_nobody() {
    let mut b = Bench::new(VllmConfig {
        max_num_seqs: 1,
        ..config("0.32.0", 2048, 21)
    });
    let loaded = b.add_leg(40, 5, Leg::Decode);
    let whole = b.add(10, 5);
    assert_eq!(b.step(), [(whole, 10)]);
    let load = Load {
        id: loaded,
        cached_tokens: 0,
        blocks: 3,
        tokens: 40,
    };
    assert_eq!(b.plan.loads, [load]);
    assert_eq!((b.plan.running, b.plan.waiting, b.plan.free_blocks), (1, 1, 16));
    let gauges = Gauges {
        running: 1,
        waiting: 1,
        free_blocks: 16,
        usable_blocks: 20,
    };
    assert_eq!(b.engine.gauges(), gauges);
}

/// T17: with the running list full no transfer starts; one request ends, the transfer starts, and the schedule call
/// after it is done gives one token.
#[test]
fn t17_d7_d8_a_full_running_list_starts_no_transfer() {
    let mut b = Bench::new(VllmConfig {
        max_num_seqs: 1,
        ..config("0.32.0", 2048, 100)
    });
    let first = b.add(10, 2);
    assert_eq!(b.step(), [(first, 10)]);
    let second = b.add_leg(32, 2, Leg::Decode);
    assert_eq!(b.step(), [(first, 1)]);
    assert!(b.loads().is_empty());
    assert_eq!(b.result.finished, [(first, FinishReason::Length)]);
    assert!(b.step().is_empty());
    assert_eq!(b.loads(), [second]);
    assert!(b.engine.is_loading_only(), "S58");
    assert!(b.step().is_empty());
    assert!(b.engine.load_done(second));
    assert!(!b.engine.load_done(second), "it is not being loaded any more");
    assert!(!b.engine.is_loading_only());
    assert_eq!(b.step(), [(second, 1)]);
    assert_eq!(b.plan.grants[0].computed, 31, "D2: the last prompt token again");
    assert_eq!(b.plan.shape.prefills.len(), 0, "it is a decode");
    assert_eq!(b.result.emitted, [(second, 1)], "D2: the first token is D's");
    assert_eq!(b.step(), [(second, 1)]);
    b.assert_empty();
}

#[test]
fn d3_a_prefill_leg_leaves_its_blocks_and_its_seat() {
    let mut b = bench(21);
    // D1: it is asked for one token, whatever the request is.
    let prefill = b.add_leg(40, 500, Leg::Prefill);
    b.step();
    assert_eq!(b.result.finished, [(prefill, FinishReason::Length)]);
    assert_eq!(b.engine.held_blocks(), 3);
    assert_eq!(b.engine.gauges().free_blocks, 17);
    assert!(!b.engine.has_unfinished());
    assert!(b.engine.release_held(prefill));
    assert!(!b.engine.release_held(prefill));
    b.assert_empty();
}

#[test]
fn d3_held_blocks_keep_others_out_until_they_are_read() {
    let mut b = bench(6);
    let prefill = b.add_leg(64, 9, Leg::Prefill);
    b.step();
    let next = b.add_leg(32, 9, Leg::Prefill);
    assert!(b.step().is_empty());
    assert!(!b.engine.is_loading_only());
    b.engine.release_held(prefill);
    assert_eq!(b.step(), [(next, 32)]);
    b.engine.release_held(next);
    b.assert_empty();
}

#[test]
fn d5_d9_only_missing_blocks_are_read_and_loaded_ones_are_found_when_they_have_come() {
    let mut b = with_caching(21);
    let request = |id| TraceRequest {
        arrival: SimTime(id),
        ..shared(64, 1)
    };
    b.engine.submit_leg(100, &request(0), Leg::Decode).unwrap();
    b.step();
    let load = |id, cached_tokens, blocks, tokens| Load {
        id,
        cached_tokens,
        blocks,
        tokens,
    };
    assert_eq!(b.plan.loads, [load(100, 0, 4, 64)]);
    assert_eq!(b.engine.cached_tokens(&request(1), 101), 0, "D9");
    b.engine.load_done(100);
    assert_eq!(
        b.engine.cached_tokens(&request(1), 101),
        48,
        "K32: not the last one"
    );
    b.engine.submit_leg(101, &request(1), Leg::Decode).unwrap();
    assert_eq!(b.step(), [(100, 1)]);
    assert_eq!(b.plan.loads, [load(101, 48, 1, 16)]);
    assert_eq!(b.plan.admitted[0].cached_tokens, 0);
    b.engine.load_done(101);
    b.step();
    let admitted = b.plan.admitted.iter().find(|a| a.id == 101).unwrap();
    assert_eq!((admitted.cached_tokens, admitted.first), (48, true));
    run_out(&mut b, 2000);
    b.assert_empty();
}

#[test]
fn d8_loaded_requests_go_before_waiting_ones() {
    let mut b = Bench::new(VllmConfig {
        max_num_seqs: 2,
        ..config("0.32.0", 2048, 100)
    });
    let loaded = b.add_leg(32, 9, Leg::Decode);
    b.step();
    let waiting = [b.add(20, 9), b.add(21, 9)];
    b.engine.load_done(loaded);
    assert_eq!(b.step(), [(loaded, 1), (waiting[0], 20)]);
}

/// T7 with loaded prompts: A needs a sixth block, B loses its five, and computes all its 81 tokens here.
#[test]
fn d11_a_preempted_decode_leg_is_computed_here() {
    let mut b = bench(11);
    let (a, other) = (b.add_leg(80, 3, Leg::Decode), b.add_leg(80, 3, Leg::Decode));
    b.step();
    assert_eq!(b.loads(), [a, other]);
    assert_eq!(b.plan.free_blocks, 0);
    b.engine.load_done(a);
    b.engine.load_done(other);
    assert_eq!(b.step(), [(a, 1), (other, 1)]);
    assert_eq!(b.step(), [(a, 1)]);
    assert_eq!(b.plan.preempted, [other]);
    assert_eq!(b.step(), [(a, 1)]);
    assert_eq!(b.step(), [(other, 81)]);
    assert!(b.loads().is_empty());
    assert_eq!(b.plan.shape.prefills.len(), 1);
    run_out(&mut b, 5);
    b.assert_empty();
}

/// vllm#57104: A needs four blocks and one more for a step with drafts, B three and one more, and seven are there.
fn two_loads_for_seven_blocks(reserve: Option<bool>) -> (Bench, u32, u32) {
    let mut b = Bench::new(VllmConfig {
        num_speculative_tokens: 1,
        num_lookahead_tokens: 1,
        reserve_for_loads: reserve,
        ..config("0.32.0", 2048, 8)
    });
    let (first, second) = (b.add_leg(64, 4, Leg::Decode), b.add_leg(48, 4, Leg::Decode));
    b.step();
    (b, first, second)
}

#[test]
fn d12_without_the_reserve_loads_block_each_other_for_ever() {
    let (mut b, first, second) = two_loads_for_seven_blocks(Some(false));
    assert_eq!(b.loads(), [first, second]);
    assert_eq!(b.plan.free_blocks, 0);
    b.engine.load_done(first);
    b.engine.load_done(second);
    for _ in 0..10 {
        assert!(b.step().is_empty());
        assert_eq!(b.plan.waiting, 2);
    }
    let stuck = b.engine.livelock().unwrap();
    assert_eq!((stuck.head, stuck.waiting, stuck.free_blocks), (first, 2, 0));
    // Nothing but the end of one of them can help.
    b.engine.abort(first);
    assert_eq!(b.engine.livelock(), None);
    run_out(&mut b, 10);
    b.assert_empty();
}

#[test]
fn d12_with_the_reserve_one_waits_and_both_end() {
    for reserve in [None, Some(true)] {
        let (mut b, first, second) = two_loads_for_seven_blocks(reserve);
        assert_eq!(
            b.loads(),
            [first],
            "3 blocks and 1 that the first still needs are more than 3"
        );
        b.engine.load_done(first);
        let mut ended = Vec::new();
        for _ in 0..20 {
            b.step();
            ended.extend(b.result.finished.iter().map(|f| f.0));
            for id in b.loads() {
                assert_eq!(id, second);
                b.engine.load_done(id);
            }
        }
        assert_eq!(ended, [first, second]);
        b.assert_empty();
    }
}

#[test]
fn d12_the_reserve_is_of_the_newest_release_only() {
    let without = VllmConfig::new(Behaviour::of("0.28.0").unwrap());
    assert!(!without.reserves_for_loads());
    let with = VllmConfig::new(Behaviour::of("0.32.0").unwrap());
    assert!(with.reserves_for_loads());
}

/// A prompt of ten blocks has computed two; the load's four are there, but not beside the other eight.
#[test]
fn d12_a_prompt_under_way_keeps_the_blocks_of_its_rest() {
    for (reserve, loads) in [(Some(true), 0), (Some(false), 1)] {
        let mut b = Bench::new(VllmConfig {
            long_prefill_token_threshold: 32,
            max_num_batched_tokens: 64,
            reserve_for_loads: reserve,
            ..config("0.32.0", 64, 13)
        });
        let long = b.add(160, 1);
        b.add_leg(64, 1, Leg::Decode);
        assert_eq!(b.step(), [(long, 32)]);
        assert_eq!(b.plan.loads.len(), loads);
        // The same seen from the next call, where it runs already: 8 free, 4 for the load, 6 for the rest.
        assert_eq!(b.step(), [(long, 32)]);
        assert_eq!(b.plan.loads.len(), 0);
        b.engine.load_done(1);
        run_out(&mut b, 50);
        b.assert_empty();
    }
}

#[test]
fn d13_a_failed_load_keeps_whole_blocks_and_computes_the_rest() {
    let mut b = bench(21);
    let id = b.add_leg(80, 2, Leg::Decode);
    b.step();
    assert!(b.engine.load_failed(id, 37));
    assert!(!b.engine.load_failed(id, 37));
    assert_eq!(b.plan.free_blocks, 15);
    assert_eq!(b.step(), [(id, 48)]);
    assert_eq!(b.plan.grants[0].computed, 32);
    assert_eq!(b.plan.shape.prefills.len(), 1);
    run_out(&mut b, 3);
    b.assert_empty();
}

#[test]
fn d13_a_load_that_brought_nothing_leaves_an_ordinary_request_at_the_head() {
    let mut b = bench(21);
    let id = b.add_leg(80, 2, Leg::Decode);
    b.step();
    let other = b.add(10, 2);
    assert!(b.engine.load_failed(id, 15));
    assert_eq!(b.engine.gauges().free_blocks, 20);
    assert_eq!(b.step(), [(id, 80), (other, 10)]);
    assert!(b.loads().is_empty(), "there is one attempt only");
    run_out(&mut b, 3);
    b.assert_empty();
}

#[test]
fn s27_a_loaded_request_is_padded_to_the_length_of_the_other_decodes() {
    let mut b = Bench::new(VllmConfig {
        num_speculative_tokens: 2,
        num_lookahead_tokens: 2,
        ..config("0.32.0", 2048, 100)
    });
    let whole = b.add(20, 50);
    b.step();
    b.step();
    let loaded = b.add_leg(40, 50, Leg::Decode);
    b.step();
    b.engine.load_done(loaded);
    assert_eq!(b.step(), [(whole, 3), (loaded, 3)]);
    assert_eq!(b.plan.grants[1].drafts, 2);
    assert_eq!(b.plan.shape.prefills.len(), 0);
}

#[test]
fn aborts_free_everything_in_every_state() {
    let mut b = with_caching(41);
    let loading = b.add_leg(40, 9, Leg::Decode);
    let ready = b.add_leg(41, 9, Leg::Decode);
    let decoding = b.add_leg(42, 9, Leg::Decode);
    let held = b.add_leg(43, 9, Leg::Prefill);
    b.step();
    b.engine.load_done(decoding);
    b.step();
    b.engine.load_done(ready);
    let waiting = b.add_leg(44, 9, Leg::Decode);
    assert_eq!(b.engine.gauges().waiting, 3);
    assert_eq!((b.engine.gauges().running, b.engine.held_blocks()), (1, 3));
    for id in [loading, ready, decoding, held, waiting] {
        assert!(b.engine.abort(id), "{id}");
        assert!(!b.engine.abort(id), "{id}");
    }
    b.assert_empty();
    // Their places serve others.
    let next = b.add(30, 1);
    assert_eq!(b.step(), [(next, 30)]);
    b.assert_empty();
}

#[test]
fn a_flush_forgets_what_nobody_uses() {
    let mut b = with_caching(41);
    let request = |id, group| TraceRequest {
        arrival: SimTime(id),
        ..shared(64, group)
    };
    b.engine.submit_leg(50, &request(0, 1), Leg::Prefill).unwrap();
    b.engine.submit_leg(51, &request(1, 2), Leg::Prefill).unwrap();
    b.step();
    b.engine.release_held(50);
    let cached = |b: &mut Bench| [1, 2].map(|group| b.engine.cached_tokens(&request(2, group), 52));
    assert_eq!(cached(&mut b), [48, 48]);
    b.engine.flush_cache();
    assert_eq!(cached(&mut b), [0, 48], "the second one's blocks are in use");
    b.engine.release_held(51);
    b.engine.flush_cache();
    assert_eq!(cached(&mut b), [0, 0]);
    b.assert_empty();
}

#[test]
fn s58_requests_that_wait_for_blocks_of_loads_wait_for_these() {
    let mut b = bench(6);
    let loading = b.add_leg(64, 2, Leg::Decode);
    let blocked = b.add(32, 2);
    assert!(b.step().is_empty());
    assert!(!b.engine.is_loading_only(), "the call did something");
    assert!(b.step().is_empty());
    assert!(b.engine.is_loading_only());
    b.engine.abort(loading);
    assert!(!b.engine.is_loading_only());
    assert_eq!(b.step(), [(blocked, 32)]);
}

#[test]
fn a_neuron_engine_serves_whole_requests() {
    let plugin = VllmConfig {
        scheduler_cls: SchedulerClass::NeuronContinuousBatching,
        ..config("0.11.0", 2048, 100)
    };
    let mut engine = NeuronEngine::around(VllmEngine::new(plugin));
    let request = TraceRequest::plain(SimTime::ZERO, 20, 2);
    for leg in [Leg::Prefill, Leg::Decode] {
        assert_eq!(
            engine.submit_leg(0, &request, leg),
            Err(Refusal::WholeRequestsOnly)
        );
    }
    assert_eq!(engine.submit_leg(0, &request, Leg::Whole), Ok(()));
    assert!(!engine.load_done(0) && !engine.release_held(0));
    assert_eq!(engine.gauges().waiting, 1);
}
