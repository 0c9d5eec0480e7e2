//! Whether a request passes, waits or is turned away.

use super::{GatewayError, RateLimit, TokenBucket};
use crate::units::{SimDuration, SimTime};

/// The limits of a gateway. `None` is no limit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Requests behind the gateway at one time.
    pub max_in_flight: Option<u32>,
    /// Requests in its queue. 0 keeps no queue: what does not pass is rejected.
    pub max_queued_requests: Option<u32>,
    /// Input tokens in its queue, all requests together.
    pub max_queued_tokens: Option<u64>,
    /// How long a request may be in the queue before the gateway gives up on it.
    pub queue_timeout: Option<SimDuration>,
    /// Rate limits by tenant number; tenants beyond the list have none.
    pub tenant_rate: Vec<Option<RateLimit>>,
}

/// A request that asks to be let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Whose it is.
    pub tenant: u32,
    /// Tokens of its prompt.
    pub input_tokens: u32,
}

/// What is at and behind the gateway when a request arrives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadState {
    /// Requests sent on and not ended.
    pub in_flight: u32,
    /// Requests in the queue.
    pub queued_requests: u32,
    /// Their input tokens.
    pub queued_tokens: u64,
    /// Nothing can be sent on now for another reason, say no group that is ready.
    pub held: bool,
}

/// What the gateway does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It goes on at once. Push it into the [`super::FairQueue`] and pop it again, so that its tenant is
    /// charged.
    Pass,
    /// It waits.
    Queue,
    /// It is turned away.
    Reject(Reason),
}

/// Why a request is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Its tenant has sent too many of late (HTTP 429).
    RateLimited,
    /// The queue holds as many requests as it may (HTTP 503).
    QueueFull,
    /// Its tokens would be too many for the queue (HTTP 503).
    QueueTokensFull,
}

/// A gateway's limits at work.
#[derive(Debug, Clone)]
pub struct Gate {
    max_in_flight: u32,
    max_queued_requests: u32,
    max_queued_tokens: u64,
    queue_timeout: Option<SimDuration>,
    rates: Vec<Option<TokenBucket>>,
}

impl Gate {
    /// A gate before its first request.
    ///
    /// # Errors
    /// [`GatewayError`] for no request in flight, which would serve nobody, and for unusable rates.
    pub fn new(limits: &Limits) -> Result<Self, GatewayError> {
        if limits.max_in_flight == Some(0) {
            return Err(GatewayError::Zero {
                what: "the largest number of requests in flight",
            });
        }
        let rates = limits
            .tenant_rate
            .iter()
            .map(|rate| rate.map(TokenBucket::new).transpose());
        Ok(Self {
            max_in_flight: limits.max_in_flight.unwrap_or(u32::MAX),
            max_queued_requests: limits.max_queued_requests.unwrap_or(u32::MAX),
            max_queued_tokens: limits.max_queued_tokens.unwrap_or(u64::MAX),
            queue_timeout: limits.queue_timeout,
            rates: rates.collect::<Result<_, _>>()?,
        })
    }

    /// What becomes of a request that arrives now.
    ///
    /// The rate limit comes first and counts what the queue then rejects, as filters in front of a proxy do.
    /// Nobody overtakes the queue: while somebody waits, a newcomer waits too, even if there is room in
    /// flight, so empty the queue as far as [`Self::has_room`] allows before asking.
    pub fn admit(&mut self, now: SimTime, arrival: Arrival, state: &LoadState) -> Decision {
        let rate = self
            .rates
            .get_mut(arrival.tenant as usize)
            .and_then(Option::as_mut);
        if rate.is_some_and(|bucket| !bucket.take(now)) {
            return Decision::Reject(Reason::RateLimited);
        }
        if state.queued_requests == 0 && self.has_room(state) {
            return Decision::Pass;
        }
        if state.queued_requests >= self.max_queued_requests {
            return Decision::Reject(Reason::QueueFull);
        }
        let tokens = state
            .queued_tokens
            .saturating_add(u64::from(arrival.input_tokens));
        if tokens > self.max_queued_tokens {
            return Decision::Reject(Reason::QueueTokensFull);
        }
        Decision::Queue
    }

    /// Whether one more request may be sent on.
    pub fn has_room(&self, state: &LoadState) -> bool {
        !state.held && state.in_flight < self.max_in_flight
    }

