//! What one engine step computes, as the step-time models see it.

/// The shape of one step's batch.
///
/// A row is a *decode* when it feeds exactly one token (plus speculative drafts) at or past the end of the
/// prompt; every other row is a *prefill*: prompt chunks, and the replay of a preempted request.
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
    /// The decode rows one by one.
    pub decodes: Vec<RowShape>,
}

/// One row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowShape {
    /// Tokens fed in this step.
    pub tokens: u32,
    /// Tokens computed before it (or found in the prefix cache).
    pub computed: u32,
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

    /// Adds `rows` decode rows of one token each that together attend `context` positions, without listing them.
    pub fn add_decodes(&mut self, rows: u32, context: u64) {
        self.decode_seqs += rows;
        self.decode_tokens += rows;
        self.decode_context_tokens += context;
    }

    /// The batch `steps` steps later, every row getting the same number of tokens again.
    pub fn advance(&mut self, steps: u32) {
        for row in &mut self.decodes {
            row.computed += steps * row.tokens;
        }
        self.decode_context_tokens += u64::from(self.decode_tokens) * u64::from(steps);
        self.prefill_token_context = 0;
        for row in &mut self.prefills {
            row.computed += steps * row.tokens;
            self.prefill_token_context += attended(row.tokens, row.computed);
        }
    }

    /// Adds a decode row of `tokens` (1 + drafts) after `computed` tokens.
    pub fn add_decode(&mut self, tokens: u32, computed: u32) {
        self.decode_seqs += 1;
        self.decode_tokens += tokens;
        self.decode_context_tokens += attended(tokens, computed);
        self.decodes.push(RowShape { tokens, computed });
    }
}

/// Positions attended by `tokens` consecutive tokens after `computed` ones.
pub const fn attended(tokens: u32, computed: u32) -> u64 {
    let (n, c) = (tokens as u64, computed as u64);
    n * c + n * (n + 1) / 2
}
