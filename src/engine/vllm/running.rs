//! The running list (rule S4): slots in the order of admission, or the newest in front (rule N13).

/// Slots of running requests. Each has a number that rises along the list, so that its place is found by it.
#[derive(Debug)]
pub(super) struct RunningList {
    slots: Vec<u32>,
    /// Number of each one, rising.
    orders: Vec<u64>,
    /// Smallest and largest number given so far.
    first: u64,
    last: u64,
    newest_first: bool,
}

/// Requests of the list that the scheduler does not see for one call.
#[derive(Debug)]
pub(super) struct Hidden {
    slots: Vec<u32>,
    orders: Vec<u64>,
}

impl RunningList {
    pub fn new(newest_first: bool) -> Self {
        // Numbers grow in one direction only; either half of the range lasts for ever.
        let middle = u64::MAX / 2;
        Self {
            slots: Vec::new(),
            orders: Vec::new(),
            first: middle,
            last: middle,
            newest_first,
        }
    }

    /// Takes the requests from a place on out of the list.
    pub fn hide_from(&mut self, place: usize) -> Hidden {
        Hidden {
            slots: self.slots.split_off(place),
            orders: self.orders.split_off(place),
        }
    }

    /// Puts them back behind those that are there.
    pub fn show(&mut self, mut hidden: Hidden) {
        debug_assert!(self.orders.last() < hidden.orders.first() || hidden.orders.is_empty());
        self.slots.append(&mut hidden.slots);
        self.orders.append(&mut hidden.orders);
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Puts a request at its end of the list; returns its number.
    pub fn admit(&mut self, slot: u32) -> u64 {
        if self.newest_first {
            self.first -= 1;
            self.slots.insert(0, slot);
            self.orders.insert(0, self.first);
            self.first
        } else {
            self.last += 1;
            self.slots.push(slot);
            self.orders.push(self.last);
            self.last
        }
    }

    /// How many requests stand before the one with this number.
    pub fn place(&self, order: u64) -> usize {
        self.orders.partition_point(|&o| o < order)
    }

    /// Takes out the request at a place.
    pub fn remove_at(&mut self, place: usize) -> u32 {
        self.orders.remove(place);
        self.slots.remove(place)
    }

    /// Takes out the request with this number, if it is there.
    pub fn remove(&mut self, order: u64) {
        let place = self.place(order);
        if self.orders.get(place) == Some(&order) {
            self.remove_at(place);
        }
    }
}
