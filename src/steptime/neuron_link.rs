//! How long ranks on NeuronLink take to exchange data: the algorithm changes with the size of the message, and with it
//! how many rounds follow each other (step-time.md 1.3, 3.6; AWS Neuron documentation).

/// Below this size every rank sends to every other at once.
const MESH_BELOW_BYTES: f64 = 1e6;
/// Below this one data are halved for the reduce-scatter and doubled for the all-gather, each in as many rounds as the
/// ranks have doublings; above, both pass round half a ring.
const HALVING_BELOW_BYTES: f64 = 56e6;

/// The link of one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NeuronLink {
    /// Latency of one round, in seconds.
    pub latency_s: f64,
    /// Bandwidth that a rank reaches in one direction, in bytes a second.
    pub bytes_per_s: f64,
}

impl NeuronLink {
    /// Seconds of an all-reduce of `bytes` over `ranks`: reduce-scatter and all-gather move 2 (p - 1) / p of the
    /// message whatever the algorithm; what differs is the rounds.
    pub fn all_reduce(self, ranks: u32, bytes: f64) -> f64 {
        if ranks < 2 || bytes <= 0.0 {
            return 0.0;
        }
        let p = f64::from(ranks);
        let rounds = if bytes < MESH_BELOW_BYTES {
            1.0
        } else if bytes < HALVING_BELOW_BYTES {
            2.0 * p.log2()
        } else {
            p
        };
        rounds * self.latency_s + 2.0 * (p - 1.0) / p * bytes / self.bytes_per_s
    }

    /// Seconds to send `bytes` to one neighbour.
    pub fn point_to_point(self, bytes: f64) -> f64 {
        self.latency_s + bytes / self.bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    #[test]
    fn rounds_grow_with_message_and_ranks() {
        let link = NeuronLink {
            latency_s: 1e-5,
            bytes_per_s: 1e9,
        };
        assert!(link.all_reduce(1, 1e6).abs() <= 0.0);
        assert_relative_eq!(link.all_reduce(8, 8e3), 1e-5 + 14e-6, max_relative = 1e-12);
        assert_relative_eq!(link.all_reduce(8, 8e6), 6e-5 + 14e-3, max_relative = 1e-12);
        assert_relative_eq!(link.all_reduce(8, 8e7), 8e-5 + 0.14, max_relative = 1e-12);
        assert_relative_eq!(link.all_reduce(2, 8e7), 2e-5 + 0.08, max_relative = 1e-12);
    }
}
