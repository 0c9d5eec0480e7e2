//! The running list (rule S4): slots in the order of admission.

/// Slots of running requests. Admissions are numbered, so that a request's place is found by its number.
#[derive(Debug, Default)]
pub(super) struct RunningList {
    slots: Vec<u32>,
    /// Number of each one's admission, rising.
    orders: Vec<u64>,
    admissions: u64,
}

impl RunningList {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Puts a request at the end; returns the number of its admission.
    pub fn admit(&mut self, slot: u32) -> u64 {
        self.admissions += 1;
        self.slots.push(slot);
        self.orders.push(self.admissions);
        self.admissions
    }

    /// How many requests stand before the one with this admission number.
    pub fn place(&self, order: u64) -> usize {
        self.orders.partition_point(|&o| o < order)
    }

    /// Takes out the request at a place.
    pub fn remove_at(&mut self, place: usize) -> u32 {
        self.orders.remove(place);
        self.slots.remove(place)
    }

    /// Takes out the request with this admission number, if it is there.
    pub fn remove(&mut self, order: u64) {
        let place = self.place(order);
        if self.orders.get(place) == Some(&order) {
            self.remove_at(place);
        }
    }
}
