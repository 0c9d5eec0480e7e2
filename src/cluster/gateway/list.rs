//! First-in first-out lists in one slab, from whose middle an item goes in constant time.

use super::queue::Item;

/// No slot.
const NONE: u32 = u32::MAX;

/// The two ends of one list.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        Self {
            head: NONE,
            tail: NONE,
        }
    }
}

impl List {
    /// The slot of the oldest item.
    pub fn head(self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }
}

#[derive(Debug, Clone)]
struct Node {
    item: Item,
    before: u32,
    after: u32,
}

/// The items of all lists. Slots of items that left are used again, so memory is that of the longest queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Slab {
    nodes: Vec<Node>,
    free: Vec<u32>,
}

impl Slab {
    /// Puts an item at the end of a list and says in which slot it is.
    pub fn push(&mut self, list: &mut List, item: Item) -> u32 {
        let node = Node {
            item,
            before: list.tail,
            after: NONE,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                slot
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        match list.tail {
            NONE => list.head = slot,
            tail => self.nodes[tail as usize].after = slot,
        }
        list.tail = slot;
        slot
    }

    /// Takes the item of a slot out of its list.
    pub fn take(&mut self, list: &mut List, slot: u32) -> Item {
        let Node { item, before, after } = self.nodes[slot as usize];
        match before {
            NONE => list.head = after,
            before => self.nodes[before as usize].after = after,
        }
        match after {
            NONE => list.tail = before,
            after => self.nodes[after as usize].before = before,
        }
        self.free.push(slot);
        item
    }

    /// The item of a slot.
    pub fn item(&self, slot: u32) -> &Item {
        &self.nodes[slot as usize].item
    }
}
