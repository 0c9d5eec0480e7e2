//! `cluster.gateway`.

use super::super::provenance::Source;
use super::super::quantity::{Finite, Span};
use super::super::schema::{
    ByTenant, Fairness, FairnessWord, Gateway, Hedge, Retry, RetryCause, Scenario, TenantRate,
};
use super::Filling;
use super::tenant_number;
use crate::cluster::gateway::{
    FairPolicy, FairQueue, Gate, HedgePolicy, Limits, RateLimit, RetryOn, RetryPolicy, Timeouts,
};
use crate::input::InputError;
use crate::sim::fleet::GatewayConfig;
use crate::units::SimDuration;

const PATH: &str = "cluster.gateway";
const FAIRNESS: &str = "cluster.gateway.fairness";
const RETRY: &str = "cluster.gateway.retry";
/// Wait before the first retry, and the longest one: gRPC's proposal A6 has 100 ms and 1 s in its example.
const BACKOFF: SimDuration = SimDuration::from_millis(100);
const BACKOFF_CAP: SimDuration = SimDuration::from_millis(1_000);

/// Fills and checks it.
pub(super) fn resolve(scenario: &mut Scenario, f: &mut Filling<'_>) -> Result<GatewayConfig, InputError> {
    let mut gateway = scenario.cluster.gateway.take().unwrap_or_default();
    let resolved = fill(&mut gateway, scenario, f);
    scenario.cluster.gateway = Some(gateway);
    resolved
}

fn fill(g: &mut Gateway, scenario: &Scenario, f: &mut Filling<'_>) -> Result<GatewayConfig, InputError> {
    let fairness = fairness(g.fairness.get_or_insert_default(), scenario, f)?;
    FairQueue::new(&fairness).map_err(|e| f.error(FAIRNESS, e.to_string(), "see its keys"))?;
    f.blame()
        .at_least_one(&format!("{PATH}.max_in_flight"), g.max_in_flight)?;
    let limits = Limits {
        max_in_flight: g.max_in_flight,
        max_queued_requests: g.max_queued_requests,
        max_queued_tokens: g.max_queued_tokens,
        queue_timeout: None,
        tenant_rate: tenant_rates(g.tenant_rates.as_ref(), scenario, f)?,
    };
    Gate::new(&limits).map_err(|e| f.error(PATH, e.to_string(), "see its keys"))?;
    let t = g.timeouts.clone().unwrap_or_default();
    let timeout = |key: &str, value: Option<Span>| {
        let path = format!("{PATH}.timeouts.{key}");
        match value {
            Some(Span(SimDuration::ZERO)) => Err(f.error(
                &path,
                "found a timeout of 0: nobody could ever be served",
                "allowed: a duration above 0; leave it out to wait for ever",
            )),
            other => Ok(other.map(|s| s.0)),
        }
    };
    let timeouts = Timeouts {
        ttft: timeout("ttft", t.ttft)?,
        e2e: timeout("e2e", t.e2e)?,
        queue: timeout("queue", t.queue)?,
    };
    let retry = retry(&mut g.retry, f)?;
    times_out(&retry, &timeouts, f)?;
    let hedge = g.hedge.as_mut().map(|h| hedge(h, f)).transpose()?;
    let cancel_latency = f.span(PATH, "cancel_latency", &mut g.cancel_latency, SimDuration::ZERO);
    Ok(GatewayConfig {
        fairness,
        limits,
        timeouts,
        retry,
        hedge,
        cancel_latency,
    })
}

fn fairness(rule: &mut Fairness, scenario: &Scenario, f: &mut Filling<'_>) -> Result<FairPolicy, InputError> {
    let policy = f.fill(
        FAIRNESS,
        "policy",
        &mut rule.policy,
        Source::Default,
        FairnessWord::Fcfs,
    );
    let absent = |f: &Filling<'_>, key: &str, given: bool, word: &str| {
        let value = given.then_some(());
        let path = format!("{FAIRNESS}.{key}");
        f.blame().absent(
            &path,
            value.as_ref(),
            &format!("it belongs to {word}: leave it out"),
        )
    };
    if policy != FairnessWord::Vtc {
        absent(f, "input_weight", rule.input_weight.is_some(), "policy vtc")?;
        absent(f, "output_weight", rule.output_weight.is_some(), "policy vtc")?;
    }
    if policy != FairnessWord::Drr {
        absent(f, "quantum_tokens", rule.quantum_tokens.is_some(), "policy drr")?;
    }
    if matches!(policy, FairnessWord::Fcfs | FairnessWord::Priority) {
        absent(f, "weights", rule.weights.is_some(), "policies vtc and drr")?;
    }
    let weights = match &rule.weights {
        None => Vec::new(),
        Some(named) => by_number(named, scenario, &format!("{FAIRNESS}.weights"), f, 1.0, |w| w.0)?,
    };
    Ok(match policy {
        FairnessWord::Fcfs => FairPolicy::Fcfs,
        FairnessWord::Priority => FairPolicy::Priority,
        FairnessWord::Vtc => FairPolicy::Vtc {
            weights,
            // As in the experiments of Sheng et al., OSDI 2024.
            input_weight: f.number(FAIRNESS, "input_weight", &mut rule.input_weight, 1.0),
            output_weight: f.number(FAIRNESS, "output_weight", &mut rule.output_weight, 2.0),
        },
        FairnessWord::Drr => FairPolicy::DeficitRoundRobin {
            quantum_tokens: f.fill(
                FAIRNESS,
                "quantum_tokens",
                &mut rule.quantum_tokens,
                Source::Default,
                2048,
            ),
            weights,
        },
    })
}

