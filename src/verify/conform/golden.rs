//! Golden cases: a scheduler log under a virtual clock.

use std::collections::VecDeque;
use std::path::Path;

use serde::Deserialize;

use super::{CaseKind, CaseReport, Comparison, rules, within};
use crate::engine::vllm::{Behaviour, Policy, VllmConfig, VllmEngine};
use crate::engine::{Engine, StepPlan, StepResult};
use crate::input::{InputError, first_existing, read_text};
use crate::kv::MAX_BLOCKS;
use crate::steptime::BatchShape;
use crate::units::SimTime;
use crate::workload::lengths::MAX_TOKENS;
use crate::workload::trace::{Prefix, TraceRequest};
use crate::yaml;

#[derive(Debug, Deserialize)]
struct Config {
    vllm: String,
    cost_ns: Cost,
    scheduler: Scheduler,
}

/// Step time: a + b*prefill tokens + c*decode rows + d*decode context, in ns.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cost {
    a: u64,
    b: u64,
    c: u64,
    d: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scheduler {
    async_scheduling: bool,
    block_size: u32,
    enable_chunked_prefill: bool,
    enable_prefix_caching: bool,
    long_prefill_token_threshold: u32,
    max_model_len: u32,
    max_num_batched_tokens: u32,
    max_num_seqs: u32,
    num_gpu_blocks: u32,
    policy: Policy,
    scheduler_reserve_full_isl: bool,
    watermark: f64,
    // Knobs that the first recordings did not have.
    #[serde(default)]
    max_num_scheduled_tokens: Option<u32>,
    #[serde(default)]
    max_num_active_seqs: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Row {
    arrival_ns: u64,
    input_tokens: u32,
    output_tokens: u32,
    prefix_group: i64,
    prefix_tokens: u32,
    session: u8,
    priority: i32,
}

#[derive(Debug, Deserialize)]
struct Step {
    step: u64,
    t: u64,
    dur: u64,
    sched: Vec<(u32, u32, u32)>,
    new: Vec<(u32, u32)>,
    pre: Vec<u32>,
    run: u32,
    wait: u32,
    free: u32,
    p: u32,
    d: u32,
    k: u64,
    tok: Vec<u32>,
    fin: Vec<u32>,
    free_end: u32,
    start: Option<u64>,
    end: Option<u64>,
}

const STEP_FILES: [&str; 2] = ["steps.jsonl", "steps.jsonl.gz"];

pub(super) fn is_case(folder: &Path) -> bool {
    folder.join("trace.csv").is_file() && first_existing(folder, &STEP_FILES).is_some()
}

pub(super) fn replay(folder: &Path) -> Result<CaseReport, InputError> {
    let config = read_config(&folder.join("config.json"))?;
    let trace = read_trace(&folder.join("trace.csv"))?;
    let steps_path = first_existing(folder, &STEP_FILES)
        .ok_or_else(|| InputError::in_file(folder, "has no steps.jsonl or steps.jsonl.gz"))?;
    let steps = read_steps(&steps_path)?;
    let engine = engine_config(&config, &folder.join("config.json"))?;
    let mut run = Replay::new(engine, config.cost_ns, trace, &steps);
    run.run();
    Ok(CaseReport {
        name: folder.display().to_string(),
        kind: CaseKind::Golden,
        version: config.vllm,
        steps: steps.len() as u64,
        identical: run.identical,
        divergence: run.comparison.divergence,
    })
}

fn read_config(path: &Path) -> Result<Config, InputError> {
    let text = read_text(path)?;
    let mut json = serde_json::Deserializer::from_str(&text);
    let config = serde_path_to_error::deserialize(&mut json).map_err(|e| yaml::json_error(&e, path))?;
    json.end().map_err(|e| InputError::in_file(path, e.to_string()))?;
    Ok(config)
}

fn engine_config(config: &Config, path: &Path) -> Result<VllmConfig, InputError> {
    let behaviour =
        Behaviour::of(&config.vllm).map_err(|e| InputError::in_file(path, e.to_string()).at("vllm"))?;
    let s = &config.scheduler;
    let within =
        |name: &str, value: u32, most: u32| within(value, 1..=most, path, format!("scheduler.{name}"));
    if !(0.0..1.0).contains(&s.watermark) {
        return Err(
            InputError::in_file(path, format!("{} is not a share from 0 to below 1", s.watermark))
                .at("scheduler.watermark"),
        );
    }
    Ok(VllmConfig {
        async_scheduling: s.async_scheduling,
        block_size: within("block_size", s.block_size, MAX_TOKENS)?,
        enable_chunked_prefill: s.enable_chunked_prefill,
        enable_prefix_caching: s.enable_prefix_caching,
        long_prefill_token_threshold: s.long_prefill_token_threshold,
        max_model_len: within("max_model_len", s.max_model_len, MAX_TOKENS)?,
        max_num_batched_tokens: within("max_num_batched_tokens", s.max_num_batched_tokens, MAX_TOKENS)?,
        max_num_seqs: within("max_num_seqs", s.max_num_seqs, MAX_TOKENS)?,
        num_gpu_blocks: within("num_gpu_blocks", s.num_gpu_blocks, MAX_BLOCKS)?,
        policy: s.policy,
        scheduler_reserve_full_isl: s.scheduler_reserve_full_isl,
        watermark: s.watermark,
        max_num_scheduled_tokens: s.max_num_scheduled_tokens,
        max_num_active_seqs: s.max_num_active_seqs,
        ..VllmConfig::new(behaviour)
    })
}

fn read_trace(path: &Path) -> Result<Vec<TraceRequest>, InputError> {
    let text = read_text(path)?;
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let mut requests: Vec<TraceRequest> = Vec::new();
    for (index, row) in reader.deserialize::<Row>().enumerate() {
        let line = format!("line {}", index + 2);
        let bad = |found: String| InputError::in_file(path, found).at(&line);
        let row = row.map_err(|e| bad(e.to_string()))?;
        for (name, tokens) in [
            ("input_tokens", row.input_tokens),
            ("output_tokens", row.output_tokens),
        ] {
            within(tokens, 1..=MAX_TOKENS, path, format!("{line}, {name}"))?;
        }
        let arrival = SimTime(row.arrival_ns);
        if requests.last().is_some_and(|r| r.arrival > arrival) {
            return Err(bad(
                "arrives before the row above; rows must be in arrival order".into()
            ));
        }
        let prefix = u32::try_from(row.prefix_group).ok().map(|group| Prefix {
            group,
            shared_tokens: if row.session == 1 {
                u32::MAX
            } else {
                row.prefix_tokens
            },
            greedy_outputs: false,
        });
        requests.push(TraceRequest {
            prefix,
            priority: row.priority,
            ..TraceRequest::plain(arrival, row.input_tokens, row.output_tokens)
        });
    }
    Ok(requests)
}

/// The recorded steps, numbered from 0 without a gap.
fn read_steps(path: &Path) -> Result<Vec<Step>, InputError> {
    let text = read_text(path)?;
    let mut steps: Vec<Step> = Vec::new();
    let lines = text.lines().enumerate();
    for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let place = format!("line {}", index + 1);
        let step: Step = serde_json::from_str(line).map_err(|e| yaml::json_words(&e, path).at(&place))?;
        if step.step != steps.len() as u64 {
            return Err(InputError::in_file(
                path,
                format!("step {} where step {} is due", step.step, steps.len()),
            )
            .at(place)
            .allowed("steps are numbered from 0 without a gap: lines may be lost"));
        }
        steps.push(step);
    }
    Ok(steps)
}

