//! Prefill and decode apart at random: with steady rows and leaps as row by row, and nothing is lost (rules D1-D13).

use std::collections::BTreeMap;

use kneeboard::engine::vllm::{Policy, SchedulerClass, VllmConfig, VllmEngine};
use kneeboard::engine::{Engine, Leg, RequestId, StepPlan, StepResult};
use kneeboard::workload::trace::TraceRequest;
use proptest::prelude::*;

use crate::leaping::{any_engine, any_trace, rows};

/// What happens between two schedule calls; the numbers pick one of the requests in that state.
#[derive(Debug, Clone, Copy)]
enum Act {
    Submit(Leg),
    LoadDone(usize),
    LoadFails(usize, u32),
    Release(usize),
    Abort(usize),
    Flush,
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => prop::sample::select(vec![Leg::Whole, Leg::Prefill, Leg::Decode, Leg::Decode]).prop_map(Act::Submit),
        4 => any::<usize>().prop_map(Act::LoadDone),
        1 => (any::<usize>(), 0u32..300).prop_map(|(i, valid)| Act::LoadFails(i, valid)),
        2 => any::<usize>().prop_map(Act::Release),
        1 => any::<usize>().prop_map(Act::Abort),
        1 => Just(Act::Flush),
    ]
}

/// Acts before each schedule call, and how many steps are leaped over after it, if that many can be.
fn any_course() -> impl Strategy<Value = Vec<(Vec<Act>, u32)>> {
    prop::collection::vec((prop::collection::vec(any_act(), 0..3), 0u32..12), 1..60)
}

/// Plain vLLM with any knobs; the plugins' schedulers serve whole requests only.
fn any_vllm(stages: impl Strategy<Value = u32>) -> impl Strategy<Value = VllmConfig> {
    (
        any_engine(),
        stages,
        prop::sample::select(vec![None, Some(false), Some(true)]),
    )
        .prop_map(|(config, stages, reserve)| VllmConfig {
            scheduler_cls: SchedulerClass::Vllm,
            pipeline_parallel_size: stages,
            reserve_for_loads: reserve,
            ..config
        })
}

/// One engine, its batches under way, and what its requests have come to.
struct Side {
    engine: VllmEngine,
    plan: StepPlan,
    result: StepResult,
    under_way: Vec<StepPlan>,
    loading: Vec<RequestId>,
    held: Vec<RequestId>,
    live: BTreeMap<RequestId, Leg>,
    tokens: BTreeMap<RequestId, u32>,
}

impl Side {
    fn new(engine: VllmEngine) -> Self {
        Self {
            engine,
            plan: StepPlan::default(),
            result: StepResult::default(),
            under_way: Vec::new(),
            loading: Vec::new(),
            held: Vec::new(),
            live: BTreeMap::new(),
            tokens: BTreeMap::new(),
        }
    }

    fn act(&mut self, act: Act, id: RequestId, request: Option<&TraceRequest>) {
        let pick = |from: &[RequestId], i: usize| (!from.is_empty()).then(|| from[i % from.len()]);
        match act {
            Act::Submit(leg) => {
                let Some(request) = request else { return };
                if self.engine.submit_leg(id, request, leg).is_ok() {
                    self.live.insert(id, leg);
                }
            }
            Act::LoadDone(i) => {
                if let Some(id) = pick(&self.loading, i) {
                    assert!(self.engine.load_done(id));
                    self.loading.retain(|l| *l != id);
                }
            }
            Act::LoadFails(i, valid) => {
                if let Some(id) = pick(&self.loading, i) {
                    assert!(self.engine.load_failed(id, valid));
                    self.loading.retain(|l| *l != id);
                }
            }
            Act::Release(i) => {
                if let Some(id) = pick(&self.held, i) {
                    assert!(self.engine.release_held(id));
                    self.held.retain(|h| *h != id);
                }
            }
            Act::Abort(i) => {
                let ids: Vec<_> = self.live.keys().chain(&self.held).copied().collect();
                if let Some(id) = pick(&ids, i) {
                    self.abort(id);
                }
            }
            Act::Flush => self.engine.flush_cache(),
        }
    }

    fn abort(&mut self, id: RequestId) {
        assert!(self.engine.abort(id));
        self.live.remove(&id);
        self.loading.retain(|l| *l != id);
        self.held.retain(|h| *h != id);
    }

    fn plan(&mut self) {
        self.engine.plan(&mut self.plan);
        self.loading.extend(self.plan.loads.iter().map(|l| l.id));
        for left in &self.plan.left {
            *self.tokens.entry(left.id).or_default() += left.steps;
        }
        self.under_way.push(self.plan.clone());
    }

