//! The scenarios of vllm-semantics.md, section 7, by their numbers. Expected values are those of that page
//! (reproduced there on the real scheduler) or follow from the rules by hand.

mod scheduling_ahead;
mod speculation;

use super::*;
use crate::engine::{Engine, FinishReason, Leg, Refusal, StepPlan, StepResult};
use crate::units::SimTime;
use crate::workload::trace::{Prefix, TraceRequest};

/// An engine and the plans under way.
pub(super) struct Bench {
    pub engine: VllmEngine,
    added: u32,
    pub plan: StepPlan,
    pub result: StepResult,
}

/// Section 7's set-up: block size 16, no speculation, synchronous, threshold 0, caching off.
pub(super) fn config(version: &str, budget: u32, blocks: u32) -> VllmConfig {
    VllmConfig {
        max_num_batched_tokens: budget,
        num_gpu_blocks: blocks,
        enable_prefix_caching: false,
        async_scheduling: false,
        max_model_len: 8192,
        ..VllmConfig::new(Behaviour::of(version).unwrap())
    }
}

impl Bench {
    pub fn new(config: VllmConfig) -> Self {
        Self {
            engine: VllmEngine::new(config),
            added: 0,
            plan: StepPlan::default(),
            result: StepResult::default(),
        }
    }

    pub fn add(&mut self, prompt: u32, max_tokens: u32) -> u32 {
        self.add_request(TraceRequest::plain(
            SimTime(u64::from(self.added)),
            prompt,
            max_tokens,
        ))
    }

    pub fn add_request(&mut self, request: TraceRequest) -> u32 {
        let id = self.added;
        self.engine.submit(id, &request).unwrap();
        self.added += 1;
        id
    }

    /// A leg of a plain request.
    pub fn add_leg(&mut self, prompt: u32, max_tokens: u32, leg: Leg) -> u32 {
        let id = self.added;
        let request = TraceRequest::plain(SimTime(u64::from(id)), prompt, max_tokens);
        self.engine.submit_leg(id, &request, leg).unwrap();
        self.added += 1;
        id
    }

    /// Ids of the loads that began in the last call.
    pub fn loads(&self) -> Vec<u32> {
        self.plan.loads.iter().map(|l| l.id).collect()
    }

    /// Nothing is left, and every block is free again.
    pub fn assert_empty(&self) {
        assert!(!self.engine.has_unfinished());
        let g = self.engine.gauges();
        assert_eq!((g.running, g.waiting), (0, 0));
        assert_eq!((g.free_blocks, self.engine.held_blocks()), (g.usable_blocks, 0));
    }

    /// One synchronous step: (id, tokens) in batch order.
    pub fn step(&mut self) -> Vec<(u32, u32)> {
        self.engine.plan(&mut self.plan);
        self.engine.commit(&self.plan, &mut self.result);
        self.grants()
    }

    pub fn grants(&self) -> Vec<(u32, u32)> {
        self.plan.grants.iter().map(|g| (g.id, g.tokens)).collect()
    }

    pub fn waiting(&self) -> Vec<u32> {
        self.engine.waiting_ids().collect()
    }
}

const ALL: [&str; 9] = [
    "0.11.0", "0.13.0", "0.15.1", "0.17.1", "0.19.1", "0.22.1", "0.25.1", "0.28.0", "0.32.0",
];

#[test]
fn t1_prompts_share_the_budget_in_order() {
    for version in ALL {
        let mut b = Bench::new(config(version, 2048, 1000));
        for prompt in [1500, 1000, 10] {
            b.add(prompt, 5);
        }
        assert_eq!(b.step(), [(0, 1500), (1, 548)], "{version}");
        assert_eq!(b.step(), [(0, 1), (1, 452), (2, 10)], "{version}");
    }
}

#[test]
fn t2_a_long_prompt_ahead_takes_the_whole_budget() {
    let mut b = Bench::new(config("0.32.0", 100, 1000));
    b.add(350, 5);
    assert_eq!(b.step(), [(0, 100)]);
    b.add(5, 5);
    assert_eq!(b.step(), [(0, 100)]);
    assert_eq!(b.step(), [(0, 100)]);
    assert_eq!(b.waiting(), [1]);
    assert_eq!(b.step(), [(0, 50), (1, 5)]);
}

