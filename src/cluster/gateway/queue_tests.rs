//! Orders worked out by hand, and every policy against a plain model of it.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::GatewayError;
use super::queue::*;
use crate::units::SimTime;

fn queue(policy: &FairPolicy) -> FairQueue {
    FairQueue::new(policy).expect("a policy that can be used")
}

fn item(id: u32, tenant: u32, input_tokens: u32) -> Item {
    Item {
        id,
        tenant,
        priority: 0,
        input_tokens,
        at: SimTime(u64::from(id)),
    }
}

fn vtc(weights: &[f64], input_weight: f64, output_weight: f64) -> FairPolicy {
    FairPolicy::Vtc {
        weights: weights.to_vec(),
        input_weight,
        output_weight,
    }
}

fn drr(quantum_tokens: u64, weights: &[f64]) -> FairPolicy {
    FairPolicy::DeficitRoundRobin {
        quantum_tokens,
        weights: weights.to_vec(),
    }
}

/// Pushes (tenant, tokens) as requests 0, 1, 2, …
fn filled(policy: &FairPolicy, requests: &[(u32, u32)]) -> FairQueue {
    let mut q = queue(policy);
    for (id, &(tenant, tokens)) in requests.iter().enumerate() {
        assert!(q.push(item(id as u32, tenant, tokens)));
    }
    q
}

fn order(q: &mut FairQueue) -> Vec<u32> {
    std::iter::from_fn(|| q.pop()).map(|item| item.id).collect()
}

fn virtual_tokens(q: &FairQueue) -> Vec<(u32, f64)> {
    q.snapshot()
        .iter()
        .map(|state| (state.tenant, state.virtual_tokens))
        .collect()
}

#[test]
fn first_come_first_served_whoever_it_is() {
    let mut q = filled(&FairPolicy::Fcfs, &[(1, 5), (0, 5), (1, 5), (7, 5)]);
    assert_eq!(q.remove(1), Some(item(1, 0, 5)));
    assert_eq!(order(&mut q), [0, 2, 3]);
}

#[test]
fn the_smallest_priority_value_first_then_the_older() {
    let mut q = queue(&FairPolicy::Priority);
    for (id, priority) in [(0, 5), (1, -1), (2, 5), (3, 0), (4, -1)] {
        q.push(Item {
            priority,
            ..item(id, 0, 1)
        });
    }
    assert_eq!(order(&mut q), [1, 4, 3, 0, 2]);
}

#[test]
fn counters_take_turns_by_tokens_not_by_requests() {
    // Tenant 0 first on the tie (10), then tenant 1 up to 4, 8, 12, then tenant 0.
    let requests = [(0, 10), (0, 10), (1, 4), (1, 4), (1, 4)];
    let mut q = filled(&FairPolicy::vtc(), &requests);
    assert_eq!(order(&mut q), [0, 2, 3, 4, 1]);
    // Five output tokens of tenant 1 count ten: 14 against 10.
    let mut q = filled(&FairPolicy::vtc(), &requests);
    assert_eq!((q.pop(), q.pop()), (Some(item(0, 0, 10)), Some(item(2, 1, 4))));
    q.charge_output(1, 5);
    assert_eq!(virtual_tokens(&q), [(0, 10.0), (1, 14.0)]);
    assert_eq!(order(&mut q), [1, 3, 4]);
}

#[test]
fn thirds_are_exact_so_ties_are_ties() {
    // Tenant 0 pays a third: 1/3 | 1 | 2/3, 1, tie, 4/3 | 2 | 5/3, 2, tie, …
    let requests: Vec<_> = (0..14).map(|i| (u32::from(i >= 8), 1)).collect();
    let mut q = filled(&vtc(&[3.0, 1.0], 1.0, 2.0), &requests);
    let tenants: Vec<u32> = std::iter::from_fn(|| q.pop()).map(|item| item.tenant).collect();
    assert_eq!(tenants, [0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1, 1]);
}

