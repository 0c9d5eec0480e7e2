//! The cost of the KV router of Dynamo (rule D30).
//!
//! cost = overlap weight * prefill blocks + decode blocks, where prefill blocks = (tokens to prefill there, those in
//! progress and this prompt's without what is cached there) / block size, not rounded, and decode blocks are those
//! active there. Dynamo breaks ties by the smaller index and then at random; here they go to the lowest target.

use super::draw::Draw;
use super::policy::{Asked, Candidate, Index};
use super::prefix_index::PrefixIndex;
use super::view::{View, lowest};
use crate::units::SimTime;

#[derive(Debug)]
pub(super) struct KvCost {
    overlap_weight: f64,
    temperature: f64,
    block_size: u32,
    index: PrefixIndex,
    /// Costs and overlaps of the call under way, by rank.
    costs: Vec<f64>,
    overlaps: Vec<u32>,
}

impl KvCost {
    pub(super) fn new(overlap_weight: f64, temperature: f64, block_size: u32, index: Index) -> Self {
        Self {
            overlap_weight,
            temperature,
            block_size: block_size.max(1),
            index: PrefixIndex::new(index),
            costs: Vec::new(),
            overlaps: Vec::new(),
        }
    }

    pub(super) fn choose(
        &mut self,
        now: SimTime,
        asked: &Asked,
        view: &View<'_>,
        draw: Draw,
        believed: &mut Option<u32>,
    ) -> Option<usize> {
        self.overlaps.clear();
        self.costs.clear();
        for candidate in view.iter() {
            let overlap = self.index.overlap_tokens(now, asked, candidate);
            let cost = self.cost(asked, candidate, overlap);
            self.overlaps.push(overlap);
            self.costs.push(cost);
        }
        let rank = if self.temperature > 0.0 {
            draw.weighted(&softmax_weights(&self.costs, self.temperature))
        } else {
            lowest(self.costs.iter().copied())
        }?;
        *believed = Some(self.overlaps[rank]);
        self.index.sent(now, asked, view.at(rank).target);
        Some(rank)
    }

    fn cost(&self, asked: &Asked, candidate: &Candidate, overlap: u32) -> f64 {
        let own = u64::from(asked.input_tokens.saturating_sub(overlap));
        let prefill_tokens = candidate.prefill_tokens.saturating_add(own);
        let prefill_blocks = prefill_tokens as f64 / f64::from(self.block_size);
        self.overlap_weight * prefill_blocks + f64::from(candidate.active_blocks)
    }

    pub(super) fn left(&mut self, target: u32) {
        self.index.forget(target);
    }
}

/// exp(-(cost - lowest)/((highest - lowest) * temperature)): 1 for the lowest, exp(-1/temperature) for the highest; 1
/// for all where they are equal.
pub(super) fn softmax_weights(costs: &[f64], temperature: f64) -> Vec<f64> {
    let low = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let high = costs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let spread = (high - low) * temperature;
    let weight = |cost: f64| {
        if spread > 0.0 {
            (-(cost - low) / spread).exp()
        } else {
            1.0
        }
    };
    costs.iter().map(|&cost| weight(cost)).collect()
}
