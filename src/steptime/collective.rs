//! How long ranks take to exchange data inside a step: latency and volume by algorithm, the fastest one counts.

/// A link between the ranks of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Latency of one exchange between two ranks, in seconds.
    pub latency_s: f64,
    /// Bandwidth that a rank reaches in one direction, in bytes a second.
    pub bytes_per_s: f64,
}

/// What the second exchange of a two-shot all-reduce costs beside the first, as a share of a one-shot's latency.
const TWO_SHOT_LATENCY: f64 = 1.8;
/// Growth of the latency with each doubling of the ranks.
const LATENCY_PER_DOUBLING: f64 = 0.1;

/// Seconds of an all-reduce of `bytes` over `ranks` by vLLM's own kernels: one-shot (every rank reads all others'
/// data) between two ranks, and below 512 KB between up to four or 256 KB between more; two-shot (reduce-scatter and
/// all-gather) above (step-time.md 3.6).
pub fn all_reduce(link: Link, ranks: u32, bytes: f64) -> f64 {
    if ranks < 2 || bytes <= 0.0 {
        return 0.0;
    }
    let p = f64::from(ranks);
    let volume = bytes / link.bytes_per_s;
    let latency = link.latency_s * (1.0 + LATENCY_PER_DOUBLING * (p / 2.0).log2());
    let one_shot_below = match ranks {
        2 => f64::INFINITY,
        3..=4 => 524_288.0,
        _ => 262_144.0,
    };
    if bytes < one_shot_below {
        latency + (p - 1.0) * volume
    } else {
        TWO_SHOT_LATENCY * latency + 2.0 * (p - 1.0) / p * volume
    }
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
