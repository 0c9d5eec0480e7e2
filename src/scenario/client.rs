//! `load.client`: which load generator the clients of a closed loop are.

use super::check::Blame;
use super::load::{check_arrivals, concurrency, fill_pattern, no_arrivals};
use super::plan::Plan;
use super::provenance::{Provenance, Source};
use super::quantity::{Finite, Span};
use super::schema::{Client, ClientKind, Load, Process, Scenario, Workload};
use crate::input::InputError;
use crate::metric::tool::View;
use crate::sim::{self, ClientMachine, Clients, LoadModel};
use crate::units::SimDuration;

/// llmperf's `--timeout`.
const LLMPERF_TIMEOUT: Span = Span(SimDuration(90_000_000_000));
/// A rule of thumb for English text.
const WORDS_PER_TOKEN: Finite = Finite(0.75);
/// More clients than any load generator has threads.
const MOST_CLIENTS: u32 = 100_000;
/// Longer than any client thinks or starts up. Simulated time holds more than 5000 times as much.
pub(super) const LONGEST_PAUSE: Span = Span(SimDuration(1_000 * 3_600_000_000_000));
/// Longer than any client needs for a send, a chunk, a token, or to start after the one before; times the most clients
/// it is a hundredth of what simulated time holds.
const LONGEST_COST: Span = Span(SimDuration(1_800_000_000_000));

impl Plan {
    /// The load generator whose figures the run is seen with, if the scenario names one.
    pub fn view(&self) -> Option<View> {
        let client = self.scenario.load.client.as_ref()?;
        match client.kind {
            ClientKind::Plain => None,
            ClientKind::Llmperf => Some(View::Llmperf),
            ClientKind::VllmBench => Some(View::VllmBench),
            ClientKind::ThreadPool => Some(View::ThreadPool {
                words_per_token: client.words_per_token.map_or(1.0, |w| w.0),
            }),
        }
    }
}

/// Fills and checks a closed-loop load with `load.client`, and gives the load model.
///
/// # Errors
/// [`InputError`] for keys that do not belong to the kind of client, or values outside their range.
pub(super) fn resolve(
    scenario: &mut Scenario,
    provenance: &mut Provenance,
    origin: &str,
    replay: bool,
) -> Result<LoadModel, InputError> {
    let Some(kind) = scenario.load.client.as_ref().map(|c| c.kind) else {
        return Err(Blame { origin, provenance }.error("load.client", "it is missing", "give its kind"));
    };
    fill(&mut scenario.load, kind, provenance);
    let has_classes = matches!(&scenario.workload, Workload::Synthetic(s) if s.classes.is_some());
    let load = &mut scenario.load;
    let has_arrivals =
        kind == ClientKind::VllmBench && fill_arrivals(load, (replay, has_classes), provenance, origin)?;
    let blame = Blame { origin, provenance };
    if has_arrivals {
        check_arrivals(load, replay, &blame)?;
    } else {
        no_arrivals(load, &blame)?;
    }
    let concurrency = concurrency(load, &blame)?;
    if concurrency > MOST_CLIENTS {
        let found = format!("found {concurrency}");
        return Err(blame.error("load.concurrency", found, format!("allowed: 1 to {MOST_CLIENTS}")));
    }
    check_keys(scenario, kind, &blame)?;
    let load = &scenario.load;
    let Some(client) = &load.client else {
        return Err(blame.error("load.client", "it is missing", "give its kind"));
    };
    let clients = Clients {
        kind: sim_kind(client, has_arrivals),
        concurrency,
        think: span(load.think),
        think_per_token: span(client.think_per_token),
        machine: client.cores.map(|cores| ClientMachine {
            cores,
            send_cost: span(client.send_cost),
            chunk_cost: span(client.chunk_cost),
        }),
    };
    let is_plain = clients.kind == sim::ClientKind::Plain
        && clients.machine.is_none()
        && clients.think_per_token == SimDuration::ZERO;
    Ok(if is_plain {
        LoadModel::ClosedLoop {
            concurrency,
            think: clients.think,
        }
    } else {
        LoadModel::Clients(clients)
    })
}

fn span(value: Option<Span>) -> SimDuration {
    value.map_or(SimDuration::ZERO, |s| s.0)
}

/// What is left out costs no time.
fn fill(load: &mut Load, kind: ClientKind, provenance: &mut Provenance) {
    let Load { think, client, .. } = load;
    let Some(client) = client else { return };
    let mut spans: Vec<(&str, &mut Option<Span>, Span)> = Vec::new();
    let zero = Span(SimDuration::ZERO);
    if kind != ClientKind::VllmBench {
        spans.push(("load.think", think, zero));
        spans.push(("load.client.think_per_token", &mut client.think_per_token, zero));
    }
    if kind == ClientKind::Llmperf {
        spans.push(("load.client.start_up", &mut client.start_up, zero));
        spans.push(("load.client.stagger", &mut client.stagger, zero));
        spans.push(("load.client.timeout", &mut client.timeout, LLMPERF_TIMEOUT));
    }
    if client.cores.is_some() {
        spans.push(("load.client.send_cost", &mut client.send_cost, zero));
        spans.push(("load.client.chunk_cost", &mut client.chunk_cost, zero));
    }
    for (path, slot, usual) in spans {
        provenance.fill(path, slot, Source::Default, usual);
    }
    if kind == ClientKind::ThreadPool {
        provenance.fill(
            "load.client.words_per_token",
            &mut client.words_per_token,
            Source::Default,
            WORDS_PER_TOKEN,
        );
    }
}

