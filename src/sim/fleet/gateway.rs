//! The gateway's state: its queue, its limits, and what it waits for.

use super::config::GatewayConfig;
use crate::cluster::gateway::{FairPolicy, FairQueue, Gate, GatewayError, RetryBudget};
use crate::cluster::router::Candidate;
use crate::units::SimTime;

/// The gateway at work.
#[derive(Debug)]
pub(super) struct Gateway {
    pub queue: FairQueue,
    pub gate: Gate,
    pub retry_budget: RetryBudget,
    pub hedge_budget: Option<RetryBudget>,
    /// Jobs sent on and not ended.
    pub in_flight: u32,
    /// Cancellations on their way and leases that run: a run is not over before they are.
    pub obligations: u32,
    /// Its queue wants to know of every token.
    pub charges_tokens: bool,
    /// When clients of a closed loop saw their answers.
    pub answered: Vec<SimTime>,
    /// Memory used again.
    pub candidates: Vec<Candidate>,
}

impl Gateway {
    /// An empty one.
    ///
    /// # Errors
    /// [`GatewayError`] for limits, weights or budgets that cannot be used.
    pub fn new(config: &GatewayConfig) -> Result<Self, GatewayError> {
        config.retry.check()?;
        Ok(Self {
            queue: FairQueue::new(&config.fairness)?,
            gate: Gate::new(&config.limits)?,
            retry_budget: config.retry.budget()?,
            hedge_budget: config.hedge.as_ref().map(|h| h.budget()).transpose()?,
            in_flight: 0,
            obligations: 0,
            charges_tokens: matches!(config.fairness, FairPolicy::Vtc { .. }),
            answered: Vec::new(),
            candidates: Vec::new(),
        })
    }
}
