//! Step times at a lower clock.

use std::sync::Arc;

use crate::metric::cluster::ClusterOptions;
use crate::metric::energy::{PowerModel, Work};
use crate::steptime::{BatchShape, StepTime};
use crate::units::SimDuration;

use super::super::machine::Machine;

/// Step times of an accelerator whose clock is set or whose power is capped.
#[derive(Debug)]
struct Clocked {
    inner: Arc<dyn StepTime>,
    power: PowerModel,
}

/// The machine of a pool at the clock and the power cap that `accounts` has for it.
pub fn clocked(machine: Machine, pool: &str, accounts: &ClusterOptions) -> Machine {
    let power = accounts.pools.get(pool).and_then(|facts| facts.power);
    match power {
        Some(power) if power.cap_w.is_some() || power.frequency_ratio.is_some() => Machine {
            step_time: Arc::new(Clocked {
                inner: machine.step_time,
                power,
            }),
            ..machine
        },
        _ => machine,
    }
}

impl Clocked {
    /// Prompts are bound by compute, output tokens by memory; a mixed step is prompts as far as its tokens are.
    fn factor(&self, batch: &BatchShape) -> f64 {
        let share = f64::from(batch.prefill_tokens) / f64::from(batch.tokens().max(1));
        self.power.time_factor(&Work::Mixed {
            compute: 0.0,
            memory: 0.0,
            prefill_share: share.clamp(0.0, 1.0),
        })
    }
}

fn stretched(duration: SimDuration, factor: f64) -> SimDuration {
    // Rounded to a nanosecond; saturates like all times here.
    SimDuration((duration.as_nanos() as f64 * factor).round() as u64)
}

impl StepTime for Clocked {
    fn duration(&self, batch: &BatchShape) -> SimDuration {
        stretched(self.inner.duration(batch), self.factor(batch))
    }

    fn durations(&self, batch: &BatchShape, out: &mut [SimDuration]) {
        // Tokens a step do not change along such a run.
        let factor = self.factor(batch);
        self.inner.durations(batch, out);
        out.iter_mut().for_each(|d| *d = stretched(*d, factor));
    }

    fn wrapped(&self) -> Option<&dyn StepTime> {
        Some(self.inner.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::energy::Dynamic;
    use crate::steptime::LinearStepTime;

    fn at(cap_w: Option<f64>, frequency_ratio: Option<f64>) -> Clocked {
        let dynamic = Dynamic::Phases {
            prefill_w: 700.0,
            decode_w: 300.0,
        };
        Clocked {
            inner: Arc::new(LinearStepTime {
                step_ps: 1_000_000_000_000,
                ..LinearStepTime::default()
            }),
            power: PowerModel {
                idle_w: 100.0,
                dynamic,
                cap_w,
                frequency_ratio,
            },
        }
    }

    fn prompts() -> BatchShape {
        let mut batch = BatchShape::default();
        batch.add_prefill(100, 0);
        batch
    }

    fn tokens() -> BatchShape {
        let mut batch = BatchShape::default();
        batch.add_decode(1, 100);
        batch
    }

    #[test]
    fn prompts_take_longer_at_half_the_clock_and_output_tokens_do_not() {
        let half = at(None, Some(0.5));
        assert_eq!(half.duration(&prompts()).as_nanos(), 2_000_000_000);
        assert_eq!(half.duration(&tokens()).as_nanos(), 1_000_000_000);
        let mut run = [SimDuration::ZERO; 3];
        half.durations(&prompts(), &mut run);
        assert_eq!(run, [SimDuration(2_000_000_000); 3]);
    }

    #[test]
    fn a_cap_slows_what_would_draw_more() {
        // 600 W above idle at the full clock, 75 W allowed: an eighth, which is half the clock.
        let capped = at(Some(175.0), None);
        assert_eq!(capped.duration(&prompts()).as_nanos(), 2_000_000_000);
        let high = at(Some(700.0), None);
        assert_eq!(high.duration(&prompts()).as_nanos(), 1_000_000_000);
    }
}
