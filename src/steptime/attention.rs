//! Attention of a step on one rank: chunks of prompts each by its own length, decodes of one token by their sums.
//!
//! A decode of one token costs in proportion to the positions that it attends, so the sum over such rows is all that
//! matters; where a window cuts rows short, their number does too. The sums are integers: the order of rows and
//! whether they are listed cannot change a result.

use super::batch::{Growth, attended};
use super::{BatchShape, RowShape};
use crate::units::SimDuration;

/// Attention of the layers of one kind on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Attention {
    pub layers: f64,
    /// FLOPs of one pair of a query and a key position, all heads of the rank.
    pub flops_per_pair_prefill: f64,
    pub flops_per_pair_decode: f64,
    /// Bytes of one cached position.
    pub kv_bytes: f64,
    /// Positions attended at most; `f64::INFINITY` without a window.
    pub window: f64,
}

/// What a device makes of attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AttentionRates {
    /// FLOP/s.
    pub flops: f64,
    /// Bytes of the cache read a second.
    pub kv_bytes_per_s: f64,
    /// Pairs that each prefill token costs beside those it attends.
    pub lost_pairs: f64,
    /// Seconds that a tile of queries walks over one key.
    pub key_s: f64,
}

impl Attention {
    /// There are such layers, and they look back over a window.
    pub fn is_windowed(&self) -> bool {
        self.layers > 0.0 && self.window.is_finite()
    }

    /// Seconds of a step's prefill chunks, `steps` steps later: one launch a layer, the pairs they compute and a share
    /// of tiles that is lost by token, but never faster than the longest of them walks over its keys one after another.
    pub fn prefill_s(&self, rates: &AttentionRates, rows: &[RowShape], steps: u32) -> f64 {
        let (mut compute, mut walk, mut read) = (0.0, 0.0_f64, 0.0);
        for row in rows.iter().map(|r| r.after(steps)) {
            let (n, c) = (f64::from(row.tokens), f64::from(row.computed));
            let keys = (c + n).min(self.window + n);
            compute +=
                self.flops_per_pair_prefill * (pairs(n, c, self.window) + rates.lost_pairs * n) / rates.flops;
            walk = walk.max(keys * rates.key_s);
            read += keys * self.kv_bytes / rates.kv_bytes_per_s;
        }
        self.layers * compute.max(walk).max(read)
    }

    /// Seconds of one decode row that verifies drafts.
    fn drafts_s(&self, rates: &AttentionRates, row: RowShape) -> f64 {
        let (n, c) = (f64::from(row.tokens), f64::from(row.computed));
        let read = (c + n).min(self.window + n) * self.kv_bytes / rates.kv_bytes_per_s;
        let compute = self.flops_per_pair_decode * pairs(n, c, self.window) / rates.flops;
        self.layers * compute.max(read)
    }

    /// What decodes of one token cost.
    fn decode_cost(&self, rates: &AttentionRates) -> DecodeCost {
        let compute = self.flops_per_pair_decode / rates.flops;
        let read = self.kv_bytes / rates.kv_bytes_per_s;
        DecodeCost {
            position_s: self.layers * compute.max(read),
            // A full window is read beside the token's own position, as a chunk of one token would.
            full_window_s: if self.is_windowed() {
                self.layers * (compute * self.window).max(read * (self.window + 1.0))
            } else {
                0.0
            },
        }
    }
}

/// What decodes of one token cost in the layers of one kind.
#[derive(Debug, Clone, Copy)]
struct DecodeCost {
    /// Seconds for each position that a row within the window attends.
    position_s: f64,
    /// Seconds of a row beyond it.
    full_window_s: f64,
}

/// Decodes of one token under a window.
#[derive(Debug, Clone, Copy, Default)]
struct Windowed {
    /// Rows that see all positions before them.
    within: u64,
    /// Positions that those attend.
    positions: u64,
    /// Rows that see a full window.
    beyond: u64,
}

impl Windowed {
    fn add(&mut self, context: u64, window: u64) {
        if context <= window {
            self.within += 1;
            self.positions += context;
        } else {
            self.beyond += 1;
        }
    }

    /// One step later: all contexts are one longer, and `leaving` rows had filled the window.
    fn step(&mut self, leaving: u64, window: u64) {
        self.within -= leaving;
        self.beyond += leaving;
        self.positions = self.positions - leaving * window + self.within;
    }
}

/// Attention of a batch's decodes while a run of equal steps goes on: step after step by [`Decodes::next_s`].
#[derive(Debug)]
pub(super) struct Decodes<'a> {
    batch: &'a BatchShape,
    growth: Growth,
    kinds: &'a [Attention; 2],
    rates: &'a AttentionRates,
    costs: [DecodeCost; 2],
    has_drafts: bool,
    /// The window of the second kind, if there are such layers.
    window: Option<u64>,
    /// Listed rows of one token under it.
    listed: Windowed,
    /// Their number and the positions they would attend without it.
    listed_rows: u64,
    listed_context: u64,
    step: u32,
}

impl<'a> Decodes<'a> {
    /// The decodes of `batch`, whose contexts grow by `growth` a step. The second of the kinds may have a window.
    pub fn of(
        batch: &'a BatchShape,
        growth: Growth,
        kinds: &'a [Attention; 2],
        rates: &'a AttentionRates,
    ) -> Self {
        let window = kinds[1].is_windowed().then_some(kinds[1].window as u64);
        let mut of = Self {
            batch,
            growth,
            kinds,
            rates,
            costs: kinds.map(|kind| kind.decode_cost(rates)),
            has_drafts: batch.decode_tokens != batch.decode_seqs,
            window,
            listed: Windowed::default(),
            listed_rows: 0,
            listed_context: 0,
            step: 0,
        };
        if let Some(window) = window {
            for context in of.contexts() {
                of.listed_rows += 1;
                of.listed_context += context;
                of.listed.add(context, window);
            }
        }
        of
    }

