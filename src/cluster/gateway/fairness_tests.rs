//! What the sources promise, shown on toy servers: the bound of virtual token counters, the bound of deficit
//! round-robin, and that first come first served keeps neither.

use proptest::prelude::*;
use rand::RngExt;
use rand_pcg::Pcg64;

use super::queue::*;
use crate::rng::{Purpose, stream};
use crate::units::SimTime;

const TENANTS: u32 = 4;
const LONGEST_INPUT: u32 = 60;
const LONGEST_OUTPUT: u32 = 40;

/// A server that holds at most `memory` tokens, reserves a request's input and output when it admits it, and
/// then gives each running request one token a step.
struct Server {
    queue: FairQueue,
    rng: Pcg64,
    memory: u32,
    input_weight: u64,
    output_weight: u64,
    /// Output length by request number.
    outputs: Vec<u32>,
    /// Tenant, output tokens left, tokens reserved.
    running: Vec<(u32, u32, u32)>,
    service: Vec<u64>,
}

impl Server {
    fn new(policy: &FairPolicy, seed: u64, memory: u32, input_weight: u64, output_weight: u64) -> Self {
        Self {
            queue: FairQueue::new(policy).expect("a policy that can be used"),
            rng: stream(seed, Purpose::Lengths, 0),
            memory,
            input_weight,
            output_weight,
            outputs: Vec::new(),
            running: Vec::new(),
            service: vec![0; TENANTS as usize],
        }
    }

    fn arrive(&mut self, tenant: u32) {
        // Tenants of odd numbers send long prompts, even ones short prompts with long answers.
        let long = tenant % 2 == 1;
        let input = self
            .rng
            .random_range(if long { 20..=LONGEST_INPUT } else { 1..=10 });
        let output = self
            .rng
            .random_range(if long { 1..=5 } else { 1..=LONGEST_OUTPUT });
        let id = self.outputs.len() as u32;
        self.outputs.push(output);
        self.queue.push(Item {
            id,
            tenant,
            priority: 0,
            input_tokens: input,
            at: SimTime(0),
        });
    }

    /// Tenants below `always` have three requests waiting whenever a step starts; the others come by chance.
    fn arrivals(&mut self, always: u32) {
        for tenant in 0..TENANTS {
            if tenant < always {
                while self.queue.len_of(tenant) < 3 {
                    self.arrive(tenant);
                }
            } else if self.rng.random_range(0..6) == 0 {
                self.arrive(tenant);
            }
        }
    }

    /// Admits one request if it fits.
    fn admit(&mut self) -> bool {
        let reserved: u32 = self.running.iter().map(|row| row.2).sum();
        let Some(next) = self.queue.peek() else {
            return false;
        };
        let output = self.outputs[next.id as usize];
        let wants = next.input_tokens + output;
        if reserved + wants > self.memory {
            return false;
        }
        let item = self.queue.pop().expect("what was looked at");
        self.service[item.tenant as usize] += self.input_weight * u64::from(item.input_tokens);
        self.running.push((item.tenant, output, wants));
        true
    }

    fn decode(&mut self) {
        for (tenant, left, _) in &mut self.running {
            *left -= 1;
            self.queue.charge_output(*tenant, 1);
            self.service[*tenant as usize] += self.output_weight;
        }
        self.running.retain(|row| row.1 > 0);
    }
}

/// How far the weighted services of two tenants drift apart over any span in which both always have requests
/// waiting.
struct Drift {
    pair: (u32, u32),
    weights: (u64, u64),
    range: Option<(i128, i128)>,
    worst: i128,
}

impl Drift {
    fn new(pair: (u32, u32), weights: &[u64]) -> Self {
        let weight = |tenant| weights.get(tenant as usize).copied().unwrap_or(1);
        Self {
            pair,
            weights: (weight(pair.0), weight(pair.1)),
            range: None,
            worst: 0,
        }
    }

    /// The difference times both weights, so that no side is rounded.
    fn watch(&mut self, queue: &FairQueue, service: &[u64]) {
        let (a, b) = self.pair;
        if queue.len_of(a) == 0 || queue.len_of(b) == 0 {
            self.range = None;
            return;
        }
        let part = |tenant: u32, weight: u64| i128::from(service[tenant as usize]) * i128::from(weight);
        let now = part(a, self.weights.1) - part(b, self.weights.0);
        let (low, high) = self.range.unwrap_or((now, now));
        self.range = Some((low.min(now), high.max(now)));
        self.worst = self.worst.max(high.max(now) - low.min(now));
    }
}

