//! Time and other quantities inside the simulator.
//!
//! Simulated time is an integer count of nanoseconds. Floating point enters only through the checked
//! constructors [`SimDuration::try_from_secs_f64`] and [`SimTime::try_from_secs_f64`], which refuse NaN,
//! infinities, negative values and overflow, so an event heap can never be ordered by a broken number.

use std::fmt;
use std::ops::{Add, AddAssign, Mul, Sub};

use serde::{Deserialize, Serialize};

const NANOS_PER_SEC: f64 = 1e9;

/// Why a floating-point number of seconds is not a time.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TimeError {
    /// NaN or infinite.
    #[error("{0} is not a finite number of seconds")]
    NotFinite(f64),
    /// Below zero.
    #[error("{} s is negative; times and durations start at 0", written(*.0))]
    Negative(f64),
    /// More than 2^64 - 1 nanoseconds (about 584 years).
    #[error("{} s is longer than the 584 years that 64-bit nanoseconds can hold", written(*.0))]
    Overflow(f64),
}

fn nanos_from_secs(secs: f64) -> Result<u64, TimeError> {
    if !secs.is_finite() {
        return Err(TimeError::NotFinite(secs));
    }
    if secs < 0.0 {
        return Err(TimeError::Negative(secs));
    }
    let nanos = (secs * NANOS_PER_SEC).round();
    if nanos >= u64::MAX as f64 {
        return Err(TimeError::Overflow(secs));
    }
    Ok(nanos as u64)
}

/// A number in few digits, for messages: not the three hundred zeros of 1e300.
pub fn written(value: f64) -> String {
    if value == 0.0 || (1e-6..1e15).contains(&value.abs()) {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

/// An instant of simulated time: nanoseconds since the start of the run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SimTime(pub u64);

/// A span of simulated time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SimDuration(pub u64);

impl SimTime {
    /// The start of the run.
    pub const ZERO: Self = Self(0);

    /// Nanoseconds since the start of the run.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the start of the run, for reports only.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / NANOS_PER_SEC
    }

    /// The checked door from seconds, rounded to the nearest nanosecond.
    ///
    /// # Errors
    /// [`TimeError`] for NaN, infinities, negative values and overflow.
    pub fn try_from_secs_f64(secs: f64) -> Result<Self, TimeError> {
        nanos_from_secs(secs).map(Self)
    }

    /// The span from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> SimDuration {
        SimDuration(self.0.saturating_sub(earlier.0))
    }
}

impl SimDuration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// Length in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// A whole number of milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Seconds, for reports only.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / NANOS_PER_SEC
    }

    /// The checked door from seconds, rounded to the nearest nanosecond.
    ///
    /// # Errors
    /// [`TimeError`] for NaN, infinities, negative values and overflow.
    pub fn try_from_secs_f64(secs: f64) -> Result<Self, TimeError> {
        nanos_from_secs(secs).map(Self)
    }
}

impl Add<SimDuration> for SimTime {
    type Output = Self;
    fn add(self, rhs: SimDuration) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl AddAssign<SimDuration> for SimTime {
    fn add_assign(&mut self, rhs: SimDuration) {
        *self = *self + rhs;
    }
}

impl Sub for SimTime {
    type Output = SimDuration;
    fn sub(self, rhs: Self) -> SimDuration {
        debug_assert!(self.0 >= rhs.0, "a span cannot be negative");
        self.since(rhs)
    }
}

impl Add for SimDuration {
    type Output = Self;
    fn add(self, rhs: Self) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }
}

impl AddAssign for SimDuration {
    fn add_assign(&mut self, rhs: Self) {
        *self = *self + rhs;
    }
}

impl Mul<u64> for SimDuration {
    type Output = Self;
    fn mul(self, rhs: u64) -> Self {
        Self(self.0.saturating_mul(rhs))
    }
}

impl fmt::Debug for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t={}", SimDuration(self.0))
    }
}

impl fmt::Debug for SimDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SimDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.as_secs_f64();
        let (value, unit) = match s {
            s if s >= 1.0 => (s, "s"),
            s if s >= 1e-3 => (s * 1e3, "ms"),
            s => (s * 1e6, "us"),
        };
        let digits = format!("{value:.3}");
        write!(f, "{} {unit}", digits.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_print_in_the_unit_that_fits() {
        let text = |ns: u64| SimDuration(ns).to_string();
        assert_eq!(text(1_000_000_000), "1 s");
        assert_eq!(text(100_000_000), "100 ms");
        assert_eq!(text(1_234_567), "1.235 ms");
        assert_eq!(text(45_000), "45 us");
        assert_eq!(text(0), "0 us");
    }

    #[test]
    fn the_door_from_f64_refuses_what_is_not_a_time() {
        assert!(matches!(
            SimTime::try_from_secs_f64(f64::NAN),
            Err(TimeError::NotFinite(_))
        ));
        assert!(matches!(
            SimTime::try_from_secs_f64(f64::INFINITY),
            Err(TimeError::NotFinite(_))
        ));
        assert!(matches!(
            SimDuration::try_from_secs_f64(-1e-9),
            Err(TimeError::Negative(_))
        ));
        assert!(matches!(
            SimDuration::try_from_secs_f64(1e30),
            Err(TimeError::Overflow(_))
        ));
        assert_eq!(SimDuration::try_from_secs_f64(1.5e-9), Ok(SimDuration(2)));
        assert_eq!(SimTime::try_from_secs_f64(-0.0), Ok(SimTime(0)));
    }
}
