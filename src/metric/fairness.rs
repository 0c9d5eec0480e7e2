//! Fairness between tenants: who got how much, who waited, who starved.
//!
//! Work and service are in weighted tokens, as in Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024):
//! an input token counts 1 and an output token 2, unless said otherwise. Input tokens count whether or not they were found
//! in the prefix cache: they were served to the tenant, and how much of them was cached is a figure of its own.
//!
//! A row does not say when each of its tokens was computed, so a request's service is spread evenly from its first
//! schedule to its end.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{SimTime, written};

mod sweep;
mod victims;

use sweep::Swept;
pub use victims::{VictimCost, cost_to_victims};

/// One request as fairness sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FairRow {
    /// Whose it is.
    pub tenant: u32,
    /// When it arrived.
    pub arrival: SimTime,
    /// When it was first served; none if it never was.
    pub first_scheduled: Option<SimTime>,
    /// When it ended, however it did; for one that was cut off, the end of the run.
    pub end: SimTime,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Output tokens produced.
    pub output_tokens: u32,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
    /// KV bytes held, times the seconds that they were held.
    pub kv_byte_seconds: f64,
    /// All its output arrived.
    pub completed: bool,
}

/// What a token counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenWeights {
    /// Of the prompt.
    pub input: f64,
    /// Of the output.
    pub output: f64,
}

impl Default for TokenWeights {
    fn default() -> Self {
        Self {
            input: 1.0,
            output: 2.0,
        }
    }
}

impl TokenWeights {
    fn work(self, input_tokens: u64, output_tokens: u64) -> f64 {
        self.input * input_tokens as f64 + self.output * output_tokens as f64
    }

    fn of_row(self, row: &FairRow) -> f64 {
        self.work(row.input_tokens.into(), row.output_tokens.into())
    }
}

/// Why fairness cannot be told.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FairnessError {
    /// A tenant's weight divides: it must be a number above 0.
    #[error("tenant {tenant} has weight {}; a weight must be a number above 0", written(*weight))]
    Weight {
        /// Whose.
        tenant: u32,
        /// What was given.
        weight: f64,
    },
    /// A token cannot count less than nothing.
    #[error("a token of the {which} counts {}; it must be 0 or more", written(*weight))]
    Token {
        /// `input` or `output`.
        which: &'static str,
        /// What was given.
        weight: f64,
    },
}

/// One tenant's figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantFairness {
    /// Its number.
    pub tenant: u32,
    /// Its weight: twice the weight is entitled to twice the service.
    pub weight: f64,
    /// Requests that arrived.
    pub offered: u64,
    /// Requests of which something was served.
    pub admitted: u64,
    /// Requests all of whose output arrived.
    pub completed: u64,
    /// Work of the admitted requests, in weighted tokens: their prompts and the output that they produced.
    pub admitted_work: f64,
    /// Work of the completed requests, in weighted tokens.
    pub completed_work: f64,
    /// Share of all completed work; null when none was completed.
    pub completed_share: Option<f64>,
    /// Seconds in which some request of it waited.
    pub backlogged_s: f64,
    /// Service that it got in those seconds, in weighted tokens.
    pub service_while_backlogged: f64,
    /// Service that was due to it in those seconds: of all service then, its weight over the weights of the tenants that
    /// had anything waiting or running.
    pub entitled_while_backlogged: f64,
    /// Service over what was due, less 1: -1 when it got nothing, 0 when it got its share, above 0 when it got more (also
    /// because others left theirs). Null when nothing was due.
    pub share_deviation: Option<f64>,
    /// All that it asked for in the whole run was completed, and that was less than its weight over all weights of all
    /// completed work: it left some of its share to others in the end. Whether it had to wait for its part, `share_deviation` tells.
    #[serde(default)]
    pub asked_less: bool,
    /// Mean wait from arrival to first service, in seconds; to the end for a request that was never served. Null without
    /// requests.
    pub queue_age_mean_s: Option<f64>,
    /// The longest such wait.
    pub queue_age_max_s: Option<f64>,
    /// Longest time without any service while something of it waited, in seconds.
    pub longest_starvation_s: f64,
    /// KV bytes held times the seconds that they were held.
    pub kv_byte_seconds: f64,
    /// Share of everybody's; null when nobody held any.
    pub kv_share: Option<f64>,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
    /// Of its prompt tokens; null without any.
    pub cached_share_of_input: Option<f64>,
    /// Of everybody's cached tokens; null when nothing was found.
    pub cached_share_of_all: Option<f64>,
}

/// Figures of all tenants that offered anything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fairness {
    /// By number.
    pub tenants: Vec<TenantFairness>,
    /// Jain's index of completed work over weight, over all tenants. It knows nothing of demand: a tenant that asks for
    /// little lowers it.
    pub jain_completed: Option<f64>,
    /// Jain's index of service over what was due, over the tenants to whom something was due while they had work waiting.
    pub jain_backlogged: Option<f64>,
}