fn with_threshold_60(version: &str) -> Bench {
    Bench::new(VllmConfig {
        long_prefill_token_threshold: 60,
        ..config(version, 100, 1000)
    })
}

#[test]
fn t3_the_threshold_exempts_a_lone_request_in_0_32() {
    let mut b = with_threshold_60("0.32.0");
    b.add(350, 5);
    assert_eq!(b.step(), [(0, 100)]);
    b.add(5, 5);
    assert_eq!(b.step(), [(0, 60), (1, 5)]);
    assert_eq!(b.step(), [(0, 60), (1, 1)]);
}

#[test]
fn t4_before_0_32_the_threshold_always_holds() {
    for version in ["0.11.0", "0.19.1", "0.25.1", "0.28.0"] {
        let mut b = with_threshold_60(version);
        b.add(350, 5);
        assert_eq!(b.step(), [(0, 60)], "{version}");
        b.add(5, 5);
        assert_eq!(b.step(), [(0, 60), (1, 5)], "{version}");
    }
}

#[test]
fn t5_an_unchunked_prompt_over_the_budget_stops_admission_or_is_skipped() {
    for version in ALL {
        let mut b = Bench::new(VllmConfig {
            enable_chunked_prefill: false,
            ..config(version, 512, 1000)
        });
        for prompt in [300, 300, 50] {
            b.add(prompt, 5);
        }
        let expected: &[(u32, u32)] = if version == "0.11.0" {
            &[(0, 300), (2, 50)]
        } else {
            &[(0, 300)]
        };
        assert_eq!(b.step(), expected, "{version}");
    }
}

#[test]
fn t6_a_prompt_that_does_not_fit_blocks_the_queue() {
    let mut b = Bench::new(config("0.32.0", 2048, 11));
    for prompt in [96, 80, 10] {
        b.add(prompt, 5);
    }
    assert_eq!(b.step(), [(0, 96)]);
    assert_eq!(b.plan.free_blocks, 4);
    assert_eq!(b.step(), [(0, 1)]);
    assert_eq!(b.waiting(), [1, 2]);
}

#[test]
fn t7_t8_the_youngest_is_preempted_and_must_fit_whole_to_come_back() {
    for caching in [false, true] {
        let mut b = Bench::new(VllmConfig {
            enable_prefix_caching: caching,
            ..config("0.32.0", 2048, 11)
        });
        b.add(80, 20);
        b.add(80, 20);
        assert_eq!(b.step(), [(0, 80), (1, 80)]);
        assert_eq!(b.step(), [(0, 1)]);
        assert_eq!(b.plan.preempted, [1]);
        assert_eq!(b.plan.free_blocks, 4);
        assert_eq!(b.step(), [(0, 1)]);
        assert_eq!(b.waiting(), [1]);
    }
}

pub(super) fn shared(prompt: u32, group: u32) -> TraceRequest {
    let prefix = Prefix {
        group,
        shared_tokens: prompt,
        greedy_outputs: false,
    };
    TraceRequest {
        prefix: Some(prefix),
        ..TraceRequest::plain(SimTime::ZERO, prompt, 1)
    }
}

#[test]
fn t9_a_repeated_prompt_computes_its_last_block_again() {
    let mut b = Bench::new(VllmConfig {
        enable_prefix_caching: true,
        ..config("0.32.0", 2048, 100)
    });
    b.add_request(shared(64, 1));
    assert_eq!(b.step(), [(0, 64)]);
    b.add_request(shared(64, 1));
    assert_eq!(b.step(), [(1, 16)]);
    assert_eq!(b.plan.grants[0].computed, 48);
}

#[test]
fn t10_equal_prompts_of_one_step_share_blocks_in_that_step() {
    for (prompt, second) in [(64, 16), (65, 1)] {
        let mut b = Bench::new(VllmConfig {
            enable_prefix_caching: true,
            ..config("0.32.0", 2048, 100)
        });
        b.add_request(shared(prompt, 1));
        b.add_request(shared(prompt, 1));
        assert_eq!(b.step(), [(0, prompt), (1, second)]);
    }
}

