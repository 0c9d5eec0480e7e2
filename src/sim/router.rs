//! Which replica gets a request.

/// Each in turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundRobin {
    replicas: u32,
    next: u32,
}

impl RoundRobin {
    pub fn new(replicas: u32) -> Self {
        Self {
            replicas: replicas.max(1),
            next: 0,
        }
    }

    pub fn choose(&mut self) -> u32 {
        let chosen = self.next;
        self.next = (self.next + 1) % self.replicas;
        chosen
    }
}
