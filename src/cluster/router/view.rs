//! The candidates in ascending order of their targets.

use super::policy::Candidate;

/// Candidates by rank: rank 0 is the lowest target.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    candidates: &'a [Candidate],
    order: &'a [usize],
}

impl<'a> View<'a> {
    /// `order` is room to be used again from call to call.
    pub(super) fn new(candidates: &'a [Candidate], order: &'a mut Vec<usize>) -> Self {
        order.clear();
        order.extend(0..candidates.len());
        order.sort_by_key(|&index| candidates[index].target);
        Self { candidates, order }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn at(&self, rank: usize) -> &'a Candidate {
        &self.candidates[self.order[rank]]
    }

    /// Place in the caller's list.
    pub(super) fn index(&self, rank: usize) -> usize {
        self.order[rank]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'a Candidate> + Clone + use<'a> {
        let candidates = self.candidates;
        self.order.iter().map(move |&index| &candidates[index])
    }

    /// How many have a lower number than `target`: the rank of the first from it on.
    pub(super) fn rank_from(&self, target: u32) -> usize {
        self.order
            .partition_point(|&index| self.candidates[index].target < target)
    }

    pub(super) fn rank_of(&self, target: u32) -> Option<usize> {
        let rank = self.rank_from(target);
        (rank < self.len() && self.at(rank).target == target).then_some(rank)
    }

    /// The rank of the lowest cost; the lowest target of equals.
    pub(super) fn lowest(&self, cost: impl FnMut(&Candidate) -> f64) -> Option<usize> {
        lowest(self.iter().map(cost))
    }
}

/// Place of the lowest of `costs`, the first of equals; NaN is above everything.
pub(super) fn lowest(costs: impl Iterator<Item = f64>) -> Option<usize> {
    let nan_last = |cost: f64| if cost.is_nan() { f64::INFINITY } else { cost };
    costs
        .map(nan_last)
        .enumerate()
        .min_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(place, _)| place)
}
