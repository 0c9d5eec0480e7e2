//! The queue of a gateway, and the policies that say who is next.

use std::collections::{BTreeMap, HashMap};

use super::drr::Drr;
use super::list::{List, Slab};
use super::vtc::Vtc;
use super::{GatewayError, millionths};
use crate::units::SimTime;

/// Who is next. Weights are those of tenants by number, told apart to a millionth, from 0.000001 to 1e6;
/// tenants beyond the list weigh 1. A tenant of twice the weight is owed twice the service.
#[derive(Debug, Clone, PartialEq)]
pub enum FairPolicy {
    /// First come, first served, whoever it is.
    Fcfs,
    /// The smallest priority value first, as in vLLM, then the older. Starves large values.
    Priority,
    /// The smallest virtual token counter first (Sheng et al., OSDI 2024), the smaller tenant on a tie.
    ///
    /// While two tenants of weight 1 both have requests waiting, their weighted services over any span differ
    /// by at most `2 * max(input_weight * longest input, output_weight * M)` where M is the most tokens that
    /// the served requests hold at one time. (If an input token weighs more than an output token, the larger
    /// of the two is to be replaced by `input_weight * M`.) Other weights divide it, by the smaller one.
    Vtc {
        /// Tenants' weights.
        weights: Vec<f64>,
        /// What an input token counts, 0 to 1e6; charged when its request leaves the queue.
        input_weight: f64,
        /// What an output token counts, 0 to 1e6; charged by [`FairQueue::charge_output`] as it is produced.
        output_weight: f64,
    },
    /// Deficit round-robin over input tokens (Shreedhar and Varghese, SIGCOMM 1995).
    ///
    /// While two tenants both have requests waiting, their input tokens over any span, each divided by its
    /// weight, differ by at most the quantum and each one's longest input, divided by its weight.
    DeficitRoundRobin {
        /// What a tenant of weight 1 may send on a visit, in input tokens; at least 1.
        quantum_tokens: u64,
        /// Tenants' weights.
        weights: Vec<f64>,
    },
}

impl FairPolicy {
    /// Virtual token counters as in the paper's experiments: all tenants alike, an output token counts twice.
    pub fn vtc() -> Self {
        Self::Vtc {
            weights: Vec::new(),
            input_weight: 1.0,
            output_weight: 2.0,
        }
    }
}

/// Tenants' weights in millionths.
pub(super) fn tenant_weights(weights: &[f64]) -> Result<Vec<u64>, GatewayError> {
    weights
        .iter()
        .map(|&weight| millionths("the weight of a tenant", weight, 1e-6, 1e6))
        .collect()
}

/// A request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Its number, which no other request in the queue has.
    pub id: u32,
    /// Whose it is.
    pub tenant: u32,
    /// Its priority, smaller first; only [`FairPolicy::Priority`] looks at it.
    pub priority: i32,
    /// Tokens of its prompt.
    pub input_tokens: u32,
    /// When it entered the queue. Order is that of [`FairQueue::push`]; this is for who asks how long it
    /// waited.
    pub at: SimTime,
}

/// What the queue knows of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TenantState {
    /// Its number.
    pub tenant: u32,
    /// Requests that wait.
    pub queued: u32,
    /// Their input tokens.
    pub queued_tokens: u64,
    /// Requests that left the queue to be served.
    pub admitted: u64,
    /// Their input tokens.
    pub input_tokens: u64,
    /// Output tokens charged.
    pub output_tokens: u64,
    /// Requests that were taken out before their turn.
    pub removed: u64,
    /// The virtual token counter in weighted tokens, divided by the tenant's weight; 0 under other policies.
    pub virtual_tokens: f64,
    /// The deficit of deficit round-robin in tokens; 0 under other policies.
    pub deficit_tokens: f64,
}

#[derive(Debug, Clone)]
enum Order {
    Fcfs,
    Priority,
    Vtc(Vtc),
    Drr(Drr),
}

impl Order {
    /// In which lane an item waits: lanes are first-in first-out, and the policy chooses among them.
    fn lane(&self, item: &Item) -> i64 {
        match self {
            Self::Fcfs => 0,
            Self::Priority => i64::from(item.priority),
            Self::Vtc(_) | Self::Drr(_) => i64::from(item.tenant),
        }
    }
}

/// Requests that wait at a gateway.
///
/// It is work-conserving: whenever something waits, [`FairQueue::pop`] gives it. An operation takes O(log n)
/// of lanes (tenants, or priority values), except that deficit round-robin with a quantum below a tenant's
/// oldest request passes once over the tenants who wait. Memory is that of the longest queue so far and of
/// the tenants seen.
#[derive(Debug, Clone)]
pub struct FairQueue {
    order: Order,
    slab: Slab,
    lanes: BTreeMap<i64, List>,
    /// Looked up and never walked, so its order reaches nothing.
    slots: HashMap<u32, u32>,
    tenants: BTreeMap<u32, TenantState>,
    tokens: u64,
}

impl FairQueue {
    /// An empty queue.
    ///
    /// # Errors
    /// [`GatewayError`] for weights out of range and for a quantum of 0.
    pub fn new(policy: &FairPolicy) -> Result<Self, GatewayError> {
        let order = match policy {
            FairPolicy::Fcfs => Order::Fcfs,
            FairPolicy::Priority => Order::Priority,
            FairPolicy::Vtc {
                weights,
                input_weight,
                output_weight,
            } => Order::Vtc(Vtc::new(weights, *input_weight, *output_weight)?),
            FairPolicy::DeficitRoundRobin {
                quantum_tokens,
                weights,
            } => Order::Drr(Drr::new(*quantum_tokens, weights)?),
        };
        Ok(Self {
            order,
            slab: Slab::default(),
            lanes: BTreeMap::new(),
            slots: HashMap::new(),
            tenants: BTreeMap::new(),
            tokens: 0,
        })
    }

