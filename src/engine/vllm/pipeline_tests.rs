//! Pipeline stages, by hand (rules S13, S15, S56, S66, S67).

use std::collections::VecDeque;

use super::tests::{Bench, config};
use super::*;
use crate::engine::{Engine, StepPlan, build};

fn staged(stages: u32, version: &str, asynchronous: bool) -> VllmConfig {
    VllmConfig {
        pipeline_parallel_size: stages,
        async_scheduling: asynchronous,
        ..config(version, 2048, 200)
    }
}

/// A bench whose plans are committed by hand.
struct Pipeline {
    bench: Bench,
    under_way: VecDeque<StepPlan>,
}

impl Pipeline {
    fn new(config: VllmConfig) -> Self {
        Self {
            bench: Bench::new(config),
            under_way: VecDeque::new(),
        }
    }

    /// One schedule call.
    fn plan(&mut self) -> Vec<(u32, u32)> {
        self.bench.engine.plan(&mut self.bench.plan);
        self.under_way.push_back(self.bench.plan.clone());
        self.bench.grants()
    }

    /// The oldest batch leaves the last stage.
    fn commit(&mut self) {
        let oldest = self.under_way.pop_front().unwrap();
        self.bench.engine.commit(&oldest, &mut self.bench.result);
    }

    fn commit_and_plan(&mut self) -> Vec<(u32, u32)> {
        self.commit();
        self.plan()
    }
}

/// S66: two batches under way. Who runs together returns together, so sizes 3 and 1 stay; a new request joins the
/// batch that is scheduled next, though that is the larger one.
#[test]
fn s66_microbatches_are_implicit_and_stay_uneven() {
    let mut p = Pipeline::new(staged(2, "0.32.0", false));
    assert_eq!(p.bench.engine.queue_depth(), 2);
    for prompt in [10, 11, 12] {
        p.bench.add(prompt, 4);
    }
    assert_eq!(p.plan(), [(0, 10), (1, 11), (2, 12)]);
    p.bench.add(13, 5);
    assert_eq!(p.plan(), [(3, 13)], "the others are in flight: S13");
    for _ in 0..2 {
        assert_eq!(p.commit_and_plan(), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(p.bench.result.emitted.len(), 3);
        assert_eq!(p.commit_and_plan(), [(3, 1)]);
    }
    p.bench.add(14, 3);
    assert_eq!(p.commit_and_plan(), [(0, 1), (1, 1), (2, 1), (4, 14)]);
    assert_eq!(p.commit_and_plan(), [(3, 1)]);
    // The three have had their 4 tokens; the fifth goes on in their batch's turn.
    assert_eq!(p.commit_and_plan(), [(4, 1)]);
    assert_eq!(p.bench.result.finished.len(), 3);
    assert_eq!(p.commit_and_plan(), [(3, 1)]);
    assert_eq!(p.commit_and_plan(), [(4, 1)]);
    p.commit();
    p.commit();
    p.bench.assert_empty();
}

/// S67: chunks of one prompt follow each other without waiting; its decode waits for the last one (S13).
#[test]
fn s67_chunks_enter_the_pipeline_back_to_back() {
    let mut p = Pipeline::new(VllmConfig {
        max_num_batched_tokens: 32,
        ..staged(3, "0.32.0", false)
    });
    p.bench.add(96, 2);
    for _ in 0..3 {
        assert_eq!(p.plan(), [(0, 32)]);
    }
    p.commit();
    assert!(p.plan().is_empty(), "its last chunk is in flight");
    p.commit();
    assert_eq!(p.commit_and_plan(), [(0, 1)]);
    p.commit();
    p.commit();
    p.bench.assert_empty();
}

/// S15, S56: the V2 runner schedules ahead, one batch more than stages, and decodes a request every second step.
#[test]
fn s15_asynchronous_decodes_come_once_a_round() {
    let mut p = Pipeline::new(staged(2, "0.32.0", true));
    assert_eq!(p.bench.engine.queue_depth(), 3);
    p.bench.add(10, 9);
    assert_eq!(p.plan(), [(0, 10)]);
    p.bench.add(11, 9);
    assert_eq!(p.plan(), [(1, 11)]);
    assert_eq!(p.plan(), [(0, 1)], "before the first token is known");
    assert_eq!(p.commit_and_plan(), [(1, 1)]);
    assert_eq!(p.commit_and_plan(), [(0, 1)]);
}

/// S56: the V1 runner of older releases schedules a pipeline synchronously, whatever is asked for.
#[test]
fn s56_older_releases_do_not_schedule_a_pipeline_ahead() {
    for version in ["0.13.0", "0.28.0"] {
        let engine = VllmEngine::new(staged(4, version, true));
        assert_eq!(engine.queue_depth(), 4, "{version}");
        assert!(!engine.config().async_scheduling);
    }
    assert_eq!(VllmEngine::new(staged(1, "0.28.0", true)).queue_depth(), 2);
}

/// An engine with stages lists every row and never leaps.
#[test]
fn a_pipeline_has_no_steady_rows() {
    let mut engine = build(&staged(2, "0.32.0", false), true, false);
    let request = crate::workload::trace::TraceRequest::plain(crate::units::SimTime::ZERO, 10, 50);
    engine.submit(0, &request).unwrap();
    let (mut plan, mut result) = (StepPlan::default(), crate::engine::StepResult::default());
    for _ in 0..10 {
        engine.plan(&mut plan);
        assert_eq!((plan.steady, plan.grants.len(), engine.repeats()), (0, 1, 0));
        engine.commit(&plan, &mut result);
    }
}
