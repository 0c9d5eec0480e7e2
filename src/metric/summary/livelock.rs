//! Engines that schedule nothing any more though requests wait.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::LivelockSince;

/// A replica that schedules nothing any more though requests wait: under Neuron's plugin running requests are held back
/// for one that has no room (rule N14); at a decode group without the reserve for loads, prompts that are loaded hold
/// all blocks and each waits for more (rule D12 switched off), and `running` is 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LivelockReport {
    /// Which replica.
    pub replica: u32,
    /// Since when, in seconds from the start of the run.
    pub since_s: f64,
    /// The request, by its number in the trace, that was let in and cannot be scheduled.
    pub request: u32,
    /// KV blocks that its tokens fill.
    pub needed_blocks: u32,
    /// KV blocks that are free.
    pub free_blocks: u32,
    /// Running requests that are held back for it, and so never end.
    pub running: u32,
    /// Waiting requests, that one included.
    pub waiting: u32,
}

impl LivelockReport {
    /// Of all replicas, in order.
    pub(in crate::metric) fn of(livelocks: impl Iterator<Item = Option<LivelockSince>>) -> Vec<Self> {
        let numbered = (0..).zip(livelocks);
        let found = numbered.filter_map(|(replica, since)| Some((replica, since?)));
        found
            .map(|(replica, LivelockSince { at, state })| Self {
                replica,
                since_s: at.as_secs_f64(),
                request: state.head,
                needed_blocks: state.needed_blocks,
                free_blocks: state.free_blocks,
                running: state.hidden,
                waiting: state.waiting,
            })
            .collect()
    }

    /// What stands still, why, and what would mend it.
    pub(super) fn note(&self) -> String {
        let (since_s, replica) = (self.since_s, self.replica);
        let so = format!("livelock: from {since_s:.3} s on replica {replica} schedules nothing: ");
        let (request, needed, free) = (self.request, self.needed_blocks, self.free_blocks);
        if self.running == 0 {
            return format!(
                "{so}the KV of {} prompts is loaded and holds the blocks, request {request} needs {needed} to go on, {free} are free, \
                 and nothing runs that could free some (rule D12 is off); set cluster.transfer.reserve_for_loads to true, \
                 or give decode groups more KV blocks",
                self.waiting
            );
        }
        format!(
            "{so}request {request} waits for {needed} KV blocks of which {free} are free, and the {} running requests that \
             could free some are held back for it (rule N14); give the engine blocks for max_num_seqs requests",
            self.running
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Livelock;
    use crate::units::SimTime;

    #[test]
    fn the_note_tells_the_cause_and_its_mend() {
        let note = |hidden| {
            let state = Livelock {
                head: 1,
                needed_blocks: 4,
                free_blocks: 0,
                hidden,
                waiting: 9,
            };
            let since = LivelockSince {
                at: SimTime(1_500_000_000),
                state,
            };
            LivelockReport::of([Some(since)].into_iter())[0].note()
        };
        let (neuron, loads) = (note(3), note(0));
        assert!(
            neuron.contains("the 3 running requests") && neuron.contains("N14"),
            "{neuron}"
        );
        assert!(
            neuron.contains("blocks for max_num_seqs") && !neuron.contains("D12"),
            "{neuron}"
        );
        assert!(
            loads.contains("from 1.500 s") && loads.contains("the KV of 9 prompts"),
            "{loads}"
        );
        assert!(
            loads.contains("D12") && loads.contains("reserve_for_loads to true"),
            "{loads}"
        );
        assert!(!loads.contains("N14"), "{loads}");
    }
}
