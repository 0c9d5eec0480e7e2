//! Hand-worked timelines of the plugins (vllm-semantics.md, section 5; scenarios T18 and T26).

use super::*;
use crate::engine::FinishReason;
use crate::engine::vllm::{Behaviour, VllmConfig};
use crate::units::SimTime;

/// Plugin 0.2.0 in its default layout: a block is a whole sequence.
fn plugin(seqs: u32, usable_blocks: u32, longest: u32) -> VllmConfig {
    VllmConfig {
        scheduler_cls: SchedulerClass::NeuronContinuousBatching,
        max_num_seqs: seqs,
        max_num_batched_tokens: 131_072,
        max_model_len: longest,
        block_size: longest,
        num_gpu_blocks: usable_blocks + 1,
        enable_prefix_caching: false,
        enable_chunked_prefill: false,
        async_scheduling: false,
        ..VllmConfig::new(Behaviour::of("0.11.0").unwrap())
    }
}

/// The native plugin: blocks of 32, segments of at most `budget` tokens.
fn native(seqs: u32, budget: u32, blocks: u32) -> VllmConfig {
    VllmConfig {
        scheduler_cls: SchedulerClass::NeuronSegmented,
        max_num_batched_tokens: budget,
        block_size: 32,
        num_gpu_blocks: blocks,
        enable_chunked_prefill: true,
        behaviour: Behaviour::of("0.22.1").unwrap(),
        ..plugin(seqs, 1, 4096)
    }
}

struct Bench {
    engine: NeuronEngine,
    plan: StepPlan,
    result: StepResult,
    added: u32,
}

impl Bench {
    fn new(config: VllmConfig) -> Self {
        Self {
            engine: NeuronEngine::around(VllmEngine::new(config)),
            plan: StepPlan::default(),
            result: StepResult::default(),
            added: 0,
        }
    }

    fn add(&mut self, prompt: u32, outputs: u32) -> u32 {
        let id = self.added;
        self.added += 1;
        let request = TraceRequest::plain(SimTime(u64::from(id)), prompt, outputs);
        self.engine.submit(id, &request).unwrap();
        id
    }

    /// One step: (id, tokens) in batch order.
    fn step(&mut self) -> Vec<(u32, u32)> {
        self.engine.plan(&mut self.plan);
        self.engine.commit(&self.plan, &mut self.result);
        self.plan.grants.iter().map(|g| (g.id, g.tokens)).collect()
    }

    fn running(&self) -> Vec<u32> {
        self.engine.base().running_ids().collect()
    }

    fn waiting(&self) -> Vec<u32> {
        self.engine.base().waiting_ids().collect()
    }
}

const A: u32 = 0;
const B: u32 = 1;
const C: u32 = 2;
const D: u32 = 3;
const E: u32 = 4;

#[test]
fn t18_a_prompt_runs_alone_and_the_newest_stands_in_front() {
    let mut b = Bench::new(plugin(4, 4, 1024));
    for _ in 0..3 {
        b.add(100, 50);
    }
    assert_eq!(b.step(), [(A, 100)]);
    assert_eq!(b.step(), [(B, 100)], "prompts go before decodes (N12)");
    assert_eq!(b.step(), [(C, 100)]);
    assert_eq!(b.step(), [(C, 1), (B, 1), (A, 1)]);
    b.add(200, 50);
    b.add(200, 50);
    assert_eq!(b.step(), [(D, 200)]);
    assert_eq!((b.running(), b.waiting()), (vec![D, C, B, A], vec![E]));
    assert_eq!(b.step(), [(D, 1), (C, 1), (B, 1), (A, 1)]);
    assert_eq!(b.waiting(), [E], "all seats are taken");
}

