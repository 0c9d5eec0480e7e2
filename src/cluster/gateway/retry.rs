//! Retries and hedges, and the budgets that keep them from storms.

use rand::RngExt;
use rand_pcg::Pcg64;

use super::{GatewayError, MILLION, RateLimit, TokenBucket, millionths};
use crate::units::{SimDuration, SimTime};

/// How an attempt went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Its server died or broke the connection.
    Failed,
    /// Its client waited too long.
    TimedOut,
    /// A gateway or an engine turned it away.
    Rejected,
}

/// What is worth another attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetryOn {
    /// [`Cause::Failed`].
    pub failed: bool,
    /// [`Cause::TimedOut`].
    pub timed_out: bool,
    /// [`Cause::Rejected`].
    pub rejected: bool,
}

/// When a request is tried again. The default never does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryPolicy {
    /// Attempts of one request, the first included; at least 1.
    pub attempts: u32,
    /// Wait before the first retry; doubles with each one after it.
    pub backoff_base: SimDuration,
    /// The longest wait.
    pub backoff_cap: SimDuration,
    /// How much of a wait is left to chance, 0 to 1: a wait of `d` is drawn evenly from `[(1 - jitter) * d,
    /// d]`. 1 is the "full jitter" of the AWS Architecture Blog (Brooker, 2015).
    pub jitter: f64,
    /// Retries for each first attempt, over all requests, in millionths; 0 to 1000. `None` is no budget.
    pub budget_ratio: Option<f64>,
    /// Retries a second that are allowed beyond the ratio, as in Finagle's `minRetriesPerSec`; 0 to 1e9. A
    /// second's worth is there from the start, and never more than that is saved.
    pub min_retries_per_s: f64,
    /// The most retries that first attempts may save up, so that a long calm does not pay for a storm (gRPC's
    /// `maxTokens`, Finagle's `ttl`). `None` saves all.
    pub budget_max: Option<u32>,
    /// What is worth another attempt.
    pub retry_on: RetryOn,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 1,
            backoff_base: SimDuration::ZERO,
            backoff_cap: SimDuration(u64::MAX),
            jitter: 0.0,
            budget_ratio: None,
            min_retries_per_s: 0.0,
            budget_max: None,
            retry_on: RetryOn::default(),
        }
    }
}

impl RetryPolicy {
    /// Whether the numbers can be used.
    ///
    /// # Errors
    /// [`GatewayError`] for no attempts, and for a jitter, ratio or rate out of range.
    pub fn check(&self) -> Result<(), GatewayError> {
        if self.attempts == 0 {
            return Err(GatewayError::Zero {
                what: "the number of attempts",
            });
        }
        millionths("the jitter of a backoff", self.jitter, 0.0, 1.0)?;
        self.budget().map(drop)
    }

    /// Whether a request that has used so many attempts is worth another one, its budget apart.
    pub fn wants(&self, attempts_made: u32, cause: Cause) -> bool {
        let covered = match cause {
            Cause::Failed => self.retry_on.failed,
            Cause::TimedOut => self.retry_on.timed_out,
            Cause::Rejected => self.retry_on.rejected,
        };
        covered && attempts_made < self.attempts
    }

    /// The wait before attempt number `attempt` (2 is the first retry): `base * 2^(attempt - 2)`, at most the
    /// cap, less a part by chance. Draws once if there is a jitter, and never otherwise.
    pub fn backoff(&self, attempt: u32, rng: &mut Pcg64) -> SimDuration {
        let doublings = attempt.saturating_sub(2);
        let base = u128::from(self.backoff_base.as_nanos());
        // 2^64 times anything but zero is past every cap.
        let grown = base << doublings.min(64);
        let full = u64::try_from(grown)
            .unwrap_or(u64::MAX)
            .min(self.backoff_cap.as_nanos());
        let Ok(jitter @ 1..) = millionths("", self.jitter, 0.0, 1.0) else {
            return SimDuration(full);
        };
        let span = u128::from(full) * u128::from(jitter) / u128::from(MILLION);
        SimDuration(full - rng.random_range(0..=span as u64))
    }

    /// A new budget of these retries.
    ///
    /// # Errors
    /// [`GatewayError`] for a ratio or a rate out of range.
    pub fn budget(&self) -> Result<RetryBudget, GatewayError> {
        RetryBudget::new(self.budget_ratio, self.min_retries_per_s, self.budget_max)
    }
}

/// When a copy of a slow request is sent to somebody else. The first answer wins (Dean and Barroso, "The Tail
/// at Scale", CACM 2013).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HedgePolicy {
    /// How long the last copy may be without a first token before the next one is sent.
    pub after: SimDuration,
    /// Copies beside the original.
    pub max_extra: u32,
    /// Copies for each request, over all requests; 0 to 1000. `None` is no budget.
    pub budget_ratio: Option<f64>,
}

impl HedgePolicy {
    /// When the next copy is due, given when the last one was sent and how many there are beside the
    /// original.
    pub fn next_at(&self, last_sent: SimTime, extra_sent: u32) -> Option<SimTime> {
        (extra_sent < self.max_extra).then(|| last_sent + self.after)
    }

    /// A new budget of these copies.
    ///
    /// # Errors
    /// [`GatewayError`] for a ratio out of range.
    pub fn budget(&self) -> Result<RetryBudget, GatewayError> {
        RetryBudget::new(self.budget_ratio, 0.0, None)
    }
}

/// Retries that may still be sent. At any time t, the retries granted are at most `ratio * first attempts +
/// max(1, rate) + rate * t` (the last two terms only if there is a rate), exactly. Its memory is constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryBudget {
    /// What a first attempt brings, in millionths of a retry; `None` is no budget.
    ratio: Option<u64>,
    /// Millionths of a retry that are saved.
    saved: u64,
    most: u64,
    floor: Option<TokenBucket>,
    first_attempts: u64,
    granted: u64,
    refused: u64,
}

impl RetryBudget {
    fn new(ratio: Option<f64>, rate: f64, most: Option<u32>) -> Result<Self, GatewayError> {
        let ratio = ratio
            .map(|r| millionths("the ratio of a budget", r, 0.0, 1000.0))
            .transpose()?;
        let floor = match millionths("the smallest rate of retries a second", rate, 0.0, 1e9)? {
            0 => None,
            _ => Some(TokenBucket::new(RateLimit {
                requests_per_s: rate,
                burst: rate.max(1.0) as u32,
            })?),
        };
        let most = most.map_or(u64::MAX, |most| u64::from(most) * MILLION);
        Ok(Self {
            ratio,
            saved: 0,
            most,
            floor,
            first_attempts: 0,
            granted: 0,
            refused: 0,
        })
    }

    /// A request is sent for the first time.
    pub fn first_attempt(&mut self) {
        self.first_attempts += 1;
        self.saved = self.saved.saturating_add(self.ratio.unwrap_or(0)).min(self.most);
    }

    /// Whether one more retry may be sent now; if so, it is spent. What first attempts saved goes first, the
    /// rate by the second after it.
    pub fn may_retry(&mut self, now: SimTime) -> bool {
        let granted = if self.ratio.is_none() {
            true
        } else if self.saved >= MILLION {
            self.saved -= MILLION;
            true
        } else {
            self.floor.as_mut().is_some_and(|floor| floor.take(now))
        };
        if granted {
            self.granted += 1;
        } else {
            self.refused += 1;
        }
        granted
    }

    /// First attempts so far.
    pub const fn first_attempts(&self) -> u64 {
        self.first_attempts
    }

    /// Retries granted so far.
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// Retries refused so far.
    pub const fn refused(&self) -> u64 {
        self.refused
    }
}
