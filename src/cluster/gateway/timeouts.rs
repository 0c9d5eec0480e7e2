//! How long a client waits.

use crate::units::SimDuration;

/// Limits of a client's patience, all counted from the instant at which it sent its request (its first
/// attempt). `None` waits for ever. Zero means a request that nobody could serve; the scenario refuses it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the first token has arrived.
    pub ttft: Option<SimDuration>,
    /// Until the last token has arrived.
    pub e2e: Option<SimDuration>,
    /// Until the request has left the gateway's queue.
    pub queue: Option<SimDuration>,
}
