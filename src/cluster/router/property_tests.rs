//! What holds of every policy, whatever it is asked.

use proptest::prelude::*;

use super::tests::{idle, plain, router, target};
use super::*;
use crate::units::SimDuration;

fn any_index() -> impl Strategy<Value = Index> {
    let approximate = (0_u32..40, 0_u32..60, prop::option::of(0_u64..50)).prop_map(|(size, blocks, ttl)| {
        Index::Approximate {
            block_size: size,
            capacity_blocks: blocks,
            ttl: ttl.map(SimDuration),
        }
    });
    prop_oneof![Just(Index::Precise), approximate]
}

fn any_scorer() -> impl Strategy<Value = Scorer> {
    prop_oneof![
        Just(Scorer::Queue),
        Just(Scorer::Running),
        Just(Scorer::KvUsage),
        Just(Scorer::LoadAware),
        any_index().prop_map(Scorer::Prefix),
        (any::<f64>(), 0_u32..4).prop_map(|(factor, idle)| Scorer::ActiveRequest { factor, idle }),
        Just(Scorer::TokenLoad),
        Just(Scorer::SessionAffinity),
        Just(Scorer::NoHitLru),
    ]
}

fn any_policy() -> impl Strategy<Value = RouterPolicy> {
    let scorers = prop::collection::vec((any_scorer(), any::<f64>()), 0..5);
    let picker = prop_oneof![Just(Picker::Max), Just(Picker::WeightedRandom)];
    let cost = (any::<f64>(), any::<f64>(), 0_u32..40, any_index());
    prop_oneof![
        Just(RouterPolicy::RoundRobin),
        Just(RouterPolicy::Random),
        Just(RouterPolicy::LeastOutstanding),
        Just(RouterPolicy::PowerOfTwo),
        (0_u32..5, any::<bool>())
            .prop_map(|(clients, before_0_28)| RouterPolicy::VllmDp { clients, before_0_28 }),
        (scorers, picker).prop_map(|(scorers, picker)| RouterPolicy::Scorers { scorers, picker }),
        cost.prop_map(
            |(overlap_weight, temperature, block_size, index)| RouterPolicy::KvCost {
                overlap_weight,
                temperature,
                block_size,
                index,
            }
        ),
        (prop::option::of(any::<f64>()), 0_u32..20).prop_map(|(load_bound, virtual_nodes)| {
            RouterPolicy::SessionAffinity {
                load_bound,
                virtual_nodes,
            }
        }),
    ]
}

fn any_candidate() -> impl Strategy<Value = Candidate> {
    let usage = prop_oneof![0.0..=1.0, any::<f64>(), Just(f64::NAN)];
    let counts = (0_u32..4, 0_u32..4, usage, prop_oneof![0_u32..4, any::<u32>()]);
    let own = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>());
    (prop_oneof![0_u32..20, any::<u32>()], counts, own).prop_map(
        |(target, (waiting, running, kv_usage, in_flight), own)| Candidate {
            target,
            waiting,
            running,
            kv_usage,
            in_flight,
            in_flight_tokens: own.0,
            prefill_tokens: own.1,
            active_blocks: own.2,
            cached_tokens: own.3,
        },
    )
}

fn any_call() -> impl Strategy<Value = (Asked, Vec<Candidate>, Option<u32>)> {
    let asked = (
        prop_oneof![0_u32..500, any::<u32>()],
        prop::option::of((0_u32..4, prop_oneof![0_u32..500, any::<u32>()])),
        prop::option::of(0_u32..4),
        0_u32..3,
    )
        .prop_map(|(input_tokens, prefix, session, tenant)| Asked {
            input_tokens,
            prefix,
            session,
            tenant,
        });
    let candidates = prop::collection::vec(any_candidate(), 0..8).prop_map(|mut candidates| {
        candidates.sort_by_key(|candidate| candidate.target);
        candidates.dedup_by_key(|candidate| candidate.target);
        candidates
    });
    (asked, candidates, prop::option::of(0_u32..20))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_choice_is_a_candidate_and_hangs_on_who_is_there_and_not_where(
        policy in any_policy(),
        calls in prop::collection::vec(any_call(), 1..30),
    ) {
        let (mut one, mut other) = (router(policy.clone()), router(policy));
        for (n, (asked, candidates, left)) in calls.into_iter().enumerate() {
            let now = SimTime(10 * n as u64);
            let chosen = one.choose(now, &asked, &candidates);
            prop_assert_eq!(chosen.is_none(), candidates.is_empty());
            prop_assert!(chosen.is_none_or(|index| index < candidates.len()));
            prop_assert!(one.believed_cached() <= asked.input_tokens);
            let reversed: Vec<_> = candidates.iter().rev().copied().collect();
            let again = other.choose(now, &asked, &reversed);
            prop_assert_eq!(
                chosen.map(|index| candidates[index].target),
                again.map(|index| reversed[index].target)
            );
            if let Some(left) = left {
                one.left(left);
                other.left(left);
            }
            if n % 5 == 4 {
                one.snapshot();
                other.snapshot();
            }
        }
    }

    /// Between two changes of membership every window of n calls holds each of the n members once, and across a change
    /// the cycle goes on: the next one is the first member after the last choice.
    #[test]
    fn round_robin_cycles_exactly_through_whoever_is_there(
        phases in prop::collection::vec((prop::collection::btree_set(0_u32..30, 1..10), 1_usize..25), 1..8),
    ) {
        let mut router = router(RouterPolicy::RoundRobin);
        let mut last: Option<u32> = None;
        for (members, calls) in phases {
            let candidates: Vec<_> = members.iter().copied().map(idle).collect();
            for _ in 0..calls {
                let after = last.and_then(|last| members.range(last + 1..).next());
                let expected = after.or(members.first()).copied();
                let chosen = target(&mut router, &plain(8), &candidates);
                prop_assert_eq!(Some(chosen), expected);
                last = Some(chosen);
            }
        }
    }
}
