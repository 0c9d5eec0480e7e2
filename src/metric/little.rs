//! Little's law and conservation on the sample path, exact in integers.
//!
//! For a run that starts and ends empty, the integral over time of the number of requests somewhere equals the
//! sum of the times they spent there: no expectation, no tolerance. The left side is computed by a sweep over
//! entries and exits that does not know which exit belongs to which entry; so the two sides agree only if the
//! record is whole, and the sweep also refuses a record in which more left than had come.

use crate::record::{RequestRecord, RunRecord, Status};
use crate::units::SimTime;

/// Both sides of an identity, in requests times nanoseconds (or nanoseconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The integral of the number present over time.
    pub integral: u128,
    /// The sum of the single spans.
    pub sum: u128,
}

impl Identity {
    /// Both sides are equal.
    pub const fn holds(&self) -> bool {
        self.integral == self.sum
    }
}

/// The integral of the number present, from entries and exits in any order. `None` when more had left than
/// had come at some instant, or not all that came have left.
fn integral(mut entries: Vec<SimTime>, mut exits: Vec<SimTime>) -> Option<u128> {
    if entries.len() != exits.len() {
        return None;
    }
    entries.sort_unstable();
    exits.sort_unstable();
    let (mut total, mut entered, mut left, mut now) = (0u128, 0usize, 0usize, SimTime::ZERO);
    while left < exits.len() {
        let next = entries
            .get(entered)
            .copied()
            .map_or(exits[left], |e| e.min(exits[left]));
        total += u128::from(next.since(now).as_nanos()) * (entered - left) as u128;
        now = next;
        entered += entries[entered..].partition_point(|&e| e <= now);
        left += exits[left..].partition_point(|&e| e <= now);
        if left > entered {
            return None;
        }
    }
    Some(total)
}

fn identity(
    run: &RunRecord,
    span: impl Fn(&RequestRecord) -> Option<(SimTime, SimTime)>,
) -> Option<Identity> {
    let served = run.requests.iter().filter(|r| r.status.was_in_system());
    let spans: Vec<(SimTime, SimTime)> = served.map(span).collect::<Option<_>>()?;
    let sum = spans
        .iter()
        .map(|(from, to)| u128::from(to.since(*from).as_nanos()))
        .sum();
    let (entries, exits) = spans.into_iter().unzip();
    Some(Identity {
        integral: integral(entries, exits)?,
        sum,
    })
}

/// Requests in the system, from send to last token. `None` unless the run ends empty: every request completed,
/// was rejected or was never sent (the latter two spend no time).
pub fn in_system(run: &RunRecord) -> Option<Identity> {
    identity(run, |r| {
        Some((r.sent, r.last_token.filter(|_| r.status.is_served())?))
    })
}

/// Requests in the waiting room, from the engine's queue to their first scheduled step; waiting after a
/// preemption is not part of it. `None` unless every request that was not rejected was started.
pub fn waiting_room(run: &RunRecord) -> Option<Identity> {
    identity(run, |r| Some((r.enqueued?, r.first_scheduled?)))
}

/// Busy time: the integral of the number of steps under way and the sum of step durations. `None` when a step
/// ends before it starts or the record lacks ends.
pub fn busy(run: &RunRecord) -> Option<Identity> {
    let starts: Vec<SimTime> = run
        .replicas
        .iter()
        .flat_map(|r| r.step_starts.iter().copied())
        .collect();
    let ends: Vec<SimTime> = run
        .replicas
        .iter()
        .flat_map(|r| r.step_ends.iter().copied())
        .collect();
    let sum = starts
        .iter()
        .zip(&ends)
        .map(|(s, e)| u128::from(e.since(*s).as_nanos()))
        .sum();
    Some(Identity {
        integral: integral(starts, ends)?,
        sum,
    })
}

/// Requests in one replica at the start of each of its steps, from their own times: queued by then and not
/// ended by then. Without asynchronous scheduling this must equal the engine's running plus waiting gauges,
/// an account kept independently.
pub fn in_replica_at_steps(run: &RunRecord, replica: u32) -> Vec<u64> {
    let Some(record) = run.replicas.get(replica as usize) else {
        return Vec::new();
    };
    let here = || {
        run.requests
            .iter()
            .filter(|r| r.replica == replica && r.status != Status::Rejected)
    };
    let mut entries: Vec<SimTime> = here().filter_map(|r| r.enqueued).collect();
    let ended = here().filter(|r| r.status.is_served());
    let mut exits: Vec<SimTime> = ended.filter_map(|r| r.last_token).collect();
    entries.sort_unstable();
    exits.sort_unstable();
    let by = |instants: &[SimTime], t: SimTime| instants.partition_point(|&i| i <= t) as u64;
    record
        .step_starts
        .iter()
        .map(|&t| by(&entries, t).saturating_sub(by(&exits, t)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::fixture::{MS, random_run, three_requests};
    use proptest::prelude::*;

    #[test]
    fn the_timeline_by_hand() {
        let run = three_requests();
        let ms = u128::from(MS);
        // Sojourns 26, 36 and 19; N is 1 on 0..4, 2 on 4..26, 1 on 26..40, 1 on 41..60.
        assert_eq!(
            in_system(&run),
            Some(Identity {
                integral: 81 * ms,
                sum: 81 * ms
            })
        );
        assert_eq!(
            waiting_room(&run),
            Some(Identity {
                integral: 15 * ms,
                sum: 15 * ms
            })
        );
        assert_eq!(
            busy(&run),
            Some(Identity {
                integral: 50 * ms,
                sum: 50 * ms
            })
        );
        let gauges = &run.replicas[0];
        let sum: Vec<u64> = gauges
            .running
            .iter()
            .zip(&gauges.waiting)
            .map(|(r, w)| u64::from(r + w))
            .collect();
        assert_eq!(in_replica_at_steps(&run, 0), sum);
        assert!(in_replica_at_steps(&run, 7).is_empty());
    }

    #[test]
    fn a_broken_record_is_noticed() {
        let mut cut_off = three_requests();
        cut_off.requests[1].status = Status::Unfinished;
        assert_eq!(in_system(&cut_off), None);
        let mut backwards = three_requests();
        backwards.requests[2].last_token = Some(SimTime(40 * MS + 1));
        assert!(!in_system(&backwards).is_some_and(|i| i.holds()));
        let mut lost_end = three_requests();
        lost_end.replicas[0].step_ends.pop();
        assert_eq!(busy(&lost_end), None);
    }

    proptest! {
        #[test]
        fn the_identities_hold_on_every_whole_record(run in random_run()) {
            for identity in [in_system(&run), waiting_room(&run), busy(&run)] {
                prop_assert!(identity.is_some_and(|i| i.holds()), "{identity:?}");
            }
        }
    }
}
