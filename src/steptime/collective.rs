//! How long ranks take to exchange data inside a step: latency and volume by algorithm, the fastest one counts.

/// A link between the ranks of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Latency of one exchange between two ranks, in seconds.
    pub latency_s: f64,
    /// Bandwidth that a rank reaches in one direction, in bytes a second.
    pub bytes_per_s: f64,
    /// Every rank reaches every other at that bandwidth (NVLink); else they share a bus (PCIe), and more than two pass
    /// data round a ring.
    pub all_to_all: bool,
}

/// A ring: start, latency of one of its 2 (p - 1) steps, its bandwidth beside that of a direct exchange, and the factor
/// on it with each doubling of the ranks. Figures of measured all-reduces (docs/CALIBRATION.md, Kernels): mean of A100,
/// H100, H200 over NVLink, of L40S and RTX PRO 6000 over PCIe.
struct Ring {
    start_s: f64,
    step_s: f64,
    bandwidth: f64,
    per_doubling: f64,
}

const NVLINK_RING: Ring = Ring {
    start_s: 36e-6,
    step_s: 1.8e-6,
    bandwidth: 1.1,
    per_doubling: 1.19,
};

const PCIE_RING: Ring = Ring {
    start_s: 4.2e-6,
    step_s: 1.5e-6,
    bandwidth: 0.6,
    per_doubling: 0.67,
};

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
    let (p, volume) = (f64::from(ranks), bytes / link.bytes_per_s);
    match (link.all_to_all, ranks) {
        (true, _) => direct(link, ranks, bytes).min(ring(&NVLINK_RING, p, volume)),
        (false, 2) => direct(link, ranks, bytes),
        (false, _) => ring(&PCIE_RING, p, volume),
    }
}

/// Seconds of an all-reduce in which every rank reads from every other.
pub fn direct(link: Link, ranks: u32, bytes: f64) -> f64 {
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

fn ring(ring: &Ring, p: f64, volume: f64) -> f64 {
    let bandwidth = ring.bandwidth * ring.per_doubling.powf((p / 2.0).log2());
    ring.start_s + 2.0 * (p - 1.0) * ring.step_s + 2.0 * (p - 1.0) / p * volume / bandwidth
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

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    fn nvlink() -> Link {
        Link {
            latency_s: 4e-6,
            bytes_per_s: 250e9,
            all_to_all: true,
        }
    }

    #[test]
    fn small_messages_take_one_exchange_and_larger_ones_two() {
        // Two ranks: each reads all of the other's data.
        assert_relative_eq!(all_reduce(nvlink(), 2, 250e3), 4e-6 + 1e-6, max_relative = 1e-12);
        // Four ranks below 512 KB: three times the message; above: 2 * 3/4 of it, and a second exchange.
        let latency = 4e-6 * 1.1;
        assert_relative_eq!(
            all_reduce(nvlink(), 4, 250e3),
            latency + 3e-6,
            max_relative = 1e-12
        );
        assert_relative_eq!(
            all_reduce(nvlink(), 4, 1e6),
            1.8 * latency + 1.5 * 4e-6,
            max_relative = 1e-12
        );
        assert!(all_reduce(nvlink(), 1, 1e6).abs() <= 0.0);
    }

    #[test]
    fn a_bus_is_shared_by_more_than_two() {
        let bus = Link {
            bytes_per_s: 20e9,
            all_to_all: false,
            ..nvlink()
        };
        let (two, four, eight) = (
            all_reduce(bus, 2, 1e6),
            all_reduce(bus, 4, 1e6),
            all_reduce(bus, 8, 1e6),
        );
        assert!(two < four && four < eight, "{two} {four} {eight}");
    }
}