#[test]
fn who_comes_back_to_a_queue_is_lifted_to_the_smallest_counter_there() {
    let mut q = filled(
        &FairPolicy::vtc(),
        &[(0, 100), (0, 50), (1, 120), (1, 50), (0, 1), (1, 1)],
    );
    assert_eq!((q.pop(), q.pop()), (Some(item(0, 0, 100)), Some(item(2, 1, 120))));
    q.push(item(9, 2, 10));
    assert_eq!(virtual_tokens(&q), [(0, 100.0), (1, 120.0), (2, 100.0)]);
    // Never lowered: tenant 2 leaves at 110, is charged, and comes back to a smaller minimum.
    assert_eq!(q.pop().map(|item| item.id), Some(1));
    assert_eq!(q.pop().map(|item| item.id), Some(9));
    q.charge_output(2, 100);
    q.push(item(10, 2, 10));
    assert_eq!(virtual_tokens(&q), [(0, 150.0), (1, 120.0), (2, 310.0)]);
    // A second request of who waits already lifts nobody.
    q.push(item(11, 2, 10));
    assert_eq!(order(&mut q), [3, 4, 5, 10, 11]);
}

#[test]
fn who_comes_to_an_empty_queue_is_lifted_to_who_left_it_last() {
    let mut q = filled(&FairPolicy::vtc(), &[(0, 30), (1, 20)]);
    assert_eq!(order(&mut q), [0, 1]);
    // Tenant 1 was last to leave (20), and is charged 2 * 4 while it runs: that is what counts now.
    q.charge_output(1, 4);
    q.push(item(5, 2, 1));
    assert_eq!(virtual_tokens(&q), [(0, 30.0), (1, 28.0), (2, 28.0)]);
    // A client that gives up leaves as well.
    assert!(q.remove(5).is_some());
    q.charge_output(2, 6);
    q.push(item(6, 3, 1));
    assert_eq!(virtual_tokens(&q), [(0, 30.0), (1, 28.0), (2, 40.0), (3, 40.0)]);
}

#[test]
fn deficits_are_kept_between_visits_and_lost_with_the_last_request() {
    let requests = [(0, 4), (0, 9), (0, 8), (1, 10), (1, 10), (2, 25)];
    let mut q = filled(&drr(10, &[]), &requests);
    // Lap 1: 0 sends 4 (6 left), 1 sends 10, 2 saves 10. Lap 2: 0 has 16, sends 9 (7 left), 1 sends 10 and
    // leaves, 2 has 20. Lap 3: 0 has 17, sends 8 and leaves, 2 has 30 and sends 25.
    assert_eq!(q.pop(), Some(item(0, 0, 4)));
    let deficits: Vec<f64> = q.snapshot().iter().map(|state| state.deficit_tokens).collect();
    assert_eq!(deficits, [6.0, 0.0, 0.0]);
    assert_eq!(order(&mut q), [3, 1, 4, 2, 5]);
    assert!(q.snapshot().iter().all(|state| state.deficit_tokens < 1e-9));
}

#[test]
fn twice_the_weight_sends_twice_as_much_a_visit() {
    let requests = [(0, 10), (0, 10), (0, 10), (0, 10), (1, 10), (1, 10)];
    let mut q = filled(&drr(10, &[2.0, 1.0]), &requests);
    assert_eq!(order(&mut q), [0, 1, 4, 2, 3, 5]);
    // A newcomer waits behind those in the ring, and before the one whose visit is under way.
    let mut q = filled(&drr(10, &[]), &[(0, 10), (0, 10), (1, 10), (1, 10)]);
    q.pop();
    q.push(item(9, 5, 10));
    assert_eq!(order(&mut q), [2, 9, 1, 3]);
}

#[test]
fn a_tiny_quantum_computes_its_laps() {
    let mut q = filled(&drr(1, &[1e-6]), &[(0, u32::MAX), (1, u32::MAX), (2, 1)]);
    assert_eq!(order(&mut q), [2, 1, 0]);
}

#[test]
fn a_number_waits_once() {
    let mut q = filled(&FairPolicy::vtc(), &[(0, 3)]);
    assert!(!q.push(item(0, 1, 4)));
    assert_eq!((q.len(), q.tokens(), q.len_of(0), q.len_of(1)), (1, 3, 1, 0));
    assert_eq!(q.remove(7), None);
    assert!(q.pop().is_some() && q.pop().is_none() && q.is_empty());
    assert!(q.push(item(0, 1, 4)), "it may come back after it left");
}