/// `vllm bench serve`: fills the arrivals if there are any; without a rate all requests are due at once. Drawn times are
/// stretched to end at n / rate, as that tool does (rule M10), unless they follow a pattern or are of several classes.
fn fill_arrivals(
    load: &mut Load,
    (replay, has_classes): (bool, bool),
    provenance: &mut Provenance,
    origin: &str,
) -> Result<bool, InputError> {
    let a = &mut load.arrival;
    if replay {
        return Ok(a.process == Some(Process::Trace));
    }
    if a.rate.is_none() {
        return Ok(false);
    }
    provenance.fill(
        "load.arrival.process",
        &mut a.process,
        Source::Default,
        Process::Poisson,
    );
    let stretched = a.pattern.is_none() && !has_classes;
    provenance.fill("load.arrival.rescale", &mut a.rescale, Source::Default, stretched);
    if let Some(pattern) = &mut a.pattern {
        fill_pattern(pattern, provenance, origin)?;
    }
    Ok(true)
}

fn check_keys(scenario: &Scenario, kind: ClientKind, blame: &Blame<'_>) -> Result<(), InputError> {
    let (load, slo) = (&scenario.load, &scenario.slo);
    let Some(client) = &load.client else {
        return Ok(());
    };
    let path = |key: &str| format!("load.client.{key}");
    if kind != ClientKind::Llmperf {
        const WHY: &str = "it belongs to kind: llmperf";
        blame.absent(&path("start_up"), client.start_up.as_ref(), WHY)?;
        blame.absent(&path("stagger"), client.stagger.as_ref(), WHY)?;
        blame.absent(&path("timeout"), client.timeout.as_ref(), WHY)?;
    }
    if kind == ClientKind::VllmBench {
        const WHY: &str = "vllm bench serve sends as soon as a place is free";
        blame.absent("load.think", load.think.as_ref(), WHY)?;
        blame.absent(&path("think_per_token"), client.think_per_token.as_ref(), WHY)?;
    }
    if kind == ClientKind::ThreadPool {
        const WHY: &str = "a client that receives its answers whole has no token times: ask for slo.e2e";
        blame.absent("slo.ttft", slo.ttft.as_ref(), WHY)?;
        blame.absent("slo.itl", slo.itl.as_ref(), WHY)?;
        blame.absent("slo.tpot", slo.tpot.as_ref(), WHY)?;
    } else {
        const WHY: &str = "it belongs to kind: thread-pool";
        blame.absent(&path("words_per_token"), client.words_per_token.as_ref(), WHY)?;
    }
    check_times(load.think, client, blame)?;
    blame.positive(&path("words_per_token"), client.words_per_token)?;
    blame.at_least_one(&path("cores"), client.cores)?;
    if client.cores.is_none() {
        const WHY: &str = "CPU time is spent on cores: give load.client.cores too";
        blame.absent(&path("send_cost"), client.send_cost.as_ref(), WHY)?;
        blame.absent(&path("chunk_cost"), client.chunk_cost.as_ref(), WHY)?;
    }
    Ok(())
}

/// No time is so long that simulated time could come to its end.
fn check_times(think: Option<Span>, client: &Client, blame: &Blame<'_>) -> Result<(), InputError> {
    for (path, value, most) in [
        ("load.think", think, LONGEST_PAUSE),
        ("load.client.start_up", client.start_up, LONGEST_PAUSE),
        ("load.client.stagger", client.stagger, LONGEST_COST),
        (
            "load.client.think_per_token",
            client.think_per_token,
            LONGEST_COST,
        ),
        ("load.client.send_cost", client.send_cost, LONGEST_COST),
        ("load.client.chunk_cost", client.chunk_cost, LONGEST_COST),
    ] {
        blame.at_most(path, value, most)?;
    }
    Ok(())
}

fn sim_kind(client: &Client, arrivals: bool) -> sim::ClientKind {
    match client.kind {
        ClientKind::Plain => sim::ClientKind::Plain,
        ClientKind::Llmperf => sim::ClientKind::Llmperf {
            start_up: span(client.start_up),
            stagger: span(client.stagger),
            timeout: client.timeout.map(|t| t.0),
        },
        ClientKind::ThreadPool => sim::ClientKind::ThreadPool,
        ClientKind::VllmBench => sim::ClientKind::VllmBench { arrivals },
    }
}
