//! Transfers whose bytes are not all there from the start: they grow, and a cap keeps them behind what feeds them.

use std::collections::BTreeSet;

use super::fair::UNBOUNDED;
use super::{Network, TransferId};
use crate::units::SimTime;

impl Network {
    /// Adds bytes to a transfer that is still on its links, which then moves all of them as one. False, and nothing
    /// changes, once its last byte has left the links or it is not under way: start another one then.
    pub fn extend(&mut self, now: SimTime, id: TransferId, more: u64) -> bool {
        self.pass(now);
        self.settle(id);
        let Some(transfer) = self.transfers.get_mut(&id).filter(|t| t.flowing) else {
            return false;
        };
        transfer.bytes = transfer.bytes.saturating_add(more);
        self.renew_event(id);
        true
    }

    /// From `now` on a transfer moves no faster than `cap` bytes a second; none lifts the cap, 0 stalls it until there is
    /// another one. Nothing changes for one that has left its links.
    pub fn set_cap(&mut self, now: SimTime, id: TransferId, cap: Option<u64>) {
        self.pass(now);
        let cap = cap.unwrap_or(UNBOUNDED);
        if let Some(transfer) = self.transfers.get_mut(&id).filter(|t| t.flowing && t.cap != cap) {
            transfer.cap = cap;
            self.share_anew(BTreeSet::from([id]));
        }
    }
}

#[cfg(test)]
#[path = "growing_tests.rs"]
mod tests;