#[test]
fn a_freed_seat_is_filled_before_the_next_decode() {
    let mut b = Bench::new(plugin(2, 2, 1024));
    b.add(10, 2);
    b.add(10, 9);
    b.add(10, 9);
    assert_eq!(b.step(), [(A, 10)]);
    assert_eq!(b.step(), [(B, 10)]);
    assert_eq!(b.step(), [(B, 1), (A, 1)]);
    assert_eq!(b.result.finished, [(A, FinishReason::Length)]);
    assert_eq!(b.step(), [(C, 10)]);
    assert_eq!(b.step(), [(C, 1), (B, 1)]);
}

#[test]
fn t26_hidden_decodes_never_free_the_block_that_the_head_needs() {
    let mut b = Bench::new(plugin(4, 2, 256));
    for _ in 0..3 {
        b.add(100, 50);
    }
    b.step();
    b.step();
    assert_eq!(b.engine.livelock(), None);
    for _ in 0..5 {
        assert_eq!(b.step(), []);
        assert_eq!(
            b.engine.livelock(),
            Some(Livelock {
                head: C,
                needed_blocks: 1,
                free_blocks: 0,
                hidden: 2,
                waiting: 1
            })
        );
    }
    // The only way out (shared/data/scheduler-neuron): somebody gives up.
    assert!(b.engine.abort(A));
    assert_eq!(b.step(), [(C, 100)]);
    assert_eq!(b.engine.livelock(), None);
}

#[test]
fn the_oldest_is_preempted_and_let_in_next() {
    // Blocks of 16: three prompts of 16 tokens take one block each, and a fourth block is free.
    let config = VllmConfig {
        block_size: 16,
        num_gpu_blocks: 5,
        ..plugin(3, 1, 64)
    };
    let mut b = Bench::new(config);
    for _ in 0..3 {
        b.add(16, 20);
    }
    for _ in 0..3 {
        b.step();
    }
    // All need a second block; only one is free. C (newest) takes it, B's need preempts A.
    assert_eq!(b.step(), [(C, 1), (B, 1)]);
    assert_eq!(b.plan.preempted, [A]);
    assert_eq!(b.waiting(), [A]);
    // A now needs 2 blocks for its 17 tokens, none are free, and C and B are hidden.
    assert_eq!(b.step(), []);
    assert_eq!(
        b.engine.livelock().map(|l| (l.head, l.needed_blocks)),
        Some((A, 2))
    );
}

/// Rule N14b: at the same token the length counts, not the EOS.
#[test]
fn lengths_are_looked_at_before_eos() {
    let mut b = Bench::new(plugin(1, 1, 64));
    let request = TraceRequest {
        eos_at: Some(2),
        ..TraceRequest::plain(SimTime::ZERO, 8, 2)
    };
    b.engine.submit(0, &request).unwrap();
    b.step();
    b.step();
    assert_eq!(b.result.finished, [(0, FinishReason::Length)]);
}

#[test]
fn the_native_plugin_cuts_long_prompts_and_still_decodes_nobody_meanwhile() {
    let mut b = Bench::new(native(4, 512, 1000));
    b.add(100, 50);
    assert_eq!(b.step(), [(A, 100)]);
    assert_eq!(b.step(), [(A, 1)]);
    b.add(1200, 50);
    b.add(30, 50);
    assert_eq!(b.step(), [(B, 512)]);
    assert_eq!(b.step(), [(B, 512)]);
    assert_eq!(b.step(), [(B, 176)]);
    assert_eq!(b.step(), [(C, 30)]);
    assert_eq!(b.step(), [(C, 1), (B, 1), (A, 1)]);
}

#[test]
fn a_batch_repeats_from_its_second_decode_on() {
    let mut b = Bench::new(plugin(4, 4, 1024));
    b.add(10, 4);
    b.add(10, 9);
    let mut repeated = Vec::new();
    for _ in 0..7 {
        b.step();
        repeated.push(b.plan.shape.repeated == Some(true));
    }
    // Two prompts; three decodes of both, the last of which ends A; two of B alone.
    assert_eq!(repeated, [false, false, false, true, true, false, true]);
}