#[test]
fn weights_that_mean_nothing_are_refused_in_words() {
    let error = |policy| FairQueue::new(&policy).map(drop).expect_err("refused");
    assert_eq!(
        error(vtc(&[1.0, 0.0], 1.0, 2.0)).to_string(),
        "the weight of a tenant is 0; it must be between 0.000001 and 1000000"
    );
    assert!(FairQueue::new(&vtc(&[f64::NAN], 1.0, 2.0)).is_err());
    assert!(FairQueue::new(&vtc(&[], -1.0, 2.0)).is_err());
    assert_eq!(error(vtc(&[], 0.0, 0.0)), GatewayError::NothingCharged);
    assert_eq!(
        error(drr(0, &[])),
        GatewayError::Zero {
            what: "the quantum of deficit round-robin"
        }
    );
    assert!(FairQueue::new(&drr(1, &[f64::INFINITY])).is_err());
}

#[test]
fn odd_and_extreme_weights_stay_near_their_share_and_never_overflow() {
    // No common multiple fits: 40 weights with 7-digit parts.
    let weights: Vec<f64> = (0..40).map(|i| 1.0 + f64::from(i * i) * 0.012_347).collect();
    let mut q = queue(&vtc(&weights, 1.0, 2.0));
    for (tenant, weight) in weights.iter().enumerate() {
        q.push(item(tenant as u32, tenant as u32, 1));
        let before = q.snapshot()[tenant].virtual_tokens;
        q.charge_output(tenant as u32, 1_000_000);
        let counter = q.snapshot()[tenant].virtual_tokens - before;
        assert!((counter * weight / 2e6 - 1.0).abs() < 1e-6, "{counter} {weight}");
    }
    let mut q = queue(&vtc(&[1e-6, 1e6], 1e6, 1e6));
    for id in 0..4 {
        q.push(item(id, id % 2, u32::MAX));
    }
    q.charge_output(0, u64::MAX);
    q.charge_output(0, u64::MAX);
    assert_eq!(order(&mut q), [1, 3, 0, 2]);
}

/// A policy as its source writes it, with lists that are searched and loops that are walked.
#[derive(Debug)]
enum Model {
    Fcfs,
    Priority,
    /// Counters in units of a token of weight 1 for a tenant of weight 12.
    Vtc {
        weights: Vec<u64>,
        counters: BTreeMap<u32, u64>,
        last_left: Option<u32>,
    },
    Drr {
        quantum: u64,
        weights: Vec<u64>,
        active: VecDeque<u32>,
        deficits: BTreeMap<u32, u64>,
        visiting: bool,
    },
}

impl Model {
    fn weight(weights: &[u64], tenant: u32) -> u64 {
        weights.get(tenant as usize).copied().unwrap_or(1)
    }

    fn push(&mut self, waiting: &[Item], tenant: u32) {
        if waiting.iter().any(|item| item.tenant == tenant) {
            return;
        }
        match self {
            Self::Vtc {
                counters, last_left, ..
            } => {
                let there = waiting.iter().map(|item| counters[&item.tenant]).min();
                let lift = there.or(last_left.map(|last| counters[&last])).unwrap_or(0);
                let counter = counters.entry(tenant).or_insert(0);
                *counter = lift.max(*counter);
            }
            Self::Drr { active, deficits, .. } => {
                active.push_back(tenant);
                deficits.insert(tenant, 0);
            }
            _ => {}
        }
    }

    fn next(&mut self, waiting: &[Item]) -> Option<usize> {
        let oldest = |tenant| waiting.iter().position(|item| item.tenant == tenant);
        match self {
            Self::Fcfs => (!waiting.is_empty()).then_some(0),
            Self::Priority => (0..waiting.len()).min_by_key(|&i| waiting[i].priority),
            Self::Vtc {
                weights, counters, ..
            } => {
                let tenant = waiting
                    .iter()
                    .map(|item| item.tenant)
                    .min_by_key(|&t| (counters[&t], t))?;
                let at = oldest(tenant)?;
                let cost = u64::from(waiting[at].input_tokens) * 12 / Self::weight(weights, tenant);
                *counters.get_mut(&tenant)? += cost;
                Some(at)
            }
            Self::Drr {
                quantum,
                weights,
                active,
                deficits,
                visiting,
            } => loop {
                let &tenant = active.front()?;
                let deficit = deficits.get_mut(&tenant)?;
                if !*visiting {
                    *deficit += *quantum * Self::weight(weights, tenant);
                    *visiting = true;
                }
                let at = oldest(tenant)?;
                let cost = u64::from(waiting[at].input_tokens.max(1));
                if cost <= *deficit {
                    *deficit -= cost;
                    return Some(at);
                }
                active.rotate_left(1);
                *visiting = false;
            },
        }
    }

