//! Session affinity by consistent hashing (rule D41), with bounded loads where asked for.
//!
//! Each target has `virtual_nodes` points on a ring of 2^64 places, each session one; a session goes to the target of
//! the first point from its own place on. So when a target leaves, only its sessions move, and when one joins, only
//! those move that it gets (Karger et al. 1997). With a load bound c, a target that has ceil(c * m/n) requests is full
//! and passed over, with m requests in flight at n targets, the one being routed among them: "Consistent hashing with
//! bounded loads" (Mirrokni, Thorup, Zadimoghaddam 2018).

use super::draw::Draw;
use super::policy::Asked;
use super::view::View;

/// So that sessions and targets of the same numbers do not meet on the ring.
const SESSIONS: u64 = 0x5e55_1011_0000_0000;

#[derive(Debug)]
pub(super) struct Ring {
    load_bound: Option<f64>,
    virtual_nodes: u32,
    /// (place, target) of every target that was a candidate and has not left, ascending. Those that are no candidates
    /// now are passed over, which comes to the same as a ring without them.
    points: Vec<(u64, u32)>,
    /// The targets that have points, ascending.
    known: Vec<u32>,
}

impl Ring {
    pub(super) fn new(load_bound: Option<f64>, virtual_nodes: u32) -> Self {
        // NaN and what is below 1 become 1: less room than requests would be no bound but a refusal.
        Self {
            load_bound: load_bound.map(|bound| bound.max(1.0)),
            virtual_nodes: virtual_nodes.max(1),
            points: Vec::new(),
            known: Vec::new(),
        }
    }

    pub(super) fn choose(&mut self, asked: &Asked, view: &View<'_>, draw: Draw) -> Option<usize> {
        self.add_unknown(view);
        let place = asked
            .session
            .map_or(draw.0, |session| mixed(SESSIONS ^ u64::from(session)));
        let limit = self.limit(view);
        let start = self.points.partition_point(|&(point, _)| point < place);
        let (before, from) = self.points.split_at(start);
        let ranks = from
            .iter()
            .chain(before)
            .filter_map(|&(_, target)| view.rank_of(target));
        let mut ranks = ranks.filter(|&rank| f64::from(view.at(rank).in_flight) < limit);
        ranks.next()
    }

    /// Requests at which a target is full.
    fn limit(&self, view: &View<'_>) -> f64 {
        let Some(bound) = self.load_bound else {
            return f64::INFINITY;
        };
        let in_flight: u64 = view.iter().map(|candidate| u64::from(candidate.in_flight)).sum();
        (bound * (in_flight + 1) as f64 / view.len() as f64).ceil()
    }

    fn add_unknown(&mut self, view: &View<'_>) {
        let before = self.points.len();
        for target in view.iter().map(|candidate| candidate.target) {
            if let Err(at) = self.known.binary_search(&target) {
                self.known.insert(at, target);
                let places = (0..self.virtual_nodes).map(|node| place_of(target, node));
                self.points.extend(places.map(|place| (place, target)));
            }
        }
        if self.points.len() > before {
            self.points.sort_unstable();
        }
    }

    pub(super) fn left(&mut self, target: u32) {
        self.known.retain(|&known| known != target);
        self.points.retain(|&(_, known)| known != target);
    }
}

/// Place of a target's virtual node.
fn place_of(target: u32, node: u32) -> u64 {
    mixed(mixed(u64::from(target)) ^ u64::from(node))
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014): a fixed bijection that spreads neighbours over 2^64.
fn mixed(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
