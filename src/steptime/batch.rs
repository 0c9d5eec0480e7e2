//! What one engine step computes, as the step-time models see it.

use super::graphs::StepMode;

/// The shape of one step's batch.
///
/// A row is a *decode* when it feeds exactly one token (plus speculative drafts) at or past the end of the
/// prompt, or its last token where the KV of the rest was loaded; every other row is a *prefill*: prompt chunks, and
/// the replay of a preempted request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct BatchShape {
    /// Prefill rows.
    pub prefill_seqs: u32,
    /// Tokens in the prefill rows.
    pub prefill_tokens: u32,
    /// Positions attended by all prefill tokens: for a chunk of n tokens after c computed ones,
    /// n*c + n*(n+1)/2.
    pub prefill_token_context: u64,
    /// Decode rows.
    pub decode_seqs: u32,
    /// Tokens in the decode rows (more than rows when drafts are verified).
    pub decode_tokens: u32,
    /// Positions attended by all decode tokens: computed + 1 for a row of one token.
    pub decode_context_tokens: u64,
    /// The prefill rows one by one: costs that are not linear in the lengths need each, never their mean.
    pub prefills: Vec<RowShape>,
    /// Decode rows one by one. Those of one token each may be counted in the sums alone ([`Self::add_decodes`]);
    /// models that need each say so ([`super::StepTime::needs_decode_rows`]).
    pub decodes: Vec<RowShape>,
    /// The same rows decoded in the step before and nothing happened in between, so a host that works ahead of the
    /// device has nothing to wait for. `None` from engines whose step time does not depend on it.
    pub repeated: Option<bool>,
    /// How the ranks of a group that steps together agreed to launch it (rule S72). `None`: as it would be alone.
    pub launch: Option<StepMode>,
}

/// One row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowShape {
    /// Tokens fed in this step.
    pub tokens: u32,
    /// Tokens computed before it (or found in the prefix cache).
    pub computed: u32,
}

impl RowShape {
    /// The row `steps` steps later, when it gets as many tokens again in each.
    #[must_use]
    pub const fn after(self, steps: u32) -> Self {
        Self {
            tokens: self.tokens,
            computed: self.computed.saturating_add(self.tokens.saturating_mul(steps)),
        }
    }
}

/// By how much the attended positions grow from step to step while every row gets as many tokens again: a row of n
/// tokens attends n * n more each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Growth {
    /// Positions attended by prefill tokens.
    pub prefill: u64,
    /// Positions attended by decode tokens.
    pub decode: u64,
}

impl BatchShape {
    /// Empties the shape, keeping its memory.
    pub fn clear(&mut self) {
        let (mut prefills, mut decodes) = (
            std::mem::take(&mut self.prefills),
            std::mem::take(&mut self.decodes),
        );
        prefills.clear();
        decodes.clear();
        *self = Self {
            prefills,
            decodes,
            ..Self::default()
        };
    }

    /// The six sums, in the order of the fields.
    pub const fn sums(&self) -> (u32, u32, u64, u32, u32, u64) {
        (
            self.prefill_seqs,
            self.prefill_tokens,
            self.prefill_token_context,
            self.decode_seqs,
            self.decode_tokens,
            self.decode_context_tokens,
        )
    }

    /// Rows of the batch.
    pub const fn num_seqs(&self) -> u32 {
        self.prefill_seqs + self.decode_seqs
    }

    /// Tokens of the batch.
    pub const fn tokens(&self) -> u32 {
        self.prefill_tokens + self.decode_tokens
    }

    /// Nothing to compute.
    pub const fn is_empty(&self) -> bool {
        self.tokens() == 0
    }

    /// Adds a prefill chunk of `tokens` after `computed` tokens.
    pub fn add_prefill(&mut self, tokens: u32, computed: u32) {
        self.prefill_seqs += 1;
        self.prefill_tokens += tokens;
        self.prefill_token_context += attended(tokens, computed);
        self.prefills.push(RowShape { tokens, computed });
    }

    /// Adds a decode row of `tokens` (1 + drafts) after `computed` tokens.
    pub fn add_decode(&mut self, tokens: u32, computed: u32) {
        self.decode_seqs += 1;
        self.decode_tokens += tokens;
        self.decode_context_tokens += attended(tokens, computed);
        self.decodes.push(RowShape { tokens, computed });
    }

    /// Adds `rows` decode rows of one token each, which are not listed and together attend `context` positions (the
    /// sum of computed + 1).
    pub fn add_decodes(&mut self, rows: u32, context: u64) {
        debug_assert!(context >= u64::from(rows), "a row attends to its own token");
        self.decode_seqs += rows;
        self.decode_tokens += rows;
        self.decode_context_tokens += context;
    }