    /// Puts a request behind those of its lane. False, and nothing happens, if its number waits already.
    pub fn push(&mut self, item: Item) -> bool {
        if self.slots.contains_key(&item.id) {
            return false;
        }
        let list = self.lanes.entry(self.order.lane(&item)).or_default();
        let first = list.head().is_none();
        let slot = self.slab.push(list, item);
        self.slots.insert(item.id, slot);
        self.tokens += u64::from(item.input_tokens);
        let tenant = self.tenant(item.tenant);
        tenant.queued += 1;
        tenant.queued_tokens += u64::from(item.input_tokens);
        match &mut self.order {
            Order::Vtc(vtc) if first => vtc.enter(item.tenant),
            Order::Drr(drr) if first => drr.enter(item.tenant),
            _ => {}
        }
        true
    }

    /// The request that is next; its tenant is charged for it.
    pub fn pop(&mut self) -> Option<Item> {
        let slot = match &self.order {
            Order::Drr(drr) => {
                let turn = drr.next(|tenant| self.oldest(tenant).map_or(0, |item| item.input_tokens))?;
                let slot = self.head(i64::from(turn.tenant))?;
                let input_tokens = self.slab.item(slot).input_tokens;
                if let Order::Drr(drr) = &mut self.order {
                    drr.serve(turn, input_tokens);
                }
                slot
            }
            _ => self.next_slot()?,
        };
        let Item {
            tenant, input_tokens, ..
        } = *self.slab.item(slot);
        // Charged before it may leave, so that who comes next is lifted to a counter that has it.
        if let Order::Vtc(vtc) = &mut self.order {
            vtc.charge_input(tenant, u64::from(input_tokens));
        }
        let item = self.take(slot);
        let state = self.tenant(tenant);
        state.admitted += 1;
        state.input_tokens += u64::from(input_tokens);
        Some(item)
    }

    /// The request that [`FairQueue::pop`] would give.
    pub fn peek(&self) -> Option<&Item> {
        self.next_slot().map(|slot| self.slab.item(slot))
    }

    /// Takes a request out whose client gave up. Nobody is charged.
    pub fn remove(&mut self, id: u32) -> Option<Item> {
        let slot = *self.slots.get(&id)?;
        let item = self.take(slot);
        self.tenant(item.tenant).removed += 1;
        Some(item)
    }

    /// Output tokens of a tenant were produced; those of one step may be charged together.
    pub fn charge_output(&mut self, tenant: u32, tokens: u64) {
        let state = self.tenant(tenant);
        state.output_tokens = state.output_tokens.saturating_add(tokens);
        if let Order::Vtc(vtc) = &mut self.order {
            vtc.charge_output(tenant, tokens);
        }
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Input tokens of all requests that wait.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Requests of one tenant that wait.
    pub fn len_of(&self, tenant: u32) -> usize {
        self.tenants.get(&tenant).map_or(0, |state| state.queued as usize)
    }

    /// What is known of every tenant seen so far, by number.
    pub fn snapshot(&self) -> Vec<TenantState> {
        let with_counters = |state: &TenantState| {
            let mut state = *state;
            match &self.order {
                Order::Vtc(vtc) => state.virtual_tokens = vtc.counter(state.tenant),
                Order::Drr(drr) => state.deficit_tokens = drr.deficit(state.tenant),
                Order::Fcfs | Order::Priority => {}
            }
            state
        };
        self.tenants.values().map(with_counters).collect()
    }

    fn tenant(&mut self, tenant: u32) -> &mut TenantState {
        self.tenants.entry(tenant).or_insert(TenantState {
            tenant,
            ..TenantState::default()
        })
    }

    fn head(&self, lane: i64) -> Option<u32> {
        self.lanes.get(&lane).and_then(|list| list.head())
    }

    /// A tenant's oldest request, where tenants are lanes.
    fn oldest(&self, tenant: u32) -> Option<&Item> {
        self.head(i64::from(tenant)).map(|slot| self.slab.item(slot))
    }

    fn next_slot(&self) -> Option<u32> {
        match &self.order {
            // Empty lanes are removed, so the first one has a request.
            Order::Fcfs | Order::Priority => self.lanes.values().next().and_then(|list| list.head()),
            Order::Vtc(vtc) => self.head(i64::from(vtc.next()?)),
            Order::Drr(drr) => {
                let turn = drr.next(|tenant| self.oldest(tenant).map_or(0, |item| item.input_tokens))?;
                self.head(i64::from(turn.tenant))
            }
        }
    }

    /// Takes an item out of its lane, and the lane out of the order if it was the last.
    fn take(&mut self, slot: u32) -> Item {
        let lane = self.order.lane(self.slab.item(slot));
        let list = self.lanes.entry(lane).or_default();
        let item = self.slab.take(list, slot);
        if list.head().is_none() {
            self.lanes.remove(&lane);
            match &mut self.order {
                Order::Vtc(vtc) => vtc.leave(item.tenant),
                Order::Drr(drr) => drr.leave(item.tenant),
                Order::Fcfs | Order::Priority => {}
            }
        }
        self.slots.remove(&item.id);
        self.tokens -= u64::from(item.input_tokens);
        let state = self.tenant(item.tenant);
        state.queued -= 1;
        state.queued_tokens -= u64::from(item.input_tokens);
        item
    }
}