    fn left(&mut self, waiting: &[Item], tenant: u32) {
        if waiting.iter().any(|item| item.tenant == tenant) {
            return;
        }
        match self {
            Self::Vtc { last_left, .. } => *last_left = Some(tenant),
            Self::Drr { active, visiting, .. } => {
                *visiting &= active.front() != Some(&tenant);
                active.retain(|&t| t != tenant);
            }
            _ => {}
        }
    }

    fn output(&mut self, tenant: u32, tokens: u64) {
        if let Self::Vtc {
            weights, counters, ..
        } = self
        {
            *counters.entry(tenant).or_insert(0) += 2 * tokens * 12 / Self::weight(weights, tenant);
        }
    }
}

fn policies() -> impl Strategy<Value = (FairPolicy, Model)> {
    let weights = prop::collection::vec(prop::sample::select(vec![1_u64, 2, 3, 4, 6]), 0..4);
    (0..4, weights, 1_u64..60).prop_map(|(kind, weights, quantum)| {
        let floats: Vec<f64> = weights.iter().map(|&weight| weight as f64).collect();
        match kind {
            0 => (FairPolicy::Fcfs, Model::Fcfs),
            1 => (FairPolicy::Priority, Model::Priority),
            2 => (
                vtc(&floats, 1.0, 2.0),
                Model::Vtc {
                    weights,
                    counters: BTreeMap::new(),
                    last_left: None,
                },
            ),
            _ => (
                drr(quantum, &floats),
                Model::Drr {
                    quantum,
                    weights,
                    active: VecDeque::new(),
                    deficits: BTreeMap::new(),
                    visiting: false,
                },
            ),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_policy_is_its_plain_model_and_conserves_work(
        (policy, mut model) in policies(),
        steps in prop::collection::vec((0..10, 0_u32..5, -2..3, 0_u32..100), 1..150),
    ) {
        let mut q = queue(&policy);
        let mut waiting: Vec<Item> = Vec::new();
        for (id, (kind, tenant, priority, tokens)) in steps.into_iter().enumerate() {
            match kind {
                0..=4 => {
                    let item = Item { id: id as u32, tenant, priority, input_tokens: tokens, at: SimTime(0) };
                    model.push(&waiting, tenant);
                    waiting.push(item);
                    prop_assert!(q.push(item));
                }
                5..=7 => {
                    let expected = model.next(&waiting).map(|at| waiting.remove(at));
                    prop_assert_eq!(q.peek().copied(), expected);
                    prop_assert_eq!(q.pop(), expected);
                    if let Some(item) = expected {
                        model.left(&waiting, item.tenant);
                    }
                }
                8 if !waiting.is_empty() => {
                    let gone = waiting.remove(tokens as usize % waiting.len());
                    model.left(&waiting, gone.tenant);
                    prop_assert_eq!(q.remove(gone.id), Some(gone));
                    prop_assert_eq!(q.remove(gone.id), None);
                }
                _ => {
                    model.output(tenant, u64::from(tokens));
                    q.charge_output(tenant, u64::from(tokens));
                }
            }
            prop_assert_eq!(q.len(), waiting.len());
            prop_assert_eq!(q.peek().is_some(), !waiting.is_empty());
            prop_assert_eq!(q.tokens(), waiting.iter().map(|item| u64::from(item.input_tokens)).sum::<u64>());
            let of_tenant = waiting.iter().filter(|item| item.tenant == tenant).count();
            prop_assert_eq!(q.len_of(tenant), of_tenant);
        }
        prop_assert_eq!(order(&mut q).len(), waiting.len());
        prop_assert_eq!((q.tokens(), q.is_empty()), (0, true));
    }
}