fn asynchronous() -> Bench {
    Bench::new(VllmConfig {
        async_scheduling: true,
        ..config("0.32.0", 2048, 100)
    })
}

#[test]
fn t13_a_skipped_request_blocks_nobody_and_keeps_its_place() {
    // The page's case waits for a grammar, which is out of scope here; a preempted request whose last output
    // is still under way is skipped by the same rules (S22, S24). Priority 0 wins over 1, and 1 is preempted
    // while its token is in flight.
    let mut b = Bench::new(VllmConfig {
        async_scheduling: true,
        policy: Policy::Priority,
        ..config("0.32.0", 2048, 11)
    });
    let request = |prompt, priority| TraceRequest {
        priority,
        ..TraceRequest::plain(SimTime(0), prompt, 40)
    };
    b.add_request(request(80, 1));
    b.add_request(request(80, 0));
    let (mut one, mut two, mut three) = (StepPlan::default(), StepPlan::default(), StepPlan::default());
    b.engine.plan(&mut one);
    b.engine.plan(&mut two);
    assert_eq!(two.preempted, [0], "the request of priority 1 makes room");
    b.add_request(TraceRequest {
        priority: 2,
        ..TraceRequest::plain(SimTime(1), 10, 5)
    });
    // Step 1 has not been committed: the head is passed over, the newcomer behind it is admitted.
    b.engine.plan(&mut three);
    assert_eq!(three.admitted.iter().map(|a| a.id).collect::<Vec<_>>(), [2]);
    assert_eq!(b.waiting(), [0]);
    b.engine.commit(&one, &mut b.result);
    assert_eq!(
        b.result.emitted,
        [(1, 1), (0, 1)],
        "its output in flight is still delivered (S35)"
    );
}

#[test]
fn t21_a_prompt_can_preempt_itself_and_lose_its_progress() {
    let mut b = Bench::new(config("0.32.0", 64, 21));
    for _ in 0..3 {
        b.add(160, 20);
    }
    assert_eq!(b.step(), [(0, 64)]);
    assert_eq!(b.step(), [(0, 64)]);
    assert_eq!(b.step(), [(0, 32), (1, 32)]);
    assert_eq!(b.step(), [(0, 1), (1, 63)]);
    assert_eq!(b.plan.free_blocks, 3);
    assert_eq!(b.step(), [(0, 1)]);
    assert_eq!(b.plan.preempted, [1]);
    assert_eq!(b.waiting(), [1, 2]);
}

#[test]
fn t24_a_priority_victim_loses_the_grant_of_this_step() {
    for version in ["0.13.0", "0.28.0", "0.32.0"] {
        let mut b = Bench::new(VllmConfig {
            policy: Policy::Priority,
            ..config(version, 2048, 11)
        });
        b.add_request(TraceRequest {
            priority: 5,
            ..TraceRequest::plain(SimTime(0), 70, 40)
        });
        assert_eq!(b.step(), [(0, 70)]);
        b.add_request(TraceRequest {
            priority: 0,
            ..TraceRequest::plain(SimTime(1), 80, 40)
        });
        assert_eq!(b.step(), [(0, 1), (1, 80)]);
        assert_eq!(b.step(), [(1, 1)], "{version}");
        assert_eq!(b.plan.preempted, [0], "{version}");
    }
}

#[test]
fn t25_the_watermark_counts_at_admission_while_something_runs() {
    let refused = |version: &str| {
        let mut b = Bench::new(VllmConfig {
            watermark: 0.2,
            ..config(version, 2048, 21)
        });
        b.add(160, 5);
        b.add(100, 5);
        b.step();
        b.waiting() == [1]
    };
    assert!(refused("0.25.1") && refused("0.32.0"));
    assert!(!refused("0.19.1"), "0.19.1 has no watermark");
}