/// Values by name as a list by number.
fn by_number<T, V: Clone>(
    named: &ByTenant<T>,
    scenario: &Scenario,
    path: &str,
    f: &Filling<'_>,
    default: V,
    value: impl Fn(&T) -> V,
) -> Result<Vec<V>, InputError> {
    let mut list = Vec::new();
    for (name, given) in named {
        let number = tenant_number(name, scenario, path, &f.blame())? as usize;
        if list.len() <= number {
            list.resize(number + 1, default.clone());
        }
        list[number] = value(given);
    }
    Ok(list)
}

fn tenant_rates(
    named: Option<&ByTenant<TenantRate>>,
    scenario: &Scenario,
    f: &Filling<'_>,
) -> Result<Vec<Option<RateLimit>>, InputError> {
    const RATES: &str = "cluster.gateway.tenant_rates";
    let Some(named) = named else {
        return Ok(Vec::new());
    };
    for (name, rate) in named {
        f.blame()
            .positive(&format!("{RATES}.{name}.rate"), Some(rate.rate))?;
        f.blame()
            .at_least_one(&format!("{RATES}.{name}.burst"), rate.burst)?;
    }
    by_number(named, scenario, RATES, f, None, |rate| {
        Some(RateLimit {
            requests_per_s: rate.rate.0,
            burst: rate.burst.unwrap_or(1),
        })
    })
}

/// What times out can be tried again only if something times out that is: the end of a request is awaited over all its
/// attempts (gRPC's proposal A6: "a single deadline for the RPC as a whole"; the same with the timeout of an Envoy route).
fn times_out(retry: &RetryPolicy, timeouts: &Timeouts, f: &Filling<'_>) -> Result<(), InputError> {
    let none = timeouts.ttft.is_none() && timeouts.queue.is_none();
    if !(retry.retry_on.timed_out && none) {
        return Ok(());
    }
    let found = match timeouts.e2e {
        Some(_) => "timeouts.e2e spans all attempts and is never tried again, and nothing else times out",
        None => "nothing times out",
    };
    let mend = "give cluster.gateway.timeouts.ttft or queue, or leave timed-out out";
    Err(f.error(&format!("{RETRY}.on"), found, mend))
}

/// Most attempts of a request, and copies beside the original: beyond that a storm is all there is.
const MOST_ATTEMPTS: u32 = 100;
const MOST_COPIES: u32 = 10;

fn retry(slot: &mut Option<Retry>, f: &mut Filling<'_>) -> Result<RetryPolicy, InputError> {
    let Some(r) = slot else {
        return Ok(RetryPolicy::default());
    };
    let attempts = f.fill(RETRY, "attempts", &mut r.attempts, Source::Default, 2);
    if !(1..=MOST_ATTEMPTS).contains(&attempts) {
        let mend =
            format!("allowed: 1 to {MOST_ATTEMPTS}, the first one counted: 1 tries nothing again, 2 once");
        return Err(f.error(&format!("{RETRY}.attempts"), format!("found {attempts}"), mend));
    }
    if r.budget_ratio.is_none() {
        let mend = "without budget_ratio retries have no budget: give it, or leave this out";
        f.blame()
            .absent(&format!("{RETRY}.budget_max"), r.budget_max.as_ref(), mend)?;
        let floor = r.min_retries_per_s.filter(|rate| rate.0 != 0.0);
        f.blame()
            .absent(&format!("{RETRY}.min_retries_per_s"), floor.as_ref(), mend)?;
    }
    let on = f.fill(RETRY, "on", &mut r.on, Source::Default, vec![RetryCause::Failed]);
    let policy = RetryPolicy {
        attempts,
        backoff_base: f.span(RETRY, "backoff", &mut r.backoff, BACKOFF),
        backoff_cap: f.span(RETRY, "backoff_cap", &mut r.backoff_cap, BACKOFF_CAP),
        jitter: f.number(RETRY, "jitter", &mut r.jitter, 1.0),
        budget_ratio: r.budget_ratio.map(|b| b.0),
        min_retries_per_s: f.number(RETRY, "min_retries_per_s", &mut r.min_retries_per_s, 0.0),
        budget_max: r.budget_max,
        retry_on: RetryOn {
            failed: on.contains(&RetryCause::Failed),
            timed_out: on.contains(&RetryCause::TimedOut),
            rejected: on.contains(&RetryCause::Rejected),
        },
    };
    f.share(&format!("{RETRY}.jitter"), r.jitter)?;
    policy
        .check()
        .map_err(|e| f.error(RETRY, e.to_string(), "see its keys"))?;
    Ok(policy)
}

fn hedge(h: &mut Hedge, f: &mut Filling<'_>) -> Result<HedgePolicy, InputError> {
    const HEDGE: &str = "cluster.gateway.hedge";
    f.above_zero(&format!("{HEDGE}.after"), Some(h.after))?;
    let max_extra = f.fill(HEDGE, "max_extra", &mut h.max_extra, Source::Default, 1);
    let policy = HedgePolicy {
        after: h.after.0,
        max_extra,
        budget_ratio: h.budget_ratio.map(|Finite(b)| b),
    };
    f.at_most(&format!("{HEDGE}.max_extra"), max_extra, MOST_COPIES)?;
    policy
        .budget()
        .map_err(|e| f.error(HEDGE, e.to_string(), "see its keys"))?;
    Ok(policy)
}
