//! A token bucket without rounding.

use super::{GatewayError, MILLION, millionths};
use crate::units::SimTime;

/// So many requests a second, and so many at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateLimit {
    /// Requests a second in the long run, told apart to a millionth; 0.000001 to 1e9.
    pub requests_per_s: f64,
    /// Requests that may come at one instant after a pause; at least 1.
    pub burst: u32,
}

/// What one request costs: a nanosecond at one millionth of a request a second brings 1 unit.
const COST: u128 = 1_000_000_000 * MILLION as u128;

/// A token bucket that starts full. Between any two instants at most `burst + rate * time` requests are
/// taken, exactly: the level is an integer of 1e-15 requests, which is what a nanosecond brings at the
/// smallest rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBucket {
    /// Units a nanosecond.
    rate: u64,
    full: u128,
    level: u128,
    at: SimTime,
}

impl TokenBucket {
    /// A full bucket.
    ///
    /// # Errors
    /// [`GatewayError`] for a rate that is not positive and finite, or no burst.
    pub fn new(limit: RateLimit) -> Result<Self, GatewayError> {
        let rate = millionths("the rate in requests a second", limit.requests_per_s, 1e-6, 1e9)?;
        if limit.burst == 0 {
            return Err(GatewayError::Zero {
                what: "the burst of a rate limit",
            });
        }
        let full = u128::from(limit.burst) * COST;
        Ok(Self {
            rate,
            full,
            level: full,
            at: SimTime::ZERO,
        })
    }

    fn level_at(&self, now: SimTime) -> u128 {
        let gained = u128::from(now.since(self.at).as_nanos()) * u128::from(self.rate);
        (self.level + gained).min(self.full)
    }

    /// Takes one request's worth, if it is there.
    pub fn take(&mut self, now: SimTime) -> bool {
        self.level = self.level_at(now);
        self.at = self.at.max(now);
        let there = self.level >= COST;
        if there {
            self.level -= COST;
        }
        there
    }

    /// The first instant from `now` on at which [`Self::take`] would succeed.
    pub fn next_at(&self, now: SimTime) -> SimTime {
        let now = now.max(self.at);
        let lacking = COST.saturating_sub(self.level_at(now));
        let wait = lacking.div_ceil(u128::from(self.rate));
        SimTime(
            now.as_nanos()
                .saturating_add(u64::try_from(wait).unwrap_or(u64::MAX)),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bucket(requests_per_s: f64, burst: u32) -> TokenBucket {
        TokenBucket::new(RateLimit {
            requests_per_s,
            burst,
        })
        .expect("a rate that can be used")
    }

    #[test]
    fn three_a_second_come_back_at_the_exact_nanosecond() {
        let mut b = bucket(3.0, 1);
        assert!(b.take(SimTime(0)));
        // A third of a second is 333 333 333.3 ns: one nanosecond early is too early.
        assert_eq!(b.next_at(SimTime(0)), SimTime(333_333_334));
        assert!(!b.take(SimTime(333_333_333)));
        assert!(b.take(SimTime(333_333_334)));
        // A full bucket keeps no part of a request more, so the next third starts here.
        assert!(!b.take(SimTime(666_666_667)));
        assert!(b.take(SimTime(666_666_668)));
        // Where there is room, the part of a nanosecond that was waited too long is kept.
        let mut b = bucket(3.0, 2);
        assert!(b.take(SimTime(0)) && b.take(SimTime(0)));
        for due in [333_333_334, 666_666_667, 1_000_000_000, 1_333_333_334] {
            assert!(!b.take(SimTime(due - 1)) && b.take(SimTime(due)), "{due}");
        }
    }

    #[test]
    fn a_burst_is_saved_up_and_no_more() {
        let mut b = bucket(10.0, 3);
        let at_once = |b: &mut TokenBucket, at| (0..9).filter(|_| b.take(SimTime(at))).count();
        assert_eq!(at_once(&mut b, 0), 3);
        assert_eq!(at_once(&mut b, 200_000_000), 2);
        assert_eq!(at_once(&mut b, 3_600_000_000_000), 3);
    }

    #[test]
    fn rates_that_mean_nothing_are_refused() {
        for requests_per_s in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e10] {
            assert!(
                TokenBucket::new(RateLimit {
                    requests_per_s,
                    burst: 1
                })
                .is_err()
            );
        }
        let none = TokenBucket::new(RateLimit {
            requests_per_s: 1.0,
            burst: 0,
        });
        assert_eq!(
            none,
            Err(GatewayError::Zero {
                what: "the burst of a rate limit"
            })
        );
        // The end of time is no panic.
        let mut slow = bucket(1e-6, u32::MAX);
        assert!(slow.take(SimTime(u64::MAX)));
        assert_eq!(bucket(1e-6, 1).next_at(SimTime(u64::MAX)), SimTime(u64::MAX));
    }

    proptest! {
        #[test]
        fn any_window_lets_through_no_more_than_its_share(
            micro in 1_u64..20_000_000, burst in 1_u32..5,
            gaps in prop::collection::vec(0_u64..400_000_000, 1..80),
        ) {
            let mut b = bucket(micro as f64 / 1e6, burst);
            let (mut now, mut taken) = (0, Vec::new());
            for gap in gaps {
                now += gap;
                let due = b.next_at(SimTime(now));
                prop_assert_eq!(b.take(SimTime(now)), due == SimTime(now));
                if due == SimTime(now) {
                    taken.push(now);
                }
            }
            for (i, &from) in taken.iter().enumerate() {
                for (j, &to) in taken.iter().enumerate().skip(i) {
                    let most = u128::from(burst) * COST + u128::from(to - from) * u128::from(micro);
                    prop_assert!((j - i + 1) as u128 * COST <= most);
                }
            }
        }
    }
}