#[test]
fn a_victim_earlier_in_the_list_shifts_the_index_from_0_32() {
    // A victim without a grant stands before the requester: A waits for nothing but has no token to compute
    // (its output is in flight), so it is passed over and then preempted for B. C stands behind B. Up to 0.28
    // the index does not follow and C is skipped in this step; 0.32 serves it.
    let scheduled = |version: &str| {
        let mut b = Bench::new(VllmConfig {
            policy: Policy::Priority,
            async_scheduling: true,
            ..config(version, 2048, 11)
        });
        let r = |prompt, max, priority| TraceRequest {
            priority,
            ..TraceRequest::plain(SimTime(0), prompt, max)
        };
        b.add_request(r(64, 1, 9));
        b.engine.plan(&mut b.plan);
        b.add_request(r(80, 40, 0));
        b.add_request(r(10, 40, 1));
        b.engine.plan(&mut b.plan);
        assert_eq!(b.plan.free_blocks, 0);
        b.engine.plan(&mut b.plan);
        assert_eq!(b.plan.preempted, [0], "{version}");
        b.plan.grants.iter().map(|g| g.id).collect::<Vec<_>>()
    };
    assert_eq!(scheduled("0.32.0"), [1, 2]);
    assert_eq!(scheduled("0.28.0"), [1]);
}

#[test]
fn seats_count_running_requests_and_max_num_active_seqs_lowers_them() {
    let mut b = Bench::new(VllmConfig {
        max_num_seqs: 4,
        max_num_active_seqs: Some(2),
        ..config("0.32.0", 2048, 100)
    });
    (0..5).for_each(|_| {
        b.add(10, 5);
    });
    assert_eq!(b.step().len(), 2);
    let mut b = Bench::new(VllmConfig {
        max_num_seqs: 4,
        max_num_active_seqs: Some(2),
        ..config("0.28.0", 2048, 100)
    });
    (0..5).for_each(|_| {
        b.add(10, 5);
    });
    assert_eq!(b.step().len(), 4, "0.28 has no max_num_active_seqs");
}

#[test]
fn what_can_never_be_served_is_refused_at_once() {
    let mut e = VllmEngine::new(config("0.32.0", 2048, 11));
    let r = |input, output| TraceRequest::plain(SimTime::ZERO, input, output);
    assert_eq!(
        e.submit(0, &r(8192, 1)),
        Err(Refusal::PromptTooLong {
            input_tokens: 8192,
            max_model_len: 8192
        })
    );
    // 10 usable blocks of 16 hold 160 tokens; the last output's KV is never computed.
    assert_eq!(e.submit(0, &r(150, 11)), Ok(()));
    assert_eq!(
        e.submit(1, &r(150, 12)),
        Err(Refusal::LargerThanCache {
            needed: 11,
            usable: 10
        })
    );
    let early = TraceRequest {
        eos_at: Some(11),
        ..r(150, 8000)
    };
    assert_eq!(
        e.submit(2, &early),
        Ok(()),
        "it ends by EOS before the cache is full"
    );
    let mut e = VllmEngine::new(VllmConfig {
        enable_chunked_prefill: false,
        ..config("0.32.0", 100, 99)
    });
    assert_eq!(
        e.submit(0, &r(101, 1)),
        Err(Refusal::LargerThanBudget {
            input_tokens: 101,
            budget: 100
        })
    );
}

#[test]
fn an_aborted_request_frees_its_blocks_and_its_output_is_dropped() {
    let mut b = asynchronous();
    for _ in 0..3 {
        b.add(10, 50);
    }
    let mut under_way = StepPlan::default();
    b.engine.plan(&mut under_way);
    assert!(b.engine.abort(1) && !b.engine.abort(1) && !b.engine.abort(7));
    assert_eq!(b.engine.running_ids().collect::<Vec<_>>(), [0, 2]);
    b.engine.commit(&under_way, &mut b.result);
    assert_eq!(b.result.emitted, [(0, 1), (2, 1)], "S46");
    assert!(b.engine.abort(0) && b.engine.abort(2));
    assert_eq!((b.engine.free_blocks(), b.engine.has_unfinished()), (99, false));
}

#[test]
fn a_paused_engine_admits_nobody_or_schedules_nothing() {
    let mut b = Bench::new(config("0.32.0", 2048, 100));
    b.add(10, 50);
    b.step();
    b.add(10, 50);
    b.engine.set_pause(Pause::New);
    assert_eq!(b.step(), [(0, 1)]);
    b.engine.set_pause(Pause::All);
    assert_eq!(b.step(), []);
    b.engine.set_pause(Pause::None);
    assert_eq!(b.step(), [(0, 1), (1, 10)]);
}
