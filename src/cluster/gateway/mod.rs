//! The gateway in front of a cluster: who waits, in which order, who is turned away, and who may try again.
//!
//! [`queue`] orders what waits (first come first served, priority, virtual token counters, deficit
//! round-robin); [`limits`] says whether a request passes, waits or is rejected; [`retry`] spends the budgets
//! of retries and hedges; [`timeouts`] names how long a client waits. All are state machines without a clock:
//! whoever owns the events passes the instant in. Every count is an integer, so a run gives the same bytes on
//! every machine.

use crate::units::written;

pub mod bucket;
mod drr;
pub mod limits;
mod list;
pub mod queue;
pub mod retry;
pub mod timeouts;
mod vtc;

#[cfg(test)]
mod fairness_tests;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod retry_tests;

pub use bucket::{RateLimit, TokenBucket};
pub use limits::{Arrival, Decision, Gate, Limits, LoadState, Reason};
pub use queue::{FairPolicy, FairQueue, Item, TenantState};
pub use retry::{Cause, HedgePolicy, RetryBudget, RetryOn, RetryPolicy};
pub use timeouts::Timeouts;

/// A number of a gateway's configuration that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// Not a finite number, or outside of what the key allows.
    #[error("{what} is {}; it must be between {min} and {max}", written(*value))]
    OutOfRange {
        /// The quantity, as a user would call it.
        what: &'static str,
        /// What was given.
        value: f64,
        /// The smallest value allowed.
        min: f64,
        /// The largest value allowed.
        max: f64,
    },
    /// A count that must be at least 1 is 0.
    #[error("{what} is 0; it must be at least 1")]
    Zero {
        /// The quantity, as a user would call it.
        what: &'static str,
    },
    /// Input and output tokens both weigh nothing, so no tenant would ever be charged.
    #[error("the weights of input and output tokens are both 0; at least one must be larger")]
    NothingCharged,
}

/// Parts in a million: how finely weights, rates and ratios are told apart.
const MILLION: u64 = 1_000_000;

/// A configured number in whole millionths, the door from floating point into the integers of this module.
///
/// # Errors
/// [`GatewayError::OutOfRange`] for what is not finite or outside of `min..=max`.
fn millionths(what: &'static str, value: f64, min: f64, max: f64) -> Result<u64, GatewayError> {
    if !(min..=max).contains(&value) {
        return Err(GatewayError::OutOfRange {
            what,
            value,
            min,
            max,
        });
    }
    Ok((value * MILLION as f64).round() as u64)
}
