//! The way between client and engine: HTTP, tokenizer, and the API server's hops to the engine and back.

use crate::record::{RequestRecord, RunRecord, Status, TokenLog};
use crate::units::{SimDuration, SimTime};

/// Time of the front end on both sides of the engine. The default is none: clients then stand at the engine.
///
/// The wait for the running step is not part of it: that is simulated. A request reaches the engine `inbound`
/// after it was sent and is seen by the scheduler when the step then running has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrontEnd {
    /// From the client's send to the delivery at the engine (connect, parse, tokenize, hop).
    pub inbound: SimDuration,
    /// From the end of a step to the client's receipt of its tokens (hop, detokenize, stream).
    pub outbound: SimDuration,
    /// Further delay that each output token before adds to those after it (a client or API server that cannot
    /// keep up with the stream).
    pub per_output_token: SimDuration,
}

impl FrontEnd {
    /// The client sees tokens later than the engine makes them.
    pub fn delays_tokens(&self) -> bool {
        self.outbound > SimDuration::ZERO || self.per_output_token > SimDuration::ZERO
    }

    /// When the client sees tokens that the engine made at `made`, `before` tokens having come before them.
    pub fn seen(&self, made: SimTime, before: u32) -> SimTime {
        made + self.outbound + self.per_output_token * u64::from(before)
    }

    /// Moves the tokens of a run to where the client saw them. Segments count the engine's steps, so each
    /// token gets its own instant. Of a run that is cut off, what the client would see after `until` is not there: a
    /// request of which anything is missing is unfinished.
    pub(super) fn shift_tokens(&self, run: &mut RunRecord, until: Option<SimTime>) {
        if !self.delays_tokens() {
            return;
        }
        let mut requests = std::mem::take(&mut run.requests);
        for request in &mut requests {
            let mut times = self.seen_times(run, request);
            if let Some(until) = until
                && times.last().is_some_and(|last| *last > until)
            {
                times.retain(|at| *at <= until);
                request.output_tokens = times.len() as u32;
                (request.status, request.finish_reason) = (Status::Unfinished, None);
            }
            run.end = run.end.max(times.last().copied().unwrap_or_default());
            request.first_token = times.first().copied();
            request.last_token = times.last().copied();
            request.tokens = TokenLog::Times(times);
        }
        run.requests = requests;
    }

    /// When the client saw each token; those of one step come together.
    fn seen_times(&self, run: &RunRecord, request: &RequestRecord) -> Vec<SimTime> {
        let (mut chunk, mut before) = (None, 0);
        run.token_times(request)
            .zip(0..)
            .map(|(made, index)| {
                if chunk != Some(made) {
                    (chunk, before) = (Some(made), index);
                }
                self.seen(made, before)
            })
            .collect()
    }
}
