//! `cluster.router`.

use super::super::provenance::Source;
use super::super::quantity::Finite;
use super::super::schema::{
    Decider, DeciderWord, IndexRule, IndexWord, PickerWord, RouterPolicy as Word, RouterRule, Scenario,
    ScorerRule, ScorerWord,
};
use super::pools::{Pools, ServedBy};
use super::{Filling, span};
use crate::cluster::router::{Index, Picker, PrefillDecider, RouterPolicy, Scorer};
use crate::input::InputError;
use crate::scenario::SHORTEST_SCRAPE;
use crate::sim::fleet::Routing;
use crate::units::{SimDuration, written};

const PATH: &str = "cluster.router";
/// How old vLLM's balancer lets counts of the engines get (rule S74).
const VLLM_SNAPSHOT: SimDuration = SimDuration::from_millis(100);
/// Commonly quoted, unverified (rule D22).
const SCRAPE: SimDuration = SimDuration::from_millis(50);

/// Fills and checks it.
pub(super) fn resolve(
    scenario: &mut Scenario,
    pools: &Pools,
    f: &mut Filling<'_>,
) -> Result<Routing, InputError> {
    let ranks = scenario
        .cluster
        .pools
        .iter()
        .flatten()
        .any(|p| p.dp.is_some_and(|dp| dp > 1));
    let router = &mut scenario.cluster.router;
    let answering = pools.answering();
    let mut rule = router.rule();
    let policy = policy(&mut rule, PATH, answering, Word::RoundRobin, f)?;
    router.set_rule(rule);
    let prefill = match (pools.prefill(), &mut router.prefill) {
        (Some(served), slot) => {
            let rule = slot.get_or_insert_default();
            self::policy(rule, "cluster.router.prefill", served, Word::RoundRobin, f)?
        }
        (None, Some(_)) => return Err(only_split("prefill", f)),
        (None, None) => RouterPolicy::RoundRobin,
    };
    let balancer = match &mut router.balancer {
        None if !ranks => Routing::default().balancer,
        Some(_) if !ranks => {
            return Err(f.error(
                "cluster.router.balancer",
                "this key has no effect here",
                "it balances data-parallel ranks: give a pool dp above 1, or leave it out",
            ));
        }
        slot => {
            let rule = slot.get_or_insert_default();
            self::policy(rule, "cluster.router.balancer", answering, Word::VllmDp, f)?
        }
    };
    let all = [&policy, &prefill];
    let (age, source) = if all.iter().any(|p| matches!(p, RouterPolicy::Scorers { .. })) {
        (
            SCRAPE,
            Source::Derived("the default refresh-metrics-interval of the endpoint picker".to_owned()),
        )
    } else if ranks || all.iter().any(|p| matches!(p, RouterPolicy::VllmDp { .. })) {
        (VLLM_SNAPSHOT, Source::Derived("vLLM's coordinator".to_owned()))
    } else {
        (SimDuration::ZERO, Source::Default)
    };
    let metrics_interval = f.fill(
        PATH,
        "metrics_interval",
        &mut router.metrics_interval,
        source,
        span(age),
    );
    f.not_below(
        &format!("{PATH}.metrics_interval"),
        metrics_interval.0,
        SHORTEST_SCRAPE.0,
    )?;
    let decider = match (&mut router.decider, pools.prefill()) {
        (Some(_), None) => return Err(only_split("decider", f)),
        (None, None) => PrefillDecider::Always,
        (slot, Some(_)) => {
            let always = Decider {
                kind: DeciderWord::Always,
                threshold: None,
                queue_limit: None,
            };
            let decider = f.fill(PATH, "decider", slot, Source::Default, always);
            self::decider(&decider, f)?
        }
    };
    Ok(Routing {
        policy,
        prefill,
        balancer,
        metrics_interval: metrics_interval.0,
        decider,
    })
}

fn only_split(key: &str, f: &Filling<'_>) -> InputError {
    f.error(
        &format!("{PATH}.{key}"),
        "this key has no effect here",
        "it belongs to prefill and decode pools: leave it out",
    )
}

fn decider(d: &Decider, f: &Filling<'_>) -> Result<PrefillDecider, InputError> {
    const DECIDER: &str = "cluster.router.decider";
    let needed = |key: &str, value: Option<u32>| {
        value.ok_or_else(|| f.error(&format!("{DECIDER}.{key}"), "it is missing", "this kind needs it"))
    };
    let absent = |key: &str, value: Option<u32>| {
        let path = format!("{DECIDER}.{key}");
        f.blame()
            .absent(&path, value.as_ref(), "it belongs to another kind: leave it out")
    };
    Ok(match d.kind {
        DeciderWord::Always => {
            absent("threshold", d.threshold)?;
            absent("queue_limit", d.queue_limit)?;
            PrefillDecider::Always
        }
        DeciderWord::Uncached => {
            absent("queue_limit", d.queue_limit)?;
            PrefillDecider::Uncached {
                threshold: needed("threshold", d.threshold)?,
            }
        }
        DeciderWord::LongAndFree => PrefillDecider::LongAndFree {
            threshold: needed("threshold", d.threshold)?,
            queue_limit: needed("queue_limit", d.queue_limit)?,
        },
    })
}