impl Fairness {
    /// The figures of some requests, in any order; cheapest in that of their arrival. They are gone through several
    /// times, not kept. A tenant that `weights` does not name has weight 1.
    ///
    /// # Errors
    /// [`FairnessError`] for weights that are no weights.
    pub fn of(
        rows: impl Iterator<Item = FairRow> + Clone,
        weights: &BTreeMap<u32, f64>,
        token: TokenWeights,
    ) -> Result<Self, FairnessError> {
        check(weights, token)?;
        let tenants: BTreeSet<u32> = rows.clone().map(|row| row.tenant).collect();
        let weighted: BTreeMap<u32, f64> = tenants
            .into_iter()
            .map(|tenant| (tenant, weights.get(&tenant).copied().unwrap_or(1.0)))
            .collect();
        let swept = sweep::sweep(rows.clone(), &weighted, token);
        let mut counts = vec![Counts::default(); weighted.len()];
        let place: BTreeMap<u32, usize> = weighted.keys().copied().zip(0..).collect();
        for row in rows {
            counts[place[&row.tenant]].add(&row);
        }
        let all = Totals::of(&counts, token);
        let weights: f64 = weighted.values().sum();
        let mut tenants: Vec<TenantFairness> = weighted
            .iter()
            .zip(counts.iter().zip(&swept))
            .map(|((&tenant, &weight), (counts, swept))| all.figures(tenant, weight, counts, swept))
            .collect();
        for t in &mut tenants {
            let got_all = t.completed == t.offered;
            t.asked_less = got_all && t.completed_share.is_some_and(|s| s < t.weight / weights - 1e-9);
        }
        let completed: Vec<f64> = tenants.iter().map(|t| t.completed_work / t.weight).collect();
        let served: Vec<f64> = tenants
            .iter()
            .filter_map(|t| Some(t.share_deviation? + 1.0))
            .collect();
        Ok(Self {
            jain_completed: jain_index(&completed),
            jain_backlogged: jain_index(&served),
            tenants,
        })
    }
}

fn check(weights: &BTreeMap<u32, f64>, token: TokenWeights) -> Result<(), FairnessError> {
    let bad = |weight: f64| !(weight.is_finite() && weight > 0.0);
    if let Some((&tenant, &weight)) = weights.iter().find(|&(_, &weight)| bad(weight)) {
        return Err(FairnessError::Weight { tenant, weight });
    }
    for (which, weight) in [("input", token.input), ("output", token.output)] {
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(FairnessError::Token { which, weight });
        }
    }
    Ok(())
}

/// Jain's index, (sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one has all. From Jain, Chiu and Hawe, "A
/// quantitative measure of fairness and discrimination for resource allocation in shared computer systems" (DEC-TR-301,
/// 1984). None when there is nobody or nobody has anything.
pub fn jain_index(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Whole-number sums of one tenant.
#[derive(Debug, Clone, Default)]
struct Counts {
    offered: u64,
    admitted: u64,
    completed: u64,
    input_tokens: u64,
    admitted_tokens: (u64, u64),
    completed_tokens: (u64, u64),
    cached_tokens: u64,
    wait_ns: u128,
    longest_wait_ns: u64,
    kv_byte_seconds: f64,
}

impl Counts {
    fn add(&mut self, row: &FairRow) {
        let (input, output) = (u64::from(row.input_tokens), u64::from(row.output_tokens));
        self.offered += 1;
        self.input_tokens += input;
        self.cached_tokens += u64::from(row.cached_tokens);
        self.kv_byte_seconds += row.kv_byte_seconds;
        if row.first_scheduled.is_some() {
            self.admitted += 1;
            self.admitted_tokens.0 += input;
            self.admitted_tokens.1 += output;
        }
        if row.completed {
            self.completed += 1;
            self.completed_tokens.0 += input;
            self.completed_tokens.1 += output;
        }
        let wait = row.first_scheduled.unwrap_or(row.end).since(row.arrival);
        self.wait_ns += u128::from(wait.as_nanos());
        self.longest_wait_ns = self.longest_wait_ns.max(wait.as_nanos());
    }
}

/// What shares are of.
struct Totals {
    token: TokenWeights,
    completed_work: f64,
    kv_byte_seconds: f64,
    cached_tokens: f64,
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

impl Totals {
    fn of(counts: &[Counts], token: TokenWeights) -> Self {
        let work = |c: &Counts| token.work(c.completed_tokens.0, c.completed_tokens.1);
        Self {
            token,
            completed_work: counts.iter().map(work).sum(),
            kv_byte_seconds: counts.iter().map(|c| c.kv_byte_seconds).sum(),
            cached_tokens: counts.iter().map(|c| c.cached_tokens).sum::<u64>() as f64,
        }
    }

    fn figures(&self, tenant: u32, weight: f64, counts: &Counts, swept: &Swept) -> TenantFairness {
        let work = |(input, output)| self.token.work(input, output);
        let completed_work = work(counts.completed_tokens);
        let any = counts.offered > 0;
        TenantFairness {
            tenant,
            weight,
            offered: counts.offered,
            admitted: counts.admitted,
            completed: counts.completed,
            admitted_work: work(counts.admitted_tokens),
            completed_work,
            completed_share: share(completed_work, self.completed_work),
            backlogged_s: swept.backlogged.as_secs_f64(),
            service_while_backlogged: swept.service,
            entitled_while_backlogged: swept.entitled,
            share_deviation: share(swept.service, swept.entitled).map(|ratio| ratio - 1.0),
            asked_less: false,
            queue_age_mean_s: any.then(|| counts.wait_ns as f64 / counts.offered as f64 / 1e9),
            queue_age_max_s: any.then(|| counts.longest_wait_ns as f64 / 1e9),
            longest_starvation_s: swept.longest_starvation.as_secs_f64(),
            kv_byte_seconds: counts.kv_byte_seconds,
            kv_share: share(counts.kv_byte_seconds, self.kv_byte_seconds),
            cached_tokens: counts.cached_tokens,
            cached_share_of_input: share(counts.cached_tokens as f64, counts.input_tokens as f64),
            cached_share_of_all: share(counts.cached_tokens as f64, self.cached_tokens),
        }
    }
}

#[cfg(test)]
#[path = "fairness_tests.rs"]
mod tests;