    fn commit(&mut self) {
        let oldest = self.under_way.remove(0);
        let held = self.engine.held_blocks();
        self.engine.commit(&oldest, &mut self.result);
        for left in &self.result.left {
            *self.tokens.entry(left.id).or_default() += left.steps;
        }
        for &(id, tokens) in &self.result.emitted {
            *self.tokens.entry(id).or_default() += tokens;
        }
        let mut prefilled = false;
        for (id, _) in &self.result.finished {
            if self.live.remove(id) == Some(Leg::Prefill) {
                prefilled = true;
                self.held.push(*id);
            }
        }
        assert!(prefilled || self.engine.held_blocks() == held);
        self.check();
    }

    /// Whatever is going on, no block is lost or made.
    fn check(&self) {
        let g = self.engine.gauges();
        assert!(
            g.free_blocks + self.engine.held_blocks() <= g.usable_blocks
                || self.engine.config().enable_prefix_caching
        );
        assert!(g.free_blocks <= g.usable_blocks);
    }

    /// Ends everything that is left, by itself as far as it goes, and by aborts for the rest.
    fn drain(&mut self) {
        for _ in 0..300 {
            for id in std::mem::take(&mut self.loading) {
                assert!(self.engine.load_done(id));
            }
            for id in std::mem::take(&mut self.held) {
                assert!(self.engine.release_held(id));
            }
            if !self.engine.has_unfinished() {
                break;
            }
            self.plan();
            while self.under_way.len() >= self.engine.queue_depth() {
                self.commit();
            }
        }
        let rest: Vec<_> = self.live.keys().copied().collect();
        for id in rest {
            self.abort(id);
        }
        while !self.under_way.is_empty() {
            self.commit();
        }
        for id in std::mem::take(&mut self.held) {
            assert!(self.engine.release_held(id));
        }
        let mut lefts = Vec::new();
        self.engine.list_all(&mut lefts);
        for left in lefts {
            *self.tokens.entry(left.id).or_default() += left.steps;
        }
        let g = self.engine.gauges();
        assert_eq!((g.running, g.waiting, self.engine.held_blocks()), (0, 0, 0));
        assert_eq!(g.free_blocks, g.usable_blocks);
        assert!(!self.engine.has_unfinished());
    }
}

/// Both make the same plan.
fn assert_same_plan(reference: &Side, steady: &Side, step: usize) -> Result<(), TestCaseError> {
    let listed = rows(&steady.engine.all_rows(&steady.plan));
    let all = rows(&reference.plan.grants);
    let is_steady = |id: RequestId| !steady.plan.grants.iter().any(|g| g.id == id);
    prop_assert_eq!(listed.len(), all.len(), "step {}", step);
    for (a, b) in listed.into_iter().zip(all) {
        prop_assert_eq!((a.0, a.1, a.2), (b.0, b.1, b.2), "step {}", step);
        prop_assert!(a.3 == b.3 || is_steady(a.0));
    }
    let (a, b) = (&reference.plan, &steady.plan);
    prop_assert_eq!(&a.admitted, &b.admitted);
    prop_assert_eq!(&a.preempted, &b.preempted);
    prop_assert_eq!(&a.loads, &b.loads);
    prop_assert_eq!(a.shape.sums(), b.shape.sums());
    prop_assert_eq!(
        (a.running, a.waiting, a.free_blocks),
        (b.running, b.waiting, b.free_blocks)
    );
    Ok(())
}

fn assert_same_state(reference: &Side, steady: &Side) -> Result<(), TestCaseError> {
    let (a, b) = (&reference.engine, &steady.engine);
    prop_assert_eq!(a.gauges(), b.gauges());
    prop_assert_eq!(a.held_blocks(), b.held_blocks());
    prop_assert_eq!(a.is_loading_only(), b.is_loading_only());
    prop_assert_eq!(a.livelock(), b.livelock());
    Ok(())
}

