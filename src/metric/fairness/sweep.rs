//! One pass over arrivals, first services and ends: what each tenant got and was due while it waited.
//!
//! What is due to a tenant is its weight over the weights of all *active* tenants (something waits or runs), of all
//! service given then. Were it shared among those with a backlog only, a tenant that waits for ever behind another one
//! that never has to wait would be told that it got its share.
//!
//! That integral is the virtual time of generalised processor sharing (Parekh and Gallager, 1993), V = integral of
//! (service a second over active weights): a tenant is due weight * (V now - V before). So an event costs the same however
//! many tenants there are.

use std::collections::BTreeMap;

use super::{FairRow, TokenWeights};
use crate::units::{SimDuration, SimTime};

/// What the pass says of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Swept {
    /// Time in which something of it waited.
    pub backlogged: SimDuration,
    /// Service in that time, in weighted tokens.
    pub service: f64,
    /// Service due in that time.
    pub entitled: f64,
    /// Longest time in which something waited and nothing was served.
    pub longest_starvation: SimDuration,
}

/// Events of one instant in this order: a request that begins as another one ends leaves no gap in the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Arrives,
    Begins,
    Ends,
}

#[derive(Debug, Clone, Default)]
struct Tenant {
    weight: f64,
    waiting: u32,
    serving: u32,
    /// Weighted tokens a nanosecond.
    rate: f64,
    settled: SimTime,
    virtual_settled: f64,
    starving_since: Option<SimTime>,
    swept: Swept,
}

impl Tenant {
    const fn is_active(&self) -> bool {
        self.waiting + self.serving > 0
    }

    fn settle(&mut self, now: SimTime, virtual_now: f64) {
        if self.waiting > 0 {
            let span = now.since(self.settled);
            self.swept.backlogged += span;
            self.swept.service += self.rate * span.as_nanos() as f64;
            self.swept.entitled += self.weight * (virtual_now - self.virtual_settled);
        }
        (self.settled, self.virtual_settled) = (now, virtual_now);
    }

    fn watch_starvation(&mut self, now: SimTime) {
        if self.waiting > 0 && self.serving == 0 {
            self.starving_since.get_or_insert(now);
        } else if let Some(since) = self.starving_since.take() {
            let longest = self.swept.longest_starvation.max(now.since(since));
            self.swept.longest_starvation = longest;
        }
    }
}

/// All tenants at one instant.
#[derive(Debug, Default)]
struct World {
    tenants: Vec<Tenant>,
    now: SimTime,
    virtual_now: f64,
    serving: u32,
    rate: f64,
    active: u32,
    active_weight: f64,
}

impl World {
    fn advance(&mut self, to: SimTime) {
        if self.active > 0 {
            let span = to.since(self.now).as_nanos() as f64;
            self.virtual_now += span * self.rate / self.active_weight;
        }
        self.now = to;
    }

    /// Takes all that comes before something, or all.
    fn take_until(&mut self, end: Option<(SimTime, Kind, usize)>, due: &mut Due) {
        while let Some(next) = due.first_entry() {
            if end.is_some_and(|end| *next.key() >= end) {
                break;
            }
            let ((at, kind, _), change) = next.remove_entry();
            self.take(at, kind, change);
        }
    }

    fn take(&mut self, at: SimTime, kind: Kind, change: Change) {
        self.advance(at);
        self.change(change.place, kind, change.served, change.rate);
    }

    fn change(&mut self, place: usize, kind: Kind, served: bool, rate: f64) {
        let tenant = &mut self.tenants[place];
        let was_active = tenant.is_active();
        tenant.settle(self.now, self.virtual_now);
        match kind {
            Kind::Arrives => tenant.waiting += 1,
            Kind::Begins => {
                tenant.waiting -= 1;
                tenant.serving += 1;
                self.serving += 1;
                tenant.rate += rate;
                self.rate += rate;
            }
            Kind::Ends if served => {
                tenant.serving -= 1;
                self.serving -= 1;
                tenant.rate -= rate;
                self.rate -= rate;
            }
            Kind::Ends => tenant.waiting -= 1,
        }
        // What floating point left over must not be taken for service.
        if tenant.serving == 0 {
            tenant.rate = 0.0;
        }
        if self.serving == 0 {
            self.rate = 0.0;
        }
        tenant.watch_starvation(self.now);
        match (was_active, tenant.is_active()) {
            (false, true) => {
                self.active += 1;
                self.active_weight += tenant.weight;
            }
            (true, false) => {
                self.active -= 1;
                self.active_weight = if self.active == 0 {
                    0.0
                } else {
                    self.active_weight - tenant.weight
                };
            }
            _ => {}
        }
    }
}

/// When a row arrives, begins and ends, in this order whatever it says; a service takes at least a nanosecond.
fn instants(row: &FairRow) -> (SimTime, Option<SimTime>, SimTime) {
    let begins = row.first_scheduled.map(|at| at.max(row.arrival));
    let least = begins.map_or(row.arrival, |at| at + SimDuration(1));
    (row.arrival, begins, row.end.max(least))
}

/// Beginnings and ends that are still to come, in their order: the index of the row decides between equal ones.
type Due = BTreeMap<(SimTime, Kind, usize), Change>;

/// What happens to a tenant.
#[derive(Debug, Clone, Copy)]
struct Change {
    /// The tenant's place.
    place: usize,
    /// The row is served at some time.
    served: bool,
    /// Its weighted tokens a nanosecond while it is.
    rate: f64,
}

/// The pass; one result a tenant, in the order of `weights`, which names every tenant of the rows.
pub(super) fn sweep(
    rows: impl Iterator<Item = FairRow> + Clone,
    weights: &BTreeMap<u32, f64>,
    token: TokenWeights,
) -> Vec<Swept> {
    let place: BTreeMap<u32, usize> = weights.keys().copied().zip(0..).collect();
    let tenants = weights.values().map(|&weight| Tenant {
        weight,
        ..Tenant::default()
    });
    let mut world = World {
        tenants: tenants.collect(),
        ..World::default()
    };
    let mut due = Due::new();
    let mut take = |(index, row): (usize, FairRow)| {
        let (arrives, begins, ends) = instants(&row);
        let rate = begins.map_or(0.0, |begins| {
            token.of_row(&row) / ends.since(begins).as_nanos() as f64
        });
        let change = Change {
            place: place[&row.tenant],
            served: begins.is_some(),
            rate,
        };
        world.take_until(Some((arrives, Kind::Arrives, index)), &mut due);
        world.take(arrives, Kind::Arrives, change);
        due.extend(begins.map(|at| ((at, Kind::Begins, index), change)));
        due.insert((ends, Kind::Ends, index), change);
    };
    let numbered = rows.clone().enumerate();
    if rows.is_sorted_by_key(|row| row.arrival) {
        numbered.for_each(take);
    } else {
        let mut numbered: Vec<(usize, FairRow)> = numbered.collect();
        numbered.sort_by_key(|(_, row)| row.arrival);
        numbered.into_iter().for_each(&mut take);
    }
    world.take_until(None, &mut due);
    world.tenants.into_iter().map(|tenant| tenant.swept).collect()
}
