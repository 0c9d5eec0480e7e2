//! The token budgets of one schedule call (rule S2).

use super::config::VllmConfig;

/// What is left of a step's budgets (rule S2).
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    tokens: u32,
    input: u32,
    draft_slots: u32,
}

impl Budget {
    /// A whole step's; a paused engine has no tokens to give (rule S7).
    pub fn of_a_step(c: &VllmConfig, is_paused: bool) -> Self {
        let tokens = c.max_num_scheduled_tokens.unwrap_or(c.max_num_batched_tokens);
        Self {
            tokens: if is_paused { 0 } else { tokens },
            input: c.max_num_batched_tokens,
            draft_slots: c.draft_slots,
        }
    }

    pub fn is_spent(&self) -> bool {
        self.tokens == 0 || self.input <= self.draft_slots
    }

    pub fn cap(&self) -> u32 {
        self.tokens.min(self.input - self.draft_slots)
    }

    pub fn take(&mut self, tokens: u32) {
        self.tokens -= tokens;
        self.input -= tokens + self.draft_slots;
    }

    /// Takes one token for each of some decode rows without draft slots; false, with nothing done, if it is too much.
    pub fn take_rows(&mut self, rows: u32) -> bool {
        let enough = rows <= self.tokens && rows <= self.input;
        if enough {
            self.tokens -= rows;
            self.input -= rows;
        }
        enough
    }

    pub fn give_back(&mut self, tokens: u32) {
        self.tokens += tokens;
        self.input += tokens + self.draft_slots;
    }
}