/// Takes up to `most` repeated plans at once on the one side, and step by step on the other. Returns how many.
fn leap(reference: &mut Side, steady: &mut Side, most: u32) -> Result<(), TestCaseError> {
    let repeats = steady.under_way.iter().all(|p| p.only_repeats() && !p.is_empty());
    let most = most.min(steady.engine.repeats());
    if !repeats || most == 0 {
        return Ok(());
    }
    let mut free = Vec::new();
    steady.engine.foresee(most, &mut free);
    steady.engine.leap(free.len() as u32);
    for free in free {
        reference.commit();
        prop_assert!(reference.result.finished.is_empty());
        reference.plan();
        let plan = &reference.plan;
        prop_assert_eq!(
            (&plan.admitted[..], &plan.loads[..], &plan.preempted[..]),
            (&[][..], &[][..], &[][..])
        );
        prop_assert_eq!(plan.free_blocks, free);
    }
    assert_same_state(reference, steady)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn steady_rows_and_leaps_are_as_row_by_row(
        config in any_vllm(Just(1u32)), trace in any_trace(), course in any_course(), rounds in 1usize..6,
    ) {
        let mut reference = Side::new(VllmEngine::new(config.clone()));
        let mut steady = Side::new(VllmEngine::new(config).with_steady_rows(true));
        let depth = reference.engine.queue_depth();
        let (mut id, mut requests) = (0, trace.requests.iter());
        for (step, (acts, most)) in course.iter().cycle().take(course.len() * rounds).enumerate() {
            for &act in acts {
                let request = matches!(act, Act::Submit(_)).then(|| requests.next()).flatten();
                for side in [&mut reference, &mut steady] {
                    side.act(act, id, request);
                }
                id += u32::from(request.is_some());
                assert_same_state(&reference, &steady)?;
            }
            if let Some(request) = trace.requests.first() {
                let found = [&mut reference, &mut steady].map(|s| s.engine.cached_tokens(request, 0));
                prop_assert_eq!(found[0], found[1]);
            }
            reference.plan();
            steady.plan();
            assert_same_plan(&reference, &steady, step)?;
            leap(&mut reference, &mut steady, *most)?;
            if reference.under_way.len() >= depth {
                reference.commit();
                steady.commit();
                prop_assert_eq!(&reference.result.finished, &steady.result.finished);
                prop_assert_eq!(reference.result.free_blocks, steady.result.free_blocks);
            }
            prop_assert_eq!(&reference.live, &steady.live);
        }
        for side in [&mut reference, &mut steady] {
            side.drain();
            side.tokens.retain(|_, tokens| *tokens > 0);
        }
        prop_assert_eq!(&reference.tokens, &steady.tokens);
    }

    /// With any number of stages, whatever is done to an engine, all blocks are free when all requests have ended.
    #[test]
    fn blocks_are_conserved(config in any_vllm(1u32..5), trace in any_trace(), course in any_course()) {
        let mut side = Side::new(VllmEngine::new(config));
        let (mut id, mut requests) = (0, trace.requests.iter());
        for (acts, _) in &course {
            for &act in acts {
                let request = matches!(act, Act::Submit(_)).then(|| requests.next()).flatten();
                side.act(act, id, request);
                id += u32::from(request.is_some());
                side.check();
            }
            side.plan();
            while side.under_way.len() >= side.engine.queue_depth() {
                side.commit();
            }
        }
        side.drain();
    }

    /// Rule D12: where the reserve is kept, loads never block each other for ever, with speculation or without.
    #[test]
    fn with_the_reserve_everything_ends(
        config in any_vllm(1u32..4), trace in any_trace(), legs in prop::collection::vec(any::<bool>(), 1..9),
        lag in 0usize..4,
    ) {
        // The gates of the newest release: without them preemption itself can go on for ever.
        let config = VllmConfig {
            // By priority, two requests may preempt each other for ever, loads or not.
            policy: Policy::Fcfs,
            long_prefill_token_threshold: 0,
            reserve_for_loads: Some(true),
            scheduler_reserve_full_isl: true,
            enable_chunked_prefill: true,
            max_num_batched_tokens: config.max_num_batched_tokens.max(8),
            max_num_seqs: config.max_num_seqs.min(config.max_num_batched_tokens),
            ..newest(config)
        };
        // A refusal does not count the drafts of the last step, which must fit as well.
        let drafts = config.num_speculative_tokens;
        let most = u64::from(config.usable_blocks() * config.block_size);
        let fits = |r: &&TraceRequest| {
            u64::from(r.input_tokens) + u64::from(r.max_output_tokens) + u64::from(2 * drafts) <= most
        };
        let mut side = Side::new(VllmEngine::new(config));
        for (id, request) in trace.requests.iter().filter(fits).enumerate() {
            let leg = if legs[id % legs.len()] { Leg::Decode } else { Leg::Whole };
            side.act(Act::Submit(leg), id as u32, Some(request));
        }
        let mut arriving: Vec<(usize, RequestId)> = Vec::new();
        for step in 0..60_000 {
            if side.live.is_empty() {
                break;
            }
            arriving.extend(side.loading.drain(..).map(|id| (step + lag, id)));
            while arriving.first().is_some_and(|a| a.0 <= step) {
                let (_, id) = arriving.remove(0);
                prop_assert!(side.engine.load_done(id));
            }
            side.plan();
            while side.under_way.len() >= side.engine.queue_depth() {
                side.commit();
            }
            prop_assert_eq!(side.engine.livelock(), None);
        }
        prop_assert!(side.live.is_empty(), "{} never end", side.live.len());
        side.drain();
    }
}

fn newest(config: VllmConfig) -> VllmConfig {
    VllmConfig {
        behaviour: kneeboard::engine::vllm::Behaviour::of("0.32.0").unwrap(),
        ..config
    }
}
