//! Virtual token counters: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024 (arXiv
//! 2401.00588), algorithm 2, and its weighted form.
//!
//! Each tenant has a counter of the service it got, in tokens by kind and weight. Who has the smallest one is
//! next. A tenant who comes back is lifted to those who waited meanwhile, so that nobody saves up service
//! while away.
//!
//! Counters are integers: weights are taken in millionths, and the unit is chosen such that one token of each
//! kind is a whole number of units for every tenant (a common multiple of the weights). Where that multiple
//! would be too large, a token's charge is rounded to the nearest unit, which is below one part in 2^16 of
//! it, and as a rule in 2^30.

use std::collections::{BTreeMap, BTreeSet};

use super::{GatewayError, MILLION, millionths};

/// The largest common multiple that leaves room for 2^32 tokens of the largest weight in a counter.
const LARGEST_UNIT: u128 = 1 << 56;

#[derive(Debug, Clone)]
pub(super) struct Vtc {
    /// Tenants' weights by number, divided by what they have in common; `other` is that of those beyond.
    weights: Vec<u64>,
    other: u64,
    /// Units of a token of weight 1 for a tenant of weight 1.
    unit: u128,
    /// Token weights, divided by what they have in common.
    input: u64,
    output: u64,
    /// Weighted tokens a unit, for reports.
    scale: f64,
    counters: BTreeMap<u32, u128>,
    waiting: BTreeSet<(u128, u32)>,
    last_left: Option<u32>,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The least common multiple of the weights, or the largest unit where that would be larger.
fn common_multiple(weights: impl Iterator<Item = u64>) -> u128 {
    weights
        .map(u128::from)
        .try_fold(1_u128, |multiple, weight| {
            let shared = gcd((multiple % weight) as u64, weight as u64);
            let next = multiple * (weight / u128::from(shared));
            (next <= LARGEST_UNIT).then_some(next)
        })
        .unwrap_or(LARGEST_UNIT)
}

impl Vtc {
    pub fn new(weights: &[f64], input: f64, output: f64) -> Result<Self, GatewayError> {
        let mut weights = super::queue::tenant_weights(weights)?;
        let mut input = millionths("the weight of an input token", input, 0.0, 1e6)?;
        let mut output = millionths("the weight of an output token", output, 0.0, 1e6)?;
        let per_token = gcd(input, output);
        if per_token == 0 {
            return Err(GatewayError::NothingCharged);
        }
        input /= per_token;
        output /= per_token;
        let shared = weights
            .iter()
            .fold(MILLION, |shared, &weight| gcd(shared, weight));
        weights.iter_mut().for_each(|weight| *weight /= shared);
        let other = MILLION / shared;
        let unit = common_multiple(weights.iter().copied().chain([other]));
        let scale = per_token as f64 / (unit as f64 * shared as f64);
        Ok(Self {
            weights,
            other,
            unit,
            input,
            output,
            scale,
            counters: BTreeMap::new(),
            waiting: BTreeSet::new(),
            last_left: None,
        })
    }

    fn charge(&mut self, tenant: u32, tokens: u64, token_weight: u64) {
        let weight = u128::from(self.weights.get(tenant as usize).copied().unwrap_or(self.other));
        let per_token = (u128::from(token_weight) * self.unit + weight / 2) / weight;
        let counter = self.counters.entry(tenant).or_default();
        let before = *counter;
        *counter = before.saturating_add(per_token.saturating_mul(u128::from(tokens)));
        let after = *counter;
        if self.waiting.remove(&(before, tenant)) {
            self.waiting.insert((after, tenant));
        }
    }

    /// A tenant of whom nothing waited has a request now: it is lifted to the smallest counter of those who
    /// wait, or, where nobody does, to that of who was the last to. The authors' own code (VTC-artifact) lifts in the
    /// first case alone; the second is by the paper's algorithm and was not confirmed a second time.
    pub fn enter(&mut self, tenant: u32) {
        let lift = match self.waiting.first() {
            Some(&(least, _)) => least,
            None => self
                .last_left
                .map_or(0, |last| self.counters.get(&last).copied().unwrap_or(0)),
        };
        let counter = self.counters.entry(tenant).or_default();
        *counter = lift.max(*counter);
        self.waiting.insert((*counter, tenant));
    }

    /// Nothing waits of a tenant any more.
    pub fn leave(&mut self, tenant: u32) {
        let counter = self.counters.get(&tenant).copied().unwrap_or(0);
        self.waiting.remove(&(counter, tenant));
        self.last_left = Some(tenant);
    }

    /// Whose turn it is.
    pub fn next(&self) -> Option<u32> {
        self.waiting.first().map(|&(_, tenant)| tenant)
    }

    pub fn charge_input(&mut self, tenant: u32, tokens: u64) {
        self.charge(tenant, tokens, self.input);
    }

    pub fn charge_output(&mut self, tenant: u32, tokens: u64) {
        self.charge(tenant, tokens, self.output);
    }

    /// A tenant's counter in weighted tokens, divided by its weight.
    pub fn counter(&self, tenant: u32) -> f64 {
        self.counters
            .get(&tenant)
            .map_or(0.0, |&units| units as f64 * self.scale)
    }
}
