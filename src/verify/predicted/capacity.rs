//! How far a capacity is known: the search near it, repeated in every guise of the fits.

use rayon::prelude::*;

use super::super::interval::plain_interval;
use super::pools::{any_fit, drawn_machines, pools_of};
use crate::explore::capacity::{Capacity, CapacityInterval, Requirement};
use crate::explore::study::{Study, StudyError, requirement};
use crate::scenario::Plan;

/// From load to load while it is looked for where a draw's capacity is.
const STRIDE: f64 = 1.2;
/// A draw's capacity is told to this share.
const PRECISION: f64 = 0.03;
/// Loads of one draw, at most.
const MOST_LOADS: u32 = 16;

/// What a draw carries.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Carried {
    /// Up to this rate.
    UpTo(f64),
    /// All of the range.
    All,
    /// Not even the lowest rate.
    Nothing,
}

/// The interval of the capacity that was found for a plan; `None` where all step times are stated, or none was found.
/// Every draw runs the seeds of the search, so draws differ by step times alone.
///
/// # Errors
/// [`StudyError`] when a fit cannot be read or a guise cannot be run.
pub fn capacity_interval(
    plan: &Plan,
    capacity: &Capacity,
    draws: u8,
) -> Result<Option<CapacityInterval>, StudyError> {
    let (Some(found), Some(range)) = (capacity.capacity_rps, plan.capacity_rates()) else {
        return Ok(None);
    };
    let at_capacity = plan.at_rate(found)?;
    let mut pools = pools_of(&at_capacity)?;
    if !any_fit(&pools) {
        return Ok(None);
    }
    let machines = drawn_machines(&at_capacity, &mut pools, usize::from(draws))?;
    let need = requirement(&plan.slo);
    let carried = machines
        .into_par_iter()
        .map(|machines| {
            let study = Study::on_all(machines, plan.clone());
            carried_by(found, range, |rate| passes(&study, &need, rate))
        })
        .collect::<Result<Vec<Carried>, StudyError>>()?;
    Ok(Some(interval_of(found, range, &carried)))
}

fn passes(study: &Study, need: &Requirement, rate: f64) -> Result<bool, StudyError> {
    Ok(need.passes(&study.at_rate(rate)?))
}

/// Steps away from `from` until the verdict changes, then halves.
fn carried_by<E>(
    from: f64,
    (lowest, highest): (f64, f64),
    mut passes: impl FnMut(f64) -> Result<bool, E>,
) -> Result<Carried, E> {
    let (mut low, mut high) = (None, None);
    let mut rate = from.clamp(lowest, highest);
    for _ in 0..MOST_LOADS {
        if passes(rate)? {
            low = Some(rate);
        } else {
            high = Some(rate);
        }
        rate = match (low, high) {
            (Some(low), Some(high)) if high - low <= PRECISION * low => break,
            (Some(low), Some(high)) => f64::sqrt(low * high),
            (Some(low), None) if low >= highest => return Ok(Carried::All),
            (Some(low), None) => (low * STRIDE).min(highest),
            (None, Some(high)) if high <= lowest => return Ok(Carried::Nothing),
            (None, Some(high)) => (high / STRIDE).max(lowest),
            (None, None) => break,
        };
    }
    Ok(low.map_or(Carried::Nothing, Carried::UpTo))
}

fn interval_of(found: f64, (_, highest): (f64, f64), carried: &[Carried]) -> CapacityInterval {
    let count = |of: Carried| carried.iter().filter(|&&c| c == of).count() as u32;
    let rates: Vec<f64> = carried
        .iter()
        .map(|c| match c {
            Carried::UpTo(rate) => *rate,
            Carried::All => f64::INFINITY,
            Carried::Nothing => 0.0,
        })
        .collect();
    let (lo, hi) = plain_interval(found, &rates);
    CapacityInterval {
        draws: carried.len() as u32,
        lo_rps: if lo.is_finite() { lo } else { highest },
        hi_rps: hi.is_finite().then_some(hi),
        carry_nothing: count(Carried::Nothing),
        carry_all: count(Carried::All),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn carried(from: f64, limit: f64) -> (Carried, u32) {
        let mut loads = 0;
        let found = carried_by::<Infallible>(from, (1.0, 20.0), |rate| {
            loads += 1;
            Ok(rate <= limit)
        });
        (found.unwrap(), loads)
    }

    #[test]
    fn a_draws_capacity_is_found_near_that_of_the_best_guise() {
        for limit in [1.1, 4.0, 4.9, 5.1, 6.0, 19.0] {
            let (Carried::UpTo(rate), loads) = carried(5.0, limit) else {
                panic!("{limit}");
            };
            assert!(
                rate <= limit && limit <= rate * (1.0 + PRECISION),
                "{rate} {limit}"
            );
            assert!(loads <= MOST_LOADS);
        }
        assert_eq!(carried(5.0, 0.5).0, Carried::Nothing);
        assert_eq!(carried(5.0, 25.0).0, Carried::All);
    }

    #[test]
    fn draws_beyond_the_range_leave_the_interval_open() {
        let of = |rates: &[Carried]| interval_of(5.0, (1.0, 20.0), rates);
        let near = of(&[Carried::UpTo(4.0), Carried::UpTo(5.5)]);
        assert_eq!((near.lo_rps, near.hi_rps), (4.0, Some(5.5)));
        let open = of(&[Carried::Nothing, Carried::All, Carried::UpTo(5.0)]);
        assert_eq!((open.lo_rps, open.hi_rps), (0.0, None));
        assert_eq!((open.draws, open.carry_nothing, open.carry_all), (3, 1, 1));
    }
}
