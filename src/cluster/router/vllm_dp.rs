//! vLLM's balancer between its data-parallel ranks (rule S74, D40: `DPLBAsyncMPClient.get_core_engine_for_request`).
//!
//! Each client (API server process) has a snapshot of every rank's waiting and running requests, which the coordinator
//! sends at most every 100 ms. Between snapshots a client only adds what it did itself: the waiting count of the rank
//! it chose goes up by the number of clients, as if all of them had done the same.

use std::collections::BTreeMap;

use super::policy::Candidate;
use super::view::View;

#[derive(Debug)]
pub(super) struct VllmDp {
    clients: u32,
    before_0_28: bool,
    /// The client whose turn it is.
    client: u32,
    /// Whether all clients are played here, in turn, or only one.
    alone: bool,
    /// What (client, target) has added to the waiting count since the last snapshot.
    raised: BTreeMap<(u32, u32), u64>,
}

impl VllmDp {
    pub(super) fn all_clients(clients: u32, before_0_28: bool) -> Self {
        Self {
            clients: clients.max(1),
            before_0_28,
            client: 0,
            alone: false,
            raised: BTreeMap::new(),
        }
    }

    pub(super) fn one_client(clients: u32, client: u32, before_0_28: bool) -> Self {
        let all = Self::all_clients(clients, before_0_28);
        Self {
            client: client % all.clients,
            alone: true,
            ..all
        }
    }

    /// Lowest score wins; the scan starts at ranks * client/clients, and ties go to the first scanned.
    pub(super) fn choose(&mut self, view: &View<'_>) -> Option<usize> {
        let ranks = view.len();
        if ranks == 0 {
            return None;
        }
        let client = self.client;
        let start = (ranks as u64 * u64::from(client) / u64::from(self.clients)) as usize;
        let scanned = (0..ranks).map(|step| self.score(client, view.at((start + step) % ranks)));
        let rank = (start + super::view::lowest(scanned)?) % ranks;
        *self.raised.entry((client, view.at(rank).target)).or_default() += u64::from(self.clients);
        if !self.alone {
            self.client = (client + 1) % self.clients;
        }
        Some(rank)
    }

    /// From 0.28: max(clients * own in flight, waiting + running) + 6 waiting * max(0, KV usage - 0.5). Up to 0.25.1:
    /// 4 waiting + running.
    fn score(&self, client: u32, candidate: &Candidate) -> f64 {
        let raised = self.raised.get(&(client, candidate.target)).copied().unwrap_or(0);
        let waiting = u64::from(candidate.waiting) + raised;
        let running = u64::from(candidate.running);
        if self.before_0_28 {
            return (4 * waiting + running) as f64;
        }
        // All clients together: `in_flight` is already the sum over them, that is clients * their mean.
        let share = if self.alone { u64::from(self.clients) } else { 1 };
        let own = share * u64::from(candidate.in_flight);
        let pressure = 6.0 * waiting as f64 * (candidate.kv_usage - 0.5).max(0.0);
        own.max(waiting + running) as f64 + pressure
    }

    pub(super) fn snapshot(&mut self) {
        self.raised.clear();
    }

    pub(super) fn left(&mut self, target: u32) {
        self.raised.retain(|&(_, raised), _| raised != target);
    }
}