/// The worst drift of each pair in a run, with the larger weight of the pair.
fn drifts(server: &mut Server, weights: &[u64], always: u32, steps: u32) -> Vec<(i128, u64)> {
    let pairs = (0..TENANTS).flat_map(|a| (a + 1..TENANTS).map(move |b| (a, b)));
    let mut drifts: Vec<Drift> = pairs.map(|pair| Drift::new(pair, weights)).collect();
    for _ in 0..steps {
        server.arrivals(always);
        loop {
            drifts
                .iter_mut()
                .for_each(|drift| drift.watch(&server.queue, &server.service));
            if !server.admit() {
                break;
            }
        }
        server.decode();
    }
    drifts
        .iter()
        .map(|drift| (drift.worst, drift.weights.0.max(drift.weights.1)))
        .collect()
}

fn floats(weights: &[u64]) -> Vec<f64> {
    weights.iter().map(|&weight| weight as f64).collect()
}

/// `2 * max(w_p * longest input, w_q * M)`, divided by the smaller weight of a pair, times both weights.
fn vtc_bound(server: &Server, larger: u64) -> i128 {
    let input = server.input_weight * u64::from(LONGEST_INPUT);
    let output = server.output_weight * u64::from(server.memory);
    i128::from(2 * input.max(output) * larger)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn virtual_counters_keep_the_bound_of_their_theorem(
        seed in any::<u64>(), memory in 100_u32..500, always in 2..=TENANTS,
        (input_weight, output_weight) in (1_u64..3).prop_flat_map(|input| (Just(input), input..4)),
        weights in prop::collection::vec(1_u64..5, 0..4),
    ) {
        let policy = FairPolicy::Vtc {
            weights: floats(&weights),
            input_weight: input_weight as f64,
            output_weight: output_weight as f64,
        };
        let mut server = Server::new(&policy, seed, memory, input_weight, output_weight);
        for (worst, larger) in drifts(&mut server, &weights, always, 400) {
            prop_assert!(worst <= vtc_bound(&server, larger), "{} of {}", worst, vtc_bound(&server, larger));
        }
    }

    #[test]
    fn deficit_round_robin_keeps_its_bound_over_input_tokens(
        seed in any::<u64>(), memory in 100_u32..500, always in 2..=TENANTS, quantum in 1_u64..200,
        weights in prop::collection::vec(1_u64..5, 0..4),
    ) {
        let policy = FairPolicy::DeficitRoundRobin { quantum_tokens: quantum, weights: floats(&weights) };
        let mut server = Server::new(&policy, seed, memory, 1, 0);
        let pairs = (0..TENANTS).flat_map(|a| (a + 1..TENANTS).map(move |b| (a, b)));
        let found = drifts(&mut server, &weights, always, 400);
        for ((a, b), (worst, _)) in pairs.zip(found) {
            // quantum + longest / w_a + longest / w_b, times both weights.
            let weight = |tenant: u32| weights.get(tenant as usize).copied().unwrap_or(1);
            let (wa, wb) = (weight(a), weight(b));
            let bound = quantum * wa * wb + u64::from(LONGEST_INPUT) * (wa + wb);
            prop_assert!(worst <= i128::from(bound), "{} of {}", worst, bound);
        }
    }
}

#[test]
fn first_come_first_served_breaks_the_bound_and_counters_mend_it() {
    let drift = |policy: &FairPolicy| {
        let mut server = Server::new(policy, 1, 200, 1, 2);
        for _ in 0..20 {
            // Tenant 1 floods the queue before tenant 0 comes.
            (0..20).for_each(|_| server.arrive(1));
            server.arrive(0);
        }
        let found = drifts(&mut server, &[], 2, 300)[0].0;
        (found, vtc_bound(&server, 1))
    };
    let (fcfs, bound) = drift(&FairPolicy::Fcfs);
    assert!(fcfs > 4 * bound, "{fcfs} of {bound}");
    let (vtc, bound) = drift(&FairPolicy::vtc());
    assert!(vtc <= bound, "{vtc} of {bound}");
}

#[test]
fn who_was_away_has_saved_up_nothing() {
    // Tenant 1 is away while tenant 0 is served 100 000 tokens; after that they share evenly, to within the
    // bound.
    let mut q = FairQueue::new(&FairPolicy::vtc()).expect("a policy");
    let push = |q: &mut FairQueue, id, tenant| {
        q.push(Item {
            id,
            tenant,
            priority: 0,
            input_tokens: 100,
            at: SimTime(0),
        })
    };
    assert!((0..2000).all(|id| push(&mut q, id, 0)));
    assert!((0..1000).all(|_| q.pop().is_some()));
    assert!((5000..6000).all(|id| push(&mut q, id, 1)));
    let of_one = (0..1000)
        .filter(|_| q.pop().is_some_and(|item| item.tenant == 1))
        .count();
    assert_eq!(of_one, 500);
}