/// Keys that belong to one policy only, and whether they are given.
fn keys(r: &RouterRule) -> [(&'static str, bool, Word); 9] {
    [
        ("clients", r.clients.is_some(), Word::VllmDp),
        ("scorers", r.scorers.is_some(), Word::Scorers),
        ("picker", r.picker.is_some(), Word::Scorers),
        ("overlap_weight", r.overlap_weight.is_some(), Word::KvCost),
        ("temperature", r.temperature.is_some(), Word::KvCost),
        ("block_size", r.block_size.is_some(), Word::KvCost),
        ("index", r.index.is_some(), Word::KvCost),
        ("load_bound", r.load_bound.is_some(), Word::SessionAffinity),
        ("virtual_nodes", r.virtual_nodes.is_some(), Word::SessionAffinity),
    ]
}

fn policy(
    rule: &mut RouterRule,
    path: &str,
    served: &ServedBy,
    default: Word,
    f: &mut Filling<'_>,
) -> Result<RouterPolicy, InputError> {
    let word = f.fill(path, "policy", &mut rule.policy, Source::Default, default);
    for (key, given, owner) in keys(rule) {
        if given && owner != word {
            let owner = serde_json::to_value(owner).ok();
            let owner = owner.as_ref().and_then(|v| v.as_str()).unwrap_or_default();
            let mend = format!("it belongs to policy {owner}: leave it out");
            f.blame().absent(&format!("{path}.{key}"), Some(&()), &mend)?;
        }
    }
    Ok(match word {
        Word::RoundRobin => RouterPolicy::RoundRobin,
        Word::Random => RouterPolicy::Random,
        Word::LeastOutstanding => RouterPolicy::LeastOutstanding,
        Word::PowerOfTwo => RouterPolicy::PowerOfTwo,
        Word::VllmDp => {
            let clients = f.fill(path, "clients", &mut rule.clients, Source::Default, 1);
            f.blame()
                .at_least_one(&format!("{path}.clients"), Some(clients))?;
            RouterPolicy::VllmDp {
                clients,
                before_0_28: !served.is_vllm_since((0, 28, 0)),
            }
        }
        Word::Scorers => scorers(rule, path, served, f)?,
        Word::KvCost => kv_cost(rule, path, served, f)?,
        Word::SessionAffinity => {
            let virtual_nodes = f.fill(
                path,
                "virtual_nodes",
                &mut rule.virtual_nodes,
                Source::Default,
                100,
            );
            f.blame()
                .at_least_one(&format!("{path}.virtual_nodes"), Some(virtual_nodes))?;
            let bound = format!("{path}.load_bound");
            if virtual_nodes > MAX_VIRTUAL_NODES {
                let found = format!("found {virtual_nodes}");
                let mend = format!("allowed: 1 to {MAX_VIRTUAL_NODES}");
                return Err(f.error(&format!("{path}.virtual_nodes"), found, mend));
            }
            if rule.load_bound.is_some_and(|b| b.0 < 1.0) {
                return Err(f.error(
                    &bound,
                    "a bound below the mean load leaves requests without a group",
                    "allowed: a number from 1; 1.25 is usual",
                ));
            }
            RouterPolicy::SessionAffinity {
                load_bound: rule.load_bound.map(|b| b.0),
                virtual_nodes,
            }
        }
    })
}

/// Bounds the memory of a mistyped number.
const MAX_VIRTUAL_NODES: u32 = 10_000;

fn kv_cost(
    rule: &mut RouterRule,
    path: &str,
    served: &ServedBy,
    f: &mut Filling<'_>,
) -> Result<RouterPolicy, InputError> {
    let approximate = IndexRule {
        kind: IndexWord::Precise,
        block_size: None,
        capacity_blocks: None,
        ttl: None,
    };
    let overlap_weight = f.number(path, "overlap_weight", &mut rule.overlap_weight, 1.0);
    let temperature = f.number(path, "temperature", &mut rule.temperature, 0.0);
    for (key, value) in [("overlap_weight", overlap_weight), ("temperature", temperature)] {
        not_negative(value, &format!("{path}.{key}"), f)?;
    }
    let own = served.engine.config.block_size;
    let engine = || Source::Derived("the engine's".to_owned());
    let block_size = f.fill(path, "block_size", &mut rule.block_size, engine(), own);
    f.blame()
        .at_least_one(&format!("{path}.block_size"), Some(block_size))?;
    f.fill(path, "index", &mut rule.index, Source::Default, approximate);
    let index = match &mut rule.index {
        Some(rule) => index(rule, &format!("{path}.index"), served, f)?,
        None => Index::Precise,
    };
    Ok(RouterPolicy::KvCost {
        overlap_weight,
        temperature,
        block_size,
        index,
    })
}

fn not_negative(value: f64, path: &str, f: &Filling<'_>) -> Result<(), InputError> {
    if value < 0.0 {
        return Err(f.error(
            path,
            format!("found {}", written(value)),
            "allowed: a number from 0 on",
        ));
    }
    Ok(())
}

fn index(
    rule: &mut IndexRule,
    path: &str,
    served: &ServedBy,
    f: &mut Filling<'_>,
) -> Result<Index, InputError> {
    if rule.kind == IndexWord::Precise {
        let mend = "it belongs to kind approximate: leave it out";
        f.blame()
            .absent(&format!("{path}.block_size"), rule.block_size.as_ref(), mend)?;
        f.blame().absent(
            &format!("{path}.capacity_blocks"),
            rule.capacity_blocks.as_ref(),
            mend,
        )?;
        f.blame()
            .absent(&format!("{path}.ttl"), rule.ttl.as_ref(), mend)?;
        return Ok(Index::Precise);
    }
    let engine = || Source::Derived("the engine's".to_owned());
    let config = &served.engine.config;
    let block_size = f.fill(
        path,
        "block_size",
        &mut rule.block_size,
        engine(),
        config.block_size,
    );
    let blocks = config.usable_blocks();
    let capacity_blocks = f.fill(
        path,
        "capacity_blocks",
        &mut rule.capacity_blocks,
        engine(),
        blocks,
    );
    f.blame()
        .at_least_one(&format!("{path}.block_size"), Some(block_size))?;
    f.blame()
        .at_least_one(&format!("{path}.capacity_blocks"), Some(capacity_blocks))?;
    Ok(Index::Approximate {
        block_size,
        capacity_blocks,
        ttl: f.above_zero(&format!("{path}.ttl"), rule.ttl)?,
    })
}

fn scorers(
    rule: &mut RouterRule,
    path: &str,
    served: &ServedBy,
    f: &mut Filling<'_>,
) -> Result<RouterPolicy, InputError> {
    let path = format!("{path}.scorers");
    let Some(list) = rule.scorers.as_mut().filter(|list| !list.is_empty()) else {
        return Err(f.error(
            &path,
            "there are no scorers",
            "name some, as `scorers: [{kind: queue}, {kind: prefix, weight: 2}]`",
        ));
    };
    let mut scorers = Vec::new();
    for (i, scorer) in list.iter_mut().enumerate() {
        let path = format!("{path}.{i}");
        let weight = f.number(&path, "weight", &mut scorer.weight, 1.0);
        not_negative(weight, &format!("{path}.weight"), f)?;
        scorers.push((self::scorer(scorer, &path, served, f)?, weight));
    }
    let parent = path.trim_end_matches(".scorers");
    let picker = f.fill(
        parent,
        "picker",
        &mut rule.picker,
        Source::Default,
        PickerWord::Max,
    );
    Ok(RouterPolicy::Scorers {
        scorers,
        picker: match picker {
            PickerWord::Max => Picker::Max,
            PickerWord::WeightedRandom => Picker::WeightedRandom,
        },
    })
}

fn scorer(
    s: &mut ScorerRule,
    path: &str,
    served: &ServedBy,
    f: &mut Filling<'_>,
) -> Result<Scorer, InputError> {
    if s.kind != ScorerWord::Prefix {
        let mend = "it belongs to kind prefix: leave it out";
        f.blame()
            .absent(&format!("{path}.index"), s.index.as_ref(), mend)?;
    }
    if s.kind != ScorerWord::ActiveRequest {
        let mend = "it belongs to kind active-request: leave it out";
        f.blame()
            .absent(&format!("{path}.factor"), s.factor.as_ref(), mend)?;
        f.blame().absent(&format!("{path}.idle"), s.idle.as_ref(), mend)?;
    }
    Ok(match s.kind {
        ScorerWord::Queue => Scorer::Queue,
        ScorerWord::Running => Scorer::Running,
        ScorerWord::KvUsage => Scorer::KvUsage,
        ScorerWord::LoadAware => Scorer::LoadAware,
        ScorerWord::Prefix => {
            let rule = s.index.get_or_insert(IndexRule {
                kind: IndexWord::Approximate,
                block_size: None,
                capacity_blocks: None,
                ttl: None,
            });
            Scorer::Prefix(index(rule, &format!("{path}.index"), served, f)?)
        }
        ScorerWord::ActiveRequest => {
            f.share(&format!("{path}.factor"), s.factor)?;
            Scorer::ActiveRequest {
                factor: s.factor.map_or(1.0, |Finite(factor)| factor),
                idle: s.idle.unwrap_or(0),
            }
        }
        ScorerWord::TokenLoad => Scorer::TokenLoad,
        ScorerWord::SessionAffinity => Scorer::SessionAffinity,
        ScorerWord::NoHitLru => Scorer::NoHitLru,
    })
}
