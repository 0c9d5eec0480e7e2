//! How long a client waits.

use crate::units::SimDuration;

/// Limits of a client's patience. `None` waits for ever. Zero means a request that nobody could serve; the scenario refuses it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the first token has arrived, from the first send; from each try, where clients try again after a timeout.
    pub ttft: Option<SimDuration>,
    /// Until the last token has arrived, from the first send.
    pub e2e: Option<SimDuration>,
    /// Until the request has left the gateway's queue, from its entry at each try.
    pub queue: Option<SimDuration>,
}