/// A scheduled batch on its way through the device.
#[derive(Debug)]
struct InFlight {
    plan: StepPlan,
    step: usize,
    end: u64,
}

struct Replay<'a> {
    engine: VllmEngine,
    asynchronous: bool,
    cost: Cost,
    trace: Vec<TraceRequest>,
    steps: &'a [Step],
    comparison: Comparison,
    /// Next request to arrive.
    arrived: usize,
    now: u64,
    device_free: u64,
    /// Schedule calls made.
    calls: usize,
    /// Calls compared in all their figures without a difference.
    identical: u64,
    in_flight: VecDeque<InFlight>,
}

impl<'a> Replay<'a> {
    fn new(config: VllmConfig, cost: Cost, trace: Vec<TraceRequest>, steps: &'a [Step]) -> Self {
        Self {
            asynchronous: config.async_scheduling,
            engine: VllmEngine::new(config),
            cost,
            trace,
            steps,
            comparison: Comparison::default(),
            arrived: 0,
            now: 0,
            device_free: 0,
            calls: 0,
            identical: 0,
            in_flight: VecDeque::new(),
        }
    }

    fn run(&mut self) {
        while self.comparison.divergence.is_none() {
            self.add_arrivals();
            let wants = if self.asynchronous {
                self.engine.wants_schedule()
            } else {
                self.engine.has_unfinished()
            };
            if !wants && self.in_flight.is_empty() {
                match self.trace.get(self.arrived) {
                    Some(next) => self.now = next.arrival.as_nanos(),
                    None => break,
                }
                continue;
            }
            if wants {
                let Some(empty) = self.schedule() else { return };
                // With room in the queue the engine goes on without waiting for a result (rule S52).
                let room = self.asynchronous && self.in_flight.len() < 2;
                if room && (!empty || self.engine.wants_schedule()) {
                    continue;
                }
            }
            self.commit_oldest();
        }
        let missing = self.steps.len() as u64 - self.calls.min(self.steps.len()) as u64;
        if missing > 0 {
            self.comparison.begin(self.calls as u64);
            self.comparison.check(
                "steps",
                rules::CLOCK,
                &format!("{missing} more steps"),
                &"the end".to_owned(),
            );
        }
    }

