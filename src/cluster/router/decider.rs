//! Whether a prefill on another target is worth it, once the decode target is chosen (rules D23, D31).

/// When a prompt is prefilled elsewhere. The decode target is chosen first (D23), then this is asked with the tokens
/// that are cached there: [`super::Router::believed_cached`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefillDecider {
    /// Every prompt is.
    Always,
    /// llm-d: those with at least `threshold` tokens not cached at the decode target; 0 turns disaggregation off
    /// (D23).
    Uncached {
        /// Tokens.
        threshold: u32,
    },
    /// Dynamo: those with more than `threshold` tokens not cached at the decode target, while the queue of prefills is
    /// shorter than `queue_limit` (D31).
    LongAndFree {
        /// Tokens.
        threshold: u32,
        /// Requests.
        queue_limit: u32,
    },
}

impl PrefillDecider {
    /// Whether a prompt of `input_tokens`, of which `cached_tokens` are at its decode target, is prefilled elsewhere
    /// with `queued` requests waiting for a prefill.
    pub fn is_remote(self, input_tokens: u32, cached_tokens: u32, queued: u32) -> bool {
        let uncached = input_tokens.saturating_sub(cached_tokens);
        match self {
            Self::Always => true,
            Self::Uncached { threshold } => threshold > 0 && uncached >= threshold,
            Self::LongAndFree {
                threshold,
                queue_limit,
            } => uncached > threshold && queued < queue_limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thresholds_are_those_of_d23_and_d31() {
        let llm_d = PrefillDecider::Uncached { threshold: 100 };
        assert!(llm_d.is_remote(150, 50, 0));
        assert!(!llm_d.is_remote(150, 51, 0));
        assert!(!PrefillDecider::Uncached { threshold: 0 }.is_remote(1000, 0, 0));
        let dynamo = PrefillDecider::LongAndFree {
            threshold: 100,
            queue_limit: 2,
        };
        assert!(dynamo.is_remote(151, 50, 1));
        assert!(!dynamo.is_remote(150, 50, 1), "exactly the threshold is local");
        assert!(!dynamo.is_remote(151, 50, 2), "the queue is full");
        assert!(!dynamo.is_remote(10, 50, 0), "more cached than asked");
        assert!(PrefillDecider::Always.is_remote(1, 1, u32::MAX));
    }
}