    /// Contexts of the listed rows of one token.
    fn contexts(&self) -> impl Iterator<Item = u64> + use<'a> {
        let ones = self.batch.decodes.iter().filter(|r| r.tokens == 1);
        ones.map(|r| u64::from(r.computed) + 1)
    }

    /// Writes into `out[k]` how many listed rows leave the window with step k.
    pub fn count_leaving(&self, out: &mut [SimDuration]) {
        let Some(window) = self.window else { return };
        out.fill(SimDuration::ZERO);
        for context in self.contexts().filter(|c| *c <= window) {
            let leaves = usize::try_from(window - context + 1).unwrap_or(usize::MAX);
            if let Some(count) = out.get_mut(leaves) {
                count.0 += 1;
            }
        }
    }

    /// Seconds of the next step, with which `leaving` rows leave the window; the first is the batch itself, with
    /// which none does.
    pub fn next_s(&mut self, leaving: u64) -> f64 {
        let step = self.step;
        self.step += 1;
        if let (Some(window), 1..) = (self.window, step) {
            self.listed.step(leaving, window);
        }
        let (drafts_context, drafts_s) = self.drafts(step);
        let (_, all) = self.batch.contexts_after(self.growth, step);
        let context = all.saturating_sub(drafts_context);
        let mut seconds = self.costs[0].position_s * context as f64;
        if let Some(window) = self.window {
            let rows = self.with_unlisted(context, step, window);
            let cost = self.costs[1];
            seconds += cost.position_s * rows.positions as f64 + cost.full_window_s * rows.beyond as f64;
        }
        seconds + drafts_s
    }

    /// Listed rows and, as if all were of their mean length, the others.
    fn with_unlisted(&self, context: u64, step: u32, window: u64) -> Windowed {
        let mut rows = self.listed;
        let others = u64::from(self.batch.decode_seqs).saturating_sub(self.batch.decodes.len() as u64);
        if others > 0 {
            let listed = self.listed_context + self.listed_rows * u64::from(step);
            let context = context.saturating_sub(listed);
            if context <= others * window {
                rows.positions += context;
            } else {
                rows.beyond += others;
            }
        }
        rows
    }

    /// Positions attended by rows that verify drafts, and their seconds.
    fn drafts(&self, step: u32) -> (u64, f64) {
        if !self.has_drafts {
            return (0, 0.0);
        }
        let (mut context, mut seconds) = (0, 0.0);
        for row in self.batch.decodes.iter().filter(|r| r.tokens != 1) {
            let row = row.after(step);
            context += attended(row.tokens, row.computed);
            for kind in self.kinds.iter().filter(|k| k.layers > 0.0) {
                seconds += kind.drafts_s(self.rates, row);
            }
        }
        (context, seconds)
    }
}

/// Pairs of query and key positions of `n` tokens after `c`, each looking back at most `window` positions.
pub(crate) fn pairs(n: f64, c: f64, window: f64) -> f64 {
    let all = n * c + n * (n + 1.0) / 2.0;
    if c + n <= window {
        return all;
    }
    // The first `free` tokens still see everything before them, the others a full window.
    let free = (window - c).clamp(0.0, n);
    free * c + free * (free + 1.0) / 2.0 + (n - free) * window
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;
    use proptest::prelude::*;

    const RATES: AttentionRates = AttentionRates {
        flops: 4e14,
        kv_bytes_per_s: 2e12,
        lost_pairs: 400.0,
        key_s: 18e-9,
    };

    fn kinds(flops_per_pair: f64) -> [Attention; 2] {
        [(12.0, f64::INFINITY), (20.0, 128.0)].map(|(layers, window)| Attention {
            layers,
            flops_per_pair_prefill: flops_per_pair,
            flops_per_pair_decode: flops_per_pair,
            kv_bytes: 4096.0,
            window,
        })
    }

    proptest! {
        #[test]
        fn sums_cost_what_rows_do(
            contexts in prop::collection::vec(prop_oneof![0u32..140, 0u32..9000], 1..30),
            bound_by_reading: bool,
        ) {
            let kinds = kinds(if bound_by_reading { 16384.0 } else { 1e7 });
            let mut batch = BatchShape::default();
            contexts.iter().for_each(|&c| batch.add_decode(1, c));
            let by_row: f64 = batch
                .decodes
                .iter()
                .flat_map(|row| kinds.iter().map(|k| k.drafts_s(&RATES, *row)))
                .sum();
            let by_sum = Decodes::of(&batch, Growth::default(), &kinds, &RATES).next_s(0);
            assert_relative_eq!(by_sum, by_row, max_relative = 1e-12);
        }
    }

    #[test]
    fn one_decode_by_hand() {
        // Reading bounds: 4096 bytes a position and layer at 2 TB/s; a full window is read beside the token itself.
        let mut batch = BatchShape::default();
        batch.add_decode(1, 999);
        let kinds = kinds(1.0);
        let by_sum = Decodes::of(&batch, Growth::default(), &kinds, &RATES).next_s(0);
        let positions = 12.0 * 1000.0 + 20.0 * 129.0;
        assert_relative_eq!(by_sum, positions * 4096.0 / 2e12, max_relative = 1e-12);
    }
}