    /// Decode rows that are not listed, and the positions that they attend.
    pub fn unlisted_decodes(&self) -> (u32, u64) {
        let listed: u64 = self.decodes.iter().map(|r| attended(r.tokens, r.computed)).sum();
        (
            self.decode_seqs.saturating_sub(self.decodes.len() as u32),
            self.decode_context_tokens.saturating_sub(listed),
        )
    }

    /// What the next step of the same tokens adds to the attended positions.
    ///
    /// Prefill rows must be listed. Decode rows that are not have equally many tokens each.
    pub fn growth(&self) -> Growth {
        debug_assert_eq!(
            self.prefills.len(),
            self.prefill_seqs as usize,
            "prefill rows are listed"
        );
        let squares = |rows: &[RowShape]| -> u64 {
            rows.iter()
                .map(|r| u64::from(r.tokens) * u64::from(r.tokens))
                .sum()
        };
        let (rows, tokens) = if self.decodes.is_empty() {
            (self.decode_seqs, self.decode_tokens)
        } else {
            let listed: u32 = self.decodes.iter().map(|r| r.tokens).sum();
            (
                self.decode_seqs.saturating_sub(self.decodes.len() as u32),
                self.decode_tokens.saturating_sub(listed),
            )
        };
        debug_assert!(
            rows == 0 || tokens.is_multiple_of(rows),
            "rows that are not listed have equally many tokens"
        );
        let each = u64::from(tokens.checked_div(rows).unwrap_or(0));
        Growth {
            prefill: squares(&self.prefills),
            decode: squares(&self.decodes) + u64::from(tokens) * each,
        }
    }

    /// Positions attended by prefill and by decode tokens `steps` steps later.
    pub const fn contexts_after(&self, growth: Growth, steps: u32) -> (u64, u64) {
        let steps = steps as u64;
        (
            self.prefill_token_context
                .saturating_add(growth.prefill.saturating_mul(steps)),
            self.decode_context_tokens
                .saturating_add(growth.decode.saturating_mul(steps)),
        )
    }

    /// The batch `steps` steps later, when every row gets as many tokens again in each: its `computed` grows by its
    /// `tokens` a step. Constant time where no rows are listed. What [`Self::growth`] asks of the rows holds here too.
    pub fn advance(&mut self, steps: u32) {
        let growth = self.growth();
        (self.prefill_token_context, self.decode_context_tokens) = self.contexts_after(growth, steps);
        for row in self.prefills.iter_mut().chain(&mut self.decodes) {
            *row = row.after(steps);
        }
        self.repeated = self.repeated.map(|repeated| repeated || steps > 0);
    }
}

/// Positions attended by `tokens` consecutive tokens after `computed` ones.
pub const fn attended(tokens: u32, computed: u32) -> u64 {
    let (n, c) = (tokens as u64, computed as u64);
    n * c + n * (n + 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(most: u32) -> impl Strategy<Value = Vec<(u32, u32)>> {
        prop::collection::vec((1..most, 0u32..5000), 0..6)
    }

    proptest! {
        #[test]
        fn the_sums_of_an_advanced_batch_are_those_of_its_advanced_rows(
            prefills in rows(300), decodes in rows(4), steps in 0u32..100,
        ) {
            let (mut batch, mut later) = (BatchShape::default(), BatchShape::default());
            for (tokens, computed) in prefills {
                batch.add_prefill(tokens, computed);
                later.add_prefill(tokens, computed + steps * tokens);
            }
            for (tokens, computed) in decodes {
                batch.add_decode(tokens, computed);
                later.add_decode(tokens, computed + steps * tokens);
            }
            batch.advance(steps);
            prop_assert_eq!(batch, later);
        }

        #[test]
        fn unlisted_decodes_have_the_sums_of_listed_ones(
            listed in rows(3), others in prop::collection::vec(0u32..5000, 0..6), steps in 0u32..100,
        ) {
            let (mut some, mut all) = (BatchShape::default(), BatchShape::default());
            for &(tokens, computed) in &listed {
                some.add_decode(tokens, computed);
                all.add_decode(tokens, computed);
            }
            let context = others.iter().map(|&c| u64::from(c) + 1).sum();
            some.add_decodes(others.len() as u32, context);
            others.iter().for_each(|&c| all.add_decode(1, c));
            prop_assert_eq!(some.unlisted_decodes(), (others.len() as u32, context));
            some.advance(steps);
            all.advance(steps);
            prop_assert_eq!(some.sums(), all.sums());
        }
    }
}