    fn add_arrivals(&mut self) {
        while let Some(request) = self
            .trace
            .get(self.arrived)
            .filter(|r| r.arrival.as_nanos() <= self.now)
        {
            let id = self.arrived as u32;
            if let Err(refusal) = self.engine.submit(id, request) {
                self.comparison.begin(self.calls as u64);
                let came = format!("request {id} refused: {refusal}");
                self.comparison
                    .check("arrival", rules::ADMITTED, &format!("request {id} taken"), &came);
            }
            self.arrived += 1;
        }
    }

    /// One schedule call and its comparison. Says whether the batch was empty; `None` when the record has no
    /// such call.
    fn schedule(&mut self) -> Option<bool> {
        let mut plan = StepPlan::default();
        self.engine.plan(&mut plan);
        let call = self.calls;
        self.calls += 1;
        let Some(expected) = self.steps.get(call) else {
            self.comparison.begin(call as u64);
            self.comparison.check(
                "steps",
                rules::CLOCK,
                &"the end".to_owned(),
                &format!("{:?}", plan.grants),
            );
            return None;
        };
        let duration = if plan.shape.is_empty() {
            0
        } else {
            self.cost.of(&plan.shape)
        };
        let (start, end) = self.device_times(&plan, duration);
        compare_plan(&mut self.comparison, expected, &plan, self.now, duration);
        if let (true, Some(s), Some(e)) = (self.asynchronous, expected.start, expected.end) {
            self.comparison.check("start", rules::CLOCK, &s, &start);
            self.comparison.check("end", rules::CLOCK, &e, &end);
        }
        let (empty, idle) = (
            plan.shape.is_empty(),
            plan.shape.is_empty() && plan.preempted.is_empty(),
        );
        self.in_flight.push_back(InFlight {
            plan,
            step: call,
            end,
        });
        if !self.asynchronous && idle {
            // Nothing can change before the next arrival.
            let next = self
                .trace
                .get(self.arrived)
                .map_or(self.now, |r| r.arrival.as_nanos());
            if let Some(batch) = self.in_flight.back_mut() {
                batch.end = next.max(self.now);
            }
        }
        Some(empty)
    }

    fn device_times(&mut self, plan: &StepPlan, duration: u64) -> (u64, u64) {
        if !self.asynchronous {
            return (self.now, self.now.saturating_add(duration));
        }
        if plan.shape.is_empty() {
            let at = self.now.max(self.in_flight.back().map_or(0, |b| b.end));
            return (at, at);
        }
        let start = self.now.max(self.device_free);
        self.device_free = start.saturating_add(duration);
        (start, self.device_free)
    }

    fn commit_oldest(&mut self) {
        let Some(batch) = self.in_flight.pop_front() else {
            return;
        };
        self.now = self.now.max(batch.end);
        let mut result = StepResult::default();
        self.engine.commit(&batch.plan, &mut result);
        let expected = &self.steps[batch.step];
        if !self.comparison.begin(expected.step) {
            return;
        }
        let tok: Vec<u32> = result.emitted.iter().map(|e| e.0).collect();
        let fin: Vec<u32> = result.finished.iter().map(|f| f.0).collect();
        self.comparison.check("tok", rules::TOKENS, &expected.tok, &tok);
        self.comparison.check("fin", rules::FINISHED, &expected.fin, &fin);
        self.comparison
            .check("free_end", rules::FREE, &expected.free_end, &result.free_blocks);
        self.identical += u64::from(self.comparison.divergence.is_none());
    }
}

impl Cost {
    fn of(&self, shape: &BatchShape) -> u64 {
        self.a
            .saturating_add(self.b.saturating_mul(u64::from(shape.prefill_tokens)))
            .saturating_add(self.c.saturating_mul(u64::from(shape.decode_seqs)))
            .saturating_add(self.d.saturating_mul(shape.decode_context_tokens))
    }
}

fn compare_plan(c: &mut Comparison, expected: &Step, plan: &StepPlan, now: u64, duration: u64) {
    if !c.begin(expected.step) {
        return;
    }
    let sched: Vec<_> = plan.grants.iter().map(|g| (g.id, g.tokens, g.computed)).collect();
    let new: Vec<_> = plan.admitted.iter().map(|a| (a.id, a.cached_tokens)).collect();
    c.check("t", rules::CLOCK, &expected.t, &now);
    c.check("pre", rules::PREEMPTED, &expected.pre, &plan.preempted);
    c.check("new", rules::ADMITTED, &expected.new, &new);
    c.check("sched", rules::SCHEDULED, &expected.sched, &sched);
    c.check("run", rules::RUNNING, &expected.run, &plan.running);
    c.check("wait", rules::WAITING, &expected.wait, &plan.waiting);
    c.check("free", rules::FREE, &expected.free, &plan.free_blocks);
    let shape = (
        plan.shape.prefill_tokens,
        plan.shape.decode_seqs,
        plan.shape.decode_context_tokens,
    );
    c.check(
        "p, d, k",
        rules::SHAPE,
        &(expected.p, expected.d, expected.k),
        &shape,
    );
    c.check("dur", rules::SHAPE, &expected.dur, &duration);
}

#[cfg(test)]
#[path = "golden_tests.rs"]
mod tests;