    /// When the gateway gives up on a request that entered its queue at `at`.
    pub fn gives_up_at(&self, at: SimTime) -> Option<SimTime> {
        self.queue_timeout.map(|timeout| at + timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Arrival = Arrival {
        tenant: 0,
        input_tokens: 100,
    };

    fn gate(limits: Limits) -> Gate {
        Gate::new(&limits).expect("limits that can be used")
    }

    fn state(in_flight: u32, queued_requests: u32, queued_tokens: u64) -> LoadState {
        LoadState {
            in_flight,
            queued_requests,
            queued_tokens,
            held: false,
        }
    }

    #[test]
    fn without_limits_everything_passes_unless_nothing_can_be_sent_on() {
        let mut g = gate(Limits::default());
        assert_eq!(g.admit(SimTime(0), A, &state(1_000_000, 0, 0)), Decision::Pass);
        let held = LoadState {
            held: true,
            ..LoadState::default()
        };
        assert_eq!(g.admit(SimTime(0), A, &held), Decision::Queue);
        assert_eq!(g.gives_up_at(SimTime(5)), None);
    }

    #[test]
    fn in_flight_then_queue_then_rejection_at_the_exact_counts() {
        let limits = Limits {
            max_in_flight: Some(2),
            max_queued_requests: Some(3),
            max_queued_tokens: Some(250),
            queue_timeout: Some(SimDuration(7)),
            ..Limits::default()
        };
        let mut g = gate(limits);
        let mut admit = |in_flight, queued, tokens| g.admit(SimTime(0), A, &state(in_flight, queued, tokens));
        assert_eq!(admit(1, 0, 0), Decision::Pass);
        assert_eq!(admit(2, 0, 0), Decision::Queue);
        assert_eq!(admit(1, 1, 100), Decision::Queue, "nobody overtakes who waits");
        assert_eq!(admit(2, 2, 150), Decision::Queue);
        assert_eq!(admit(2, 2, 151), Decision::Reject(Reason::QueueTokensFull));
        assert_eq!(admit(2, 3, 0), Decision::Reject(Reason::QueueFull));
        assert_eq!(g.gives_up_at(SimTime(5)), Some(SimTime(12)));
    }

    #[test]
    fn no_queue_means_pass_or_reject() {
        let mut g = gate(Limits {
            max_in_flight: Some(1),
            max_queued_requests: Some(0),
            ..Limits::default()
        });
        assert_eq!(g.admit(SimTime(0), A, &state(0, 0, 0)), Decision::Pass);
        assert_eq!(
            g.admit(SimTime(0), A, &state(1, 0, 0)),
            Decision::Reject(Reason::QueueFull)
        );
        let mut g = gate(Limits {
            max_in_flight: Some(1),
            max_queued_tokens: Some(99),
            ..Limits::default()
        });
        assert_eq!(
            g.admit(SimTime(0), A, &state(1, 0, 0)),
            Decision::Reject(Reason::QueueTokensFull)
        );
    }

    #[test]
    fn one_tenants_rate_is_not_anothers() {
        let rate = Some(RateLimit {
            requests_per_s: 2.0,
            burst: 1,
        });
        let mut g = gate(Limits {
            tenant_rate: vec![None, rate],
            ..Limits::default()
        });
        let limited = Arrival { tenant: 1, ..A };
        let mut admit = |at, arrival| g.admit(SimTime(at), arrival, &LoadState::default());
        assert_eq!(admit(0, limited), Decision::Pass);
        assert_eq!(admit(499_999_999, limited), Decision::Reject(Reason::RateLimited));
        assert_eq!(admit(500_000_000, limited), Decision::Pass);
        assert_eq!(admit(500_000_000, A), Decision::Pass);
        assert_eq!(admit(500_000_000, Arrival { tenant: 9, ..A }), Decision::Pass);
    }

    #[test]
    fn limits_that_serve_nobody_are_refused() {
        let none = Gate::new(&Limits {
            max_in_flight: Some(0),
            ..Limits::default()
        });
        assert_eq!(
            none.err(),
            Some(GatewayError::Zero {
                what: "the largest number of requests in flight"
            })
        );
        let bad = Some(RateLimit {
            requests_per_s: f64::NAN,
            burst: 1,
        });
        assert!(
            Gate::new(&Limits {
                tenant_rate: vec![bad],
                ..Limits::default()
            })
            .is_err()
        );
    }
}
