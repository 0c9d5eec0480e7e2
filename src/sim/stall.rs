//! A machine that takes the engine's core away after long continuous use.

use crate::units::{SimDuration, SimTime};

/// Real-time bandwidth limit: in each period the core is the engine's for at most `busy`; what is left of the
/// period is a stall. Periods follow each other without a gap; idle time neither moves nor resets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Length of the accounting period.
    pub period: SimDuration,
    /// Most busy time in a period.
    pub busy: SimDuration,
    /// How far the first period has come when the run starts; on a real machine nobody knows.
    pub phase: SimDuration,
}

/// Busy time used up in the present period.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StallState {
    period: u64,
    used: u64,
}

impl StallState {
    /// When `work` that starts at `start` is done. Starts never go back in time.
    pub(super) fn finish(&mut self, stall: Stall, start: SimTime, work: SimDuration) -> SimTime {
        let (period, busy) = (
            stall.period.0.max(1),
            stall.busy.0.clamp(1, stall.period.0.max(1)),
        );
        let (mut at, mut left) = (start.0.saturating_add(stall.phase.0), work.0);
        loop {
            if at / period != self.period {
                (self.period, self.used) = (at / period, 0);
            }
            let period_end = (self.period + 1).saturating_mul(period);
            let run = left.min(busy - self.used).min(period_end - at);
            at += run;
            left -= run;
            self.used += run;
            if left == 0 {
                return SimTime(at - stall.phase.0);
            }
            at = period_end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RT: Stall = Stall {
        period: SimDuration(1_000),
        busy: SimDuration(950),
        phase: SimDuration(0),
    };

    #[test]
    fn continuous_work_loses_the_rest_of_each_period() {
        let mut s = StallState::default();
        assert_eq!(s.finish(RT, SimTime(0), SimDuration(950)), SimTime(950));
        assert_eq!(s.finish(RT, SimTime(950), SimDuration(10)), SimTime(1_010));
        assert_eq!(s.finish(RT, SimTime(1_010), SimDuration(1_900)), SimTime(3_010));
    }

    #[test]
    fn a_phase_moves_the_first_stall() {
        let mut s = StallState::default();
        let late = Stall {
            phase: SimDuration(600),
            ..RT
        };
        // 400 of the first period are left, all of them usable; the second one stalls after 950.
        assert_eq!(s.finish(late, SimTime(0), SimDuration(1_350)), SimTime(1_350));
        assert_eq!(s.finish(late, SimTime(1_350), SimDuration(1)), SimTime(1_401));
    }

    #[test]
    fn work_with_pauses_is_not_stalled() {
        let mut s = StallState::default();
        for k in 0..20 {
            let start = SimTime(k * 100);
            assert_eq!(s.finish(RT, start, SimDuration(90)), start + SimDuration(90));
        }
    }
}
