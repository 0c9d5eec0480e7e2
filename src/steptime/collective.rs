//! How long ranks take to exchange data inside a step: latency and volume by algorithm, the fastest one counts.

/// A link between the ranks of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Latency of one exchange between two ranks, in seconds.
    pub latency_s: f64,
    /// Bandwidth that a rank reaches in one direction, in bytes a second.
    pub bytes_per_s: f64,
}

/// Seconds of an all-reduce of `bytes` over `ranks`: one-shot (every rank reads all others' data), two-shot
/// (reduce-scatter and all-gather) or ring, whichever is fastest (step-time.md 3.6).
pub fn all_reduce(link: Link, ranks: u32, bytes: f64) -> f64 {
    if ranks < 2 || bytes <= 0.0 {
        return 0.0;
    }
    let p = f64::from(ranks);
    let volume = bytes / link.bytes_per_s;
    let one_shot = link.latency_s + (p - 1.0) * volume;
    let two_shot = 1.3 * link.latency_s + 2.0 * (p - 1.0) / p * volume;
    one_shot.min(two_shot)
}

/// Seconds to gather `bytes` (of all ranks together) on every rank.
pub fn all_gather(link: Link, ranks: u32, bytes: f64) -> f64 {
    if ranks < 2 || bytes <= 0.0 {
        return 0.0;
    }
    let p = f64::from(ranks);
    link.latency_s + (p - 1.0) / p * bytes / link.bytes_per_s
}

/// Seconds to send `bytes` from one pipeline stage to the next.
pub fn point_to_point(link: Link, bytes: f64) -> f64 {
    link.latency_s + bytes / link.bytes_per_s
}
