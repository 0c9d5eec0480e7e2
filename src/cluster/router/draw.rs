//! Chance: one 64-bit draw a decision, made into an index or a share. The arithmetic is ours, so that a release of the
//! generator's crate cannot change what a draw means.

use rand::Rng;
use rand_pcg::Pcg64;

/// The stream of draws of a router.
#[derive(Debug)]
pub(super) struct Draws(Pcg64);

impl Draws {
    pub(super) fn new(rng: Pcg64) -> Self {
        Self(rng)
    }

    pub(super) fn next(&mut self) -> Draw {
        Draw(self.0.next_u64())
    }
}

/// One draw: uniform over 64-bit integers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draw(pub(super) u64);

impl Draw {
    /// One of `n` with equal chance (to n/2^64); `None` of none.
    pub(super) fn index(self, n: usize) -> Option<usize> {
        (n > 0).then(|| ((u128::from(self.0) * n as u128) >> 64) as usize)
    }

    /// Uniform in [0, 1), in steps of 2^-53.
    fn share(self) -> f64 {
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// One of `weights` with chances as they are; weights that are not above 0 have no chance, and where no weight is,
    /// all are equal. `None` of none.
    pub(super) fn weighted(self, weights: &[f64]) -> Option<usize> {
        let weight = |w: f64| if w > 0.0 { w } else { 0.0 };
        let sum: f64 = weights.iter().map(|&w| weight(w)).sum();
        if sum <= 0.0 || !sum.is_finite() {
            return self.index(weights.len());
        }
        let aim = self.share() * sum;
        let mut reached = 0.0;
        let hit = weights.iter().position(|&w| {
            reached += weight(w);
            reached > aim
        });
        // Rounding can leave the sum of the parts at the aim: then it is the last that has a chance.
        hit.or_else(|| weights.iter().rposition(|&w| w > 0.0))
    }
}
